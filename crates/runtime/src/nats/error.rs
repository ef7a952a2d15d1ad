//! Errors of the NATS client library and of the JetStream API as faults.

use std::error::Error;

use async_nats::jetstream::context::{GetStreamError, GetStreamErrorKind};
use async_nats::jetstream::{self, ErrorCode};

use crate::Fault;

/// Converts an error of the client library, by the JetStream error code that it contains, if any.
pub(crate) fn fault_from_client_error(what: &str, error: impl Error + Send + Sync + 'static) -> Fault {
    match jetstream_error_code(&error) {
        Some(code) => fault_of_code(what, code, error),
        None => Fault::unavailable(what, error),
    }
}

/// Converts an error response of the JetStream API.
pub fn response_fault(what: &str, error: jetstream::Error) -> Fault {
    fault_of_code(what, error.error_code(), error)
}

/// Returns the JetStream error code that an error of the client library contains, if any.
pub(crate) fn jetstream_error_code(error: &(dyn Error + 'static)) -> Option<ErrorCode> {
    let mut errors = std::iter::successors(Some(error), |&error| error.source());
    errors.find_map(|error| {
        let response = error.downcast_ref::<jetstream::Error>().map(jetstream::Error::error_code);
        response.or_else(|| error_code_in_kind(error))
    })
}

/// Returns the error code of a failed stream lookup: there the client library keeps the response in the error's kind
/// and not in its source.
fn error_code_in_kind(error: &(dyn Error + 'static)) -> Option<ErrorCode> {
    match error.downcast_ref::<GetStreamError>()?.kind() {
        GetStreamErrorKind::JetStream(error) => Some(error.error_code()),
        GetStreamErrorKind::EmptyName
        | GetStreamErrorKind::Request
        | GetStreamErrorKind::InvalidStreamName => None,
    }
}

fn fault_of_code(what: &str, code: ErrorCode, error: impl Error + Send + Sync + 'static) -> Fault {
    match code {
        ErrorCode::STREAM_NAME_EXIST | ErrorCode::CONSUMER_ALREADY_EXISTS => Fault::Mismatch {
            what: what.into(),
            actual: "another configuration".into(),
            requested: "the one of this version".into(),
            hint: "use another cluster or account, or remove it if nothing needs it".into(),
        },
        ErrorCode::INSUFFICIENT_RESOURCES
        | ErrorCode::STORAGE_RESOURCES_EXCEEDED
        | ErrorCode::MEMORY_RESOURCES_EXCEEDED
        | ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
        | ErrorCode::STREAM_STORE_FAILED => Fault::storage_full(error),
        _ => Fault::unavailable(what, error),
    }
}
