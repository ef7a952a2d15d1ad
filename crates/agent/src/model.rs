//! Opens models for agents: those of the providers, and the built-in one, which lives here because it knows the roles.

use std::sync::Arc;

pub use millrace_models::factory::{CreateModelError, ModelFactory};
pub use millrace_models::image::{ImageRoom, InvalidImage, MAX_IMAGE_BYTES, MAX_IMAGES};
pub use millrace_models::model::*;
pub use millrace_models::selection::{ModelSelection, ModelSettings, ModelSpec};

use millrace_protocol::result::Usage;

use crate::builtin::Extractive;

/// Creates the models of a selection, including the built-in ones.
pub fn open_model(
    selection: &ModelSelection,
    factory: &ModelFactory,
) -> Result<Arc<dyn Model>, CreateModelError> {
    factory.create(selection, &open_built_in_model)
}

/// Validates the names in a selection of models, without using their keys, addresses or files.
pub fn validate_selection(selection: &ModelSelection) -> Result<(), CreateModelError> {
    millrace_models::factory::check_selection(selection, &open_built_in_model)
}

fn open_built_in_model(name: &str) -> Option<Arc<dyn Model>> {
    match name {
        Extractive::NAME => Some(Arc::new(Extractive)),
        _ => None,
    }
}

/// Counts the request that a model has answered. The built-in one is no language model, so that its replies are no model calls.
pub(crate) fn count_model_call(model: &str, usage: Usage) -> Usage {
    Usage { model_calls: u64::from(model != Extractive::NAME), ..usage }
}
