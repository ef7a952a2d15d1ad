//! The questions of a run that were opened and closed since the last look. Pure.

use std::collections::BTreeSet;

use millrace_protocol::plan::{Plan, RunQuestion};
use millrace_protocol::question::QuestionId;

use super::open_questions_of_plan;

/// Remembers the open questions of a run.
#[derive(Debug, Default)]
pub struct QuestionTracker {
    open: BTreeSet<QuestionId>,
}

/// The questions that were opened and closed since the last look.
#[derive(Debug, Default)]
pub struct QuestionChanges<'a> {
    /// The new open questions, the oldest first.
    pub opened: Vec<RunQuestion<'a>>,
    pub closed: Vec<RunQuestion<'a>>,
}

impl QuestionTracker {
    /// Returns the changes since the last call. A renewed question is closed and opened: each round has its id.
    pub fn take_changes<'a>(&mut self, plan: &'a Plan) -> QuestionChanges<'a> {
        if self.open.is_empty() && plan.open_questions().next().is_none() {
            return QuestionChanges::default();
        }
        let mut opened = open_questions_of_plan(plan);
        let now: BTreeSet<QuestionId> = opened.iter().map(|record| record.id.clone()).collect();
        opened.retain(|record| !self.open.contains(&record.id));
        let closed_ids: Vec<QuestionId> = self.open.difference(&now).cloned().collect();
        let closed = match closed_ids.is_empty() {
            true => Vec::new(),
            false => plan.questions().filter(|record| closed_ids.contains(&record.id)).collect(),
        };
        self.open = now;
        QuestionChanges { opened, closed }
    }

    /// The number of open questions at the last look.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }
}
