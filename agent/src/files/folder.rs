//! A folder of this machine as files. Nothing outside it can be reached: a path is walked part by part from the folder's
//! own descriptor, no step follows a symbolic link, and what was opened is what is used, so that nothing can be
//! swapped between a look and its use. Hard links can't be told from files: whoever may make them may share files.
//!
//! Versions are made of what the system says of a file (its number, size and times), so that a change by anybody is
//! noticed. Files are replaced whole, by renaming; of several Millrace processes one writes at a time.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{Content, Entry, Expected, FilePath, Files, FilesError, MAX_FILE, is_below};

/// The most files that a folder is listed with.
const MAX_ENTRIES: usize = 20_000;
/// How deep folders may be nested.
const MAX_DEPTH: usize = 64;
/// How the files are called that are not whole yet.
const UNFINISHED: &str = ".millrace-unfinished-";

/// A folder of this machine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Folder {
    root: Arc<OwnedFd>,
}

/// The folder that a file is in, and the file's name there.
struct Place {
    folder: OwnedFd,
    name: String,
}

impl Folder {
    /// The folder at a path of this machine, which must exist.
    ///
    /// # Errors
    /// There is no such folder, or it can't be opened.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let root =
            rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY, Mode::empty())?;
        Ok(Self { root: Arc::new(root) })
    }

    /// Keeps other processes from writing for as long as the descriptor lives.
    fn lock(&self) -> Result<OwnedFd, FilesError> {
        let all = step(self.root.as_fd(), ".").map_err(|errno| broken("the folder", errno))?;
        rustix::fs::flock(&all, FlockOperation::LockExclusive)
            .map_err(|errno| broken("the folder", errno))?;
        Ok(all)
    }

    /// Where a file is, or would be; `None` if its folder is not there. `make` makes the folders that are missing.
    fn place(&self, path: &FilePath, make: bool) -> Result<Option<Place>, FilesError> {
        let mut parts: Vec<&str> = path.parts().collect();
        let name = parts.pop().unwrap_or_default().to_owned();
        let mut folder = step(self.root.as_fd(), ".").map_err(|errno| broken(path, errno))?;
        for part in parts {
            let next = match step(folder.as_fd(), part) {
                Err(Errno::NOENT) if make => {
                    // Another may be faster, which is as good.
                    let _ = rustix::fs::mkdirat(&folder, part, Mode::from_raw_mode(0o755));
                    step(folder.as_fd(), part)
                }
                stepped => stepped,
            };
            folder = match next {
                Ok(next) => next,
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(no_way(path, folder.as_fd(), part, errno)),
            };
        }
        Ok(Some(Place { folder, name }))
    }

    fn find(&self, path: &FilePath) -> Result<Option<Content>, FilesError> {
        match self.place(path, false)? {
            Some(place) => place.read(path),
            None => Ok(None),
        }
    }

    fn put(&self, path: &FilePath, bytes: &[u8], expected: Expected) -> Result<u64, FilesError> {
        if bytes.len() as u64 > MAX_FILE {
            return Err(too_large(path, bytes.len() as u64));
        }
        let _lock = self.lock()?;
        let current = self.find(path)?;
        if !fits(expected, current.as_ref()) {
            return match current {
                // Done already, as by a call that is made again.
                Some(current) if current.bytes == bytes => Ok(current.entry.version),
                current => Err(FilesError::Stale { path: path.clone(), current: current.map(Box::new) }),
            };
        }
        let place = self.place(path, true)?.ok_or_else(|| broken(path, Errno::NOENT))?;
        place.replace(bytes).map_err(|errno| broken(path, errno))?;
        let written = rustix::fs::statat(&place.folder, place.name.as_str(), AtFlags::SYMLINK_NOFOLLOW);
        written.map(|stat| version(&stat)).map_err(|errno| broken(path, errno))
    }

    fn remove(&self, path: &FilePath, expected: Expected) -> Result<(), FilesError> {
        let _lock = self.lock()?;
        let Some(place) = self.place(path, false)? else { return Ok(()) };
        let Some(current) = place.read(path)? else { return Ok(()) };
        if !fits(expected, Some(&current)) {
            return Err(FilesError::Stale { path: path.clone(), current: Some(Box::new(current)) });
        }
        match rustix::fs::unlinkat(&place.folder, place.name.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(broken(path, errno)),
        }
    }

    fn all(&self) -> Result<Vec<Entry>, FilesError> {
        let mut entries = Vec::new();
        let root = step(self.root.as_fd(), ".").map_err(|errno| broken("the folder", errno))?;
        collect(&root, "", 0, &mut entries)?;
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(entries)
    }

    fn run<T: Send + 'static>(
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

/// One step down, into a folder that is no link.
fn step(from: BorrowedFd<'_>, part: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    rustix::fs::openat(from, part, flags, Mode::empty())
}

fn fits(expected: Expected, current: Option<&Content>) -> bool {
    match expected {
        Expected::Anything => true,
        Expected::Nothing => current.is_none(),
        Expected::Version(version) => current.is_some_and(|current| current.entry.version == version),
    }
}

impl Place {
    /// The file; `None` if there is none.
    fn read(&self, path: &FilePath) -> Result<Option<Content>, FilesError> {
        // Without waiting: a pipe would keep whoever opens it.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = match rustix::fs::openat(&self.folder, self.name.as_str(), flags, Mode::empty()) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(no_way(path, self.folder.as_fd(), &self.name, errno)),
        };
        let stat = rustix::fs::fstat(&opened).map_err(|errno| broken(path, errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(FilesError::Broken(format!("{path} is a folder or a device, no file")));
        }
        if size(&stat) > MAX_FILE {
            return Err(too_large(path, size(&stat)));
        }
        let mut bytes = Vec::new();
        let read = File::from(opened).take(MAX_FILE + 1).read_to_end(&mut bytes);
        read.map_err(|error| FilesError::Broken(format!("{path} can't be read: {error}")))?;
        let entry = entry(path.clone(), &stat);
        Ok(Some(Content { entry: Entry { size: bytes.len() as u64, ..entry }, bytes }))
    }

    /// Puts a file in its place so that nobody ever sees half of it.
    fn replace(&self, bytes: &[u8]) -> Result<(), Errno> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let beside = format!("{UNFINISHED}{}-{number}", std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // A process of the same number may have died here earlier.
        let _ = rustix::fs::unlinkat(&self.folder, beside.as_str(), AtFlags::empty());
        let file = rustix::fs::openat(&self.folder, beside.as_str(), flags, Mode::from_raw_mode(0o644))?;
        let mut file = File::from(file);
        file.write_all(bytes)
            .and_then(|()| file.sync_all())
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
            .and_then(|()| {
                rustix::fs::renameat(&self.folder, beside.as_str(), &self.folder, self.name.as_str())
            })
            .inspect_err(|_| {
                let _ = rustix::fs::unlinkat(&self.folder, beside.as_str(), AtFlags::empty());
            })
    }
}

/// All files below a folder, without links, devices, and names that are no names here.
fn collect(folder: &OwnedFd, above: &str, depth: usize, entries: &mut Vec<Entry>) -> Result<(), FilesError> {
    if depth > MAX_DEPTH {
        return Err(FilesError::Broken(format!("{above} lies deeper than {MAX_DEPTH} folders")));
    }
    let fault = |errno| broken(if above.is_empty() { "the folder" } else { above }, errno);
    for found in Dir::read_from(folder).map_err(fault)? {
        let found = found.map_err(fault)?;
        let Ok(name) = found.file_name().to_str() else { continue };
        if matches!(name, "." | "..") || name.starts_with(UNFINISHED) {
            continue;
        }
        let Ok(path) = FilePath::new(&format!("{above}/{name}")) else { continue };
        // Gone meanwhile is as good as never there.
        let Ok(stat) = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => entries.push(entry(path, &stat)),
            FileType::Directory => {
                if let Ok(inner) = step(folder.as_fd(), name) {
                    collect(&inner, path.as_str(), depth + 1, entries)?;
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

fn entry(path: FilePath, stat: &Stat) -> Entry {
    Entry { path, size: size(stat), version: version(stat), author: "a program on this machine".into() }
}

fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// A number that changes with the file: FNV-1a of what the system says of it, in 53 bits, which any reader of numbers
/// keeps whole.
fn version(stat: &Stat) -> u64 {
    let parts = [
        i128::from(stat.st_ino),
        i128::from(stat.st_size),
        i128::from(stat.st_mtime),
        i128::from(stat.st_mtime_nsec),
        i128::from(stat.st_ctime),
        i128::from(stat.st_ctime_nsec),
    ];
    let bytes = parts.iter().flat_map(|part| part.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    ((hash >> 11) ^ (hash & 0x7ff)).max(1)
}

/// Why a step can't be made, with a link told from other things.
fn no_way(path: &FilePath, folder: BorrowedFd<'_>, part: &str, errno: Errno) -> FilesError {
    let stat = rustix::fs::statat(folder, part, AtFlags::SYMLINK_NOFOLLOW);
    let is_link = stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
    if is_link {
        return FilesError::Denied(format!(
            "{path} can't be used: {part:?} in it is a symbolic link, and links are not followed"
        ));
    }
    if errno == Errno::NOTDIR {
        return FilesError::Broken(format!("{path} can't be used: {part:?} in it is a file, no folder"));
    }
    broken(path, errno)
}

fn broken(what: impl std::fmt::Display, errno: Errno) -> FilesError {
    match errno {
        Errno::ISDIR | Errno::NOTEMPTY => FilesError::Broken(format!("{what} is a folder, no file")),
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            FilesError::Denied(format!("the system denies it for {what}: {errno}"))
        }
        errno => FilesError::Broken(format!("{what} can't be used: {errno}")),
    }
}

fn too_large(path: &FilePath, size: u64) -> FilesError {
    FilesError::TooLarge { path: path.clone(), size, max: MAX_FILE }
}

impl Files for Folder {
    fn list<'a>(&'a self, folder: &'a str) -> BoxFuture<'a, Result<Vec<Entry>, FilesError>> {
        async move {
            let mut entries = self.run(Self::all).await?;
            entries.retain(|entry| is_below(&entry.path, folder));
            Ok(entries)
        }
        .boxed()
    }

    fn read<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<Content>, FilesError>> {
        let path = path.clone();
        self.run(move |folder| folder.find(&path))
    }

    fn write<'a>(
        &'a self,
        path: &'a FilePath,
        bytes: Vec<u8>,
        expected: Expected,
        _: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>> {
        let path = path.clone();
        self.run(move |folder| folder.put(&path, &bytes, expected))
    }

    fn delete<'a>(
        &'a self,
        path: &'a FilePath,
        expected: Expected,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), FilesError>> {
        let path = path.clone();
        self.run(move |folder| folder.remove(&path, expected))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn path(text: &str) -> FilePath {
        FilePath::new(text).unwrap()
    }

    fn folder() -> (tempfile::TempDir, Folder) {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        (place, folder)
    }

    #[tokio::test]
    async fn what_is_written_is_read_back_and_a_stale_write_is_refused() {
        let (place, files) = folder();
        let at = path("/a/b.txt");
        let one = files.write(&at, b"one".to_vec(), Expected::Nothing, "k1").await.unwrap();
        let two = files.write(&at, b"two".to_vec(), Expected::Version(one), "k2").await.unwrap();
        assert_ne!(one, two);
        match files.write(&at, b"three".to_vec(), Expected::Version(one), "k3").await {
            Err(FilesError::Stale { current: Some(current), .. }) => assert_eq!(current.bytes, b"two"),
            other => panic!("{other:?}"),
        }
        // The same again is done already.
        assert_eq!(files.write(&at, b"two".to_vec(), Expected::Version(one), "k2").await, Ok(two));
        // Another program's change counts.
        std::fs::write(place.path().join("a/b.txt"), "from outside").unwrap();
        assert!(files.delete(&at, Expected::Version(two), "k4").await.is_err());
        let now = files.read(&at).await.unwrap().unwrap().entry.version;
        files.delete(&at, Expected::Version(now), "k5").await.unwrap();
        assert_eq!(files.read(&at).await, Ok(None));
        assert_eq!(files.list("/").await, Ok(vec![]), "nothing is left beside it");
    }

    #[tokio::test]
    async fn no_link_leads_anywhere() {
        let (place, files) = folder();
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
            let at = path(text);
            let told = |error: FilesError| error.to_string().contains("links are not followed");
            assert!(told(files.read(&at).await.unwrap_err()), "{text}");
            assert!(told(files.write(&at, vec![1], Expected::Anything, "k").await.unwrap_err()), "{text}");
            assert!(told(files.delete(&at, Expected::Anything, "k").await.unwrap_err()), "{text}");
        }
        assert!(files.write(&path("/out/new"), vec![], Expected::Nothing, "k").await.is_err());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
        assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"secret");
        let listed = files.list("/").await.unwrap();
        assert_eq!(listed.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>(), ["/real/x"]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_link_that_is_swapped_in_between_a_look_and_its_use_leads_nowhere() {
        let (place, files) = folder();
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
            match files.read(&path("/a/x")).await {
                Ok(Some(content)) => assert_eq!(content.bytes, b"x"),
                Ok(None) => panic!("the folder is always there, or a link in its place"),
                Err(_) => refused += 1,
            }
            refused += u32::from(files.write(&path("/a/y"), vec![1], Expected::Anything, "k").await.is_err());
        }
        stop.store(true, Ordering::Relaxed);
        swapping.join().unwrap();
        assert!(refused > 0, "the swaps were met");
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1, "nothing was written outside");
    }

    #[tokio::test]
    async fn what_is_no_file_is_told() {
        let (place, files) = folder();
        std::fs::create_dir(place.path().join("dir")).unwrap();
        std::fs::write(place.path().join("file"), "x").unwrap();
        let pipe = place.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        for (text, told) in [
            ("/dir", "/dir is a folder or a device, no file"),
            ("/pipe", "/pipe is a folder or a device, no file"),
            ("/file/x", "/file/x can't be used: \"file\" in it is a file, no folder"),
        ] {
            assert_eq!(files.read(&path(text)).await.unwrap_err().to_string(), told);
            assert!(files.write(&path(text), vec![], Expected::Anything, "k").await.is_err(), "{text}");
        }
        let large = std::fs::File::create(place.path().join("large")).unwrap();
        large.set_len(MAX_FILE + 1).unwrap();
        assert!(matches!(files.read(&path("/large")).await, Err(FilesError::TooLarge { .. })));
        let all = vec![0; usize::try_from(MAX_FILE).unwrap() + 1];
        assert!(files.write(&path("/new"), all, Expected::Nothing, "k").await.is_err());
    }
}
