//! The holds of a run in memory: when it was submitted, its place as the log says, and the changes of its holds that no decision has
//! made yet.

use jiff::Timestamp;
use millrace_protocol::admission::WaitingSince;
use millrace_protocol::ids::SessionId;
use millrace_protocol::plan::{AnswerCause, Decision, Fact, HoldChange, Plan, RunHold};
use millrace_protocol::registry::QueuePlace;

/// The holds of a run in the memory of its lane's owner.
#[derive(Debug, Default, PartialEq)]
pub struct LiveHolds {
    /// The sequence of the submission, which orders the runs of a session; 0 if it was not read.
    submission: u64,
    /// The time of the submission; `None` if it was not read.
    submitted: Option<Timestamp>,
    /// The session that the submission names.
    session: Option<SessionId>,
    /// The changes to decide on.
    changes: Vec<HoldChange>,
    /// The place of the run, as its last decision in the log says.
    place: PlaceInLog,
    /// `true` if a run that starts now must wait for a place.
    pub is_place_needed: bool,
    /// The place of the run while it waits, for its summary.
    pub queue_place: Option<QueuePlace>,
}

/// The place of a run among the running runs, according to the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum PlaceInLog {
    /// It needs none: it has not started, waits for its session, or has ended.
    #[default]
    None,
    Waiting(WaitingSince),
    /// It waited for one, and is paused or has ended.
    Suspended(WaitingSince),
    /// It runs.
    Running,
}

impl PlaceInLog {
    fn of_plan(plan: &Plan) -> Self {
        let Some(start) = &plan.run.start else { return Self::None };
        match plan.run.holds.first() {
            Some(RunHold::Session) => Self::None,
            Some(RunHold::Place) => {
                let submitted = plan.run.holds.submitted.unwrap_or(start.at);
                // A run of a session was accepted when it was submitted.
                let since = WaitingSince { submitted, is_refusable: start.session.is_none() };
                let is_suspended = !plan.is_live() || plan.run.paused.is_some();
                if is_suspended { Self::Suspended(since) } else { Self::Waiting(since) }
            }
            None if plan.is_live() => Self::Running,
            None => Self::None,
        }
    }
}

impl LiveHolds {
    /// Notes the place of the run after a decision that is in the log.
    pub(super) fn record_place(&mut self, plan: &Plan) {
        self.place = PlaceInLog::of_plan(plan);
    }

    /// Returns the place of the run, as its last decision in the log says.
    pub(super) fn place(&self) -> PlaceInLog {
        self.place
    }

    /// Notes a submission that was read.
    pub(super) fn record_fact(&mut self, sequence: u64, fact: &Fact) {
        if let Fact::Submitted(submission) = fact
            && self.submission == 0
        {
            self.submission = sequence;
            self.session.clone_from(&submission.session);
        }
    }

    /// Notes the time at which the server stored the submission.
    pub fn record_submission_time(&mut self, at: Timestamp) {
        self.submitted.get_or_insert(at);
    }

    /// Notes the submission that the first decision of the run answers.
    pub(super) fn record_first_decision(&mut self, decision: &Decision, plan: &Plan) {
        let Some(start) = &plan.run.start else { return };
        let fact = decision.answers.iter().find_map(|answer| match answer.cause {
            AnswerCause::Fact(sequence) if answer.refusal.is_none() => Some(sequence),
            AnswerCause::Fact(_) | AnswerCause::Rules | AnswerCause::Clock | AnswerCause::Registry => None,
        });
        self.submission = fact.unwrap_or(self.submission);
        self.session.clone_from(&start.session);
    }

    /// Returns the session of the run and its order in it.
    pub fn session(&self) -> Option<(&SessionId, u64)> {
        self.session.as_ref().map(|session| (session, self.submission))
    }

    /// Returns the time by which the run gets a place.
    pub(super) fn submitted_at(&self, now: Timestamp) -> Timestamp {
        self.submitted.unwrap_or(now)
    }

    /// Adds a change to decide on, once.
    pub fn add_change(&mut self, change: HoldChange) {
        if !self.changes.contains(&change) {
            self.changes.push(change);
        }
    }

    /// `true` if there are changes to decide on.
    pub(super) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Removes and returns the changes.
    pub(super) fn take_changes(&mut self) -> Vec<HoldChange> {
        std::mem::take(&mut self.changes)
    }
}
