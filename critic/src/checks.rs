//! The checks of a review, one after another, each of them a step of its journal: whoever takes the review over makes
//! none again whose outcome is known.

use std::sync::Arc;

use millrace_agent::critic::checks::{NoCheck, faults, name, outcome, reads_documents};
use millrace_agent::desk::Desk;
use millrace_protocol::plan::ReviewCheck;
use millrace_protocol::result::{CriterionOutcome, ErrorKind, TaskError, TaskResult};
use millrace_protocol::work::Order;
use millrace_runtime::host::Attempt;
use millrace_seat::{Reading, unreadable};

use crate::program::Programs;

/// What all checks of an order come to.
///
/// # Errors
/// One of them can't be made, the documents can't be had, or the journal can't go on.
pub(crate) async fn make(
    desk: &Desk,
    programs: &Programs,
    attempt: &mut Attempt,
    order: &Order,
    result: &TaskResult,
) -> Result<Vec<CriterionOutcome>, TaskError> {
    let documents = order.documents.as_ref().filter(|_| order.checks.iter().any(reads_documents));
    let corpus = match documents {
        None => None,
        Some(set) => {
            let sources = Arc::new(Reading(attempt.reader()));
            let opened = desk.documents(set, sources.as_ref()).await;
            Some(opened.map_err(|error| unreadable(attempt, error))?)
        }
    };
    let mut outcomes = Vec::with_capacity(order.checks.len());
    for (number, check) in order.checks.iter().enumerate() {
        let made = async {
            let found = match faults(check, result, corpus.as_deref()).map_err(senseless)? {
                Some(found) => found,
                None => by_program(programs, check, result).await?,
            };
            Ok(outcome(&name(check), found))
        };
        outcomes.push(attempt.step(&format!("check.{number}"), made).await?);
    }
    Ok(outcomes)
}

async fn by_program(
    programs: &Programs,
    check: &ReviewCheck,
    result: &TaskResult,
) -> Result<Vec<String>, TaskError> {
    match check {
        ReviewCheck::Command { command, timeout_s } => programs.faults(command, *timeout_s, result).await,
        ReviewCheck::Citations
        | ReviewCheck::Quotations
        | ReviewCheck::Schema(_)
        | ReviewCheck::Matches(_)
        | ReviewCheck::MatchesNot(_) => Ok(Vec::new()),
    }
}

/// No other try makes sense of it.
fn senseless(no_check: NoCheck) -> TaskError {
    TaskError::new(ErrorKind::InvalidTask, no_check.to_string())
}
