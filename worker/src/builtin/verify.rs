//! The capability `verify`: the statements of a given text, compared with the documents of the run.

use std::sync::Arc;

use millrace_agent::verification::MAX_TEXT;
use millrace_protocol::subject::VERIFY;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{Capability, capability};

/// The parameters of a task.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct VerifyParameters {
    /// The text to verify, as Markdown.
    #[schemars(length(max = MAX_TEXT))]
    text: String,
}

pub(super) fn verify_capability() -> Arc<dyn Capability> {
    let description = "Compares each statement of a given text with the documents of the run. The result is the text with footnotes \
                       at the statements that are not supported, and the verdicts.";
    let verify = capability!(VERIFY, description, async |attempt, parameters: VerifyParameters| {
        let order = attempt.order().clone();
        let verified = attempt.agents.verify_text(&order, parameters.text, attempt.host.agent_environment());
        verified.await.map_err(|error| attempt.host.end_with_session_error(error))
    });
    verify.expect("the name is valid")
}
