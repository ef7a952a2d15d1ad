//! Sessions: runs that run one after the other, in the order of their submissions.

use std::collections::BTreeMap;

use jiff::Timestamp;
use millrace_protocol::admission::{AdmissionBoard, AdmissionCaps};
use millrace_protocol::ids::{RunId, SessionId};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::result::Usage;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{RunListLine, RunState, Time, tagged};

/// A session in a list: a line of `millrace sessions --json`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "session")]
#[schemars(transform = tagged("session"))]
pub struct SessionLine {
    /// The name.
    pub session: SessionId,
    /// The number of its runs, without deleted ones.
    pub run_count: u32,
    /// The number of its runs by state; states without runs are absent.
    pub states: BTreeMap<&'static str, u32>,
    /// The usage of all of its runs.
    pub usage: Usage,
    /// The run that was submitted last.
    pub last_run: RunId,
    /// The start of its first run.
    pub started_at: Time,
    /// When a run of it changed last.
    pub updated_at: Time,
}

/// A session with its runs.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SessionRuns<'a> {
    /// The session.
    pub session: SessionLine,
    /// Its runs in their order: by their numbers, then those that wait for their turn, then those that ended before their turn. Of a
    /// longer session the newest 1,000.
    pub runs: Vec<RunListLine<'a>>,
}

/// The caps on the number of runs, and how many there are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "admission")]
#[schemars(transform = tagged("admission"))]
pub struct Admission {
    /// The maximum number of running runs; `null` is unlimited, and no run waits.
    pub max_running_runs: Option<u32>,
    /// The maximum number of runs that wait for a place; `null` is unlimited.
    pub max_waiting_runs: Option<u32>,
    /// The number of runs that have a place.
    pub running_runs: u32,
    /// The number of runs that wait for a place.
    pub waiting_runs: u32,
}

impl Admission {
    /// Returns the caps with the numbers of the board, which counts only as long as the number of running runs is limited.
    #[must_use]
    pub fn new(caps: &AdmissionCaps, board: &AdmissionBoard) -> Self {
        let is_counted = caps.max_running_runs.is_some();
        let count = |runs: u32| if is_counted { runs } else { 0 };
        Self {
            max_running_runs: caps.max_running_runs,
            max_waiting_runs: caps.max_waiting_runs,
            running_runs: count(board.running_count()),
            waiting_runs: count(board.waiting_count()),
        }
    }
}

#[derive(Debug, Default)]
pub struct SessionTable(BTreeMap<SessionId, (Timestamp, SessionLine)>);

impl SessionTable {
    /// Adds a run, if it belongs to a session.
    pub fn add_run(&mut self, summary: &RunSummary) {
        let Some(session) = &summary.session else { return };
        let (last_started, line) = self.0.entry(session.clone()).or_insert_with(|| {
            let line = SessionLine {
                session: session.clone(),
                run_count: 0,
                states: BTreeMap::new(),
                usage: Usage::default(),
                last_run: summary.run.clone(),
                started_at: summary.started.into(),
                updated_at: summary.updated.into(),
            };
            (summary.started, line)
        });
        line.run_count += 1;
        *line.states.entry(RunState::of_summary(Some(summary)).name()).or_default() += 1;
        line.usage.add(summary.usage);
        if (summary.started, &summary.run) > (*last_started, &line.last_run) {
            (*last_started, line.last_run) = (summary.started, summary.run.clone());
        }
        line.started_at = line.started_at.min(summary.started.into());
        line.updated_at = line.updated_at.max(summary.updated.into());
    }

    /// Returns the sessions by their last changes, newest first.
    #[must_use]
    pub fn into_lines(self) -> Vec<SessionLine> {
        let mut lines: Vec<SessionLine> = self.0.into_values().map(|(_, line)| line).collect();
        lines.sort_by_key(|line| std::cmp::Reverse(line.updated_at));
        lines
    }
}

/// Sorts the runs of a session into their order.
pub fn sort_runs_of_session(runs: &mut [&RunSummary]) {
    runs.sort_by_key(|summary| {
        let place = summary.queue_place.as_ref().filter(|_| summary.hold.is_some());
        let turn = match (summary.session_position, place) {
            (Some(position), _) => (0, position),
            (None, Some(place)) => (1, place.position),
            (None, None) => (if summary.end.is_some() { 3 } else { 2 }, 0),
        };
        (turn, summary.started, summary.run.clone())
    });
}

#[cfg(test)]
mod tests {
    use millrace_protocol::ids::Lane;
    use millrace_protocol::plan::{EndReason, RunHold};
    use millrace_protocol::registry::QueuePlace;

    use super::*;

    fn summary(run: &str, at: i64, change: impl FnOnce(&mut RunSummary)) -> RunSummary {
        let at = Timestamp::from_second(at).unwrap();
        let mut summary = RunSummary {
            run: RunId::new(run).unwrap(),
            lane: Lane(0),
            objective: "find out".into(),
            end: None,
            started: at,
            updated: at,
            counts: [0; 9],
            waiting: 0,
            open_questions: 0,
            questions: 0,
            archived: false,
            is_resumable: false,
            is_paused: false,
            is_interrupted: false,
            winding_down: None,
            waiting_for_provider: None,
            usage: Usage::default(),
            wait: None,
            waiting_for: None,
            log_damage: None,
            labels: Default::default(),
            session: Some(SessionId::new("chat").unwrap()),
            session_position: None,
            hold: None,
            queue_place: None,
            spend: None,
            archived_span: None,
        };
        change(&mut summary);
        summary
    }

    #[test]
    fn sessions_have_totals_and_their_runs_have_an_order() {
        let place = |position| Some(QueuePlace { position, behind: None });
        let waits = |position| {
            move |summary: &mut RunSummary| {
                summary.hold = Some(RunHold::Session);
                summary.queue_place = place(position);
            }
        };
        let all = [
            summary("cancelled", 1, |summary| summary.end = Some(EndReason::Cancelled)),
            summary("w2", 2, waits(2)),
            summary("w1", 3, waits(1)),
            summary("second", 4, |summary| summary.session_position = Some(2)),
            summary("first", 5, |summary| {
                summary.session_position = Some(1);
                summary.end = Some(EndReason::Completed);
                summary.usage.input_tokens = 7;
            }),
            summary("alone", 6, |summary| summary.session = None),
        ];
        let mut table = SessionTable::default();
        all.iter().for_each(|summary| table.add_run(summary));
        let lines = table.into_lines();
        assert_eq!(lines.len(), 1);
        assert_eq!((lines[0].run_count, lines[0].usage.input_tokens), (5, 7));
        assert_eq!(
            lines[0].states,
            [("cancelled", 1), ("completed", 1), ("queued", 2), ("running", 1)].into()
        );
        assert_eq!(lines[0].last_run.as_str(), "first");
        let mut runs: Vec<&RunSummary> = all[..5].iter().collect();
        sort_runs_of_session(&mut runs);
        let names: Vec<&str> = runs.iter().map(|summary| summary.run.as_str()).collect();
        assert_eq!(names, ["first", "second", "w1", "w2", "cancelled"]);
    }
}
