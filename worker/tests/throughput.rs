//! How fast a worker gets through work that is nothing but overhead. Not run by default: it measures, and a figure is
//! worth something only in a release build on a quiet machine:
//! `cargo test --release -p millrace-worker --test throughput -- --ignored --nocapture`.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod support;

use std::time::Instant;

use millrace_runtime::queue;
use millrace_worker::{CancellationToken, Config, builtin, run};
use serde_json::json;
use support::{Cluster, order};

const ORDERS: usize = 40_000;

#[test]
#[ignore = "it measures"]
fn a_worker_with_1024_slots_gets_through_orders() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let cluster = Cluster::start().await;
        let orders: Vec<_> =
            (0..ORDERS).map(|number| order("echo", &format!("t{number}"), json!({}))).collect();
        let started = Instant::now();
        for some in orders.chunks(1_000) {
            queue::offer(&cluster.bus, some.to_vec()).await.map_err(|(_, fault)| fault).unwrap();
        }
        println!("offered {ORDERS} orders at {:.0}/s", ORDERS as f64 / started.elapsed().as_secs_f64());
        let before = processor_time();
        let stop = CancellationToken::new();
        let echo = vec![builtin::open("echo").unwrap()];
        let config = Config { slots: 1024, document_cache: None, ..Config::new(cluster.connection(), echo) };
        let started = Instant::now();
        let worker = tokio::spawn(run(config, stop.clone()));
        cluster.waiting("echo", 0).await;
        let took = started.elapsed();
        println!(
            "{:.0} attempts/s; {:.0} us of processor time each",
            ORDERS as f64 / took.as_secs_f64(),
            (processor_time() - before) * 1e6 / ORDERS as f64
        );
        stop.cancel();
        worker.await.unwrap().unwrap();
    });
}

/// Seconds of processor time that this process has used.
fn processor_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / 100.0
}
