//! The holds of a run in memory: when it was submitted, and the changes of its holds that no decision has made yet.

use millrace_protocol::ids::SessionId;
use millrace_protocol::plan::{AnswerCause, Decision, Fact, HoldChange, Plan};
use millrace_protocol::registry::QueuePlace;

/// The holds of a run in the memory of its lane's owner.
#[derive(Debug, Default, PartialEq)]
pub struct LiveHolds {
    /// The sequence of the submission, which orders the runs of a session; 0 if it was not read.
    submission: u64,
    /// The session that the submission names.
    session: Option<SessionId>,
    /// The changes to decide on.
    changes: Vec<HoldChange>,
    /// The place of the run while it waits, for its summary.
    pub queue_place: Option<QueuePlace>,
}

impl LiveHolds {
    /// Notes a submission that was read.
    pub(super) fn record_fact(&mut self, sequence: u64, fact: &Fact) {
        if let Fact::Submitted(submission) = fact
            && self.submission == 0
        {
            self.submission = sequence;
            self.session.clone_from(&submission.session);
        }
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
