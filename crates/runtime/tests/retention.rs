//! Deleting runs and sweeping blobs against a real server: random runs share blobs, files and memories, deletions and sweeps die
//! at random moments, and in the end everything that is left can be read, and nothing else is left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream::{self};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use millrace_protocol::file::{FilePath, WriteCondition};
use millrace_protocol::ids::{Lane, RunId, TaskId};
use millrace_protocol::plan::{EndReason, JournalKey};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::result::Usage;
use millrace_protocol::retention::DeletionState;
use millrace_protocol::subject::{Topic, topic_subject};
use millrace_protocol::wire::{BlobRef, InlineOrStoredBytes, MAX_INLINE};
use millrace_protocol::work::JournalEntry;
use millrace_runtime::log::{append_message, purge_run};
use millrace_runtime::nats::topology::ClusterOptions;
use millrace_runtime::store::archive;
use millrace_runtime::store::blobs::sha256_hex;
use millrace_runtime::store::retention::{
    self, DeletionError, DeletionRequest, RetentionHold, SweepOptions, read_deletion, remove_requested_run,
    request_deletion, sweep_blobs,
};
use millrace_runtime::store::workspace::{FileAuthor, RunWorkspace};
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, ConnectionSettings, Fault};
use millrace_tests::NatsServer;
use millrace_tests::plans::SeededRandom;

const LANE: Lane = Lane(0);
/// The grace period of the test, and the age from which its blobs are renewed: far more than the time from storing a blob to the
/// message that refers to it.
const GRACE: Duration = Duration::from_secs(6);
const RENEWAL: Duration = Duration::from_secs(1);
/// The number of runs by each of the writers.
const RUNS: u64 = 40;
const WRITERS: u64 = 3;
/// The number of contents that runs share.
const CONTENTS: u64 = 24;

async fn connect_bus(server: &NatsServer) -> Bus {
    let connection = ConnectionSettings::unauthenticated(&server.url);
    let bus = Bus::connect_and_ensure_cluster(&connection, "test", &ClusterOptions::default()).await;
    let bus = bus.expect("the cluster is created");
    bus.blobs().set_renewal_age(RENEWAL);
    bus
}

fn summary_of(run: &RunId, end: Option<EndReason>, archived: bool) -> RunSummary {
    let now = jiff::Timestamp::now();
    RunSummary {
        run: run.clone(),
        lane: LANE,
        objective: "test".into(),
        end,
        started: now,
        updated: now,
        counts: [0; 9],
        waiting: 0,
        open_questions: 0,
        questions: 0,
        archived,
        is_resumable: false,
        is_paused: false,
        is_interrupted: false,
        waiting_for_provider: None,
        winding_down: None,
        usage: Usage::default(),
        wait: None,
        waiting_for: None,
        log_damage: None,
        labels: BTreeMap::default(),
        session: None,
        session_position: None,
        hold: None,
        queue_place: None,
        spend: None,
        archived_span: None,
    }
}

/// A shared content; one of four is too large for a message.
fn content(number: u64) -> Vec<u8> {
    let size = if number.is_multiple_of(4) { MAX_INLINE + 1_000 } else { 400 };
    format!("content {number} ").into_bytes().into_iter().cycle().take(size).collect()
}

/// The expected contents of a run: blobs by name, files by path.
#[derive(Debug, Clone, Default)]
struct ExpectedRun {
    blobs: BTreeSet<String>,
    files: BTreeMap<String, Vec<u8>>,
}

/// Stores a blob that refers to another one, as a list of documents does.
async fn store_list(bus: &Bus, names: &[String]) -> BlobRef {
    bus.blobs().put_blob(format!("list of {}", names.join(", ")).as_bytes()).await.expect("it is stored")
}

/// Creates a run with journal entries that refer to blobs, files, and a list, and archives it.
async fn create_run(bus: &Bus, run: &RunId, random: &mut SeededRandom) -> ExpectedRun {
    let mut expected = ExpectedRun::default();
    let mut contents = Vec::new();
    for _ in 0..=random.next_below(4) {
        let stored = bus.blobs().put_blob(&content(random.next_below(CONTENTS))).await.expect("it is stored");
        contents.push(stored.sha256);
    }
    let list = store_list(bus, &contents).await;
    expected.blobs.extend(contents);
    expected.blobs.insert(list.sha256.clone());
    let task = TaskId::new("t").expect("the name is valid");
    let journal = Topic::Journal(JournalKey::Task(task, 1));
    let entry =
        JournalEntry::Step { number: 1, name: "documents".into(), value: InlineOrStoredBytes::Stored(list) };
    append_message(bus, LANE, run, &journal, &entry, 0).await.expect("the server accepts it");
    for file in 0..random.next_below(3) {
        let bytes = content(random.next_below(CONTENTS));
        let path = format!("/notes/{file}.md");
        write_file(&RunWorkspace::new(bus, run), &path, &bytes).await;
        if bytes.len() > MAX_INLINE {
            expected.blobs.insert(sha256_hex(&bytes));
        }
        expected.files.insert(path, bytes);
    }
    registry::write_summary(bus, &summary_of(run, None, false)).await.expect("the server accepts it");
    let note = JournalEntry::Note { text: "the end".into(), provider: None };
    let end = append_message(bus, LANE, run, &Topic::Plan, &note, 0).await.expect("the server accepts it");
    assert_eq!(archive::archive_run(bus, LANE, run, end, 0).await.expect("the server accepts it").last, end);
    let summary = summary_of(run, Some(EndReason::Completed), true);
    registry::write_summary(bus, &summary).await.expect("the server accepts it");
    purge_run(bus, LANE, run, end).await.expect("the server accepts it");
    expected
}

async fn write_file(files: &RunWorkspace, path: &str, bytes: &[u8]) {
    let author =
        FileAuthor { author: "task t", key: &sha256_hex(format!("{path}{}", bytes.len()).as_bytes()) };
    let path = FilePath::new(path).expect("the path is valid");
    files.write_file(&path, bytes.to_vec(), WriteCondition::Always, author).await.expect("it is written");
}

/// Reads everything of a run.
async fn assert_is_complete(bus: &Bus, run: &RunId, expected: &ExpectedRun) {
    let records = archive::read_archived_run(bus, run).await.expect("the server responds");
    let records = records.unwrap_or_else(|| panic!("run {run} has lost its archive"));
    let step: JournalEntry = bus.decode_record(&records[0]).await.expect("it is an entry");
    let JournalEntry::Step { value, .. } = step else { panic!("{step:?}") };
    let list = bus.blobs().read_inline_or_stored(&value).await;
    let list = list.unwrap_or_else(|fault| panic!("run {run} has lost its list: {fault}"));
    let list = String::from_utf8(list).expect("it is text");
    for name in &expected.blobs {
        bus.blobs().get(name).await.unwrap_or_else(|fault| panic!("run {run} has lost a blob: {fault}"));
    }
    for name in list.trim_start_matches("list of ").split(", ") {
        assert!(expected.blobs.contains(name), "{name}");
    }
    for (path, bytes) in &expected.files {
        let path = FilePath::new(path).expect("the path is valid");
        let file = RunWorkspace::new(bus, run).read_file(&path).await.expect("the server responds");
        assert_eq!(&file.unwrap_or_else(|| panic!("run {run} has lost {path}")).bytes, bytes);
    }
}

/// Runs an operation and drops it after a random time, as if its process was killed there, until it is done.
async fn with_kills<T>(
    random: &mut SeededRandom,
    max_millis: u64,
    operation: impl Fn() -> BoxFuture<'static, Result<Option<T>, Fault>>,
) -> T {
    loop {
        let limit = Duration::from_micros(1_000 * random.next_below(max_millis) + random.next_below(1_000));
        match tokio::time::timeout(limit, operation()).await {
            Ok(Ok(Some(value))) => return value,
            Ok(Ok(None)) => tokio::time::sleep(Duration::from_millis(5)).await,
            Ok(Err(fault)) => panic!("{fault}"),
            Err(_killed) => {}
        }
    }
}

async fn names_of_blobs(bus: &Bus) -> BTreeSet<String> {
    let store = jetstream::new(bus.client().clone()).get_object_store("blobs").await.expect("it exists");
    let objects = store.list().await.expect("the server responds");
    objects.map(|info| info.expect("it is readable").name).collect().await
}

/// The number of subjects of parts in an object store.
async fn parts_in(bus: &Bus, bucket: &str) -> usize {
    let stream = jetstream::new(bus.client().clone()).get_stream(format!("OBJ_{bucket}")).await;
    let subjects = stream.expect("it exists").info_with_subjects(format!("$O.{bucket}.C.>")).await;
    subjects.expect("the server responds").count().await
}

async fn subjects_in(bus: &Bus, stream: &str, filter: &str) -> usize {
    let stream = jetstream::new(bus.client().clone()).get_stream(stream).await.expect("it exists");
    stream.info_with_subjects(filter).await.expect("the server responds").count().await
}

async fn messages_in(bus: &Bus, stream: &str, subject: &str) -> usize {
    let stream = jetstream::new(bus.client().clone()).get_stream(stream).await.expect("it exists");
    let subjects = stream.info_with_subjects(subject).await.expect("the server responds");
    subjects
        .map(|subject| subject.expect("the server responds").1)
        .fold(0, async |sum, count| sum + count)
        .await
}

fn seeds() -> u64 {
    std::env::var("MILLRACE_RETENTION_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

type World = Arc<Mutex<BTreeMap<RunId, ExpectedRun>>>;

#[tokio::test(flavor = "multi_thread")]
async fn everything_of_remaining_runs_is_kept_and_nothing_else() {
    for seed in 0..seeds() {
        prune_random_runs(seed).await;
    }
}

async fn prune_random_runs(seed: u64) {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let world: World = Arc::default();
    let deleted: Arc<Mutex<BTreeSet<RunId>>> = Arc::default();
    let memories = RunWorkspace::of_memories(&bus);
    write_file(&memories, "/kept.md", &content(0)).await;
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (bus, world) = (bus.clone(), Arc::clone(&world));
            tokio::spawn(async move {
                let mut random = SeededRandom::new(1_000 * seed + writer);
                for number in 0..RUNS {
                    let run = RunId::new(format!("r{writer}-{number}")).expect("the name is valid");
                    let expected = create_run(&bus, &run, &mut random).await;
                    world.lock().expect("no test has panicked").insert(run, expected);
                    // Blobs grow old and are used again.
                    tokio::time::sleep(Duration::from_millis(random.next_below(500))).await;
                }
            })
        })
        .collect();
    let deleter = tokio::spawn({
        let (bus, world, deleted) = (bus.clone(), Arc::clone(&world), Arc::clone(&deleted));
        async move {
            let mut random = SeededRandom::new(1_000 * seed + 500);
            loop {
                let run = {
                    let mut runs = world.lock().expect("no test has panicked");
                    let at = usize::try_from(random.next_below(runs.len().max(1) as u64)).unwrap_or_default();
                    let run = runs.keys().nth(at).cloned().filter(|_| runs.len() > 20);
                    run.inspect(|run| drop(runs.remove(run)))
                };
                let Some(run) = run else {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                };
                request_deletion(&bus, &run, "test").await.expect("the run has ended");
                with_kills(&mut random, 20, || {
                    let (bus, run) = (bus.clone(), run.clone());
                    async move { Ok(remove_requested_run(&bus, &run).await?.then_some(())) }.boxed()
                })
                .await;
                deleted.lock().expect("no test has panicked").insert(run);
            }
        }
    });
    let sweeper = tokio::spawn({
        let bus = bus.clone();
        async move {
            let (mut random, mut removed) = (SeededRandom::new(1_000 * seed + 600), 0);
            loop {
                let report = with_kills(&mut random, 1_500, || {
                    let bus = bus.clone();
                    let options = SweepOptions { grace: GRACE, is_paced: false };
                    async move { sweep_blobs(&bus, options).await }.boxed()
                })
                .await;
                removed += report.removed;
                println!("{report:?}, {removed} removed so far");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    });
    for writer in writers {
        writer.await.expect("the writer has not failed");
    }
    assert!(!deleter.is_finished() && !sweeper.is_finished(), "a deletion or a sweep has failed");
    sweeper.abort();
    // The deleter leaves twenty runs.
    while world.lock().expect("no test has panicked").len() > 20 || unfinished_deletions(&bus).await > 0 {
        assert!(!deleter.is_finished(), "a deletion has failed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    deleter.abort();
    let remaining = world.lock().expect("no test has panicked").clone();
    for (run, expected) in &remaining {
        assert_is_complete(&bus, run, expected).await;
    }
    tokio::time::sleep(GRACE).await;
    let report = sweep_blobs(&bus, SweepOptions { grace: GRACE, is_paced: false }).await;
    println!("at the end: {:?}", report.expect("the server responds"));
    for (run, expected) in &remaining {
        assert_is_complete(&bus, run, expected).await;
    }
    let memory = FilePath::new("/kept.md").expect("the path is valid");
    let memory = memories.read_file(&memory).await.expect("the server responds").expect("it is kept");
    assert_eq!(memory.bytes, content(0));
    let mut blobs: BTreeSet<String> = remaining.values().flat_map(|run| run.blobs.clone()).collect();
    blobs.insert(sha256_hex(&content(0)));
    assert_eq!(names_of_blobs(&bus).await, blobs, "exactly the referenced blobs are left");
    assert_eq!(parts_in(&bus, "blobs").await, blobs.len());
    assert_eq!(parts_in(&bus, "archive").await, remaining.len());
    let files: usize = remaining.values().map(|run| run.files.len()).sum();
    assert_eq!(subjects_in(&bus, "FILES", "files.>").await, files + 1);
    assert_eq!(subjects_in(&bus, "LANE_0", ">").await, 0);
    let deleted = deleted.lock().expect("no test has panicked").clone();
    assert!(deleted.len() as u64 >= WRITERS * RUNS - 21, "{} runs were deleted", deleted.len());
    for run in &deleted {
        assert_eq!(registry::read_summary(&bus, run).await.expect("the server responds"), None);
        assert!(archive::read_archived_run(&bus, run).await.expect("the server responds").is_none());
    }
}

async fn unfinished_deletions(bus: &Bus) -> usize {
    let deletions = retention::list_deletions(bus).await.expect("the server responds");
    deletions.iter().filter(|entry| entry.value.state.is_pending()).count()
}

#[tokio::test]
async fn live_runs_are_refused_and_deletions_are_idempotent() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let run = RunId::new("r").expect("the name is valid");
    assert!(matches!(request_deletion(&bus, &run, "me").await, Err(DeletionError::NotFound(_))));
    registry::write_summary(&bus, &summary_of(&run, None, false)).await.expect("the server accepts it");
    let error = request_deletion(&bus, &run, "me").await.expect_err("the run is live");
    assert_eq!(error.to_string(), "run r has not ended; cancel it first with `millrace cancel r`");
    // It has ended, and is still in its lane.
    let ended = summary_of(&run, Some(EndReason::Failed), false);
    registry::write_summary(&bus, &ended).await.expect("the server accepts it");
    assert_eq!(request_deletion(&bus, &run, "me").await.expect("it has ended"), DeletionRequest::Recorded);
    assert_eq!(request_deletion(&bus, &run, "me").await.expect("it has ended"), DeletionRequest::Pending);
    assert!(!remove_requested_run(&bus, &run).await.expect("the server responds"), "it must wait");
    // It continues before a supervisor has removed anything.
    registry::write_summary(&bus, &summary_of(&run, None, false)).await.expect("the server accepts it");
    assert!(remove_requested_run(&bus, &run).await.expect("the server responds"));
    let record = read_deletion(&bus, &run).await.expect("the server responds").expect("there is one");
    assert_eq!(record.state, DeletionState::Refused);
    let archived = summary_of(&run, Some(EndReason::Failed), true);
    registry::write_summary(&bus, &archived).await.expect("the server accepts it");
    assert_eq!(request_deletion(&bus, &run, "me").await.expect("it has ended"), DeletionRequest::Recorded);
    let hold = RetentionHold::take(&bus, "backup").await.expect("the server accepts it");
    assert!(!remove_requested_run(&bus, &run).await.expect("the server responds"), "a backup is taken");
    let options = SweepOptions { grace: Duration::ZERO, is_paced: false };
    assert_eq!(sweep_blobs(&bus, options).await.expect("the server responds"), None);
    hold.release(&bus).await;
    assert!(remove_requested_run(&bus, &run).await.expect("the server responds"));
    assert_eq!(registry::read_summary(&bus, &run).await.expect("the server responds"), None);
    assert_eq!(request_deletion(&bus, &run, "me").await.expect("it is gone"), DeletionRequest::Deleted);
    assert_eq!(retention::expire_records(&bus, Duration::from_secs(3600)).await.expect("it works"), 0);
    assert_eq!(retention::expire_records(&bus, Duration::ZERO).await.expect("it works"), 1);
    assert!(matches!(request_deletion(&bus, &run, "me").await, Err(DeletionError::NotFound(_))));
    assert_eq!(subjects_in(&bus, "KV_runs", ">").await, 0, "the marker of the summary is gone too");
}

/// The command that retires a run was refused, since the run was resumed before it, and the run has ended again.
#[tokio::test]
async fn run_that_ended_again_is_retired_for_its_deletion() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let run = RunId::new("r").expect("the name is valid");
    for end in 1..=3 {
        let ended = RunSummary { is_resumable: true, ..summary_of(&run, Some(EndReason::Failed), false) };
        registry::write_summary(&bus, &ended).await.expect("the server accepts it");
        if end == 1 {
            request_deletion(&bus, &run, "me").await.expect("it has ended");
        }
        for _ in 0..2 {
            assert!(!remove_requested_run(&bus, &run).await.expect("the server responds"), "it must wait");
        }
        let commands = messages_in(&bus, "LANE_0", &topic_subject(LANE, &run, &Topic::Control)).await;
        assert_eq!(commands, end, "one for each end");
    }
}

#[tokio::test]
async fn forecast_counts_what_only_the_selected_runs_refer_to() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let (one, two) = (RunId::new("one").expect("it is valid"), RunId::new("two").expect("it is valid"));
    let expected_one = create_run(&bus, &one, &mut SeededRandom::new(1)).await;
    let expected_two = create_run(&bus, &two, &mut SeededRandom::new(2)).await;
    let only_one = expected_one.blobs.difference(&expected_two.blobs).count() as u64;
    let forecast = retention::forecast_prune(&bus, &[one].into()).await.expect("the server responds");
    assert_eq!((forecast.runs, forecast.blobs), (1, only_one));
    assert!(forecast.archive_bytes > 0 && forecast.blob_bytes > 0);
    let forecast = retention::forecast_prune(&bus, &[two].into()).await.expect("the server responds");
    assert_eq!(forecast.blobs, expected_two.blobs.difference(&expected_one.blobs).count() as u64);
}
