//! `millrace bench`: how fast runs go through a cluster, held against the bare JetStream cycle of the same messages.
//!
//! ```text
//! mod      arguments, and which benchmarks there are
//! ├─ speed    rounds of a plan and of the bare cycle     ├─ plans    what is measured, as submissions
//! ├─ replay   reading back and folding                   ├─ run      one run, measured from the log
//! ├─ growth   what must not grow, or must not grow fast  ├─ bare     the limit: the messages and nothing else
//! ├─ agents   what the agents' loop costs                ├─ sizes    how large a run's messages are
//! ├─ slots    how busy slots are kept                    ├─ stages   where the time of a hop goes
//! └─ report   table and JSON                             └─ ground   a cluster of its own; process: what it uses
//! ```
//!
//! Every benchmark starts a cluster of its own, of real processes, as `millrace up` does. Figures come from the times
//! at which the server stored messages. Nothing here has a part in what is measured: it hands plans in, and reads the
//! log when they are done.

mod agents;
mod bare;
mod ground;
mod growth;
mod plans;
mod process;
mod replay;
mod report;
mod run;
mod sizes;
mod slots;
mod speed;
mod stages;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Stop};
use crate::view::{emit, print_line, say};
use ground::Wishes;
use report::Report;
use speed::{By, compare};

/// The arguments of `millrace bench`.
#[derive(Args, Debug)]
#[command(after_long_help = EXPLANATION)]
pub struct Arguments {
    /// What to measure
    #[arg(value_enum, default_value = "all")]
    benchmarks: Vec<Benchmark>,
    /// Number of tasks of each plan [default: 20000; chain 2000; layered and growth 100000; agents and slots 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    tasks: Option<u32>,
    /// Number of times that each speed is measured; the median counts. Layers of 100,000 tasks are measured once
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Number of worker processes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// Number of tasks that each worker does at the same time
    #[arg(long, value_name = "N", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    slots: u32,
    /// Put every write on disk before it is acknowledged, in the clusters and in the bare cycle
    #[arg(long)]
    sync_always: bool,
    /// Folder in which the clusters are made, each in one of its own that is removed afterwards: its disk counts
    /// [default: the system's folder for temporary files]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print what was found as one JSON object
    #[arg(long)]
    json: bool,
}

const EXPLANATION: &str = "\
Every figure stands beside the same figure of the bare cycle: the messages of the run, of the same sizes, through the
same server by the same client library, with nothing else around them. For each task: a fenced decision, an order in
the queue, its pull, the claim, the outcome chained to it, the acknowledgement, and the lane read back; 1,024 tasks in
flight, or one where each task waits for the one before. The ratio is the share of the bare cycle's speed that is
reached: 1 is as fast.

  fan_out           tasks that depend on nothing, from the submission to the decision that ends the run
  fan_out_reviewed  the same, each result judged by a critic
  chain             tasks that each wait for the one before: the time a hop takes (p50)
  layered           layers of 1,000 tasks, each of which waits for two of the layer before
  replay            a run read from its lane and folded, beside only reading it
  growth            what ten times the tasks take; the speed of the fold; the memory of a supervisor; how long a new
                    owner of a full lane needs until it decides
  agents            attempts of 12 turns, all at once in one worker, with a model that answers at once: the processor
                    time of a journaled step, beside a bare append of the same size, and the memory of an attempt
  slots             tasks of 50 ms, each reviewed, over 4 workers of 5 slots: the share of their time in which the slots
                    have work

The processes share this machine with the server and with this command; whatever else runs here counts too.";

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Benchmark {
    /// What the agents' loop itself costs; the first, since it looks at the memory of this very process
    Agents,
    /// Tasks that depend on nothing
    FanOut,
    /// The same, each result judged by a critic
    FanOutReviewed,
    /// Tasks that each wait for the one before
    Chain,
    /// Layers of tasks that wait for the layer before
    Layered,
    /// Reading a run back and folding it
    Replay,
    /// What must not grow, or must not grow fast
    Growth,
    /// How busy slots are kept by tasks that take their time
    Slots,
    /// Everything
    All,
}

impl Benchmark {
    const EACH: [Self; 8] = [
        Self::Agents,
        Self::FanOut,
        Self::FanOutReviewed,
        Self::Chain,
        Self::Layered,
        Self::Replay,
        Self::Growth,
        Self::Slots,
    ];

    fn tasks(self) -> u32 {
        match self {
            Self::FanOut | Self::FanOutReviewed | Self::Replay => 20_000,
            Self::Chain => 2_000,
            Self::Agents | Self::Slots => 1_000,
            Self::Layered | Self::Growth | Self::All => 100_000,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::FanOut => "fan_out",
            Self::FanOutReviewed => "fan_out_reviewed",
            Self::Chain => "chain",
            Self::Layered => "layered",
            Self::Replay => "replay",
            Self::Growth => "growth",
            Self::Agents => "agents",
            Self::Slots => "slots",
            Self::All => "all",
        }
    }
}

/// Measures, and prints what was found.
pub async fn command(arguments: Arguments, interrupt: CancellationToken) -> Result<Exit, Stop> {
    let report = tokio::select! {
        report = measure(&arguments) => report?,
        // Dropping the rest kills the processes and removes their folder.
        () = interrupt.cancelled() => return Ok(Exit::Interrupted),
    };
    if arguments.json {
        emit(&serde_json::to_value(&report).map_err(Stop::environment)?);
    } else {
        report.lines().iter().for_each(|line| print_line(line));
    }
    Ok(Exit::Completed)
}

async fn measure(arguments: &Arguments) -> anyhow::Result<Report> {
    let mut benchmarks = arguments.benchmarks.clone();
    if benchmarks.contains(&Benchmark::All) {
        benchmarks = Benchmark::EACH.to_vec();
    }
    benchmarks.sort_unstable();
    benchmarks.dedup();
    let processors = std::thread::available_parallelism().map_or(0, NonZeroUsize::get);
    let mut report = Report::default();
    report.machine.extend([
        ("processors", processors.into()),
        ("sync_always", arguments.sync_always.into()),
        ("workers", arguments.workers.into()),
        ("slots", arguments.slots.into()),
    ]);
    say(&format!(
        "millrace: measuring on {processors} processors, with {} worker(s) of {} slots{}",
        arguments.workers,
        arguments.slots,
        if arguments.sync_always { ", every write on disk" } else { "" }
    ));
    if cfg!(debug_assertions) {
        say(
            "millrace: this program was built without optimisation: build it with --release to learn how fast it is",
        );
    }
    for benchmark in benchmarks {
        let tasks = arguments.tasks.unwrap_or(benchmark.tasks());
        say(&format!("millrace: {} of {tasks} tasks …", benchmark.name()));
        Box::pin(measure_one(arguments, benchmark, tasks, &mut report)).await?;
    }
    Ok(report)
}

async fn measure_one(
    arguments: &Arguments,
    benchmark: Benchmark,
    tasks: u32,
    report: &mut Report,
) -> anyhow::Result<()> {
    let wishes = arguments.wishes();
    let rounds = arguments.rounds;
    let (what, by, submission, rounds) = match benchmark {
        Benchmark::FanOut => {
            (format!("{tasks} tasks at once"), By::Rate, plans::fan_out(tasks, false), rounds)
        }
        Benchmark::FanOutReviewed => {
            (format!("{tasks} tasks at once, each reviewed"), By::Rate, plans::fan_out(tasks, true), rounds)
        }
        Benchmark::Chain => {
            (format!("{tasks} tasks, one after the other (p50)"), By::Hop, plans::chain(tasks), rounds)
        }
        Benchmark::Layered => {
            let layers = tasks.div_ceil(plans::LAYER);
            let rounds = if tasks >= 100_000 { 1 } else { rounds };
            (format!("{tasks} tasks in {layers} layers"), By::Rate, plans::layered(tasks), rounds)
        }
        Benchmark::Replay => {
            let replay = replay::replay(&wishes, tasks, rounds).await?;
            report.comparisons.insert(benchmark.name(), replay);
            return Ok(());
        }
        Benchmark::Growth => {
            report.growth.extend(growth::growth(&wishes, tasks, rounds).await?);
            return Ok(());
        }
        Benchmark::Agents => {
            let found = agents::agents(&wishes, tasks, rounds).await?;
            report.comparisons.insert(benchmark.name(), found.comparison);
            report.growth.extend(found.bounds);
            return Ok(());
        }
        Benchmark::Slots => {
            report.growth.insert(benchmark.name(), slots::slots(&wishes, tasks, rounds).await?);
            return Ok(());
        }
        Benchmark::All => return Ok(()),
    };
    let comparison = compare(&wishes, what, by, &submission, rounds).await?;
    report.comparisons.insert(benchmark.name(), comparison);
    Ok(())
}

impl Arguments {
    fn wishes(&self) -> Wishes {
        Wishes {
            folder: self.data.clone().unwrap_or_else(std::env::temp_dir),
            workers: self.workers,
            slots: self.slots,
            sync_always: self.sync_always,
            // So long that the end is seen in the lane's peace, and so short that the next round need not wait.
            linger: Duration::from_millis(500),
            lane_lease: None,
        }
    }
}
