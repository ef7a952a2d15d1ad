//! Overhead of the agent loop: many concurrent attempts in one worker, with a model that replies instantly and tools that
//! do nothing, each step journaled on a real server. The worker runs in this process, so that its CPU time and memory can
//! be measured.
//!
//! ```text
//! attempts claimed ─▶ gate ─▶ reply, call, result, reply … ─▶ gate ─▶ last reply, outcome
//!                      └──────────── measured ───────────────┘
//! ```
//! A gate opens when all attempts have reached it: at the second, all conversations are in memory at full length.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::message::PublishMessage;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use millrace_agent::model::{
    DeltaListener, FinishReason, Message, Model, ModelAbility, ModelError, Reply, Request, ToolCall,
};
use millrace_agent::tool::{
    Toolbox, append_note_tool, read_notes_tool, think_tool, tool_from_function, write_todos_tool,
};
use millrace_agent::turn::{AgentBrief, AttemptName, Conversation, Limits, PlainText};
use millrace_host::{
    self as host, AttemptContext, HostConfig, HostedHandler, OrderHandler, new_random_process_id,
};
use millrace_protocol::ids::{Capability, Lane};
use millrace_protocol::plan::ReviewPolicy;
use millrace_protocol::plan::Submission;
use millrace_protocol::registry::ProcessRole;
use millrace_protocol::result::{CapabilityDescription, TaskError, TaskResult, Usage};
use millrace_protocol::wire;
use millrace_protocol::work::{JournalEntry, WorkOutcome};
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::nats::topology::lane_stream;
use millrace_runtime::ops::health::Health;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::Barrier;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::cluster::{BenchCluster, BenchOptions};
use crate::report::{BaselineComparison, BoundedFigure, quantile};
use crate::{plans, process, run};

/// Number of model replies per attempt; all but the last call a tool.
const TURNS: u32 = 12;
/// Number of journaled steps between the gates: a result for each call, and each reply but the first.
const STEPS: u32 = 2 * TURNS - 2;
const CAPABILITY: &str = "bench-agent";
const STREAM: &str = "BENCH_JOURNALS";
const SUBJECT: &str = "bench.journals";
/// Maximum CPU time per step in milliseconds.
const MAX_MILLIS: f64 = 1.0;
/// Maximum memory per attempt in kilobytes.
const MAX_KILOBYTES: f64 = 200.0;

pub struct AgentResults {
    /// CPU time per step, compared with an append of the same size.
    pub comparison: BaselineComparison,
    /// CPU time per step and memory per attempt, with their bounds.
    pub bounds: [(&'static str, BoundedFigure); 2],
}

/// Measures `attempts` concurrent attempts, `rounds` times.
pub async fn measure_agents(
    options: &BenchOptions,
    attempts: u32,
    rounds: u32,
) -> anyhow::Result<AgentResults> {
    let mut measured = Vec::new();
    for _ in 0..rounds {
        measured.push(Box::pin(measure_agent_round(options, attempts)).await?);
    }
    let median = |of: &dyn Fn(&AgentRound) -> f64| quantile(measured.iter().map(of), 0.5);
    let (figure, baseline) = (median(&|round| round.millis), median(&|round| round.baseline));
    // Later rounds reuse memory that the first one freed, so only the first one counts.
    let kilobytes = measured.iter().map(|round| round.kilobytes).fold(0.0, f64::max);
    let details = [
        ("kilobytes_an_attempt", kilobytes),
        ("kilobytes_a_step", kilobytes / f64::from(STEPS)),
        ("steps_a_second", median(&|round| round.rate)),
        ("bytes_a_step", median(&|round| round.bytes)),
    ];
    let comparison = BaselineComparison {
        what: format!("journaled step of {attempts} concurrent attempts of {TURNS} turns"),
        unit: "ms of CPU",
        figure,
        bare: baseline,
        ratio: baseline / figure,
        rounds: measured.iter().map(|round| (round.millis, round.baseline)).collect(),
        details: details.into_iter().collect(),
        processor_seconds: process::CpuSeconds::new(),
        bare_processor_seconds: process::CpuSeconds::new(),
    };
    let time = BoundedFigure::with_maximum("CPU time per step of an attempt", "ms", figure, MAX_MILLIS);
    let memory = BoundedFigure::with_maximum(
        "memory per attempt at its last step",
        "kB",
        (kilobytes > 0.0).then_some(kilobytes),
        MAX_KILOBYTES,
    );
    Ok(AgentResults { comparison, bounds: [("agents_time", time), ("agents_memory", memory)] })
}

/// The figures of one round.
struct AgentRound {
    /// CPU time per step in milliseconds.
    millis: f64,
    /// The same for an append.
    baseline: f64,
    /// Memory per attempt.
    kilobytes: f64,
    /// Steps per second.
    rate: f64,
    /// Message size of a step.
    bytes: f64,
}

async fn measure_agent_round(options: &BenchOptions, attempts: u32) -> anyhow::Result<AgentRound> {
    let options = BenchOptions { workers: 0, ..options.clone() };
    let mut cluster = BenchCluster::start(&options).await?;
    let handler = Arc::new(BenchAgent::new(attempts)?);
    let working = HostedWorker::start(&cluster, handler.clone(), attempts).await?;
    let memory = process::read_resident_memory(std::process::id());
    let measured = run::measure_run(&mut cluster, &agents_submission(attempts)).await?;
    working.stop().await?;
    let (began, ended) = (handler.model.began.resource_reading()?, handler.model.ended.resource_reading()?);
    let steps = f64::from(attempts * STEPS);
    let sizes = step_sizes(&measured.records);
    let bytes = sizes.iter().sum::<usize>() as f64 / sizes.len().max(1) as f64;
    let baseline = measure_append_baseline(&cluster, attempts, bytes as usize).await?;
    cluster.stop_cluster().await;
    let growth = ended.memory.zip(memory).map(|(after, before)| after.saturating_sub(before));
    Ok(AgentRound {
        millis: (ended.seconds - began.seconds) * 1e3 / steps,
        baseline: baseline * 1e3 / steps,
        kilobytes: growth.unwrap_or_default() as f64 / 1e3 / f64::from(attempts),
        rate: steps / (ended.at - began.at).as_secs_f64(),
        bytes,
    })
}

fn agents_submission(attempts: u32) -> Submission {
    let mut plan = plans::fan_out_submission(attempts, false);
    let capability = Capability::new(CAPABILITY).expect("the constant is a valid name");
    plan.tasks.iter_mut().for_each(|task| Arc::make_mut(task).capability = capability.clone());
    plan
}

fn step_sizes(records: &[StreamRecord]) -> Vec<usize> {
    let is_step = |record: &&StreamRecord| {
        matches!(wire::decode_message(&record.payload, record.encoding), Ok(JournalEntry::Step { .. }))
    };
    records.iter().filter(is_step).map(|record| record.payload.len()).collect()
}

/// The worker in this process.
struct HostedWorker {
    hosting: tokio::task::JoinHandle<Result<(), host::HostError>>,
    shutdown: DropGuard,
}

impl HostedWorker {
    async fn start(cluster: &BenchCluster, handler: Arc<BenchAgent>, slots: u32) -> anyhow::Result<Self> {
        let bus = cluster.cluster_info().connect().await?;
        let shutdown = CancellationToken::new();
        let hosting = HostConfig {
            id: new_random_process_id("bench"),
            role: ProcessRole::Worker,
            services: vec![HostedHandler { handler, slots }],
            grace: std::time::Duration::ZERO,
            health: Health::new(shutdown.clone()),
        };
        let token = shutdown.clone();
        let hosting = tokio::spawn(async move { host::serve_queues(&bus, hosting, token).await });
        Ok(Self { hosting, shutdown: shutdown.drop_guard() })
    }

    async fn stop(self) -> anyhow::Result<()> {
        drop(self.shutdown);
        Ok(self.hosting.await??)
    }
}

/// A barrier for all attempts, with the resource usage when the last one arrived.
struct AttemptGate {
    barrier: Barrier,
    reading: OnceLock<ResourceReading>,
}

#[derive(Clone, Copy)]
struct ResourceReading {
    seconds: f64,
    /// Memory in bytes.
    memory: Option<u64>,
    at: Instant,
}

impl AttemptGate {
    fn new(attempts: u32) -> Self {
        Self { barrier: Barrier::new(attempts as usize), reading: OnceLock::new() }
    }

    async fn wait_for_all_attempts(&self) {
        if self.barrier.wait().await.is_leader() {
            let me = std::process::id();
            let seconds = cpu_seconds_of_this_process();
            let reading =
                ResourceReading { seconds, memory: process::read_resident_memory(me), at: Instant::now() };
            self.reading.get_or_init(|| reading);
        }
    }

    fn resource_reading(&self) -> anyhow::Result<ResourceReading> {
        self.reading.get().copied().ok_or_else(|| anyhow!("the attempts never ran concurrently"))
    }
}

fn cpu_seconds_of_this_process() -> f64 {
    process::read_cpu_seconds([("me", std::process::id())]).into_values().sum()
}

/// The measured capability.
struct BenchAgent {
    toolbox: Toolbox,
    model: Arc<BenchModel>,
}

/// A model that replies at once.
struct BenchModel {
    began: AttemptGate,
    ended: AttemptGate,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LookupArguments {
    /// The question to look up.
    question: String,
    /// Maximum number of lines to return.
    limit: Option<u32>,
}

impl BenchAgent {
    fn new(attempts: u32) -> anyhow::Result<Self> {
        let look = |name: &str| {
            tool_from_function(
                name,
                "Looks up a question and returns matching lines.",
                |look: LookupArguments, _| async move {
                    let line =
                        format!("{}: a matching line, one of several in this result set.\n", look.question);
                    Ok(line.repeat(look.limit.unwrap_or(1).min(20) as usize))
                },
            )
        };
        let tools = [
            look("search"),
            look("look_up"),
            think_tool(),
            write_todos_tool(),
            append_note_tool(),
            read_notes_tool(),
        ];
        Ok(Self {
            toolbox: Toolbox::new(tools)?,
            model: Arc::new(BenchModel {
                began: AttemptGate::new(attempts),
                ended: AttemptGate::new(attempts),
            }),
        })
    }

    fn build_brief(&self) -> AgentBrief {
        AgentBrief {
            system: "You look up facts one after the other and answer when you know enough. ".repeat(20),
            task: "Collect the known facts about the topic.".into(),
            tools: self.toolbox.specs(),
            answer: None,
            limits: Limits { turns: TURNS + 1, tool_calls: TURNS, ..Limits::DEFAULT },
            max_output_tokens: 4_096,
            ability: ModelAbility::Strong,
        }
    }

    async fn run_attempt(&self, attempt: &mut AttemptContext) -> Result<WorkOutcome, TaskError> {
        let mut conversation =
            Conversation::new(self.build_brief(), self.model.clone(), self.toolbox.clone());
        conversation.attempt = AttemptName::from_order(attempt.order());
        let work = conversation.drive(attempt, &|text: PlainText| Ok(text)).await?.into_result()?;
        let (PlainText(output), usage) = (work.answer, work.spent.usage);
        attempt
            .store_finished_outcome(TaskResult { output, usage, ..TaskResult::default() }, ReviewPolicy::None)
            .await
    }
}

impl OrderHandler for BenchAgent {
    fn describe_capability(&self) -> CapabilityDescription {
        let name = Capability::new(CAPABILITY).expect("the constant is a valid name");
        CapabilityDescription::new(name, "Used by the benchmark.")
    }

    fn run_attempt<'a>(
        &'a self,
        attempt: &'a mut AttemptContext,
    ) -> BoxFuture<'a, Result<WorkOutcome, TaskError>> {
        self.run_attempt(attempt).boxed()
    }
}

impl Model for BenchModel {
    fn name(&self) -> &str {
        "bench:instant"
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        _: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        let replies = request.messages.iter().filter(|message| matches!(message, Message::Assistant { .. }));
        let turn = replies.count();
        async move {
            let usage = Usage { input_tokens: 1_000, output_tokens: 50, ..Usage::default() };
            let text = "I know more now; next I look up what is still missing. ".repeat(3);
            if turn == 0 {
                self.began.wait_for_all_attempts().await;
            }
            if turn + 1 == TURNS as usize {
                self.ended.wait_for_all_attempts().await;
                return Ok(Reply { text, usage, finish: FinishReason::Stop, ..Reply::default() });
            }
            let arguments = format!(r#"{{"question": "number {turn}", "limit": 10}}"#);
            let call = ToolCall { id: format!("call-{turn}"), name: "search".into(), arguments };
            Ok(Reply { text, usage, calls: vec![call], finish: FinishReason::ToolCalls, ..Reply::default() })
        }
        .boxed()
    }
}

/// Returns the CPU seconds of this process for the same number of appends of this size, in as many concurrent chains.
async fn measure_append_baseline(cluster: &BenchCluster, chains: u32, bytes: usize) -> anyhow::Result<f64> {
    let context = ContextBuilder::new().max_ack_inflight(20_000).build(cluster.connect_client().await?);
    let like = lane_stream(Lane(0));
    let mut config = context.get_stream(&like).await?.cached_info().config.clone();
    config.name = STREAM.into();
    config.subjects = vec![format!("{SUBJECT}.>")];
    context.create_stream(config).await?;
    let payload = Bytes::from(vec![b'.'; bytes]);
    let before = cpu_seconds_of_this_process();
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
    let seconds = cpu_seconds_of_this_process() - before;
    context.delete_stream(STREAM).await?;
    Ok(seconds)
}
