//! Follows a run: its decisions as the supervisor makes them, through server outages and into the archive.

use std::time::Duration;

use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Decision, Event, RunEvent};
use millrace_protocol::subject::{self, Topic};
use millrace_runtime::log::lane::LaneTail;
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
/// The time after which most followers check whether the run has been archived.
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
    let decisions = subject::topic_subject(bus.lane_of_run(run), run, &Topic::Plan);
    let mut follower = RunFollower::new(bus, run, decisions, 0);
    let mut end = RunEndState::No;
    loop {
        // One that has ended can be resumed or reopened.
        if end != RunEndState::No {
            let last = retry_transient(|| read_last_decision_sequence(bus, run)).await?;
            if last.is_none_or(|last| last <= follower.seen) {
                return Ok(());
            }
        }
        let step = tokio::select! {
            step = follower.next_step() => step?,
            // Otherwise a run without decisions would be polled for ever.
            () = sender.closed() => return Ok(()),
        };
        let records = match step {
            FollowStep::Messages(records) | FollowStep::Archived(records) => records,
            FollowStep::Quiet => continue,
            FollowStep::Deleted => return Ok(()),
        };
        for record in records.iter().filter(|record| record.is_decision()) {
            let decision: Decision = bus.decode_record(record).await?;
            end = decision.events.iter().fold(end, RunEndState::after_event);
            if sender.send(Ok((record.sequence, decision))).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Returns the messages of a run after a sequence, in order and each once: first those in the archive, if the run was reopened, then those
/// of its lane as they are appended, and in the end, when it is archived, the rest from the archive. Callers fold them.
pub(crate) struct RunFollower<'a> {
    bus: &'a Bus,
    run: &'a RunId,
    /// The subject of the messages in the lane; the archive returns all messages.
    subject: String,
    /// The time without a message after which it is checked whether the run has been archived.
    pub quiet: Duration,
    /// The sequence of the last message that was returned.
    seen: u64,
    /// The new messages of the lane, and the task that reads them; `None` before the archive was read.
    lane: Option<(mpsc::Receiver<Vec<StreamRecord>>, AbortOnDropHandle<()>)>,
}

pub(crate) enum FollowStep {
    Messages(Vec<StreamRecord>),
    /// There was no message for some time.
    Quiet,
    /// The run is archived: its last messages.
    Archived(Vec<StreamRecord>),
    /// The run was deleted.
    Deleted,
}

impl<'a> RunFollower<'a> {
    pub fn new(bus: &'a Bus, run: &'a RunId, subject: String, after: u64) -> Self {
        Self { bus, run, subject, quiet: QUIET, seen: after, lane: None }
    }

    /// Waits for the next messages.
    pub async fn next_step(&mut self) -> Result<FollowStep, Fault> {
        let Some((arrived, _)) = &mut self.lane else {
            let archived = retry_transient(|| read_archived_part(self.bus, self.run, self.seen)).await?;
            let records = self.take_new(archived).await?;
            let lane = self.bus.lane_of_run(self.run);
            let mut tail = LaneTail::follow_subject(self.bus, lane, self.subject.clone(), self.seen + 1);
            let (sender, arrived) = mpsc::channel(16);
            // A read must not be cancelled halfway, so the reader is a task of its own.
            let reader = async move { while sender.send(tail.next_records().await).await.is_ok() {} };
            self.lane = Some((arrived, AbortOnDropHandle::new(tokio::spawn(reader))));
            return Ok(FollowStep::Messages(records));
        };
        if let Ok(Some(records)) = tokio::time::timeout(self.quiet, arrived.recv()).await {
            return self.take_new(records).await.map(FollowStep::Messages);
        }
        match retry_transient(|| read_archived_records(self.bus, self.run)).await? {
            Some(records) if records.is_empty() => Ok(FollowStep::Deleted),
            Some(records) => self.take_new(records).await.map(FollowStep::Archived),
            None => Ok(FollowStep::Quiet),
        }
    }

    /// Returns those of these messages that were not returned. If decisions before them are missing, because the run was archived and
    /// reopened meanwhile, all of them are read.
    async fn take_new(&mut self, mut records: Vec<StreamRecord>) -> Result<Vec<StreamRecord>, Fault> {
        let is_new = |record: &&StreamRecord| record.sequence > self.seen && record.is_decision();
        if let Some(first) = records.iter().find(is_new) {
            let first: Decision = self.bus.decode_record(first).await?;
            if first.previous > self.seen {
                let archived = retry_transient(|| read_archived_part(self.bus, self.run, self.seen)).await?;
                records = if archived.is_empty() { records } else { archived };
            }
        }
        records.retain(|record| record.sequence > self.seen);
        self.seen = records.last().map_or(self.seen, |last| last.sequence);
        Ok(records)
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
async fn read_archived_part(bus: &Bus, run: &RunId, after: u64) -> Result<Vec<StreamRecord>, Fault> {
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
