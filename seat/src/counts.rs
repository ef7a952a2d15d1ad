//! What is asked of models, on the process's page of metrics. It only counts.

use std::time::Duration;

use millrace_models::{ModelError, Observer};
use millrace_protocol::result::Usage;
use millrace_runtime::metrics::names::{MODEL_COST, MODEL_REQUEST_SECONDS, MODEL_REQUESTS, MODEL_TOKENS};

/// A dollar in the unit of prices.
const DOLLAR: f64 = 1_000_000.0;

/// Counts requests, tokens and dollars by model.
#[derive(Debug, Clone, Copy)]
pub struct Counts;

impl Observer for Counts {
    fn asked(&self, model: &str, outcome: Result<&Usage, &ModelError>, took: Duration) {
        MODEL_REQUEST_SECONDS.timing(&[model]).record(took);
        MODEL_REQUESTS.tally(&[model, outcome.map_or_else(ModelError::kind, |_| "ok")]).one();
        let Ok(usage) = outcome else { return };
        for (direction, tokens) in
            [("input", usage.input_tokens), ("output", usage.output_tokens), ("cached", usage.cached_tokens)]
        {
            MODEL_TOKENS.tally(&[model, direction]).add(tokens as f64);
        }
        MODEL_COST.tally(&[model]).add(usage.cost_micros as f64 / DOLLAR);
    }
}
