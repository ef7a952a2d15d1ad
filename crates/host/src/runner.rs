//! The work on one order, from its claim to its acknowledgement: a task with the journal of the work and a slot of its queue.
//! The queue actor owns the task, aborts it to stop the work, and then handles the order itself. It is a task and not an
//! actor, since each attempt has one, and nothing would use the mailboxes of an actor. It reads nothing at its start; the journal
//! contains the steps of earlier claims.
//!
//! The two log lines of each piece of work: when it is claimed, and when its outcome is in the log. Of many pieces that begin within
//! the same second, most are only counted.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use millrace_protocol::ids::{Capability, RunId, TaskId};
use millrace_protocol::plan::Work;
use millrace_protocol::result::{Build, ErrorKind, TaskError, Usage};
use millrace_protocol::secrets::redact_text;
use millrace_protocol::work::{Order, WorkOutcome};
use millrace_runtime::Fault;
use millrace_runtime::log::journal::{ClaimResult, Journal, JournalError};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tracing::field::display;
use tracing::{Level, debug, enabled, info, warn};

use crate::order_lease::OrderLease;
use crate::queue_status::{BusySlotGuard, QueueStatus, counts_as_finished};

use crate::{AttemptContext, HostContext, OrderHandler};

/// The delay before an order is redelivered that this process could not start or may not take.
const REDELIVERY_DELAY: Duration = Duration::from_secs(1);
/// The delay after which an order of a newer release is delivered again, to any worker.
const NEWER_ORDER_DELAY: Duration = Duration::from_secs(5);

/// The work on one order, with its inputs.
pub(crate) struct OrderRunner {
    pub shared: Arc<HostContext>,
    pub status: Arc<QueueStatus>,
    pub handler: Arc<dyn OrderHandler>,
    /// The software that does the work.
    pub build: Arc<Build>,
    pub lease: Arc<OrderLease>,
    pub cancelled: CancellationToken,
    /// Cancelled when the process pulls no more orders.
    pub draining: CancellationToken,
    /// Frees the slot when it is dropped with the runner.
    pub _slot: OwnedSemaphorePermit,
}

impl OrderRunner {
    /// Works on the order to its end. Dropping the future leaves the order to the caller.
    pub async fn run(self) {
        let _busy = BusySlotGuard::new(&self.status);
        let Self { status, lease, .. } = &self;
        match process_order(&self).await {
            OrderDisposition::Done => {
                status.done.increment();
                lease.acknowledge_order().await;
            }
            OrderDisposition::Invalid => {
                status.invalid.increment();
                lease.acknowledge_order().await;
            }
            OrderDisposition::Lost => status.lost.increment(),
            OrderDisposition::Returned(delay) => {
                status.returned.increment();
                lease.release_order(delay).await;
            }
        }
    }
}

/// The end of an order in this process.
enum OrderDisposition {
    /// It is acknowledged.
    Done,
    /// It is invalid or stale, and removed from the queue.
    Invalid,
    /// Another process has claimed the work.
    Lost,
    /// It returns to the queue, and is redelivered after this delay.
    Returned(Duration),
}

/// Reads the order and claims its work, unless it is not for this process.
async fn claim_order(state: &OrderRunner) -> Result<(Arc<Order>, Journal), OrderDisposition> {
    let OrderRunner { shared, handler, lease, .. } = state;
    let subject = lease.subject();
    let order = match lease.decode_order().await {
        Ok(order) => Arc::new(order),
        Err(fault) if fault.is_transient() => return Err(return_order_after_fault(subject, &fault)),
        Err(fault) if fault.is_of_newer_release() => {
            warn!(subject, %fault, "returning an order of a newer release; upgrade this worker");
            return Err(OrderDisposition::Returned(NEWER_ORDER_DELAY));
        }
        Err(fault) => {
            let invalid_orders = shared.count_invalid_order();
            warn!(subject, %fault, invalid_orders, "removing an invalid order from its queue");
            return Err(OrderDisposition::Invalid);
        }
    };
    if !handler.accepts_order(&order, &shared.id) {
        debug!(subject, "returning an order that this process may not take");
        return Err(OrderDisposition::Returned(REDELIVERY_DELAY));
    }
    match shared.order_check.is_stale(&shared.bus, &order, lease.sequence()).await {
        Ok(false) => {}
        Ok(true) => {
            warn!(subject, decided = ?order.decided, "removing an order whose decision is not in the log: the server has lost its newest messages");
            return Err(OrderDisposition::Invalid);
        }
        Err(fault) => return Err(return_order_after_fault(subject, &fault)),
    }
    match Journal::claim_work(&shared.bus, &order, &shared.id, Some(&state.build)).await {
        Ok(ClaimResult::Acquired(journal)) => Ok((order, *journal)),
        Ok(ClaimResult::Done | ClaimResult::Lost) => Err(OrderDisposition::Done),
        Err(fault) => Err(return_order_after_fault(subject, &fault)),
    }
}

async fn process_order(state: &OrderRunner) -> OrderDisposition {
    let OrderRunner { shared, status, handler, lease, .. } = state;
    let subject = lease.subject();
    let (order, journal) = match claim_order(state).await {
        Ok(claimed) => claimed,
        Err(disposition) => return disposition,
    };
    let mut attempt = AttemptContext::new(
        shared.bus.clone(),
        order.clone(),
        shared.id.clone(),
        journal,
        state.cancelled.clone(),
    );
    let started = Instant::now();
    let log = AttemptLog::new(&order, &shared.log_limit);
    log.record_start(attempt.claim_number());
    let is_idle = attempt.idle_in_draining_process(state.draining.clone());
    let outcome = tokio::select! {
        biased;
        outcome = run_handler(handler.as_ref(), &mut attempt, &order) => outcome,
        () = is_idle => {
            info!(subject, "returning work that waits for its provider: this process stops");
            state.cancelled.cancel();
            release_waiting_work(shared, &order).await;
            return OrderDisposition::Returned(Duration::ZERO);
        }
    };
    status.record_duration(started.elapsed());
    let is_finished = counts_as_finished(&outcome);
    let summary = OutcomeSummary::from(&outcome);
    let ended = match attempt.take_given_up() {
        Some(reason) => {
            info!(run = %order.run, subject, ?reason, "returning work without an outcome");
            // First, because the supervisor offers the same work again, and the queue holds one order for it.
            lease.acknowledge_and_confirm().await;
            attempt.release_given_up(reason).await.map(|()| None)
        }
        None => attempt.append_outcome(outcome).await.map(|()| Some(is_finished)),
    };
    match ended {
        Ok(is_finished) => {
            if let Some(is_finished) = is_finished {
                status.count_attempt(is_finished);
                log.record_end(&summary, started.elapsed());
            }
            OrderDisposition::Done
        }
        Err(JournalError::Fenced { .. }) => {
            info!(run = %order.run, subject, "another process has claimed this work; dropping it");
            OrderDisposition::Lost
        }
        Err(JournalError::Fault(fault)) => {
            warn!(subject, %fault, "NATS or journal failure; returning the order to the queue for a retry");
            OrderDisposition::Returned(attempt.append_release(&fault).await)
        }
    }
}

/// Records in the journal that work which waits for its provider is released, so that its claim does not count.
async fn release_waiting_work(shared: &HostContext, order: &Order) {
    let released =
        Journal::append_release_for_worker(&shared.bus, order, &shared.id, "its worker stopped").await;
    if let Err(error) = released {
        debug!(%error, "could not record in the journal that the work was released; this claim counts as one without progress");
    }
}

/// Runs the handler. Its errors and panics become outcomes, without the secrets that this process knows.
async fn run_handler(handler: &dyn OrderHandler, attempt: &mut AttemptContext, order: &Order) -> WorkOutcome {
    let mut outcome = match AssertUnwindSafe(handler.run_attempt(attempt)).catch_unwind().await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => WorkOutcome::Errored(error),
        Err(panic) => {
            let message = format!("the capability panicked: {}", panic_text(panic.as_ref()));
            warn!(run = %order.run, work = ?order.work(), message, "a handler panicked");
            WorkOutcome::Errored(TaskError::new(ErrorKind::Panic, message))
        }
    };
    if let WorkOutcome::Errored(error) = &mut outcome {
        error.message = redact_text(&error.message).into_owned();
    }
    outcome
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Returns an order to the queue because of a transient fault.
fn return_order_after_fault(subject: &str, fault: &Fault) -> OrderDisposition {
    warn!(subject, %fault, "NATS or journal failure; returning the order to the queue for a retry");
    OrderDisposition::Returned(REDELIVERY_DELAY)
}

/// The maximum number of characters of an error in a line.
const MAX_ERROR: usize = 300;
/// The number of pieces of work of a process that are logged one by one, of those that begin within the same second. A log
/// with thousands of lines per second is of no use, and writing it takes longer than short work itself.
const MAX_PER_SECOND: u32 = 50;
/// Work that takes longer gets the line about its end in any case.
const ALWAYS_LOGGED_AFTER: Duration = Duration::from_secs(1);

/// Decides which pieces of work of a process are logged one by one.
pub(crate) struct AttemptLogLimit(Mutex<LogSecond>);

/// A second in which work began.
struct LogSecond {
    began: Instant,
    logged: u32,
    /// The number of pieces of work that were not logged since the last report on them.
    left_out: u64,
}

impl AttemptLogLimit {
    pub fn new(now: Instant) -> Self {
        Self(Mutex::new(LogSecond { began: now, logged: 0, left_out: 0 }))
    }

    /// Returns `true` if the work that begins at this time is logged.
    fn admit(&self, now: Instant) -> bool {
        let mut second = self.lock();
        if now.duration_since(second.began) >= Duration::from_secs(1) {
            (second.began, second.logged) = (now, 0);
        }
        let is_admitted = second.logged < MAX_PER_SECOND;
        match is_admitted {
            true => second.logged += 1,
            false => second.left_out += 1,
        }
        is_admitted
    }

    /// Logs how many pieces of work were left out since the last call, if any were.
    pub fn report_left_out(&self) {
        let left_out = self.take_left_out();
        if left_out > 0 {
            info!(
                left_out,
                "more work began than is logged one by one ({MAX_PER_SECOND} per second; all with MILLRACE_LOG=debug)"
            );
        }
    }

    fn take_left_out(&self) -> u64 {
        std::mem::take(&mut self.lock().left_out)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LogSecond> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fields that both lines of a piece of work have.
pub(crate) struct AttemptLog {
    run: RunId,
    work: &'static str,
    task: Option<TaskId>,
    turn: Option<u32>,
    attempt: u32,
    capability: Capability,
    is_admitted: bool,
}

/// The parts of an outcome that the log shows.
pub(crate) struct OutcomeSummary {
    outcome: &'static str,
    usage: Usage,
    error: Option<(ErrorKind, String)>,
}

impl AttemptLog {
    pub fn new(order: &Order, limit: &AttemptLogLimit) -> Self {
        let (work, task, turn, attempt) = match order.work() {
            Work::Task { task, attempt } => ("attempt", Some(task), None, attempt),
            Work::Review { task, attempt, .. } => ("review", Some(task), None, attempt),
            Work::Planning { turn, attempt } => ("planning", None, Some(turn), attempt),
        };
        Self {
            run: order.run.clone(),
            work,
            task,
            turn,
            attempt,
            capability: order.capability.clone(),
            is_admitted: limit.admit(Instant::now()),
        }
    }

    /// Logs that this process has claimed the work; `claim` counts the claims.
    pub fn record_start(&self, claim: u32) {
        let Self { run, work, task, turn, attempt, capability, is_admitted } = self;
        if !is_admitted && !enabled!(Level::DEBUG) {
            return;
        }
        let (task, claim) = (task.as_ref().map(display), (claim > 1).then_some(claim));
        match is_admitted {
            true => info!(%run, task, turn, attempt, %capability, claim, "{work} started"),
            false => debug!(%run, task, turn, attempt, %capability, claim, "{work} started"),
        }
    }

    /// Logs the outcome of the work. A failure is a warning, which the heartbeat reports.
    pub fn record_end(&self, summary: &OutcomeSummary, took: Duration) {
        let Self { run, work, task, turn, attempt, capability, is_admitted } = self;
        let OutcomeSummary { outcome, usage, error } = summary;
        let is_logged = *is_admitted || took >= ALWAYS_LOGGED_AFTER;
        if error.is_none() && !is_logged && !enabled!(Level::DEBUG) {
            return;
        }
        let task = task.as_ref().map(display);
        let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let tokens = usage.input_tokens.saturating_add(usage.output_tokens);
        match error {
            None if is_logged => {
                info!(%run, task, turn, attempt, %capability, outcome, duration_ms, tokens, "{work} ended")
            }
            None => {
                debug!(%run, task, turn, attempt, %capability, outcome, duration_ms, tokens, "{work} ended")
            }
            Some((kind, error)) => warn!(
                %run, task, turn, attempt, %capability, outcome, ?kind, ?error, duration_ms,
                tokens, "{work} ended"
            ),
        }
    }
}

impl From<&WorkOutcome> for OutcomeSummary {
    fn from(outcome: &WorkOutcome) -> Self {
        let (outcome, usage, error) = match outcome {
            WorkOutcome::Finished { usage, .. } => ("finished", *usage, None),
            WorkOutcome::Judged(verdict) => {
                (if verdict.passed { "passed" } else { "rejected" }, verdict.usage, None)
            }
            WorkOutcome::Proposed { usage, .. } => ("proposed", *usage, None),
            WorkOutcome::Errored(error) => {
                let message = error.message.chars().take(MAX_ERROR).collect();
                ("errored", error.usage, Some((error.kind, message)))
            }
        };
        Self { outcome, usage, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_beyond_the_limit_of_a_second_is_counted() {
        let start = Instant::now();
        let limit = AttemptLogLimit::new(start);
        let later = start + Duration::from_millis(999);
        let admitted = (0..MAX_PER_SECOND + 3).filter(|_| limit.admit(later)).count();
        assert_eq!(admitted, MAX_PER_SECOND as usize);
        assert_eq!((limit.take_left_out(), limit.take_left_out()), (3, 0));
        assert!(limit.admit(start + Duration::from_secs(1)), "the next second has places of its own");
    }
}
