//! Questions of parked attempts that nobody has to answer: those that an earlier answer decides, and those that have expired.
//!
//! # Invariants
//!
//! - I115: A question expires only if its capability asked for that, once for each round, and never as an approval.
//!   (`protocol/tests/rules/questions.rs::questions_expire_only_where_that_was_asked_for`,
//!   `protocol/tests/rules/questions.rs::run_that_winds_down_does_not_wait_for_people`)
//! - I131: In a month of waiting, questions expire only where they have an expiry, once for each round; sleeps and start times
//!   end once. (`tests/tests/month.rs::month_of_waiting_expires_only_what_was_asked_to`)

use super::super::state::{AttemptWait, Task};
use super::super::{AttemptEvent, Event};
use crate::question::{ExpiryAction, Question, StandingAnswer};
use crate::wait::{EndedWait, Wait, WaitEnd};

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

/// The consequence of an expired question. It is never an approval.
pub(super) enum ExpiredQuestion {
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
