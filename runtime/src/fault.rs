//! What can go wrong with the world. A fault is never a rule's "no": those are refusals of the protocol.

use std::time::Duration;

use millrace_protocol::wire::Garbage;

/// Why the world did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The server can't be reached or does not answer. Trying again later can help.
    #[error("{what}: no answer from the NATS server ({why})")]
    Unavailable {
        /// What was being done.
        what: String,
        /// What the client library says.
        why: String,
    },
    /// The server refuses this user.
    #[error(
        "the NATS server at {url} refuses these credentials; name others with MILLRACE_NATS_NKEY, MILLRACE_NATS_CREDS, or MILLRACE_NATS_USER and MILLRACE_NATS_PASSWORD"
    )]
    Unauthorized {
        /// Where.
        url: String,
    },
    /// The server knows this user, and does not let it do what is needed.
    #[error(
        "the NATS server at {url} does not let this identity do that: {what}; `millrace nats-config` writes what each role may"
    )]
    Forbidden {
        /// Where.
        url: String,
        /// What the server refuses.
        what: String,
    },
    /// The server can't do what is needed.
    #[error("the NATS server at {url} {why}")]
    Unsuitable {
        /// Where.
        url: String,
        /// What is missing, and what to do.
        why: String,
    },
    /// There is a server, but no cluster on it.
    #[error(
        "there is no Millrace cluster on the NATS server at {url}; start one with `millrace up`, or a supervisor there"
    )]
    NoCluster {
        /// Where.
        url: String,
    },
    /// Something of the cluster exists and differs from what is needed.
    #[error("{what} of this cluster has {found}, but {wanted} is asked for; {hint}")]
    Differs {
        /// What differs.
        what: String,
        /// What is there.
        found: String,
        /// What was asked for.
        wanted: String,
        /// What to do.
        hint: String,
    },
    /// A message is no message.
    #[error("message {sequence} on {subject}: {garbage}")]
    Garbage {
        /// Where it was.
        subject: String,
        /// Its sequence, or 0.
        sequence: u64,
        /// What is wrong.
        garbage: Garbage,
    },
    /// The content of a blob is not what its name says.
    #[error("blob {sha256} is damaged: its content has the SHA-256 {found}")]
    Damaged {
        /// Its name.
        sha256: String,
        /// What its content hashes to.
        found: String,
    },
    /// A blob is not there.
    #[error("blob {sha256} is not in the store")]
    Missing {
        /// Its name.
        sha256: String,
    },
    /// The server has no room left.
    #[error("the NATS server has no room left: {why}; free disk space, or raise the limits of its store")]
    Full {
        /// What the server says.
        why: String,
    },
}

impl Fault {
    /// A fault that may pass.
    pub fn unavailable(what: impl Into<String>, why: impl std::fmt::Display) -> Self {
        Self::Unavailable { what: what.into(), why: why.to_string() }
    }

    /// Whether trying again later can help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::Full { .. } => true,
            Self::Unauthorized { .. }
            | Self::Forbidden { .. }
            | Self::Unsuitable { .. }
            | Self::NoCluster { .. }
            | Self::Differs { .. }
            | Self::Garbage { .. }
            | Self::Damaged { .. }
            | Self::Missing { .. } => false,
        }
    }
}

/// How long what somebody was told of is looked for where there are so many copies: the one that answers may lag.
#[must_use]
pub(crate) fn lag(replicas: u8) -> Duration {
    if replicas > 1 { Duration::from_secs(5) } else { Duration::ZERO }
}

/// The wait before try `number` (from 1) of something that failed for a passing reason: 20 ms doubling to 1 s.
#[must_use]
pub fn pause(number: u32) -> Duration {
    Duration::from_millis(20 << number.saturating_sub(1).min(6)).min(Duration::from_secs(1))
}
