//! Watches the connection of a command that follows a run: reports a loss at once, a recovery, and the end of a local
//! cluster.
//!
//! # Invariants
//!
//! - I74: A command that follows a run reports a lost connection and the end of a local cluster.
//!   (`tests/tests/first_command.rs::lost_connection_is_reported_and_a_stopped_cluster_ends_the_watch`,
//!   `cli/src/connection_monitor.rs::a_state_follows_from_the_connection_and_the_process`)

use std::time::{Duration, Instant};

use anyhow::anyhow;
use async_nats::connection::State;
use jiff::Timestamp;
use millrace_local_cluster as local;
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
