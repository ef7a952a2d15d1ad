//! The tools that live in the conversation: they are answered at once, journal nothing and cost no tool call.

use std::time::Duration;

use millrace_agent::tool::{Call, Toolbox, append_note, now, read_notes, think, write_todos};
use millrace_agent::turn::{Limits, Machine, Outcome, PlainText, Step};
use serde_json::json;

use crate::support::{call, calls, limited, look, named, names, result, run, says, told};

fn tools() -> Toolbox {
    Toolbox::new([think(), write_todos(), append_note(), read_notes(), now(), look().0]).unwrap()
}

fn todos(id: &str, content: &str) -> millrace_agent::model::ToolCall {
    let list = json!({"todos": [{"content": content, "status": "pending"}]});
    named(id, "write_todos", &list.to_string())
}

#[tokio::test]
async fn inner_tools_are_answered_from_the_conversation_and_leave_nothing_in_the_journal() {
    let tools = tools();
    let replies = vec![
        calls(vec![
            named("1", "think", r#"{"thought": "hm"}"#),
            todos("2", "look"),
            named("3", "append_note", r#"{"note": "blue"}"#),
            named("4", "read_notes", "{}"),
            call("5", json!({"at": "sky"})),
        ]),
        calls(vec![named("6", "now", "{}")]),
        says("done"),
    ];
    let limits = Limits { tool_calls: 3, ..Limits::DEFAULT };
    let (ended, journal) = run::<PlainText>(limited(&tools, limits), &tools, replies.clone()).await;
    assert_eq!(ended.outcome, Outcome::Answered(PlainText("done".into())));
    assert_eq!(ended.usage.tool_calls, 2, "think, todos and notes are not counted");
    assert_eq!(names(&journal), ["model.0", "tool.0.0.look", "model.1", "tool.1.0.now", "model.2"]);
    let time = journal.steps()[3].value["text"].as_str().unwrap().to_owned();
    assert!(time.contains('T') && time.contains("Z ("), "{time}");

    let mut machine: Machine<PlainText> = Machine::new(limited(&tools, limits));
    machine.feed_reply(replies[0].clone(), Duration::ZERO).unwrap();
    machine.feed_results(vec![result("5", "saw sky")]).unwrap();
    let told: Vec<String> = told(&machine).into_iter().map(|told| told.text).collect();
    assert_eq!(
        told,
        [
            "Noted (2 characters). Go on.",
            "Updated todo list to:\n[pending] look",
            "Note 1 kept (4 characters in all).",
            "1. blue",
            "saw sky",
        ]
    );
}

#[test]
fn of_two_to_do_lists_in_one_message_neither_counts() {
    let tools = tools();
    let mut machine: Machine<PlainText> = Machine::new(limited(&tools, Limits::DEFAULT));
    machine.feed_reply(calls(vec![todos("1", "kept")]), Duration::ZERO).unwrap();
    assert!(matches!(machine.next(), Step::AskModel(_)), "nothing is to be run");
    machine.feed_reply(calls(vec![todos("2", "one"), todos("3", "other")]), Duration::ZERO).unwrap();
    let told = told(&machine);
    for refused in &told[1..] {
        assert!(
            refused.is_error && refused.text.starts_with("write_todos was called several times"),
            "{refused:?}"
        );
    }
    assert_eq!(machine.produced().unwrap(), "To-do list:\n[pending] kept");
}

#[test]
fn bad_arguments_of_inner_tools_are_told_like_those_of_others() {
    let tools = tools();
    let mut machine: Machine<PlainText> = Machine::new(limited(&tools, Limits::DEFAULT));
    let bad = vec![
        named("1", "write_todos", r#"{"todos": [{"content": "a", "status": "done"}]}"#),
        named("2", "append_note", r#"{"note": ""}"#),
        named("3", "read_notes", r#"{"whole": "yes"}"#),
        named("4", "think", r#"{}"#),
    ];
    machine.feed_reply(calls(bad), Duration::ZERO).unwrap();
    let told: Vec<String> = told(&machine).into_iter().map(|told| told.text).collect();
    let expected = [
        r#"'todos[0].status' must be one of "pending", "in_progress", "completed", not "done""#,
        "'note' must have at least 1 characters",
        "'whole' must be a boolean or null, not string",
        "'thought' is missing; it must be a string",
    ];
    for (told, expected) in told.iter().zip(expected) {
        assert!(told.contains(expected), "{told}");
    }
}

#[tokio::test]
async fn outside_of_a_conversation_inner_tools_do_nothing() {
    let refusal = think().call(json!({"thought": "x"}), &Call::default()).await.unwrap_err();
    assert_eq!(refusal.to_string(), "think works inside an agent's conversation only");
}
