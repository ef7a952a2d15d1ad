//! Reads a run once (its decisions, its plan, the results of its tasks), lists runs, and finds the run that a user names. Also the
//! user and the time zone of this machine.

use std::collections::BTreeSet;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{AttemptEnd, Decision, Plan, apply_decision};
use millrace_protocol::registry::{RunSummary, SUBMISSION_IS_MISSING};
use millrace_protocol::result::TaskResult;
use millrace_protocol::wire;
use millrace_protocol::work::{JournalEntry, WorkOutcome};
use millrace_runtime::log::follow::find_message;
use millrace_runtime::log::{has_submission, list_submitted_runs};
use millrace_runtime::store::archive;
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, Fault};

use crate::retry_transient;

/// Calls `visit` with each decision of a run, oldest first, whether the run is in its lane or archived.
pub async fn read_decisions(bus: &Bus, run: &RunId, mut visit: impl FnMut(&Decision)) -> Result<(), Fault> {
    for record in archive::read_decisions_from_log_or_archive(bus, bus.lane_of_run(run), run).await? {
        visit(&bus.decode_record(&record).await?);
    }
    Ok(())
}

/// Returns the state of a run as of its last decision.
pub async fn read_plan(bus: &Bus, run: &RunId) -> Result<Plan, Fault> {
    let mut plan = Plan::default();
    read_decisions(bus, run, |decision| apply_decision(&mut plan, decision)).await?;
    Ok(plan)
}

/// Returns the damage of a run's log, for which the run cannot continue; `None` if there is none.
pub async fn read_log_damage(bus: &Bus, run: &RunId) -> Result<Option<String>, Fault> {
    let Some(summary) = registry::read_summary(bus, run).await? else { return Ok(None) };
    if summary.log_damage.is_some() {
        return Ok(summary.log_damage);
    }
    let records = archive::read_run_from_log_or_archive(bus, bus.lane_of_run(run), run).await?;
    let damage = match summary.archived {
        true => "it is missing from the archive",
        false => SUBMISSION_IS_MISSING,
    };
    Ok(records.is_empty().then(|| damage.into()))
}

/// Returns the result of a task's current attempt; `None` if it has none.
pub async fn read_task_result(
    bus: &Bus,
    run: &RunId,
    plan: &Plan,
    task: &TaskId,
) -> Result<Option<TaskResult>, Fault> {
    let end =
        plan.task(task).and_then(|task| task.current_attempt()).and_then(|attempt| attempt.end.as_ref());
    let Some(AttemptEnd::Finished { at_sequence, .. }) = end else { return Ok(None) };
    retry_transient(|| read_result(bus, run, task, *at_sequence)).await
}

async fn read_result(
    bus: &Bus,
    run: &RunId,
    task: &TaskId,
    at_sequence: u64,
) -> Result<Option<TaskResult>, Fault> {
    let record = find_message(bus, bus.lane_of_run(run), run, at_sequence).await?.ok_or_else(|| {
        Fault::unavailable(format!("reading message {at_sequence} of run {run}"), "the message is missing")
    })?;
    let garbage =
        |garbage| Fault::InvalidMessage { subject: task.to_string(), sequence: at_sequence, error: garbage };
    let JournalEntry::Outcome { outcome: WorkOutcome::Finished { result, .. }, .. } =
        bus.decode_record(&record).await?
    else {
        return Ok(None);
    };
    let bytes = bus.blobs().read_inline_or_stored(&result).await?;
    wire::decode_task_result(&bytes).map(Some).map_err(garbage)
}

#[derive(Debug, thiserror::Error)]
pub enum FindError {
    #[error("there are no runs yet")]
    NoRuns,
    /// The text is empty, which would match every run.
    #[error("the run id is empty; give a run id, a unique prefix of one, or `latest`")]
    Empty,
    /// No run id begins with this text.
    #[error("no run {0:?}; `millrace list` shows all runs")]
    NotFound(String),
    /// Several run ids begin with this text.
    #[error("{text:?} matches runs {first} and {second}; give more of the id")]
    Ambiguous { text: String, first: RunId, second: RunId },
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Returns all runs with their summaries, oldest first. A run that no supervisor has summarized yet, as after a
/// restore, is folded here; a run that has not started has no summary.
pub async fn list_runs(bus: &Bus) -> Result<Vec<(RunId, Option<RunSummary>)>, Fault> {
    let summaries = registry::read_run_summaries(bus).await?.into_iter();
    let mut runs: Vec<_> = summaries.map(|summary| (summary.run.clone(), Some(summary))).collect();
    let summarized: BTreeSet<RunId> = runs.iter().map(|(run, _)| run.clone()).collect();
    for run in list_submitted_runs(bus).await?.into_iter().filter(|run| !summarized.contains(run)) {
        let summary = RunSummary::from_plan(
            &run,
            bus.lane_of_run(&run),
            &read_plan(bus, &run).await?,
            Timestamp::now(),
        );
        runs.push((run, summary));
    }
    runs.sort_by_key(|(_, summary)| summary.as_ref().map_or(Timestamp::MAX, |summary| summary.started));
    Ok(runs)
}

/// Like [`list_runs`], with the unfinished runs as of their last decisions.
pub async fn list_runs_from_log(bus: &Bus) -> Result<Vec<(RunId, Option<RunSummary>)>, Fault> {
    let mut runs = list_runs(bus).await?;
    for (run, summary) in &mut runs {
        if summary.as_ref().is_some_and(|summary| summary.end.is_none()) {
            let plan = read_plan(bus, run).await?;
            let current = RunSummary::from_plan(run, bus.lane_of_run(run), &plan, Timestamp::now());
            *summary = current.or(summary.take());
        }
    }
    Ok(runs)
}

/// Finds the run that `text` names: a full id, a unique prefix of one, or `latest` for the newest run.
pub async fn find_run(bus: &Bus, text: &str) -> Result<RunId, FindError> {
    if text.trim().is_empty() {
        return Err(FindError::Empty);
    }
    if text == "latest" {
        let newest = registry::read_run_summaries(bus).await?.pop();
        return find_newest_run(bus, newest.map(|summary| summary.run)).await;
    }
    if let Ok(run) = RunId::new(text)
        && (registry::read_summary(bus, &run).await?.is_some()
            || has_submission(bus, bus.lane_of_run(&run), &run).await?
            || archive::is_archived(bus, &run).await?)
    {
        return Ok(run);
    }
    let runs = registry::read_run_summaries(bus).await?;
    let all: BTreeSet<RunId> = list_submitted_runs(bus)
        .await?
        .into_iter()
        .chain(runs.into_iter().map(|summary| summary.run))
        .collect();
    let mut matches = all.iter().filter(|run| run.as_str().starts_with(text));
    match (matches.next(), matches.next()) {
        (Some(run), None) => Ok(run.clone()),
        (Some(first), Some(second)) => {
            let (first, second) = (first.clone(), second.clone());
            Err(FindError::Ambiguous { text: text.to_owned(), first, second })
        }
        (None, _) => Err(FindError::NotFound(text.to_owned())),
    }
}

/// Returns the newest run. A run that was submitted a moment ago has no summary yet; ids begin with their time.
async fn find_newest_run(bus: &Bus, summarized: Option<RunId>) -> Result<RunId, FindError> {
    list_submitted_runs(bus).await?.into_iter().chain(summarized).max().ok_or(FindError::NoRuns)
}

/// Returns the author of a command: `by`, or else the login name.
pub fn author_name(by: Option<String>) -> String {
    let variable = |name: &str| std::env::var(name).ok().filter(|name| !name.trim().is_empty());
    by.or_else(|| variable("LOGNAME"))
        .or_else(|| variable("USER"))
        .or_else(login_name)
        .unwrap_or_else(|| "unknown".into())
}

fn login_name() -> Option<String> {
    let id = rustix::process::getuid().as_raw().to_string();
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.split(':').nth(2) == Some(&id))?;
    line.split(':').next().map(str::to_owned)
}

/// Returns a time of day in the local time zone, with the zone, and with the date if that is not today.
pub fn format_clock(at: Timestamp) -> String {
    format_clock_in(at, Timestamp::now(), &TimeZone::system())
}

fn format_clock_in(at: Timestamp, now: Timestamp, zone: &TimeZone) -> String {
    let (local, today) = (at.to_zoned(zone.clone()), now.to_zoned(zone.clone()).date());
    let format = if local.date() == today { "%H:%M:%S %Z" } else { "%Y-%m-%d %H:%M:%S %Z" };
    local.strftime(format).to_string()
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn a_command_always_has_an_author() {
        assert_eq!(author_name(Some("ann".into())), "ann");
        assert!(!author_name(None).is_empty());
    }

    #[test]
    fn times_have_their_zone_and_old_ones_their_date() {
        let now: Timestamp = "2026-11-22T16:51:19Z".parse().unwrap();
        let zone = TimeZone::fixed(jiff::tz::offset(-5));
        assert_eq!(format_clock_in(now, now, &zone), "11:51:19 -05");
        let before = now - SignedDuration::from_hours(48);
        assert_eq!(format_clock_in(before, now, &TimeZone::UTC), "2026-11-20 16:51:19 UTC");
    }
}
