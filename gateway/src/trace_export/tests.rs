//! The export against a real server: recorded runs are published message by message, exporters are killed, receivers are away, and
//! the received spans are compared with those of the log.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::HeaderMap;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::result::Usage;
use millrace_protocol::subject::{Topic, parse_lane_subject, topic_subject};
use millrace_runtime::nats::topology::{ClusterOptions, lane_stream};
use millrace_runtime::store::archive::archive_run;
use millrace_runtime::store::keys::read_position;
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, ConnectionSettings};
use millrace_tests::{NatsServer, wait_for_value};
use millrace_traces::otlp::decode_spans;
use millrace_traces::read::trace_run;
use serde_json::Value;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Spans by their ids: the name, and everything else as text.
type SpansById = BTreeMap<(String, String), (String, String)>;

/// A receiver that records what it accepts.
#[derive(Default)]
struct Recorder {
    spans: Mutex<SpansById>,
    /// The number of spans whose second copy was not the same as the first.
    contradictions: AtomicU64,
    requests: AtomicU64,
    is_away: AtomicBool,
}

impl Recorder {
    async fn serve() -> (Arc<Self>, OtlpReceiver, ExportSettings) {
        let recorder = Arc::new(Self::default());
        let router = axum::Router::new().route("/v1/traces", post(record)).with_state(recorder.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let settings = ExportSettings::of_receiver(&url).unwrap();
        (recorder, OtlpReceiver::new(&settings).unwrap(), settings)
    }

    fn ids(&self) -> BTreeSet<(String, String)> {
        self.spans.lock().unwrap().keys().cloned().collect()
    }
}

async fn record(State(recorder): State<Arc<Recorder>>, body: Bytes) -> StatusCode {
    recorder.requests.fetch_add(1, Ordering::Relaxed);
    if recorder.is_away.load(Ordering::Relaxed) {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    for (id, name, text) in decode_spans(&body).unwrap() {
        let earlier = recorder.spans.lock().unwrap().insert(id, (name.clone(), text.clone()));
        if earlier.is_some_and(|earlier| earlier != (name, text)) {
            recorder.contradictions.fetch_add(1, Ordering::Relaxed);
        }
    }
    StatusCode::OK
}

struct World {
    _server: NatsServer,
    bus: Bus,
    recorder: Arc<Recorder>,
    settings: ExportSettings,
}

impl World {
    async fn start() -> Self {
        let server = NatsServer::start();
        let connection = ConnectionSettings::unauthenticated(&server.url);
        let options = ClusterOptions { lanes: Some(2), ..ClusterOptions::default() };
        let bus = Bus::connect_and_ensure_cluster(&connection, "test", &options).await.unwrap();
        let (recorder, _, settings) = Recorder::serve().await;
        Self { _server: server, bus, recorder, settings }
    }

    /// Starts an exporter, which takes over after a moment. Dropping it is like killing its process.
    fn start_exporter(&self) -> tokio_util::task::AbortOnDropHandle<()> {
        let receiver = OtlpReceiver::new(&self.settings).unwrap();
        let takeover = Duration::from_millis(20);
        let exporter = TraceExporter::new(
            self.bus.clone(),
            self.settings.clone(),
            receiver,
            takeover,
            CancellationToken::new(),
        );
        tokio_util::task::AbortOnDropHandle::new(tokio::spawn(exporter.run()))
    }

    /// Publishes a message of a recorded run to the lane of a run.
    async fn publish(&self, run: &RunId, line: &Value) {
        let (_, _, topic) = parse_lane_subject(line["subject"].as_str().unwrap()).unwrap();
        let subject = topic_subject(self.bus.lane_of_run(run), run, &topic);
        let payload = data_encoding::BASE64.decode(line["payload"].as_str().unwrap().as_bytes()).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("Millrace-Id", uuid::Uuid::new_v4().to_string());
        let context = async_nats::jetstream::new(self.bus.client().clone());
        context.publish_with_headers(subject, headers, payload.into()).await.unwrap().await.unwrap();
    }

    async fn wait_for_spans(&self, expected: &BTreeSet<(String, String)>) {
        wait_for_value(TIMEOUT, "all spans", async || (self.recorder.ids() == *expected).then_some(())).await;
        assert_eq!(self.recorder.contradictions.load(Ordering::Relaxed), 0, "a span changed");
    }

    async fn ids_of_log(&self, run: &RunId) -> BTreeSet<(String, String)> {
        let spans = trace_run(&self.bus, run, self.settings.traces.options.clone()).await.unwrap();
        assert!(!spans.is_empty());
        spans.iter().map(|span| (span.context.trace.to_string(), span.context.span.to_string())).collect()
    }
}

fn recorded_run(name: &str) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/traces/tests/logs");
    let text = std::fs::read_to_string(folder.join(format!("{name}.jsonl"))).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn run_id(name: &str) -> RunId {
    RunId::new(name).unwrap()
}

/// An exporter is killed behind every message, before or after its spans were received, and the next one continues.
#[tokio::test(flavor = "multi_thread")]
async fn exporters_killed_behind_every_message_lose_no_span() {
    let world = World::start().await;
    let runs = ["planner", "questions", "delegation", "takeover"];
    let mut logs: Vec<(RunId, std::vec::IntoIter<Value>)> =
        runs.iter().map(|name| (run_id(name), recorded_run(name).into_iter())).collect();
    let mut count = 0_u64;
    while !logs.is_empty() {
        let mut rest = Vec::new();
        for (run, mut lines) in logs {
            let Some(line) = lines.next() else { continue };
            world.publish(&run, &line).await;
            rest.push((run, lines));
        }
        logs = rest;
        let exporter = world.start_exporter();
        let before = world.recorder.requests.load(Ordering::Relaxed);
        count += 1;
        // Every second one is killed while it exports, the others after a while.
        let patience = Duration::from_millis(40 + 15 * (count % 5));
        let first_request = async {
            while count.is_multiple_of(2) || world.recorder.requests.load(Ordering::Relaxed) == before {
                tokio::task::yield_now().await;
            }
        };
        drop(tokio::time::timeout(patience, first_request).await);
        drop(exporter);
    }
    let mut expected = BTreeSet::new();
    for name in runs {
        expected.extend(world.ids_of_log(&run_id(name)).await);
    }
    let _exporter = world.start_exporter();
    world.wait_for_spans(&expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn receiver_that_is_away_loses_nothing() {
    let world = World::start().await;
    world.recorder.is_away.store(true, Ordering::Relaxed);
    let run = run_id("review");
    let _exporter = world.start_exporter();
    for line in recorded_run("review") {
        world.publish(&run, &line).await;
    }
    wait_for_value(TIMEOUT, "two requests", async || {
        (world.recorder.requests.load(Ordering::Relaxed) >= 2).then_some(())
    })
    .await;
    assert!(world.recorder.ids().is_empty());
    world.recorder.is_away.store(false, Ordering::Relaxed);
    let expected = world.ids_of_log(&run).await;
    world.wait_for_spans(&expected).await;
}

/// A run that is archived and removed from its lane while no exporter runs, and one of which the exporter has seen the beginning.
#[tokio::test(flavor = "multi_thread")]
async fn archived_runs_are_exported_whatever_was_read_before() {
    let world = World::start().await;
    let mut expected = BTreeSet::new();
    let (seen, unseen) = (run_id("seen"), run_id("unseen"));
    let lines = recorded_run("review");
    let half = lines.len() / 2;
    for line in &lines[..half] {
        world.publish(&seen, line).await;
    }
    let exporter = world.start_exporter();
    wait_for_value(TIMEOUT, "the first spans", async || (!world.recorder.ids().is_empty()).then_some(()))
        .await;
    drop(exporter);
    for line in &lines[half..] {
        world.publish(&seen, line).await;
    }
    for line in &lines {
        world.publish(&unseen, line).await;
    }
    for run in [&seen, &unseen] {
        expected.extend(world.ids_of_log(run).await);
        archive(&world.bus, run).await;
        assert_eq!(
            world.ids_of_log(run).await.difference(&expected).count(),
            0,
            "the archive has the same spans"
        );
    }
    let _exporter = world.start_exporter();
    world.wait_for_spans(&expected).await;
}

/// The last message that was exported is removed with its archived run, and its lane has messages of another run.
#[tokio::test(flavor = "multi_thread")]
async fn exporter_continues_after_the_last_exported_message_was_removed() {
    let world = World::start().await;
    let first = run_id("first");
    let lane = world.bus.lane_of_run(&first);
    let mut names = (0..).map(|number| run_id(&format!("second-{number}")));
    let second = names.find(|run| world.bus.lane_of_run(run) == lane).unwrap();
    let exporter = world.start_exporter();
    for line in recorded_run("review") {
        world.publish(&first, &line).await;
    }
    let end =
        millrace_runtime::log::read_run(&world.bus, lane, &first, 1).await.unwrap().last().unwrap().sequence;
    wait_for_value(TIMEOUT, "the position of the exporter", async || {
        let stored = read_position(&world.bus, NAME).await.ok()??;
        (stored.value.lanes.get(&lane.0) == Some(&end)).then_some(())
    })
    .await;
    drop(exporter);
    let mut expected = world.ids_of_log(&first).await;
    archive(&world.bus, &first).await;
    for line in recorded_run("review") {
        world.publish(&second, &line).await;
    }
    expected.extend(world.ids_of_log(&second).await);
    let _exporter = world.start_exporter();
    world.wait_for_spans(&expected).await;
}

/// Archives a run as a supervisor does: the archive, the summary, and then the lane.
async fn archive(bus: &Bus, run: &RunId) {
    let lane = bus.lane_of_run(run);
    let records = millrace_runtime::log::read_run(bus, lane, run, 1).await.unwrap();
    let is_plan = |subject: &str| matches!(parse_lane_subject(subject), Some((_, _, Topic::Plan)));
    let end = records.iter().rev().find(|record| is_plan(&record.subject)).unwrap().sequence;
    assert_ne!(archive_run(bus, lane, run, end, records.len()).await.unwrap().last, 0);
    registry::write_summary(bus, &archived_summary(run, lane)).await.unwrap();
    let context = async_nats::jetstream::new(bus.client().clone());
    let stream = context.get_stream(lane_stream(lane)).await.unwrap();
    stream.purge().filter(format!("lane.{lane}.run.{run}.>")).await.unwrap();
}

fn archived_summary(run: &RunId, lane: Lane) -> RunSummary {
    let at = jiff::Timestamp::UNIX_EPOCH;
    RunSummary {
        run: run.clone(),
        lane,
        objective: "find out".into(),
        end: Some(millrace_protocol::plan::EndReason::Completed),
        started: at,
        updated: at,
        counts: [0; 9],
        waiting: 0,
        open_questions: 0,
        questions: 0,
        archived: true,
        is_resumable: false,
        is_paused: false,
        is_interrupted: false,
        winding_down: None,
        waiting_for_provider: None,
        usage: Usage::default(),
        wait: None,
        waiting_for: None,
        log_damage: None,
        labels: Default::default(),
        session: None,
        session_position: None,
        hold: None,
        queue_place: None,
        spend: None,
        archived_span: None,
    }
}
