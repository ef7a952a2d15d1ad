//! The HTTP API: real gateways, a real cluster and a client that shows what is on the wire. Every answer is checked against the
//! description of the API.

mod answers;
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
use millrace_runtime::store::keys::{KeyScope, KeyedRequest, claim_key, read_keyed_request};
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::machine::{lock_machine, share_machine};
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

/// The ids of a pass through the list of runs, part by part, and the number of parts.
async fn list_all_parts(gateway: &GatewayProcess, filter: &str, limit: usize) -> Vec<String> {
    let (mut listed, mut cursor) = (Vec::new(), String::new());
    loop {
        let part = gateway.get(&format!("/runs?limit={limit}&cursor={cursor}{filter}")).await.json();
        let runs = part["runs"].as_array().unwrap();
        assert!(runs.len() <= limit, "{filter}: a part has {} runs", runs.len());
        listed.extend(runs.iter().map(|run| run["run"].as_str().unwrap().to_owned()));
        cursor = part["next"].as_str().unwrap().to_owned();
        if cursor.is_empty() {
            return listed;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn run_that_nobody_has_started_is_read_with_what_was_submitted() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    cluster.kill_process("supervisor-1");
    let mut body = chain(1, &json!({}));
    body["objective"] = json!("count the bears");
    body["labels"] = json!({ "team": "red" });
    body["session"] = json!("s1");
    let run = gateway.submit(&body).await;
    let read = gateway.get(&format!("/runs/{run}")).await.json();
    let shown = |field: &str| read[field].clone();
    assert_eq!(
        (shown("state"), shown("objective"), shown("labels"), shown("session")),
        ("submitted".into(), "count the bears".into(), json!({ "team": "red" }), "s1".into())
    );
    let message = json!({
        "message": { "messageId": "m1", "contextId": "c1", "role": "ROLE_USER", "parts": [{ "text": "count the bears" }] },
        "configuration": { "returnImmediately": true },
    });
    let sent = Request::new("POST", "/a2a/message:send").json(&message).send(gateway.address).await;
    assert_eq!((sent.status, &sent.json()["task"]["contextId"]), (200, &"c1".into()), "{}", sent.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_pass_through_the_list_has_each_run_once_while_runs_start_end_and_are_deleted() {
    let _alone = lock_machine();
    let setup = ClusterSetup { lanes: 2, linger: Duration::from_millis(100), ..ClusterSetup::default() };
    let mut cluster = TestCluster::start_with_workers(setup, 2);
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    let other = GatewayProcess::start(&cluster, "other").await;
    // Nobody starts the first runs, so that they are listed as submitted.
    cluster.kill_process("supervisor-1");
    let submitted: std::sync::Mutex<Vec<(usize, String)>> = std::sync::Mutex::default();
    let deleted: std::sync::Mutex<BTreeSet<String>> = std::sync::Mutex::default();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let submit = async |number: usize| {
        let mut body = chain(1, &json!({}));
        body["objective"] = json!(format!("part {number} of Bär {}", number % 4));
        body["labels"] = json!({ "team": format!("t{}", number % 3) });
        if number.is_multiple_of(5) {
            body["session"] = json!(format!("s{}", number % 10));
        }
        let run = gateway.submit(&body).await;
        submitted.lock().unwrap().push((number, run));
    };
    let known = |is_wanted: &dyn Fn(usize) -> bool| -> Vec<String> {
        let all = submitted.lock().unwrap();
        all.iter().filter(|(number, _)| is_wanted(*number)).map(|(_, run)| run.clone()).collect()
    };
    let check = async |gateway: &GatewayProcess, filter: &str, limit, is_wanted: &dyn Fn(usize) -> bool| {
        let expected = known(is_wanted);
        let listed = list_all_parts(gateway, filter, limit).await;
        let once: BTreeSet<&String> = listed.iter().collect();
        assert_eq!(once.len(), listed.len(), "{filter}: a run is there twice");
        let allowed: BTreeSet<String> = known(is_wanted).into_iter().collect();
        assert!(listed.iter().all(|run| allowed.contains(run)), "{filter}: a run that it does not select");
        let deleted = deleted.lock().unwrap();
        let missing: Vec<&String> =
            expected.iter().filter(|run| !once.contains(run) && !deleted.contains(*run)).collect();
        assert!(missing.is_empty(), "{filter}: {missing:?} of {} are missing", expected.len());
        expected.len()
    };
    let all = |_: usize| true;
    let is_deleted = |number: usize| number.is_multiple_of(2) && !number.is_multiple_of(5);
    // In a pass the last submissions may not be known here yet, so each filter is checked on runs that were known before it.
    let since = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(1);
    let pager = async {
        let mut passes = 0;
        while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
            for gateway in [&gateway, &other] {
                passes += 1;
                for filter in
                    ["", "&state=submitted,running", "&state=completed", "&label=team", "&session=s0"]
                {
                    let listed = list_all_parts(gateway, filter, 7).await;
                    let once: BTreeSet<&String> = listed.iter().collect();
                    assert_eq!(once.len(), listed.len(), "{filter}: a run is there twice");
                }
                let expected = known(&all);
                let listed: BTreeSet<String> =
                    list_all_parts(gateway, &format!("&since={since}"), 7).await.into_iter().collect();
                let deleted = deleted.lock().unwrap();
                let missing: Vec<&String> =
                    expected.iter().filter(|run| !listed.contains(*run) && !deleted.contains(*run)).collect();
                assert!(missing.is_empty(), "{missing:?} of {} are missing", expected.len());
            }
        }
        passes
    };
    let work = async {
        for part in 0..3 {
            let numbers: Vec<usize> = (part * 100..part * 100 + 100).collect();
            futures::future::join_all(numbers.iter().map(|number| submit(*number))).await;
            if part == 0 {
                assert_eq!(check(&gateway, "", 7, &all).await, 100);
                assert_eq!(check(&other, "&state=submitted", 7, &all).await, 100, "nobody starts them");
                assert_eq!(check(&other, "&state=running", 7, &|_| false).await, 0);
                for (filter, is_wanted) in [
                    ("&label=team=t1", &(|number: usize| number % 3 == 1) as &dyn Fn(usize) -> bool),
                    ("&session=s5", &|number| number % 10 == 5),
                    ("&text=b%C3%A4r%203", &|number| number % 4 == 3),
                    ("&label=team=t9", &|_| false),
                    ("&until=1h", &|_| false),
                    ("&since=1h&label=team=t0&session=s0", &|number| number % 30 == 0),
                ] {
                    check(&gateway, filter, 7, is_wanted).await;
                    check(&other, filter, 1, is_wanted).await;
                }
                cluster.start_process(ProcessRole::Supervisor, "supervisor-2", &[]);
            }
        }
        for run in known(&all) {
            let number = submitted.lock().unwrap().iter().find(|(_, one)| *one == run).unwrap().0;
            wait_for_value(TIMEOUT, "the end of a run", async || {
                (gateway.get(&format!("/runs/{run}")).await.json()["state"] == "completed").then_some(())
            })
            .await;
            // Runs of a session stay, since the next ones read their results.
            if is_deleted(number) {
                deleted.lock().unwrap().insert(run.clone());
                let delete = Request::new("DELETE", format!("/api/v1/runs/{run}?wait=0"));
                // Its summary may be a moment behind its log.
                wait_for_value(TIMEOUT, "the summary of an ended run", async || {
                    let answer = gateway.send(delete.clone()).await;
                    [200, 202].contains(&answer.status).then_some(())
                })
                .await;
            }
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    let (passes, ()) = futures::join!(pager, work);
    assert!(passes > 4, "only {passes} passes");
    wait_for_value(TIMEOUT, "the deletions", async || {
        (list_all_parts(&gateway, "", 50).await.len() == 180).then_some(())
    })
    .await;
    for (filter, is_wanted) in [
        ("", &(|number: usize| !is_deleted(number)) as &dyn Fn(usize) -> bool),
        ("&label=team=t1", &|number| number % 3 == 1 && !is_deleted(number)),
        ("&session=s5&state=completed", &|number| number % 10 == 5),
    ] {
        check(&gateway, filter, 7, is_wanted).await;
        check(&other, filter, 7, is_wanted).await;
    }
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
    assert!(answers.iter().all(|answer| answer.status == 201 && answer.json() == answers[0].json()));
    let other_request = one.send(request(2)).await;
    assert_eq!(other_request.status, 422);
    assert_eq!(other_request.json()["type"], "urn:millrace:problem:idempotency-key-reused");

    let run = runs.first().unwrap();
    one.wait_for_end(run).await;
    wait_for_archive(&bus, &run_id(run), TIMEOUT).await;
    let late = other.send(request(1)).await;
    assert_eq!((late.status, late.json()), (201, answers[0].json()), "the key outlives the run's lane");
    assert_eq!(one.get("/runs").await.json()["runs"].as_array().unwrap().len(), 1);

    // The gateway died between the claim of the key and the submission.
    let claimed = read_keyed_request(&bus, &submission_key("k -1")).await.unwrap().unwrap();
    let lost = KeyedRequest { run: run_id("lost-1"), id: "lost-1".into(), reply: None, ..claimed.keyed };
    claim_key(&bus, &submission_key("died"), &lost).await.unwrap();
    let repeated =
        Request::new("POST", "/api/v1/runs").header("Idempotency-Key", "died").json(&chain(1, &json!({})));
    let repeated = other.send(repeated).await;
    assert_eq!((repeated.status, &repeated.json()["run"]), (201, &json!("lost-1")), "{}", repeated.text());
    one.wait_for_end("lost-1").await;
}

/// The name of the record of a key for a submission.
fn submission_key(key: &str) -> String {
    KeyScope { author: "ann", operation: "submit_run", resource: "", key }.record_name()
}

#[tokio::test(flavor = "multi_thread")]
async fn key_belongs_to_an_operation_a_resource_and_a_request() {
    let _alone = lock_machine();
    let mut cluster = TestCluster::with_server_only(ClusterSetup::default());
    cluster.start_process(ProcessRole::Supervisor, "supervisor-1", &[]);
    let _bus = cluster.connect_bus().await;
    let (one, other) =
        (GatewayProcess::start(&cluster, "one").await, GatewayProcess::start(&cluster, "other").await);
    let run = one.submit(&chain(3, &json!({}))).await;
    let send = async |gateway: &GatewayProcess, method: &'static str, path: &str, body: Value| {
        let request = Request::new(method, format!("/api/v1/runs/{run}{path}"));
        gateway.send(request.header("Idempotency-Key", "one").json(&body)).await
    };
    let pause = async |gateway| send(gateway, "POST", "/pause?timeout=60", json!({})).await;
    // A refused request owns nothing: the run is paused by another one first.
    assert_eq!(one.post(&format!("/runs/{run}/pause"), &json!({})).await.status, 200);
    assert_eq!(pause(&one).await.status, 409);
    assert_eq!(one.post(&format!("/runs/{run}/resume"), &json!({})).await.status, 200);
    let commands = [
        ("POST", "/pause", json!({})),
        ("POST", "/resume", json!({})),
        ("POST", "/interrupt", json!({})),
        ("POST", "/signal", json!({ "name": "go", "data": { "b": 1, "a": [1, 2] } })),
        ("POST", "/tasks", json!({ "tasks": [{ "id": "more", "objective": "more", "capability": "echo" }] })),
        ("PATCH", "/tasks/t1", json!({ "objective": "other words", "parameters": { "y": 2, "x": 1 } })),
        ("PATCH", "/tasks/t2", json!({ "objective": "other words", "parameters": { "y": 2, "x": 1 } })),
        ("POST", "/tasks/more/cancel", json!({ "reason": "enough" })),
        ("POST", "/tasks/t2/cancel", json!({ "reason": "enough" })),
        ("POST", "/cancel", json!({ "reason": "enough" })),
    ];
    let mut answers = Vec::new();
    for (method, path, body) in &commands {
        let answer = send(&one, method, path, body.clone()).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answers.push(answer);
    }
    assert_eq!(one.wait_for_end(&run).await["state"], "cancelled");
    let done = one.get(&format!("/runs/{run}")).await.json();
    assert_eq!(done["commands"].as_array().unwrap().len(), commands.len() + 2, "{done:#}");
    let reordered = |body: &Value| -> Value {
        // The same objects with their fields in the opposite order.
        fn reverse(value: &Value) -> Value {
            match value {
                Value::Object(fields) => {
                    fields.iter().rev().map(|(name, value)| (name.clone(), reverse(value))).collect()
                }
                Value::Array(items) => items.iter().map(reverse).collect(),
                other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => other.clone(),
            }
        }
        reverse(body)
    };
    for ((method, path, body), first) in commands.iter().zip(&answers) {
        for gateway in [&one, &other] {
            let again = send(gateway, method, path, reordered(body)).await;
            assert_eq!((again.status, again.json()), (first.status, first.json()), "{path}");
        }
        if body != &json!({}) {
            let mut changed = body.clone();
            changed.as_object_mut().unwrap().values_mut().for_each(|value| {
                if value.is_string() {
                    *value = json!("something else");
                } else {
                    *value = json!({ "z": 1 });
                }
            });
            let refused = send(&other, method, path, changed).await;
            assert_eq!(refused.status, 422, "{path}: {}", refused.text());
            assert!(refused.text().contains("idempotency-key-reused"), "{path}: {}", refused.text());
        }
    }
    assert_eq!(one.get(&format!("/runs/{run}")).await.json()["commands"], done["commands"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_submission_is_answered_as_the_first_one_and_a_refused_one_owns_no_key() {
    let _alone = lock_machine();
    let setup = ClusterSetup { linger: Duration::from_millis(100), ..ClusterSetup::default() };
    let cluster = TestCluster::start_with_workers(setup, 1);
    let bus = cluster.connect_bus().await;
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    let submit = async |key: &str, body: &str| {
        let request = Request::new("POST", "/api/v1/runs").header("Idempotency-Key", key);
        gateway.send(request.body("application/json", body.as_bytes().to_vec())).await
    };
    let earlier = gateway.submit(&chain(1, &json!({}))).await;
    gateway.wait_for_end(&earlier).await;
    wait_for_archive(&bus, &run_id(&earlier), TIMEOUT).await;
    let task =
        r#"{"id": "a", "objective": "a", "capability": "echo", "parameters": {"steps": 1, "delay_ms": 10}}"#;
    let other_task =
        r#"{"parameters": {"delay_ms": 10, "steps": 1}, "capability": "echo", "objective": "a", "id": "a"}"#;
    let push = r#"{"url": "https://receiver.example/a", "token": "abc"}"#;
    let bodies = |task: &str, budget: &str| {
        format!(
            r#"{{"objective": "x", "plan": {{"tasks": [{task}]}}, "budget": {budget}, "after": ["{earlier}"], "push_config": {push}}}"#
        )
    };
    let (first, same) = (
        bodies(task, r#"{"tokens": "10k", "time": "5m"}"#),
        bodies(other_task, r#"{"time": "5m", "tokens": "10k"}"#),
    );
    let submitted = submit("k", &first).await;
    assert_eq!(submitted.status, 201, "{}", submitted.text());
    let run = submitted.json()["run"].as_str().unwrap().to_owned();
    let repeat = async |when: &str| {
        let again = submit("k", &same).await;
        assert_eq!((again.status, again.json()), (201, submitted.json()), "{when}: {}", again.text());
        assert_eq!(again.header("location"), submitted.header("location"), "{when}");
        let configs = gateway.get(&format!("/runs/{run}/push-configs")).await.json();
        assert_eq!(configs["push_configs"].as_array().unwrap().len(), 1, "{when}: {configs}");
    };
    repeat("at once").await;
    gateway.wait_for_end(&run).await;
    let deleted = Request::new("DELETE", format!("/api/v1/runs/{earlier}?wait=60"));
    assert_eq!(gateway.send(deleted).await.status, 200);
    repeat("after the deletion of a run that it follows up on").await;
    wait_for_archive(&bus, &run_id(&run), TIMEOUT).await;
    repeat("after the archive").await;
    assert_eq!(submit("k", &first.replace("10k", "20k")).await.status, 422);

    // Refused: no room, a mistake, an earlier run that is gone.
    let put = async |body: Value| gateway.send(Request::new("PUT", "/api/v1/admission").json(&body)).await;
    let slow = chain(1, &json!({ "delay_ms": 600_000 })).to_string();
    assert_eq!(put(json!({ "max_running_runs": 1, "max_waiting_runs": 0 })).await.status, 200);
    wait_for_value(TIMEOUT, "a full cluster", async || {
        (gateway.post("/runs", &chain(1, &json!({ "delay_ms": 600_000 }))).await.status == 429).then_some(())
    })
    .await;
    assert_eq!(submit("full", &slow).await.status, 429);
    assert_eq!(submit("full", &slow).await.status, 429);
    assert_eq!(put(json!({})).await.status, 200);
    assert_eq!(submit("gone", &bodies(task, "{}")).await.status, 410);
    assert_eq!(submit("wrong", r#"{"objective": " "}"#).await.status, 422);
    for key in ["full", "gone", "wrong"] {
        assert_eq!(read_keyed_request(&bus, &submission_key(key)).await.unwrap(), None, "{key}");
        let other = chain(1, &json!({ "delay_ms": 1 })).to_string();
        let answer = wait_for_value(TIMEOUT, "room", async || {
            let answer = submit(key, &other).await;
            (answer.status != 429).then_some(answer)
        })
        .await;
        assert_eq!(answer.status, 201, "{key}: {}", answer.text());
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
    for feedback in ["a", "b"] {
        let path = format!("/api/v1/runs/{run}/tasks/t1/retry");
        let request = Request::new("POST", path).header("Idempotency-Key", "refused");
        let again = gateway.send(request.json(&json!({ "feedback": feedback }))).await;
        assert_eq!(again.status, 409, "the key of a refused command is free: {}", again.text());
    }
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

/// One slot, which a sub-agent has: a run in each waiting state, and eleven in the queue of a worker that is busy.
#[tokio::test(flavor = "multi_thread")]
async fn runs_say_what_they_wait_for_and_are_selected_by_it() {
    let _shared = share_machine();
    let setup = ClusterSetup { slots: 1, ..ClusterSetup::default() };
    let cluster = TestCluster::start_with_workers(setup, 1);
    let _bus = cluster.connect_bus().await;
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    let waiting = async |kind: &str| {
        let list = gateway.get(&format!("/runs?waiting={kind}&state=running")).await.json();
        list["runs"].as_array().unwrap().clone()
    };
    let child = json!([{ "parameters": { "delay_ms": 600_000 } }]);
    for (kind, parameters) in [
        ("question", json!({ "ask": ["Which region?"] })),
        ("event", json!({ "await_event": "go" })),
        ("time", json!({ "park_ms": 600_000 })),
        ("sub_agent", json!({ "delegate": child })),
    ] {
        let run = gateway.submit(&chain(1, &parameters)).await;
        wait_for_value(TIMEOUT, kind, async || {
            let selected = waiting(kind).await;
            let is_it = selected.len() == 1 && selected[0]["run"] == run.as_str();
            (is_it && selected[0]["waiting"] == kind).then_some(())
        })
        .await;
        let shown = gateway.get(&format!("/runs/{run}")).await.json();
        assert_eq!((&shown["state"], &shown["waiting"]), (&json!("running"), &json!(kind)));
        let listed = cluster.millrace_command().args(["list", "--waiting", kind]).output().unwrap();
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let words = format!("waiting ({})", kind.replace('_', "-"));
        assert!(listed.lines().count() == 2 && listed.contains(&words), "{listed}");
        let board = cluster.millrace_command().args(["show", &run]).output().unwrap();
        let board = String::from_utf8_lossy(&board.stdout).into_owned();
        assert!(board.contains(&words), "{board}");
    }
    let mut queued = Vec::new();
    for _ in 0..11 {
        queued.push(gateway.submit(&chain(1, &json!({}))).await);
        // In the order of their places.
        let count = queued.len();
        wait_for_value(TIMEOUT, "the run in the queue", async || {
            (waiting("worker").await.len() == count).then_some(())
        })
        .await;
    }
    let text = |behind: usize| {
        format!("t0 waits for a free slot of echo: queued behind {behind}, 1 of 1 slots busy")
    };
    wait_for_value(TIMEOUT, "the places in the queue", async || {
        let list = waiting("worker").await;
        let texts: Vec<&str> = list.iter().rev().filter_map(|run| run["waiting_for"].as_str()).collect();
        (texts == (0..11).map(text).collect::<Vec<_>>()).then_some(())
    })
    .await;
    let (first, last) = (&queued[0], &queued[10]);
    let listed = cluster.millrace_command().args(["list", "--waiting", "worker"]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains(&text(10)) && listed.contains("waiting (worker)"), "{listed}");
    let shown = cluster.millrace_command().args(["show", last, "--json"]).output().unwrap();
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!((&shown["waiting_for"], &shown["waiting"]), (&json!(text(10)), &json!("worker")));
    let board = cluster.millrace_command().args(["show", last]).output().unwrap();
    let board = String::from_utf8_lossy(&board.stdout).into_owned();
    assert!(board.contains(&text(10)), "{board}");
    let tasks = gateway.get(&format!("/runs/{first}/tasks")).await.json();
    assert_eq!(tasks["tasks"][0]["waiting_for"], "a free slot of echo: queued behind 0, 1 of 1 slots busy");
    let refused = gateway.get("/runs?waiting=nothing").await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("question, parameters, provider, worker"), "{}", refused.text());
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
async fn refusals_of_requests_that_are_still_being_sent_arrive() {
    let _alone = lock_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    let _bus = cluster.connect_bus().await;
    let mut gateway = GatewayProcess::start(&cluster, "gateway").await;
    let body = |size: usize| vec![b' '; size * 1024 * 1024];
    let post = |path: &str| Request::new("POST", format!("/api/v1{path}"));
    for (request, status) in [
        (post("/answers").body("application/json", body(5)), 413),
        (post("/answers").body("application/json", body(8)), 413),
        (post("/answers").body("application/json", body(64)), 413),
        (post("/runs/none/cancel").body("application/json", body(64)), 413),
        (post("/answers").body("text/plain", body(64)), 415),
        (post("/nothing").body("application/json", body(64)), 404),
        (Request::new("PUT", "/api/v1/runs").body("application/json", body(64)), 405),
        (post("/answers").header("Host", "evil.example").body("application/json", body(64)), 421),
        (post("/answers").header("Origin", "http://evil.example").body("application/json", body(64)), 403),
        (post("/runs").body("text/plain", body(64)), 415),
    ] {
        for _ in 0..3 {
            let answer = request.try_send(gateway.address).await;
            let answer = answer.unwrap_or_else(|| panic!("no answer to {} {}", request.method, request.path));
            assert_eq!(answer.status, status, "{} {}: {}", request.method, request.path, answer.text());
            let problem = answer.json();
            assert!(problem["detail"].is_string(), "{} {}: {problem}", request.method, request.path);
        }
    }
    // A client that never closes its side does not hold the process up.
    let mut open = TcpStream::connect(gateway.address).await.unwrap();
    let head = "POST /api/v1/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n";
    open.write_all(head.as_bytes()).await.unwrap();
    let mut begin = [0; 12];
    open.read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 404");
    let took = gateway.stop();
    assert!(took < Duration::from_secs(4), "stopping took {took:?}");
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
        (201, &submitted.json()["run"]),
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
    assert_eq!(scripts.len(), 3);
    let folder = tempfile::tempdir().unwrap();
    let licence = "examples/licences/MIT.txt";
    std::fs::create_dir_all(folder.path().join(licence).parent().unwrap()).unwrap();
    let source = millrace_tests::pages::repository_folder().join(licence);
    std::fs::copy(source, folder.path().join(licence)).unwrap();
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

/// The operations that need the scope `admin` and change something, but for deliveries, by the description of the API.
fn administrative_changes() -> Vec<(String, String)> {
    let document: Value = serde_json::from_str(include_str!("../../gateway/openapi.json")).unwrap();
    let mut changes = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let is_delivery = path.ends_with("/test") || path.ends_with("/redeliver");
            if method != "get" && !is_delivery && operation["security"] == json!([{ "token": ["admin"] }]) {
                changes.push((method.clone(), path.clone()));
            }
        }
    }
    assert!(changes.len() >= 14, "{changes:?}");
    changes
}

#[tokio::test(flavor = "multi_thread")]
async fn administrative_changes_are_recorded_on_every_surface() {
    let _alone = lock_machine();
    let setup = ClusterSetup { linger: Duration::from_millis(100), ..ClusterSetup::default() };
    let cluster = TestCluster::start_with_workers(setup, 1);
    let _bus = cluster.connect_bus().await;
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    let after = async || gateway.get("/audit").await.json()["next"].as_u64().unwrap();
    let actions = async |after: u64| -> Vec<Value> {
        let page = gateway.get(&format!("/audit?after={after}")).await.json();
        page["actions"].as_array().unwrap().clone()
    };
    let types = |actions: &[Value]| -> Vec<String> {
        actions.iter().map(|one| one["action"]["type"].as_str().unwrap().to_owned()).collect()
    };
    let by_api = after().await;
    let sent = std::cell::RefCell::new(Vec::new());
    let send = async |method: &'static str, path: &str, body: Value| {
        sent.borrow_mut().push((method.to_lowercase(), format!("/api/v1{path}")));
        let answer = gateway.send(Request::new(method, format!("/api/v1{path}")).json(&body)).await;
        assert!(answer.status < 300, "{method} {path}: {}", answer.text());
        answer.json()
    };
    let ended = async || {
        let run = gateway.submit(&chain(1, &json!({}))).await;
        gateway.wait_for_end(&run).await;
        run
    };
    let selection = json!({ "older_than": "1000d", "states": ["failed"] });
    send("PUT", "/limits/openai:x", json!({ "requests": 5 })).await;
    send("DELETE", "/limits/openai:x", json!({})).await;
    send("PUT", "/admission", json!({ "max_running_runs": 50 })).await;
    let token = send("POST", "/tokens", json!({ "name": "tim", "scopes": ["read"] })).await;
    send("DELETE", &format!("/tokens/{}", token["id"].as_str().unwrap()), json!({})).await;
    let hook = send("POST", "/webhooks", json!({ "url": "https://receiver.example/a" })).await;
    let hook = hook["id"].as_str().unwrap().to_owned();
    send("PATCH", &format!("/webhooks/{hook}"), json!({ "description": "b" })).await;
    send("POST", &format!("/webhooks/{hook}/secret"), json!({})).await;
    send("DELETE", &format!("/webhooks/{hook}"), json!({})).await;
    send("PUT", "/retention/rules/a", selection.clone()).await;
    send("DELETE", "/retention/rules/a", json!({})).await;
    send("PUT", "/retention/settings", json!({ "blob_grace": "2h" })).await;
    send("POST", "/retention/sweep", json!({})).await;
    send("POST", "/runs/prune", selection).await;
    send("DELETE", &format!("/runs/{}?wait=60", ended().await), json!({})).await;
    for unknown in
        ["/limits/openai:unknown", "/retention/rules/unknown", "/tokens/unknown", "/webhooks/unknown"]
    {
        let answer = gateway.send(Request::new("DELETE", format!("/api/v1{unknown}"))).await;
        assert_eq!(answer.status, 404, "{unknown}: nothing is changed, and nothing recorded");
    }
    let by_api = actions(by_api).await;
    let run = ended().await;
    let by_command = after().await;
    let millrace = |arguments: &[&str]| {
        let output = cluster.millrace_command().args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default()
    };
    millrace(&["limits", "set", "openai:x", "--requests", "5", "--by", "bob"]);
    millrace(&["limits", "clear", "openai:x", "--by", "bob"]);
    millrace(&["limits", "runs", "--running", "50", "--by", "bob"]);
    let token = millrace(&["token", "create", "tim", "--scope", "read", "--by", "bob", "--json"]);
    millrace(&["token", "revoke", token["id"].as_str().unwrap(), "--by", "bob"]);
    let hook = millrace(&["webhook", "add", "https://receiver.example/a", "--by", "bob", "--json"]);
    let hook = hook["id"].as_str().unwrap();
    millrace(&["webhook", "update", hook, "--description", "b", "--by", "bob"]);
    millrace(&["webhook", "rotate", hook, "--by", "bob"]);
    millrace(&["webhook", "delete", hook, "--by", "bob"]);
    millrace(&["retention", "set", "a", "--older-than", "1000d", "--state", "failed", "--by", "bob"]);
    millrace(&["retention", "remove", "a", "--by", "bob"]);
    millrace(&["retention", "grace", "2h", "--by", "bob"]);
    millrace(&["retention", "sweep", "--by", "bob"]);
    millrace(&["prune", "--older-than", "1000d", "--state", "failed", "--by", "bob"]);
    millrace(&["delete", &run, "--wait", "60s", "--by", "bob"]);
    let by_command = actions(by_command).await;
    assert_eq!(types(&by_command), types(&by_api));
    assert_eq!(by_api.len(), 15, "{by_api:#?}");
    let unsent = administrative_changes().into_iter().filter(|(method, path)| {
        let is_of = |(sent, at): &(String, String)| {
            let at = at.split('?').next().unwrap_or_default();
            let mut pairs = at.split('/').zip(path.split('/'));
            let has_form = at.matches('/').count() == path.matches('/').count();
            sent == method && has_form && pairs.all(|(part, name)| part == name || name.starts_with('{'))
        };
        !sent.borrow().iter().any(is_of)
    });
    assert_eq!(unsent.count(), 0, "an operation is not here: send it, and the command with it");
    assert!(by_api.iter().all(|one| one["by"]["name"] == "ann"), "{by_api:#?}");
    assert!(by_command.iter().all(|one| one["by"]["name"] == "bob"), "{by_command:#?}");
    // A change that is refused changes nothing, and is not recorded if it can't be read.
    let before = after().await;
    let refused = Request::new("PUT", "/api/v1/limits/openai:x").json(&json!({ "requests": 0 }));
    assert_eq!(gateway.send(refused).await.status, 400);
    assert!(actions(before).await.is_empty());
    let listed = cluster.millrace_command().arg("audit").output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert_eq!(listed.lines().count(), 30, "{listed}");
    assert!(listed.contains(&format!("bob requested the deletion of run {run}")), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_runs_that_could_be_resumed_are_deleted_and_nothing_else_is_promised_meanwhile() {
    let _alone = lock_machine();
    let setup = ClusterSetup { linger: Duration::from_millis(100), ..ClusterSetup::default() };
    let mut cluster = TestCluster::start_with_workers(setup, 1);
    let bus = cluster.connect_bus().await;
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    let failing = || {
        let mut run = chain(2, &json!({ "fail_rate": 1.0 }));
        run["plan"]["tasks"][0]["limits"] = json!({ "max_attempts": 1 });
        run
    };
    let failed = async || {
        let run = gateway.submit(&failing()).await;
        let end = gateway.wait_for_end(&run).await;
        assert_eq!((&end["state"], &end["resumable"]), (&json!("failed"), &json!(true)), "{end:#}");
        wait_for_value(TIMEOUT, "the summary", async || {
            let summary =
                millrace_runtime::work::registry::read_summary(&bus, &run_id(&run)).await.ok()??;
            summary.is_resumable.then_some(())
        })
        .await;
        run
    };
    let delete = |run: &str, wait: u32| Request::new("DELETE", format!("/api/v1/runs/{run}?wait={wait}"));
    let run = failed().await;
    let deleted = gateway.send(delete(&run, 60)).await;
    assert_eq!((deleted.status, &deleted.json()["deleted"]), (200, &json!(true)), "{}", deleted.text());
    assert_eq!(gateway.get(&format!("/runs/{run}")).await.status, 410);

    // Commands of both surfaces, and one run that was out of budget.
    let mut exhausted = chain(3, &json!({ "delay_ms": 2_000 }));
    exhausted["budget"] = json!({ "time": "100ms" });
    let exhausted = gateway.submit(&exhausted).await;
    assert_eq!(gateway.wait_for_end(&exhausted).await["state"], "budget_exhausted");
    let runs = [failed().await, exhausted];
    wait_for_value(TIMEOUT, "two ended runs", async || {
        let selected = gateway.post("/runs/prune", &json!({ "older_than": "1s", "dry_run": true })).await;
        (selected.json()["runs"].as_array().unwrap().len() == 2).then_some(())
    })
    .await;
    let pruned =
        cluster.millrace_command().args(["prune", "--older-than", "1s", "--by", "bob"]).output().unwrap();
    assert!(pruned.status.success(), "{}", String::from_utf8_lossy(&pruned.stderr));
    for run in &runs {
        wait_for_value(TIMEOUT, "the deletion", async || {
            (gateway.get(&format!("/runs/{run}")).await.status == 410).then_some(())
        })
        .await;
    }

    // What was promised first counts: nobody carries the deletion out yet, and the run is not resumed.
    let run = failed().await;
    cluster.kill_process("supervisor-1");
    let promised = gateway.send(delete(&run, 0)).await;
    assert_eq!((promised.status, &promised.json()["deleted"]), (202, &json!(false)), "{}", promised.text());
    for (path, body) in [
        ("resume", json!({})),
        ("tasks/t0/retry", json!({})),
        ("tasks", json!({ "tasks": [{ "id": "more", "objective": "more", "capability": "echo" }] })),
    ] {
        let refused = gateway.post(&format!("/runs/{run}/{path}?wait=accepted"), &body).await;
        assert_eq!(refused.status, 409, "{path}: {}", refused.text());
        assert!(refused.text().contains("is being deleted, as ann requested"), "{path}: {}", refused.text());
    }
    let resumed = cluster.millrace_command().args(["retry", &run, "t0"]).output().unwrap();
    let text = String::from_utf8_lossy(&resumed.stderr).into_owned();
    assert!(!resumed.status.success() && text.contains("is being deleted"), "{text}");
    cluster.start_process(ProcessRole::Supervisor, "supervisor-2", &[]);
    let deleted = gateway.send(delete(&run, 60)).await;
    assert_eq!((deleted.status, &deleted.json()["deleted"]), (200, &json!(true)), "{}", deleted.text());
    let commands = gateway.get("/runs").await.json();
    assert_eq!(commands["runs"], json!([]), "nothing is left");
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
