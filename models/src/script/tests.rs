//! Scripts, from their text to what a model answers.

use std::sync::Mutex;

use millrace_protocol::result::{Proposal, Verdict};
use serde_json::json;

use super::*;
use crate::model::{AnswerSchema, Message, ToolResult, ToolSpec};

fn script(text: &str) -> Script {
    Script::parse(text, Path::new("/nowhere/test.yaml")).unwrap()
}

fn request(answer: &str, messages: Vec<Message>) -> Request {
    let tool = ToolSpec { name: "search".into(), description: String::new(), schema: json!({}) };
    Request {
        system: "You search.".into(),
        messages,
        tools: vec![tool],
        answer: (!answer.is_empty()).then(|| AnswerSchema { name: answer.into(), schema: json!({}) }),
        max_output_tokens: 10,
    }
}

fn task() -> Message {
    Message::User { text: "Your task:\n{\"objective\": \"patents\", \"n\": [4, 5]}".into() }
}

fn turn(tool: &str, result: &str, is_error: bool) -> [Message; 2] {
    let call = ToolCall { id: "c".into(), name: tool.into(), arguments: "{}".into() };
    let result = ToolResult { call_id: "c".into(), text: result.into(), is_error };
    [Message::Assistant { text: String::new(), calls: vec![call], keepsake: None }, Message::Tool(result)]
}

async fn ask(script: &Script, request: &Request) -> Result<Reply, ModelError> {
    script.reply(request, &()).await
}

async fn text(script: &Script, request: &Request) -> String {
    ask(script, request).await.map_or_else(|error| error.to_string(), |reply| reply.text)
}

#[tokio::test]
async fn the_first_rule_whose_conditions_all_hold_answers() {
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
    let script = script(rules);
    let then = |more: [Message; 2]| request("", [vec![task()], more.into()].concat());
    assert_eq!(text(&script, &request("plan", vec![task()])).await, "plan");
    assert_eq!(text(&script, &request("", vec![task()])).await, "begun");
    assert_eq!(text(&script, &then(turn("search", "a hit", false))).await, "found");
    assert_eq!(text(&script, &then(turn("search", "a hit", true))).await, "failed");
    let other = Message::User { text: "other".into() };
    let told = text(&script, &request("verdict", vec![other])).await;
    let wanted = [
        "has no rule for answer \"verdict\", turn 1",
        "rule 1: the answer is not \"plan\"",
        "rule 5: read is not offered",
    ];
    for wanted in wanted {
        assert!(told.contains(wanted), "{told}");
    }
}

#[tokio::test]
async fn turns_follow_the_conversation_and_calls_keep_their_names() {
    let rules = "rules:
- turns:
  - text: looking
    calls:
    - search: {first: '{{task.n.1}}', query: '{{task.objective}}'}
    - now
    - search: '{broken'
  - answer: {found: '{{last.hits.0}}', told: 'it was {{last.hits.0.id}} at {{turn}}'}
";
    let script = script(rules);
    let first = ask(&script, &request("", vec![task()])).await.unwrap();
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
    assert_eq!((first.text.as_str(), first.finish), ("looking", Finish::ToolCalls));
    assert!(first.usage.input_tokens > 10 && first.usage.output_tokens > 0);
    for more in 0..2 {
        let mut messages = vec![task()];
        (0..=more).for_each(|_| messages.extend(turn("search", r#"{"hits":[{"id":7}]}"#, false)));
        let reply = text(&script, &request("a", messages)).await;
        assert_eq!(reply, format!(r#"{{"found":{{"id":7}},"told":"it was 7 at {}"}}"#, more + 2));
    }
}

#[tokio::test(start_paused = true)]
async fn errors_delays_and_pieces_are_as_the_script_says() {
    struct Heard(Mutex<Vec<String>>);
    impl Watch for Heard {
        fn delta(&self, delta: Delta<'_>) {
            self.0.lock().unwrap().push(format!("{delta:?}"));
        }
    }
    let rules = "tries: 3
rules:
- times: 1
  reply: {error: rate_limited, retry_after: 2.5, message: slow, delay: 3}
- reply: {text: abcdé, pieces: 2, delay: 4, reasoning: hm, finish: length, usage: {input_tokens: 9}}
";
    let script = script(rules);
    assert_eq!(script.tries(), 3);
    let begun = tokio::time::Instant::now();
    let error = ask(&script, &request("", vec![])).await.unwrap_err();
    let after = Some(Duration::from_millis(2500));
    assert_eq!(error, ModelError::RateLimited { retry_after: after, message: "slow".into() });
    assert_eq!(begun.elapsed().as_secs(), 3);
    let heard = Heard(Mutex::default());
    let reply = script.reply(&request("", vec![]), &heard).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 7);
    assert_eq!((reply.finish, reply.usage.input_tokens), (Finish::Length, 9));
    assert_eq!(*heard.0.lock().unwrap(), [r#"Reasoning("hm")"#, r#"Text("abc")"#, r#"Text("dé")"#]);
}

#[tokio::test]
async fn every_request_is_told_to_the_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("script.yaml");
    std::fs::write(&path, "ledger: asked.log\nrules:\n- when: {answer: plan}\n  reply: {text: x}\n").unwrap();
    let script = Script::load(&path).unwrap();
    ask(&script, &request("plan", vec![task()])).await.unwrap();
    ask(&script, &request("other", vec![task()])).await.unwrap_err();
    let lines = std::fs::read_to_string(folder.path().join("asked.log")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (&lines[0]["rule"], &lines[0]["answer"], &lines[0]["turn"]),
        (&json!(1), &json!("plan"), &json!(1))
    );
    assert_eq!((lines.len(), &lines[1]["rule"]), (2, &Value::Null));
}

#[tokio::test]
async fn a_placeholder_that_names_nothing_is_told() {
    for (template, told) in [
        ("{{task.absent}}", "is not in"),
        ("{{nobody}}", "none of task, last and turn"),
        ("x {{task", "has no"),
        ("{{last.x}} y", "no JSON in last"),
    ] {
        let rules = json!({"rules": [{"reply": {"text": template}}]}).to_string();
        let messages = vec![task(), Message::User { text: "plain".into() }];
        let error = text(&script(&rules), &request("", messages)).await;
        assert!(error.contains(told), "{template}: {error}");
    }
}

#[test]
fn a_mistake_in_a_script_is_told_with_its_place() {
    let cases = [
        ("rules: []\n", "it has no rules"),
        ("rules:\n- when: {awnser: plan}\n  reply: {text: x}\n", "awnser"),
        ("rules:\n- reply: {text: x}\n- when: {}\n", "rule 2: it has neither"),
        ("rules:\n- reply: {text: x, answer: {}}\n", "only one of"),
        ("rules:\n- reply: {delay: 1}\n", "one of 'text'"),
        ("rules:\n- reply: {text: x, retry_after: 1}\n", "belong to an 'error'"),
        ("rules:\n- reply: {error: broken}\n", "rate_limited"),
        ("rules:\n- reply: {calls: [{a: {}, b: {}}]}\n", "each call begins with a dash"),
        ("rules:\n- reply: {text: x}\n  turns: [{text: y}]\n", "both"),
    ];
    for (rules, told) in cases {
        let mistake = Script::parse(rules, Path::new("x.yaml")).unwrap_err();
        assert!(mistake.contains(told), "{rules:?} told: {mistake}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_example_is_a_script_whose_answers_have_their_forms() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/models/script.yaml");
    let script = Script::load(&path).unwrap();
    let reply = async |answer: &str, more: usize| {
        let later = (0..more).flat_map(|_| turn("search_documents", "{}", false));
        let messages = std::iter::once(task()).chain(later).collect();
        ask(&script, &request(answer, messages)).await
    };
    let plan: Proposal = serde_json::from_str(&reply("plan", 0).await.unwrap().text).unwrap();
    assert!(plan.tasks.iter().any(|task| task.is_final));
    assert_eq!(reply("findings", 0).await.unwrap().calls[0].name, "search_documents");
    assert!(reply("report", 0).await.unwrap_err().is_transient());
    for (answer, turns) in [("findings", 1), ("report", 0)] {
        let result: Value = serde_json::from_str(&reply(answer, turns).await.unwrap().text).unwrap();
        assert!(result["output"].is_string() && result["summary"].is_string(), "{answer}: {result}");
    }
    let verdict: Verdict = serde_json::from_str(&reply("verdict", 0).await.unwrap().text).unwrap();
    assert_eq!(verdict.inconsistency(), None);
}

#[test]
fn pieces_are_cut_between_characters() {
    assert_eq!(pieces("äöü", 2), ["äö", "ü"]);
    assert_eq!(pieces("ab", 9), ["a", "b"]);
    assert_eq!(pieces("ab", 0), ["ab"]);
    assert!(pieces("", 3).is_empty());
}
