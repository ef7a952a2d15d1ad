//! The consequences of verdicts for a result, by the policy of its run or capability.

use millrace_protocol::result::{ErrorKind, TaskError, TaskResult, VerificationPolicy, VerifiedStatement};
use millrace_verification::{Phrases, mark_statements, place_statements, remove_refuted_statements};

use crate::answers::findings;

/// Adds the verdicts on its statements to a result, with the consequences of the policy. The one that is delivered marks those that are
/// not verified.
///
/// # Errors
/// The policy requires that all statements are supported, and one is not.
pub(super) fn add_verdicts(
    mut result: TaskResult,
    statements: Vec<VerifiedStatement>,
    policy: VerificationPolicy,
    question: &str,
    is_final: bool,
) -> Result<TaskResult, TaskError> {
    let phrases = Phrases::choose(question, &result.output);
    let is_mark = |mark: &str| result.sources.iter().any(|source| source.id == mark);
    let mut statements = place_statements(&result.output, &is_mark, statements);
    match policy {
        VerificationPolicy::Mark => {}
        VerificationPolicy::Remove if statements.iter().any(|one| one.is_refuted() && !one.removed) => {
            (result.output, statements) = remove_refuted_statements(&result.output, statements);
            if statements.iter().all(|one| one.removed) {
                result.output = phrases.everything_removed.clone();
                result.answered = Some(false);
            }
            // It may say what was taken out.
            result.summary = findings::summarize_output(&result.output);
        }
        VerificationPolicy::Remove => {}
        VerificationPolicy::Require => require_support(&statements)?,
    }
    let (output, statements) = match is_final {
        true => mark_statements(&result.output, statements, phrases),
        false => (result.output.clone(), statements),
    };
    Ok(TaskResult { output, statements, ..result })
}

/// # Errors
/// A statement is neither supported nor supported in part.
fn require_support(statements: &[VerifiedStatement]) -> Result<(), TaskError> {
    let open: Vec<&VerifiedStatement> = statements.iter().filter(|one| one.is_open()).collect();
    let Some(first) = open.first() else { return Ok(()) };
    let VerifiedStatement { text, reason, .. } = first;
    Err(TaskError::new(
        ErrorKind::Other,
        format!(
            "verification: {} of {} statements are not supported, and the run requires that all are; the first is {}: \
             “{text}” {reason}",
            open.len(),
            statements.len(),
            first.outcome()
        ),
    ))
}
