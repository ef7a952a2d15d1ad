//! Answers of persons to open questions.
//!
//! # Invariants
//!
//! - I114: Of all answers to a question, the first in the log that fits it counts. Every other is refused, with the author, the
//!   answer and the time that count, and an answer that does not fit leaves the question open.
//!   (`protocol/tests/rules/questions.rs::every_answer_to_every_state_of_a_question`,
//!   `tests/tests/questions.rs::of_three_answers_at_once_one_wins_and_the_others_are_told_who`,
//!   `tests/tests/questions.rs::answers_that_do_not_fit_leave_the_question_open`)

use std::borrow::Cow;

use jiff::Timestamp;

use super::super::state::{AttemptWait, Plan, QuestionState, RunQuestion, Task};
use super::super::{Event, Refusal, UserEvent};
use super::approval::answer_plan_question;
use super::questions::ends_by_standing_answers;
use super::truncate_for_plan;
use super::waits::{end_waits, end_waits_of_attempt};
use crate::question::{AnswerScope, Question, QuestionId, RunAnswer, StandingAnswer};
use crate::wait::{EndedWait, Wait, WaitEnd};

/// The maximum length of the name of an author, in bytes.
const MAX_AUTHOR: usize = 256;
/// The largest number of standing answers that a run keeps.
const MAX_STANDING_ANSWERS: usize = 1_000;

/// Handles the answer of a person.
pub(super) fn handle_answer(plan: &Plan, given: &RunAnswer) -> Result<Vec<Event>, Refusal> {
    let RunAnswer { id, by, question: asked, digest, answer, scope } = given;
    if plan.run.commands.contains(id) {
        return Err(Refusal::AlreadyApplied(id.clone()));
    }
    let refuse = |why: Cow<'static, str>| Refusal::Question { question: asked.clone(), why: why.into() };
    let found = plan.question(asked).ok_or_else(|| refuse("there is no such question".into()))?;
    check_is_open(&found, asked).map_err(|why| refuse(why.into()))?;
    let question = found.question;
    if question.digest != *digest {
        let why = "the answer is for other arguments than those of the question; look at it again";
        return Err(refuse(why.into()));
    }
    question.check_answer(answer, *scope).map_err(|why| refuse(why.into()))?;
    if by.trim().is_empty() || by.len() > MAX_AUTHOR || by.chars().any(char::is_control) {
        let why = format!("the name of its author must be 1 to {MAX_AUTHOR} bytes of text in one line");
        return Err(refuse(why.into()));
    }
    let what = truncate_for_plan(&format!("answer the question {asked}: {answer}"));
    let events = vec![Event::User(UserEvent::Commanded { id: id.clone(), by: by.clone(), what })];
    let Some((task, attempt)) = found.task.and_then(|task| Some((task, task.current_attempt()?))) else {
        return answer_plan_question(plan, events, by, answer).map_err(|why| refuse(why.into()));
    };
    if attempt.judgements().any(|wait| is_answered_by(wait, by)) {
        return Err(refuse(
            format!("{by} has judged this result already; another person must answer").into(),
        ));
    }
    let end = WaitEnd::Answered { by: by.clone(), answer: answer.clone() };
    let ended = EndedWait { key: found.wait.wait.key.clone(), end };
    match standing_answer(task, question, given) {
        None => Ok(end_waits_of_attempt(plan, (task, attempt), events, vec![ended])),
        Some(_) if plan.run.standing_answers.len() >= MAX_STANDING_ANSWERS => Err(refuse(
            format!("a run keeps at most {MAX_STANDING_ANSWERS} answers for further calls").into(),
        )),
        Some(standing) => Ok(apply_standing_answer(plan, task, events, (standing, ended))),
    }
}

fn is_answered_by(wait: &AttemptWait, person: &str) -> bool {
    matches!(&wait.end, Some(WaitEnd::Answered { by, .. }) if by == person)
}

/// Ends a wait, and the other open questions that the same answer decides.
fn apply_standing_answer(
    plan: &Plan,
    task: &Task,
    mut events: Vec<Event>,
    (standing, ended): (StandingAnswer, EndedWait),
) -> Vec<Event> {
    events.push(Event::User(UserEvent::StandingAnswerGiven(standing.clone())));
    for (other, attempt) in plan.parked_attempts() {
        let is_it = other.spec.id == task.spec.id;
        let mut all: Vec<EndedWait> = is_it.then(|| ended.clone()).into_iter().collect();
        let open: Vec<Wait> =
            attempt.open_waits().filter(|wait| !is_it || wait.key != ended.key).cloned().collect();
        all.extend(ends_by_standing_answers(other, &open, std::slice::from_ref(&standing)));
        events = end_waits(other, events, attempt.open_waits(), all);
    }
    events
}

/// The answer for further calls, if this is one.
fn standing_answer(task: &Task, question: &Question, given: &RunAnswer) -> Option<StandingAnswer> {
    let digest = match given.scope {
        AnswerScope::Once => return None,
        AnswerScope::ThisCallInRun => Some(question.digest.clone()),
        AnswerScope::ThisToolInRun => None,
    };
    Some(StandingAnswer {
        capability: task.spec.capability.clone(),
        tool: question.tool()?.to_owned(),
        digest,
        by: given.by.clone(),
        answer: given.answer.clone(),
    })
}

/// # Errors
/// The question is closed; the error says why, since when, and by whom.
fn check_is_open(found: &RunQuestion<'_>, asked: &QuestionId) -> Result<(), String> {
    let at = |at: Option<Timestamp>| match at {
        Some(at) => format!(" at {}", at.strftime("%Y-%m-%d %H:%M:%S UTC")),
        None => String::new(),
    };
    match &found.state {
        QuestionState::Answered { by, answer } => Err(format!("{by} {answer}{}", at(found.wait.ended_at))),
        QuestionState::Expired => Err(format!("it expired{}", at(found.wait.ended_at))),
        QuestionState::Withdrawn(reason) => Err(format!("it was withdrawn: {reason}")),
        QuestionState::Open if asked.round < found.id.round => {
            let what = if found.task.is_some() { "it expired and" } else { "the plan has changed, and it" };
            Err(format!("{what} was renewed as {}{}", found.id, at(Some(found.wait.since))))
        }
        QuestionState::Open => Ok(()),
    }
}
