//! The limit to be held against: the messages of a run, of the same sizes, through the same server by the same client
//! library, with nothing else around them. No plan, no rules, no decoding, no recovery: an owner that appends a fenced
//! decision for each task, queues its order and reads the lane back, and a worker that pulls, claims, appends the
//! outcome behind its claim and acknowledges. Streams and queue are configured as the cluster's own.

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
use millrace_protocol::ids::Lane;
use millrace_runtime::topology::{WORK, lane_stream};

use super::ground::Ground;
use super::process::{Seconds, used};
use super::run::patience;
use super::stages::{Stage, Stages};

const LANE_STREAM: &str = "BENCH_LANE";
const WORK_STREAM: &str = "BENCH_WORK";
const LANE_SUBJECT: &str = "bench.lane.run.20260101-000000-000000";
const WORK_SUBJECT: &str = "bench.work.echo.20260101-000000-000000";
const QUEUE: &str = "bench";
/// How long an acknowledgement may take before the cycle is given up.
const ACK_TIMEOUT: Duration = Duration::from_secs(30);
/// How long one request for orders stands: longer than any cycle.
const EXPIRES: Duration = Duration::from_secs(3600);
/// What a message must hold to be told from others.
const MARK: usize = 6;

/// One way of a task through queue and journal, as the sizes of its messages in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Leg {
    /// What is decided.
    pub decision: usize,
    /// What is queued.
    pub order: usize,
    /// That somebody took it.
    pub claim: usize,
    /// What came of it.
    pub outcome: usize,
}

/// What the bare cycle took.
#[derive(Debug)]
pub struct Took {
    /// From the first decision to the last outcome read.
    pub took: Duration,
    /// The time from each task's end to the next one's.
    pub hops: Vec<Duration>,
    /// Where the time of a hop goes; nothing where more than one task is under way at a time.
    pub stages: Stages,
    /// The processor seconds of each process.
    pub seconds: Seconds,
}

/// Puts `tasks` tasks through, each on all `legs` one after the other, at most `in_flight` at once.
pub async fn cycle(ground: &mut Ground, tasks: u32, in_flight: u32, legs: &[Leg]) -> anyhow::Result<Took> {
    ground.check()?;
    let (owner, worker) = (Side::connect(ground).await?, Side::connect(ground).await?);
    make_streams(&owner.context).await?;
    let legs: Arc<[Leg]> = legs.into();
    let orders = tasks * u32::try_from(legs.len())?;
    let before = ground.seconds();
    let working = tokio::spawn(work(worker, orders, in_flight, legs.clone()));
    let owning = tokio::spawn(own(owner.clone(), tasks, in_flight, legs));
    let both = async { tokio::try_join!(flatten(owning), flatten(working)) };
    let limit = patience(tasks);
    let ((ends, stages), ()) = tokio::time::timeout(limit, both)
        .await
        .map_err(|_| anyhow!("the bare cycle of {tasks} tasks did not end within {} s", limit.as_secs()))??;
    let seconds = used(&before, &ground.seconds());
    for stream in [LANE_STREAM, WORK_STREAM] {
        owner.context.delete_stream(stream).await?;
    }
    let took = ends.last().map(|last| last.duration_since(ends[0])).unwrap_or_default();
    let hops = ends.windows(2).map(|pair| pair[1].duration_since(pair[0])).collect();
    Ok(Took { took, hops, stages, seconds })
}

async fn flatten<T>(task: tokio::task::JoinHandle<anyhow::Result<T>>) -> anyhow::Result<T> {
    task.await?
}

/// One end of the cycle, with a connection of its own, as a process of the cluster has.
#[derive(Clone)]
struct Side {
    client: Client,
    context: Context,
}

impl Side {
    async fn connect(ground: &Ground) -> anyhow::Result<Self> {
        let client = ground.dial().await?;
        let context = ContextBuilder::new()
            .timeout(ACK_TIMEOUT)
            .ack_timeout(ACK_TIMEOUT)
            .max_ack_inflight(20_000)
            .build(client.clone());
        Ok(Self { client, context })
    }

    /// Appends behind the message with sequence `last` of the subject, 0 if there is none.
    async fn append(&self, subject: String, payload: Bytes, last: u64) -> anyhow::Result<u64> {
        let message = PublishMessage::build().payload(payload).expected_last_subject_sequence(last);
        Ok(self.context.send_publish(subject, message).await?.await?.sequence)
    }

    async fn queue(&self, subject: String, payload: Bytes) -> anyhow::Result<()> {
        let message = PublishMessage::build().payload(payload);
        self.context.send_publish(subject, message).await?.await?;
        Ok(())
    }
}

/// Streams like the cluster's, under other names.
async fn make_streams(context: &Context) -> anyhow::Result<()> {
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
        .context("reading how the queue of echo is configured")?;
    let like = pull::Config::try_from_consumer_config(queue.cached_info().config.clone())
        .map_err(|error| anyhow!("the queue of echo is configured in an unknown way: {error}"))?;
    let filter_subject = format!("{WORK_SUBJECT}.>");
    let config = pull::Config { durable_name: Some(QUEUE.into()), name: None, filter_subject, ..like };
    context.create_consumer_on_stream(config, WORK_STREAM).await?;
    Ok(())
}

/// What a message is, as its first byte says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Decision,
    Order,
    Claim,
    Outcome,
}

/// A message of a size, marked with what it is and whose.
fn message(kind: Kind, size: usize, task: u32, leg: u8) -> Bytes {
    let mut bytes = vec![b'.'; size.max(MARK)];
    bytes[0] = kind as u8;
    bytes[1] = leg;
    bytes[2..MARK].copy_from_slice(&task.to_le_bytes());
    bytes.into()
}

/// The task and the leg of a marked message.
fn mark(payload: &[u8]) -> (u32, u8) {
    let mut task = [0; 4];
    task.copy_from_slice(&payload[2..MARK]);
    (u32::from_le_bytes(task), payload[1])
}

/// Decides and queues, a leg at a time, as outcomes are read. Gives the time of the beginning and of each task's end,
/// and, where one is under way at a time, how long each stage took.
async fn own(
    side: Side,
    tasks: u32,
    in_flight: u32,
    legs: Arc<[Leg]>,
) -> anyhow::Result<(Vec<Instant>, Stages)> {
    let mut lane = read_lane(&side.context).await?;
    let decided: Arc<Vec<AtomicU64>> = Arc::new((0..tasks).map(|_| AtomicU64::new(0)).collect());
    let begin = |task: u32, leg: u8| begin_leg(side.clone(), decided.clone(), legs.clone(), task, leg);
    let mut under_way = FuturesUnordered::new();
    let mut times = Vec::with_capacity(tasks as usize + 1);
    let mut stages = Stages::default();
    times.push(Instant::now());
    let mut begun = tasks.min(in_flight);
    (0..begun).for_each(|task| under_way.push(begin(task, 0)));
    while times.len() <= tasks as usize {
        tokio::select! {
            Some(begun) = under_way.next() => begun?,
            read = lane.next() => for read in read.ok_or_else(|| anyhow!("the lane's reader ended"))? {
                let read = read?;
                if in_flight == 1 {
                    note_stage(&mut stages, &read)?;
                }
                let payload = &read.payload;
                if payload[0] != Kind::Outcome as u8 {
                    continue;
                }
                let (task, leg) = mark(payload);
                if usize::from(leg) + 1 < legs.len() {
                    under_way.push(begin(task, leg + 1));
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

fn note_stage(stages: &mut Stages, read: &jetstream::Message) -> anyhow::Result<()> {
    let info =
        read.info().map_err(|error| anyhow!("a message of the lane says nothing of itself: {error}"))?;
    let at = jiff::Timestamp::from_nanosecond(info.published.unix_timestamp_nanos())?;
    match read.payload[0] {
        kind if kind == Kind::Decision as u8 => stages.add(Stage::Decision, at),
        kind if kind == Kind::Claim as u8 => stages.add(Stage::Claim, at),
        _ => stages.add(Stage::Outcome, at),
    }
    Ok(())
}

async fn begin_leg(
    side: Side,
    decided: Arc<Vec<AtomicU64>>,
    legs: Arc<[Leg]>,
    task: u32,
    leg: u8,
) -> anyhow::Result<()> {
    let (sizes, last) = (legs[usize::from(leg)], &decided[task as usize]);
    let decision = message(Kind::Decision, sizes.decision, task, leg);
    let subject = format!("{LANE_SUBJECT}.{task}.plan");
    let sequence = side.append(subject, decision, last.load(Ordering::Relaxed)).await?;
    last.store(sequence, Ordering::Relaxed);
    let order = message(Kind::Order, sizes.order, task, leg);
    side.queue(format!("{WORK_SUBJECT}.{task}.{leg}"), order).await
}

type LaneReader = futures::stream::ReadyChunks<pull::Stream>;

async fn read_lane(context: &Context) -> anyhow::Result<LaneReader> {
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

/// Works off `orders` orders, `in_flight` at once.
async fn work(side: Side, orders: u32, in_flight: u32, legs: Arc<[Leg]>) -> anyhow::Result<()> {
    let inbox = side.client.new_inbox();
    let mut arriving = side.client.subscribe(inbox.clone()).await?;
    let mut under_way = FuturesUnordered::new();
    let (mut free, mut done) = (in_flight, 0);
    while done < orders {
        // Many at a time where there are many, at once where there is one.
        if free * 4 >= in_flight.max(4) || (in_flight < 4 && free > 0) {
            pull_orders(&side.client, &inbox, free).await?;
            free = 0;
        }
        tokio::select! {
            order = arriving.next() => {
                let order = order.ok_or_else(|| anyhow!("the connection closed"))?;
                if order.status.is_none() {
                    under_way.push(carry_out(side.clone(), legs.clone(), order));
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
    let request = format!(r#"{{"batch":{count},"expires":{}}}"#, EXPIRES.as_nanos());
    let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{WORK_STREAM}.{QUEUE}");
    Ok(client.publish_with_reply(subject, inbox.to_owned(), request.into()).await?)
}

async fn carry_out(side: Side, legs: Arc<[Leg]>, order: Message) -> anyhow::Result<()> {
    let (task, leg) = mark(&order.payload);
    let (sizes, subject) = (legs[usize::from(leg)], format!("{LANE_SUBJECT}.task.{task}.{leg}"));
    let claimed = side.append(subject.clone(), message(Kind::Claim, sizes.claim, task, leg), 0).await?;
    side.append(subject, message(Kind::Outcome, sizes.outcome, task, leg), claimed).await?;
    let reply = order.reply.ok_or_else(|| anyhow!("an order can't be acknowledged"))?;
    Ok(side.client.publish(reply, Bytes::from_static(b"+ACK")).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_size_and_tells_whose_it_is() {
        let bytes = message(Kind::Outcome, 300, 70_000, 1);
        assert_eq!((bytes.len(), bytes[0], mark(&bytes)), (300, Kind::Outcome as u8, (70_000, 1)));
        assert_eq!(message(Kind::Claim, 0, 1, 0).len(), MARK);
    }
}
