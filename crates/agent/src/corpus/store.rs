//! A corpus cache on disk, so that the processes of one machine read and index the same documents once. Each corpus is a
//! folder named by its key; it is built in a temporary folder and renamed when complete, so that it is never visible in
//! part, and a damaged one is rebuilt. A lock lets one process build while others wait; it saves work, but correctness
//! does not depend on it. The cache can be deleted at any time.

use std::fs;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_protocol::wire;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::index::CorpusIndex;
use super::reading::{self, InputFile};
use super::{Corpus, CorpusError, Document, SkippedFile};

/// Incremented with each change of the stored data or of the words of a text, which a new version of a stemmer changes too.
pub(super) const FORMAT: u32 = 6;

const DOCUMENTS: &str = "documents.json";
const INDEX: &str = "index";
const LOCK: &str = "lock";

#[derive(Serialize, Deserialize)]
struct StoredCorpus<D, S> {
    documents: D,
    skipped: S,
}

/// Loads the corpus in a folder; `None` if there is none or it can't be read.
pub(super) fn load_corpus(folder: &Path) -> Option<Corpus> {
    let file = fs::File::open(folder.join(DOCUMENTS)).ok()?;
    let contents: StoredCorpus<Vec<Document>, Vec<SkippedFile>> =
        serde_json::from_reader(BufReader::new(file)).ok()?;
    let index: CorpusIndex =
        wire::decode_message_pack(&fs::read(folder.join(INDEX)).ok()?, "the index of the documents").ok()?;
    if !index.fits_documents(contents.documents.len()) {
        return None;
    }
    Some(Corpus::new(contents.documents, contents.skipped, index))
}

pub(super) fn open_or_build_corpus(files: Vec<InputFile>, cache: &Path) -> Result<Corpus, CorpusError> {
    let hashes: Vec<String> =
        files.iter().map(|file| reading::encode_hex(&Sha256::digest(&file.bytes))).collect();
    let key =
        Corpus::cache_key(files.iter().zip(&hashes).map(|(file, hash)| (file.path.as_str(), hash.as_str())));
    let folder = cache.join(&key);
    if let Some(corpus) = load_corpus(&folder) {
        return Ok(corpus);
    }
    fs::create_dir_all(cache).map_err(io_error_at(cache))?;
    let _lock = lock_cache(cache);
    if let Some(corpus) = load_corpus(&folder) {
        return Ok(corpus);
    }
    let (documents, skipped) = reading::read_documents(files);
    // A file that needed too much time or memory may be readable later, or in another process.
    if !skipped.iter().all(|file| file.reason.is_lasting()) {
        let index = CorpusIndex::build(&documents);
        return Ok(Corpus::new(documents, skipped, index));
    }
    let building = CorpusBuild::create_folder(cache, &key)?;
    building.write_corpus(&documents, &skipped)?;
    building.move_into_cache(&folder)?;
    // Loaded from its final place: files under the old name may be gone.
    match load_corpus(&folder) {
        Some(corpus) => Ok(corpus),
        None => {
            let index = CorpusIndex::build(&documents);
            Ok(Corpus::new(documents, skipped, index))
        }
    }
}

/// Waits until no other process builds in this cache. The operating system releases the lock when the file is dropped or
/// the process dies. Where locks are not supported, every process builds.
fn lock_cache(cache: &Path) -> Option<fs::File> {
    let file = fs::File::create(cache.join(LOCK)).ok()?;
    file.lock().ok()?;
    Some(file)
}

/// Writes a file through a temporary one, so that readers never see a part of it.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_extension(format!("{}-{number}", std::process::id()));
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    fs::File::create(&temporary)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&temporary, path))
        .inspect_err(|_| drop(fs::remove_file(&temporary)))
}

/// Locks an entry of the cache, named in hexadecimal, among the processes of this machine. The lock is released when the file is dropped or the process ends.
pub(crate) fn lock_cache_entry(cache: &Path, name: &str) -> std::io::Result<fs::File> {
    let folder = cache.join("locks");
    fs::create_dir_all(&folder)?;
    let name: String = name.chars().filter(char::is_ascii_hexdigit).take(64).collect();
    let file = fs::File::create(folder.join(name))?;
    file.lock()?;
    Ok(file)
}

/// A corpus that is being written to a temporary folder of this process. Removed on drop.
struct CorpusBuild {
    folder: PathBuf,
}

impl CorpusBuild {
    fn create_folder(cache: &Path, key: &str) -> Result<Self, CorpusError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = cache.join(format!("{key}.building-{}-{number}", std::process::id()));
        // A process with the same id may have crashed here before.
        drop(fs::remove_dir_all(&folder));
        fs::create_dir_all(&folder).map_err(io_error_at(&folder))?;
        Ok(Self { folder })
    }

    fn write_corpus(&self, documents: &[Document], skipped: &[SkippedFile]) -> Result<(), CorpusError> {
        let index = wire::encode_body(&CorpusIndex::build(documents));
        let path = self.folder.join(INDEX);
        fs::write(&path, index).map_err(io_error_at(&path))?;
        let path = self.folder.join(DOCUMENTS);
        let mut file = BufWriter::new(fs::File::create(&path).map_err(io_error_at(&path))?);
        serde_json::to_writer(&mut file, &StoredCorpus { documents, skipped })
            .map_err(std::io::Error::from)
            .and_then(|()| file.flush())
            .map_err(io_error_at(&path))
    }

    /// Moves the complete folder into place. If another process was faster, its result is used.
    fn move_into_cache(self, folder: &Path) -> Result<(), CorpusError> {
        if fs::rename(&self.folder, folder).is_ok() || load_corpus(folder).is_some() {
            return Ok(());
        }
        // The existing folder is damaged. It is moved away first, since a folder can't be replaced atomically.
        let broken = self.folder.with_extension("broken");
        drop(fs::rename(folder, &broken));
        let renamed = fs::rename(&self.folder, folder);
        drop(fs::remove_dir_all(&broken));
        match renamed {
            Ok(()) => Ok(()),
            Err(_) if load_corpus(folder).is_some() => Ok(()),
            Err(error) => Err(io_error_at(folder)(error)),
        }
    }
}

impl Drop for CorpusBuild {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

fn io_error_at(path: &Path) -> impl Fn(std::io::Error) -> CorpusError {
    let path = path.display().to_string();
    move |source| CorpusError::Cache { path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_files() -> Vec<InputFile> {
        let file = |path: &str, text: &str| InputFile { path: path.into(), bytes: text.as_bytes().to_vec() };
        vec![
            file("b.txt", "A lease ends."),
            file("a.md", "# Head\n\nA lane is a stream."),
            file("c.bin", "\u{1}\u{0}\u{2}"),
        ]
    }

    fn sample_cache_key() -> String {
        let files = sample_files();
        let hashes: Vec<String> =
            files.iter().map(|file| reading::encode_hex(&Sha256::digest(&file.bytes))).collect();
        Corpus::cache_key(files.iter().zip(&hashes).map(|(file, hash)| (file.path.as_str(), hash.as_str())))
    }

    fn list_cache_entries(cache: &Path) -> Vec<String> {
        let names =
            fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    fn read_contents(corpus: &Corpus) -> (Vec<Document>, Vec<SkippedFile>, Vec<String>) {
        let results = corpus.search("leases", 5, 5);
        let hits =
            results.hits.iter().map(|hit| format!("{} {} {}", hit.document.path, hit.first_line, hit.score));
        (corpus.documents().to_vec(), corpus.skipped_files().to_vec(), hits.collect())
    }

    #[test]
    fn a_cached_corpus_equals_the_built_one() {
        let cache = tempfile::tempdir().unwrap();
        let plain = Corpus::build_or_load(sample_files(), None).unwrap();
        let built = Corpus::build_or_load(sample_files(), Some(cache.path())).unwrap();
        assert_eq!(read_contents(&plain), read_contents(&built));
        assert_eq!(read_contents(&built).2.len(), 1);
        let again = load_corpus(&cache.path().join(sample_cache_key())).unwrap();
        assert_eq!(read_contents(&built), read_contents(&again));
        let mut reversed = sample_files();
        reversed.reverse();
        assert_eq!(
            read_contents(&Corpus::build_or_load(reversed, Some(cache.path())).unwrap()),
            read_contents(&built)
        );
        assert_eq!(
            list_cache_entries(cache.path()),
            [sample_cache_key(), LOCK.to_owned()],
            "no temporary folder is left"
        );
    }

    #[test]
    fn concurrent_processes_all_get_the_corpus() {
        let cache = tempfile::tempdir().unwrap();
        let expected = read_contents(&Corpus::build_or_load(sample_files(), None).unwrap());
        std::thread::scope(|scope| {
            let open = || read_contents(&Corpus::build_or_load(sample_files(), Some(cache.path())).unwrap());
            let running: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            for thread in running {
                assert_eq!(thread.join().unwrap(), expected);
            }
        });
        assert_eq!(list_cache_entries(cache.path()), [sample_cache_key(), LOCK.to_owned()]);
    }

    #[test]
    fn a_waiting_process_uses_the_corpus_built_by_another() {
        let cache = tempfile::tempdir().unwrap();
        let guard = lock_cache(cache.path()).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope
                .spawn(|| read_contents(&Corpus::build_or_load(sample_files(), Some(cache.path())).unwrap()));
            let other = tempfile::tempdir().unwrap();
            Corpus::build_or_load(sample_files(), Some(other.path())).unwrap();
            fs::rename(other.path().join(sample_cache_key()), cache.path().join(sample_cache_key())).unwrap();
            let before = fs::metadata(cache.path().join(sample_cache_key()).join(DOCUMENTS))
                .unwrap()
                .modified()
                .unwrap();
            drop(guard);
            assert_eq!(
                waiting.join().unwrap(),
                read_contents(&Corpus::build_or_load(sample_files(), None).unwrap())
            );
            let after = fs::metadata(cache.path().join(sample_cache_key()).join(DOCUMENTS))
                .unwrap()
                .modified()
                .unwrap();
            assert_eq!(before, after, "it was not rebuilt");
        });
    }

    #[test]
    fn a_damaged_cached_corpus_is_rebuilt() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join(sample_cache_key());
        for broken in [DOCUMENTS, INDEX] {
            let expected = read_contents(&Corpus::build_or_load(sample_files(), Some(cache.path())).unwrap());
            fs::write(folder.join(broken), "{").unwrap();
            assert!(load_corpus(&folder).is_none());
            assert_eq!(
                read_contents(&Corpus::build_or_load(sample_files(), Some(cache.path())).unwrap()),
                expected
            );
            assert!(load_corpus(&folder).is_some());
        }
    }
}
