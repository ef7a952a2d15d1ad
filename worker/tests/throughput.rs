//! Throughput of a worker on tasks that are nothing but overhead. Ignored by default: it is a measurement, which needs a
//! release build and an idle machine:
//! `cargo test --release -p millrace-worker --test it throughput -- --ignored --nocapture`.
use std::time::Instant;

use crate::support::{Cluster, build_order};
use millrace_runtime::work::queue;
use millrace_worker::{AgentHostConfig, CancellationToken, WorkerConfig, builtin, run_worker};
use serde_json::json;

const ORDERS: usize = 40_000;

#[test]
#[ignore = "a measurement"]
fn throughput_of_a_worker_with_1024_slots() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let cluster = Cluster::start().await;
        let orders: Vec<_> =
            (0..ORDERS).map(|number| build_order("echo", &format!("t{number}"), json!({}))).collect();
        let started = Instant::now();
        for some in orders.chunks(1_000) {
            queue::publish_orders(&cluster.bus, some.to_vec()).await.map_err(|(_, fault)| fault).unwrap();
        }
        println!("offered {ORDERS} orders at {:.0}/s", ORDERS as f64 / started.elapsed().as_secs_f64());
        let before = read_processor_seconds();
        let stop = CancellationToken::new();
        let echo = vec![builtin::open_built_in("echo").unwrap()];
        let host = AgentHostConfig {
            slots: 1024,
            document_cache: None,
            ..AgentHostConfig::new(cluster.connection())
        };
        let config = WorkerConfig { capabilities: echo, host };
        let started = Instant::now();
        let worker = tokio::spawn(run_worker(config, stop.clone()));
        cluster.await_waiting_orders("echo", 0).await;
        let took = started.elapsed();
        println!(
            "{:.0} attempts/s; {:.0} us of processor time each",
            ORDERS as f64 / took.as_secs_f64(),
            (read_processor_seconds() - before) * 1e6 / ORDERS as f64
        );
        stop.cancel();
        worker.await.unwrap().unwrap();
    });
}

/// Returns the processor time that this process has used, in seconds.
fn read_processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / 100.0
}
