//! The JSON of `millrace verify`.

use millrace_agent::verification::VerifiedText;
use millrace_protocol::result::{Usage, VerifiedStatement};
use millrace_verification::VerificationCounts;
use schemars::JsonSchema;
use serde::Serialize;

/// A verified text.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "verification")]
pub struct VerificationJson<'a> {
    /// The numbers of statements, by verdict and finder.
    counts: &'a VerificationCounts,
    /// The statements in order, with their verdicts.
    statements: &'a [VerifiedStatement],
    /// The usage of the model.
    usage: Usage,
}

impl<'a> VerificationJson<'a> {
    pub fn new(verified: &'a VerifiedText, counts: &'a VerificationCounts) -> Self {
        Self { counts, statements: &verified.statements, usage: verified.usage }
    }
}
