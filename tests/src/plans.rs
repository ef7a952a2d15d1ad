//! Runs for tests: submissions of `echo` tasks, and how to hand them in under a name of the test's choice and wait for
//! their end.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, kv, stream};
use millrace_protocol::ids::{Capability, RunId, TaskId};
use millrace_protocol::plan::{Limits, Mode, Plan, Review, Submission, TaskSpec};
use millrace_protocol::registry::ClusterSettings;
use millrace_protocol::subject::Topic;
use millrace_runtime::log::append;
use millrace_runtime::record::ID_HEADER;
use millrace_runtime::topology::{CLUSTER, WORK};
use millrace_runtime::{Bus, direct, registry};
use serde_json::{Value, json};

use crate::eventually;
use crate::history::History;

/// Numbers that look random and are the same for the same seed (SplitMix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The numbers of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is above 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end
    }

    /// Whether something happens that happens `percent` of the time.
    pub fn happens(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// The name of a run.
///
/// # Panics
/// The text is no name.
#[must_use]
pub fn run(text: &str) -> RunId {
    RunId::new(text).expect("a test names its runs well")
}

/// The name of a task.
///
/// # Panics
/// The text is no name.
#[must_use]
pub fn id(text: &str) -> TaskId {
    TaskId::new(text).expect("a test names its tasks well")
}

/// A task for `echo` with these parameters, a JSON object.
///
/// # Panics
/// The name is none.
#[must_use]
pub fn echo(name: &str, parameters: &Value) -> TaskSpec {
    let parameters = parameters.as_object().cloned().unwrap_or_default();
    let capability = Capability::new("echo").expect("it is letters");
    TaskSpec {
        parameters: parameters.into_iter().collect(),
        limits: Limits { backoff: Duration::from_millis(50), ..Limits::default() },
        ..TaskSpec::new(id(name), format!("echo {name}"), capability)
    }
}

/// A run of these tasks as they are.
#[must_use]
pub fn fixed(tasks: Vec<TaskSpec>) -> Submission {
    Submission { tasks, ..Submission::new("see how it fares", Mode::Fixed) }
}

/// So many tasks that depend on nothing.
#[must_use]
pub fn fan_out(tasks: u32, parameters: &Value) -> Submission {
    fixed((0..tasks).map(|n| echo(&format!("t{n}"), parameters)).collect())
}

/// Layers of tasks, each of which depends on up to three of the layer before: some quick, some in steps, some that
/// fail now and then or always, some reviewed and rejected now and then. The same for the same seed.
#[must_use]
pub fn layered(seed: u64, layers: u64, width: u64) -> Submission {
    let mut random = Random::new(seed);
    let mut tasks = Vec::new();
    for layer in 0..layers {
        for place in 0..width {
            let mut task = echo(&format!("l{layer}-{place}"), &parameters(seed, &mut random));
            task.limits.max_attempts = 5;
            if layer > 0 {
                let mut before: Vec<u64> = (0..3).map(|_| random.below(width)).collect();
                before.sort_unstable();
                before.dedup();
                task.depends_on = before.iter().map(|place| id(&format!("l{}-{place}", layer - 1))).collect();
            }
            if random.happens(30) {
                task.review = Review::critic(vec!["it is short".into()]);
            }
            if random.happens(2) {
                task.parameters.insert("fail_rate".into(), json!(1.0));
                task.limits.max_attempts = 2;
            }
            // Those behind one that fails go on without it for the most part, or the run would be over too soon.
            if random.happens(90) {
                task.on_failed_dependency = millrace_protocol::plan::OnFailedDependency::Skip;
            }
            tasks.push(task);
        }
    }
    fixed(tasks)
}

fn parameters(seed: u64, random: &mut Random) -> Value {
    let delay = 10 + random.below(150);
    let fail_rate = if random.happens(20) { 0.3 } else { 0.0 };
    let reject_rate = if random.happens(50) { 0.3 } else { 0.0 };
    let steps = if random.happens(60) { 1 + random.below(5) } else { 0 };
    json!({
        "delay_ms": delay, "fail_rate": fail_rate, "reject_rate": reject_rate, "steps": steps, "seed": seed,
    })
}

/// Hands a run in.
///
/// # Panics
/// The server does not take it, or there is a run of that name.
pub async fn submit(bus: &Bus, run: &RunId, submission: &Submission) {
    let appended = append(bus, bus.lane(run), run, &Topic::Submitted, submission, 0).await;
    appended.expect("the run is handed in");
}

/// The headers of a message as whoever appends it to a lane or puts it in a queue gives them.
#[must_use]
pub fn appended() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(ID_HEADER, "of-a-test");
    headers
}

/// Makes a cluster of one that supervisors from before 0.4 have made: its settings ask for no marks, and the orders in
/// its queues have none.
///
/// # Panics
/// The server does not answer.
pub async fn forget_marks(bus: &Bus) {
    let context = async_nats::jetstream::new(bus.client().clone());
    let settings = ClusterSettings { unmarked_orders_through: None, ..bus.settings().clone() };
    let settings = serde_json::to_vec(&settings).expect("they have a form in JSON");
    let store = changeable_settings(&context).await;
    store.put("settings", settings.into()).await.expect("they are written");
    let orders = direct::read(bus.client(), WORK, "work.>", 1).await.expect("it answers");
    context.get_stream(WORK).await.expect("it is there").purge().await.expect("it is emptied");
    for order in orders {
        offer_unmarked(bus, &order.subject, &order.payload).await;
    }
}

/// The bucket of a cluster's settings, which can be changed again as before they were fixed.
///
/// # Panics
/// The server does not answer.
pub async fn changeable_settings(context: &jetstream::Context) -> kv::Store {
    let store = context.get_key_value(CLUSTER).await.expect("the bucket is there");
    let stream = context.get_stream(&store.stream_name).await.expect("so is its stream");
    let config = stream::Config { discard_new_per_subject: false, ..stream.cached_info().config.clone() };
    context.update_stream(config).await.expect("it is changed");
    store
}

/// Puts an order in its queue as a supervisor from before 0.4 does.
///
/// # Panics
/// The server does not take it.
pub async fn offer_unmarked(bus: &Bus, subject: &str, payload: &[u8]) {
    let context = async_nats::jetstream::new(bus.client().clone());
    let sent = context.publish(subject.to_owned(), payload.to_vec().into()).await;
    sent.expect("it is sent").await.expect("it is taken");
}

/// Waits for the end of a run and gives its history, from the lane or the archive.
///
/// # Panics
/// It does not end within `patience`.
pub async fn finished(bus: &Bus, run: &RunId, patience: Duration) -> History {
    ended(bus, run, patience).await;
    // The server may have been killed just now: read again until it answers.
    eventually(Duration::from_secs(20), "the history of a run that is over", async || {
        History::read(bus, run).await.ok().filter(|history| history.plan().end.is_some())
    })
    .await
}

/// Waits for the end of a run.
///
/// # Panics
/// It does not end within `patience`; the text says how far it came.
pub async fn ended(bus: &Bus, run: &RunId, patience: Duration) {
    let started = std::time::Instant::now();
    loop {
        let summary = registry::summary(bus, run).await.ok().flatten();
        if summary.as_ref().is_some_and(|summary| summary.end.is_some()) {
            return;
        }
        if started.elapsed() > patience {
            let left = match History::read(bus, run).await {
                Ok(history) => left_open(history.plan()),
                Err(fault) => fault.to_string(),
            };
            panic!("run {run} has not ended after {patience:?}: {left}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn left_open(plan: &Plan) -> String {
    let open = plan.tasks().iter().filter(|task| !task.state.is_terminal());
    let open: Vec<String> =
        open.map(|task| format!("{} {} #{}", task.spec.id, task.state, task.attempt)).collect();
    format!("{} of {} tasks are open: {}", open.len(), plan.tasks().len(), open.join(", "))
}
