//! Latency of delegation, from the storage times of its messages, in hops of a chain in the same run: a hop is the time between
//! the ends of two tasks of which one depends on the other.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::JournalKey;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire;
use millrace_protocol::work::JournalEntry;
use millrace_runtime::nats::record::StreamRecord;

use crate::cluster::BenchOptions;
use crate::plans;
use crate::report::{BoundedFigure, median, quantile};
use crate::run::{decode_decisions, hop_times, run_to_archive};
use crate::speed::start_warm_cluster;

/// The maximum of both figures.
const MAX_HOPS: f64 = 2.0;

/// Measures both figures with `tasks` tasks that delegate one task each, one after the other.
pub async fn measure_delegation(
    options: &BenchOptions,
    tasks: u32,
    rounds: u32,
) -> anyhow::Result<BTreeMap<&'static str, BoundedFigure>> {
    let mut cluster = start_warm_cluster(options, tasks, false).await?;
    let (mut hops, mut starts, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (_, records) = run_to_archive(&mut cluster, &plans::delegating_submission(tasks)).await?;
        let decisions = decode_decisions(&cluster, &records).await?;
        // The tasks of the second half delegate none.
        let all = hop_times(&decisions);
        let hop = median_milliseconds(&all[all.len().saturating_sub(tasks as usize - 1)..]);
        let latencies = DelegationLatencies::from_records(&records);
        hops.push(hop);
        starts.push(median_milliseconds(&latencies.to_claim) / hop.max(1e-9));
        ends.push(median_milliseconds(&latencies.to_parent) / hop.max(1e-9));
    }
    cluster.stop_cluster().await;
    let in_hops = |what, figures| BoundedFigure::with_maximum(what, "hops", median(figures), MAX_HOPS);
    Ok(BTreeMap::from([
        ("delegate_start", in_hops("from a journaled call to the claim of the delegated task (p50)", starts)),
        ("delegate_end", in_hops("from the end of a delegated task to its parent's next entry (p50)", ends)),
        (
            "delegate_hop",
            BoundedFigure::with_maximum("a hop of the chain in the same run (p50)", "ms", median(hops), 10.0),
        ),
    ]))
}

fn median_milliseconds(times: &[Duration]) -> f64 {
    quantile(times.iter().map(|time| time.as_secs_f64() * 1e3), 0.5)
}

/// The latencies of all delegations of a run with one task in flight.
#[derive(Debug, Default, PartialEq)]
struct DelegationLatencies {
    /// From the entry that delegates to the child's claim.
    to_claim: Vec<Duration>,
    /// From the child's end to the first entry of its parent after the parent's claim.
    to_parent: Vec<Duration>,
}

/// The delegation in progress.
enum DelegationStage {
    Called { parent: TaskId, at: Timestamp },
    Claimed { parent: TaskId, child: TaskId },
    Ended { parent: TaskId, at: Timestamp },
}

impl DelegationLatencies {
    fn from_records(records: &[StreamRecord]) -> Self {
        let (mut latencies, mut stage) = (Self::default(), None);
        for record in records {
            let topic = subject::parse_lane_subject(&record.subject);
            let Some((_, _, Topic::Journal(JournalKey::Task(task, _)))) = topic else { continue };
            if let Ok(entry) = wire::decode_message::<JournalEntry>(&record.payload, record.encoding) {
                stage = latencies.next_stage(stage, task, &entry, record.time);
            }
        }
        latencies
    }

    fn next_stage(
        &mut self,
        stage: Option<DelegationStage>,
        task: TaskId,
        entry: &JournalEntry,
        at: Timestamp,
    ) -> Option<DelegationStage> {
        let since = |from: Timestamp| Duration::try_from(at.duration_since(from)).unwrap_or_default();
        match (stage, entry) {
            (_, JournalEntry::Parked { .. }) => Some(DelegationStage::Called { parent: task, at }),
            (Some(DelegationStage::Called { parent, at: called }), JournalEntry::Claimed { .. })
                if task != parent =>
            {
                self.to_claim.push(since(called));
                Some(DelegationStage::Claimed { parent, child: task })
            }
            (Some(DelegationStage::Claimed { parent, child }), JournalEntry::Outcome { .. })
                if task == child =>
            {
                Some(DelegationStage::Ended { parent, at })
            }
            (
                Some(DelegationStage::Ended { parent, at: ended }),
                JournalEntry::Step { .. } | JournalEntry::Outcome { .. },
            ) if task == parent => {
                self.to_parent.push(since(ended));
                None
            }
            (stage, _) => stage,
        }
    }
}
