//! Reads a run once: its decisions, its plan, the results of its tasks.

use millrace_protocol::ids::{Lane, RunId, TaskId};
use millrace_protocol::plan::{AttemptEnd, Decision, Plan, apply_decision};
use millrace_protocol::registry::SUBMISSION_IS_MISSING;
use millrace_protocol::result::TaskResult;
use millrace_protocol::wire;
use millrace_protocol::work::{JournalEntry, WorkOutcome};
use millrace_runtime::log::read_message;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::store::archive;
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, Fault};

use crate::retry_transient;

/// Calls `visit` with each decision of a run, oldest first, whether the run is in its lane or archived.
pub async fn read_decisions(bus: &Bus, run: &RunId, mut visit: impl FnMut(&Decision)) -> Result<(), Fault> {
    for record in archive::read_decisions_from_log_or_archive(bus, bus.lane_of_run(run), run).await? {
        if record.is_decision() {
            visit(&bus.decode_record(&record).await?);
        }
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
    let record = find_record(bus, bus.lane_of_run(run), run, at_sequence).await?;
    let garbage =
        |garbage| Fault::InvalidMessage { subject: task.to_string(), sequence: at_sequence, error: garbage };
    match bus.decode_record::<JournalEntry>(&record).await? {
        JournalEntry::Outcome { outcome: WorkOutcome::Finished { result, .. }, .. } => {
            let bytes = bus.blobs().read_inline_or_stored(&result).await?;
            wire::decode_task_result(&bytes).map(Some).map_err(garbage)
        }
        JournalEntry::Outcome { .. }
        | JournalEntry::Claimed { .. }
        | JournalEntry::Step { .. }
        | JournalEntry::Note { .. }
        | JournalEntry::Parked { .. }
        | JournalEntry::Delegated { .. }
        | JournalEntry::Released { .. } => Ok(None),
    }
}

async fn find_record(bus: &Bus, lane: Lane, run: &RunId, sequence: u64) -> Result<StreamRecord, Fault> {
    if let Some(record) = read_message(bus, lane, sequence).await? {
        return Ok(record);
    }
    let archived = archive::read_archived_run(bus, run).await?.unwrap_or_default();
    archived.into_iter().find(|record| record.sequence == sequence).ok_or_else(|| {
        Fault::unavailable(format!("reading message {sequence} of run {run}"), "the message is missing")
    })
}
