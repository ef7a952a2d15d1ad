//! What work used, in all and by model. It adds and decides nothing.

use millrace_protocol::result::{ModelUsage, Usage};
use serde::{Deserialize, Serialize};

/// What work used, in all and by the model that it was used of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// All of it.
    pub usage: Usage,
    /// The same by the full name of the model; what tools used that ask no model is in [`Spent::usage`] alone.
    #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
    pub models: ModelUsage,
}

impl Spent {
    /// What was used of one model.
    #[must_use]
    pub fn on(model: &str, usage: Usage) -> Self {
        Self { usage, models: ModelUsage::from([(model.to_owned(), usage)]) }
    }

    /// Adds what another piece of work used.
    pub fn add(&mut self, other: &Self) {
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
    fn what_is_used_of_a_model_is_counted_with_it_and_in_all() {
        let of = |input_tokens| Usage { model_calls: 1, input_tokens, ..Usage::default() };
        let mut spent = Spent::default();
        for (model, input) in [("a:x", 3), ("b:y", 4), ("a:x", 5)] {
            spent.add(&Spent::on(model, of(input)));
        }
        let two = Usage { model_calls: 2, ..of(8) };
        assert_eq!(spent.models, ModelUsage::from([("a:x".into(), two), ("b:y".into(), of(4))]));
        assert_eq!((spent.usage.model_calls, spent.usage.input_tokens), (3, 12));
    }
}
