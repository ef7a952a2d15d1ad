//! Streams of many runs, and of one run, while everything behind them is killed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use millrace_runtime::Bus;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::machine::{lock_machine, share_machine};
use millrace_tests::plans::{SeededRandom, layered_submission, run_id, submit_run};
use millrace_tests::wait_for_value;
use serde_json::{Value, json};

use super::document::assert_valid;
use super::http::{Frame, Request, read_events, read_events_for};
use super::process::GatewayProcess;
use super::{TIMEOUT, chain, events_request, ids_of_log, wait_for_archive};

/// The number of seeds; 200 say something about rare interleavings.
fn seeds() -> u64 {
    std::env::var("MILLRACE_STREAM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(6)
}

fn all_events(query: &str, after: Option<&str>) -> Request {
    let request = Request::new("GET", format!("/api/v1/events?{query}"));
    match after {
        Some(id) => request.header("Last-Event-ID", id),
        None => request,
    }
}

/// The data of the events of each run, in the order of their arrival.
fn events_by_run(frames: &[Frame]) -> BTreeMap<String, Vec<String>> {
    let mut runs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for frame in frames {
        let name = match (frame.id.is_some(), frame.event.as_str()) {
            (true, "run_summary") => "run",
            (true, "stream_started") | (false, _) => "StreamNotice",
            (true, "step") => "EntryLine",
            (true, _) => "EventLine",
        };
        assert_valid(name, &frame.json());
        if ["EntryLine", "EventLine"].contains(&name) {
            let run = frame.json()["run"].as_str().unwrap().to_owned();
            runs.entry(run).or_default().push(frame.data.clone());
        }
    }
    runs
}

/// The events of a run by the stream of that run, which other tests compare with the log.
async fn replay(address: SocketAddr, run: &str) -> Vec<String> {
    let frames = read_events(address, &events_request(run, "steps", None), None).await;
    assert_eq!(frames.last().map(|frame| &*frame.event), Some("end"), "{run}");
    frames.into_iter().filter(|frame| frame.id.is_some()).map(|frame| frame.data).collect()
}

/// A client of the stream of all runs: it is cut at random, and reconnects to one gateway or the other.
struct CutClient {
    after: Option<String>,
    frames: Vec<Frame>,
    cuts: usize,
}

impl CutClient {
    async fn read_some(&mut self, gateways: &[SocketAddr], random: &mut SeededRandom) {
        let address = gateways[usize::try_from(random.next_below(gateways.len() as u64)).unwrap()];
        let cut = 200 + usize::try_from(random.next_below(20_000)).unwrap();
        let time = Duration::from_millis(50 + random.next_below(500));
        let request = all_events("level=steps", self.after.as_deref());
        let frames = read_events_for(address, &request, cut, time).await;
        if let Some(last) = frames.iter().rev().find_map(|frame| frame.id.clone()) {
            self.after = Some(last);
        }
        self.frames.extend(frames);
        self.cuts += 1;
    }
}

/// Kills one of the processes behind the streams, and starts it again.
async fn kill_something(
    cluster: &mut TestCluster,
    gateways: &mut [GatewayProcess; 2],
    random: &mut SeededRandom,
) {
    match random.next_below(8) {
        0 | 1 => {
            let number = usize::try_from(random.next_below(2)).unwrap();
            let address = gateways[number].address;
            gateways[number].kill();
            gateways[number] = GatewayProcess::start_on(cluster, &format!("gateway-{number}"), address).await;
        }
        2 => {
            cluster.kill_process("supervisor-1");
            cluster.restart_process("supervisor-1");
        }
        3 => {
            cluster.kill_process("worker-1");
            cluster.restart_process("worker-1");
        }
        4 => {
            cluster.server.kill();
            cluster.server.restart();
        }
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_of_all_runs_equals_their_logs_whatever_is_killed() {
    let _shared = share_machine();
    let setup = ClusterSetup { lanes: 2, linger: Duration::from_millis(300), ..ClusterSetup::default() };
    let mut cluster = TestCluster::start_with_workers(setup, 2);
    let bus = cluster.connect_bus().await;
    let mut gateways = [
        GatewayProcess::start(&cluster, "gateway-0").await,
        GatewayProcess::start(&cluster, "gateway-1").await,
    ];
    let addresses = [gateways[0].address, gateways[1].address];
    let mut client = CutClient { after: Some("start".into()), frames: Vec::new(), cuts: 0 };
    let mut expected = BTreeMap::new();
    for seed in 1..=seeds() {
        let mut random = SeededRandom::new(seed);
        let runs = [format!("all-{seed}-a"), format!("all-{seed}-b"), format!("all-{seed}-c")];
        for run in &runs {
            submit_run(&bus, &run_id(run), &layered_submission(seed, 2, 3)).await;
        }
        let started = Instant::now();
        let has_end = |frames: &[Frame], run: &String| {
            frames.iter().rev().any(|frame| frame.event == "run_ended" && frame.json()["run"] == run.as_str())
        };
        while !runs.iter().all(|run| has_end(&client.frames, run)) {
            assert!(started.elapsed() < TIMEOUT, "seed {seed}: the runs do not end");
            // While the client is away, runs end and leave their lanes.
            if random.next_bool_with_percent(20) {
                tokio::time::sleep(Duration::from_millis(random.next_below(1_500))).await;
            }
            client.read_some(&addresses, &mut random).await;
            kill_something(&mut cluster, &mut gateways, &mut random).await;
        }
        for run in &runs {
            wait_for_archive(&bus, &run_id(run), TIMEOUT).await;
            expected.insert(run.clone(), replay(addresses[0], run).await);
        }
    }
    // Nothing comes twice afterwards.
    let mut random = SeededRandom::new(0);
    for _ in 0..5 {
        client.read_some(&addresses, &mut random).await;
    }
    assert!(client.cuts > 10, "only {} cuts", client.cuts);
    let received = events_by_run(&client.frames);
    for (run, events) in &expected {
        let missing = Vec::new();
        let received = received.get(run).unwrap_or(&missing);
        assert_eq!(received, events, "{run}");
        check_ids_of_log(&bus, addresses[0], run).await;
    }
    assert_eq!(received.len(), expected.len());

    // The whole log again, when all runs are archived.
    let (mut again, started) = (Vec::<Frame>::new(), Instant::now());
    while again.iter().filter(|frame| frame.event == "run_ended").count() < expected.len() {
        assert!(started.elapsed() < TIMEOUT, "only {} events arrive again", again.len());
        let after = again.iter().rev().find_map(|frame| frame.id.clone());
        let request = all_events("level=steps", after.as_deref().or(Some("start")));
        again.extend(read_events_for(addresses[1], &request, usize::MAX, Duration::from_secs(2)).await);
    }
    assert_eq!(events_by_run(&again), expected);
}

/// Checks that the stream of one run has the events of the log.
async fn check_ids_of_log(bus: &Bus, address: SocketAddr, run: &str) {
    let frames = read_events(address, &events_request(run, "steps", None), None).await;
    let ids: Vec<String> = frames.into_iter().filter_map(|frame| frame.id).collect();
    assert_eq!(ids, ids_of_log(bus, &run_id(run)).await, "{run}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_of_all_runs_keeps_a_list_up_to_date() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let _bus = cluster.connect_bus().await;
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    let labelled = |team: &str| {
        let mut run = chain(1, &json!({}));
        run["labels"] = json!({ "team": team });
        run
    };
    let reading = {
        let (address, request) = (gateway.address, all_events("label=team=mill&types=run_ended", None));
        tokio::spawn(
            async move { read_events_for(address, &request, usize::MAX, Duration::from_secs(8)).await },
        )
    };
    wait_for_value(TIMEOUT, "the stream", async || {
        // The stream has begun when a run that is submitted now is in it.
        (!reading.is_finished()).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (wanted, other) = (gateway.submit(&labelled("mill")).await, gateway.submit(&labelled("sea")).await);
    gateway.wait_for_end(&wanted).await;
    gateway.wait_for_end(&other).await;
    let frames = reading.await.unwrap();
    assert_eq!(frames[0].event, "stream_started");
    assert!(frames.iter().all(|frame| !frame.data.contains(&other)), "another label");
    let ends = frames.iter().filter(|frame| frame.event == "run_ended").count();
    assert_eq!(ends, 1);
    let summaries: Vec<Value> =
        frames.iter().filter(|frame| frame.event == "run_summary").map(Frame::json).collect();
    assert_eq!(summaries.last().unwrap()["state"], "completed", "{summaries:#?}");
    for query in ["after=x", "after=17.0", "label=a%20b", "level=live", "runs=none"] {
        let answer = gateway.get(&format!("/events?{query}")).await;
        assert!([400, 404].contains(&answer.status), "{query}: {}", answer.text());
    }
}

/// The events of runs in frames of a stream: no summaries, and no notices.
fn events_of(frames: &[Frame]) -> Vec<(String, String)> {
    let is_event = |frame: &&Frame| {
        frame.id.is_some() && !["run_summary", "stream_started"].contains(&frame.event.as_str())
    };
    frames.iter().filter(is_event).map(|frame| (frame.event.clone(), frame.data.clone())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_send_live_what_they_send_when_read_again() {
    let _alone = lock_machine();
    let mut cluster =
        TestCluster::start_with_workers(ClusterSetup { lanes: 2, ..ClusterSetup::default() }, 0);
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    let begin =
        read_events_for(gateway.address, &all_events("", None), usize::MAX, Duration::from_secs(2)).await;
    let begin = begin.iter().find_map(|frame| frame.id.clone()).unwrap();
    let run = gateway.submit(&chain(3, &json!({ "steps": 3, "delay_ms": 100 }))).await;
    let other = gateway.submit(&chain(1, &json!({}))).await;
    wait_for_value(TIMEOUT, "the plan", async || {
        (gateway.get(&format!("/runs/{run}")).await.json()["tasks"].as_array()?.len() == 3).then_some(())
    })
    .await;
    let types = |level: &str| match level {
        "decisions" => vec!["", "&types=task_completed,run_ended", "&types=attempt_claimed"],
        _ => vec!["", "&types=task_completed,run_ended", "&types=step", "&types=step,run_ended"],
    };
    let mut live = Vec::new();
    let mut follow = |path: String, after: Option<&str>| {
        let request = Request::new("GET", format!("/api/v1{path}"));
        let request = after.into_iter().fold(request, |request, id| request.header("Last-Event-ID", id));
        let (address, again) = (gateway.address, request.clone());
        let reading = tokio::spawn(async move {
            read_events_for(address, &request, usize::MAX, Duration::from_secs(15)).await
        });
        live.push((path, again, reading));
    };
    for level in ["decisions", "steps", "live"] {
        for names in types(level) {
            for task in ["", "&task=t1"] {
                follow(format!("/runs/{run}/events?level={level}{names}{task}"), None);
            }
            for runs in [String::new(), format!("&runs={run}")] {
                if level != "live" {
                    follow(format!("/events?level={level}{names}{runs}"), Some(&begin));
                }
            }
        }
    }
    cluster.start_process(ProcessRole::Worker, "worker-late", &[]);
    gateway.wait_for_end(&run).await;
    gateway.wait_for_end(&other).await;
    let (mut table, mut is_empty) = (Vec::new(), Vec::new());
    for (path, request, reading) in live {
        let live = events_of(&reading.await.unwrap());
        let again = read_events_for(gateway.address, &request, usize::MAX, Duration::from_secs(3)).await;
        let again = events_of(&again);
        // Lanes are read one after the other, so that their events may arrive in another order.
        let sorted = |mut events: Vec<(String, String)>| {
            events.sort();
            events
        };
        let is_selected = |(name, _): &(String, String)| match path.split_once("types=") {
            Some((_, names)) => names.split('&').next().unwrap().split(',').any(|one| one == name),
            None => name != "step" || !path.contains("level=decisions"),
        };
        assert!(live.iter().all(is_selected), "{path}");
        table.push(format!("{path}: {} live, {} again", live.len(), again.len()));
        if again.is_empty() {
            is_empty.push(path.clone());
        }
        assert_eq!(sorted(live), sorted(again), "{path}");
    }
    println!("{}", table.join("\n"));
    assert!(
        is_empty.iter().all(|path| path.contains("run_ended&task") || path.contains("attempt_claimed")),
        "{is_empty:?}"
    );
    for path in [
        format!("/runs/{run}/events?types=nope"),
        format!("/runs/{run}/events?types=run_summary"),
        format!("/runs/{run}/events?types=step"),
        format!("/runs/{run}/events?task=zz"),
        format!("/runs/{run}/events?task=a%20b"),
        format!("/runs/{run}/events?level=all"),
        format!("/runs/{run}/timeline?task=zz"),
        format!("/runs/{run}/journal?task=zz"),
        "/events?types=run_ended,nope".into(),
        "/events?types=step".into(),
    ] {
        let answer = gateway.get(&path).await;
        assert!([400, 404].contains(&answer.status), "{path}: {} {}", answer.status, answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_view_of_a_run_is_read_by_plain_http() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let bus = cluster.connect_bus().await;
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    let run = gateway.submit(&chain(3, &json!({ "steps": 2, "delay_ms": 20 }))).await;
    gateway.wait_for_end(&run).await;
    let mut pages = Vec::new();
    for archived in [false, true] {
        if archived {
            wait_for_archive(&bus, &run_id(&run), TIMEOUT).await;
        }
        let timeline = gateway.get(&format!("/runs/{run}/timeline")).await.json();
        let attempts = timeline["attempts"].as_array().unwrap();
        assert_eq!(attempts.len(), 3);
        let kinds: Vec<&str> = attempts[0]["segments"]
            .as_array()
            .unwrap()
            .iter()
            .map(|segment| segment["kind"].as_str().unwrap())
            .collect();
        assert!(kinds.contains(&"running") && kinds.contains(&"step"), "{timeline:#}");
        assert!(attempts[0]["segments"].as_array().unwrap().iter().all(|segment| !segment["end"].is_null()));
        // Two decisions at a time.
        let (mut after, mut decisions) = (0, Vec::new());
        loop {
            let part = gateway.get(&format!("/runs/{run}/log?limit=2&after={after}")).await.json();
            decisions.extend(part["decisions"].as_array().unwrap().clone());
            match part["next"].as_u64() {
                Some(next) => after = next,
                None => break,
            }
        }
        assert_eq!(decisions[0]["messages"][0]["kind"], "submission", "{:#}", decisions[0]);
        let sequences: Vec<u64> =
            decisions.iter().map(|one| one["decision"]["sequence"].as_u64().unwrap()).collect();
        assert!(sequences.is_sorted_by(|a, b| a < b) && sequences.len() > 3);
        let half = sequences[sequences.len() / 2];
        let early = gateway.get(&format!("/runs/{run}/tasks?at={half}")).await.json();
        assert_eq!(early["sequence"], half);
        assert!(early["task_counts"]["completed"].as_u64().unwrap() < 3, "{early:#}");
        let done = gateway.get(&format!("/runs/{run}/tasks?state=completed")).await.json();
        assert_eq!(done["tasks"].as_array().unwrap().len(), 3);
        let journal = gateway.get(&format!("/runs/{run}/journal?task=t1&limit=2")).await.json();
        let next = journal["next"].as_u64().unwrap();
        let rest = gateway.get(&format!("/runs/{run}/journal?task=t1&after={next}")).await.json();
        assert_eq!(journal["entries"].as_array().unwrap().len(), 2);
        assert!(rest["entries"].as_array().unwrap().iter().all(|entry| entry["task"] == "t1"));
        let spend = gateway.get(&format!("/runs/{run}/spend")).await.json();
        assert_eq!(spend["tasks"].as_array().unwrap().len(), 3);
        pages.push((decisions, journal, rest, early, done));
        for path in ["files?at=1", &format!("files?at={half}"), "tasks/t1", "tasks/none", "sources/S1"] {
            gateway.get(&format!("/runs/{run}/{path}")).await;
        }
    }
    assert_eq!(pages[0], pages[1], "the archive has the same");
    let days = gateway.get("/spend?group=day&since=1h").await.json();
    assert_eq!((&days["runs"], days["groups"].as_array().unwrap().len()), (&json!(1), 1));
    for group in ["capability", "model", "state", "label:team", "nonsense"] {
        gateway.get(&format!("/spend?group={group}")).await;
    }
    let checks = gateway.get("/checks").await.json();
    assert_eq!(checks["usable"], true, "{checks:#}");
    let status = gateway.get("/status").await.json();
    let roles: Vec<&Value> =
        status["processes"].as_array().unwrap().iter().map(|process| &process["role"]).collect();
    assert!(roles.contains(&&json!("gateway")), "{roles:?}");
    let found = gateway.get("/runs?text=SAY%20it").await.json();
    assert_eq!(found["runs"].as_array().unwrap().len(), 1);
    assert_eq!(gateway.get("/runs?text=nothing").await.json()["runs"], json!([]));
    let plan =
        json!({ "plan": "tasks:\n- {id: a, objective: o, capability: echo}\n- {id: a, objective: o}\n" });
    let checked = gateway.post("/plans/check", &plan).await.json();
    assert_eq!(
        (&checked["valid"], &checked["mistakes"][0]["line"]),
        (&json!(false), &json!(3)),
        "{checked:#}"
    );
}

/// A run is reopened twice; the streams of the run and of all runs resume after their last ids.
#[tokio::test(flavor = "multi_thread")]
async fn streams_continue_across_reopenings_and_have_every_event_once() {
    let _shared = share_machine();
    let setup = ClusterSetup { linger: Duration::from_millis(100), ..ClusterSetup::default() };
    let cluster = TestCluster::start_with_workers(setup, 1);
    let bus = cluster.connect_bus().await;
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    let (address, mut random) = (gateway.address, SeededRandom::new(7));
    let mut client = CutClient { after: Some("start".into()), frames: Vec::new(), cuts: 0 };
    let run = gateway.submit(&chain(2, &json!({"steps": 1}))).await;
    let mut ids: Vec<String> = Vec::new();
    for round in 0..3_usize {
        if round > 0 {
            let body = json!({ "feedback": "once more" });
            let retried = gateway.post(&format!("/runs/{run}/tasks/t0/retry"), &body).await;
            assert_eq!(retried.status, 200, "{}", retried.text());
        }
        let request = events_request(&run, "steps", ids.last().map(String::as_str));
        let frames = read_events(address, &request, None).await;
        assert_eq!(frames.last().map(|frame| &*frame.event), Some("end"), "round {round}");
        assert_eq!(frames.iter().filter(|frame| frame.event == "run_ended").count(), 1, "round {round}");
        ids.extend(frames.into_iter().filter_map(|frame| frame.id));
        let summary = gateway.wait_for_end(&run).await;
        assert_eq!(summary["state"], "completed", "{summary}");
        let started = Instant::now();
        let ends = |frames: &[Frame]| frames.iter().filter(|frame| frame.event == "run_ended").count();
        while ends(&client.frames) <= round {
            assert!(started.elapsed() < TIMEOUT, "round {round}: the stream of all runs has no end");
            client.read_some(&[address], &mut random).await;
        }
        wait_for_value(TIMEOUT, "the archive", async || {
            let lane = bus.lane_of_run(&run_id(&run));
            let left = millrace_runtime::log::read_run(&bus, lane, &run_id(&run), 1).await.ok()?;
            left.is_empty().then_some(())
        })
        .await;
    }
    assert_eq!(ids, ids_of_log(&bus, &run_id(&run)).await);
    assert_eq!(events_by_run(&client.frames)[&run], replay(address, &run).await);
    let log = gateway.get(&format!("/runs/{run}/log?limit=1000")).await.json();
    let text = log["decisions"].to_string();
    assert_eq!(text.matches("run_reopened").count(), 2, "{log}");
    for path in ["tasks/t0", "timeline", "journal?task=t0", "spend", "report"] {
        let answer = gateway.get(&format!("/runs/{run}/{path}")).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    let refused = gateway.post(&format!("/runs/{run}/pause"), &json!({})).await;
    assert_eq!(refused.status, 409, "{}", refused.text());
    let unknown = gateway.post(&format!("/runs/{run}/tasks/none/retry"), &json!({})).await;
    assert_eq!(unknown.status, 404, "{}", unknown.text());
    drop(gateway);
    cluster.stop_all();
}
