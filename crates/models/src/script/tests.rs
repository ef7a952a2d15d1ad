//! Scripts, from the file to the reply.

use std::sync::Mutex;

use millrace_protocol::result::{PlanProposal, Verdict};
use serde_json::json;

use super::*;
use crate::model::{AnswerSchema, Message, ReplyResult, ToolResult, ToolSpec};

fn parse_script(text: &str) -> ScriptedModel {
    ScriptedModel::parse(text, Path::new("/nowhere/test.yaml")).unwrap()
}

fn build_request(answer: &str, messages: Vec<Message>) -> Request {
    let tool = ToolSpec { name: "search".into(), description: "".into(), schema: json!({}).into() };
    Request {
        system: "You search.".into(),
        messages,
        tools: vec![tool],
        answer: (!answer.is_empty()).then(|| AnswerSchema { name: answer.into(), schema: json!({}) }),
        max_output_tokens: 10,
        ..Request::default()
    }
}

fn task_message() -> Message {
    Message::User { text: "Your task:\n{\"objective\": \"patents\", \"n\": [4, 5]}".into() }
}

fn tool_turn_messages(tool: &str, result: &str, is_error: bool) -> [Message; 2] {
    let call = ToolCall { id: "c".into(), name: tool.into(), arguments: "{}".into() };
    let result = ToolResult { call_id: "c".into(), text: result.into(), is_error, images: Vec::new() };
    [
        Message::Assistant { text: String::new(), calls: vec![call], provider_state: None },
        Message::Tool(result),
    ]
}

async fn request_reply(script: &ScriptedModel, request: &Request) -> ReplyResult {
    script.reply(request, &()).await
}

async fn request_text(script: &ScriptedModel, request: &Request) -> String {
    request_reply(script, request).await.map_or_else(|error| error.to_string(), |reply| reply.text)
}

#[tokio::test]
async fn the_first_matching_rule_answers() {
    let rules = "rules:
- when: {answer: plan}
  reply: {text: plan}
- when: {tool: search, failed: true}
  reply: {text: failed}
- when: {tool: search, last: hit, turn: 2}
  reply: {text: found}
- when: {task: patents, system: You search, offered: search, answer: ''}
  reply: {text: begun}
- when: {offered: read}
  reply: {text: never}
";
    let script = parse_script(rules);
    let then = |more: [Message; 2]| build_request("", [vec![task_message()], more.into()].concat());
    assert_eq!(request_text(&script, &build_request("plan", vec![task_message()])).await, "plan");
    assert_eq!(request_text(&script, &build_request("", vec![task_message()])).await, "begun");
    assert_eq!(request_text(&script, &then(tool_turn_messages("search", "a hit", false))).await, "found");
    assert_eq!(request_text(&script, &then(tool_turn_messages("search", "a hit", true))).await, "failed");
    let other = Message::User { text: "other".into() };
    let message = request_text(&script, &build_request("verdict", vec![other])).await;
    let parts = [
        "no rule matches answer \"verdict\", turn 1",
        "rule 1: the answer is not \"plan\"",
        "rule 5: read is not offered",
    ];
    for part in parts {
        assert!(message.contains(part), "{message}");
    }
}

#[tokio::test]
async fn turns_follow_the_conversation_and_call_ids_are_stable() {
    let rules = "rules:
- turns:
  - text: looking
    calls:
    - search: {first: '{{task.n.1}}', query: '{{task.objective}}'}
    - now
    - search: '{broken'
  - answer: {found: '{{last.hits.0}}', told: 'it was {{last.hits.0.id}} at {{turn}}'}
";
    let script = parse_script(rules);
    let first = request_reply(&script, &build_request("", vec![task_message()])).await.unwrap();
    let calls: Vec<(&str, &str, &str)> = first
        .calls
        .iter()
        .map(|call| (call.id.as_str(), call.name.as_str(), call.arguments.as_str()))
        .collect();
    let expected = [
        ("call_1_1", "search", r#"{"first":5,"query":"patents"}"#),
        ("call_1_2", "now", "{}"),
        ("call_1_3", "search", "{broken"),
    ];
    assert_eq!(calls, expected);
    assert_eq!((first.text.as_str(), first.finish), ("looking", FinishReason::ToolCalls));
    assert!(first.usage.input_tokens > 10 && first.usage.output_tokens > 0);
    for more in 0..2 {
        let mut messages = vec![task_message()];
        (0..=more)
            .for_each(|_| messages.extend(tool_turn_messages("search", r#"{"hits":[{"id":7}]}"#, false)));
        let reply = request_text(&script, &build_request("a", messages)).await;
        assert_eq!(reply, format!(r#"{{"found":{{"id":7}},"told":"it was 7 at {}"}}"#, more + 2));
    }
}

#[tokio::test(start_paused = true)]
async fn errors_delays_and_pieces_are_as_scripted() {
    struct DeltaRecorder(Mutex<Vec<String>>);
    impl DeltaListener for DeltaRecorder {
        fn on_delta(&self, delta: Delta<'_>) {
            self.0.lock().unwrap().push(format!("{delta:?}"));
        }
    }
    let rules = "tries: 3
rules:
- times: 1
  reply: {error: rate_limited, retry_after: 2.5, message: slow, delay: 3}
- reply: {text: abcdé, pieces: 2, delay: 4, reasoning: hm, finish: length, usage: {input_tokens: 9}}
";
    let script = parse_script(rules);
    assert_eq!(script.max_attempts(), 3);
    let begun = tokio::time::Instant::now();
    let error = request_reply(&script, &build_request("", vec![])).await.unwrap_err();
    let after = Some(Duration::from_millis(2500));
    assert_eq!(error, ModelError::RateLimited { retry_after: after, message: "slow".into() });
    assert_eq!(begun.elapsed().as_secs(), 3);
    let recorder = DeltaRecorder(Mutex::default());
    let reply = script.reply(&build_request("", vec![]), &recorder).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 7);
    assert_eq!((reply.finish, reply.usage.input_tokens), (FinishReason::Length, 9));
    assert_eq!(*recorder.0.lock().unwrap(), [r#"Reasoning("hm")"#, r#"Text("abc")"#, r#"Text("dé")"#]);
}

#[tokio::test]
async fn every_request_is_logged_to_the_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("script.yaml");
    std::fs::write(&path, "ledger: asked.log\nrules:\n- when: {answer: plan}\n  reply: {text: x}\n").unwrap();
    let script = ScriptedModel::load(&path).unwrap();
    request_reply(&script, &build_request("plan", vec![task_message()])).await.unwrap();
    request_reply(&script, &build_request("other", vec![task_message()])).await.unwrap_err();
    let lines = std::fs::read_to_string(folder.path().join("asked.log")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (&lines[0]["rule"], &lines[0]["answer"], &lines[0]["turn"]),
        (&json!(1), &json!("plan"), &json!(1))
    );
    assert_eq!((lines.len(), &lines[1]["rule"]), (2, &Value::Null));
}

#[tokio::test]
async fn a_placeholder_without_a_value_is_an_error() {
    for (template, expected) in [
        ("{{task.absent}}", "is not in"),
        ("{{nobody}}", "must begin with task, last or turn"),
        ("x {{task", "has no"),
        ("{{last.x}} y", "no JSON in last"),
    ] {
        let rules = json!({"rules": [{"reply": {"text": template}}]}).to_string();
        let messages = vec![task_message(), Message::User { text: "plain".into() }];
        let error = request_text(&parse_script(&rules), &build_request("", messages)).await;
        assert!(error.contains(expected), "{template}: {error}");
    }
}

#[test]
fn invalid_scripts_are_rejected() {
    let cases = [
        ("rules: []\n", "it has no rules"),
        ("rules:\n- when: {awnser: plan}\n  reply: {text: x}\n", "awnser"),
        ("rules:\n- reply: {text: x}\n- when: {}\n", "rule 2: it has neither"),
        ("rules:\n- reply: {text: x, answer: {}}\n", "only one of"),
        ("rules:\n- reply: {delay: 1}\n", "needs one of 'text'"),
        ("rules:\n- reply: {text: x, retry_after: 1}\n", "need an 'error'"),
        ("rules:\n- reply: {error: broken}\n", "rate_limited"),
        ("rules:\n- reply: {calls: [{a: {}, b: {}}]}\n", "start each call with a dash"),
        ("rules:\n- reply: {text: x}\n  turns: [{text: y}]\n", "both"),
    ];
    for (rules, expected) in cases {
        let mistake = ScriptedModel::parse(rules, Path::new("x.yaml")).unwrap_err();
        assert!(mistake.contains(expected), "{rules:?}: {mistake}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_example_script_gives_valid_answers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models/script.yaml");
    let script = ScriptedModel::load(&path).unwrap();
    let reply = async |answer: &str, more: usize| {
        let later = (0..more).flat_map(|_| tool_turn_messages("search_documents", "{}", false));
        let messages = std::iter::once(task_message()).chain(later).collect();
        request_reply(&script, &build_request(answer, messages)).await
    };
    let plan: PlanProposal = serde_json::from_str(&reply("plan", 0).await.unwrap().text).unwrap();
    assert!(plan.tasks.iter().any(|task| task.is_final));
    assert_eq!(reply("findings", 0).await.unwrap().calls[0].name, "search_documents");
    assert!(reply("report", 0).await.unwrap_err().is_transient());
    for (answer, turns) in [("findings", 1), ("report", 0)] {
        let result: Value = serde_json::from_str(&reply(answer, turns).await.unwrap().text).unwrap();
        assert!(result["output"].is_string() && result["summary"].is_string(), "{answer}: {result}");
    }
    let verdict: Verdict = serde_json::from_str(&reply("verdict", 0).await.unwrap().text).unwrap();
    assert_eq!(verdict.find_inconsistency(), None);
}

#[test]
fn pieces_are_split_between_characters() {
    assert_eq!(split_into_pieces("äöü", 2), ["äö", "ü"]);
    assert_eq!(split_into_pieces("ab", 9), ["a", "b"]);
    assert_eq!(split_into_pieces("ab", 0), ["ab"]);
    assert!(split_into_pieces("", 3).is_empty());
}

#[tokio::test]
async fn a_scripted_reply_has_probabilities_for_requests_that_ask() {
    let script = parse_script("rules: [{reply: {text: Yes, first_token: {\"No\": 0.1, \"Yes\": 0.9}}}]");
    let plain = build_request("", vec![task_message()]);
    assert_eq!(request_reply(&script, &plain).await.unwrap().first_token, []);
    let asking = Request { first_token_probabilities: true, ..plain };
    let alternatives = request_reply(&script, &asking).await.unwrap().first_token;
    let shown: Vec<_> = alternatives.iter().map(|it| (it.token.as_str(), it.probability)).collect();
    assert_eq!(shown, [("Yes", 0.9), ("No", 0.1)]);
    let wrong = "rules: [{reply: {text: Yes, first_token: {\"Yes\": 90}}}]";
    let mistake = ScriptedModel::parse(wrong, Path::new("x.yaml")).unwrap_err();
    assert!(mistake.contains("a probability in 'first_token' is not between 0 and 1"), "{mistake}");
}
