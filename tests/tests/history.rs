//! Tests of the history checker that other tests rely on: it detects corrupted histories.

use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::plan::{JournalKey, ReviewPolicy};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::decode_message;
use millrace_protocol::work::JournalEntry;
use millrace_runtime::nats::record::StreamRecord;
use millrace_tests::cluster::{ClusterSetup, TestCluster};
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{fan_out_submission, run_id, submit_run, wait_for_run_history};
use serde_json::json;

/// The indices of the messages that match.
fn matching_indices(
    records: &[StreamRecord],
    matches: impl Fn(&Topic, Option<&JournalEntry>) -> bool,
) -> Vec<usize> {
    let meant = |record: &StreamRecord| {
        let (_, _, topic) =
            subject::parse_lane_subject(&record.subject).expect("every message has its place");
        matches(&topic, decode_message::<JournalEntry>(&record.payload, record.encoding).ok().as_ref())
    };
    (0..records.len()).filter(|&place| meant(&records[place])).collect()
}

/// The same messages with a duplicate of one at the end.
fn with_duplicate(records: &[StreamRecord], place: usize) -> Vec<StreamRecord> {
    let mut records = records.to_vec();
    let last = records.last().expect("there are messages").sequence;
    records.push(StreamRecord { sequence: last + 1, ..records[place].clone() });
    records
}

fn without_message(records: &[StreamRecord], place: usize) -> Vec<StreamRecord> {
    let mut records = records.to_vec();
    records.remove(place);
    records
}

#[tokio::test(flavor = "multi_thread")]
async fn corrupted_histories_are_detected() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("tampered"));
    let mut submission = fan_out_submission(6, &json!({ "steps": 2, "delay_ms": 20 }));
    Arc::make_mut(&mut submission.tasks[0]).review = ReviewPolicy::critic(Vec::new());
    submit_run(&bus, &run, &submission).await;
    let history = wait_for_run_history(&bus, &run, Duration::from_secs(30)).await;
    history.assert_consistent();
    let ledger = cluster.read_ledger();
    assert_eq!(history.find_ledger_violations(&ledger), Vec::<String>::new());

    let records = history.records();
    let is_step = |_: &Topic, entry: Option<&JournalEntry>| matches!(entry, Some(JournalEntry::Step { .. }));
    let is_claim =
        |_: &Topic, entry: Option<&JournalEntry>| matches!(entry, Some(JournalEntry::Claimed { .. }));
    let is_outcome = |topic: &Topic, entry: Option<&JournalEntry>| {
        matches!((topic, entry), (Topic::Journal(JournalKey::Task(..)), Some(JournalEntry::Outcome { .. })))
    };
    let decisions = matching_indices(records, |topic, _| *topic == Topic::Plan);
    let (step, claim) = (matching_indices(records, is_step)[0], matching_indices(records, is_claim)[0]);
    let outcome = matching_indices(records, is_outcome)[0];
    for (what, records, part) in [
        ("a lost decision", without_message(records, decisions[1]), "follows"),
        ("a decision made twice", with_duplicate(records, decisions[decisions.len() - 2]), "again"),
        ("a step done twice", with_duplicate(records, step), "step 1 is the 3."),
        ("a lost step", without_message(records, step), "step 2 is the 1."),
        ("a lost claim", without_message(records, claim), "before the first claim"),
        ("a second outcome", with_duplicate(records, outcome), "second outcome"),
        ("a lost outcome", without_message(records, outcome), "has no outcome"),
    ] {
        let violations =
            History::from_records(&bus, &run, records).await.unwrap().find_violations().join("\n");
        assert!(violations.contains(part), "{what}: {violations:?}");
    }
    let twice = format!("{ledger}{}\n", ledger.lines().next().unwrap());
    assert_eq!(history.find_ledger_violations(&twice).len(), 1, "a repeated step");
    let less: String = ledger.lines().skip(1).map(|line| format!("{line}\n")).collect();
    assert_eq!(history.find_ledger_violations(&less).len(), 1, "a missing step");
    cluster.stop_all();
}
