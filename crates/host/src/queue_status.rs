//! The status and metrics of one queue of a host: whether it is open, and its busy slots. Created once per capability;
//! it outlives the actors that serve the queue.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_protocol::ids::Capability;
use millrace_protocol::work::WorkOutcome;

use millrace_runtime::ops::metrics::names::{
    ATTEMPT_SECONDS, ATTEMPTS, ORDERS, REDELIVERIES, SLOTS, SLOTS_BUSY,
};
use millrace_runtime::ops::metrics::{Counter, Gauge, Histogram};

pub(crate) struct QueueStatus {
    /// The reason why the queue can't deliver orders yet.
    missing: Mutex<Option<String>>,
    _slots: Gauge,
    busy: Gauge,
    /// Orders that this process has acknowledged as done.
    pub done: Counter,
    /// Orders whose work another process has claimed.
    pub lost: Counter,
    /// Orders that were returned to the queue.
    pub returned: Counter,
    /// Invalid orders.
    pub invalid: Counter,
    /// Orders that the queue had delivered before.
    pub redelivered: Counter,
    finished: Counter,
    errored: Counter,
    seconds: Histogram,
}

/// Counts a slot as busy as long as it lives.
pub(crate) struct BusySlotGuard(Arc<QueueStatus>);

impl QueueStatus {
    fn new(capability: &Capability, slots: u32) -> Self {
        let name = capability.as_str();
        let order = |outcome| ORDERS.with_labels(&[name, outcome]);
        let attempt = |outcome| ATTEMPTS.with_labels(&[name, outcome]);
        let total = SLOTS.with_labels(&[name]);
        total.set(slots.into());
        Self {
            missing: Mutex::new(Some("not registered yet".into())),
            _slots: total,
            busy: SLOTS_BUSY.with_labels(&[name]),
            done: order("done"),
            lost: order("lost"),
            returned: order("returned"),
            invalid: order("garbage"),
            redelivered: REDELIVERIES.with_labels(&[name]),
            finished: attempt("finished"),
            errored: attempt("errored"),
            seconds: ATTEMPT_SECONDS.with_labels(&[name]),
        }
    }

    /// Records that the capability is registered.
    pub fn set_registered(&self) {
        self.set_unavailable("its queue is not open yet");
    }

    /// Records that the queue can deliver orders.
    pub fn set_open(&self) {
        *self.missing.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Records why the queue can't deliver orders.
    pub fn set_unavailable(&self, why: impl Into<String>) {
        *self.missing.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.into());
    }

    /// Counts an attempt whose outcome is in the log.
    pub fn count_attempt(&self, is_finished: bool) {
        if is_finished { self.finished.increment() } else { self.errored.increment() }
    }

    /// Records the duration of an attempt.
    pub fn record_duration(&self, duration: Duration) {
        self.seconds.record(duration);
    }

    /// Returns the number of busy slots.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of orders, never negative"
    )]
    pub fn busy_slots(&self) -> u32 {
        self.busy.get() as u32
    }
}

/// `true` if an attempt with this outcome counts as finished.
pub(crate) fn counts_as_finished(outcome: &WorkOutcome) -> bool {
    match outcome {
        WorkOutcome::Finished { .. } | WorkOutcome::Judged(_) | WorkOutcome::Proposed { .. } => true,
        WorkOutcome::Errored(_) => false,
    }
}

impl BusySlotGuard {
    pub fn new(status: &Arc<QueueStatus>) -> Self {
        status.busy.add(1.0);
        Self(status.clone())
    }
}

impl Drop for BusySlotGuard {
    fn drop(&mut self) {
        self.0.busy.add(-1.0);
    }
}

/// Creates the status of each queue of a process.
pub(crate) fn new_queue_statuses(slots: &[(Capability, u32)]) -> BTreeMap<Capability, Arc<QueueStatus>> {
    let status = |(name, slots): &(Capability, u32)| (name.clone(), Arc::new(QueueStatus::new(name, *slots)));
    slots.iter().map(status).collect()
}

/// Checks that every queue can deliver orders; the error lists what is missing per queue.
pub(crate) fn check_all_queues_ready(all: &BTreeMap<Capability, Arc<QueueStatus>>) -> Result<(), String> {
    let missing = all.iter().filter_map(|(capability, status)| {
        let missing = status.missing.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        Some(format!("{capability}: {missing}"))
    });
    let missing: Vec<String> = missing.collect();
    if missing.is_empty() { Ok(()) } else { Err(missing.join("; ")) }
}
