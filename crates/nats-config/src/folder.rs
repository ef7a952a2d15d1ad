//! The output folder of `millrace nats-config`: accessible by its owner only, one writer at a time, atomic writes, and a
//! list of all changes. It knows nothing about the contents of the files.

use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::ConfigError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// Path relative to the folder.
    pub name: String,
    pub kind: FileChangeKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileChangeKind {
    /// The file was created.
    New,
    /// The file was changed, for this reason.
    Changed(String),
    /// The file was removed, for this reason.
    Removed(String),
}

/// The permissions of a file. The folder itself is accessible by its owner only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileAccess {
    /// Readable by the owner only: it grants access.
    Secret,
    /// Readable by all: it can be copied to other users.
    Shared,
}

/// The folder, locked by this process.
pub struct ConfigFolder {
    root: PathBuf,
    changes: Vec<FileChange>,
    /// Keeps the lock.
    _lock: File,
}

impl ConfigFolder {
    /// Opens the folder; creates it if necessary.
    /// Errors: other users can read it or own it, another process is writing to it, or it can't be created.
    pub fn open_and_lock(root: &Path) -> Result<Self, ConfigError> {
        let at = |source| ConfigError::File { path: root.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(|source| {
            let is_file = source.kind() == ErrorKind::AlreadyExists;
            if is_file { ConfigError::NotAFolder(root.to_owned()) } else { at(source) }
        })?;
        let lock = File::open(root).map_err(at)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| ConfigError::Busy(root.to_owned()))?;
        let mut folder = Self { root: root.to_owned(), changes: Vec::new(), _lock: lock };
        folder.restrict_access()?;
        Ok(folder)
    }

    /// Makes an empty folder inaccessible to other users. A folder with files is refused: others may have read them.
    fn restrict_access(&mut self) -> Result<(), ConfigError> {
        let metadata = fs::metadata(&self.root).map_err(|source| self.file_error(".", source))?;
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(ConfigError::Foreign(self.root.clone()));
        }
        if metadata.mode() & 0o077 == 0 {
            return Ok(());
        }
        let mut inside = fs::read_dir(&self.root).map_err(|source| self.file_error(".", source))?;
        if inside.next().is_some() {
            return Err(ConfigError::Exposed { path: self.root.clone(), mode: metadata.mode() & 0o777 });
        }
        fs::set_permissions(&self.root, fs::Permissions::from_mode(0o700))
            .map_err(|source| self.file_error(".", source))?;
        self.changes.push(FileChange {
            name: ".".into(),
            kind: FileChangeKind::Changed("made inaccessible to other users".into()),
        });
        Ok(())
    }

    pub fn file_path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Reads a file; `None` if it does not exist.
    pub fn read_file(&self, name: &str) -> Result<Option<String>, ConfigError> {
        match fs::read_to_string(self.file_path(name)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.file_error(name, error)),
        }
    }

    /// Writes a file unless it has this content already; `why` is the reason if an existing file changes.
    pub fn write_file(
        &mut self,
        name: &str,
        access: FileAccess,
        text: &str,
        why: &str,
    ) -> Result<(), ConfigError> {
        let before = self.read_file(name)?;
        if before.as_deref() == Some(text) {
            return Ok(());
        }
        self.replace_file(name, access, text).map_err(|source| self.file_error(name, source))?;
        let kind = if before.is_some() { FileChangeKind::Changed(why.into()) } else { FileChangeKind::New };
        self.changes.push(FileChange { name: name.into(), kind });
        Ok(())
    }

    /// Excludes the folder from Git. An existing `.gitignore` is not changed.
    pub fn write_gitignore(&mut self) -> Result<(), ConfigError> {
        match self.read_file(".gitignore")? {
            Some(_) => Ok(()),
            None => self.write_file(".gitignore", FileAccess::Shared, "*\n", "it was missing"),
        }
    }

    /// Renames a file, if it exists.
    pub fn rename_file(&mut self, from: &str, to: &str) -> Result<(), ConfigError> {
        match fs::rename(self.file_path(from), self.file_path(to)) {
            Ok(()) => {
                self.changes.push(FileChange { name: to.into(), kind: FileChangeKind::New });
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(self.file_error(from, error)),
        }
    }

    /// Removes a file.
    pub fn remove_file(&mut self, name: &str, why: &str) -> Result<(), ConfigError> {
        fs::remove_file(self.file_path(name)).map_err(|source| self.file_error(name, source))?;
        self.changes.push(FileChange { name: name.into(), kind: FileChangeKind::Removed(why.into()) });
        Ok(())
    }

    /// Returns all changes, in order.
    #[must_use]
    pub fn into_changes(self) -> Vec<FileChange> {
        self.changes
    }

    /// Replaces a file atomically: the new text is synced to disk before the rename.
    fn replace_file(&self, name: &str, access: FileAccess, text: &str) -> std::io::Result<()> {
        let path = self.file_path(name);
        let parent = path.parent().unwrap_or(&self.root);
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        let mode = match access {
            FileAccess::Secret => 0o600,
            FileAccess::Shared => 0o644,
        };
        let temporary = parent.join(format!(".{}.new", path.file_name().unwrap_or_default().display()));
        // A temporary file of a killed process may have other permissions.
        drop(fs::remove_file(&temporary));
        let mut file = File::options().create_new(true).write(true).mode(mode).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        File::open(parent)?.sync_all()
    }

    fn file_error(&self, name: &str, source: std::io::Error) -> ConfigError {
        ConfigError::File { path: self.file_path(name), source }
    }
}
