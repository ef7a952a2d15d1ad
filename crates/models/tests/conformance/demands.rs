//! The demands of providers on a conversation, as in the table in `docs/models.md`: one conversation that breaks all of it is sent
//! over each API, and each body is checked.

use std::collections::BTreeSet;

use std::sync::Arc;

use millrace_models::model::{Message, ProviderState, Request, ToolCall, ToolResult};
use millrace_models::wire::{ModelEndpoint, WireProtocol, create_http_model};
use serde_json::{Value, json};

use super::stub::{Stub, chunked};
use super::wires::{ALL, content_type, endpoint, events, question, stream_bytes};

/// A conversation that breaks each demand of a provider: ids that repeat, are empty, too long or have other characters; results that
/// are missing, out of order, doubled or without a call; blank texts; replies in a row, at the beginning and at the end; names
/// and arguments that no provider takes.
fn broken() -> Request {
    let reply = |text: &str, calls: &[(&str, &str, &str)]| {
        let call = |(id, name, arguments): &(&str, &str, &str)| ToolCall {
            id: (*id).into(),
            name: (*name).into(),
            arguments: (*arguments).into(),
        };
        let state = ProviderState { model: "other:model".into(), items: json!([{"kept": {"secret": 1}}]) };
        let calls = calls.iter().map(call).collect();
        Message::Assistant { text: text.into(), calls, provider_state: Some(state) }
    };
    let result = |id: &str, text: &str| {
        Message::Tool(ToolResult { call_id: id.into(), text: text.into(), ..ToolResult::default() })
    };
    let user = |text: &str| Message::User { text: text.into() };
    let long = format!("functions.read:0|fc_{}", "ä".repeat(80));
    let mut request = question();
    request.system = " \n".into();
    request.messages = vec![
        reply("I begin.", &[]),
        result("gone", "of a call that was left out"),
        reply(" ", &[]),
        user(""),
        reply("", &[("c", "ls", r#"{"path": "a"}"#), ("c", "functions read!", "[1]"), (&long, "read", "")]),
        user("Quick!"),
        result(&long, "the third"),
        result("c", " \n"),
        reply("Again.", &[("c", "ls", r#"{"path":"#), ("c_2", &"x".repeat(90), "{}")]),
        result("c_2", "the second"),
        result("c", "the first"),
        result("c", "doubled"),
        reply("One.", &[]),
        reply("Two.", &[]),
        user("\t"),
        reply("", &[("", "ls", "{}"), ("call_1", "ls", "{}")]),
        reply("The end.", &[]),
    ];
    request
}

/// A message as the body of any API has it.
#[derive(Debug, PartialEq)]
enum Item {
    User(String),
    Text(String),
    /// The id, or the name where the API has no ids; the name; the arguments.
    Call(String, String, Value),
    Result(String, String),
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("it is a text: {value}")).to_owned()
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn items(wire: WireProtocol, body: &Value) -> Vec<Item> {
    match wire {
        WireProtocol::OpenAiChat | WireProtocol::Ollama => {
            list(&body["messages"]).iter().flat_map(chat_items).collect()
        }
        WireProtocol::OpenAiResponses => list(&body["input"]).iter().map(responses_item).collect(),
        WireProtocol::Anthropic | WireProtocol::Bedrock => {
            let blocks = |turn: &Value| {
                let is_user = turn["role"] == "user";
                list(&turn["content"]).into_iter().map(move |block| block_item(is_user, &block))
            };
            list(&body["messages"]).iter().flat_map(blocks).collect()
        }
        WireProtocol::Gemini => {
            let parts = |turn: &Value| {
                let is_user = turn["role"] == "user";
                list(&turn["parts"]).into_iter().map(move |part| gemini_item(is_user, &part))
            };
            list(&body["contents"]).iter().flat_map(parts).collect()
        }
    }
}

fn chat_items(message: &Value) -> Vec<Item> {
    match message["role"].as_str().unwrap() {
        "user" => vec![Item::User(text_of(&message["content"]))],
        "tool" => {
            let id = [&message["tool_call_id"], &message["tool_name"]].into_iter().find(|id| id.is_string());
            vec![Item::Result(text_of(id.unwrap()), text_of(&message["content"]))]
        }
        "assistant" => {
            let text = message["content"].as_str().filter(|text| !text.is_empty());
            let text = text.map(|text| Item::Text(text.to_owned()));
            let call = |call: &Value| {
                let function = &call["function"];
                let id = call["id"].as_str().unwrap_or_else(|| function["name"].as_str().unwrap());
                let arguments = match function["arguments"].as_str() {
                    Some(text) => serde_json::from_str(text).unwrap(),
                    None => function["arguments"].clone(),
                };
                Item::Call(id.to_owned(), text_of(&function["name"]), arguments)
            };
            text.into_iter().chain(list(&message["tool_calls"]).iter().map(call)).collect()
        }
        other => panic!("there is no system prompt: {other}"),
    }
}

fn responses_item(item: &Value) -> Item {
    match (item["type"].as_str(), item["role"].as_str()) {
        (Some("function_call"), _) => {
            let arguments = serde_json::from_str(item["arguments"].as_str().unwrap()).unwrap();
            Item::Call(text_of(&item["call_id"]), text_of(&item["name"]), arguments)
        }
        (Some("function_call_output"), _) => {
            Item::Result(text_of(&item["call_id"]), text_of(&item["output"]))
        }
        (_, Some("user")) => Item::User(text_of(&item["content"])),
        (_, Some("assistant")) => Item::Text(text_of(&item["content"])),
        other => panic!("{other:?}"),
    }
}

fn block_item(is_user: bool, block: &Value) -> Item {
    let (call, result) = (&block["toolUse"], &block["toolResult"]);
    if block["type"] == "tool_use" || call.is_object() {
        assert!(!is_user);
        let call = if call.is_object() { call } else { block };
        let id = [&call["toolUseId"], &call["id"]].into_iter().find(|id| id.is_string()).unwrap();
        Item::Call(text_of(id), text_of(&call["name"]), call["input"].clone())
    } else if block["type"] == "tool_result" || result.is_object() {
        assert!(is_user);
        let result = if result.is_object() { result } else { block };
        let id = [&result["toolUseId"], &result["tool_use_id"]].into_iter().find(|id| id.is_string());
        Item::Result(text_of(id.unwrap()), text_of(&result["content"][0]["text"]))
    } else if is_user {
        Item::User(text_of(&block["text"]))
    } else {
        Item::Text(text_of(&block["text"]))
    }
}

fn gemini_item(is_user: bool, part: &Value) -> Item {
    let (call, result) = (&part["functionCall"], &part["functionResponse"]);
    let id = |of: &Value| text_of([&of["id"], &of["name"]].into_iter().find(|id| id.is_string()).unwrap());
    if call.is_object() {
        Item::Call(id(call), text_of(&call["name"]), call["args"].clone())
    } else if result.is_object() {
        let output = [&result["response"]["output"], &result["response"]["error"]];
        Item::Result(id(result), text_of(output.into_iter().find(|text| text.is_string()).unwrap()))
    } else if is_user {
        Item::User(text_of(&part["text"]))
    } else {
        Item::Text(text_of(&part["text"]))
    }
}

/// Asserts what all providers demand.
fn assert_common_demands(items: &[Item], has_ids: bool) {
    assert!(matches!(items.first(), Some(Item::User(_))), "it begins with the user");
    assert!(matches!(items.last(), Some(Item::User(_) | Item::Result(..))), "it does not end with a reply");
    let (mut open, mut ids) = (Vec::<String>::new(), BTreeSet::new());
    for pair in items.windows(2) {
        assert!(
            !matches!(pair, [Item::Text(_) | Item::Call(..), Item::Text(_)]),
            "replies in a row: {pair:?}"
        );
    }
    for item in items {
        match item {
            Item::User(text) | Item::Text(text) => {
                assert!(!text.trim().is_empty() && open.is_empty(), "{open:?} before {text:?}");
            }
            Item::Call(id, name, arguments) => {
                assert!(!has_ids || ids.insert(id), "the id {id} repeats");
                assert!(arguments.is_object(), "{arguments}");
                let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
                assert!((1..=64).contains(&name.len()) && name.chars().all(is_word), "{name}");
                open.push(id.clone());
            }
            Item::Result(id, text) => {
                assert!(!open.is_empty() && open.remove(0) == *id, "the result of {id}");
                assert!(!text.trim().is_empty());
            }
        }
    }
    assert_eq!(open, Vec::<String>::new(), "each call has a result");
    // No text is lost.
    for text in [
        "I begin.",
        "of a call that was left out",
        "Quick!",
        "the third",
        "the second",
        "the first",
        "doubled",
        "Two.",
    ] {
        let has_text = |item: &Item| match item {
            Item::User(said) | Item::Text(said) | Item::Result(_, said) => said.contains(text),
            Item::Call(..) => false,
        };
        assert!(items.iter().any(has_text), "{text} is lost: {items:#?}");
    }
}

fn call_ids(items: &[Item]) -> Vec<&str> {
    let ids = items.iter().filter_map(|item| match item {
        Item::Call(id, ..) => Some(id.as_str()),
        Item::User(_) | Item::Text(_) | Item::Result(..) => None,
    });
    ids.collect()
}

fn roles<'a>(body: &'a Value, turns: &str) -> Vec<&'a str> {
    body[turns].as_array().unwrap().iter().map(|turn| turn["role"].as_str().unwrap()).collect()
}

async fn sent(wire: WireProtocol, change: impl Fn(&mut ModelEndpoint)) -> Value {
    let stub = Stub::new(chunked(content_type(wire), &[&stream_bytes(wire, &events(wire))])).await;
    let mut endpoint = endpoint(wire, &stub.url());
    change(&mut endpoint);
    create_http_model(endpoint, Arc::default()).reply(&broken(), &()).await.unwrap();
    stub.only_request().json()
}

#[tokio::test]
async fn each_provider_gets_what_it_demands() {
    let is_word = |id: &str| id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    for wire in ALL {
        let body = sent(wire, |_| ()).await;
        let items = items(wire, &body);
        let has_ids = !matches!(wire, WireProtocol::Gemini | WireProtocol::Ollama);
        assert_common_demands(&items, has_ids);
        for name in ["system", "instructions", "systemInstruction"] {
            assert_eq!(body.get(name), None, "{wire:?}: a blank prompt");
        }
        let ids = call_ids(&items);
        match wire {
            WireProtocol::OpenAiChat => assert!(ids.iter().all(|id| (1..=40).contains(&id.chars().count()))),
            WireProtocol::OpenAiResponses => {
                assert!(ids.iter().all(|id| (1..=64).contains(&id.chars().count())));
            }
            WireProtocol::Anthropic | WireProtocol::Bedrock => {
                assert!(ids.iter().all(|id| (1..=64).contains(&id.len()) && is_word(id)), "{ids:?}");
                let roles = roles(&body, "messages");
                assert!(roles.windows(2).all(|pair| pair[0] != pair[1]), "{wire:?}: {roles:?}");
                for turn in body["messages"].as_array().unwrap() {
                    let blocks = turn["content"].as_array().unwrap();
                    let is_result =
                        |block: &&Value| block["type"] == "tool_result" || block["toolResult"].is_object();
                    let results = blocks.iter().filter(is_result).count();
                    assert_eq!(blocks.iter().take_while(is_result).count(), results, "results come first");
                }
            }
            WireProtocol::Gemini => {
                let contents = body["contents"].as_array().unwrap();
                let count = |turn: &Value, name: &str| {
                    turn["parts"].as_array().unwrap().iter().filter(|part| part[name].is_object()).count()
                };
                for pair in contents.windows(2) {
                    assert_eq!(
                        count(&pair[0], "functionCall"),
                        count(&pair[1], "functionResponse"),
                        "{pair:?}"
                    );
                    let parts = pair[1]["parts"].as_array().unwrap().len();
                    let responses = count(&pair[1], "functionResponse");
                    assert!(responses == 0 || responses == parts, "results are a turn of their own");
                }
            }
            WireProtocol::Ollama => {}
        }
    }
}

/// Chat templates of local models refuse consecutive messages of one role; those of Mistral's models also a message of the user after
/// a result, and ids that they have not made.
#[tokio::test]
async fn local_and_mistral_models_get_alternating_roles() {
    let local = sent(WireProtocol::OpenAiChat, |endpoint| endpoint.dialect.is_local = true).await;
    let mistral =
        sent(WireProtocol::OpenAiChat, |endpoint| endpoint.full_name = "mistral:large-3".into()).await;
    let devstral = sent(WireProtocol::OpenAiChat, |endpoint| {
        endpoint.dialect.is_local = true;
        endpoint.full_name = "openai-compatible:Devstral-Small".into();
    })
    .await;
    for (body, is_mistral) in [(local, false), (mistral, true), (devstral, true)] {
        let items = items(WireProtocol::OpenAiChat, &body);
        assert_common_demands(&items, true);
        let roles = roles(&body, "messages");
        assert!(roles.windows(2).all(|pair| pair[0] != pair[1] || pair[0] == "tool"), "{roles:?}");
        if is_mistral {
            assert!(!roles.windows(2).any(|pair| pair == ["tool", "user"]), "{roles:?}");
            let is_nine = |id: &&str| id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric());
            assert!(call_ids(&items).iter().all(is_nine), "{items:?}");
        }
    }
}
