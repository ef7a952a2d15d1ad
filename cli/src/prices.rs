//! Which models have a price that is known: what is used of the others costs nothing as far as a budget in money can
//! tell. Nothing is opened and nobody is asked.

use std::collections::BTreeSet;
use std::path::Path;

use millrace_models::Choice;
use millrace_models::price::{Prices, Tariff};
use millrace_models::provider::{Named, parse};

/// The full names of those models among the choices whose price is not known. A price file that can't be read knows
/// none: whoever opens the models says so.
pub fn unknown<'a>(choices: impl Iterator<Item = &'a Choice>) -> BTreeSet<String> {
    let file = std::env::var("MILLRACE_PRICES").ok().filter(|file| !file.is_empty());
    let prices =
        file.and_then(|file| Prices::with_file(Path::new(&file)).ok()).unwrap_or_else(Prices::built_in);
    choices
        .flat_map(|choice| &choice.models)
        .filter(|chosen| match parse(&chosen.name) {
            Ok(Named::Model { provider, model, .. }) => prices.tariff(provider, &model) == Tariff::default(),
            // The built-in, replayed and scripted ones cost nothing.
            Ok(_) | Err(_) => false,
        })
        .map(|chosen| chosen.name.clone())
        .collect()
}

/// What to do about them.
pub const ADVICE: &str = "a file with prices, named in MILLRACE_PRICES, makes a budget in cost count them; tokens and \
                          calls are counted anyway";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_without_a_known_price_are_named() {
        let choice = Choice::parse("openai:gpt-5.2, openai:no-such-model, ollama:qwen3:8b").unwrap();
        let expected = ["ollama:qwen3:8b", "openai:no-such-model"].map(str::to_owned);
        assert_eq!(unknown([&choice].into_iter()), expected.into());
        let scripted = Choice::parse("script:x.yaml").unwrap();
        assert_eq!(unknown([&scripted].into_iter()), BTreeSet::new());
    }
}
