//! What is asked of models, on the process's page of metrics. It only counts.
//!
//! A model is on the page before it is asked for the first time, with every outcome that there is: what appears with its
//! first event is no change to whoever looks at changes. Runs may name models as they like, so that the page has room for
//! so many and no more.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_models::choice::Choice;
use millrace_models::{ModelError, Observer};
use millrace_protocol::result::Usage;
use millrace_runtime::metrics::names::{MODEL_COST, MODEL_REQUEST_SECONDS, MODEL_REQUESTS, MODEL_TOKENS};
use millrace_runtime::metrics::{Tally, Timing};

/// A dollar in the unit of prices.
const DOLLAR: f64 = 1_000_000.0;
/// What a request can come to: a reply, or an error of each kind.
const OUTCOMES: [&str; 11] = [
    "ok",
    "rate_limited",
    "overloaded",
    "context_overflow",
    "authentication",
    "content_filter",
    "truncated",
    "bad_request",
    "protocol",
    "timeout",
    "connection",
];
/// How many models are counted by their names.
const MAX_MODELS: usize = 64;
/// What all others are counted under; no model has such a name.
const OTHER: &str = "(other)";

/// What is counted of each model, by its name.
static MODELS: Mutex<BTreeMap<String, Arc<Counted>>> = Mutex::new(BTreeMap::new());

/// Counts requests, tokens and dollars by model.
#[derive(Debug, Clone, Copy)]
pub struct Counts;

impl Counts {
    /// Puts models on the page that may be asked. One that is not named in full comes there when it is asked.
    pub fn expect<'a>(choices: impl IntoIterator<Item = &'a Choice>) {
        let models = choices.into_iter().flat_map(|choice| &choice.models);
        models.filter(|model| model.name.contains(':')).for_each(|model| announce(&model.name));
    }
}

impl Observer for Counts {
    fn asked(&self, model: &str, outcome: Result<&Usage, &ModelError>, took: Duration) {
        let counted = of(model);
        counted.seconds.record(took);
        if let Some(requests) = counted.requests.get(outcome.map_or_else(ModelError::kind, |_| "ok")) {
            requests.one();
        }
        let Ok(usage) = outcome else { return };
        counted.input.add(usage.input_tokens as f64);
        counted.output.add(usage.output_tokens as f64);
        counted.cached.add(usage.cached_tokens as f64);
        counted.cost.add(usage.cost_micros as f64 / DOLLAR);
    }
}

/// Puts a model on the page that is about to be asked.
pub(crate) fn announce(model: &str) {
    drop(of(model));
}

/// What is counted of one model.
struct Counted {
    seconds: Timing,
    requests: BTreeMap<&'static str, Tally>,
    input: Tally,
    output: Tally,
    cached: Tally,
    cost: Tally,
}

impl Counted {
    fn new(model: &str) -> Self {
        let tokens = |direction| MODEL_TOKENS.tally(&[model, direction]);
        Self {
            seconds: MODEL_REQUEST_SECONDS.timing(&[model]),
            requests: OUTCOMES
                .map(|outcome| (outcome, MODEL_REQUESTS.tally(&[model, outcome])))
                .into_iter()
                .collect(),
            input: tokens("input"),
            output: tokens("output"),
            cached: tokens("cached"),
            cost: MODEL_COST.tally(&[model]),
        }
    }
}

fn of(model: &str) -> Arc<Counted> {
    let mut models = MODELS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(counted) = models.get(model) {
        return counted.clone();
    }
    let name = if models.len() < MAX_MODELS { model } else { OTHER };
    models.entry(name.to_owned()).or_insert_with(|| Arc::new(Counted::new(name))).clone()
}

#[cfg(test)]
mod tests {
    use millrace_runtime::metrics::{self, names::Process};

    use super::*;

    /// The value of a series on the page.
    fn value(series: &str) -> Option<f64> {
        let page = metrics::page(Process::Worker);
        let line =
            page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ').map(str::to_owned));
        line?.parse().ok()
    }

    /// An error of each kind. One that is added has to be added here, and to the outcomes.
    fn errors() -> Vec<ModelError> {
        let message = || "m".to_owned();
        let all = vec![
            ModelError::RateLimited { retry_after: None, message: message() },
            ModelError::Overloaded { message: message() },
            ModelError::ContextOverflow { message: message() },
            ModelError::Authentication { message: message() },
            ModelError::ContentFilter { message: message() },
            ModelError::Truncated { message: message() },
            ModelError::BadRequest { message: message() },
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
                | ModelError::ContentFilter { .. }
                | ModelError::Truncated { .. }
                | ModelError::BadRequest { .. }
                | ModelError::Protocol { .. }
                | ModelError::Timeout { .. }
                | ModelError::Connection { .. } => {}
            }
        }
        all
    }

    // One test: the page is the process's, and so is its room.
    #[test]
    fn a_model_is_on_the_page_before_it_was_asked_and_no_more_are_than_there_is_room_for() {
        let choice: Choice = Choice::parse("openai:first,openai:second").unwrap();
        Counts::expect([&choice]);
        for model in ["openai:first", "openai:second"] {
            assert_eq!(value(&format!("millrace_model_cost_dollars_total{{model=\"{model}\"}}")), Some(0.0));
            for outcome in OUTCOMES {
                let series =
                    format!("millrace_model_requests_total{{model=\"{model}\",outcome=\"{outcome}\"}}");
                assert_eq!(value(&series), Some(0.0), "{series}");
            }
        }
        let usage = Usage { input_tokens: 7, cost_micros: 1_500_000, ..Usage::default() };
        Counts.asked("openai:first", Ok(&usage), Duration::from_millis(20));
        assert_eq!(value("millrace_model_cost_dollars_total{model=\"openai:first\"}"), Some(1.5));
        for error in errors() {
            Counts.asked("openai:first", Err(&error), Duration::ZERO);
            let kind = error.kind();
            let series =
                format!("millrace_model_requests_total{{model=\"openai:first\",outcome=\"{kind}\"}}");
            assert_eq!(value(&series), Some(1.0), "{series}");
        }

        (0..200).for_each(|n| Counts.asked(&format!("made:up-{n}"), Ok(&usage), Duration::ZERO));
        let page = metrics::page(Process::Worker);
        let models =
            page.lines().filter(|line| line.starts_with("millrace_model_cost_dollars_total{")).count();
        assert_eq!(models, MAX_MODELS + 1);
        let others = (200 + 2 - MAX_MODELS) as f64;
        assert_eq!(value("millrace_model_requests_total{model=\"(other)\",outcome=\"ok\"}"), Some(others));
    }
}
