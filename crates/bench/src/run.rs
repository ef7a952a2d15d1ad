//! Measures one run. Times are those at which the server stored messages: all come from one clock, and no additional
//! reader disturbs the run.
//!
//! The stages of a task: decision to claim (queue, pull, claim), claim to outcome (the work itself), outcome to next decision (read,
//! decide, append). Their latency is only meaningful with one task in flight.

use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use jiff::Timestamp;
use millrace_client::submit_run;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{
    Decision, EndReason, Event, Plan, Submission, TaskEvent, TaskState, apply_decision,
};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::wire;
use millrace_protocol::work::JournalEntry;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::store::archive;
use millrace_runtime::work::registry;

use crate::cluster::BenchCluster;
use crate::process::{CpuSeconds, cpu_seconds_between};
use crate::report::quantile;

#[derive(Debug)]
pub struct RunMeasurement {
    /// Number of tasks.
    pub tasks: u32,
    /// Time from submission to the decision that ended the run.
    pub took: Duration,
    /// Time from the first to the last decision.
    pub deciding: Duration,
    /// Times between successive decisions that accepted a task.
    pub hops: Vec<Duration>,
    /// CPU seconds of each process from submission to end.
    pub seconds: CpuSeconds,
    /// Number of decisions.
    pub decisions: usize,
    /// All messages of the run, oldest first.
    pub records: Vec<StreamRecord>,
}

/// A linger time beyond the end of every benchmark: the run stays in its lane.
pub const LONG: Duration = Duration::from_secs(24 * 3600);

/// Polling interval for the end of a run; long, because polling takes CPU time from the run.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Returns the timeout for a run with this number of tasks.
pub fn run_timeout(tasks: u32) -> Duration {
    Duration::from_secs(60) + Duration::from_millis(10) * tasks
}

/// A run that has ended but is still in its lane.
pub struct EndedRun {
    pub run: RunId,
    /// CPU seconds of each process from submission to end.
    pub seconds: CpuSeconds,
}

/// Submits a run and waits for its end.
pub async fn run_to_end(cluster: &mut BenchCluster, submission: &Submission) -> anyhow::Result<EndedRun> {
    let tasks = u32::try_from(submission.tasks.len())?;
    cluster.fail_if_process_ended()?;
    let before = cluster.cpu_seconds();
    let run = submit_run(cluster.bus(), submission).await?;
    wait_for_summary(cluster, &run, tasks, "end", |summary| summary.end.is_some()).await?;
    Ok(EndedRun { run, seconds: cpu_seconds_between(&before, &cluster.cpu_seconds()) })
}

/// Submits a run and measures it; all of its tasks must complete. Returns when the run has been archived and removed from
/// its lane.
pub async fn measure_run(
    cluster: &mut BenchCluster,
    submission: &Submission,
) -> anyhow::Result<RunMeasurement> {
    let tasks = u32::try_from(submission.tasks.len())?;
    let (EndedRun { run, seconds }, records) = run_to_archive(cluster, submission).await?;
    let decisions = decode_decisions(cluster, &records).await?;
    verify_decisions(&run, tasks, decisions.iter().map(|(_, decision)| decision))?;
    let time = |record: Option<&StreamRecord>| record.map(|record| record.time);
    let (submitted, ended) = (time(records.first()), decisions.last().map(|(time, _)| *time));
    Ok(RunMeasurement {
        tasks,
        took: duration_between(submitted, ended),
        deciding: duration_between(decisions.first().map(|(time, _)| *time), ended),
        hops: hop_times(&decisions),
        seconds,
        decisions: decisions.len(),
        records,
    })
}

/// Submits a run and returns it with all its messages when it has been archived and removed from its lane.
pub async fn run_to_archive(
    cluster: &mut BenchCluster,
    submission: &Submission,
) -> anyhow::Result<(EndedRun, Vec<StreamRecord>)> {
    let tasks = u32::try_from(submission.tasks.len())?;
    let ended = run_to_end(cluster, submission).await?;
    wait_for_summary(cluster, &ended.run, tasks, "be archived", |summary| summary.archived).await?;
    let records = archive::read_archived_run(cluster.bus(), &ended.run).await?;
    let records = records.ok_or_else(|| anyhow!("run {} is not in the archive", ended.run))?;
    Ok((ended, records))
}

/// Waits until the summary of a run fulfils a condition.
pub async fn wait_for_summary(
    cluster: &mut BenchCluster,
    run: &RunId,
    tasks: u32,
    what: &str,
    is_so: impl Fn(&RunSummary) -> bool,
) -> anyhow::Result<()> {
    let (started, timeout) = (Instant::now(), run_timeout(tasks));
    loop {
        cluster.fail_if_process_ended()?;
        let summary = registry::read_summary(cluster.bus(), run).await?;
        if summary.as_ref().is_some_and(&is_so) {
            return Ok(());
        }
        if started.elapsed() > timeout {
            let state =
                summary.map_or("it has not started".to_owned(), |summary| describe_progress(&summary));
            bail!("run {run} with {tasks} tasks did not {what} within {} s; {state}", timeout.as_secs());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn describe_progress(summary: &RunSummary) -> String {
    let counts = TaskState::ALL.into_iter().zip(summary.counts).filter(|(_, count)| *count > 0);
    counts.map(|(state, count)| format!("{count} {state}")).collect::<Vec<_>>().join(", ")
}

/// Returns the decisions among `records` with their storage times.
pub async fn decode_decisions(
    cluster: &BenchCluster,
    records: &[StreamRecord],
) -> anyhow::Result<Vec<(Timestamp, Decision)>> {
    let mut decisions = Vec::new();
    for record in records {
        if record.is_decision() {
            decisions.push((record.time, cluster.bus().decode_record(record).await?));
        }
    }
    Ok(decisions)
}

/// Folds a run and checks that all of its tasks completed.
fn verify_decisions<'a>(
    run: &RunId,
    tasks: u32,
    decisions: impl Iterator<Item = &'a Decision>,
) -> anyhow::Result<()> {
    let mut plan = Plan::default();
    decisions.for_each(|decision| apply_decision(&mut plan, decision));
    let end = plan.run.end.as_ref().ok_or_else(|| anyhow!("run {run} has no end in the log"))?;
    let completed = plan.task_count_in_state(TaskState::Completed);
    if end.reason == EndReason::Completed && completed == tasks {
        return Ok(());
    }
    Err(anyhow!("run {run} ended {} with {completed} of {tasks} tasks completed: {}", end.reason, end.detail))
}

/// Returns the latency by stage of a run with one task in flight.
pub fn stage_times(records: &[StreamRecord]) -> StageLatencies {
    let mut stages = StageLatencies::default();
    for record in records {
        if record.is_decision() {
            stages.add_message(LatencyStage::Decision, record.time);
            continue;
        }
        match wire::decode_message::<JournalEntry>(&record.payload, record.encoding) {
            Ok(JournalEntry::Claimed { .. }) => stages.add_message(LatencyStage::Claim, record.time),
            Ok(JournalEntry::Outcome { .. }) => stages.add_message(LatencyStage::Outcome, record.time),
            Ok(_) | Err(_) => {}
        }
    }
    stages
}

/// Returns the times between successive decisions that accepted a task.
pub fn hop_times(decisions: &[(Timestamp, Decision)]) -> Vec<Duration> {
    let accepts = |decision: &Decision| {
        decision.events.iter().any(|event| matches!(event, Event::Task(TaskEvent::Accepted { .. })))
    };
    let times: Vec<Timestamp> =
        decisions.iter().filter(|(_, decision)| accepts(decision)).map(|(time, _)| *time).collect();
    times.windows(2).map(|pair| duration_between(Some(pair[0]), Some(pair[1]))).collect()
}

fn duration_between(from: Option<Timestamp>, to: Option<Timestamp>) -> Duration {
    let span = from.zip(to).map(|(from, to)| to.duration_since(from));
    span.and_then(|span| Duration::try_from(span).ok()).unwrap_or_default()
}

/// The message that ends a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatencyStage {
    Decision,
    Claim,
    Outcome,
}

/// The times of all tasks by stage.
#[derive(Debug, Default)]
pub struct StageLatencies {
    last: Option<(LatencyStage, Timestamp)>,
    to_claim: Vec<Duration>,
    to_outcome: Vec<Duration>,
    to_decision: Vec<Duration>,
}

impl StageLatencies {
    /// Adds the next message.
    pub fn add_message(&mut self, stage: LatencyStage, at: Timestamp) {
        let Some((before, since)) = self.last.replace((stage, at)) else { return };
        let Ok(took) = Duration::try_from(at.duration_since(since)) else { return };
        match (before, stage) {
            (LatencyStage::Decision, LatencyStage::Claim) => self.to_claim.push(took),
            (LatencyStage::Claim, LatencyStage::Outcome) => self.to_outcome.push(took),
            (LatencyStage::Outcome, LatencyStage::Decision) => self.to_decision.push(took),
            // For example a separate decision on a claim.
            (LatencyStage::Decision | LatencyStage::Claim | LatencyStage::Outcome, _) => {}
        }
    }

    /// Returns the median of each stage in milliseconds: to the claim, to the outcome, to the next decision.
    pub fn median_milliseconds(&self) -> [f64; 3] {
        [&self.to_claim, &self.to_outcome, &self.to_decision]
            .map(|times| quantile(times.iter().map(|time| time.as_secs_f64() * 1e3), 0.5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_separated_and_unordered_messages_ignored() {
        let mut stages = StageLatencies::default();
        let mut at = Timestamp::UNIX_EPOCH;
        for (stage, millis) in [
            (LatencyStage::Decision, 0),
            (LatencyStage::Claim, 1),
            (LatencyStage::Outcome, 2),
            (LatencyStage::Decision, 4),
            (LatencyStage::Decision, 100),
            (LatencyStage::Claim, 1),
            (LatencyStage::Decision, 100),
            (LatencyStage::Outcome, 100),
        ] {
            at += Duration::from_millis(millis);
            stages.add_message(stage, at);
        }
        assert_eq!(stages.median_milliseconds(), [1.0, 2.0, 4.0]);
    }
}
