//! The checks of an answer beyond its form: those of code, and the verification of its statements.

use millrace_protocol::result::VerifiedStatement;
use millrace_verification::Verification;

/// A check of an answer against facts outside of it, before it counts. A resumed attempt repeats it with the same outcome.
pub trait AnswerCheck<A>: Send + Sync {
    /// Returns the final form of an answer.
    ///
    /// # Errors
    /// The mistakes, worded for the model to correct.
    fn check(&self, answer: A) -> Result<A, String>;

    /// Begins the verification of the statements of a checked answer; `None` if there is nothing to compare them with.
    fn begin_verification(&self, answer: &A) -> Option<Verification> {
        let _ = answer;
        None
    }

    /// Returns the answer with the verdicts on its statements.
    ///
    /// # Errors
    /// The refuted statements, worded for the model to correct.
    fn conclude(&self, answer: A, statements: Vec<VerifiedStatement>) -> Result<A, String> {
        drop(statements);
        Ok(answer)
    }
}

impl<A, F: Fn(A) -> Result<A, String> + Send + Sync> AnswerCheck<A> for F {
    fn check(&self, answer: A) -> Result<A, String> {
        self(answer)
    }
}
