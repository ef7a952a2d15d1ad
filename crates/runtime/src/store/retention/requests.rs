//! The records of the bucket [`RETENTION`]: deletions, rules, and the settings of sweeps.
//!
//! | key | content |
//! |---|---|
//! | `deletion.RUN` | a [`DeletionRecord`] |
//! | `rule.NAME` | a [`RetentionRule`] |
//! | `settings.sweep` | [`SweepSettings`] |
//! | `request.sweep` | who wants a sweep now |
//! | `sweep.last` | a [`SweepRecord`] |
//! | `hold.ID` | a process that keeps everything from being removed |

use std::time::Duration;

use async_nats::Subscriber;
use futures::StreamExt;
use jiff::Timestamp;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{CommandAction, RunCommand};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::retention::{
    DeletionRecord, DeletionState, DeletionStep, PruneSelection, RetentionRule, SweepRecord, SweepSettings,
    deletion_step,
};
use millrace_protocol::subject::{Topic, topic_subject};
use serde::{Deserialize, Serialize};

use crate::fault::backoff;
use crate::nats::topology::RETENTION;
use crate::store::blobs::sha256_hex;
use crate::store::bucket::{Bucket, BucketChange, BucketChanges, Entry, ExpectedEntry};
use crate::work::registry;
use crate::{Bus, Fault, log};

static DELETIONS: Bucket<DeletionRecord> =
    Bucket::new(RETENTION, "deletion.").with_key(|record| record.run.to_string());
static RULES: Bucket<RetentionRule> = Bucket::new(RETENTION, "rule.");
static SETTINGS: Bucket<SweepSettings> = Bucket::new(RETENTION, "settings.");
static REQUESTS: Bucket<SweepRequest> = Bucket::new(RETENTION, "request.");
static SWEEPS: Bucket<SweepRecord> = Bucket::new(RETENTION, "sweep.");
/// The key of the settings and of a request.
const SWEEP: &str = "sweep";
/// The key of the last sweep.
const LAST: &str = "last";
/// The maximum number of attempts to write a record that others write at the same time.
const MAX_ATTEMPTS: u32 = 5;
/// The longest pause between two looks at a deletion.
const MAX_POLL: Duration = Duration::from_millis(50);

/// The reason why a run can't be deleted.
#[derive(Debug, thiserror::Error)]
pub enum DeletionError {
    /// There is no such run.
    #[error("there is no run {0}")]
    NotFound(RunId),
    #[error("run {0} has not ended; cancel it first with `millrace cancel {0}`")]
    Live(RunId),
    /// The cluster does not respond.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// The outcome of a request to delete a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeletionRequest {
    /// The request is recorded.
    Recorded,
    /// It was recorded before, and has not been carried out yet.
    Pending,
    /// The run is deleted already.
    Deleted,
}

/// Returns the deletion record of a run, if there is one.
pub async fn read_deletion(bus: &Bus, run: &RunId) -> Result<Option<DeletionRecord>, Fault> {
    DELETIONS.read(bus, run.as_str()).await
}

/// Returns the deletion record of a run, and the sequence that the next write must expect.
pub(super) async fn read_deletion_entry(
    bus: &Bus,
    run: &RunId,
) -> Result<(Option<DeletionRecord>, u64), Fault> {
    let state = DELETIONS.read_state(bus, run.as_str()).await?;
    Ok((state.entry.map(|entry| entry.value), state.last))
}

/// Requests the deletion of a run that has ended. One that can be resumed is retired first, so that it is archived at once: whichever
/// of that and of a command to resume it is decided first, the other one is refused.
///
/// # Errors
/// There is no such run, it is live, or the server does not respond.
pub async fn request_deletion(bus: &Bus, run: &RunId, by: &str) -> Result<DeletionRequest, DeletionError> {
    for _ in 0..MAX_ATTEMPTS {
        let (record, last) = read_deletion_entry(bus, run).await?;
        let summary = registry::read_summary(bus, run).await?;
        if let Some(summary) = summary.as_ref().filter(|summary| must_be_retired(summary)) {
            retire_run(bus, summary, by).await?;
        }
        match record.map(|record| record.state) {
            Some(DeletionState::Requested) => return Ok(DeletionRequest::Pending),
            Some(DeletionState::Removing) => return Ok(DeletionRequest::Deleted),
            // A run of that name may have been submitted again.
            Some(DeletionState::Removed { .. }) if summary.is_none() => return Ok(DeletionRequest::Deleted),
            Some(DeletionState::Removed { .. } | DeletionState::Refused) | None => {}
        }
        let is_submitted = summary.is_none() && log::has_submission(bus, bus.lane_of_run(run), run).await?;
        match deletion_step(summary.as_ref(), is_submitted) {
            DeletionStep::Refuse => return Err(DeletionError::Live(run.clone())),
            DeletionStep::Remove if summary.is_none() => return Err(DeletionError::NotFound(run.clone())),
            DeletionStep::Remove | DeletionStep::Wait { .. } => {}
        }
        let record = DeletionRecord {
            run: run.clone(),
            by: by.to_owned(),
            requested: Timestamp::now(),
            state: DeletionState::Requested,
        };
        let expected = ExpectedEntry::Sequence(last);
        if DELETIONS.write(bus, run.as_str(), &record, expected).await?.is_some() {
            return Ok(DeletionRequest::Recorded);
        }
    }
    Err(Fault::unavailable(format!("deleting run {run}"), "other processes keep changing the record").into())
}

/// `true` if a run must be retired before it can be deleted.
pub(super) fn must_be_retired(summary: &RunSummary) -> bool {
    deletion_step(Some(summary), false) == (DeletionStep::Wait { is_resumable: true })
}

/// Appends the command that gives up resuming a run, once for each of its ends.
pub(super) async fn retire_run(bus: &Bus, summary: &RunSummary, by: &str) -> Result<(), Fault> {
    let run = &summary.run;
    let end = format!("retire {run} {}", summary.updated.as_microsecond());
    let id = sha256_hex(end.as_bytes())[..32].to_owned();
    let command = RunCommand { id: id.clone(), by: by.to_owned(), control: CommandAction::Retire };
    let lane = bus.lane_of_run(run);
    let publishing = log::publish_message(bus, lane, run, &Topic::Control, &command, &id);
    bus.fail_on_denial(&topic_subject(lane, run, &Topic::Control), publishing).await.map(drop)
}

/// Waits until no reader finds a run any more whose deletion was requested. Returns `false` if it takes longer than `patience`:
/// no supervisor is running, or the run is still moved to the archive.
pub async fn wait_for_deletion(bus: &Bus, run: &RunId, patience: Duration) -> Result<bool, DeletionError> {
    let started = tokio::time::Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        match read_deletion(bus, run).await?.map(|record| record.state) {
            // The record is gone when it has expired.
            Some(DeletionState::Removed { .. }) | None => return Ok(true),
            Some(DeletionState::Refused) => return Err(DeletionError::Live(run.clone())),
            Some(DeletionState::Removing) if registry::read_summary(bus, run).await?.is_none() => {
                return Ok(true);
            }
            Some(DeletionState::Removing | DeletionState::Requested) => {}
        }
        if started.elapsed() >= patience {
            return Ok(false);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_POLL);
    }
}

/// Returns the deletion records, oldest change first.
pub async fn list_deletions(bus: &Bus) -> Result<Vec<Entry<DeletionRecord>>, Fault> {
    DELETIONS.read_all(bus).await
}

/// The deletions that a supervisor must carry out, as they are requested.
pub struct DeletionFeed {
    changes: BucketChanges<DeletionRecord>,
    /// Announces new records; `None` if there is no connection. A denied subscription never delivers anything.
    announced: Option<Subscriber>,
}

impl DeletionFeed {
    /// Starts with the first record.
    pub async fn open(bus: &Bus) -> Self {
        let announced = bus.client().subscribe(format!("$KV.{RETENTION}.deletion.*")).await.ok();
        Self { changes: DELETIONS.changes(bus), announced }
    }

    /// Waits until a record is announced, for `patience` at most. An announcement may arrive before its message is stored.
    pub async fn wait_for_request(&mut self, patience: Duration) {
        let next = async {
            match &mut self.announced {
                Some(messages) => drop(messages.next().await),
                None => std::future::pending().await,
            }
        };
        let _ = tokio::time::timeout(patience, next).await;
    }

    /// Returns the runs whose pending records were written since the last call.
    pub async fn read_new(&mut self) -> Result<Vec<RunId>, Fault> {
        let pending = self.changes.read_new().await?.into_iter().filter_map(|change| match change {
            BucketChange::Set(Entry { value, .. }) => value.state.is_pending().then_some(value.run),
            BucketChange::Removed(_) => None,
        });
        Ok(pending.collect())
    }
}

/// Returns the ended runs that a selection selects, oldest first.
pub async fn select_runs(bus: &Bus, selection: &PruneSelection) -> Result<Vec<RunSummary>, Fault> {
    let now = Timestamp::now();
    let mut runs = registry::read_run_summaries(bus).await?;
    runs.retain(|summary| selection.selects(summary, now));
    Ok(runs)
}

pub async fn set_rule(bus: &Bus, name: &RunId, rule: &RetentionRule) -> Result<(), Fault> {
    RULES.put(bus, name.as_str(), rule).await
}

/// Removes a rule; returns `false` if there is none of this name.
pub async fn remove_rule(bus: &Bus, name: &RunId) -> Result<bool, Fault> {
    match RULES.read(bus, name.as_str()).await? {
        Some(_) => RULES.remove(bus, name.as_str(), ExpectedEntry::Any).await,
        None => Ok(false),
    }
}

/// Returns the rules with their names, in the order of their last changes.
pub async fn list_rules(bus: &Bus) -> Result<Vec<(String, RetentionRule)>, Fault> {
    Ok(RULES.read_all(bus).await?.into_iter().map(|entry| (entry.key, entry.value)).collect())
}

pub async fn read_sweep_settings(bus: &Bus) -> Result<SweepSettings, Fault> {
    Ok(SETTINGS.read(bus, SWEEP).await?.unwrap_or_default())
}

/// Changes the settings of sweeps.
pub async fn set_sweep_settings(bus: &Bus, settings: &SweepSettings) -> Result<(), Fault> {
    SETTINGS.put(bus, SWEEP, settings).await
}

/// A request to sweep now.
#[derive(Debug, Serialize, Deserialize)]
struct SweepRequest {
    by: String,
}

/// Requests a sweep now.
pub async fn request_sweep(bus: &Bus, by: &str) -> Result<(), Fault> {
    REQUESTS.put(bus, SWEEP, &SweepRequest { by: by.to_owned() }).await
}

/// Returns `true` if a sweep was requested after `since`.
pub async fn was_sweep_requested_since(bus: &Bus, since: Timestamp) -> Result<bool, Fault> {
    let state = REQUESTS.read_state(bus, SWEEP).await?;
    Ok(state.entry.is_some_and(|entry| entry.at > since))
}

/// Returns the record of the last sweep.
pub async fn read_sweep_record(bus: &Bus) -> Result<Option<SweepRecord>, Fault> {
    SWEEPS.read(bus, LAST).await
}

pub async fn write_sweep_record(bus: &Bus, record: &SweepRecord) -> Result<(), Fault> {
    SWEEPS.put(bus, LAST, record).await
}

/// Writes a deletion record; waits until the server has it. Returns `false` if another process has changed it.
pub(super) async fn update_deletion(bus: &Bus, record: &DeletionRecord, last: u64) -> Result<bool, Fault> {
    for tries in 1..=MAX_ATTEMPTS {
        match DELETIONS.write(bus, record.run.as_str(), record, ExpectedEntry::Sequence(last)).await {
            Ok(written) => return Ok(written.is_some()),
            Err(fault) if fault.is_transient() && tries < MAX_ATTEMPTS => {
                tokio::time::sleep(backoff(tries)).await;
            }
            Err(fault) => return Err(fault),
        }
    }
    Ok(false)
}
