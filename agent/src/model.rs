//! Models as agents open them: those of the providers, and the one that is built in here because it knows the roles.

use std::sync::Arc;

pub use millrace_models::choice::{Choice, Chosen, Settings};
pub use millrace_models::model::*;
pub use millrace_models::open::{OpenError, Opener};

use crate::builtin::Extractive;

/// Opens a choice of models, the built-in ones among them.
///
/// # Errors
/// See [`OpenError`].
pub fn open(choice: &Choice, opener: &Opener) -> Result<Arc<dyn Model>, OpenError> {
    opener.open(choice, &built_in)
}

/// Looks whether a choice names models that can be, without their keys, addresses and files.
///
/// # Errors
/// A name means nothing here.
pub fn check(choice: &Choice) -> Result<(), OpenError> {
    millrace_models::open::check(choice, &built_in)
}

fn built_in(name: &str) -> Option<Arc<dyn Model>> {
    match name {
        Extractive::NAME => Some(Arc::new(Extractive)),
        _ => None,
    }
}
