//! The work on one order, from its claim to its acknowledgement: a task with the journal of the work and a slot of its queue.
//! The queue actor owns the task, aborts it to stop the work, and then handles the order itself. It is a task and not an
//! actor, since each attempt has one, and nothing would use the mailboxes of an actor. It reads nothing at its start; the journal
//! contains the steps of earlier claims.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use millrace_protocol::result::{Build, ErrorKind, TaskError};
use millrace_protocol::secrets::redact_text;
use millrace_protocol::work::{Order, WorkOutcome};
use millrace_runtime::Fault;
use millrace_runtime::log::journal::{ClaimResult, Journal, JournalError};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::attempt_log::{AttemptLog, OutcomeSummary};
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
