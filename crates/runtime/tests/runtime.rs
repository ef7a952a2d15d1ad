//! The NATS shell against a real server: appends, blobs, archives, queues and reads survive restarts of the server.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;
use millrace_host::ClusterReader;
use millrace_protocol::file::{FilePath, WriteCondition};
use millrace_protocol::ids::{Capability, Lane, RunId, TaskId};
use millrace_protocol::plan::{CommandAction, JournalKey, RunCommand, Work};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::{BlobRef, InlineOrStoredBytes, MAX_BLOB, MAX_INLINE};
use millrace_protocol::work::{JournalEntry, Order};
use millrace_runtime::log::lane::{LaneScan, LaneTail};
use millrace_runtime::log::{AppendError, append_message, purge_run, read_run};
use millrace_runtime::nats::topology::ClusterOptions;
use millrace_runtime::ops::metrics;
use millrace_runtime::ops::metrics::names::ProcessKind;
use millrace_runtime::store::archive;
use millrace_runtime::store::blobs::sha256_hex;
use millrace_runtime::store::workspace::{FileAuthor, RunWorkspace};
use millrace_runtime::work::queue;
use millrace_runtime::{Bus, ConnectionSettings, Fault};
use millrace_tests::plans::build_publish_headers;
use millrace_tests::{NatsServer, ServerOptions, wait_for_value};

const LANE: Lane = Lane(0);
const PATIENCE: Duration = Duration::from_secs(120);

fn run_id(name: &str) -> RunId {
    RunId::new(name).expect("the name is valid")
}

fn note_entry(text: &str) -> JournalEntry {
    JournalEntry::Note { text: text.into(), provider: None }
}

async fn try_connect_bus(url: &str, wanted: &ClusterOptions) -> Result<Bus, Fault> {
    let connection = ConnectionSettings::unauthenticated(url);
    Bus::connect_and_ensure_cluster(&connection, "test", wanted).await
}

async fn connect_bus(server: &NatsServer) -> Bus {
    try_connect_bus(&server.url, &ClusterOptions::default()).await.expect("the cluster is created")
}

#[tokio::test]
async fn of_two_concurrent_writers_one_is_rejected() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let (run, topic) = (run_id("r"), Topic::Plan);
    let first =
        append_message(&bus, LANE, &run, &topic, &note_entry("a"), 0).await.expect("the topic is empty");
    let second = append_message(&bus, LANE, &run, &topic, &note_entry("b"), first)
        .await
        .expect("it follows the first");
    for stale in [0, first] {
        match append_message(&bus, LANE, &run, &topic, &note_entry("c"), stale).await {
            Err(AppendError::Fenced { last }) => assert_eq!(last, second),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(read_run(&bus, LANE, &run, 1).await.expect("the server responds").len(), 2);
}

#[tokio::test]
async fn appends_survive_server_crashes_exactly_once_and_in_order() {
    let mut server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let (writing, run) = (bus.clone(), run_id("r"));
    let writer = tokio::spawn({
        let run = run.clone();
        async move {
            let mut last = 0;
            for number in 0..2_000 {
                let entry = note_entry(&number.to_string());
                last = append_message(&writing, LANE, &run, &Topic::Plan, &entry, last)
                    .await
                    .expect("the append succeeds");
            }
        }
    });
    for _ in 0..3 {
        let before = read_run(&bus, LANE, &run, 1).await.map_or(0, |records| records.len());
        wait_for_value(PATIENCE, "more appends", async || {
            let now = read_run(&bus, LANE, &run, 1).await.map_or(0, |records| records.len());
            (now > before || writer.is_finished()).then_some(())
        })
        .await;
        server.restart();
    }
    writer.await.expect("no append was lost or rejected");
    let mut texts = Vec::new();
    for record in read_run(&bus, LANE, &run, 1).await.expect("the server responds") {
        match bus.decode_record::<JournalEntry>(&record).await.expect("it is an entry") {
            JournalEntry::Note { text, .. } => texts.push(text),
            entry @ (JournalEntry::Claimed { .. }
            | JournalEntry::Step { .. }
            | JournalEntry::Parked { .. }
            | JournalEntry::Delegated { .. }
            | JournalEntry::Released { .. }
            | JournalEntry::Outcome { .. }) => {
                panic!("{entry:?}")
            }
        }
    }
    assert_eq!(texts, (0..2_000).map(|number| number.to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn lane_tail_has_no_gap_after_a_server_restart() {
    let mut server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let run = run_id("r");
    let mut tail = LaneTail::follow_lane(&bus, LANE, 1);
    let (mut last, mut seen) = (0, Vec::new());
    for round in 0..3 {
        for _ in 0..100 {
            last = append_message(&bus, LANE, &run, &Topic::Plan, &note_entry("x"), last)
                .await
                .expect("the append succeeds");
        }
        while seen.len() < 100 * (round + 1) {
            seen.extend(tail.next_records().await.into_iter().map(|record| record.sequence));
        }
        server.restart();
    }
    assert_eq!(seen, (1..=300).collect::<Vec<u64>>());
}

#[tokio::test]
async fn large_message_goes_through_the_blob_store() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    for bytes in [MAX_INLINE / 2, MAX_INLINE * 2, 5_000_000] {
        let name = run_id(&format!("r{bytes}"));
        let control = CommandAction::CancelRun { reason: "x".repeat(bytes) };
        let request = RunCommand { id: "c".into(), by: "ann".into(), control };
        append_message(&bus, LANE, &name, &Topic::Control, &request, 0).await.expect("it fits");
        let records = read_run(&bus, LANE, &name, 1).await.expect("the server responds");
        assert!(records[0].payload.len() < MAX_INLINE + 1_000, "{} bytes travel", records[0].payload.len());
        assert_eq!(bus.decode_record::<RunCommand>(&records[0]).await.expect("it is read"), request);
    }
}

#[tokio::test]
async fn blob_is_stored_once_and_verified() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let small = bus.blobs().store_if_large(vec![1; MAX_INLINE]).await.expect("the server accepts it");
    assert!(matches!(small, InlineOrStoredBytes::Inline(_)));
    let large = vec![2; MAX_INLINE + 1];
    let InlineOrStoredBytes::Stored(stored) =
        bus.blobs().store_if_large(large.clone()).await.expect("the server accepts it")
    else {
        panic!("it is larger than a message");
    };
    assert_eq!(bus.blobs().put_blob(&large).await.expect("it exists").sha256, stored.sha256);
    assert_eq!(bus.blobs().get(&stored.sha256).await.expect("it exists"), large);
    let missing = "0".repeat(64);
    assert!(matches!(bus.blobs().get(&missing).await, Err(Fault::Missing { sha256 }) if sha256 == missing));
    // A client that may write blobs describes each of two blobs as the content of the other.
    let context = async_nats::jetstream::new(bus.client().clone());
    let other = bus.blobs().put_blob(b"something else").await.expect("the server accepts it");
    let about = |name: &str| format!("$O.blobs.M.{}", URL_SAFE.encode(name));
    let stream = context.get_stream("OBJ_blobs").await.expect("it exists");
    let metadata =
        stream.get_last_raw_message_by_subject(&about(&other.sha256)).await.expect("it exists").payload;
    for name in [&missing, &stored.sha256] {
        publish_with_id(&context, about(name), metadata.clone()).await;
    }
    assert!(matches!(bus.blobs().get(&missing).await, Err(Fault::Damaged { .. })));
    assert_eq!(
        bus.blobs().get(&stored.sha256).await.expect("it exists"),
        large,
        "the first description wins"
    );
}

/// Publishes a message with an id, as a client does that may write blobs.
async fn publish_with_id(context: &jetstream::Context, subject: String, payload: bytes::Bytes) {
    let sent = context.publish_with_headers(subject, build_publish_headers(), payload).await;
    sent.expect("the message is sent").await.expect("the server accepts it");
}

/// A file of so many bytes, each part of which differs.
fn large_file(size: usize) -> (Arc<std::fs::File>, Vec<u8>) {
    let bytes: Vec<u8> = (0_u32..).flat_map(u32::to_le_bytes).take(size).collect();
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&bytes).expect("it is written");
    (Arc::new(file), bytes)
}

async fn read_stream(bus: &Bus, name: &str) -> (Vec<u8>, Option<Fault>) {
    let mut read = Vec::new();
    let mut stream = match bus.blobs().open_blob(name, None).await {
        Ok(stream) => stream,
        Err(fault) => return (read, Some(fault)),
    };
    loop {
        match stream.next_part().await {
            Ok(Some(part)) => read.extend_from_slice(&part),
            Ok(None) => return (read, None),
            Err(fault) => return (read, Some(fault)),
        }
    }
}

#[tokio::test]
async fn file_is_stored_and_read_part_by_part() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    // A part of an object has 128 KiB.
    for size in [0, 1, 131_071, 131_072, 131_073, 5_000_001] {
        let (file, bytes) = large_file(size);
        let stored = bus.blobs().put_blob_from_file(file).await.expect("it is stored");
        assert_eq!((stored.size, &stored.sha256), (size as u64, &sha256_hex(&bytes)));
        let (read, fault) = read_stream(&bus, &stored.sha256).await;
        assert!(fault.is_none() && read == bytes, "{size}: {} bytes, {fault:?}", read.len());
        assert_eq!(bus.blobs().get(&stored.sha256).await.expect("it is read"), bytes, "the same object");
    }
}

#[tokio::test]
async fn reader_of_a_damaged_blob_never_gets_its_last_part() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let (file, bytes) = large_file(1_000_000);
    let stored = bus.blobs().put_blob_from_file(file).await.expect("it is stored");
    let context = async_nats::jetstream::new(bus.client().clone());
    let about = |name: &str| format!("$O.blobs.M.{}", URL_SAFE.encode(name));
    let stream = context.get_stream("OBJ_blobs").await.expect("it exists");
    let described = stream.get_last_raw_message_by_subject(&about(&stored.sha256)).await.expect("it exists");
    let publish = async |name: &str, description: String| {
        publish_with_id(&context, about(name), description.into()).await;
    };
    let other = sha256_hex(b"another content");
    let described = String::from_utf8_lossy(&described.payload).replace(&stored.sha256, &other);
    publish(&other, described.clone()).await;
    let (read, fault) = read_stream(&bus, &other).await;
    assert!(matches!(fault, Some(Fault::Damaged { .. })), "{fault:?}");
    assert!(read.len() < bytes.len(), "all {} bytes were read", read.len());
    // Of several contents under a name the right one is read.
    let real = described.replace(&other, &stored.sha256);
    let forged = real.replace(r#""nuid":""#, r#""nuid":"x"#);
    publish(&stored.sha256, forged).await;
    let (read, fault) = read_stream(&bus, &stored.sha256).await;
    assert!(fault.is_none() && read == bytes, "{fault:?}");
}

#[tokio::test]
async fn blob_of_a_huge_size_is_neither_read_nor_stored() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let name = "1".repeat(64);
    // The reference in a forged journal entry.
    let size = 1 << 50;
    let named = InlineOrStoredBytes::Stored(BlobRef { sha256: name.clone(), size });
    let fault = bus.blobs().read_inline_or_stored(&named).await.expect_err("it is too large");
    assert!(matches!(&fault, Fault::TooLarge { size: found, .. } if *found == size), "{fault}");
    assert!(!fault.is_transient() && fault.to_string().contains(&MAX_BLOB.to_string()), "{fault}");
    // A forged description with this size, and a part of the object.
    let context = async_nats::jetstream::new(bus.client().clone());
    let publish = async |subject: String, bytes: Vec<u8>| {
        let sent = context.publish(subject, bytes.into()).await.expect("the message is sent");
        sent.await.expect("the server accepts it");
    };
    publish("$O.blobs.C.abc".into(), vec![0; 1_000]).await;
    let info = format!(
        r#"{{"name":"{name}","bucket":"blobs","nuid":"abc","size":{},"chunks":1,"digest":""}}"#,
        MAX_BLOB + 1
    );
    publish(format!("$O.blobs.M.{}", URL_SAFE.encode(&name)), info.into_bytes()).await;
    let fault = bus.blobs().get(&name).await.expect_err("it is too large");
    assert!(matches!(&fault, Fault::Missing { .. }), "it is not read: {fault}");
    let large = vec![0; usize::try_from(MAX_BLOB).expect("it fits") + 1];
    let fault = bus.blobs().put_blob(&large).await.expect_err("it is too large");
    assert!(matches!(fault, Fault::TooLarge { .. }), "{fault}");
}

#[tokio::test]
async fn blob_that_was_only_described_is_stored() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let content = vec![3; MAX_INLINE + 1];
    // Whoever knows a document can name its hash before it is submitted.
    let name = sha256_hex(&content);
    let description = format!(
        r#"{{"name":"{name}","bucket":"blobs","nuid":"POISON1","size":{},"chunks":1,"digest":""}}"#,
        content.len()
    );
    let context = async_nats::jetstream::new(bus.client().clone());
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Millrace-Id", "any");
    let subject = format!("$O.blobs.M.{}", URL_SAFE.encode(&name));
    let sent = context.publish_with_headers(subject, headers, description.into()).await;
    sent.expect("the message is sent").await.expect("the server accepts it");
    assert!(matches!(bus.blobs().get(&name).await, Err(Fault::Missing { .. })));
    let stored = bus.blobs().put_blob(&content).await.expect("the server accepts it");
    assert_eq!(stored.sha256, name);
    assert_eq!(bus.blobs().get(&name).await.expect("it exists"), content);
    let count =
        async || context.get_stream("OBJ_blobs").await.expect("it exists").cached_info().state.messages;
    let messages = count().await;
    bus.blobs().put_blob(&content).await.expect("it exists");
    assert_eq!(count().await, messages, "it is stored once");
}

#[tokio::test]
async fn more_blobs_can_be_read_than_a_stream_may_have_consumers() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    for number in 0..1_100_u32 {
        let content = number.to_be_bytes();
        let stored = bus.blobs().put_blob(&content).await.expect("the server accepts it");
        assert_eq!(bus.blobs().get(&stored.sha256).await.expect("it exists"), content);
    }
}

#[tokio::test]
async fn archive_contains_the_messages_of_the_lane() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let (name, mut last) = (run_id("r"), 0);
    for number in 0..500 {
        let topic = Topic::Journal(JournalKey::Planning(1, 1));
        last = append_message(&bus, LANE, &name, &topic, &note_entry(&number.to_string()), last)
            .await
            .expect("the append succeeds");
    }
    let lane = read_run(&bus, LANE, &name, 1).await.expect("the server responds");
    // A wrong number of messages changes nothing, and each archive replaces the one before.
    for expected in [1, 499, 500, 501, 20_000, 0] {
        let span =
            archive::archive_run(&bus, LANE, &name, last, expected).await.expect("the server accepts it");
        assert_eq!((span.first, span.last), (lane[0].sequence, last), "{expected}");
        let archived = archive::read_archived_run(&bus, &name).await.expect("the server responds");
        assert_eq!(archived.map(|records| records.len()), Some(lane.len()), "{expected}");
    }
    millrace_runtime::log::purge_run(&bus, LANE, &name, last).await.expect("the server responds");
    assert!(read_run(&bus, LANE, &name, 1).await.expect("the server responds").is_empty());
    assert_eq!(
        archive::archive_run(&bus, LANE, &name, last, 0).await.expect("the server responds").last,
        0,
        "an empty lane replaces no archive"
    );
    let archived =
        archive::read_run_from_log_or_archive(&bus, LANE, &name).await.expect("the server responds");
    let contents = |records: &[millrace_runtime::nats::record::StreamRecord]| {
        records.iter().map(|r| (r.sequence, r.subject.clone(), r.payload.clone(), r.time)).collect::<Vec<_>>()
    };
    assert_eq!(contents(&archived), contents(&lane));
    assert!(
        archive::read_run_from_log_or_archive(&bus, LANE, &run_id("other"))
            .await
            .expect("the server responds")
            .is_empty()
    );
}

#[tokio::test]
async fn queued_order_is_not_queued_again() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let work = Work::Planning { turn: 1, attempt: 1 };
    let planner = millrace_protocol::ids::Capability::new("planner").expect("the name is valid");
    let order = Order::new(run_id("r"), LANE, work.clone(), "o", planner);
    for _ in 0..3 {
        assert!(queue::publish_orders(&bus, vec![order.clone(), order.clone()]).await.is_ok());
    }
    let context = async_nats::jetstream::new(bus.client().clone());
    let waiting = async || {
        let stream = context.get_stream("WORK").await.expect("the stream exists");
        stream.cached_info().state.messages
    };
    assert_eq!(waiting().await, 1);
    queue::withdraw_order(&bus, &order.run, &order.capability, &work).await.expect("the server responds");
    assert_eq!(waiting().await, 0);
}

/// An order for an invented capability.
fn order_for_capability(name: &str, capability: &str) -> Order {
    let work = Work::Task { task: TaskId::new("t").expect("the name is valid"), attempt: 1 };
    Order::new(run_id(name), LANE, work, "o", Capability::new(capability).expect("the name is valid"))
}

async fn count_queues(bus: &Bus) -> usize {
    let context = async_nats::jetstream::new(bus.client().clone());
    let stream = context.get_stream("WORK").await.expect("the stream exists");
    stream.cached_info().state.consumer_count
}

#[tokio::test]
async fn missing_queue_is_created_when_its_order_is_offered_again() {
    let server = NatsServer::start();
    let before = connect_bus(&server).await;
    assert!(queue::publish_orders(&before, vec![order_for_capability("r", "echo")]).await.is_ok());
    let context = async_nats::jetstream::new(before.client().clone());
    let stream = context.get_stream("WORK").await.expect("the stream exists");
    stream.delete_consumer("echo").await.expect("it is deleted");
    // Another process, which offers the same order.
    let after = connect_bus(&server).await;
    assert!(queue::publish_orders(&after, vec![order_for_capability("r", "echo")]).await.is_ok());
    assert_eq!(count_queues(&after).await, 1);
}

#[tokio::test]
async fn queues_and_metrics_of_invented_capabilities_are_limited() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let orders = (0..300).map(|number| order_for_capability("r", &format!("made-up-{number}")));
    assert!(queue::publish_orders(&bus, orders.collect()).await.is_ok());
    assert_eq!(count_queues(&bus).await, 256);
    let page = metrics::render_metrics(ProcessKind::Supervisor);
    let names = page.lines().filter(|line| line.starts_with("millrace_offers_total{capability=\"made-up-"));
    assert_eq!(names.count(), 256);
    assert!(page.contains("millrace_offers_total{capability=\"(other)\"} 44"), "{page}");
    let registered = BTreeSet::from([Capability::new("known").expect("the name is valid")]);
    queue::ensure_queues(&bus, &registered).await.expect("a registered capability has a queue");
    assert_eq!(count_queues(&bus).await, 257);
}

#[tokio::test]
async fn cluster_is_created_once_and_mismatches_are_named() {
    let server = NatsServer::start();
    let connection = ConnectionSettings::unauthenticated(server.url.clone());
    let none = Bus::join_existing_cluster(&connection, "test", Duration::ZERO)
        .await
        .err()
        .expect("there is no cluster");
    assert!(matches!(none, Fault::NoCluster { .. }), "{none}");
    let wanted = |lanes| ClusterOptions { lanes: Some(lanes), ..ClusterOptions::default() };
    try_connect_bus(&server.url, &wanted(3)).await.expect("the first makes it");
    try_connect_bus(&server.url, &wanted(3)).await.expect("it is safe to repeat");
    assert_eq!(
        Bus::join_existing_cluster(&connection, "test", Duration::ZERO)
            .await
            .expect("it exists")
            .settings()
            .lanes,
        3
    );
    let differs = try_connect_bus(&server.url, &wanted(4)).await.err().expect("it has three");
    assert!(
        differs.to_string().starts_with("cluster setting mismatch: lane count is 3, requested 4"),
        "{differs}"
    );
}

#[tokio::test]
async fn foreign_stream_with_our_name_is_rejected_and_kept() {
    let server = NatsServer::start();
    let client = async_nats::connect(&server.url).await.expect("the server responds");
    let context = async_nats::jetstream::new(client);
    let theirs = async_nats::jetstream::stream::Config {
        name: "LANE_0".into(),
        subjects: vec!["theirs.>".into()],
        ..Default::default()
    };
    context.create_stream(theirs).await.expect("it is made");
    let refused =
        try_connect_bus(&server.url, &ClusterOptions::default()).await.err().expect("it is not ours");
    assert!(
        refused.to_string().contains("stream LANE_0") && refused.to_string().contains("theirs.>"),
        "{refused}"
    );
    let still = context.get_stream("LANE_0").await.expect("it exists");
    assert_eq!(still.cached_info().config.subjects, ["theirs.>"]);
}

/// Three servers of one NATS cluster.
fn start_three_servers() -> [NatsServer; 3] {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let ports = listeners.each_ref().map(|listener| listener.local_addr().expect("it has one").port());
    drop(listeners);
    let routes = ports.map(|port| format!("nats://127.0.0.1:{port}")).join(", ");
    let start = |number: usize| {
        let port = ports[number];
        let cluster =
            format!("cluster {{ name: three, host: 127.0.0.1, port: {port}, routes: [{routes}] }}\n");
        NatsServer::start_with_options(&ServerOptions {
            more: format!("server_name: n{number}\n{cluster}"),
            ..ServerOptions::default()
        })
    };
    [start(0), start(1), start(2)]
}

#[tokio::test]
async fn three_replicas_lose_no_append_when_any_server_dies() {
    let mut servers = start_three_servers();
    let url = servers.each_ref().map(|server| server.url.clone()).join(",");
    let wanted = ClusterOptions { replicas: Some(3), ..ClusterOptions::default() };
    // Waits until the servers have found each other and elected a leader.
    let bus = try_connect_bus(&url, &wanted).await.expect("the cluster is created");
    let (name, mut last) = (run_id("r"), 0);
    for server in &mut servers {
        server.kill();
        for number in 0..50 {
            let entry = note_entry(&number.to_string());
            last = append_message(&bus, LANE, &name, &Topic::Plan, &entry, last)
                .await
                .expect("two of three are enough");
        }
        server.restart();
        // Two of three replicas must be current before the next server dies.
        let context = async_nats::jetstream::new(bus.client().clone());
        wait_for_value(PATIENCE, "the server to be current again", async || {
            let stream = context.get_stream("LANE_0").await.ok()?;
            let peers = &stream.cached_info().cluster.as_ref()?.replicas;
            (peers.len() == 2 && peers.iter().all(|peer| peer.current && !peer.offline)).then_some(())
        })
        .await;
    }
    let records = wait_for_value(PATIENCE, "all appends", async || {
        let records = read_run(&bus, LANE, &name, 1).await.ok()?;
        (records.len() == 150).then_some(records)
    })
    .await;
    assert_eq!(records.last().map(|record| record.sequence), Some(last));
}

/// Publishes the description of a blob without its parts. Returns their subject.
async fn publish_blob_description_only(bus: &Bus, content: &[u8]) -> String {
    let name = sha256_hex(content);
    let metadata = format!(
        r#"{{"name":"{name}","bucket":"blobs","nuid":"parts","size":{},"chunks":1,"digest":""}}"#,
        content.len()
    );
    let context = async_nats::jetstream::new(bus.client().clone());
    let about = format!("$O.blobs.M.{}", URL_SAFE.encode(name));
    publish_with_id(&context, about, metadata.into()).await;
    "$O.blobs.C.parts".into()
}

#[tokio::test]
async fn with_three_copies_the_parts_of_a_blob_may_come_later_than_what_is_said_of_it() {
    let servers = start_three_servers();
    let url = servers.each_ref().map(|server| server.url.clone()).join(",");
    let wanted = ClusterOptions { replicas: Some(3), ..ClusterOptions::default() };
    let bus = try_connect_bus(&url, &wanted).await.expect("the cluster is created");
    let content = vec![7; 1_000];
    let parts = publish_blob_description_only(&bus, &content).await;
    let name = sha256_hex(&content);
    let late = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let context = async_nats::jetstream::new(bus.client().clone());
        publish_with_id(&context, parts, content.clone().into()).await;
    };
    let (found, ()) = tokio::join!(bus.blobs().get(&name), late);
    assert_eq!(found.expect("it has come"), content);
}

#[tokio::test]
async fn a_blob_whose_parts_never_come_is_missing_and_nobody_waits_for_it_for_ever() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let content = vec![7; 1_000];
    publish_blob_description_only(&bus, &content).await;
    let blob = bus.blobs().get(&sha256_hex(&content)).await;
    assert!(matches!(blob, Err(Fault::Missing { .. })), "{blob:?}");
    // The description alone does not count, and a process with the content stores it.
    bus.blobs().put_blob(&content).await.expect("the server accepts it");
    assert_eq!(bus.blobs().get(&sha256_hex(&content)).await.expect("it exists"), content);
    let other = bus.blobs().get(&"x ".repeat(300_000)).await;
    assert!(matches!(other, Err(Fault::Missing { .. })), "no blob has such a name: {other:?}");
}

/// Adds numbered lines to a file that others write too, each as a model would: read it, write it, again if refused.
async fn append_numbered_lines(files: &RunWorkspace, name: &str, count: u32) {
    let path = FilePath::new("/shared").expect("it is a path");
    for number in 0..count {
        let (line, key) = (format!("{name}{number}\n"), format!("{name}/{number}"));
        wait_for_value(PATIENCE, "the line to be written", async || {
            // A write whose answer was lost is not made again.
            if files.find_version_by_key(&path, &key).await.ok()?.is_some() {
                return Some(());
            }
            let file_read = files.read_file(&path).await.ok()?;
            let expected = file_read
                .as_ref()
                .map_or(WriteCondition::Absent, |file| WriteCondition::Version(file.entry.version));
            let mut bytes = file_read.map(|file| file.bytes).unwrap_or_default();
            bytes.extend_from_slice(line.as_bytes());
            files
                .write_file(&path, bytes, expected, FileAuthor { author: name, key: &key })
                .await
                .ok()
                .map(|_| ())
        })
        .await;
    }
}

#[tokio::test]
async fn with_three_copies_a_file_that_two_write_loses_no_line_when_a_server_dies() {
    let mut servers = start_three_servers();
    let url = servers.each_ref().map(|server| server.url.clone()).join(",");
    let wanted = ClusterOptions { replicas: Some(3), ..ClusterOptions::default() };
    let bus =
        wait_for_value(PATIENCE, "a cluster of three", async || try_connect_bus(&url, &wanted).await.ok())
            .await;
    let (files, path) =
        (RunWorkspace::new(&bus, &run_id("r")), FilePath::new("/shared").expect("it is a path"));
    let killing = async {
        wait_for_value(PATIENCE, "some lines", async || {
            let file = files.read_file(&path).await.ok()??;
            (file.entry.version >= 20).then_some(())
        })
        .await;
        let context = async_nats::jetstream::new(bus.client().clone());
        let stream = context.get_stream("FILES").await.expect("it exists");
        let leader = stream.cached_info().cluster.as_ref().and_then(|cluster| cluster.leader.clone());
        let leader = leader.expect("it has a leader");
        let at = (0..3).find(|number| leader == format!("n{number}")).expect("it is one of ours");
        servers[at].kill();
    };
    tokio::join!(append_numbered_lines(&files, "a", 60), append_numbered_lines(&files, "b", 60), killing);
    let file = files.read_file(&path).await.expect("the server responds").expect("it exists");
    let text = String::from_utf8(file.bytes).expect("it is text");
    for name in ["a", "b"] {
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(name)).collect();
        assert_eq!(lines, (0..60).map(|number| format!("{name}{number}")).collect::<Vec<_>>());
    }
    assert_eq!(file.entry.version, 120, "each line is one version");
}

#[tokio::test]
async fn a_long_lane_is_read_whole_and_in_order_also_where_messages_are_missing() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    assert!(
        LaneScan::new(&bus, LANE).next_records().await.expect("the server responds").is_empty(),
        "a new lane holds nothing"
    );
    for name in ["first", "second", "third"] {
        let topic = |number: u32| {
            subject::topic_subject(LANE, &run_id(name), &Topic::Journal(JournalKey::Planning(number, 1)))
        };
        for number in 1..=4_000 {
            bus.client().publish(topic(number), "no entry".into()).await.expect("the message is sent");
        }
    }
    wait_for_value(PATIENCE, "all messages", async || {
        (read_lane_sequences(&bus).await.len() == 12_000).then_some(())
    })
    .await;
    let last = *read_lane_sequences(&bus).await.last().expect("it is not empty");
    purge_run(&bus, LANE, &run_id("second"), last).await.expect("the server responds");
    let left = read_lane_sequences(&bus).await;
    assert_eq!(left.len(), 8_000);
    assert!(left.is_sorted_by(|one, next| one < next), "each once, oldest first");

    let mut lane = LaneScan::new(&bus, LANE);
    let begun = lane.next_records().await.expect("the server responds").len();
    purge_run(&bus, LANE, &run_id("third"), last).await.expect("the server responds");
    let read = begun + read_remaining_sequences(&mut lane).await.len();
    assert!((4_000..=8_000).contains(&read), "{read}: it ends, though messages that were promised are gone");
}

async fn read_lane_sequences(bus: &Bus) -> Vec<u64> {
    read_remaining_sequences(&mut LaneScan::new(bus, LANE)).await
}

async fn read_remaining_sequences(lane: &mut LaneScan) -> Vec<u64> {
    let mut sequences = Vec::new();
    loop {
        let records = lane.next_records().await.expect("the server responds");
        if records.is_empty() {
            return sequences;
        }
        sequences.extend(records.iter().map(|record| record.sequence));
    }
}

/// Requests a message and redirects the reply to a subject.
async fn redirect_reply(bus: &Bus, request: &str, to: &str) {
    let question = "$JS.API.DIRECT.GET.LANE_0";
    bus.client()
        .publish_with_reply(question, to.to_owned(), request.to_owned().into())
        .await
        .expect("the message is sent");
}

#[tokio::test]
async fn redirected_server_reply_is_no_event_of_a_plan() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let (name, journal) =
        (run_id("r"), Topic::Journal(JournalKey::Review(TaskId::new("t").expect("the name is valid"), 1)));
    append_message(&bus, LANE, &name, &journal, &note_entry("forged"), 0).await.expect("it may be written");
    let plan = subject::topic_subject(LANE, &name, &Topic::Plan);
    let requests =
        [r#"{"seq":1}"#, r#"{"seq":1,"no_hdr":true}"#, r#"{"multi_last":["lane.0.>"],"no_hdr":true}"#];
    for (number, request) in requests.into_iter().enumerate() {
        redirect_reply(&bus, request, &plan).await;
        wait_for_value(PATIENCE, "the reply in the lane", async || {
            let records = read_run(&bus, LANE, &name, 1).await.expect("the server responds");
            let forged = records.iter().filter(|record| record.is_forged()).count();
            assert_eq!(records.len() - forged, 1, "published messages count");
            (forged > number).then_some(())
        })
        .await;
    }
    let genuine = append_message(&bus, LANE, &name, &Topic::Control, &note_entry("later"), 0)
        .await
        .expect("the server accepts it");
    let mut seen = Vec::new();
    let mut tail = LaneTail::follow_lane(&bus, LANE, 1);
    while seen
        .last()
        .is_none_or(|record: &millrace_runtime::nats::record::StreamRecord| record.sequence < genuine)
    {
        seen.extend(tail.next_records().await);
    }
    for record in seen {
        let is_ours = record.sequence == 1 || record.sequence == genuine;
        assert_eq!(bus.decode_record::<JournalEntry>(&record).await.is_ok(), is_ours, "{record:?}");
    }
    archive::archive_run(&bus, LANE, &name, genuine, 0).await.expect("the server accepts it");
    let archived =
        archive::read_archived_run(&bus, &name).await.expect("the server responds").expect("it exists");
    assert_eq!(archived.len(), 2, "the archive contains nothing else");
}

#[tokio::test]
async fn forged_entry_hides_no_step_of_a_journal() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let (name, task) = (run_id("r"), TaskId::new("t").expect("the name is valid"));
    let journal = Topic::Journal(JournalKey::Task(task.clone(), 1));
    let step = |value: &[u8]| JournalEntry::Step {
        number: 1,
        name: "conversation".into(),
        value: InlineOrStoredBytes::Inline(value.to_vec().into()),
    };
    let other = Topic::Journal(JournalKey::Task(task.clone(), 2));
    append_message(&bus, LANE, &name, &other, &step(b"forged"), 0).await.expect("it may be written");
    append_message(&bus, LANE, &name, &journal, &step(b"genuine"), 0).await.expect("it may be written");
    // Without headers: those of the entry expect an empty journal.
    let request = r#"{"seq":1,"no_hdr":true}"#;
    redirect_reply(&bus, request, &subject::topic_subject(LANE, &name, &journal)).await;
    wait_for_value(PATIENCE, "the reply in the lane", async || {
        let records = read_run(&bus, LANE, &name, 1).await.expect("the server responds");
        records.iter().any(millrace_runtime::nats::record::StreamRecord::is_forged).then_some(())
    })
    .await;
    let reader = ClusterReader::new(bus, LANE, name);
    let value = reader.read_step(&task, 1, "conversation").await.expect("the server responds");
    assert_eq!(value.as_deref(), Some(b"genuine".as_slice()));
    assert_eq!(reader.read_step(&task, 1, "another").await.expect("the server responds"), None);
}

#[tokio::test]
async fn metadata_headers_set_by_a_publisher_are_ignored() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let context = async_nats::jetstream::new(bus.client().clone());
    let mut headers = async_nats::HeaderMap::new();
    headers.insert(millrace_runtime::nats::record::ID_HEADER, "x");
    headers.insert("Nats-Subject", "lane.0.run.r.plan");
    headers.insert("Nats-Sequence", "77");
    let sent = context.publish_with_headers("lane.0.run.r.control", headers, "x".into()).await;
    sent.expect("the message is sent").await.expect("the server accepts it");
    let records = read_run(&bus, LANE, &run_id("r"), 1).await.expect("the server responds");
    assert_eq!((records[0].subject.as_str(), records[0].sequence), ("lane.0.run.r.control", 1));
    let one = millrace_runtime::log::read_message(&bus, LANE, 1)
        .await
        .expect("the server responds")
        .expect("it exists");
    assert_eq!((one.subject.as_str(), one.sequence), ("lane.0.run.r.control", 1));
}
