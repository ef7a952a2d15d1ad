//! Reads and follows the journals of a task or of the planner, together with the decisions of the run, from the lane or
//! from the archive.

use jiff::Timestamp;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{Decision, JournalKey};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::work::JournalEntry;
use millrace_runtime::log::follow::{LogStep, LogTopics, RunFollower, RunLog, RunPosition};
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::store::archive;
use millrace_runtime::{Bus, Fault};
use tokio::sync::mpsc;

use crate::follow::QUIET;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Journals {
    /// Those of all attempts at a task and of their reviews.
    Task(TaskId),
    /// Those of all turns of the planner.
    Planner,
}

/// A message of a run that concerns the journals.
#[derive(Debug, Clone)]
pub enum TaskUpdate {
    Decision {
        sequence: u64,
        decision: Decision,
    },
    /// An entry of one of the journals.
    Entry(Box<ReceivedEntry>),
}

/// An entry of a journal, as it was read.
#[derive(Debug, Clone)]
pub struct ReceivedEntry {
    /// Its sequence in the lane.
    pub sequence: u64,
    /// When it was appended.
    pub at: Timestamp,
    pub journal: JournalKey,
    /// The entry, or the reason why it can't be decoded.
    pub entry: Result<JournalEntry, String>,
}

impl ReceivedEntry {
    pub async fn read(bus: &Bus, journal: JournalKey, record: &StreamRecord) -> Result<Self, Fault> {
        let entry = match bus.decode_record(record).await {
            Err(fault) if fault.is_transient() => return Err(fault),
            entry => entry.map_err(|fault| fault.to_string()),
        };
        Ok(Self { sequence: record.sequence, at: record.time, journal, entry })
    }
}

impl TaskUpdate {
    pub fn sequence(&self) -> u64 {
        match self {
            Self::Decision { sequence, .. } => *sequence,
            Self::Entry(entry) => entry.sequence,
        }
    }
}

impl Journals {
    fn contains(&self, journal: &JournalKey) -> bool {
        match self {
            Self::Task(task) => journal.task() == Some(task),
            Self::Planner => journal.task().is_none(),
        }
    }
}

/// `true` if the journal is among the chosen ones; without a choice all are.
fn is_chosen(chosen: Option<&Journals>, journal: &JournalKey) -> bool {
    chosen.is_none_or(|journals| journals.contains(journal))
}

/// Returns the decisions of a run and the entries of the journals, oldest first, whether the run is in its lane or
/// archived. Every entry that precedes the last decision is included.
pub async fn read_task(bus: &Bus, run: &RunId, journals: &Journals) -> Result<Vec<TaskUpdate>, Fault> {
    read_chosen(bus, run, Some(journals)).await
}

/// Like [`read_task`], with the entries of all journals of the run.
pub async fn read_all_tasks(bus: &Bus, run: &RunId) -> Result<Vec<TaskUpdate>, Fault> {
    read_chosen(bus, run, None).await
}

async fn read_chosen(bus: &Bus, run: &RunId, chosen: Option<&Journals>) -> Result<Vec<TaskUpdate>, Fault> {
    let lane = bus.lane_of_run(run);
    let mut subjects = vec![subject::topic_subject(lane, run, &Topic::Plan)];
    match chosen {
        Some(Journals::Task(task)) => subjects.extend(subject::journals_of_task(lane, run, task)),
        Some(Journals::Planner) => subjects.push(subject::journals_of_planner(lane, run)),
        None => subjects = vec![subject::all_subjects_of_run(lane, run)],
    }
    let is_wanted = |topic: &Topic| match topic {
        Topic::Plan => true,
        Topic::Journal(journal) => is_chosen(chosen, journal),
        Topic::Submitted | Topic::Control | Topic::Answer => false,
    };
    // The plan is read first, so that the journals hold every entry before its last decision.
    let mut records =
        archive::read_matching_from_log_or_archive(bus, lane, run, &subjects, is_wanted).await?;
    records.sort_by_key(|record| record.sequence);
    decode(bus, &records, chosen).await
}

/// Sends the messages of a run that concern the journals, in the order of the log, from the first one after sequence
/// `after` on. Ends when the run has been archived, or when the receiver is dropped.
pub fn follow_task(
    bus: &Bus,
    run: &RunId,
    journals: &Journals,
    after: u64,
) -> mpsc::Receiver<Result<Vec<TaskUpdate>, Fault>> {
    follow_chosen(bus, run, Some(journals.clone()), after)
}

/// Like [`follow_task`], with the entries of all journals of the run.
pub fn follow_all_tasks(
    bus: &Bus,
    run: &RunId,
    after: u64,
) -> mpsc::Receiver<Result<Vec<TaskUpdate>, Fault>> {
    follow_chosen(bus, run, None, after)
}

fn follow_chosen(
    bus: &Bus,
    run: &RunId,
    chosen: Option<Journals>,
    after: u64,
) -> mpsc::Receiver<Result<Vec<TaskUpdate>, Fault>> {
    let (sender, receiver) = mpsc::channel(16);
    let (bus, run) = (bus.clone(), run.clone());
    tokio::spawn(async move {
        if let Err(fault) = follow_into(&bus, &run, chosen.as_ref(), after, &sender).await {
            // If the receiver is gone, the fault concerns no one.
            let _ = sender.send(Err(fault)).await;
        }
    });
    receiver
}

async fn follow_into(
    bus: &Bus,
    run: &RunId,
    chosen: Option<&Journals>,
    after: u64,
    sender: &mpsc::Sender<Result<Vec<TaskUpdate>, Fault>>,
) -> Result<(), Fault> {
    let log = RunLog::new(bus, run, LogTopics::All, RunPosition::after(after));
    let mut follower = RunFollower::new(log, QUIET);
    loop {
        let step = tokio::select! {
            () = sender.closed() => return Ok(()),
            step = follower.next_step() => step?,
        };
        let records = match step {
            LogStep::Messages(records) => records,
            LogStep::EndOfLog => continue,
            LogStep::Complete | LogStep::Deleted => return Ok(()),
        };
        let updates = decode(bus, &records, chosen).await?;
        if !updates.is_empty() && sender.send(Ok(updates)).await.is_err() {
            return Ok(());
        }
    }
}

async fn decode(
    bus: &Bus,
    records: &[StreamRecord],
    chosen: Option<&Journals>,
) -> Result<Vec<TaskUpdate>, Fault> {
    let mut updates = Vec::new();
    for record in records.iter().filter(|record| !record.is_forged()) {
        let sequence = record.sequence;
        match subject::parse_lane_subject(&record.subject) {
            Some((_, _, Topic::Plan)) => {
                updates.push(TaskUpdate::Decision { sequence, decision: bus.decode_record(record).await? });
            }
            Some((_, _, Topic::Journal(journal))) if is_chosen(chosen, &journal) => {
                updates.push(TaskUpdate::Entry(Box::new(ReceivedEntry::read(bus, journal, record).await?)));
            }
            Some((_, _, Topic::Submitted | Topic::Control | Topic::Answer | Topic::Journal(_))) | None => {}
        }
    }
    Ok(updates)
}
