//! The shape layer as an agent meets it: a request goes in, a model says whatever models say, a reply comes out.

#![allow(clippy::unwrap_used, reason = "a test and its helpers may panic")]

mod support;

use std::sync::{Arc, Mutex};

use millrace_models::choice::Structured;
use millrace_models::model::{
    AnswerSchema, Delta, Finish, Keepsake, Message, Model, Reply, Request, ToolCall, ToolResult, ToolSpec,
    Watch,
};
use millrace_models::shape::{Abilities, Form, Shaped, answered, asked};
use millrace_models::wire::Native;
use serde_json::{Value, json};

use proptest::prelude::*;
use support::{Outcome, Puppet};

const LOCAL: Abilities = Abilities {
    native: Native { structured: true, tools: true, tools_with_structured: false },
    grammar: true,
};
const HOSTED: Abilities = Abilities { grammar: false, ..LOCAL };
const DUMB: Abilities = Abilities {
    native: Native { structured: false, tools: false, tools_with_structured: false },
    grammar: false,
};

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
        description: format!("Does {name}."),
        schema,
    };
    Request {
        system: "You are careful.".into(),
        messages,
        tools: vec![tool("search", search), tool("now", json!({ "type": "object", "properties": {} }))],
        answer: Some(AnswerSchema { name: "research".into(), schema: answer_schema() }),
        max_output_tokens: 500,
    }
}

fn conversation() -> Vec<Message> {
    let call = |id: &str, name: &str, arguments: &str| ToolCall {
        id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    let result = |id: &str, text: &str, is_error| {
        Message::Tool(ToolResult { call_id: id.into(), text: text.into(), is_error })
    };
    let calls = vec![call("c1", "search", r#"{"query":"a"}"#), call("c2", "now", "{}")];
    vec![
        Message::User { text: "Task.".into() },
        Message::Assistant { text: "I look.".into(), calls, keepsake: None },
        result("c1", "hit", false),
        result("c2", "no clock", true),
        Message::User { text: "Go on.".into() },
        Message::Assistant { text: "{\"output\":\"bad\"}".into(), calls: vec![], keepsake: None },
        Message::User { text: "It does not fit.".into() },
    ]
}

struct Played {
    sent: Request,
    reply: Reply,
}

async fn play(abilities: Abilities, structured: Structured, request: &Request, said: Reply) -> Played {
    let puppet = Puppet::new([Outcome::from(Ok(said))]);
    let model = Shaped::new(puppet.clone(), abilities, structured);
    let reply = model.reply(request, &()).await.unwrap();
    Played { sent: puppet.requests().remove(0), reply }
}

fn text(text: &str) -> Reply {
    Reply { text: text.into(), ..Reply::default() }
}

fn calls(reply: &Reply) -> Vec<String> {
    reply.calls.iter().map(|call| format!("{} {}{}", call.id, call.name, call.arguments)).collect()
}

#[tokio::test]
async fn an_envelope_holds_the_tools_the_answer_and_the_conversation_so_far() {
    let Played { sent, .. } = play(LOCAL, Structured::Auto, &request(conversation()), text("{}")).await;
    assert!(sent.tools.is_empty());
    assert!(sent.system.starts_with("You are careful.\n\nReply with one JSON value"), "{}", sent.system);
    for told in ["TOOL \"search\": Does search.", "TOOL \"now\"", "{\"action\": \"final\", \"answer\": …}"]
    {
        assert!(sent.system.contains(told), "{}", sent.system);
    }
    let schema = sent.answer.unwrap().schema;
    let kinds: Vec<&Value> = schema["oneOf"].as_array().unwrap().iter().collect();
    assert_eq!(kinds.len(), 4);
    assert_eq!(kinds[0]["properties"]["action"], json!({ "const": "search" }));
    assert_eq!(kinds[0]["properties"]["arguments"]["properties"]["query"], json!({ "type": "string" }));
    assert_eq!((&kinds[2]["type"], &kinds[2]["maxItems"]), (&json!("array"), &json!(8)));
    assert_eq!(kinds[3]["properties"]["answer"]["required"], json!(["output"]));
    let said: Vec<(bool, String)> = sent
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
        (
            true,
            "Result of search:\nhit\n\nError of now:\nno clock\n\nIf this is enough, answer now with the action \"final\".\n\nGo on.",
        ),
        (false, r#"{"action":"final","answer":{"output":"bad"}}"#),
        (true, "It does not fit."),
    ];
    assert_eq!(said, expected.map(|(user, text)| (user, text.to_owned())));
}

#[tokio::test]
async fn what_comes_in_an_envelope_is_calls_or_the_answer() {
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
    for (said, answer, expected) in cases {
        let Played { reply, .. } = play(LOCAL, Structured::Auto, &request(conversation()), text(said)).await;
        assert_eq!(
            (reply.text.as_str(), calls(&reply).as_slice()),
            (answer, &expected.map_strings()[..]),
            "{said}"
        );
        let finish = if expected.is_empty() { Finish::Stop } else { Finish::ToolCalls };
        assert_eq!(reply.finish, finish, "{said}");
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

#[tokio::test]
async fn an_envelope_without_tools_or_answer_still_has_an_end() {
    let only_text = Request { answer: None, ..request(vec![]) };
    let said = text(r#"{"action":"final","answer":"Hello."}"#);
    let Played { sent, reply } = play(DUMB, Structured::Auto, &only_text, said).await;
    assert_eq!(reply.text, "Hello.");
    assert!(sent.answer.is_some());
    let only_answer = Request { tools: vec![], ..request(vec![]) };
    let Played { sent, .. } = play(LOCAL, Structured::Envelope, &only_answer, text("{}")).await;
    assert_eq!(sent.answer.unwrap().schema["properties"]["action"], json!({ "const": "final" }));
    let mut taken = request(vec![]);
    taken.tools[1].name = "final".into();
    let said = text(r#"{"action":"final","arguments":{}}"#);
    let Played { sent, reply } = play(LOCAL, Structured::Auto, &taken, said).await;
    assert_eq!(calls(&reply), ["call_1 final{}"]);
    assert!(sent.system.contains("\"final_answer\", \"answer\""), "{}", sent.system);
}

#[tokio::test]
async fn the_beginning_of_what_is_sent_does_not_change_while_the_conversation_grows() {
    let all = conversation();
    let mut before: Option<Request> = None;
    for length in [1, 5, 7] {
        let Played { sent, .. } =
            play(LOCAL, Structured::Auto, &request(all[..length].to_vec()), text("{}")).await;
        if let Some(before) = before {
            assert_eq!((&sent.system, &sent.answer), (&before.system, &before.answer));
            let stable = before.messages.len() - 1;
            assert_eq!(sent.messages[..stable], before.messages[..stable]);
        }
        before = Some(sent);
    }
}

#[tokio::test]
async fn a_tool_takes_the_answer_where_the_schema_can_not_be_strict() {
    let asked = request(vec![]);
    let call = |name: &str, arguments: &str| ToolCall {
        id: "p1".into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    let submit = || call("final__answer", r#"{"output":"done","notes":null}"#);
    let keepsake = || Some(Keepsake { model: "a:b".into(), items: json!([]) });
    let said = |calls: Vec<ToolCall>| Reply {
        calls,
        keepsake: keepsake(),
        finish: Finish::ToolCalls,
        ..Reply::default()
    };
    let Played { sent, reply } = play(HOSTED, Structured::Auto, &asked, said(vec![submit()])).await;
    let names: Vec<&str> = sent.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!((names, sent.answer.is_none()), (vec!["search", "now", "final__answer"], true));
    assert_eq!(sent.tools[2].schema, answer_schema());
    let done = Reply { text: r#"{"output":"done"}"#.into(), ..Reply::default() };
    assert_eq!(reply, done, "the provider would want to see a call that the conversation does not know");

    let Played { reply, .. } =
        play(HOSTED, Structured::Auto, &asked, said(vec![call("now", "{}"), submit()])).await;
    assert_eq!((calls(&reply), reply.text.as_str()), (vec!["p1 now{}".to_owned()], ""));
    let Played { reply, .. } = play(HOSTED, Structured::Auto, &asked, said(vec![call("now", "{}")])).await;
    assert_eq!((calls(&reply).len(), reply.keepsake), (1, keepsake()), "nothing was taken out");

    let written = text(r#"{"name":"final__answer","arguments":{"output":"written"}}"#);
    let Played { reply, .. } = play(HOSTED, Structured::Auto, &asked, written).await;
    assert_eq!((reply.text.as_str(), reply.finish), (r#"{"output":"written"}"#, Finish::Stop));
    let fenced = text("So:\n```json\n{\"output\":\"as text\"}\n```");
    let Played { reply, .. } = play(HOSTED, Structured::Auto, &asked, fenced).await;
    assert_eq!(reply.text, r#"{"output":"as text"}"#);
}

#[tokio::test]
async fn words_ask_for_the_answer_where_nothing_else_does() {
    let asked = Request { tools: vec![], ..request(vec![]) };
    let Played { sent, reply } =
        play(DUMB, Structured::Auto, &asked, text("Sure: {\"output\":\"x\"}!")).await;
    assert!(sent.answer.is_none() && sent.system.contains(&answer_schema().to_string()), "{}", sent.system);
    assert_eq!(reply.text, r#"{"output":"x"}"#);
}

#[tokio::test]
async fn a_plain_request_goes_and_comes_as_it_is_but_for_thoughts_and_written_calls() {
    let asked = Request { answer: None, ..request(vec![]) };
    let Played { sent, reply } =
        play(LOCAL, Structured::Auto, &asked, text("<think>?</think>\nYes: {\"a\":null}")).await;
    assert_eq!(sent, asked);
    assert_eq!(reply.text, "Yes: {\"a\":null}");
    let written =
        text("I look.\n```json\n{\"name\":\"search\",\"arguments\":{\"query\":\"b\",\"limit\":null}}\n```");
    let Played { reply, .. } = play(LOCAL, Structured::Auto, &asked, written).await;
    assert_eq!(
        (calls(&reply), reply.text.as_str()),
        (vec![r#"call_1 search{"query":"b"}"#.to_owned()], "I look.")
    );
}

#[tokio::test]
async fn an_onlooker_hears_words_and_calls_but_no_envelopes() {
    #[derive(Default)]
    struct Heard(Mutex<Vec<String>>);
    impl Watch for Heard {
        fn delta(&self, delta: Delta<'_>) {
            self.0.lock().unwrap().push(format!("{delta:?}"));
        }
    }
    let hear = async |abilities, said: &'static str| {
        let puppet: Arc<Puppet> = Puppet::new([Outcome::Said(said, Ok(text(said)))]);
        let heard = Heard::default();
        Shaped::new(puppet, abilities, Structured::Auto).reply(&request(vec![]), &heard).await.unwrap();
        heard.0.into_inner().unwrap()
    };
    assert_eq!(hear(LOCAL, r#"{"action":"now","arguments":{}}"#).await, ["Call(\"now\")"]);
    assert_eq!(hear(HOSTED, "words").await, ["Text(\"words\")"]);
}

/// Pieces of what models write, put together in any order.
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
    fn whatever_a_model_writes_it_calls_only_tools_that_are_offered(said in anything(), with_answer: bool) {
        let mut request = request(conversation());
        if !with_answer {
            request.answer = None;
        }
        for form in [Form::Plain, Form::Native, Form::Submit, Form::Envelope, Form::Prompt] {
            let _ = asked(form, &request);
            let reply = answered(form, &request, text(&said));
            prop_assert!(reply.calls.iter().all(|call| request.tools.iter().any(|tool| tool.name == call.name)));
            prop_assert_eq!(reply.finish == Finish::ToolCalls, !reply.calls.is_empty());
            let again = answered(form, &request, text(&said));
            prop_assert_eq!(reply, again);
        }
    }
}
