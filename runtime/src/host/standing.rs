//! How one queue of the process stands: whether it is open, how much of it is in hand, and what was counted. It is made
//! once for each capability, and outlives the actors that serve it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_protocol::ids::Capability;
use millrace_protocol::work::Outcome;

use crate::metrics::names::{ATTEMPT_SECONDS, ATTEMPTS, ORDERS, REDELIVERIES, SLOTS, SLOTS_BUSY};
use crate::metrics::{Level, Tally, Timing};

/// How a queue stands.
pub(super) struct Standing {
    /// What is missing before orders can come.
    missing: Mutex<Option<String>>,
    _slots: Level,
    busy: Level,
    /// Orders that left the queue by our word.
    pub done: Tally,
    /// Orders whose work somebody else has taken over.
    pub lost: Tally,
    /// Orders that were given back.
    pub returned: Tally,
    /// Orders that were none.
    pub garbage: Tally,
    /// Orders that the queue had given out before.
    pub redelivered: Tally,
    finished: Tally,
    errored: Tally,
    seconds: Timing,
}

/// Counts a piece of work as in hand for as long as it lives, however it ends.
pub(super) struct Busy(Arc<Standing>);

impl Standing {
    fn new(capability: &Capability, slots: u32) -> Self {
        let name = capability.as_str();
        let order = |outcome| ORDERS.tally(&[name, outcome]);
        let attempt = |outcome| ATTEMPTS.tally(&[name, outcome]);
        let level = SLOTS.level(&[name]);
        level.set(slots.into());
        Self {
            missing: Mutex::new(Some("not registered yet".into())),
            _slots: level,
            busy: SLOTS_BUSY.level(&[name]),
            done: order("done"),
            lost: order("lost"),
            returned: order("returned"),
            garbage: order("garbage"),
            redelivered: REDELIVERIES.tally(&[name]),
            finished: attempt("finished"),
            errored: attempt("errored"),
            seconds: ATTEMPT_SECONDS.timing(&[name]),
        }
    }

    /// The cluster knows that it is offered here.
    pub fn registered(&self) {
        self.is_missing("its queue is not open yet");
    }

    /// Orders can come.
    pub fn opened(&self) {
        *self.missing.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Orders can't come, for this reason.
    pub fn is_missing(&self, why: impl Into<String>) {
        *self.missing.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.into());
    }

    /// An attempt has ended with this, and it is in the log.
    pub fn ended(&self, is_finished: bool) {
        if is_finished { self.finished.one() } else { self.errored.one() }
    }

    /// The work of an attempt took so long.
    pub fn took(&self, time: Duration) {
        self.seconds.record(time);
    }

    /// How much is in hand.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of orders, from 0")]
    pub fn busy(&self) -> u32 {
        self.busy.get() as u32
    }
}

/// Whether an attempt that ended so counts as finished.
pub(super) fn is_finished(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Finished { .. } | Outcome::Judged(_) | Outcome::Proposed { .. } => true,
        Outcome::Errored(_) => false,
    }
}

impl Busy {
    pub fn with(standing: &Arc<Standing>) -> Self {
        standing.busy.change(1.0);
        Self(standing.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.change(-1.0);
    }
}

/// How all queues of a process stand at its start, by their slots.
pub(super) fn all(slots: &[(Capability, u32)]) -> BTreeMap<Capability, Arc<Standing>> {
    let standing = |(name, slots): &(Capability, u32)| (name.clone(), Arc::new(Standing::new(name, *slots)));
    slots.iter().map(standing).collect()
}

/// Whether orders can come to every queue; else what is missing, one queue after the other.
pub(super) fn check(all: &BTreeMap<Capability, Arc<Standing>>) -> Result<(), String> {
    let missing = all.iter().filter_map(|(capability, standing)| {
        let missing = standing.missing.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        Some(format!("{capability}: {missing}"))
    });
    let missing: Vec<String> = missing.collect();
    if missing.is_empty() { Ok(()) } else { Err(missing.join("; ")) }
}
