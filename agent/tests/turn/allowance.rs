//! What is reserved of a run's budget holds an attempt beside its own limits: no question is begun behind it, the agent is
//! told before it ends, and what was used is told by model.

use std::collections::{BTreeMap, VecDeque};
use std::future::ready;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::model::{Delta, Model, ModelError, Reply, Request, Watch};
use millrace_agent::tool::{Consultants, Tool, ToolError, Toolbox, consult};
use millrace_agent::turn::{
    Driver, Ended, Journal, JournalError, Limits, Machine, MemoryJournal, Outcome, PlainText, Spent, Step,
    Stop,
};
use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{Amounts, Dimension};
use millrace_protocol::result::{CapabilityDescription, Consult, ErrorKind, Limit, TaskError, Usage};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{asked, brief, call, calls, limited, look, named, result, says, toolbox};

fn of(dimension: Dimension, amount: u64) -> Amounts {
    let mut amounts = Amounts::default();
    amounts.set(dimension, Some(amount));
    amounts
}

/// A reply with a call of its own, a hundred tokens in, ten out.
fn star(n: usize) -> Reply {
    let usage = Usage { input_tokens: 100, output_tokens: 10, cost_micros: 1_000, ..Usage::default() };
    Reply { text: format!("star {n}"), usage, ..calls(vec![call("x", json!({"at": format!("star {n}")}))]) }
}

#[test]
fn a_reservation_that_is_used_up_ends_the_attempt_and_says_whose_it_was() {
    let (tools, _) = toolbox();
    let table = [
        // A third question would send a hundred tokens again.
        (Dimension::Tokens, 320, 220, 2),
        (Dimension::InputTokens, 299, 200, 2),
        (Dimension::OutputTokens, 20, 20, 2),
        (Dimension::ModelCalls, 3, 3, 3),
        (Dimension::Cost, 1_500, 2_000, 2),
    ];
    for (dimension, limit, used, questions) in table {
        let mut machine = Machine::<PlainText>::new(brief(&tools, None)).within(of(dimension, limit));
        for n in 0..questions {
            let Step::AskModel(_) = machine.next() else { panic!("{dimension:?}: question {n} is asked") };
            machine.feed_reply(star(n), Duration::ZERO).unwrap();
            if let Step::CallTools(_) = machine.next() {
                machine.feed_results(vec![result("x", "saw")]).unwrap();
            }
        }
        let Step::Done(ended) = machine.next() else { panic!("{dimension:?}: nothing more is asked") };
        assert_eq!(ended.outcome, Outcome::Stopped(Stop::Allowance { dimension, limit, used }));
        let error = ended.into_result().unwrap_err();
        assert_eq!((error.kind, error.limit), (ErrorKind::Limit, Some(Limit::Allowance)));
        assert!(error.message.contains("the run's budget had reserved"), "{}", error.message);
        assert_eq!(error.produced, Some(format!("star {}", questions - 1)));
    }
}

#[test]
fn where_nothing_is_left_no_question_is_begun() {
    let (tools, _) = toolbox();
    let machine = Machine::<PlainText>::new(brief(&tools, None)).within(of(Dimension::Tokens, 1));
    let Step::Done(ended) = machine.next() else { panic!("a question takes two tokens at the least") };
    assert_eq!(ended.usage, Usage::default());
}

#[test]
fn the_agent_is_told_once_to_come_to_an_end_and_has_no_tools_for_its_last_question() {
    let (tools, _) = toolbox();
    let mut machine = Machine::<PlainText>::new(brief(&tools, None)).within(of(Dimension::OutputTokens, 61));
    let hints = |machine: &Machine<PlainText>| {
        let hint = |text: &&String| text.starts_with("You have used most");
        asked(machine).iter().filter(hint).count()
    };
    for n in 0..6 {
        let Step::AskModel(request) = machine.next() else { panic!("question {n} is asked") };
        assert_eq!(request.max_output_tokens, 61 - 10 * n as u32);
        assert_eq!(hints(&machine), usize::from(n >= 5), "with four fifths, and not before: {n}");
        machine.feed_reply(star(n), Duration::ZERO).unwrap();
        machine.feed_results(vec![result("x", "saw")]).unwrap();
    }
    let Step::AskModel(request) = machine.next() else { panic!("one token is left") };
    assert_eq!((request.tools.len(), request.max_output_tokens, hints(&machine)), (0, 1, 1));
    assert!(asked(&machine).last().unwrap().starts_with("This is your last turn"));
    assert_eq!(asked(&machine)[0], "Look.", "its task is what it was");
}

#[test]
fn a_conversation_that_was_made_shorter_is_told_again() {
    let (tools, _) = toolbox();
    let mut machine = Machine::<PlainText>::new(brief(&tools, None)).within(of(Dimension::ModelCalls, 10));
    for n in 0..8 {
        machine.feed_reply(star(n), Duration::ZERO).unwrap();
        machine.feed_results(vec![result("x", "saw")]).unwrap();
    }
    machine.feed_overflow("too long".into(), Duration::ZERO).unwrap();
    let told = asked(&machine);
    assert!(
        told.last().unwrap().starts_with("This is your last turn"),
        "the ninth call was the overflow: {told:?}"
    );
}

#[test]
fn the_smaller_of_reservation_and_own_limit_counts() {
    let (tools, _) = toolbox();
    for (own, reserved, allowance) in [(50, 15, true), (20, 500, false)] {
        let limits = Limits { output_tokens: Some(own), ..Limits::DEFAULT };
        let mut machine =
            Machine::<PlainText>::new(limited(&tools, limits)).within(of(Dimension::OutputTokens, reserved));
        let Step::AskModel(request) = machine.next() else { panic!("it asks") };
        assert_eq!(u64::from(request.max_output_tokens), reserved.min(own));
        for n in 0..2 {
            machine.feed_reply(star(n), Duration::ZERO).unwrap();
            if let Step::CallTools(_) = machine.next() {
                machine.feed_results(vec![result("x", "saw")]).unwrap();
            }
        }
        let Step::Done(Ended { outcome: Outcome::Stopped(stop), .. }) = machine.next() else {
            panic!("it stops")
        };
        assert_eq!(matches!(stop, Stop::Allowance { .. }), allowance, "{stop}");
        assert_eq!(matches!(stop, Stop::OutputTokens { .. }), !allowance, "{stop}");
    }
}

/// Answers with what is left in it; each reply is counted under the name of this model.
struct Counted {
    name: &'static str,
    replies: Mutex<VecDeque<Reply>>,
    used: Arc<Mutex<Vec<Usage>>>,
}

impl Counted {
    fn new(
        name: &'static str,
        replies: impl IntoIterator<Item = Reply>,
        used: &Arc<Mutex<Vec<Usage>>>,
    ) -> Self {
        Self { name, replies: Mutex::new(replies.into_iter().collect()), used: used.clone() }
    }
}

impl Model for Counted {
    fn name(&self) -> &str {
        self.name
    }

    fn reply<'a>(&'a self, _: &'a Request, _: &'a dyn Watch) -> BoxFuture<'a, Result<Reply, ModelError>> {
        let reply = self.replies.lock().unwrap().pop_front().unwrap_or_else(|| says("done"));
        self.used.lock().unwrap().push(Usage { model_calls: 1, ..reply.usage });
        // Others may come in between, as they may with a provider.
        async move {
            tokio::task::yield_now().await;
            Ok(reply)
        }
        .boxed()
    }
}

struct Known(Arc<Counted>, Capability);

impl Consultants for Known {
    fn own(&self) -> &Capability {
        &self.1
    }

    fn known(&self) -> BoxFuture<'_, Result<Vec<CapabilityDescription>, ToolError>> {
        let told = Consult { instructions: "You know the law.".into(), model: None };
        let legal = CapabilityDescription::new(Capability::new("legal").unwrap(), "legal");
        ready(Ok(vec![CapabilityDescription { consult: Some(told), ..legal }])).boxed()
    }

    fn model(&self, _: Option<&str>) -> Result<Arc<dyn Model>, String> {
        Ok(self.0.clone())
    }
}

fn consulting(legal: Counted) -> Arc<dyn Tool> {
    consult(Arc::new(Known(Arc::new(legal), Capability::new("own").unwrap())), None)
}

fn question(n: usize) -> millrace_agent::model::ToolCall {
    let arguments = json!({"capability": "legal", "question": format!("may I, {n}?")});
    named(&n.to_string(), "consult", &arguments.to_string())
}

#[tokio::test]
async fn what_was_used_is_told_by_the_model_that_really_answered_and_by_those_who_were_consulted() {
    let used = Arc::default();
    let usage = |input_tokens| Usage { input_tokens, output_tokens: 1, cost_micros: 5, ..Usage::default() };
    let replies = [
        Reply { usage: usage(10), ..calls(vec![question(0), question(1)]) },
        Reply { usage: usage(20), model: Some("b:stand-in".into()), ..calls(vec![question(2)]) },
        Reply { usage: usage(30), ..says("done") },
    ];
    let model = Counted::new("a:own", replies, &used);
    let answers = (0..3).map(|n| Reply { usage: usage(100 + n), ..says("yes") });
    let tools = Toolbox::new([consulting(Counted::new("c:legal", answers, &used))]).unwrap();
    let mut journal = MemoryJournal::default();
    let run = async |journal: &mut MemoryJournal| {
        let machine = Machine::<PlainText>::new(brief(&tools, None));
        Driver::new(&model, &tools, journal).drive(machine).await.unwrap()
    };
    let ended = run(&mut journal).await;
    let by_model = |name: &str| (ended.models[name].model_calls, ended.models[name].input_tokens);
    assert_eq!(by_model("a:own"), (2, 40));
    assert_eq!(by_model("b:stand-in"), (1, 20));
    assert_eq!(by_model("c:legal"), (3, 303));
    assert_whole(&ended.usage, ended.models.values());
    assert_eq!(ended.usage.cost_micros, 30);

    // A worker whose own model is another one reads the same.
    let other = Counted::new("z:other", [], &used);
    let mut resumed = MemoryJournal::holding(journal.steps().to_vec());
    let machine = Machine::<PlainText>::new(brief(&tools, None));
    let again = Driver::new(&other, &tools, &mut resumed).drive(machine).await.unwrap();
    assert_eq!(again, ended);
}

/// What was used by model is all that was used of models.
fn assert_whole<'a>(usage: &Usage, models: impl Iterator<Item = &'a Usage>) {
    let mut sum = Usage::default();
    models.for_each(|used| sum.add(*used));
    assert_eq!(Usage { tool_calls: 0, ..*usage }, sum);
}

#[tokio::test]
async fn a_model_that_fails_leaves_what_was_used_by_model() {
    struct Failing;
    impl Model for Failing {
        fn name(&self) -> &str {
            "a:failing"
        }
        fn reply<'a>(
            &'a self,
            request: &'a Request,
            _: &'a dyn Watch,
        ) -> BoxFuture<'a, Result<Reply, ModelError>> {
            let first = request.messages.len() == 1;
            let away = || ModelError::Overloaded { message: "away".into() };
            ready(if first { Ok(star(0)) } else { Err(away()) }).boxed()
        }
    }
    let (tools, _) = toolbox();
    let machine = Machine::<PlainText>::new(brief(&tools, None));
    let failure =
        Driver::new(&Failing, &tools, &mut MemoryJournal::default()).drive(machine).await.unwrap_err();
    let error = TaskError::from(failure);
    assert_eq!((error.kind, error.kind.is_retryable()), (ErrorKind::Model, true));
    assert_eq!(error.models["a:failing"].input_tokens, 100);
}

/// A reply with some calls, and what it and those it consults use.
fn random_reply() -> impl Strategy<Value = Reply> {
    let usage =
        (0..400u64, 0..60u64, 0..300u64, 0..2_000u64).prop_map(|(input, output, cached, cost)| Usage {
            input_tokens: input,
            output_tokens: output,
            cached_tokens: cached,
            cost_micros: cost,
            ..Usage::default()
        });
    (usage, 0..6usize, 0..3usize).prop_map(|(usage, consults, looks)| {
        let looked = (0..looks).map(|n| call(&format!("l{n}"), json!({"at": format!("{n}")})));
        let all: Vec<_> = (0..consults).map(question).chain(looked).collect();
        let text = if all.is_empty() { String::new() } else { "on it".into() };
        Reply { text, usage, ..calls(all) }
    })
}

fn amounts() -> impl Strategy<Value = Amounts> {
    let some = |most: u64| prop::option::of(1..most);
    (some(3_000), some(2_500), some(300), some(1_500), some(12), some(9_000)).prop_map(
        |(tokens, input_tokens, output_tokens, cached_tokens, model_calls, cost_micros)| Amounts {
            tokens,
            input_tokens,
            output_tokens,
            cached_tokens,
            model_calls,
            cost_micros,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_answered_no_attempt_uses_more_than_one_model_call_beyond_its_reservation(
        reserved in amounts(),
        replies in prop::collection::vec(random_reply(), 1..30),
        answers in prop::collection::vec(random_reply(), 0..40),
        kept in 0..60usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let used = Arc::default();
        let model = Counted::new("a:own", replies, &used);
        let answers = answers.into_iter().map(|answer| Reply { usage: answer.usage, ..says("yes") });
        let legal = Counted::new("b:legal", answers, &used);
        let tools = Toolbox::new([look().0, consulting(legal)]).unwrap();
        let limits = Limits { tool_calls: 60, identical_calls: 60, repairs: 9, ..Limits::DEFAULT };
        let machine = || Machine::<PlainText>::new(limited(&tools, limits)).within(reserved);
        let mut journal = MemoryJournal::default();
        let ended = runtime.block_on(Driver::new(&model, &tools, &mut journal).drive(machine())).unwrap();

        let calls: Vec<Usage> = used.lock().unwrap().clone();
        let mut before = Usage::default();
        calls.iter().rev().skip(1).for_each(|call| before.add(*call));
        for (dimension, limit) in reserved.iter() {
            prop_assert!(
                calls.len() < 2 || dimension.of(&before) < limit,
                "{dimension:?}: {} of {limit} were used before the last of {} calls", dimension.of(&before), calls.len()
            );
        }
        let mut all = before;
        calls.iter().rev().take(1).for_each(|call| all.add(*call));
        prop_assert_eq!(Usage { tool_calls: 0, ..ended.usage }, all);
        assert_whole(&ended.usage, ended.models.values());

        // Whoever goes on behind any step is held to the same.
        let kept = kept.min(journal.steps().len());
        let mut resumed = MemoryJournal::holding(journal.steps()[..kept].to_vec());
        used.lock().unwrap().clear();
        let resumed = runtime.block_on(Driver::new(&model, &tools, &mut resumed).drive(machine())).unwrap();
        let more: Vec<Usage> = used.lock().unwrap().clone();
        let mut before = resumed.usage;
        if let Some(last) = more.last() {
            let less = |all: u64, last: u64| all - last;
            before = Usage {
                model_calls: less(before.model_calls, 1),
                input_tokens: less(before.input_tokens, last.input_tokens),
                output_tokens: less(before.output_tokens, last.output_tokens),
                cached_tokens: less(before.cached_tokens, last.cached_tokens),
                cost_micros: less(before.cost_micros, last.cost_micros),
                ..before
            };
            for (dimension, limit) in reserved.iter() {
                let first = before.model_calls == 0;
                prop_assert!(first || dimension.of(&before) < limit, "{dimension:?} behind {kept} steps");
            }
        }
    }
}

/// A journal that keeps its signs of life.
#[derive(Default)]
struct Noted {
    steps: MemoryJournal,
    notes: Vec<String>,
}

impl Journal for Noted {
    fn recorded<'a>(
        &'a mut self,
        names: &'a [String],
    ) -> BoxFuture<'a, Result<Option<(usize, Value)>, JournalError>> {
        self.steps.recorded(names)
    }

    fn append<'a>(&'a mut self, name: &'a str, value: &'a Value) -> BoxFuture<'a, Result<(), JournalError>> {
        self.steps.append(name, value)
    }

    fn note<'a>(&'a mut self, text: &'a str) -> BoxFuture<'a, Result<(), JournalError>> {
        self.notes.push(text.to_owned());
        ready(Ok(())).boxed()
    }
}

/// What a model does before it answers, each for so many seconds.
struct Acting(Vec<(Option<Delta<'static>>, u64)>);

impl Model for Acting {
    fn name(&self) -> &str {
        "a:acting"
    }

    fn reply<'a>(&'a self, _: &'a Request, watch: &'a dyn Watch) -> BoxFuture<'a, Result<Reply, ModelError>> {
        async move {
            for (delta, seconds) in &self.0 {
                delta.iter().for_each(|delta| watch.delta(*delta));
                tokio::time::sleep(Duration::from_secs(*seconds)).await;
            }
            Ok(says("done"))
        }
        .boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_provider_is_no_silence_and_a_provider_that_says_nothing_is() {
    let (tools, _) = toolbox();
    let notes = async |model: Acting| {
        let mut journal = Noted::default();
        let machine = Machine::<PlainText>::new(brief(&tools, None));
        let ended = Driver::new(&model, &tools, &mut journal).drive(machine).await.unwrap();
        assert_eq!(ended.outcome, Outcome::Answered(PlainText("done".into())));
        journal.notes
    };
    let waiting = Delta::Waiting("the provider limits the rate");
    let told = notes(Acting(vec![(Some(waiting), 601), (Some(Delta::Asking), 300)])).await;
    assert_eq!(
        told,
        vec!["the model is waited for: the provider limits the rate"; 10],
        "one a minute, and no more"
    );
    assert_eq!(notes(Acting(vec![(None, 900)])).await, Vec::<String>::new(), "nothing is heard of it");
    let writing = |seconds| (Some(Delta::Text("so ")), seconds);
    let told = notes(Acting(vec![writing(1), writing(70), writing(200)])).await;
    assert_eq!(told, ["the model is writing"; 2], "words that came since the last sign are one");
}

#[test]
fn what_was_used_is_added_up() {
    let mut all = Spent::default();
    all.add(&Spent::on("a:x", Usage { model_calls: 1, ..Usage::default() }));
    all.add(&Spent { usage: Usage { tool_calls: 2, ..Usage::default() }, models: BTreeMap::new() });
    assert_eq!((all.usage.model_calls, all.usage.tool_calls, all.models.len()), (1, 2, 1));
}
