//! Webhooks of real gateways, with a real receiver.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use millrace_protocol::ids::RunId;
use millrace_runtime::store::webhooks::read_push_configs;
use millrace_tests::cluster::{ClusterSetup, TestCluster};
use millrace_tests::machine::share_machine;
use millrace_tests::plans::wait_for_archive;
use millrace_tests::wait_for_value;
use serde_json::{Value, json};

use crate::gateway::http::{Answer, Request};
use crate::gateway::process::GatewayProcess;
use crate::gateway::receiver::{ReceivedMessage, WebhookReceiver, assert_signed};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Receivers of tests are on this machine.
const ALLOW: [&str; 2] = ["--allow-private-webhooks", "127.0.0.0/8"];

async fn start_gateway(cluster: &TestCluster, name: &str) -> GatewayProcess {
    GatewayProcess::start_with_options(cluster, name, "127.0.0.1:0".parse().unwrap(), &ALLOW).await
}

fn run_of(label: &str) -> Value {
    let task = json!({ "id": "t", "objective": "say it", "capability": "echo", "final": true });
    json!({ "objective": "say it", "plan": { "tasks": [task] }, "labels": { "team": label } })
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

/// Waits until the accepted messages meet a condition.
async fn wait_for_messages(
    receiver: &WebhookReceiver,
    what: &str,
    is_enough: impl Fn(&[ReceivedMessage]) -> bool,
) -> Vec<ReceivedMessage> {
    wait_for_value(TIMEOUT, what, async || Some(receiver.accepted()).filter(|all| is_enough(all))).await
}

async fn start_cluster() -> (TestCluster, WebhookReceiver) {
    let setup = ClusterSetup { lanes: 2, linger: Duration::from_millis(500), ..ClusterSetup::default() };
    let cluster = TestCluster::start_with_workers(setup, 1);
    cluster.connect_bus().await;
    (cluster, WebhookReceiver::start().await)
}

/// The events of runs among messages, each with the ids that it came with.
fn events_of(messages: &[ReceivedMessage]) -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut events: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    for message in messages {
        let body = message.json();
        events
            .entry((text(&body["data"]["run"]), text(&body["type"])))
            .or_default()
            .insert(message.id.clone());
    }
    events
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_arrives_while_gateways_are_killed_and_the_receiver_is_away() {
    let _shared = share_machine();
    let (cluster, receiver) = start_cluster().await;
    let mut first = start_gateway(&cluster, "first").await;
    let mut second = start_gateway(&cluster, "second").await;
    let before = first.submit(&run_of("search")).await;
    first.wait_for_end(&before).await;
    let webhook = json!({
        "url": format!("http://{}/hook", receiver.address),
        "events": ["run_started", "run_ended"], "labels": ["team=search"],
    });
    let created = first.post("/webhooks", &webhook).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let secret = text(&created.json()["secret"]);

    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(first.submit(&run_of("search")).await);
    }
    let other = first.submit(&run_of("other")).await;
    wait_for_messages(&receiver, "the messages of three runs", |all| events_of(all).len() == 6).await;

    // The log grows while the gateway that delivers dies: the other one continues.
    receiver.answer_with(503);
    for _ in 0..5 {
        runs.push(second.submit(&run_of("search")).await);
    }
    first.kill();
    for _ in 0..5 {
        runs.push(second.submit(&run_of("search")).await);
    }
    for run in &runs {
        second.wait_for_end(run).await;
    }
    second.kill();
    // The runs are archived by now, and removed from their lanes.
    tokio::time::timeout(TIMEOUT, cluster.connect_bus()).await.expect("the cluster responds");
    receiver.answer_with(204);
    let third = start_gateway(&cluster, "third").await;
    let count = 2 * runs.len();
    let messages = wait_for_messages(&receiver, "all messages", |all| events_of(all).len() == count).await;

    let events = events_of(&messages);
    let expected: BTreeSet<(String, String)> = runs
        .iter()
        .flat_map(|run| ["run_started", "run_ended"].map(|event| (run.clone(), event.to_owned())))
        .collect();
    assert_eq!(events.keys().cloned().collect::<BTreeSet<_>>(), expected);
    assert!(!events.keys().any(|(run, _)| *run == before || *run == other));
    for (event, ids) in &events {
        assert_eq!(ids.len(), 1, "{event:?} has several ids: {ids:?}");
    }
    let ids: BTreeSet<&String> = events.values().flatten().collect();
    assert_eq!(ids.len(), count, "two events share an id");
    assert_signed(&receiver.received(), &[&secret]);
    drop(third);
}

#[tokio::test(flavor = "multi_thread")]
async fn second_end_of_a_reopened_run_is_delivered() {
    let _shared = share_machine();
    let (cluster, receiver) = start_cluster().await;
    let gateway = start_gateway(&cluster, "gateway").await;
    let webhook =
        json!({ "url": format!("http://{}/hook", receiver.address), "events": ["run_started", "run_ended"] });
    assert_eq!(gateway.post("/webhooks", &webhook).await.status, 201);
    let run = gateway.submit(&run_of("search")).await;
    let ids_of_ends = |all: &[ReceivedMessage]| {
        events_of(all).remove(&(run.clone(), "run_ended".to_owned())).unwrap_or_default()
    };
    wait_for_messages(&receiver, "the first end", |all| ids_of_ends(all).len() == 1).await;
    let (bus, id) = (cluster.connect_bus().await, RunId::new(run.as_str()).unwrap());
    wait_for_archive(&bus, &id, TIMEOUT).await;
    let retried = gateway.post(&format!("/runs/{run}/tasks/t/retry"), &json!({})).await;
    assert_eq!(retried.status, 200, "{}", retried.text());
    let messages = wait_for_messages(&receiver, "the second end", |all| ids_of_ends(all).len() == 2).await;
    let started = events_of(&messages).remove(&(run.clone(), "run_started".to_owned())).unwrap_or_default();
    assert_eq!(started.len(), 1, "it starts once");
    drop(gateway);
}

/// Waits until a delivery has ended.
async fn wait_for_delivery(gateway: &GatewayProcess, webhook: &str, delivery: &str) -> Value {
    wait_for_value(TIMEOUT, "the end of a delivery", async || {
        let answer = gateway.get(&format!("/webhooks/{webhook}/deliveries/{delivery}")).await.json();
        answer["ended_at"].is_string().then_some(answer)
    })
    .await
}

async fn patch(gateway: &GatewayProcess, webhook: &str, body: &Value) -> Answer {
    gateway.send(Request::new("PATCH", format!("/api/v1/webhooks/{webhook}")).json(body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_are_tested_repeated_rotated_and_disabled() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    cluster.connect_bus().await;
    let receiver = WebhookReceiver::start().await;
    let gateway = start_gateway(&cluster, "open").await;
    let url = format!("http://{}/hook", receiver.address);
    let created = gateway.post("/webhooks", &json!({ "url": url })).await.json();
    assert_eq!(created["events"], json!(["run_ended", "question_asked", "budget_low"]));
    let (webhook, secret) = (text(&created["id"]), text(&created["secret"]));
    let listed = gateway.get("/webhooks").await;
    assert!(!listed.text().contains("whsec_") && listed.json()["webhooks"][0]["id"] == webhook, "{listed:?}");

    let test = async || {
        let delivery = gateway.post(&format!("/webhooks/{webhook}/test"), &json!({})).await;
        assert_eq!(delivery.status, 202, "{}", delivery.text());
        text(&delivery.json()["id"])
    };
    let tested = test().await;
    let delivered = wait_for_delivery(&gateway, &webhook, &tested).await;
    assert_eq!((&delivered["state"], &delivered["log"][0]["status"]), (&json!("delivered"), &json!(204)));
    assert_eq!(receiver.accepted()[0].json()["type"], "webhook_test");
    assert_signed(&receiver.accepted(), &[&secret]);

    // A message that is delivered again has its id, and after a rotation both signatures.
    let rotated = gateway.post(&format!("/webhooks/{webhook}/secret"), &json!({})).await.json();
    let new_secret = text(&rotated["secret"]);
    assert!(new_secret != secret && rotated["earlier_secret_until"].is_string(), "{rotated}");
    let again = format!("/webhooks/{webhook}/deliveries/{tested}/redeliver");
    assert_eq!(gateway.post(&again, &json!({})).await.status, 202);
    let two = wait_for_messages(&receiver, "the message again", |all| all.len() == 2).await;
    assert_eq!(two[0].id, two[1].id);
    assert_signed(&two[1..], &[&secret, &new_secret]);

    // A redirect is an answer like any other, and is not followed. The beginning of the reply is kept.
    receiver.answer_with(302);
    let redirected = test().await;
    let waiting = wait_for_value(TIMEOUT, "a failed attempt", async || {
        let answer = gateway.get(&format!("/webhooks/{webhook}/deliveries?state=waiting")).await.json();
        let found =
            answer["deliveries"].as_array().unwrap().iter().find(|one| one["id"] == redirected).cloned();
        found.filter(|one| one["attempts"] == 1 && one["log"][0]["status"] == 302)
    })
    .await;
    assert_eq!(waiting["log"][0]["reply"].as_str().unwrap().len(), 512);
    assert!(waiting["next_attempt_at"].is_string(), "{waiting}");

    receiver.answer_with(410);
    let gone = wait_for_delivery(&gateway, &webhook, &test().await).await;
    assert_eq!((&gone["state"], &gone["failed_because"]), (&json!("failed"), &json!("receiver_gone")));
    wait_for_value(TIMEOUT, "the webhook to be disabled", async || {
        let stored = gateway.get(&format!("/webhooks/{webhook}")).await.json();
        (stored["enabled"] == false && stored["disabled_because"] == "receiver_gone").then_some(())
    })
    .await;
    assert_eq!(gateway.post(&again, &json!({})).await.status, 409);
    receiver.answer_with(200);
    assert_eq!(patch(&gateway, &webhook, &json!({ "enabled": true })).await.json()["enabled"], true);
    assert_eq!(wait_for_delivery(&gateway, &webhook, &test().await).await["state"], "delivered");

    let page = gateway.get(&format!("/webhooks/{webhook}/deliveries?limit=1")).await.json();
    let next = gateway
        .get(&format!("/webhooks/{webhook}/deliveries?limit=100&cursor={}", text(&page["next"])))
        .await
        .json();
    assert_eq!((next["deliveries"].as_array().unwrap().len(), &next["next"]), (3, &json!("")));

    let delete = Request::new("DELETE", format!("/api/v1/webhooks/{webhook}"));
    assert_eq!(gateway.send(delete.clone()).await.status, 200);
    assert_eq!(gateway.send(delete).await.status, 404);
    let audit = gateway.get("/audit").await.json();
    let actions: Vec<&str> = audit["actions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|action| action["action"]["type"].as_str().unwrap())
        .collect();
    assert_eq!(actions, ["webhook_created", "webhook_secret_replaced", "webhook_changed", "webhook_deleted"]);

    receiver.answer_with(204);
    assert_command_manages_webhooks(&cluster, &url);
    assert_refuses_private_receivers(&cluster, &receiver).await;
}

/// Runs `millrace webhook` with `--json`, and returns its exit code and its objects.
fn webhook_command(cluster: &TestCluster, arguments: &[&str]) -> (Option<i32>, Vec<Value>) {
    let mut command = cluster.millrace_command();
    let output = command.arg("webhook").args(arguments).arg("--json").output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    (output.status.code(), lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// Checks that the command does with webhooks what the API does.
fn assert_command_manages_webhooks(cluster: &TestCluster, url: &str) {
    let run = |arguments: &[&str]| webhook_command(cluster, arguments);
    let (code, refused) = run(&["add", url]);
    assert_eq!((code, refused[0]["type"].as_str()), (Some(2), Some("error")), "{refused:?}");
    let add = ["add", url, "--event", "run_ended,task_failed", "--label", "team=search"];
    let (code, created) = run(&[&add[..], &ALLOW].concat());
    assert_eq!(code, Some(0), "{created:?}");
    let (id, secret) = (text(&created[0]["id"]), text(&created[0]["secret"]));
    assert_eq!(created[0]["events"], json!(["run_ended", "task_failed"]));
    let (_, listed) = run(&[]);
    assert!(listed.len() == 1 && listed[0].get("secret").is_none() && listed[0]["id"] == id, "{listed:?}");

    let (code, tested) = run(&["test", &id]);
    assert_eq!((code, &tested[0]["state"]), (Some(0), &json!("delivered")), "{tested:?}");
    let delivery = text(&tested[0]["id"]);
    let (code, again) = run(&["redeliver", &id, &delivery]);
    assert_eq!((code, &again[0]["attempts"]), (Some(0), &json!(2)), "{again:?}");
    let (_, deliveries) = run(&["deliveries", &id, "--state", "delivered"]);
    assert!(deliveries.len() == 1 && deliveries[0]["id"] == delivery, "{deliveries:?}");

    assert_eq!(run(&["pause", &id]).1[0]["disabled_because"], "by_user");
    let (code, paused) = run(&["test", &id]);
    let message = text(&paused[0]["message"]);
    assert!(code == Some(2) && message.contains("webhook resume"), "{code:?} {message}");
    assert_eq!(run(&["resume", &id]).1[0]["enabled"], true);
    let changed = run(&["update", &id, "--event", "run_started", "--all-labels"]).1;
    assert_eq!((&changed[0]["events"], &changed[0]["labels"]), (&json!(["run_started"]), &json!([])));
    let rotated = run(&["rotate", &id, "--keep-earlier-for", "1h"]).1;
    assert!(text(&rotated[0]["secret"]) != secret && rotated[0]["earlier_secret_until"].is_string());
    assert_eq!(run(&["delete", &id]).1[0]["type"], "webhook_deleted");
    assert_eq!(run(&["show", &id]).0, Some(2));
}

/// Checks that a gateway without permission connects to no address of this machine.
async fn assert_refuses_private_receivers(cluster: &TestCluster, receiver: &WebhookReceiver) {
    let count = receiver.received().len();
    let local = "127.0.0.1:0".parse().unwrap();
    // The other gateway allows private receivers, and would deliver.
    let gateway = GatewayProcess::start_with_options(cluster, "closed", local, &[]).await;
    let port = receiver.address.port();
    for url in [
        format!("http://127.0.0.1:{port}/"),
        format!("https://127.0.0.1:{port}/"),
        format!("https://[::ffff:127.0.0.1]:{port}/"),
        format!("https://2130706433:{port}/"),
        "https://169.254.169.254/".into(),
        "https://10.0.0.1/".into(),
        "ftp://a.example/".into(),
        "https://user@a.example/".into(),
        "nothing".into(),
    ] {
        let refused = gateway.post("/webhooks", &json!({ "url": url })).await;
        assert_eq!(refused.status, 400, "{url}: {}", refused.text());
        assert!(refused.text().contains("url: "), "{}", refused.text());
    }
    assert_eq!(receiver.received().len(), count);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_private_addresses_are_refused_when_the_connection_is_made() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    cluster.connect_bus().await;
    let receiver = WebhookReceiver::start().await;
    let gateway = GatewayProcess::start(&cluster, "closed").await;
    let url = format!("https://localhost:{}/", receiver.address.port());
    let webhook = text(&gateway.post("/webhooks", &json!({ "url": url })).await.json()["id"]);
    let delivery = gateway.post(&format!("/webhooks/{webhook}/test"), &json!({})).await.json();
    let path = format!("/webhooks/{webhook}/deliveries/{}", text(&delivery["id"]));
    let refused = wait_for_value(TIMEOUT, "a failed attempt", async || {
        let answer = gateway.get(&path).await.json();
        answer["log"][0]["error"].as_str().map(str::to_owned)
    })
    .await;
    assert!(refused.contains("localhost resolves to an address of this machine"), "{refused}");
    assert!(receiver.received().is_empty());
}

/// A message of an A2A client; with the id of a task, one to that task. It does not wait for the task.
fn a2a_message(task: Option<&str>, parts: &Value, push: Option<&Value>) -> Value {
    let id = uuid::Uuid::new_v4().to_string();
    let mut message = json!({
        "message": { "messageId": id, "role": "ROLE_USER", "parts": parts },
        "configuration": { "returnImmediately": true },
    });
    if let Some(task) = task {
        message["message"]["taskId"] = task.into();
    }
    if let Some(push) = push {
        message["configuration"]["taskPushNotificationConfig"] = push.clone();
    }
    message
}

async fn send_a2a_message(gateway: &GatewayProcess, message: &Value) -> Answer {
    Request::new("POST", "/a2a/message:send").json(message).send(gateway.address).await
}

/// The states in notifications about a task, each with the ids that it came with.
fn notified_states(messages: &[ReceivedMessage], task: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut states: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    for message in messages {
        let body = message.json();
        let update = &body["statusUpdate"];
        if update["taskId"] == task {
            states.entry(text(&update["status"]["state"])).or_default().insert(message.id.clone());
        }
    }
    states
}

#[tokio::test(flavor = "multi_thread")]
async fn a2a_notifications_arrive_while_gateways_are_killed_and_the_receiver_is_away() {
    let _shared = share_machine();
    let (cluster, receiver) = start_cluster().await;
    let mut first = start_gateway(&cluster, "first").await;
    let mut second = start_gateway(&cluster, "second").await;
    let push = json!({
        "url": format!("http://{}/push", receiver.address), "token": "t-1",
        "authentication": { "scheme": "Bearer", "credentials": "c-1" },
    });
    let ask = json!({ "id": "ask", "objective": "ask", "capability": "echo", "parameters": { "ask": ["Which region?"] }, "final": true });
    let parts = json!([{ "text": "ask" }, { "data": { "plan": { "tasks": [ask] } } }]);
    let message = a2a_message(None, &parts, Some(&push));
    let sent = send_a2a_message(&first, &message).await;
    assert_eq!(sent.status, 200, "{}", sent.text());
    let task = text(&sent.json()["task"]["id"]);
    // A message that is sent again sets no second config.
    assert_eq!(send_a2a_message(&second, &message).await.json()["task"]["id"], task);
    let other = second.submit(&run_of("other")).await;

    let is_asked =
        |all: &[ReceivedMessage]| notified_states(all, &task).contains_key("TASK_STATE_INPUT_REQUIRED");
    let messages = wait_for_messages(&receiver, "the question", is_asked).await;
    let asked = messages.iter().map(ReceivedMessage::json);
    let asked = asked.filter(|body| body["statusUpdate"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED");
    for body in asked {
        assert_eq!(body["statusUpdate"]["status"]["message"]["parts"][0]["text"], "Which region?", "{body}");
    }

    // The run ends while the receiver is away and all gateways die; it is archived when another one starts.
    receiver.answer_with(503);
    first.kill();
    let answer = a2a_message(Some(&task), &json!([{ "text": "eu" }]), None);
    let answered = send_a2a_message(&second, &answer).await;
    assert_eq!(answered.status, 200, "{}", answered.text());
    second.wait_for_end(&task).await;
    second.wait_for_end(&other).await;
    second.kill();
    receiver.answer_with(200);
    let third = start_gateway(&cluster, "third").await;
    let has_ended =
        |all: &[ReceivedMessage]| notified_states(all, &task).contains_key("TASK_STATE_COMPLETED");
    let messages = wait_for_messages(&receiver, "the end", has_ended).await;
    let states = notified_states(&messages, &task);
    assert_eq!(states["TASK_STATE_COMPLETED"].len(), 1, "{states:?}");
    assert!(notified_states(&messages, &other).is_empty());
    for message in receiver.received() {
        let headers = [&message.authorization, &message.token, &message.content_type];
        assert_eq!(headers, ["Bearer c-1", "t-1", "application/a2a+json"], "{message:?}");
        assert!(message.signature.is_empty(), "{message:?}");
        assert_eq!(message.json()["statusUpdate"]["contextId"], task);
    }
    drop(third);
}

async fn call_a2a(gateway: &GatewayProcess, method: &str, params: &Value) -> Value {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    Request::new("POST", "/a2a").json(&body).send(gateway.address).await.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn push_configs_show_no_secrets_and_are_removed_with_their_run() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let bus = cluster.connect_bus().await;
    let receiver = WebhookReceiver::start().await;
    let gateway = start_gateway(&cluster, "open").await;
    let run = gateway.submit(&run_of("search")).await;
    gateway.wait_for_end(&run).await;

    // A run that has ended tells so: the client has nothing else to wait for.
    let url = format!("http://{}/push", receiver.address);
    let config = json!({
        "id": "c1", "url": url, "token": "t0ken",
        "authentication": { "scheme": "Basic", "credentials": "s3cret" },
    });
    let path = format!("/a2a/tasks/{run}/pushNotificationConfigs");
    let created = Request::new("POST", &path).json(&config).send(gateway.address).await;
    assert_eq!(created.status, 200, "{}", created.text());
    let expected = json!({ "id": "c1", "taskId": run, "url": url, "authentication": { "scheme": "Basic" } });
    assert_eq!(created.json(), expected);
    let messages = wait_for_messages(&receiver, "the end", |all| !all.is_empty()).await;
    assert_eq!(messages[0].json()["statusUpdate"]["status"]["state"], "TASK_STATE_COMPLETED");
    assert_eq!((messages[0].authorization.as_str(), messages[0].token.as_str()), ("Basic s3cret", "t0ken"));

    let one = json!({ "taskId": run, "id": "c1" });
    assert_eq!(call_a2a(&gateway, "GetTaskPushNotificationConfig", &one).await["result"], expected);
    let listed = Request::new("GET", &path).send(gateway.address).await;
    assert_eq!(listed.json()["configs"], json!([expected]));
    let api = format!("/runs/{run}/push-configs");
    let shown =
        [listed.text(), gateway.get(&api).await.text(), gateway.get(&format!("{api}/c1")).await.text()];
    assert!(shown.iter().all(|text| !text.contains("s3cret") && !text.contains("t0ken")), "{shown:?}");

    // They are replaced by their ids, and there is a maximum.
    let create = "CreateTaskPushNotificationConfig";
    for number in 1..=10 {
        let config = json!({ "taskId": run, "id": format!("c{number}"), "url": url });
        let created = call_a2a(&gateway, create, &config).await;
        assert_eq!(created["result"]["id"], format!("c{number}"), "{created}");
    }
    let too_many = call_a2a(&gateway, create, &json!({ "taskId": run, "url": url })).await;
    assert!(text(&too_many["error"]["message"]).contains("has 10 push configs"), "{too_many}");
    for (wrong, place) in [
        (json!({ "url": url, "id": "a/b" }), "id: "),
        (json!({ "url": url, "token": "a\r\nHost: b" }), "token: "),
        (json!({ "url": url, "authentication": { "scheme": "a b" } }), "authentication.scheme: "),
    ] {
        let refused = Request::new("POST", &path).json(&wrong).send(gateway.address).await;
        assert!(refused.status == 400 && refused.text().contains(place), "{wrong}: {}", refused.text());
    }

    let unknown = json!({ "taskId": run, "id": "c11" });
    let missing = call_a2a(&gateway, "GetTaskPushNotificationConfig", &unknown).await;
    assert_eq!(missing["error"]["code"], -32001, "{missing}");
    for _ in 0..2 {
        let deleted = call_a2a(&gateway, "DeleteTaskPushNotificationConfig", &one).await;
        assert!(deleted.get("error").is_none(), "{deleted}");
        assert_eq!(Request::new("GET", format!("{path}/c1")).send(gateway.address).await.status, 404);
    }
    for path in [format!("/a2a/tasks/{run}x/pushNotificationConfigs"), path.clone()] {
        let status = if path.contains(&format!("{run}x")) { 404 } else { 200 };
        assert_eq!(Request::new("GET", &path).send(gateway.address).await.status, status, "{path}");
    }
    assert_refuses_private_push(&cluster, &run, &url).await;

    let id: RunId = run.parse().unwrap();
    assert_eq!(read_push_configs(&bus, &id).await.unwrap().len(), 9);
    let deleted = gateway.send(Request::new("DELETE", format!("/api/v1/runs/{run}?wait=60"))).await;
    assert!(deleted.status < 300, "{}", deleted.text());
    wait_for_value(TIMEOUT, "the removal of the push configs", async || {
        read_push_configs(&bus, &id).await.unwrap().is_empty().then_some(())
    })
    .await;
}

/// Checks that a gateway without permission notifies no address of this machine, and starts no run for such a client.
async fn assert_refuses_private_push(cluster: &TestCluster, run: &str, url: &str) {
    let local = "127.0.0.1:0".parse().unwrap();
    let gateway = GatewayProcess::start_with_options(cluster, "closed", local, &[]).await;
    for url in [url, "https://10.0.0.1/", "https://169.254.169.254/", "ftp://a.example/"] {
        let config = json!({ "url": url });
        let path = format!("/a2a/tasks/{run}/pushNotificationConfigs");
        let refused = Request::new("POST", path).json(&config).send(gateway.address).await;
        assert_eq!(refused.status, 400, "{url}: {}", refused.text());
        let message = a2a_message(None, &json!([{ "text": "say it" }]), Some(&config));
        let refused = send_a2a_message(&gateway, &message).await;
        assert!(refused.status == 400 && refused.text().contains("url: "), "{url}: {}", refused.text());
    }
    let runs = gateway.get("/runs").await.json();
    assert_eq!(runs["runs"].as_array().unwrap().len(), 1, "{runs}");
}
