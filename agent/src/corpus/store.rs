//! A corpus on disk, so that several processes of one machine read and index the same documents once. Each corpus is
//! a folder named by its key; it is built in a folder of its own and renamed when it is whole, so nobody ever sees
//! half of one, and a broken one is built anew. A lock lets one process build while others wait; it saves work, and
//! nothing rests on it. Nothing in the cache is of value: it can be deleted at any time.

use std::fs;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::index::Index;
use super::reading::{self, Document, File, Skipped};
use super::{Corpus, CorpusError};

/// Counts up with each change of what is stored or of how words become terms.
pub(super) const FORMAT: u32 = 1;

const DOCUMENTS: &str = "documents.json";
const INDEX: &str = "index";
const LOCK: &str = "lock";

#[derive(Serialize, Deserialize)]
struct Contents<D, S> {
    documents: D,
    skipped: S,
}

/// The corpus in a folder; `None` if there is none or it can't be read.
pub(super) fn load(folder: &Path) -> Option<Corpus> {
    let file = fs::File::open(folder.join(DOCUMENTS)).ok()?;
    let contents: Contents<Vec<Document>, Vec<Skipped>> =
        serde_json::from_reader(BufReader::new(file)).ok()?;
    let index = Index::open(&folder.join(INDEX)).ok()?;
    Some(Corpus::new(contents.documents, contents.skipped, index))
}

pub(super) fn open(files: Vec<File>, cache: &Path) -> Result<Corpus, CorpusError> {
    let hashes: Vec<String> = files.iter().map(|file| reading::hex(&Sha256::digest(&file.bytes))).collect();
    let key = Corpus::key(files.iter().zip(&hashes).map(|(file, hash)| (file.path.as_str(), hash.as_str())));
    let folder = cache.join(&key);
    if let Some(corpus) = load(&folder) {
        return Ok(corpus);
    }
    fs::create_dir_all(cache).map_err(fault(cache))?;
    let _lock = lock(cache);
    if let Some(corpus) = load(&folder) {
        return Ok(corpus);
    }
    let (documents, skipped) = reading::read_all(files);
    let building = Building::begin(cache, &key)?;
    building.write(&documents, &skipped)?;
    building.finish(&folder)?;
    // Loaded from where it now is: files under the old name may be gone.
    match load(&folder) {
        Some(corpus) => Ok(corpus),
        None => {
            let index = Index::in_memory(&documents)?;
            Ok(Corpus::new(documents, skipped, index))
        }
    }
}

/// Waits until no other process builds in this cache. The system takes the lock back when the file is dropped or the
/// process dies. Where there are no locks, everyone builds.
fn lock(cache: &Path) -> Option<fs::File> {
    let file = fs::File::create(cache.join(LOCK)).ok()?;
    file.lock().ok()?;
    Some(file)
}

/// A corpus that is being written, in a folder that no other process uses. It is removed when it is dropped.
struct Building {
    folder: PathBuf,
}

impl Building {
    fn begin(cache: &Path, key: &str) -> Result<Self, CorpusError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = cache.join(format!("{key}.building-{}-{number}", std::process::id()));
        // A process of the same number may have died here earlier.
        drop(fs::remove_dir_all(&folder));
        fs::create_dir_all(folder.join(INDEX)).map_err(fault(&folder))?;
        Ok(Self { folder })
    }

    fn write(&self, documents: &[Document], skipped: &[Skipped]) -> Result<(), CorpusError> {
        drop(Index::on_disk(documents, &self.folder.join(INDEX))?);
        let path = self.folder.join(DOCUMENTS);
        let mut file = BufWriter::new(fs::File::create(&path).map_err(fault(&path))?);
        serde_json::to_writer(&mut file, &Contents { documents, skipped })
            .map_err(std::io::Error::from)
            .and_then(|()| file.flush())
            .map_err(fault(&path))
    }

    /// Puts the finished folder in its place. If another process was faster, its work is as good as this.
    fn finish(self, folder: &Path) -> Result<(), CorpusError> {
        if fs::rename(&self.folder, folder).is_ok() || load(folder).is_some() {
            return Ok(());
        }
        // What stands there is broken. It is moved away first, as a folder can't be replaced at once.
        let broken = self.folder.with_extension("broken");
        drop(fs::rename(folder, &broken));
        let renamed = fs::rename(&self.folder, folder);
        drop(fs::remove_dir_all(&broken));
        match renamed {
            Ok(()) => Ok(()),
            Err(_) if load(folder).is_some() => Ok(()),
            Err(error) => Err(fault(folder)(error)),
        }
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

fn fault(path: &Path) -> impl Fn(std::io::Error) -> CorpusError {
    let path = path.display().to_string();
    move |source| CorpusError::Cache { path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Vec<File> {
        let file = |path: &str, text: &str| File { path: path.into(), bytes: text.as_bytes().to_vec() };
        vec![
            file("b.txt", "A lease ends."),
            file("a.md", "# Head\n\nA lane is a stream."),
            file("c.pdf", "%PDF"),
        ]
    }

    fn key() -> String {
        let files = files();
        let hashes: Vec<String> =
            files.iter().map(|file| reading::hex(&Sha256::digest(&file.bytes))).collect();
        Corpus::key(files.iter().zip(&hashes).map(|(file, hash)| (file.path.as_str(), hash.as_str())))
    }

    fn entries(cache: &Path) -> Vec<String> {
        let names =
            fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    fn told(corpus: &Corpus) -> (Vec<Document>, Vec<Skipped>, Vec<String>) {
        let found = corpus.search("leases", 5, 5).unwrap();
        let hits =
            found.hits.iter().map(|hit| format!("{} {} {}", hit.document.path, hit.first_line, hit.score));
        (corpus.documents().to_vec(), corpus.skipped().to_vec(), hits.collect())
    }

    #[test]
    fn a_corpus_from_the_cache_is_the_one_that_was_built() {
        let cache = tempfile::tempdir().unwrap();
        let plain = Corpus::open(files(), None).unwrap();
        let built = Corpus::open(files(), Some(cache.path())).unwrap();
        assert_eq!(told(&plain), told(&built));
        assert_eq!(told(&built).2.len(), 1);
        let again = load(&cache.path().join(key())).unwrap();
        assert_eq!(told(&built), told(&again));
        let mut reversed = files();
        reversed.reverse();
        assert_eq!(told(&Corpus::open(reversed, Some(cache.path())).unwrap()), told(&built));
        assert_eq!(entries(cache.path()), [key(), LOCK.to_owned()], "nothing is left beside it");
    }

    #[test]
    fn processes_that_build_the_same_at_once_all_get_it() {
        let cache = tempfile::tempdir().unwrap();
        let expected = told(&Corpus::open(files(), None).unwrap());
        std::thread::scope(|scope| {
            let open = || told(&Corpus::open(files(), Some(cache.path())).unwrap());
            let running: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            for thread in running {
                assert_eq!(thread.join().unwrap(), expected);
            }
        });
        assert_eq!(entries(cache.path()), [key(), LOCK.to_owned()]);
    }

    #[test]
    fn who_waits_for_another_to_build_uses_what_that_one_built() {
        let cache = tempfile::tempdir().unwrap();
        let held = lock(cache.path()).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| told(&Corpus::open(files(), Some(cache.path())).unwrap()));
            let other = tempfile::tempdir().unwrap();
            Corpus::open(files(), Some(other.path())).unwrap();
            fs::rename(other.path().join(key()), cache.path().join(key())).unwrap();
            let before = fs::metadata(cache.path().join(key()).join(DOCUMENTS)).unwrap().modified().unwrap();
            drop(held);
            assert_eq!(waiting.join().unwrap(), told(&Corpus::open(files(), None).unwrap()));
            let after = fs::metadata(cache.path().join(key()).join(DOCUMENTS)).unwrap().modified().unwrap();
            assert_eq!(before, after, "it was not built again");
        });
    }

    #[test]
    fn a_broken_corpus_in_the_cache_is_built_anew() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join(key());
        for broken in [DOCUMENTS, "index/meta.json"] {
            let expected = told(&Corpus::open(files(), Some(cache.path())).unwrap());
            fs::write(folder.join(broken), "{").unwrap();
            assert!(load(&folder).is_none());
            assert_eq!(told(&Corpus::open(files(), Some(cache.path())).unwrap()), expected);
            assert!(load(&folder).is_some());
        }
    }
}
