//! The dashboard in a real browser, with real clusters and gateways. Skipped with a message where there is no browser.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

#[path = "dashboard/browser.rs"]
mod browser;
#[allow(dead_code, reason = "shared with the tests of the gateway")]
#[path = "gateway/document.rs"]
mod document;
#[allow(dead_code, reason = "shared with the tests of the gateway")]
#[path = "gateway/http.rs"]
mod http;
#[allow(dead_code, reason = "shared with the tests of the gateway")]
#[path = "gateway/process.rs"]
mod process;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use millrace_tests::cluster::{ClusterSetup, TestCluster, lock_machine, remove_millrace_variables};
use millrace_tests::program::millrace_program;
use millrace_tests::wait_for_value;
use serde_json::{Value, json};

use browser::{Browser, TIMEOUT, has_browser};
use fantoccini::Locator;
use http::{Request, read_events};
use process::GatewayProcess;

/// Text that a page must show and never interpret.
const HOSTILE: &str =
    "<img src=x onerror=window.hacked=1><script>window.hacked=1</script> \u{202e}txt.exe\u{1b}[31mred";

/// A cluster on this machine, as a user starts it.
struct LocalCluster {
    folder: tempfile::TempDir,
    address: SocketAddr,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

impl LocalCluster {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script.yaml");
        let rules = ["script.yaml", "publisher.yaml"].map(|name| {
            let text = std::fs::read_to_string(root().join("examples/models").join(name)).unwrap();
            text.split_once("rules:\n").unwrap().1.to_owned()
        });
        // The rule of the publisher has no condition, so that it comes last.
        std::fs::write(&script, format!("tries: 3\nrules:\n{}{}", rules[0], rules[1])).unwrap();
        let mut cluster = Self { folder, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let capability = root().join("examples/capabilities/publisher.yaml");
        cluster.run(&[
            "up",
            "--detach",
            "--workers",
            "1",
            "--api",
            "127.0.0.1:0",
            "--model",
            &format!("script:{}", script.display()),
            "--capability",
            &capability.display().to_string(),
        ]);
        let url = std::fs::read_to_string(cluster.data().join("api.url")).unwrap();
        cluster.address = url.trim().strip_prefix("http://").unwrap().parse().unwrap();
        cluster
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn run(&self, arguments: &[&str]) {
        let mut command = remove_millrace_variables(Command::new(millrace_program()));
        let output =
            command.args(arguments).arg("--data").arg(self.data()).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        let answer = Request::new("POST", format!("/api/v1{path}")).json(body).send(self.address).await;
        assert!(answer.status < 300, "{}", answer.text());
        answer.json()
    }

    async fn submit(&self, body: &Value) -> String {
        self.post("/runs", body).await["run"].as_str().unwrap().to_owned()
    }

    async fn wait_for_end(&self, run: &str) {
        let path = format!("/api/v1/runs/{run}/wait?timeout=60");
        assert_eq!(Request::new("GET", path).send(self.address).await.status, 200);
    }

    /// Submits the plan of the publisher; its first question is an input, its second an approval.
    async fn publish(&self) -> String {
        let task = json!({ "id": "publish", "objective": "Publish the notes", "capability": "publisher", "final": true });
        self.submit(&json!({ "objective": "Publish the release notes", "plan": { "tasks": [task] } })).await
    }

    async fn wait_for_question(&self, run: &str, kind: &str) -> String {
        wait_for_value(TIMEOUT, "the question", async || {
            let answer =
                Request::new("GET", format!("/api/v1/runs/{run}/questions")).send(self.address).await;
            let list = answer.json()["questions"].as_array()?.clone();
            list.iter().find(|one| one["kind"] == kind).map(|one| one["id"].as_str().unwrap().to_owned())
        })
        .await
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        self.run(&["down"]);
    }
}

async fn assert_no_errors(browser: &Browser, place: &str) {
    let errors = browser.console_errors().await;
    assert!(errors.is_empty(), "{place}: {errors:#?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a browser and about a minute; run with --include-ignored"]
async fn every_screen_opens_by_its_address_and_shows_hostile_text_as_text() {
    if !has_browser() {
        return;
    }
    let _alone = lock_machine();
    let cluster = LocalCluster::start();
    let long = "x".repeat(5_000);
    let task = |id: &str, after: &[&str], parameters: Value| json!({ "id": id, "objective": HOSTILE, "capability": "echo", "depends_on": after, "parameters": parameters });
    let run = cluster
        .submit(&json!({
            "objective": format!("{HOSTILE} {long}"), "labels": { "team": "search" },
            "plan": { "tasks": [task("a", &[], json!({})), task("b", &["a"], json!({ "bytes": 300_000 })), task("c", &["a"], json!({ "fail_rate": 1.0 }))] },
        }))
        .await;
    cluster.wait_for_end(&run).await;
    let asking = cluster.publish().await;
    cluster.wait_for_question(&asking, "input").await;
    let browser = Browser::start(cluster.address).await;
    let screens = [
        ("/".to_owned(), "a.objective", "<img src=x"),
        ("/runs?state=failed".into(), "main", ""),
        ("/runs?label=team%3Dsearch".into(), ".chip", "team: search"),
        ("/new".into(), "h1", "Start a run"),
        (format!("/new?after={run}"), "h1", "Follow up"),
        ("/inbox".into(), ".question", "Where is the release to be published?"),
        ("/inbox?show=history".into(), "h2", "Nothing has been answered"),
        ("/spend".into(), "h1", "tokens"),
        ("/cluster".into(), "h2", "Queues"),
        (format!("/compare?left={run}/a/1&right={run}/b/1"), "h2", "Prompt as sent"),
        (format!("/runs/{run}"), ".node", "c"),
        (format!("/runs/{run}?task=c"), "aside", "Attempt 1"),
        (format!("/runs/{run}/tasks"), ".task-line", "b"),
        (format!("/runs/{run}/timeline"), ".time-line", "a"),
        (format!("/runs/{run}/journal?task=b"), ".entry", "Finished"),
        (format!("/runs/{run}/report"), "main", ""),
        (format!("/runs/{run}/spend"), "h2", "Budget"),
        (format!("/runs/{run}/log"), ".log-line", "run started"),
        (format!("/runs/{run}/files"), "h2", "No files"),
        (format!("/runs/{asking}/questions"), ".question", "An agent asks"),
        ("/runs/no-such-run".into(), "h3", "There is no such run"),
        ("/login".into(), "h1", "Sign in"),
    ];
    for (path, selector, text) in &screens {
        browser.open(path).await;
        browser.wait_for_text(selector, text).await;
        let width = browser.evaluate("return document.documentElement.scrollWidth - innerWidth").await;
        assert!(width.as_i64().unwrap() <= 0, "{path} is wider than the window by {width}");
        assert_eq!(browser.evaluate("return window.hacked ?? null").await, Value::Null, "{path}");
        let errors = browser.console_errors().await;
        // The browser reports the status of the one request that must fail.
        let errors: Vec<_> = errors.iter().filter(|error| !error.contains("no-such-run")).collect();
        assert!(errors.is_empty(), "{path}: {errors:#?}");
    }
    browser.open(&format!("/runs/{run}?task=a")).await;
    browser.wait_for_text("aside", "⟨U+202E⟩").await;
    browser.wait_for_text("aside", "␛[31mred").await;
    browser.open("/runs").await;
    browser.wait_for_text("a.objective", "Publish").await;
    let time =
        browser.evaluate("return performance.getEntriesByName('millrace.rendered')[0].startTime").await;
    println!("dashboard: first screen after {:.0} ms", time.as_f64().unwrap());
    if std::env::var_os("MILLRACE_SCREENSHOTS").is_some() {
        keep_pictures(
            &browser,
            &screens.map(|(path, selector, text)| (path, selector.to_owned(), text.to_owned())),
        )
        .await;
    }
    browser.close().await;
}

/// Keeps pictures of all screens: light and dark, wide and narrow.
async fn keep_pictures(browser: &Browser, screens: &[(String, String, String)]) {
    for (theme, width) in [("light", 1400), ("dark", 1400), ("light", 420), ("dark", 420)] {
        browser.client.set_window_size(width, 900).await.unwrap();
        for (number, (path, selector, text)) in screens.iter().enumerate() {
            browser.evaluate(&format!("localStorage.setItem('millrace.theme', '{theme}')")).await;
            browser.open(path).await;
            browser.wait_for_text(selector, text).await;
            let name: String = path
                .chars()
                .map(|one| if one.is_ascii_alphanumeric() { one } else { '-' })
                .take(60)
                .collect();
            browser.keep_picture(&format!("{number:02}{name}-{theme}-{width}")).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a browser and about a minute; run with --include-ignored"]
async fn run_is_started_with_dropped_documents_and_followed_to_its_report() {
    if !has_browser() {
        return;
    }
    let _alone = lock_machine();
    let cluster = LocalCluster::start();
    let browser = Browser::start(cluster.address).await;
    browser.open("/new").await;
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
    browser.press("\u{e011}").await;
    browser.wait_for_text(".slider", "As of decision 1").await;
    browser.wait_for_text(".run-head .state", "running").await;
    assert_no_errors(&browser, "the run").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a browser and about a minute; run with --include-ignored"]
async fn approval_is_edited_by_keyboard_and_second_browser_sees_who_answered() {
    if !has_browser() {
        return;
    }
    let _alone = lock_machine();
    let cluster = LocalCluster::start();
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
    two.client.wait().at_most(TIMEOUT).for_element(Locator::Css(".answer textarea")).await.unwrap();
    two.press("production").await;
    one.press("a").await;
    one.client.wait().at_most(TIMEOUT).for_element(Locator::Css(".answer textarea")).await.unwrap();
    one.press("staging").await;
    one.press("\u{e009}\u{e007}").await;
    two.wait_for_text(&format!("[data-question=\"{input}\"]"), "answered: staging").await;

    cluster.wait_for_question(&run, "approval").await;
    one.wait_for_text(".question", "May it call write_file?").await;
    one.press("j").await;
    one.press("e").await;
    one.client.wait().at_most(TIMEOUT).for_element(Locator::Css(".answer input")).await.unwrap();
    // To the end of the field with the path and to the next one, whose content is replaced.
    one.press("\u{e004}").await;
    one.press("\u{e009}a").await;
    one.press("Release 1.4.1, by hand.").await;
    one.press("\u{e009}\u{e007}").await;
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
        browser.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a browser and about a minute; run with --include-ignored"]
async fn open_page_catches_up_after_gateway_and_server_were_killed() {
    if !has_browser() {
        return;
    }
    let _alone = lock_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let mut gateway = GatewayProcess::start(&cluster, "gateway").await;
    let task = |number: usize| {
        let before: Vec<String> = (number > 0).then(|| format!("t{}", number - 1)).into_iter().collect();
        json!({ "id": format!("t{number}"), "objective": "wait", "capability": "echo", "depends_on": before, "parameters": { "delay_ms": 800 } })
    };
    let tasks: Vec<Value> = (0..14).map(task).collect();
    let run = gateway.submit(&json!({ "objective": "a chain", "plan": { "tasks": tasks } })).await;
    let browser = Browser::start(gateway.address).await;
    browser.open(&format!("/runs/{run}/log")).await;
    browser.wait_for_text(".log-line", "attempt claimed").await;
    gateway.kill();
    browser.wait_for_text(".banner", "Connection lost").await;
    gateway = GatewayProcess::start_on(&cluster, "gateway-2", gateway.address).await;
    browser.wait_for_text(".banner", "Connected again").await;
    cluster.server.kill();
    browser.wait_for_text(".banner", "Connection lost").await;
    cluster.server.restart();
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
    browser.close().await;
}
