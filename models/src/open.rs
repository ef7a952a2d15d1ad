//! From a choice to a model that can be asked.

use std::path::PathBuf;
use std::sync::Arc;

use crate::choice::Choice;
use crate::gate::Gate;
use crate::model::Model;

/// What all models of a process share.
#[derive(Clone)]
pub struct Opener {
    /// The limits that the cluster keeps.
    pub gate: Arc<dyn Gate>,
    /// The file in which requests and replies are kept; `None` keeps none.
    pub record: Option<PathBuf>,
}

impl Default for Opener {
    fn default() -> Self {
        Self { gate: Arc::new(()), record: None }
    }
}

/// Why a choice can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No provider has that name.
    #[error("no model is called {name:?}; known are: {known}")]
    Unknown {
        /// The name that was asked for, cut to 80 characters.
        name: String,
        /// What can be asked for.
        known: String,
    },
}

impl Opener {
    /// Opens a choice. `built_in` knows the models that need no provider.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        &self,
        choice: &Choice,
        built_in: &dyn Fn(&str) -> Option<Arc<dyn Model>>,
    ) -> Result<Arc<dyn Model>, OpenError> {
        let name = choice.models.first().map_or("", |chosen| chosen.name.as_str());
        built_in(name)
            .ok_or_else(|| OpenError::Unknown { name: name.chars().take(80).collect(), known: String::new() })
    }
}
