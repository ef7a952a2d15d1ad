//! Interrupted runs: they stay stopped until they are resumed, also under later clusters.

use std::time::Duration;

use futures::StreamExt;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{CommandAction, work_in_flight};
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

/// Returns the interrupted runs, oldest first.
pub async fn list_interrupted_runs(bus: &Bus) -> Result<Vec<RunId>, CommandError> {
    let unfinished = futures::stream::iter(list_unfinished_runs(bus).await?);
    let is_interrupted = |run: RunId| async move {
        let plan = read_plan(bus, &run).await?;
        Ok((plan.run.end.is_none() && plan.run.is_interrupted).then_some(run))
    };
    let found: Vec<Result<Option<RunId>, CommandError>> =
        unfinished.map(is_interrupted).buffered(CONCURRENT).collect().await;
    found.into_iter().filter_map(Result::transpose).collect()
}

/// Interrupts all unfinished runs, and waits until that is decided. Needs supervisors; workers should not be running. A run
/// that no supervisor decides on is skipped with a warning: it may be one of a newer version.
pub async fn interrupt_unfinished_runs(bus: &Bus) -> Result<(), CommandError> {
    let unfinished = futures::stream::iter(list_unfinished_runs(bus).await?);
    let interrupt = |run: RunId| async move {
        let decided = tokio::time::timeout(DECISION_LIMIT, interrupt_run(bus, &run)).await;
        decided.unwrap_or_else(|_| {
            print_stderr_line(&format!(
                "millrace: warning: run {run} can't be interrupted: no supervisor has decided on it within {} s",
                DECISION_LIMIT.as_secs()
            ));
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

/// Prints the line about the interrupted runs other than `resumed`, if there are any.
pub async fn print_interrupted_runs(bus: &Bus, resumed: Option<&RunId>) -> Result<(), CommandError> {
    let mut runs = list_interrupted_runs(bus).await?;
    runs.retain(|run| Some(run) != resumed);
    describe_interrupted_runs(&runs).iter().for_each(|line| print_stderr_line(line));
    Ok(())
}

/// The line about interrupted runs, with the commands that continue or end them; `None` if there are none.
pub fn describe_interrupted_runs(runs: &[RunId]) -> Option<String> {
    let commands = |run: &RunId| {
        let resume = command_hint(&format!("resume {run}"));
        let cancel = command_hint(&format!("cancel {run}"));
        format!("`{resume}` continues it, `{cancel}` ends it")
    };
    match runs {
        [] => None,
        [run] => Some(format!("millrace: 1 interrupted run is kept: {}", commands(run))),
        runs => {
            let list = command_hint("list");
            let rest = if runs.len() > MAX_NAMED { format!("; `{list}` shows all") } else { String::new() };
            let newest: Vec<String> = runs.iter().rev().take(MAX_NAMED).map(commands).collect();
            Some(format!("millrace: {} interrupted runs are kept: {}{rest}", runs.len(), newest.join("; ")))
        }
    }
}
