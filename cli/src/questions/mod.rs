//! Questions of runs to persons: their state, the names by which users refer to them, their texts, and sending answers.
//!
//! | module | contents |
//! |---|---|
//! | `reference` | the ids and short forms that users type, and the questions that they select |
//! | `text` | questions as lines for a person, and the commands that answer them |
//! | `answering` | sends an answer and tells its outcome |
//! | `changes` | the questions of a run that were opened and closed since the last look |
//! | `prompt` | the prompt below the live view, as a state machine |
//! | `terminal` | reads the keys of the prompt, opens the editor, sends the answers |

mod answering;
mod changes;
mod prompt;
mod reference;
mod terminal;
mod text;

use jiff::{SignedDuration, Timestamp};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Attempt, AttemptWait, Plan, Task, TaskState};
use millrace_protocol::question::{Answer, Question, QuestionId};
use millrace_protocol::wait::WaitEnd;

pub use answering::{AnswerOutcome, AnswerRequest, OutcomeKind, PlanCache, answer_question};
pub use changes::QuestionTracker;
pub use reference::{QuestionReference, Selection};
pub use terminal::InPlaceAnswers;
pub use text::{
    describe_end, format_board_lines, format_closed_question, format_question, format_question_line,
};

/// A question, with its place and its state.
#[derive(Debug, Clone)]
pub struct QuestionRecord<'a> {
    /// Its id in the run, with its current round.
    pub id: QuestionId,
    /// The wait that it is.
    pub wait: &'a AttemptWait,
    /// The question.
    pub question: &'a Question,
    /// Its state.
    pub state: QuestionState<'a>,
}

/// The state of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuestionState<'a> {
    /// It can be answered.
    Open,
    /// A person has answered it.
    Answered {
        /// The person, as the client named them.
        by: &'a str,
        /// The answer.
        answer: &'a Answer,
    },
    /// It expired without an answer.
    Expired,
    /// Its attempt does not need the answer any more, for this reason.
    Withdrawn(String),
}

impl QuestionRecord<'_> {
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

/// Returns the questions of an attempt, open and closed, oldest first.
pub fn questions_of_attempt<'a>(
    task: &'a Task,
    attempt: &'a Attempt,
) -> impl Iterator<Item = QuestionRecord<'a>> + 'a {
    attempt.questions(task).filter_map(|(id, wait)| {
        let question = wait.wait.condition.question()?;
        Some(QuestionRecord { id, wait, question, state: state_of(task, attempt, wait) })
    })
}

fn state_of<'a>(task: &Task, attempt: &Attempt, wait: &'a AttemptWait) -> QuestionState<'a> {
    match &wait.end {
        Some(WaitEnd::Answered { by, answer }) if !by.is_empty() => QuestionState::Answered { by, answer },
        Some(
            WaitEnd::Answered { .. }
            | WaitEnd::TimeReached
            | WaitEnd::Signalled { .. }
            | WaitEnd::Expired
            | WaitEnd::TasksEnded(_),
        ) => QuestionState::Expired,
        None if task.state() == TaskState::Waiting && task.attempt == attempt.number => QuestionState::Open,
        None => {
            let reason = task.end_reason().map(|reason| format!(": {reason}")).unwrap_or_default();
            QuestionState::Withdrawn(format!("task {} is {}{reason}", task.spec.id, task.state()))
        }
    }
}

/// Returns all questions of a run, open and closed, by task in the order of the plan.
pub fn questions_of_plan(plan: &Plan) -> impl Iterator<Item = QuestionRecord<'_>> {
    let attempts = plan.tasks().iter().flat_map(|task| task.attempts.iter().map(move |one| (task, one)));
    attempts.flat_map(|(task, attempt)| questions_of_attempt(task, attempt))
}

/// Returns the open questions of a run, the oldest first.
pub fn open_questions_of_plan(plan: &Plan) -> Vec<QuestionRecord<'_>> {
    let parked = plan.parked_attempts().flat_map(|(task, attempt)| questions_of_attempt(task, attempt));
    let mut open: Vec<QuestionRecord<'_>> = parked.filter(QuestionRecord::is_open).collect();
    open.sort_by_key(|record| record.wait.since);
    open
}

/// Returns the id of a question as users copy it: `<run>/<task>/<attempt>/<number>`.
pub fn full_id(run: &RunId, id: &QuestionId) -> String {
    format!("{run}/{id}")
}
