//! Every limit ends in an outcome that names it, with what was produced.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::model::{Finish, Model, ModelError, Reply, Request, Watch};
use millrace_agent::tool::{Tool, Toolbox, typed};
use millrace_agent::turn::{
    Dollars, Driver, Ended, Limits, Machine, MemoryJournal, Outcome, PlainText, Step, Stop,
};
use millrace_protocol::result::{ErrorKind, Limit, Usage};
use serde_json::json;

use crate::support::{
    Look, Scripted, asked, brief, call, calls, limited, named, names, result, run, says, told, toolbox,
};

const NONE: Limits = Limits::DEFAULT;

/// A call of its own in each turn, and what it says beside it.
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
async fn every_limit_ends_in_an_outcome_that_names_it_and_runs_nothing_more() {
    let (tools, runs) = toolbox();
    let cents = Dollars::of_micros;
    let table = [
        (Limits { turns: 2, ..NONE }, Stop::Turns { limit: 2 }, Limit::Turns, 1),
        (Limits { tool_calls: 2, ..NONE }, Stop::ToolCalls { limit: 2 }, Limit::ToolCalls, 2),
        (
            // The third question would send 100 tokens again at the least.
            Limits { input_tokens: Some(299), ..NONE },
            Stop::InputTokens { limit: 299, used: 200 },
            Limit::InputTokens,
            1,
        ),
        (
            Limits { output_tokens: Some(20), ..NONE },
            Stop::OutputTokens { limit: 20, used: 20 },
            Limit::OutputTokens,
            1,
        ),
        (
            Limits { cached_tokens: Some(120), ..NONE },
            Stop::CachedTokens { limit: 120, used: 150 },
            Limit::CachedTokens,
            2,
        ),
        (
            Limits { cost: Some(cents(2_500)), ..NONE },
            Stop::Cost { limit: cents(2_500), used: cents(3_000) },
            Limit::Cost,
            2,
        ),
    ];
    for (limits, stop, limit, ran) in table {
        runs.store(0, Ordering::SeqCst);
        let (ended, journal) =
            run::<PlainText>(limited(&tools, limits), &tools, (0..9).map(star).collect()).await;
        assert_eq!(ended.outcome, Outcome::Stopped(stop));
        assert_eq!(runs.load(Ordering::SeqCst), ran, "{limit:?}: calls that nobody would hear of do not run");
        let asked = ended.usage.model_calls;
        assert_eq!(names(&journal).len() as u64, asked + ran as u64, "{limit:?}");
        let error = ended.into_result().unwrap_err();
        assert_eq!((error.kind, error.limit), (ErrorKind::Limit, Some(limit)));
        assert_eq!(error.usage.input_tokens, asked * 100);
        assert_eq!(error.produced, Some(format!("star {} is next", asked - 1)), "{limit:?}");
    }
}

#[tokio::test]
async fn one_call_over_and_over_ends_the_work_however_it_is_written() {
    let (tools, runs) = toolbox();
    let written = |text: &str| calls(vec![named("x", "look", text)]);
    let same = vec![
        written(r#"{"at": "sky", "depth": "near"}"#),
        written(r#"{ "depth":"near","at":"sky" }"#),
        written(r#"{"at": "sky", "depth": "near"}"#),
    ];
    let limits = Limits { identical_calls: 2, ..NONE };
    let (ended, _) = run::<PlainText>(limited(&tools, limits), &tools, same).await;
    let stop = Stop::IdenticalCalls { tool: "look".into(), limit: 2 };
    assert_eq!((ended.outcome, runs.load(Ordering::SeqCst)), (Outcome::Stopped(stop), 2));
}

#[tokio::test]
async fn a_filtered_reply_ends_the_work() {
    let (tools, _) = toolbox();
    let filtered = Reply { finish: Finish::ContentFilter, ..says("no") };
    let (ended, _) = run::<PlainText>(brief(&tools, None), &tools, vec![filtered]).await;
    assert_eq!(ended.outcome, Outcome::Stopped(Stop::ContentFilter));
    assert_eq!(ended.into_result().unwrap_err().kind, ErrorKind::Model);
}

#[test]
fn an_answer_counts_even_if_it_reaches_a_limit() {
    let (tools, _) = toolbox();
    let limits = Limits { output_tokens: Some(20), input_tokens: Some(50), turns: 1, ..NONE };
    let mut machine = Machine::<PlainText>::new(limited(&tools, limits));
    let usage = Usage { input_tokens: 100, output_tokens: 30, ..Usage::default() };
    machine.feed_reply(Reply { usage, ..says("done") }, Duration::ZERO).unwrap();
    machine.feed_check(Ok(PlainText("done".into()))).unwrap();
    assert!(matches!(machine.next(), Step::Done(Ended { outcome: Outcome::Answered(_), .. })));
}

#[test]
fn a_reply_may_take_what_is_left_of_the_output_tokens_and_no_more() {
    let (tools, _) = toolbox();
    let limits = Limits { output_tokens: Some(130), ..NONE };
    let mut machine = Machine::<PlainText>::new(limited(&tools, limits));
    let allowed = |machine: &Machine<PlainText>| {
        let Step::AskModel(request) = machine.next() else { panic!("it asks again") };
        request.max_output_tokens
    };
    assert_eq!(allowed(&machine), 100);
    let usage = Usage { output_tokens: 90, ..Usage::default() };
    machine.feed_reply(Reply { usage, ..says(" ") }, Duration::ZERO).unwrap();
    assert_eq!(allowed(&machine), 40);
    let cut_off = Reply { usage: Usage { output_tokens: 39, ..usage }, finish: Finish::Length, ..says("lo") };
    machine.feed_reply(cut_off, Duration::ZERO).unwrap();
    assert!(asked(&machine).iter().any(|text| text.contains("cut off at 40 tokens")));
    assert_eq!(allowed(&machine), 1);
}

#[test]
fn when_the_calls_are_used_up_the_model_is_told_once_and_may_still_answer() {
    let (tools, _) = toolbox();
    let limits = Limits { tool_calls: 2, ..NONE };
    let mut machine: Machine<PlainText> = Machine::new(limited(&tools, limits));
    let three = (0..3).map(|n| call(&n.to_string(), json!({"at": n.to_string()}))).collect();
    machine.feed_reply(calls(three), Duration::ZERO).unwrap();
    let Step::CallTools(good) = machine.next() else { panic!("two calls are left") };
    assert_eq!(good.len(), 2);
    machine.feed_results(vec![result("0", "saw"), result("1", "saw")]).unwrap();
    assert_eq!(told(&machine)[2].text, "all 2 tool calls are used up");
    let Step::AskModel(request) = machine.next() else { panic!("the model may answer") };
    assert_eq!(request.tools, vec![]);
    machine.feed_reply(says("enough"), Duration::ZERO).unwrap();
    assert!(matches!(machine.next(), Step::CheckAnswer(PlainText(text)) if text == "enough"));
}

#[test]
fn before_its_last_turn_the_model_is_told_and_has_no_tools() {
    let (tools, _) = toolbox();
    let mut machine: Machine<PlainText> = Machine::new(limited(&tools, Limits { turns: 3, ..NONE }));
    for n in 0..2 {
        let Step::AskModel(request) = machine.next() else { panic!("turns are left") };
        assert_eq!(request.tools.len(), 1);
        machine.feed_reply(star(n), Duration::ZERO).unwrap();
        machine.feed_results(vec![result("x", "saw")]).unwrap();
    }
    let Step::AskModel(request) = machine.next() else { panic!("one turn is left") };
    assert_eq!(request.tools, vec![]);
    assert!(asked(&machine).last().unwrap().starts_with("This is your last turn"));
}

#[test]
fn the_last_turn_has_no_tools_whatever_came_before_it() {
    let (tools, _) = toolbox();
    let machine = |turns| -> Machine<PlainText> { Machine::new(limited(&tools, Limits { turns, ..NONE })) };
    let only = machine(1);
    let mut mended = machine(2);
    mended.feed_reply(says(""), Duration::ZERO).unwrap();
    let mut cut = machine(3);
    cut.feed_reply(star(0), Duration::ZERO).unwrap();
    cut.feed_results(vec![result("x", "saw")]).unwrap();
    cut.feed_overflow("too long".into(), Duration::ZERO).unwrap();
    for machine in [only, mended, cut] {
        let Step::AskModel(request) = machine.next() else { panic!("one turn is left") };
        assert_eq!(request.tools, vec![]);
        let told = asked(&machine).iter().filter(|text| text.starts_with("This is your last turn")).count();
        assert_eq!(told, 1);
    }
}

/// A model that takes five seconds for each reply, or for ever once the script is over.
struct Slow(Scripted);

impl Model for Slow {
    fn name(&self) -> &str {
        "test:slow"
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        watch: &'a dyn Watch,
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

/// A tool that takes as many seconds as it is told.
fn waiting() -> Toolbox {
    let wait: Arc<dyn Tool> = typed("look", "Waits.", |Look { at, .. }: Look, call| async move {
        assert!(call.deadline.is_some());
        tokio::time::sleep(Duration::from_secs(at.parse().unwrap())).await;
        Ok("done".into())
    });
    Toolbox::new([wait]).unwrap()
}

async fn timed(journal: &mut MemoryJournal, seconds: u64, replies: Vec<Reply>) -> Ended<PlainText> {
    let tools = waiting();
    let model = Slow(Scripted::new(replies));
    let limits = Limits { time: Some(Duration::from_secs(seconds)), ..NONE };
    let machine = Machine::new(limited(&tools, limits));
    Driver::new(&model, &tools, journal).drive(machine).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn working_time_ends_what_is_running_and_is_the_same_after_a_resume() {
    let waits = |seconds: &[u64]| {
        let each = seconds.iter().map(|s| call(&s.to_string(), json!({"at": s.to_string()})));
        Reply { text: "I wait.".into(), ..calls(each.collect()) }
    };
    // Two replies take 10 s and the calls 7 s, since they run at once.
    let replies = vec![waits(&[3, 7, 2]), says("done")];
    let mut journal = MemoryJournal::default();
    assert!(matches!(timed(&mut journal, 18, replies.clone()).await.outcome, Outcome::Answered(_)));
    let stop = Outcome::Stopped(Stop::Time { limit: Duration::from_secs(16) });
    let began = tokio::time::Instant::now();
    let mut journal = MemoryJournal::default();
    let ended = timed(&mut journal, 16, replies.clone()).await;
    assert_eq!((&ended.outcome, ended.produced.as_deref()), (&stop, Some("I wait.")));
    assert_eq!(began.elapsed(), Duration::from_secs(16), "the model is not waited for any longer");
    for prefix in 0..=journal.steps().len() {
        let mut resumed = MemoryJournal::holding(journal.steps()[..prefix].to_vec());
        assert_eq!(timed(&mut resumed, 16, replies.clone()).await, ended, "behind {prefix} steps");
    }

    // A call that would take too long is stopped, and those beside it count.
    let mut journal = MemoryJournal::default();
    let ended = timed(&mut journal, 9, replies.clone()).await;
    assert_eq!(ended.outcome, Outcome::Stopped(Stop::Time { limit: Duration::from_secs(9) }));
    assert_eq!(names(&journal), ["model.0", "tool.0.2.look", "tool.0.0.look", "tool.0.1.look"]);
    assert_eq!(journal.steps()[2].value["text"], "done");
    assert!(journal.steps()[3].value["text"].as_str().unwrap().contains("working time"));
    for prefix in 0..=journal.steps().len() {
        let mut resumed = MemoryJournal::holding(journal.steps()[..prefix].to_vec());
        assert_eq!(timed(&mut resumed, 9, replies.clone()).await, ended, "behind {prefix} steps");
    }
}

#[tokio::test]
async fn a_model_that_fails_ends_the_attempt_with_its_kind_and_what_was_used() {
    struct Failing(ModelError);
    impl Model for Failing {
        fn name(&self) -> &str {
            "test:failing"
        }
        fn reply<'a>(
            &'a self,
            request: &'a Request,
            _: &'a dyn Watch,
        ) -> BoxFuture<'a, Result<Reply, ModelError>> {
            let first = request.messages.len() == 1;
            futures::future::ready(if first { Ok(star(0)) } else { Err(self.0.clone()) }).boxed()
        }
    }
    let message = || "its words".to_owned();
    let table = [
        (ModelError::RateLimited { retry_after: None, message: message() }, ErrorKind::Model),
        (ModelError::Overloaded { message: message() }, ErrorKind::Model),
        (ModelError::Authentication { message: message() }, ErrorKind::Model),
        (ModelError::Truncated { message: message() }, ErrorKind::Model),
        (ModelError::Protocol { message: message() }, ErrorKind::Model),
        (ModelError::Timeout { after: Duration::from_secs(1) }, ErrorKind::Model),
        (ModelError::Connection { message: message() }, ErrorKind::Model),
        (ModelError::BadRequest { message: message() }, ErrorKind::InvalidTask),
        (ModelError::ContentFilter { message: message() }, ErrorKind::InvalidTask),
    ];
    let (tools, _) = toolbox();
    for (error, kind) in table {
        let mut journal = MemoryJournal::default();
        let model = Failing(error.clone());
        let machine = Machine::<PlainText>::new(brief(&tools, None));
        let failure = Driver::new(&model, &tools, &mut journal).drive(machine).await.unwrap_err();
        let told = millrace_protocol::result::TaskError::from(failure);
        assert_eq!((told.kind, told.message.as_str()), (kind, error.to_string().as_str()));
        assert_eq!((told.usage.model_calls, told.usage.tool_calls, told.usage.cost_micros), (1, 1, 1_000));
        assert_eq!(told.produced.as_deref(), Some("star 0 is next"));
        assert_eq!(names(&journal), ["model.0", "tool.0.0.look"], "what may pass is asked again on a resume");
    }
}
