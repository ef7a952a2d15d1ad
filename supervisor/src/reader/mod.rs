//! Reads a lane: first the messages that it holds, folded run by run ([`fold`]; [`outline`] leaves out what a new owner does not need);
//! then new messages, as items for the lane owner. An unreadable message is counted and ignored, so that it does not block the lane.
//!
//! # Invariants
//!
//! - I58: A fact whose body is not available yet is waited for.
//!   (`tests/tests/bad_input.rs::submission_with_an_unavailable_body_is_waited_for`,
//!   `crates/runtime/tests/runtime.rs::with_three_copies_the_parts_of_a_blob_may_come_later_than_what_is_said_of_it`)

pub mod fold;
pub mod outline;

use jiff::Timestamp;
use millrace_protocol::ids::{Lane, RunId, TaskId, WorkerId};
use millrace_protocol::plan::{
    AttemptResult, Fact, JournalKey, PlanningResult, RunCommand, Submission, Work,
};
use millrace_protocol::question::RunAnswer;
use millrace_protocol::result::{ErrorKind, TaskError};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::{DecodeError, WireMessage, decode_blob_ref_of_body};
use millrace_protocol::work::{JournalEntry, WorkOutcome};
use millrace_runtime::fault::backoff;
use millrace_runtime::log::lane::LaneTail;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::{Bus, Fault, log};
use tracing::warn;

use crate::live::QueuedFact;
use crate::strays::{IgnoredMessage, count_ignored};

/// The number of failed reads of the same message after which the failure is logged again.
const LOG_INTERVAL: u32 = 20;

/// A message of the lane, as its owner sees it.
#[derive(Debug)]
pub enum LaneItem {
    /// A decision: ours, or that of another supervisor.
    Decision { sequence: u64 },
    /// A forged message among the decisions. Its content is ignored, but the next append must expect its sequence, until
    /// it is deleted.
    Forged { sequence: u64 },
    /// A submission that this process can't read, but another may: a newer release wrote it, or its body is missing. Its
    /// run is parked.
    OpaqueSubmission,
    /// A fact to decide on.
    Fact(QueuedFact),
    /// The time at which the server stored the submission of the run.
    SubmittedAt(Timestamp),
    /// A worker, critic or planner claimed the work of this journal.
    Claimed(JournalKey),
    /// A running attempt wrote to its journal.
    JournalActivity(TaskId, Timestamp),
}

/// The last message of a lane that was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// Its sequence; 0 if the lane was empty.
    pub sequence: u64,
    /// The time at which the server stored it. A server that has lost its newest messages uses their sequences again.
    pub at: Timestamp,
}

impl LogPosition {
    fn of_record(record: &StreamRecord) -> Self {
        Self { sequence: record.sequence, at: record.time }
    }
}

/// Returns `true` if the lane contains the message at this position.
pub async fn has_position(bus: &Bus, lane: Lane, position: LogPosition) -> Result<bool, Fault> {
    if position.sequence == 0 {
        return Ok(true);
    }
    let record = log::read_message(bus, lane, position.sequence).await?;
    Ok(record.is_some_and(|record| LogPosition::of_record(&record) == position))
}

/// `true` if a message, readable or not, may be one of this type: it is an envelope of that type, or of another
/// format.
fn may_be_message<M: WireMessage>(record: &StreamRecord) -> bool {
    if record.is_forged() {
        return false;
    }
    let envelope = decode_blob_ref_of_body::<M>(&record.payload, record.encoding);
    matches!(envelope, Ok(_) | Err(DecodeError::OtherFormat { .. }))
}

/// Returns the run and the topic of a message; counts a message without them as ignored.
fn parse_subject_or_count(record: &StreamRecord) -> Option<(RunId, Topic)> {
    let parsed = subject::parse_lane_subject(&record.subject);
    if parsed.is_none() {
        count_ignored(IgnoredMessage::UnknownSubject, record, &"its subject is unknown");
    }
    parsed.map(|(_, run, topic)| (run, topic))
}

/// Returns the run that a message on an unknown subject names, which a later release may use. Returns `true` if the message is a stray
/// even if its run is known: it is forged, or no run can have such an id.
fn run_of_unknown_subject(record: &StreamRecord) -> (Option<RunId>, bool) {
    let run = subject::run_token_of_lane_subject(&record.subject).map(RunId::new);
    let is_forged = record.is_forged() || run.as_ref().is_some_and(Result::is_err);
    (run.and_then(Result::ok), is_forged)
}

/// The new messages of a lane, in order.
pub struct LaneFeed {
    bus: Bus,
    tail: LaneTail,
}

impl LaneFeed {
    /// Starts after the sequence `through`.
    #[must_use]
    pub fn open_after_sequence(bus: &Bus, lane: Lane, through: u64) -> Self {
        Self { bus: bus.clone(), tail: LaneTail::follow_lane(bus, lane, through + 1) }
    }

    /// Returns the next batch of messages, and the position of the last one. Waits until there is one.
    pub async fn next_messages(&mut self) -> (Vec<LaneMessageItems>, LogPosition) {
        let records = self.tail.next_records().await;
        let through = records.last().map(LogPosition::of_record).unwrap_or_default();
        let mut messages = Vec::with_capacity(records.len());
        for record in records {
            let (sequence, is_forged) = (record.sequence, record.is_forged());
            match parse_subject_or_count(&record) {
                Some((run, topic)) => {
                    let items = decode_record_with_retry(&self.bus, &topic, &record).await;
                    messages.push(LaneMessageItems { run: Some(run), sequence, is_forged, items });
                }
                None => {
                    let (run, is_forged) = run_of_unknown_subject(&record);
                    messages.push(LaneMessageItems { run, sequence, is_forged, items: Vec::new() });
                }
            }
        }
        (messages, through)
    }
}

#[derive(Debug)]
pub struct LaneMessageItems {
    /// Its run; `None` if its subject names none.
    pub run: Option<RunId>,
    pub sequence: u64,
    /// `true` if it is a stray even if its run is known.
    pub is_forged: bool,
    /// Its meaning for the lane owner; empty if it is ignored.
    pub items: Vec<LaneItem>,
}

/// Decodes a message. Retries until the server answers, because messages must be handled in order: those after it wait.
async fn decode_record_with_retry(bus: &Bus, topic: &Topic, record: &StreamRecord) -> Vec<LaneItem> {
    let mut failures: u32 = 0;
    loop {
        let fault = match decode_record(bus, topic.clone(), record).await {
            Ok(items) => return items,
            Err(fault) => fault,
        };
        if failures.is_multiple_of(LOG_INTERVAL) {
            let (subject, sequence) = (&record.subject, record.sequence);
            warn!(%subject, sequence, %fault, failures, "failed to read a message; its lane waits; retrying");
        }
        failures += 1;
        tokio::time::sleep(backoff(failures)).await;
    }
}

/// Decodes a message; returns no items if it is unreadable.
/// Errors: the server does not answer, so that a retry may succeed.
async fn decode_record(bus: &Bus, topic: Topic, record: &StreamRecord) -> Result<Vec<LaneItem>, Fault> {
    let sequence = record.sequence;
    let fact = |fact| vec![fact_item(record, fact)];
    let unreadable = match &topic {
        Topic::Submitted => IgnoredMessage::UnreadableSubmission,
        Topic::Control | Topic::Answer => IgnoredMessage::UnreadableCommand,
        Topic::Plan | Topic::Journal(_) => IgnoredMessage::UnreadableEntry,
    };
    let read = match topic {
        _ if record.is_forged() => {
            count_ignored(IgnoredMessage::Forged, record, &"it is a redirected server reply");
            let is_plan = topic == Topic::Plan;
            return Ok(is_plan.then_some(LaneItem::Forged { sequence }).into_iter().collect());
        }
        Topic::Plan => return Ok(vec![LaneItem::Decision { sequence }]),
        Topic::Submitted => bus.decode_record::<Submission>(record).await.map(|it| {
            let at = LaneItem::SubmittedAt(record.time);
            [at].into_iter().chain(fact(Fact::Submitted(Box::new(it)))).collect()
        }),
        Topic::Control => bus.decode_record::<RunCommand>(record).await.map(|it| fact(Fact::Control(it))),
        Topic::Answer => bus.decode_record::<RunAnswer>(record).await.map(|it| fact(Fact::Answered(it))),
        Topic::Journal(journal) => bus
            .decode_record::<JournalEntry>(record)
            .await
            .map(|entry| items_from_journal_entry(journal, entry, record)),
    };
    read.or_else(|fault| {
        if fault.is_transient() {
            return Err(fault);
        }
        let is_newer = fault.is_of_newer_release();
        count_ignored(if is_newer { IgnoredMessage::NewerVersion } else { unreadable }, record, &fault);
        let may_become_readable = is_newer || !matches!(fault, Fault::InvalidMessage { .. });
        let is_submission = unreadable == IgnoredMessage::UnreadableSubmission;
        Ok((is_submission && may_become_readable).then_some(LaneItem::OpaqueSubmission).into_iter().collect())
    })
}

fn fact_item(record: &StreamRecord, fact: Fact) -> LaneItem {
    LaneItem::Fact(QueuedFact { sequence: record.sequence, at: record.time, fact: Box::new(fact) })
}

/// Translates a journal entry.
fn items_from_journal_entry(
    journal: JournalKey,
    entry: JournalEntry,
    record: &StreamRecord,
) -> Vec<LaneItem> {
    let activity = match &journal {
        JournalKey::Task(task, _) => Some(LaneItem::JournalActivity(task.clone(), record.time)),
        JournalKey::Review(..) | JournalKey::Planning(..) => None,
    };
    let (item, fact) = match (entry, journal) {
        (JournalEntry::Claimed { worker, build, .. }, journal) => {
            let work = match journal.clone() {
                JournalKey::Task(task, attempt) => Some(Work::Task { task, attempt }),
                JournalKey::Planning(turn, attempt) => Some(Work::Planning { turn, attempt }),
                JournalKey::Review(..) => None,
            };
            (Some(LaneItem::Claimed(journal)), work.map(|work| Fact::Claimed(work, worker, build)))
        }
        (
            JournalEntry::Note { provider: Some(status), .. }
            | JournalEntry::Released { provider: Some(status), .. },
            journal,
        ) => (activity, Some(Fact::Provider(journal, status))),
        (JournalEntry::Released { needs, .. }, journal) => {
            (None, (!needs.is_empty()).then(|| Fact::ReservationTooSmall(journal, needs)))
        }
        (JournalEntry::Step { .. } | JournalEntry::Note { .. }, _) => (activity, None),
        (JournalEntry::Parked { worker, waits, children }, JournalKey::Task(task, attempt)) => {
            (None, Some(Fact::Parked { task, attempt, worker, waits, children }))
        }
        (JournalEntry::Delegated { worker, delegation }, JournalKey::Task(task, attempt)) => {
            (activity, Some(Fact::Delegated { task, attempt, worker, delegation }))
        }
        (JournalEntry::Parked { .. } | JournalEntry::Delegated { .. }, _) => (None, None),
        (JournalEntry::Outcome { worker, review, outcome }, journal) => {
            (None, Some(fact_from_outcome(journal, (worker, review), outcome, record.sequence)))
        }
    };
    item.into_iter().chain(fact.map(|fact| fact_item(record, fact))).collect()
}

/// Translates the outcome of work. `review` is its number if it is a review.
fn fact_from_outcome(
    journal: JournalKey,
    (worker, review): (WorkerId, u32),
    outcome: WorkOutcome,
    at_sequence: u64,
) -> Fact {
    match journal {
        JournalKey::Task(task, attempt) => {
            let outcome = match outcome {
                WorkOutcome::Finished {
                    summary,
                    is_empty,
                    is_detailed,
                    is_answered,
                    review,
                    usage,
                    models,
                    result: _,
                } => Ok(AttemptResult {
                    at_sequence,
                    summary,
                    is_empty,
                    is_detailed,
                    is_answered,
                    review,
                    usage,
                    models,
                }),
                WorkOutcome::Errored(error) => Err(error),
                WorkOutcome::Judged(_) | WorkOutcome::Proposed { .. } => {
                    Err(misplaced_outcome_error("a task"))
                }
            };
            Fact::Ended { task, attempt, worker, outcome }
        }
        JournalKey::Review(task, attempt) => {
            let outcome = match outcome {
                WorkOutcome::Judged(verdict) => Ok(verdict),
                WorkOutcome::Errored(error) => Err(error),
                WorkOutcome::Finished { .. } | WorkOutcome::Proposed { .. } => {
                    Err(misplaced_outcome_error("a review"))
                }
            };
            Fact::Reviewed { task, attempt, review, critic: worker, outcome }
        }
        JournalKey::Planning(turn, attempt) => {
            let outcome = match outcome {
                WorkOutcome::Proposed { proposal, usage, models } => {
                    Ok(PlanningResult { proposal, usage, models })
                }
                WorkOutcome::Errored(error) => Err(error),
                WorkOutcome::Finished { .. } | WorkOutcome::Judged(_) => {
                    Err(misplaced_outcome_error("a planning turn"))
                }
            };
            Fact::Planned { turn, attempt, outcome }
        }
    }
}

fn misplaced_outcome_error(of: &str) -> TaskError {
    TaskError::new(ErrorKind::Panic, format!("the journal of {of} has an outcome of another kind"))
}
