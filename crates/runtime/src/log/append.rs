//! Fenced appends to the log.
//!
//! Every append names the sequence of the last message of its subject, so that the server rejects one of two concurrent
//! writers. If the acknowledgement of an append is lost, its outcome is unknown: the writer reads the last message of
//! the subject to find out whether it is its own, before it retries or returns.
//!
//! Metrics of appends to the log. The handles of a topic are created at its first append.
//!
//! # Invariants
//!
//! - I7: Of two writers that follow the same message the server refuses one; an append whose acknowledgement was lost is there
//!   exactly once. (`crates/runtime/tests/runtime.rs::of_two_concurrent_writers_one_is_rejected`,
//!   `crates/runtime/tests/runtime.rs::appends_survive_server_crashes_exactly_once_and_in_order`)
//! - I8: With three replicas any one server may die without losing an acknowledged append.
//!   (`crates/runtime/tests/runtime.rs::three_replicas_lose_no_append_when_any_server_dies`)

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::header::{NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, NATS_MESSAGE_ID};
use async_nats::{HeaderMap, HeaderValue, jetstream};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::JournalKey;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::{
    MAX_INLINE, WireMessage, encode_body, encode_with_inline_body, encode_with_stored_body,
};

use crate::Fault;
use crate::fault::{backoff, fault_from_client_error};
use crate::nats::bus::Bus;
use crate::nats::publish::publish_to_stream;
use crate::nats::record::ID_HEADER;
use crate::nats::topology::lane_stream;
use crate::ops::metrics::names::{APPEND_SECONDS, APPENDS};
use crate::ops::metrics::{Counter, Histogram};

/// The period in which an append is retried before it fails.
const RETRY_PERIOD: Duration = Duration::from_secs(60);
/// The delay before a log line reports retries: longer than replicas take to elect a leader.
const LOG_AFTER: Duration = Duration::from_secs(12);

/// The error of a failed append.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// Another writer has appended to the subject: its last message has this sequence (0 if there is none).
    #[error("another writer was first: the last message has sequence {last}")]
    Fenced {
        /// The sequence of the last message of the subject.
        last: u64,
    },
    /// The server did not accept the message within the retry period.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Appends a message to a topic of a run and returns its sequence. `last` is the expected sequence of the topic's last
/// message, 0 if the topic must be empty. A body that is too large for a message goes to the blob store first.
/// Errors: another writer has appended, or the server does not accept the message for a minute.
pub async fn append_message<M: WireMessage>(
    bus: &Bus,
    lane: Lane,
    run: &RunId,
    topic: &Topic,
    message: &M,
    last: u64,
) -> Result<u64, AppendError> {
    let payload = encode_envelope(bus, message).await?;
    let subject = subject::topic_subject(lane, run, topic);
    let id = uuid::Uuid::now_v7().simple().to_string();
    append_payload(bus, topic_metric_label(topic), lane_stream(lane), subject, payload, last, id).await
}

/// Returns the label of a topic in metrics.
fn topic_metric_label(topic: &Topic) -> &'static str {
    match topic {
        Topic::Submitted => "submitted",
        Topic::Plan => "plan",
        Topic::Journal(JournalKey::Task(..)) => "task",
        Topic::Journal(JournalKey::Review(..)) => "review",
        Topic::Journal(JournalKey::Planning(..)) => "planning",
        Topic::Control => "control",
        Topic::Answer => "answer",
    }
}

/// Encodes the envelope of a message. A large body goes to the blob store.
async fn encode_envelope<M: WireMessage>(bus: &Bus, message: &M) -> Result<Bytes, Fault> {
    let body = encode_body(message);
    if body.len() <= MAX_INLINE {
        return Ok(encode_with_inline_body::<M>(&body).into());
    }
    Ok(encode_with_stored_body::<M>(bus.blobs().put_blob(&body).await?).into())
}

/// Appends a payload to a subject of a stream. `last` is the expected sequence of the subject's last message. If that
/// message has the same `id`, it is this one, and the append has succeeded before. `topic` is the label in metrics.
pub(crate) fn append_payload<'a>(
    bus: &'a Bus,
    topic: &'static str,
    stream: String,
    subject: String,
    payload: Bytes,
    last: u64,
    id: String,
) -> BoxFuture<'a, Result<u64, AppendError>> {
    async move {
        let started = tokio::time::Instant::now();
        let result = append_with_retries(bus, &stream, &subject, payload, last, &id).await;
        count_append(topic, &result, started.elapsed());
        result
    }
    .boxed()
}

/// Retries an append until its outcome is known, or the retry period is over.
async fn append_with_retries(
    bus: &Bus,
    stream: &str,
    subject: &str,
    payload: Bytes,
    last: u64,
    id: &str,
) -> Result<u64, AppendError> {
    let headers = || {
        let mut headers = HeaderMap::new();
        headers.insert(ID_HEADER, id);
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(last));
        headers
    };
    let started = tokio::time::Instant::now();
    let mut warning = RetryWarning::new(started);
    let mut tries = 0;
    loop {
        let published = publish_to_stream(bus, subject.to_owned(), headers(), payload.clone());
        let error = match published.await {
            Ok(sequence) => return Ok(sequence),
            Err(error) => error,
        };
        let fault = fault_from_client_error(&format!("appending to {subject}"), error);
        if !fault.is_transient() {
            return Err(fault.into());
        }
        tracing::debug!(%subject, last, tries, %fault, "append outcome unknown; reading the log");
        warning.log_retry(subject, &fault);
        match read_append_outcome(bus, stream, subject, id, last).await {
            AppendStatus::Written(sequence) => return Ok(sequence),
            AppendStatus::Fenced(last) => return Err(AppendError::Fenced { last }),
            AppendStatus::NotWritten if started.elapsed() > RETRY_PERIOD => return Err(fault.into()),
            AppendStatus::NotWritten => {}
        }
        tries += 1;
        tokio::time::sleep(backoff(tries)).await;
    }
}

/// Logs once that the server accepts no messages. It may be unreachable, or its disk may be full: then it does not
/// respond at all until it is restarted, even when there is room again.
struct RetryWarning {
    started: tokio::time::Instant,
    is_logged: bool,
}

impl RetryWarning {
    fn new(started: tokio::time::Instant) -> Self {
        Self { started, is_logged: false }
    }

    /// Logs the fault, once, if retries have taken too long.
    fn log_retry(&mut self, subject: &str, fault: &Fault) {
        if !self.is_logged && self.started.elapsed() > LOG_AFTER {
            self.is_logged = true;
            tracing::warn!(
                subject,
                %fault,
                "the NATS server accepts no messages; retrying. See its log for the reason; if its disk was full, it must be \
                 restarted"
            );
        }
    }
}

/// The outcome of an append without an acknowledgement, as read from the log.
enum AppendStatus {
    Written(u64),
    Fenced(u64),
    NotWritten,
}

/// Reads the last message of a subject from the leader: it is ours, another writer's, or still the expected one. A
/// subject that was purged meanwhile belongs to a run that has ended, which counts as another writer.
async fn read_append_outcome(bus: &Bus, stream: &str, subject: &str, id: &str, last: u64) -> AppendStatus {
    let Ok(stream) = bus.request_context().get_stream_no_info(stream).await else {
        return AppendStatus::NotWritten;
    };
    match stream.get_last_raw_message_by_subject(subject).await {
        Ok(message) if message.headers.get(ID_HEADER).is_some_and(|value| value.as_str() == id) => {
            AppendStatus::Written(message.sequence)
        }
        Ok(message) if message.sequence != last => AppendStatus::Fenced(message.sequence),
        Ok(_) => AppendStatus::NotWritten,
        Err(error) => match error.kind() {
            jetstream::stream::LastRawMessageErrorKind::NoMessageFound if last > 0 => AppendStatus::Fenced(0),
            jetstream::stream::LastRawMessageErrorKind::NoMessageFound
            | jetstream::stream::LastRawMessageErrorKind::InvalidSubject
            | jetstream::stream::LastRawMessageErrorKind::JetStream(_)
            | jetstream::stream::LastRawMessageErrorKind::Other => AppendStatus::NotWritten,
        },
    }
}

/// Publishes a message to a topic with many writers, without fencing, and returns its sequence. Idempotent: the server
/// drops another message with the same `id` within two minutes, and the rules ignore later ones.
pub async fn publish_message<M: WireMessage>(
    bus: &Bus,
    lane: Lane,
    run: &RunId,
    topic: &Topic,
    message: &M,
    id: &str,
) -> Result<u64, Fault> {
    let payload = encode_envelope(bus, message).await?;
    let subject = subject::topic_subject(lane, run, topic);
    let started = tokio::time::Instant::now();
    let mut warning = RetryWarning::new(started);
    let mut tries = 0;
    loop {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, id);
        let error = match publish_to_stream(bus, subject.clone(), headers, payload.clone()).await {
            Ok(sequence) => return Ok(sequence),
            Err(error) => error,
        };
        let fault = fault_from_client_error(&format!("publishing to {subject}"), error);
        warning.log_retry(&subject, &fault);
        if started.elapsed() > RETRY_PERIOD {
            return Err(fault);
        }
        tries += 1;
        tokio::time::sleep(backoff(tries)).await;
    }
}

static TOPICS: Mutex<BTreeMap<&'static str, Arc<TopicMetrics>>> = Mutex::new(BTreeMap::new());

struct TopicMetrics {
    written: Counter,
    fenced: Counter,
    failed: Counter,
    seconds: Histogram,
}

impl TopicMetrics {
    fn new(name: &str) -> Self {
        let counter = |outcome| APPENDS.with_labels(&[name, outcome]);
        Self {
            written: counter("written"),
            fenced: counter("fenced"),
            failed: counter("failed"),
            seconds: APPEND_SECONDS.with_labels(&[name]),
        }
    }
}

/// Counts an append to a topic and records its duration.
pub(crate) fn count_append(topic: &'static str, result: &Result<u64, AppendError>, duration: Duration) {
    let topic = {
        let mut topics = TOPICS.lock().unwrap_or_else(PoisonError::into_inner);
        topics.entry(topic).or_insert_with(|| Arc::new(TopicMetrics::new(topic))).clone()
    };
    topic.seconds.record(duration);
    match result {
        Ok(_) => topic.written.increment(),
        Err(AppendError::Fenced { .. }) => topic.fenced.increment(),
        Err(AppendError::Fault(_)) => topic.failed.increment(),
    }
}
