//! Event streams of a gateway: the memory of each open stream, and the time from the append of a decision to its arrival at a client,
//! beside that of a JetStream consumer without Millrace in the same run.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::ensure;
use async_nats::jetstream;
use async_nats::jetstream::consumer::{DeliverPolicy, push};
use futures::StreamExt;
use jiff::Timestamp;
use millrace_client::submit_run;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::subject;
use millrace_runtime::nats::direct_get::read_matching;
use millrace_runtime::nats::topology::lane_stream;

use super::slots::signal_event;
use crate::cluster::{BenchCluster, BenchOptions, POLL_INTERVAL};
use crate::http::HttpConnection;
use crate::report::{BaselineComparison, BoundedFigure, quantile};
use crate::run::LONG;
use crate::{plans, process};

/// The number of streams of each run.
const STREAMS_PER_RUN: u32 = 10;
/// The number of signals, and the pause between two.
const SIGNALS: u32 = 500;
const PAUSE: Duration = Duration::from_millis(10);
/// The time in which everything must have arrived.
const ARRIVAL: Duration = Duration::from_secs(30);
/// The gateway among the processes.
const GATEWAY: &str = "gateway-1";

/// The arrival of each message of the lane, at each reader.
type Arrivals = Arc<Mutex<HashMap<u64, Vec<Timestamp>>>>;

pub struct StreamFigures {
    /// The delays.
    pub comparison: BaselineComparison,
    /// The memory.
    pub bounds: BTreeMap<&'static str, BoundedFigure>,
}

/// Measures `streams` open streams.
pub async fn measure_streams(options: &BenchOptions, streams: u32) -> anyhow::Result<StreamFigures> {
    let options = BenchOptions { serves_api: true, linger: LONG, ..options.clone() };
    let cluster = BenchCluster::start(&options).await?;
    let mut runs = Vec::new();
    for _ in 0..streams.div_ceil(STREAMS_PER_RUN) {
        runs.push(submit_run(cluster.bus(), &plans::waiting_submission(1, "never")).await?);
    }
    let address = cluster.api_address()?;
    let mut probe = HttpConnection::open(address).await?;
    for run in &runs {
        await_waiting_task(&mut probe, run).await?;
    }
    let idle = process::read_resident_memory(cluster.pid(GATEWAY)?);
    let (over_http, bare) = (Arrivals::default(), Arrivals::default());
    let mut readers = Vec::new();
    for number in 0..streams {
        let run = &runs[(number / STREAMS_PER_RUN) as usize];
        let mut connection = HttpConnection::open(address).await?;
        connection.open_stream(&format!("/api/v1/runs/{run}/events?types=event_signalled")).await?;
        readers.push(tokio::spawn(read_stream(connection, over_http.clone())));
    }
    let consumer = follow_lane(&cluster).await?;
    readers.push(tokio::spawn(read_consumer(consumer, bare.clone())));
    // All streams have read the log.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let open = process::read_resident_memory(cluster.pid(GATEWAY)?);
    let seconds = cluster.cpu_seconds();
    for number in 0..SIGNALS {
        let began = Instant::now();
        let run = &runs[number as usize % runs.len()];
        signal_event(&cluster, run, &format!("tick-{number}")).await?;
        tokio::time::sleep(PAUSE.saturating_sub(began.elapsed())).await;
    }
    let appended = await_arrivals(&cluster, &runs, &over_http, streams).await?;
    let seconds = process::cpu_seconds_between(&seconds, &cluster.cpu_seconds());
    readers.iter().for_each(tokio::task::JoinHandle::abort);
    cluster.stop_cluster().await;
    let each = idle.zip(open).map(|(idle, open)| open.saturating_sub(idle) as f64 / f64::from(streams));
    let delays = [delays(&appended, &over_http), delays(&appended, &bare)];
    Ok(StreamFigures::new(streams, delays, each, seconds))
}

impl StreamFigures {
    /// Returns the figures of the delays over HTTP and in the lane, of the memory of each stream, and of the processor time.
    fn new(
        streams: u32,
        [over_http, bare]: [Vec<f64>; 2],
        memory: Option<f64>,
        processor_seconds: process::CpuSeconds,
    ) -> Self {
        let (figure, baseline) = (quantile_of(&over_http, 0.5), quantile_of(&bare, 0.5));
        let comparison = BaselineComparison {
            what: format!("{streams} event streams: from append to client (p50)"),
            unit: "ms",
            figure,
            bare: baseline,
            ratio: baseline / figure,
            rounds: vec![(figure, baseline)],
            details: BTreeMap::from([
                ("streams", f64::from(streams)),
                ("events", over_http.len() as f64),
                ("p99_ms", quantile_of(&over_http, 0.99)),
                ("bare_p99_ms", quantile_of(&bare, 0.99)),
            ]),
            processor_seconds,
            bare_processor_seconds: process::CpuSeconds::new(),
        };
        let bounds = BTreeMap::from([
            (
                "stream_memory",
                BoundedFigure::with_maximum("memory of a gateway per open stream", "bytes", memory, 65_536.0),
            ),
            (
                "stream_p99",
                BoundedFigure::with_maximum(
                    "from the append of a decision to its arrival at a stream's client (p99)",
                    "ms",
                    quantile_of(&over_http, 0.99),
                    50.0,
                ),
            ),
        ]);
        Self { comparison, bounds }
    }
}

/// Waits until the task of a run waits, so that only signals change the run.
async fn await_waiting_task(probe: &mut HttpConnection, run: &RunId) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        let state = probe.send("GET", &format!("/api/v1/runs/{run}"), "").await?.json(200)?;
        if state["task_counts"]["waiting"] == 1 {
            return Ok(());
        }
        ensure!(began.elapsed() < ARRIVAL, "run {run} does not wait: {}", state["task_counts"]);
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn quantile_of(delays: &[f64], share: f64) -> f64 {
    quantile(delays.iter().copied(), share)
}

/// Notes the arrival of each event of a stream.
async fn read_stream(mut connection: HttpConnection, arrivals: Arrivals) -> anyhow::Result<()> {
    let mut rest = Vec::new();
    loop {
        rest.extend(connection.read_stream().await?);
        let at = Timestamp::now();
        while let Some(end) = rest.windows(2).position(|window| window == b"\n\n") {
            let frame: Vec<u8> = rest.drain(..end + 2).collect();
            let text = String::from_utf8_lossy(&frame);
            let id = text.lines().find_map(|line| line.strip_prefix("id: "));
            let sequence = id.and_then(|id| id.split('.').next()).and_then(|text| text.parse().ok());
            if let Some(sequence) = sequence {
                note_arrival(&arrivals, sequence, at);
            }
        }
    }
}

fn note_arrival(arrivals: &Arrivals, sequence: u64, at: Timestamp) {
    arrivals.lock().unwrap_or_else(PoisonError::into_inner).entry(sequence).or_default().push(at);
}

/// Creates an ordered consumer of the decisions, as a client without Millrace would.
async fn follow_lane(cluster: &BenchCluster) -> anyhow::Result<push::Ordered> {
    let client = cluster.connect_client().await?;
    let config = push::OrderedConfig {
        deliver_subject: client.new_inbox(),
        filter_subject: subject::plan_subjects_of_lane(Lane(0)),
        deliver_policy: DeliverPolicy::New,
        ..push::OrderedConfig::default()
    };
    let stream = jetstream::new(client).get_stream_no_info(lane_stream(Lane(0))).await?;
    let consumer = stream.create_consumer(config).await?;
    Ok(consumer.messages().await?)
}

async fn read_consumer(mut consumer: push::Ordered, arrivals: Arrivals) -> anyhow::Result<()> {
    while let Some(message) = consumer.next().await {
        let message = message?;
        let at = Timestamp::now();
        let info = message.info().map_err(|error| anyhow::anyhow!(error))?;
        note_arrival(&arrivals, info.stream_sequence, at);
    }
    Ok(())
}

/// Waits until every stream has received every signal of its run. Returns when the decisions were stored.
async fn await_arrivals(
    cluster: &BenchCluster,
    runs: &[RunId],
    arrivals: &Arrivals,
    streams: u32,
) -> anyhow::Result<HashMap<u64, Timestamp>> {
    let began = Instant::now();
    let expected: usize = (0..SIGNALS as usize)
        .map(|number| {
            let run = number % runs.len();
            (0..streams).filter(|stream| (stream / STREAMS_PER_RUN) as usize == run).count()
        })
        .sum();
    let count =
        || -> usize { arrivals.lock().unwrap_or_else(PoisonError::into_inner).values().map(Vec::len).sum() };
    while count() < expected {
        ensure!(began.elapsed() < ARRIVAL, "{} of {expected} events have arrived", count());
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    ensure!(count() == expected, "{} events have arrived instead of {expected}", count());
    let filter = subject::plan_subjects_of_lane(Lane(0));
    let records = read_matching(cluster.bus().client(), &lane_stream(Lane(0)), &filter, 1).await?;
    Ok(records.into_iter().map(|record| (record.sequence, record.time)).collect())
}

/// Returns the delays in milliseconds.
fn delays(appended: &HashMap<u64, Timestamp>, arrivals: &Arrivals) -> Vec<f64> {
    let arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
    let each = arrivals.iter().filter_map(|(sequence, arrivals)| Some((appended.get(sequence)?, arrivals)));
    let delays = each.flat_map(|(appended, arrivals)| {
        arrivals.iter().map(|arrived| arrived.duration_since(*appended).as_secs_f64() * 1e3)
    });
    delays.collect()
}
