//! The state that all agents of a process share: open models and open documents.

use std::path::PathBuf;
use std::sync::Arc;

use millrace_protocol::plan::DocumentSet;
use millrace_protocol::result::{SourceKind, TaskResult};

use super::documents::DocumentCache;
use super::models::{ModelPool, ModelPreferences};
use crate::corpus::Corpus;
use crate::corpus::WebPage;
use crate::corpus::pages::read_page;
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
    pub fn new(settings: HostSettings) -> Result<Self, CreateModelError> {
        let HostSettings { models, factory, cache } = settings;
        Ok(Self { documents: DocumentCache::new(cache), models: Arc::new(ModelPool::new(models, factory)?) })
    }

    /// Opens a model that a capability names, so that a mistake is reported before there is any work.
    pub fn check_model_selection(&self, selection: &ModelSelection) -> Result<(), CreateModelError> {
        self.models.check(selection)
    }

    /// Returns the documents of a run, opened once for all sessions.
    pub async fn open_documents(
        &self,
        set: &DocumentSet,
        sources: &dyn OrderInputs,
    ) -> Result<Arc<Corpus>, OrderInputError> {
        self.documents.open_corpus(set, sources).await
    }

    /// Returns the documents of a run, together with the web pages that a result cites, as they were when they were read.
    pub async fn open_sources_of_result(
        &self,
        set: Option<&DocumentSet>,
        result: &TaskResult,
        sources: &dyn OrderInputs,
    ) -> Result<Option<Arc<Corpus>>, OrderInputError> {
        let documents = match set {
            None => None,
            Some(set) => Some(self.documents.open_corpus(set, sources).await?),
        };
        add_kept_pages(documents, result, sources).await
    }
}

/// Adds the web pages that a result cites to the documents, as they were when they were read.
async fn add_kept_pages(
    corpus: Option<Arc<Corpus>>,
    result: &TaskResult,
    sources: &dyn OrderInputs,
) -> Result<Option<Arc<Corpus>>, OrderInputError> {
    let mut pages = Vec::new();
    for source in result.sources.iter().filter(|source| source.kind == SourceKind::Web) {
        let Some(sha256) = source.sha256.clone() else { continue };
        let page = WebPage {
            url: source.location.clone(),
            requested_url: None,
            name: source.location.clone(),
            title: Some(source.title.clone()),
            accessed_at: source.accessed_at.unwrap_or_default(),
            sha256,
            // Its quotations name their places.
            places: Vec::new(),
        };
        match read_page(page, sources).await {
            Ok(page) => pages.push(Arc::new(page)),
            // The checks report it as a source that can't be read.
            Err(OrderInputError::Broken(why)) => {
                tracing::warn!(source = source.id, why, "cannot read a kept page")
            }
            Err(unavailable @ OrderInputError::Unavailable(_)) => return Err(unavailable),
        }
    }
    if pages.is_empty() {
        return Ok(corpus);
    }
    let documents = match corpus {
        Some(corpus) => corpus.as_ref().clone(),
        None => Corpus::build_or_load(Vec::new(), None)
            .map_err(|error| OrderInputError::Broken(error.to_string()))?,
    };
    Ok(Some(Arc::new(documents.with_pages(pages))))
}
