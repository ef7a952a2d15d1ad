//! The field `context` of a capability file: how its agent's conversation is kept within its model's window.

use millrace_models::{Model, ModelSelection};
use millrace_strict_yaml::{MappingFields, YamlMistake, YamlNode, deserialize_node};
use serde_json::{Value, json};

use crate::turn::ContextSettings;

/// The shares of the window that a file may name, in percent.
const SHARES: std::ops::RangeInclusive<f64> = 10.0..=95.0;

/// The context settings of an agent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ContextSpec {
    /// The percentage of the window from which on its conversation is shortened; `None` is 85.
    pub compact_at: Option<u8>,
    /// The model that summarises it; `None` is its own.
    pub summary_model: Option<ModelSelection>,
}

impl ContextSpec {
    /// The settings of a conversation with this model.
    pub(crate) fn settings_for(&self, model: &dyn Model) -> ContextSettings {
        let compact_at = self.compact_at.unwrap_or(ContextSettings::COMPACT_AT);
        ContextSettings { window: model.context_window(), compact_at }
    }
}

/// Reads the field.
pub(super) fn read_context(node: &YamlNode) -> Result<ContextSpec, YamlMistake> {
    let fields = MappingFields::from_node(node, "context", &["compact_at", "summary_model"])?;
    let compact_at = fields.find_field("compact_at").map(read_share).transpose()?;
    let summary_model =
        fields.find_field("summary_model").map(|node| deserialize_node(node, "summary_model")).transpose()?;
    Ok(ContextSpec { compact_at, summary_model })
}

fn read_share(node: &YamlNode) -> Result<u8, YamlMistake> {
    let share: f64 = deserialize_node(node, "compact_at")?;
    let percent = (share * 100.0).round();
    if !SHARES.contains(&percent) {
        return Err(node.mismatch_error("compact_at", "a share of the context window from 0.1 to 0.95"));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the percentage was checked to lie between 10 and 95"
    )]
    Ok(percent as u8)
}

/// The schema of the field.
pub(super) fn context_schema() -> Value {
    json!({
        "description": "The rules that keep its conversation within the context window of its model.",
        "type": "object",
        "properties": {
            "compact_at": {
                "description": "The share of the window from which on older messages are cut and summarised; 0.85 by default.",
                "type": "number",
                "minimum": 0.1,
                "maximum": 0.95,
            },
            "summary_model": {
                "description": "The model that summarises, as in `model`; by default the agent's own.",
                "type": ["string", "object"],
            },
        },
        "additionalProperties": false,
    })
}
