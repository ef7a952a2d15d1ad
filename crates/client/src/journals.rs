//! Reads and follows the journals of a task or of the planner, together with the decisions of the run, from the lane or
//! from the archive.

use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{Decision, JournalKey};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::work::JournalEntry;
use millrace_runtime::log::lane_tail::LaneTail;
use millrace_runtime::nats::direct_get::read_matching;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::nats::topology::lane_stream;
use millrace_runtime::store::archive;
use millrace_runtime::{Bus, Fault};
use tokio::sync::mpsc;

use crate::follow::read_archived_part;
use crate::{read_archived_records, retry_transient};

/// After this long without a message, [`follow_task`] checks whether the run has been archived.
const QUIET: Duration = Duration::from_secs(2);

/// The journals to read.
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
    /// A decision on the run.
    Decision { sequence: u64, decision: Decision },
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

impl TaskUpdate {
    /// The sequence of the message.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        match self {
            Self::Decision { sequence, .. } => *sequence,
            Self::Entry(entry) => entry.sequence,
        }
    }
}

impl Journals {
    fn contains(&self, journal: &JournalKey) -> bool {
        match (self, journal) {
            (Self::Task(task), JournalKey::Task(of, _) | JournalKey::Review(of, _)) => task == of,
            (Self::Planner, JournalKey::Planning(..)) => true,
            (Self::Task(_), JournalKey::Planning(..))
            | (Self::Planner, JournalKey::Task(..) | JournalKey::Review(..)) => false,
        }
    }

    fn contains_subject(&self, subject: &str) -> bool {
        match subject::parse_lane_subject(subject) {
            Some((_, _, Topic::Plan)) => true,
            Some((_, _, Topic::Journal(journal))) => self.contains(&journal),
            Some((_, _, Topic::Submitted | Topic::Control | Topic::Answer)) | None => false,
        }
    }
}

/// Returns the decisions of a run and the entries of the journals, oldest first, whether the run is in its lane or
/// archived. Every entry that precedes the last decision is included.
///
/// # Errors
/// The server does not answer, or a decision can't be decoded.
pub async fn read_task(bus: &Bus, run: &RunId, journals: &Journals) -> Result<Vec<TaskUpdate>, Fault> {
    let lane = bus.lane_of_run(run);
    let mut subjects = vec![subject::topic_subject(lane, run, &Topic::Plan)];
    match journals {
        Journals::Task(task) => subjects.extend(subject::journals_of_task(lane, run, task)),
        Journals::Planner => subjects.push(subject::journals_of_planner(lane, run)),
    }
    let mut records = Vec::new();
    // The plan is read first, so that the journals hold every entry before its last decision.
    for subject in &subjects {
        records.extend(read_matching(bus.client(), &lane_stream(lane), subject, 1).await?);
        if records.is_empty() {
            break;
        }
    }
    // A run is marked as archived before its messages are removed, as in `read_run_anywhere`.
    if let Some(archived) = read_archived_records(bus, run).await? {
        records = archived;
    } else if !archive::begins_with_first_decision(bus, &records).await? {
        records = archive::read_run_from_log_or_archive(bus, lane, run).await?;
    }
    records.sort_by_key(|record| record.sequence);
    decode(bus, &records, journals).await
}

/// Sends the messages of a run that concern the journals, in the order of the log, from the first one after sequence
/// `after` on. Ends when the run has been archived, or when the receiver is dropped.
pub fn follow_task(
    bus: &Bus,
    run: &RunId,
    journals: &Journals,
    after: u64,
) -> mpsc::Receiver<Result<Vec<TaskUpdate>, Fault>> {
    let (sender, receiver) = mpsc::channel(16);
    let (bus, run, journals) = (bus.clone(), run.clone(), journals.clone());
    tokio::spawn(async move {
        if let Err(fault) = follow_into(&bus, &run, &journals, after, &sender).await {
            // If the receiver is gone, the fault concerns no one.
            let _ = sender.send(Err(fault)).await;
        }
    });
    receiver
}

async fn follow_into(
    bus: &Bus,
    run: &RunId,
    journals: &Journals,
    after: u64,
    sender: &mpsc::Sender<Result<Vec<TaskUpdate>, Fault>>,
) -> Result<(), Fault> {
    let lane = bus.lane_of_run(run);
    let (records, mut arrived) = mpsc::channel(16);
    let mut tail = LaneTail::follow_subject(bus, lane, subject::all_subjects_of_run(lane, run), after + 1);
    // A read must not be cancelled halfway, so the reader is a task of its own; it ends when its channel is closed.
    let reader = tokio::spawn(async move { while records.send(tail.next_records().await).await.is_ok() {} });
    let mut seen = after;
    // Of a run that was reopened, the archive holds what came before.
    let archived = retry_transient(|| read_archived_part(bus, run, after)).await?;
    let mut archived = Some(archived).filter(|records| !records.is_empty());
    let outcome = loop {
        let (records, is_last) = tokio::select! {
            biased;
            records = std::future::ready(archived.take()), if archived.is_some() => (records.unwrap_or_default(), false),
            () = sender.closed() => break Ok(()),
            received = tokio::time::timeout(QUIET, arrived.recv()) => match received {
                Ok(Some(records)) => (records, false),
                Ok(None) => break Ok(()),
                Err(_) => match retry_transient(|| read_archived_records(bus, run)).await {
                    Ok(Some(records)) => (records, true),
                    Ok(None) => continue,
                    Err(fault) => break Err(fault),
                },
            },
        };
        let new: Vec<StreamRecord> = records.into_iter().filter(|record| record.sequence > seen).collect();
        seen = new.last().map_or(seen, |last| last.sequence);
        let updates = match decode(bus, &new, journals).await {
            Ok(updates) => updates,
            Err(fault) => break Err(fault),
        };
        if (!updates.is_empty() && sender.send(Ok(updates)).await.is_err()) || is_last {
            break Ok(());
        }
    };
    reader.abort();
    outcome
}

async fn decode(bus: &Bus, records: &[StreamRecord], journals: &Journals) -> Result<Vec<TaskUpdate>, Fault> {
    let mut updates = Vec::new();
    for record in
        records.iter().filter(|record| !record.is_forged() && journals.contains_subject(&record.subject))
    {
        let sequence = record.sequence;
        match subject::parse_lane_subject(&record.subject) {
            Some((_, _, Topic::Plan)) => {
                updates.push(TaskUpdate::Decision { sequence, decision: bus.decode_record(record).await? });
            }
            Some((_, _, Topic::Journal(journal))) => {
                let entry = match bus.decode_record::<JournalEntry>(record).await {
                    Err(fault) if fault.is_transient() => return Err(fault),
                    entry => entry.map_err(|fault| fault.to_string()),
                };
                let entry = ReceivedEntry { sequence, at: record.time, journal, entry };
                updates.push(TaskUpdate::Entry(Box::new(entry)));
            }
            Some((_, _, Topic::Submitted | Topic::Control | Topic::Answer)) | None => {}
        }
    }
    Ok(updates)
}
