//! The state that all agents of a process share: open models and open documents.

use std::path::PathBuf;
use std::sync::Arc;

use millrace_protocol::plan::DocumentSet;

use super::documents::DocumentCache;
use super::models::{ModelPool, ModelPreferences};
use crate::corpus::Corpus;
use crate::model::{CreateModelError, ModelFactory, ModelSelection};
use crate::sources::{OrderInputError, OrderInputs};

/// The settings of a process that hosts agents.
#[derive(Clone, Default)]
pub struct HostSettings {
    /// The models to use where neither the run nor the capability names one.
    pub models: ModelPreferences,
    /// How models are opened: rate limits, recording, metrics.
    pub factory: ModelFactory,
    /// The folder in which documents and their indices are cached; `None` keeps them in memory only.
    pub cache: Option<PathBuf>,
}

/// A host of agents. One value serves all sessions of a process.
pub struct AgentHost {
    pub(super) documents: DocumentCache,
    pub(super) models: Arc<ModelPool>,
}

impl AgentHost {
    /// Creates a host and opens the models that its settings name.
    ///
    /// # Errors
    /// One of the models can't be opened.
    pub fn new(settings: HostSettings) -> Result<Self, CreateModelError> {
        let HostSettings { models, factory, cache } = settings;
        Ok(Self { documents: DocumentCache::new(cache), models: Arc::new(ModelPool::new(models, factory)?) })
    }

    /// Opens a model that a capability names, so that a mistake is reported before there is any work.
    ///
    /// # Errors
    /// It can't be opened.
    pub fn check_model_selection(&self, selection: &ModelSelection) -> Result<(), CreateModelError> {
        self.models.check(selection)
    }

    /// Returns the documents of a run, opened once for all sessions.
    ///
    /// # Errors
    /// They can't be fetched or indexed.
    pub async fn open_documents(
        &self,
        set: &DocumentSet,
        sources: &dyn OrderInputs,
    ) -> Result<Arc<Corpus>, OrderInputError> {
        self.documents.open_corpus(set, sources).await
    }
}
