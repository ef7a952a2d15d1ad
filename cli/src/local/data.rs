//! The data folder of a local cluster: what lies where in it, who may use it now, and whether it can be used at all.
//!
//! One cluster uses a folder at a time. A lock on the file `lock` says so, never a file's mere presence: locks end
//! with their holder, however it ends.
//!
//! | name | holds |
//! |---|---|
//! | `lock` | the pid of the process that has it locked |
//! | `cluster.json` | how to reach the cluster, for other commands; readable by the owner only |
//! | `nats.conf` | the server's configuration; readable by the owner only |
//! | `nats/` | the server's store: everything that lasts |
//! | `nats.lock` | locked by the server's process for as long as it lives |
//! | `run/` | the file in which the server says which port it took |
//! | `logs/` | a log per process, `<name>.log`, and the previous one, `<name>.log.1` |

use std::fmt;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::Access;
use serde::{Deserialize, Serialize};

/// With less free space than this a run could not log its first steps.
pub const LEAST_FREE: u64 = 64 << 20;
/// A log larger than this is put aside when its process is next started by a new cluster.
const LOG_LIMIT: u64 = 8 << 20;
/// `running` locks the folder for a moment to see whether it can: a start waits for that.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);

/// Why a data folder can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something that is no folder lies there.
    #[error("the data folder {} is not a folder; name another with --data", .0.display())]
    NotAFolder(PathBuf),
    /// It or something in it can't be created or written.
    #[error("the data folder can't be used: {}: {source}; make it writable, or name another with --data", .path.display())]
    Unusable {
        /// What could not be created, read or written.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its disk is full, or nearly so.
    #[error(
        "the disk of the data folder {} is full: {} MiB are free and {} MiB are needed; free some space, or name another folder with --data",
        .path.display(), .free >> 20, LEAST_FREE >> 20
    )]
    DiskFull {
        /// The data folder.
        path: PathBuf,
        /// The bytes that are free there.
        free: u64,
    },
    /// Another cluster uses it.
    #[error(
        "the data folder {} is in use by another millrace (process {}); stop that one, use it, or name another folder with --data",
        .path.display(), .pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string())
    )]
    InUse {
        /// The data folder.
        path: PathBuf,
        /// The process that uses it, if it said so.
        pid: Option<u32>,
    },
}

/// How to reach a running cluster.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterInfo {
    /// The server's address, `nats://127.0.0.1:<port>`.
    pub url: String,
    /// The user to connect as.
    pub user: String,
    /// That user's password.
    pub password: String,
    /// The process that keeps the cluster.
    pub pid: u32,
    /// When the cluster was started.
    pub started: jiff::Timestamp,
}

impl fmt::Debug for ClusterInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, user, password: _, pid, started } = self;
        write!(f, "ClusterInfo {{ url: {url}, user: {user}, pid: {pid}, started: {started} }}")
    }
}

/// The names in a data folder.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// The names below `root`, which is made absolute and need not exist.
    pub fn of(root: &Path) -> Result<Self, Error> {
        let root = std::path::absolute(root).map_err(|source| unusable(root, source))?;
        Ok(Self { root })
    }

    /// The data folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The configuration of the server.
    pub fn nats_conf(&self) -> PathBuf {
        self.root.join("nats.conf")
    }

    /// The store of the server.
    pub fn nats_store(&self) -> PathBuf {
        self.root.join("nats")
    }

    /// Locked by the server's process.
    pub fn nats_lock(&self) -> PathBuf {
        self.root.join("nats.lock")
    }

    /// Where the server says which port it took.
    pub fn ports(&self) -> PathBuf {
        self.root.join("run")
    }

    /// The log of the process called `name`.
    pub fn log(&self, name: &str) -> PathBuf {
        self.root.join("logs").join(format!("{name}.log"))
    }

    fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    fn cluster(&self) -> PathBuf {
        self.root.join("cluster.json")
    }

    /// Creates the folders, and proves that they can be written. The data folder itself is for its owner only.
    pub fn create(&self) -> Result<(), Error> {
        if self.root.exists() && !self.root.is_dir() {
            return Err(Error::NotAFolder(self.root.clone()));
        }
        for folder in [self.root.clone(), self.root.join("logs"), self.ports(), self.nats_store()] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)
                .map_err(|source| self.fault(&folder, source))?;
        }
        self.free_space().map(drop)
    }

    /// Whether the folder can be used, without creating it: the bytes free on its disk.
    pub fn check(&self) -> Result<u64, Error> {
        // The nearest folder that exists decides whether the others can be created.
        let existing = self.root.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
        if !existing.is_dir() {
            return Err(Error::NotAFolder(existing.to_owned()));
        }
        rustix::fs::access(existing, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|error| unusable(existing, error.into()))?;
        self.free_space()
    }

    /// The bytes free on the folder's disk, or that there are too few.
    fn free_space(&self) -> Result<u64, Error> {
        let existing = self.root.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
        let free = free_space(existing).map_err(|source| unusable(existing, source))?;
        if free < LEAST_FREE { Err(Error::DiskFull { path: self.root.clone(), free }) } else { Ok(free) }
    }

    /// Opens the log of the process called `name` for appending.
    pub fn open_log(&self, name: &str) -> Result<File, Error> {
        let path = self.log(name);
        File::options().create(true).append(true).open(&path).map_err(|source| self.fault(&path, source))
    }

    /// Puts aside the log of the process called `name` if it has become large.
    pub fn rotate_log(&self, name: &str) -> Result<(), Error> {
        let path = self.log(name);
        if !path.metadata().is_ok_and(|metadata| metadata.len() > LOG_LIMIT) {
            return Ok(());
        }
        let aside = self.root.join("logs").join(format!("{name}.log.1"));
        fs::rename(&path, aside).map_err(|source| self.fault(&path, source))
    }

    /// Replaces a file that only its owner may read: no reader ever sees a part of it.
    pub fn write_private(&self, path: &Path, text: &str) -> Result<(), Error> {
        let new = path.with_extension("new");
        let write = || {
            let mut file = File::options().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(text.as_bytes())?;
            fs::rename(&new, path)
        };
        write().map_err(|source| self.fault(path, source))
    }

    /// Tells a full disk from any other fault.
    fn fault(&self, path: &Path, source: io::Error) -> Error {
        if source.kind() == ErrorKind::StorageFull {
            return Error::DiskFull { path: self.root.clone(), free: free_space(&self.root).unwrap_or(0) };
        }
        unusable(path, source)
    }

    /// The cluster that uses this folder now, if one does and is ready. A file left by one that was killed is seen
    /// through.
    pub fn running(&self) -> Option<ClusterInfo> {
        let info: ClusterInfo = serde_json::from_str(&fs::read_to_string(self.cluster()).ok()?).ok()?;
        (self.holder() == Holder::Process(Some(info.pid))).then_some(info)
    }

    /// Who has this folder locked now.
    pub fn holder(&self) -> Holder {
        let Ok(mut file) = File::options().read(true).open(self.lock()) else { return Holder::Nobody };
        // Shared, so that any number of askers don't take one another for a holder.
        match file.try_lock_shared() {
            Ok(()) | Err(TryLockError::Error(_)) => Holder::Nobody,
            Err(TryLockError::WouldBlock) => Holder::Process(read_pid(&mut file)),
        }
    }
}

/// Who has a data folder locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// It is free.
    Nobody,
    /// A process, which may not have had the time to say which.
    Process(Option<u32>),
}

/// The right to use a data folder, held until dropped or until this process ends.
#[derive(Debug)]
pub struct Claim {
    layout: Layout,
    lock: File,
}

impl Claim {
    /// Takes the folder, or says who has it. What a killed cluster told other commands is removed.
    pub fn take(layout: Layout) -> Result<Self, Error> {
        let path = layout.lock();
        let mut lock = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|source| layout.fault(&path, source))?;
        lock_soon(&mut lock, &layout)?;
        let claim = Self { layout, lock };
        claim.withdraw()?;
        claim.sign().map_err(|source| claim.layout.fault(&path, source))?;
        Ok(claim)
    }

    fn sign(&self) -> io::Result<()> {
        let mut lock = &self.lock;
        lock.set_len(0)?;
        lock.rewind()?;
        lock.write_all(std::process::id().to_string().as_bytes())
    }

    /// Tells other commands how to reach the cluster.
    pub fn announce(&self, info: &ClusterInfo) -> Result<(), Error> {
        let text =
            serde_json::to_string_pretty(info).expect("a struct of strings and numbers is always JSON");
        self.layout.write_private(&self.layout.cluster(), &text)
    }

    /// Takes back what was announced.
    pub fn withdraw(&self) -> Result<(), Error> {
        let path = self.layout.cluster();
        match fs::remove_file(&path) {
            Err(source) if source.kind() != ErrorKind::NotFound => Err(unusable(&path, source)),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

fn lock_soon(lock: &mut File, layout: &Layout) -> Result<(), Error> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(source)) => return Err(unusable(&layout.lock(), source)),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                return Err(Error::InUse { path: layout.root.clone(), pid: read_pid(lock) });
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

/// The bytes that this user may still write on the disk of `path`.
pub fn free_space(path: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(path)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// The bytes that the files below `path` have; what can't be read counts nothing.
pub fn size_of_tree(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => size_of_tree(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

/// The last `lines` lines of the text that `path` has from `offset` on, as far as they lie in its last 16 KiB.
pub fn tail(path: &Path, offset: u64, lines: usize) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(offset.max(length.saturating_sub(16 << 10))))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

fn unusable(path: &Path, source: io::Error) -> Error {
    Error::Unusable { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn layout(folder: &tempfile::TempDir) -> Layout {
        let layout = Layout::of(&folder.path().join("data")).unwrap();
        layout.create().unwrap();
        layout
    }

    fn info() -> ClusterInfo {
        ClusterInfo {
            url: "nats://127.0.0.1:4222".into(),
            user: "u".into(),
            password: "secret".into(),
            pid: std::process::id(),
            started: jiff::Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_folder_is_claimed_once_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let layout = layout(&folder);
        let claim = Claim::take(layout.clone()).unwrap();
        let error = Claim::take(layout.clone()).unwrap_err();
        let pid = std::process::id();
        assert!(matches!(error, Error::InUse { pid: Some(holder), .. } if holder == pid), "{error}");
        assert!(
            error.to_string().contains(&format!("in use by another millrace (process {pid})")),
            "{error}"
        );
        drop(claim);
        Claim::take(layout).unwrap();
    }

    #[test]
    fn a_cluster_is_running_only_while_its_process_has_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let layout = layout(&folder);
        let claim = Claim::take(layout.clone()).unwrap();
        assert_eq!(layout.running(), None);
        claim.announce(&info()).unwrap();
        assert_eq!(layout.running(), Some(info()));
        drop(claim);
        assert!(layout.cluster().exists(), "as after a kill, the file is left");
        assert_eq!(layout.running(), None);
        let _claim = Claim::take(layout.clone()).unwrap();
        assert!(!layout.cluster().exists(), "a new claim removes what the old one left");
    }

    #[test]
    fn askers_do_not_keep_a_start_from_claiming() {
        let folder = tempfile::tempdir().unwrap();
        let layout = layout(&folder);
        drop(Claim::take(layout.clone()).unwrap());
        let asker = File::open(layout.lock()).unwrap();
        asker.try_lock_shared().unwrap();
        assert_eq!(layout.holder(), Holder::Nobody);
        let starter = thread::spawn({
            let layout = layout.clone();
            move || Claim::take(layout).map(drop)
        });
        drop(asker);
        starter.join().unwrap().unwrap();
    }

    #[test]
    fn a_file_instead_of_a_folder_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = Layout::of(&file).unwrap().create().unwrap_err();
        assert!(matches!(&error, Error::NotAFolder(path) if *path == file), "{error}");
        let below = Layout::of(&file.join("below")).unwrap().create().unwrap_err();
        assert!(below.to_string().contains("Not a directory"), "{below}");
    }

    #[test]
    fn what_holds_the_password_is_for_the_owner_only_and_is_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let layout = layout(&folder);
        let claim = Claim::take(layout.clone()).unwrap();
        claim.announce(&info()).unwrap();
        for (path, mode) in [(layout.cluster(), 0o600), (layout.root.clone(), 0o700)] {
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, mode, "{}", path.display());
        }
        assert!(!format!("{:?}", info()).contains("secret"));
    }

    #[test]
    fn a_large_log_is_put_aside_and_a_small_one_grows_on() {
        let folder = tempfile::tempdir().unwrap();
        let layout = layout(&folder);
        fs::write(layout.log("small"), "one\n").unwrap();
        File::create(layout.log("large")).unwrap().set_len(LOG_LIMIT + 1).unwrap();
        for name in ["small", "large", "absent"] {
            layout.rotate_log(name).unwrap();
        }
        layout.open_log("small").unwrap().write_all(b"two\n").unwrap();
        assert_eq!(fs::read_to_string(layout.log("small")).unwrap(), "one\ntwo\n");
        assert!(!layout.log("large").exists() && layout.root.join("logs/large.log.1").exists());
    }

    #[test]
    fn a_tail_is_the_last_lines_after_the_offset() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "old\none\ntwo\nthree\n").unwrap();
        assert_eq!(tail(&path, 0, 2), "two\nthree");
        assert_eq!(tail(&path, 4, 9), "one\ntwo\nthree");
        assert_eq!(tail(&folder.path().join("absent"), 0, 2), "");
    }
}
