//! What is used, and what is set aside of what may be.

use crate::ids::{Capability, TaskId};
use crate::plan::Work;
use crate::plan::budget::Amounts;
use crate::plan::due::capability_of;
use crate::plan::state::{Plan, TaskState};
use crate::result::{ModelUsage, Usage};
use crate::subject::{CRITIC, PLANNER};

impl Plan {
    pub(super) fn spend_on(&mut self, capability: &str, usage: Usage, models: &ModelUsage) {
        if usage.is_zero() && models.is_empty() {
            return;
        }
        let spend = &mut self.spend;
        spend.total.add(usage);
        match capability {
            PLANNER => spend.planner.add(usage),
            CRITIC => spend.critics.add(usage),
            _ => spend.workers.add(usage),
        }
        match spend.by_capability.get_mut(capability) {
            Some(so_far) => so_far.add(usage),
            None => {
                if let Ok(name) = Capability::new(capability) {
                    spend.by_capability.insert(name, usage);
                }
            }
        }
        for (model, usage) in models {
            spend.by_model.entry(model.clone()).or_default().add(*usage);
        }
    }

    pub(super) fn spend_on_task(&mut self, id: &TaskId, usage: Usage, models: &ModelUsage) {
        if let Some(capability) = self.task(id).map(|task| task.spec.capability.clone()) {
            self.spend_on(capability.as_str(), usage, models);
        }
    }

    pub(super) fn spend_on_review(&mut self, id: &TaskId, usage: Usage, models: &ModelUsage) {
        self.spend_on(CRITIC, usage, models);
        if let Some(record) = self.task_mut(id).and_then(|task| task.attempts.last_mut()) {
            record.review_usage.add(usage);
        }
    }

    /// What was in hand of a task is given up, and counts as used.
    pub(super) fn spend_in_hand(&mut self, id: &TaskId, usage: Usage) {
        if usage.is_zero() {
            return;
        }
        match self.task(id).map(|task| task.state) {
            Some(TaskState::NeedsReview) => self.spend_on_review(id, usage, &ModelUsage::new()),
            Some(_) => {
                self.spend_on_task(id, usage, &ModelUsage::new());
                if let Some(record) = self.task_mut(id).and_then(|task| task.attempts.last_mut()) {
                    record.usage.add(usage);
                }
            }
            None => {}
        }
    }

    pub(in crate::plan) fn reserve(&mut self, work: &Work, amounts: Amounts) {
        let Some(capability) = capability_of(self, work) else { return };
        self.reserved.set_aside(work, capability, amounts);
        if let Some(position) = work.task().and_then(|task| self.position(task)) {
            self.wait_no_more(position);
            self.wait(position);
        }
    }
}
