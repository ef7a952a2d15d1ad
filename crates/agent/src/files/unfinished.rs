//! A file of a local folder while it is written: under a name of its own, so that readers never see a part of it. Dropped
//! before it is finished, it is removed.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

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
