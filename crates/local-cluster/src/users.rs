//! The users of a cluster: the processes that need it to keep running.
//!
//! Each user holds a shared lock on one file. A cluster that runs only while it is used stops when it gets the exclusive
//! lock, which it then holds until it has ended, so that no process becomes a user of a cluster that is stopping. The
//! kernel releases the locks of a process that is killed.
//!
//! # Invariants
//!
//! - I73: A local cluster runs as long as a process uses it, and no longer.
//!   (`tests/tests/first_command.rs::cluster_stays_as_long_as_a_command_uses_it`,
//!   `crates/local-cluster/src/users.rs::a_cluster_is_unused_when_its_last_user_ends`)

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::data::{ClusterInfo, ClusterLifetime, DataFolderError, DataLayout, LockHolder};

/// The time within which a cluster that is stopping, or another one that is starting, must be done.
const WAIT_LIMIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The interval at which a cluster checks for users.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Number of attempts of a user to get its lock back, 1 ms apart.
const RELOCK_TRIES: u32 = 50;
/// Timeout of a cluster for one command that waits for other readers.
const READERS_LIMIT: Duration = Duration::from_secs(30);

/// A use of the cluster on a data folder. It ends when this is dropped, or with the process.
#[derive(Debug)]
pub struct ClusterUse {
    layout: DataLayout,
    file: File,
}

impl ClusterUse {
    /// Registers a use, and returns the cluster that is running, if there is one; it then does not stop by itself. If there
    /// is none, the caller may start one. Waits while a cluster is stopping, is started by another process, or, unless
    /// `accepts_one_command`, serves one command.
    /// Errors: the folder can't be used, or the other process takes too long.
    pub async fn register(
        data: &Path,
        accepts_one_command: bool,
    ) -> Result<(Self, Option<ClusterInfo>), DataFolderError> {
        let layout = DataLayout::new(data)?;
        layout.create_root()?;
        let deadline = Instant::now() + WAIT_LIMIT;
        loop {
            let holder = layout.lock_holder();
            if let Some(file) = lock_shared(&layout)? {
                let info = layout.running_cluster();
                let is_usable = info
                    .as_ref()
                    .is_none_or(|info| accepts_one_command || info.lifetime != ClusterLifetime::OneCommand);
                if is_usable && (info.is_some() || layout.lock_holder() == LockHolder::None) {
                    return Ok((Self { layout, file }, info));
                }
            }
            if Instant::now() >= deadline {
                let LockHolder::Process(pid) = holder else { continue };
                return Err(DataFolderError::InUse { path: layout.root_path().to_owned(), pid });
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// `true` if other processes use the cluster, too.
    pub fn has_other_users(&self) -> Result<bool, DataFolderError> {
        let path = self.layout.users_lock_path();
        let io_error = |source| self.layout.io_error_at(&path, source);
        self.file.unlock().map_err(io_error)?;
        let is_alone = match self.file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(source)) => return Err(io_error(source)),
        };
        for _ in 0..RELOCK_TRIES {
            match self.file.try_lock_shared() {
                Ok(()) => return Ok(!is_alone),
                // Another user asks the same at this moment.
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
                Err(TryLockError::Error(source)) => return Err(io_error(source)),
            }
        }
        // The cluster got the exclusive lock in between: it is stopping.
        Ok(false)
    }

    /// Ends the use and, if nobody else uses the cluster and it is to stop then, waits until it has stopped.
    pub async fn end(self) -> Result<(), DataFolderError> {
        let layout = self.layout.clone();
        let is_last = !self.has_other_users()?;
        drop(self);
        let Some(pid) = layout.running_cluster().filter(|_| is_last).map(|info| info.pid) else {
            return Ok(());
        };
        let deadline = Instant::now() + WAIT_LIMIT;
        let is_stopping = || match layout.running_cluster() {
            Some(info) => info.pid == pid && info.lifetime == ClusterLifetime::WhileUsed,
            None => layout.lock_holder() == LockHolder::Process(Some(pid)),
        };
        while is_stopping() && Instant::now() < deadline {
            // Another process may have become a user meanwhile.
            if layout.running_cluster().is_some() && is_locked_by_users(&layout) {
                break;
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Lets the cluster run until a user stops it. `true` if it would have stopped with its last user before.
    pub fn keep_cluster_running(&self) -> Result<bool, DataFolderError> {
        let Some(info) = self.layout.running_cluster() else { return Ok(false) };
        if info.lifetime != ClusterLifetime::WhileUsed {
            return Ok(false);
        }
        let info = ClusterInfo { lifetime: ClusterLifetime::UntilStopped, ..info };
        self.layout.write_cluster_info(&info).map(|()| true)
    }
}

/// The proof that a cluster has no users. No process becomes a user as long as it lives.
#[derive(Debug)]
pub struct NoUsers {
    _file: File,
}

/// Waits until the cluster of this process, on a data folder, is used by nobody and is to stop then.
pub async fn wait_until_unused(data: &Path) -> Result<NoUsers, DataFolderError> {
    let layout = DataLayout::new(data)?;
    loop {
        sleep(CHECK_INTERVAL).await;
        let Some(file) = lock_exclusive(&layout)? else { continue };
        // Before the cluster is ready there is no file; a user may have changed it since.
        let lifetime = layout.running_cluster().map(|info| info.lifetime);
        if lifetime != Some(ClusterLifetime::UntilStopped) {
            return Ok(NoUsers { _file: file });
        }
    }
}

/// Waits until the readers that have joined a cluster for one command are done, up to 30 s.
pub(crate) async fn wait_for_other_readers(layout: &DataLayout) -> Option<NoUsers> {
    let deadline = Instant::now() + READERS_LIMIT;
    while Instant::now() < deadline {
        if let Some(file) = lock_exclusive(layout).ok()? {
            return Some(NoUsers { _file: file });
        }
        sleep(POLL_INTERVAL).await;
    }
    None
}

/// `true` if users hold the lock; `false` if it is free or the cluster holds it.
fn is_locked_by_users(layout: &DataLayout) -> bool {
    let is_exclusive = matches!(lock_shared(layout), Ok(None));
    !is_exclusive && matches!(lock_exclusive(layout), Ok(None))
}

fn open_lock_file(layout: &DataLayout) -> Result<File, DataFolderError> {
    let path = layout.users_lock_path();
    let options = File::options().create(true).append(true).open(&path);
    options.map_err(|source| layout.io_error_at(&path, source))
}

fn lock_shared(layout: &DataLayout) -> Result<Option<File>, DataFolderError> {
    let file = open_lock_file(layout)?;
    locked(layout, file.try_lock_shared()).map(|is_locked| is_locked.then_some(file))
}

fn lock_exclusive(layout: &DataLayout) -> Result<Option<File>, DataFolderError> {
    let file = open_lock_file(layout)?;
    locked(layout, file.try_lock()).map(|is_locked| is_locked.then_some(file))
}

fn locked(layout: &DataLayout, result: Result<(), TryLockError>) -> Result<bool, DataFolderError> {
    match result {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(source)) => Err(layout.io_error_at(&layout.users_lock_path(), source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::FolderLock;

    fn running_layout(data: &Path, lifetime: ClusterLifetime) -> (DataLayout, FolderLock) {
        let layout = DataLayout::new(data).unwrap();
        layout.create_folders().unwrap();
        let lock = FolderLock::acquire(layout.clone()).unwrap();
        let info = ClusterInfo {
            url: "nats://127.0.0.1:4222".into(),
            user: "u".into(),
            password: "p".into(),
            pid: std::process::id(),
            started: jiff::Timestamp::UNIX_EPOCH,
            lifetime,
            models: Vec::new(),
        };
        layout.write_cluster_info(&info).unwrap();
        (layout, lock)
    }

    async fn is_unused(data: &Path) -> bool {
        tokio::time::timeout(Duration::from_millis(400), wait_until_unused(data)).await.is_ok()
    }

    #[tokio::test]
    async fn a_cluster_is_unused_when_its_last_user_ends() {
        let folder = tempfile::tempdir().unwrap();
        let (_layout, _lock) = running_layout(folder.path(), ClusterLifetime::WhileUsed);
        let (first, info) = ClusterUse::register(folder.path(), false).await.unwrap();
        assert!(info.is_some() && !first.has_other_users().unwrap());
        let (second, _) = ClusterUse::register(folder.path(), false).await.unwrap();
        assert!(first.has_other_users().unwrap() && second.has_other_users().unwrap());
        drop(first);
        assert!(!is_unused(folder.path()).await);
        assert!(!second.has_other_users().unwrap());
        drop(second);
        let unused = wait_until_unused(folder.path()).await.unwrap();
        let layout = DataLayout::new(folder.path()).unwrap();
        assert!(lock_shared(&layout).unwrap().is_none(), "a cluster that is stopping gets no new users");
        drop(unused);
        assert!(lock_shared(&layout).unwrap().is_some());
    }

    #[tokio::test]
    async fn a_cluster_that_is_kept_outlives_its_users() {
        let folder = tempfile::tempdir().unwrap();
        let (layout, _lock) = running_layout(folder.path(), ClusterLifetime::WhileUsed);
        let (user, _) = ClusterUse::register(folder.path(), false).await.unwrap();
        assert!(user.keep_cluster_running().unwrap());
        assert!(!user.keep_cluster_running().unwrap(), "it is kept already");
        drop(user);
        assert!(!is_unused(folder.path()).await);
        assert_eq!(layout.running_cluster().unwrap().lifetime, ClusterLifetime::UntilStopped);
    }

    #[tokio::test]
    async fn a_cluster_for_one_command_is_not_joined_for_work() {
        let folder = tempfile::tempdir().unwrap();
        let (_layout, lock) = running_layout(folder.path(), ClusterLifetime::OneCommand);
        let (reader, info) = ClusterUse::register(folder.path(), true).await.unwrap();
        assert!(info.is_some());
        drop(reader);
        let data = folder.path().to_owned();
        let waiting = tokio::spawn(async move { ClusterUse::register(&data, false).await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!waiting.is_finished());
        drop(lock);
        assert_eq!(waiting.await.unwrap().unwrap().1, None);
    }
}
