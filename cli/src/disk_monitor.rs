//! The free space on the disk of a data folder.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use millrace_local_cluster::data::{MIN_FREE_BYTES, free_space};

const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Watches the free space on the disk of a data folder: a server on a full disk accepts no more writes, also not when there
/// is space again.
pub struct DiskMonitor {
    data: PathBuf,
    is_full: bool,
    /// When the space is checked next; other events must not delay it.
    next_check: Instant,
}

/// A change of the free space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskChange {
    /// There is too little, with the number of free bytes.
    Full(u64),
    /// There is enough again.
    Freed,
}

impl DiskChange {
    /// Returns the line about the disk of the data folder `data`.
    pub fn describe(self, data: &Path) -> String {
        let data = data.display();
        match self {
            Self::Full(free) => format!(
                "millrace: warning: the disk of the data folder {data} is nearly full: {} MiB free. Runs may stall until there is \
                 space again; no work is lost",
                free >> 20
            ),
            Self::Freed => format!(
                "millrace: the disk of the data folder {data} has space again; restarting nats-server, runs continue"
            ),
        }
    }
}

impl DiskMonitor {
    /// A monitor for the disk that holds `data`.
    pub fn new(data: &Path) -> Self {
        Self { data: data.to_owned(), is_full: false, next_check: Instant::now() + CHECK_INTERVAL }
    }

    /// Returns when the space should be checked next.
    pub fn next_check(&self) -> Instant {
        self.next_check
    }

    /// Like [`Self::check`] once the interval is over; only a disk that has become full counts.
    pub fn check_if_due(&mut self) -> Option<DiskChange> {
        let is_due = Instant::now() >= self.next_check;
        is_due.then(|| self.check()).flatten().filter(|change| *change != DiskChange::Freed)
    }

    /// Returns the change since the last check, if there is one.
    pub fn check(&mut self) -> Option<DiskChange> {
        self.next_check = Instant::now() + CHECK_INTERVAL;
        // If free space can't be read, there is nothing to say.
        free_space(&self.data).ok().and_then(|free| self.check_free_space(free))
    }

    /// Returns a change when free space falls below the minimum, and when there is enough again.
    fn check_free_space(&mut self, free: u64) -> Option<DiskChange> {
        let was_full = std::mem::replace(&mut self.is_full, free < MIN_FREE_BYTES);
        match (was_full, self.is_full) {
            (false, true) => Some(DiskChange::Full(free)),
            (true, false) => Some(DiskChange::Freed),
            (true, true) | (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_disk_space_is_reported_once_until_there_is_space_again() {
        let mut disk = DiskMonitor::new(Path::new("/d"));
        assert_eq!(disk.check_free_space(MIN_FREE_BYTES), None);
        let warning = disk.check_free_space(3 << 20).unwrap();
        let text = warning.describe(Path::new("/d"));
        assert!(text.contains("/d is nearly full: 3 MiB free"), "{text}");
        assert_eq!(disk.check_free_space(0), None);
        assert_eq!(disk.check_free_space(MIN_FREE_BYTES), Some(DiskChange::Freed));
        assert_eq!(disk.check_free_space(MIN_FREE_BYTES), None);
        assert!(disk.check_free_space(MIN_FREE_BYTES - 1).is_some());
    }
}
