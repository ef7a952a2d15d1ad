//! Transcripts of agents: the output of `millrace show RUN TASK --json`. Pure.

use jiff::Timestamp;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{Plan, Task};
use schemars::JsonSchema;
use serde::Serialize;

use crate::history::{PlannerTurn, RunHistory};
use crate::journal::TranscriptEntry;
use crate::{AttemptJson, AttemptState, TaskHead, milliseconds, tagged};

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
