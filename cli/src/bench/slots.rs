//! How busy the slots are kept: tasks that take their time, each reviewed, over several workers. A slot is busy from the
//! claim of an attempt to its outcome; what lies between an outcome and the next claim is what the cluster costs.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire;
use millrace_protocol::work::Entry;
use millrace_runtime::record::Record;

use super::ground::{Ground, Wishes};
use super::plans;
use super::report::{Bounded, median};
use super::run::measure;
use super::speed::warm;

/// How long a task takes.
const DELAY: Duration = Duration::from_millis(50);
/// How many workers there are.
const WORKERS: u32 = 4;
/// How many slots each has.
const SLOTS: u32 = 5;
/// The least share of their time that slots are to be busy.
const BUSY: f64 = 0.95;

/// Measures, and gives the share of the slots' time between the first claim and the last outcome in which they had work.
pub async fn slots(wishes: &Wishes, tasks: u32, rounds: u32) -> anyhow::Result<Bounded> {
    let wishes = Wishes { workers: WORKERS, slots: SLOTS, ..wishes.clone() };
    let mut ground = Ground::start(&wishes).await?;
    warm(&mut ground, tasks, true).await?;
    let mut shares = Vec::new();
    for _ in 0..rounds {
        let measured = measure(&mut ground, &plans::that_take(tasks, DELAY)).await?;
        shares.push(busy(&measured.records, WORKERS * SLOTS));
    }
    ground.stop().await;
    Ok(Bounded::at_least(
        "share of the time in which 20 slots of 4 workers had work: tasks of 50 ms, each reviewed",
        "",
        median(shares),
        BUSY,
    ))
}

/// The share of the time from the first claim to the last outcome in which so many slots had an attempt.
fn busy(records: &[Record], slots: u32) -> f64 {
    let mut claimed: HashMap<Topic, Timestamp> = HashMap::new();
    let mut worked = 0.0;
    let (mut first, mut last) = (None, None);
    for record in records {
        let Some((_, _, topic @ Topic::Task(..))) = subject::parse(&record.subject) else { continue };
        match wire::open::<Entry>(&record.payload, record.encoding) {
            Ok(Entry::Claimed { .. }) => {
                first.get_or_insert(record.time);
                claimed.insert(topic, record.time);
            }
            Ok(Entry::Outcome { .. }) => {
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
