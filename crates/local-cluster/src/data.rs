//! The data folder of a local cluster: its layout, its lock, and checks that it is usable.
//!
//! One cluster uses a folder at a time. The file `lock` is locked for that; the existence of a file never counts, because
//! locks end with their holder, even if it is killed.
//!
//! | name | holds |
//! |---|---|
//! | `lock` | the pid of the process that holds the lock |
//! | `users.lock` | locked, shared, by each process that uses the cluster ([`crate::users`]) |
//! | `cluster.json` | address and credentials of the cluster, for other commands; readable by the owner only |
//! | `api.url` | the URL of the HTTP API, while it is served |
//! | `nats.conf` | the server's configuration; readable by the owner only |
//! | `nats/` | the store of the server: all durable data |
//! | `nats.lock` | locked by the server process while it lives |
//! | `run/` | the ports file of the server, with the port it listens on |
//! | `logs/` | a log per process, `<name>.log`, and the rotated one, `<name>.log.1` |
//!
//! # Invariants
//!
//! - I24: Two clusters never share a store. (`cli/tests/local.rs::a_second_start_on_the_same_data_folder_is_refused`)

use std::fmt;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use millrace_runtime::nats::connection::Credentials;
use millrace_runtime::{Bus, ConnectionSettings, Fault};
use rustix::fs::Access;
use serde::{Deserialize, Serialize};

/// Minimum free disk space; with less a run could not write its first steps.
pub const MIN_FREE_BYTES: u64 = 64 << 20;
/// Logs larger than this are rotated.
const LOG_LIMIT: u64 = 8 << 20;
/// The maximum size of a rotated log. A process may write more between two checks; the newest lines stay.
const ROTATED_LIMIT: u64 = 16 << 20;
/// How long a start waits for the lock: `running` holds it for a moment while it checks.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);

/// Timeout of [`ClusterInfo::connect`]; the cluster may still be starting.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);

/// Opens no symbolic link: files of a data folder that came with a checkout must not lead out of it.
const NO_LINK: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();

/// Errors of using a data folder.
#[derive(Debug, thiserror::Error)]
pub enum DataFolderError {
    /// The path exists and is not a folder.
    #[error("the data folder {} is not a folder; choose another with --data", .0.display())]
    NotAFolder(PathBuf),
    /// The folder or a file in it can't be created or written.
    #[error("the data folder can't be used: {}: {source}; make it writable, or choose another with --data", .path.display())]
    Unusable {
        /// The path that could not be created, read or written.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The disk is full or nearly full.
    #[error(
        "the disk of the data folder {} is full: {} MiB free, {} MiB needed; free some space, or choose another folder with --data",
        .path.display(), .free >> 20, MIN_FREE_BYTES >> 20
    )]
    DiskFull {
        /// The data folder.
        path: PathBuf,
        /// Free bytes on the disk.
        free: u64,
    },
    /// Another cluster uses the folder.
    #[error(
        "the data folder {} is in use by another millrace (process {}); use that cluster, stop it, or choose another folder with --data",
        .path.display(), .pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string())
    )]
    InUse {
        /// The data folder.
        path: PathBuf,
        /// The process that uses it, if known.
        pid: Option<u32>,
    },
}

/// Address and credentials of a running cluster.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterInfo {
    /// The server's address, `nats://127.0.0.1:<port>`.
    pub url: String,
    /// The user to connect as.
    pub user: String,
    /// That user's password.
    pub password: String,
    /// The process that runs the cluster.
    pub pid: u32,
    /// When the cluster was started.
    pub started: jiff::Timestamp,
    /// When it stops.
    #[serde(default)]
    pub lifetime: ClusterLifetime,
    /// Its default models, as on the command line; empty if the environment chose them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
}

/// When a cluster stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClusterLifetime {
    /// When a user stops it.
    #[default]
    UntilStopped,
    /// When the last process that uses it ends.
    WhileUsed,
    /// After one short command, for which it was started without workers.
    OneCommand,
}

impl ClusterInfo {
    /// Connects to the cluster, which may still be starting.
    /// Errors: it is not ready within 20 s.
    pub async fn connect(&self) -> Result<Bus, Fault> {
        let credentials = Credentials::Password { user: self.user.clone(), password: self.password.clone() };
        let connection =
            ConnectionSettings { credentials, ..ConnectionSettings::unauthenticated(self.url.clone()) };
        Bus::join_existing_cluster(&connection, "millrace", CONNECT_LIMIT).await
    }
}

impl fmt::Debug for ClusterInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, user, password: _, pid, started, lifetime, models } = self;
        write!(
            f,
            "ClusterInfo {{ url: {url}, user: {user}, pid: {pid}, started: {started}, lifetime: {lifetime:?}, models: {models:?} }}"
        )
    }
}

/// The paths in a data folder.
#[derive(Clone, Debug)]
pub struct DataLayout {
    root: PathBuf,
}

impl DataLayout {
    /// The paths below `root`, which is made absolute and need not exist.
    pub fn new(root: &Path) -> Result<Self, DataFolderError> {
        let root = std::path::absolute(root).map_err(|source| unusable_folder_error(root, source))?;
        Ok(Self { root })
    }

    /// The data folder itself.
    pub fn root_path(&self) -> &Path {
        &self.root
    }

    /// The configuration of the server.
    pub(crate) fn nats_conf_path(&self) -> PathBuf {
        self.root.join("nats.conf")
    }

    /// The store of the server.
    pub(crate) fn nats_store_path(&self) -> PathBuf {
        self.root.join("nats")
    }

    /// The file that the server process keeps locked.
    pub(crate) fn nats_lock_path(&self) -> PathBuf {
        self.root.join("nats.lock")
    }

    /// The folder in which the server writes its ports file.
    pub(crate) fn ports_folder_path(&self) -> PathBuf {
        self.root.join("run")
    }

    /// The log of the process called `name`.
    pub(crate) fn log_path(&self, name: &str) -> PathBuf {
        self.root.join("logs").join(format!("{name}.log"))
    }

    /// The file that users of the cluster lock.
    pub(crate) fn users_lock_path(&self) -> PathBuf {
        self.root.join("users.lock")
    }

    fn lock_path(&self) -> PathBuf {
        self.root.join("lock")
    }

    fn cluster_info_path(&self) -> PathBuf {
        self.root.join("cluster.json")
    }

    /// Creates the data folder, accessible by its owner only.
    pub(crate) fn create_root(&self) -> Result<(), DataFolderError> {
        if self.root.exists() && !self.root.is_dir() {
            return Err(DataFolderError::NotAFolder(self.root.clone()));
        }
        self.create_folder(&self.root)
    }

    fn create_folder(&self, folder: &Path) -> Result<(), DataFolderError> {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        created.map_err(|source| self.io_error_at(folder, source))
    }

    /// Creates the folders and checks that they are writable. The data folder is accessible by its owner only.
    pub(crate) fn create_folders(&self) -> Result<(), DataFolderError> {
        self.create_root()?;
        for folder in [self.root.join("logs"), self.ports_folder_path(), self.nats_store_path()] {
            self.create_folder(&folder)?;
        }
        self.check_free_space().map(drop)
    }

    /// Checks that the folder is usable, without creating it. Returns the free bytes on its disk.
    pub fn check_usable(&self) -> Result<u64, DataFolderError> {
        // The nearest existing parent folder decides whether the others can be created.
        let existing = self.root.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
        if !existing.is_dir() {
            return Err(DataFolderError::NotAFolder(existing.to_owned()));
        }
        rustix::fs::access(existing, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|error| unusable_folder_error(existing, error.into()))?;
        self.check_free_space()
    }

    /// Returns the free bytes on the disk, or an error if there are too few.
    fn check_free_space(&self) -> Result<u64, DataFolderError> {
        let existing = self.root.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
        let free = free_space(existing).map_err(|source| unusable_folder_error(existing, source))?;
        if free < MIN_FREE_BYTES {
            Err(DataFolderError::DiskFull { path: self.root.clone(), free })
        } else {
            Ok(free)
        }
    }

    /// Opens the log of the process called `name` for appending.
    pub(crate) fn open_log(&self, name: &str) -> Result<File, DataFolderError> {
        let path = self.log_path(name);
        File::options()
            .create(true)
            .append(true)
            .custom_flags(NO_LINK)
            .open(&path)
            .map_err(|source| self.io_error_at(&path, source))
    }

    /// Rotates the log of the process called `name` if it is too large. The process may be writing to it: its end is copied,
    /// and the file is truncated, because the process keeps it open for appending. Lines that are written in between are lost.
    pub(crate) fn rotate_log(&self, name: &str) -> Result<(), DataFolderError> {
        let path = self.log_path(name);
        let Some(length) = path.metadata().ok().map(|metadata| metadata.len()).filter(|&it| it > LOG_LIMIT)
        else {
            return Ok(());
        };
        let rotated = self.root.join("logs").join(format!("{name}.log.1"));
        let rotate = || -> io::Result<()> {
            let mut log = File::options().read(true).write(true).custom_flags(NO_LINK).open(&path)?;
            log.seek(SeekFrom::Start(length.saturating_sub(ROTATED_LIMIT)))?;
            let mut copy = File::options();
            let mut copy =
                copy.create(true).write(true).truncate(true).custom_flags(NO_LINK).open(&rotated)?;
            io::copy(&mut log, &mut copy)?;
            log.set_len(0)
        };
        rotate().map_err(|source| self.io_error_at(&path, source))
    }

    /// Rotates the logs that are too large.
    pub(crate) fn rotate_logs(&self) {
        let logs = fs::read_dir(self.root.join("logs")).into_iter().flatten().flatten();
        let names = logs.filter_map(|log| Some(log.file_name().to_str()?.strip_suffix(".log")?.to_owned()));
        // A log that can't be rotated now is rotated at the next check.
        names.for_each(|name| drop(self.rotate_log(&name)));
    }

    /// Replaces a file atomically; only its owner may read it.
    pub(crate) fn write_private_file(&self, path: &Path, text: &str) -> Result<(), DataFolderError> {
        let new = path.with_extension("new");
        let write = || {
            // The left-over of a killed process; or a link, or a file that others may read.
            match fs::remove_file(&new) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            let mut file = File::options().create_new(true).write(true).mode(0o600).open(&new)?;
            file.write_all(text.as_bytes())?;
            fs::rename(&new, path)
        };
        write().map_err(|source| self.io_error_at(path, source))
    }

    /// Converts an I/O error; a full disk has a variant of its own.
    pub(crate) fn io_error_at(&self, path: &Path, source: io::Error) -> DataFolderError {
        if source.kind() == ErrorKind::StorageFull {
            return DataFolderError::DiskFull {
                path: self.root.clone(),
                free: free_space(&self.root).unwrap_or(0),
            };
        }
        unusable_folder_error(path, source)
    }

    /// Returns the cluster that uses this folder, if there is one and it is ready. The file of a killed cluster is ignored.
    pub(crate) fn running_cluster(&self) -> Option<ClusterInfo> {
        let info: ClusterInfo =
            serde_json::from_str(&fs::read_to_string(self.cluster_info_path()).ok()?).ok()?;
        (self.lock_holder() == LockHolder::Process(Some(info.pid))).then_some(info)
    }

    /// Writes `cluster.json`, so that other commands find the cluster.
    pub(crate) fn write_cluster_info(&self, info: &ClusterInfo) -> Result<(), DataFolderError> {
        let text = serde_json::to_string_pretty(info).expect("strings and numbers can be serialized");
        self.write_private_file(&self.cluster_info_path(), &text)
    }

    /// Removes `cluster.json`: commands no longer find the cluster.
    pub(crate) fn remove_cluster_info(&self) -> Result<(), DataFolderError> {
        let path = self.cluster_info_path();
        match fs::remove_file(&path) {
            Err(source) if source.kind() != ErrorKind::NotFound => Err(unusable_folder_error(&path, source)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Returns the current holder of the lock.
    pub fn lock_holder(&self) -> LockHolder {
        let Ok(mut file) = File::options().read(true).open(self.lock_path()) else { return LockHolder::None };
        // A shared lock, so that concurrent callers don't mistake each other for the holder.
        match file.try_lock_shared() {
            Ok(()) | Err(TryLockError::Error(_)) => LockHolder::None,
            Err(TryLockError::WouldBlock) => LockHolder::Process(read_pid(&mut file)),
        }
    }
}

/// The holder of the lock on a data folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockHolder {
    /// The folder is free.
    None,
    /// A process; its id is unknown until it has written it.
    Process(Option<u32>),
}

/// The lock on a data folder, held until dropped or until this process ends.
#[derive(Debug)]
pub(crate) struct FolderLock {
    layout: DataLayout,
    lock: File,
}

impl FolderLock {
    /// Locks the folder, or returns the holder as error. Removes the `cluster.json` of a killed cluster.
    pub(crate) fn acquire(layout: DataLayout) -> Result<Self, DataFolderError> {
        let path = layout.lock_path();
        let mut lock = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .custom_flags(NO_LINK)
            .open(&path)
            .map_err(|source| layout.io_error_at(&path, source))?;
        lock_with_timeout(&mut lock, &layout)?;
        let lock = Self { layout, lock };
        lock.remove_cluster_info()?;
        lock.write_pid().map_err(|source| lock.layout.io_error_at(&path, source))?;
        Ok(lock)
    }

    fn write_pid(&self) -> io::Result<()> {
        let mut lock = &self.lock;
        lock.set_len(0)?;
        lock.rewind()?;
        lock.write_all(std::process::id().to_string().as_bytes())
    }

    /// Removes `cluster.json`.
    pub(crate) fn remove_cluster_info(&self) -> Result<(), DataFolderError> {
        self.layout.remove_cluster_info()
    }
}

fn lock_with_timeout(lock: &mut File, layout: &DataLayout) -> Result<(), DataFolderError> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(source)) => {
                return Err(unusable_folder_error(&layout.lock_path(), source));
            }
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                return Err(DataFolderError::InUse { path: layout.root.clone(), pid: read_pid(lock) });
            }
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn read_pid(lock: &mut File) -> Option<u32> {
    let mut text = String::new();
    lock.read_to_string(&mut text).ok()?;
    text.parse().ok()
}

/// Returns the bytes that this user can still write on the disk of `path`.
pub fn free_space(path: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(path)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Returns the total size of the files below `path`; unreadable ones count as 0.
pub(crate) fn total_file_size(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => total_file_size(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

/// Returns the last `lines` lines of a file after `offset`, from at most its last 16 KiB.
pub(crate) fn last_lines_of_file(path: &Path, offset: u64, lines: usize) -> String {
    let read_tail = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        // A log that was rotated is shorter than it was.
        let offset = if offset > length { 0 } else { offset };
        file.seek(SeekFrom::Start(offset.max(length.saturating_sub(16 << 10))))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read_tail().unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Returns why a process has ended, by its log from `offset` on: its error, or else its last line. Empty if it wrote nothing.
pub(crate) fn last_words_in_file(path: &Path, offset: u64) -> String {
    let text = last_lines_of_file(path, offset, usize::MAX);
    let is_word = |line: &&str| !line.is_empty() && !line.starts_with("note: run with `RUST_BACKTRACE");
    let lines: Vec<&str> = text.lines().map(str::trim).filter(is_word).collect();
    // An error may have several lines.
    let from = lines.iter().rposition(|line| line.starts_with("error: "));
    lines[from.unwrap_or(lines.len().saturating_sub(1))..].join(" ")
}

fn unusable_folder_error(path: &Path, source: io::Error) -> DataFolderError {
    DataFolderError::Unusable { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn layout_in(folder: &tempfile::TempDir) -> DataLayout {
        let layout = DataLayout::new(&folder.path().join("data")).unwrap();
        layout.create_folders().unwrap();
        layout
    }

    fn sample_cluster_info() -> ClusterInfo {
        ClusterInfo {
            url: "nats://127.0.0.1:4222".into(),
            user: "u".into(),
            password: "secret".into(),
            pid: std::process::id(),
            started: jiff::Timestamp::UNIX_EPOCH,
            lifetime: ClusterLifetime::UntilStopped,
            models: Vec::new(),
        }
    }

    #[test]
    fn a_folder_has_one_lock_holder_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let layout = layout_in(&folder);
        let lock = FolderLock::acquire(layout.clone()).unwrap();
        let error = FolderLock::acquire(layout.clone()).unwrap_err();
        let pid = std::process::id();
        assert!(
            matches!(error, DataFolderError::InUse { pid: Some(holder), .. } if holder == pid),
            "{error}"
        );
        assert!(
            error.to_string().contains(&format!("in use by another millrace (process {pid})")),
            "{error}"
        );
        drop(lock);
        FolderLock::acquire(layout).unwrap();
    }

    #[test]
    fn a_cluster_is_running_only_while_it_holds_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let layout = layout_in(&folder);
        let lock = FolderLock::acquire(layout.clone()).unwrap();
        assert_eq!(layout.running_cluster(), None);
        layout.write_cluster_info(&sample_cluster_info()).unwrap();
        assert_eq!(layout.running_cluster(), Some(sample_cluster_info()));
        drop(lock);
        assert!(layout.cluster_info_path().exists(), "the file remains, as after a kill");
        assert_eq!(layout.running_cluster(), None);
        let _lock = FolderLock::acquire(layout.clone()).unwrap();
        assert!(!layout.cluster_info_path().exists(), "a new lock holder removes the old file");
    }

    #[test]
    fn status_checks_do_not_block_a_start() {
        let folder = tempfile::tempdir().unwrap();
        let layout = layout_in(&folder);
        drop(FolderLock::acquire(layout.clone()).unwrap());
        let checker = File::open(layout.lock_path()).unwrap();
        checker.try_lock_shared().unwrap();
        assert_eq!(layout.lock_holder(), LockHolder::None);
        let starter = thread::spawn({
            let layout = layout.clone();
            move || FolderLock::acquire(layout).map(drop)
        });
        drop(checker);
        starter.join().unwrap().unwrap();
    }

    #[test]
    fn a_file_instead_of_a_folder_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = DataLayout::new(&file).unwrap().create_folders().unwrap_err();
        assert!(matches!(&error, DataFolderError::NotAFolder(path) if *path == file), "{error}");
        let below = DataLayout::new(&file.join("below")).unwrap().create_folders().unwrap_err();
        assert!(below.to_string().contains("Not a directory"), "{below}");
    }

    #[test]
    fn the_password_is_readable_by_the_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let layout = layout_in(&folder);
        let _lock = FolderLock::acquire(layout.clone()).unwrap();
        layout.write_cluster_info(&sample_cluster_info()).unwrap();
        for (path, mode) in [(layout.cluster_info_path(), 0o600), (layout.root.clone(), 0o700)] {
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, mode, "{}", path.display());
        }
        assert!(!format!("{:?}", sample_cluster_info()).contains("secret"));
    }

    #[test]
    fn only_large_logs_are_rotated() {
        let folder = tempfile::tempdir().unwrap();
        let layout = layout_in(&folder);
        fs::write(layout.log_path("small"), "one\n").unwrap();
        File::create(layout.log_path("large")).unwrap().set_len(LOG_LIMIT + 1).unwrap();
        for name in ["small", "large", "absent"] {
            layout.rotate_log(name).unwrap();
        }
        layout.open_log("small").unwrap().write_all(b"two\n").unwrap();
        assert_eq!(fs::read_to_string(layout.log_path("small")).unwrap(), "one\ntwo\n");
        let length = |path: PathBuf| path.metadata().unwrap().len();
        assert_eq!(length(layout.log_path("large")), 0);
        assert_eq!(length(layout.root.join("logs/large.log.1")), LOG_LIMIT + 1);
        // A process that keeps the log open writes to its new beginning.
        let mut log = layout.open_log("small").unwrap();
        log.set_len(ROTATED_LIMIT + 9).unwrap();
        layout.rotate_logs();
        log.write_all(b"three\n").unwrap();
        assert_eq!(fs::read_to_string(layout.log_path("small")).unwrap(), "three\n");
        assert_eq!(length(layout.root.join("logs/small.log.1")), ROTATED_LIMIT);
    }

    #[test]
    fn tail_returns_the_last_lines_after_the_offset() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "old\none\ntwo\nthree\n").unwrap();
        assert_eq!(last_lines_of_file(&path, 0, 2), "two\nthree");
        assert_eq!(last_lines_of_file(&path, 4, 9), "one\ntwo\nthree");
        assert_eq!(last_lines_of_file(&folder.path().join("absent"), 0, 2), "");
    }
}
