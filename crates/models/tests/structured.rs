//! Structured output from an agent's point of view: request, typical replies of models, and the converted reply.

use std::sync::{Arc, Mutex};

use millrace_models::model::{
    AnswerSchema, Delta, DeltaListener, FinishReason, Message, Model, ProviderState, Reply, Request,
    ToolCall, ToolResult, ToolSpec,
};
use millrace_models::selection::StructuredMode;
use millrace_models::structured::{convert_reply_for_mode, rewrite_request_for_mode};
use millrace_models::wire::OutputSupport;
use serde_json::{Value, json};

use crate::resilience::resilient;
use crate::support::{FakeModel, Outcome};
use proptest::prelude::*;

const LOCAL: OutputSupport =
    OutputSupport { tools: true, structured: true, tools_with_structured: false, grammar: true };
const HOSTED: OutputSupport = OutputSupport { grammar: false, ..LOCAL };

fn answer_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "output": { "type": "string" },
            "notes": { "type": "string" },
            "data": {},
        },
        "required": ["output"],
    })
}

fn request(messages: Vec<Message>) -> Request {
    let search = json!({
        "type": "object",
        "properties": { "query": { "type": "string", "pattern": "x" }, "limit": { "type": "integer" } },
        "required": ["query"],
    });
    let tool = |name: &str, schema: Value| ToolSpec {
        name: name.into(),
        description: format!("Does {name}.").into(),
        schema: schema.into(),
    };
    Request {
        system: "You are careful.".into(),
        messages,
        tools: vec![tool("search", search), tool("now", json!({ "type": "object", "properties": {} }))],
        answer: Some(AnswerSchema { name: "research".into(), schema: answer_schema() }),
        max_output_tokens: 500,
        ..Request::default()
    }
}

fn conversation() -> Vec<Message> {
    let call = |id: &str, name: &str, arguments: &str| ToolCall {
        id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    let result = |id: &str, text: &str, is_error| {
        Message::Tool(ToolResult { call_id: id.into(), text: text.into(), is_error, images: Vec::new() })
    };
    let calls = vec![call("c1", "search", r#"{"query":"a"}"#), call("c2", "now", "{}")];
    vec![
        Message::User { text: "Task.".into() },
        Message::Assistant { text: "I look.".into(), calls, provider_state: None },
        result("c1", "hit", false),
        result("c2", "no clock", true),
        Message::User { text: "Go on.".into() },
        Message::Assistant { text: "{\"output\":\"bad\"}".into(), calls: vec![], provider_state: None },
        Message::User { text: "It does not fit.".into() },
    ]
}

struct Exchange {
    sent: Request,
    reply: Reply,
}

async fn play(
    abilities: OutputSupport,
    structured: StructuredMode,
    request: &Request,
    reply_text: Reply,
) -> Exchange {
    let fake = FakeModel::new([Outcome::from(Ok(reply_text))]);
    let model = resilient(fake.clone(), |model| model.structured = Some((structured, abilities)));
    let reply = model.reply(request, &()).await.unwrap();
    Exchange { sent: fake.requests().remove(0), reply }
}

fn text(text: &str) -> Reply {
    Reply { text: text.into(), ..Reply::default() }
}

fn calls(reply: &Reply) -> Vec<String> {
    reply.calls.iter().map(|call| format!("{} {}{}", call.id, call.name, call.arguments)).collect()
}

#[tokio::test]
async fn an_envelope_contains_tools_answer_and_conversation() {
    let Exchange { sent, .. } = play(LOCAL, StructuredMode::Auto, &request(conversation()), text("{}")).await;
    assert!(sent.tools.is_empty());
    assert!(sent.system.starts_with("You are careful.\n\nReply with one JSON value"), "{}", sent.system);
    for part in ["TOOL \"search\": Does search.", "TOOL \"now\"", "{\"action\": \"final\", \"answer\": …}"]
    {
        assert!(sent.system.contains(part), "{}", sent.system);
    }
    let schema = sent.answer.unwrap().schema;
    let kinds: Vec<&Value> = schema["oneOf"].as_array().unwrap().iter().collect();
    assert_eq!(kinds.len(), 4);
    assert_eq!(kinds[0]["properties"]["action"], json!({ "const": "search" }));
    assert_eq!(kinds[0]["properties"]["arguments"]["properties"]["query"], json!({ "type": "string" }));
    assert_eq!((&kinds[2]["type"], &kinds[2]["maxItems"]), (&json!("array"), &json!(8)));
    assert_eq!(kinds[3]["properties"]["answer"]["required"], json!(["output"]));
    let reply_text: Vec<(bool, String)> = sent
        .messages
        .into_iter()
        .map(|message| match message {
            Message::User { text } => (true, text),
            Message::Assistant { text, calls, .. } => {
                assert!(calls.is_empty());
                (false, text)
            }
            Message::Tool(result) => panic!("{result:?}"),
        })
        .collect();
    let expected = [
        (true, "Task."),
        (false, r#"[{"action":"search","arguments":{"query":"a"}},{"action":"now","arguments":{}}]"#),
        (true, "Result of search:\nhit\n\nError of now:\nno clock\n\nGo on."),
        (false, r#"{"action":"final","answer":{"output":"bad"}}"#),
        (true, "It does not fit."),
    ];
    assert_eq!(reply_text, expected.map(|(user, text)| (user, text.to_owned())));
}

#[tokio::test]
async fn an_envelope_is_parsed_as_calls_or_answer() {
    let cases: [(&str, &str, &[&str]); 10] = [
        (r#"{"action":"search","arguments":{"query":"b"}}"#, "", &[r#"call_3 search{"query":"b"}"#]),
        (
            r#"[{"action":"search","arguments":{"query":"b"}},{"action":"now","arguments":{}}]"#,
            "",
            &[r#"call_3 search{"query":"b"}"#, "call_4 now{}"],
        ),
        (r#"{"action":"call_tool","tool":"now","arguments":{}}"#, "", &["call_3 now{}"]),
        ("```json\n{\"action\":\"now\",\"arguments\":{}}\n```", "", &["call_3 now{}"]),
        (r#"[{"action":"now"},{"action":"final","answer":{"output":"early"}}]"#, "", &["call_3 now{}"]),
        (r#"{"action":"final","answer":{"output":"done","notes":null}}"#, r#"{"output":"done"}"#, &[]),
        (r#"{"action":"final","answer":"{\"output\":\"done\"}"}"#, r#"{"output":"done"}"#, &[]),
        ("<think>hm</think>{\"output\":\"bare\"}", r#"{"output":"bare"}"#, &[]),
        (r#"{"action":"unknown","arguments":{}}"#, r#"{"action":"unknown","arguments":{}}"#, &[]),
        ("I give up.", "I give up.", &[]),
    ];
    for (reply_text, answer, expected) in cases {
        let Exchange { reply, .. } =
            play(LOCAL, StructuredMode::Auto, &request(conversation()), text(reply_text)).await;
        assert_eq!(
            (reply.text.as_str(), calls(&reply).as_slice()),
            (answer, &expected.map_strings()[..]),
            "{reply_text}"
        );
        let finish = if expected.is_empty() { FinishReason::Stop } else { FinishReason::ToolCalls };
        assert_eq!(reply.finish, finish, "{reply_text}");
    }
}

trait MapStrings {
    fn map_strings(&self) -> Vec<String>;
}

impl MapStrings for &[&str] {
    fn map_strings(&self) -> Vec<String> {
        self.iter().map(|text| (*text).to_owned()).collect()
    }
}

/// If nothing follows the last bracket, a server may have closed the brackets itself.
#[tokio::test]
async fn a_reply_that_was_cut_off_stays_so_unless_its_json_was_complete() {
    use StructuredMode::{Auto as Plain, Envelope, Prompt, Tool as Submit};
    let final_answer =
        ToolCall { id: "a".into(), name: "final__answer".into(), arguments: r#"{"output": "half"}"#.into() };
    let cut = |text: &str| Reply { text: text.into(), finish: FinishReason::Length, ..Reply::default() };
    let call = r#"{"action": "now", "arguments": {}}"#;
    for (mode, reply, finish) in [
        (Prompt, cut(r#"{"output": "half"}"#), FinishReason::Length),
        (Prompt, cut("{\"output\": \"whole\"}\n\n  "), FinishReason::Stop),
        (Prompt, cut("```json\n{\"output\": \"whole\"}\n```\nThis is"), FinishReason::Stop),
        (Prompt, cut(r#"{"output": "one"} {"output": "tw"#), FinishReason::Length),
        (Prompt, cut(r#"{"output": {"a": 1}, "notes": "x"#), FinishReason::Length),
        (Envelope, cut(r#"{"action": "final", "answer": {"output": "half"}}"#), FinishReason::Length),
        (Envelope, cut("{\"action\": \"final\", \"answer\": {\"output\": \"whole\"}}\n"), FinishReason::Stop),
        (Envelope, cut(call), FinishReason::Length),
        (Envelope, cut(&format!("{call}\n")), FinishReason::ToolCalls),
        (Plain, cut(r#"{"name": "now", "arguments": {}}"#), FinishReason::Length),
        (Submit, Reply { calls: vec![final_answer], ..cut("") }, FinishReason::Length),
    ] {
        let text = reply.text.clone();
        let converted = convert_reply_for_mode(mode, &request(conversation()), reply);
        assert_eq!(converted.finish, finish, "{mode:?}: {text}");
    }
}

#[tokio::test]
async fn an_envelope_without_tools_has_a_final_action() {
    let only_answer = Request { tools: vec![], ..request(vec![]) };
    let Exchange { sent, .. } = play(LOCAL, StructuredMode::Envelope, &only_answer, text("{}")).await;
    assert_eq!(sent.answer.unwrap().schema["properties"]["action"], json!({ "const": "final" }));
    let mut taken = request(vec![]);
    taken.tools[1].name = "final".into();
    let reply_text = text(r#"{"action":"final","arguments":{}}"#);
    let Exchange { sent, reply } = play(LOCAL, StructuredMode::Auto, &taken, reply_text).await;
    assert_eq!(calls(&reply), ["call_1 final{}"]);
    assert!(sent.system.contains("\"final_answer\", \"answer\""), "{}", sent.system);
}

#[tokio::test]
async fn the_prefix_is_stable_while_the_conversation_grows() {
    let all = conversation();
    let mut before: Option<Request> = None;
    for length in [1, 5, 7] {
        let Exchange { sent, .. } =
            play(LOCAL, StructuredMode::Auto, &request(all[..length].to_vec()), text("{}")).await;
        if let Some(before) = before {
            assert_eq!((&sent.system, &sent.answer), (&before.system, &before.answer));
            let stable = before.messages.len() - 1;
            assert_eq!(sent.messages[..stable], before.messages[..stable]);
        }
        before = Some(sent);
    }
}

#[tokio::test]
async fn a_tool_takes_the_answer_if_its_schema_cannot_be_strict() {
    let request = request(vec![]);
    let call = |name: &str, arguments: &str| ToolCall {
        id: "p1".into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    let submit = || call("final__answer", r#"{"output":"done","notes":null}"#);
    let provider_state = || Some(ProviderState { model: "a:b".into(), items: json!([]) });
    let reply_text = |calls: Vec<ToolCall>| Reply {
        calls,
        provider_state: provider_state(),
        finish: FinishReason::ToolCalls,
        ..Reply::default()
    };
    let Exchange { sent, reply } =
        play(HOSTED, StructuredMode::Auto, &request, reply_text(vec![submit()])).await;
    let names: Vec<&str> = sent.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!((names, sent.answer.is_none()), (vec!["search", "now", "final__answer"], true));
    assert_eq!(*sent.tools[2].schema, answer_schema());
    let done = Reply { text: r#"{"output":"done"}"#.into(), ..Reply::default() };
    assert_eq!(reply, done, "no provider state that refers to a call outside the conversation");

    let Exchange { reply, .. } =
        play(HOSTED, StructuredMode::Auto, &request, reply_text(vec![call("now", "{}"), submit()])).await;
    assert_eq!((calls(&reply), reply.text.as_str()), (vec!["p1 now{}".to_owned()], ""));
    let Exchange { reply, .. } =
        play(HOSTED, StructuredMode::Auto, &request, reply_text(vec![call("now", "{}")])).await;
    assert_eq!((calls(&reply).len(), reply.provider_state), (1, provider_state()), "nothing was removed");

    let written = text(r#"{"name":"final__answer","arguments":{"output":"written"}}"#);
    let Exchange { reply, .. } = play(HOSTED, StructuredMode::Auto, &request, written).await;
    assert_eq!((reply.text.as_str(), reply.finish), (r#"{"output":"written"}"#, FinishReason::Stop));
    let fenced = text("So:\n```json\n{\"output\":\"as text\"}\n```");
    let Exchange { reply, .. } = play(HOSTED, StructuredMode::Auto, &request, fenced).await;
    assert_eq!(reply.text, r#"{"output":"as text"}"#);
}

#[tokio::test]
async fn the_prompt_requests_the_answer() {
    let request = Request { tools: vec![], ..request(vec![]) };
    let Exchange { sent, reply } =
        play(HOSTED, StructuredMode::Prompt, &request, text("Sure: {\"output\":\"x\"}!")).await;
    assert!(sent.answer.is_none() && sent.system.contains(&answer_schema().to_string()), "{}", sent.system);
    assert_eq!(reply.text, r#"{"output":"x"}"#);
}

#[tokio::test]
async fn plain_requests_only_lose_reasoning_and_calls_in_text() {
    let request = Request { answer: None, ..request(vec![]) };
    let Exchange { sent, reply } =
        play(LOCAL, StructuredMode::Auto, &request, text("<think>?</think>\nYes: {\"a\":null}")).await;
    assert_eq!(sent, request);
    assert_eq!(reply.text, "Yes: {\"a\":null}");
    let written =
        text("I look.\n```json\n{\"name\":\"search\",\"arguments\":{\"query\":\"b\",\"limit\":null}}\n```");
    let Exchange { reply, .. } = play(LOCAL, StructuredMode::Auto, &request, written).await;
    assert_eq!(
        (calls(&reply), reply.text.as_str()),
        (vec![r#"call_1 search{"query":"b"}"#.to_owned()], "I look.")
    );
}

#[tokio::test]
async fn listeners_get_text_and_calls_but_no_envelopes() {
    #[derive(Default)]
    struct DeltaLog(Mutex<Vec<String>>);
    impl DeltaListener for DeltaLog {
        fn on_delta(&self, delta: Delta<'_>) {
            if !matches!(delta, Delta::Sent(_)) {
                self.0.lock().unwrap().push(format!("{delta:?}"));
            }
        }
    }
    let deltas_of = async |abilities, reply_text: &'static str| {
        let fake: Arc<FakeModel> = FakeModel::new([Outcome::TextThen(reply_text, Ok(text(reply_text)))]);
        let log = DeltaLog::default();
        resilient(fake, |model| model.structured = Some((StructuredMode::Auto, abilities)))
            .reply(&request(vec![]), &log)
            .await
            .unwrap();
        log.0.into_inner().unwrap()
    };
    assert_eq!(deltas_of(LOCAL, r#"{"action":"now","arguments":{}}"#).await, ["Hidden", "Call(\"now\")"]);
    assert_eq!(deltas_of(HOSTED, "words").await, ["Text(\"words\")"]);
}

/// Fragments of typical replies, in any order.
fn anything() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("```"),
        Just("```json\n"),
        Just("{"),
        Just("}"),
        Just("["),
        Just("]"),
        Just(","),
        Just(":"),
        Just("\n"),
        Just("\"name\":\"search\""),
        Just("\"action\":\"now\""),
        Just("\"action\":\"final\""),
        Just("\"arguments\":{}"),
        Just("\"answer\":null"),
        Just("<tool_call>"),
        Just("</tool_call>"),
        Just("<think>"),
        Just("</think>"),
        Just("[TOOL_CALLS]"),
        Just("é"),
        Just("\u{1F600}"),
        Just("null"),
        Just("{\"name\":\"now\"}"),
        Just("{\"output\":\"x\"}"),
        Just(" "),
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn only_offered_tools_are_called(reply_text in anything(), with_answer: bool) {
        let mut request = request(conversation());
        if !with_answer {
            request.answer = None;
        }
        for mode in [StructuredMode::Auto, StructuredMode::Native, StructuredMode::Tool, StructuredMode::Envelope, StructuredMode::Prompt] {
            let _ = rewrite_request_for_mode(mode, &request);
            let reply = convert_reply_for_mode(mode, &request, text(&reply_text));
            prop_assert!(reply.calls.iter().all(|call| request.tools.iter().any(|tool| tool.name == call.name)));
            prop_assert_eq!(reply.finish == FinishReason::ToolCalls, !reply.calls.is_empty());
            let again = convert_reply_for_mode(mode, &request, text(&reply_text));
            prop_assert_eq!(reply, again);
        }
    }
}
