//! The timeline of a run: what each attempt did, from when to when. It is built from the decisions and the entries of the
//! journals, without the values that are stored apart. Pure.
//!
//! The state of a task at each decision gives the segments `queued`, `running`, `parked`, `review` and `backoff`; the steps in
//! the journals give `model`, `tool` and `step`, which lie within them.

use std::collections::{BTreeMap, HashMap};

use jiff::{SignedDuration, Timestamp};
use millrace_agent::transcript::{StepKind, StepName, TranscriptStep};
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{
    Decision, Event, JournalKey, Plan, PlanningEvent, RunEvent, TaskState, apply_decision,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::journal::{TranscriptEntry, TranscriptEvent};
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
    attempts: BTreeMap<(TaskId, u32), Segments>,
    turns: BTreeMap<(u32, u32), Segments>,
    /// The attempts with an open segment of a state, by task.
    open: BTreeMap<TaskId, (u32, SegmentKind)>,
    /// The time of the last entry of each journal, and its claimant.
    last: HashMap<JournalKey, (Timestamp, Option<String>)>,
}

/// The segments of an attempt: those of its states, of which the last may be open, and of its steps.
#[derive(Debug, Default)]
struct Segments(Vec<Segment>);

impl Segments {
    /// Ends the segment of the current state. One without an extent tells nothing: several states were passed in one decision.
    fn close(&mut self, at: Timestamp) {
        if let Some(open) = self.0.iter().rposition(|segment| segment.end.is_none()) {
            match self.0[open].start < at {
                true => self.0[open].end = Some(at),
                false => drop(self.0.remove(open)),
            }
        }
    }

    fn finish(mut self) -> Vec<Segment> {
        self.0.sort_by_key(|segment| (segment.start, segment.kind));
        self.0
    }
}

/// Returns the segment of a step, which its entry ends; `None` if the step takes no time of its own.
#[expect(clippy::wildcard_enum_match_arm, reason = "of the other steps, no details are known")]
fn segment_of_step(
    entry: &TranscriptEntry,
    name: &str,
    last: Option<&(Timestamp, Option<String>)>,
) -> Option<Segment> {
    let (model, took_ms, failed) = match &entry.event {
        TranscriptEvent::Step(TranscriptStep::ModelCall(call)) => {
            (call.model.clone(), Some(call.duration_ms), false)
        }
        TranscriptEvent::Step(TranscriptStep::ToolResult(result)) => {
            (None, Some(result.duration_ms), result.is_error)
        }
        TranscriptEvent::Step(TranscriptStep::Step { value, .. }) => {
            (None, value["took_ms"].as_u64(), value["is_error"] == true)
        }
        _ => (None, None, false),
    };
    let (kind, name, turn) = match StepName::parse(name).map(|name| name.kind) {
        Some(StepKind::Model { turn }) => (SegmentKind::Model, model, Some(turn)),
        Some(StepKind::Tool { turn, tool, index: _ }) => {
            (SegmentKind::Tool, Some(tool.to_owned()), Some(turn))
        }
        Some(StepKind::Begin { .. } | StepKind::Lost) => return None,
        None => (SegmentKind::Step, Some(name.to_owned()), None),
    };
    let took = took_ms.and_then(|took| i64::try_from(took).ok()).map(SignedDuration::from_millis);
    let start = took.and_then(|took| entry.at.checked_sub(took).ok()).or(last.map(|(at, _)| *at));
    let worker = last.and_then(|(_, worker)| worker.clone());
    Some(Segment {
        end: Some(entry.at),
        name,
        turn,
        failed,
        review: matches!(entry.journal, JournalKey::Review(..)),
        sequence: Some(entry.sequence),
        ..Segment::begin(kind, start.unwrap_or(entry.at).min(entry.at), worker)
    })
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
        let current = SegmentKind::of_state(task.state()).map(|kind| (task.attempt.max(1), kind));
        let open = match current {
            Some(current) => self.open.insert(id.clone(), current),
            None => self.open.remove(id),
        };
        if open == current {
            return;
        }
        if let Some((attempt, _)) = open
            && let Some(segments) = self.attempts.get_mut(&(id.clone(), attempt))
        {
            segments.close(at);
        }
        let Some((attempt, kind)) = current else { return };
        let claimed = task.current_attempt().filter(|_| kind == SegmentKind::Running);
        let worker = claimed.and_then(|attempt| attempt.worker.as_ref()).map(ToString::to_string);
        let segments = self.attempts.entry((id.clone(), attempt)).or_default();
        segments.0.push(Segment::begin(kind, at, worker));
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
            segments.0.push(Segment::begin(kind, at, worker));
        }
    }

    fn close_all(&mut self, at: Timestamp) {
        self.open.clear();
        self.attempts.values_mut().chain(self.turns.values_mut()).for_each(|segments| segments.close(at));
    }

    /// Adds an entry of a journal. One that can't be read is ignored.
    pub fn add_entry(&mut self, entry: &TranscriptEntry) {
        if entry.step.is_none() && matches!(entry.event, TranscriptEvent::Unreadable { .. }) {
            return;
        }
        self.sequence = entry.sequence;
        let segments = match &entry.journal {
            JournalKey::Task(task, attempt) | JournalKey::Review(task, attempt) => {
                self.attempts.entry((task.clone(), *attempt)).or_default()
            }
            JournalKey::Planning(turn, attempt) => self.turns.entry((*turn, *attempt)).or_default(),
        };
        let last = self.last.get(&entry.journal);
        let step = entry.step.as_ref().and_then(|name| segment_of_step(entry, name, last));
        segments.0.extend(step);
        let claimant = if let TranscriptEvent::Claimed { worker, .. } = &entry.event {
            Some(worker.to_string())
        } else {
            last.and_then(|(_, claimant)| claimant.clone())
        };
        self.last.insert(entry.journal.clone(), (entry.at, claimant));
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

#[cfg(test)]
mod tests {
    use millrace_client::ReceivedEntry;
    use millrace_protocol::ids::WorkerId;
    use millrace_protocol::wire::{BlobRef, InlineOrStoredBytes};
    use millrace_protocol::work::JournalEntry;
    use serde_json::json;

    use super::*;
    use crate::journal::describe_entry;

    #[test]
    fn steps_have_their_model_and_claimant_and_begin_at_the_entry_before_unless_they_are_timed() {
        let task = TaskId::new("draft").unwrap();
        let mut timeline = TimelineBuilder::default();
        let mut add = |second: i64, journal: JournalKey, entry: Result<JournalEntry, String>| {
            let at = Timestamp::from_second(second).unwrap();
            let sequence = second.unsigned_abs();
            timeline.add_entry(&describe_entry(ReceivedEntry { sequence, at, journal, entry }, None));
        };
        let worker = |name: &str| WorkerId::new(name).unwrap();
        let claim = |name| Ok(JournalEntry::Claimed { worker: worker(name), claim: 1, build: None });
        let step = |name: &str, value| Ok(JournalEntry::Step { number: 1, name: name.into(), value });
        let stored = InlineOrStoredBytes::Stored(BlobRef { sha256: "ab".into(), size: 300_000 });
        let call = json!({"heard": {"reply": {"text": "", "finish": "stop", "model": "b:second"}},
            "model": "a:first", "took_ms": 2_000});
        let inline = |text: String| InlineOrStoredBytes::Inline(text.into_bytes().into());
        let attempt = || JournalKey::Task(task.clone(), 1);
        let review = || JournalKey::Review(task.clone(), 1);
        add(10, attempt(), claim("w-1"));
        add(15, attempt(), step("model.0", inline(call.to_string())));
        add(16, attempt(), step("begin.0", inline("{}".into())));
        add(20, attempt(), step("tool.0.0.look", stored));
        add(25, review(), claim("c-1"));
        add(30, review(), step("compare", inline("not JSON".into())));
        add(35, review(), Err("it is damaged".into()));
        let run = RunId::new("r-1").unwrap();
        let shown = timeline.finish(&run, None);
        let lines = shown.attempts[0].segments.iter().map(|segment| {
            let (start, end) = (segment.start.as_second(), segment.end.unwrap().as_second());
            let name = segment.name.as_deref().unwrap_or_default();
            let worker = segment.worker.as_deref().unwrap_or_default();
            format!("{start} to {end}: {:?} {name} by {worker}", segment.kind)
        });
        let expected = [
            "13 to 15: Model b:second by w-1",
            "16 to 20: Tool look by w-1",
            "25 to 30: Step compare by c-1",
        ];
        assert_eq!(lines.collect::<Vec<_>>(), expected);
        assert_eq!(shown.sequence, 30, "an entry that can't be decoded is left out");
    }
}
