//! One run through a cluster, measured. Times are those at which the server stored messages, so that one clock has
//! told all of them, and nobody reads along who would not do so otherwise.

use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use jiff::Timestamp;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Decision, EndReason, Event, Plan, Submission, TaskState, apply_decision};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire;
use millrace_protocol::work::Entry;
use millrace_runtime::record::Record;
use millrace_runtime::{archive, registry};

use super::ground::Ground;
use super::process::{Seconds, used};
use super::stages::{Stage, Stages};
use crate::client;

/// What a run took.
#[derive(Debug)]
pub struct Measured {
    /// How many tasks it had.
    pub tasks: u32,
    /// From the submission to the decision that ended it.
    pub took: Duration,
    /// From its first decision to its last.
    pub deciding: Duration,
    /// How long after each decision that accepted a task the next such decision came.
    pub hops: Vec<Duration>,
    /// The processor seconds of each process from the submission to the end.
    pub seconds: Seconds,
    /// How many decisions were made.
    pub decisions: usize,
    /// All messages of the run, oldest first.
    pub records: Vec<Record>,
}

/// A linger that outlasts every benchmark: the run stays in its lane.
pub const LONG: Duration = Duration::from_secs(24 * 3600);

/// How often it is looked whether a run has ended: rarely, since looking takes the processors from the run.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long a run of that many tasks may take before something must be wrong.
pub fn patience(tasks: u32) -> Duration {
    Duration::from_secs(60) + Duration::from_millis(10) * tasks
}

/// A run that has ended, and is in its lane for as long as runs linger there.
pub struct Ended {
    /// The run.
    pub run: RunId,
    /// The processor seconds of each process from the submission to the end.
    pub seconds: Seconds,
}

/// Hands a run in, and waits for its end.
pub async fn end(ground: &mut Ground, submission: &Submission) -> anyhow::Result<Ended> {
    let tasks = u32::try_from(submission.tasks.len())?;
    ground.check()?;
    let before = ground.seconds();
    let run = client::submit(ground.bus(), submission).await.map_err(|stop| stop.error)?;
    until(ground, &run, tasks, "end", |summary| summary.end.is_some()).await?;
    Ok(Ended { run, seconds: used(&before, &ground.seconds()) })
}

/// Hands a run in, and measures it to its end, which must be that all of its tasks are completed. The run is in the
/// archive and out of the lane when this returns.
pub async fn measure(ground: &mut Ground, submission: &Submission) -> anyhow::Result<Measured> {
    let tasks = u32::try_from(submission.tasks.len())?;
    let Ended { run, seconds } = end(ground, submission).await?;
    until(ground, &run, tasks, "be archived", |summary| summary.archived).await?;
    let records = archive::read(ground.bus(), &run).await?;
    let records = records.ok_or_else(|| anyhow!("run {run} is not in the archive"))?;
    let decisions = decisions(ground, &records).await?;
    verify(&run, tasks, decisions.iter().map(|(_, decision)| decision))?;
    let time = |record: Option<&Record>| record.map(|record| record.time);
    let (submitted, ended) = (time(records.first()), decisions.last().map(|(time, _)| *time));
    Ok(Measured {
        tasks,
        took: between(submitted, ended),
        deciding: between(decisions.first().map(|(time, _)| *time), ended),
        hops: hops(&decisions),
        seconds,
        decisions: decisions.len(),
        records,
    })
}

/// Waits until a run's summary says something.
pub async fn until(
    ground: &mut Ground,
    run: &RunId,
    tasks: u32,
    what: &str,
    is_so: impl Fn(&RunSummary) -> bool,
) -> anyhow::Result<()> {
    let (started, patience) = (Instant::now(), patience(tasks));
    loop {
        ground.check()?;
        let summary = registry::summary(ground.bus(), run).await?;
        if summary.as_ref().is_some_and(&is_so) {
            return Ok(());
        }
        if started.elapsed() > patience {
            let stands = summary.map_or("it has not begun".to_owned(), |summary| stands(&summary));
            bail!("waited {} s for run {run} of {tasks} tasks to {what}; {stands}", patience.as_secs());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn stands(summary: &RunSummary) -> String {
    let counts = TaskState::ALL.into_iter().zip(summary.counts).filter(|(_, count)| *count > 0);
    counts.map(|(state, count)| format!("{count} {state}")).collect::<Vec<_>>().join(", ")
}

/// The decisions among messages, each with the time at which it was stored.
pub async fn decisions(ground: &Ground, records: &[Record]) -> anyhow::Result<Vec<(Timestamp, Decision)>> {
    let mut decisions = Vec::new();
    for record in records {
        if is_decision(record) {
            decisions.push((record.time, ground.bus().open(record).await?));
        }
    }
    Ok(decisions)
}

/// Whether a message holds a decision.
pub fn is_decision(record: &Record) -> bool {
    matches!(subject::parse(&record.subject), Some((_, _, Topic::Plan)))
}

/// Folds a run, and checks that it ended as it should.
fn verify<'a>(run: &RunId, tasks: u32, decisions: impl Iterator<Item = &'a Decision>) -> anyhow::Result<()> {
    let mut plan = Plan::default();
    decisions.for_each(|decision| apply_decision(&mut plan, decision));
    let end = plan.end.as_ref().ok_or_else(|| anyhow!("run {run} has no end in the log"))?;
    let completed = plan.count(TaskState::Completed);
    if end.reason == EndReason::Completed && completed == tasks {
        return Ok(());
    }
    Err(anyhow!("run {run} ended {} with {completed} of {tasks} tasks completed: {}", end.reason, end.detail))
}

/// The stages of a run in which one task is under way at a time.
pub fn stages(records: &[Record]) -> Stages {
    let mut stages = Stages::default();
    for record in records {
        if is_decision(record) {
            stages.add(Stage::Decision, record.time);
            continue;
        }
        match wire::open::<Entry>(&record.payload, record.encoding) {
            Ok(Entry::Claimed { .. }) => stages.add(Stage::Claim, record.time),
            Ok(Entry::Outcome { .. }) => stages.add(Stage::Outcome, record.time),
            Ok(Entry::Step { .. } | Entry::Note { .. } | Entry::Released { .. }) | Err(_) => {}
        }
    }
    stages
}

fn hops(decisions: &[(Timestamp, Decision)]) -> Vec<Duration> {
    let accepts =
        |decision: &Decision| decision.events.iter().any(|event| matches!(event, Event::TaskAccepted { .. }));
    let times: Vec<Timestamp> =
        decisions.iter().filter(|(_, decision)| accepts(decision)).map(|(time, _)| *time).collect();
    times.windows(2).map(|pair| between(Some(pair[0]), Some(pair[1]))).collect()
}

fn between(from: Option<Timestamp>, to: Option<Timestamp>) -> Duration {
    let span = from.zip(to).map(|(from, to)| to.duration_since(from));
    span.and_then(|span| Duration::try_from(span).ok()).unwrap_or_default()
}
