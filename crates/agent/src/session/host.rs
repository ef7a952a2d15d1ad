//! The state that all agents of a process share: open models and open document sets. Concurrent requests for one set share a single
//! load. The cache on disk holds the documents' bytes by content and, through [`Corpus`], their indices; it can be deleted at any time.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use futures::{FutureExt, StreamExt, TryStreamExt};
use millrace_protocol::plan::{Document, DocumentSet};
use millrace_protocol::result::{SourceKind, TaskError, TaskResult};
use millrace_protocol::wire;
use millrace_protocol::work::Order;
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

use super::environment::invalid_order_error;
use super::models::{ModelPool, ModelPreferences};

use crate::corpus::pages::read_page;
use crate::corpus::{self, Corpus, WebPage, lock_cache_entry, write_atomically};

use crate::embeddings::Embedder;
use crate::hooks::AttemptHooks;
use crate::model::{CreateModelError, ModelFactory, ModelSelection};

use crate::sources::{OrderInputError, OrderInputs};
use crate::verification::{CalibrationMemory, Verifier};

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
    calibrations: Arc<CalibrationMemory>,
}

impl AgentHost {
    /// Creates a host and opens the models that its settings name.
    pub fn new(settings: HostSettings) -> Result<Self, CreateModelError> {
        let HostSettings { models, factory, cache } = settings;
        let factory = ModelFactory { cache: cache.clone(), ..factory };
        Ok(Self {
            calibrations: Arc::new(CalibrationMemory::new(cache.clone())),
            documents: DocumentCache::new(cache),
            models: Arc::new(ModelPool::new(models, factory)?),
        })
    }

    /// Opens the model that verifies the statements of an order's answer; `None` if none does.
    pub(super) fn open_verifier(&self, order: &Order) -> Result<Option<Verifier>, TaskError> {
        let opened =
            self.models.open_verifier(order).map_err(|error| invalid_order_error(&error.to_string()))?;
        Ok(opened.map(|model| Verifier::new(model, self.calibrations.clone())))
    }

    /// Opens the model that embeds documents and queries for an order; `None` if none is configured.
    pub(super) fn open_embedder(
        &self,
        order: &Order,
        hooks: AttemptHooks,
    ) -> Result<Option<Embedder>, TaskError> {
        let opened =
            self.models.open_embeddings(order).map_err(|error| invalid_order_error(&error.to_string()))?;
        Ok(opened.map(|model| Embedder::new(model, hooks)))
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

/// The most sets that stay open. Opening one again from the cache takes well under a second.
const MAX_OPEN: usize = 4;
/// The number of documents that are fetched concurrently.
const FETCHES: usize = 16;

/// A document set that is open or being loaded.
type SharedCorpus = Arc<OnceCell<Arc<Corpus>>>;

pub(super) struct DocumentCache {
    pub cache: Option<PathBuf>,
    /// By the manifest's SHA-256, the most recently used last.
    open: Mutex<Vec<(String, SharedCorpus)>>,
}

impl DocumentCache {
    pub fn new(cache: Option<PathBuf>) -> Self {
        Self { cache, open: Mutex::new(Vec::new()) }
    }

    /// Returns the documents of a set. Callers that come while it is being loaded wait for that load; if the loading
    /// caller is cancelled, the next one takes over.
    pub async fn open_corpus(
        &self,
        set: &DocumentSet,
        sources: &dyn OrderInputs,
    ) -> Result<Arc<Corpus>, OrderInputError> {
        let corpus = self.shared_corpus(&set.manifest);
        corpus.get_or_try_init(|| self.load_corpus(set, sources)).await.cloned()
    }

    fn shared_corpus(&self, manifest: &str) -> SharedCorpus {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = match open.iter().position(|(name, _)| name == manifest) {
            Some(at) => open.remove(at),
            None => (manifest.to_owned(), SharedCorpus::default()),
        };
        let corpus = entry.1.clone();
        open.push(entry);
        if open.len() > MAX_OPEN {
            open.remove(0);
        }
        corpus
    }

    async fn load_corpus(
        &self,
        set: &DocumentSet,
        sources: &dyn OrderInputs,
    ) -> Result<Arc<Corpus>, OrderInputError> {
        let manifest = sources.read_blob(&set.manifest).await?;
        let documents: Vec<Document> = wire::decode_message_pack(&manifest, "the list of documents")
            .map_err(|garbage| OrderInputError::Broken(garbage.to_string()))?;
        if let Some(invalid) = documents.iter().find(|document| !is_sha256_hex(&document.sha256)) {
            let why = format!("the list of documents has an invalid SHA-256 for {:?}", invalid.path);
            return Err(OrderInputError::Broken(why));
        }
        let Some(cache) = self.cache.clone() else {
            let files = fetch_files(&documents, None, sources).await?;
            return run_blocking(move || {
                Corpus::build_or_load(files, None).map_err(unusable_documents_error)
            })
            .await
            .map(Arc::new);
        };
        let documents = Arc::new(documents);
        // Held until the corpus is open, so that only one of several processes on a machine fetches and indexes.
        let (_lock, cached) = run_blocking({
            let (cache, documents, manifest) = (cache.clone(), documents.clone(), set.manifest.clone());
            move || {
                if let Some(corpus) = load_cached_corpus(&documents, &cache) {
                    return Ok((None, Some(corpus)));
                }
                let lock =
                    lock_cache_entry(&cache, &manifest).map_err(|error| cache_error(&cache, &error))?;
                Ok((Some(lock), load_cached_corpus(&documents, &cache)))
            }
        })
        .await?;
        if let Some(corpus) = cached {
            return Ok(Arc::new(corpus));
        }
        let files = fetch_files(&documents, Some(&cache), sources).await?;
        run_blocking(move || Corpus::build_or_load(files, Some(&cache)).map_err(unusable_documents_error))
            .await
            .map(Arc::new)
    }
}

fn load_cached_corpus(documents: &[Document], cache: &Path) -> Option<Corpus> {
    Corpus::load_from_cache(
        documents.iter().map(|document| (document.path.as_str(), document.sha256.as_str())),
        cache,
    )
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OrderInputError> + Send + 'static,
) -> Result<T, OrderInputError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        Err(OrderInputError::Broken(format!("reading the documents failed: {error}")))
    })
}

/// Fetches all documents, in their order.
async fn fetch_files(
    documents: &[Document],
    cache: Option<&Path>,
    sources: &dyn OrderInputs,
) -> Result<Vec<corpus::InputFile>, OrderInputError> {
    // Boxed one by one: the compiler can't prove that a stream of closures over borrowed documents is `Send`.
    let fetches: Vec<_> =
        documents.iter().map(|document| fetch_file(document, cache, sources).boxed()).collect();
    futures::stream::iter(fetches).buffered(FETCHES).try_collect().await
}

async fn fetch_file(
    document: &Document,
    cache: Option<&Path>,
    sources: &dyn OrderInputs,
) -> Result<corpus::InputFile, OrderInputError> {
    let bytes = fetch_blob(&document.sha256, cache, sources).await?;
    Ok(corpus::InputFile { path: document.path.clone(), bytes })
}

async fn fetch_blob(
    sha256: &str,
    cache: Option<&Path>,
    sources: &dyn OrderInputs,
) -> Result<Vec<u8>, OrderInputError> {
    let Some(cache) = cache else {
        return sources.read_blob(sha256).await;
    };
    let path = cache.join("blobs").join(&sha256[..2]).join(sha256);
    let cached = run_blocking({
        let (path, sha256) = (path.clone(), sha256.to_owned());
        move || Ok(fs::read(path).ok().filter(|bytes| encode_hex(&Sha256::digest(bytes)) == sha256))
    })
    .await?;
    if let Some(bytes) = cached {
        return Ok(bytes);
    }
    let bytes = sources.read_blob(sha256).await?;
    run_blocking(move || {
        // Not fatal: the document is fetched again next time.
        if let Err(error) = write_atomically(&path, &bytes) {
            tracing::debug!(path = %path.display(), %error, "could not cache a document");
        }
        Ok(bytes)
    })
    .await
}

fn is_sha256_hex(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'))
}

fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn cache_error(cache: &Path, error: &std::io::Error) -> OrderInputError {
    OrderInputError::Broken(format!("the document cache {} can't be used: {error}", cache.display()))
}

fn unusable_documents_error(error: corpus::CorpusError) -> OrderInputError {
    OrderInputError::Broken(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::BoxFuture;
    use millrace_protocol::result::TaskResult;
    use millrace_protocol::work::InputResult;

    use super::*;

    /// Blobs in memory, with a count of fetches.
    struct BlobStore {
        blobs: std::collections::BTreeMap<String, Vec<u8>>,
        fetches: AtomicUsize,
    }

    impl OrderInputs for BlobStore {
        fn read_result<'a>(
            &'a self,
            _: &'a InputResult,
        ) -> BoxFuture<'a, Result<TaskResult, OrderInputError>> {
            std::future::ready(Err(OrderInputError::Broken("no results here".into()))).boxed()
        }

        fn read_blob<'a>(&'a self, sha256: &'a str) -> BoxFuture<'a, Result<Vec<u8>, OrderInputError>> {
            self.fetches.fetch_add(1, Ordering::SeqCst);
            let blob = self.blobs.get(sha256).cloned();
            async move {
                tokio::task::yield_now().await;
                blob.ok_or_else(|| OrderInputError::Unavailable("not there".into()))
            }
            .boxed()
        }
    }

    fn build_blob_store(files: &[(&str, &str)]) -> (BlobStore, DocumentSet) {
        let name = |bytes: &[u8]| encode_hex(&Sha256::digest(bytes));
        let mut blobs: std::collections::BTreeMap<String, Vec<u8>> =
            files.iter().map(|(_, text)| (name(text.as_bytes()), text.as_bytes().to_vec())).collect();
        let documents: Vec<Document> = files
            .iter()
            .map(|(path, text)| Document {
                path: (*path).into(),
                sha256: name(text.as_bytes()),
                size: text.len() as u64,
            })
            .collect();
        let manifest = wire::encode_body(&documents);
        let set = DocumentSet { manifest: name(&manifest), count: files.len() as u32, bytes: 0 };
        blobs.insert(set.manifest.clone(), manifest);
        (BlobStore { blobs, fetches: AtomicUsize::new(0) }, set)
    }

    #[tokio::test]
    async fn concurrent_requests_share_one_load() {
        let cache = tempfile::tempdir().unwrap();
        let (store, set) = build_blob_store(&[("a.txt", "patents end"), ("b.md", "# grants\n\nbegin")]);
        for cache in [None, Some(cache.path().to_owned())] {
            let documents = DocumentCache::new(cache);
            let opened =
                futures::future::join_all((0..10).map(|_| documents.open_corpus(&set, &store))).await;
            let first = opened[0].clone().unwrap();
            assert!(opened.iter().all(|corpus| Arc::ptr_eq(corpus.as_ref().unwrap(), &first)));
            assert_eq!(first.documents().len(), 2);
            assert_eq!(store.fetches.swap(0, Ordering::SeqCst), 3, "the manifest and each document once");
        }
    }

    #[tokio::test]
    async fn cached_documents_are_not_fetched_again() {
        let cache = tempfile::tempdir().unwrap();
        let open = async |store: &BlobStore, set: &DocumentSet| {
            let opened =
                DocumentCache::new(Some(cache.path().to_owned())).open_corpus(set, store).await.unwrap();
            (opened.documents().len(), store.fetches.load(Ordering::SeqCst))
        };
        let (one, set) = build_blob_store(&[("a.txt", "one"), ("b.txt", "two")]);
        assert_eq!(open(&one, &set).await, (2, 3));
        let (again, set) = build_blob_store(&[("a.txt", "one"), ("b.txt", "two")]);
        assert_eq!(open(&again, &set).await, (2, 1), "the index is there");
        let (more, set) = build_blob_store(&[("a.txt", "one"), ("b.txt", "two"), ("c.txt", "three")]);
        assert_eq!(open(&more, &set).await, (3, 2), "only the third document is new");
    }

    #[tokio::test]
    async fn a_failed_load_is_retried_and_a_bad_list_is_reported() {
        let (mut store, set) = build_blob_store(&[("a.txt", "one")]);
        let documents = DocumentCache::new(None);
        let manifest = store.blobs.remove(&set.manifest).unwrap();
        let unavailable = documents.open_corpus(&set, &store).await.err();
        assert_eq!(unavailable, Some(OrderInputError::Unavailable("not there".into())));
        store.blobs.insert(set.manifest.clone(), manifest);
        assert!(documents.open_corpus(&set, &store).await.is_ok());

        let evil = wire::encode_body(&vec![Document {
            path: "x".into(),
            sha256: "../../etc/passwd".into(),
            size: 1,
        }]);
        store.blobs.insert("evil".into(), evil);
        let set = DocumentSet { manifest: "evil".into(), ..set };
        let error = documents.open_corpus(&set, &store).await.err().unwrap().to_string();
        assert_eq!(error, "the list of documents has an invalid SHA-256 for \"x\"");
    }

    #[tokio::test]
    async fn the_number_of_open_sets_is_bounded() {
        let documents = DocumentCache::new(None);
        for number in 0..10 {
            let (store, set) = build_blob_store(&[("a.txt", &format!("text {number}"))]);
            documents.open_corpus(&set, &store).await.unwrap();
        }
        assert_eq!(documents.open.lock().unwrap().len(), MAX_OPEN);
    }
}
