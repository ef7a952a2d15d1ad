//! Watches what a command needs while it follows a run: the connection (reports a loss at once, a recovery, and the end of a local
//! cluster), and the free space on the disk of a data folder.
//!
//! # Invariants
//!
//! - I74: A command that follows a run reports a lost connection and the end of a local cluster.
//!   (`tests/tests/first_command.rs::lost_connection_is_reported_and_a_stopped_cluster_ends_the_watch`,
//!   `cli/src/monitors.rs::a_state_follows_from_the_connection_and_the_process`)

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use async_nats::connection::State;
use jiff::Timestamp;
use millrace_local_cluster as local;
use millrace_local_cluster::data::{MIN_FREE_BYTES, free_space};
use millrace_protocol::ids::RunId;
use millrace_runtime::Bus;

use crate::exit::CommandError;
use crate::invocation::command_hint;
use crate::target::ClusterTarget;

/// After this long without its process a local cluster counts as stopped; it may also be about to start again.
const STOPPED_AFTER: Duration = Duration::from_secs(3);
/// After this long without a connection a command gives up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// It is there.
    Connected,
    /// It has just come back after an outage of this length.
    Recovered(Duration),
    Lost(Timestamp),
    /// It was lost, and will not come back.
    Ended,
}

pub struct ConnectionMonitor {
    bus: Bus,
    target: ClusterTarget,
    /// The process of a local cluster.
    pid: Option<u32>,
    outage: LinkOutage,
}

impl ConnectionMonitor {
    pub fn new(bus: &Bus, target: &ClusterTarget) -> Self {
        let pid = match &target.nats {
            Some(_) => None,
            None => local::find_running_cluster(&target.data).map(|info| info.pid),
        };
        Self { bus: bus.clone(), target: target.clone(), pid, outage: LinkOutage::default() }
    }

    pub fn check(&mut self) -> LinkState {
        let is_connected = self.bus.client().connection_state() == State::Connected;
        let is_gone = !is_connected && self.is_gone();
        self.outage.update(is_connected, is_gone, Timestamp::now(), Instant::now())
    }

    fn is_gone(&self) -> bool {
        self.pid.is_some_and(|pid| !local::is_running_as(&self.target.data, pid))
    }

    pub fn is_lost(&self) -> bool {
        self.outage.lost.is_some() || self.bus.client().connection_state() != State::Connected
    }

    /// Describes what is known of a run whose cluster is not reachable.
    pub fn describe_unreachable_run(&self, run: &RunId) -> String {
        let data = self.target.data.display();
        if let Some(url) = &self.target.nats {
            let url = millrace_runtime::nats::connection::without_passwords(url);
            let watch = command_hint(&format!("watch {run}"));
            return format!("no connection to {url}; run {run} is in its log: `{watch}` follows it again");
        }
        if !local::has_nats_store(&self.target.data) {
            return format!("the store of the cluster on {data} was deleted, and run {run} with it");
        }
        if self.is_gone() {
            let resume = command_hint(&format!("resume {run}"));
            return format!("the cluster on {data} has stopped; run {run} is kept: `{resume}` continues it");
        }
        let watch = command_hint(&format!("watch {run}"));
        format!("no connection to the cluster on {data}; run {run} is kept: `{watch}` follows it again")
    }

    /// Returns the error of a command that gives up.
    pub fn ended_error(&self, run: &RunId) -> CommandError {
        CommandError::unusable_environment(anyhow!(self.describe_unreachable_run(run)))
    }
}

#[derive(Debug, Default)]
struct LinkOutage {
    lost: Option<(Timestamp, Instant)>,
    /// Since when the process of the local cluster is gone.
    gone: Option<Instant>,
}

impl LinkOutage {
    fn update(&mut self, is_connected: bool, is_gone: bool, at: Timestamp, now: Instant) -> LinkState {
        if is_connected {
            self.gone = None;
            return match self.lost.take() {
                Some((_, since)) => LinkState::Recovered(now - since),
                None => LinkState::Connected,
            };
        }
        let (at, since) = *self.lost.get_or_insert((at, now));
        self.gone = is_gone.then(|| *self.gone.get_or_insert(now));
        let is_stopped = self.gone.is_some_and(|gone| now - gone >= STOPPED_AFTER);
        if is_stopped || now - since >= GIVE_UP_AFTER { LinkState::Ended } else { LinkState::Lost(at) }
    }
}

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
    fn a_state_follows_from_the_connection_and_the_process() {
        let start = Instant::now();
        let mut link = LinkOutage::default();
        let mut check = |seconds, is_connected, is_gone| {
            link.update(is_connected, is_gone, Timestamp::UNIX_EPOCH, start + Duration::from_secs(seconds))
        };
        assert_eq!(check(0, true, false), LinkState::Connected);
        let lost = LinkState::Lost(Timestamp::UNIX_EPOCH);
        assert_eq!(check(1, false, false), lost);
        assert_eq!(check(5, true, false), LinkState::Recovered(Duration::from_secs(4)));
        assert_eq!(check(6, true, false), LinkState::Connected);
        assert_eq!(check(7, false, true), lost, "another process may be about to start");
        assert_eq!(check(10, false, true), LinkState::Ended);
        assert_eq!(check(20, true, false), LinkState::Recovered(Duration::from_secs(13)));
        assert_eq!(check(30, false, false), lost);
        assert_eq!(check(149, false, false), lost);
        assert_eq!(check(150, false, false), LinkState::Ended);
    }
}

#[cfg(test)]
mod disk_monitor_tests {
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
