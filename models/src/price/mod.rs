//! What models cost. It owns the dated table in `prices.json`, how a model is found in it, and the sum. The file that
//! `MILLRACE_PRICES` names has the same form (JSON or YAML); its entries go before those of the table:
//!
//! ```yaml
//! providers:
//! - provider: openai-compatible
//!   as_of: 2026-11-01
//!   source: our contract
//!   models:
//!     qwen: {input: 0.1, cached: 0.05, output: 0.4}   # US dollars per million tokens
//! ```

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use millrace_protocol::result::Usage;
use serde::Deserialize;
use tracing::info;

use crate::provider::Provider;

const TABLE: &str = include_str!("prices.json");
/// The makers whose models OpenRouter serves at their own prices: its name for each, and ours.
const PASSED_ON: [(&str, &str); 3] = [("openai", "openai"), ("anthropic", "anthropic"), ("google", "gemini")];

/// All prices that are known.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// What the figures mean, for whoever reads the file.
    #[serde(default, rename = "about")]
    _about: String,
    providers: Vec<Section>,
}

/// The prices of one provider.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    provider: String,
    /// The day on which they were read.
    as_of: jiff::civil::Date,
    /// Where.
    source: String,
    models: BTreeMap<String, Price>,
}

/// What a model costs, in US dollars per million tokens, which is millionths of a dollar per token.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    input: f64,
    output: f64,
    #[serde(default)]
    cached: Option<f64>,
    #[serde(default)]
    cache_write: Option<f64>,
    /// What long requests cost.
    #[serde(default)]
    long: Option<Rates>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rates {
    /// A request that sends more tokens than this is a long one.
    over: u64,
    input: f64,
    output: f64,
    #[serde(default)]
    cached: Option<f64>,
    #[serde(default)]
    cache_write: Option<f64>,
}

impl Price {
    /// What a request costs that sends so many tokens.
    fn rates(&self, sent: u64) -> Rates {
        let Self { input, output, cached, cache_write, long } = *self;
        long.filter(|long| sent > long.over).unwrap_or(Rates { over: 0, input, output, cached, cache_write })
    }
}

/// What one opened model costs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tariff(Option<Price>);

/// A price file that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum PricesError {
    /// It can't be read.
    #[error("the prices in {file} can't be read ({source}); MILLRACE_PRICES names them")]
    Unreadable {
        /// The file.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// It has a mistake in it.
    #[error("the prices in {file} have a mistake: {mistake}")]
    Mistake {
        /// The file.
        file: String,
        /// What is wrong, and where.
        mistake: String,
    },
}

impl Prices {
    /// The table that is built in.
    #[must_use]
    pub fn built_in() -> Self {
        serde_json::from_str(TABLE).expect("the table that is built in is read by a test")
    }

    /// The table with the entries of a file before its own.
    ///
    /// # Errors
    /// See [`PricesError`].
    pub fn with_file(path: &Path) -> Result<Self, PricesError> {
        let file = || path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| PricesError::Unreadable { file: file(), source })?;
        let mut own: Self = serde_saphyr::from_str(&text)
            .map_err(|error| PricesError::Mistake { file: file(), mistake: error.to_string() })?;
        own.providers.append(&mut Self::built_in().providers);
        Ok(own)
    }

    /// What a model of a provider costs. That a price is not known is said once.
    #[must_use]
    pub fn tariff(&self, provider: Provider, model: &str) -> Tariff {
        let found = self.find(provider.priced_as(), model).or_else(|| self.passed_on(provider, model));
        if found.is_none() && !provider.is_local() {
            say_once(provider, model);
        }
        Tariff(found)
    }

    fn passed_on(&self, provider: Provider, model: &str) -> Option<Price> {
        let (maker, model) = model.split_once('/').filter(|_| provider == Provider::OpenRouter)?;
        let (_, ours) = PASSED_ON.into_iter().find(|(theirs, _)| *theirs == maker)?;
        self.find(ours, model).or_else(|| self.find(ours, &model.replace('.', "-")))
    }

    /// A model is found by its name, or by its name without the date or `latest` behind it.
    fn find(&self, provider: &str, model: &str) -> Option<Price> {
        let exact = |model: &str| {
            let sections = self.providers.iter().filter(|section| section.provider == provider);
            sections.filter_map(|section| section.models.get(model)).next().copied()
        };
        exact(model).or_else(|| exact(undated(model)?))
    }
}

/// `claude-x-20250929`, `gpt-x-2026-01-31` and `x-latest` without what stands behind the last name.
fn undated(model: &str) -> Option<&str> {
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

fn say_once(provider: Provider, model: &str) {
    static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let name = format!("{}:{model}", provider.name());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.get_or_insert_default().insert(name.clone()) {
        info!(model = name, "no price is known for this model; MILLRACE_PRICES can name a file that has it");
    }
}

impl Tariff {
    /// What a request cost, in millionths of a dollar, rounded; 0 where the price is not known.
    #[must_use]
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
        let rates = price.rates(usage.input_tokens);
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

    fn usage(input: u64, cached: u64, written: u64, output: u64) -> Usage {
        Usage {
            input_tokens: input,
            cached_tokens: cached,
            cache_write_tokens: written,
            output_tokens: output,
            ..Usage::default()
        }
    }

    fn cost(provider: Provider, model: &str, usage: Usage) -> u64 {
        Prices::built_in().tariff(provider, model).cost_micros(&usage)
    }

    #[test]
    fn the_table_is_dated_and_says_where_it_is_from() {
        for section in Prices::built_in().providers {
            assert!(section.source.starts_with("https://"), "{section:?}");
            assert!(section.as_of.year() >= 2026 && !section.models.is_empty(), "{section:?}");
            for (model, price) in section.models {
                let Price { input, output, cached, .. } = price;
                assert!(
                    input > 0.0 && output >= input && cached.is_none_or(|cached| cached < input),
                    "{model}"
                );
            }
        }
    }

    #[test]
    fn a_request_costs_what_its_kinds_of_tokens_cost() {
        let million = 1_000_000;
        let sonnet = |usage| cost(Provider::Anthropic, "claude-sonnet-4-6", usage);
        assert_eq!(sonnet(usage(million, 0, 0, 0)), 3_000_000);
        assert_eq!(
            sonnet(usage(million, 500_000, 250_000, 100_000)),
            750_000 + 150_000 + 937_500 + 1_500_000
        );
        assert_eq!(sonnet(usage(0, 10, 10, 0)), 41, "odd figures make no negative ones");
        let sol = |input| cost(Provider::OpenAi, "gpt-6-sol", usage(input, 0, 0, 1_000));
        assert_eq!((sol(272_000), sol(272_001)), (554_000, 1_103_004));
    }

    #[test]
    fn a_model_is_found_under_the_names_that_it_goes_by() {
        let one = usage(1_000_000, 0, 0, 0);
        let cases = [
            (Provider::OpenAiChat, "gpt-4o-2024-08-06", 2_500_000),
            (Provider::Anthropic, "claude-opus-4-5-20251101", 5_000_000),
            (Provider::Anthropic, "claude-sonnet-4-5-latest", 3_000_000),
            (Provider::OpenRouter, "anthropic/claude-opus-4.5", 5_000_000),
            (Provider::OpenRouter, "openai/gpt-5.2", 1_750_000),
            (Provider::OpenRouter, "z-ai/glm-5.2", 930_000),
            (Provider::LongTail("gemini"), "gemini-2.5-pro", 2_500_000),
            (Provider::OpenAi, "gpt-unheard-of", 0),
            (Provider::OpenAi, "z-ai/glm-5.2", 0),
            (Provider::Ollama, "gpt-4o", 0),
        ];
        for (provider, model, micros) in cases {
            assert_eq!(cost(provider, model, one), micros, "{model}");
        }
    }

    #[test]
    fn a_file_of_one_s_own_goes_before_the_table() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prices.yaml");
        let section = "providers:\n- provider: openai\n  as_of: 2026-11-01\n  source: contract\n  models:\n";
        std::fs::write(&path, format!("{section}    gpt-4o: {{input: 1, output: 2}}\n")).unwrap();
        let prices = Prices::with_file(&path).unwrap();
        let micros = |model| prices.tariff(Provider::OpenAi, model).cost_micros(&usage(1_000_000, 0, 0, 0));
        assert_eq!((micros("gpt-4o"), micros("gpt-4o-mini")), (1_000_000, 150_000));
        std::fs::write(&path, "providers:\n- provider: openai\n  modles: {}\n").unwrap();
        let mistake = Prices::with_file(&path).unwrap_err().to_string();
        assert!(mistake.contains("prices.yaml") && mistake.contains("modles"), "{mistake}");
        let absent = Prices::with_file(&folder.path().join("none")).unwrap_err().to_string();
        assert!(absent.contains("MILLRACE_PRICES"), "{absent}");
    }
}
