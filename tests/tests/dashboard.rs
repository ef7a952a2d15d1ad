//! The dashboard in a real browser, with real clusters and gateways. Skipped with a message where there is no browser.

mod browser;

mod hostile;
mod load;
mod local;
mod screens;
mod verdicts;

use std::time::Duration;

use millrace_tests::cluster::{ClusterSetup, TestCluster};
use millrace_tests::machine::share_machine;
use serde_json::{Value, json};

use crate::gateway::http::{Request, read_events};
use crate::gateway::process::GatewayProcess;
use browser::{Browser, has_browser, key};
use hostile::{hostile_script, run_hostile};
use local::{LocalCluster, example_script, root};
use screens::{Screen, ShownRuns, find_barriers, find_narrow_faults, keep_pictures, load_axe};

async fn assert_no_errors(browser: &Browser, place: &str) {
    let errors = browser.console_errors().await;
    assert!(errors.is_empty(), "{place}: {errors:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_screen_opens_by_its_address_and_shows_hostile_text_as_text() {
    if !has_browser() {
        return;
    }
    let _shared = share_machine();
    let cluster = LocalCluster::start(&hostile_script());
    let task = |id: &str, after: &[&str], parameters: Value| json!({ "id": id, "objective": id, "capability": "echo", "depends_on": after, "parameters": parameters });
    let tasks = [
        task("a", &[], json!({})),
        task("b", &["a"], json!({ "bytes": 300_000 })),
        task("c", &["a"], json!({ "fail_rate": 1.0 })),
    ];
    let body =
        json!({ "objective": "One of them fails", "labels": { "team": "ops" }, "plan": { "tasks": tasks } });
    let failed = cluster.submit(&body).await;
    let whole = run_hostile(&cluster).await;
    cluster.wait_for_end(&failed).await;
    let asking = cluster.publish().await;
    cluster.wait_for_question(&asking, "input").await;
    let log = cluster.get(&format!("/runs/{whole}/log?limit=1")).await;
    let first = log["decisions"][0]["decision"]["sequence"].as_u64().unwrap();
    let screens = screens::screens(&ShownRuns { whole, first, failed, asking });
    let browser = Browser::start(cluster.address).await;
    let axe = load_axe();
    let mut faults = Vec::new();
    for screen in &screens {
        screen.open(&browser).await;
        faults.extend(screen.find_faults(&browser).await);
        if let Some(axe) = &axe {
            let barriers = find_barriers(&browser, axe).await;
            faults.extend(barriers.into_iter().map(|barrier| format!("{}: {barrier}", screen.name)));
        }
    }
    faults.extend(find_narrow_faults(&browser, &screens).await);
    keep_pictures(&browser, &screens).await;
    assert!(faults.is_empty(), "{faults:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn run_is_started_with_dropped_documents_and_followed_to_its_report() {
    if !has_browser() {
        return;
    }
    let _shared = share_machine();
    let cluster = LocalCluster::start(&example_script());
    let browser = Browser::start(cluster.address).await;
    browser.open("/new/").await;
    browser.type_into("textarea", "What do they say of patents?").await;
    let licence = std::fs::read_to_string(root().join("examples/licences/Apache-2.0.txt")).unwrap();
    let drop = "const transfer = new DataTransfer(); transfer.items.add(new File([arguments[0]], 'Apache-2.0.txt', { type: 'text/plain' })); \
                document.querySelector('form').dispatchEvent(new DragEvent('drop', { bubbles: true, cancelable: true, dataTransfer: transfer }));";
    browser.client.execute(drop, vec![json!(licence)]).await.unwrap();
    browser.wait_for_text(".documents", "Apache-2.0.txt").await;
    browser.click("button", "Start the run").await;
    browser.wait_for_text(".run-head .state", "completed").await;
    browser.click(".tabs a", "Report").await;
    browser.wait_for_text(".report", "The Apache License grants patents").await;
    browser.click("a.citation", "1").await;
    browser.wait_for_text(".lines .quoted", "Grant of Patent License").await;
    assert!(browser.path().await.contains("source=1"), "{}", browser.path().await);
    browser.click(".tabs a", "Timeline").await;
    browser.wait_for_text(".time-line", "question").await;
    browser.click(".tabs a", "Journal").await;
    browser.click(".journal-line", "question").await;
    browser.wait_for_text(".entry", "search_documents").await;
    // As of the first decision the plan has no task.
    browser.evaluate("document.querySelector('input[type=range]').focus()").await;
    browser.press(key::HOME).await;
    browser.wait_for_text(".slider", "As of decision 1").await;
    browser.wait_for_text(".run-head .state", "running").await;
    assert_no_errors(&browser, "the run").await;

    // The page has only the newest events of a large run. It reads the earlier ones on demand.
    let large = load::submit_large_run(&cluster, 1_000, 0).await;
    browser.open(&format!("/runs/{large}/log")).await;
    browser.wait_for_text(".run-head .state", "completed").await;
    browser.wait_for_text(".log", "Decisions").await;
    while browser
        .evaluate(
            "return document.querySelector('.log header + div')?.innerText.startsWith('Decisions 1 to')",
        )
        .await
        != json!(true)
    {
        browser.click(".log a", "Earlier").await;
        browser.wait_until_read().await;
    }
    browser.wait_for_text(".log-line", "").await;
    browser.evaluate("document.querySelector('.log .virtual').scrollTop = 0").await;
    browser.click(".log-line", "run started").await;
    browser.wait_for_text(".decision", "Many parts").await;
    assert_no_errors(&browser, "the log of a large run").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn verdicts_on_statements_are_shown_in_the_report_and_beside_it() {
    if !has_browser() {
        return;
    }
    let _shared = share_machine();
    let cluster = LocalCluster::start_with_models(&verdicts::models());
    let run = verdicts::run_on_terminal(&cluster).await;
    let browser = Browser::start(cluster.address).await;
    browser.open(&format!("/runs/{run}/report")).await;
    browser
        .wait_for_text(".verdicts .counts", "3 of 8 statements verified (1 by quotation, 2 by model")
        .await;
    browser
        .wait_for_text(".verdicts .counts", "1 in part, 1 contradicted, 2 not supported, 1 not verified")
        .await;
    let signs = "return [...document.querySelectorAll('.sign')].map((one) => one.dataset.verdict)";
    assert_eq!(browser.evaluate(signs).await, json!(verdicts::VERDICTS));
    let statements = verdicts::shown_statements(&browser).await;
    assert_eq!(statements[0], "The kiln at Osterby fires at 1,240 °C .");
    assert_eq!(statements[2], "Visitors may enter the hall in the afternoon .");
    assert_eq!(statements[5], "Die Öfen 🔥 werden von der Gemeinde bezahlt .");
    assert_eq!(statements[7], "Sunday11:30 ");
    let raw = browser.evaluate("return document.querySelector('.markdown').textContent.includes('[^')").await;
    assert_eq!(raw, json!(false), "each mark is the sign of a statement or a footnote");
    browser.wait_for_text(".notes dd", "No source has “11:30”.").await;
    let looks = verdicts::looks(&browser).await;
    for part in 0..3 {
        let different: std::collections::BTreeSet<&String> = looks.iter().map(|look| &look[part]).collect();
        assert_eq!(different.len(), looks.len(), "{looks:#?}");
    }

    // The cursor chooses a statement; its verdict has the line of the source, also of one that the report does not cite.
    verdicts::point_at(&browser, ".statement.is-contradicted").await;
    browser.wait_for_text(".verdicts .facts", "The burner must never be left alone.").await;
    browser
        .wait_for_text(".verdicts .lines .quoted", "3The burner must never be left alone while it is lit.")
        .await;
    browser.wait_for_text(".verdicts .facts", "model script:").await;
    // So does the focus. Enter pins a statement, which the cursor does not change then.
    browser.evaluate("document.querySelector('.sign').focus()").await;
    browser.wait_for_text(".verdicts h3", "Statement 1").await;
    browser.press("u").await;
    browser.wait_for_text(".verdicts h3", "Statement 3supported in part").await;
    browser.press(key::DOWN).await;
    browser.press(key::DOWN).await;
    browser.wait_for_text(".verdicts h3", "Statement 5not supported").await;
    browser.wait_for_text(".verdicts .facts", "figure").await;
    browser.press(key::ENTER).await;
    browser.wait_for_text(".verdicts button", "Unpin").await;
    assert!(browser.path().await.ends_with("statement=5"), "{}", browser.path().await);
    verdicts::point_at(&browser, ".statement.is-contradicted").await;
    browser.click(".verdicts .statement-line", "Gemeinde").await;
    browser.wait_for_text(".verdicts h3", "Statement 6not verified").await;
    browser.press(key::ESCAPE).await;
    verdicts::point_at(&browser, "tr.statement.is-unsupported td").await;
    browser.wait_for_text(".verdicts h3", "Statement 8").await;
    browser.click(".verdicts button", "To check 5").await;
    browser.wait_for_text(".verdicts summary", "Statements to check").await;
    let listed = "return document.querySelectorAll('.verdicts .statement-line').length";
    assert_eq!(browser.evaluate(listed).await, json!(5));
    // A citation opens its source in the same column.
    browser.click("a.citation", "S1").await;
    browser.wait_for_text("aside.source h2", "[S1]").await;

    let result = |statement: &str| format!("/runs/{run}/report?statement={statement}");
    let screens = [
        Screen::new("verdicts", result("4"), ".verdicts .quoted", "The burner"),
        Screen::new("verdicts-of-row", result("8"), ".verdicts .facts", "11:30"),
    ];
    let mut faults = Vec::new();
    let axe = load_axe();
    for screen in &screens {
        screen.open(&browser).await;
        faults.extend(screen.find_faults(&browser).await);
        if let Some(axe) = &axe {
            faults.extend(find_barriers(&browser, axe).await);
        }
    }
    faults.extend(find_narrow_faults(&browser, &screens).await);
    keep_pictures(&browser, &screens).await;
    assert!(faults.is_empty(), "{faults:#?}");

    // A result without statements has no column.
    let task = json!({ "id": "echo", "objective": "echo", "capability": "echo", "final": true });
    let plain = cluster.submit(&json!({ "objective": "No statements", "plan": { "tasks": [task] } })).await;
    cluster.wait_for_end(&plain).await;
    browser.open(&format!("/runs/{plain}/report")).await;
    browser.wait_for_text(".report", "The result of echo").await;
    browser.wait_until_read().await;
    assert_eq!(browser.evaluate("return document.querySelector('aside.source')").await, Value::Null);
    verdicts::run_without_refuted_statements(&cluster);
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_is_edited_by_keyboard_and_second_browser_sees_who_answered() {
    if !has_browser() {
        return;
    }
    let _shared = share_machine();
    let cluster = LocalCluster::start(&example_script());
    let run = cluster.publish().await;
    let input = cluster.wait_for_question(&run, "input").await;
    let (one, two) = (Browser::start(cluster.address).await, Browser::start(cluster.address).await);
    for browser in [&one, &two] {
        browser.open("/inbox").await;
        browser.wait_for_text(".question", "Where is the release to be published?").await;
    }
    assert!(one.client.title().await.unwrap().starts_with("(1) "), "the title has the number of questions");
    // The second browser has begun its answer when the first one sends its own.
    two.press("a").await;
    two.wait_for_focus(".answer textarea").await;
    two.press("production").await;
    one.press("a").await;
    one.wait_for_focus(".answer textarea").await;
    one.press("staging").await;
    one.press(key::CONTROL_ENTER).await;
    two.wait_for_text(&format!("[data-question=\"{input}\"]"), "answered: staging").await;

    cluster.wait_for_question(&run, "approval").await;
    one.wait_for_text(".question", "May it call write_file?").await;
    one.press("j").await;
    one.press("e").await;
    one.wait_for_focus(".answer input").await;
    // Tab moves from the path to the content, which is replaced.
    one.press(key::TAB).await;
    one.wait_for_focus(".answer label:nth-of-type(2) :is(input, textarea)").await;
    one.press(key::CONTROL_A).await;
    one.press("Release 1.4.1, by hand.").await;
    one.press(key::CONTROL_ENTER).await;
    cluster.wait_for_end(&run).await;
    let file = Request::new("GET", format!("/api/v1/runs/{run}/files/releases/notes.md"))
        .send(cluster.address)
        .await;
    assert_eq!(file.text(), "Release 1.4.1, by hand.");
    one.open(&format!("/runs/{run}/files")).await;
    one.wait_for_text(".markdown", "by hand").await;
    one.open("/inbox?show=history").await;
    one.wait_for_text(".question", "approved with changes").await;
    for browser in [one, two] {
        assert_no_errors(&browser, "the inbox").await;
    }
}

/// One slot: a run in each waiting state, and one in the queue of the worker.
#[tokio::test(flavor = "multi_thread")]
async fn runs_are_filtered_by_what_they_wait_for() {
    if !has_browser() {
        return;
    }
    let _shared = share_machine();
    let setup = ClusterSetup { slots: 1, ..ClusterSetup::default() };
    let cluster = TestCluster::start_with_workers(setup, 1);
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    let browser = Browser::start(gateway.address).await;
    let child = json!([{ "parameters": { "delay_ms": 600_000 } }]);
    for (objective, parameters, state) in [
        ("ask", json!({ "ask": ["Which region?"] }), "waiting (question)"),
        ("sleep", json!({ "park_ms": 600_000 }), "waiting (time)"),
        ("listen", json!({ "await_event": "go" }), "waiting (event)"),
        ("delegate", json!({ "delegate": child }), "waiting (sub-agent)"),
        ("queue", json!({}), "waiting (worker)"),
    ] {
        let task =
            json!({ "id": "t", "objective": objective, "capability": "echo", "parameters": parameters });
        let run = gateway.submit(&json!({ "objective": objective, "plan": { "tasks": [task] } })).await;
        browser.open(&format!("/runs/{run}/tasks")).await;
        browser.wait_for_text(".run-head .state", state).await;
    }
    browser.open("/runs").await;
    browser.wait_for_text(".runs", "queued behind 0, 1 of 1 slots busy").await;
    let choose = "const list = document.querySelector('select.waits'); list.value = 'question'; \
                  list.dispatchEvent(new Event('change', { bubbles: true }));";
    browser.evaluate(choose).await;
    browser.wait_for_text(".runs", "ask").await;
    let has_one_run = "return document.querySelectorAll('.runs tbody tr').length === 1";
    while browser.evaluate(has_one_run).await != json!(true) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(browser.path().await.contains("waiting=question"), "{}", browser.path().await);
    let screens = [
        Screen::new("waiting-runs", "/runs?waiting=any".into(), ".runs", "waiting (sub-agent)"),
        Screen::new("waiting-for-time", "/runs?waiting=time".into(), ".runs", "waiting (time)"),
    ];
    let mut faults = Vec::new();
    for screen in &screens {
        screen.open(&browser).await;
        faults.extend(screen.find_faults(&browser).await);
    }
    faults.extend(find_narrow_faults(&browser, &screens).await);
    keep_pictures(&browser, &screens).await;
    assert!(faults.is_empty(), "{faults:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn open_page_catches_up_after_gateway_and_server_were_killed() {
    if !has_browser() {
        return;
    }
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let mut gateway = GatewayProcess::start(&cluster, "gateway").await;
    let task = |number: usize| {
        let before: Vec<String> = (number > 0).then(|| format!("t{}", number - 1)).into_iter().collect();
        json!({ "id": format!("t{number}"), "objective": "wait", "capability": "echo", "depends_on": before, "parameters": { "delay_ms": 800 } })
    };
    let tasks: Vec<Value> = (0..8).map(task).collect();
    let run = gateway.submit(&json!({ "objective": "a chain", "plan": { "tasks": tasks } })).await;
    let browser = Browser::start(gateway.address).await;
    browser.open(&format!("/runs/{run}/log")).await;
    browser.wait_for_text(".log-line", "attempt claimed").await;
    browser.record_banners().await;
    gateway.kill();
    browser.wait_for_banner("Connection lost").await;
    gateway = GatewayProcess::start_on(&cluster, "gateway-2", gateway.address).await;
    browser.wait_for_banner("Connected again").await;
    cluster.server.kill();
    browser.wait_for_banner("Connection lost").await;
    cluster.server.restart();
    browser.wait_for_banner("Connected again").await;
    browser.wait_for_text(".run-head .state", "completed").await;
    let events = Request::new("GET", format!("/api/v1/runs/{run}/events"));
    let frames = read_events(gateway.address, &events, None).await;
    let count = frames.iter().filter(|frame| frame.id.is_some()).count();
    browser.wait_for_text("[data-events]", &format!("{count} of {count} events")).await;

    // A command that comes too late is refused where it was given.
    let tasks = json!([{ "id": "slow", "objective": "wait", "capability": "echo", "parameters": { "delay_ms": 60_000 } }]);
    let late = gateway.submit(&json!({ "objective": "slow", "plan": { "tasks": tasks } })).await;
    browser.console_errors().await;
    browser.open(&format!("/runs/{late}")).await;
    browser.click(".actions button", "Pause").await;
    browser.wait_for_text("dialog", "No new task starts").await;
    assert_eq!(gateway.post(&format!("/runs/{late}/cancel"), &json!({})).await.status, 200);
    browser.click("dialog button", "Pause").await;
    browser.wait_for_text("dialog .notice", "Refused").await;
    let errors: Vec<String> = browser.console_errors().await;
    assert!(errors.iter().all(|error| error.contains("409")), "{errors:#?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of MILLRACE_DASHBOARD_MINUTES (2 by default)"]
async fn page_of_5000_tasks_stays_smooth_under_load() {
    if !has_browser() {
        return;
    }
    let _shared = share_machine();
    let cluster = LocalCluster::start(&example_script());
    let browser = Browser::start(cluster.address).await;
    browser.open("/runs").await;
    browser.wait_for_text("h2", "No runs yet").await;
    let first = "return [performance.getEntriesByName('millrace.rendered')[0].startTime, performance.getEntriesByName('first-contentful-paint')[0]?.startTime]";
    println!("dashboard: rendered, and painted after {} ms", browser.evaluate(first).await);
    let run = load::submit_large_run(&cluster, 5_000, load::DELAY_MS).await;
    let minutes = std::env::var("MILLRACE_DASHBOARD_MINUTES").ok().and_then(|text| text.parse().ok());
    let time = std::time::Duration::from_secs_f64(minutes.unwrap_or(2.0) * 60.0 / 4.0);
    for load in load::measure_views(&browser, &run, time).await {
        assert!(load.p95 < 50.0, "{}: 5% of the frames take {} ms or more", load.view, load.p95);
    }
}
