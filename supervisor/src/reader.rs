//! Reads a lane: first the messages that it holds, folded run by run; then new messages, as items for the lane owner.
//! An unreadable message is counted and ignored, so that it does not block the lane. A message of an unsubmitted run, or a
//! forged one, is a stray: its sequence is kept, and nothing else of it.
//!
//! # Invariants
//!
//! - I58: A fact whose body is not available yet is waited for.
//!   (`tests/tests/bad_input.rs::submission_with_an_unavailable_body_is_waited_for`,
//!   `crates/runtime/tests/runtime.rs::with_three_copies_the_parts_of_a_blob_may_come_later_than_what_is_said_of_it`)

pub mod outline;

use std::collections::{HashMap, VecDeque};

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use millrace_protocol::ids::{Lane, RunId, TaskId};
use millrace_protocol::plan::{
    AnswerCause, AttemptResult, Decision, Fact, JournalKey, PlanningResult, RunCommand, Submission, Work,
};
use millrace_protocol::question::RunAnswer;
use millrace_protocol::result::{ErrorKind, TaskError};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::{DecodeError, WireMessage, decode_blob_ref_of_body};
use millrace_protocol::work::{JournalEntry, WorkOutcome};
use millrace_runtime::fault::backoff;
use millrace_runtime::log::lane_outline;
use millrace_runtime::log::lane_tail::LaneTail;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::nats::strays::StrayMessages;
use millrace_runtime::ops::long_work::{LONG_PLAN, run_possibly_long};
use millrace_runtime::store::archive;
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, Fault, clock, log};
use tokio::time::Instant;
use tracing::{debug, error, warn};

use crate::ignored::{IgnoredMessage, count_ignored};
use crate::live::{LiveRun, QueuedFact, RunPhase};

/// The number of failed reads of the same message after which the failure is logged again.
const LOG_INTERVAL: u32 = 20;
/// The number of messages of one run without an answer after which the unreadable ones among them are dropped.
const COMPACT_INTERVAL: usize = 4_096;

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
    Claimed(Topic),
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

/// A lane that was read and folded.
#[derive(Default)]
pub struct FoldedLane {
    pub runs: HashMap<RunId, LiveRun>,
    /// The position of the last message that was read.
    pub position: LogPosition,
    pub strays: StrayMessages,
    /// `true` if answered journals were left out.
    pub is_without_journals: bool,
}

/// Reads and folds a lane. A run begins with its submission, or with a decision: an earlier message of the run is a
/// stray. Large journals are left out, as far as decisions have answered them.
///
/// # Errors
/// The server does not answer. An unreadable decision is no error: it parks its run.
pub async fn fold_lane(bus: &Bus, lane: Lane) -> Result<FoldedLane, Fault> {
    if lane_outline::has_large_journals(bus, lane).await? {
        match outline::fold_lane_without_journals(bus, lane).await {
            Ok(folded) => return Ok(folded),
            Err(fault) => {
                debug!(%lane, %fault, "failed to read the lane without its journals; reading all of it")
            }
        }
    }
    fold_whole_lane(bus, lane).await
}

/// Reads and folds all messages of a lane, in their order.
///
/// # Errors
/// The server does not answer. An unreadable decision is no error: it parks its run.
pub async fn fold_whole_lane(bus: &Bus, lane: Lane) -> Result<FoldedLane, Fault> {
    let mut fold = LaneFold::default();
    let mut pages = log::scan_lane(bus, lane);
    loop {
        let records = pages.next_records().await?;
        if records.is_empty() {
            return fold.finish_fold(bus).await;
        }
        for record in records {
            fold.fold_record(bus, record).await?;
        }
    }
}

/// A lane that is being folded.
#[derive(Default)]
struct LaneFold {
    runs: HashMap<RunId, RunFoldState>,
    position: LogPosition,
    strays: StrayMessages,
}

impl LaneFold {
    /// Folds a message. The messages of one run must come in their order.
    async fn fold_record(&mut self, bus: &Bus, record: StreamRecord) -> Result<(), Fault> {
        if record.sequence > self.position.sequence {
            self.position = LogPosition::of_record(&record);
        }
        let Some((run, topic)) = parse_subject_or_count(&record) else {
            if is_stray(&record, |run| self.runs.contains_key(run)) {
                self.strays.add(record.sequence, Instant::now());
            }
            return Ok(());
        };
        match self.runs.get_mut(&run) {
            Some(state) => {
                if record.is_forged() {
                    self.strays.add(record.sequence, Instant::now());
                }
                state.fold_record(bus, topic, record).await
            }
            None if begins_run(&topic, &record) || archive::may_reopen_run(bus, &record).await? => {
                self.runs.entry(run).or_default().fold_record(bus, topic, record).await
            }
            None => {
                count_ignored(kind_of_stray(&record), &record, &"its run was never submitted");
                self.strays.add(record.sequence, Instant::now());
                Ok(())
            }
        }
    }

    async fn finish_fold(self, bus: &Bus) -> Result<FoldedLane, Fault> {
        let mut folded = FoldedLane { position: self.position, strays: self.strays, ..FoldedLane::default() };
        for (run, state) in self.runs {
            let sequences: Vec<u64> = state.facts.iter().map(|(_, record)| record.sequence).collect();
            let live = state.decode_pending_facts(bus).await?;
            let is_run = live.is_submitted() || live.last_sequence > 0 || live.phase == RunPhase::Parked;
            if is_run || live.has_reopening_command(0) {
                folded.runs.insert(run, live);
            } else {
                // Its submission is unreadable.
                let now = Instant::now();
                sequences.into_iter().for_each(|sequence| folded.strays.add(sequence, now));
            }
        }
        Ok(folded)
    }
}

/// `true` if a run may begin with this message.
fn begins_run(topic: &Topic, record: &StreamRecord) -> bool {
    match topic {
        Topic::Submitted => may_be_message::<Submission>(record),
        Topic::Plan => may_be_message::<Decision>(record),
        Topic::Journal(_) | Topic::Control | Topic::Answer => false,
    }
}

/// Returns the run and the topic of a message; counts a message without them as ignored.
fn parse_subject_or_count(record: &StreamRecord) -> Option<(RunId, Topic)> {
    let parsed = subject::parse_lane_subject(&record.subject);
    if parsed.is_none() {
        count_ignored(IgnoredMessage::UnknownSubject, record, &"its subject is unknown");
    }
    parsed.map(|(_, run, topic)| (run, topic))
}

/// `true` if a message on an unknown subject is a stray: it is forged, or its run is unknown. A later release may use more
/// subjects of a run.
fn is_stray(record: &StreamRecord, is_known: impl Fn(&RunId) -> bool) -> bool {
    let run = subject::run_token_of_lane_subject(&record.subject).map(RunId::new);
    record.is_forged() || run.is_some_and(|run| !run.is_ok_and(|run| is_known(&run)))
}

/// Returns what a stray is counted as.
fn kind_of_stray(record: &StreamRecord) -> IgnoredMessage {
    if record.is_forged() { IgnoredMessage::Forged } else { IgnoredMessage::Unsubmitted }
}

/// Reads and folds one run again, from the archive too if that holds its beginning.
pub fn fold_run<'a>(bus: &'a Bus, lane: Lane, run: &'a RunId) -> BoxFuture<'a, Result<LiveRun, Fault>> {
    async move {
        let mut folding = RunFoldState::default();
        let mut pages = log::read_run_pages(bus, lane, run);
        loop {
            let records = pages.next_page().await?;
            if records.is_empty() {
                break;
            }
            folding.fold_records(bus, records).await?;
        }
        let live = folding.decode_pending_facts(bus).await?;
        let summary = registry::read_summary(bus, run).await?;
        if live.is_submitted() && !summary.as_ref().is_some_and(archive::has_archive) {
            return Ok(live);
        }
        match fold_run_with_archive(bus, lane, run).await? {
            ArchivedRun::Reopened(live) => Ok(*live),
            ArchivedRun::None | ArchivedRun::Ended { .. } => Ok(live),
        }
    }
    .boxed()
}

/// A run whose archive was looked up.
#[derive(Debug)]
pub enum ArchivedRun {
    /// The archive does not hold it.
    None,
    /// It is in the archive, and its lane holds nothing that continues it, as of the message with this sequence.
    Ended {
        /// The sequence of the last message of the run that was read in the lane; 0 if there was none.
        through: u64,
        folded: Box<LiveRun>,
    },
    /// The lane continues it: with decisions, or with a command that may reopen it.
    Reopened(Box<LiveRun>),
}

/// Reads and folds a run from the archive and its lane.
///
/// # Errors
/// The server does not answer, or the archive can't be read.
pub async fn fold_run_with_archive(bus: &Bus, lane: Lane, run: &RunId) -> Result<ArchivedRun, Fault> {
    let in_lane = log::read_run(bus, lane, run, 1).await?;
    let summary = registry::read_summary(bus, run).await?;
    let through = in_lane.last().map_or(0, |last| last.sequence);
    let is_plan = |record: &&StreamRecord| {
        matches!(subject::parse_lane_subject(&record.subject), Some((_, _, Topic::Plan)))
    };
    let last_in_lane = in_lane.iter().filter(is_plan).map(|record| record.sequence).max();
    let joined = archive::join_with_archive(bus, run, in_lane, summary.as_ref()).await?;
    if joined.archived_through == 0 {
        return Ok(ArchivedRun::None);
    }
    let archived_through = joined.archived_through;
    let first = joined.records.first().map_or(0, |first| first.sequence);
    let mut folding = RunFoldState::default();
    folding.fold_records(bus, joined.records).await?;
    let mut live = folding.decode_pending_facts(bus).await?;
    live.archived_span = Some((first, archived_through));
    if live.last_sequence <= archived_through && !live.has_reopening_command(0) {
        return Ok(ArchivedRun::Ended { through, folded: Box::new(live) });
    }
    live.lane_end = Some(last_in_lane.unwrap_or(0)).filter(|end| *end != live.last_sequence);
    Ok(ArchivedRun::Reopened(Box::new(live)))
}

/// A run that is being folded. Facts are decoded at the end only: most of them are answered by a decision.
#[derive(Default)]
struct RunFoldState {
    live: LiveRun,
    facts: VecDeque<(Topic, StreamRecord)>,
    /// The number of facts at which the unreadable ones are dropped.
    compact_at: usize,
    /// The sequence of the last message among the decisions, readable or not; 0 before the first.
    last_plan_message: u64,
    /// The facts that decisions refused and that were not read.
    unread_refused: Vec<u64>,
}

impl RunFoldState {
    async fn fold_records(&mut self, bus: &Bus, records: Vec<StreamRecord>) -> Result<(), Fault> {
        for record in records {
            if let Some((_, _, topic)) = subject::parse_lane_subject(&record.subject) {
                self.fold_record(bus, topic, record).await?;
            }
        }
        Ok(())
    }

    async fn fold_record(&mut self, bus: &Bus, topic: Topic, record: StreamRecord) -> Result<(), Fault> {
        if topic != Topic::Plan {
            if record.is_forged() {
                count_ignored(IgnoredMessage::Forged, &record, &"it is a redirected server reply");
                return Ok(());
            }
            // Entries that were answered are dropped below, but the silence of a running attempt begins with its last one.
            if let Topic::Journal(JournalKey::Task(task, _)) = &topic {
                self.live.record_activity(task, record.time.min(clock::now()));
            }
            self.facts.push_back((topic, record));
            if self.facts.len() >= self.compact_at.max(COMPACT_INTERVAL) {
                self.drop_unreadable_facts();
            }
            return Ok(());
        }
        self.last_plan_message = record.sequence;
        match bus.decode_record::<Decision>(&record).await {
            Ok(decision) => {
                let is_long = decision.events.len() >= LONG_PLAN;
                run_possibly_long(is_long, || self.live.fold_decision(record.sequence, &decision));
                self.record_refused_outcomes(bus, &decision).await?;
            }
            Err(fault) if fault.is_transient() => return Err(fault),
            Err(fault) => {
                self.live.last_sequence = record.sequence;
                if may_be_message::<Decision>(&record) {
                    let (subject, sequence) = (&record.subject, record.sequence);
                    error!(%subject, sequence, %fault, "unreadable decision; parking its run");
                    self.live.phase = RunPhase::Parked;
                    self.live.log_damage = Some(format!("decision {sequence} can't be read: {fault}"));
                } else if record.is_forged() {
                    count_ignored(IgnoredMessage::Forged, &record, &fault);
                } else {
                    count_ignored(IgnoredMessage::NoDecision, &record, &fault);
                }
            }
        }
        let through = self.live.plan.run.through;
        while self.facts.front().is_some_and(|(_, fact)| fact.sequence <= through) {
            self.facts.pop_front();
        }
        Ok(())
    }

    /// Drops the facts that are no messages of their topics, so that a flood of them takes no memory.
    fn drop_unreadable_facts(&mut self) {
        self.facts.retain(|(topic, record)| match topic {
            Topic::Journal(_) => may_be_message::<JournalEntry>(record),
            Topic::Control => may_be_message::<RunCommand>(record),
            Topic::Answer => may_be_message::<RunAnswer>(record),
            Topic::Submitted | Topic::Plan => true,
        });
        self.compact_at = 2 * self.facts.len();
    }

    /// Notes the outcomes that a decision refused.
    async fn record_refused_outcomes(&mut self, bus: &Bus, decision: &Decision) -> Result<(), Fault> {
        for answer in decision.answers.iter().filter(|answer| answer.refusal.is_some()) {
            let AnswerCause::Fact(sequence) = answer.cause else { continue };
            let found = self.facts.binary_search_by_key(&sequence, |(_, record)| record.sequence);
            match found.ok().map(|position| self.facts[position].clone()) {
                Some((topic, record)) => self.record_if_outcome(bus, topic, &record).await?,
                None => self.unread_refused.push(sequence),
            }
        }
        Ok(())
    }

    /// Notes a refused fact if it is an outcome.
    async fn record_if_outcome(
        &mut self,
        bus: &Bus,
        topic: Topic,
        record: &StreamRecord,
    ) -> Result<(), Fault> {
        for item in decode_record(bus, topic, record).await? {
            if let LaneItem::Fact(queued) = item
                && let Some(work) = queued.fact.ended_work()
            {
                self.live.record_refused_outcome(work);
            }
        }
        Ok(())
    }

    async fn decode_pending_facts(mut self, bus: &Bus) -> Result<LiveRun, Fault> {
        let mut has_opaque_submission = false;
        for (topic, record) in self.facts {
            for item in decode_record(bus, topic, &record).await? {
                match item {
                    LaneItem::Fact(queued) => self.live.queue_fact(queued),
                    LaneItem::JournalActivity(task, at) => {
                        self.live.record_activity(&task, at.min(clock::now()))
                    }
                    LaneItem::SubmittedAt(at) => self.live.holds.record_submission_time(at),
                    LaneItem::OpaqueSubmission => has_opaque_submission = true,
                    LaneItem::Decision { .. } | LaneItem::Forged { .. } | LaneItem::Claimed(_) => {}
                }
            }
        }
        if has_opaque_submission && !self.live.is_submitted() {
            self.live.phase = RunPhase::Parked;
        }
        self.live.forget_activity_of_ended_attempts();
        Ok(self.live)
    }
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
                    let run = subject::run_token_of_lane_subject(&record.subject);
                    // No run can have an invalid id.
                    let is_forged = is_forged || run.is_some_and(|run| RunId::new(run).is_err());
                    let run = run.and_then(|run| RunId::new(run).ok());
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
///
/// # Errors
/// The server does not answer, so that a retry may succeed.
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
        Topic::Journal(_) => bus
            .decode_record::<JournalEntry>(record)
            .await
            .map(|entry| items_from_journal_entry(topic, entry, record)),
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
fn items_from_journal_entry(topic: Topic, entry: JournalEntry, record: &StreamRecord) -> Vec<LaneItem> {
    let fact = |fact| fact_item(record, fact);
    match (topic, entry) {
        (topic, JournalEntry::Claimed { worker, build, .. }) => {
            let work = match &topic {
                Topic::Journal(JournalKey::Task(task, attempt)) => {
                    Work::Task { task: task.clone(), attempt: *attempt }
                }
                Topic::Journal(JournalKey::Planning(turn, attempt)) => {
                    Work::Planning { turn: *turn, attempt: *attempt }
                }
                Topic::Journal(JournalKey::Review(..))
                | Topic::Submitted
                | Topic::Plan
                | Topic::Control
                | Topic::Answer => {
                    return vec![LaneItem::Claimed(topic)];
                }
            };
            vec![LaneItem::Claimed(topic), fact(Fact::Claimed(work, worker, build))]
        }
        (
            Topic::Journal(journal),
            JournalEntry::Note { provider: Some(status), .. }
            | JournalEntry::Released { provider: Some(status), .. },
        ) => {
            let activity = match &journal {
                JournalKey::Task(task, _) => Some(LaneItem::JournalActivity(task.clone(), record.time)),
                JournalKey::Review(..) | JournalKey::Planning(..) => None,
            };
            activity.into_iter().chain([fact(Fact::Provider(journal, status))]).collect()
        }
        (
            Topic::Journal(JournalKey::Task(task, attempt)),
            JournalEntry::Parked { worker, waits, children },
        ) => {
            vec![fact(Fact::Parked { task, attempt, worker, waits, children })]
        }
        (Topic::Journal(JournalKey::Task(task, attempt)), JournalEntry::Delegated { worker, delegation }) => {
            let activity = LaneItem::JournalActivity(task.clone(), record.time);
            vec![activity, fact(Fact::Delegated { task, attempt, worker, delegation })]
        }
        (Topic::Journal(journal), JournalEntry::Released { needs, .. }) if !needs.is_empty() => {
            vec![fact(Fact::ReservationTooSmall(journal, needs))]
        }
        (
            Topic::Journal(JournalKey::Task(task, _)),
            JournalEntry::Step { .. } | JournalEntry::Note { .. },
        ) => {
            vec![LaneItem::JournalActivity(task, record.time)]
        }
        (
            _,
            JournalEntry::Step { .. }
            | JournalEntry::Note { .. }
            | JournalEntry::Released { .. }
            | JournalEntry::Parked { .. }
            | JournalEntry::Delegated { .. },
        ) => Vec::new(),
        (Topic::Journal(JournalKey::Task(task, attempt)), JournalEntry::Outcome { worker, outcome, .. }) => {
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
                    at_sequence: record.sequence,
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
            vec![fact(Fact::Ended { task, attempt, worker, outcome })]
        }
        (
            Topic::Journal(JournalKey::Review(task, attempt)),
            JournalEntry::Outcome { worker, review, outcome },
        ) => {
            let outcome = match outcome {
                WorkOutcome::Judged(verdict) => Ok(verdict),
                WorkOutcome::Errored(error) => Err(error),
                WorkOutcome::Finished { .. } | WorkOutcome::Proposed { .. } => {
                    Err(misplaced_outcome_error("a review"))
                }
            };
            vec![fact(Fact::Reviewed { task, attempt, review, critic: worker, outcome })]
        }
        (Topic::Journal(JournalKey::Planning(turn, attempt)), JournalEntry::Outcome { outcome, .. }) => {
            let outcome = match outcome {
                WorkOutcome::Proposed { proposal, usage, models } => {
                    Ok(PlanningResult { proposal, usage, models })
                }
                WorkOutcome::Errored(error) => Err(error),
                WorkOutcome::Finished { .. } | WorkOutcome::Judged(_) => {
                    Err(misplaced_outcome_error("a planning turn"))
                }
            };
            vec![fact(Fact::Planned { turn, attempt, outcome })]
        }
        (Topic::Submitted | Topic::Plan | Topic::Control | Topic::Answer, JournalEntry::Outcome { .. }) => {
            Vec::new()
        }
    }
}

fn misplaced_outcome_error(of: &str) -> TaskError {
    TaskError::new(ErrorKind::Panic, format!("the journal of {of} has an outcome of another kind"))
}
