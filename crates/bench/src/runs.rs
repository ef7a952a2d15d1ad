//! Small runs over HTTP: the time from the request that submits a run with one task to the response that has its end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use millrace_protocol::ids::RunId;
use serde_json::json;

use crate::cluster::{BenchCluster, BenchOptions};
use crate::http::HttpConnection;
use crate::process::{CpuSeconds, cpu_seconds_between};
use crate::report::{BoundedFigure, quantile};

/// The number of connections, each with one run at a time.
const CONNECTIONS: u32 = 64;
/// The number of runs before the measurement.
const WARM_UP: u32 = 500;

/// Measures `runs` runs. `notify` receives a line with the CPU time of each process.
pub async fn measure_runs(
    options: &BenchOptions,
    runs: u32,
    notify: &dyn Fn(&str),
) -> anyhow::Result<BTreeMap<&'static str, BoundedFigure>> {
    let options = BenchOptions { serves_api: true, ..options.clone() };
    let cluster = BenchCluster::start(&options).await?;
    run_all(&cluster, WARM_UP.min(runs)).await?;
    let before = cluster.cpu_seconds();
    let began = Instant::now();
    let times = run_all(&cluster, runs).await?;
    let took = began.elapsed().as_secs_f64();
    notify(&describe_cpu(&cpu_seconds_between(&before, &cluster.cpu_seconds()), runs));
    cluster.stop_cluster().await;
    let milliseconds = |share| quantile(times.iter().map(|time| time.as_secs_f64() * 1e3), share);
    Ok(BTreeMap::from([
        (
            "runs",
            BoundedFigure::with_minimum(
                "runs of one task over HTTP, 64 connections, from request to end",
                "runs/s",
                f64::from(runs) / took.max(1e-9),
                1_000.0,
            ),
        ),
        (
            "runs_p50",
            BoundedFigure::with_maximum("the time of such a run (p50)", "ms", milliseconds(0.5), 100.0),
        ),
        (
            "runs_p99",
            BoundedFigure::with_maximum("the time of such a run (p99)", "ms", milliseconds(0.99), 500.0),
        ),
    ]))
}

fn describe_cpu(seconds: &CpuSeconds, runs: u32) -> String {
    let each = |(name, seconds): (&String, &f64)| format!("{name} {:.0}", seconds * 1e6 / f64::from(runs));
    let all: Vec<String> = seconds.iter().map(each).collect();
    format!("millrace: CPU time of each run in microseconds: {}", all.join(", "))
}

/// Submits runs on all connections and waits for their ends; returns the times.
async fn run_all(cluster: &BenchCluster, runs: u32) -> anyhow::Result<Vec<Duration>> {
    let left = Arc::new(AtomicU32::new(runs));
    let address = cluster.api_address()?;
    let mut tasks = Vec::new();
    for _ in 0..CONNECTIONS {
        let left = left.clone();
        tasks.push(tokio::spawn(async move {
            let mut connection = HttpConnection::open(address).await?;
            let mut times = Vec::new();
            let take = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            while take().is_ok() {
                let began = Instant::now();
                run_one(&mut connection).await?;
                times.push(began.elapsed());
            }
            Ok::<_, anyhow::Error>(times)
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await??);
    }
    Ok(all)
}

/// Submits a run, waits for its end and returns its id.
pub async fn run_one(connection: &mut HttpConnection) -> anyhow::Result<RunId> {
    let task = json!({ "id": "a", "objective": "say it", "capability": "echo" });
    let body = json!({ "objective": "say it", "plan": { "tasks": [task] } }).to_string();
    let submitted = connection.send("POST", "/api/v1/runs", &body).await?.json(201)?;
    let run = submitted["run"].as_str().unwrap_or_default();
    let path = format!("/api/v1/runs/{run}/wait?timeout=60");
    let ended = connection.send("GET", &path, "").await?.json(200)?;
    ensure!(ended["state"] == "completed", "run {run} ended as {}", ended["state"]);
    Ok(RunId::new(run)?)
}
