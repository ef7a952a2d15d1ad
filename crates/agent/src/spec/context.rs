//! The field `context` of a capability file: how its agent's conversation is kept within its model's window.

use millrace_models::{Model, ModelSelection};
use millrace_strict_yaml::tidy_schema;
use schemars::JsonSchema;
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer};

use super::schema::TextOrObject;
use crate::turn::ContextSettings;

/// The shares of the window that a file may name, in percent.
const SHARES: std::ops::RangeInclusive<f64> = 10.0..=95.0;

/// The context settings of an agent.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename = "context", default, deny_unknown_fields)]
#[schemars(transform = tidy_schema)]
pub struct ContextSpec {
    /// The share of the window from which on older messages are cut and summarised; 0.85 by default.
    #[serde(deserialize_with = "read_percent")]
    #[schemars(with = "Option<f64>", range(min = 0.1, max = 0.95))]
    pub compact_at: Option<u8>,
    /// The model that summarises, as in `model`; by default the agent's own.
    #[schemars(with = "TextOrObject")]
    pub summary_model: Option<ModelSelection>,
}

impl ContextSpec {
    /// The settings of a conversation with this model.
    pub(crate) fn settings_for(&self, model: &dyn Model) -> ContextSettings {
        let compact_at = self.compact_at.unwrap_or(ContextSettings::COMPACT_AT);
        ContextSettings { window: model.context_window(), compact_at }
    }
}

/// Reads a share as a percentage.
fn read_percent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    let share = f64::deserialize(deserializer)?;
    let percent = (share * 100.0).round();
    if !SHARES.contains(&percent) {
        let expected = &"a share of the context window from 0.1 to 0.95";
        return Err(D::Error::invalid_value(Unexpected::Float(share), expected));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the percentage was checked to lie between 10 and 95"
    )]
    Ok(Some(percent as u8))
}
