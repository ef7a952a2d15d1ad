//! Benchmarks of a cluster, compared with the same messages sent directly through JetStream. `millrace bench` calls [`run`].
//!
//! ```text
//! lib      arguments, list of benchmarks
//! ├─ speed    throughput and latency of plans            ├─ plans    the plans, as submissions
//! ├─ replay   reading and folding a run                  ├─ run      one run, measured from its log
//! ├─ growth   scaling with plan and lane size, memory    ├─ baseline the same messages, no Millrace
//! ├─ agents   overhead of the agent loop                 ├─ takeover kills a lane's owner
//! ├─ slots    worker slots: utilization, parked attempts │
//! ├─ waiting  takeover of a lane full of waiting runs    │
//! ├─ delegate latency of delegation                      │
//! ├─ runs     small runs over HTTP                       ├─ http     a small HTTP client
//! ├─ streams  event streams of a gateway                 │
//! ├─ startup  start of a local cluster                   │
//! └─ report   table and JSON                             └─ cluster  the cluster; process: CPU and memory use
//! ```
//!
//! Every benchmark starts its own cluster of real processes, as `millrace up` does. Times are those at which the server
//! stored messages. This process takes no part in what is measured: it submits plans, and reads the log afterwards.

mod agents;
mod archived;
mod baseline;
mod cluster;
mod delegate;
mod growth;
mod http;
mod plans;
mod process;
mod replay;
mod report;
mod run;
mod runs;
mod slots;
mod speed;
mod startup;
mod streams;
mod takeover;
mod waiting;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use cluster::BenchOptions;
use millrace_protocol::plan::Submission;
use speed::{ComparisonFigure, compare_with_baseline};

pub use report::BenchReport;

/// The arguments of `millrace bench`.
#[derive(Args, Debug)]
#[command(after_long_help = EXPLANATION)]
pub struct BenchArguments {
    /// Benchmarks to run
    #[arg(value_enum, default_value = "all")]
    benchmarks: Vec<Benchmark>,
    /// Number of tasks in each plan [default: 20000; chain 2000; layered, growth and archived_runs 100000; agents and slots
    /// 1000; parked, memory and waiting_runs 10000; delegate 500; runs 5000; stream 1000; startup 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    tasks: Option<u32>,
    /// Number of rounds; the median counts. Layers of 100,000 tasks are measured once
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Number of worker processes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// Number of concurrent tasks of each worker
    #[arg(long, value_name = "N", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    slots: u32,
    /// Sync every write to disk before it is acknowledged, in the clusters and in the baseline
    #[arg(long)]
    sync_always: bool,
    /// Three servers and three copies of each stream, in the clusters and in the baseline; a single machine then does the work of
    /// three
    #[arg(long)]
    replicated: bool,
    /// Folder for the clusters, each in a subfolder that is removed afterwards; results depend on its disk [default: the
    /// system's folder for temporary files]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print the report as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `true` if this program was built with optimisation: all profiles but `dev` are.
const IS_OPTIMIZED: bool = !cfg!(debug_assertions);

const UNOPTIMIZED_WARNING: &str = "millrace: warning: this build is not optimised, so the figures say little about \
production; measure with `cargo run --release -- bench`";

const EXPLANATION: &str = "\
Each figure is compared with a baseline: the same messages, of the same sizes, sent through the same server with the same \
client library, without Millrace. For each task: a fenced decision, an order in the queue, its pull, the claim, the \
outcome, the acknowledgement, and reading the lane back; 1,024 tasks in flight, or one if each task waits for the one \
before. The ratio is the fraction of the baseline's speed: 1 is as fast.

  fan_out           independent tasks, from submission to the end of the run
  fan_out_reviewed  the same, with a critic reviewing each result
  chain             tasks that each depend on the one before: latency (p50)
  layered           layers of 1,000 tasks, each depending on two tasks above
  replay            reading and folding the decisions of a run, compared with
                    reading all of its messages
  growth            ten times the tasks; folding speed; supervisor memory; time
                    from the takeover of a full lane to the first decision
  agents            concurrent attempts of 12 turns with an instant model: CPU
                    time per journaled step, and memory per attempt
  slots             tasks of 50 ms, each reviewed, on 4 workers with 5 slots:
                    utilization of the slots
  parked            attempts that wait for an event: memory of a supervisor for
                    each, slots that they hold, and the rate at which one event
                    wakes them all and they finish
  waiting_runs      runs with 100 kB of journal each that wait for an event: time
                    from the takeover of their lane until the new owner decides on
                    what was sent to them meanwhile, its memory, and the time in
                    which one of them wakes and ends, in hops of a chain
  delegate          from the journaled call of a task to the claim of the task that
                    it delegates, and from the end of that to the next journal
                    entry of the parent, in hops of a chain in the same run
  runs              runs of one task over HTTP, on 64 connections: from the request
                    to the response with the end
  stream            open event streams of a gateway: memory of each, and the time
                    from the append of a decision to its arrival at the client,
                    compared with a JetStream consumer in the same run
  memory            memory of a supervisor per pending, running, waiting and
                    completed task of a live run
  startup           from the start of a local cluster to the end of its first
                    task, compared with the start of its NATS server
  archived_runs     beside that many archived runs: the time of lists, filters,
                    pages, reads and deletions over HTTP

All processes share this machine with the server and with this command; other load affects the results.";

/// The benchmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Benchmark {
    /// Overhead of the agent loop; first, because it measures the memory of this process
    Agents,
    /// Independent tasks
    FanOut,
    /// The same, with a critic reviewing each result
    FanOutReviewed,
    /// Tasks that each depend on the one before
    Chain,
    /// Layers of tasks that depend on the layer before
    Layered,
    /// Reading and folding the decisions of a run
    Replay,
    /// Scaling with the number of tasks
    Growth,
    /// Utilization of worker slots
    Slots,
    /// Attempts that wait for an event
    Parked,
    /// Runs that wait for an event: takeover of their lane
    WaitingRuns,
    /// Latency of delegation
    Delegate,
    /// Small runs over HTTP
    Runs,
    /// Event streams over HTTP
    Stream,
    /// Memory of a supervisor per task
    Memory,
    /// Start of a local cluster
    Startup,
    /// Requests to a cluster with many archived runs
    ArchivedRuns,
    /// Everything
    All,
}

impl Benchmark {
    const EACH: [Self; 16] = [
        Self::Agents,
        Self::FanOut,
        Self::FanOutReviewed,
        Self::Chain,
        Self::Layered,
        Self::Replay,
        Self::Growth,
        Self::Slots,
        Self::Parked,
        Self::WaitingRuns,
        Self::Delegate,
        Self::Runs,
        Self::Stream,
        Self::Memory,
        Self::Startup,
        Self::ArchivedRuns,
    ];

    fn default_task_count(self) -> u32 {
        match self {
            Self::FanOut | Self::FanOutReviewed | Self::Replay => 20_000,
            Self::Chain => 2_000,
            Self::Agents | Self::Slots | Self::Stream => 1_000,
            Self::Runs => 5_000,
            Self::Parked | Self::Memory | Self::WaitingRuns => 10_000,
            Self::Startup => 1,
            Self::Delegate => 500,
            Self::Layered | Self::Growth | Self::ArchivedRuns | Self::All => 100_000,
        }
    }

    fn benchmark_name(self) -> &'static str {
        match self {
            Self::FanOut => "fan_out",
            Self::FanOutReviewed => "fan_out_reviewed",
            Self::Chain => "chain",
            Self::Layered => "layered",
            Self::Replay => "replay",
            Self::Growth => "growth",
            Self::Agents => "agents",
            Self::Slots => "slots",
            Self::Parked => "parked",
            Self::WaitingRuns => "waiting_runs",
            Self::Delegate => "delegate",
            Self::Runs => "runs",
            Self::Stream => "stream",
            Self::Memory => "memory",
            Self::Startup => "startup",
            Self::ArchivedRuns => "archived_runs",
            Self::All => "all",
        }
    }
}

/// Runs the benchmarks and returns their figures. `notify` receives a line for each step. Dropping the future kills the
/// processes and removes their folders.
///
/// # Errors
/// A cluster does not start, or a run in it does not end as expected.
pub async fn run_benchmarks(
    arguments: &BenchArguments,
    notify: &dyn Fn(&str),
) -> anyhow::Result<BenchReport> {
    let mut benchmarks = arguments.benchmarks.clone();
    if benchmarks.contains(&Benchmark::All) {
        benchmarks = Benchmark::EACH.to_vec();
    }
    benchmarks.sort_unstable();
    benchmarks.dedup();
    let processors = std::thread::available_parallelism().map_or(0, NonZeroUsize::get);
    let mut report = BenchReport::default();
    report.machine.extend([
        ("processors", processors.into()),
        ("sync_always", arguments.sync_always.into()),
        ("replicated", arguments.replicated.into()),
        ("workers", arguments.workers.into()),
        ("slots", arguments.slots.into()),
        ("is_optimized", IS_OPTIMIZED.into()),
    ]);
    notify(&format!(
        "millrace: measuring on {processors} processors, with {} worker(s) of {} slots{}{}",
        arguments.workers,
        arguments.slots,
        if arguments.sync_always { ", syncing every write" } else { "" },
        if arguments.replicated { ", with three copies" } else { "" }
    ));
    if !IS_OPTIMIZED {
        notify(UNOPTIMIZED_WARNING);
    }
    for benchmark in benchmarks {
        let tasks = arguments.tasks.unwrap_or(benchmark.default_task_count());
        notify(&format!("millrace: {} with {tasks} tasks …", benchmark.benchmark_name()));
        Box::pin(measure_benchmark(arguments, benchmark, (tasks, notify), &mut report)).await?;
    }
    Ok(report)
}

async fn measure_benchmark(
    arguments: &BenchArguments,
    benchmark: Benchmark,
    (tasks, notify): (u32, &dyn Fn(&str)),
    report: &mut BenchReport,
) -> anyhow::Result<()> {
    let (options, rounds) = (arguments.cluster_options(), arguments.rounds);
    let name = benchmark.benchmark_name();
    match benchmark {
        Benchmark::FanOut | Benchmark::FanOutReviewed | Benchmark::Chain | Benchmark::Layered => {
            let ComparedRun { what, by, submission, rounds } = ComparedRun::of(benchmark, tasks, rounds);
            let comparison = compare_with_baseline(&options, what, by, &submission, rounds).await?;
            report.comparisons.insert(name, comparison);
        }
        Benchmark::Replay => {
            let replay = replay::compare_folding_with_reading(&options, tasks, rounds).await?;
            report.comparisons.insert(name, replay);
        }
        Benchmark::Growth => report.growth.extend(growth::measure_growth(&options, tasks, rounds).await?),
        Benchmark::Agents => {
            let result = agents::measure_agents(&options, tasks, rounds).await?;
            report.comparisons.insert(name, result.comparison);
            report.growth.extend(result.bounds);
        }
        Benchmark::Slots => {
            report.growth.insert(name, slots::measure_slot_use(&options, tasks, rounds).await?);
        }
        Benchmark::Parked => report.growth.extend(slots::measure_parking(&options, tasks).await?),
        Benchmark::WaitingRuns => report.growth.extend(waiting::measure_waiting_runs(&options, tasks).await?),
        Benchmark::Delegate => {
            report.growth.extend(delegate::measure_delegation(&options, tasks, rounds).await?);
        }
        Benchmark::Runs => report.growth.extend(runs::measure_runs(&options, tasks, notify).await?),
        Benchmark::Stream => {
            let figures = streams::measure_streams(&options, tasks).await?;
            report.comparisons.insert(name, figures.comparison);
            report.growth.extend(figures.bounds);
        }
        Benchmark::Memory => report.growth.extend(growth::measure_task_memory(&options, tasks).await?),
        Benchmark::Startup => {
            let startup = startup::compare_startup_with_server(&options, rounds).await?;
            report.comparisons.insert(name, startup);
        }
        Benchmark::ArchivedRuns => {
            report.growth.extend(archived::measure_archived_runs(&options, tasks).await?);
        }
        Benchmark::All => {}
    }
    Ok(())
}

/// A run that is compared with the baseline.
struct ComparedRun {
    what: String,
    by: ComparisonFigure,
    submission: Submission,
    rounds: u32,
}

impl ComparedRun {
    /// The run of a benchmark: independent tasks, unless it is about dependent ones.
    fn of(benchmark: Benchmark, tasks: u32, rounds: u32) -> Self {
        let by = ComparisonFigure::Rate;
        if benchmark == Benchmark::Chain {
            let (what, by) = (format!("{tasks} tasks in a chain (p50)"), ComparisonFigure::Hop);
            return Self { what, by, submission: plans::chain_submission(tasks), rounds };
        }
        if benchmark == Benchmark::Layered {
            let what = format!("{tasks} tasks in {} layers", tasks.div_ceil(plans::LAYER));
            let rounds = if tasks >= 100_000 { 1 } else { rounds };
            return Self { what, by, submission: plans::layered_submission(tasks), rounds };
        }
        let is_reviewed = benchmark == Benchmark::FanOutReviewed;
        let what = format!("{tasks} tasks at once{}", if is_reviewed { ", each reviewed" } else { "" });
        Self { what, by, submission: plans::fan_out_submission(tasks, is_reviewed), rounds }
    }
}

impl BenchArguments {
    fn cluster_options(&self) -> BenchOptions {
        BenchOptions {
            folder: self.data.clone().unwrap_or_else(std::env::temp_dir),
            workers: self.workers,
            slots: self.slots,
            sync_always: self.sync_always,
            is_replicated: self.replicated,
            // Long enough to observe the end in the lane, short enough not to delay the next round.
            linger: Duration::from_millis(500),
            lane_lease: None,
            serves_api: false,
        }
    }
}
