//! Tools that work on the conversation: they are answered at once, write nothing to the journal, and do not count as
//! tool calls.

use std::time::Duration;

use millrace_agent::tool::{
    Call, Toolbox, append_note_tool, now_tool, read_notes_tool, think_tool, write_todos_tool,
};
use millrace_agent::turn::{Limits, Machine, MachineStep, PlainText, WorkOutcome};
use serde_json::json;

use super::support::{call, calls, limited, look, named, names, result, run, says, tool_results};

fn tools() -> Toolbox {
    Toolbox::new([
        think_tool(),
        write_todos_tool(),
        append_note_tool(),
        read_notes_tool(),
        now_tool(),
        look().0,
    ])
    .unwrap()
}

fn todos(id: &str, content: &str) -> millrace_agent::model::ToolCall {
    let list = json!({"todos": [{"content": content, "status": "pending"}]});
    named(id, "write_todos", &list.to_string())
}

#[tokio::test]
async fn inner_tools_use_the_conversation_and_not_the_journal() {
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
    assert_eq!(ended.outcome, WorkOutcome::Answered(PlainText("done".into())));
    assert_eq!(ended.usage.tool_calls, 2, "think, todos and notes are not counted");
    assert_eq!(names(&journal), ["model.0", "tool.0.0.look", "model.1", "tool.1.0.now", "model.2"]);
    let time = journal.steps()[3].value["text"].as_str().unwrap().to_owned();
    assert!(time.contains('T') && time.contains("Z ("), "{time}");

    let mut machine: Machine<PlainText> = Machine::new(limited(&tools, limits));
    machine.feed_reply(replies[0].clone(), Duration::ZERO).unwrap();
    machine.feed_results(vec![result("5", "saw sky")]).unwrap();
    let texts: Vec<String> = tool_results(&machine).into_iter().map(|texts| texts.text).collect();
    assert_eq!(
        texts,
        [
            "Noted (2 characters). Continue.",
            "Updated todo list to:\n[pending] look",
            "Note 1 saved (4 characters in total).",
            "1. blue",
            "saw sky",
        ]
    );
}

#[test]
fn two_to_do_lists_in_one_message_are_both_rejected() {
    let tools = tools();
    let mut machine: Machine<PlainText> = Machine::new(limited(&tools, Limits::DEFAULT));
    machine.feed_reply(calls(vec![todos("1", "kept")]), Duration::ZERO).unwrap();
    assert!(matches!(machine.next_step(), MachineStep::AskModel(_)), "there is no call to run");
    machine.feed_reply(calls(vec![todos("2", "one"), todos("3", "other")]), Duration::ZERO).unwrap();
    let texts = tool_results(&machine);
    for refused in &texts[1..] {
        assert!(
            refused.is_error && refused.text.starts_with("write_todos was called several times"),
            "{refused:?}"
        );
    }
    assert_eq!(machine.partial_result().unwrap(), "To-do list:\n[pending] kept");
}

#[test]
fn bad_arguments_of_inner_tools_are_reported_to_the_model() {
    let tools = tools();
    let mut machine: Machine<PlainText> = Machine::new(limited(&tools, Limits::DEFAULT));
    let bad = vec![
        named("1", "write_todos", r#"{"todos": [{"content": "a", "status": "done"}]}"#),
        named("2", "append_note", r#"{"note": ""}"#),
        named("3", "read_notes", r#"{"whole": "yes"}"#),
        named("4", "think", r#"{}"#),
    ];
    machine.feed_reply(calls(bad), Duration::ZERO).unwrap();
    let texts: Vec<String> = tool_results(&machine).into_iter().map(|texts| texts.text).collect();
    let expected = [
        r#"'todos[0].status' must be one of "pending", "in_progress", "completed", not "done""#,
        "'note' must have at least 1 characters",
        "'whole' must be a boolean or null, not string",
        "'thought' is missing; it must be a string",
    ];
    for (texts, expected) in texts.iter().zip(expected) {
        assert!(texts.contains(expected), "{texts}");
    }
}

#[tokio::test]
async fn inner_tools_fail_outside_a_conversation() {
    let refusal = think_tool().call(json!({"thought": "x"}), &Call::default()).await.unwrap_err();
    assert_eq!(refusal.to_string(), "think works only inside an agent's conversation");
}
