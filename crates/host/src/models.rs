//! The requests of models in the cluster: its rate limits as the gate that models pass before each request, and their metrics on
//! the process's metrics page.
//!
//! The series of a model exist before its first request, one for each outcome: a series that appears with its first
//! event has no earlier value, so `rate()` would miss that event. Runs can name any model, so the number of models with
//! series of their own is limited.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use millrace_models::{ModelError, ModelSelection, RateLimiter, RequestObserver};
use millrace_protocol::result::Usage;
use millrace_runtime::ops::metrics::names::{
    GEN_AI_OPERATION_SECONDS, GEN_AI_TOKEN_USAGE, MODEL_COST, MODEL_REQUEST_SECONDS, MODEL_REQUESTS,
    MODEL_TOKENS,
};
use millrace_runtime::ops::metrics::{Counter, Histogram};
use millrace_runtime::store::rate_limits::ClusterRateLimiter;

/// A dollar in the unit of prices.
const DOLLAR: f64 = 1_000_000.0;
/// The outcomes of a request: a reply, or an error of each kind.
const OUTCOMES: [&str; 14] = [
    "ok",
    "rate_limited",
    "overloaded",
    "context_overflow",
    "authentication",
    "no_quota",
    "paused",
    "content_filter",
    "truncated",
    "bad_request",
    "unsupported_setting",
    "protocol",
    "timeout",
    "connection",
];
/// The most models with series of their own.
const MAX_MODELS: usize = 64;
/// The operation in the names of the GenAI conventions.
const OPERATION: &str = "chat";
/// The label value of all other models. No model can have this name.
const OTHER: &str = "(other)";

/// The metrics of each model, by name.
static MODELS: Mutex<BTreeMap<String, Arc<ModelMetricSet>>> = Mutex::new(BTreeMap::new());

/// Counts requests, tokens and cost by model.
#[derive(Debug, Clone, Copy)]
pub struct ModelMetrics;

impl ModelMetrics {
    /// Creates the series of models that may be used. A model without a provider in its name gets them at its first
    /// request.
    pub fn create_series_for_selections<'a>(choices: impl IntoIterator<Item = &'a ModelSelection>) {
        let models = choices.into_iter().flat_map(|choice| &choice.models);
        models.filter(|model| model.name.contains(':')).for_each(|model| create_series(&model.name));
    }
}

impl RequestObserver for ModelMetrics {
    fn request_finished(&self, model: &str, outcome: Result<&Usage, &ModelError>, took: Duration) {
        let metrics = get_or_create_metrics(model);
        metrics.seconds.record(took);
        if let Some(requests) =
            metrics.requests.get(outcome.map_or_else(ModelError::error_kind_name, |_| "ok"))
        {
            requests.increment();
        }
        let error = outcome.err().map_or("", |error| error.error_kind_name());
        metrics.gen_ai_duration(error).record(took);
        let Ok(usage) = outcome else { return };
        metrics.gen_ai_input.record_value(usage.input_tokens as f64);
        metrics.gen_ai_output.record_value(usage.output_tokens as f64);
        metrics.input.add(usage.input_tokens as f64);
        metrics.output.add(usage.output_tokens as f64);
        metrics.cached.add(usage.cached_tokens as f64);
        metrics.cost.add(usage.cost_micros as f64 / DOLLAR);
    }
}

/// Creates the series of a model before its first request.
fn create_series(model: &str) {
    drop(get_or_create_metrics(model));
}

/// The cluster's rate limiter.
#[derive(Clone)]
pub struct NatsRateLimiter(pub ClusterRateLimiter);

impl RateLimiter for NatsRateLimiter {
    fn acquire<'a>(
        &'a self,
        model: &'a str,
        tokens: u64,
        patience: Duration,
    ) -> BoxFuture<'a, Result<(), Duration>> {
        create_series(model);
        self.0.admit_request(model, tokens, patience)
    }

    fn settle<'a>(&'a self, model: &'a str, booked: u64, used: u64) -> BoxFuture<'a, ()> {
        self.0.correct_booked_tokens(model, booked, used)
    }

    fn back_off<'a>(&'a self, model: &'a str, pause: Duration) -> BoxFuture<'a, ()> {
        self.0.pause_model(model, pause)
    }

    fn end_pause<'a>(&'a self, model: &'a str) -> BoxFuture<'a, ()> {
        self.0.end_pause(model)
    }
}

struct ModelMetricSet {
    seconds: Histogram,
    requests: BTreeMap<&'static str, Counter>,
    input: Counter,
    output: Counter,
    cached: Counter,
    cost: Counter,
    /// The provider and the model, as the GenAI conventions name them.
    name: (String, String),
    gen_ai_seconds: Histogram,
    gen_ai_input: Histogram,
    gen_ai_output: Histogram,
}

impl ModelMetricSet {
    fn new(model: &str) -> Self {
        let tokens = |direction| MODEL_TOKENS.with_labels(&[model, direction]);
        let (provider, own) = model.split_once(':').unwrap_or(("", model));
        let gen_ai_tokens = |kind| GEN_AI_TOKEN_USAGE.with_labels(&[OPERATION, provider, own, kind]);
        Self {
            seconds: MODEL_REQUEST_SECONDS.with_labels(&[model]),
            requests: OUTCOMES
                .map(|outcome| (outcome, MODEL_REQUESTS.with_labels(&[model, outcome])))
                .into_iter()
                .collect(),
            input: tokens("input"),
            output: tokens("output"),
            cached: tokens("cached"),
            cost: MODEL_COST.with_labels(&[model]),
            gen_ai_seconds: GEN_AI_OPERATION_SECONDS.with_labels(&[OPERATION, provider, own, ""]),
            gen_ai_input: gen_ai_tokens("input"),
            gen_ai_output: gen_ai_tokens("output"),
            name: (provider.to_owned(), own.to_owned()),
        }
    }

    /// Returns the durations of successful requests, or of those that failed with an error of this kind.
    fn gen_ai_duration(&self, error: &str) -> Histogram {
        match error {
            "" => self.gen_ai_seconds.clone(),
            error => GEN_AI_OPERATION_SECONDS.with_labels(&[OPERATION, &self.name.0, &self.name.1, error]),
        }
    }
}

fn get_or_create_metrics(model: &str) -> Arc<ModelMetricSet> {
    let mut models = MODELS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(metrics) = models.get(model) {
        return metrics.clone();
    }
    let name = if models.len() < MAX_MODELS { model } else { OTHER };
    models.entry(name.to_owned()).or_insert_with(|| Arc::new(ModelMetricSet::new(name))).clone()
}

#[cfg(test)]
mod tests {
    use millrace_runtime::ops::metrics;
    use millrace_runtime::ops::metrics::names::ProcessKind;

    use super::*;

    /// Returns the value of a series on the page.
    fn read_series_value(series: &str) -> Option<f64> {
        let page = metrics::render_metrics(ProcessKind::Worker);
        let line =
            page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ').map(str::to_owned));
        line?.parse().ok()
    }

    /// Returns an error of each kind. A new kind must be added here and to `OUTCOMES`.
    fn sample_model_errors() -> Vec<ModelError> {
        let message = || "m".to_owned();
        let all = vec![
            ModelError::RateLimited { retry_after: None, message: message() },
            ModelError::Overloaded { retry_after: None, message: message() },
            ModelError::ContextOverflow { message: message() },
            ModelError::Authentication { message: message() },
            ModelError::Quota { message: message() },
            ModelError::Paused { retry_after: None, message: message() },
            ModelError::ContentFilter { message: message() },
            ModelError::Truncated { message: message() },
            ModelError::bad_request(message()),
            ModelError::UnsupportedSetting { setting: message(), message: message() },
            ModelError::Protocol { message: message() },
            ModelError::Timeout { after: Duration::ZERO },
            ModelError::Connection { message: message() },
        ];
        for error in &all {
            match error {
                ModelError::RateLimited { .. }
                | ModelError::Overloaded { .. }
                | ModelError::ContextOverflow { .. }
                | ModelError::Authentication { .. }
                | ModelError::Quota { .. }
                | ModelError::Paused { .. }
                | ModelError::ContentFilter { .. }
                | ModelError::Truncated { .. }
                | ModelError::BadRequest { .. }
                | ModelError::UnsupportedSetting { .. }
                | ModelError::Protocol { .. }
                | ModelError::Timeout { .. }
                | ModelError::Connection { .. } => {}
            }
        }
        all
    }

    // One test, because the page and its limit belong to the process.
    #[test]
    fn series_exist_before_the_first_request_and_are_limited() {
        let choice: ModelSelection = ModelSelection::parse("openai:first,openai:second").unwrap();
        ModelMetrics::create_series_for_selections([&choice]);
        for model in ["openai:first", "openai:second"] {
            assert_eq!(
                read_series_value(&format!("millrace_model_cost_dollars_total{{model=\"{model}\"}}")),
                Some(0.0)
            );
            for outcome in OUTCOMES {
                let series =
                    format!("millrace_model_requests_total{{model=\"{model}\",outcome=\"{outcome}\"}}");
                assert_eq!(read_series_value(&series), Some(0.0), "{series}");
            }
        }
        let usage = Usage { input_tokens: 7, cost_micros: 1_500_000, ..Usage::default() };
        ModelMetrics.request_finished("openai:first", Ok(&usage), Duration::from_millis(20));
        assert_eq!(read_series_value("millrace_model_cost_dollars_total{model=\"openai:first\"}"), Some(1.5));
        let model =
            "gen_ai_operation_name=\"chat\",gen_ai_provider_name=\"openai\",gen_ai_request_model=\"first\"";
        let tokens = format!("gen_ai_client_token_usage_sum{{{model},gen_ai_token_type=\"input\"}}");
        assert_eq!(read_series_value(&tokens), Some(7.0));
        let count = format!("gen_ai_client_operation_duration_seconds_count{{error_type=\"\",{model}}}");
        assert_eq!(read_series_value(&count), Some(1.0));
        for error in sample_model_errors() {
            ModelMetrics.request_finished("openai:first", Err(&error), Duration::ZERO);
            let kind = error.error_kind_name();
            let series =
                format!("millrace_model_requests_total{{model=\"openai:first\",outcome=\"{kind}\"}}");
            assert_eq!(read_series_value(&series), Some(1.0), "{series}");
        }

        (0..200)
            .for_each(|n| ModelMetrics.request_finished(&format!("made:up-{n}"), Ok(&usage), Duration::ZERO));
        let page = metrics::render_metrics(ProcessKind::Worker);
        let models =
            page.lines().filter(|line| line.starts_with("millrace_model_cost_dollars_total{")).count();
        assert_eq!(models, MAX_MODELS + 1);
        let others = (200 + 2 - MAX_MODELS) as f64;
        assert_eq!(
            read_series_value("millrace_model_requests_total{model=\"(other)\",outcome=\"ok\"}"),
            Some(others)
        );
    }
}
