//! Usage totals of a piece of work, in total and by model. Arithmetic only.

use millrace_protocol::result::{ModelUsage, Usage};
use serde::{Deserialize, Serialize};

/// The usage of a piece of work, in total and by model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageTotals {
    /// The total.
    pub usage: Usage,
    /// The same by full model name; usage by tools that call no model is only in [`UsageTotals::usage`].
    #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
    pub models: ModelUsage,
}

impl UsageTotals {
    /// The usage of one model.
    #[must_use]
    pub fn from_model_usage(model: &str, usage: Usage) -> Self {
        Self { usage, models: ModelUsage::from([(model.to_owned(), usage)]) }
    }

    /// Adds the usage of another piece of work.
    pub fn add_totals(&mut self, other: &Self) {
        self.usage.add(other.usage);
        for (model, usage) in &other.models {
            self.models.entry(model.clone()).or_default().add(*usage);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_counted_by_model_and_in_total() {
        let of = |input_tokens| Usage { model_calls: 1, input_tokens, ..Usage::default() };
        let mut spent = UsageTotals::default();
        for (model, input) in [("a:x", 3), ("b:y", 4), ("a:x", 5)] {
            spent.add_totals(&UsageTotals::from_model_usage(model, of(input)));
        }
        let two = Usage { model_calls: 2, ..of(8) };
        assert_eq!(spent.models, ModelUsage::from([("a:x".into(), two), ("b:y".into(), of(4))]));
        assert_eq!((spent.usage.model_calls, spent.usage.input_tokens), (3, 12));
    }
}
