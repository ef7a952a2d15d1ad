//! What the agents' loop itself costs: attempts that all run at once in one worker, with a model that answers at once
//! and tools that do nothing, each step journaled on a real server. The worker is hosted in this process, so that no
//! model and no other capability is in the figures.
//!
//! ```text
//! attempts claimed ─▶ gate ─▶ reply, call, result, reply … ─▶ gate ─▶ last reply, outcome
//!                      └──────────── what is measured ─────────┘
//! ```
//! The gates open when all attempts stand before them: at the second, all conversations are in memory at full length.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::message::PublishMessage;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use millrace_agent::model::{Finish, Message, Model, ModelError, Reply, Request, ToolCall, Watch};
use millrace_agent::tool::{Toolbox, append_note, read_notes, think, typed, write_todos};
use millrace_agent::turn::{AttemptName, Brief, Driver, Limits, Machine, PlainText, Spent};
use millrace_protocol::ids::{Capability, Lane};
use millrace_protocol::plan::Review;
use millrace_protocol::plan::Submission;
use millrace_protocol::registry::Role;
use millrace_protocol::result::{CapabilityDescription, TaskError, TaskResult, Usage};
use millrace_protocol::wire;
use millrace_protocol::work::{Entry, Outcome};
use millrace_runtime::health::Health;
use millrace_runtime::host::{self, Attempt, Handler, Hosting, Service, made_up_id};
use millrace_runtime::record::Record;
use millrace_runtime::topology::lane_stream;
use millrace_seat::Recorded;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::Barrier;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::ground::{Ground, Wishes};
use super::report::{Bounded, Comparison, quantile};
use super::{plans, process, run};
use crate::client;

/// The replies of each attempt; all but the last call a tool.
const TURNS: u32 = 12;
/// The journaled steps between the gates: a result for each call, and a reply for each but the first.
const STEPS: u32 = 2 * TURNS - 2;
const CAPABILITY: &str = "bench-agent";
const STREAM: &str = "BENCH_JOURNALS";
const SUBJECT: &str = "bench.journals";
/// The most that a step may cost, in milliseconds of a processor.
const MAX_MILLIS: f64 = 1.0;
/// The most memory that an attempt may hold, in kilobytes.
const MAX_KILOBYTES: f64 = 200.0;

/// What was found.
pub struct Found {
    /// The processor time of a step beside that of a bare append of the same size.
    pub comparison: Comparison,
    /// The same, and the memory of an attempt, held against their bounds.
    pub bounds: [(&'static str, Bounded); 2],
}

/// Measures `attempts` attempts at once, `rounds` times.
pub async fn agents(wishes: &Wishes, attempts: u32, rounds: u32) -> anyhow::Result<Found> {
    let mut measured = Vec::new();
    for _ in 0..rounds {
        measured.push(Box::pin(round(wishes, attempts)).await?);
    }
    let median = |of: &dyn Fn(&Round) -> f64| quantile(measured.iter().map(of), 0.5);
    let (figure, bare) = (median(&|round| round.millis), median(&|round| round.bare));
    // What the first round freed, the later ones use again.
    let kilobytes = measured.iter().map(|round| round.kilobytes).fold(0.0, f64::max);
    let details = [
        ("kilobytes_an_attempt", kilobytes),
        ("kilobytes_a_step", kilobytes / f64::from(STEPS)),
        ("steps_a_second", median(&|round| round.rate)),
        ("bytes_a_step", median(&|round| round.bytes)),
    ];
    let comparison = Comparison {
        what: format!("{attempts} attempts of {TURNS} turns at once: a journaled step"),
        unit: "ms of CPU",
        figure,
        bare,
        ratio: bare / figure,
        rounds: measured.iter().map(|round| (round.millis, round.bare)).collect(),
        details: details.into_iter().collect(),
        processor_seconds: process::Seconds::new(),
        bare_processor_seconds: process::Seconds::new(),
    };
    let time = Bounded::at_most("processor time of an attempt's step", "ms", figure, MAX_MILLIS);
    let memory = Bounded::at_most(
        "memory of an attempt at its last step, all at once",
        "kB",
        (kilobytes > 0.0).then_some(kilobytes),
        MAX_KILOBYTES,
    );
    Ok(Found { comparison, bounds: [("agents_time", time), ("agents_memory", memory)] })
}

/// What one round came to.
struct Round {
    /// Processor time of a step, in milliseconds.
    millis: f64,
    /// The same of a bare append.
    bare: f64,
    /// Memory of an attempt.
    kilobytes: f64,
    /// Steps a second.
    rate: f64,
    /// The size of a step's message.
    bytes: f64,
}

async fn round(wishes: &Wishes, attempts: u32) -> anyhow::Result<Round> {
    let wishes = Wishes { workers: 0, ..wishes.clone() };
    let mut ground = Ground::start(&wishes).await?;
    let handler = Arc::new(Bench::new(attempts)?);
    let working = Working::start(&ground, handler.clone(), attempts).await?;
    let memory = process::memory(std::process::id());
    let measured = run::measure(&mut ground, &submission(attempts)).await?;
    working.stop().await?;
    let (began, ended) = (handler.began.reading()?, handler.ended.reading()?);
    let steps = f64::from(attempts * STEPS);
    let sizes = step_sizes(&measured.records);
    let bytes = sizes.iter().sum::<usize>() as f64 / sizes.len().max(1) as f64;
    let bare = bare(&ground, attempts, bytes as usize).await?;
    ground.stop().await;
    let held = ended.memory.zip(memory).map(|(held, before)| held.saturating_sub(before));
    Ok(Round {
        millis: (ended.seconds - began.seconds) * 1e3 / steps,
        bare: bare * 1e3 / steps,
        kilobytes: held.unwrap_or_default() as f64 / 1e3 / f64::from(attempts),
        rate: steps / (ended.at - began.at).as_secs_f64(),
        bytes,
    })
}

fn submission(attempts: u32) -> Submission {
    let mut plan = plans::fan_out(attempts, false);
    let capability = Capability::new(CAPABILITY).expect("it is letters and a '-'");
    plan.tasks.iter_mut().for_each(|task| task.capability = capability.clone());
    plan
}

fn step_sizes(records: &[Record]) -> Vec<usize> {
    let is_step =
        |record: &&Record| matches!(wire::open(&record.payload, record.encoding), Ok(Entry::Step { .. }));
    records.iter().filter(is_step).map(|record| record.payload.len()).collect()
}

/// The worker, hosted here.
struct Working {
    hosting: tokio::task::JoinHandle<Result<(), host::Error>>,
    shutdown: DropGuard,
}

impl Working {
    async fn start(ground: &Ground, handler: Arc<Bench>, slots: u32) -> anyhow::Result<Self> {
        let bus = client::join(ground.info()).await?;
        let shutdown = CancellationToken::new();
        let hosting = Hosting {
            id: made_up_id("bench"),
            role: Role::Worker,
            services: vec![Service { handler, slots }],
            grace: std::time::Duration::ZERO,
            health: Health::new(shutdown.clone()),
        };
        let token = shutdown.clone();
        let hosting = tokio::spawn(async move { host::run(&bus, hosting, token).await });
        Ok(Self { hosting, shutdown: shutdown.drop_guard() })
    }

    async fn stop(self) -> anyhow::Result<()> {
        drop(self.shutdown);
        Ok(self.hosting.await??)
    }
}

/// A place where all attempts wait for each other, and what this process had used when the last one came.
struct Gate {
    barrier: Barrier,
    reading: OnceLock<Reading>,
}

#[derive(Clone, Copy)]
struct Reading {
    seconds: f64,
    /// What was held, in bytes.
    memory: Option<u64>,
    at: Instant,
}

impl Gate {
    fn new(attempts: u32) -> Self {
        Self { barrier: Barrier::new(attempts as usize), reading: OnceLock::new() }
    }

    async fn wait(&self) {
        if self.barrier.wait().await.is_leader() {
            let me = std::process::id();
            let seconds = own_seconds();
            let reading = Reading { seconds, memory: process::memory(me), at: Instant::now() };
            self.reading.get_or_init(|| reading);
        }
    }

    fn reading(&self) -> anyhow::Result<Reading> {
        self.reading.get().copied().ok_or_else(|| anyhow!("the attempts never ran at once"))
    }
}

fn own_seconds() -> f64 {
    process::seconds([("me", std::process::id())]).into_values().sum()
}

/// The capability that is measured, and its model.
struct Bench {
    toolbox: Toolbox,
    began: Gate,
    ended: Gate,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Look {
    /// What to look for.
    question: String,
    /// The most lines to give back.
    limit: Option<u32>,
}

impl Bench {
    fn new(attempts: u32) -> anyhow::Result<Self> {
        let look = |name: &str| {
            typed(name, "Looks something up and gives back the lines it is in.", |look: Look, _| async move {
                let line =
                    format!("{}: a line of what was found, of which there are some more.\n", look.question);
                Ok(line.repeat(look.limit.unwrap_or(1).min(20) as usize))
            })
        };
        let tools = [look("search"), look("look_up"), think(), write_todos(), append_note(), read_notes()];
        Ok(Self { toolbox: Toolbox::new(tools)?, began: Gate::new(attempts), ended: Gate::new(attempts) })
    }

    fn brief(&self) -> Brief {
        Brief {
            system: "You look things up, one after the other, and answer when you know enough. ".repeat(20),
            task: "Find out what is known of all that there is.".into(),
            tools: self.toolbox.specs(),
            answer: None,
            limits: Limits { turns: TURNS + 1, tool_calls: TURNS, ..Limits::DEFAULT },
            max_output_tokens: 4_096,
        }
    }

    async fn work(&self, attempt: &mut Attempt) -> Result<Outcome, TaskError> {
        let name = AttemptName::of(attempt.order());
        let machine: Machine<PlainText> = Machine::new(self.brief());
        let mut journal = Recorded(attempt);
        let driver = Driver::new(self, &self.toolbox, &mut journal).attempt(name);
        let (PlainText(output), Spent { usage, .. }) =
            Box::pin(driver.drive(machine)).await?.into_result()?;
        attempt.finished(TaskResult { output, usage, ..TaskResult::default() }, Review::None).await
    }
}

impl Handler for Bench {
    fn describe(&self) -> CapabilityDescription {
        let name = Capability::new(CAPABILITY).expect("it is letters and a '-'");
        CapabilityDescription::new(name, "Is measured.")
    }

    fn run<'a>(&'a self, attempt: &'a mut Attempt) -> BoxFuture<'a, Result<Outcome, TaskError>> {
        self.work(attempt).boxed()
    }
}

impl Model for Bench {
    fn name(&self) -> &str {
        "bench:instant"
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        _: &'a dyn Watch,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        let said = request.messages.iter().filter(|message| matches!(message, Message::Assistant { .. }));
        let turn = said.count();
        async move {
            let usage = Usage { input_tokens: 1_000, output_tokens: 50, ..Usage::default() };
            let text = "I know a little more now, and look for what is still missing. ".repeat(3);
            if turn == 0 {
                self.began.wait().await;
            }
            if turn + 1 == TURNS as usize {
                self.ended.wait().await;
                return Ok(Reply { text, usage, finish: Finish::Stop, ..Reply::default() });
            }
            let arguments = format!(r#"{{"question": "number {turn}", "limit": 10}}"#);
            let call = ToolCall { id: format!("call-{turn}"), name: "search".into(), arguments };
            Ok(Reply { text, usage, calls: vec![call], finish: Finish::ToolCalls, ..Reply::default() })
        }
        .boxed()
    }
}

/// The processor seconds that this process uses for as many appends, chained in as many places, of messages of that
/// size.
async fn bare(ground: &Ground, chains: u32, bytes: usize) -> anyhow::Result<f64> {
    let context = ContextBuilder::new().max_ack_inflight(20_000).build(ground.dial().await?);
    let like = lane_stream(Lane(0));
    let mut config = context.get_stream(&like).await?.cached_info().config.clone();
    config.name = STREAM.into();
    config.subjects = vec![format!("{SUBJECT}.>")];
    context.create_stream(config).await?;
    let payload = Bytes::from(vec![b'.'; bytes]);
    let before = own_seconds();
    let chains = (0..chains).map(|chain| {
        let (context, payload) = (context.clone(), payload.clone());
        let chain = async move {
            let mut last = 0;
            for _ in 0..STEPS {
                let message =
                    PublishMessage::build().payload(payload.clone()).expected_last_subject_sequence(last);
                last = context.send_publish(format!("{SUBJECT}.{chain}"), message).await?.await?.sequence;
            }
            anyhow::Ok(())
        };
        tokio::spawn(chain).map(|ended| ended.context("a chain of appends")?)
    });
    try_join_all(chains).await?;
    let seconds = own_seconds() - before;
    context.delete_stream(STREAM).await?;
    Ok(seconds)
}
