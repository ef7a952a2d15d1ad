//! An attempt's reservation from the run's budget applies besides its own limits: no request starts beyond it, the
//! agent is warned before, and usage is reported by model.

use std::collections::{BTreeMap, VecDeque};
use std::future::ready;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::model::{Delta, DeltaListener, Model, ModelError, Reply, Request};
use millrace_agent::tool::{ConsultableCapabilities, Tool, ToolError, Toolbox, consult_tool};
use millrace_agent::turn::{
    Conversation, DriveError, Host, Limits, Machine, MachineStep, MemoryHost, PlainText, StopReason,
    UsageTotals, WorkOutcome, WorkSummary,
};
use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{ResourceAmounts, ResourceKind};
use millrace_protocol::result::{
    CapabilityDescription, ConsultSettings, ErrorKind, ExceededLimit, TaskError, Usage,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::support::{
    brief, call, calls, conversation, drive, limited, look, named, result, says, toolbox, user_messages,
};

fn amount_of(dimension: ResourceKind, amount: u64) -> ResourceAmounts {
    let mut amounts = ResourceAmounts::default();
    amounts.set(dimension, Some(amount));
    amounts
}

/// A reply with a unique call; 100 input tokens, 10 output tokens.
fn star(n: usize) -> Reply {
    let usage = Usage { input_tokens: 100, output_tokens: 10, cost_micros: 1_000, ..Usage::default() };
    Reply { text: format!("star {n}"), usage, ..calls(vec![call("x", json!({"at": format!("star {n}")}))]) }
}

#[test]
fn spent_reservation_ends_the_attempt_and_is_named() {
    let (tools, _) = toolbox();
    let table = [
        // A third request would send 100 tokens again.
        (ResourceKind::Tokens, 320, 220, 2),
        (ResourceKind::InputTokens, 299, 200, 2),
        (ResourceKind::OutputTokens, 20, 20, 2),
        (ResourceKind::ModelCalls, 3, 3, 3),
        (ResourceKind::Cost, 1_500, 2_000, 2),
    ];
    for (dimension, limit, used, questions) in table {
        let mut machine =
            Machine::<PlainText>::new(brief(&tools, None)).with_reserved_amounts(amount_of(dimension, limit));
        for n in 0..questions {
            let MachineStep::AskModel(_) = machine.next_step() else {
                panic!("{dimension:?}: request {n} is allowed")
            };
            machine.feed_reply(star(n), Duration::ZERO).unwrap();
            if let MachineStep::CallTools(_) = machine.next_step() {
                machine.feed_results(vec![result("x", "saw")]).unwrap();
            }
        }
        let MachineStep::Done(ended) = machine.next_step() else {
            panic!("{dimension:?}: no further request")
        };
        assert_eq!(ended.outcome, WorkOutcome::Stopped(StopReason::Allowance { dimension, limit, used }));
        let error = ended.into_result().unwrap_err();
        assert_eq!((error.kind, error.limit), (ErrorKind::Limit, Some(ExceededLimit::Allowance)));
        assert!(error.message.contains("the run's budget reserved"), "{}", error.message);
        assert_eq!(error.produced, Some(format!("star {}", questions - 1)));
    }
}

#[test]
fn no_request_starts_without_budget() {
    let (tools, _) = toolbox();
    let machine = Machine::<PlainText>::new(brief(&tools, None))
        .with_reserved_amounts(amount_of(ResourceKind::Tokens, 1));
    let MachineStep::Done(ended) = machine.next_step() else {
        panic!("a question takes two tokens at the least")
    };
    assert_eq!(ended.usage, Usage::default());
}

#[test]
fn agent_is_told_once_to_finish_and_loses_its_tools() {
    let (tools, _) = toolbox();
    let mut machine = Machine::<PlainText>::new(brief(&tools, None))
        .with_reserved_amounts(amount_of(ResourceKind::OutputTokens, 61));
    let hints = |machine: &Machine<PlainText>| {
        let hint = |text: &&String| text.starts_with("You have used most");
        user_messages(machine).iter().filter(hint).count()
    };
    for n in 0..6 {
        let MachineStep::AskModel(request) = machine.next_step() else { panic!("request {n} is allowed") };
        assert_eq!(request.max_output_tokens, 61 - 10 * n as u32);
        assert_eq!(hints(&machine), usize::from(n >= 5), "at 80 percent and not before: {n}");
        machine.feed_reply(star(n), Duration::ZERO).unwrap();
        machine.feed_results(vec![result("x", "saw")]).unwrap();
    }
    let MachineStep::AskModel(request) = machine.next_step() else { panic!("one token is left") };
    assert_eq!((request.tools.len(), request.max_output_tokens, hints(&machine)), (0, 1, 1));
    assert!(user_messages(&machine).last().unwrap().starts_with("This is your last turn"));
    assert_eq!(user_messages(&machine)[0], "Look.", "its task is unchanged");
}

#[test]
fn compacted_conversation_repeats_the_budget_warning() {
    let (tools, _) = toolbox();
    let mut machine = Machine::<PlainText>::new(brief(&tools, None))
        .with_reserved_amounts(amount_of(ResourceKind::ModelCalls, 10));
    for n in 0..8 {
        machine.feed_reply(star(n), Duration::ZERO).unwrap();
        machine.feed_results(vec![result("x", "saw")]).unwrap();
    }
    machine.feed_overflow("too long".into(), Duration::ZERO).unwrap();
    let messages = user_messages(&machine);
    assert!(
        messages.last().unwrap().starts_with("This is your last turn"),
        "the ninth call was the overflow: {messages:?}"
    );
}

#[test]
fn smaller_of_reservation_and_limit_applies() {
    let (tools, _) = toolbox();
    for (own, reserved, allowance) in [(50, 15, true), (20, 500, false)] {
        let limits = Limits { output_tokens: Some(own), ..Limits::DEFAULT };
        let mut machine = Machine::<PlainText>::new(limited(&tools, limits))
            .with_reserved_amounts(amount_of(ResourceKind::OutputTokens, reserved));
        let MachineStep::AskModel(request) = machine.next_step() else { panic!("it asks") };
        assert_eq!(u64::from(request.max_output_tokens), reserved.min(own));
        for n in 0..2 {
            machine.feed_reply(star(n), Duration::ZERO).unwrap();
            if let MachineStep::CallTools(_) = machine.next_step() {
                machine.feed_results(vec![result("x", "saw")]).unwrap();
            }
        }
        let MachineStep::Done(WorkSummary { outcome: WorkOutcome::Stopped(stop), .. }) = machine.next_step()
        else {
            panic!("it stops")
        };
        assert_eq!(matches!(stop, StopReason::Allowance { .. }), allowance, "{stop}");
        assert_eq!(matches!(stop, StopReason::OutputTokens { .. }), !allowance, "{stop}");
    }
}

/// Replies from a script; the usage of each reply is reported under the name of this model.
struct MeteredModel {
    name: &'static str,
    replies: Mutex<VecDeque<Reply>>,
    used: Arc<Mutex<Vec<Usage>>>,
}

impl MeteredModel {
    fn new(
        name: &'static str,
        replies: impl IntoIterator<Item = Reply>,
        used: &Arc<Mutex<Vec<Usage>>>,
    ) -> Arc<Self> {
        Arc::new(Self { name, replies: Mutex::new(replies.into_iter().collect()), used: used.clone() })
    }
}

impl Model for MeteredModel {
    fn name(&self) -> &str {
        self.name
    }

    fn reply<'a>(
        &'a self,
        _: &'a Request,
        _: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        let reply = self.replies.lock().unwrap().pop_front().unwrap_or_else(|| says("done"));
        self.used.lock().unwrap().push(Usage { model_calls: 1, ..reply.usage });
        // Other tasks may run in between, as with a real provider.
        async move {
            tokio::task::yield_now().await;
            Ok(reply)
        }
        .boxed()
    }
}

struct SingleConsultant(Arc<MeteredModel>, Capability);

impl ConsultableCapabilities for SingleConsultant {
    fn own_capability(&self) -> &Capability {
        &self.1
    }

    fn list_capabilities(&self) -> BoxFuture<'_, Result<Vec<CapabilityDescription>, ToolError>> {
        let notes = ConsultSettings { instructions: "You know the law.".into(), model: None };
        let legal = CapabilityDescription::new(Capability::new("legal").unwrap(), "legal");
        ready(Ok(vec![CapabilityDescription { consult: Some(notes), ..legal }])).boxed()
    }

    fn open_model(&self, _: Option<&str>) -> Result<Arc<dyn Model>, String> {
        Ok(self.0.clone())
    }
}

fn consulting(legal: Arc<MeteredModel>) -> Arc<dyn Tool> {
    consult_tool(Arc::new(SingleConsultant(legal, Capability::new("own").unwrap())), None)
}

fn question(n: usize) -> millrace_agent::model::ToolCall {
    let arguments = json!({"capability": "legal", "question": format!("may I, {n}?")});
    named(&n.to_string(), "consult", &arguments.to_string())
}

#[tokio::test]
async fn usage_is_reported_by_answering_and_consulted_model() {
    let used = Arc::default();
    let usage = |input_tokens| Usage { input_tokens, output_tokens: 1, cost_micros: 5, ..Usage::default() };
    let replies = [
        Reply { usage: usage(10), ..calls(vec![question(0), question(1)]) },
        Reply { usage: usage(20), model: Some("b:stand-in".into()), ..calls(vec![question(2)]) },
        Reply { usage: usage(30), ..says("done") },
    ];
    let model = MeteredModel::new("a:own", replies, &used);
    let answers = (0..3).map(|n| Reply { usage: usage(100 + n), ..says("yes") });
    let tools = Toolbox::new([consulting(MeteredModel::new("c:legal", answers, &used))]).unwrap();
    let mut journal = MemoryHost::default();
    let run = async |journal: &mut MemoryHost| {
        drive::<PlainText>(conversation(&model, &tools), journal).await.unwrap()
    };
    let ended = run(&mut journal).await;
    let by_model = |name: &str| (ended.models[name].model_calls, ended.models[name].input_tokens);
    assert_eq!(by_model("a:own"), (2, 40));
    assert_eq!(by_model("b:stand-in"), (1, 20));
    assert_eq!(by_model("c:legal"), (3, 303));
    assert_sum(&ended.usage, ended.models.values());
    assert_eq!(ended.usage.cost_micros, 30);

    // The usage is the same on a worker with a different default model.
    let other = MeteredModel::new("z:other", [], &used);
    let mut resumed = MemoryHost::with_steps(journal.steps().to_vec());
    let again = drive::<PlainText>(conversation(&other, &tools), &mut resumed).await.unwrap();
    assert_eq!(again, ended);
}

/// Checks that the usages by model add up to the total.
fn assert_sum<'a>(usage: &Usage, models: impl Iterator<Item = &'a Usage>) {
    let mut sum = Usage::default();
    models.for_each(|used| sum.add(*used));
    assert_eq!(Usage { tool_calls: 0, ..*usage }, sum);
}

#[tokio::test]
async fn failing_model_still_reports_usage_by_model() {
    struct FailingModel;
    impl Model for FailingModel {
        fn name(&self) -> &str {
            "a:failing"
        }
        fn reply<'a>(
            &'a self,
            request: &'a Request,
            _: &'a dyn DeltaListener,
        ) -> BoxFuture<'a, Result<Reply, ModelError>> {
            let first = request.messages.len() == 1;
            let away = || ModelError::Overloaded { retry_after: None, message: "away".into() };
            ready(if first { Ok(star(0)) } else { Err(away()) }).boxed()
        }
    }
    let (tools, _) = toolbox();
    let conversation = conversation(&Arc::new(FailingModel), &tools);
    let failure = drive::<PlainText>(conversation, &mut MemoryHost::default()).await.unwrap_err();
    let error = TaskError::from(failure);
    assert_eq!((error.kind, error.kind.is_retryable()), (ErrorKind::Model, true));
    assert_eq!(error.models["a:failing"].input_tokens, 100);
}

/// A reply with some calls, and the usage of it and of the consulted models.
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

fn amounts() -> impl Strategy<Value = ResourceAmounts> {
    let some = |most: u64| prop::option::of(1..most);
    (some(3_000), some(2_500), some(300), some(1_500), some(12), some(9_000)).prop_map(
        |(tokens, input_tokens, output_tokens, cached_tokens, model_calls, cost_micros)| ResourceAmounts {
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
    fn attempt_exceeds_its_reservation_by_at_most_one_call(
        reserved in amounts(),
        replies in prop::collection::vec(random_reply(), 1..30),
        answers in prop::collection::vec(random_reply(), 0..40),
        kept in 0..60usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let used = Arc::default();
        let model = MeteredModel::new("a:own", replies, &used);
        let answers = answers.into_iter().map(|answer| Reply { usage: answer.usage, ..says("yes") });
        let legal = MeteredModel::new("b:legal", answers, &used);
        let tools = Toolbox::new([look().0, consulting(legal)]).unwrap();
        let limits = Limits { tool_calls: 60, identical_calls: 60, repairs: 9, ..Limits::DEFAULT };
        let conversation = || {
            let mut conversation = Conversation::new(limited(&tools, limits), model.clone(), tools.clone());
            conversation.allowance = reserved;
            conversation
        };
        let mut journal = MemoryHost::default();
        let driven = runtime.block_on(drive::<PlainText>(conversation(), &mut journal));
        let ended = match driven {
            Ok(ended) => ended,
            Err(failure) => {
                let DriveError::ReservationTooSmall(needs) = *failure.error else { panic!("{failure}") };
                prop_assert!(needs.iter().any(|(dimension, needs)| reserved.get(dimension) < Some(needs)));
                prop_assert!(used.lock().unwrap().is_empty() && journal.steps().is_empty(), "nothing was sent");
                return Ok(());
            }
        };

        let calls: Vec<Usage> = used.lock().unwrap().clone();
        let mut before = Usage::default();
        calls.iter().rev().skip(1).for_each(|call| before.add(*call));
        for (dimension, limit) in reserved.iter() {
            prop_assert!(
                calls.len() < 2 || dimension.amount_used(&before) < limit,
                "{dimension:?}: {} of {limit} were used before the last of {} calls", dimension.amount_used(&before), calls.len()
            );
        }
        let mut all = before;
        calls.iter().rev().take(1).for_each(|call| all.add(*call));
        prop_assert_eq!(Usage { tool_calls: 0, ..ended.usage }, all);
        assert_sum(&ended.usage, ended.models.values());

        // A resume after any step has the same limits.
        let kept = kept.min(journal.steps().len());
        let mut resumed = MemoryHost::with_steps(journal.steps()[..kept].to_vec());
        used.lock().unwrap().clear();
        let resumed = runtime.block_on(drive::<PlainText>(conversation(), &mut resumed)).unwrap();
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
                prop_assert!(first || dimension.amount_used(&before) < limit, "{dimension:?} after {kept} steps");
            }
        }
    }
}

/// A journal that stores its keepalive notes.
#[derive(Default)]
struct NotingJournal {
    steps: MemoryHost,
    notes: Vec<String>,
}

impl Host for NotingJournal {
    fn replay<'a>(
        &'a mut self,
        names: &'a [String],
    ) -> BoxFuture<'a, Result<Option<(usize, Value)>, TaskError>> {
        self.steps.replay(names)
    }

    fn peek(&mut self) -> BoxFuture<'_, Result<Option<(String, Value)>, TaskError>> {
        self.steps.peek()
    }

    fn record<'a>(&'a mut self, name: &'a str, value: &'a Value) -> BoxFuture<'a, Result<(), TaskError>> {
        self.steps.record(name, value)
    }

    fn note<'a>(&'a mut self, text: &'a str) -> BoxFuture<'a, Result<(), TaskError>> {
        self.notes.push(text.to_owned());
        ready(Ok(())).boxed()
    }
}

/// A model that reports these deltas before it replies, each after so many seconds.
struct SlowModel(Vec<(Option<Delta<'static>>, u64)>);

impl Model for SlowModel {
    fn name(&self) -> &str {
        "a:acting"
    }

    fn reply<'a>(
        &'a self,
        _: &'a Request,
        watch: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        async move {
            for (delta, seconds) in &self.0 {
                delta.iter().for_each(|delta| watch.on_delta(*delta));
                tokio::time::sleep(Duration::from_secs(*seconds)).await;
            }
            Ok(says("done"))
        }
        .boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn only_an_unresponsive_provider_lets_keepalives_stop() {
    let (tools, _) = toolbox();
    let notes = async |model: SlowModel| {
        let mut journal = NotingJournal::default();
        let ended = drive::<PlainText>(conversation(&Arc::new(model), &tools), &mut journal).await.unwrap();
        assert_eq!(ended.outcome, WorkOutcome::Answered(PlainText("done".into())));
        journal.notes
    };
    let waiting = Delta::Waiting("the provider limits the rate");
    let progress = notes(SlowModel(vec![(Some(waiting), 601), (Some(Delta::Sending), 300)])).await;
    assert_eq!(
        progress,
        vec!["waiting for the model: the provider limits the rate"; 10],
        "one a minute, and no more"
    );
    assert_eq!(notes(SlowModel(vec![(None, 900)])).await, Vec::<String>::new(), "it reports nothing");
    let writing = |seconds| (Some(Delta::Text("so ")), seconds);
    let progress = notes(SlowModel(vec![writing(1), writing(70), writing(200)])).await;
    assert_eq!(progress, ["the model is writing"; 2], "all text since the last keepalive is one note");
}

#[test]
fn usage_is_summed() {
    let mut all = UsageTotals::default();
    all.add_totals(&UsageTotals::from_model_usage("a:x", Usage { model_calls: 1, ..Usage::default() }));
    all.add_totals(&UsageTotals {
        usage: Usage { tool_calls: 2, ..Usage::default() },
        models: BTreeMap::new(),
    });
    assert_eq!((all.usage.model_calls, all.usage.tool_calls, all.models.len()), (1, 2, 1));
}
