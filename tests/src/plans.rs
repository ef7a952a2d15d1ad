//! Runs for tests: submissions of `echo` tasks, and functions that submit them under a chosen name and wait for their
//! end.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, kv, stream};
use millrace_client::{MessageDecision, Patience, append_and_await_decision, author_name};
use millrace_protocol::ids::{Capability, RunId, TaskId};
use millrace_protocol::plan::{
    CommandAction, Plan, PlanningMode, ReviewPolicy, RunCommand, Submission, TaskLimits, TaskSpec,
};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::subject::Topic;
use millrace_runtime::Bus;
use millrace_runtime::log::append_message;
use millrace_runtime::nats::record::ID_HEADER;
use millrace_runtime::nats::topology::CLUSTER;
use millrace_runtime::work::registry;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::history::History;
use crate::wait_for_value;

/// Pseudorandom numbers, the same for the same seed (SplitMix64).
#[derive(Debug, Clone)]
pub struct SeededRandom(u64);

impl SeededRandom {
    /// The sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, which is above 0.
    pub fn next_below(&mut self, end: u64) -> u64 {
        self.next_u64() % end
    }

    /// Returns `true` with a probability of `percent`.
    pub fn next_bool_with_percent(&mut self, percent: u64) -> bool {
        self.next_below(100) < percent
    }
}

/// The name of a run.
///
/// # Panics
/// The text is not a valid name.
#[must_use]
pub fn run_id(text: &str) -> RunId {
    RunId::new(text).expect("a valid run name")
}

/// The name of a task.
///
/// # Panics
/// The text is not a valid name.
#[must_use]
pub fn task_id(text: &str) -> TaskId {
    TaskId::new(text).expect("a valid task name")
}

/// A task for `echo` with these parameters, a JSON object.
///
/// # Panics
/// The name is not valid.
#[must_use]
pub fn echo_task(name: &str, parameters: &Value) -> TaskSpec {
    let parameters = parameters.as_object().cloned().unwrap_or_default();
    let capability = Capability::new("echo").expect("a valid capability name");
    TaskSpec {
        parameters: parameters.into_iter().collect(),
        limits: TaskLimits { backoff: Duration::from_millis(50), ..TaskLimits::default() },
        ..TaskSpec::new(task_id(name), format!("echo {name}"), capability)
    }
}

/// A run with a fixed plan of these tasks.
#[must_use]
pub fn fixed_submission(tasks: Vec<TaskSpec>) -> Submission {
    Submission::new("run the tasks", PlanningMode::Fixed).with_tasks(tasks)
}

/// So many independent tasks.
#[must_use]
pub fn fan_out_submission(tasks: u32, parameters: &Value) -> Submission {
    fixed_submission((0..tasks).map(|n| echo_task(&format!("t{n}"), parameters)).collect())
}

/// Layers of tasks, each of which depends on up to three tasks of the previous layer: some quick, some in steps, some
/// that fail sometimes or always, some reviewed and sometimes rejected. The same for the same seed.
#[must_use]
pub fn layered_submission(seed: u64, layers: u64, width: u64) -> Submission {
    let mut random = SeededRandom::new(seed);
    let mut tasks = Vec::new();
    for layer in 0..layers {
        for place in 0..width {
            let mut task =
                echo_task(&format!("l{layer}-{place}"), &random_echo_parameters(seed, &mut random));
            task.limits.max_attempts = 5;
            if layer > 0 {
                let mut before: Vec<u64> = (0..3).map(|_| random.next_below(width)).collect();
                before.sort_unstable();
                before.dedup();
                task.depends_on =
                    before.iter().map(|place| task_id(&format!("l{}-{place}", layer - 1))).collect();
            }
            if random.next_bool_with_percent(30) {
                task.review = ReviewPolicy::critic(vec!["it is short".into()]);
            }
            if random.next_bool_with_percent(2) {
                task.parameters.insert("fail_rate".into(), json!(1.0));
                task.limits.max_attempts = 2;
            }
            // Most dependents of a failed task skip it, or the run would end too soon.
            if random.next_bool_with_percent(90) {
                task.on_failed_dependency = millrace_protocol::plan::OnFailedDependency::Skip;
            }
            tasks.push(task);
        }
    }
    fixed_submission(tasks)
}

fn random_echo_parameters(seed: u64, random: &mut SeededRandom) -> Value {
    let delay = 10 + random.next_below(150);
    let fail_rate = if random.next_bool_with_percent(20) { 0.3 } else { 0.0 };
    let reject_rate = if random.next_bool_with_percent(50) { 0.3 } else { 0.0 };
    let steps = if random.next_bool_with_percent(60) { 1 + random.next_below(5) } else { 0 };
    json!({
        "delay_ms": delay, "fail_rate": fail_rate, "reject_rate": reject_rate, "steps": steps, "seed": seed,
    })
}

/// Submits a run.
///
/// # Panics
/// The server rejects it, or a run of that name exists.
pub async fn submit_run(bus: &Bus, run: &RunId, submission: &Submission) {
    let sequence = append_message(bus, bus.lane_of_run(run), run, &Topic::Submitted, submission, 0).await;
    sequence.expect("the run is submitted");
}

/// Sends a command to a run, and waits until a decision applies it.
///
/// # Panics
/// There is no decision within `patience`, or it refuses the command.
pub async fn apply_command(bus: &Bus, run: &RunId, control: CommandAction, patience: Duration) {
    let (id, interrupt) = (uuid::Uuid::now_v7().simple().to_string(), CancellationToken::new());
    let command = RunCommand { id: id.clone(), by: author_name(None), control };
    let waiting = Patience { interrupt: &interrupt, on_quiet: &|| {} };
    let sent = append_and_await_decision(bus, run, &Topic::Control, (&command, &id), waiting);
    let decision = tokio::time::timeout(patience, sent).await.expect("a decision in time");
    let decision = decision.expect("the command is sent");
    assert!(matches!(decision, MessageDecision::Applied(_)), "{decision:?}");
}

/// The headers of a message that is published to a lane or a queue, as opposed to a server reply.
#[must_use]
pub fn build_publish_headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(ID_HEADER, "of-a-test");
    headers
}

/// The bucket of a cluster's settings, made writable again.
///
/// # Panics
/// The server does not answer.
pub async fn make_settings_writable(context: &jetstream::Context) -> kv::Store {
    let store = context.get_key_value(CLUSTER).await.expect("the bucket exists");
    let stream = context.get_stream(&store.stream_name).await.expect("its stream exists");
    let config = stream::Config { discard_new_per_subject: false, ..stream.cached_info().config.clone() };
    context.update_stream(config).await.expect("the stream is updated");
    store
}

/// Publishes an order without a `Millrace-Id` header, like a redirected server reply.
///
/// # Panics
/// The server rejects it.
pub async fn publish_order_without_id(bus: &Bus, subject: &str, payload: &[u8]) {
    let context = async_nats::jetstream::new(bus.client().clone());
    let sent = context.publish(subject.to_owned(), payload.to_vec().into()).await;
    sent.expect("the order is sent").await.expect("the order is stored");
}

/// Waits for the end of a run and returns its history, from the lane or the archive.
///
/// # Panics
/// It does not end within `patience`.
pub async fn wait_for_run_history(bus: &Bus, run: &RunId, patience: Duration) -> History {
    wait_for_run_end(bus, run, patience).await;
    // The server may just have been killed: retry until it answers.
    wait_for_value(Duration::from_secs(20), "the history of an ended run", async || {
        History::read_from_log(bus, run).await.ok().filter(|history| history.folded_plan().run.end.is_some())
    })
    .await
}

/// Waits until a run is archived, and returns its summary.
///
/// # Panics
/// It is not archived within `patience`.
pub async fn wait_for_archive(bus: &Bus, run: &RunId, patience: Duration) -> RunSummary {
    wait_for_value(patience, &format!("run {run} to be archived"), async || {
        registry::read_summary(bus, run).await.ok()?.filter(|summary| summary.archived)
    })
    .await
}

/// Waits for the end of a run.
///
/// # Panics
/// It does not end within `patience`; the text lists its open tasks.
pub async fn wait_for_run_end(bus: &Bus, run: &RunId, patience: Duration) {
    let started = std::time::Instant::now();
    loop {
        let summary = registry::read_summary(bus, run).await.ok().flatten();
        if summary.as_ref().is_some_and(|summary| summary.end.is_some()) {
            return;
        }
        if started.elapsed() > patience {
            let open = match History::read_from_log(bus, run).await {
                Ok(history) => describe_open_tasks(history.folded_plan()),
                Err(fault) => fault.to_string(),
            };
            panic!("run {run} has not ended after {patience:?}: {open}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn describe_open_tasks(plan: &Plan) -> String {
    let open = plan.tasks().iter().filter(|task| !task.state().is_terminal());
    let open: Vec<String> =
        open.map(|task| format!("{} {} #{}", task.spec.id, task.state(), task.attempt)).collect();
    format!("{} of {} tasks are open: {}", open.len(), plan.tasks().len(), open.join(", "))
}
