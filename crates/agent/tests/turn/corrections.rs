//! Corrections without tools, replies that were cut off, and calls that repeat others.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millrace_agent::files::permissions::CompiledPermissions;
use millrace_agent::files::{Files, FolderFiles};
use millrace_agent::model::{FinishReason, Message, ModelAbility, Reply, Request};
use millrace_agent::tool::files::create_file_tools;
use millrace_agent::tool::{
    Effect, Tool, Toolbox, append_note_tool, think_tool, tool_from_function, tool_with_effect,
};
use millrace_agent::turn::{
    AgentBrief, Answer, Limits, Machine, MachineStep, PlainText, StopReason, WorkOutcome,
};
use millrace_protocol::result::{ExceededLimit, TaskResult};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::support::{
    Look, brief, call, calls, limited, look, named, names, result, run, says, tool_results, toolbox,
};

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
fn a_repeated_call_gets_a_hint_then_loses_its_tool_then_ends_the_attempt() {
    let (tools, _) = toolbox();
    let mut machine: Machine<PlainText> = Machine::new(brief(&tools, None));
    let look = |machine: &mut Machine<PlainText>, at: &str| {
        machine.feed_reply(calls(vec![call("a", json!({ "at": at }))]), Duration::ZERO).unwrap();
    };
    let hints = [
        "saw sky",
        "saw sky\n\n[You made this call before, with the same result, and nothing has changed since. Make another call, or \
         answer from the information you have.]",
        "saw sky\n\n[You made this call 3 times with the same result, and nothing has changed in between. look is not \
         available until something has changed, and the task ends if you repeat the call. Continue with the information you have.]",
    ];
    for hint in hints {
        assert_eq!(next_request(&machine).tools.len(), 1);
        look(&mut machine, "sky");
        machine.feed_results(vec![result("a", "saw sky")]).unwrap();
        assert_eq!(tool_results(&machine).pop().unwrap().text, hint);
    }
    assert_eq!(next_request(&machine).tools, vec![]);
    look(&mut machine, "sea");
    let refused = tool_results(&machine).pop().unwrap();
    let text = "look is not available until something has changed. Continue with the information you have.";
    assert!(refused.is_error && refused.text == text, "{refused:?}");
    look(&mut machine, "sky");
    let MachineStep::Done(ended) = machine.next_step() else { panic!("it has ended") };
    let stop = StopReason::IdenticalCalls { tool: "look".into(), limit: 3 };
    assert_eq!(ended.outcome, WorkOutcome::Stopped(stop));
}

fn test_tool(run: impl Fn() -> String + Send + Sync + 'static) -> Arc<dyn Tool> {
    tool_from_function("test", "Runs the tests.", move |_: NoArguments, _| {
        let result = run();
        async move { Ok(result) }
    })
}

#[derive(Deserialize, JsonSchema)]
struct NoArguments {}

const LONG: Limits = Limits { turns: 60, tool_calls: 60, ..Limits::DEFAULT };

/// An agent that edits a file and runs the test makes the same call of the test each time, with the same result until the last.
#[tokio::test]
async fn forty_turns_of_edit_and_test_end_well() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("count.txt");
    std::fs::write(&file, "<0>").unwrap();
    let files: Arc<dyn Files> = Arc::new(FolderFiles::open(folder.path()).unwrap());
    let test = test_tool(move || match std::fs::read_to_string(&file).unwrap().as_str() {
        "<20>" => "all passed".into(),
        _ => "1 failed".into(),
    });
    let tools = create_file_tools(files, CompiledPermissions::default());
    let tools = Toolbox::new(tools.into_iter().chain([test])).unwrap();
    let one = |name: &str, arguments: Value| calls(vec![named("a", name, &arguments.to_string())]);
    let round = |n: u32| {
        let (old, new) = (format!("<{n}>"), format!("<{}>", n + 1));
        let edit = json!({"file_path": "/count.txt", "old_string": old, "new_string": new});
        [one("edit_file", edit), one("test", json!({}))]
    };
    let read = one("read_file", json!({"file_path": "/count.txt"}));
    let replies: Vec<Reply> =
        [read].into_iter().chain((0..20).flat_map(round)).chain([says("all pass now")]).collect();
    let (ended, journal) = run::<PlainText>(limited(&tools, LONG), &tools, replies).await;
    assert_eq!(ended.outcome, WorkOutcome::Answered(PlainText("all pass now".into())));
    assert_eq!(ended.usage.tool_calls, 41);
    let last = journal.steps().iter().rfind(|step| step.name.starts_with("tool.")).unwrap();
    assert_eq!(last.value["text"], "all passed");
}

/// A call with an effect that no file shows makes the test new as well.
#[tokio::test]
async fn forty_turns_of_switching_and_testing_end_well() {
    let switch =
        tool_with_effect(Effect::Effect, "look", "Switches.", |Look { at, .. }: Look, _| async move {
            Ok(format!("it is {at}"))
        });
    let tools = Toolbox::new([switch, test_tool(|| "1 failed".into())]).unwrap();
    let test = || calls(vec![named("a", "test", "{}")]);
    let switch =
        |n: u32| calls(vec![call("a", json!({"at": if n.is_multiple_of(2) { "on" } else { "off" }}))]);
    let replies = (0..20).flat_map(|n| [switch(n), test()]).chain([says("it always fails")]).collect();
    let (ended, _) = run::<PlainText>(limited(&tools, LONG), &tools, replies).await;
    assert_eq!(ended.outcome, WorkOutcome::Answered(PlainText("it always fails".into())));
}

#[tokio::test]
async fn forty_turns_that_change_nothing_end_early() {
    let (look, _) = look();
    let folder = tempfile::tempdir().unwrap();
    let files: Arc<dyn Files> = Arc::new(FolderFiles::open(folder.path()).unwrap());
    let others = [look, test_tool(|| "1 failed".into()), think_tool(), append_note_tool()];
    let tools = create_file_tools(files, CompiledPermissions::default()).into_iter().chain(others);
    let tools = Toolbox::new(tools).unwrap();
    let test = || calls(vec![named("a", "test", "{}")]);
    let think = |n: u32| calls(vec![named("a", "think", &json!({"thought": format!("hm {n}")}).to_string())]);
    let look = || calls(vec![call("a", json!({"at": "sky"}))]);
    let write = json!({"file_path": "/a.txt", "content": "the same"}).to_string();
    let write = || calls(vec![named("a", "write_file", &write)]);
    let note = || calls(vec![named("a", "append_note", r#"{"note": "hm"}"#)]);
    let scripts: [(Vec<Reply>, &str, u64, usize); 5] = [
        // The first call creates the file, which is another result.
        ((0..40).map(|_| write()).collect(), "write_file", 5, 4),
        ((0..40).map(|_| note()).collect(), "append_note", 4, 0),
        ((0..40).map(|_| test()).collect(), "test", 4, 3),
        ((0..20).flat_map(|n| [test(), think(n)]).collect(), "test", 7, 3),
        ((0..20).flat_map(|_| [test(), look()]).collect(), "look", 8, 3),
    ];
    for (replies, tool, requests, ran) in scripts {
        let (ended, journal) = run::<PlainText>(limited(&tools, LONG), &tools, replies).await;
        let stop = StopReason::IdenticalCalls { tool: tool.into(), limit: 3 };
        let error = ended.clone().into_result().unwrap_err();
        assert_eq!(ended.usage.model_calls, requests);
        assert!(error.message.contains("while nothing else changed"), "{}", error.message);
        assert_eq!(
            (ended.outcome, error.limit),
            (WorkOutcome::Stopped(stop), Some(ExceededLimit::IdenticalCalls))
        );
        let runs = names(&journal).iter().filter(|name| name.ends_with(tool)).count();
        assert_eq!(runs, ran, "the last one is refused");
    }
}

#[tokio::test]
async fn the_first_request_records_the_ability() {
    let (tools, _) = toolbox();
    let brief = AgentBrief { ability: ModelAbility::Small, ..brief(&tools, None) };
    let (_, journal) = run::<PlainText>(brief, &tools, vec![says(" "), says("blue")]).await;
    assert_eq!(journal.steps()[0].value["ability"], json!("small"));
    assert_eq!(journal.steps()[1].value.get("ability"), None);
}
