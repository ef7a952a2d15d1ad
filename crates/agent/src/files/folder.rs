//! A local folder as files. Nothing outside it can be reached: a path is walked part by part from the folder's own
//! descriptor, no step follows a symbolic link, and the opened descriptor is the one used, so that nothing can be swapped
//! between check and use. Hard links can't be told from files: whoever may create them may share files.
//!
//! Versions are derived from file metadata (inode, size and times), so that changes by other programs are noticed. Files
//! are replaced atomically by renaming; of several Millrace processes one writes at a time.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::file::MAX_STREAMED_FILE;
use millrace_protocol::secrets::contains_secret;
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::local_file::{
    LocalContent, PART_SIZE, UNFINISHED, UnfinishedFile, build_file_entry, io_failure, open_subfolder_error,
    too_large_error, unreadable_error,
};
use super::working_copy::hexadecimal;
use super::{
    ContentStream, FileContent, FileDigest, FileEntry, FilePath, Files, FilesError, MAX_FILE, OpenFile,
    StoredContent, WriteCondition, is_below,
};

/// The maximum number of files in a folder.
const MAX_ENTRIES: usize = 20_000;
/// The maximum nesting of folders.
const MAX_DEPTH: usize = 64;
/// The length of a secret in any encoding that is found across two parts of a file.
const SECRET_OVERLAP: usize = 64 * 1024;

/// A local folder. Cheap to clone.
#[derive(Debug, Clone)]
pub struct FolderFiles {
    root: Arc<OwnedFd>,
    /// `true` if files that begin with `#!` are written as programs.
    has_programs: bool,
}

/// The folder of a file, and the file's name in it.
struct OpenFileSlot {
    folder: OwnedFd,
    name: String,
}

impl FolderFiles {
    /// Opens an existing local folder.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let root =
            rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY, Mode::empty())?;
        Ok(Self { root: Arc::new(root), has_programs: false })
    }

    /// Writes files that begin with `#!` so that they can be run.
    #[must_use]
    pub fn with_programs(self) -> Self {
        Self { has_programs: true, ..self }
    }

    /// Locks out writes by other processes while the descriptor lives.
    fn lock_folder(&self) -> Result<OwnedFd, FilesError> {
        let all = open_subfolder(self.root.as_fd(), ".").map_err(|errno| io_failure("the folder", errno))?;
        rustix::fs::flock(&all, FlockOperation::LockExclusive)
            .map_err(|errno| io_failure("the folder", errno))?;
        Ok(all)
    }

    /// Opens the folder of a file; `None` if it does not exist. `create` creates missing folders.
    fn open_slot(&self, path: &FilePath, create: bool) -> Result<Option<OpenFileSlot>, FilesError> {
        let mut parts: Vec<&str> = path.parts().collect();
        let name = parts.pop().unwrap_or_default().to_owned();
        let mut folder = open_subfolder(self.root.as_fd(), ".").map_err(|errno| io_failure(path, errno))?;
        for part in parts {
            let next = match open_subfolder(folder.as_fd(), part) {
                Err(Errno::NOENT) if create => {
                    // Another process may have created it first, which is fine.
                    let _ = rustix::fs::mkdirat(&folder, part, Mode::from_raw_mode(0o755));
                    open_subfolder(folder.as_fd(), part)
                }
                stepped => stepped,
            };
            folder = match next {
                Ok(next) => next,
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(open_subfolder_error(path, folder.as_fd(), part, errno)),
            };
        }
        Ok(Some(OpenFileSlot { folder, name }))
    }

    /// Reads a file on this thread; `None` if there is none.
    pub(crate) fn read_file(&self, path: &FilePath) -> Result<Option<FileContent>, FilesError> {
        match self.open_slot(path, false)? {
            Some(slot) => slot.read_content(path),
            None => Ok(None),
        }
    }

    /// Opens a regular file on this thread; `None` if there is none. The size of the entry is that of now.
    fn open_regular(&self, path: &FilePath) -> Result<Option<(File, FileEntry)>, FilesError> {
        match self.open_slot(path, false)? {
            Some(slot) => slot.open_regular(path),
            None => Ok(None),
        }
    }

    /// Opens a file to read it while others may replace it; `None` if there is none.
    pub fn open_file(&self, path: &FilePath) -> BoxFuture<'static, Result<Option<File>, FilesError>> {
        let path = path.clone();
        self.run_blocking(move |folder| Ok(folder.open_regular(&path)?.map(|(file, _)| file)))
    }

    /// Computes the SHA-256 of a file, one part in memory at a time; `None` if there is no file.
    pub fn digest_file(&self, path: &FilePath) -> BoxFuture<'static, Result<Option<FileDigest>, FilesError>> {
        let path = path.clone();
        self.run_blocking(move |folder| folder.digest_now(&path))
    }

    /// Returns `true` if a file contains a secret that this process knows; one part of it is in memory at a time.
    pub fn contains_secret(&self, path: &FilePath) -> BoxFuture<'static, Result<bool, FilesError>> {
        let path = path.clone();
        self.run_blocking(move |folder| {
            let Some((mut file, _)) = folder.open_regular(&path)? else { return Ok(false) };
            let (mut part, mut kept) = (vec![0; PART_SIZE + SECRET_OVERLAP], 0);
            loop {
                let read = file.read(&mut part[kept..]).map_err(|error| unreadable_error(&path, &error))?;
                let end = kept + read;
                if read == 0 || contains_secret(&part[..end]) {
                    return Ok(read > 0);
                }
                // A secret may begin in this part and end in the next one.
                kept = end.min(SECRET_OVERLAP);
                part.copy_within(end - kept..end, 0);
            }
        })
    }

    fn digest_now(&self, path: &FilePath) -> Result<Option<FileDigest>, FilesError> {
        let Some((mut file, _)) = self.open_regular(path)? else { return Ok(None) };
        let (mut hash, mut size, mut part) = (Sha256::new(), 0, vec![0; PART_SIZE]);
        loop {
            let read = file.read(&mut part).map_err(|error| unreadable_error(path, &error))?;
            if read == 0 {
                return Ok(Some(FileDigest { size, sha256: hexadecimal(&hash.finalize()) }));
            }
            size += read as u64;
            hash.update(&part[..read]);
        }
    }

    fn create_unfinished(&self, path: &FilePath) -> Result<UnfinishedFile, FilesError> {
        let slot = self.open_slot(path, true)?.ok_or_else(|| io_failure(path, Errno::NOENT))?;
        UnfinishedFile::create(slot.folder, slot.name).map_err(|errno| io_failure(path, errno))
    }

    /// Puts a written file in its place if the current one is as expected, and returns its version. `begins_program`: it
    /// begins with `#!`.
    fn finish_file(
        &self,
        path: &FilePath,
        mut unfinished: UnfinishedFile,
        (expected, begins_program): (WriteCondition, bool),
        written: &FileDigest,
    ) -> Result<u64, FilesError> {
        let _lock = self.lock_folder()?;
        let current = self.open_regular(path)?.map(|(_, entry)| entry);
        if !meets_condition(expected, current.as_ref()) {
            return match current {
                // Already written, as by an earlier run of the same call.
                Some(current) if self.digest_now(path)?.as_ref() == Some(written) => Ok(current.version),
                current => Err(self.stale_error(path, current)),
            };
        }
        let fault = |errno| io_failure(path, errno);
        if self.has_programs && begins_program {
            unfinished.make_executable().map_err(fault)?;
        }
        unfinished.finish().map_err(fault)?;
        let entry = self.open_regular(path)?.map(|(_, entry)| entry);
        entry.map(|entry| entry.version).ok_or_else(|| io_failure(path, Errno::NOENT))
    }

    /// The error of a write on another version: with the current content, unless that is too large.
    fn stale_error(&self, path: &FilePath, current: Option<FileEntry>) -> FilesError {
        let read = |entry: FileEntry| match self.read_file(path) {
            Ok(content) => content,
            Err(_) => Some(FileContent { entry, bytes: Vec::new() }),
        };
        FilesError::Stale { path: path.clone(), current: current.and_then(read).map(Box::new) }
    }

    fn replace_file(
        &self,
        path: &FilePath,
        bytes: &[u8],
        expected: WriteCondition,
    ) -> Result<u64, FilesError> {
        if bytes.len() as u64 > MAX_FILE {
            return Err(too_large_error(path, bytes.len() as u64, MAX_FILE));
        }
        let mut unfinished = self.create_unfinished(path)?;
        unfinished.write(bytes).map_err(|errno| io_failure(path, errno))?;
        let written = FileDigest { size: bytes.len() as u64, sha256: super::sha256_hex(bytes) };
        self.finish_file(path, unfinished, (expected, bytes.starts_with(b"#!")), &written)
    }

    /// Writes a file part by part. Returns its version and its digest.
    ///
    /// # Errors
    /// See [`FilesError`]; nothing was written.
    pub async fn write_content(
        &self,
        path: &FilePath,
        content: &mut dyn ContentStream,
        expected: WriteCondition,
    ) -> Result<(u64, FileDigest), FilesError> {
        let created = path.clone();
        let mut unfinished = self.run_blocking(move |folder| folder.create_unfinished(&created)).await?;
        let (mut hash, mut size, mut first) = (Sha256::new(), 0, Vec::<u8>::new());
        while let Some(part) = content.next_part().await? {
            size += part.len() as u64;
            if size > MAX_STREAMED_FILE {
                return Err(too_large_error(path, size, MAX_STREAMED_FILE));
            }
            hash.update(&part);
            first.extend(part.iter().take(2_usize.saturating_sub(first.len())));
            let written = path.clone();
            let writing = move |_: &Self| match unfinished.write(&part) {
                Ok(()) => Ok(unfinished),
                Err(errno) => Err(io_failure(&written, errno)),
            };
            unfinished = self.run_blocking(writing).await?;
        }
        let digest = FileDigest { size, sha256: hexadecimal(&hash.finalize()) };
        let (path, written, is_program) = (path.clone(), digest.clone(), first == b"#!");
        let finish =
            move |folder: &Self| folder.finish_file(&path, unfinished, (expected, is_program), &written);
        Ok((self.run_blocking(finish).await?, digest))
    }

    fn remove_file(&self, path: &FilePath, expected: WriteCondition) -> Result<(), FilesError> {
        let _lock = self.lock_folder()?;
        let Some(slot) = self.open_slot(path, false)? else { return Ok(()) };
        let Some((_, current)) = slot.open_regular(path)? else { return Ok(()) };
        if !meets_condition(expected, Some(&current)) {
            return Err(self.stale_error(path, Some(current)));
        }
        match rustix::fs::unlinkat(&slot.folder, slot.name.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(io_failure(path, errno)),
        }
    }

    fn list_all_files(&self, is_skipped: &dyn Fn(&FilePath) -> bool) -> Result<Vec<FileEntry>, FilesError> {
        let mut entries = Vec::new();
        let root = open_subfolder(self.root.as_fd(), ".").map_err(|errno| io_failure("the folder", errno))?;
        collect_files(&root, "", 0, is_skipped, &mut entries)?;
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(entries)
    }

    /// Lists all files except those that are skipped, by path. Skipped folders are not entered.
    pub fn list_except(
        &self,
        is_skipped: impl Fn(&FilePath) -> bool + Send + 'static,
    ) -> BoxFuture<'static, Result<Vec<FileEntry>, FilesError>> {
        self.run_blocking(move |folder| folder.list_all_files(&is_skipped))
    }

    fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, FilesError> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, FilesError>> {
        let folder = self.clone();
        async move {
            let done = tokio::task::spawn_blocking(move || work(&folder)).await;
            done.unwrap_or_else(|error| Err(FilesError::Broken(format!("the folder can't be used: {error}"))))
        }
        .boxed()
    }
}

/// Opens a folder within another without following links.
fn open_subfolder(from: BorrowedFd<'_>, part: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    rustix::fs::openat(from, part, flags, Mode::empty())
}

fn meets_condition(expected: WriteCondition, current: Option<&FileEntry>) -> bool {
    match expected {
        WriteCondition::Always => true,
        WriteCondition::Absent => current.is_none(),
        WriteCondition::Version(version) => current.is_some_and(|current| current.version == version),
    }
}

impl OpenFileSlot {
    /// Opens the file if it is a regular one; `None` if there is none.
    fn open_regular(&self, path: &FilePath) -> Result<Option<(File, FileEntry)>, FilesError> {
        // Non-blocking: opening a pipe would block.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = match rustix::fs::openat(&self.folder, self.name.as_str(), flags, Mode::empty()) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(open_subfolder_error(path, self.folder.as_fd(), &self.name, errno)),
        };
        let stat = rustix::fs::fstat(&opened).map_err(|errno| io_failure(path, errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(FilesError::Broken(format!("{path} is a folder or a device, not a file")));
        }
        Ok(Some((File::from(opened), build_file_entry(path.clone(), &stat))))
    }

    /// Reads the file; `None` if there is none.
    fn read_content(&self, path: &FilePath) -> Result<Option<FileContent>, FilesError> {
        let Some((file, entry)) = self.open_regular(path)? else { return Ok(None) };
        if entry.size > MAX_FILE {
            return Err(too_large_error(path, entry.size, MAX_FILE));
        }
        let mut bytes = Vec::new();
        let read = file.take(MAX_FILE + 1).read_to_end(&mut bytes);
        read.map_err(|error| unreadable_error(path, &error))?;
        Ok(Some(FileContent { entry: FileEntry { size: bytes.len() as u64, ..entry }, bytes }))
    }
}

/// Collects all files below a folder, except links, devices, and files whose names are not valid paths.
fn collect_files(
    folder: &OwnedFd,
    above: &str,
    depth: usize,
    is_skipped: &dyn Fn(&FilePath) -> bool,
    entries: &mut Vec<FileEntry>,
) -> Result<(), FilesError> {
    if depth > MAX_DEPTH {
        return Err(FilesError::Broken(format!("{above} is nested deeper than {MAX_DEPTH} folders")));
    }
    let fault = |errno| io_failure(if above.is_empty() { "the folder" } else { above }, errno);
    for item in Dir::read_from(folder).map_err(fault)? {
        let item = item.map_err(fault)?;
        let Ok(name) = item.file_name().to_str() else { continue };
        if matches!(name, "." | "..") || name.starts_with(UNFINISHED) {
            continue;
        }
        let Ok(path) = FilePath::new(&format!("{above}/{name}")) else { continue };
        if is_skipped(&path) {
            continue;
        }
        // It may have been deleted since it was listed.
        let Ok(stat) = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => entries.push(build_file_entry(path, &stat)),
            FileType::Directory => {
                if let Ok(inner) = open_subfolder(folder.as_fd(), name) {
                    collect_files(&inner, path.as_str(), depth + 1, is_skipped, entries)?;
                }
            }
            FileType::Symlink
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => {}
        }
        if entries.len() > MAX_ENTRIES {
            return Err(FilesError::Broken(format!("the folder holds more than {MAX_ENTRIES} files")));
        }
    }
    Ok(())
}

impl Files for FolderFiles {
    fn list<'a>(&'a self, folder: &'a str) -> BoxFuture<'a, Result<Vec<FileEntry>, FilesError>> {
        async move {
            let mut entries = self.list_except(|_| false).await?;
            entries.retain(|entry| is_below(&entry.path, folder));
            Ok(entries)
        }
        .boxed()
    }

    fn read<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<FileContent>, FilesError>> {
        let path = path.clone();
        self.run_blocking(move |folder| folder.read_file(&path))
    }

    fn write<'a>(
        &'a self,
        path: &'a FilePath,
        bytes: Vec<u8>,
        expected: WriteCondition,
        _: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>> {
        let path = path.clone();
        self.run_blocking(move |folder| folder.replace_file(&path, &bytes, expected))
    }

    fn open<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<OpenFile>, FilesError>> {
        let path = path.clone();
        self.run_blocking(move |folder| {
            let opened = folder.open_regular(&path)?;
            Ok(opened.map(|(file, entry)| OpenFile {
                entry,
                content: Box::new(LocalContent { path, file: Arc::new(file), at: 0 }),
            }))
        })
    }

    fn write_stored<'a>(
        &'a self,
        path: &'a FilePath,
        mut stored: StoredContent,
        expected: WriteCondition,
        _: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>> {
        async move {
            let written = self.write_content(path, stored.content.as_mut(), expected).await;
            written.map(|(version, _)| version)
        }
        .boxed()
    }

    fn delete<'a>(
        &'a self,
        path: &'a FilePath,
        expected: WriteCondition,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), FilesError>> {
        let path = path.clone();
        self.run_blocking(move |folder| folder.remove_file(&path, expected))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::Ordering;

    use super::*;

    fn file_path(text: &str) -> FilePath {
        FilePath::new(text).unwrap()
    }

    fn temporary_folder() -> (tempfile::TempDir, FolderFiles) {
        let place = tempfile::tempdir().unwrap();
        let folder = FolderFiles::open(place.path()).unwrap();
        (place, folder)
    }

    #[tokio::test]
    async fn files_are_read_back_and_stale_writes_are_refused() {
        let (place, files) = temporary_folder();
        let at = file_path("/a/b.txt");
        let one = files.write(&at, b"one".to_vec(), WriteCondition::Absent, "k1").await.unwrap();
        let two = files.write(&at, b"two".to_vec(), WriteCondition::Version(one), "k2").await.unwrap();
        assert_ne!(one, two);
        match files.write(&at, b"three".to_vec(), WriteCondition::Version(one), "k3").await {
            Err(FilesError::Stale { current: Some(current), .. }) => assert_eq!(current.bytes, b"two"),
            other => panic!("{other:?}"),
        }
        // Repeating a write has no effect.
        assert_eq!(files.write(&at, b"two".to_vec(), WriteCondition::Version(one), "k2").await, Ok(two));
        // A change by another program counts.
        std::fs::write(place.path().join("a/b.txt"), "from outside").unwrap();
        assert!(files.delete(&at, WriteCondition::Version(two), "k4").await.is_err());
        let now = files.read(&at).await.unwrap().unwrap().entry.version;
        files.delete(&at, WriteCondition::Version(now), "k5").await.unwrap();
        assert_eq!(files.read(&at).await, Ok(None));
        assert_eq!(files.list("/").await, Ok(vec![]), "no temporary file is left");
    }

    #[tokio::test]
    async fn symbolic_links_are_never_followed() {
        let (place, files) = temporary_folder();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "secret").unwrap();
        std::fs::create_dir(place.path().join("real")).unwrap();
        std::fs::write(place.path().join("real/x"), "x").unwrap();
        symlink(outside.path(), place.path().join("out")).unwrap();
        symlink(outside.path().join("secret"), place.path().join("file")).unwrap();
        symlink("..", place.path().join("real/up")).unwrap();
        symlink("/", place.path().join("root")).unwrap();
        symlink("real", place.path().join("inside")).unwrap();
        symlink("loop", place.path().join("loop")).unwrap();
        for text in
            ["/out/secret", "/file", "/real/up/real/x", "/root/etc/passwd", "/inside/x", "/loop", "/loop/x"]
        {
            let at = file_path(text);
            let is_refused = |error: FilesError| error.to_string().contains("links are not followed");
            assert!(is_refused(files.read(&at).await.unwrap_err()), "{text}");
            assert!(
                is_refused(files.write(&at, vec![1], WriteCondition::Always, "k").await.unwrap_err()),
                "{text}"
            );
            assert!(is_refused(files.delete(&at, WriteCondition::Always, "k").await.unwrap_err()), "{text}");
        }
        assert!(files.write(&file_path("/out/new"), vec![], WriteCondition::Absent, "k").await.is_err());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
        assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"secret");
        let listed = files.list("/").await.unwrap();
        assert_eq!(listed.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>(), ["/real/x"]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_link_swapped_in_between_check_and_use_is_not_followed() {
        let (place, files) = temporary_folder();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("x"), "secret").unwrap();
        let (real, link) = (place.path().join("a"), place.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        std::fs::write(real.join("x"), "x").unwrap();
        symlink(outside.path(), &link).unwrap();
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let swapping = std::thread::spawn({
            let stop = stop.clone();
            move || {
                while !stop.load(Ordering::Relaxed) {
                    let swap = rustix::fs::RenameFlags::EXCHANGE;
                    rustix::fs::renameat_with(rustix::fs::CWD, &real, rustix::fs::CWD, &link, swap).unwrap();
                }
            }
        });
        let mut refused = 0;
        for _ in 0..500 {
            match files.read(&file_path("/a/x")).await {
                Ok(Some(content)) => assert_eq!(content.bytes, b"x"),
                Ok(None) => panic!("the folder, or a link in its place, always exists"),
                Err(_) => refused += 1,
            }
            refused += u32::from(
                files.write(&file_path("/a/y"), vec![1], WriteCondition::Always, "k").await.is_err(),
            );
        }
        stop.store(true, Ordering::Relaxed);
        swapping.join().unwrap();
        assert!(refused > 0, "some writes met a swapped link");
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1, "nothing was written outside");
    }

    #[tokio::test]
    async fn paths_that_are_not_files_are_reported() {
        let (place, files) = temporary_folder();
        std::fs::create_dir(place.path().join("dir")).unwrap();
        std::fs::write(place.path().join("file"), "x").unwrap();
        let pipe = place.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        for (text, error) in [
            ("/dir", "/dir is a folder or a device, not a file"),
            ("/pipe", "/pipe is a folder or a device, not a file"),
            ("/file/x", "/file/x can't be used: \"file\" in it is a file, not a folder"),
        ] {
            assert_eq!(files.read(&file_path(text)).await.unwrap_err().to_string(), error);
            assert!(
                files.write(&file_path(text), vec![], WriteCondition::Always, "k").await.is_err(),
                "{text}"
            );
        }
        let large = std::fs::File::create(place.path().join("large")).unwrap();
        large.set_len(MAX_FILE + 1).unwrap();
        assert!(matches!(files.read(&file_path("/large")).await, Err(FilesError::TooLarge { .. })));
        let all = vec![0; usize::try_from(MAX_FILE).unwrap() + 1];
        assert!(files.write(&file_path("/new"), all, WriteCondition::Absent, "k").await.is_err());
    }
}
