//! The questions of a run to persons, open and closed, as the fold has them.

use jiff::{SignedDuration, Timestamp};

use super::attempt::{Attempt, AttemptWait};
use super::run::Plan;
use super::task::{Task, TaskState};
use crate::question::{Answer, Question, QuestionAsker, QuestionId};
use crate::wait::WaitEnd;

/// A question of a run, with its place and its state.
#[derive(Debug, Clone)]
pub struct RunQuestion<'a> {
    /// Its id in the run, with its current round.
    pub id: QuestionId,
    /// The task whose attempt asks; `None` for a question about the plan.
    pub task: Option<&'a Task>,
    pub wait: &'a AttemptWait,
    pub question: &'a Question,
    pub state: QuestionState<'a>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuestionState<'a> {
    /// It can be answered.
    Open,
    /// A person has answered it.
    Answered {
        /// The person, as the client named them.
        by: &'a str,
        answer: &'a Answer,
    },
    /// It expired without an answer.
    Expired,
    /// Its answer is not needed any more, for this reason.
    Withdrawn(String),
}

impl<'a> RunQuestion<'a> {
    fn of_attempt(task: &'a Task, attempt: &'a Attempt, number: u32, wait: &'a AttemptWait) -> Option<Self> {
        let is_current = task.state() == TaskState::Waiting && task.attempt == attempt.number;
        let reason = || {
            let reason = task.end_reason().map(|reason| format!(": {reason}")).unwrap_or_default();
            format!("task {} is {}{reason}", task.spec.id, task.state())
        };
        let id = QuestionId::of_attempt(task.spec.id.clone(), attempt.number, number, wait.round);
        Self::new(id, Some(task), wait, (!is_current).then(reason))
    }

    fn of_plan(plan: &'a Plan, number: u32, wait: &'a AttemptWait) -> Option<Self> {
        let id = QuestionId::of_plan(number, wait.round);
        let ended = plan.run.end.as_ref().map(|end| format!("the run has ended: {}", end.reason));
        Self::new(id, None, wait, ended)
    }

    /// `withdrawn` is the reason for which an answer is not needed any more, if it is not.
    fn new(
        id: QuestionId,
        task: Option<&'a Task>,
        wait: &'a AttemptWait,
        withdrawn: Option<String>,
    ) -> Option<Self> {
        let question = wait.wait.condition.question()?;
        let state = match (&wait.end, withdrawn) {
            (Some(WaitEnd::Answered { by, answer }), _) if !by.is_empty() => {
                QuestionState::Answered { by, answer }
            }
            (Some(WaitEnd::Withdrawn), _) => QuestionState::Withdrawn("another wait ended first".into()),
            (
                Some(
                    WaitEnd::Answered { .. }
                    | WaitEnd::TimeReached
                    | WaitEnd::Signalled { .. }
                    | WaitEnd::Expired
                    | WaitEnd::TasksEnded(_),
                ),
                _,
            ) => QuestionState::Expired,
            (None, Some(reason)) => QuestionState::Withdrawn(reason),
            (None, None) => QuestionState::Open,
        };
        Some(Self { id, task, wait, question, state })
    }

    /// `true` if it can be answered.
    pub fn is_open(&self) -> bool {
        self.state == QuestionState::Open
    }

    /// When it expires, if it does.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.wait.until().filter(|_| self.is_open())
    }

    /// The time from its current round to its end.
    pub fn time_to_decide(&self) -> Option<SignedDuration> {
        self.wait.ended_at.map(|ended| ended.duration_since(self.wait.since))
    }
}

impl Attempt {
    /// The questions of the attempt, open and closed, oldest first.
    pub fn questions<'a>(&'a self, task: &'a Task) -> impl Iterator<Item = RunQuestion<'a>> {
        let waits = (1_u32..).zip(&self.waits);
        waits.filter_map(|(number, wait)| RunQuestion::of_attempt(task, self, number, wait))
    }
}

impl Plan {
    /// The parked attempts, and those whose result persons judge, with their tasks.
    pub fn parked_attempts(&self) -> impl Iterator<Item = (&Task, &Attempt)> {
        // Most plans have none.
        let has_any = self.task_count_in_state(TaskState::Waiting) > 0;
        let tasks = has_any.then_some(self.tasks()).into_iter().flatten();
        let parked = tasks.filter(|task| task.state() == TaskState::Waiting);
        parked.filter_map(|task| Some((task, task.current_attempt()?)))
    }

    /// The open questions: those about the plan, and those of attempts by task in the order of the plan.
    pub fn open_questions(&self) -> impl Iterator<Item = RunQuestion<'_>> {
        let parked = self.parked_attempts().flat_map(|(task, attempt)| attempt.questions(task));
        self.questions_about_plan().chain(parked).filter(RunQuestion::is_open)
    }

    /// All questions, open and closed: those about the plan, and those of attempts by task in the order of the plan.
    pub fn questions(&self) -> impl Iterator<Item = RunQuestion<'_>> {
        let attempts = self.tasks().iter().flat_map(|task| task.attempts.iter().map(move |one| (task, one)));
        self.questions_about_plan().chain(attempts.flat_map(|(task, attempt)| attempt.questions(task)))
    }

    fn questions_about_plan(&self) -> impl Iterator<Item = RunQuestion<'_>> {
        let waits = (1_u32..).zip(&self.run.plan_questions);
        waits.filter_map(|(number, wait)| RunQuestion::of_plan(self, number, wait))
    }

    /// A question by its id; `None` if it was never asked, or not in that round. The result names its current round.
    pub fn question(&self, id: &QuestionId) -> Option<RunQuestion<'_>> {
        let at = usize::try_from(id.number).ok()?.checked_sub(1)?;
        let question = match &id.asker {
            QuestionAsker::Plan => RunQuestion::of_plan(self, id.number, self.run.plan_questions.get(at)?),
            QuestionAsker::Attempt(task, number) => {
                let task = self.task(task)?;
                let attempt = task.attempts.iter().find(|attempt| attempt.number == *number)?;
                RunQuestion::of_attempt(task, attempt, id.number, attempt.waits.get(at)?)
            }
        };
        question.filter(|question| id.round > 0 && id.round <= question.wait.round)
    }

    /// `true` if a person must approve the plan before its first task starts, and has not done so yet.
    pub fn needs_approval(&self) -> bool {
        let is_required = self.run.start.as_ref().is_some_and(|start| start.approve_plan);
        let is_approval =
            |wait: &AttemptWait| matches!(wait.end, Some(WaitEnd::Answered { answer: Answer::Approve, .. }));
        is_required && !self.run.plan_questions.last().is_some_and(is_approval)
    }
}
