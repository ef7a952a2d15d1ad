//! The agent's turn with a scripted model: valid and invalid replies, limits, and that a resume from any recorded step
//! comes to the same end without repeated requests.

mod allowance;
mod answers;
mod approvals;
mod context;
mod corrections;
mod delegation;
mod effects;
mod fork;
mod images;
mod inner;
mod large;
mod limits;
mod outage;
mod overflow;
mod programs;
mod properties;
mod support;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millrace_agent::model::{Reply, ToolResult};
use millrace_agent::tool::{Call, Effect, Output, Tool, ToolError, ToolSpec, Toolbox, tool_from_function};
use millrace_agent::turn::{
    DriveError, JournalStep, Machine, MachineStep, MemoryHost, PlainText, WorkOutcome,
};
use millrace_protocol::result::Usage;
use serde_json::{Value, json};

use support::{
    Look, Scripted, brief, call, calls, conversation, drive, look, named, names, result, run, says,
    tool_results, toolbox,
};

fn two_turns() -> Vec<Reply> {
    vec![
        calls(vec![call("a", json!({"at": "sky"})), call("b", json!({"at": "nothing"}))]),
        calls(vec![call("c", json!({"at": "sea", "depth": "near"}))]),
        says("done"),
    ]
}

/// The steps of a journal without the measured durations, which differ between runs.
fn steps_without_durations(journal: &MemoryHost) -> Vec<JournalStep> {
    let mut steps = journal.steps().to_vec();
    for step in &mut steps {
        step.value.as_object_mut().expect("a step is an object").remove("took_ms");
    }
    steps
}

#[tokio::test]
async fn resume_from_any_step_gives_the_same_end_without_repeats() {
    let (tools, runs) = toolbox();
    let (whole, journal) = run::<PlainText>(brief(&tools, None), &tools, two_turns()).await;
    let names = names(&journal);
    assert_eq!(names, ["model.0", "tool.0.0.look", "tool.0.1.look", "model.1", "tool.1.0.look", "model.2"]);
    assert_eq!(whole.outcome, WorkOutcome::Answered(PlainText("done".into())));
    let usage =
        Usage { model_calls: 3, tool_calls: 3, input_tokens: 20, output_tokens: 2, ..Usage::default() };
    assert_eq!(whole.usage, usage);

    for prefix in 0..=names.len() {
        runs.store(0, Ordering::SeqCst);
        let model = Scripted::new(two_turns());
        let mut resumed = MemoryHost::with_steps(journal.steps()[..prefix].to_vec());
        let ended = drive::<PlainText>(conversation(&model, &tools), &mut resumed).await.unwrap();
        let steps = |journal: &MemoryHost| steps_without_durations(journal);
        assert_eq!((&ended, steps(&resumed)), (&whole, steps(&journal)), "prefix {prefix}");
        let open = names[prefix..].to_vec();
        assert_eq!(runs.load(Ordering::SeqCst), open.iter().filter(|name| name.starts_with("tool")).count());
        let open_turns: Vec<usize> =
            open.iter().filter_map(|name| name.strip_prefix("model.")?.parse().ok()).collect();
        assert_eq!(
            model.requests_by_turn().into_iter().collect::<Vec<_>>(),
            open_turns.iter().map(|t| (*t, 1)).collect::<Vec<_>>()
        );
    }
}

#[tokio::test]
async fn results_recorded_in_any_order_give_the_same_end() {
    let (tools, runs) = toolbox();
    let three = ["a", "b", "c"].map(|id| call(id, json!({"at": id}))).to_vec();
    let replies = vec![calls(three), says("done")];
    let (whole, journal) = run::<PlainText>(brief(&tools, None), &tools, replies.clone()).await;
    let steps = journal.steps();
    assert_eq!(steps.len(), 5);
    for order in [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]] {
        for recorded in 0..=3 {
            runs.store(0, Ordering::SeqCst);
            let model = Scripted::new(replies.clone());
            let held = [0].into_iter().chain(order).take(1 + recorded).map(|at: usize| steps[at].clone());
            let mut resumed = MemoryHost::with_steps(held.collect());
            let ended = drive::<PlainText>(conversation(&model, &tools), &mut resumed).await.unwrap();
            assert_eq!(ended, whole);
            assert_eq!(runs.load(Ordering::SeqCst), 3 - recorded);
            assert_eq!(
                names(&resumed).into_iter().collect::<BTreeSet<_>>(),
                names(&journal).into_iter().collect::<BTreeSet<_>>()
            );
        }
    }
}

#[tokio::test]
async fn results_are_recorded_as_they_come_and_shown_in_call_order() {
    let (release, released) = tokio::sync::watch::channel(false);
    let slow: Arc<dyn Tool> =
        tool_from_function("look", "The first waits for the second.", move |Look { at, .. }: Look, _| {
            let (release, mut released) = (release.clone(), released.clone());
            async move {
                if at == "first" {
                    released.wait_for(|released| *released).await.unwrap();
                } else {
                    release.send_replace(true);
                }
                Ok(format!("saw {at}"))
            }
        });
    let tools = Toolbox::new([slow]).unwrap();
    let two = ["first", "second"].map(|id| call(id, json!({"at": id}))).to_vec();
    let (_, journal) =
        run::<PlainText>(brief(&tools, None), &tools, vec![calls(two.clone()), says("done")]).await;
    assert_eq!(names(&journal), ["model.0", "tool.0.1.look", "tool.0.0.look", "model.1"]);

    let mut machine = Machine::<PlainText>::new(brief(&tools, None));
    machine.feed_reply(calls(two), Duration::ZERO).unwrap();
    machine.feed_results(vec![result("first", "1"), result("second", "2")]).unwrap();
    assert_eq!(
        tool_results(&machine).iter().map(|results| results.text.as_str()).collect::<Vec<_>>(),
        ["1", "2"]
    );
}

#[test]
fn machine_serialised_between_any_steps_continues_identically() {
    let (tools, _) = toolbox();
    let mut machine: Machine<PlainText> = Machine::new(brief(&tools, None));
    let mut replies = two_turns().into_iter();
    loop {
        let text = serde_json::to_string(&machine).unwrap();
        let copy: Machine<PlainText> = serde_json::from_str(&text).unwrap();
        assert_eq!((&copy, copy.next_step()), (&machine, machine.next_step()));
        machine = copy;
        match machine.next_step() {
            MachineStep::AskModel(_) => {
                machine.feed_reply(replies.next().unwrap(), Duration::from_millis(7)).unwrap()
            }
            MachineStep::CallTools(calls) => {
                let results = calls.iter().map(|call| result(&call.call_id, "saw"));
                let results = results.collect();
                machine.feed_results(results).unwrap();
            }
            MachineStep::Shorten(_) => unreachable!("its context has no settings"),
            MachineStep::CheckAnswer(answer) => {
                let answer = answer.clone();
                machine.feed_checked_answer(Ok(answer)).unwrap();
            }
            MachineStep::Done(ended) => {
                break assert_eq!(ended.outcome, WorkOutcome::Answered(PlainText("done".into())));
            }
        }
    }
}

#[test]
fn invalid_call_is_reported_to_the_model_and_never_runs() {
    let (tools, _) = toolbox();
    let table = [
        ("peek", "{}", "there is no tool 'peek'; the tools are: look"),
        ("lok", "{}", "there is no tool 'lok'; did you mean 'look'? the tools are: look"),
        (
            "functions.look",
            "{}",
            "there is no tool 'functions.look'; did you mean 'look'? the tools are: look",
        ),
        (
            "look",
            r#"{"at": "sky""#,
            "the arguments of look are not JSON: EOF while parsing an object at line 1 column 12; expected: {",
        ),
        ("look", r#"["sky"]"#, "the arguments of look are not one JSON object; expected: {"),
        (
            "look",
            r#"{"at": 7}"#,
            "the arguments of look do not fit: 'at' must be a string, not number. Correct",
        ),
        (
            "look",
            "{}",
            "the arguments of look do not fit: 'at' is missing; it must be a string: The object to look at.",
        ),
        (
            "look",
            r#"{"at": "sky", "depth": "deep"}"#,
            r#"the arguments of look do not fit: 'depth' must be one of "near", "far", null, not "deep""#,
        ),
        (
            "look",
            r#"{"at": "sky", "depht": "near"}"#,
            "the arguments of look do not fit: 'depht' is unknown; did you mean 'depth'? known fields: 'at', 'depth'",
        ),
        ("look", r#"{"at": "x"#, "the arguments of look are not JSON"),
    ];
    let mut machine: Machine<PlainText> = Machine::new(brief(&tools, None));
    let mut mixed: Vec<_> = table
        .iter()
        .enumerate()
        .map(|(at, (name, arguments, _))| named(&at.to_string(), name, arguments))
        .collect();
    mixed.insert(2, named("good", "look", r#"{"at": "sky"}"#));
    machine.feed_reply(calls(mixed.clone()), Duration::ZERO).unwrap();
    let MachineStep::CallTools(good) = machine.next_step() else { panic!("one call is good") };
    assert_eq!(good.iter().map(|call| call.call_id.as_str()).collect::<Vec<_>>(), ["good"]);
    machine.feed_results(vec![result("good", "saw sky")]).unwrap();

    let mut results = tool_results(&machine);
    assert_eq!(
        results.iter().map(|result| &result.call_id).collect::<Vec<_>>(),
        mixed.iter().map(|call| &call.id).collect::<Vec<_>>()
    );
    assert_eq!(results.remove(2), result("good", "saw sky").result);
    for (ToolResult { text, is_error, .. }, (.., start)) in results.iter().zip(table) {
        assert!(text.starts_with(start) && *is_error, "{text}");
    }

    machine.feed_reply(calls(vec![named("8", "peek", "{}")]), Duration::ZERO).unwrap();
    assert!(
        matches!(machine.next_step(), MachineStep::AskModel(_)),
        "nothing but bad calls: the model is asked again at once"
    );
}

#[test]
fn calls_beyond_the_limit_are_refused_one_by_one() {
    let (tools, _) = toolbox();
    let limits = millrace_agent::turn::Limits { tool_calls: 1_000, ..Default::default() };
    let mut machine: Machine<PlainText> = Machine::new(support::limited(&tools, limits));
    let many: Vec<_> = (0..200).map(|n| call(&n.to_string(), json!({"at": n.to_string()}))).collect();
    machine.feed_reply(calls(many), Duration::ZERO).unwrap();
    let MachineStep::CallTools(good) = machine.next_step() else { panic!("the first are good") };
    assert_eq!(good.len(), millrace_agent::turn::MAX_CALLS_AT_ONCE);
    let results = good.iter().map(|call| result(&call.call_id, "saw")).collect();
    machine.feed_results(results).unwrap();
    assert_eq!(tool_results(&machine).len(), 200);
    assert!(tool_results(&machine)[199].text.starts_with("at most 50 calls may be made at once"));
}

#[test]
fn calls_with_equal_or_empty_ids_are_distinguished() {
    let (tools, _) = toolbox();
    let mut machine: Machine<PlainText> = Machine::new(brief(&tools, None));
    let ids = ["a", "a", "", ""];
    let four = ids.iter().enumerate().map(|(at, id)| call(id, json!({"at": at.to_string()}))).collect();
    machine.feed_reply(calls(four), Duration::ZERO).unwrap();
    let MachineStep::CallTools(good) = machine.next_step() else { panic!("all are good") };
    let results: Vec<&str> = good.iter().map(|call| call.call_id.as_str()).collect();
    assert_eq!(results, ["a", "call_0_1", "call_0_2", "call_0_3"]);
}

#[test]
fn results_must_match_the_calls_in_order() {
    let (tools, _) = toolbox();
    let mut machine: Machine<PlainText> = Machine::new(brief(&tools, None));
    assert!(machine.feed_results(vec![]).is_err());
    machine.feed_reply(two_turns().remove(0), Duration::ZERO).unwrap();
    let refusal = machine.feed_reply(says("early"), Duration::ZERO).unwrap_err();
    assert_eq!(refusal.to_string(), "the agent waits for tool results but got a reply");
    assert!(machine.feed_checked_answer(Ok(PlainText(String::new()))).is_err());
    for wrong in [vec!["b", "a"], vec!["a"], vec!["a", "b", "b"]] {
        assert!(machine.feed_results(wrong.into_iter().map(|id| result(id, "")).collect()).is_err());
    }
    machine.feed_results(vec![result("a", ""), result("b", "")]).unwrap();
}

#[tokio::test]
async fn unavailable_tool_ends_the_attempt_after_recording_others() {
    let (tools, _) = toolbox();
    let mut journal = MemoryHost::default();
    let two = ["sky", "down", "sea"].map(|at| call(at, json!({"at": at}))).to_vec();
    let model = Scripted::new(vec![Reply { text: "I look.".into(), ..calls(two) }]);
    let failure = drive::<PlainText>(conversation(&model, &tools), &mut journal).await.unwrap_err();
    assert!(matches!(failure.error.as_ref(), DriveError::Tool { tool, .. } if tool == "look"), "{failure}");
    assert_eq!(names(&journal), ["model.0", "tool.0.0.look", "tool.0.2.look"]);
    let error = millrace_protocol::result::TaskError::from(failure);
    assert_eq!(error.kind, millrace_protocol::result::ErrorKind::Tool);
    assert_eq!((error.usage.model_calls, error.usage.input_tokens), (1, 10));
    assert_eq!(error.produced.as_deref(), Some("I look."));
}

#[tokio::test]
async fn tool_panic_is_reported_to_the_model() {
    let (tools, _) = toolbox();
    let replies = vec![calls(vec![call("a", json!({"at": "abyss"}))]), says("done")];
    let (ended, journal) = run::<PlainText>(brief(&tools, None), &tools, replies).await;
    assert_eq!(ended.outcome, WorkOutcome::Answered(PlainText("done".into())));
    assert_eq!(journal.steps()[1].value["text"], "look crashed; continue without it");
}

#[tokio::test]
async fn journal_of_other_work_is_rejected() {
    let (tools, _) = toolbox();
    let steps = vec![JournalStep { name: "model.1".into(), value: json!(null) }];
    let mut journal = MemoryHost::with_steps(steps);
    let model = Scripted::new(two_turns());
    let failure = drive::<PlainText>(conversation(&model, &tools), &mut journal).await.unwrap_err();
    assert!(matches!(failure.error.as_ref(), DriveError::Host(_)), "{failure}");
    assert!(failure.to_string().contains("the journal diverged at step 0"), "{failure}");
    assert_eq!(model.requests_by_turn(), BTreeMap::new());
}

#[tokio::test]
async fn calls_of_one_turn_run_concurrently() {
    let barrier = Arc::new(tokio::sync::Barrier::new(3));
    let meet: Arc<dyn Tool> = tool_from_function("look", "Meets.", move |Look { at, .. }: Look, _| {
        let barrier = barrier.clone();
        async move {
            barrier.wait().await;
            Ok(at)
        }
    });
    let tools = Toolbox::new([meet]).unwrap();
    let three = ["a", "b", "c"].map(|id| call(id, json!({"at": id}))).to_vec();
    let (ended, _) = run::<PlainText>(brief(&tools, None), &tools, vec![calls(three), says("met")]).await;
    assert_eq!(ended.usage.tool_calls, 3);
}

/// A tool with state in this process only.
struct StatefulTool(Mutex<Vec<String>>);

impl Tool for StatefulTool {
    fn spec(&self) -> ToolSpec {
        look().0.spec()
    }

    fn effect(&self) -> Effect {
        Effect::Idempotent
    }

    fn call<'a>(
        &'a self,
        arguments: Value,
        _: &'a Call,
    ) -> futures::future::BoxFuture<'a, Result<Output, ToolError>> {
        self.0.lock().unwrap().push(format!("called {}", arguments["at"]));
        Box::pin(async move { Ok(format!("saw {}", arguments["at"]).into()) })
    }

    fn on_replay(&self, arguments: &Value, result: &ToolResult, _: &Call) {
        self.0.lock().unwrap().push(format!("replayed {}: {}", arguments["at"], result.text));
    }
}

#[tokio::test]
async fn resumed_tool_is_notified_of_its_earlier_calls() {
    let seen = Arc::new(StatefulTool(Mutex::default()));
    let tools = Toolbox::new([seen.clone() as Arc<dyn Tool>]).unwrap();
    let (_, journal) = run::<PlainText>(brief(&tools, None), &tools, two_turns()).await;
    seen.0.lock().unwrap().clear();
    let mut resumed = MemoryHost::with_steps(journal.steps()[..4].to_vec());
    let model = Scripted::new(two_turns());
    drive::<PlainText>(conversation(&model, &tools), &mut resumed).await.unwrap();
    let seen = seen.0.lock().unwrap().clone();
    assert_eq!(
        seen,
        [r#"replayed "sky": saw "sky""#, r#"replayed "nothing": saw "nothing""#, r#"called "sea""#]
    );
}
