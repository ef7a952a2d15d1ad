//! Removing a run, by a supervisor. See the module docs of [`super`] for the order of the steps.

use std::collections::HashSet;
use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::ids::RunId;
use millrace_protocol::retention::{DeletionRecord, DeletionState, DeletionStep, deletion_step};
use millrace_protocol::subject::{FileSpace, file_subjects_in_folder};
use tracing::info;

use super::hold::is_held;
use super::requests::{list_deletions, must_be_retired, read_deletion_entry, retire_run, update_deletion};
use crate::nats::error::fault_from_client_error;
use crate::nats::object_store;
use crate::nats::topology::{ARCHIVE, FILES, KEYS, RETENTION, RUNS, bucket_stream};
use crate::store::bucket::Entry;
use crate::store::idempotency;
use crate::work::{queue, registry};
use crate::{Bus, Fault, log};

/// The time for which the record of a deletion stays after the run is gone.
pub const RECORD_AGE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Carries a requested deletion out, or continues it. Returns `false` if it must wait: the run is still moved to the archive, or a
/// backup is taken.
///
/// # Errors
/// The server does not respond. The deletion is continued by calling this again.
pub async fn remove_requested_run(bus: &Bus, run: &RunId) -> Result<bool, Fault> {
    let (Some(record), last) = read_deletion_entry(bus, run).await? else { return Ok(true) };
    if !record.state.is_pending() {
        return Ok(true);
    }
    if is_held(bus).await? {
        return Ok(false);
    }
    let record = match record.state {
        DeletionState::Requested => match begin_removal(bus, record, last).await? {
            DeletionStart::Begun(record) => record,
            DeletionStart::Refused => return Ok(true),
            DeletionStart::Wait => return Ok(false),
        },
        DeletionState::Removing | DeletionState::Refused | DeletionState::Removed { .. } => record,
    };
    remove_parts_of_run(bus, run).await?;
    let (current, last) = read_deletion_entry(bus, run).await?;
    if current.is_some_and(|current| current.state == DeletionState::Removing) {
        let removed = DeletionRecord { state: DeletionState::Removed { at: Timestamp::now() }, ..record };
        update_deletion(bus, &removed, last).await?;
        info!(%run, by = removed.by, "run deleted");
    }
    Ok(true)
}

/// The beginning of a removal.
enum DeletionStart {
    /// The run counts as deleted.
    Begun(DeletionRecord),
    /// The deletion is refused.
    Refused,
    /// It can't begin yet.
    Wait,
}

/// Decides on a requested deletion, and writes the decision into its record.
async fn begin_removal(bus: &Bus, record: DeletionRecord, last: u64) -> Result<DeletionStart, Fault> {
    let summary = registry::read_summary(bus, &record.run).await?;
    let is_submitted =
        summary.is_none() && log::has_submission(bus, bus.lane_of_run(&record.run), &record.run).await?;
    let state = match deletion_step(summary.as_ref(), is_submitted) {
        DeletionStep::Wait { .. } => {
            // It was resumed before its retirement was decided, and has ended again.
            if let Some(summary) = summary.as_ref().filter(|summary| must_be_retired(summary)) {
                retire_run(bus, summary, &record.by).await?;
            }
            return Ok(DeletionStart::Wait);
        }
        DeletionStep::Refuse => DeletionState::Refused,
        DeletionStep::Remove => DeletionState::Removing,
    };
    let decided = DeletionRecord { state, ..record };
    if !update_deletion(bus, &decided, last).await? {
        return Ok(DeletionStart::Wait);
    }
    Ok(if decided.state.is_deleted() { DeletionStart::Begun(decided) } else { DeletionStart::Refused })
}

/// Removes everything of a run apart from its blobs.
async fn remove_parts_of_run(bus: &Bus, run: &RunId) -> Result<(), Fault> {
    registry::remove_summary(bus, run).await?;
    log::purge_run(bus, bus.lane_of_run(run), run, u64::MAX - 1).await?;
    queue::withdraw_orders_of_run(bus, run).await?;
    purge_stream(bus, FILES, file_subjects_in_folder(&FileSpace::Run(run.clone()), None), None).await?;
    remove_archive(bus, run).await
}

/// Removes all versions of the archive of a run: first their parts, so that a crash leaves descriptions from which the rest is
/// found.
async fn remove_archive(bus: &Bus, run: &RunId) -> Result<(), Fault> {
    let context = bus.request_context();
    let versions = object_store::read_object_descriptions(bus.client(), ARCHIVE, run.as_str()).await?;
    let Some(last) = versions.last() else { return Ok(()) };
    let mut removed = HashSet::new();
    for version in &versions {
        // A forged description is a copy of that of another run.
        let is_own = version.info.name == run.as_str();
        if is_own && removed.insert(&version.info.nuid) {
            object_store::remove_object_parts(context, ARCHIVE, &version.info).await?;
        }
    }
    object_store::remove_descriptions(context, ARCHIVE, run.as_str(), last.sequence + 1).await
}

/// Removes the messages of a subject; those before a sequence if there is one.
async fn purge_stream(bus: &Bus, stream: &str, subject: String, before: Option<u64>) -> Result<(), Fault> {
    let what = format!("removing {subject} from {stream}");
    let handle = bus.request_context().get_stream_no_info(stream).await;
    let handle = handle.map_err(|error| fault_from_client_error(&what, error))?;
    let purge = handle.purge().filter(subject);
    let purged = match before {
        Some(before) => purge.sequence(before).await,
        None => purge.await,
    };
    purged.map(|_| ()).map_err(|error| fault_from_client_error(&what, error))
}

/// Removes the records of deletions that ended longer ago than `age`, with the idempotency keys of their runs and the markers of
/// their summaries. Returns the number of records.
pub async fn expire_records(bus: &Bus, age: Duration) -> Result<usize, Fault> {
    let now = Timestamp::now();
    let is_old = |at: Timestamp| now.duration_since(at).unsigned_abs() >= age;
    let expired = |record: &DeletionRecord| match record.state {
        DeletionState::Removed { at } => is_old(at),
        DeletionState::Refused => is_old(record.requested),
        DeletionState::Requested | DeletionState::Removing => false,
    };
    let mut records = list_deletions(bus).await?;
    records.retain(|entry| expired(&entry.value));
    if records.is_empty() {
        return Ok(0);
    }
    let removed = |entry: &DeletionRecord| entry.state.is_deleted();
    let runs: HashSet<&RunId> =
        records.iter().map(|entry| &entry.value).filter(|record| removed(record)).map(|it| &it.run).collect();
    for Entry { key, value, .. } in idempotency::STORE.read_all(bus).await? {
        if runs.contains(&value.run) {
            purge_stream(bus, &bucket_stream(KEYS), format!("$KV.{KEYS}.{key}"), None).await?;
        }
    }
    for entry in &records {
        let run = &entry.value.run;
        // A run of this name may have been submitted again.
        if runs.contains(run) && registry::read_summary(bus, run).await?.is_none() {
            purge_stream(bus, &bucket_stream(RUNS), format!("$KV.{RUNS}.{run}"), None).await?;
        }
        let subject = format!("$KV.{RETENTION}.deletion.{}", entry.key);
        purge_stream(bus, &bucket_stream(RETENTION), subject, Some(entry.sequence + 1)).await?;
    }
    Ok(records.len())
}
