//! The HTTP API: real gateways, a real cluster and a client that shows what is on the wire. Every answer is checked against the
//! description of the API.

pub mod document;
pub mod http;
pub mod process;
pub mod provider;
pub mod receiver;
mod streams;
mod upgrade;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use millrace_protocol::ids::RunId;
use millrace_protocol::plan::Decision;
use millrace_protocol::subject::{Topic, parse_lane_subject};
use millrace_runtime::Bus;
use millrace_runtime::store::archive::read_run_from_log_or_archive;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{SeededRandom, layered_submission, run_id, submit_run, wait_for_archive};
use millrace_tests::wait_for_value;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use document::assert_valid;
use http::{Frame, Request, read_events, read_events_late};
use process::GatewayProcess;

const TIMEOUT: Duration = Duration::from_secs(120);

/// A plan of echo tasks, one after the other.
fn chain(count: usize, parameters: &Value) -> Value {
    let task = |number: usize| {
        let before: Vec<String> = (number > 0).then(|| format!("t{}", number - 1)).into_iter().collect();
        json!({
            "id": format!("t{number}"), "objective": format!("say {number}"), "capability": "echo",
            "parameters": parameters, "depends_on": before, "final": number + 1 == count,
        })
    };
    json!({ "objective": "say it", "plan": { "tasks": (0..count).map(task).collect::<Vec<_>>() } })
}

fn events_request(run: &str, level: &str, after: Option<&str>) -> Request {
    let request = Request::new("GET", format!("/api/v1/runs/{run}/events?level={level}"));
    match after {
        Some(id) => request.header("Last-Event-ID", id),
        None => request,
    }
}

/// Returns the frames with ids, and checks all of them against the description.
fn positioned(frames: &[Frame]) -> Vec<(String, String)> {
    for frame in frames {
        let name = match (frame.id.is_some(), frame.event.as_str()) {
            (true, "step") => "EntryLine",
            (true, _) => "EventLine",
            (false, _) => "StreamNotice",
        };
        assert_valid(name, &frame.json());
    }
    frames.iter().filter_map(|frame| Some((frame.id.clone()?, frame.event.clone()))).collect()
}

/// The ids that a stream with all steps must have: those of the log, up to the run's last decision.
async fn ids_of_log(bus: &Bus, run: &RunId) -> Vec<String> {
    let records = read_run_from_log_or_archive(bus, bus.lane_of_run(run), run).await.unwrap();
    let (mut ids, mut end) = (Vec::new(), 0);
    for record in &records {
        match parse_lane_subject(&record.subject) {
            Some((_, _, Topic::Plan)) => {
                let decision: Decision = bus.decode_record(record).await.unwrap();
                ids.extend((0..decision.events.len()).map(|index| format!("{}.{index}", record.sequence)));
                end = ids.len();
            }
            Some((_, _, Topic::Journal(_))) => ids.push(format!("{}.0", record.sequence)),
            Some((_, _, Topic::Submitted | Topic::Control | Topic::Answer)) | None => {}
        }
    }
    ids.truncate(end);
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn run_is_submitted_followed_and_read_by_plain_http() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let bus = cluster.connect_bus().await;
    cluster.wait_for_heartbeats(&bus, millrace_protocol::registry::ProcessRole::Worker, 1).await;
    let mut gateway = GatewayProcess::start(&cluster, "gateway").await;
    let submitted = gateway.post("/runs", &chain(2, &json!({}))).await;
    assert_eq!(submitted.status, 201, "{}", submitted.text());
    let run = submitted.json()["run"].as_str().unwrap().to_owned();
    assert_eq!(submitted.header("location"), Some(format!("/api/v1/runs/{run}").as_str()));
    let frames = read_events(gateway.address, &events_request(&run, "decisions", None), None).await;
    let names: Vec<&str> = frames.iter().map(|frame| frame.event.as_str()).collect();
    assert_eq!(
        (names[0], names[names.len() - 2], names[names.len() - 1]),
        ("run_started", "run_ended", "end")
    );
    let ids = positioned(&frames);
    let sequence = frames[0].json()["sequence"].as_u64().unwrap();
    assert!(submitted.json()["sequence"].as_u64().unwrap() < sequence);

    let ended = gateway.wait_for_end(&run).await;
    assert_eq!((&ended["state"], &ended["task_counts"]["completed"]), (&"completed".into(), &2.into()));
    let early = gateway.get(&format!("/runs/{run}?at={sequence}")).await;
    assert_eq!(
        (&early.json()["state"], early.header("etag")),
        (&"running".into(), Some(&*format!("\"{sequence}\"")))
    );
    let whole = gateway.get(&format!("/runs/{run}")).await;
    assert_eq!(whole.json(), ended);
    let etag = whole.header("etag").unwrap().to_owned();
    assert!(
        ids.last().unwrap().0.starts_with(etag.trim_matches('"')),
        "{etag} is not the last decision of {ids:?}"
    );
    let again =
        gateway.send(Request::new("GET", format!("/api/v1/runs/{run}")).header("If-None-Match", &etag)).await;
    assert_eq!(again.status, 304);

    let result = gateway.get(&format!("/runs/{run}/result")).await.json();
    let report = gateway.get(&format!("/runs/{run}/report")).await;
    assert_eq!(report.header("content-type"), Some("text/markdown; charset=utf-8"));
    assert_eq!(report.text().trim(), result["output"].as_str().unwrap().trim());
    let page = Request::new("GET", format!("/api/v1/runs/{run}/report")).header("Accept", "text/html");
    assert!(gateway.send(page).await.text().starts_with("<!doctype html>"));
    let transcript = gateway.get(&format!("/runs/{run}/tasks/t0/transcript")).await.json();
    assert!(!transcript["task"]["attempts"][0]["entries"].as_array().unwrap().is_empty(), "{transcript:#}");

    let mut labelled = chain(1, &json!({}));
    labelled["labels"] = json!({"team": "mill"});
    let second = gateway.submit(&labelled).await;
    gateway.wait_for_end(&second).await;
    let mut listed = Vec::new();
    let mut cursor = String::new();
    loop {
        let part = gateway.get(&format!("/runs?limit=1&state=completed&cursor={cursor}")).await.json();
        listed.extend(
            part["runs"].as_array().unwrap().iter().map(|run| run["run"].as_str().unwrap().to_owned()),
        );
        cursor = part["next"].as_str().unwrap().to_owned();
        if cursor.is_empty() {
            break;
        }
    }
    assert_eq!(listed, [second.clone(), run.clone()], "newest first, each once");
    for (labels, expected) in [("team=mill", 1), ("team", 1), ("team=mill,owner", 0), ("team=sea", 0)] {
        let part = gateway.get(&format!("/runs?label={labels}")).await.json();
        let found = part["runs"].as_array().unwrap();
        assert_eq!(found.len(), expected, "{labels}");
        assert!(
            found.iter().all(|found| found["run"] == second.as_str() && found["labels"]["team"] == "mill")
        );
    }
    assert_eq!(gateway.get("/runs?label=a%20b").await.status, 400);
    for path in [
        "/runs?state=running",
        "/runs?since=1h",
        "/runs?state=none",
        "/runs?cursor=x",
        "/runs?limit=0",
        "/runs?nope=1",
        "/runs/none",
        "/status",
        "/workers",
        "/capabilities",
        "/limits",
        "/questions",
        "/health",
        "/version",
        "/openapi.json",
        "/nothing",
        "/blobs/00",
        "/questions/none",
        "/runs/none/events",
    ] {
        gateway.get(path).await;
    }
    for path in [
        "files",
        "files/none.md",
        "questions",
        "planner/transcript",
        "tasks/none/transcript",
        "events?after=x",
        "report",
    ] {
        gateway.get(&format!("/runs/{run}/{path}")).await;
    }
    for path in ["/", "/docs", "/docs/docs.js", "/docs/docs.css"] {
        assert!(Request::new("GET", path).send(gateway.address).await.status < 400, "{path}");
    }
    let took = gateway.stop();
    assert!(took < Duration::from_secs(5), "stopping took {took:?}");
    cluster.stop_all();
}

/// Follows a run with a client that is cut at random bytes and reconnects, to one gateway or the other.
async fn follow_with_cuts(
    run: &str,
    gateways: &[&GatewayProcess],
    random: &mut SeededRandom,
) -> (Vec<Frame>, usize) {
    let (mut received, mut cuts): (Vec<Frame>, usize) = (Vec::new(), 0);
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < TIMEOUT, "the run does not end");
        let last = received.iter().rev().find_map(|frame| frame.id.clone());
        let index = usize::try_from(random.next_below(gateways.len() as u64)).unwrap();
        let cut = 150 + usize::try_from(random.next_below(4_000)).unwrap();
        let request = events_request(run, "steps", last.as_deref());
        let frames = read_events(gateways[index].address, &request, Some(cut)).await;
        let is_over = frames.iter().any(|frame| frame.event == "end");
        received.extend(frames);
        if is_over {
            return (received, cuts);
        }
        cuts += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_that_is_cut_at_any_byte_and_resumed_equals_the_log() {
    let _shared = share_machine();
    let setup = ClusterSetup { linger: Duration::from_millis(300), ..ClusterSetup::default() };
    let cluster = TestCluster::start_with_workers(setup, 2);
    let bus = cluster.connect_bus().await;
    let (one, other) =
        (GatewayProcess::start(&cluster, "one").await, GatewayProcess::start(&cluster, "other").await);
    for seed in 1..=12 {
        let run = run_id(&format!("cut-{seed}"));
        submit_run(&bus, &run, &layered_submission(seed, 3, 3)).await;
        let mut random = SeededRandom::new(seed);
        let (frames, cuts) = follow_with_cuts(run.as_str(), &[&one, &other], &mut random).await;
        assert!(cuts > 3, "seed {seed}: only {cuts} cuts");
        let received = positioned(&frames);
        let ids: Vec<String> = received.iter().map(|(id, _)| id.clone()).collect();
        assert_eq!(ids, ids_of_log(&bus, &run).await, "seed {seed}");

        wait_for_archive(&bus, &run, TIMEOUT).await;
        let request = events_request(run.as_str(), "steps", None);
        let replayed = read_events(other.address, &request, None).await;
        assert_eq!(positioned(&replayed), received, "seed {seed}: the archive has other ids");
        let contents = |frames: &[Frame]| -> Vec<String> {
            frames.iter().filter(|frame| frame.id.is_some()).map(|frame| frame.data.clone()).collect()
        };
        assert_eq!(contents(&replayed), contents(&frames), "seed {seed}: the archive has other events");
        let after_last = events_request(run.as_str(), "steps", ids.last().map(String::as_str));
        let rest = read_events(one.address, &after_last, None).await;
        assert_eq!(rest.iter().map(|frame| &*frame.event).collect::<Vec<_>>(), ["end"], "seed {seed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn second_gateway_continues_the_stream_of_one_that_was_killed() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let bus = cluster.connect_bus().await;
    let mut first = GatewayProcess::start(&cluster, "first").await;
    let run = first.submit(&chain(12, &json!({ "steps": 4, "delay_ms": 200 }))).await;
    let reading = {
        let (address, request) = (first.address, events_request(&run, "steps", None));
        tokio::spawn(async move { read_events(address, &request, None).await })
    };
    wait_for_value(TIMEOUT, "three tasks", async || {
        let plan = millrace_tests::history::History::read_from_log(&bus, &run_id(&run)).await.ok()?;
        let completed = millrace_protocol::plan::TaskState::Completed;
        (plan.folded_plan().task_count_in_state(completed) >= 3).then_some(())
    })
    .await;
    first.kill();
    let before = reading.await.unwrap();
    assert!(before.iter().all(|frame| frame.event != "end") && before.len() > 10, "{}", before.len());
    let last = before.iter().rev().find_map(|frame| frame.id.clone());
    let second = GatewayProcess::start(&cluster, "second").await;
    let after = read_events(second.address, &events_request(&run, "steps", last.as_deref()), None).await;
    let ids: Vec<String> = positioned(&[before, after].concat()).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, ids_of_log(&bus, &run_id(&run)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_gateway_tells_its_streams_to_reconnect() {
    let _shared = share_machine();
    let mut cluster = TestCluster::with_server_only(ClusterSetup::default());
    cluster.start_process(ProcessRole::Supervisor, "supervisor-1", &[]);
    let _bus = cluster.connect_bus().await;
    let mut gateway = GatewayProcess::start(&cluster, "gateway").await;
    let run = gateway.submit(&chain(1, &json!({}))).await;
    let reading = {
        let (address, request) = (gateway.address, events_request(&run, "live", None));
        tokio::spawn(async move { read_events(address, &request, None).await })
    };
    // The stream is open when the run has started.
    gateway.get(&format!("/runs/{run}/wait?timeout=1")).await;
    let took = gateway.stop();
    let frames = reading.await.unwrap();
    assert_eq!(frames.last().map(|frame| &*frame.event), Some("gateway_stopping"), "{frames:?}");
    assert!(took < Duration::from_secs(4), "stopping took {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_reader_is_notified_and_misses_nothing() {
    let _shared = share_machine();
    let mut cluster = TestCluster::with_server_only(ClusterSetup::default());
    cluster.start_process(ProcessRole::Supervisor, "supervisor-1", &[]);
    let bus = cluster.connect_bus().await;
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    let text = "a long objective ".repeat(300);
    let task = |number: usize| json!({ "id": format!("t{number}"), "objective": text, "capability": "echo" });
    let tasks: Vec<Value> = (0..2_500).map(task).collect();
    let run = gateway.submit(&json!({ "objective": "many", "plan": { "tasks": tasks } })).await;
    wait_for_value(TIMEOUT, "the start of the run", async || {
        gateway.get("/runs?state=running").await.json()["runs"].get(0).cloned()
    })
    .await;
    assert_eq!(
        gateway.post(&format!("/runs/{run}/cancel"), &json!({ "reason": "enough" })).await.status,
        200
    );
    let request = events_request(&run, "decisions", None);
    // A gateway on a busy machine needs longer to fill the buffers.
    let mut frames = Vec::new();
    for pause in [4, 15, 45] {
        frames = read_events_late(gateway.address, &request, Duration::from_secs(pause)).await;
        if frames.iter().any(|frame| frame.event == "lagged") {
            break;
        }
    }
    assert!(frames.iter().any(|frame| frame.event == "lagged"), "{} frames and no notice", frames.len());
    let ids: BTreeSet<String> = positioned(&frames).into_iter().map(|(id, _)| id).collect();
    let all = ids_of_log(&bus, &run_id(&run)).await;
    assert_eq!(ids.len(), all.len(), "events are missing or doubled");
    assert_eq!(frames.last().map(|frame| &*frame.event), Some("end"));
}

#[tokio::test(flavor = "multi_thread")]
async fn request_with_a_key_submits_one_run_however_often_it_is_repeated() {
    let _shared = share_machine();
    let setup = ClusterSetup { linger: Duration::from_millis(300), ..ClusterSetup::default() };
    let cluster = TestCluster::start_with_workers(setup, 1);
    let bus = cluster.connect_bus().await;
    let (one, other) =
        (GatewayProcess::start(&cluster, "one").await, GatewayProcess::start(&cluster, "other").await);
    let request = |count| {
        Request::new("POST", "/api/v1/runs")
            .header("Idempotency-Key", "k \u{2d}1")
            .json(&chain(count, &json!({})))
    };
    let sends =
        (0..8).map(|number| if number % 2 == 0 { one.send(request(1)) } else { other.send(request(1)) });
    let answers = futures::future::join_all(sends).await;
    let runs: BTreeSet<String> =
        answers.iter().map(|answer| answer.json()["run"].as_str().unwrap().to_owned()).collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 1);
    let other_request = one.send(request(2)).await;
    assert_eq!(other_request.status, 422);
    assert_eq!(other_request.json()["type"], "urn:millrace:problem:idempotency-key-reused");

    let run = runs.first().unwrap();
    one.wait_for_end(run).await;
    wait_for_archive(&bus, &run_id(run), TIMEOUT).await;
    let late = other.send(request(1)).await;
    assert_eq!((late.status, &late.json()["run"]), (200, &json!(run)), "the key outlives the run's lane");
    assert_eq!(one.get("/runs").await.json()["runs"].as_array().unwrap().len(), 1);

    // The gateway died between the claim of the key and the submission.
    let keyed = |run: &str, digest: &str| millrace_runtime::store::idempotency::KeyedSubmission {
        run: run_id(run),
        request: digest.to_owned(),
    };
    let key = ("ann", "died");
    millrace_runtime::store::idempotency::claim_key(&bus, key, &keyed("lost-1", &digest_of(&bus).await))
        .await
        .unwrap();
    let repeated =
        Request::new("POST", "/api/v1/runs").header("Idempotency-Key", "died").json(&chain(1, &json!({})));
    let repeated = other.send(repeated).await;
    assert_eq!((repeated.status, &repeated.json()["run"]), (200, &json!("lost-1")), "{}", repeated.text());
    one.wait_for_end("lost-1").await;
}

/// The digest of the request of this test, as the gateway has stored it.
async fn digest_of(bus: &Bus) -> String {
    let any =
        millrace_runtime::store::idempotency::KeyedSubmission { run: run_id("x"), request: String::new() };
    let claim = millrace_runtime::store::idempotency::claim_key(bus, ("ann", "k -1"), &any).await.unwrap();
    match claim {
        millrace_runtime::store::idempotency::KeyClaim::Existing(existing) => existing.request,
        millrace_runtime::store::idempotency::KeyClaim::New => panic!("the key was not claimed"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_are_decided_once_and_refusals_have_a_reason() {
    let _shared = share_machine();
    let mut cluster = TestCluster::with_server_only(ClusterSetup::default());
    cluster.start_process(ProcessRole::Supervisor, "supervisor-1", &[]);
    let _bus = cluster.connect_bus().await;
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    let run = gateway.submit(&chain(3, &json!({}))).await;
    let command = |path: &str, body: Value| (format!("/runs/{run}/{path}"), body);
    let status = async |(path, body): (String, Value)| gateway.post(&path, &body).await.status;
    assert_eq!(status(command("pause", json!({}))).await, 200);
    let refused = gateway.post(&format!("/runs/{run}/pause"), &json!({})).await;
    assert_eq!(
        (refused.status, &refused.json()["type"]),
        (409, &json!("urn:millrace:problem:command-refused"))
    );
    assert!(refused.json()["detail"].as_str().unwrap().contains("paused"), "{}", refused.text());
    assert_eq!(status(command("resume", json!({}))).await, 200);
    assert_eq!(status(command("message", json!({ "text": "hello" }))).await, 409, "there is no planner");
    assert_eq!(status(command("signal", json!({ "name": "deployed", "data": { "version": 3 } }))).await, 200);
    assert_eq!(status(command("signal", json!({ "name": "deployed", "date": 3 }))).await, 400);
    assert_eq!(status(command("tasks/none/cancel", json!({}))).await, 404);
    let added = json!({ "tasks": [{ "id": "more", "objective": "more", "capability": "echo", "depends_on": ["t1"] }] });
    let add = |key: &str| {
        Request::new("POST", format!("/api/v1/runs/{run}/tasks")).header("Idempotency-Key", key).json(&added)
    };
    assert_eq!(gateway.send(add("first")).await.status, 200);
    assert_eq!(gateway.send(add("first")).await.status, 200, "a repetition is no second command");
    assert_eq!(gateway.send(add("second")).await.status, 422, "the task is there");
    let edit = Request::new("PATCH", format!("/api/v1/runs/{run}/tasks/more"))
        .json(&json!({ "objective": "even more", "max_attempts": 7, "depends_on": ["t2"] }));
    let edited = gateway.send(edit).await;
    assert_eq!(edited.status, 200, "{}", edited.text());
    let sequence = edited.json()["sequence"].as_u64().unwrap();
    let changed = gateway.get(&format!("/runs/{run}?at={sequence}")).await.json();
    let task = changed["tasks"].as_array().unwrap().iter().find(|task| task["id"] == "more").unwrap().clone();
    assert_eq!((&task["objective"], &task["depends_on"]), (&json!("even more"), &json!(["t2"])));

    let cancel = || {
        Request::new("POST", format!("/api/v1/runs/{run}/tasks/more/cancel"))
            .header("Idempotency-Key", "once")
            .json(&json!({ "reason": "not needed" }))
    };
    assert_eq!((gateway.send(cancel()).await.status, gateway.send(cancel()).await.status), (200, 200));
    let commands = gateway.get(&format!("/runs/{run}")).await.json()["commands"].clone();
    let cancels: Vec<&Value> =
        commands.as_array().unwrap().iter().filter(|one| one.to_string().contains("not needed")).collect();
    assert_eq!(cancels.len(), 1, "{commands:#}");
    assert_eq!(cancels[0]["by"], "ann");

    cluster.kill_process("supervisor-1");
    let accepted = gateway.post(&format!("/runs/{run}/pause?wait=accepted"), &json!({})).await;
    assert_eq!((accepted.status, &accepted.json()["type"]), (202, &json!("command_accepted")));
    let stop = || {
        Request::new("POST", format!("/api/v1/runs/{run}/cancel?timeout=1"))
            .header("Idempotency-Key", "stop")
            .json(&json!({}))
    };
    let undecided = gateway.send(stop()).await;
    assert_eq!(undecided.status, 202, "nobody decides");
    cluster.restart_process("supervisor-1");
    assert_eq!(gateway.wait_for_end(&run).await["state"], "cancelled");
    assert_eq!(status(command("pause", json!({}))).await, 409, "the run has ended");
    assert_eq!(gateway.send(stop()).await.status, 200, "the same command was applied before the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_answered_one_by_one_and_in_a_batch() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let _bus = cluster.connect_bus().await;
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    let task = |id: &str, parameters: Value| json!({ "id": id, "objective": id, "capability": "echo", "parameters": parameters });
    let tasks = [
        task("approved", json!({ "approve": true })),
        task("rejected", json!({ "approve": true })),
        task("asks", json!({ "ask": ["Which region?"] })),
    ];
    let run = gateway.submit(&json!({ "objective": "ask", "plan": { "tasks": tasks } })).await;
    wait_for_value(TIMEOUT, "three questions", async || {
        let open = gateway.get(&format!("/runs/{run}/questions")).await.json();
        (open["questions"].as_array().unwrap().len() == 3).then_some(())
    })
    .await;
    let id = |task: &str| format!("{run}/{task}/1/1");
    let read = gateway.get(&format!("/questions/{}", id("asks"))).await.json();
    assert_eq!((&read["kind"], &read["text"]), (&json!("input"), &json!("Which region?")));
    let answer =
        async |task: &str, body: Value| gateway.post(&format!("/questions/{}", id(task)), &body).await;
    assert_eq!(answer("approved", json!({ "answer": "pass" })).await.status, 409, "it does not fit");
    assert_eq!(answer("approved", json!({ "answer": "edit" })).await.status, 400, "the value is missing");
    assert_eq!(answer("approved", json!({ "answer": "approve" })).await.status, 200);
    let second = answer("approved", json!({ "answer": "reject", "text": "no" })).await;
    assert_eq!(
        (second.status, &second.json()["type"]),
        (409, &json!("urn:millrace:problem:question-closed"))
    );
    assert!(second.json()["detail"].as_str().unwrap().contains("ann"), "{}", second.text());
    let batch = json!({ "answers": [
        { "question": id("rejected"), "answer": "reject", "text": "too risky" },
        { "question": id("approved"), "answer": "approve" },
        { "question": format!("{run}/none/1/1"), "answer": "approve" },
        { "question": id("asks"), "answer": "answer", "value": "eu" },
    ] });
    let outcomes = gateway.post("/answers", &batch).await;
    assert_eq!(outcomes.status, 200, "{}", outcomes.text());
    let kinds: Vec<String> = outcomes.json()["outcomes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|outcome| outcome["outcome"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(kinds, ["answered", "already", "unknown", "answered"]);
    gateway.wait_for_end(&run).await;
    let history = gateway.get(&format!("/runs/{run}/questions?history=true")).await.json();
    assert_eq!(history["questions"].as_array().unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn web_pages_of_other_origins_change_nothing() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    let _bus = cluster.connect_bus().await;
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    let submit = || Request::new("POST", "/api/v1/runs").json(&chain(1, &json!({})));
    for (request, status) in [
        (submit().header("Host", "evil.example"), 421),
        (submit().header("Host", &format!("evil.example:{}", gateway.address.port())), 421),
        (submit().header("Origin", "http://evil.example"), 403),
        (submit().header("Origin", "http://127.0.0.1:3000"), 403),
        (submit().header("Origin", "null"), 403),
        (submit().header("Sec-Fetch-Site", "cross-site"), 403),
        (
            Request::new("POST", "/api/v1/runs")
                .body("text/plain", chain(1, &json!({})).to_string().into_bytes()),
            415,
        ),
        (
            Request::new("POST", "/api/v1/runs").body("application/x-www-form-urlencoded", b"a=b".to_vec()),
            415,
        ),
        (Request::new("GET", "/api/v1/runs").header("Host", "evil.example"), 421),
    ] {
        let answer = gateway.send(request.clone()).await;
        assert_eq!(answer.status, status, "{request:?}: {}", answer.text());
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    let runs = gateway.get("/runs").await.json();
    assert_eq!(runs["runs"], json!([]), "a page has submitted a run");
    let own = submit()
        .header("Origin", &format!("http://{}", gateway.address))
        .header("Sec-Fetch-Site", "same-origin");
    assert_eq!(gateway.send(own).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_oversized_and_slow_requests_are_refused() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    let _bus = cluster.connect_bus().await;
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    let post =
        |body: &str| Request::new("POST", "/api/v1/runs").body("application/json", body.as_bytes().to_vec());
    for (body, status) in [
        ("", 400),
        ("{", 400),
        ("[]", 400),
        ("{} {}", 400),
        (r#"{"objektive": "x"}"#, 400),
        (r#"{"objective": 3}"#, 400),
        ("{}", 422),
        (r#"{"objective": " "}"#, 422),
        (r#"{"objective": "x", "mode": "fixed"}"#, 422),
        (r#"{"objective": "x", "plan": {"tasks": [{"id": "a"}]}}"#, 422),
        (r#"{"objective": "x", "plan": "tasks: ["}"#, 422),
        (r#"{"objective": "x", "budget": {"tokens": "many"}}"#, 422),
        (r#"{"objective": "x", "models": ["nobody:x"]}"#, 422),
        (r#"{"objective": "x", "documents": [{"path": "../a", "sha256": "0"}]}"#, 400),
        (r#"{"objective": "x", "documents": [{"path": "a", "sha256": "0"}]}"#, 404),
    ] {
        let answer = gateway.send(post(body)).await;
        assert_eq!(answer.status, status, "{body}: {}", answer.text());
    }
    let large = Request::new("POST", "/api/v1/answers").body("application/json", vec![b' '; 5 * 1024 * 1024]);
    assert_eq!(large.try_send(gateway.address).await.map(|answer| answer.status), Some(413));
    let raw = async |bytes: &[u8]| {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        // The server may refuse before everything was sent.
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer))
            .await
            .expect("it ends");
        String::from_utf8_lossy(&answer).into_owned()
    };
    assert!(raw(b"no HTTP at all\r\n\r\n").await.starts_with("HTTP/1.1 400"));
    let many: String = (0..300).map(|number| format!("X-{number}: y\r\n")).collect();
    let many = raw(format!("GET /api/v1/version HTTP/1.1\r\nHost: localhost\r\n{many}\r\n").as_bytes()).await;
    assert!(many.starts_with("HTTP/1.1 431"), "{many}");
    let started = Instant::now();
    raw(b"GET /api/v1/version HTTP/1.1\r\nHost: localhost\r\nX-Slow").await;
    assert!(started.elapsed() < Duration::from_secs(20), "a half-sent head keeps its connection");
    assert_eq!(gateway.get("/version").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn uploaded_documents_belong_to_the_run() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    let bus = cluster.connect_bus().await;
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    let upload = |boundary: &str, text: &str| {
        let run = chain(1, &json!({})).to_string();
        let body = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"run\"\r\nContent-Type: application/json\r\n\r\n{run}\r\n\
             --{boundary}\r\nContent-Disposition: form-data; name=\"documents\"; filename=\"notes/a.md\"\r\n\r\n{text}\r\n--{boundary}--\r\n"
        );
        Request::new("POST", "/api/v1/runs")
            .header("Idempotency-Key", "upload")
            .body(&format!("multipart/form-data; boundary={boundary}"), body.into_bytes())
    };
    let submitted = gateway.send(upload("one", "# Notes")).await;
    assert_eq!(submitted.status, 201, "{}", submitted.text());
    let repeated = gateway.send(upload("two", "# Notes")).await;
    assert_eq!(
        (repeated.status, &repeated.json()["run"]),
        (200, &submitted.json()["run"]),
        "another boundary"
    );
    assert_eq!(gateway.send(upload("three", "# Other notes")).await.status, 422, "another document");
    let run = run_id(submitted.json()["run"].as_str().unwrap());
    let started = wait_for_value(TIMEOUT, "the start of the run", async || {
        let history = millrace_tests::history::History::read_from_log(&bus, &run).await.ok()?;
        history.folded_plan().run.start.clone()
    })
    .await;
    let documents = started.documents.expect("the run has documents");
    assert_eq!((documents.count, documents.bytes), (1, 7));
    let digest = millrace_runtime::store::blobs::sha256_hex(b"# Notes");
    let blob = gateway.get(&format!("/blobs/{digest}")).await;
    assert_eq!((blob.status, blob.text().as_str()), (200, "# Notes"));
    let part = Request::new("GET", format!("/api/v1/blobs/{digest}")).header("Range", "bytes=2-4");
    let part = gateway.send(part).await;
    assert_eq!(
        (part.status, part.text().as_str(), part.header("content-range")),
        (206, "Not", Some("bytes 2-4/7"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_on_this_machine_serves_the_api_and_stops_with_it() {
    let _shared = share_machine();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let millrace = |arguments: &[&str]| {
        let mut command = millrace_tests::cluster::remove_millrace_variables(std::process::Command::new(
            millrace_tests::program::millrace_program(),
        ));
        command.args(arguments).arg("--data").arg(&data).stdin(std::process::Stdio::null());
        command.output().unwrap()
    };
    let up = millrace(&["up", "--detach", "--workers", "1", "--api", "127.0.0.1:0"]);
    let text = String::from_utf8_lossy(&up.stderr).into_owned();
    assert!(up.status.success(), "{text}");
    let url = std::fs::read_to_string(data.join("api.url")).unwrap();
    assert!(text.contains(&format!("the dashboard and the HTTP API are on {} ", url.trim())), "{text}");
    let address = url.trim().strip_prefix("http://").unwrap().parse().unwrap();
    let request = Request::new("POST", "/api/v1/runs").json(&chain(1, &json!({})));
    let submitted = request.send(address).await;
    assert_eq!(submitted.status, 201, "{}", submitted.text());
    let run = submitted.json()["run"].as_str().unwrap().to_owned();
    let ended = Request::new("GET", format!("/api/v1/runs/{run}/wait?timeout=60")).send(address).await;
    assert_eq!((ended.status, &ended.json()["state"]), (200, &json!("completed")));
    assert!(millrace(&["down"]).status.success());
    assert!(!data.join("api.url").exists());
    assert!(Request::new("GET", "/api/v1/version").try_send(address).await.is_none(), "the gateway is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_page_lead_from_submission_to_report() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let bus = cluster.connect_bus().await;
    cluster.wait_for_heartbeats(&bus, millrace_protocol::registry::ProcessRole::Worker, 1).await;
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    let page =
        std::fs::read_to_string(millrace_tests::pages::repository_folder().join("docs/api.md")).unwrap();
    let scripts: Vec<&str> =
        page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(scripts.len(), 2);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("notes.md"), "# Notes\n").unwrap();
    let output = tokio::task::spawn_blocking({
        let (script, folder) = (scripts.join("\n"), folder.path().to_owned());
        let api = format!("http://{}/api/v1", gateway.address);
        move || {
            let mut command = std::process::Command::new("bash");
            command.args(["-euo", "pipefail", "-c", &script]).current_dir(folder).env("API", api);
            command.output().expect("bash starts")
        }
    })
    .await
    .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("event: run_ended") && text.contains("event: end"), "{text}");
    assert!(text.contains("The mill race turns the wheel"), "the report is printed: {text}");
    let result: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("result.json")).unwrap()).unwrap();
    assert_valid("RunResult", &result);
    assert_eq!(result["state"], "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_runs_are_deleted_and_live_ones_refused() {
    let _shared = share_machine();
    let setup = ClusterSetup { linger: Duration::from_millis(200), ..ClusterSetup::default() };
    let mut cluster = TestCluster::start_with_workers(setup, 1);
    let bus = cluster.connect_bus().await;
    cluster.wait_for_heartbeats(&bus, millrace_protocol::registry::ProcessRole::Worker, 1).await;
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    let delete = |run: &str| Request::new("DELETE", format!("/api/v1/runs/{run}?wait=60"));
    let live = gateway.submit(&chain(1, &json!({ "delay_ms": 600_000 }))).await;
    let refused = gateway.send(delete(&live)).await;
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert!(refused.text().contains(&format!("cancel it first with `millrace cancel {live}`")));
    assert_eq!(gateway.send(delete("unknown")).await.status, 404);
    let runs = [gateway.submit(&chain(1, &json!({}))).await, gateway.submit(&chain(1, &json!({}))).await];
    for run in &runs {
        gateway.wait_for_end(run).await;
    }
    // The supervisor dies with the request in its hands; the next one continues.
    let first = gateway.send(Request::new("DELETE", format!("/api/v1/runs/{}?wait=0", runs[0]))).await;
    assert!([200, 202].contains(&first.status), "{}", first.text());
    cluster.kill_process("supervisor-1");
    cluster.start_process(ProcessRole::Supervisor, "supervisor-2", &[]);
    for run in &runs {
        let deleted = gateway.send(delete(run)).await;
        assert_eq!((deleted.status, &deleted.json()["deleted"]), (200, &json!(true)), "{}", deleted.text());
        let gone = gateway.get(&format!("/runs/{run}")).await;
        assert_eq!(gone.status, 410, "{}", gone.text());
        assert!(gone.text().contains("was deleted by ann"), "{}", gone.text());
        assert_eq!(gateway.send(delete(run)).await.status, 200, "a deletion can be repeated");
    }
    let listed = gateway.get("/runs").await.json();
    let listed: Vec<&Value> = listed["runs"].as_array().unwrap().iter().map(|line| &line["run"]).collect();
    assert_eq!(listed, [&json!(live)]);
    let pruned = gateway.post("/runs/prune", &json!({ "older_than": "1s", "dry_run": true })).await;
    assert_eq!((pruned.status, &pruned.json()["runs"]), (200, &json!([])), "the live run is not selected");
    // A rule deletes what it selects.
    let rule = json!({ "older_than": "1s", "labels": ["team=a"], "states": ["completed"] });
    let path = "/api/v1/retention/rules/a";
    assert_eq!(gateway.send(Request::new("PUT", path).json(&rule)).await.status, 200);
    assert_eq!(gateway.get("/retention").await.json()["rules"][0]["name"], "a");
    assert_eq!(gateway.post("/retention/sweep", &json!({})).await.status, 202);
    wait_for_value(TIMEOUT, "a sweep", async || {
        gateway.get("/retention").await.json()["last_sweep"].as_object().map(drop)
    })
    .await;
    assert_eq!(gateway.send(Request::new("DELETE", path)).await.status, 200);
    assert_eq!(gateway.send(Request::new("DELETE", path)).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_have_their_runs_in_order_and_lists_select_by_session() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup { lanes: 2, ..ClusterSetup::default() }, 1);
    let gateway = GatewayProcess::start(&cluster, "gateway-1").await;
    let of_session = |session: &str, delay: u64| {
        let mut body = chain(1, &json!({ "delay_ms": delay }));
        body["session"] = json!(session);
        body
    };
    let mut runs = Vec::new();
    for delay in [600_000, 0, 0] {
        runs.push(gateway.submit(&of_session("chat", delay)).await);
    }
    let free = gateway.submit(&chain(1, &json!({}))).await;
    wait_for_value(TIMEOUT, "a queued run", async || {
        let session = gateway.get("/sessions/chat").await;
        let last = session.json()["runs"].as_array()?.last()?.clone();
        let waits = last["waiting_for"].as_str()?.to_owned();
        (last["state"] == "queued" && waits.contains("in session chat, position")).then_some(())
    })
    .await;
    let cancelled = gateway.post(&format!("/runs/{}/cancel", runs[0]), &json!({ "reason": "enough" })).await;
    assert_eq!(cancelled.status, 200, "{}", cancelled.text());
    for run in runs.iter().chain([&free]) {
        gateway.wait_for_end(run).await;
    }
    let session = wait_for_value(TIMEOUT, "the summaries", async || {
        let session = gateway.get("/sessions/chat").await.json();
        (session["session"]["states"]["completed"] == 2).then_some(session)
    })
    .await;
    assert_eq!(session["session"]["run_count"], 3);
    let order: Vec<&str> =
        session["runs"].as_array().unwrap().iter().map(|run| run["run"].as_str().unwrap()).collect();
    assert_eq!(order, runs, "in the order of their submissions");
    let positions: Vec<&Value> =
        session["runs"].as_array().unwrap().iter().map(|run| &run["session_position"]).collect();
    assert_eq!(positions, [1, 2, 3]);
    let result = gateway.get(&format!("/runs/{}", runs[2])).await.json();
    let after: Vec<&str> =
        result["after"].as_array().unwrap().iter().map(|earlier| earlier["run"].as_str().unwrap()).collect();
    assert_eq!(after, runs[..2]);
    let listed = gateway.get("/runs?session=chat").await.json();
    assert_eq!(listed["runs"].as_array().unwrap().len(), 3);
    let sessions = gateway.get("/sessions?limit=1").await.json();
    assert_eq!((&sessions["total"], &sessions["sessions"][0]["session"]), (&json!(1), &json!("chat")));
    assert_eq!(sessions["next"], "", "there is no second session");
    assert_eq!(gateway.get("/sessions?cursor=x").await.status, 400);
    assert_eq!(gateway.get("/sessions/none").await.status, 404);
    assert_eq!(gateway.get("/sessions?limit=0").await.status, 400);
    assert_eq!(gateway.post("/runs", &of_session("not a name", 0)).await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_beyond_the_caps_wait_or_are_refused() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let gateway = GatewayProcess::start(&cluster, "gateway-1").await;
    let put = async |body: Value| gateway.send(Request::new("PUT", "/api/v1/admission").json(&body)).await;
    assert_eq!(put(json!({ "max_running_runs": 0 })).await.status, 400);
    assert_eq!(put(json!({ "max_running_runs": 1, "max_waiting_runs": 1 })).await.status, 200);
    let slow = chain(1, &json!({ "delay_ms": 600_000 }));
    // Supervisors read the caps once a second; until then runs start without a place, and count.
    let first = gateway.submit(&slow).await;
    let admission = async || gateway.get("/admission").await.json();
    wait_for_value(TIMEOUT, "a run with a place", async || {
        (admission().await["running_runs"] == 1).then_some(())
    })
    .await;
    let second = gateway.submit(&slow).await;
    wait_for_value(TIMEOUT, "a waiting run", async || (admission().await["waiting_runs"] == 1).then_some(()))
        .await;
    let refused = gateway.post("/runs", &slow).await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("5")), "{}", refused.text());
    assert!(refused.text().contains("too-many-runs"), "{}", refused.text());
    let command =
        cluster.millrace_command().args(["submit", "more", "--docs", "Cargo.toml"]).output().unwrap();
    let error = String::from_utf8_lossy(&command.stderr).into_owned();
    assert!(!command.status.success() && error.contains("as many as allowed"), "{error}");
    let shown = cluster.millrace_command().args(["limits", "runs"]).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("running runs: 1, waiting runs: 1  (now 1 and 1)"), "{shown}");
    let waiting = gateway.get(&format!("/runs/{second}")).await.json();
    assert_eq!((&waiting["state"], &waiting["hold"]), (&json!("queued"), &json!("place")));
    // A run that waits can be cancelled, and the end of another one gives its place to the next.
    assert_eq!(gateway.post(&format!("/runs/{second}/cancel"), &json!({})).await.status, 200);
    let third = wait_for_value(TIMEOUT, "room for a run", async || {
        let answer = gateway.post("/runs", &chain(1, &json!({}))).await;
        (answer.status == 201).then(|| answer.json()["run"].as_str().unwrap().to_owned())
    })
    .await;
    assert_eq!(gateway.post(&format!("/runs/{first}/cancel"), &json!({})).await.status, 200);
    assert_eq!(gateway.wait_for_end(&third).await["state"], "completed");
    assert_eq!(put(json!({})).await.status, 200);
}
