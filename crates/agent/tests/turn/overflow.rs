//! Conversations that overflow the model's context: compacted twice, then given up, and the same on a resume.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::model::{DeltaListener, Message, Model, ModelError, Reply, Request};
use millrace_agent::tool::{Toolbox, append_note_tool, write_todos_tool};
use millrace_agent::turn::{
    Conversation, Limits, Machine, MachineStep, MemoryHost, PlainText, StopReason, WorkOutcome, WorkSummary,
};
use millrace_protocol::result::ExceededLimit;
use serde_json::json;

use super::support::{
    self, brief, call, calls, limited, look, named, names, result, results_in, says, toolbox,
};

/// A model with room for `room` results, which calls `look` until it has `wanted` more results than notes.
struct SmallContextModel {
    room: usize,
    wanted: usize,
    /// The conversations in its requests.
    shown: Mutex<Vec<Vec<Message>>>,
}

impl SmallContextModel {
    fn new(room: usize, wanted: usize) -> Arc<Self> {
        Arc::new(Self { room, wanted, shown: Mutex::default() })
    }
}

impl Model for SmallContextModel {
    fn name(&self) -> &str {
        "test:small"
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        _: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        self.shown.lock().unwrap().push(request.messages.clone());
        let seen = results_in(&request.messages).len();
        let id = self.shown.lock().unwrap().len();
        let reply = if seen > self.room {
            Err(ModelError::ContextOverflow { message: format!("{seen} are too many") })
        } else if seen >= self.wanted {
            Ok(says("done"))
        } else {
            let at = json!({"at": format!("{id} {}", "long ".repeat(100))});
            let note = named("n", "append_note", &json!({"note": format!("looked {id} times")}).to_string());
            Ok(calls(vec![call(&id.to_string(), at), note]))
        };
        futures::future::ready(reply).boxed()
    }
}

fn tools() -> Toolbox {
    Toolbox::new([look().0, append_note_tool(), write_todos_tool()]).unwrap()
}

async fn drive(model: &Arc<SmallContextModel>, journal: &mut MemoryHost) -> WorkSummary<PlainText> {
    let tools = tools();
    let brief = limited(&tools, Limits { tool_calls: 100, ..Limits::DEFAULT });
    support::drive(Conversation::new(brief, model.clone(), tools), journal).await.unwrap()
}

#[tokio::test]
async fn conversation_is_compacted_at_most_twice() {
    // Each call of `look` adds two results: its own, and that of the note.
    for (room, wanted, compactions, answered) in
        [(100, 8, 0, true), (10, 10, 0, true), (10, 12, 1, false), (0, 2, 1, false)]
    {
        let model = SmallContextModel::new(room, wanted);
        let mut journal = MemoryHost::default();
        let ended = drive(&model, &mut journal).await;
        let overflows =
            journal.steps().iter().filter(|step| step.value["heard"].get("overflow").is_some()).count();
        if answered {
            assert_eq!(ended.outcome, WorkOutcome::Answered(PlainText("done".into())));
            assert_eq!(overflows, compactions);
        } else {
            let stop = StopReason::Context { compactions: 2, message: "12 are too many".into() };
            let WorkOutcome::Stopped(StopReason::Context { compactions, .. }) = &ended.outcome else {
                panic!("{:?}", ended.outcome)
            };
            assert_eq!((*compactions, overflows), (2, 3), "{stop}");
            let error = ended.into_result().unwrap_err();
            assert_eq!(error.limit, Some(ExceededLimit::Context));
            assert!(error.produced.unwrap().contains("looked 1 times"), "the notes are the partial output");
        }
    }
}

#[tokio::test]
async fn resume_after_any_step_compacts_identically() {
    let model = SmallContextModel::new(10, 12);
    let mut journal = MemoryHost::default();
    let ended = drive(&model, &mut journal).await;
    let whole = model.shown.lock().unwrap().clone();
    for prefix in 0..=journal.steps().len() {
        let again = SmallContextModel::new(10, 12);
        // Its replies depend on the number of requests.
        let answered = names(&journal)[..prefix].iter().filter(|name| name.starts_with("model")).count();
        *again.shown.lock().unwrap() = whole[..answered].to_vec();
        let mut resumed = MemoryHost::with_steps(journal.steps()[..prefix].to_vec());
        assert_eq!(drive(&again, &mut resumed).await, ended, "after {prefix} steps");
        assert_eq!(names(&resumed), names(&journal));
        assert_eq!(again.shown.lock().unwrap().clone(), whole, "the requests are the same");
    }
}

#[test]
fn overflow_keeps_the_task_the_notes_and_half_of_the_calls() {
    let tools = tools();
    let limits = Limits { tool_calls: 5, ..Limits::DEFAULT };
    let mut machine: Machine<PlainText> = Machine::new(limited(&tools, limits));
    let note = named("n", "append_note", r#"{"note": "the sky is blue"}"#);
    let mut all: Vec<_> = (0..5).map(|n| call(&n.to_string(), json!({"at": n.to_string()}))).collect();
    all.push(note);
    machine.feed_reply(calls(all), Duration::ZERO).unwrap();
    let long = "long ".repeat(10_000);
    machine.feed_results((0..5).map(|n| result(&n.to_string(), &long)).collect()).unwrap();
    let MachineStep::AskModel(request) = machine.next_step() else { panic!("it asks for an answer") };
    assert_eq!(request.tools, vec![], "no calls are left");
    let before: usize = request.messages.iter().map(|message| format!("{message:?}").len()).sum();

    machine.feed_overflow("too long".into(), Duration::ZERO).unwrap();
    let MachineStep::AskModel(request) = machine.next_step() else { panic!("it asks again") };
    assert_eq!(request.messages[0], Message::User { text: "Look.".into() });
    assert!(matches!(&request.messages[1], Message::User { text } if text.contains("1. the sky is blue")));
    assert_eq!(request.messages.len(), 9, "the newest turn is kept with its long results cut");
    let after: usize = request.messages.iter().map(|message| format!("{message:?}").len()).sum();
    assert!(after < before / 2);
    assert_eq!(request.tools.len(), 3);
    let four = (5..9).map(|n| call(&n.to_string(), json!({"at": n.to_string()}))).collect();
    machine.feed_reply(calls(four), Duration::ZERO).unwrap();
    let MachineStep::CallTools(good) = machine.next_step() else { panic!("three calls are left") };
    assert_eq!(good.len(), 3);
}

#[test]
fn third_overflow_ends_the_attempt() {
    let (tools, runs) = toolbox();
    let mut machine: Machine<PlainText> = Machine::new(brief(&tools, None));
    for _ in 0..2 {
        machine.feed_overflow("too long".into(), Duration::ZERO).unwrap();
        assert!(matches!(machine.next_step(), MachineStep::AskModel(_)));
    }
    machine.feed_overflow("too long".into(), Duration::ZERO).unwrap();
    let MachineStep::Done(ended) = machine.next_step() else { panic!("it is over") };
    let stop = StopReason::Context { compactions: 2, message: "too long".into() };
    assert_eq!(ended.outcome, WorkOutcome::Stopped(stop));
    assert_eq!((ended.usage.model_calls, runs.load(Ordering::SeqCst)), (3, 0));
}
