//! Opens the model that verifies statements in this process.

use std::time::Duration;

use millrace_agent::model::{ModelFactory, ModelSelection, open_model};
use millrace_agent::verification::Verifier;
use millrace_local_cluster::folders::worker_cache_folder;
use millrace_models::provider::default_model_selection;
use millrace_protocol::ids::Capability;
use millrace_protocol::subject::VERIFIER;

use crate::exit::CommandError;
use crate::submission::parse_model_preferences;

/// Opens the verifier that the models of a command line name, or else the default one. Returns `None` if none is wanted or known.
pub fn open_verifier(
    models: &[String],
    call_timeout: Option<Duration>,
) -> Result<Option<Verifier>, CommandError> {
    let role = Capability::new(VERIFIER).expect("a valid name");
    let preferences = parse_model_preferences(models)?;
    let named = preferences.by_capability.get(&role).cloned();
    if named.as_ref().is_some_and(|selection| selection.to_string() == "none") {
        return Ok(None);
    }
    let of_environment = || default_model_selection(&|name| std::env::var(name).ok());
    let named = named.or(preferences.default);
    if let (None, [first, ..]) = (&named, models) {
        return Err(refused!("--model {first} names no model for the verifier; use verifier=MODEL"));
    }
    let selection = named.or_else(of_environment);
    let Some(selection) = selection.filter(|one: &ModelSelection| !one.to_string().starts_with("builtin:"))
    else {
        note!("no model is set up, so only quotations and figures are verified (--model verifier=MODEL)");
        return Ok(None);
    };
    let factory = ModelFactory { call_timeout, ..ModelFactory::default() };
    let model = open_model(&selection, &factory).map_err(CommandError::unusable_environment)?;
    Ok(Some(Verifier::open(model, Some(worker_cache_folder()))))
}
