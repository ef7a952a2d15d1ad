//! The NATS shell against a real server: what is appended, stored and read stays so, whatever happens to the server.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;
use millrace_protocol::file::{Expected, FilePath};
use millrace_protocol::ids::{Capability, Lane, RunId, TaskId};
use millrace_protocol::plan::{Control, Work};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::{Blob, MAX_INLINE};
use millrace_protocol::work::{Entry, Order};
use millrace_runtime::backlog::Backlog;
use millrace_runtime::blobs::sha256;
use millrace_runtime::log::{AppendError, append, purge_run, read_lane, read_run};
use millrace_runtime::metrics::{self, names::Process};
use millrace_runtime::tail::Tail;
use millrace_runtime::topology::Wanted;
use millrace_runtime::workspace::{Workspace, Writer};
use millrace_runtime::{Bus, Connection, Fault, archive, queue};
use millrace_tests::{NatsServer, Options, eventually};

const LANE: Lane = Lane(0);
const PATIENCE: Duration = Duration::from_secs(60);

fn run(name: &str) -> RunId {
    RunId::new(name).expect("it is a name")
}

fn note(text: &str) -> Entry {
    Entry::Note { text: text.into() }
}

async fn connect(url: &str, wanted: &Wanted) -> Result<Bus, Fault> {
    let connection = Connection::open(url);
    Bus::connect(&connection, "test", wanted).await
}

async fn bus(server: &NatsServer) -> Bus {
    connect(&server.url, &Wanted::default()).await.expect("the cluster is made")
}

#[tokio::test]
async fn of_two_writers_that_follow_the_same_message_one_is_refused() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let (run, topic) = (run("r"), Topic::Plan);
    let first = append(&bus, LANE, &run, &topic, &note("a"), 0).await.expect("nobody was there");
    let second = append(&bus, LANE, &run, &topic, &note("b"), first).await.expect("it follows the first");
    for stale in [0, first] {
        match append(&bus, LANE, &run, &topic, &note("c"), stale).await {
            Err(AppendError::Fenced { last }) => assert_eq!(last, second),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(read_run(&bus, LANE, &run, 1).await.expect("it answers").len(), 2);
}

#[tokio::test]
async fn appends_across_a_server_that_dies_are_each_there_once_and_in_order() {
    let mut server = NatsServer::start();
    let bus = bus(&server).await;
    let (writing, run) = (bus.clone(), run("r"));
    let writer = tokio::spawn({
        let run = run.clone();
        async move {
            let mut last = 0;
            for number in 0..2_000 {
                let entry = note(&number.to_string());
                last =
                    append(&writing, LANE, &run, &Topic::Plan, &entry, last).await.expect("it gets through");
            }
        }
    });
    for _ in 0..3 {
        let before = read_run(&bus, LANE, &run, 1).await.map_or(0, |records| records.len());
        eventually(PATIENCE, "more appends", async || {
            let now = read_run(&bus, LANE, &run, 1).await.map_or(0, |records| records.len());
            (now > before || writer.is_finished()).then_some(())
        })
        .await;
        server.restart();
    }
    writer.await.expect("no append was lost or refused");
    let mut texts = Vec::new();
    for record in read_run(&bus, LANE, &run, 1).await.expect("it answers") {
        match bus.open::<Entry>(&record).await.expect("it is an entry") {
            Entry::Note { text } => texts.push(text),
            entry @ (Entry::Claimed { .. }
            | Entry::Step { .. }
            | Entry::Released { .. }
            | Entry::Outcome { .. }) => {
                panic!("{entry:?}")
            }
        }
    }
    assert_eq!(texts, (0..2_000).map(|number| number.to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_reader_of_a_lane_goes_on_without_a_gap_when_its_server_comes_back() {
    let mut server = NatsServer::start();
    let bus = bus(&server).await;
    let run = run("r");
    let mut tail = Tail::lane(&bus, LANE, 1);
    let (mut last, mut seen) = (0, Vec::new());
    for round in 0..3 {
        for _ in 0..100 {
            last = append(&bus, LANE, &run, &Topic::Plan, &note("x"), last).await.expect("it gets through");
        }
        while seen.len() < 100 * (round + 1) {
            seen.extend(tail.next().await.into_iter().map(|record| record.sequence));
        }
        server.restart();
    }
    assert_eq!(seen, (1..=300).collect::<Vec<u64>>());
}

#[tokio::test]
async fn a_large_message_travels_through_the_blob_store_and_nobody_notices() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    for bytes in [MAX_INLINE / 2, MAX_INLINE * 2, 5_000_000] {
        let name = run(&format!("r{bytes}"));
        let wish = Control::CancelRun { reason: "x".repeat(bytes) };
        append(&bus, LANE, &name, &Topic::Control, &wish, 0).await.expect("it fits");
        let records = read_run(&bus, LANE, &name, 1).await.expect("it answers");
        assert!(records[0].payload.len() < MAX_INLINE + 1_000, "{} bytes travel", records[0].payload.len());
        assert_eq!(bus.open::<Control>(&records[0]).await.expect("it is read"), wish);
    }
}

#[tokio::test]
async fn a_blob_is_kept_once_and_its_content_is_checked() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let small = bus.blobs().spill(vec![1; MAX_INLINE]).await.expect("it is taken");
    assert!(matches!(small, Blob::Inline(_)));
    let large = vec![2; MAX_INLINE + 1];
    let Blob::Stored(stored) = bus.blobs().spill(large.clone()).await.expect("it is taken") else {
        panic!("it is larger than a message");
    };
    assert_eq!(bus.blobs().put(&large).await.expect("it is there").sha256, stored.sha256);
    assert_eq!(bus.blobs().get(&stored.sha256).await.expect("it is there"), large);
    let missing = "0".repeat(64);
    assert!(matches!(bus.blobs().get(&missing).await, Err(Fault::Missing { sha256 }) if sha256 == missing));
    // Whoever may write blobs says that another name is this content, and that this name is another's.
    let context = async_nats::jetstream::new(bus.client().clone());
    let other = bus.blobs().put(b"something else").await.expect("it is taken");
    let about = |name: &str| format!("$O.blobs.M.{}", URL_SAFE.encode(name));
    let stream = context.get_stream("OBJ_blobs").await.expect("it is there");
    let said =
        stream.get_last_raw_message_by_subject(&about(&other.sha256)).await.expect("it is there").payload;
    for name in [&missing, &stored.sha256] {
        context.publish(about(name), said.clone()).await.expect("it is sent").await.expect("it is taken");
    }
    assert!(matches!(bus.blobs().get(&missing).await, Err(Fault::Damaged { .. })));
    assert_eq!(bus.blobs().get(&stored.sha256).await.expect("it is there"), large, "the first word holds");
}

#[tokio::test]
async fn more_blobs_are_read_than_a_stream_may_have_consumers() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    for number in 0..1_100_u32 {
        let content = number.to_be_bytes();
        let stored = bus.blobs().put(&content).await.expect("it is taken");
        assert_eq!(bus.blobs().get(&stored.sha256).await.expect("it is there"), content);
    }
}

#[tokio::test]
async fn an_archive_says_what_the_lane_said() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let (name, mut last) = (run("r"), 0);
    for number in 0..500 {
        let topic = Topic::Planning(1, 1);
        last = append(&bus, LANE, &name, &topic, &note(&number.to_string()), last)
            .await
            .expect("it gets through");
    }
    let lane = read_run(&bus, LANE, &name, 1).await.expect("it answers");
    assert_eq!(archive::write(&bus, LANE, &name, last).await.expect("it is taken"), last);
    millrace_runtime::log::purge_run(&bus, LANE, &name, last).await.expect("it answers");
    assert!(read_run(&bus, LANE, &name, 1).await.expect("it answers").is_empty());
    assert_eq!(
        archive::write(&bus, LANE, &name, last).await.expect("it answers"),
        0,
        "an empty lane replaces nothing"
    );
    let kept = archive::find_run(&bus, LANE, &name).await.expect("it answers");
    let said = |records: &[millrace_runtime::record::Record]| {
        records.iter().map(|r| (r.sequence, r.subject.clone(), r.payload.clone(), r.time)).collect::<Vec<_>>()
    };
    assert_eq!(said(&kept), said(&lane));
    assert!(archive::find_run(&bus, LANE, &run("other")).await.expect("it answers").is_empty());
}

#[tokio::test]
async fn an_order_that_waits_is_not_put_in_its_queue_again() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let work = Work::Planning { turn: 1, attempt: 1 };
    let planner = millrace_protocol::ids::Capability::new("planner").expect("it is a name");
    let order = Order::new(run("r"), LANE, work.clone(), "o", planner);
    for _ in 0..3 {
        assert!(queue::offer(&bus, vec![order.clone(), order.clone()]).await.is_ok());
    }
    let context = async_nats::jetstream::new(bus.client().clone());
    let waiting = async || {
        let stream = context.get_stream("WORK").await.expect("the queues are there");
        stream.cached_info().state.messages
    };
    assert_eq!(waiting().await, 1);
    queue::withdraw(&bus, &order.run, &order.capability, &work).await.expect("it answers");
    assert_eq!(waiting().await, 0);
}

/// An order for work of a made-up capability.
fn order_for(name: &str, capability: &str) -> Order {
    let work = Work::Task { task: TaskId::new("t").expect("it is a name"), attempt: 1 };
    Order::new(run(name), LANE, work, "o", Capability::new(capability).expect("it is a name"))
}

async fn queues(bus: &Bus) -> usize {
    let context = async_nats::jetstream::new(bus.client().clone());
    let stream = context.get_stream("WORK").await.expect("the queues are there");
    stream.cached_info().state.consumer_count
}

#[tokio::test]
async fn a_queue_that_could_not_be_made_is_made_when_its_order_is_offered_again() {
    let server = NatsServer::start();
    let before = bus(&server).await;
    assert!(queue::offer(&before, vec![order_for("r", "echo")]).await.is_ok());
    let context = async_nats::jetstream::new(before.client().clone());
    let stream = context.get_stream("WORK").await.expect("the queues are there");
    stream.delete_consumer("echo").await.expect("it goes");
    // Of another process, to which the order is not new.
    let after = bus(&server).await;
    assert!(queue::offer(&after, vec![order_for("r", "echo")]).await.is_ok());
    assert_eq!(queues(&after).await, 1);
}

#[tokio::test]
async fn made_up_capabilities_get_no_more_than_so_many_queues_and_names_in_what_is_counted() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let orders = (0..300).map(|number| order_for("r", &format!("made-up-{number}")));
    assert!(queue::offer(&bus, orders.collect()).await.is_ok());
    assert_eq!(queues(&bus).await, 256);
    let page = metrics::page(Process::Supervisor);
    let names = page.lines().filter(|line| line.starts_with("millrace_offers_total{capability=\"made-up-"));
    assert_eq!(names.count(), 256);
    assert!(page.contains("millrace_offers_total{capability=\"(other)\"} 44"), "{page}");
    let known = BTreeSet::from([Capability::new("known").expect("it is a name")]);
    queue::ensure(&bus, &known).await.expect("what somebody offers has its queue");
    assert_eq!(queues(&bus).await, 257);
}

#[tokio::test]
async fn a_cluster_is_made_once_and_what_differs_from_it_is_refused_by_name() {
    let server = NatsServer::start();
    let connection = Connection::open(server.url.clone());
    let none = Bus::join(&connection, "test", Duration::ZERO).await.err().expect("nobody has made one");
    assert!(matches!(none, Fault::NoCluster { .. }), "{none}");
    let wanted = |lanes| Wanted { lanes: Some(lanes), ..Wanted::default() };
    connect(&server.url, &wanted(3)).await.expect("the first makes it");
    connect(&server.url, &wanted(3)).await.expect("it is safe to repeat");
    assert_eq!(
        Bus::join(&connection, "test", Duration::ZERO).await.expect("it is there").settings().lanes,
        3
    );
    let differs = connect(&server.url, &wanted(4)).await.err().expect("it has three");
    assert!(
        differs.to_string().starts_with("the lane count of this cluster has 3, but 4 is asked for"),
        "{differs}"
    );
}

#[tokio::test]
async fn a_stream_of_somebody_else_in_our_place_is_refused_and_left_alone() {
    let server = NatsServer::start();
    let client = async_nats::connect(&server.url).await.expect("it answers");
    let context = async_nats::jetstream::new(client);
    let theirs = async_nats::jetstream::stream::Config {
        name: "LANE_0".into(),
        subjects: vec!["theirs.>".into()],
        ..Default::default()
    };
    context.create_stream(theirs).await.expect("it is made");
    let refused = connect(&server.url, &Wanted::default()).await.err().expect("it is not ours");
    assert!(
        refused.to_string().contains("stream LANE_0") && refused.to_string().contains("theirs.>"),
        "{refused}"
    );
    let still = context.get_stream("LANE_0").await.expect("it is there");
    assert_eq!(still.cached_info().config.subjects, ["theirs.>"]);
}

/// Three servers of one NATS cluster.
fn three() -> [NatsServer; 3] {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let ports = listeners.each_ref().map(|listener| listener.local_addr().expect("it has one").port());
    drop(listeners);
    let routes = ports.map(|port| format!("nats://127.0.0.1:{port}")).join(", ");
    let start = |number: usize| {
        let port = ports[number];
        let cluster =
            format!("cluster {{ name: three, host: 127.0.0.1, port: {port}, routes: [{routes}] }}\n");
        NatsServer::with(&Options {
            more: format!("server_name: n{number}\n{cluster}"),
            ..Options::default()
        })
    };
    [start(0), start(1), start(2)]
}

#[tokio::test]
async fn with_three_copies_any_server_may_die_and_no_append_is_lost() {
    let mut servers = three();
    let url = servers.each_ref().map(|server| server.url.clone()).join(",");
    let wanted = Wanted { replicas: Some(3), ..Wanted::default() };
    // The servers need a moment to find each other and to choose a leader, which is waited for.
    let bus = connect(&url, &wanted).await.expect("the cluster is made");
    let (name, mut last) = (run("r"), 0);
    for server in &mut servers {
        server.kill();
        for number in 0..50 {
            let entry = note(&number.to_string());
            last =
                append(&bus, LANE, &name, &Topic::Plan, &entry, last).await.expect("two of three are enough");
        }
        server.restart();
        // Two of three must be in step before the next one dies.
        let context = async_nats::jetstream::new(bus.client().clone());
        eventually(PATIENCE, "the server to be in step again", async || {
            let stream = context.get_stream("LANE_0").await.ok()?;
            let peers = &stream.cached_info().cluster.as_ref()?.replicas;
            (peers.len() == 2 && peers.iter().all(|peer| peer.current && !peer.offline)).then_some(())
        })
        .await;
    }
    let records = eventually(PATIENCE, "all appends", async || {
        let records = read_run(&bus, LANE, &name, 1).await.ok()?;
        (records.len() == 150).then_some(records)
    })
    .await;
    assert_eq!(records.last().map(|record| record.sequence), Some(last));
}

/// Says of a blob that it is there, in parts that nobody has put there yet. Gives their subject.
async fn promise_blob(bus: &Bus, content: &[u8]) -> String {
    let name = sha256(content);
    let said = format!(
        r#"{{"name":"{name}","bucket":"blobs","nuid":"parts","size":{},"chunks":1,"digest":""}}"#,
        content.len()
    );
    let context = async_nats::jetstream::new(bus.client().clone());
    let about = format!("$O.blobs.M.{}", URL_SAFE.encode(name));
    context.publish(about, said.into()).await.expect("it is sent").await.expect("it is taken");
    "$O.blobs.C.parts".into()
}

#[tokio::test]
async fn with_three_copies_the_parts_of_a_blob_may_come_later_than_what_is_said_of_it() {
    let servers = three();
    let url = servers.each_ref().map(|server| server.url.clone()).join(",");
    let wanted = Wanted { replicas: Some(3), ..Wanted::default() };
    let bus = connect(&url, &wanted).await.expect("the cluster is made");
    let content = vec![7; 1_000];
    let parts = promise_blob(&bus, &content).await;
    let name = sha256(&content);
    let late = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let context = async_nats::jetstream::new(bus.client().clone());
        let sent = context.publish(parts, content.clone().into()).await.expect("it is sent");
        sent.await.expect("it is taken");
    };
    let (found, ()) = tokio::join!(bus.blobs().get(&name), late);
    assert_eq!(found.expect("it has come"), content);
}

#[tokio::test]
async fn a_blob_whose_parts_never_come_is_missing_and_nobody_waits_for_it_for_ever() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let content = vec![7; 1_000];
    promise_blob(&bus, &content).await;
    let found = bus.blobs().get(&sha256(&content)).await;
    assert!(matches!(found, Err(Fault::Missing { .. })), "{found:?}");
    // It was said by nobody who leaves a mark, so that whoever has the content puts it there.
    bus.blobs().put(&content).await.expect("it is taken");
    assert_eq!(bus.blobs().get(&sha256(&content)).await.expect("it is there"), content);
    let other = bus.blobs().get(&"x ".repeat(300_000)).await;
    assert!(matches!(other, Err(Fault::Missing { .. })), "no blob has such a name: {other:?}");
}

/// Adds numbered lines to a file that others write too, each as a model would: read it, write it, again if refused.
async fn add_lines(files: &Workspace, name: &str, count: u32) {
    let path = FilePath::new("/shared").expect("it is a path");
    for number in 0..count {
        let (line, key) = (format!("{name}{number}\n"), format!("{name}/{number}"));
        eventually(PATIENCE, "the line to be written", async || {
            // A write whose answer was lost is not made again.
            if files.made(&path, &key).await.ok()?.is_some() {
                return Some(());
            }
            let found = files.read(&path).await.ok()?;
            let expected =
                found.as_ref().map_or(Expected::Nothing, |file| Expected::Version(file.entry.version));
            let mut bytes = found.map(|file| file.bytes).unwrap_or_default();
            bytes.extend_from_slice(line.as_bytes());
            files.write(&path, bytes, expected, Writer { author: name, key: &key }).await.ok().map(|_| ())
        })
        .await;
    }
}

#[tokio::test]
async fn with_three_copies_a_file_that_two_write_loses_no_line_when_a_server_dies() {
    let mut servers = three();
    let url = servers.each_ref().map(|server| server.url.clone()).join(",");
    let wanted = Wanted { replicas: Some(3), ..Wanted::default() };
    let bus = eventually(PATIENCE, "a cluster of three", async || connect(&url, &wanted).await.ok()).await;
    let (files, path) = (Workspace::new(&bus, &run("r")), FilePath::new("/shared").expect("it is a path"));
    let killing = async {
        eventually(PATIENCE, "some lines", async || {
            let file = files.read(&path).await.ok()??;
            (file.entry.version >= 20).then_some(())
        })
        .await;
        let context = async_nats::jetstream::new(bus.client().clone());
        let stream = context.get_stream("FILES").await.expect("it is there");
        let leader = stream.cached_info().cluster.as_ref().and_then(|cluster| cluster.leader.clone());
        let leader = leader.expect("it has a leader");
        let at = (0..3).find(|number| leader == format!("n{number}")).expect("it is one of ours");
        servers[at].kill();
    };
    tokio::join!(add_lines(&files, "a", 60), add_lines(&files, "b", 60), killing);
    let file = files.read(&path).await.expect("it answers").expect("it is there");
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
    let bus = bus(&server).await;
    assert!(read_lane(&bus, LANE).next().await.expect("it answers").is_empty(), "a new lane holds nothing");
    for name in ["first", "second", "third"] {
        let topic = |number: u32| subject::topic(LANE, &run(name), &Topic::Planning(number, 1));
        for number in 1..=4_000 {
            bus.client().publish(topic(number), "no entry".into()).await.expect("it is sent");
        }
    }
    eventually(PATIENCE, "all messages", async || (sequences(&bus).await.len() == 12_000).then_some(()))
        .await;
    let last = *sequences(&bus).await.last().expect("it is not empty");
    purge_run(&bus, LANE, &run("second"), last).await.expect("it answers");
    let left = sequences(&bus).await;
    assert_eq!(left.len(), 8_000);
    assert!(left.is_sorted_by(|one, next| one < next), "each once, oldest first");

    let mut lane = read_lane(&bus, LANE);
    let begun = lane.next().await.expect("it answers").len();
    purge_run(&bus, LANE, &run("third"), last).await.expect("it answers");
    let read = begun + rest(&mut lane).await.len();
    assert!((4_000..=8_000).contains(&read), "{read}: it ends, though messages that were promised are gone");
}

async fn sequences(bus: &Bus) -> Vec<u64> {
    rest(&mut read_lane(bus, LANE)).await
}

async fn rest(lane: &mut Backlog) -> Vec<u64> {
    let mut sequences = Vec::new();
    loop {
        let records = lane.next().await.expect("it answers");
        if records.is_empty() {
            return sequences;
        }
        sequences.extend(records.iter().map(|record| record.sequence));
    }
}

/// Asks for a message and has the answer sent where it does not belong.
async fn send_answer(bus: &Bus, request: &str, to: &str) {
    let question = "$JS.API.DIRECT.GET.LANE_0";
    bus.client()
        .publish_with_reply(question, to.to_owned(), request.to_owned().into())
        .await
        .expect("it is sent");
}

#[tokio::test]
async fn an_answer_of_the_server_that_was_sent_to_a_plan_is_no_event_of_it() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let (name, journal) =
        (run("r"), Topic::Review(millrace_protocol::ids::TaskId::new("t").expect("it is a name"), 1));
    append(&bus, LANE, &name, &journal, &note("forged"), 0).await.expect("it may be written");
    let plan = subject::topic(LANE, &name, &Topic::Plan);
    let requests =
        [r#"{"seq":1}"#, r#"{"seq":1,"no_hdr":true}"#, r#"{"multi_last":["lane.0.>"],"no_hdr":true}"#];
    for (number, request) in requests.into_iter().enumerate() {
        send_answer(&bus, request, &plan).await;
        eventually(PATIENCE, "the answer in the lane", async || {
            let records = read_run(&bus, LANE, &name, 1).await.expect("it answers");
            let strays = records.iter().filter(|record| record.is_stray).count();
            assert_eq!(records.len() - strays, 1, "what was appended counts");
            (strays > number).then_some(())
        })
        .await;
    }
    let genuine = append(&bus, LANE, &name, &Topic::Control, &note("later"), 0).await.expect("it is taken");
    let mut seen = Vec::new();
    let mut tail = Tail::lane(&bus, LANE, 1);
    while seen.last().is_none_or(|record: &millrace_runtime::record::Record| record.sequence < genuine) {
        seen.extend(tail.next().await);
    }
    for record in seen {
        let is_ours = record.sequence == 1 || record.sequence == genuine;
        assert_eq!(bus.open::<Entry>(&record).await.is_ok(), is_ours, "{record:?}");
    }
    archive::write(&bus, LANE, &name, genuine).await.expect("it is taken");
    let kept = archive::read(&bus, &name).await.expect("it answers").expect("it is there");
    assert_eq!(kept.len(), 2, "an archive holds nothing else");
}

#[tokio::test]
async fn what_a_message_says_of_its_own_place_is_not_believed() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let context = async_nats::jetstream::new(bus.client().clone());
    let mut headers = async_nats::HeaderMap::new();
    headers.insert(millrace_runtime::record::ID_HEADER, "x");
    headers.insert("Nats-Subject", "lane.0.run.r.plan");
    headers.insert("Nats-Sequence", "77");
    let sent = context.publish_with_headers("lane.0.run.r.control", headers, "x".into()).await;
    sent.expect("it is sent").await.expect("it is taken");
    let records = read_run(&bus, LANE, &run("r"), 1).await.expect("it answers");
    assert_eq!((records[0].subject.as_str(), records[0].sequence), ("lane.0.run.r.control", 1));
    let one = millrace_runtime::log::read_one(&bus, LANE, 1).await.expect("it answers").expect("it is there");
    assert_eq!((one.subject.as_str(), one.sequence), ("lane.0.run.r.control", 1));
}
