//! The answers of all surfaces, in a golden file: the API, MCP, A2A and commands, with their refusals. `UPDATE_GOLDEN=1` rewrites it.

use std::fmt::Write as _;
use std::path::Path;

use jiff::Timestamp;
use millrace_protocol::registry::ProcessRole;
use millrace_tests::cluster::{ClusterSetup, TestCluster};
use millrace_tests::machine::share_machine;
use millrace_tests::wait_for_value;
use serde_json::{Value, json};

use super::TIMEOUT;
use super::http::Request;
use super::process::GatewayProcess;

/// A request to the API, as `METHOD PATH BODY`; `RUN` is the run that waits for an answer, `DONE` one that has ended.
const REQUESTS: &str = include_str!("answers.requests");

/// The fields whose values differ from one time to the next.
const VARIABLE: [&str; 34] = [
    "sequence",
    "next",
    "cursor",
    "last",
    "version",
    "token",
    "secret",
    "pid",
    "host",
    "usage",
    "address",
    "used_bytes",
    "lag",
    "messages",
    "lanes",
    "owner",
    "started",
    "spans",
    "wall_ms",
    "elapsed_ms",
    "time_ms",
    "duration_ms",
    "processes",
    "queues",
    "etag",
    "active_ms",
    "waited_ms",
    "data_ms",
    "last_sweep",
    "storage",
    "checks",
    "command",
    "log",
    "live_runs",
];

/// The ids that have names in the golden file.
struct Names(Vec<(String, &'static str)>);

impl Names {
    fn in_text(&self, text: &str) -> String {
        let known = self.0.iter().fold(text.to_owned(), |text, (id, name)| text.replace(id, name));
        let is_of_id = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == ':';
        let mut rest = known.as_str();
        let mut shown = String::new();
        while let Some(start) = rest.find(is_of_id) {
            let end = rest[start..].find(|c| !is_of_id(c)).map_or(rest.len(), |length| start + length);
            let word = &rest[start..end];
            shown.push_str(&rest[..start]);
            shown.push_str(if is_random(word) { "ID" } else { word });
            rest = &rest[end..];
        }
        shown + rest
    }

    fn in_value(&self, value: Value) -> Value {
        match value {
            Value::Object(fields) => {
                let known = |(name, value): (String, Value)| {
                    let is_variable = VARIABLE.contains(&name.as_str()) || name.ends_with("_ms");
                    let value = if is_variable && !value.is_null() && !value.is_boolean() {
                        "…".into()
                    } else {
                        self.in_value(value)
                    };
                    // The order of these is random.
                    let mut value = value;
                    if ["metadata", "details", "data"].contains(&name.as_str()) {
                        value.sort_all_objects();
                    }
                    (self.in_text(&name), value)
                };
                Value::Object(fields.into_iter().map(known).collect())
            }
            Value::Array(values) => values.into_iter().map(|value| self.in_value(value)).collect(),
            Value::String(text) if text.parse::<Timestamp>().is_ok() => "TIME".into(),
            Value::String(text) if is_position(&text) => "POSITION".into(),
            Value::String(text) => match serde_json::from_str::<Value>(&text) {
                Ok(inner @ Value::Object(_)) => self.in_value(inner).to_string().into(),
                _ => self.in_text(&text).into(),
            },
            other @ (Value::Null | Value::Bool(_) | Value::Number(_)) => other,
        }
    }

    /// Returns a body with its variable parts replaced.
    fn in_body(&self, text: &str) -> String {
        match serde_json::from_str::<Value>(text) {
            Ok(value) => self.in_value(value).to_string(),
            Err(_) => self.in_text(text).trim_end().to_owned(),
        }
    }

    fn of(&self, name: &str) -> &str {
        &self.0.iter().find(|(_, known)| *known == name).expect("a known name").0
    }

    /// Returns a request with the ids.
    fn to_ids(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (id, name)| text.replace(name, id))
    }
}

/// `true` if a text is a position in a log, such as `17.0`.
fn is_position(text: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.split_once('.').is_some_and(|(sequence, index)| is_number(sequence) && is_number(index))
}

/// `true` if a word is made for each test: a time, the id of a run, or 32 hexadecimal digits.
fn is_random(word: &str) -> bool {
    let is_time = word.len() == 8 && word.bytes().filter(|byte| *byte == b':').count() == 2;
    let is_day = word.len() == 10 && word.starts_with("20") && word.matches('-').count() == 2;
    let is_run = word.len() == 22 && word.starts_with("20") && word.matches('-').count() == 2;
    is_time || is_day || is_run || (word.len() == 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Compares a text with a golden file beside this one.
fn compare(text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/answers.golden");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    let mut request = "";
    for (number, (is, should)) in text.lines().zip(golden.lines()).enumerate() {
        request = if is.starts_with("### ") { is } else { request };
        assert!(
            is == should,
            "line {}, {request}: UPDATE_GOLDEN=1 rewrites it\n  golden: {should}\n  now:    {is}",
            number + 1
        );
    }
    assert_eq!(text.lines().count(), golden.lines().count(), "the golden file has another length");
}

async fn send(gateway: &GatewayProcess, names: &Names, line: &str, golden: &mut String) -> Value {
    let mut parts = line.splitn(3, ' ');
    let (method, path) = (parts.next().unwrap(), names.to_ids(parts.next().unwrap()));
    let method = ["GET", "POST", "PUT", "PATCH", "DELETE"].into_iter().find(|one| *one == method).unwrap();
    let path = if ["/a2a", "/mcp", "/.well-known"].iter().any(|root| path.starts_with(root)) {
        path
    } else {
        format!("/api/v1{path}")
    };
    let mut request = Request::new(method, path);
    if line.starts_with("POST /mcp") {
        request = request.header("Accept", "application/json, text/event-stream");
    }
    if let Some(body) = parts.next() {
        request = request.body("application/json", names.to_ids(body).into_bytes());
    }
    let answer = request.send(gateway.address).await;
    let media_type = answer.header("content-type").unwrap_or("-").to_owned();
    writeln!(golden, "### {line}\n{} {media_type}\n{}", answer.status, names.in_body(&answer.text()))
        .unwrap();
    serde_json::from_slice(&answer.body).unwrap_or_default()
}

fn run_command(cluster: &TestCluster, names: &Names, line: &str, golden: &mut String) {
    let arguments: Vec<String> = line.split(' ').map(|one| names.to_ids(one).replace('_', " ")).collect();
    let output = cluster.millrace_command().args(&arguments).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let out: Vec<String> = out.lines().map(|line| names.in_body(line)).collect();
    let code = output.status.code().unwrap_or(-1);
    writeln!(golden, "### $ millrace {line}\n{code}\n{}\n{}", out.join("\n"), names.in_text(&err).trim_end())
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_all_surfaces_are_the_golden_ones() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let bus = cluster.connect_bus().await;
    cluster.wait_for_heartbeats(&bus, ProcessRole::Worker, 1).await;
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    let task = |id: &str, parameters: Value, after: &[&str]| json!({ "id": id, "objective": id, "capability": "echo", "parameters": parameters, "depends_on": after });
    let tasks = [task("ask", json!({ "ask": ["Which region?"] }), &[]), task("later", json!({}), &["ask"])];
    let run = gateway
        .submit(&json!({ "objective": "ask", "plan": { "tasks": tasks }, "labels": { "team": "a" } }))
        .await;
    let done = gateway.submit(&json!({ "objective": "say", "plan": { "tasks": [
        { "id": "say", "objective": "say", "capability": "echo", "final": true, "parameters": { "bytes": 9 } }] } })).await;
    gateway.wait_for_end(&done).await;
    wait_for_value(TIMEOUT, "a question", async || {
        let open = gateway.get(&format!("/runs/{run}/questions")).await.json();
        (open["questions"].as_array().unwrap().len() == 1).then_some(())
    })
    .await;
    wait_for_value(TIMEOUT, "the summary with the question", async || {
        let listed = gateway.get("/runs?text=ask").await.json();
        (listed["runs"][0]["open_questions"] == 1).then_some(())
    })
    .await;
    let mut names = Names(vec![(run, "RUN"), (done, "DONE"), (gateway.address.to_string(), "HOST")]);
    let mut golden = String::new();
    for line in REQUESTS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(command) = line.strip_prefix("$ ") {
            run_command(&cluster, &names, command, &mut golden);
            continue;
        }
        let answer = send(&gateway, &names, line, &mut golden).await;
        let new = match line {
            _ if line.starts_with("POST /tokens") => answer["id"].as_str().map(|id| (id, "TOKEN")),
            _ if line.starts_with("POST /webhooks ") => answer["id"].as_str().map(|id| (id, "HOOK")),
            _ if line.starts_with("POST /webhooks/HOOK/test") => answer["id"].as_str().map(|id| (id, "SENT")),
            _ if line.starts_with("POST /runs {") => answer["run"].as_str().map(|id| (id, "NEW")),
            _ if line.contains("\"start_run\"") => {
                answer["result"]["structuredContent"]["run"].as_str().map(|id| (id, "TOOLED"))
            }
            _ if line.starts_with("POST /a2a/message:send") => {
                answer["task"]["id"].as_str().map(|id| (id, "AGENTED"))
            }
            _ => None,
        };
        if let Some((id, name)) = new
            && !names.0.iter().any(|(_, known)| *known == name)
        {
            golden = golden.replace(id, name);
            names.0.push((id.to_owned(), name));
        }
    }
    assert!(!names.of("RUN").is_empty());
    compare(&golden);
}
