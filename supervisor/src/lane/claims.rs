//! Claims that wait briefly before they are decided on. A claim has no effects, so it can share an append with the
//! claims and outcomes that follow within milliseconds.

use std::collections::BTreeSet;
use std::time::Duration;

use millrace_protocol::ids::RunId;

pub(super) const CLAIM_DELAY: Duration = Duration::from_millis(5);

/// The runs whose claims wait.
#[derive(Debug, Default)]
pub(super) struct ClaimBatcher {
    delayed: BTreeSet<RunId>,
    is_timer_running: bool,
}

impl ClaimBatcher {
    /// Delays the claims of a run. Returns `true` if the caller must start the timer, which calls
    /// [`Self::take_delayed_runs`] after [`CLAIM_DELAY`].
    #[must_use]
    pub(super) fn delay_claims_of_run(&mut self, run: &RunId) -> bool {
        self.delayed.insert(run.clone());
        !std::mem::replace(&mut self.is_timer_running, true)
    }

    /// Ends the wait; returns the runs that were delayed.
    pub(super) fn take_delayed_runs(&mut self) -> BTreeSet<RunId> {
        self.is_timer_running = false;
        std::mem::take(&mut self.delayed)
    }

    /// Forgets a run that has been closed.
    pub(super) fn remove_run(&mut self, run: &RunId) {
        self.delayed.remove(run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_id(name: &str) -> RunId {
        RunId::new(name).unwrap()
    }

    #[test]
    fn one_timer_serves_all_delayed_runs() {
        let mut claims = ClaimBatcher::default();
        assert!(claims.delay_claims_of_run(&run_id("a")), "the first claim starts the timer");
        assert!(!claims.delay_claims_of_run(&run_id("b")), "the timer is running");
        assert!(!claims.delay_claims_of_run(&run_id("a")));
        assert_eq!(claims.take_delayed_runs(), BTreeSet::from([run_id("a"), run_id("b")]));
        assert!(claims.delay_claims_of_run(&run_id("a")), "a claim after the flush starts a new timer");
    }

    #[test]
    fn closed_run_is_not_flushed() {
        let mut claims = ClaimBatcher::default();
        assert!(claims.delay_claims_of_run(&run_id("a")));
        claims.remove_run(&run_id("a"));
        assert_eq!(claims.take_delayed_runs(), BTreeSet::new());
    }
}
