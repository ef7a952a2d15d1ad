//! Deletes stray messages: forged ones, and those of unsubmitted runs. Lane owners find those of their lanes;
//! the owner of lane 0 also scans the files and the object stores, which no supervisor reads.
//!
//! Also counts and logs the messages that this process ignores. Anybody with credentials can cause many of them, so
//! that each kind is logged once per minute, with a count and one example; at the level `debug` each message is logged.
//!
//! # Invariants
//!
//! - I80: A run begins with its submission. A message before it costs a supervisor no memory, one log line per kind and minute,
//!   and no lane its lease, and it is deleted.
//!   (`tests/tests/bad_input.rs::entries_of_unsubmitted_runs_cost_nothing_and_are_deleted`,
//!   `crates/runtime/src/ops/telemetry.rs::each_kind_is_logged_once_per_minute_with_its_count`,
//!   `crates/runtime/src/nats/strays.rs::number_of_ranges_is_bounded`)
//! - I81: Server replies that were redirected into lanes, files, blobs or the capability registry are deleted, and no queue is
//!   made for them. (`tests/tests/access.rs::redirected_replies_fill_no_store_and_make_no_capability`)
//! - I22: Messages that cannot be decoded are reported, counted and skipped; the lane and its runs continue.
//!   (`tests/tests/bad_input.rs::undecodable_messages_are_logged_and_skipped`)

use std::fmt::Display;
use std::sync::LazyLock;
use std::time::Duration;

use millrace_protocol::ids::{Lane, RunId};
use millrace_runtime::Bus;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::nats::strays::{SequenceRange, StrayMessages, StrayScan, delete_messages};
use millrace_runtime::nats::topology::{ARCHIVE, BLOBS};
use millrace_runtime::ops::metrics::Counter;
use millrace_runtime::ops::metrics::names::{MESSAGES_IGNORED, STRAYS_REMOVED};
use millrace_runtime::ops::telemetry::LogLimit;
use millrace_runtime::work::registry;
use tokio::time::Instant;
use tracing::{debug, info, warn};

/// The lines about strays and ignored messages of this process.
static LINES: LogLimit = LogLimit::new();

/// Returns the time for which a stray stays in its stream: ten lane leases, a minute by default. No reader needs it; an
/// operator who investigates it may.
pub(crate) fn stray_grace_period(bus: &Bus) -> Duration {
    Duration::from_millis(bus.settings().lane_lease_ms.saturating_mul(10))
}

/// Deletes strays of a stream. Returns those that may still exist because the server did not respond.
pub(crate) async fn delete_strays(bus: &Bus, stream: &str, strays: Vec<SequenceRange>) -> Vec<SequenceRange> {
    let count: u64 = strays.iter().map(|range| range.length()).sum();
    let rest = match delete_messages(bus, stream, strays).await {
        Ok(_) => Vec::new(),
        Err(unfinished) => {
            let fault = unfinished.fault;
            match LINES.count_event("failed") {
                Some(_) => warn!(stream, %fault, "failed to delete stray messages; retrying"),
                None => debug!(stream, %fault, "failed to delete stray messages; retrying"),
            }
            unfinished.rest
        }
    };
    let deleted = count - rest.iter().map(|range| range.length()).sum::<u64>();
    if deleted > 0 {
        STRAYS_REMOVED.with_labels(&[stream]).add(deleted as f64);
        if LINES.count_event("deleted").is_some() {
            info!(stream, messages = deleted, "deleted stray messages");
        }
    }
    rest
}

const SCAN_INTERVAL: Duration = Duration::from_secs(10);

/// Scans the files and the object stores for forged messages and deletes them, and removes invalid entries of the
/// capability registry. Forever.
pub(crate) async fn clean_shared_streams(bus: Bus) {
    let grace = stray_grace_period(&bus);
    let scans = [
        StrayScan::of_files(&bus),
        StrayScan::of_object_store(&bus, BLOBS),
        StrayScan::of_object_store(&bus, ARCHIVE),
    ];
    let mut streams = scans.map(|scan| (scan, StrayMessages::default()));
    let mut rounds = tokio::time::interval(SCAN_INTERVAL.min(grace));
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        for (scan, strays) in &mut streams {
            clean_stream(&bus, scan, strays).await;
        }
        match registry::remove_invalid_capabilities(&bus, grace).await {
            Ok(0) => {}
            Ok(entries) => info!(entries, "removed invalid entries of the capability registry"),
            Err(fault) => {
                debug!(%fault, "failed to remove invalid entries of the capability registry; retrying")
            }
        }
    }
}

/// Deletes the forged messages of a stream at once: one request of a client can double what the stream holds.
async fn clean_stream(bus: &Bus, scan: &mut StrayScan, strays: &mut StrayMessages) {
    let before = strays.count();
    if let Err(fault) = scan.scan_new_messages(strays).await {
        match LINES.count_event("scan") {
            Some(_) => {
                warn!(stream = scan.stream(), %fault, "failed to scan a stream for forged messages; retrying")
            }
            None => {
                debug!(stream = scan.stream(), %fault, "failed to scan a stream for forged messages; retrying")
            }
        }
    }
    let found = strays.count().saturating_sub(before);
    if found > 0 {
        count_forged(scan.stream(), found);
    }
    let due = strays.take_due(Instant::now(), Duration::ZERO);
    if due.is_empty() {
        return;
    }
    for range in delete_strays(bus, scan.stream(), due).await {
        strays.add_range(range, Instant::now());
    }
}

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
