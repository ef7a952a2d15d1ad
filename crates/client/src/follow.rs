//! Follows a run: its decisions as the supervisor makes them, through server outages and into the archive.

use std::time::Duration;

use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Decision, Event, RunEvent};
use millrace_protocol::subject::{self, Topic};
use millrace_runtime::log::lane_tail::LaneTail;
use millrace_runtime::nats::direct_get::read_last_per_subject;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::nats::topology::lane_stream;
use millrace_runtime::store::archive;
use millrace_runtime::store::retention::read_deletion;
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, Fault, log};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// Maximum time that reads are retried while the server is unreachable.
const OUTAGE: Duration = Duration::from_secs(120);
const RETRY_DELAY: Duration = Duration::from_millis(250);
/// After this long without a decision, [`follow_run`] checks whether the run has been archived.
const QUIET: Duration = Duration::from_secs(2);

/// Sends the decisions of a run with their sequences, from the first one on, as they are made. Ends with the decision
/// that ends the run, unless another follows it: a run that ended because its budget was used up can be resumed.
pub fn follow_run(bus: &Bus, run: &RunId) -> mpsc::Receiver<Result<(u64, Decision), Fault>> {
    let (sender, receiver) = mpsc::channel(64);
    let (bus, run) = (bus.clone(), run.clone());
    tokio::spawn(async move {
        if let Err(fault) = follow_run_into_channel(&bus, &run, &sender).await {
            // If the receiver is gone, the fault concerns no one.
            let _ = sender.send(Err(fault)).await;
        }
    });
    receiver
}

async fn follow_run_into_channel(
    bus: &Bus,
    run: &RunId,
    sender: &mpsc::Sender<Result<(u64, Decision), Fault>>,
) -> Result<(), Fault> {
    let mut position = FollowPosition::default();
    let archived = retry_transient(|| read_archived_part(bus, run, 0)).await?;
    forward_decisions(bus, run, archived, &mut position, sender).await?;
    let decisions = subject::topic_subject(bus.lane_of_run(run), run, &Topic::Plan);
    let mut tail = RunTail::follow(bus, run, decisions, position.seen + 1, QUIET);
    loop {
        if position.is_over(bus, run).await? {
            return Ok(());
        }
        let update = tokio::select! {
            update = tail.next_update() => update?,
            // Otherwise a run without decisions would be polled for ever.
            () = sender.closed() => return Ok(()),
        };
        let records = match update {
            // Nothing follows: the run has been deleted.
            TailUpdate::Archived(records) if records.is_empty() => return Ok(()),
            TailUpdate::Arrived(records) | TailUpdate::Archived(records) => records,
            TailUpdate::Quiet => continue,
        };
        match forward_decisions(bus, run, records, &mut position, sender).await {
            _ if sender.is_closed() => return Ok(()),
            outcome => outcome?,
        }
    }
}

/// The messages of a run from a sequence on, in its lane; it notices when the run is archived.
pub(crate) struct RunTail<'a> {
    bus: &'a Bus,
    run: &'a RunId,
    quiet: Duration,
    arrived: mpsc::Receiver<Vec<StreamRecord>>,
    _reader: AbortOnDropHandle<()>,
}

pub(crate) enum TailUpdate {
    Arrived(Vec<StreamRecord>),
    /// The run has been archived: all of its messages; none if it has been deleted.
    Archived(Vec<StreamRecord>),
    /// There was no message for some time.
    Quiet,
}

impl<'a> RunTail<'a> {
    pub fn follow(bus: &'a Bus, run: &'a RunId, subject: String, from: u64, quiet: Duration) -> Self {
        let (records, arrived) = mpsc::channel(16);
        let mut tail = LaneTail::follow_subject(bus, bus.lane_of_run(run), subject, from);
        // A read must not be cancelled halfway, so the reader is a task of its own.
        let reader = async move { while records.send(tail.next_records().await).await.is_ok() {} };
        let reader = AbortOnDropHandle::new(tokio::spawn(reader));
        Self { bus, run, quiet, arrived, _reader: reader }
    }

    pub async fn next_update(&mut self) -> Result<TailUpdate, Fault> {
        if let Ok(records) = tokio::time::timeout(self.quiet, self.arrived.recv()).await {
            return Ok(records.map_or_else(|| TailUpdate::Archived(Vec::new()), TailUpdate::Arrived));
        }
        let archived = retry_transient(|| read_archived_records(self.bus, self.run)).await?;
        Ok(archived.map_or(TailUpdate::Quiet, TailUpdate::Archived))
    }
}

/// Returns the records of a run that has been archived, none if it has been deleted; `None` for any other run.
pub async fn read_archived_records(bus: &Bus, run: &RunId) -> Result<Option<Vec<StreamRecord>>, Fault> {
    match registry::read_summary(bus, run).await? {
        Some(summary) if summary.archived => {
            let in_lane = log::read_run(bus, bus.lane_of_run(run), run, 1).await?;
            let joined = archive::join_with_archive(bus, run, in_lane, Some(&summary)).await?;
            Ok(Some(joined).filter(|joined| joined.archived_through > 0).map(|joined| joined.records))
        }
        Some(_) => Ok(None),
        None => {
            let deletion = read_deletion(bus, run).await?;
            Ok(deletion.filter(|deletion| deletion.state.is_deleted()).map(|_| Vec::new()))
        }
    }
}

/// Returns the records of a run if the archive holds some of them after sequence `after`: those of an archived run, or of one that was
/// reopened. Otherwise none.
pub async fn read_archived_part(bus: &Bus, run: &RunId, after: u64) -> Result<Vec<StreamRecord>, Fault> {
    let summary = registry::read_summary(bus, run).await?;
    let Some((_, archived)) = summary.and_then(|summary| summary.archived_span) else {
        return Ok(Vec::new());
    };
    if archived <= after {
        return Ok(Vec::new());
    }
    archive::read_run_from_log_or_archive(bus, bus.lane_of_run(run), run).await
}

/// Retries a read while its fault is transient, for as long as a restarting server may need (120 s).
pub async fn retry_transient<T, F>(read: impl Fn() -> F) -> Result<T, Fault>
where
    F: Future<Output = Result<T, Fault>>,
{
    let started = tokio::time::Instant::now();
    loop {
        match read().await {
            Err(fault) if fault.is_transient() && started.elapsed() < OUTAGE => {
                tokio::time::sleep(RETRY_DELAY).await;
            }
            outcome => return outcome,
        }
    }
}

/// The position up to which a run has been followed.
#[derive(Default)]
struct FollowPosition {
    /// Sequence of the last decision that was forwarded.
    seen: u64,
    /// The end state of the run as of that decision.
    end: RunEndState,
}

impl FollowPosition {
    /// `true` if the run has ended and no decision follows: one that has ended can be resumed or reopened.
    async fn is_over(&self, bus: &Bus, run: &RunId) -> Result<bool, Fault> {
        match self.end {
            RunEndState::No => Ok(false),
            RunEndState::Resumable | RunEndState::Final => {
                let last = retry_transient(|| read_last_decision_sequence(bus, run)).await?;
                Ok(last.is_none_or(|last| last <= self.seen))
            }
        }
    }
}

/// The end of a run as of a decision: `No` while it is open; otherwise whether it can be resumed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum RunEndState {
    #[default]
    No,
    Resumable,
    Final,
}

impl RunEndState {
    #[must_use]
    pub fn after_event(self, event: &Event) -> Self {
        if let Event::Run(RunEvent::Ended { reason, is_resumable, .. }) = event {
            let is_resumable = *is_resumable || reason.needs_larger_budget();
            if is_resumable { Self::Resumable } else { Self::Final }
        } else if matches!(event, Event::Run(RunEvent::Retired)) {
            Self::Final
        } else if matches!(event, Event::Run(RunEvent::Reopened)) {
            Self::No
        } else {
            self
        }
    }
}

/// Returns the sequence of a run's last decision in its lane; `None` if the lane no longer holds one.
async fn read_last_decision_sequence(bus: &Bus, run: &RunId) -> Result<Option<u64>, Fault> {
    let lane = bus.lane_of_run(run);
    let plan = [subject::topic_subject(lane, run, &Topic::Plan)];
    let last = read_last_per_subject(bus.client(), &lane_stream(lane), &plan).await?;
    Ok(last.unwrap_or_default().last().map(|record| record.sequence))
}

/// Forwards the decisions among `records` that come after `position`. If decisions before them are missing, because the run was
/// archived and reopened meanwhile, these are read.
async fn forward_decisions(
    bus: &Bus,
    run: &RunId,
    mut records: Vec<StreamRecord>,
    position: &mut FollowPosition,
    sender: &mpsc::Sender<Result<(u64, Decision), Fault>>,
) -> Result<(), Fault> {
    let is_new = |record: &&StreamRecord| record.sequence > position.seen && record.is_decision();
    if let Some(first) = records.iter().find(is_new) {
        let first: Decision = bus.decode_record(first).await?;
        if first.previous > position.seen {
            let archived = retry_transient(|| read_archived_part(bus, run, position.seen)).await?;
            records = if archived.is_empty() { records } else { archived };
        }
    }
    for record in records {
        if !record.is_decision() || record.sequence <= position.seen {
            continue;
        }
        position.seen = record.sequence;
        let decision: Decision = bus.decode_record(&record).await?;
        position.end = decision.events.iter().fold(position.end, RunEndState::after_event);
        if sender.send(Ok((record.sequence, decision))).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}
