//! Corrections without tools, replies that were cut off, and calls that repeat others.

use std::sync::atomic::Ordering;
use std::time::Duration;

use millrace_agent::model::{FinishReason, Message, ModelAbility, Reply, Request};
use millrace_agent::tool::{Toolbox, append_note_tool};
use millrace_agent::turn::{AgentBrief, Answer, Machine, MachineStep, PlainText, StopReason, WorkOutcome};
use millrace_protocol::result::TaskResult;
use serde_json::json;

use super::support::{brief, call, calls, look, named, names, result, run, says, tool_results, toolbox};

fn next_request<A: Answer>(machine: &Machine<A>) -> Request {
    let MachineStep::AskModel(request) = machine.next_step() else { panic!("it asks the model") };
    request.clone()
}

fn cut_off(text: &str) -> Reply {
    Reply { finish: FinishReason::Length, ..says(text) }
}

#[test]
fn a_correction_is_requested_without_tools() {
    let (tools, _) = toolbox();
    let mut machine: Machine<TaskResult> = Machine::new(brief(&tools, TaskResult::answer_schema("research")));
    assert_eq!(next_request(&machine).tools.len(), 1);
    machine.feed_reply(says("words"), Duration::ZERO).unwrap();
    let request = next_request(&machine);
    assert_eq!(request.tools, vec![]);
    assert!(request.answer.is_some(), "the answer is all that is left");
    machine.feed_reply(says(r#"{"output": "x"}"#), Duration::ZERO).unwrap();
    let MachineStep::CheckAnswer(answer) = machine.next_step() else { panic!("it is an answer") };
    assert_eq!(answer.output, "x");
}

#[tokio::test]
async fn calls_in_place_of_a_correction_do_not_run_and_count_as_corrections() {
    let (tools, runs) = toolbox();
    let look = || calls(vec![call("a", json!({"at": "sky"}))]);
    let replies = vec![says(" "), look(), says("blue")];
    let (ended, _) = run::<PlainText>(brief(&tools, None), &tools, replies).await;
    assert_eq!(ended.outcome, WorkOutcome::Answered(PlainText("blue".into())));
    let (ended, _) = run::<PlainText>(brief(&tools, None), &tools, vec![says(" "), look(), look()]).await;
    let mistake = "it called tools in place of the corrected answer".to_owned();
    assert_eq!(ended.outcome, WorkOutcome::Stopped(StopReason::UnusableAnswer { repairs: 2, mistake }));
    assert_eq!(runs.load(Ordering::SeqCst), 0);
}

#[test]
fn a_reply_that_was_cut_off_is_not_shown_again() {
    let (tools, _) = toolbox();
    let mut machine: Machine<TaskResult> = Machine::new(brief(&tools, TaskResult::answer_schema("research")));
    machine.feed_reply(cut_off(r#"{"output": "for ever and ever"#), Duration::ZERO).unwrap();
    let request = next_request(&machine);
    assert!(!format!("{:?}", request.messages).contains("for ever"), "{:?}", request.messages);
    let Some(Message::User { text }) = request.messages.last() else { panic!("a correction") };
    assert!(text.contains("cut off at 100 tokens: give at most 50 words"), "{text}");
    assert_eq!(machine.partial_result().as_deref(), Some(r#"{"output": "for ever and ever"#));
}

#[tokio::test]
async fn no_call_of_a_reply_that_was_cut_off_runs() {
    let (look, runs) = look();
    let tools = Toolbox::new([look, append_note_tool()]).unwrap();
    let note = named("b", "append_note", r#"{"note": "half of"}"#);
    let cut = Reply {
        finish: FinishReason::Length,
        ..calls(vec![call("a", json!({"at": "sky"})), note, named("c", "look", r#"{"at": "se"#)])
    };
    let replies = vec![cut.clone(), calls(vec![call("a", json!({"at": "sky"}))]), says("blue")];
    let (ended, journal) = run::<PlainText>(brief(&tools, None), &tools, replies).await;
    assert_eq!(ended.outcome, WorkOutcome::Answered(PlainText("blue".into())));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(names(&journal), ["model.0", "model.1", "tool.1.0.look", "model.2"]);
    let mut machine: Machine<PlainText> = Machine::new(brief(&tools, None));
    machine.feed_reply(cut, Duration::ZERO).unwrap();
    let results = tool_results(&machine);
    assert_eq!(results.len(), 3);
    for (result, tool) in results.iter().zip(["look", "append_note", "look"]) {
        let expected = format!(
            "{tool} was not run, since its arguments may be incomplete: your reply was cut off at 100 tokens"
        );
        assert!(result.is_error && result.text.starts_with(&expected), "{}", result.text);
    }
    assert_eq!(machine.partial_result(), None, "no note was kept");
}

#[test]
fn a_repeated_call_withdraws_its_tool_in_place_of_ending_the_attempt() {
    let (tools, _) = toolbox();
    let mut machine: Machine<PlainText> = Machine::new(brief(&tools, None));
    let look = |machine: &mut Machine<PlainText>, at: &str| {
        machine.feed_reply(calls(vec![call("a", json!({ "at": at }))]), Duration::ZERO).unwrap();
    };
    for _ in 0..2 {
        assert_eq!(next_request(&machine).tools.len(), 1);
        look(&mut machine, "sky");
        machine.feed_results(vec![result("a", "saw sky")]).unwrap();
    }
    assert_eq!(next_request(&machine).tools, vec![]);
    let last = tool_results(&machine).pop().unwrap().text;
    assert_eq!(
        last,
        "saw sky\n\nYou made this call before, with the same result. look is no longer available."
    );
    look(&mut machine, "sea");
    let refused = tool_results(&machine).pop().unwrap();
    assert!(refused.is_error && refused.text.starts_with("look is no longer available"), "{refused:?}");
}

#[tokio::test]
async fn the_first_request_records_the_ability() {
    let (tools, _) = toolbox();
    let brief = AgentBrief { ability: ModelAbility::Small, ..brief(&tools, None) };
    let (_, journal) = run::<PlainText>(brief, &tools, vec![says(" "), says("blue")]).await;
    assert_eq!(journal.steps()[0].value["ability"], json!("small"));
    assert_eq!(journal.steps()[1].value.get("ability"), None);
}
