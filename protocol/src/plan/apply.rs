//! The fold: how events change the state of a run. There are no rules here; an event that names what does not exist
//! is passed over, so that no log can make the fold fail.

use jiff::Timestamp;

use super::budget::Amounts;
use super::event::whole_micros;
use super::spec::{OnFailedDependency, Review, TaskSpec};
use super::state::{
    Attempt, AttemptEnd, End, ErroredFor, MAX_NOTES, Occasion, Plan, Planning, Start, Task, TaskState,
};
use super::{Decision, Event, Work};
use crate::ids::{Capability, TaskId, WorkerId};
use crate::result::{ModelUsage, Usage};
use crate::subject::{CRITIC, PLANNER};

/// Folds one decision into the state.
pub fn apply_decision(plan: &mut Plan, decision: &Decision) {
    for event in &decision.events {
        apply(plan, event, decision.at);
    }
    plan.through = plan.through.max(decision.through().unwrap_or(0));
}

/// Folds one event into the state; `at` is the time of its decision, of which whole microseconds count: the log keeps
/// no more, and a plan folded from it must equal the one that was decided on.
pub fn apply(plan: &mut Plan, event: &Event, at: Timestamp) {
    let at = whole_micros(at);
    match event {
        Event::RunStarted { objective, mode, documents, model, models, fail_fast, budget, consult } => {
            plan.start = Some(Start {
                objective: objective.clone(),
                mode: *mode,
                documents: documents.clone(),
                model: model.clone(),
                models: models.clone(),
                fail_fast: *fail_fast,
                budget: budget.as_ref().clone(),
                consult: *consult,
                at,
            });
        }
        Event::OccasionRaised { occasion } => plan.raise(occasion),
        Event::PlanningAsked { turn, attempt, feedback, occasions } => {
            let notes = match plan.planning.take() {
                Some(before) => before.notes,
                None => std::mem::take(&mut plan.notes),
            };
            if *attempt == 1 {
                plan.occasions.clear();
            }
            plan.turns = plan.turns.max(*turn);
            plan.planning = Some(Planning {
                turn: *turn,
                attempt: *attempt,
                worker: None,
                since: at,
                feedback: feedback.clone(),
                retry_at: None,
                occasions: occasions.clone(),
                notes,
            });
        }
        Event::PlanningClaimed { worker, .. } => {
            if let Some(planning) = &mut plan.planning
                && planning.worker.replace(worker.clone()).is_none()
            {
                planning.since = at;
            }
        }
        Event::ProposalAccepted { reasoning, is_idle, usage, models, .. } => {
            plan.end_turn();
            plan.reasoning.push(reasoning.clone());
            plan.idle_turns = if *is_idle { plan.idle_turns + 1 } else { 0 };
            plan.spend_on(PLANNER, *usage, models);
        }
        Event::PlanningErrored { error, retry_at, usage, models, .. } => {
            plan.spend_on(PLANNER, *usage, models);
            match (plan.end_turn(), retry_at) {
                (Some(planning), Some(retry_at)) => {
                    plan.planning = Some(Planning {
                        retry_at: Some(*retry_at),
                        feedback: Some(error.clone()),
                        ..planning
                    });
                }
                (Some(_) | None, _) => plan.planner_lost = Some(error.clone()),
            }
        }
        Event::TaskAdded { spec, ready } => plan.add(spec, *ready, at),
        Event::TaskPatched { spec, attempt } => plan.patch(spec, *attempt),
        Event::FinalMarked { task } => {
            for other in &mut plan.tasks {
                other.spec.is_final = other.spec.id == *task;
            }
        }
        Event::TaskReady { task, attempt } => plan.offer(task, *attempt, TaskState::Ready, at),
        Event::TaskRerun { task, attempt } => plan.offer(task, *attempt, TaskState::Rerun, at),
        Event::TaskReopened { task, attempt, ready, feedback } => {
            plan.reopen(task, *attempt, if *ready { TaskState::Ready } else { TaskState::Pending }, at);
            if let (Some(task), Some(feedback)) = (plan.task_mut(task), feedback) {
                task.told.push((*attempt, feedback.clone()));
            }
        }
        Event::TaskInvalidated { task, attempt, usage } => {
            plan.spend_in_hand(task, *usage);
            plan.supersede(task);
            plan.reopen(task, *attempt, TaskState::Pending, at);
        }
        Event::CapabilityMissing { task, capability } => {
            plan.note(|| format!("task {task} can't begin: nobody offers {capability}"));
            plan.move_to(task, TaskState::Errored, at, |task| {
                task.errored = Some(ErroredFor::Capability);
            });
        }
        Event::ParametersWrong { task, problem } => {
            plan.note(|| format!("task {task} can't begin: {problem}"));
            plan.supersede(task);
            plan.move_to(task, TaskState::Errored, at, |task| {
                task.errored = Some(ErroredFor::Parameters);
                task.problem = Some(problem.clone());
            });
        }
        Event::TaskPending { task } => {
            plan.supersede(task);
            plan.move_to(task, TaskState::Pending, at, |_| ());
        }
        Event::AttemptClaimed { task, attempt, worker } => {
            plan.idle_turns = 0;
            plan.claim(task, *attempt, worker, at);
        }
        Event::AttemptFinished {
            task,
            attempt,
            worker,
            at_sequence,
            summary,
            is_detailed,
            review,
            usage,
            models,
        } => {
            plan.spend_on_task(task, *usage, models);
            plan.move_to(task, TaskState::NeedsReview, at, |task| {
                task.review = 1;
                task.asked = review.as_ref().unwrap_or(&task.spec.review).clone();
                let end = AttemptEnd::Finished {
                    at_sequence: *at_sequence,
                    summary: summary.clone(),
                    is_detailed: *is_detailed,
                };
                let record = task.end_attempt(*attempt, end, at);
                record.worker = Some(worker.clone());
                record.usage = *usage;
            });
        }
        Event::AttemptErrored { task, attempt, error, retry_at } => {
            plan.spend_on_task(task, error.usage, &error.models);
            plan.error(task, *attempt, AttemptEnd::Errored(error.clone()), error.usage, *retry_at, at);
        }
        Event::AttemptTimedOut { task, attempt, clock, retry_at, usage } => {
            plan.note(|| format!("attempt {attempt} of task {task} timed out: {clock}"));
            plan.spend_on_task(task, *usage, &ModelUsage::new());
            plan.error(task, *attempt, AttemptEnd::TimedOut(*clock), *usage, *retry_at, at);
        }
        Event::ReviewErrored { task, retry_at, usage, models, .. } => {
            plan.spend_on_review(task, *usage, models);
            plan.move_to(task, TaskState::NeedsReview, at, |task| {
                task.review += 1;
                task.review_at = *retry_at;
            });
        }
        Event::ReviewReady { task } => plan.move_to(task, TaskState::NeedsReview, at, |_| ()),
        Event::VerdictGiven { task, critic, verdict, .. } => {
            plan.spend_on_review(task, verdict.usage, &verdict.models);
            if let Some(record) = plan.task_mut(task).and_then(|task| task.attempts.last_mut()) {
                record.verdict = Some((critic.clone(), Box::new(verdict.clone())));
            }
        }
        Event::TaskAccepted { task, .. } => {
            plan.move_to(task, TaskState::Completed, at, |_| ());
            plan.satisfy_dependents(task, |_| true);
        }
        Event::TaskFailed { task, reason } => {
            plan.note(|| format!("task {task} failed: {reason}"));
            plan.give_up(task, TaskState::Failed, reason, at);
        }
        Event::TaskCancelled { task, reason, with, usage } => {
            plan.note(|| format!("task {task} was cancelled: {reason}"));
            plan.spend_in_hand(task, *usage);
            plan.give_up(task, TaskState::Cancelled, reason, at);
            let is_wound_down = plan.winding_down.is_some();
            if let Some(task) = plan.task_mut(task) {
                task.lost_with = with.clone();
                task.is_wound_down = is_wound_down;
            }
        }
        Event::Reserved { work, amounts } => plan.reserve(work, *amounts),
        Event::BudgetLow { .. } => plan.budget_is_low = true,
        Event::WindingDown { reason, detail } => {
            plan.occasions.clear();
            plan.winding_down = Some((*reason, detail.clone()));
        }
        Event::Commanded { id, by, what } => {
            plan.note(|| format!("the user {by} gave a command: {what}"));
            plan.idle_turns = 0;
            plan.commands.insert(id.clone());
        }
        Event::MessageReceived { by, text } => plan.messages.push((by.clone(), text.clone())),
        Event::Paused => plan.paused = Some(at),
        Event::Resumed { budget } => plan.resume(budget, at),
        Event::RunReopened => {
            plan.end = None;
            plan.winding_down = None;
            plan.planner_lost = None;
            plan.idle_turns = 0;
        }
        Event::RunRetired => {
            if let Some(end) = &mut plan.end {
                end.is_resumable = false;
            }
        }
        Event::RunEnded { reason, detail, deliverable } => {
            plan.end_turn();
            plan.end = Some(End {
                reason: *reason,
                detail: detail.clone(),
                deliverable: deliverable.clone(),
                at,
                is_resumable: reason.is_resumable(),
            });
        }
    }
}

impl Plan {
    fn task_mut(&mut self, id: &TaskId) -> Option<&mut Task> {
        self.position(id).map(|at| &mut self.tasks[at as usize])
    }

    /// Something that the planner should know at its next turn.
    fn note(&mut self, text: impl FnOnce() -> String) {
        if !self.has_planner() {
            return;
        }
        if self.notes.len() >= MAX_NOTES {
            self.notes.remove(0);
        }
        self.notes.push(text());
    }

    fn raise(&mut self, occasion: &Occasion) {
        if !self.occasions.contains(occasion) {
            self.occasions.push(occasion.clone());
        }
    }

    fn end_turn(&mut self) -> Option<Planning> {
        let planning = self.planning.take()?;
        self.release(&Work::Planning { turn: planning.turn, attempt: planning.attempt });
        Some(planning)
    }

    fn add(&mut self, spec: &TaskSpec, ready: bool, at: Timestamp) {
        if self.index.contains_key(&spec.id) {
            return;
        }
        let position = u32::try_from(self.tasks.len()).expect("a plan has fewer than 2^32 tasks");
        let state = if ready { TaskState::Ready } else { TaskState::Pending };
        self.index.insert(spec.id.clone(), position);
        self.counts[state as usize] += 1;
        self.budgeted += u32::from(!spec.budget.is_empty());
        if ready {
            self.waiting.insert(position);
        }
        *self.open_by_capability.entry(spec.capability.clone()).or_default() += 1;
        self.tasks.push(Task {
            spec: spec.clone(),
            state,
            since: at,
            attempt: u32::from(ready),
            granted: spec.limits.max_attempts,
            review: 0,
            asked: Review::None,
            review_at: None,
            unmet: self.unmet(spec),
            errored: None,
            problem: None,
            told: Vec::new(),
            superseded: None,
            lost_with: None,
            is_wound_down: false,
            reason: None,
            attempts: Vec::new(),
            dependents: Vec::new(),
        });
        self.link(spec, position);
    }

    /// Enters a new task with those it depends on. A seed plan may name tasks that are added after it: those are
    /// linked when they come.
    fn link(&mut self, spec: &TaskSpec, position: u32) {
        for dependency in &spec.depends_on {
            match self.position(dependency) {
                Some(at) => self.tasks[at as usize].dependents.push(position),
                None => self.unlinked.entry(dependency.clone()).or_default().push(position),
            }
        }
        if let Some(waiting) = self.unlinked.remove(&spec.id) {
            self.tasks[position as usize].dependents.extend(waiting);
        }
    }

    /// A task is another from now on; one that was offered as it was is taken back.
    fn patch(&mut self, spec: &TaskSpec, attempt: u32) {
        let Some(position) = self.position(&spec.id) else { return };
        let old = self.tasks[position as usize].spec.clone();
        for dependency in &old.depends_on {
            if let Some(dependency) = self.task_mut(dependency) {
                dependency.dependents.retain(|&dependent| dependent != position);
            }
        }
        self.link(spec, position);
        if old.capability != spec.capability && !self.tasks[position as usize].state.is_terminal() {
            if let Some(open) = self.open_by_capability.get_mut(&old.capability) {
                *open -= 1;
            }
            *self.open_by_capability.entry(spec.capability.clone()).or_default() += 1;
        }
        self.budgeted += u32::from(!spec.budget.is_empty());
        self.budgeted -= u32::from(!old.budget.is_empty());
        if attempt > 0 {
            self.supersede(&spec.id);
            let before = self.tasks[position as usize].attempt;
            self.release(&Work::Task { task: spec.id.clone(), attempt: before });
        }
        let unmet = self.unmet(spec);
        let task = &mut self.tasks[position as usize];
        let (before, now) = (old.limits.max_attempts, spec.limits.max_attempts);
        task.granted = (task.granted + now).saturating_sub(before);
        task.spec = spec.clone();
        task.unmet = unmet;
        if attempt > 0 {
            // The attempt that was taken back is not counted as one.
            task.granted += attempt.saturating_sub(task.attempt);
            task.attempt = attempt;
        }
    }

    /// How many of the tasks that `spec` depends on are open, or lost.
    fn unmet(&self, spec: &TaskSpec) -> u32 {
        let unmet = spec.depends_on.iter().filter(|id| self.is_unmet(id, spec.on_failed_dependency)).count();
        u32::try_from(unmet).expect("a task has fewer than 2^32 dependencies")
    }

    fn is_unmet(&self, dependency: &TaskId, policy: OnFailedDependency) -> bool {
        self.task(dependency).is_none_or(|task| match task.state {
            TaskState::Completed => false,
            TaskState::Failed | TaskState::Cancelled => policy != OnFailedDependency::Skip,
            TaskState::Pending
            | TaskState::Ready
            | TaskState::Running
            | TaskState::NeedsReview
            | TaskState::Rerun
            | TaskState::Errored => true,
        })
    }

    /// Moves a task to a state and keeps what is derived from states.
    fn move_to(&mut self, id: &TaskId, to: TaskState, at: Timestamp, change: impl FnOnce(&mut Task)) {
        let Some(position) = self.position(id) else { return };
        let task = &mut self.tasks[position as usize];
        let (from, attempt, review) = (task.state, task.attempt, task.review);
        self.counts[from as usize] -= 1;
        self.counts[to as usize] += 1;
        if let Some(ErroredFor::Retry(due)) = task.errored.take() {
            self.retries.remove(&(due, position));
        }
        if let Some(due) = task.review_at.take() {
            self.reviews.remove(&(due, position));
        }
        task.problem = None;
        if to.is_terminal() != from.is_terminal()
            && let Some(open) = self.open_by_capability.get_mut(&task.spec.capability)
        {
            if to.is_terminal() { *open -= 1 } else { *open += 1 }
        }
        task.state = to;
        task.since = at;
        change(task);
        if let Some(ErroredFor::Retry(due)) = task.errored {
            self.retries.insert((due, position));
        }
        if let Some(due) = task.review_at {
            self.reviews.insert((due, position));
        }
        match to {
            TaskState::Ready | TaskState::Rerun | TaskState::NeedsReview => self.waiting.insert(position),
            TaskState::Pending
            | TaskState::Running
            | TaskState::Completed
            | TaskState::Errored
            | TaskState::Failed
            | TaskState::Cancelled => self.waiting.remove(&position),
        };
        if self.reserved.is_empty() {
            return;
        }
        let is_given_out =
            |state| matches!(state, TaskState::Ready | TaskState::Rerun | TaskState::Running);
        let now = &self.tasks[position as usize];
        let goes_on = is_given_out(to) && now.attempt == attempt;
        let is_judged_on = to == TaskState::NeedsReview && now.review == review;
        if is_given_out(from) && !goes_on {
            self.release(&Work::Task { task: id.clone(), attempt });
        }
        if from == TaskState::NeedsReview && !is_judged_on {
            self.release(&Work::Review { task: id.clone(), attempt, review });
        }
    }

    fn offer(&mut self, id: &TaskId, attempt: u32, state: TaskState, at: Timestamp) {
        self.move_to(id, state, at, |task| {
            task.attempt = attempt;
            let work = Work::Task { task: task.spec.id.clone(), attempt };
            task.superseded.take_if(|superseded| *superseded == work);
        });
    }

    /// A task that had ended, or was under way, has its attempts before it again.
    fn reopen(&mut self, id: &TaskId, attempt: u32, state: TaskState, at: Timestamp) {
        self.move_to(id, state, at, |task| {
            task.attempt = attempt;
            task.granted = attempt.saturating_sub(1) + task.spec.limits.max_attempts;
            task.reason = None;
            task.lost_with = None;
            task.is_wound_down = false;
        });
        self.recount_dependents(id);
    }

    /// Work that was given out for a task is not wanted any more.
    fn supersede(&mut self, id: &TaskId) {
        let Some(task) = self.task_mut(id) else { return };
        let (task_id, attempt, review) = (task.spec.id.clone(), task.attempt, task.review);
        match task.state {
            TaskState::Ready | TaskState::Rerun | TaskState::Running => {
                task.superseded = Some(Work::Task { task: task_id, attempt });
            }
            TaskState::NeedsReview => {
                task.superseded = Some(Work::Review { task: task_id, attempt, review });
            }
            TaskState::Errored if attempt > 0 && task.errored == Some(ErroredFor::Capability) => {
                task.superseded = Some(Work::Task { task: task_id, attempt });
            }
            TaskState::Pending
            | TaskState::Completed
            | TaskState::Errored
            | TaskState::Failed
            | TaskState::Cancelled => {}
        }
    }

    fn claim(&mut self, id: &TaskId, attempt: u32, worker: &WorkerId, at: Timestamp) {
        let Some(task) = self.task_mut(id) else { return };
        let took_over = task.state == TaskState::Running;
        task.superseded = None;
        let record = task.record(attempt);
        record.worker = Some(worker.clone());
        record.claimed_at.get_or_insert(at);
        if !took_over {
            self.move_to(id, TaskState::Running, at, |_| ());
        }
    }

    fn error(
        &mut self,
        id: &TaskId,
        attempt: u32,
        end: AttemptEnd,
        usage: Usage,
        retry_at: Option<Timestamp>,
        at: Timestamp,
    ) {
        self.move_to(id, TaskState::Errored, at, |task| {
            task.end_attempt(attempt, end, at).usage = usage;
            task.errored = retry_at.map(ErroredFor::Retry);
        });
    }

    fn give_up(&mut self, id: &TaskId, state: TaskState, reason: &str, at: Timestamp) {
        self.move_to(id, state, at, |task| task.reason = Some(reason.into()));
        self.satisfy_dependents(id, |task| task.spec.on_failed_dependency == OnFailedDependency::Skip);
    }

    fn satisfy_dependents(&mut self, id: &TaskId, of: impl Fn(&Task) -> bool) {
        let Some(position) = self.position(id) else { return };
        let dependents = std::mem::take(&mut self.tasks[position as usize].dependents);
        for &dependent in &dependents {
            let dependent = &mut self.tasks[dependent as usize];
            if of(dependent) {
                dependent.unmet = dependent.unmet.saturating_sub(1);
            }
        }
        self.tasks[position as usize].dependents = dependents;
    }

    fn recount_dependents(&mut self, id: &TaskId) {
        let Some(position) = self.position(id) else { return };
        let dependents = self.tasks[position as usize].dependents.clone();
        for dependent in dependents {
            let unmet = self.unmet(&self.tasks[dependent as usize].spec);
            self.tasks[dependent as usize].unmet = unmet;
        }
    }

    /// After a pause clocks begin anew for what waits for somebody; and a budget may have grown.
    fn resume(&mut self, budget: &super::Budget, at: Timestamp) {
        if let Some(start) = &mut self.start {
            start.budget = budget.clone();
        }
        self.budget_is_low = false;
        let Some(since) = self.paused.take() else { return };
        self.paused_for = self.paused_for.saturating_add(at.duration_since(since));
        if let Some(planning) = self.planning.as_mut().filter(|planning| planning.worker.is_none()) {
            planning.since = at;
        }
        for task in &mut self.tasks {
            match task.state {
                TaskState::Ready | TaskState::Rerun | TaskState::NeedsReview | TaskState::Errored => {
                    task.since = at;
                }
                TaskState::Pending
                | TaskState::Running
                | TaskState::Completed
                | TaskState::Failed
                | TaskState::Cancelled => {}
            }
        }
    }

    // ---- what is used, and what may be

    fn spend_on(&mut self, capability: &str, usage: Usage, models: &ModelUsage) {
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

    fn spend_on_task(&mut self, id: &TaskId, usage: Usage, models: &ModelUsage) {
        if let Some(capability) = self.task(id).map(|task| task.spec.capability.clone()) {
            self.spend_on(capability.as_str(), usage, models);
        }
    }

    fn spend_on_review(&mut self, id: &TaskId, usage: Usage, models: &ModelUsage) {
        self.spend_on(CRITIC, usage, models);
        if let Some(record) = self.task_mut(id).and_then(|task| task.attempts.last_mut()) {
            record.review_usage.add(usage);
        }
    }

    /// What was in hand of a task is given up, and counts as used.
    fn spend_in_hand(&mut self, id: &TaskId, usage: Usage) {
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

    fn reserve(&mut self, work: &Work, amounts: Amounts) {
        self.release(work);
        for (dimension, amount) in amounts.iter() {
            let total = self.reserved.total.entry(dimension).or_default();
            *total = total.saturating_add(amount);
        }
        self.reserved.by_work.insert(work.clone(), amounts);
    }

    fn release(&mut self, work: &Work) {
        let Some(amounts) = self.reserved.by_work.remove(work) else { return };
        for (dimension, amount) in amounts.iter() {
            if let Some(total) = self.reserved.total.get_mut(&dimension) {
                *total = total.saturating_sub(amount);
            }
        }
    }
}

impl Task {
    /// The record of an attempt, made if it is not there.
    fn record(&mut self, number: u32) -> &mut Attempt {
        if self.attempts.last().is_none_or(|last| last.number != number) {
            self.attempts.push(Attempt {
                number,
                worker: None,
                claimed_at: None,
                ended_at: None,
                end: None,
                usage: Usage::default(),
                verdict: None,
                review_usage: Usage::default(),
            });
        }
        self.attempts.last_mut().expect("an attempt was pushed if there was none")
    }

    fn end_attempt(&mut self, number: u32, end: AttemptEnd, at: Timestamp) -> &mut Attempt {
        let record = self.record(number);
        record.end = Some(end);
        record.ended_at = Some(at);
        record
    }
}
