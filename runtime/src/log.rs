//! Appending to the log, fenced, and reading it from the start.
//!
//! Every append names the sequence of the message before it on its own literal subject, so that of two writers one is
//! refused by the server. An append whose acknowledgement did not come is *unclear*: the log is asked what the last
//! message of the subject is, and whether it is our own, before anything else is said or tried.

use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::jetstream::{self, message::PublishMessage};
use bytes::Bytes;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::Submission;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::{MAX_INLINE, Message, body, seal, seal_stored};

use crate::backlog::Backlog;
use crate::bus::Bus;
use crate::fault::pause;
use crate::metrics::count_append;
use crate::record::{ID_HEADER, Record};
use crate::topology::{fault, lane_stream};
use crate::{Fault, direct};

/// How long an append is tried before the server counts as gone.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the server may take nothing before that is told: longer than copies take to choose another leader.
const QUIET: Duration = Duration::from_secs(12);

/// Why an append did not happen.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// Somebody else has written to the subject: its last message has this sequence (0 if there is none).
    #[error("another writer was first: the last message has sequence {last}")]
    Fenced {
        /// The sequence of the last message of the subject.
        last: u64,
    },
    /// The server did not take it, for as long as it was tried.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Appends a message to a topic of a run, where `last` is the sequence of the topic's last message (0 if there must
/// be none). Bodies too large for a message go to the blob store first. Gives the new sequence.
///
/// # Errors
/// Somebody else has written, or the server does not take it for a minute.
pub async fn append<M: Message>(
    bus: &Bus,
    lane: Lane,
    run: &RunId,
    topic: &Topic,
    message: &M,
    last: u64,
) -> Result<u64, AppendError> {
    let payload = sealed(bus, message).await?;
    let subject = subject::topic(lane, run, topic);
    let id = uuid::Uuid::now_v7().simple().to_string();
    append_payload(bus, name_of(topic), lane_stream(lane), subject, payload, last, id).await
}

/// What a topic is called where appends are counted.
fn name_of(topic: &Topic) -> &'static str {
    match topic {
        Topic::Submitted => "submitted",
        Topic::Plan => "plan",
        Topic::Task(..) => "task",
        Topic::Review(..) => "review",
        Topic::Planning(..) => "planning",
        Topic::Control => "control",
    }
}

/// The envelope of a message, with its body in the blob store if it is large.
async fn sealed<M: Message>(bus: &Bus, message: &M) -> Result<Bytes, Fault> {
    let body = body(message);
    if body.len() <= MAX_INLINE {
        return Ok(seal::<M>(&body).into());
    }
    Ok(seal_stored::<M>(bus.blobs().put(&body).await?).into())
}

/// Appends to a subject of a stream where `last` is the sequence of its last message. Whatever has the same `id` is the
/// same message: if it stands there already, it is as good as written. It is counted under `topic`.
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
        let result = append_until(bus, &stream, &subject, payload, last, &id).await;
        count_append(topic, &result, started.elapsed());
        result
    }
    .boxed()
}

/// Tries an append until it is known what became of it, or the server counts as gone.
async fn append_until(
    bus: &Bus,
    stream: &str,
    subject: &str,
    payload: Bytes,
    last: u64,
    id: &str,
) -> Result<u64, AppendError> {
    let publish = || {
        PublishMessage::build()
            .payload(payload.clone())
            .header(ID_HEADER, id)
            .expected_last_subject_sequence(last)
    };
    let started = tokio::time::Instant::now();
    let mut trouble = Trouble::from(started);
    let mut tries = 0;
    loop {
        let error = match bus.publisher().send_publish(subject.to_owned(), publish()).await {
            Ok(acknowledgement) => match acknowledgement.await {
                Ok(acknowledgement) => return Ok(acknowledgement.sequence),
                Err(error) => error,
            },
            Err(error) => error,
        };
        let fault = fault(&format!("appending to {subject}"), &error);
        if !fault.is_transient() {
            return Err(fault.into());
        }
        tracing::debug!(%subject, last, tries, %error, "an append is unclear; asking the log");
        trouble.tell(subject, &fault);
        match what_became_of(bus, stream, subject, id, last).await {
            Became::Written(sequence) => return Ok(sequence),
            Became::Fenced(last) => return Err(AppendError::Fenced { last }),
            Became::Nothing if started.elapsed() > PATIENCE => return Err(fault.into()),
            Became::Nothing => {}
        }
        tries += 1;
        tokio::time::sleep(pause(tries)).await;
    }
}

/// A server that takes nothing for a while. It may be gone, or its disk may be full: then it answers nothing at all,
/// not even when there is room again, until it is started anew.
struct Trouble {
    since: tokio::time::Instant,
    is_told: bool,
}

impl From<tokio::time::Instant> for Trouble {
    fn from(since: tokio::time::Instant) -> Self {
        Self { since, is_told: false }
    }
}

impl Trouble {
    /// Says once that nothing was taken for too long.
    fn tell(&mut self, subject: &str, fault: &Fault) {
        if !self.is_told && self.since.elapsed() > QUIET {
            self.is_told = true;
            tracing::warn!(
                subject,
                %fault,
                "the NATS server takes no messages; still trying. Its log says why: where its disk was full, it must be \
                 started again"
            );
        }
    }
}

enum Became {
    Written(u64),
    Fenced(u64),
    Nothing,
}

/// Asks the leader for the last message of a subject: ours, another's, or still the one we followed. A subject that
/// was emptied meanwhile belongs to a run that is over, which is as good as another writer.
async fn what_became_of(bus: &Bus, stream: &str, subject: &str, id: &str, last: u64) -> Became {
    let Ok(stream) = bus.control().get_stream_no_info(stream).await else {
        return Became::Nothing;
    };
    match stream.get_last_raw_message_by_subject(subject).await {
        Ok(found) if found.headers.get(ID_HEADER).is_some_and(|value| value.as_str() == id) => {
            Became::Written(found.sequence)
        }
        Ok(found) if found.sequence != last => Became::Fenced(found.sequence),
        Ok(_) => Became::Nothing,
        Err(error) => match error.kind() {
            jetstream::stream::LastRawMessageErrorKind::NoMessageFound if last > 0 => Became::Fenced(0),
            jetstream::stream::LastRawMessageErrorKind::NoMessageFound
            | jetstream::stream::LastRawMessageErrorKind::InvalidSubject
            | jetstream::stream::LastRawMessageErrorKind::JetStream(_)
            | jetstream::stream::LastRawMessageErrorKind::Other => Became::Nothing,
        },
    }
}

/// Adds a message to a topic that anybody may write to, once: a second one with the same `id` within two minutes is
/// dropped by the server, and later ones by the rules.
///
/// # Errors
/// The server does not take it for a minute.
pub async fn tell<M: Message>(
    bus: &Bus,
    lane: Lane,
    run: &RunId,
    topic: &Topic,
    message: &M,
    id: &str,
) -> Result<u64, Fault> {
    let payload = sealed(bus, message).await?;
    let subject = subject::topic(lane, run, topic);
    let started = tokio::time::Instant::now();
    let mut trouble = Trouble::from(started);
    let mut tries = 0;
    loop {
        let publish = PublishMessage::build().payload(payload.clone()).message_id(id);
        let error = match bus.publisher().send_publish(subject.clone(), publish).await {
            Ok(acknowledgement) => match acknowledgement.await {
                Ok(acknowledgement) => return Ok(acknowledgement.sequence),
                Err(error) => error,
            },
            Err(error) => error,
        };
        let fault = fault(&format!("writing to {subject}"), &error);
        trouble.tell(&subject, &fault);
        if started.elapsed() > PATIENCE {
            return Err(fault);
        }
        tries += 1;
        tokio::time::sleep(pause(tries)).await;
    }
}

/// All messages of a run that are in its lane, oldest first; none if it was archived or never was.
///
/// # Errors
/// The server does not answer.
pub fn read_run<'a>(
    bus: &'a Bus,
    lane: Lane,
    run: &'a RunId,
    from: u64,
) -> BoxFuture<'a, Result<Vec<Record>, Fault>> {
    async move { direct::read(bus.client(), &lane_stream(lane), &subject::run(lane, run), from).await }
        .boxed()
}

/// The runs that were handed in and are still in their lanes, under way or over, in the order of their ids. A message
/// that is no submission hands nothing in.
///
/// # Errors
/// The server does not answer.
pub async fn handed_in(bus: &Bus) -> Result<BTreeSet<RunId>, Fault> {
    let mut runs = BTreeSet::new();
    for lane in (0..bus.settings().lanes).map(Lane) {
        for record in direct::read(bus.client(), &lane_stream(lane), &subject::submissions(lane), 1).await? {
            match bus.open::<Submission>(&record).await {
                Ok(_) => runs.extend(subject::parse(&record.subject).map(|(_, run, _)| run)),
                Err(fault) if fault.is_transient() => return Err(fault),
                Err(fault) => tracing::debug!(%fault, "a submission that can't be read is passed over"),
            }
        }
    }
    Ok(runs)
}

/// A read of all that a lane holds of a run, page by page, oldest first.
#[must_use]
pub fn pages_of_run(bus: &Bus, lane: Lane, run: &RunId) -> direct::Pages {
    direct::Pages::new(bus.client(), lane_stream(lane), subject::run(lane, run), 1)
}

/// A read of all that a lane holds, piece by piece, oldest first.
#[must_use]
pub fn read_lane(bus: &Bus, lane: Lane) -> Backlog {
    Backlog::new(bus, lane)
}

/// All messages of one topic of a run, oldest first.
///
/// # Errors
/// The server does not answer.
pub fn read_topic<'a>(
    bus: &'a Bus,
    lane: Lane,
    run: &'a RunId,
    topic: &'a Topic,
) -> BoxFuture<'a, Result<Vec<Record>, Fault>> {
    async move { direct::read(bus.client(), &lane_stream(lane), &subject::topic(lane, run, topic), 1).await }
        .boxed()
}

/// The message of a lane with this sequence; `None` if it is not there any more.
///
/// # Errors
/// The server does not answer.
pub fn read_one<'a>(bus: &'a Bus, lane: Lane, sequence: u64) -> BoxFuture<'a, Result<Option<Record>, Fault>> {
    async move {
        let name = lane_stream(lane);
        match direct::at(bus.client(), &name, sequence).await? {
            Some(record) => Ok(Some(record)),
            // The copy that answered may lag. The leader of the stream does not.
            None => by_the_leader(bus, &name, sequence).await,
        }
    }
    .boxed()
}

async fn by_the_leader(bus: &Bus, name: &str, sequence: u64) -> Result<Option<Record>, Fault> {
    let what = || format!("reading message {sequence} of {name}");
    let stream = bus.control().get_stream_no_info(name).await.map_err(|error| fault(&what(), &error))?;
    match stream.get_raw_message(sequence).await {
        Ok(found) => Ok(Some(found.into())),
        Err(error) => match error.kind() {
            jetstream::stream::RawMessageErrorKind::NoMessageFound => Ok(None),
            jetstream::stream::RawMessageErrorKind::InvalidSubject
            | jetstream::stream::RawMessageErrorKind::JetStream(_)
            | jetstream::stream::RawMessageErrorKind::Other => Err(fault(&what(), &error)),
        },
    }
}

/// How many messages of a lane stand behind sequence `through`, by the leader's word.
///
/// # Errors
/// The server does not answer.
pub fn behind<'a>(bus: &'a Bus, lane: Lane, through: u64) -> BoxFuture<'a, Result<u64, Fault>> {
    async move {
        let name = lane_stream(lane);
        let stream = bus.control().get_stream_no_info(&name).await.map_err(|error| fault(&name, &error))?;
        let info = stream.get_info().await.map_err(|error| fault(&format!("asking for {name}"), &error))?;
        Ok(info.state.last_sequence.saturating_sub(through).min(info.state.messages))
    }
    .boxed()
}

/// Removes the messages of a run from its lane up to and with sequence `through`.
///
/// # Errors
/// The server does not answer.
pub fn purge_run<'a>(
    bus: &'a Bus,
    lane: Lane,
    run: &'a RunId,
    through: u64,
) -> BoxFuture<'a, Result<u64, Fault>> {
    async move {
        let name = lane_stream(lane);
        let stream = bus.control().get_stream_no_info(&name).await.map_err(|error| fault(&name, &error))?;
        let answer = stream
            .purge()
            .filter(subject::run(lane, run))
            .sequence(through + 1)
            .await
            .map_err(|error| fault(&format!("removing run {run} from {name}"), &error))?;
        Ok(answer.purged)
    }
    .boxed()
}
