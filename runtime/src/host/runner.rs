//! One order from its claim to its acknowledgement, an actor of its own. It owns the journal of the work and a slot of
//! its queue while it lives; the queue that supervises it kills it to stop the work, and then sees to the order itself.
//!
//! It reads nothing at its start: what earlier claims did, it learns from the journal.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use millrace_protocol::result::{ErrorKind, TaskError};
use millrace_protocol::work::{Order, Outcome};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::pull::Lease;
use super::standing::{Busy, Standing, is_finished};
use super::{Attempt, Handler, Shared};
use crate::Fault;
use crate::journal::{Claim, Journal, JournalError};

/// How long an order rests that we could not go on with, or that is not for us.
const REST: Duration = Duration::from_secs(1);

pub(super) struct Arguments {
    pub shared: Arc<Shared>,
    pub standing: Arc<Standing>,
    pub handler: Arc<dyn Handler>,
    pub lease: Arc<Lease>,
    pub cancelled: CancellationToken,
    /// Never read: the slot gets free when this is dropped with the actor.
    pub _slot: OwnedSemaphorePermit,
}

pub(super) struct Runner;

/// The one message: begin.
pub(super) struct Begin;

impl Actor for Runner {
    type Msg = Begin;
    type State = Arguments;
    type Arguments = Arguments;

    async fn pre_start(
        &self,
        _: ActorRef<Begin>,
        arguments: Arguments,
    ) -> Result<Arguments, ActorProcessingErr> {
        Ok(arguments)
    }

    async fn handle(
        &self,
        myself: ActorRef<Begin>,
        _: Begin,
        state: &mut Arguments,
    ) -> Result<(), ActorProcessingErr> {
        let _busy = Busy::with(&state.standing);
        let Arguments { standing, lease, .. } = &*state;
        match carry_out(state).await {
            End::Done => {
                standing.done.one();
                lease.done().await;
            }
            End::Garbage => {
                standing.garbage.one();
                lease.done().await;
            }
            End::Lost => standing.lost.one(),
            End::Back(after) => {
                standing.returned.one();
                lease.give_back(after).await;
            }
        }
        myself.stop(None);
        Ok(())
    }
}

/// What becomes of the order.
enum End {
    /// Nobody needs it any more.
    Done,
    /// It is no order.
    Garbage,
    /// Somebody else has it.
    Lost,
    /// Somebody else may have it.
    Back(Duration),
}

async fn carry_out(state: &Arguments) -> End {
    let Arguments { shared, standing, handler, lease, .. } = state;
    let subject = lease.subject();
    let order = match lease.order().await {
        Ok(order) => Arc::new(order),
        Err(fault) if fault.is_transient() => return rest(subject, &fault),
        Err(fault) => {
            let so_far = shared.count_garbage();
            warn!(subject, %fault, so_far, "an order that can't be read is taken out of its queue");
            return End::Garbage;
        }
    };
    if !handler.takes(&order, &shared.id) {
        debug!(subject, "an order for somebody else goes back");
        return End::Back(REST);
    }
    let journal = match Journal::claim(&shared.bus, &order, &shared.id).await {
        Ok(Claim::Ours(journal)) => journal,
        Ok(Claim::Done | Claim::Lost) => return End::Done,
        Err(fault) => return rest(subject, &fault),
    };
    let mut attempt =
        Attempt::new(shared.bus.clone(), order.clone(), shared.id.clone(), journal, state.cancelled.clone());
    let began = Instant::now();
    let outcome = handle(handler.as_ref(), &mut attempt, &order).await;
    standing.took(began.elapsed());
    let is_finished = is_finished(&outcome);
    match attempt.finish(outcome).await {
        Ok(()) => {
            standing.ended(is_finished);
            End::Done
        }
        Err(JournalError::Fenced { .. }) => {
            info!(run = %order.run, subject, "somebody else has this work now; dropping it");
            End::Lost
        }
        Err(JournalError::Fault(fault)) => {
            warn!(subject, %fault, "giving an order back");
            End::Back(attempt.release(&fault).await)
        }
    }
}

/// Runs the handler; its errors and panics are outcomes too.
async fn handle(handler: &dyn Handler, attempt: &mut Attempt, order: &Order) -> Outcome {
    match AssertUnwindSafe(handler.run(attempt)).catch_unwind().await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => Outcome::Errored(error),
        Err(panic) => {
            let message = format!("the capability panicked: {}", panic_text(panic.as_ref()));
            warn!(run = %order.run, work = ?order.work, message, "a handler panicked");
            Outcome::Errored(TaskError::new(ErrorKind::Panic, message))
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("it did not say why")
}

fn rest(subject: &str, fault: &Fault) -> End {
    warn!(subject, %fault, "giving an order back");
    End::Back(REST)
}
