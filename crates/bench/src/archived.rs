//! Requests to a cluster with many archived runs: lists, filters, pages, reads and deletions; and new small runs in it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use millrace_protocol::ids::RunId;
use millrace_protocol::registry::RunSummary;
use millrace_runtime::Bus;
use millrace_runtime::work::registry;

use crate::cluster::{BenchCluster, BenchOptions, POLL_INTERVAL};
use crate::http::HttpConnection;
use crate::report::{BoundedFigure, median, quantile};
use crate::runs::run_one;

/// The maximum number of real runs, before the summaries of archived runs are written and again afterwards. They are timed, read and
/// deleted.
const REAL: u32 = 200;
/// The number of real runs before those that are timed.
const WARM_UP: u32 = 100;
/// The number of requests of each kind.
const REQUESTS: usize = 300;
/// The number of summaries that are written at once.
const WRITES: usize = 256;
/// The time in which the real runs are archived.
const ARCHIVING: Duration = Duration::from_secs(60);
/// The aim for each kind of request, in milliseconds.
const AIM_MS: f64 = 50.0;
/// The most that a small run may take, in multiples of its time without archived runs.
const MAX_SLOWDOWN: f64 = 1.25;

/// Measures requests to a cluster with `runs` archived runs.
pub async fn measure_archived_runs(
    options: &BenchOptions,
    runs: u32,
) -> anyhow::Result<BTreeMap<&'static str, BoundedFigure>> {
    let options = BenchOptions { serves_api: true, ..options.clone() };
    let cluster = BenchCluster::start(&options).await?;
    let mut connection = HttpConnection::open(cluster.api_address()?).await?;
    // The first runs of a cluster are slower.
    time_runs(&mut connection, runs.min(WARM_UP)).await?;
    let (mut real, alone) = time_runs(&mut connection, runs.min(REAL)).await?;
    let archived = await_archived(cluster.bus(), &real).await?;
    write_summaries(cluster.bus(), &archived, runs).await?;
    // The gateway has closed a connection that was idle for so long.
    let mut connection = HttpConnection::open(cluster.api_address()?).await?;
    // The gateway reads the summaries that have changed.
    let list = connection.send("GET", "/api/v1/runs", "").await?.json(200)?;
    ensure!(list["next"].as_str().is_some_and(|next| !next.is_empty()), "the list has one part only");
    let repeat = |path: &'static str| std::iter::repeat_n(("GET", path.to_owned()), REQUESTS);
    let listed = time_requests(&mut connection, repeat("/api/v1/runs")).await?;
    let filters = ["label=team=t7", "state=failed", "text=part%2077", "since=2h"];
    let filtered =
        (0..REQUESTS).map(|number| ("GET", format!("/api/v1/runs?{}", filters[number % filters.len()])));
    let filtered = time_requests(&mut connection, filtered).await?;
    let paged = time_pages(&mut connection).await?;
    let (more, beside) = time_runs(&mut connection, runs.min(REAL)).await?;
    await_archived(cluster.bus(), &more).await?;
    real.extend(more);
    let slowdown = median(beside) / median(alone);
    let read = real.iter().map(|run| ("GET", format!("/api/v1/runs/{run}")));
    let read = time_requests(&mut connection, read).await?;
    let deleted = real.iter().map(|run| ("DELETE", format!("/api/v1/runs/{run}?wait=0")));
    let deleted = time_requests(&mut connection, deleted).await?;
    cluster.stop_cluster().await;
    let p99 = |what, times: Vec<f64>| BoundedFigure::with_maximum(what, "ms", quantile(times, 0.99), AIM_MS);
    Ok(BTreeMap::from([
        ("archived_list", p99("list of the newest runs (p99)", listed)),
        ("archived_filter", p99("list filtered by label, state, text or time (p99)", filtered)),
        ("archived_page", p99("page of 1,000 runs, of the whole list (p99)", paged)),
        ("archived_read", p99("read of an archived run (p99)", read)),
        ("archived_delete", p99("request to delete an archived run (p99)", deleted)),
        (
            "archived_submit",
            BoundedFigure::with_maximum(
                "a small run from submission to end, in multiples of its time without archived runs (p50)",
                "times",
                slowdown,
                MAX_SLOWDOWN,
            ),
        ),
    ]))
}

/// Carries out this number of small runs, one after the other. Returns them, and their times in seconds.
async fn time_runs(connection: &mut HttpConnection, count: u32) -> anyhow::Result<(Vec<RunId>, Vec<f64>)> {
    let (mut runs, mut times) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let began = Instant::now();
        runs.push(run_one(connection).await?);
        times.push(began.elapsed().as_secs_f64());
    }
    Ok((runs, times))
}

/// Waits until these runs are archived and returns the summary of one.
async fn await_archived(bus: &Bus, runs: &[RunId]) -> anyhow::Result<RunSummary> {
    let began = Instant::now();
    let mut last = None;
    for run in runs {
        last = loop {
            let summary = registry::read_summary(bus, run).await?;
            if summary.as_ref().is_some_and(|summary| summary.archived) {
                break summary;
            }
            ensure!(began.elapsed() < ARCHIVING, "run {run} is not archived after {ARCHIVING:?}");
            tokio::time::sleep(POLL_INTERVAL).await;
        };
    }
    last.context("no run")
}

/// Writes the summaries of `count` archived runs that started within the last 30 days.
async fn write_summaries(bus: &Bus, pattern: &RunSummary, count: u32) -> anyhow::Result<()> {
    let now = Timestamp::now();
    let pause = Duration::from_secs(30 * 86_400) / count.max(1);
    let summaries = (0..count).map(|number| {
        let started = now - pause * number;
        let labels = BTreeMap::from([("team".to_owned(), format!("t{}", number % 1_000))]);
        let objective = format!("Write part {number} of the archive");
        RunSummary { run: RunId::generate(started, number), started, objective, labels, ..pattern.clone() }
    });
    let writes = futures::stream::iter(summaries)
        .map(|summary| async move { registry::write_summary(bus, &summary).await });
    Ok(writes.buffer_unordered(WRITES).try_collect::<()>().await?)
}

/// Sends requests one after the other and returns their times in milliseconds.
async fn time_requests(
    connection: &mut HttpConnection,
    requests: impl Iterator<Item = (&'static str, String)>,
) -> anyhow::Result<Vec<f64>> {
    let mut times = Vec::new();
    for (method, path) in requests {
        let began = Instant::now();
        let response = connection.send(method, &path, "").await?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
        ensure!(response.status < 300, "{method} {path}: status {}", response.status);
    }
    Ok(times)
}

/// Reads the list from its first to its last page and returns the time of each page in milliseconds.
async fn time_pages(connection: &mut HttpConnection) -> anyhow::Result<Vec<f64>> {
    let (mut times, mut cursor) = (Vec::new(), String::new());
    loop {
        let began = Instant::now();
        let page = connection.send("GET", &format!("/api/v1/runs?limit=1000&cursor={cursor}"), "").await?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
        let page = page.json(200)?;
        page["next"].as_str().unwrap_or_default().clone_into(&mut cursor);
        if cursor.is_empty() {
            return Ok(times);
        }
    }
}
