//! Stopped runs: interrupted or paused, they stay so until they are resumed, also under later clusters. And the hints about
//! unfinished runs while no cluster is running.
//!
//! # Invariants
//!
//! - I72: An interrupted run stays stopped until it is resumed, also after a kill of its command and under later clusters, and
//!   continues in the same attempts. (`tests/tests/first_command.rs::interrupted_run_stays_stopped_until_it_is_resumed`,
//!   `protocol/tests/rules/transcripts.rs::every_transcript_is_unchanged`)

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{CommandAction, PauseReason, Plan, work_in_flight};
use millrace_runtime::Bus;
use millrace_runtime::log::list_submitted_runs;
use millrace_runtime::work::registry;
use tokio_util::sync::CancellationToken;

use crate::exit::{CommandError, CommandExit};
use crate::invocation::command_hint;
use crate::steer::{author_name, send_command_and_await_decision};
use crate::view::print_stderr_line;
use millrace_client::read_plan;

/// Number of runs that are read or interrupted at the same time.
const CONCURRENT: usize = 16;
/// Timeout of the decision on an interrupt.
const DECISION_LIMIT: Duration = Duration::from_secs(20);
/// Maximum number of runs in a line.
const MAX_NAMED: usize = 3;

/// Returns the unfinished runs, read from the log: a run that was interrupted at its very start has no summary yet.
pub async fn list_unfinished_runs(bus: &Bus) -> Result<Vec<RunId>, CommandError> {
    let summaries = registry::read_run_summaries(bus).await?;
    let ended = |run: &RunId| summaries.iter().any(|summary| summary.run == *run && summary.end.is_some());
    Ok(list_submitted_runs(bus).await?.into_iter().filter(|run| !ended(run)).collect())
}

/// The reason for which a run is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopKind {
    Interrupted,
    PausedForProvider,
    Paused,
}

impl StopKind {
    fn of_plan(plan: &Plan) -> Option<Self> {
        Some(match plan.pause_reason()? {
            PauseReason::Provider(_) => Self::PausedForProvider,
            PauseReason::Interruption => Self::Interrupted,
            PauseReason::User => Self::Paused,
        })
    }

    /// Names so many runs of the kind, with a verb.
    fn describe_runs(self, count: usize) -> String {
        let (run, are) = if count == 1 { ("run", "is") } else { ("runs", "are") };
        match self {
            Self::Interrupted => format!("{count} interrupted {run} {are} kept"),
            Self::PausedForProvider => {
                format!("{count} {run} {are} paused because a model provider did not answer")
            }
            Self::Paused => format!("{count} {run} {are} paused"),
        }
    }
}

/// Returns the runs that stay stopped until they are resumed, oldest first.
pub async fn list_stopped_runs(bus: &Bus) -> Result<Vec<(RunId, StopKind)>, CommandError> {
    let unfinished = futures::stream::iter(list_unfinished_runs(bus).await?);
    let stop_kind = |run: RunId| async move {
        let plan = read_plan(bus, &run).await?;
        Ok(StopKind::of_plan(&plan).map(|kind| (run, kind)))
    };
    let found: Vec<Result<Option<(RunId, StopKind)>, CommandError>> =
        unfinished.map(stop_kind).buffered(CONCURRENT).collect().await;
    found.into_iter().filter_map(Result::transpose).collect()
}

/// Interrupts all unfinished runs, and waits until that is decided. Needs supervisors; workers should not be running. A run
/// that no supervisor decides on is skipped with a warning: it may be one of a newer version.
pub async fn interrupt_unfinished_runs(bus: &Bus) -> Result<(), CommandError> {
    let unfinished = futures::stream::iter(list_unfinished_runs(bus).await?);
    let interrupt = |run: RunId| async move {
        let decided = tokio::time::timeout(DECISION_LIMIT, interrupt_run(bus, &run)).await;
        decided.unwrap_or_else(|_| {
            note!(
                "warning: run {run} can't be interrupted: no supervisor has decided on it within {} s",
                DECISION_LIMIT.as_secs()
            );
            Ok(())
        })
    };
    let interrupted: Vec<Result<(), CommandError>> =
        unfinished.map(interrupt).buffer_unordered(CONCURRENT).collect().await;
    interrupted.into_iter().collect()
}

/// Interrupts a run, unless it has ended or is interrupted already.
pub async fn interrupt_run(bus: &Bus, run: &RunId) -> Result<(), CommandError> {
    let plan = read_plan(bus, run).await?;
    if plan.run.end.is_some() || (plan.run.is_interrupted && work_in_flight(&plan).is_empty()) {
        return Ok(());
    }
    let never = CancellationToken::new();
    let control = CommandAction::Interrupt;
    match Box::pin(send_command_and_await_decision(bus, run, author_name(None), control, &never)).await {
        // It has ended, or was interrupted, in the meantime.
        Err(CommandError { exit: CommandExit::Refused, .. }) | Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Prints the lines about the stopped runs other than `resumed`, if there are any.
pub async fn print_stopped_runs(bus: &Bus, resumed: Option<&RunId>) -> Result<(), CommandError> {
    let mut runs = list_stopped_runs(bus).await?;
    runs.retain(|(run, _)| Some(run) != resumed);
    describe_stopped_runs(&runs).iter().for_each(|line| print_stderr_line(line));
    Ok(())
}

/// A line for each kind of stopped runs, with the commands that continue or end them.
pub fn describe_stopped_runs(runs: &[(RunId, StopKind)]) -> Vec<String> {
    let mut by_kind: BTreeMap<StopKind, Vec<&RunId>> = BTreeMap::new();
    runs.iter().for_each(|(run, kind)| by_kind.entry(*kind).or_default().push(run));
    by_kind.into_iter().map(|(kind, runs)| describe_runs_of_kind(kind, &runs)).collect()
}

fn describe_runs_of_kind(kind: StopKind, runs: &[&RunId]) -> String {
    let commands = |run: &&RunId| {
        let resume = command_hint(&format!("resume {run}"));
        let cancel = command_hint(&format!("cancel {run}"));
        format!("`{resume}` continues it, `{cancel}` ends it")
    };
    let list = command_hint("list");
    let rest = if runs.len() > MAX_NAMED { format!("; `{list}` shows all") } else { String::new() };
    let newest: Vec<String> = runs.iter().rev().take(MAX_NAMED).map(commands).collect();
    format!("millrace: {}: {}{rest}", kind.describe_runs(runs.len()), newest.join("; "))
}

/// Returns the hint for an unfinished run while no cluster is running.
pub fn offline_run_hint(run: &RunId, plan: &Plan) -> String {
    let resume = command_hint(&format!("resume {run}"));
    let how = match plan.pause_reason() {
        Some(_) => format!("`{resume}`"),
        None => format!("`{resume}`, or `{}` for all runs", command_hint("up")),
    };
    format!("millrace: no cluster is running, so the run makes no progress until {how}")
}

/// Returns the hint for all unfinished runs while no cluster is running.
pub async fn offline_cluster_hint(bus: &Bus) -> Result<String, CommandError> {
    let unfinished = list_unfinished_runs(bus).await?.len();
    let stopped = list_stopped_runs(bus).await?;
    let named: Vec<&RunId> = stopped.iter().map(|(run, _)| run).collect();
    // `up` starts the cluster, if no run has to be resumed.
    Ok(offline_runs_hint(&named, named.is_empty() || named.len() < unfinished))
}

/// Returns the hint for several runs while no cluster is running: for those in `stopped`, which have to be resumed, and, with
/// `has_others`, for those that continue with any cluster.
pub fn offline_runs_hint(stopped: &[&RunId], has_others: bool) -> String {
    let up = has_others.then(|| format!("`{}` continues unfinished runs", command_hint("up")));
    let newest = stopped.iter().rev().take(MAX_NAMED);
    let resume = newest.map(|run| format!("`{}` continues {run}", command_hint(&format!("resume {run}"))));
    let all: Vec<String> = up.into_iter().chain(resume).collect();
    let rest = stopped.len().saturating_sub(MAX_NAMED);
    let rest = if rest == 0 { String::new() } else { format!("; {rest} more are interrupted or paused") };
    format!("millrace: no cluster is running, so no run is making progress; {}{rest}", all.join("; "))
}
