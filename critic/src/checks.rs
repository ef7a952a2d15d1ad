//! The checks of a review, in order. Each is a step of the review's journal, so that a critic that resumes the review
//! does not repeat them.

use millrace_agent::critic::checks::{
    InvalidCheckError, build_criterion_outcome, check_name, check_reads_documents, find_faults,
};
use millrace_agent::session::AgentHost;
use millrace_host::AttemptContext;
use millrace_protocol::plan::ReviewCheck;
use millrace_protocol::result::{CriterionOutcome, ErrorKind, TaskError, TaskResult};
use millrace_protocol::work::Order;

use crate::check_programs::CheckProgramRunner;

/// Runs all checks of an order.
///
/// # Errors
/// A check can't run, the documents can't be read, or the journal can't be written.
pub(crate) async fn run_checks(
    agents: &AgentHost,
    programs: &CheckProgramRunner,
    attempt: &mut AttemptContext,
    order: &Order,
    result: &TaskResult,
) -> Result<Vec<CriterionOutcome>, TaskError> {
    let checks = order.review_brief().map(|brief| brief.checks.as_slice()).unwrap_or_default();
    let corpus = match checks.iter().any(check_reads_documents) {
        false => None,
        true => {
            let sources = attempt.cluster_reader();
            let opened = agents.open_sources_of_result(order.documents.as_ref(), result, &sources).await;
            opened.map_err(|error| attempt.end_with_session_error(error))?
        }
    };
    let mut outcomes = Vec::with_capacity(checks.len());
    for (number, check) in checks.iter().enumerate() {
        let checked = async {
            let faults = match find_faults(check, result, corpus.as_deref()).map_err(invalid_check_error)? {
                Some(faults) => faults,
                None => run_check_program(programs, check, result).await?,
            };
            Ok(build_criterion_outcome(&check_name(check), faults))
        };
        outcomes.push(attempt.run_step_once(&format!("check.{number}"), checked).await?);
    }
    Ok(outcomes)
}

async fn run_check_program(
    programs: &CheckProgramRunner,
    check: &ReviewCheck,
    result: &TaskResult,
) -> Result<Vec<String>, TaskError> {
    match check {
        ReviewCheck::Command { command, timeout_s } => {
            programs.run_program_and_find_faults(command, *timeout_s, result).await
        }
        ReviewCheck::Citations
        | ReviewCheck::Quotations
        | ReviewCheck::Schema(_)
        | ReviewCheck::Matches(_)
        | ReviewCheck::MatchesNot(_) => Ok(Vec::new()),
    }
}

/// Not retryable: the check itself is invalid.
fn invalid_check_error(error: InvalidCheckError) -> TaskError {
    TaskError::new(ErrorKind::InvalidTask, error.to_string())
}
