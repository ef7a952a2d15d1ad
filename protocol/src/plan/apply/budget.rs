//! Usage and reservations.

use jiff::Timestamp;

use crate::ids::{Capability, TaskId};
use crate::plan::budget::ResourceAmounts;
use crate::plan::state::{Plan, PlanningTurn, Task, TaskState};
use crate::plan::{BudgetEvent, JournalKey, Work};
use crate::result::{ModelUsage, Usage};
use crate::subject::{CRITIC, PLANNER};

impl Plan {
    pub(super) fn apply_budget(&mut self, event: &BudgetEvent, at: Timestamp) {
        match event {
            BudgetEvent::TooSmall { journal, needs } => self.return_unaffordable_work(journal, *needs, at),
            BudgetEvent::Reserved { work, amounts } => self.reserve(work, *amounts),
            BudgetEvent::Low { .. } => self.budget.is_low = true,
        }
    }

    pub(super) fn spend_on(&mut self, capability: &str, usage: Usage, models: &ModelUsage) {
        if usage.is_zero() && models.is_empty() {
            return;
        }
        let spend = &mut self.budget.spend;
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

    /// Takes the usage of a child out of the reservation that it comes out of.
    fn draw_on_parents(&mut self, id: &TaskId, usage: Usage) {
        let mut task = self.task(id);
        while let Some(child) = task {
            let is_from_parent =
                child.reserved_work().is_some_and(|work| self.budget.reserved.is_from_parent(&work));
            let parent = self.parent(child).filter(|_| is_from_parent);
            match parent.and_then(Task::reserved_work) {
                Some(work) if !self.budget.reserved.is_from_parent(&work) => {
                    self.budget.reserved.draw(&work, &usage);
                    return;
                }
                Some(_) | None => task = parent,
            }
        }
    }

    pub(super) fn spend_on_task(&mut self, id: &TaskId, usage: Usage, models: &ModelUsage) {
        self.draw_on_parents(id, usage);
        if let Some(capability) = self.task(id).map(|task| task.spec.capability.clone()) {
            self.spend_on(capability.as_str(), usage, models);
        }
    }

    pub(super) fn spend_on_review(&mut self, id: &TaskId, usage: Usage, models: &ModelUsage) {
        self.draw_on_parents(id, usage);
        self.spend_on(CRITIC, usage, models);
        if let Some(record) = self.task_mut(id).and_then(|task| task.attempts.last_mut()) {
            record.add_review_usage(usage);
        }
    }

    /// Counts the usage of a task's work in flight, which is given up.
    pub(super) fn spend_in_flight(&mut self, id: &TaskId, usage: Usage) {
        if usage.is_zero() {
            return;
        }
        match self.task(id).map(|task| task.state()) {
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

    /// Lets work wait for a larger reservation, as the same attempt, and remembers what work of its capability needs.
    fn return_unaffordable_work(&mut self, journal: &JournalKey, needs: ResourceAmounts, at: Timestamp) {
        if let Some(queue) = self.queue_of_journal(journal) {
            let known = self.budget.needs.entry(queue).or_default();
            *known = known.max(needs);
        }
        self.return_work(journal, at);
        let work = match journal {
            JournalKey::Task(task, _) | JournalKey::Review(task, _) => {
                self.task(task).and_then(Task::dispatched_work)
            }
            JournalKey::Planning(..) => self.planning.turn.as_ref().map(PlanningTurn::work),
        };
        if let Some(work) = work {
            self.budget.reserved.release(&work);
        }
        if let Some(position) = journal.task().and_then(|task| self.task_position(task)) {
            self.remove_waiting_for_reservation(position);
            self.add_if_waiting_for_reservation(position);
        }
    }

    /// `true` if a reservation for this work comes out of that of the task's parent, which has one.
    pub(in crate::plan) fn draws_on_parent(&self, work: &Work) -> bool {
        let task = work.task().and_then(|task| self.task(task));
        let parent = task.and_then(|task| self.parent(task)).and_then(Task::reserved_work);
        parent.is_some_and(|parent| self.budget.reserved.amounts_of_work(&parent).is_some())
    }

    fn reserve(&mut self, work: &Work, amounts: ResourceAmounts) {
        let Some(capability) = self.queue_of_work(work) else { return };
        let is_from_parent = self.draws_on_parent(work);
        self.budget.reserved.reserve(work, capability, amounts, is_from_parent);
        if let Some(position) = work.task().and_then(|task| self.task_position(task)) {
            self.remove_waiting_for_reservation(position);
            self.add_if_waiting_for_reservation(position);
        }
    }
}
