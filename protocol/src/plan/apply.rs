//! The fold: how events change the state of a run. There are no rules here; an event that names what does not exist
//! is passed over, so that no log can make the fold fail.

use jiff::Timestamp;

use super::budget::Amounts;
use super::due::queue;
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
            let (notes, outgrew) = match plan.planning.take() {
                Some(before) => (before.notes, before.outgrew),
                None => (std::mem::take(&mut plan.notes), false),
            };
            plan.planning_superseded = None;
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
                outgrew,
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
        Event::PlanningErrored { error, retry_at, outgrew, usage, models, .. } => {
            plan.spend_on(PLANNER, *usage, models);
            match (plan.end_turn(), retry_at) {
                (Some(planning), Some(retry_at)) => {
                    plan.planning = Some(Planning {
                        outgrew: *outgrew,
                        retry_at: Some(*retry_at),
                        feedback: Some(error.clone()),
                        ..planning
                    });
                }
                (given_up, _) => {
                    plan.planning_superseded = given_up.map(|planning| planning.work());
                    plan.planner_lost = Some(error.clone());
                }
            }
        }
        Event::TaskAdded { spec, ready } => plan.add(spec, *ready, at),
        Event::TaskPatched { spec, attempt } => plan.patch(spec, *attempt),
        Event::FinalMarked { task } => {
            let position = plan.position(task);
            for (at, is_final) in [(plan.final_at, false), (position, true)] {
                if let Some(at) = at {
                    plan.tasks[at as usize].spec.is_final = is_final;
                }
            }
            plan.final_at = position;
        }
        Event::TaskReady { task, attempt } => plan.offer(task, *attempt, TaskState::Ready, at),
        Event::TaskRerun { task, attempt } => plan.offer(task, *attempt, TaskState::Rerun, at),
        Event::TaskReopened { task, attempt, ready, feedback } => {
            plan.supersede(task);
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
            let is_out = plan.task(task).is_some_and(|task| task.given_out().is_some());
            plan.move_to(task, TaskState::Errored, at, |task| {
                task.errored = Some(ErroredFor::Capability);
                task.is_out = is_out;
            });
        }
        Event::ParametersWrong { task, problem } => {
            plan.note(|| format!("task {task} can't begin: {problem}"));
            plan.supersede(task);
            let was_given_out = plan.task(task).is_some_and(|task| task.given_out().is_some());
            plan.move_to(task, TaskState::Errored, at, |task| {
                // The attempt that was given out is taken back, and not counted as one.
                task.attempt += u32::from(was_given_out);
                task.granted += u32::from(was_given_out);
                task.errored = Some(ErroredFor::Parameters);
                task.problem = Some(problem.clone());
            });
        }
        Event::TaskPending { task } => {
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
            // The time in between is no working time; a pause counts it already.
            if let Some(end) = plan.end.take().filter(|_| plan.paused.is_none()) {
                plan.paused_for = plan.paused_for.saturating_add(at.duration_since(end.at));
            }
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
                is_resumable: reason.is_resumable() && !plan.has_failed_fast(),
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
        self.reserved.release(&planning.work());
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
        self.count_open(&spec.capability, true);
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
            is_out: false,
            problem: None,
            told: Vec::new(),
            superseded: Vec::new(),
            lost_with: None,
            is_wound_down: false,
            reason: None,
            attempts: Vec::new(),
            dependents: Vec::new(),
        });
        if spec.is_final {
            self.final_at.get_or_insert(position);
        }
        self.link(spec, position);
        self.wait(position);
    }

    /// Enters a new task with those it depends on. A seed plan may name tasks that are added after it: those are
    /// linked when they come.
    fn link(&mut self, spec: &TaskSpec, position: u32) {
        for dependency in &spec.depends_on {
            match self.position(dependency) {
                Some(at) => insert(&mut self.tasks[at as usize].dependents, position),
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
        self.wait_no_more(position);
        if old.capability != spec.capability && !self.tasks[position as usize].state.is_terminal() {
            self.count_open(&old.capability, false);
            self.count_open(&spec.capability, true);
        }
        self.budgeted += u32::from(!spec.budget.is_empty());
        self.budgeted -= u32::from(!old.budget.is_empty());
        if attempt > 0 {
            self.supersede(&spec.id);
            if let Some(work) = self.tasks[position as usize].given_out() {
                self.reserved.release(&work);
            }
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
        // With fewer attempts than it had, the one that waits is the last.
        task.granted = task.granted.max(task.attempt);
        self.wait(position);
    }

    /// How many of the tasks that `spec` depends on are open, or lost.
    pub(super) fn unmet(&self, spec: &TaskSpec) -> u32 {
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
        self.wait_no_more(position);
        let is_reserved = !self.reserved.is_empty();
        let task = &mut self.tasks[position as usize];
        let from = task.state;
        let before = if is_reserved { task.given_out() } else { None };
        self.counts[from as usize] -= 1;
        self.counts[to as usize] += 1;
        if let Some(ErroredFor::Retry(due)) = task.errored.take() {
            self.retries.remove(&(due, position));
        }
        if let Some(due) = task.review_at.take() {
            self.reviews.remove(&(due, position));
        }
        task.problem = None;
        task.is_out = false;
        task.state = to;
        task.since = at;
        change(task);
        if to.is_terminal() != from.is_terminal() {
            let capability = self.tasks[position as usize].spec.capability.clone();
            self.count_open(&capability, !to.is_terminal());
        }
        let task = &self.tasks[position as usize];
        if let Some(ErroredFor::Retry(due)) = task.errored {
            self.retries.insert((due, position));
        }
        if let Some(due) = task.review_at {
            self.reviews.insert((due, position));
        }
        if let Some(work) = before
            && self.tasks[position as usize].given_out().as_ref() != Some(&work)
        {
            self.reserved.release(&work);
        }
        self.wait(position);
    }

    /// One more open task of a capability, or one fewer.
    fn count_open(&mut self, capability: &Capability, is_open: bool) {
        let open = match self.open_by_capability.get_mut(capability) {
            Some(open) => open,
            None => self.open_by_capability.entry(capability.clone()).or_default(),
        };
        *open = if is_open { *open + 1 } else { open.saturating_sub(1) };
        if *open == 0 {
            self.open_by_capability.remove(capability);
        }
    }

    /// Notes that work of a task waits for a reservation, if it does.
    fn wait(&mut self, position: u32) {
        if !self.is_counted() {
            return;
        }
        let task = &self.tasks[position as usize];
        let work = match task.state {
            TaskState::Ready | TaskState::Rerun | TaskState::NeedsReview => task.given_out(),
            TaskState::Pending
            | TaskState::Running
            | TaskState::Completed
            | TaskState::Errored
            | TaskState::Failed
            | TaskState::Cancelled => None,
        };
        if work.is_some_and(|work| self.needs_reservation(&work) && self.reserved.of(&work).is_none()) {
            let group = self.group(position);
            self.waiting.entry(group).or_default().insert(position);
        }
    }

    pub(super) fn wait_for_all(&mut self) {
        for position in (0_u32..).take(self.tasks.len()) {
            self.wait(position);
        }
    }

    fn wait_no_more(&mut self, position: u32) {
        if self.waiting.is_empty() {
            return;
        }
        let group = self.group(position);
        if let Some(waiting) = self.waiting.get_mut(&group) {
            waiting.remove(&position);
            if waiting.is_empty() {
                self.waiting.remove(&group);
            }
        }
    }

    /// Under what the work of a task waits.
    fn group(&self, position: u32) -> Option<Capability> {
        let task = &self.tasks[position as usize];
        (task.state != TaskState::NeedsReview).then(|| task.spec.capability.clone())
    }

    fn offer(&mut self, id: &TaskId, attempt: u32, state: TaskState, at: Timestamp) {
        self.move_to(id, state, at, |task| {
            task.attempt = attempt;
            let work = Work::Task { task: task.spec.id.clone(), attempt };
            task.superseded.retain(|(superseded, _)| *superseded != work);
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
        let Some(work) = task.given_out().or_else(|| task.left_behind()) else { return };
        let superseded = (work.clone(), queue(task, &work));
        if !task.superseded.contains(&superseded) {
            task.superseded.push(superseded);
        }
    }

    fn claim(&mut self, id: &TaskId, attempt: u32, worker: &WorkerId, at: Timestamp) {
        let Some(task) = self.task_mut(id) else { return };
        let took_over = task.state == TaskState::Running;
        task.superseded.clear();
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
        if let Some(start) = self.start.as_mut().filter(|start| start.budget != *budget) {
            start.budget = budget.clone();
            self.budget_is_low = false;
        }
        self.waiting.clear();
        self.wait_for_all();
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

    pub(super) fn reserve(&mut self, work: &Work, amounts: Amounts) {
        let position = work.task().and_then(|task| self.position(task));
        let capability = match (work, position) {
            (Work::Planning { .. }, _) => Capability::new(PLANNER).ok(),
            (Work::Task { .. } | Work::Review { .. }, Some(at)) => {
                Some(queue(&self.tasks[at as usize], work))
            }
            (Work::Task { .. } | Work::Review { .. }, None) => None,
        };
        let Some(capability) = capability else { return };
        self.reserved.set_aside(work, capability, amounts);
        if let Some(position) = position {
            self.wait_no_more(position);
            self.wait(position);
        }
    }
}

/// Inserts into a list that is sorted; most often at its end.
fn insert(sorted: &mut Vec<u32>, position: u32) {
    if let Err(at) = sorted.binary_search(&position) {
        sorted.insert(at, position);
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
