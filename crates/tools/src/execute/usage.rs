//! The memory and disk space that commands use: of one command against its limits, and of all commands of this process
//! together, so that concurrent ones cannot take more than the machine or the container has.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::host_limits::{MIB, free_bytes};
use super::launch_message::ExceededLimit;

/// Bounds of the interval for measuring a working folder. It grows with the time that this takes.
const MIN_DISK_INTERVAL: Duration = Duration::from_millis(200);
const MAX_DISK_INTERVAL: Duration = Duration::from_secs(5);
/// The share of the time that is spent measuring is one in this many.
const DISK_INTERVAL_FACTOR: u32 = 10;
/// Free space below which the disk counts as full.
const MIN_FREE_DISK: u64 = 256 * MIB;

/// The memory of all running commands.
pub(super) static MEMORY: Pool = Pool::new();
/// The content of all temporary working folders.
static DISK: Pool = Pool::new();

pub(super) struct Pool {
    amounts: Mutex<BTreeMap<u64, u64>>,
    next_id: AtomicU64,
}

impl Pool {
    const fn new() -> Self {
        Self { amounts: Mutex::new(BTreeMap::new()), next_id: AtomicU64::new(0) }
    }

    /// Adds an entry of 0, which is removed when it is dropped.
    pub(super) fn add_entry(&'static self) -> PoolEntry {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let entry = PoolEntry { pool: self, id };
        entry.set(0);
        entry
    }
}

pub(super) struct PoolEntry {
    pool: &'static Pool,
    id: u64,
}

impl PoolEntry {
    pub(super) fn set(&self, amount: u64) {
        self.pool.amounts.lock().unwrap_or_else(PoisonError::into_inner).insert(self.id, amount);
    }

    /// Returns `true` if the pool exceeds `limit` and this amount is its largest.
    pub(super) fn must_yield(&self, limit: u64) -> bool {
        let amounts = self.pool.amounts.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = amounts.values().fold(0_u64, |sum, amount| sum.saturating_add(*amount));
        let largest = amounts.iter().max_by_key(|(id, amount)| (**amount, **id));
        sum > limit && largest.is_some_and(|(id, _)| *id == self.id)
    }
}

impl Drop for PoolEntry {
    fn drop(&mut self) {
        self.pool.amounts.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

pub(super) struct FolderUsage {
    folder: PathBuf,
    initial: u64,
    max_growth: u64,
    min_free: u64,
    /// Its entry among the temporary folders, and the limit on all of them.
    shared: Option<(PoolEntry, u64)>,
    last: AtomicU64,
}

impl FolderUsage {
    /// Measures a folder. `max_shared`: the limit on all temporary folders together, if it is one.
    pub(super) async fn measure(folder: PathBuf, max_growth: u64, max_shared: Option<u64>) -> Self {
        let shared = max_shared.map(|limit| (DISK.add_entry(), limit));
        let initial = folder_bytes_in_background(&folder).await;
        let min_free = free_bytes(&folder).map_or(0, |free| MIN_FREE_DISK.min(free / 2));
        Self { folder, initial, max_growth, min_free, shared, last: AtomicU64::new(initial) }
    }

    pub(super) fn set_shared_limit(&mut self, limit: u64) {
        if let Some((_, max)) = &mut self.shared {
            *max = limit;
        }
    }

    pub(super) async fn wait_until_exceeded(&self) -> ExceededLimit {
        loop {
            let began = Instant::now();
            if let Some(limit) = self.exceeded_limit().await {
                return limit;
            }
            let interval =
                (began.elapsed() * DISK_INTERVAL_FACTOR).clamp(MIN_DISK_INTERVAL, MAX_DISK_INTERVAL);
            tokio::time::sleep(interval).await;
        }
    }

    /// Measures the folder and returns the exceeded limit. A folder that exceeds one may shrink.
    pub(super) async fn exceeded_limit(&self) -> Option<ExceededLimit> {
        let size = folder_bytes_in_background(&self.folder).await;
        let is_growing = size > self.last.swap(size, Ordering::Relaxed);
        self.check_size(size).filter(|_| is_growing)
    }

    fn check_size(&self, size: u64) -> Option<ExceededLimit> {
        let growth = size.saturating_sub(self.initial);
        if growth > self.max_growth {
            return Some(ExceededLimit::Disk);
        }
        if let Some((entry, limit)) = &self.shared {
            entry.set(size);
            if entry.must_yield(*limit) {
                return Some(ExceededLimit::SharedDisk);
            }
        }
        let is_full = free_bytes(&self.folder).is_ok_and(|free| free < self.min_free);
        is_full.then_some(ExceededLimit::FullDisk)
    }
}

async fn folder_bytes_in_background(folder: &Path) -> u64 {
    let folder = folder.to_owned();
    tokio::task::spawn_blocking(move || folder_bytes(&folder)).await.unwrap_or(0)
}

/// Returns the bytes that the content of a folder takes on its disk. Entries that vanish meanwhile count as 0.
fn folder_bytes(folder: &Path) -> u64 {
    let device = fs::symlink_metadata(folder).map(|folder| folder.dev()).ok();
    let mut linked = HashSet::new();
    let mut folders = vec![folder.to_owned()];
    let mut bytes = 0_u64;
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            let is_link = metadata.nlink() > 1 && !metadata.is_dir();
            if Some(metadata.dev()) != device || (is_link && !linked.insert(metadata.ino())) {
                continue;
            }
            bytes = bytes.saturating_add(metadata.blocks().saturating_mul(512));
            if metadata.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_amount_yields() {
        static POOL: Pool = Pool::new();
        let (small, large) = (POOL.add_entry(), POOL.add_entry());
        small.set(10);
        large.set(20);
        assert!(!large.must_yield(30) && !small.must_yield(30));
        assert!(large.must_yield(29) && !small.must_yield(29));
        drop(large);
        assert!(small.must_yield(9) && !small.must_yield(10));
    }

    #[test]
    fn the_size_of_a_folder_counts_links_once_and_holes_not() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        let file = folder.path().join("a/b/file");
        fs::write(&file, vec![1; 1_000_000]).unwrap();
        let size = folder_bytes(folder.path());
        assert!((1_000_000..1_100_000).contains(&size), "{size}");
        fs::hard_link(&file, folder.path().join("link")).unwrap();
        std::os::unix::fs::symlink("/usr", folder.path().join("usr")).unwrap();
        fs::File::create(folder.path().join("hole")).unwrap().set_len(1 << 30).unwrap();
        assert!(folder_bytes(folder.path()) < size + 50_000);
        assert_eq!(folder_bytes(Path::new("/no/such/folder")), 0);
    }
}
