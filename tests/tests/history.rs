//! The checker that the other tests rely on can tell: histories that were tampered with are found out.

use std::time::Duration;

use millrace_protocol::plan::Review;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::open;
use millrace_protocol::work::Entry;
use millrace_runtime::record::Record;
use millrace_tests::cluster::{Cluster, Setup, alone};
use millrace_tests::history::History;
use millrace_tests::plans::{fan_out, finished, run, submit};
use serde_json::json;

/// The places of the messages of a kind.
fn places(records: &[Record], is_meant: impl Fn(&Topic, Option<&Entry>) -> bool) -> Vec<usize> {
    let meant = |record: &Record| {
        let (_, _, topic) = subject::parse(&record.subject).expect("every message has its place");
        is_meant(&topic, open::<Entry>(&record.payload, record.encoding).ok().as_ref())
    };
    (0..records.len()).filter(|&place| meant(&records[place])).collect()
}

/// The same messages with one of them once more, at the end.
fn repeated(records: &[Record], place: usize) -> Vec<Record> {
    let mut records = records.to_vec();
    let last = records.last().expect("there are messages").sequence;
    records.push(Record { sequence: last + 1, ..records[place].clone() });
    records
}

fn without(records: &[Record], place: usize) -> Vec<Record> {
    let mut records = records.to_vec();
    records.remove(place);
    records
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_that_was_tampered_with_is_found_out() {
    let _alone = alone();
    let cluster = Cluster::start(Setup::default(), 1);
    let (bus, run) = (cluster.bus().await, run("tampered"));
    let mut submission = fan_out(6, &json!({"steps": 2, "delay_ms": 20}));
    submission.tasks[0].review = Review::critic(Vec::new());
    submit(&bus, &run, &submission).await;
    let history = finished(&bus, &run, Duration::from_secs(30)).await;
    history.assert_holds();
    let ledger = cluster.ledger_text();
    assert_eq!(history.broken_by_ledger(&ledger), Vec::<String>::new());

    let records = history.records();
    let is_step = |_: &Topic, entry: Option<&Entry>| matches!(entry, Some(Entry::Step { .. }));
    let is_claim = |_: &Topic, entry: Option<&Entry>| matches!(entry, Some(Entry::Claimed { .. }));
    let is_outcome = |topic: &Topic, entry: Option<&Entry>| {
        matches!((topic, entry), (Topic::Task(..), Some(Entry::Outcome { .. })))
    };
    let decisions = places(records, |topic, _| *topic == Topic::Plan);
    let (step, claim) = (places(records, is_step)[0], places(records, is_claim)[0]);
    let outcome = places(records, is_outcome)[0];
    for (what, records, part) in [
        ("a lost decision", without(records, decisions[1]), "follows"),
        ("a decision made twice", repeated(records, decisions[decisions.len() - 2]), "again"),
        ("a step done twice", repeated(records, step), "step 1 is the 3."),
        ("a lost step", without(records, step), "step 2 is the 1."),
        ("a lost claim", without(records, claim), "before the first claim"),
        ("a second outcome", repeated(records, outcome), "second outcome"),
        ("a lost outcome", without(records, outcome), "has no outcome"),
    ] {
        let broken = History::of(&bus, &run, records).await.unwrap().broken().join("\n");
        assert!(broken.contains(part), "{what}: {broken:?}");
    }
    let twice = format!("{ledger}{}\n", ledger.lines().next().unwrap());
    assert_eq!(history.broken_by_ledger(&twice).len(), 1, "a step that was done again");
    let less: String = ledger.lines().skip(1).map(|line| format!("{line}\n")).collect();
    assert_eq!(history.broken_by_ledger(&less).len(), 1, "a step that was never done");
    cluster.end();
}
