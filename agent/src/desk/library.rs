//! The documents that agents of this process work on, each set opened once for all who ask for it at the same time.
//! On disk it owns the documents' bytes by content and, through [`Corpus`], their indices; nothing there is of value.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::{FutureExt, StreamExt, TryStreamExt};
use millrace_protocol::plan::{Document, DocumentSet};
use millrace_protocol::wire;
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

use super::{SourceError, Sources};
use crate::corpus::{self, Corpus};

/// How many sets stay open. Opening one again from the cache takes well under a second.
const MAX_OPEN: usize = 4;
/// How many documents are fetched at once.
const FETCHES: usize = 16;

/// A set of documents that is open, or just being opened by somebody.
type Opening = Arc<OnceCell<Arc<Corpus>>>;

pub(super) struct Library {
    cache: Option<PathBuf>,
    /// By the name of the manifest, the one asked for last at the end.
    open: Mutex<Vec<(String, Opening)>>,
}

impl Library {
    pub fn new(cache: Option<PathBuf>) -> Self {
        Self { cache, open: Mutex::new(Vec::new()) }
    }

    /// The documents of a set. Who comes while it is being opened waits for it; if the one who opens it goes away, the
    /// next goes on.
    pub async fn open(&self, set: &DocumentSet, sources: &dyn Sources) -> Result<Arc<Corpus>, SourceError> {
        let opening = self.opening(&set.manifest);
        opening.get_or_try_init(|| self.load(set, sources)).await.cloned()
    }

    fn opening(&self, manifest: &str) -> Opening {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = match open.iter().position(|(name, _)| name == manifest) {
            Some(at) => open.remove(at),
            None => (manifest.to_owned(), Opening::default()),
        };
        let opening = entry.1.clone();
        open.push(entry);
        if open.len() > MAX_OPEN {
            open.remove(0);
        }
        opening
    }

    async fn load(&self, set: &DocumentSet, sources: &dyn Sources) -> Result<Arc<Corpus>, SourceError> {
        let manifest = sources.blob(&set.manifest).await?;
        let documents: Vec<Document> = wire::read(&manifest, "the list of documents")
            .map_err(|garbage| SourceError::Broken(garbage.to_string()))?;
        if let Some(wrong) = documents.iter().find(|document| !is_sha256(&document.sha256)) {
            let why = format!("the list of documents names {:?} by no SHA-256", wrong.path);
            return Err(SourceError::Broken(why));
        }
        let Some(cache) = self.cache.clone() else {
            let files = fetch_all(&documents, None, sources).await?;
            return blocking(move || Corpus::open(files, None).map_err(unusable)).await.map(Arc::new);
        };
        let documents = Arc::new(documents);
        // Held until the corpus is open, so that of several processes of a machine only one reads and indexes.
        let (_lock, cached) = blocking({
            let (cache, documents, manifest) = (cache.clone(), documents.clone(), set.manifest.clone());
            move || {
                if let Some(corpus) = cached(&documents, &cache) {
                    return Ok((None, Some(corpus)));
                }
                let lock = lock(&cache, &manifest).map_err(|error| no_cache(&cache, &error))?;
                Ok((Some(lock), cached(&documents, &cache)))
            }
        })
        .await?;
        if let Some(corpus) = cached {
            return Ok(Arc::new(corpus));
        }
        let files = fetch_all(&documents, Some(&cache), sources).await?;
        blocking(move || Corpus::open(files, Some(&cache)).map_err(unusable)).await.map(Arc::new)
    }
}

fn cached(documents: &[Document], cache: &Path) -> Option<Corpus> {
    Corpus::cached(documents.iter().map(|document| (document.path.as_str(), document.sha256.as_str())), cache)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SourceError> + Send + 'static,
) -> Result<T, SourceError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(SourceError::Broken(format!("reading the documents failed: {error}"))))
}

/// The bytes of all documents, in their order.
async fn fetch_all(
    documents: &[Document],
    cache: Option<&Path>,
    sources: &dyn Sources,
) -> Result<Vec<corpus::File>, SourceError> {
    // Boxed one by one: the compiler can't see that a stream of closures over borrowed documents may be sent.
    let fetches: Vec<_> = documents.iter().map(|document| file(document, cache, sources).boxed()).collect();
    futures::stream::iter(fetches).buffered(FETCHES).try_collect().await
}

async fn file(
    document: &Document,
    cache: Option<&Path>,
    sources: &dyn Sources,
) -> Result<corpus::File, SourceError> {
    let bytes = fetch(&document.sha256, cache, sources).await?;
    Ok(corpus::File { path: document.path.clone(), bytes })
}

async fn fetch(sha256: &str, cache: Option<&Path>, sources: &dyn Sources) -> Result<Vec<u8>, SourceError> {
    let Some(cache) = cache else {
        return sources.blob(sha256).await;
    };
    let path = cache.join("blobs").join(&sha256[..2]).join(sha256);
    let kept = blocking({
        let (path, sha256) = (path.clone(), sha256.to_owned());
        move || Ok(fs::read(path).ok().filter(|bytes| hex(&Sha256::digest(bytes)) == sha256))
    })
    .await?;
    if let Some(bytes) = kept {
        return Ok(bytes);
    }
    let bytes = sources.blob(sha256).await?;
    blocking(move || {
        // What can't be kept is fetched again the next time.
        if let Err(error) = keep(&path, &bytes) {
            tracing::debug!(path = %path.display(), %error, "a document is not kept");
        }
        Ok(bytes)
    })
    .await
}

/// Writes a file so that nobody ever sees half of it.
fn keep(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let beside = path.with_extension(format!("{}-{number}", std::process::id()));
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    File::create(&beside)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&beside, path))
        .inspect_err(|_| drop(fs::remove_file(&beside)))
}

/// A lock that ends with the file, and so with the process.
fn lock(cache: &Path, manifest: &str) -> std::io::Result<File> {
    let folder = cache.join("locks");
    fs::create_dir_all(&folder)?;
    let name: String = manifest.chars().filter(char::is_ascii_hexdigit).take(64).collect();
    let file = File::create(folder.join(name))?;
    file.lock()?;
    Ok(file)
}

fn is_sha256(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn no_cache(cache: &Path, error: &std::io::Error) -> SourceError {
    SourceError::Broken(format!("the document cache {} can't be used: {error}", cache.display()))
}

fn unusable(error: corpus::CorpusError) -> SourceError {
    SourceError::Broken(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures::future::BoxFuture;
    use millrace_protocol::result::TaskResult;
    use millrace_protocol::work::Input;

    use super::*;

    /// Blobs in memory, which count how often they are asked for.
    struct Store {
        blobs: std::collections::BTreeMap<String, Vec<u8>>,
        asked: AtomicUsize,
    }

    impl Sources for Store {
        fn result<'a>(&'a self, _: &'a Input) -> BoxFuture<'a, Result<TaskResult, SourceError>> {
            std::future::ready(Err(SourceError::Broken("no results here".into()))).boxed()
        }

        fn blob<'a>(&'a self, sha256: &'a str) -> BoxFuture<'a, Result<Vec<u8>, SourceError>> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let found = self.blobs.get(sha256).cloned();
            async move {
                tokio::task::yield_now().await;
                found.ok_or_else(|| SourceError::Unavailable("not there".into()))
            }
            .boxed()
        }
    }

    fn store(files: &[(&str, &str)]) -> (Store, DocumentSet) {
        let name = |bytes: &[u8]| hex(&Sha256::digest(bytes));
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
        let manifest = wire::body(&documents);
        let set = DocumentSet { manifest: name(&manifest), count: files.len() as u32, bytes: 0 };
        blobs.insert(set.manifest.clone(), manifest);
        (Store { blobs, asked: AtomicUsize::new(0) }, set)
    }

    #[tokio::test]
    async fn who_asks_at_the_same_time_shares_one_opening() {
        let cache = tempfile::tempdir().unwrap();
        let (store, set) = store(&[("a.txt", "patents end"), ("b.md", "# grants\n\nbegin")]);
        for cache in [None, Some(cache.path().to_owned())] {
            let library = Library::new(cache);
            let asked = futures::future::join_all((0..10).map(|_| library.open(&set, &store))).await;
            let first = asked[0].clone().unwrap();
            assert!(asked.iter().all(|corpus| Arc::ptr_eq(corpus.as_ref().unwrap(), &first)));
            assert_eq!(first.documents().len(), 2);
            assert_eq!(store.asked.swap(0, Ordering::SeqCst), 3, "the manifest and each document once");
        }
    }

    #[tokio::test]
    async fn what_is_in_the_cache_is_not_fetched_again() {
        let cache = tempfile::tempdir().unwrap();
        let open = async |store: &Store, set: &DocumentSet| {
            let opened = Library::new(Some(cache.path().to_owned())).open(set, store).await.unwrap();
            (opened.documents().len(), store.asked.load(Ordering::SeqCst))
        };
        let (one, set) = store(&[("a.txt", "one"), ("b.txt", "two")]);
        assert_eq!(open(&one, &set).await, (2, 3));
        let (again, set) = store(&[("a.txt", "one"), ("b.txt", "two")]);
        assert_eq!(open(&again, &set).await, (2, 1), "the index is there");
        let (more, set) = store(&[("a.txt", "one"), ("b.txt", "two"), ("c.txt", "three")]);
        assert_eq!(open(&more, &set).await, (3, 2), "only the third document is new");
    }

    #[tokio::test]
    async fn a_failed_opening_is_tried_again_and_a_bad_list_is_told() {
        let (mut store, set) = store(&[("a.txt", "one")]);
        let library = Library::new(None);
        let manifest = store.blobs.remove(&set.manifest).unwrap();
        let unavailable = library.open(&set, &store).await.err();
        assert_eq!(unavailable, Some(SourceError::Unavailable("not there".into())));
        store.blobs.insert(set.manifest.clone(), manifest);
        assert!(library.open(&set, &store).await.is_ok());

        let evil =
            wire::body(&vec![Document { path: "x".into(), sha256: "../../etc/passwd".into(), size: 1 }]);
        store.blobs.insert("evil".into(), evil);
        let set = DocumentSet { manifest: "evil".into(), ..set };
        let told = library.open(&set, &store).await.err().unwrap().to_string();
        assert_eq!(told, "the list of documents names \"x\" by no SHA-256");
    }

    #[tokio::test]
    async fn only_so_many_sets_stay_open() {
        let library = Library::new(None);
        for number in 0..10 {
            let (store, set) = store(&[("a.txt", &format!("text {number}"))]);
            library.open(&set, &store).await.unwrap();
        }
        assert_eq!(library.open.lock().unwrap().len(), MAX_OPEN);
    }
}
