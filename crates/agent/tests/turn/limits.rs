//! Limits: each ends the turn with an outcome that names the limit and includes the partial output.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::model::{DeltaListener, FinishReason, Model, ModelError, Reply, Request};
use millrace_agent::tool::{Effect, Tool, Toolbox, tool_from_function, tool_with_effect};
use millrace_agent::turn::{
    Conversation, Dollars, Limits, Machine, MachineStep, MemoryHost, PlainText, StopReason, WorkOutcome,
    WorkSummary,
};
use millrace_protocol::plan::ResourceAmounts;
use millrace_protocol::result::{ErrorKind, ExceededLimit, Usage};
use serde_json::json;

use super::support::{
    self, Look, Scripted, brief, call, calls, conversation, limited, named, names, result, run, says,
    tool_results, toolbox, user_messages,
};

const NONE: Limits = Limits::DEFAULT;

/// A reply with a unique call and some text.
fn star(n: usize) -> Reply {
    let usage = Usage {
        input_tokens: 100,
        output_tokens: 10,
        cached_tokens: 50,
        cost_micros: 1_000,
        ..Usage::default()
    };
    let text = format!("star {n} is next");
    Reply { text, usage, ..calls(vec![call("x", json!({"at": format!("star {n}")}))]) }
}

#[tokio::test]
async fn every_limit_ends_the_turn_and_is_named() {
    let (tools, runs) = toolbox();
    let cents = Dollars::from_micros;
    let table = [
        (Limits { turns: 2, ..NONE }, StopReason::Turns { limit: 2 }, ExceededLimit::Turns, 1),
        (Limits { tool_calls: 2, ..NONE }, StopReason::ToolCalls { limit: 2 }, ExceededLimit::ToolCalls, 2),
        (
            // The third request would send at least 100 tokens again.
            Limits { input_tokens: Some(299), ..NONE },
            StopReason::InputTokens { limit: 299, used: 200 },
            ExceededLimit::InputTokens,
            1,
        ),
        (
            Limits { output_tokens: Some(20), ..NONE },
            StopReason::OutputTokens { limit: 20, used: 20 },
            ExceededLimit::OutputTokens,
            1,
        ),
        (
            Limits { cached_tokens: Some(120), ..NONE },
            StopReason::CachedTokens { limit: 120, used: 150 },
            ExceededLimit::CachedTokens,
            2,
        ),
        (
            Limits { cost: Some(cents(2_500)), ..NONE },
            StopReason::Cost { limit: cents(2_500), used: cents(3_000) },
            ExceededLimit::Cost,
            2,
        ),
    ];
    for (limits, stop, limit, ran) in table {
        runs.store(0, Ordering::SeqCst);
        let (ended, journal) =
            run::<PlainText>(limited(&tools, limits), &tools, (0..9).map(star).collect()).await;
        assert_eq!(ended.outcome, WorkOutcome::Stopped(stop));
        assert_eq!(runs.load(Ordering::SeqCst), ran, "{limit:?}: calls without a reader do not run");
        let model_calls = ended.usage.model_calls;
        assert_eq!(names(&journal).len() as u64, model_calls + ran as u64, "{limit:?}");
        let error = ended.into_result().unwrap_err();
        assert_eq!((error.kind, error.limit), (ErrorKind::Limit, Some(limit)));
        assert_eq!(error.usage.input_tokens, model_calls * 100);
        assert_eq!(error.produced, Some(format!("star {} is next", model_calls - 1)), "{limit:?}");
    }
}

#[tokio::test]
async fn repeated_identical_calls_end_the_turn() {
    let (tools, runs) = toolbox();
    let written = |text: &str| calls(vec![named("x", "look", text)]);
    let same = vec![
        written(r#"{"at": "sky", "depth": "near"}"#),
        written(r#"{ "depth":"near","at":"sky" }"#),
        written(r#"{"at": "sky", "depth": "near"}"#),
    ];
    let limits = Limits { identical_calls: 2, ..NONE };
    let (ended, _) = run::<PlainText>(limited(&tools, limits), &tools, same).await;
    let stop = StopReason::IdenticalCalls { tool: "look".into(), limit: 2 };
    assert_eq!((ended.outcome, runs.load(Ordering::SeqCst)), (WorkOutcome::Stopped(stop), 2));
}

/// The same call in every turn, next to calls with new results.
#[tokio::test]
async fn repetition_beside_news_does_not_count() {
    let (tools, runs) = toolbox();
    let both = |n: usize| {
        let new = json!({"at": format!("star {n}")});
        calls(vec![call("x", json!({"at": "sky"})), call("y", new)])
    };
    let replies = (0..7).map(both).chain([says("done")]).collect();
    let (ended, _) = run::<PlainText>(brief(&tools, None), &tools, replies).await;
    assert_eq!(ended.outcome, WorkOutcome::Answered(PlainText("done".into())));
    assert_eq!(runs.load(Ordering::SeqCst), 14);
}

/// A tool that has an effect each time, such as a key press, and says the same each time.
#[tokio::test]
async fn repeated_effects_are_no_repetition() {
    let press = |_: Look, _| async { Ok("pressed".to_owned()) };
    let tools = Toolbox::new([tool_with_effect(Effect::Effect, "look", "Presses a key.", press)]).unwrap();
    let replies =
        (0..7).map(|_| calls(vec![call("x", json!({"at": "down"}))])).chain([says("done")]).collect();
    let (ended, _) = run::<PlainText>(brief(&tools, None), &tools, replies).await;
    assert_eq!(ended.outcome, WorkOutcome::Answered(PlainText("done".into())));
}

#[tokio::test]
async fn filtered_reply_ends_the_turn() {
    let (tools, _) = toolbox();
    let filtered = Reply { finish: FinishReason::ContentFilter, ..says("no") };
    let (ended, _) = run::<PlainText>(brief(&tools, None), &tools, vec![filtered]).await;
    assert_eq!(ended.outcome, WorkOutcome::Stopped(StopReason::ContentFilter));
    assert_eq!(ended.into_result().unwrap_err().kind, ErrorKind::Model);
}

#[test]
fn answer_counts_even_if_it_reaches_a_limit() {
    let (tools, _) = toolbox();
    let limits = Limits { output_tokens: Some(20), input_tokens: Some(50), turns: 1, ..NONE };
    let mut machine = Machine::<PlainText>::new(limited(&tools, limits));
    let usage = Usage { input_tokens: 100, output_tokens: 30, ..Usage::default() };
    machine.feed_reply(Reply { usage, ..says("done") }, Duration::ZERO).unwrap();
    machine.feed_checked_answer(Ok(PlainText("done".into()))).unwrap();
    assert!(matches!(
        machine.next_step(),
        MachineStep::Done(WorkSummary { outcome: WorkOutcome::Answered(_), .. })
    ));
}

#[test]
fn reply_is_limited_to_the_remaining_output_tokens() {
    let (tools, _) = toolbox();
    let limits = Limits { output_tokens: Some(130), ..NONE };
    let mut machine = Machine::<PlainText>::new(limited(&tools, limits));
    let allowed = |machine: &Machine<PlainText>| {
        let MachineStep::AskModel(request) = machine.next_step() else { panic!("it asks again") };
        request.max_output_tokens
    };
    assert_eq!(allowed(&machine), 100);
    let usage = Usage { output_tokens: 90, ..Usage::default() };
    machine.feed_reply(Reply { usage, ..says(" ") }, Duration::ZERO).unwrap();
    assert_eq!(allowed(&machine), 40);
    let cut_off =
        Reply { usage: Usage { output_tokens: 39, ..usage }, finish: FinishReason::Length, ..says("lo") };
    machine.feed_reply(cut_off, Duration::ZERO).unwrap();
    assert!(user_messages(&machine).iter().any(|text| text.contains("cut off at 40 tokens")));
    assert_eq!(allowed(&machine), 1);
}

#[test]
fn model_without_calls_left_is_told_once_and_may_answer() {
    let (tools, _) = toolbox();
    let limits = Limits { tool_calls: 2, ..NONE };
    let mut machine: Machine<PlainText> = Machine::new(limited(&tools, limits));
    let three = (0..3).map(|n| call(&n.to_string(), json!({"at": n.to_string()}))).collect();
    machine.feed_reply(calls(three), Duration::ZERO).unwrap();
    let MachineStep::CallTools(good) = machine.next_step() else { panic!("two calls are left") };
    assert_eq!(good.len(), 2);
    machine.feed_results(vec![result("0", "saw"), result("1", "saw")]).unwrap();
    assert_eq!(tool_results(&machine)[2].text, "all 2 tool calls are used up");
    let MachineStep::AskModel(request) = machine.next_step() else { panic!("the model may answer") };
    assert_eq!(request.tools, vec![]);
    machine.feed_reply(says("enough"), Duration::ZERO).unwrap();
    assert!(matches!(machine.next_step(), MachineStep::CheckAnswer(PlainText(text)) if text == "enough"));
}

#[test]
fn model_is_warned_and_has_no_tools_in_its_last_turn() {
    let (tools, _) = toolbox();
    let mut machine: Machine<PlainText> = Machine::new(limited(&tools, Limits { turns: 3, ..NONE }));
    for n in 0..2 {
        let MachineStep::AskModel(request) = machine.next_step() else { panic!("turns are left") };
        assert_eq!(request.tools.len(), 1);
        machine.feed_reply(star(n), Duration::ZERO).unwrap();
        machine.feed_results(vec![result("x", "saw")]).unwrap();
    }
    let MachineStep::AskModel(request) = machine.next_step() else { panic!("one turn is left") };
    assert_eq!(request.tools, vec![]);
    assert!(user_messages(&machine).last().unwrap().starts_with("This is your last turn"));
}

#[test]
fn last_turn_never_has_tools() {
    let (tools, _) = toolbox();
    let machine = |turns| -> Machine<PlainText> { Machine::new(limited(&tools, Limits { turns, ..NONE })) };
    let only = machine(1);
    let mut mended = machine(2);
    mended.feed_reply(says(""), Duration::ZERO).unwrap();
    let mut cut = machine(3);
    cut.feed_reply(star(0), Duration::ZERO).unwrap();
    cut.feed_results(vec![result("x", "saw")]).unwrap();
    cut.feed_overflow("too long".into(), Duration::ZERO).unwrap();
    for (machine, notices) in [(only, 1), (mended, 0), (cut, 1)] {
        let MachineStep::AskModel(request) = machine.next_step() else { panic!("one turn is left") };
        assert_eq!(request.tools, vec![]);
        let warnings =
            user_messages(&machine).iter().filter(|text| text.starts_with("This is your last turn")).count();
        assert_eq!(warnings, notices, "a correction is without tools anyway");
    }
}

/// A model that takes five seconds for each reply and never replies after the end of its script.
struct TimedModel(Arc<Scripted>);

impl Model for TimedModel {
    fn name(&self) -> &str {
        "test:slow"
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        watch: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            match self.0.reply(request, watch).await {
                Ok(reply) => Ok(reply),
                Err(_) => std::future::pending().await,
            }
        }
        .boxed()
    }
}

/// A tool that takes the given number of seconds.
fn waiting() -> Toolbox {
    let wait: Arc<dyn Tool> =
        tool_from_function("look", "Waits.", |Look { at, .. }: Look, call| async move {
            assert!(call.deadline.is_some());
            tokio::time::sleep(Duration::from_secs(at.parse().unwrap())).await;
            Ok("done".into())
        });
    Toolbox::new([wait]).unwrap()
}

async fn timed(journal: &mut MemoryHost, seconds: u64, replies: Vec<Reply>) -> WorkSummary<PlainText> {
    let tools = waiting();
    let model = Arc::new(TimedModel(Scripted::new(replies)));
    let limits = Limits { time: Some(Duration::from_secs(seconds)), ..NONE };
    let conversation = Conversation::new(limited(&tools, limits), model, tools);
    support::drive(conversation, journal).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn working_time_stops_running_calls_and_survives_a_resume() {
    let waits = |seconds: &[u64]| {
        let each = seconds.iter().map(|s| call(&s.to_string(), json!({"at": s.to_string()})));
        Reply { text: "I wait.".into(), ..calls(each.collect()) }
    };
    // Two replies take 10 s; the calls take 7 s, because they run concurrently.
    let replies = vec![waits(&[3, 7, 2]), says("done")];
    let mut journal = MemoryHost::default();
    assert!(matches!(timed(&mut journal, 18, replies.clone()).await.outcome, WorkOutcome::Answered(_)));
    let stop = WorkOutcome::Stopped(StopReason::Time { limit: Duration::from_secs(16) });
    let began = tokio::time::Instant::now();
    let mut journal = MemoryHost::default();
    let ended = timed(&mut journal, 16, replies.clone()).await;
    assert_eq!((&ended.outcome, ended.produced.as_deref()), (&stop, Some("I wait.")));
    assert_eq!(began.elapsed(), Duration::from_secs(16), "the turn does not wait for the model any longer");
    for prefix in 0..=journal.steps().len() {
        let mut resumed = MemoryHost::with_steps(journal.steps()[..prefix].to_vec());
        assert_eq!(timed(&mut resumed, 16, replies.clone()).await, ended, "after {prefix} steps");
    }

    // A call that would take too long is stopped; the other calls count.
    let mut journal = MemoryHost::default();
    let ended = timed(&mut journal, 9, replies.clone()).await;
    assert_eq!(ended.outcome, WorkOutcome::Stopped(StopReason::Time { limit: Duration::from_secs(9) }));
    assert_eq!(names(&journal), ["model.0", "tool.0.2.look", "tool.0.0.look", "tool.0.1.look"]);
    assert_eq!(journal.steps()[2].value["text"], "done");
    assert!(journal.steps()[3].value["text"].as_str().unwrap().contains("working time"));
    for prefix in 0..=journal.steps().len() {
        let mut resumed = MemoryHost::with_steps(journal.steps()[..prefix].to_vec());
        assert_eq!(timed(&mut resumed, 9, replies.clone()).await, ended, "after {prefix} steps");
    }
}

#[tokio::test]
async fn model_error_ends_the_attempt_with_its_kind_and_usage() {
    struct FailingModel(ModelError);
    impl Model for FailingModel {
        fn name(&self) -> &str {
            "test:failing"
        }
        fn reply<'a>(
            &'a self,
            request: &'a Request,
            _: &'a dyn DeltaListener,
        ) -> BoxFuture<'a, Result<Reply, ModelError>> {
            let first = request.messages.len() == 1;
            futures::future::ready(if first { Ok(star(0)) } else { Err(self.0.clone()) }).boxed()
        }
    }
    let message = || "its words".to_owned();
    let table = [
        (ModelError::RateLimited { retry_after: None, message: message() }, ErrorKind::Model),
        (ModelError::Overloaded { retry_after: None, message: message() }, ErrorKind::Model),
        (ModelError::Authentication { message: message() }, ErrorKind::InvalidTask),
        (ModelError::Quota { message: message() }, ErrorKind::InvalidTask),
        (ModelError::Paused { retry_after: None, message: message() }, ErrorKind::Model),
        (ModelError::Truncated { message: message() }, ErrorKind::Model),
        (ModelError::Protocol { message: message() }, ErrorKind::Model),
        (ModelError::Timeout { after: Duration::from_secs(1) }, ErrorKind::Model),
        (ModelError::Connection { message: message() }, ErrorKind::Model),
        (ModelError::bad_request(message()), ErrorKind::InvalidTask),
        (ModelError::ContentFilter { message: message() }, ErrorKind::InvalidTask),
    ];
    let (tools, _) = toolbox();
    for (error, kind) in table {
        let mut journal = MemoryHost::default();
        let conversation = conversation(&Arc::new(FailingModel(error.clone())), &tools);
        let failure = support::drive::<PlainText>(conversation, &mut journal).await.unwrap_err();
        let task_error = millrace_protocol::result::TaskError::from(failure);
        assert_eq!((task_error.kind, task_error.message.as_str()), (kind, error.to_string().as_str()));
        assert_eq!(
            (task_error.usage.model_calls, task_error.usage.tool_calls, task_error.usage.cost_micros),
            (1, 1, 1_000)
        );
        assert_eq!(task_error.produced.as_deref(), Some("star 0 is next"));
        assert_eq!(names(&journal), ["model.0", "tool.0.0.look"], "a transient error is retried on a resume");
    }
}

/// A model whose price is not known.
struct UnpricedModel;

impl Model for UnpricedModel {
    fn name(&self) -> &str {
        "openai:unheard-of"
    }

    fn uncounted_cost(&self) -> Option<&str> {
        Some(self.name())
    }

    fn reply<'a>(
        &'a self,
        _: &'a Request,
        _: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        futures::future::ready(Ok(super::support::says("done"))).boxed()
    }
}

#[tokio::test]
async fn limited_cost_that_cannot_be_counted_is_refused_before_the_first_request() {
    let cost = |micros: u64| ResourceAmounts { cost_micros: Some(micros), ..ResourceAmounts::default() };
    let tokens = ResourceAmounts { tokens: Some(100_000), ..ResourceAmounts::default() };
    let own = Limits { cost: Some(Dollars::from_micros(10_000)), ..NONE };
    for (limits, reserved, is_refused) in [
        (NONE, cost(10_000), true),
        (own, ResourceAmounts::default(), true),
        (own, tokens, true),
        (NONE, tokens, false),
        (NONE, ResourceAmounts::default(), false),
    ] {
        let (tools, _) = toolbox();
        let mut journal = MemoryHost::default();
        let mut conversation = Conversation::new(limited(&tools, limits), Arc::new(UnpricedModel), tools);
        conversation.allowance = reserved;
        match support::drive::<PlainText>(conversation, &mut journal).await {
            Ok(_) => assert!(!is_refused, "{limits:?} {reserved}"),
            Err(failure) => {
                assert!(is_refused && journal.steps().is_empty(), "{limits:?} {reserved}: {failure}");
                let error = millrace_protocol::result::TaskError::from(failure);
                assert_eq!(error.kind, ErrorKind::InvalidTask);
                assert!(error.message.contains("no price known for openai:unheard-of"), "{}", error.message);
            }
        }
    }
}
