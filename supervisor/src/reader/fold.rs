//! Folds the messages that a lane or a run holds, run by run. A message of an unsubmitted run, or a forged one, is a stray: its sequence
//! is kept, and nothing else of it.

use std::collections::{HashMap, VecDeque};

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::{AnswerCause, Decision, JournalKey, RunCommand, Submission};
use millrace_protocol::question::RunAnswer;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::work::JournalEntry;
use millrace_runtime::log::lane::LaneScan;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::nats::strays::StrayMessages;
use millrace_runtime::ops::runtime::{LONG_PLAN, run_possibly_long};
use millrace_runtime::store::archive;
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, Fault, clock, log};
use tokio::time::Instant;
use tracing::error;

use super::{
    LaneItem, LogPosition, decode_record, may_be_message, parse_subject_or_count, run_of_unknown_subject,
};
use crate::live::{LiveRun, RunPhase};
use crate::strays::{IgnoredMessage, count_ignored};

/// The number of messages of one run without an answer after which the unreadable ones among them are dropped.
const COMPACT_INTERVAL: usize = 4_096;

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

/// Reads and folds all messages of a lane, in their order.
/// Errors: the server does not answer. An unreadable decision is no error: it parks its run.
pub async fn fold_whole_lane(bus: &Bus, lane: Lane) -> Result<FoldedLane, Fault> {
    let mut fold = LaneFold::default();
    let mut pages = LaneScan::new(bus, lane);
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
pub(super) struct LaneFold {
    pub runs: HashMap<RunId, RunFoldState>,
    pub position: LogPosition,
    pub strays: StrayMessages,
}

impl LaneFold {
    /// Folds a message. The messages of one run must come in their order.
    pub async fn fold_record(&mut self, bus: &Bus, record: StreamRecord) -> Result<(), Fault> {
        if record.sequence > self.position.sequence {
            self.position = LogPosition::of_record(&record);
        }
        let Some((run, topic)) = parse_subject_or_count(&record) else {
            let (run, is_forged) = run_of_unknown_subject(&record);
            if is_forged || run.is_some_and(|run| !self.runs.contains_key(&run)) {
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

    pub async fn finish_fold(self, bus: &Bus) -> Result<FoldedLane, Fault> {
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
/// Fails also if the archive can't be read.
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
pub(super) struct RunFoldState {
    pub live: LiveRun,
    facts: VecDeque<(Topic, StreamRecord)>,
    /// The number of facts at which the unreadable ones are dropped.
    compact_at: usize,
    /// The sequence of the last message among the decisions, readable or not; 0 before the first.
    pub last_plan_message: u64,
    /// The facts that decisions refused and that were not read.
    pub unread_refused: Vec<u64>,
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
    pub async fn record_if_outcome(
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
