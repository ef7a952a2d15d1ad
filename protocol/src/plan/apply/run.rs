//! The run as a whole: its start, its pauses, its end, and continuing after the end.

use jiff::Timestamp;

use crate::ids::TaskId;
use crate::plan::state::{
    AttemptEnd, AttemptWait, DeliverableRule, EndReason, Plan, RunEnd, RunParameters, TaskState,
};
use crate::plan::{Budget, JournalKey, RunEvent, RunHold, UserEvent};
use crate::wait::{Wait, WaitEnd};

impl Plan {
    pub(super) fn apply_run(&mut self, event: &RunEvent, at: Timestamp) {
        match event {
            RunEvent::Started {
                objective,
                mode,
                documents,
                model,
                models,
                fail_fast,
                budget,
                consult,
                approve_plan,
                criteria,
                after,
                labels,
                session,
            } => {
                self.run.start = Some(RunParameters {
                    objective: objective.clone(),
                    mode: *mode,
                    documents: documents.as_deref().cloned(),
                    model: model.clone(),
                    models: models.clone(),
                    fail_fast: *fail_fast,
                    budget: budget.as_ref().clone(),
                    consult: *consult,
                    approve_plan: *approve_plan,
                    criteria: criteria.clone(),
                    after: after.clone(),
                    labels: labels.clone(),
                    session: session.clone(),
                    at,
                });
            }
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
