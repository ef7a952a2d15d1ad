//! Errors in the name, the address or the key of a model.

/// Why a model's name, address or key can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelNameError {
    /// No provider has this name.
    #[error("unknown model {name:?}{}; supported: {supported}", format_hint(.hint))]
    UnknownProvider {
        /// The requested name, cut to 80 characters.
        name: String,
        /// The supported names.
        supported: String,
        /// The provider with the most similar name.
        hint: Option<String>,
    },
    /// A tier without models, or a tier as the model of another one.
    #[error("the tier {name:?} has no models; add --model {}=PROVIDER:MODEL to the run or the worker", .name.trim_start_matches("tier:"))]
    TierWithoutModels {
        /// The requested name, cut to 80 characters.
        name: String,
    },
    /// The name has a provider but no model.
    #[error("{name:?} names no model; write {example}")]
    MissingModelName {
        /// The requested name, cut to 80 characters.
        name: String,
        /// A valid name.
        example: String,
    },
    /// The API key is not in the environment.
    #[error(
        "{name} needs a key: set {variable} (a capability file may name another variable: `key_variable` of its model)"
    )]
    MissingKey {
        /// The name of the model.
        name: String,
        /// The variable that should hold the key.
        variable: String,
    },
    /// No address is configured.
    #[error(
        "no address configured for {name}: write {name}@http://127.0.0.1:8081/v1, or set base_url or {variable}"
    )]
    MissingAddress {
        /// The name of the model.
        name: String,
        /// The variable that determines the address.
        variable: String,
    },
    /// The address is invalid.
    #[error("the address of {name} is invalid: {why}")]
    BadAddress {
        /// The name of the model.
        name: String,
        /// The problem.
        why: String,
    },
}

fn format_hint(hint: &Option<String>) -> String {
    hint.as_ref().map_or_else(String::new, |hint| format!("; did you mean {hint}?"))
}
