//! The timeline of a run: what each attempt did, from when to when. It is built from the decisions and the entries of the
//! journals, so that a reader needs no journal. Pure.
//!
//! The state of a task at each decision gives the segments `queued`, `running`, `parked`, `review` and `backoff`; the steps in
//! the journals give `model`, `tool` and `step`, which lie within them.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use millrace_agent::transcript::{StepKind, StepName};
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{
    Decision, Event, JournalKey, Plan, PlanningEvent, RunEvent, TaskState, apply_decision,
};
use millrace_protocol::wire::InlineOrStoredBytes;
use millrace_protocol::work::JournalEntry;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Time, tagged};

/// The timeline of a run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "timeline")]
#[schemars(transform = tagged("timeline"))]
pub struct Timeline<'a> {
    /// The run.
    run: &'a RunId,
    /// When it started.
    #[schemars(with = "Option<Time>")]
    started_at: Option<Timestamp>,
    /// When it ended; `null` until then.
    #[schemars(with = "Option<Time>")]
    ended_at: Option<Timestamp>,
    /// The sequence of the last message that is included.
    sequence: u64,
    /// The attempts at tasks, in the order of their first segments.
    attempts: Vec<AttemptTimeline>,
    /// The turns of the planner.
    turns: Vec<TurnTimeline>,
}

/// The segments of an attempt at a task.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct AttemptTimeline {
    /// The task.
    task: TaskId,
    /// The attempt, from 1.
    attempt: u32,
    /// The segments in the order of their starts.
    segments: Vec<Segment>,
}

/// The segments of a turn of the planner.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TurnTimeline {
    /// The turn, from 1.
    turn: u32,
    /// The attempt at it, from 1.
    attempt: u32,
    /// The segments in the order of their starts.
    segments: Vec<Segment>,
}

/// A span of time in which an attempt did one thing.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Segment {
    /// The kind of activity.
    kind: SegmentKind,
    /// The start.
    #[schemars(with = "Time")]
    start: Timestamp,
    /// The end; `null` if it has not ended.
    #[schemars(with = "Option<Time>")]
    end: Option<Timestamp>,
    /// The model, the tool, or the name of the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The turn of the agent, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    turn: Option<u64>,
    /// The worker, the critic or the planner.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    /// `true` if a tool call failed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    failed: bool,
    /// `true` if a critic did it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    review: bool,
    /// The sequence of the entry with the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
}

/// The kinds of segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SegmentKind {
    /// It waited for a worker.
    Queued,
    /// A worker carried it out.
    Running,
    /// It waited for a person, a time, an event or a delegated task, without a worker.
    Parked,
    /// Its result waited for a verdict.
    Review,
    /// It waited for its next attempt, its capability or other parameters.
    Backoff,
    /// A model replied.
    Model,
    /// A tool ran.
    Tool,
    /// A capability that is no agent did a step.
    Step,
}

impl SegmentKind {
    fn of_state(state: TaskState) -> Option<Self> {
        match state {
            TaskState::Ready | TaskState::Rerun => Some(Self::Queued),
            TaskState::Running => Some(Self::Running),
            TaskState::Waiting => Some(Self::Parked),
            TaskState::NeedsReview => Some(Self::Review),
            TaskState::Errored => Some(Self::Backoff),
            TaskState::Pending | TaskState::Completed | TaskState::Failed | TaskState::Cancelled => None,
        }
    }
}

impl Segment {
    fn begin(kind: SegmentKind, start: Timestamp, worker: Option<String>) -> Self {
        Self {
            kind,
            start,
            end: None,
            name: None,
            turn: None,
            worker,
            failed: false,
            review: false,
            sequence: None,
        }
    }
}

/// Builds a timeline from the messages of a run, in their order.
#[derive(Debug, Default)]
pub struct TimelineBuilder {
    plan: Plan,
    sequence: u64,
    attempts: BTreeMap<(TaskId, u32), AttemptSegments>,
    turns: BTreeMap<(u32, u32), AttemptSegments>,
    /// The attempts with an open segment of a state, by task.
    open: BTreeMap<TaskId, (u32, SegmentKind)>,
}

#[derive(Debug, Default)]
struct AttemptSegments {
    states: Vec<Segment>,
    steps: Vec<Segment>,
    /// The time and the author of the last entry of the attempt's journal, and of that of its reviews.
    last: [(Option<Timestamp>, Option<String>); 2],
}

impl AttemptSegments {
    fn close(&mut self, at: Timestamp) {
        if let Some(open) = self.states.last_mut().filter(|segment| segment.end.is_none()) {
            open.end = Some(at.max(open.start));
        }
    }

    fn finish(mut self) -> Vec<Segment> {
        // A segment without an extent tells nothing: several states were passed in one decision.
        self.states.retain(|segment| segment.end != Some(segment.start));
        self.states.extend(self.steps);
        self.states.sort_by_key(|segment| (segment.start, segment.kind));
        self.states
    }

    /// Adds a step that ended at `at`.
    fn add_step(
        &mut self,
        (sequence, at): (u64, Timestamp),
        name: &str,
        value: &InlineOrStoredBytes,
        review: bool,
    ) {
        let details = match value {
            InlineOrStoredBytes::Inline(bytes) => serde_json::from_slice(bytes).unwrap_or_default(),
            InlineOrStoredBytes::Stored(_) => StepDetails::default(),
        };
        let (last, worker) = self.last[usize::from(review)].clone();
        let (kind, name, turn) = match StepName::parse(name).map(|name| name.kind) {
            Some(StepKind::Model { turn }) => (SegmentKind::Model, details.model.clone(), Some(turn)),
            Some(StepKind::Tool { turn, tool, index: _ }) => {
                (SegmentKind::Tool, Some(tool.to_owned()), Some(turn))
            }
            Some(StepKind::Begin { .. } | StepKind::Lost) => return,
            None => (SegmentKind::Step, Some(name.to_owned()), None),
        };
        let took = details.took_ms.and_then(|took| i64::try_from(took).ok()).map(SignedDuration::from_millis);
        let start = took.and_then(|took| at.checked_sub(took).ok()).or(last).unwrap_or(at);
        self.steps.push(Segment {
            end: Some(at),
            name,
            turn,
            failed: details.is_error,
            review,
            sequence: Some(sequence),
            ..Segment::begin(kind, start.min(at), worker)
        });
    }
}

/// The fields of a step's value that a timeline shows.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StepDetails {
    took_ms: Option<u64>,
    model: Option<String>,
    is_error: bool,
}

impl TimelineBuilder {
    pub fn add_decision(&mut self, sequence: u64, decision: &Decision) {
        self.sequence = sequence;
        apply_decision(&mut self.plan, decision);
        for event in &decision.events {
            if let Event::Planning(event) = event {
                self.add_planning_event(event, decision.at);
            }
        }
        let tasks = decision.events.iter().filter_map(Event::task).cloned();
        for task in tasks.collect::<std::collections::BTreeSet<_>>() {
            self.update_task(&task, decision.at);
        }
        if decision.events.iter().any(|event| matches!(event, Event::Run(RunEvent::Ended { .. }))) {
            self.close_all(decision.at);
        }
    }

    fn update_task(&mut self, id: &TaskId, at: Timestamp) {
        let Some(task) = self.plan.task(id) else { return };
        let number = task.attempt.max(1);
        let current = SegmentKind::of_state(task.state()).map(|kind| (number, kind));
        let open = self.open.get(id).copied();
        if open == current {
            return;
        }
        if let Some((attempt, _)) = open
            && let Some(segments) = self.attempts.get_mut(&(id.clone(), attempt))
        {
            segments.close(at);
        }
        let Some((attempt, kind)) = current else {
            self.open.remove(id);
            return;
        };
        self.open.insert(id.clone(), (attempt, kind));
        let claimed = task.current_attempt().filter(|_| kind == SegmentKind::Running);
        let worker = claimed.and_then(|attempt| attempt.worker.as_ref()).map(ToString::to_string);
        let segments = self.attempts.entry((id.clone(), attempt)).or_default();
        segments.states.push(Segment::begin(kind, at, worker));
    }

    fn add_planning_event(&mut self, event: &PlanningEvent, at: Timestamp) {
        let (key, next) = match event {
            PlanningEvent::TriggerRaised { .. } => return,
            PlanningEvent::Requested { turn, attempt, .. } => {
                ((*turn, *attempt), Some((SegmentKind::Queued, None)))
            }
            PlanningEvent::Claimed { turn, attempt, worker } => {
                ((*turn, *attempt), Some((SegmentKind::Running, Some(worker.to_string()))))
            }
            PlanningEvent::ProposalAccepted { turn, attempt, .. }
            | PlanningEvent::Errored { turn, attempt, .. } => ((*turn, *attempt), None),
        };
        let segments = self.turns.entry(key).or_default();
        segments.close(at);
        if let Some((kind, worker)) = next {
            segments.states.push(Segment::begin(kind, at, worker));
        }
    }

    fn close_all(&mut self, at: Timestamp) {
        self.open.clear();
        self.attempts.values_mut().chain(self.turns.values_mut()).for_each(|segments| segments.close(at));
    }

    pub fn add_entry(&mut self, sequence: u64, at: Timestamp, journal: &JournalKey, entry: &JournalEntry) {
        self.sequence = sequence;
        let segments = match journal {
            JournalKey::Task(task, attempt) | JournalKey::Review(task, attempt) => {
                self.attempts.entry((task.clone(), *attempt)).or_default()
            }
            JournalKey::Planning(turn, attempt) => self.turns.entry((*turn, *attempt)).or_default(),
        };
        let review = matches!(journal, JournalKey::Review(..));
        if let JournalEntry::Step { name, value, .. } = entry {
            segments.add_step((sequence, at), name, value, review);
        }
        let (last, author) = &mut segments.last[usize::from(review)];
        *last = Some(at);
        if let JournalEntry::Claimed { worker, .. } = entry {
            *author = Some(worker.to_string());
        }
    }

    /// Returns the timeline, of one task if `only` names one.
    #[must_use]
    pub fn finish<'a>(self, run: &'a RunId, only: Option<&TaskId>) -> Timeline<'a> {
        let attempts =
            self.attempts.into_iter().filter(|((task, _), _)| only.is_none_or(|only| only == task));
        let attempts = attempts.map(|((task, attempt), segments)| AttemptTimeline {
            task,
            attempt,
            segments: segments.finish(),
        });
        let mut attempts: Vec<AttemptTimeline> =
            attempts.filter(|attempt| !attempt.segments.is_empty()).collect();
        attempts.sort_by_key(|attempt| attempt.segments.first().map(|segment| segment.start));
        let turns = self.turns.into_iter().filter(|_| only.is_none());
        let turns = turns.map(|((turn, attempt), segments)| TurnTimeline {
            turn,
            attempt,
            segments: segments.finish(),
        });
        Timeline {
            run,
            started_at: self.plan.run.start.as_ref().map(|start| start.at),
            ended_at: self.plan.run.end.as_ref().map(|end| end.at),
            sequence: self.sequence,
            attempts,
            turns: turns.collect(),
        }
    }
}
