//! The folder that `millrace nats-config` writes: for its owner's eyes only, one writer at a time, each file whole or
//! not there, and a note of everything that was written. It knows nothing of what is in the files.

use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::Error;

/// A file that was written, or put aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Below the folder.
    pub name: String,
    /// What was done with it.
    pub what: What,
}

/// What was done with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// It was not there.
    New,
    /// It was there, with something else in it, for this reason.
    Changed(String),
    /// It is gone, for this reason.
    Gone(String),
}

/// Who may read a file. The folder itself lets nobody but its owner in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Nobody but its owner: it opens doors.
    Secret,
    /// Whoever is given it.
    Open,
}

/// The folder, held by this process alone.
pub struct Folder {
    root: PathBuf,
    changes: Vec<Change>,
    /// Held, not used: with it goes the lock.
    _held: File,
}

impl Folder {
    /// Makes the folder, or takes one that is there.
    ///
    /// # Errors
    /// Others can read it, it belongs to somebody else, another process writes to it, or it can't be had.
    pub fn open(root: &Path) -> Result<Self, Error> {
        let at = |source| Error::File { path: root.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(|source| {
            let is_file = source.kind() == ErrorKind::AlreadyExists;
            if is_file { Error::NotAFolder(root.to_owned()) } else { at(source) }
        })?;
        let held = File::open(root).map_err(at)?;
        flock(&held, FlockOperation::NonBlockingLockExclusive).map_err(|_| Error::Busy(root.to_owned()))?;
        let mut folder = Self { root: root.to_owned(), changes: Vec::new(), _held: held };
        folder.close_to_others()?;
        Ok(folder)
    }

    /// An empty folder is closed to others; from one with something in it others may have read already.
    fn close_to_others(&mut self) -> Result<(), Error> {
        let metadata = fs::metadata(&self.root).map_err(|source| self.fault(".", source))?;
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(Error::Foreign(self.root.clone()));
        }
        if metadata.mode() & 0o077 == 0 {
            return Ok(());
        }
        let mut inside = fs::read_dir(&self.root).map_err(|source| self.fault(".", source))?;
        if inside.next().is_some() {
            return Err(Error::Exposed { path: self.root.clone(), mode: metadata.mode() & 0o777 });
        }
        fs::set_permissions(&self.root, fs::Permissions::from_mode(0o700))
            .map_err(|source| self.fault(".", source))?;
        self.changes.push(Change { name: ".".into(), what: What::Changed("closed to others".into()) });
        Ok(())
    }

    /// Where a file is.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The text of a file; `None` where there is none.
    ///
    /// # Errors
    /// It can't be read.
    pub fn read(&self, name: &str) -> Result<Option<String>, Error> {
        match fs::read_to_string(self.path(name)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.fault(name, error)),
        }
    }

    /// Writes a file if it is not like that already; `why` says why one that is there changes.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write(&mut self, name: &str, kept: Kept, text: &str, why: &str) -> Result<(), Error> {
        let before = self.read(name)?;
        if before.as_deref() == Some(text) {
            return Ok(());
        }
        self.replace(name, kept, text).map_err(|source| self.fault(name, source))?;
        let what = if before.is_some() { What::Changed(why.into()) } else { What::New };
        self.changes.push(Change { name: name.into(), what });
        Ok(())
    }

    /// Keeps the folder out of a repository that it stands in. A `.gitignore` that is there is its owner's.
    ///
    /// # Errors
    /// It can't be written.
    pub fn keep_out_of_git(&mut self) -> Result<(), Error> {
        match self.read(".gitignore")? {
            Some(_) => Ok(()),
            None => self.write(".gitignore", Kept::Open, "*\n", "it was not there"),
        }
    }

    /// Gives a file another name. One that is not there stays so.
    ///
    /// # Errors
    /// It can't be renamed.
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), Error> {
        match fs::rename(self.path(from), self.path(to)) {
            Ok(()) => {
                self.changes.push(Change { name: to.into(), what: What::New });
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(self.fault(from, error)),
        }
    }

    /// Removes a file.
    ///
    /// # Errors
    /// It can't be removed.
    pub fn remove(&mut self, name: &str, why: &str) -> Result<(), Error> {
        fs::remove_file(self.path(name)).map_err(|source| self.fault(name, source))?;
        self.changes.push(Change { name: name.into(), what: What::Gone(why.into()) });
        Ok(())
    }

    /// What was written so far, in that order.
    #[must_use]
    pub fn changes(self) -> Vec<Change> {
        self.changes
    }

    /// The new text is on the disk before it has the file's name.
    fn replace(&self, name: &str, kept: Kept, text: &str) -> std::io::Result<()> {
        let path = self.path(name);
        let parent = path.parent().unwrap_or(&self.root);
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        let mode = match kept {
            Kept::Secret => 0o600,
            Kept::Open => 0o644,
        };
        let beside = parent.join(format!(".{}.new", path.file_name().unwrap_or_default().display()));
        // One that a process left behind when it was killed may have other rights than this one is to have.
        drop(fs::remove_file(&beside));
        let mut file = File::options().create_new(true).write(true).mode(mode).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, &path)?;
        File::open(parent)?.sync_all()
    }

    fn fault(&self, name: &str, source: std::io::Error) -> Error {
        Error::File { path: self.path(name), source }
    }
}
