//! Counts and logs the messages of a lane that this process ignores. Anybody with credentials can cause many of them, so
//! that each kind is logged once per minute, with a count and one example; at the level `debug` each message is logged.
//!
//! # Invariants
//!
//! - I22: Messages that cannot be decoded are reported, counted and skipped; the lane and its runs continue.
//!   (`tests/tests/bad_input.rs::undecodable_messages_are_logged_and_skipped`)

use std::fmt::Display;
use std::sync::LazyLock;

use millrace_protocol::ids::{Lane, RunId};
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::ops::log_limit::LogLimit;
use millrace_runtime::ops::metrics::Counter;
use millrace_runtime::ops::metrics::names::MESSAGES_IGNORED;
use tracing::{debug, warn};

/// The lines of all lanes of the process.
static LINES: LogLimit = LogLimit::new();
static FORGED: LazyLock<Counter> = LazyLock::new(|| MESSAGES_IGNORED.with_labels(&["forged"]));
static UNSUBMITTED: LazyLock<Counter> = LazyLock::new(|| MESSAGES_IGNORED.with_labels(&["unsubmitted"]));
static UNREADABLE: LazyLock<Counter> = LazyLock::new(|| MESSAGES_IGNORED.with_labels(&["unreadable"]));

/// The reason why a message is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IgnoredMessage {
    /// It is a server reply that somebody has redirected to its subject.
    Forged,
    /// Its run was never submitted.
    Unsubmitted,
    /// Its subject names no topic of a run.
    UnknownSubject,
    /// It is on the subject of decisions and is none.
    NoDecision,
    UnreadableSubmission,
    UnreadableCommand,
    /// It is an unreadable journal entry.
    UnreadableEntry,
    /// It was written by a newer release.
    NewerVersion,
}

impl IgnoredMessage {
    fn text(self) -> &'static str {
        match self {
            Self::Forged => "ignoring forged messages",
            Self::Unsubmitted => "ignoring messages of unsubmitted runs",
            Self::UnknownSubject => "ignoring messages on unknown subjects",
            Self::NoDecision => "ignoring messages that are no decisions",
            Self::UnreadableSubmission => "ignoring unreadable submissions",
            Self::UnreadableCommand => "ignoring unreadable commands",
            Self::UnreadableEntry => "ignoring unreadable journal entries",
            Self::NewerVersion => "ignoring messages of a newer release",
        }
    }

    fn counter(self) -> &'static Counter {
        match self {
            Self::Forged => &FORGED,
            Self::Unsubmitted => &UNSUBMITTED,
            Self::UnknownSubject
            | Self::NoDecision
            | Self::UnreadableSubmission
            | Self::UnreadableCommand
            | Self::UnreadableEntry
            | Self::NewerVersion => &UNREADABLE,
        }
    }
}

/// Counts an ignored message. Logs it as an example if no other one of this kind was logged within a minute.
pub(crate) fn count_ignored(kind: IgnoredMessage, record: &StreamRecord, why: &dyn Display) {
    kind.counter().increment();
    let (subject, sequence) = (&record.subject, record.sequence);
    match LINES.count_event(kind.text()) {
        Some(messages) => warn!(%subject, sequence, %why, messages, "{}", kind.text()),
        None => debug!(%subject, sequence, %why, "{}", kind.text()),
    }
}

/// Counts a message of an unsubmitted run.
pub(crate) fn count_unsubmitted(lane: Lane, run: &RunId, sequence: u64) {
    let kind = IgnoredMessage::Unsubmitted;
    kind.counter().increment();
    match LINES.count_event(kind.text()) {
        Some(messages) => warn!(%lane, %run, sequence, messages, "{}", kind.text()),
        None => debug!(%lane, %run, sequence, "{}", kind.text()),
    }
}

/// Counts forged messages that a scan of a stream has found.
pub(crate) fn count_forged(stream: &str, messages: u64) {
    FORGED.add(messages as f64);
    match LINES.count_event("forged messages in a shared stream") {
        Some(_) => warn!(stream, messages, "found forged messages; they will be deleted"),
        None => debug!(stream, messages, "found forged messages; they will be deleted"),
    }
}
