//! Folds a lane without reading the journals that its decisions have answered. Runs that wait for weeks then cost a takeover
//! their decisions only, and not the megabytes that their agents have written.
//!
//! The result is the same as that of reading the whole lane up to the last message that it had at the beginning: the lane's
//! owner follows the lane from there. The reads, each compared with the first one:
//!
//! | read | gives |
//! |---|---|
//! | the last message of each subject, without payload | the runs, the position, the time of the last entry of each journal, and the subjects with facts after the last answered one |
//! | all decisions | the plans |
//! | the messages after the last answered one, of these subjects; all messages of runs without a decision | the facts to decide on, and strays |
//! | the journals of running tasks that end with a forged message | the time of the last entry before it |
//!
//! A forged message that decisions have passed is deleted with its run only: the owner before has seen it.
//!
//! # Invariants
//!
//! - I125: A lane that is read without the journals that its decisions have answered is folded to the same runs, facts, position
//!   and strays as one that is read whole, after any message.
//!   (`tests/tests/takeover.rs::any_prefix_of_a_lane_is_folded_to_the_same_without_its_journals`)
//! - I126: Waiting runs are taken over without reading their journals; messages that arrive while their lane has no owner wake
//!   them, once. (`tests/tests/takeover.rs::waiting_runs_survive_takeovers_that_do_not_read_their_journals`)

use std::collections::HashMap;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};
use jiff::Timestamp;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::{JournalKey, TaskState};
use millrace_protocol::subject::{self, Topic};
use millrace_runtime::log::lane::{self, read_run_with_last, read_subject_range};
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::{Bus, Fault, clock, log};
use tracing::debug;

use super::LogPosition;
use super::fold::{FoldedLane, LaneFold, fold_whole_lane};
use crate::live::LiveRun;

/// The number of subjects that are read at the same time.
const MAX_READS: usize = 32;

/// The last messages of the subjects of a lane, by run.
#[derive(Default)]
struct LaneOutline {
    runs: HashMap<RunId, RunOutline>,
    /// Subjects of no run.
    others: Vec<StreamRecord>,
    position: LogPosition,
}

/// The last messages of the subjects of a run, without their payloads, oldest first.
#[derive(Default)]
struct RunOutline {
    /// The sequence of the last message among its decisions; 0 if there is none.
    plan_end: u64,
    others: Vec<(Topic, StreamRecord)>,
}

impl LaneOutline {
    /// Sorts the last messages of all subjects of a lane.
    fn from_last_messages(mut last: Vec<StreamRecord>) -> Self {
        last.sort_by_key(|record| record.sequence);
        let position = last.last().map(LogPosition::of_record).unwrap_or_default();
        let mut outline = Self { position, ..Self::default() };
        for record in last {
            match subject::parse_lane_subject(&record.subject) {
                Some((_, run, Topic::Plan)) => {
                    outline.runs.entry(run).or_default().plan_end = record.sequence;
                }
                Some((_, run, topic)) => outline.runs.entry(run).or_default().others.push((topic, record)),
                None => outline.others.push(record),
            }
        }
        outline
    }
}

impl RunOutline {
    /// Returns the sequence of the last message of each subject.
    fn last_sequences(&self) -> Vec<u64> {
        let plan = Some(self.plan_end).filter(|sequence| *sequence > 0);
        plan.into_iter().chain(self.others.iter().map(|(_, record)| record.sequence)).collect()
    }
}

/// Reads and folds a lane. A run begins with its submission, or with a decision: an earlier message of the run is a
/// stray. Large journals are left out, as far as decisions have answered them.
/// Errors: the server does not answer. An unreadable decision is no error: it parks its run.
pub async fn fold_lane(bus: &Bus, lane: Lane) -> Result<FoldedLane, Fault> {
    if lane::has_large_journals(bus, lane).await? {
        match fold_lane_without_journals(bus, lane).await {
            Ok(folded) => return Ok(folded),
            Err(fault) => {
                debug!(%lane, %fault, "failed to read the lane without its journals; reading all of it")
            }
        }
    }
    fold_whole_lane(bus, lane).await
}

/// Reads and folds a lane without the journals that its decisions have answered.
/// Fails also if messages were removed meanwhile. An unreadable decision is no error: it parks its run.
pub async fn fold_lane_without_journals(bus: &Bus, lane: Lane) -> Result<FoldedLane, Fault> {
    let outline = LaneOutline::from_last_messages(lane::read_last_of_subjects(bus, lane).await?);
    let mut fold = LaneFold { position: outline.position, ..LaneFold::default() };
    fold_decisions(bus, lane, &outline, &mut fold).await?;
    let (complete, incomplete): (Vec<_>, Vec<_>) =
        outline.runs.into_iter().partition(|(run, of_run)| is_plan_complete(&fold, run, of_run));
    fold_facts(bus, lane, &complete, &mut fold).await?;
    for (run, of_run) in incomplete {
        fold.runs.remove(&run);
        let records = read_run_with_last(bus, lane, &run, &of_run.last_sequences()).await?;
        fold_records(bus, records, outline.position, &mut fold).await?;
    }
    for record in outline.others {
        let records = read_subject_range(bus, lane, &record.subject, 1, record.sequence).await?;
        fold_records(bus, records, outline.position, &mut fold).await?;
    }
    Ok(FoldedLane { is_without_journals: true, ..fold.finish_fold(bus).await? })
}

/// Folds the decisions up to the position.
async fn fold_decisions(
    bus: &Bus,
    lane: Lane,
    outline: &LaneOutline,
    fold: &mut LaneFold,
) -> Result<(), Fault> {
    let mut decisions = lane::scan_decisions(bus, lane).await?;
    loop {
        let records = decisions.next_records().await?;
        if records.is_empty() {
            return Ok(());
        }
        fold_records(bus, records, outline.position, fold).await?;
    }
}

/// Folds the messages up to the position.
async fn fold_records(
    bus: &Bus,
    records: Vec<StreamRecord>,
    position: LogPosition,
    fold: &mut LaneFold,
) -> Result<(), Fault> {
    for record in records.into_iter().filter(|record| record.sequence <= position.sequence) {
        fold.fold_record(bus, record).await?;
    }
    Ok(())
}

/// `true` if all decisions of a run were folded, and there is one: any message may be the first one of another run.
fn is_plan_complete(fold: &LaneFold, run: &RunId, outline: &RunOutline) -> bool {
    outline.plan_end > 0
        && fold.runs.get(run).is_some_and(|state| state.last_plan_message == outline.plan_end)
}

/// Folds the facts of runs whose decisions were folded: those that no decision has answered, and refused outcomes.
async fn fold_facts(
    bus: &Bus,
    lane: Lane,
    runs: &[(RunId, RunOutline)],
    fold: &mut LaneFold,
) -> Result<(), Fault> {
    let mut unread = Vec::new();
    for (run, outline) in runs {
        let Some(state) = fold.runs.get_mut(run) else { continue };
        record_last_activity(bus, lane, outline, &mut state.live).await?;
        let through = state.live.plan.run.through;
        for (_, last) in outline.others.iter().filter(|(_, last)| last.sequence > through) {
            unread.push(read_facts(bus, lane, last.subject.to_string(), through + 1, last.sequence));
        }
        for sequence in std::mem::take(&mut state.unread_refused) {
            let Some(record) = log::read_message(bus, lane, sequence).await? else { continue };
            if let Some((_, of, topic)) = subject::parse_lane_subject(&record.subject)
                && of == *run
                && !record.is_forged()
            {
                state.record_if_outcome(bus, topic, &record).await?;
            }
        }
    }
    let facts: Vec<Vec<StreamRecord>> =
        futures::stream::iter(unread).buffer_unordered(MAX_READS).try_collect().await?;
    let mut facts: Vec<StreamRecord> = facts.into_iter().flatten().collect();
    facts.sort_by_key(|record| record.sequence);
    for record in facts {
        fold.fold_record(bus, record).await?;
    }
    Ok(())
}

/// Records the time of the last entry that the journals of each running task have.
async fn record_last_activity(
    bus: &Bus,
    lane: Lane,
    outline: &RunOutline,
    live: &mut LiveRun,
) -> Result<(), Fault> {
    let mut entries = Vec::new();
    for (topic, last) in &outline.others {
        if let Topic::Journal(JournalKey::Task(task, _)) = topic
            && live.plan.task(task).is_some_and(|task| task.state() == TaskState::Running)
        {
            let entry = read_last_genuine(bus, lane, last).await?;
            entries.extend(entry.map(|(sequence, time)| (sequence, task, time)));
        }
    }
    // A task has a journal per attempt: its newest entry counts, which is not always in the journal that changed last.
    entries.sort_by_key(|(sequence, ..)| *sequence);
    for (_, task, time) in entries {
        live.record_activity(task, time.min(clock::now()));
    }
    Ok(())
}

/// Returns the sequence and the time of the last message of a subject that is not forged. Reads the subject only if `last`,
/// its last message, is forged.
async fn read_last_genuine(
    bus: &Bus,
    lane: Lane,
    last: &StreamRecord,
) -> Result<Option<(u64, Timestamp)>, Fault> {
    if !last.is_forged() {
        return Ok(Some((last.sequence, last.time)));
    }
    let records = read_subject_range(bus, lane, &last.subject, 1, last.sequence).await?;
    Ok(records.iter().rfind(|record| !record.is_forged()).map(|record| (record.sequence, record.time)))
}

fn read_facts(
    bus: &Bus,
    lane: Lane,
    subject: String,
    from: u64,
    last: u64,
) -> BoxFuture<'_, Result<Vec<StreamRecord>, Fault>> {
    async move { read_subject_range(bus, lane, &subject, from, last).await }.boxed()
}
