//! The baseline: the messages of a run, of the same sizes, through the same server with the same client library, without
//! plans, rules, decoding or recovery. An owner appends a fenced decision for each task, publishes its order and reads the
//! lane; a worker pulls, claims, appends the outcome after its claim and acknowledges. Streams and queue are configured
//! like those of the cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, FromConsumer, pull};
use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::jetstream::message::PublishMessage;
use async_nats::{Client, Message, jetstream};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use millrace_protocol::ids::{Capability, Lane, RunId, WorkerId};
use millrace_protocol::plan::{JournalKey, Submission, TaskSpec, Work};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire;
use millrace_protocol::work::{InputResult, JournalEntry, Order};
use millrace_runtime::nats::topology::{WORK, lane_stream};

use super::run::{LatencyStage, StageLatencies};
use crate::cluster::BenchCluster;
use crate::process::{CpuSeconds, cpu_seconds_between};
use crate::run::{RunMeasurement, run_timeout};

const LANE_STREAM: &str = "BENCH_LANE";
const WORK_STREAM: &str = "BENCH_WORK";
const LANE_SUBJECT: &str = "bench.lane.run.20260101-000000-000000";
const WORK_SUBJECT: &str = "bench.work.echo.20260101-000000-000000";
const QUEUE: &str = "bench";
/// Timeout of an acknowledgement.
const ACK_TIMEOUT: Duration = Duration::from_secs(30);
/// Expiry of a pull request; longer than any cycle.
const PULL_EXPIRY: Duration = Duration::from_secs(3600);
/// Minimum size of a message: kind, task and pass.
const HEADER_SIZE: usize = 6;

/// One pass of a task through queue and journal, as message sizes in bytes.
#[derive(Debug, Clone, Copy)]
pub struct PassSizes {
    pub decision: usize,
    pub order: usize,
    pub claim: usize,
    pub outcome: usize,
}

/// The measured times of the baseline.
#[derive(Debug)]
pub struct BaselineTimes {
    /// The time from just before the first decision is appended until the outcome of the last task has been read.
    pub took: Duration,
    /// The time from each task's end to the next one's.
    pub hops: Vec<Duration>,
    /// Latency by stage; empty if several tasks are in flight.
    pub stages: StageLatencies,
    /// CPU seconds of each process.
    pub seconds: CpuSeconds,
}

/// Processes `tasks` tasks, each with all `passes` in sequence, at most `in_flight` at once.
pub async fn run_baseline(
    cluster: &mut BenchCluster,
    tasks: u32,
    in_flight: u32,
    passes: &[PassSizes],
) -> anyhow::Result<BaselineTimes> {
    cluster.fail_if_process_ended()?;
    let (owner, worker) = (BaselinePeer::connect(cluster).await?, BaselinePeer::connect(cluster).await?);
    create_streams(&owner.context).await?;
    let passes: Arc<[PassSizes]> = passes.into();
    let orders = tasks * u32::try_from(passes.len())?;
    let before = cluster.cpu_seconds();
    let working = tokio::spawn(run_baseline_worker(worker, orders, in_flight, passes.clone()));
    let owning = tokio::spawn(run_baseline_owner(owner.clone(), tasks, in_flight, passes));
    let both = async { tokio::try_join!(join_task(owning), join_task(working)) };
    let limit = run_timeout(tasks);
    let ((ends, stages), ()) = tokio::time::timeout(limit, both)
        .await
        .map_err(|_| anyhow!("the baseline with {tasks} tasks did not end within {} s", limit.as_secs()))??;
    let seconds = cpu_seconds_between(&before, &cluster.cpu_seconds());
    for stream in [LANE_STREAM, WORK_STREAM] {
        owner.context.delete_stream(stream).await?;
    }
    let took = ends.last().map(|last| last.duration_since(ends[0])).unwrap_or_default();
    let hops = ends.windows(2).map(|pair| pair[1].duration_since(pair[0])).collect();
    Ok(BaselineTimes { took, hops, stages, seconds })
}

async fn join_task<T>(task: tokio::task::JoinHandle<anyhow::Result<T>>) -> anyhow::Result<T> {
    task.await?
}

/// The owner or the worker, each with its own connection like a process of the cluster.
#[derive(Clone)]
struct BaselinePeer {
    client: Client,
    context: Context,
}

impl BaselinePeer {
    async fn connect(cluster: &BenchCluster) -> anyhow::Result<Self> {
        let client = cluster.connect_client().await?;
        let context = ContextBuilder::new()
            .timeout(ACK_TIMEOUT)
            .ack_timeout(ACK_TIMEOUT)
            .max_ack_inflight(20_000)
            .build(client.clone());
        Ok(Self { client, context })
    }

    /// Appends after the message with sequence `last` of the subject; 0 if there is none.
    async fn append_message(&self, subject: String, payload: Bytes, last: u64) -> anyhow::Result<u64> {
        let message = PublishMessage::build().payload(payload).expected_last_subject_sequence(last);
        Ok(self.context.send_publish(subject, message).await?.await?.sequence)
    }

    async fn publish_order(&self, subject: String, payload: Bytes) -> anyhow::Result<()> {
        let message = PublishMessage::build().payload(payload);
        self.context.send_publish(subject, message).await?.await?;
        Ok(())
    }
}

/// Creates streams configured like those of the cluster, with other names.
async fn create_streams(context: &Context) -> anyhow::Result<()> {
    let lane = lane_stream(Lane(0));
    for (like, name, subject) in
        [(lane.as_str(), LANE_STREAM, LANE_SUBJECT), (WORK, WORK_STREAM, WORK_SUBJECT)]
    {
        let mut config = context.get_stream(like).await?.cached_info().config.clone();
        config.name = name.into();
        config.subjects = vec![format!("{subject}.>")];
        context.create_stream(config).await?;
    }
    let queue = context
        .get_consumer_from_stream::<pull::Config, _, _>("echo", WORK)
        .await
        .context("reading the configuration of the echo queue")?;
    let like = pull::Config::try_from_consumer_config(queue.cached_info().config.clone())
        .map_err(|error| anyhow!("unknown configuration of the echo queue: {error}"))?;
    let filter_subject = format!("{WORK_SUBJECT}.>");
    let config = pull::Config { durable_name: Some(QUEUE.into()), name: None, filter_subject, ..like };
    context.create_consumer_on_stream(config, WORK_STREAM).await?;
    Ok(())
}

/// The kind of a message, its first byte.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MessageKind {
    Decision,
    Order,
    Claim,
    Outcome,
}

/// Returns a message of a size with kind, task and pass.
fn build_message(kind: MessageKind, size: usize, task: u32, pass: u8) -> Bytes {
    let mut bytes = vec![b'.'; size.max(HEADER_SIZE)];
    bytes[0] = kind as u8;
    bytes[1] = pass;
    bytes[2..HEADER_SIZE].copy_from_slice(&task.to_le_bytes());
    bytes.into()
}

/// Returns the task and the pass of a message.
fn parse_message_header(payload: &[u8]) -> (u32, u8) {
    let mut task = [0; 4];
    task.copy_from_slice(&payload[2..HEADER_SIZE]);
    (u32::from_le_bytes(task), payload[1])
}

/// The owner: decides and publishes one pass at a time as outcomes arrive. Returns the start time, the end time of each
/// task and, with one task in flight, the latency by stage.
async fn run_baseline_owner(
    side: BaselinePeer,
    tasks: u32,
    in_flight: u32,
    passes: Arc<[PassSizes]>,
) -> anyhow::Result<(Vec<Instant>, StageLatencies)> {
    let mut lane = open_lane_reader(&side.context).await?;
    let decided: Arc<Vec<AtomicU64>> = Arc::new((0..tasks).map(|_| AtomicU64::new(0)).collect());
    let begin = |task: u32, pass: u8| {
        append_decision_and_queue_order(side.clone(), decided.clone(), passes.clone(), task, pass)
    };
    let mut under_way = FuturesUnordered::new();
    let mut times = Vec::with_capacity(tasks as usize + 1);
    let mut stages = StageLatencies::default();
    times.push(Instant::now());
    let mut begun = tasks.min(in_flight);
    (0..begun).for_each(|task| under_way.push(begin(task, 0)));
    while times.len() <= tasks as usize {
        tokio::select! {
            Some(begun) = under_way.next() => begun?,
            read = lane.next() => for read in read.ok_or_else(|| anyhow!("the lane reader ended"))? {
                let read = read?;
                if in_flight == 1 {
                    record_stage(&mut stages, &read)?;
                }
                let payload = &read.payload;
                if payload[0] != MessageKind::Outcome as u8 {
                    continue;
                }
                let (task, pass) = parse_message_header(payload);
                if usize::from(pass) + 1 < passes.len() {
                    under_way.push(begin(task, pass + 1));
                    continue;
                }
                times.push(Instant::now());
                if begun < tasks {
                    under_way.push(begin(begun, 0));
                    begun += 1;
                }
            },
        }
    }
    Ok((times, stages))
}

fn record_stage(stages: &mut StageLatencies, read: &jetstream::Message) -> anyhow::Result<()> {
    let info =
        read.info().map_err(|error| anyhow!("a message of the lane has no JetStream metadata: {error}"))?;
    let at = jiff::Timestamp::from_nanosecond(info.published.unix_timestamp_nanos())?;
    match read.payload[0] {
        kind if kind == MessageKind::Decision as u8 => stages.add_message(LatencyStage::Decision, at),
        kind if kind == MessageKind::Claim as u8 => stages.add_message(LatencyStage::Claim, at),
        _ => stages.add_message(LatencyStage::Outcome, at),
    }
    Ok(())
}

async fn append_decision_and_queue_order(
    side: BaselinePeer,
    decided: Arc<Vec<AtomicU64>>,
    passes: Arc<[PassSizes]>,
    task: u32,
    pass: u8,
) -> anyhow::Result<()> {
    let (sizes, last) = (passes[usize::from(pass)], &decided[task as usize]);
    let decision = build_message(MessageKind::Decision, sizes.decision, task, pass);
    let subject = format!("{LANE_SUBJECT}.{task}.plan");
    let sequence = side.append_message(subject, decision, last.load(Ordering::Relaxed)).await?;
    last.store(sequence, Ordering::Relaxed);
    let order = build_message(MessageKind::Order, sizes.order, task, pass);
    side.publish_order(format!("{WORK_SUBJECT}.{task}.{pass}"), order).await
}

type LaneReader = futures::stream::ReadyChunks<pull::Stream>;

async fn open_lane_reader(context: &Context) -> anyhow::Result<LaneReader> {
    let config = pull::Config {
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::None,
        memory_storage: true,
        num_replicas: 1,
        ..Default::default()
    };
    let consumer = context.create_consumer_on_stream(config, LANE_STREAM).await?;
    let stream = consumer
        .stream()
        .max_messages_per_batch(4_000)
        .heartbeat(Duration::from_secs(1))
        .expires(Duration::from_secs(10))
        .messages()
        .await?;
    Ok(stream.ready_chunks(512))
}

/// The worker: processes `orders` orders, `in_flight` at once.
async fn run_baseline_worker(
    side: BaselinePeer,
    orders: u32,
    in_flight: u32,
    passes: Arc<[PassSizes]>,
) -> anyhow::Result<()> {
    let inbox = side.client.new_inbox();
    let mut arriving = side.client.subscribe(inbox.clone()).await?;
    let mut under_way = FuturesUnordered::new();
    let (mut free, mut done) = (in_flight, 0);
    while done < orders {
        // Pull in batches if there are many.
        if free * 4 >= in_flight.max(4) || (in_flight < 4 && free > 0) {
            pull_orders(&side.client, &inbox, free).await?;
            free = 0;
        }
        tokio::select! {
            order = arriving.next() => {
                let order = order.ok_or_else(|| anyhow!("the connection closed"))?;
                if order.status.is_none() {
                    under_way.push(execute_order(side.clone(), passes.clone(), order));
                }
            }
            Some(finished) = under_way.next() => {
                finished?;
                free += 1;
                done += 1;
            }
        }
    }
    Ok(side.client.flush().await?)
}

async fn pull_orders(client: &Client, inbox: &str, count: u32) -> anyhow::Result<()> {
    let request = format!(r#"{{"batch":{count},"expires":{}}}"#, PULL_EXPIRY.as_nanos());
    let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{WORK_STREAM}.{QUEUE}");
    Ok(client.publish_with_reply(subject, inbox.to_owned(), request.into()).await?)
}

async fn execute_order(side: BaselinePeer, passes: Arc<[PassSizes]>, order: Message) -> anyhow::Result<()> {
    let (task, pass) = parse_message_header(&order.payload);
    let (sizes, subject) = (passes[usize::from(pass)], format!("{LANE_SUBJECT}.task.{task}.{pass}"));
    let claimed = side
        .append_message(subject.clone(), build_message(MessageKind::Claim, sizes.claim, task, pass), 0)
        .await?;
    side.append_message(subject, build_message(MessageKind::Outcome, sizes.outcome, task, pass), claimed)
        .await?;
    let reply = order.reply.ok_or_else(|| anyhow!("an order has no reply subject"))?;
    Ok(side.client.publish(reply, Bytes::from_static(b"+ACK")).await?)
}

/// Returns the mean message sizes of a run for each pass of a task. The size of a decision is divided among the tasks whose
/// facts it answers.
pub fn mean_pass_sizes(measured: &RunMeasurement, submission: &Submission) -> Vec<PassSizes> {
    let is_reviewed = submission.tasks.first().is_some_and(|task| !task.review.is_none());
    let (mut works, mut reviews) = (JournalSizes::default(), JournalSizes::default());
    let mut decisions = MeanSize::default();
    for record in &measured.records {
        let size = record.payload.len();
        match subject::parse_lane_subject(&record.subject) {
            Some((_, _, Topic::Plan)) => decisions.add_size(size),
            Some((_, _, Topic::Journal(JournalKey::Task(..)))) => works.add_record(record),
            Some((_, _, Topic::Journal(JournalKey::Review(..)))) => reviews.add_record(record),
            Some((
                _,
                _,
                Topic::Submitted | Topic::Control | Topic::Answer | Topic::Journal(JournalKey::Planning(..)),
            ))
            | None => {}
        }
    }
    let kinds = if is_reviewed { vec![works, reviews] } else { vec![works] };
    let decision = decisions.sum / measured.tasks.max(1) as usize / kinds.len();
    let order = |at: usize| submission.tasks.last().map_or(0, |task| order_size(task, submission, at == 1));
    let pass = |(at, journals): (usize, JournalSizes)| PassSizes {
        decision,
        order: order(at),
        claim: journals.claims.mean_size(),
        outcome: journals.outcomes.mean_size(),
    };
    kinds.into_iter().enumerate().map(pass).collect()
}

#[derive(Default)]
struct MeanSize {
    sum: usize,
    count: usize,
}

impl MeanSize {
    fn add_size(&mut self, size: usize) {
        self.sum += size;
        self.count += 1;
    }

    fn mean_size(&self) -> usize {
        self.sum / self.count.max(1)
    }
}

#[derive(Default)]
struct JournalSizes {
    claims: MeanSize,
    outcomes: MeanSize,
}

impl JournalSizes {
    fn add_record(&mut self, record: &millrace_runtime::nats::record::StreamRecord) {
        match wire::decode_message::<JournalEntry>(&record.payload, record.encoding) {
            Ok(JournalEntry::Claimed { .. }) => self.claims.add_size(record.payload.len()),
            Ok(JournalEntry::Outcome { .. }) => self.outcomes.add_size(record.payload.len()),
            Ok(_) | Err(_) => {}
        }
    }
}

/// Returns the size of the order for a task or its review, as a supervisor publishes it.
fn order_size(task: &TaskSpec, submission: &Submission, is_review: bool) -> usize {
    let name = "20260101-000000-000000";
    let id = task.id.clone();
    let input = |task: millrace_protocol::ids::TaskId| InputResult {
        task,
        objective: task_objective(submission),
        capability: Capability::new("echo").expect("the constant is a valid name"),
        worker: WorkerId::new("worker-0123456789ab").expect("the constant is a valid name"),
        summary: "echo".into(),
        at_sequence: 100_000,
    };
    let (work, inputs) = if is_review {
        (Work::Review { task: id.clone(), attempt: 1, review: 1 }, vec![input(id)])
    } else {
        (Work::Task { task: id, attempt: 1 }, task.depends_on.iter().cloned().map(input).collect())
    };
    let run = RunId::new(name).expect("the constant is a valid id");
    let order = Order {
        mission: submission.objective.clone(),
        parameters: task.parameters.clone(),
        inputs,
        is_final: task.is_final,
        limits: task.limits.clone(),
        ..Order::new(run, Lane(0), work, &task.objective, task.capability.clone())
    };
    wire::encode_with_inline_body::<Order>(&wire::encode_body(&order)).len()
}

fn task_objective(submission: &Submission) -> String {
    submission.tasks.last().map(|task| task.objective.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_size_and_header() {
        let bytes = build_message(MessageKind::Outcome, 300, 70_000, 1);
        assert_eq!(
            (bytes.len(), bytes[0], parse_message_header(&bytes)),
            (300, MessageKind::Outcome as u8, (70_000, 1))
        );
        assert_eq!(build_message(MessageKind::Claim, 0, 1, 0).len(), HEADER_SIZE);
    }
}

#[cfg(test)]
mod sizes_tests {
    use super::*;
    use crate::plans;

    #[test]
    fn orders_with_dependencies_are_larger() {
        let size = |submission: &Submission, is_review| {
            order_size(submission.tasks.last().unwrap(), submission, is_review)
        };
        let (alone, chained) = (plans::fan_out_submission(9, true), plans::chain_submission(9));
        assert!(size(&alone, false) < size(&chained, false));
        assert!(size(&alone, false) < size(&alone, true));
    }
}
