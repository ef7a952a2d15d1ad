//! Utilization of worker slots: tasks with a delay, each reviewed, on several workers. A slot is busy from the claim of an
//! attempt to its outcome; the time between an outcome and the next claim is the overhead of the cluster.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::plan::JournalKey;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire;
use millrace_protocol::work::JournalEntry;
use millrace_runtime::nats::record::StreamRecord;

use crate::cluster::{BenchCluster, BenchOptions};
use crate::plans;
use crate::report::{BoundedFigure, median};
use crate::run::measure_run;
use crate::speed::warm_up_cluster;

/// Duration of a task.
const DELAY: Duration = Duration::from_millis(50);
/// Number of workers.
const WORKERS: u32 = 4;
/// Slots per worker.
const SLOTS: u32 = 5;
/// Minimum utilization of the slots.
const BUSY: f64 = 0.95;

/// Returns the utilization of the slots between the first claim and the last outcome.
pub async fn measure_slot_use(
    options: &BenchOptions,
    tasks: u32,
    rounds: u32,
) -> anyhow::Result<BoundedFigure> {
    let options = BenchOptions { workers: WORKERS, slots: SLOTS, ..options.clone() };
    let mut cluster = BenchCluster::start(&options).await?;
    warm_up_cluster(&mut cluster, tasks, true).await?;
    let mut shares = Vec::new();
    for _ in 0..rounds {
        let measured =
            measure_run(&mut cluster, &plans::reviewed_submission_with_delay(tasks, DELAY)).await?;
        shares.push(slot_utilization(&measured.records, WORKERS * SLOTS));
    }
    cluster.stop_cluster().await;
    Ok(BoundedFigure::with_minimum(
        "utilization of 20 slots on 4 workers: tasks of 50 ms, each reviewed",
        "",
        median(shares),
        BUSY,
    ))
}

/// Returns the utilization of `slots` slots from the first claim to the last outcome.
fn slot_utilization(records: &[StreamRecord], slots: u32) -> f64 {
    let mut claimed: HashMap<Topic, Timestamp> = HashMap::new();
    let mut worked = 0.0;
    let (mut first, mut last) = (None, None);
    for record in records {
        let Some((_, _, topic @ Topic::Journal(JournalKey::Task(..)))) =
            subject::parse_lane_subject(&record.subject)
        else {
            continue;
        };
        match wire::decode_message::<JournalEntry>(&record.payload, record.encoding) {
            Ok(JournalEntry::Claimed { .. }) => {
                first.get_or_insert(record.time);
                claimed.insert(topic, record.time);
            }
            Ok(JournalEntry::Outcome { .. }) => {
                last = Some(record.time);
                if let Some(since) = claimed.remove(&topic) {
                    worked += record.time.duration_since(since).as_secs_f64();
                }
            }
            Ok(_) | Err(_) => {}
        }
    }
    let span = first
        .zip(last)
        .map_or(0.0, |(first, last): (Timestamp, Timestamp)| last.duration_since(first).as_secs_f64());
    worked / (span * f64::from(slots)).max(1e-9)
}
