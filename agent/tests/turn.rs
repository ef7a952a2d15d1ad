//! The agent's turn with a scripted model: what the machine does with good and bad replies, where it stops, and that a
//! resume from any recorded step comes to the same end without asking twice.

#![allow(clippy::unwrap_used, reason = "a test and its helpers may panic")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::model::{
    AnswerSchema, Finish, Message, Model, ModelError, Reply, Request, ToolCall, ToolResult,
};
use millrace_agent::tool::{Tool, ToolError, Toolbox, typed};
use millrace_agent::turn::{
    Answer, Brief, DriveError, Ended, JournalError, JournalStep, Limits, Machine, MemoryJournal, Outcome,
    PlainText, Step, Stop, drive,
};
use millrace_protocol::result::{TaskResult, Usage};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

/// Answers the n-th turn of a conversation with the n-th reply, and counts how often each was asked for.
struct Scripted {
    replies: Vec<Reply>,
    asked: Mutex<BTreeMap<usize, usize>>,
}

impl Scripted {
    fn new(replies: Vec<Reply>) -> Self {
        Self { replies, asked: Mutex::default() }
    }

    fn asked(&self) -> BTreeMap<usize, usize> {
        self.asked.lock().unwrap().clone()
    }
}

impl Model for Scripted {
    fn name(&self) -> &str {
        "test:scripted"
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        _: &'a dyn Watch,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        let turn = request.messages.iter().filter(|m| matches!(m, Message::Assistant { .. })).count();
        *self.asked.lock().unwrap().entry(turn).or_default() += 1;
        let reply = self.replies.get(turn).cloned();
        let missing = || ModelError::Overloaded { message: format!("no reply for turn {turn}") };
        futures::future::ready(reply.ok_or_else(missing)).boxed()
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Look {
    /// What to look at.
    at: String,
    /// How closely.
    depth: Option<Depth>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Depth {
    Near,
    Far,
}

/// A toolbox with one tool that counts its runs.
fn toolbox() -> (Toolbox, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let look = typed("look", "Looks.", move |Look { at, depth }: Look| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move {
            match at.as_str() {
                "nothing" => Err(ToolError::Refused("there is nothing".into())),
                "down" => Err(ToolError::Unavailable("the store is down".into())),
                _ => Ok(format!("saw {at}{}", if depth.is_some() { " closely" } else { "" })),
            }
        }
    });
    (Toolbox::new([look]).unwrap(), runs)
}

fn brief(toolbox: &Toolbox, answer: Option<AnswerSchema>) -> Brief {
    Brief {
        system: "You look.".into(),
        task: "Look.".into(),
        tools: toolbox.specs(),
        answer,
        limits: Limits::default(),
        max_output_tokens: 100,
    }
}

fn call(id: &str, arguments: serde_json::Value) -> ToolCall {
    ToolCall { id: id.into(), name: "look".into(), arguments: arguments.to_string() }
}

fn calls(calls: Vec<ToolCall>) -> Reply {
    let usage = Usage { input_tokens: 10, output_tokens: 1, ..Usage::default() };
    Reply { calls, usage, finish: Finish::ToolCalls, ..Reply::default() }
}

fn says(text: &str) -> Reply {
    Reply { text: text.into(), ..Reply::default() }
}

async fn run<A: Answer>(brief: Brief, toolbox: &Toolbox, replies: Vec<Reply>) -> (Ended<A>, MemoryJournal) {
    let mut journal = MemoryJournal::default();
    let model = Scripted::new(replies);
    let ended = drive(Machine::new(brief), &model, toolbox, &mut journal).await.unwrap();
    (ended, journal)
}

/// The tool results that the model saw on its last turn.
fn told<A: Answer>(machine: &Machine<A>) -> Vec<ToolResult> {
    let results = machine.messages().iter().filter_map(|message| match message {
        Message::Tool(result) => Some(result.clone()),
        Message::User { .. } | Message::Assistant { .. } => None,
    });
    results.collect()
}

fn two_turns() -> Vec<Reply> {
    vec![
        calls(vec![call("a", json!({"at": "sky"})), call("b", json!({"at": "nothing"}))]),
        calls(vec![call("c", json!({"at": "sea", "depth": "near"}))]),
        says("done"),
    ]
}

#[tokio::test]
async fn a_resume_from_any_recorded_step_comes_to_the_same_end_and_asks_nothing_twice() {
    let (tools, runs) = toolbox();
    let (whole, journal) = run::<PlainText>(brief(&tools, None), &tools, two_turns()).await;
    let names: Vec<&str> = journal.steps().iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["model.0", "tool.0.0.look", "tool.0.1.look", "model.1", "tool.1.0.look", "model.2"]);
    assert_eq!(whole.outcome, Outcome::Answered(PlainText("done".into())));
    let usage = Usage { model_calls: 3, tool_calls: 3, input_tokens: 20, output_tokens: 2 };
    assert_eq!(whole.usage, usage);

    for prefix in 0..=names.len() {
        runs.store(0, Ordering::SeqCst);
        let model = Scripted::new(two_turns());
        let mut resumed = MemoryJournal::holding(journal.steps()[..prefix].to_vec());
        let ended = drive::<PlainText>(Machine::new(brief(&tools, None)), &model, &tools, &mut resumed)
            .await
            .unwrap();
        assert_eq!((&ended, resumed.steps()), (&whole, journal.steps()), "prefix {prefix}");
        let open = names[prefix..].to_vec();
        assert_eq!(runs.load(Ordering::SeqCst), open.iter().filter(|name| name.starts_with("tool")).count());
        let open_turns: Vec<usize> =
            open.iter().filter_map(|name| name.strip_prefix("model.")?.parse().ok()).collect();
        assert_eq!(
            model.asked().into_iter().collect::<Vec<_>>(),
            open_turns.iter().map(|t| (*t, 1)).collect::<Vec<_>>()
        );
    }
}

#[test]
fn a_machine_serialised_between_any_two_steps_goes_on_identically() {
    let (tools, _) = toolbox();
    let mut machine: Machine<PlainText> = Machine::new(brief(&tools, None));
    let mut replies = two_turns().into_iter();
    loop {
        let text = serde_json::to_string(&machine).unwrap();
        let copy: Machine<PlainText> = serde_json::from_str(&text).unwrap();
        assert_eq!((&copy, copy.next()), (&machine, machine.next()));
        machine = copy;
        match machine.next() {
            Step::AskModel(_) => machine.feed_reply(replies.next().unwrap()).unwrap(),
            Step::CallTools(calls) => {
                let results = calls.iter().map(|call| ToolResult {
                    call_id: call.call_id.clone(),
                    text: "saw".into(),
                    is_error: false,
                });
                machine.feed_results(results.collect()).unwrap();
            }
            Step::Done(ended) => {
                break assert_eq!(ended.outcome, Outcome::Answered(PlainText("done".into())));
            }
        }
    }
}

#[test]
fn a_bad_call_is_told_to_the_model_and_never_runs() {
    let (tools, _) = toolbox();
    let mut machine: Machine<PlainText> = Machine::new(brief(&tools, None));
    let named = |id: &str, name: &str, arguments: &str| ToolCall {
        id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    let mixed = vec![
        named("1", "peek", "{}"),
        named("2", "look", r#"{"at": "sky""#),
        named("3", "look", r#"{"at": "sky"}"#),
        named("4", "look", r#"{"at": 7}"#),
        named("5", "look", "{}"),
        named("6", "look", r#"{"at": "sky", "depth": "deep"}"#),
        named("7", "look", r#"{"at": "sky", "until": "noon"}"#),
    ];
    machine.feed_reply(calls(mixed)).unwrap();
    let Step::CallTools(good) = machine.next() else { panic!("one call is good") };
    assert_eq!(good.iter().map(|call| call.call_id.as_str()).collect::<Vec<_>>(), ["3"]);
    let saw = ToolResult { call_id: "3".into(), text: "saw sky".into(), is_error: false };
    machine.feed_results(vec![saw.clone()]).unwrap();

    let told = told(&machine);
    assert_eq!(
        told.iter().map(|result| result.call_id.as_str()).collect::<Vec<_>>(),
        ["1", "2", "3", "4", "5", "6", "7"]
    );
    assert_eq!(told[2], saw);
    let starts = [
        "there is no tool 'peek'; the tools are: look",
        "the arguments of look are not JSON: EOF while parsing an object at line 1 column 12; expected: {",
        "saw sky",
        "the arguments of look do not fit: 'at' must be a string, not number",
        "the arguments of look do not fit: 'at' is missing",
        "the arguments of look do not fit: 'depth'",
        "the arguments of look do not fit: 'until' is not known; known are 'at', 'depth'",
    ];
    for (result, start) in told.iter().zip(starts) {
        assert!(result.text.starts_with(start), "{}", result.text);
    }

    machine.feed_reply(calls(vec![named("8", "peek", "{}")])).unwrap();
    assert!(
        matches!(machine.next(), Step::AskModel(_)),
        "nothing but bad calls: the model is asked again at once"
    );
}

#[test]
fn results_must_be_those_of_the_calls_in_their_order() {
    let (tools, _) = toolbox();
    let mut machine: Machine<PlainText> = Machine::new(brief(&tools, None));
    let result = |id: &str| ToolResult { call_id: id.into(), text: String::new(), is_error: false };
    assert!(machine.feed_results(vec![]).is_err());
    machine.feed_reply(two_turns().remove(0)).unwrap();
    assert!(machine.feed_reply(says("early")).is_err());
    for wrong in [vec!["b", "a"], vec!["a"], vec!["a", "b", "b"]] {
        assert!(machine.feed_results(wrong.into_iter().map(result).collect()).is_err());
    }
    machine.feed_results(vec![result("a"), result("b")]).unwrap();
}

#[tokio::test]
async fn a_wrong_answer_is_mended_at_most_twice() {
    let (tools, _) = toolbox();
    let schema = || TaskResult::schema("research");
    let good = says(r#"{"output": "x"}"#);
    let replies = vec![says("words"), says(r#"{"output": 7}"#), good.clone()];
    let (ended, _) = run::<TaskResult>(brief(&tools, schema()), &tools, replies).await;
    let Outcome::Answered(result) = ended.outcome else { panic!("{:?}", ended.outcome) };
    assert_eq!(result.output, "x");

    let replies = vec![says("words"), says("{}"), says(r#"{"output": 7}"#), good];
    let (ended, _) = run::<TaskResult>(brief(&tools, schema()), &tools, replies).await;
    let Outcome::Stopped(Stop::UnusableAnswer { repairs: 2, mistake }) = ended.outcome else {
        panic!("{:?}", ended.outcome)
    };
    assert!(mistake.contains("invalid type: integer"), "{mistake}");
}

#[test]
fn a_mistake_is_shown_to_the_model_before_it_answers_again() {
    let (tools, _) = toolbox();
    let mut machine: Machine<TaskResult> = Machine::new(brief(&tools, TaskResult::schema("research")));
    machine.feed_reply(says(r#"{"output": " "}"#)).unwrap();
    machine.feed_reply(Reply { finish: Finish::Length, ..says(r#"{"output": "lo"#) }).unwrap();
    let asked: Vec<&str> = machine
        .messages()
        .iter()
        .filter_map(|message| match message {
            Message::User { text } => Some(text.as_str()),
            Message::Assistant { .. } | Message::Tool(_) => None,
        })
        .collect();
    assert_eq!(
        asked[1..],
        [
            "Your answer could not be used. 'output' is empty and there is no 'data'. Give the whole answer again, corrected.",
            "Your answer could not be used. It was cut off at 100 tokens; answer more briefly. Give the whole answer again, corrected.",
        ]
    );
}

#[tokio::test]
async fn every_limit_ends_in_an_outcome_that_names_it() {
    let (tools, runs) = toolbox();
    let limited = |limits: Limits| Brief { limits, ..brief(&tools, None) };
    let same = || calls(vec![call("x", json!({"at": "sky"}))]);
    let other = |n: usize| calls(vec![call("x", json!({"at": format!("star {n}")}))]);

    let limits = Limits { identical_calls: 2, ..Limits::default() };
    let (ended, _) = run::<PlainText>(limited(limits), &tools, vec![same(), same(), same()]).await;
    let stop = Stop::IdenticalCalls { tool: "look".into(), limit: 2 };
    assert_eq!((ended.outcome, runs.load(Ordering::SeqCst)), (Outcome::Stopped(stop), 2));

    let limits = Limits { turns: 2, ..Limits::default() };
    let (ended, _) = run::<PlainText>(limited(limits), &tools, vec![other(0), other(1), other(2)]).await;
    assert_eq!(ended.outcome, Outcome::Stopped(Stop::Turns { limit: 2 }));

    runs.store(0, Ordering::SeqCst);
    let limits = Limits { tool_calls: 2, ..Limits::default() };
    let (ended, _) = run::<PlainText>(limited(limits), &tools, (0..4).map(other).collect()).await;
    assert_eq!(ended.outcome, Outcome::Stopped(Stop::ToolCalls { limit: 2 }));
    assert_eq!(runs.load(Ordering::SeqCst), 2);

    let filtered = Reply { finish: Finish::ContentFilter, ..says("no") };
    let (ended, _) = run::<PlainText>(brief(&tools, None), &tools, vec![filtered]).await;
    assert_eq!(ended.outcome, Outcome::Stopped(Stop::ContentFilter));
}

#[test]
fn when_the_calls_are_used_up_the_model_is_told_once_and_may_still_answer() {
    let (tools, _) = toolbox();
    let limits = Limits { tool_calls: 2, ..Limits::default() };
    let mut machine: Machine<PlainText> = Machine::new(Brief { limits, ..brief(&tools, None) });
    let three = (0..3).map(|n| call(&n.to_string(), json!({"at": n.to_string()}))).collect();
    machine.feed_reply(calls(three)).unwrap();
    let Step::CallTools(good) = machine.next() else { panic!("two calls are left") };
    assert_eq!(good.len(), 2);
    let result = |id: &str| ToolResult { call_id: id.into(), text: "saw".into(), is_error: false };
    machine.feed_results(vec![result("0"), result("1")]).unwrap();
    assert_eq!(told(&machine)[2].text, "all 2 tool calls are used up");
    let Step::AskModel(request) = machine.next() else { panic!("the model may answer") };
    assert_eq!(request.tools, vec![]);
    machine.feed_reply(says("enough")).unwrap();
    assert!(matches!(machine.next(), Step::Done(Ended { outcome: Outcome::Answered(_), .. })));
}

#[tokio::test]
async fn a_tool_out_of_reach_ends_the_attempt_and_what_was_recorded_stays() {
    let (tools, _) = toolbox();
    let mut journal = MemoryJournal::default();
    let reply = calls(vec![call("a", json!({"at": "sky"})), call("b", json!({"at": "down"}))]);
    let model = Scripted::new(vec![reply]);
    let machine = Machine::<PlainText>::new(brief(&tools, None));
    let fault = drive(machine, &model, &tools, &mut journal).await.unwrap_err();
    assert!(matches!(&fault, DriveError::Tool { tool, .. } if tool == "look"), "{fault}");
    assert_eq!(journal.steps().len(), 2, "the reply and the first result");
}

#[tokio::test]
async fn a_journal_of_other_work_is_refused() {
    let (tools, _) = toolbox();
    let steps = vec![JournalStep { name: "model.1".into(), value: json!(null) }];
    let mut journal = MemoryJournal::holding(steps);
    let model = Scripted::new(two_turns());
    let machine = Machine::<PlainText>::new(brief(&tools, None));
    let fault = drive(machine, &model, &tools, &mut journal).await.unwrap_err();
    assert!(matches!(fault, DriveError::Journal(JournalError::Diverged { position: 0, .. })), "{fault}");
    assert_eq!(model.asked(), BTreeMap::new());
}

#[tokio::test]
async fn the_calls_of_one_turn_run_at_once() {
    let barrier = Arc::new(tokio::sync::Barrier::new(3));
    let meet: Arc<dyn Tool> = typed("look", "Meets.", move |Look { at, .. }: Look| {
        let barrier = barrier.clone();
        async move {
            barrier.wait().await;
            Ok(at)
        }
    });
    let tools = Toolbox::new([meet]).unwrap();
    let three = ["a", "b", "c"].map(|id| call(id, json!({"at": id}))).to_vec();
    let work = run::<PlainText>(brief(&tools, None), &tools, vec![calls(three), says("met")]);
    let (ended, _) =
        tokio::time::timeout(std::time::Duration::from_secs(10), work).await.expect("all three meet");
    assert_eq!(ended.usage.tool_calls, 3);
}
