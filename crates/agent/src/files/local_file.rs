//! A file of a local folder: its entry, its content part by part, and the errors about it. While it is written it has a name of its own,
//! so that readers never see a part of it; dropped before it is finished, it is removed.

use std::fs::File;
use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{ContentStream, FileEntry, FilePath, FilesError};

/// The number of bytes of a file that are in memory at a time.
pub(super) const PART_SIZE: usize = 1024 * 1024;

/// The name prefix of unfinished files.
pub(super) const UNFINISHED: &str = ".millrace-unfinished-";

/// A file that is being written.
pub(super) struct UnfinishedFile {
    folder: OwnedFd,
    /// Its name when it is finished.
    name: String,
    temporary: String,
    file: File,
    is_finished: bool,
}

impl UnfinishedFile {
    /// Creates it in the folder where it will be.
    pub fn create(folder: OwnedFd, name: String) -> Result<Self, Errno> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Processes in other containers may have the same id and the same folder.
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let temporary = format!("{UNFINISHED}{}-{started}-{number}", std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&folder, temporary.as_str(), flags, Mode::from_raw_mode(0o644))?;
        Ok(Self { folder, name, temporary, file: File::from(file), is_finished: false })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.file.write_all(bytes).map_err(|error| errno_of(&error))
    }

    /// Lets others run it.
    pub fn make_executable(&mut self) -> Result<(), Errno> {
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(0o755))
    }

    /// Gives it its name, in place of the file that had it.
    pub fn finish(&mut self) -> Result<(), Errno> {
        self.file.sync_all().map_err(|error| errno_of(&error))?;
        rustix::fs::renameat(&self.folder, self.temporary.as_str(), &self.folder, self.name.as_str())?;
        self.is_finished = true;
        Ok(())
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = rustix::fs::unlinkat(&self.folder, self.temporary.as_str(), AtFlags::empty());
        }
    }
}

/// The content of a local file.
pub(super) struct LocalContent {
    pub(super) path: FilePath,
    pub(super) file: Arc<File>,
    /// The position of the next part.
    pub(super) at: u64,
}

impl ContentStream for LocalContent {
    fn next_part(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, FilesError>> {
        async move {
            let (file, at, path) = (self.file.clone(), self.at, self.path.clone());
            let reading = tokio::task::spawn_blocking(move || {
                let mut part = vec![0; PART_SIZE];
                let read = file.read_at(&mut part, at).map_err(|error| unreadable_error(&path, &error))?;
                part.truncate(read);
                Ok(part)
            });
            let part = reading.await.map_err(|error| FilesError::Broken(error.to_string()))??;
            self.at += part.len() as u64;
            Ok(Some(Bytes::from(part)).filter(|part| !part.is_empty()))
        }
        .boxed()
    }
}

pub(super) fn unreadable_error(path: &FilePath, error: &std::io::Error) -> FilesError {
    FilesError::Broken(format!("{path} can't be read: {error}"))
}

pub(super) fn build_file_entry(path: FilePath, stat: &Stat) -> FileEntry {
    FileEntry {
        path,
        size: file_size(stat),
        version: file_version(stat),
        author: "a program on this machine".into(),
    }
}

pub(super) fn file_size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// A number that changes with the file: FNV-1a of its metadata, in 53 bits, so that any JSON reader represents it exactly.
pub(super) fn file_version(stat: &Stat) -> u64 {
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

/// Words the error of a step, and detects symbolic links.
pub(super) fn open_subfolder_error(
    path: &FilePath,
    folder: BorrowedFd<'_>,
    part: &str,
    errno: Errno,
) -> FilesError {
    let stat = rustix::fs::statat(folder, part, AtFlags::SYMLINK_NOFOLLOW);
    let is_link = stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
    if is_link {
        return FilesError::Denied(format!(
            "{path} can't be used: {part:?} in it is a symbolic link, and links are not followed"
        ));
    }
    if errno == Errno::NOTDIR {
        return FilesError::Broken(format!("{path} can't be used: {part:?} in it is a file, not a folder"));
    }
    io_failure(path, errno)
}

pub(super) fn io_failure(what: impl std::fmt::Display, errno: Errno) -> FilesError {
    match errno {
        Errno::ISDIR | Errno::NOTEMPTY => FilesError::Broken(format!("{what} is a folder, not a file")),
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            FilesError::Denied(format!("the operating system denies access to {what}: {errno}"))
        }
        errno => FilesError::Broken(format!("{what} can't be used: {errno}")),
    }
}

pub(super) fn too_large_error(path: &FilePath, size: u64, max: u64) -> FilesError {
    FilesError::TooLarge { path: path.clone(), size, max }
}
