//! The entries of journals as activities: claims, model calls, tool calls, notes, waits, outcomes. Only this module knows the form
//! of an entry, and `millrace_agent::transcript` that of a step's value; transcripts, timelines, logs and traces are made of
//! [`TranscriptEntry`].

use std::sync::Arc;

use jiff::Timestamp;
use millrace_agent::transcript::{TranscriptStep, read_step};
use millrace_client::ReceivedEntry;
use millrace_protocol::child::Delegation;
use millrace_protocol::ids::{RunId, TaskId, WorkerId};
use millrace_protocol::plan::{JournalKey, Plan, Task};
use millrace_protocol::result::{Build, ModelUsage, PlanProposal, TaskError, TaskResult, Usage, Verdict};
use millrace_protocol::wire::{self, InlineOrStoredBytes};
use millrace_protocol::work::{JournalEntry, WorkOutcome};
use millrace_runtime::{Bus, Fault};
use schemars::JsonSchema;
use serde::Serialize;

use crate::history::{PlannerTurn, RunHistory};
use crate::{AttemptJson, AttemptState, TaskHead, milliseconds, tagged};

/// An entry of a journal.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TranscriptEntry {
    /// When it was appended.
    #[schemars(with = "crate::Time")]
    pub at: Timestamp,
    /// Its sequence in the lane.
    pub sequence: u64,
    /// The journal.
    #[serde(flatten, serialize_with = "serialize_journal")]
    #[schemars(with = "JournalName")]
    pub journal: JournalKey,
    /// The name of a step, also of one whose value can't be read; the content says the same in its own fields.
    #[serde(skip)]
    pub step: Option<String>,
    /// The content.
    #[serde(flatten)]
    pub event: TranscriptEvent,
}

/// The journal that an entry belongs to.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "journal", rename_all = "snake_case")]
enum JournalName {
    /// An attempt at the task.
    Attempt {
        /// Its number, from 1.
        attempt: u32,
    },
    /// The reviews of an attempt's result.
    Review {
        /// The attempt.
        attempt: u32,
    },
    /// An attempt at a turn of the planner.
    Planning {
        /// The turn, from 1.
        #[serde(rename = "planner_turn")]
        turn: u32,
        /// The attempt, from 1.
        attempt: u32,
    },
}

fn serialize_journal<S: serde::Serializer>(journal: &JournalKey, serializer: S) -> Result<S::Ok, S::Error> {
    let name = match *journal {
        JournalKey::Task(_, attempt) => JournalName::Attempt { attempt },
        JournalKey::Review(_, attempt) => JournalName::Review { attempt },
        JournalKey::Planning(turn, attempt) => JournalName::Planning { turn, attempt },
    };
    name.serialize(serializer)
}

/// The content of an entry.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TranscriptEvent {
    /// A process claimed the work.
    Claimed {
        /// The process.
        worker: WorkerId,
        /// The number of the claim, from 1.
        claim: u32,
        /// The software of the process, if it named it.
        #[serde(skip_serializing_if = "Option::is_none")]
        build: Option<Arc<Build>>,
    },
    /// The claimant released the work.
    Released {
        /// The process.
        worker: WorkerId,
        /// The reason.
        reason: String,
    },
    /// The claimant parked the attempt.
    Parked {
        /// The process.
        worker: WorkerId,
        /// The conditions that the attempt waits for, for a person.
        waits: Vec<String>,
    },
    /// The claimant started, cancelled or instructed delegated tasks.
    Delegated {
        /// The process.
        worker: WorkerId,
        /// The tasks that it started.
        started: Vec<TaskId>,
        /// The tasks that it cancelled.
        cancelled: Vec<TaskId>,
        /// The tasks that got instructions.
        instructed: Vec<TaskId>,
    },
    /// A line for people who follow the run.
    Note {
        /// The line.
        text: String,
    },
    /// The result of a task.
    Result {
        /// The process.
        worker: WorkerId,
        /// The result in a sentence.
        summary: String,
        /// The usage of the attempt.
        usage: Usage,
        /// The same by model.
        models: ModelUsage,
        /// The complete result; `None` if it can't be read any more.
        result: Option<Box<TaskResult>>,
    },
    /// A critic's verdict.
    Verdict {
        /// The critic.
        critic: WorkerId,
        /// The number of the try at the review, from 1.
        review: u32,
        /// The verdict, by criterion.
        verdict: Verdict,
    },
    /// A planner's proposal.
    Proposal {
        /// The planner.
        worker: WorkerId,
        /// The proposal.
        proposal: Box<PlanProposal>,
        /// The usage of the attempt.
        usage: Usage,
        /// The same by model.
        models: ModelUsage,
    },
    /// The work failed.
    Error {
        /// The process.
        worker: WorkerId,
        /// The error, with the usage until then.
        #[serde(serialize_with = "serialize_error")]
        #[schemars(with = "crate::ErrorDetails<'static>")]
        error: TaskError,
    },
    /// A step with a large value, which is in the blob store.
    StoredStep {
        /// Its name.
        name: String,
        /// The SHA-256 of the value, which is JSON; `GET /blobs/{sha256}` returns it.
        sha256: String,
        /// The size of the value in bytes.
        bytes: u64,
    },
    /// The entry can't be decoded.
    Unreadable {
        /// The reason.
        error: String,
    },
    /// A step: a model call, a tool result, or that of another capability.
    #[serde(untagged)]
    Step(TranscriptStep),
}

/// Reads the value that an entry refers to.
///
/// # Errors
/// The server does not answer. A value that is missing or damaged is shown as such.
pub async fn read_entry(bus: &Bus, entry: ReceivedEntry) -> Result<TranscriptEntry, Fault> {
    let stored = match &entry.entry {
        Ok(
            JournalEntry::Step { value: value @ InlineOrStoredBytes::Stored(_), .. }
            | JournalEntry::Outcome {
                outcome: WorkOutcome::Finished { result: value @ InlineOrStoredBytes::Stored(_), .. },
                ..
            },
        ) => match bus.blobs().read_inline_or_stored(value).await {
            Err(fault) if fault.is_transient() => return Err(fault),
            value => Some(value.map_err(|fault| fault.to_string())),
        },
        Ok(_) | Err(_) => None,
    };
    Ok(describe_entry(entry, stored))
}

/// Reads the value that an entry refers to, unless it is that of a step.
pub async fn read_entry_without_step(bus: &Bus, entry: ReceivedEntry) -> Result<TranscriptEntry, Fault> {
    match entry.entry {
        Ok(JournalEntry::Step { .. }) => Ok(describe_entry(entry, None)),
        Ok(_) | Err(_) => read_entry(bus, entry).await,
    }
}

/// Describes an entry. `stored` is the value that it refers to, or the reason why it can't be read; without it, the value of a step
/// is named instead of shown, and a result is left out. Pure.
#[must_use]
pub fn describe_entry(entry: ReceivedEntry, stored: Option<Result<Vec<u8>, String>>) -> TranscriptEntry {
    let ReceivedEntry { sequence, at, journal, entry } = entry;
    let step = match &entry {
        Ok(JournalEntry::Step { name, .. }) => Some(name.clone()),
        Ok(_) | Err(_) => None,
    };
    let event = match entry {
        Ok(entry) => describe_event(entry, stored),
        Err(error) => TranscriptEvent::Unreadable { error },
    };
    TranscriptEntry { at, sequence, journal, step, event }
}

fn describe_event(entry: JournalEntry, stored: Option<Result<Vec<u8>, String>>) -> TranscriptEvent {
    match entry {
        JournalEntry::Claimed { worker, claim, build } => TranscriptEvent::Claimed { worker, claim, build },
        JournalEntry::Released { worker, why, provider: _, needs: _ } => {
            TranscriptEvent::Released { worker, reason: why }
        }
        JournalEntry::Delegated { worker, delegation } => {
            let Delegation { children, cancels, messages } = delegation;
            let children = children.into_iter().map(|child| child.id).collect();
            let ids = |changes: Vec<(TaskId, String)>| changes.into_iter().map(|(task, _)| task).collect();
            TranscriptEvent::Delegated {
                worker,
                started: children,
                cancelled: ids(cancels),
                instructed: ids(messages),
            }
        }
        JournalEntry::Parked { worker, waits, children: _ } => {
            let waits = waits.iter().map(|wait| wait.condition.to_string()).collect();
            TranscriptEvent::Parked { worker, waits }
        }
        JournalEntry::Note { text, provider: _ } => TranscriptEvent::Note { text },
        JournalEntry::Step { name, value, number: _ } => {
            let value = match (value, stored) {
                (InlineOrStoredBytes::Inline(value), _) => Ok(value.into_vec()),
                (InlineOrStoredBytes::Stored(_), Some(value)) => value,
                (InlineOrStoredBytes::Stored(blob), None) => {
                    return TranscriptEvent::StoredStep { name, sha256: blob.sha256, bytes: blob.size };
                }
            };
            let parse = |value: Vec<u8>| {
                serde_json::from_slice(&value).map_err(|error| format!("it is not JSON: {error}"))
            };
            match value.and_then(parse) {
                Ok(value) => TranscriptEvent::Step(read_step(&name, value)),
                Err(error) => TranscriptEvent::Unreadable { error: format!("the step {name:?}: {error}") },
            }
        }
        JournalEntry::Outcome { worker, review, outcome } => {
            describe_outcome(worker, review, outcome, stored)
        }
    }
}

fn describe_outcome(
    worker: WorkerId,
    review: u32,
    outcome: WorkOutcome,
    stored: Option<Result<Vec<u8>, String>>,
) -> TranscriptEvent {
    match outcome {
        WorkOutcome::Finished { summary, usage, models, result, .. } => {
            let result = match result {
                InlineOrStoredBytes::Inline(result) => Some(result.into_vec()),
                InlineOrStoredBytes::Stored(_) => stored.and_then(Result::ok),
            };
            let result = result.and_then(|bytes| wire::decode_task_result(&bytes).ok()).map(Box::new);
            TranscriptEvent::Result { worker, summary, usage, models, result }
        }
        WorkOutcome::Judged(verdict) => TranscriptEvent::Verdict { critic: worker, review, verdict },
        WorkOutcome::Proposed { proposal, usage, models } => {
            TranscriptEvent::Proposal { worker, proposal: Box::new(proposal), usage, models }
        }
        WorkOutcome::Errored(error) => TranscriptEvent::Error { worker, error },
    }
}

fn serialize_error<S: serde::Serializer>(error: &TaskError, serializer: S) -> Result<S::Ok, S::Error> {
    crate::ErrorDetails::from(error).serialize(serializer)
}

/// The transcript of a task.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "task_transcript")]
#[schemars(transform = tagged("task_transcript"))]
pub struct TaskTranscript<'a> {
    /// The run.
    run: &'a RunId,
    /// The task, as in the result of its run; its attempts are in `attempts`.
    task: TranscribedTask<'a>,
}

/// A task whose attempts have transcripts.
#[derive(Debug, Serialize, JsonSchema)]
struct TranscribedTask<'a> {
    #[serde(flatten)]
    task: TaskHead<'a>,
    /// The attempts, each with its entries.
    attempts: Vec<TranscribedAttempt<'a>>,
}

/// An attempt with its entries.
#[derive(Debug, Serialize, JsonSchema)]
struct TranscribedAttempt<'a> {
    /// Its number, from 1.
    #[serde(flatten)]
    attempt: AttemptOrNumber<'a>,
    /// Its duration so far in milliseconds; `null` if no worker claimed it.
    duration_ms: Option<u64>,
    /// The entries, in order.
    entries: Vec<&'a TranscriptEntry>,
}

/// An attempt, or as much as is known of one that is not in the plan yet.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum AttemptOrNumber<'a> {
    Known(Box<AttemptJson<'a>>),
    New { number: u32, state: AttemptState },
}

/// The transcript of the planner.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "planner_transcript")]
#[schemars(transform = tagged("planner_transcript"))]
pub struct PlannerTranscript<'a> {
    /// The run.
    run: &'a RunId,
    /// The turns, each with its entries.
    turns: Vec<TranscribedTurn<'a>>,
}

/// A turn of the planner with its entries.
#[derive(Debug, Serialize, JsonSchema)]
struct TranscribedTurn<'a> {
    #[serde(flatten)]
    turn: &'a PlannerTurn,
    /// The entries, in order.
    entries: Vec<&'a TranscriptEntry>,
}

/// An entry of a transcript that is followed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EntryLine<'a> {
    /// The run.
    pub run: &'a RunId,
    /// The task; absent for the planner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<&'a TaskId>,
    /// The entry.
    #[serde(flatten)]
    pub entry: &'a TranscriptEntry,
}

impl<'a> TaskTranscript<'a> {
    /// Returns the transcript of a task. `only` selects one attempt.
    pub fn new(
        run: &'a RunId,
        (plan, task): (&Plan, &'a Task),
        only: Option<u32>,
        entries: &'a [TranscriptEntry],
        now: Timestamp,
    ) -> Self {
        let mut numbers: Vec<u32> = task.attempts.iter().map(|attempt| attempt.number).collect();
        numbers.extend(entries.iter().map(|entry| entry.journal.number()));
        numbers.retain(|number| only.is_none_or(|only| only == *number));
        numbers.sort_unstable();
        numbers.dedup();
        let attempts = numbers.into_iter().map(|number| {
            let known = task.attempts.iter().find(|attempt| attempt.number == number);
            let times = known.and_then(|attempt| Some((attempt.claimed_at?, attempt.ended_at)));
            TranscribedAttempt {
                attempt: match known {
                    Some(attempt) => AttemptOrNumber::Known(Box::new(AttemptJson::new(task, attempt))),
                    None => AttemptOrNumber::New { number, state: AttemptState::Running },
                },
                duration_ms: times.map(|(from, to)| milliseconds(to.unwrap_or(now).duration_since(from))),
                entries: entries.iter().filter(|entry| entry.journal.number() == number).collect(),
            }
        });
        let task = TranscribedTask { task: TaskHead::new(plan, task), attempts: attempts.collect() };
        Self { run, task }
    }
}

impl<'a> PlannerTranscript<'a> {
    /// Returns the transcript of the planner. `only` selects one turn.
    pub fn new(
        run: &'a RunId,
        history: &'a RunHistory,
        only: Option<u32>,
        entries: &'a [TranscriptEntry],
    ) -> Self {
        let turns = history.turns.iter().filter(|turn| only.is_none_or(|only| only == turn.turn));
        let turns = turns.map(|turn| TranscribedTurn {
            turn,
            entries: entries.iter().filter(|entry| entry.journal.number() == turn.turn).collect(),
        });
        Self { run, turns: turns.collect() }
    }
}
