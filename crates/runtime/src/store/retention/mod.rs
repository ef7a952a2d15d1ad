//! Deleting runs, and sweeping the blobs that nothing refers to any more.
//!
//! # Deleting a run
//!
//! A client writes a *deletion record* ([`request_deletion`]). A supervisor carries it out ([`removal`]), in this order, in which each
//! step can be repeated, so that whoever continues after a crash starts from the beginning:
//!
//! ```text
//! record "removing" ─▶ summary ─▶ late messages, orders ─▶ files ─▶ archive ─▶ record "removed"
//! ```
//!
//! From the first step on the run counts as deleted. A live run is refused: cancel it first. The record stays for
//! [`removal::RECORD_AGE`], so that readers learn that the run was deleted, and so that a submission which is repeated with its
//! idempotency key does not bring the run back. Then the record, the idempotency keys and the marker of the summary go too.
//!
//! # Sweeping blobs
//!
//! Blobs are shared: by content, by runs, and by files. No counter of references is kept. A *sweep* marks every blob that
//! something refers to, and removes the others ([`sweep`]). What refers to blobs:
//!
//! | reference | place |
//! |---|---|
//! | the body of a large message | an envelope in a lane, a queue or the files |
//! | the list of documents of a submission, and the documents in it | a submission; the list is a blob itself |
//! | values of steps and results: model replies, tool results, conversations, forks | journals in lanes and archives, orders |
//! | images, web pages as sources, skills, files that programs wrote | steps of journals, as fields of their values |
//! | contents of files, of all versions, and of memories | the files |
//! | results and files of an earlier run (`--after`) | documents of the later run, which has copies |
//! | versions of capabilities | the registry |
//!
//! This list is for readers; the code does not depend on it. All references are names in text form, so the mark takes every
//! sequence of 64 hexadecimal digits that names a stored blob as a reference to it, in every message of every stream, in
//! archives, and in referenced blobs themselves. A new kind of reference needs no code here; a text that looks like a name
//! keeps a blob for longer.
//!
//! # Races
//!
//! A blob is stored before a message refers to it, and a stored blob may be used again at any time. Four rules keep a sweep
//! from removing such a blob:
//!
//! 1. *Age.* Only blobs whose last description is older than the grace period when the mark begins are removed. Storing a blob again
//!    adds a description, unless it is younger than `BLOB_RENEWAL_AGE`, which is far below the grace period. So at that time
//!    whoever stored the blob has had at least 50 minutes to append the message that refers to it, and the mark finds it.
//! 2. *Second check.* After the mark, everything that was appended since its beginning is read too, which includes runs that moved
//!    from a lane to the archive meanwhile, and everything in blobs that are new.
//! 3. *Fence.* The first step of a removal is a description that says "deleted", appended only if no description was added
//!    since the mark. Storing a blob again appends a description under the same condition, so one of both fails and looks again.
//! 4. *Hold.* While a backup is taken, nothing is removed ([`RetentionHold`]).
//!
//! A sweep that dies has removed some blobs completely, and at most some partly, which the next sweep completes.
//!
//! A hold: while one exists, supervisors remove no runs and no blobs. A backup takes one, because it copies one stream after
//! the other and nothing that a copied message refers to may go meanwhile. A hold is renewed while it is needed, and counts for
//! a limited time, so that a process that dies does not keep runs for ever.
//!
//! | key | content |
//! |---|---|
//! | `deletion.RUN` | a [`DeletionRecord`] |
//! | `rule.NAME` | a [`RetentionRule`] |
//! | `settings.sweep` | [`SweepSettings`] |
//! | `request.sweep` | who wants a sweep now |
//! | `sweep.last` | a [`SweepRecord`] |
//! | `hold.ID` | a process that keeps everything from being removed |
//!
//! # Invariants
//!
//! - I170: If processes die while runs are deleted and blobs are swept, the other runs keep their results, files and blobs, also
//!   those that are stored again meanwhile; in the end nothing of the deleted runs is left.
//!   (`crates/runtime/tests/retention.rs::everything_of_remaining_runs_is_kept_and_nothing_else`)
//! - I171: A live run is never deleted, and nothing is while a backup is taken.
//!   (`crates/runtime/tests/retention.rs::live_runs_are_refused_and_deletions_are_idempotent`)

mod removal;
mod sweep;

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
use tokio::task::JoinHandle;
use tracing::debug;

use crate::fault::backoff;
use crate::nats::record::new_id;
use crate::nats::topology::RETENTION;
use crate::store::blobs::sha256_hex;
use crate::store::bucket::{Bucket, BucketChange, BucketChanges, Entry, ExpectedEntry};
use crate::work::registry;
use crate::{Bus, Fault, log};

pub use removal::{RECORD_AGE, expire_records, remove_requested_run};
pub use sweep::{SweepOptions, forecast_prune, sweep_blobs};

/// The interval at which a hold is renewed.
const RENEWAL: Duration = Duration::from_secs(20);
/// The age at which a hold does not count any more.
const MAX_AGE: Duration = Duration::from_secs(120);

static STORE: Bucket<HoldRecord> = Bucket::new(RETENTION, "hold.");

/// The content of a hold.
#[derive(Debug, Serialize, Deserialize)]
struct HoldRecord {
    why: String,
}

/// A hold of this process, until it is released or dropped.
#[derive(Debug)]
pub struct RetentionHold {
    key: String,
    renewal: JoinHandle<()>,
}

impl RetentionHold {
    /// Takes a hold. Removals that have begun end within moments.
    /// Fails also if the cluster has no such bucket.
    pub async fn take(bus: &Bus, why: &str) -> Result<Self, Fault> {
        let key = new_id();
        let record = HoldRecord { why: why.to_owned() };
        STORE.put(bus, &key, &record).await?;
        let (renewed, renewing_bus) = (key.clone(), bus.clone());
        let renewal = tokio::spawn(async move {
            loop {
                tokio::time::sleep(RENEWAL).await;
                if let Err(fault) = STORE.put(&renewing_bus, &renewed, &record).await {
                    debug!(%fault, "failed to renew a hold; retrying");
                }
            }
        });
        Ok(Self { key, renewal })
    }

    /// Releases the hold.
    pub async fn release(self, bus: &Bus) {
        self.renewal.abort();
        if let Err(fault) = STORE.remove(bus, &self.key, ExpectedEntry::Any).await {
            debug!(%fault, "failed to release a hold; it expires by itself");
        }
    }
}

impl Drop for RetentionHold {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

/// Returns `true` if a process holds everything from being removed.
pub(super) async fn is_held(bus: &Bus) -> Result<bool, Fault> {
    let now = Timestamp::now();
    let is_current = |at: Timestamp| now.duration_since(at).unsigned_abs() < MAX_AGE;
    let holds = STORE.read_all(bus).await?;
    Ok(holds.iter().any(|hold| is_current(hold.at)))
}

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
/// Errors: there is no such run, it is live, or the server does not respond.
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
        Self { changes: DELETIONS.changes(), announced }
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
    pub async fn read_new(&mut self, bus: &Bus) -> Result<Vec<RunId>, Fault> {
        let pending = self.changes.read_new(bus).await?.into_iter().filter_map(|change| match change {
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
