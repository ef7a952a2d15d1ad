//! Webhooks of real gateways, with a real receiver.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

#[path = "gateway/document.rs"]
mod document;
#[allow(dead_code, reason = "the tests of the gateway use all of it")]
#[path = "gateway/http.rs"]
mod http;
#[allow(dead_code, reason = "the tests of the gateway use all of it")]
#[path = "gateway/process.rs"]
mod process;
#[path = "gateway/receiver.rs"]
mod receiver;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use millrace_tests::cluster::{ClusterSetup, TestCluster, lock_machine};
use millrace_tests::wait_for_value;
use serde_json::{Value, json};

use http::{Answer, Request};
use process::GatewayProcess;
use receiver::{ReceivedMessage, WebhookReceiver, assert_signed};

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
    let _alone = lock_machine();
    let setup = ClusterSetup { lanes: 2, linger: Duration::from_millis(500), ..ClusterSetup::default() };
    let cluster = TestCluster::start_with_workers(setup, 1);
    cluster.connect_bus().await;
    let receiver = WebhookReceiver::start().await;
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
    let _alone = lock_machine();
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
    let _alone = lock_machine();
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
