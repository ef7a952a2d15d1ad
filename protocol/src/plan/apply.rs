//! The fold: how events change the state of a run. There are no rules here; an event that names what does not exist
//! is passed over, so that no log can make the fold fail.

use jiff::Timestamp;

use super::event::whole_micros;
use super::spec::{OnFailedDependency, TaskSpec};
use super::state::{Attempt, AttemptEnd, End, ErroredFor, Plan, Planning, Start, Task, TaskState};
use super::{Decision, Event};
use crate::ids::{TaskId, WorkerId};
use crate::result::Usage;

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
        Event::RunStarted { objective, mode, documents, model, models, fail_fast } => {
            plan.start = Some(Start {
                objective: objective.clone(),
                mode: *mode,
                documents: documents.clone(),
                model: model.clone(),
                models: models.clone(),
                fail_fast: *fail_fast,
                at,
            });
        }
        Event::PlanningAsked { turn, attempt, feedback } => {
            let feedback = feedback.clone();
            let (turn, attempt) = (*turn, *attempt);
            plan.planning =
                Some(Planning { turn, attempt, worker: None, since: at, feedback, retry_at: None });
        }
        Event::PlanningClaimed { worker, .. } => {
            if let Some(planning) = &mut plan.planning
                && planning.worker.replace(worker.clone()).is_none()
            {
                planning.since = at;
            }
        }
        Event::ProposalAccepted { reasoning, usage, .. } => {
            plan.planning = None;
            plan.reasoning.push(reasoning.clone());
            plan.usage.add(*usage);
        }
        Event::PlanningErrored { error, retry_at, .. } => match (&mut plan.planning, retry_at) {
            (Some(planning), Some(retry_at)) => {
                planning.retry_at = Some(*retry_at);
                planning.feedback = Some(error.clone());
            }
            (Some(_), None) | (None, _) => plan.planning = None,
        },
        Event::TaskAdded { spec, ready } => plan.add(spec, *ready, at),
        Event::TaskReady { task, attempt } => plan.offer(task, *attempt, TaskState::Ready, at),
        Event::TaskRerun { task, attempt } => plan.offer(task, *attempt, TaskState::Rerun, at),
        Event::CapabilityMissing { task, .. } => plan.move_to(task, TaskState::Errored, at, |task| {
            task.errored = Some(ErroredFor::Capability);
        }),
        Event::TaskPending { task } => plan.move_to(task, TaskState::Pending, at, |_| ()),
        Event::AttemptClaimed { task, attempt, worker } => plan.claim(task, *attempt, worker, at),
        Event::AttemptFinished { task, attempt, worker, at_sequence, summary, usage } => {
            plan.usage.add(*usage);
            plan.move_to(task, TaskState::NeedsReview, at, |task| {
                task.review = 1;
                let end = AttemptEnd::Finished { at_sequence: *at_sequence, summary: summary.clone() };
                let record = task.end_attempt(*attempt, end, at);
                record.worker = Some(worker.clone());
                record.usage = *usage;
            });
        }
        Event::AttemptErrored { task, attempt, error, retry_at } => {
            plan.usage.add(error.usage);
            plan.error(task, *attempt, AttemptEnd::Errored(error.clone()), *retry_at, at);
            if let Some(record) = plan.task_mut(task).and_then(|task| task.attempts.last_mut()) {
                record.usage = error.usage;
            }
        }
        Event::AttemptTimedOut { task, attempt, clock, retry_at } => {
            plan.error(task, *attempt, AttemptEnd::TimedOut(*clock), *retry_at, at);
        }
        Event::ReviewErrored { task, .. } => {
            plan.move_to(task, TaskState::NeedsReview, at, |task| task.review += 1);
        }
        Event::VerdictGiven { task, critic, verdict, .. } => {
            plan.usage.add(verdict.usage);
            if let Some(record) = plan.task_mut(task).and_then(|task| task.attempts.last_mut()) {
                record.verdict = Some((critic.clone(), Box::new(verdict.clone())));
            }
        }
        Event::TaskAccepted { task, .. } => {
            plan.move_to(task, TaskState::Completed, at, |_| ());
            plan.satisfy_dependents(task, |_| true);
        }
        Event::TaskFailed { task, reason } => plan.give_up(task, TaskState::Failed, reason, at),
        Event::TaskCancelled { task, reason } => plan.give_up(task, TaskState::Cancelled, reason, at),
        Event::RunEnded { reason, detail, deliverable } => {
            plan.planning = None;
            plan.end =
                Some(End { reason: *reason, detail: detail.clone(), deliverable: deliverable.clone(), at });
        }
    }
}

impl Plan {
    fn task_mut(&mut self, id: &TaskId) -> Option<&mut Task> {
        self.position(id).map(|at| &mut self.tasks[at as usize])
    }

    fn add(&mut self, spec: &TaskSpec, ready: bool, at: Timestamp) {
        if self.index.contains_key(&spec.id) {
            return;
        }
        let position = u32::try_from(self.tasks.len()).expect("a plan has fewer than 2^32 tasks");
        let unmet = spec.depends_on.iter().filter(|id| self.is_unmet(id, spec.on_failed_dependency)).count();
        let state = if ready { TaskState::Ready } else { TaskState::Pending };
        self.index.insert(spec.id.clone(), position);
        self.counts[state as usize] += 1;
        *self.open_by_capability.entry(spec.capability.clone()).or_default() += 1;
        self.tasks.push(Task {
            spec: spec.clone(),
            state,
            since: at,
            attempt: u32::from(ready),
            review: 0,
            unmet: u32::try_from(unmet).expect("a task has fewer than 2^32 dependencies"),
            errored: None,
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

    /// Moves a task to a state and keeps the counts that are derived from states.
    fn move_to(&mut self, id: &TaskId, to: TaskState, at: Timestamp, change: impl FnOnce(&mut Task)) {
        let Some(position) = self.position(id) else { return };
        let task = &mut self.tasks[position as usize];
        self.counts[task.state as usize] -= 1;
        self.counts[to as usize] += 1;
        if let Some(ErroredFor::Retry(due)) = task.errored.take() {
            self.retries.remove(&(due, position));
        }
        if to.is_terminal() != task.state.is_terminal()
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
    }

    fn offer(&mut self, id: &TaskId, attempt: u32, state: TaskState, at: Timestamp) {
        self.move_to(id, state, at, |task| task.attempt = attempt);
    }

    fn claim(&mut self, id: &TaskId, attempt: u32, worker: &WorkerId, at: Timestamp) {
        let Some(task) = self.task_mut(id) else { return };
        let took_over = task.state == TaskState::Running;
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
        retry_at: Option<Timestamp>,
        at: Timestamp,
    ) {
        self.move_to(id, TaskState::Errored, at, |task| {
            task.end_attempt(attempt, end, at);
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
