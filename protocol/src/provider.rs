//! Outages of models' providers, as the attempts that wait for their end report them.

use std::fmt;

use jiff::Timestamp;
use millrace_api_form::ApiForm;
use serde::{Deserialize, Serialize};

/// A wait for a model's provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ApiForm)]
pub struct ProviderWait {
    /// The model, as `provider:model`.
    pub model: String,
    /// The time of the first failure.
    pub since: Timestamp,
    /// The time of the next request.
    #[api(name = "next_try_at")]
    pub next_try: Timestamp,
    /// The number of failures.
    // So far, each after the quick retries of one request.
    pub tries: u32,
    /// The last error.
    pub error: String,
}

/// `openai:gpt-5.2 since 12:00:00, next try at 12:04:00, last error: …`.
impl fmt::Display for ProviderWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |at: Timestamp| at.strftime("%H:%M:%S").to_string();
        let Self { model, since, next_try, tries: _, error } = self;
        write!(f, "{model} since {}, next try at {}, last error: {error}", time(*since), time(*next_try))
    }
}

/// A change in the wait of an attempt for its provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProviderStatus {
    /// A request failed; the attempt waits for the next try.
    Waiting(ProviderWait),
    /// The provider answered.
    Recovered,
    /// The provider did not answer within the run's provider timeout.
    GivenUp(ProviderWait),
}
