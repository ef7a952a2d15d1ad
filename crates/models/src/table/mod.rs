//! The table of models: prices, context windows and abilities. The built-in prices are in `models.json`, with their dates; windows and
//! abilities that no entry names follow from [`crate::families`]. The file in
//! `MILLRACE_PRICES` has the same format (JSON or YAML); each of its fields takes precedence over what is built in:
//!
//! ```yaml
//! providers:
//! - provider: openai-compatible
//!   as_of: 2026-11-01
//!   source: our contract
//!   models:
//!     qwen: {input: 0.1, cached: 0.05, output: 0.4}   # US dollars per million tokens
//!     qwen-vl: {context_window: 65536, prompts: small, images: true}
//! ```

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use millrace_protocol::result::Usage;
use serde::Deserialize;
use tracing::info;

use crate::model::ModelAbility;
use crate::provider::Provider;
use crate::selection::MIN_WINDOW;

const BUILT_IN_MODELS_JSON: &str = include_str!("models.json");
/// The vendors whose models OpenRouter resells at their own prices: OpenRouter's name for each, and ours.
const RESOLD_MAKERS: [(&str, &str); 3] =
    [("openai", "openai"), ("anthropic", "anthropic"), ("google", "gemini")];

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelTable {
    /// A remark for people who read the file.
    #[serde(default, rename = "about")]
    _about: String,
    providers: Vec<ProviderModels>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProviderModels {
    provider: String,
    as_of: jiff::civil::Date,
    source: String,
    models: BTreeMap<String, ModelEntry>,
}

/// An entry of the table. A field that is absent is looked up in the sections that follow.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelEntry {
    input: Option<f64>,
    output: Option<f64>,
    cached: Option<f64>,
    cache_write: Option<f64>,
    long: Option<TokenRates>,
    pub(crate) context_window: Option<u64>,
    pub(crate) prompts: Option<ModelAbility>,
    pub(crate) images: Option<bool>,
    pub(crate) pdf: Option<bool>,
}

impl ModelEntry {
    fn price(&self) -> Option<ModelPrice> {
        let Self { cached, cache_write, long, .. } = *self;
        let rates = TokenRates { over: 0, input: self.input?, output: self.output?, cached, cache_write };
        Some(ModelPrice { rates, long })
    }

    fn find_mistake(&self) -> Option<String> {
        let Self { input, output, cached, cache_write, long, .. } = self;
        let has_rates = cached.is_some() || cache_write.is_some() || long.is_some();
        match (input, output, self.context_window) {
            (Some(_), None, _) => Some("it has the price \"input\" and no \"output\"; write both".into()),
            (None, Some(_), _) => Some("it has the price \"output\" and no \"input\"; write both".into()),
            (None, None, _) if has_rates => Some("its prices need \"input\" and \"output\"".into()),
            (_, _, Some(window)) if window < MIN_WINDOW => {
                Some(format!("its \"context_window\" is {window}; at least {MIN_WINDOW} tokens are needed"))
            }
            (Some(_), Some(_), _) | (None, None, _) => None,
        }
    }
}

/// The price of a model in US dollars per million tokens, which is millionths of a dollar per token.
#[derive(Debug, Clone, Copy, PartialEq)]
struct ModelPrice {
    rates: TokenRates,
    long: Option<TokenRates>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename = "Rates", deny_unknown_fields)]
struct TokenRates {
    /// A request with more input tokens than this is long.
    over: u64,
    input: f64,
    output: f64,
    cached: Option<f64>,
    cache_write: Option<f64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ModelTariff(Option<ModelPrice>);

#[derive(Debug, thiserror::Error)]
pub enum ModelTableError {
    #[error("cannot read the file of models {file} ({source}); it is set in MILLRACE_PRICES")]
    Unreadable { file: String, source: std::io::Error },
    #[error("invalid file of models {file}: {mistake}")]
    Mistake { file: String, mistake: String },
}

impl ModelTable {
    pub fn load_built_in() -> Self {
        serde_json::from_str(BUILT_IN_MODELS_JSON).expect("a test parses the built-in table")
    }

    pub fn load_with_overrides(path: &Path) -> Result<Self, ModelTableError> {
        let file = || path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| ModelTableError::Unreadable { file: file(), source })?;
        let mut own: Self = serde_saphyr::from_str(&text)
            .map_err(|error| ModelTableError::Mistake { file: file(), mistake: error.to_string() })?;
        let models = own.providers.iter().flat_map(|section| &section.models);
        if let Some((name, mistake)) =
            models.filter_map(|(name, model)| Some((name, model.find_mistake()?))).next()
        {
            return Err(ModelTableError::Mistake {
                file: file(),
                mistake: format!("model {name}: {mistake}"),
            });
        }
        own.providers.append(&mut Self::load_built_in().providers);
        Ok(own)
    }

    /// Returns the price of a provider's model. An unknown price is logged once per model.
    pub fn tariff_for_model(&self, provider: Provider, model: &str) -> ModelTariff {
        let price = self
            .find_price(provider.table_section, model)
            .or_else(|| self.find_resold_price(provider, model));
        if price.is_none() && !provider.dialect.is_local {
            log_unknown_price_once(provider, model);
        }
        ModelTariff(price)
    }

    /// Returns a field of the entry of a provider's model; `None` if no entry has it.
    pub(crate) fn field_of<T>(
        &self,
        provider: Provider,
        model: &str,
        field: impl Fn(&ModelEntry) -> Option<T>,
    ) -> Option<T> {
        self.find(provider.table_section, model, field)
    }

    fn find_resold_price(&self, provider: Provider, model: &str) -> Option<ModelPrice> {
        let (maker, model) = model.split_once('/').filter(|_| provider.is_reseller)?;
        let (_, ours) = RESOLD_MAKERS.into_iter().find(|(theirs, _)| *theirs == maker)?;
        self.find_price(ours, model).or_else(|| self.find_price(ours, &model.replace('.', "-")))
    }

    fn find_price(&self, provider: &str, model: &str) -> Option<ModelPrice> {
        self.find(provider, model, ModelEntry::price)
    }

    /// Finds a field of a model by the model's name, or by its name without a trailing date or `latest`.
    fn find<T>(&self, provider: &str, model: &str, field: impl Fn(&ModelEntry) -> Option<T>) -> Option<T> {
        let exact = |model: &str| {
            let sections = self.providers.iter().filter(|section| section.provider == provider);
            sections.filter_map(|section| section.models.get(model)).find_map(&field)
        };
        exact(model).or_else(|| exact(strip_date_suffix(model)?))
    }
}

/// Removes the suffix of `claude-x-20250929`, `gpt-x-2026-01-31` and `x-latest`.
fn strip_date_suffix(model: &str) -> Option<&str> {
    if let Some(name) = model.strip_suffix("-latest") {
        return Some(name);
    }
    let digits =
        |text: &str, count: usize| text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    let (name, last) = model.rsplit_once('-')?;
    if digits(last, 8) {
        return Some(name);
    }
    let (name, month) = name.rsplit_once('-').filter(|_| digits(last, 2))?;
    let (name, year) = name.rsplit_once('-').filter(|_| digits(month, 2))?;
    digits(year, 4).then_some(name)
}

fn log_unknown_price_once(provider: Provider, model: &str) {
    static LOGGED: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let name = format!("{}:{model}", provider.name);
    let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    if logged.get_or_insert_default().insert(name.clone()) {
        info!(
            model = name,
            "no price known for this model; its cost is not counted unless MILLRACE_PRICES lists it"
        );
    }
}

impl ModelTariff {
    /// Returns the cost of a request in millionths of a dollar, rounded; 0 if the price is unknown.
    #[expect(clippy::cast_precision_loss, reason = "counts of tokens are far below 2^52")]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates, and is never negative"
    )]
    pub fn cost_micros(&self, usage: &Usage) -> u64 {
        let Some(price) = self.0 else {
            return 0;
        };
        let rates = price.long.filter(|long| usage.input_tokens > long.over).unwrap_or(price.rates);
        let (cached, written) = (usage.cached_tokens, usage.cache_write_tokens);
        let plain = usage.input_tokens.saturating_sub(cached).saturating_sub(written);
        let parts = [
            (plain, rates.input),
            (cached, rates.cached.unwrap_or(rates.input)),
            (written, rates.cache_write.unwrap_or(rates.input)),
            (usage.output_tokens, rates.output),
        ];
        parts.into_iter().map(|(tokens, rate)| tokens as f64 * rate).sum::<f64>().round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::ProviderRow;

    fn build_usage(input: u64, cached: u64, written: u64, output: u64) -> Usage {
        Usage {
            input_tokens: input,
            cached_tokens: cached,
            cache_write_tokens: written,
            output_tokens: output,
            ..Usage::default()
        }
    }

    fn cost_micros_of(provider: &str, model: &str, usage: Usage) -> u64 {
        let provider = ProviderRow::from_name(provider).unwrap();
        ModelTable::load_built_in().tariff_for_model(provider, model).cost_micros(&usage)
    }

    #[test]
    fn the_table_has_dates_and_sources() {
        for section in ModelTable::load_built_in().providers {
            assert!(section.source.starts_with("https://"), "{section:?}");
            assert!(section.as_of.year() >= 2026 && !section.models.is_empty(), "{section:?}");
            for (model, entry) in section.models {
                let TokenRates { input, output, cached, .. } = entry.price().unwrap().rates;
                assert!(
                    input > 0.0 && output >= input && cached.is_none_or(|cached| cached < input),
                    "{model}"
                );
            }
        }
    }

    #[test]
    fn cost_depends_on_the_kinds_of_tokens() {
        let million = 1_000_000;
        let sonnet = |usage| cost_micros_of("anthropic", "claude-sonnet-4-6", usage);
        assert_eq!(sonnet(build_usage(million, 0, 0, 0)), 3_000_000);
        assert_eq!(
            sonnet(build_usage(million, 500_000, 250_000, 100_000)),
            750_000 + 150_000 + 937_500 + 1_500_000
        );
        assert_eq!(sonnet(build_usage(0, 10, 10, 0)), 41, "inconsistent counts never give a negative cost");
        let sol = |input| cost_micros_of("openai", "gpt-6-sol", build_usage(input, 0, 0, 1_000));
        assert_eq!((sol(272_000), sol(272_001)), (554_000, 1_103_004));
    }

    #[test]
    fn models_are_found_by_all_their_names() {
        let one = build_usage(1_000_000, 0, 0, 0);
        let cases = [
            ("openai-chat", "gpt-4o-2024-08-06", 2_500_000),
            ("anthropic", "claude-opus-4-5-20251101", 5_000_000),
            ("anthropic", "claude-sonnet-4-5-latest", 3_000_000),
            ("openrouter", "anthropic/claude-opus-4.5", 5_000_000),
            ("openrouter", "openai/gpt-5.2", 1_750_000),
            ("openrouter", "z-ai/glm-5.2", 930_000),
            ("gemini", "gemini-2.5-pro", 2_500_000),
            ("openai", "gpt-unheard-of", 0),
            ("openai", "z-ai/glm-5.2", 0),
            ("ollama", "gpt-4o", 0),
        ];
        for (provider, model, micros) in cases {
            assert_eq!(cost_micros_of(provider, model, one), micros, "{model}");
        }
    }

    #[test]
    fn a_file_takes_precedence_over_the_table() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prices.yaml");
        let section = "providers:\n- provider: openai\n  as_of: 2026-11-01\n  source: contract\n  models:\n";
        std::fs::write(&path, format!("{section}    gpt-4o: {{input: 1, output: 2}}\n")).unwrap();
        let prices = ModelTable::load_with_overrides(&path).unwrap();
        let openai = ProviderRow::from_name("openai").unwrap();
        let micros =
            |model| prices.tariff_for_model(openai, model).cost_micros(&build_usage(1_000_000, 0, 0, 0));
        assert_eq!((micros("gpt-4o"), micros("gpt-4o-mini")), (1_000_000, 150_000));
        let entry = "    gpt-4o: {context_window: 9000, prompts: small, images: false}\n";
        std::fs::write(&path, format!("{section}{entry}")).unwrap();
        let table = ModelTable::load_with_overrides(&path).unwrap();
        let (provider, dated) = (openai, "gpt-4o-2024-08-06");
        assert_eq!(table.field_of(provider, dated, |entry| entry.context_window), Some(9_000));
        assert_eq!(table.field_of(provider, dated, |entry| entry.prompts), Some(ModelAbility::Small));
        assert_eq!(table.field_of(provider, dated, |entry| entry.images), Some(false));
        assert_eq!(table.field_of(provider, "gpt-4o-mini", |entry| entry.context_window), None);
        let cost = table.tariff_for_model(provider, dated).cost_micros(&build_usage(1_000_000, 0, 0, 0));
        assert_eq!(cost, 2_500_000, "an entry without a price keeps the built-in one");
        for (entry, expected) in [
            ("{input: 1}", "model gpt-4o: it has the price \"input\" and no \"output\""),
            ("{cached: 1}", "need \"input\" and \"output\""),
            ("{context_window: 10}", "at least 2048 tokens"),
        ] {
            std::fs::write(&path, format!("{section}    gpt-4o: {entry}\n")).unwrap();
            let mistake = ModelTable::load_with_overrides(&path).unwrap_err().to_string();
            assert!(mistake.contains(expected), "{mistake}");
        }
        std::fs::write(&path, "providers:\n- provider: openai\n  modles: {}\n").unwrap();
        let mistake = ModelTable::load_with_overrides(&path).unwrap_err().to_string();
        assert!(mistake.contains("prices.yaml") && mistake.contains("modles"), "{mistake}");
        let absent = ModelTable::load_with_overrides(&folder.path().join("none")).unwrap_err().to_string();
        assert!(absent.contains("MILLRACE_PRICES"), "{absent}");
    }
}
