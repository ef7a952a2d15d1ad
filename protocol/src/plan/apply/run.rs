//! The run as a whole: its start, its pauses, its end, and continuing after the end; usage and
//! reservations; waits for models' providers, and the pause of a run whose provider does not answer.

use jiff::Timestamp;

use crate::ids::{Capability, TaskId};
use crate::plan::attendance::UncountedTime;
use crate::plan::budget::ResourceAmounts;
use crate::plan::state::{
    AttemptEnd, AttemptWait, DeliverableRule, EndReason, Plan, PlanningTurn, RunEnd, RunParameters, Task,
    TaskPhase, TaskState,
};
use crate::plan::{Budget, BudgetEvent, JournalKey, ProviderEvent, RunEvent, RunHold, UserEvent, Work};
use crate::result::{ModelUsage, Usage};
use crate::subject::{CRITIC, PLANNER};
use crate::wait::{Wait, WaitEnd};

/// Returns the parameters of a run with this start.
fn parameters_of_start(event: &RunEvent, at: Timestamp) -> Option<RunParameters> {
    let RunEvent::Started {
        objective,
        mode,
        documents,
        model,
        models,
        fail_fast,
        budget,
        consult,
        approve_plan,
        verification,
        criteria,
        after,
        labels,
        session,
    } = event
    else {
        return None;
    };
    Some(RunParameters {
        objective: objective.clone(),
        mode: *mode,
        documents: documents.as_deref().cloned(),
        model: model.clone(),
        models: models.clone(),
        fail_fast: *fail_fast,
        budget: budget.as_ref().clone(),
        consult: *consult,
        approve_plan: *approve_plan,
        verification: *verification,
        criteria: criteria.clone(),
        after: after.clone(),
        labels: labels.clone(),
        session: session.clone(),
        at,
    })
}

impl Plan {
    pub(super) fn apply_run(&mut self, event: &RunEvent, at: Timestamp) {
        match event {
            RunEvent::Started { .. } => self.run.start = parameters_of_start(event, at),
            RunEvent::Held { hold, submitted } => {
                self.run.holds.current.insert(*hold);
                self.run.holds.submitted = submitted.or(self.run.holds.submitted);
            }
            RunEvent::SessionTurnCame { position, earlier, documents } => {
                self.run.holds.position = Some(*position);
                if let Some(start) = &mut self.run.start {
                    start.after.extend_from_slice(earlier);
                    start.documents = documents.as_deref().cloned();
                }
                self.end_hold(RunHold::Session, at);
            }
            RunEvent::PlaceGranted => self.end_hold(RunHold::Place, at),
            RunEvent::PlaceRefused { .. } => {
                self.run.holds.current.remove(&RunHold::Place);
            }
            RunEvent::PlanQuestionAsked { wait, again } => self.ask_about_plan(wait, *again, at),
            RunEvent::PlanQuestionEnded { end } => self.end_plan_question(end, at),
            RunEvent::ClocksStopped(stopped) => self.stop_clocks(stopped),
            RunEvent::Paused => self.run.paused = Some(at),
            RunEvent::Interrupted => self.interrupt_run(at),
            RunEvent::Resumed { budget } => self.resume_run(budget, at),
            RunEvent::WindingDown { reason, detail } => {
                self.clear_triggers();
                self.run.winding_down = Some((*reason, detail.clone()));
            }
            RunEvent::Reopened => self.reopen_run(at),
            RunEvent::Retired => {
                if let Some(end) = &mut self.run.end {
                    end.is_resumable = false;
                }
            }
            RunEvent::Ended { reason, detail, deliverable, is_resumable } => {
                self.end_run(*reason, detail, deliverable.as_ref(), *is_resumable, at);
            }
        }
    }

    pub(super) fn apply_user(&mut self, event: &UserEvent) {
        match event {
            UserEvent::Commanded { id, by, what } => {
                self.add_note_for_planner(|| format!("the user {by} gave a command: {what}"));
                self.planning.idle_turns = 0;
                self.planning.repeated_turns = 0;
                self.run.commands.insert(id.clone());
            }
            UserEvent::Signalled(signal) => self.run.signals.push(signal.clone()),
            UserEvent::StandingAnswerGiven(answer) => self.run.standing_answers.push(answer.clone()),
            UserEvent::MessageReceived { by, text } => self.run.messages.push((by.clone(), text.clone())),
        }
    }

    /// Ends a hold. With the last one the run begins to work: nothing before that counts for its clocks.
    fn end_hold(&mut self, hold: RunHold, at: Timestamp) {
        if !self.run.holds.current.remove(&hold) || self.run.holds.first().is_some() {
            return;
        }
        self.run.holds.ended = Some(at);
        if let Some(start) = &self.run.start {
            self.run.paused_for = at.duration_since(start.at);
        }
        if let Some(paused) = &mut self.run.paused {
            *paused = at;
        }
        if let Some(planning) = self.planning.turn.as_mut().filter(|planning| planning.worker.is_none()) {
            planning.since = at;
        }
        self.restart_clocks_of_waiting_work(at);
    }

    /// Pauses the run and returns its work in flight.
    fn interrupt_run(&mut self, at: Timestamp) {
        self.run.paused.get_or_insert(at);
        self.run.is_interrupted = true;
        let in_flight = self.tasks.iter().filter_map(|task| match task.state() {
            TaskState::Running => Some(JournalKey::Task(task.spec.id.clone(), task.attempt)),
            TaskState::NeedsReview => Some(JournalKey::Review(task.spec.id.clone(), task.attempt)),
            TaskState::Pending
            | TaskState::Ready
            | TaskState::Completed
            | TaskState::Rerun
            | TaskState::Errored
            | TaskState::Failed
            | TaskState::Cancelled
            | TaskState::Waiting => None,
        });
        let turn = self.planning.turn.as_ref().filter(|turn| turn.worker.is_some());
        let turn = turn.map(|turn| JournalKey::Planning(turn.turn, turn.attempt));
        let in_flight: Vec<JournalKey> = in_flight.chain(turn).collect();
        in_flight.iter().for_each(|journal| self.return_work(journal, at));
    }

    /// Resumes the run with a budget. After a pause the clocks of waiting work start anew.
    fn resume_run(&mut self, budget: &Budget, at: Timestamp) {
        if let Some(start) = self.run.start.as_mut().filter(|start| start.budget != *budget) {
            start.budget = budget.clone();
            self.budget.is_low = false;
        }
        self.index.waiting.clear();
        self.index.waiting_children.clear();
        self.add_all_waiting_for_reservation();
        self.run.paused_for_provider = None;
        self.run.is_interrupted = false;
        let Some(since) = self.run.paused.take() else { return };
        self.run.paused_for = self.run.paused_for.saturating_add(at.duration_since(since));
        if let Some(planning) = self.planning.turn.as_mut().filter(|planning| planning.worker.is_none()) {
            planning.since = at;
        }
        self.restart_clocks_of_waiting_work(at);
    }

    /// Restarts the clocks of tasks that wait for a worker or a critic.
    fn restart_clocks_of_waiting_work(&mut self, at: Timestamp) {
        for task in &mut self.tasks {
            match task.state() {
                TaskState::Ready | TaskState::Rerun | TaskState::NeedsReview | TaskState::Errored => {
                    task.since = at;
                }
                TaskState::Pending
                | TaskState::Running
                | TaskState::Completed
                | TaskState::Failed
                | TaskState::Cancelled
                | TaskState::Waiting => {}
            }
        }
    }

    /// Adds a question about the plan, or its next round.
    fn ask_about_plan(&mut self, wait: &Wait, again: bool, at: Timestamp) {
        self.count_questions(1);
        let asked = AttemptWait::begin(wait.clone(), at);
        match self.run.plan_questions.last_mut().filter(|_| again) {
            Some(last) => *last = AttemptWait { round: last.round.saturating_add(1), ..asked },
            None => self.run.plan_questions.push(asked),
        }
    }

    fn end_plan_question(&mut self, end: &WaitEnd, at: Timestamp) {
        if let Some(last) = self.run.plan_questions.last_mut() {
            (last.end, last.ended_at) = (Some(end.clone()), Some(at));
        }
        self.restart_clocks_of_waiting_work(at);
    }

    /// Continues an ended run. The time in between does not count as run time; a pause excludes it already.
    fn reopen_run(&mut self, at: Timestamp) {
        if let Some(end) = self.run.end.take().filter(|_| self.run.paused.is_none()) {
            self.run.paused_for = self.run.paused_for.saturating_add(at.duration_since(end.at));
        }
        self.run.winding_down = None;
        self.planning.lost = None;
        self.planning.is_refused_by_provider = false;
        self.planning.idle_turns = 0;
        self.planning.repeated_turns = 0;
    }

    fn end_run(
        &mut self,
        reason: EndReason,
        detail: &str,
        deliverable: Option<&(TaskId, DeliverableRule)>,
        is_resumable: bool,
        at: Timestamp,
    ) {
        let is_refused_by_provider = self.is_refused_by_provider();
        self.end_turn();
        self.run.end = Some(RunEnd {
            reason,
            detail: detail.to_owned(),
            deliverable: deliverable.cloned(),
            at,
            is_resumable: is_resumable || (reason.needs_larger_budget() && !self.has_failed_fast()),
            is_refused_by_provider,
        });
    }

    /// `true` if a provider refused the run's requests for good: those of the planner, or those of its first failed task.
    fn is_refused_by_provider(&self) -> bool {
        let failed =
            self.tasks.iter().find(|task| task.state() == TaskState::Failed && !task.spec.is_child());
        let last = failed.and_then(|task| task.attempts.last()).and_then(|attempt| attempt.end.as_ref());
        let is_refused = matches!(last, Some(AttemptEnd::Errored(error)) if error.is_refused_by_provider);
        is_refused || (self.planning.lost.is_some() && self.planning.is_refused_by_provider)
    }
}

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

impl Plan {
    pub(super) fn apply_provider(&mut self, event: &ProviderEvent, at: Timestamp) {
        match event {
            ProviderEvent::Awaited { journal, wait } => {
                if let Some(waits) = self.waits_of(journal) {
                    waits.report_wait(wait.clone(), at);
                }
            }
            ProviderEvent::Recovered { journal } => {
                if let Some(waits) = self.waits_of(journal) {
                    waits.end_wait(at);
                }
            }
            ProviderEvent::GivenUp { journal, wait } => {
                self.return_work(journal, at);
                self.run.paused.get_or_insert(at);
                self.run.paused_for_provider = Some(wait.clone());
            }
        }
    }

    fn waits_of(&mut self, journal: &JournalKey) -> Option<&mut UncountedTime> {
        match journal {
            JournalKey::Task(task, _) | JournalKey::Review(task, _) => {
                self.task_mut(task).map(|task| &mut task.uncounted)
            }
            JournalKey::Planning(..) => self.planning.turn.as_mut().map(|turn| &mut turn.uncounted),
        }
    }

    /// Lets work wait for a worker again, as the same attempt: its journal continues. Its reservation stays, because its
    /// usage so far is counted at its end.
    pub(super) fn return_work(&mut self, journal: &JournalKey, at: Timestamp) {
        match journal {
            JournalKey::Task(id, _) => {
                if self.task(id).is_some_and(|task| task.state() == TaskState::Running) {
                    self.move_task_to_phase(id, TaskPhase::Ready, at, |_| ());
                }
            }
            JournalKey::Review(id, _) => {
                if let Some(task) = self.task_mut(id) {
                    task.uncounted = UncountedTime::default();
                    task.since = at;
                }
            }
            JournalKey::Planning(..) => {
                if let Some(turn) = &mut self.planning.turn {
                    turn.worked = turn.worked.saturating_add(turn.uncounted.counted(turn.since, at));
                    turn.uncounted = UncountedTime::default();
                    turn.worker = None;
                    turn.since = at;
                }
            }
        }
    }
}
