//! The environment of a session, from the attempt that it runs in.

use std::sync::Arc;

use millrace_agent::session::{SessionEnvironment, SessionError};
use millrace_agent::sources::OrderInputError;
use millrace_protocol::result::{ErrorKind, TaskError};
use millrace_runtime::Fault;
use millrace_runtime::work::host::AttemptContext;

use crate::{LiveOutputStream, NatsFiles, NatsJournal, NatsOrderInputs};

/// Creates the environment of an agent that works on this attempt.
pub fn build_agent_environment(attempt: &mut AttemptContext) -> SessionEnvironment<'_> {
    let (bus, order) = (attempt.bus().clone(), attempt.order().clone());
    let sources = Arc::new(NatsOrderInputs(attempt.cluster_reader()));
    SessionEnvironment {
        files: Some(Arc::new(NatsFiles::new(&bus, &order))),
        memories: Some(Arc::new(NatsFiles::of_memories(&bus, &order))),
        observer: Arc::new(LiveOutputStream::start_publisher(&bus, &order)),
        allowance: order.allowance.unwrap_or_default(),
        provider_timeout: order.provider_timeout(),
        ..SessionEnvironment::new(sources, NatsJournal(attempt))
    }
}

/// Converts the error of a session, or of its sources, into the error that the attempt must return. If a source is
/// unavailable, or a provider was away for too long, the attempt is released without an outcome and can be resumed; any other error is the task's.
pub fn convert_session_error(attempt: &mut AttemptContext, error: impl Into<SessionError>) -> TaskError {
    match error.into() {
        SessionError::Task(error) => error,
        SessionError::ReservationTooSmall(needs) => attempt.give_up_reservation(needs),
        SessionError::ProviderAway(wait) => attempt.give_up_provider(wait),
        SessionError::Parked(waits, children) => attempt.park(waits, children),
        SessionError::Source(OrderInputError::Unavailable(why)) => {
            attempt.end_with_fault(Fault::unavailable("reading the inputs of the work", why))
        }
        SessionError::Source(OrderInputError::Broken(why)) => TaskError::new(ErrorKind::Other, why),
    }
}
