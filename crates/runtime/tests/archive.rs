//! The archive against a real server: only what a program with permission has published counts as the archive of a run,
//! and redirected server replies do not.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, Context};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::{CommandAction, Decision, Edit, RunCommand};
use millrace_protocol::subject::Topic;
use millrace_protocol::work::JournalEntry;
use millrace_runtime::log::follow::{
    ArchivedRun, FindArchived, LaneLog, LogStep, LogTopics, RunLog, RunPosition,
};
use millrace_runtime::log::{append_message, purge_run, read_run};
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::nats::topology::ClusterOptions;
use millrace_runtime::store::archive::{self, ArchivePreparation};
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, ConnectionSettings};
use millrace_tests::{NatsServer, wait_for_value};
use serde_json::{Value, json};

const LANE: Lane = Lane(0);
const PATIENCE: Duration = Duration::from_secs(120);

fn run_id(name: &str) -> RunId {
    RunId::new(name).expect("the name is valid")
}

async fn connect_bus(server: &NatsServer) -> Bus {
    let connection = ConnectionSettings::unauthenticated(&server.url);
    Bus::connect_and_ensure_cluster(&connection, "test", &ClusterOptions::default())
        .await
        .expect("the cluster is created")
}

/// Creates a run with two messages, in its lane and in the archive.
async fn create_archived_run(bus: &Bus, name: &RunId, text: &str) {
    let note = JournalEntry::Note { text: text.into(), provider: None };
    append_message(bus, LANE, name, &Topic::Control, &note, 0).await.expect("the server accepts it");
    let last = append_message(bus, LANE, name, &Topic::Plan, &note, 0).await.expect("the server accepts it");
    let span = archive::archive_run(bus, LANE, name, last, 0).await.expect("the server accepts it");
    assert_eq!(span.last, last);
}

fn jetstream_context(bus: &Bus) -> Context {
    jetstream::new(bus.client().clone())
}

fn archive_info_subject(name: &RunId) -> String {
    format!("$O.archive.M.{}", URL_SAFE.encode(name.as_str()))
}

/// Returns the last description of a run's archive.
async fn read_archive_description(bus: &Bus, name: &RunId) -> Value {
    let stream = jetstream_context(bus).get_stream("OBJ_archive").await.expect("it exists");
    let message =
        stream.get_last_raw_message_by_subject(&archive_info_subject(name)).await.expect("it exists");
    serde_json::from_slice(&message.payload).expect("it is valid JSON")
}

async fn read_archive_content(bus: &Bus, name: &RunId) -> Vec<u8> {
    let (stream, info) = (
        jetstream_context(bus).get_stream("OBJ_archive").await.expect("it exists"),
        read_archive_description(bus, name),
    );
    let parts = format!("$O.archive.C.{}", info.await["nuid"].as_str().expect("it is a string"));
    stream.get_last_raw_message_by_subject(&parts).await.expect("it is one part").payload.to_vec()
}

/// Publishes a message to the archive. Without an id in its headers it is like a redirected reply.
async fn publish_message(bus: &Bus, subject: String, headers: HeaderMap, payload: Vec<u8>) {
    let sent = jetstream_context(bus).publish_with_headers(subject, headers, payload.into()).await;
    sent.expect("the message is sent").await.expect("the server accepts it");
}

/// Publishes a forged description of a run's archive: that of another run.
async fn build_forged_description(bus: &Bus, name: &RunId, other: &RunId) -> Vec<u8> {
    let mut info = read_archive_description(bus, other).await;
    info["name"] = json!(name);
    info.to_string().into_bytes()
}

fn sequences_of_records(records: &[StreamRecord]) -> Vec<u64> {
    records.iter().map(|record| record.sequence).collect()
}

#[tokio::test]
async fn forged_archive_is_ignored() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let (other, name) = (run_id("other"), run_id("r"));
    create_archived_run(&bus, &other, "other").await;
    let forged = build_forged_description(&bus, &name, &other).await;
    publish_message(&bus, archive_info_subject(&name), HeaderMap::new(), forged.clone()).await;
    assert!(
        archive::read_archived_run(&bus, &name).await.expect("the server responds").is_none(),
        "a reply without headers"
    );
    assert!(!archive::is_archived(&bus, &name).await.expect("the server responds"));

    // A reply with the headers of the message that it returns, among them a rollup header.
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Rollup", "sub");
    let hiding = archive_info_subject(&run_id("hiding"));
    publish_message(&bus, hiding.clone(), headers, forged).await;
    let question = json!({ "last_by_subj": hiding }).to_string();
    let subject = "$JS.API.DIRECT.GET.OBJ_archive";
    bus.client()
        .publish_with_reply(subject, archive_info_subject(&name), question.into())
        .await
        .expect("the message is sent");
    let stream = jetstream_context(&bus).get_stream("OBJ_archive").await.expect("it exists");
    wait_for_value(PATIENCE, "the reply in the archive", async || {
        let last = stream.get_last_raw_message_by_subject(&archive_info_subject(&name)).await.ok()?;
        last.headers.get("Nats-Stream").map(drop)
    })
    .await;
    assert!(
        archive::read_archived_run(&bus, &name).await.expect("the server responds").is_none(),
        "a reply with headers"
    );
    assert!(!archive::is_archived(&bus, &name).await.expect("the server responds"));
    assert!(
        archive::is_archived(&bus, &other).await.expect("the server responds"),
        "a published archive counts"
    );
}

#[tokio::test]
async fn lane_takes_precedence_over_forged_summaries_and_archives() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let (other, name) = (run_id("other"), run_id("r"));
    create_archived_run(&bus, &other, "other").await;
    let plan = JournalEntry::Note { text: "a plan".into(), provider: None };
    let genuine =
        append_message(&bus, LANE, &name, &Topic::Plan, &plan, 0).await.expect("the server accepts it");
    publish_message(
        &bus,
        archive_info_subject(&name),
        HeaderMap::new(),
        build_forged_description(&bus, &name, &other).await,
    )
    .await;
    let summary = |archived: bool| {
        let summary = json!({
            "run": "other", "lane": 0, "objective": "", "end": "completed", "started": 0, "updated": 0,
            "counts": [0, 0, 0, 0, 0, 0, 0, 0, 0], "archived": archived, "is_resumable": false, "is_paused": false,
            "winding_down": null, "usage": {},
        });
        serde_json::from_value::<millrace_protocol::registry::RunSummary>(summary).expect("it is one")
    };
    registry::write_summary(&bus, &summary(true)).await.expect("the server accepts it");
    let records =
        archive::read_run_from_log_or_archive(&bus, LANE, &name).await.expect("the server responds");
    assert_eq!(sequences_of_records(&records), [genuine]);

    // The summary of another run under the key of this run is ignored.
    let stolen = serde_json::to_vec(&summary(true)).expect("it is valid JSON");
    publish_message(&bus, format!("$KV.runs.{name}"), HeaderMap::new(), stolen).await;
    assert!(registry::read_summary(&bus, &name).await.expect("the server responds").is_none());
    let summaries = registry::read_run_summaries(&bus).await.expect("the server responds");
    assert_eq!(summaries.iter().map(|it| it.run.as_str()).collect::<Vec<_>>(), ["other"]);
    // So is a summary that marks this run as archived while the archive contains nothing valid.
    let lying = millrace_protocol::registry::RunSummary { run: name.clone(), ..summary(true) };
    registry::write_summary(&bus, &lying).await.expect("the server accepts it");
    let records =
        archive::read_run_from_log_or_archive(&bus, LANE, &name).await.expect("the server responds");
    assert_eq!(sequences_of_records(&records), [genuine]);
}

#[tokio::test]
async fn archive_is_read_only_if_its_digest_matches() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let (other, name) = (run_id("other"), run_id("old"));
    create_archived_run(&bus, &other, "a note").await;
    let mut bytes = read_archive_content(&bus, &other).await;
    let write = async |name: &RunId, bytes: &[u8], digest_of: &RunId| {
        let mut info = read_archive_description(&bus, digest_of).await;
        (info["name"], info["nuid"]) = (json!(name), json!(format!("parts{name}")));
        let mut headers = HeaderMap::new();
        headers.insert("Millrace-Id", "x");
        publish_message(&bus, format!("$O.archive.C.parts{name}"), headers.clone(), bytes.to_vec()).await;
        publish_message(&bus, archive_info_subject(name), headers, info.to_string().into_bytes()).await;
    };
    write(&name, &bytes, &other).await;
    let read =
        archive::read_archived_run(&bus, &name).await.expect("the server responds").expect("it exists");
    assert_eq!(read.len(), 2);
    assert!(archive::is_archived(&bus, &name).await.expect("the server responds"));
    publish_message(&bus, format!("$O.archive.C.parts{name}"), HeaderMap::new(), b"forged".to_vec()).await;
    assert!(
        archive::is_archived(&bus, &name).await.expect("the server responds"),
        "a forged part does not belong to it"
    );

    *bytes.last_mut().expect("it is not empty") ^= 1;
    write(&run_id("damaged"), &bytes, &other).await;
    let damaged =
        archive::read_archived_run(&bus, &run_id("damaged")).await.expect_err("the content differs");
    assert!(damaged.to_string().contains("incomplete or damaged"), "{damaged}");
    assert!(!archive::is_archived(&bus, &run_id("damaged")).await.expect("the server responds"));
}

#[tokio::test]
async fn forged_parts_of_an_archive_are_ignored() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let name = run_id("r");
    create_archived_run(&bus, &name, "a note").await;
    let (bytes, info) =
        (read_archive_content(&bus, &name).await, read_archive_description(&bus, &name).await);
    let parts = format!("$O.archive.C.{}", info["nuid"].as_str().expect("it is a string"));
    let stream = jetstream_context(&bus).get_stream("OBJ_archive").await.expect("it exists");
    stream.purge().filter(parts.clone()).await.expect("the server responds");
    publish_message(&bus, parts, HeaderMap::new(), bytes).await;
    assert!(archive::read_archived_run(&bus, &name).await.is_err(), "its own parts are removed");
    assert!(!archive::is_archived(&bus, &name).await.expect("the server responds"));
}

/// Appends notes to the plan of a run, each after the one before. Returns their sequences.
async fn append_notes(bus: &Bus, name: &RunId, mut last: u64, count: usize) -> Vec<u64> {
    let mut sequences = Vec::new();
    for number in 0..count {
        let note = JournalEntry::Note { text: format!("note {number}"), provider: None };
        last =
            append_message(bus, LANE, name, &Topic::Plan, &note, last).await.expect("the server accepts it");
        sequences.push(last);
    }
    sequences
}

async fn read_log_sequences(bus: &Bus, name: &RunId) -> Vec<u64> {
    let records = archive::read_run_from_log_or_archive(bus, LANE, name).await;
    sequences_of_records(&records.expect("the server responds"))
}

#[tokio::test]
async fn log_of_a_reopened_run_is_its_archive_and_then_its_lane() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let name = run_id("r");
    let first = append_notes(&bus, &name, 0, 3).await;
    let span = archive::archive_run(&bus, LANE, &name, first[2], 0).await.expect("the server accepts it");
    assert_eq!((span.first, span.last), (first[0], first[2]));
    assert_eq!(read_log_sequences(&bus, &name).await, first, "both hold everything");
    purge_run(&bus, LANE, &name, first[1]).await.expect("the server responds");
    assert_eq!(read_log_sequences(&bus, &name).await, first, "the lane holds the last one");
    purge_run(&bus, LANE, &name, first[2]).await.expect("the server responds");

    // It is reopened: the subject of its decisions is empty.
    let rest = append_notes(&bus, &name, 0, 2).await;
    let all = [first.clone(), rest.clone()].concat();
    assert_eq!(read_log_sequences(&bus, &name).await, all);
    let joined = archive::join_with_archive(
        &bus,
        &name,
        read_run(&bus, LANE, &name, 1).await.expect("the server responds"),
        None,
    );
    assert_eq!(joined.await.expect("the server responds").archived_through, first[2]);

    // The second archive holds both parts; writing it again changes nothing, and nor does an empty lane.
    for attempt in 0..2 {
        let span = archive::archive_run(&bus, LANE, &name, rest[1], 0).await.expect("the server accepts it");
        assert_eq!((span.first, span.last), (first[0], rest[1]), "attempt {attempt}");
        let archived = archive::read_archived_run(&bus, &name).await.expect("the server responds");
        assert_eq!(sequences_of_records(&archived.expect("it exists")), all);
    }
    purge_run(&bus, LANE, &name, rest[1]).await.expect("the server responds");
    for end in [first[2], rest[1]] {
        let span = archive::archive_run(&bus, LANE, &name, end, 0).await.expect("the server responds");
        assert_eq!(span.last, 0, "an empty lane replaces no archive");
    }
    assert_eq!(read_log_sequences(&bus, &name).await, all);
}

/// An owner is suspended between the read of a run and the write of its archive: of one that was archived for the first time, and of
/// one that was reopened.
#[tokio::test]
async fn archive_is_not_replaced_by_one_that_was_made_from_an_older_one() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let name = run_id("r");
    let (mut all, mut last) = (Vec::new(), 0);
    for round in 0..2 {
        let part = append_notes(&bus, &name, 0, 3).await;
        last = *part.last().expect("it is not empty");
        all.extend(part);
        let suspended =
            archive::prepare_archive(&bus, LANE, &name, (last, 0)).await.expect("the server responds");
        let ArchivePreparation::New(suspended) = suspended else { panic!("round {round}: nothing to write") };
        // Meanwhile another owner adds a message and archives the run.
        let more = append_notes(&bus, &name, last, 1).await;
        last = more[0];
        all.extend(more);
        let span = archive::archive_run(&bus, LANE, &name, last, 0).await.expect("the server accepts it");
        assert_eq!(span.last, last, "round {round}");
        purge_run(&bus, LANE, &name, last).await.expect("the server responds");
        let fault = suspended.write(&bus).await.expect_err("the archive is newer");
        assert!(fault.is_transient(), "round {round}: {fault}");
        assert_eq!(read_log_sequences(&bus, &name).await, all, "round {round}");
    }
    let again = archive::prepare_archive(&bus, LANE, &name, (last, 0)).await.expect("the server responds");
    assert!(matches!(again, ArchivePreparation::Unchanged(span) if span.last == 0), "the lane is empty");
}

/// Appends a decision after the one at `previous`; `last` is the last message of the plan in the lane.
async fn append_decision(bus: &Bus, name: &RunId, previous: u64, last: u64) -> u64 {
    let decision = Decision {
        by: millrace_protocol::ids::WorkerId::new("s").expect("the name is valid"),
        previous,
        at: jiff::Timestamp::UNIX_EPOCH,
        answers: Vec::new(),
        events: Vec::new(),
    };
    append_message(bus, LANE, name, &Topic::Plan, &decision, last).await.expect("the server accepts it")
}

/// Archives a run as a supervisor does: the archive, the summary, and then the lane.
async fn close_run(bus: &Bus, name: &RunId, end: u64) -> (u64, u64) {
    let span = archive::archive_run(bus, LANE, name, end, 0).await.expect("the server accepts it");
    write_summary(bus, name, true, Some((span.first, span.last))).await;
    purge_run(bus, LANE, name, span.last).await.expect("the server responds");
    (span.first, span.last)
}

async fn write_summary(bus: &Bus, name: &RunId, archived: bool, span: Option<(u64, u64)>) {
    let summary = json!({
        "run": name, "lane": 0, "objective": "", "end": null, "started": 0, "updated": 0,
        "counts": [0, 0, 0, 0, 0, 0, 0, 0, 0], "archived": archived, "is_resumable": false, "is_paused": false,
        "winding_down": null, "usage": {}, "archived_span": span,
    });
    let summary = serde_json::from_value(summary).expect("it is one");
    registry::write_summary(bus, &summary).await.expect("the server accepts it");
}

/// Reads a log to its end. Returns the sequences, and the last step.
async fn read_rest(log: &mut RunLog) -> (Vec<u64>, LogStep) {
    let mut all = Vec::new();
    loop {
        match log.next_part().await.expect("the server responds") {
            LogStep::Messages(records) => all.extend(sequences_of_records(&records)),
            end @ (LogStep::EndOfLog | LogStep::Complete | LogStep::Deleted) => return (all, end),
        }
    }
}

/// A run is archived before its last decisions were read, reopened, archived again and deleted.
#[tokio::test]
async fn reader_of_a_run_gets_each_message_once_whatever_was_archived_meanwhile() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let name = run_id("r");
    let open = |topics| RunLog::new(&bus, &name, topics, RunPosition::default()).with_page_size(2);
    let mut log = open(LogTopics::Decisions);
    assert!(matches!(read_rest(&mut log).await, (none, LogStep::EndOfLog) if none.is_empty()));
    let mut all = vec![append_decision(&bus, &name, 0, 0).await];
    for _ in 0..3 {
        let last = all[all.len() - 1];
        all.push(append_decision(&bus, &name, last, last).await);
    }
    let (read, end) = read_rest(&mut log).await;
    assert!(read == all && matches!(end, LogStep::EndOfLog), "{read:?} {end:?}");

    let last = all[3];
    all.push(append_decision(&bus, &name, last, last).await);
    let note = JournalEntry::Note { text: "after it".into(), provider: None };
    append_message(&bus, LANE, &name, &Topic::Answer, &note, 0).await.expect("the server accepts it");
    let span = close_run(&bus, &name, all[4]).await;
    let (read, end) = read_rest(&mut log).await;
    assert!(read == all[4..] && matches!(end, LogStep::Complete), "{read:?} {end:?}");
    append_decision(&bus, &name, all[2], 0).await;
    let (read, end) = read_rest(&mut log).await;
    assert!(read.is_empty() && matches!(end, LogStep::Complete), "a stale decision: {read:?} {end:?}");

    // It is reopened; one reader has the first part, and others begin.
    let stale = read_run(&bus, LANE, &name, 1).await.expect("the server responds")[0].sequence;
    purge_run(&bus, LANE, &name, stale).await.expect("the server responds");
    let control = CommandAction::Edit(Edit::Add(Vec::new()));
    let command = RunCommand { id: "1".into(), by: "ann".into(), control };
    append_message(&bus, LANE, &name, &Topic::Control, &command, 0).await.expect("the server accepts it");
    let (read, end) = read_rest(&mut log).await;
    assert!(read.is_empty() && matches!(end, LogStep::EndOfLog), "{read:?} {end:?}");
    all.push(append_decision(&bus, &name, all[4], 0).await);
    write_summary(&bus, &name, false, Some(span)).await;
    all.push(append_decision(&bus, &name, all[5], all[5]).await);
    let (read, end) = read_rest(&mut log).await;
    assert!(read == all[5..] && matches!(end, LogStep::EndOfLog), "{read:?} {end:?}");
    let (read, _) = read_rest(&mut open(LogTopics::Decisions)).await;
    assert_eq!(read, all);

    close_run(&bus, &name, all[6]).await;
    let (read, end) = read_rest(&mut log).await;
    assert!(read.is_empty() && matches!(end, LogStep::Complete), "{read:?} {end:?}");
    let (read, end) = read_rest(&mut open(LogTopics::All)).await;
    assert_eq!(read.len(), all.len() + 2, "and the answer and the command: {read:?} {end:?}");
    registry::remove_summary(&bus, &name).await.expect("the server accepts it");
    let (read, end) = read_rest(&mut log).await;
    assert!(read.is_empty() && matches!(end, LogStep::Deleted), "{read:?} {end:?}");
}

/// Runs of one lane whose messages alternate are archived one after the other.
#[tokio::test]
async fn reader_of_a_lane_gets_each_message_once_in_the_order_of_the_log() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let archived: Arc<Mutex<Vec<ArchivedRun>>> = Arc::default();
    let find = {
        let archived = archived.clone();
        let find: FindArchived = Arc::new(move |_, after| {
            let mut runs = archived.lock().expect("no test has panicked").clone();
            runs.retain(|run| run.span.1 > after);
            Box::pin(async move { Ok(runs) })
        });
        find
    };
    let open = |seen| LaneLog::new(&bus, find.clone(), (LANE, LogTopics::All), seen);
    let names = ["a", "b", "c"].map(run_id);
    let (mut all, mut last, mut follower) = (Vec::new(), [0; 3], open(0));
    let mut followed = Vec::new();
    for round in 0..4 {
        for (name, last) in names.iter().zip(&mut last) {
            *last = append_decision(&bus, name, *last, *last).await;
            all.push(*last);
        }
        // The follower reads only now and then.
        if round == 1 {
            followed.extend(read_lane(&mut follower).await);
        }
    }
    assert_eq!(followed, all[..6]);
    for (number, name) in names.iter().take(2).enumerate() {
        let span = archive::archive_run(&bus, LANE, name, last[number], 0).await.expect("it is accepted");
        archived
            .lock()
            .expect("it is")
            .push(ArchivedRun { run: name.clone(), span: (span.first, span.last) });
        purge_run(&bus, LANE, name, span.last).await.expect("the server responds");
        assert_eq!(read_lane(&mut open(0)).await, all, "{name} is archived");
    }
    followed.extend(read_lane(&mut follower).await);
    assert_eq!(followed, all);
    // A reader that selects runs needs no archive of others.
    let part = open(0).next_part(|run| *run == names[2]).await.expect("the server responds");
    assert_eq!(sequences_of_records(&part.records), [all[2], all[5], all[8], all[11]]);
}

async fn read_lane(log: &mut LaneLog) -> Vec<u64> {
    let mut all = Vec::new();
    loop {
        let part = log.next_part(|_| true).await.expect("the server responds");
        all.extend(sequences_of_records(&part.records));
        if part.is_end_of_log {
            return all;
        }
    }
}

/// A supervisor that was suspended appends to the empty lane of a run that was reopened and archived again meanwhile.
#[tokio::test]
async fn stale_decision_after_the_archive_is_ignored() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let name = run_id("r");
    let append = async |previous, last| append_decision(&bus, &name, previous, last).await;
    let first = append(0, 0).await;
    let second = append(first, first).await;
    archive::archive_run(&bus, LANE, &name, second, 0).await.expect("the server accepts it");
    purge_run(&bus, LANE, &name, second).await.expect("the server responds");
    let stale = append(first, 0).await;
    assert_eq!(read_log_sequences(&bus, &name).await, [first, second]);
    let next = append(second, stale).await;
    assert_eq!(read_log_sequences(&bus, &name).await, [first, second, next]);
    archive::archive_run(&bus, LANE, &name, next, 0).await.expect("the server accepts it");
    purge_run(&bus, LANE, &name, next).await.expect("the server responds");
    assert_eq!(read_log_sequences(&bus, &name).await, [first, second, next]);
}
