//! Finds models without a known price, whose cost no budget can limit. Opens no model and makes no request.

use std::collections::BTreeSet;
use std::path::Path;

use millrace_models::ModelSelection;
use millrace_models::provider::{ParsedModelName, parse_model_name};
use millrace_models::table::{ModelTable, ModelTariff};

/// Returns the full names of the chosen models whose price is unknown. An unreadable price file is ignored here; opening
/// the models reports it.
pub fn models_without_price<'a>(choices: impl Iterator<Item = &'a ModelSelection>) -> BTreeSet<String> {
    let file = std::env::var("MILLRACE_PRICES").ok().filter(|file| !file.is_empty());
    let prices = file
        .and_then(|file| ModelTable::load_with_overrides(Path::new(&file)).ok())
        .unwrap_or_else(ModelTable::load_built_in);
    choices
        .flat_map(|choice| &choice.models)
        .filter(|chosen| match parse_model_name(&chosen.name) {
            // Models on this machine cost nothing, and resellers report the cost of each reply.
            Ok(ParsedModelName::Model { provider, model, .. }) => {
                let has_price = prices.tariff_for_model(provider, &model) != ModelTariff::default();
                !has_price && !provider.dialect.is_local && !provider.is_reseller
            }
            // Built-in, replayed and scripted models are free.
            Ok(_) | Err(_) => false,
        })
        .map(|chosen| chosen.name.clone())
        .collect()
}

pub const ADVICE: &str = "to count their cost, set MILLRACE_PRICES to a file with prices; without it limit tokens or \
                          calls: a limit of cost is refused";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_without_a_known_price_are_listed() {
        let choice = ModelSelection::parse("openai:gpt-5.2, openai:no-such-model, ollama:qwen3:8b").unwrap();
        let expected = ["openai:no-such-model"].map(str::to_owned);
        assert_eq!(models_without_price([&choice].into_iter()), expected.into());
        let scripted = ModelSelection::parse("script:x.yaml").unwrap();
        assert_eq!(models_without_price([&scripted].into_iter()), BTreeSet::new());
    }
}
