//! What counts as the archive of a run, against a real server: what a program wrote that may, and nothing that was sent
//! there as an answer of the server.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, Context};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::subject::Topic;
use millrace_protocol::work::Entry;
use millrace_runtime::log::append;
use millrace_runtime::record::Record;
use millrace_runtime::topology::Wanted;
use millrace_runtime::{Bus, Connection, archive, registry};
use millrace_tests::{NatsServer, eventually};
use serde_json::{Value, json};

const LANE: Lane = Lane(0);
const PATIENCE: Duration = Duration::from_secs(60);

fn run(name: &str) -> RunId {
    RunId::new(name).expect("it is a name")
}

async fn bus(server: &NatsServer) -> Bus {
    let connection = Connection::open(&server.url);
    Bus::connect(&connection, "test", &Wanted::default()).await.expect("the cluster is made")
}

/// A run of two messages in its lane and in the archive.
async fn archived(bus: &Bus, name: &RunId, text: &str) {
    let note = Entry::Note { text: text.into() };
    append(bus, LANE, name, &Topic::Control, &note, 0).await.expect("it is taken");
    let last = append(bus, LANE, name, &Topic::Plan, &note, 0).await.expect("it is taken");
    assert_eq!(archive::write(bus, LANE, name, last).await.expect("it is taken"), last);
}

fn context(bus: &Bus) -> Context {
    jetstream::new(bus.client().clone())
}

fn about(name: &RunId) -> String {
    format!("$O.archive.M.{}", URL_SAFE.encode(name.as_str()))
}

/// What is said of the archive of a run.
async fn said(bus: &Bus, name: &RunId) -> Value {
    let stream = context(bus).get_stream("OBJ_archive").await.expect("it is there");
    let said = stream.get_last_raw_message_by_subject(&about(name)).await.expect("something is said");
    serde_json::from_slice(&said.payload).expect("it is JSON")
}

async fn content(bus: &Bus, name: &RunId) -> Vec<u8> {
    let (stream, said) =
        (context(bus).get_stream("OBJ_archive").await.expect("it is there"), said(bus, name));
    let parts = format!("$O.archive.C.{}", said.await["nuid"].as_str().expect("it is a text"));
    stream.get_last_raw_message_by_subject(&parts).await.expect("it is one part").payload.to_vec()
}

/// Puts a message without our mark in the archive, as an answer without headers stands there.
async fn put(bus: &Bus, subject: String, headers: HeaderMap, payload: Vec<u8>) {
    let sent = context(bus).publish_with_headers(subject, headers, payload.into()).await;
    sent.expect("it is sent").await.expect("it is taken");
}

/// What a thief says of the archive of a run: that it is the one of another.
async fn forge(bus: &Bus, name: &RunId, other: &RunId) -> Vec<u8> {
    let mut said = said(bus, other).await;
    said["name"] = json!(name);
    said.to_string().into_bytes()
}

fn sequences(records: &[Record]) -> Vec<u64> {
    records.iter().map(|record| record.sequence).collect()
}

#[tokio::test]
async fn what_nobody_wrote_in_the_archive_is_no_archive_of_a_run() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let (other, name) = (run("other"), run("r"));
    archived(&bus, &other, "other").await;
    let forged = forge(&bus, &name, &other).await;
    put(&bus, about(&name), HeaderMap::new(), forged.clone()).await;
    assert!(archive::read(&bus, &name).await.expect("it answers").is_none(), "an answer without headers");
    assert!(!archive::holds(&bus, &name).await.expect("it answers"));

    // An answer with the headers of what it hands out, among them the one that older programs left.
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Rollup", "sub");
    let hiding = about(&run("hiding"));
    put(&bus, hiding.clone(), headers, forged).await;
    let question = json!({ "last_by_subj": hiding }).to_string();
    let asked = "$JS.API.DIRECT.GET.OBJ_archive";
    bus.client().publish_with_reply(asked, about(&name), question.into()).await.expect("it is sent");
    let stream = context(&bus).get_stream("OBJ_archive").await.expect("it is there");
    eventually(PATIENCE, "the answer in the archive", async || {
        let last = stream.get_last_raw_message_by_subject(&about(&name)).await.ok()?;
        last.headers.get("Nats-Stream").map(drop)
    })
    .await;
    assert!(archive::read(&bus, &name).await.expect("it answers").is_none(), "an answer with headers");
    assert!(!archive::holds(&bus, &name).await.expect("it answers"));
    assert!(archive::holds(&bus, &other).await.expect("it answers"), "what was written counts");
}

#[tokio::test]
async fn what_the_lane_holds_of_a_run_goes_before_what_is_said_elsewhere_of_it() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let (other, name) = (run("other"), run("r"));
    archived(&bus, &other, "other").await;
    let plan = Entry::Note { text: "a plan".into() };
    let genuine = append(&bus, LANE, &name, &Topic::Plan, &plan, 0).await.expect("it is taken");
    put(&bus, about(&name), HeaderMap::new(), forge(&bus, &name, &other).await).await;
    let summary = |archived: bool| {
        let summary = json!({
            "run": "other", "lane": 0, "objective": "", "end": "completed", "started": 0, "updated": 0,
            "counts": [0, 0, 0, 0, 0, 0, 0, 0, 0], "archived": archived,
        });
        serde_json::from_value::<millrace_protocol::registry::RunSummary>(summary).expect("it is one")
    };
    registry::summarise(&bus, &summary(true)).await.expect("it is taken");
    let found = archive::find_run(&bus, LANE, &name).await.expect("it answers");
    assert_eq!(sequences(&found), [genuine]);

    // The summary of an archived run in another's place says nothing of it.
    let stolen = serde_json::to_vec(&summary(true)).expect("it is JSON");
    put(&bus, format!("$KV.runs.{name}"), HeaderMap::new(), stolen).await;
    assert!(registry::summary(&bus, &name).await.expect("it answers").is_none());
    let known = registry::runs(&bus).await.expect("it answers");
    assert_eq!(known.iter().map(|it| it.run.as_str()).collect::<Vec<_>>(), ["other"]);
    // Nor does one that names it, where the archive holds nothing that somebody wrote.
    let lying = millrace_protocol::registry::RunSummary { run: name.clone(), ..summary(true) };
    registry::summarise(&bus, &lying).await.expect("it is taken");
    let found = archive::find_run(&bus, LANE, &name).await.expect("it answers");
    assert_eq!(sequences(&found), [genuine]);
}

#[tokio::test]
async fn an_archive_of_an_older_program_is_read_as_long_as_it_is_what_was_written() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let (other, name) = (run("other"), run("old"));
    archived(&bus, &other, "a note").await;
    let mut bytes = content(&bus, &other).await;
    let write = async |name: &RunId, bytes: &[u8], digest_of: &RunId| {
        let mut said = said(&bus, digest_of).await;
        (said["name"], said["nuid"]) = (json!(name), json!(format!("parts{name}")));
        put(&bus, format!("$O.archive.C.parts{name}"), HeaderMap::new(), bytes.to_vec()).await;
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Rollup", "sub");
        put(&bus, about(name), headers, said.to_string().into_bytes()).await;
    };
    write(&name, &bytes, &other).await;
    let read = archive::read(&bus, &name).await.expect("it answers").expect("it is there");
    assert_eq!(read.len(), 2);
    assert!(archive::holds(&bus, &name).await.expect("it answers"));
    put(&bus, format!("$O.archive.C.parts{name}"), HeaderMap::new(), b"forged".to_vec()).await;
    assert!(archive::holds(&bus, &name).await.expect("it answers"), "what stands behind it is none of it");

    *bytes.last_mut().expect("it is not empty") ^= 1;
    write(&run("damaged"), &bytes, &other).await;
    let damaged = archive::read(&bus, &run("damaged")).await.expect_err("it is another content");
    assert!(damaged.to_string().contains("not what was written"), "{damaged}");
    assert!(!archive::holds(&bus, &run("damaged")).await.expect("it answers"));
}

#[tokio::test]
async fn parts_that_nobody_wrote_are_no_part_of_an_archive() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let name = run("r");
    archived(&bus, &name, "a note").await;
    let (bytes, said) = (content(&bus, &name).await, said(&bus, &name).await);
    let parts = format!("$O.archive.C.{}", said["nuid"].as_str().expect("it is a text"));
    let stream = context(&bus).get_stream("OBJ_archive").await.expect("it is there");
    stream.purge().filter(parts.clone()).await.expect("it answers");
    put(&bus, parts, HeaderMap::new(), bytes).await;
    assert!(archive::read(&bus, &name).await.is_err(), "its own parts are gone");
    assert!(!archive::holds(&bus, &name).await.expect("it answers"));
}
