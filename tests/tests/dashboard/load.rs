//! A page of a large run under load: the times of its frames and its memory.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::browser::Browser;
use super::local::LocalCluster;

/// The work of a task under load. A worker has 8 slots and a task has 5 events, so that there are about 50 events in a second.
pub const DELAY_MS: u64 = 800;
/// The views that are measured, one after the other.
const VIEWS: [&str; 4] = ["Graph", "Tasks", "Timeline", "Log"];

/// The frames of a view.
pub struct ViewLoad {
    /// The view.
    pub view: &'static str,
    /// The time between two frames that 95 of 100 do not exceed, in milliseconds.
    pub p95: f64,
}

/// Submits a run of levels of 100 tasks, each of which depends on two of the level before and works for `delay_ms`.
pub async fn submit_large_run(cluster: &LocalCluster, tasks: usize, delay_ms: u64) -> String {
    let task = |number: usize| {
        let before: Vec<String> = match number < 100 {
            true => Vec::new(),
            false => [0, 1]
                .iter()
                .map(|next| format!("t{}", (number / 100 - 1) * 100 + (number + next) % 100))
                .collect(),
        };
        json!({ "id": format!("t{number}"), "objective": format!("Part {number}"), "capability": "echo", "depends_on": before, "parameters": { "delay_ms": delay_ms } })
    };
    let tasks: Vec<Value> = (0..tasks).map(task).collect();
    cluster.submit(&json!({ "objective": "Many parts", "plan": { "tasks": tasks } })).await
}

/// Measures each view of a run for a time.
pub async fn measure_views(browser: &Browser, run: &str, time: Duration) -> Vec<ViewLoad> {
    browser.open(&format!("/runs/{run}")).await;
    browser.wait_for_text(".node", "echo").await;
    let recorder = "window.frameTimes = []; let last = performance.now(); \
                    const next = (now) => { frameTimes.push(now - last); last = now; requestAnimationFrame(next); }; requestAnimationFrame(next);";
    browser.evaluate(recorder).await;
    let mut loads = Vec::new();
    for view in VIEWS {
        browser.click(".tabs a", view).await;
        browser.wait_until_read().await;
        let (memory, before) = (used_memory(browser).await, count_decisions(browser).await);
        browser.evaluate("frameTimes.length = 0").await;
        let started = Instant::now();
        tokio::time::sleep(time).await;
        let frames = browser.evaluate("return frameTimes.slice().sort((a, b) => a - b)").await;
        let frames: Vec<f64> = frames.as_array().unwrap().iter().filter_map(Value::as_f64).collect();
        let at = |part: f64| frames[((frames.len() - 1) as f64 * part) as usize];
        let decisions = (count_decisions(browser).await - before) / started.elapsed().as_secs_f64();
        let memory = (memory, used_memory(browser).await);
        let load = ViewLoad { view, p95: at(0.95) };
        println!(
            "dashboard: {view}: {} frames, median {:.1} ms, 95% {:.1} ms, longest {:.0} ms; {decisions:.1} decisions/s; {:.1} to {:.1} MB",
            frames.len(),
            at(0.5),
            load.p95,
            at(1.0),
            memory.0,
            memory.1
        );
        loads.push(load);
    }
    loads
}

/// The number of decisions that the page has.
async fn count_decisions(browser: &Browser) -> f64 {
    browser
        .evaluate("return Number(document.querySelector('input[type=range]')?.max ?? 0)")
        .await
        .as_f64()
        .unwrap()
}

async fn used_memory(browser: &Browser) -> f64 {
    browser.command("HeapProfiler.collectGarbage", json!({})).await;
    browser.evaluate("return performance.memory.usedJSHeapSize / 1e6").await.as_f64().unwrap()
}
