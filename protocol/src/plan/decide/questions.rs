//! Answers of persons to open questions. The first answer that fits an open question counts; every other is refused with the
//! answer that counts, its author and its time.

use std::borrow::Cow;

use jiff::Timestamp;

use super::super::state::{Attempt, AttemptWait, Plan, Task, TaskState};
use super::super::{AttemptEvent, Event, Refusal, UserEvent};
use super::truncate_for_plan;
use super::waits::end_waits;
use crate::question::{AnswerScope, ExpiryAction, Question, QuestionId, RunAnswer, StandingAnswer};
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
    let (task, attempt, wait, question) =
        find_question(plan, asked).ok_or_else(|| refuse("there is no such question".into()))?;
    check_is_open(task, attempt, wait, asked).map_err(|why| refuse(why.into()))?;
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
    let mut events = vec![Event::User(UserEvent::Commanded { id: id.clone(), by: by.clone(), what })];
    let standing = standing_answer(task, question, given);
    if let Some(standing) = &standing {
        if plan.run.standing_answers.len() >= MAX_STANDING_ANSWERS {
            return Err(refuse(
                format!("a run keeps at most {MAX_STANDING_ANSWERS} answers for further calls").into(),
            ));
        }
        events.push(Event::User(UserEvent::StandingAnswerGiven(standing.clone())));
    }
    let end = WaitEnd::Answered { by: by.clone(), answer: answer.clone() };
    let ended = EndedWait { key: wait.wait.key.clone(), end };
    let Some(standing) = standing else {
        return Ok(end_waits(task, events, attempt.open_waits(), vec![ended]));
    };
    // It also decides the other open questions that it applies to.
    for (other, attempt) in plan.parked_attempts() {
        let is_it = other.spec.id == task.spec.id;
        let mut all: Vec<EndedWait> = is_it.then(|| ended.clone()).into_iter().collect();
        let open: Vec<Wait> =
            attempt.open_waits().filter(|wait| !is_it || wait.key != ended.key).cloned().collect();
        all.extend(ends_by_standing_answers(other, &open, std::slice::from_ref(&standing)));
        events = end_waits(other, events, attempt.open_waits(), all);
    }
    Ok(events)
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

/// The ends of those of these waits that an earlier answer decides.
pub(super) fn ends_by_standing_answers(
    task: &Task,
    waits: &[Wait],
    standing: &[StandingAnswer],
) -> Vec<EndedWait> {
    let end = |wait: &Wait| {
        let question = wait.condition.question()?;
        // The newest decision applies.
        let given = standing.iter().rev().find(|given| given.applies_to(&task.spec.capability, question))?;
        let end = WaitEnd::Answered { by: given.by.clone(), answer: given.answer.clone() };
        Some(EndedWait { key: wait.key.clone(), end })
    };
    waits.iter().filter_map(end).collect()
}

/// Returns the question, with its task, attempt and wait; `None` if there is no such question.
fn find_question<'a>(
    plan: &'a Plan,
    asked: &QuestionId,
) -> Option<(&'a Task, &'a Attempt, &'a AttemptWait, &'a Question)> {
    let task = plan.task(&asked.task)?;
    let attempt = task.attempts.iter().find(|attempt| attempt.number == asked.attempt)?;
    let wait = attempt.waits.get(usize::try_from(asked.number).ok()?.checked_sub(1)?)?;
    let question = wait.wait.condition.question()?;
    (asked.round > 0 && asked.round <= wait.round).then_some((task, attempt, wait, question))
}

/// # Errors
/// The question is closed; the error says why, since when, and by whom.
fn check_is_open(
    task: &Task,
    attempt: &Attempt,
    wait: &AttemptWait,
    asked: &QuestionId,
) -> Result<(), String> {
    let at = |at: Option<Timestamp>| match at {
        Some(at) => format!(" at {}", at.strftime("%Y-%m-%d %H:%M:%S UTC")),
        None => String::new(),
    };
    if let Some(end) = &wait.end {
        return Err(match end {
            WaitEnd::Answered { by, .. } if by.is_empty() => format!("it expired{}", at(wait.ended_at)),
            WaitEnd::Answered { .. } => format!("{end}{}", at(wait.ended_at)),
            WaitEnd::TimeReached | WaitEnd::Signalled { .. } | WaitEnd::Expired | WaitEnd::TasksEnded(_) => {
                "it is closed".into()
            }
        });
    }
    if asked.round < wait.round {
        let now = QuestionId { round: wait.round, ..asked.clone() };
        return Err(format!("it expired and was asked again as {now}{}", at(Some(wait.since))));
    }
    if task.state() == TaskState::Waiting && task.attempt == attempt.number {
        return Ok(());
    }
    Err(match task.end_reason() {
        Some(reason) => format!("it was withdrawn: task {} is {}: {reason}", task.spec.id, task.state()),
        None => format!("it was withdrawn: task {} is {}", task.spec.id, task.state()),
    })
}

/// The consequence of an expired question. It is never an approval.
pub(super) enum ExpiredQuestion {
    /// The wait ends.
    Ended(EndedWait),
    /// The question gets another round.
    Renewed(Event),
    /// The task fails, for this reason.
    Failed(String),
}

/// Returns the consequence of an expired question.
pub(super) fn expire_question(task: &Task, wait: &AttemptWait, question: &Question) -> ExpiredQuestion {
    let key = &wait.wait.key;
    let rejected = || {
        let end = WaitEnd::Answered { by: String::new(), answer: question.answer_of_expiry() };
        ExpiredQuestion::Ended(EndedWait { key: key.clone(), end })
    };
    let renewed = |to: &str| {
        ExpiredQuestion::Renewed(Event::Attempt(AttemptEvent::QuestionRenewed {
            task: task.spec.id.clone(),
            attempt: task.attempt,
            key: key.clone(),
            to: to.to_owned(),
        }))
    };
    let Some(expiry) = &question.expiry else { return rejected() };
    match expiry.action {
        ExpiryAction::FailTask => ExpiredQuestion::Failed(format!("nobody answered in time: {question}")),
        ExpiryAction::AskAgain => renewed(&question.to),
        ExpiryAction::Escalate if wait.round == 1 => renewed(&expiry.escalate_to),
        ExpiryAction::Reject | ExpiryAction::Escalate => rejected(),
    }
}
