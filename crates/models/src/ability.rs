//! The ability of a model to follow long instructions: it selects the variant of the prompts and the form of the answers.
//! It owns the table. A name tells the size of most open models (`qwen3:8b`, `mixtral-8x7b`); the families below decide
//! the rest, and without either it depends on the provider: servers of local models run small ones.

use serde::{Deserialize, Serialize};

use crate::provider::{ParsedModelName, Provider, parse_model_name};

/// The number of parameters, in billions, from which a model counts as strong.
const STRONG_FROM_BILLIONS: f64 = 20.0;

/// Families whose names do not tell the size, by a part of the name. The first match counts.
const FAMILIES: [(&str, ModelAbility); 18] = [
    ("tinyllama", ModelAbility::Small),
    ("smollm", ModelAbility::Small),
    ("phi-", ModelAbility::Small),
    ("phi3", ModelAbility::Small),
    ("phi4", ModelAbility::Small),
    ("gemma", ModelAbility::Small),
    ("ministral", ModelAbility::Small),
    ("gpt-oss", ModelAbility::Strong),
    ("gpt-", ModelAbility::Strong),
    ("claude", ModelAbility::Strong),
    ("gemini", ModelAbility::Strong),
    ("grok", ModelAbility::Strong),
    ("kimi", ModelAbility::Strong),
    ("glm-", ModelAbility::Strong),
    ("deepseek-v", ModelAbility::Strong),
    ("mistral-large", ModelAbility::Strong),
    ("command-r", ModelAbility::Strong),
    ("qwen-max", ModelAbility::Strong),
];

/// The ability of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelAbility {
    /// It needs short prompts and small forms, and is unreliable with tools.
    Small,
    /// It follows long instructions and uses tools.
    #[default]
    Strong,
}

impl ModelAbility {
    /// All abilities.
    pub const ALL: [Self; 2] = [Self::Small, Self::Strong];

    /// `true` for [`ModelAbility::Small`].
    #[must_use]
    pub const fn is_small(self) -> bool {
        matches!(self, Self::Small)
    }

    /// Its name in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Strong => "strong",
        }
    }

    /// Returns the ability of a provider's model.
    #[must_use]
    pub fn of_model(provider: Provider, model: &str) -> Self {
        let name = model.to_lowercase();
        if let Some(billions) = parse_parameter_count(&name) {
            return if billions < STRONG_FROM_BILLIONS { Self::Small } else { Self::Strong };
        }
        let family = FAMILIES.iter().find(|(part, _)| name.contains(part)).map(|(_, ability)| *ability);
        family.unwrap_or(if provider.is_local() { Self::Small } else { Self::Strong })
    }

    /// Returns the ability of a model by its full name, `provider:model`.
    #[must_use]
    pub fn of_full_name(name: &str) -> Self {
        match parse_model_name(name) {
            Ok(ParsedModelName::Model { provider, model, address: _ }) => Self::of_model(provider, &model),
            Ok(ParsedModelName::Script(_) | ParsedModelName::Replay(_)) | Err(_) => Self::Strong,
        }
    }
}

/// Returns the number of parameters in billions that a name contains, such as 8 for `qwen3:8b`, 56 for `mixtral-8x7b` and
/// 0.135 for `smollm2:135m`. `name` is in lowercase.
fn parse_parameter_count(name: &str) -> Option<f64> {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
    words.filter_map(parse_size_word).next_back()
}

fn parse_size_word(word: &str) -> Option<f64> {
    // `1m` is the length of a context.
    let (number, unit, least) = match (word.strip_suffix('b'), word.strip_suffix('m')) {
        (Some(number), _) => (number, 1.0, 0.1),
        (None, Some(number)) => (number, 0.001, 0.05),
        (None, None) => return None,
    };
    let (experts, each) = number.split_once('x').unwrap_or(("1", number));
    let has_digits = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let is_number = [experts, each].iter().all(|text| has_digits(text) && all_digits(text));
    let count =
        is_number.then(|| Some(experts.parse::<f64>().ok()? * each.parse::<f64>().ok()? * unit))??;
    (count >= least).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ability_follows_from_the_size_the_family_or_the_provider() {
        for (name, ability) in [
            ("ollama:qwen3:8b", ModelAbility::Small),
            ("ollama:qwen3:4b-thinking-2507-q4_K_M", ModelAbility::Small),
            ("ollama:qwen3:32b", ModelAbility::Strong),
            ("ollama:mixtral-8x7b", ModelAbility::Strong),
            ("lm-studio:Qwen2.5-Coder-1.5B-Instruct", ModelAbility::Small),
            ("openrouter:meta-llama/llama-3.1-8b-instruct", ModelAbility::Small),
            ("openrouter:qwen/qwen3.7-plus", ModelAbility::Strong),
            ("ollama:smollm2:135m", ModelAbility::Small),
            ("ollama:gemma3", ModelAbility::Small),
            ("openai:gpt-6-1m", ModelAbility::Strong),
            ("ollama:gpt-oss", ModelAbility::Strong),
            ("ollama:gpt-oss:20b", ModelAbility::Strong),
            ("openai-compatible:default@http://127.0.0.1:8081/v1", ModelAbility::Small),
            ("openai-compatible:claude-sonnet-5-5@https://gateway.example/v1", ModelAbility::Strong),
            ("openai:gpt-6-sol", ModelAbility::Strong),
            ("anthropic:claude-sonnet-5-5", ModelAbility::Strong),
            ("script:model.yaml", ModelAbility::Strong),
            ("no provider: x", ModelAbility::Strong),
        ] {
            assert_eq!(ModelAbility::of_full_name(name), ability, "{name}");
        }
    }
}
