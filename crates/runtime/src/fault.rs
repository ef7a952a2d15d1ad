//! Faults: failures of the world outside of the rules, such as an unreachable server. A fault is never a rule's
//! refusal; those are defined in `millrace-protocol`. Errors of the NATS client library and of the JetStream API become faults here.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use async_nats::jetstream::context::{GetStreamError, GetStreamErrorKind};
use async_nats::jetstream::{self, ErrorCode};
use millrace_protocol::wire::{DecodeError, OtherFormat};

/// A failure outside of the rules.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The server can't be reached or does not respond. A retry can help.
    #[error("{what}: no response from the NATS server ({cause})")]
    Unavailable {
        /// The operation that failed.
        what: String,
        /// The underlying error.
        cause: FaultCause,
    },
    /// The server rejects the credentials.
    #[error(
        "the NATS server at {url} refuses these credentials; set others with MILLRACE_NATS_NKEY, MILLRACE_NATS_CREDS, or MILLRACE_NATS_USER and MILLRACE_NATS_PASSWORD"
    )]
    Unauthorized {
        /// The address of the server.
        url: String,
    },
    /// The server accepts the credentials, but they lack a permission that is needed.
    #[error(
        "permission denied by the NATS server at {url}: {what}; use the identity of this role, or renew the permissions with `millrace nats-config --out DIR` and reload the server"
    )]
    Forbidden {
        /// The address of the server.
        url: String,
        /// The operation that the server denies.
        what: String,
    },
    /// The server can't be used by this program.
    #[error("the NATS server at {url} {why}")]
    Unsuitable {
        /// The address of the server.
        url: String,
        /// The rest of the sentence: the reason, and the action to take.
        why: String,
    },
    /// The server has no cluster.
    #[error(
        "there is no Millrace cluster on the NATS server at {url}; a supervisor creates it: `millrace supervisor --nats {url}`"
    )]
    NoCluster {
        /// The address of the server.
        url: String,
    },
    /// A setting, stream or consumer of the cluster differs from what is needed.
    #[error("cluster setting mismatch: {what} is {actual}, requested {requested}; {hint}")]
    Mismatch {
        /// The setting, stream or consumer.
        what: String,
        /// Its value in the cluster.
        actual: String,
        /// The requested value.
        requested: String,
        /// The action to take.
        hint: String,
    },
    /// A stored message can't be decoded.
    #[error("message {sequence} on {subject}: {error}")]
    InvalidMessage {
        /// The subject of the message.
        subject: String,
        /// Its sequence; 0 if it is unknown.
        sequence: u64,
        error: DecodeError,
    },
    /// The content of a blob does not match its name.
    #[error("blob {sha256} is damaged: its content has the SHA-256 {actual}")]
    Damaged {
        /// The name of the blob.
        sha256: String,
        /// The SHA-256 of its content.
        actual: String,
    },
    /// A blob is not in the store.
    #[error("blob {sha256} is not in the store")]
    Missing {
        /// The name of the blob.
        sha256: String,
    },
    /// The size of a blob, or the size in a reference to it, exceeds the maximum.
    #[error("blob {sha256} has {size} bytes; the maximum here is {max}")]
    TooLarge {
        /// The name of the blob.
        sha256: String,
        /// Its size in bytes.
        size: u64,
        /// The maximum: of values that are read as a whole, or of those that are streamed.
        max: u64,
    },
    /// The server has no storage left.
    #[error("the NATS server has no room left: {cause}; free disk space, or raise the limits of its store")]
    Full {
        /// The server's error.
        cause: FaultCause,
    },
}

impl Fault {
    /// Creates a fault that a retry can resolve. `cause` is an error, or a text where there is none.
    pub fn unavailable(what: impl Into<String>, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unavailable { what: what.into(), cause: FaultCause(cause.into()) }
    }

    /// Creates a fault for a server without storage left.
    pub(crate) fn storage_full(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Full { cause: FaultCause(cause.into()) }
    }

    /// `true` if a retry can help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::Full { .. } => true,
            Self::Unauthorized { .. }
            | Self::Forbidden { .. }
            | Self::Unsuitable { .. }
            | Self::NoCluster { .. }
            | Self::Mismatch { .. }
            | Self::InvalidMessage { .. }
            | Self::Damaged { .. }
            | Self::TooLarge { .. }
            | Self::Missing { .. } => false,
        }
    }

    /// `true` if it is a message of a newer release, which this program does not understand.
    pub fn is_of_newer_release(&self) -> bool {
        matches!(
            self,
            Self::InvalidMessage {
                error: DecodeError::OtherFormat { format: OtherFormat::Newer(_), .. },
                ..
            }
        )
    }

    /// Returns the underlying error, to downcast it or to walk its sources. The text of a fault contains the texts of
    /// that chain already, so `source()` returns `None`, and printing the chain of a fault repeats nothing.
    pub fn cause(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unavailable { cause, .. } | Self::Full { cause } => Some(&*cause.0),
            Self::InvalidMessage { error, .. } => Some(error),
            Self::Unauthorized { .. }
            | Self::Forbidden { .. }
            | Self::Unsuitable { .. }
            | Self::NoCluster { .. }
            | Self::Mismatch { .. }
            | Self::Damaged { .. }
            | Self::TooLarge { .. }
            | Self::Missing { .. } => None,
        }
    }
}

/// The underlying error of a fault. Its text is that of the error and its sources, each once: many errors contain the
/// text of their source, and many do not.
#[derive(Debug)]
pub struct FaultCause(Box<dyn Error + Send + Sync>);

impl fmt::Display for FaultCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        let sources = std::iter::successors(self.0.source(), |&error| error.source());
        for source in sources.map(ToString::to_string) {
            if !text.contains(&source) {
                text += ": ";
                text += &source;
            }
        }
        f.write_str(&text)
    }
}

/// Returns how long to wait for something that was just written to become readable, given the number of replicas: the
/// replica that answers a read may lag behind its leader.
#[must_use]
pub fn max_replica_lag(replicas: u8) -> Duration {
    if replicas > 1 { Duration::from_secs(5) } else { Duration::ZERO }
}

/// Returns the backoff before retry `number` (from 1): 20 ms, doubling up to 1 s.
#[must_use]
pub fn backoff(number: u32) -> Duration {
    Duration::from_millis(20 << number.saturating_sub(1).min(6)).min(Duration::from_secs(1))
}

/// The time for which reads are retried: as long as a restarting server may need.
const OUTAGE: Duration = Duration::from_secs(120);
const RETRY_DELAY: Duration = Duration::from_millis(250);

/// The retries of a read, for as long as a restarting server may need (120 s).
pub(crate) struct ReadRetries(tokio::time::Instant);

impl ReadRetries {
    pub fn start() -> Self {
        Self(tokio::time::Instant::now())
    }

    /// Waits before the next try. Returns the fault if a retry can't help, or the time is over.
    pub async fn wait_after(&self, fault: Fault) -> Result<(), Fault> {
        if !fault.is_transient() || self.0.elapsed() >= OUTAGE {
            return Err(fault);
        }
        tokio::time::sleep(RETRY_DELAY).await;
        Ok(())
    }
}

/// Retries a read while its fault is transient, for as long as a restarting server may need (120 s).
pub async fn retry_transient<T, F>(read: impl Fn() -> F) -> Result<T, Fault>
where
    F: Future<Output = Result<T, Fault>>,
{
    let retries = ReadRetries::start();
    loop {
        match read().await {
            Ok(value) => return Ok(value),
            Err(fault) => retries.wait_after(fault).await?,
        }
    }
}

/// Results of the client library.
pub(crate) trait ClientResult<T> {
    /// Converts the error; `what` was attempted.
    fn or_fault(self, what: &str) -> Result<T, Fault>;
    /// The same, for a text that is made if there is an error.
    fn or_fault_with(self, what: impl FnOnce() -> String) -> Result<T, Fault>;
}

impl<T, E: Error + Send + Sync + 'static> ClientResult<T> for Result<T, E> {
    fn or_fault(self, what: &str) -> Result<T, Fault> {
        self.map_err(|error| fault_from_client_error(what, error))
    }

    fn or_fault_with(self, what: impl FnOnce() -> String) -> Result<T, Fault> {
        self.map_err(|error| fault_from_client_error(&what(), error))
    }
}

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

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("request failed")]
    struct OuterError(#[source] io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("request failed: {0}")]
    struct VerboseError(#[source] io::Error);

    fn connection_reset_error() -> io::Error {
        io::Error::new(io::ErrorKind::ConnectionReset, "connection reset")
    }

    #[test]
    fn text_contains_each_cause_once() {
        for fault in [
            Fault::unavailable("reading", OuterError(connection_reset_error())),
            Fault::unavailable("reading", VerboseError(connection_reset_error())),
        ] {
            let text = "reading: no response from the NATS server (request failed: connection reset)";
            assert_eq!(fault.to_string(), text);
            assert!(fault.source().is_none(), "a printed chain would repeat the text");
        }
    }

    #[test]
    fn cause_keeps_its_type_and_sources() {
        let fault = Fault::unavailable("reading", OuterError(connection_reset_error()));
        let outer =
            fault.cause().and_then(|cause| cause.downcast_ref::<OuterError>()).expect("the type is kept");
        assert_eq!(outer.0.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(
            Fault::unavailable("reading", "it stopped").cause().map(ToString::to_string),
            Some("it stopped".into())
        );
    }
}
