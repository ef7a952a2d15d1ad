//! Reading the log: a run, a topic, one message, and what a lane holds. Also removing a run that is in the archive.
//!
//! The runs whose submissions are in the lanes.

use std::collections::BTreeSet;

use async_nats::jetstream;
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::Submission;
use millrace_protocol::subject::{self, Topic};

use crate::Fault;
use crate::fault::{ClientResult, fault_from_client_error};
use crate::nats::bus::Bus;
use crate::nats::direct_get::{self, StreamTail};
use crate::nats::record::StreamRecord;
use crate::nats::topology::lane_stream;

/// Returns all messages of a run in its lane, oldest first; none if the run is archived or does not exist.
pub fn read_run<'a>(
    bus: &'a Bus,
    lane: Lane,
    run: &'a RunId,
    from: u64,
) -> BoxFuture<'a, Result<Vec<StreamRecord>, Fault>> {
    async move {
        direct_get::read_matching(
            bus.client(),
            &lane_stream(lane),
            &subject::all_subjects_of_run(lane, run),
            from,
        )
        .await
    }
    .boxed()
}

/// Returns the submitted runs that are still in their lanes, live or ended, in the order of their ids. Invalid
/// submissions are ignored.
pub async fn list_submitted_runs(bus: &Bus) -> Result<BTreeSet<RunId>, Fault> {
    let (mut pages, mut runs) = (SubmittedRuns::default(), BTreeSet::new());
    while let Some(page) = pages.next_page(bus).await? {
        runs.extend(page.into_iter().map(|submitted| submitted.run));
    }
    Ok(runs)
}

/// Starts a paged read of all messages of a run in its lane, oldest first.
#[must_use]
pub fn read_run_pages(bus: &Bus, lane: Lane, run: &RunId) -> direct_get::PagedReader {
    direct_get::PagedReader::new(bus.client(), lane_stream(lane), subject::all_subjects_of_run(lane, run), 1)
}

/// Returns all messages of one topic of a run, oldest first.
pub fn read_topic<'a>(
    bus: &'a Bus,
    lane: Lane,
    run: &'a RunId,
    topic: &'a Topic,
) -> BoxFuture<'a, Result<Vec<StreamRecord>, Fault>> {
    async move {
        direct_get::read_matching(
            bus.client(),
            &lane_stream(lane),
            &subject::topic_subject(lane, run, topic),
            1,
        )
        .await
    }
    .boxed()
}

/// Returns the message of a lane with this sequence; `None` if it was removed.
pub fn read_message<'a>(
    bus: &'a Bus,
    lane: Lane,
    sequence: u64,
) -> BoxFuture<'a, Result<Option<StreamRecord>, Fault>> {
    async move {
        let name = lane_stream(lane);
        match direct_get::read_at_sequence(bus.client(), &name, sequence).await? {
            Some(record) => Ok(Some(record)),
            // The replica that responded may lag behind the leader of the stream.
            None => read_message_from_leader(bus, &name, sequence).await,
        }
    }
    .boxed()
}

/// Returns `true` if a lane contains the submission of a run, as its leader knows it.
pub fn has_submission<'a>(bus: &'a Bus, lane: Lane, run: &'a RunId) -> BoxFuture<'a, Result<bool, Fault>> {
    async move {
        let name = lane_stream(lane);
        let what = || format!("looking up run {run} in {name}");
        let stream = bus.request_context().get_stream_no_info(&name).await.or_fault_with(what)?;
        let subject = subject::topic_subject(lane, run, &Topic::Submitted);
        match stream.get_last_raw_message_by_subject(&subject).await {
            Ok(_) => Ok(true),
            Err(error) => match error.kind() {
                jetstream::stream::LastRawMessageErrorKind::NoMessageFound => Ok(false),
                jetstream::stream::LastRawMessageErrorKind::InvalidSubject
                | jetstream::stream::LastRawMessageErrorKind::JetStream(_)
                | jetstream::stream::LastRawMessageErrorKind::Other => {
                    Err(fault_from_client_error(&what(), error))
                }
            },
        }
    }
    .boxed()
}

async fn read_message_from_leader(
    bus: &Bus,
    name: &str,
    sequence: u64,
) -> Result<Option<StreamRecord>, Fault> {
    let what = || format!("reading message {sequence} of {name}");
    let stream = bus.request_context().get_stream_no_info(name).await.or_fault_with(what)?;
    match stream.get_raw_message(sequence).await {
        Ok(message) => Ok(Some(message.into())),
        Err(error) => match error.kind() {
            jetstream::stream::RawMessageErrorKind::NoMessageFound => Ok(None),
            jetstream::stream::RawMessageErrorKind::InvalidSubject
            | jetstream::stream::RawMessageErrorKind::JetStream(_)
            | jetstream::stream::RawMessageErrorKind::Other => Err(fault_from_client_error(&what(), error)),
        },
    }
}

/// Returns the number of messages of a lane after sequence `through`, as its leader knows it.
pub fn measure_lane_lag<'a>(bus: &'a Bus, lane: Lane, through: u64) -> BoxFuture<'a, Result<u64, Fault>> {
    async move {
        let name = lane_stream(lane);
        let stream = bus.request_context().get_stream_no_info(&name).await.or_fault(&name)?;
        let info = stream.get_info().await.or_fault_with(|| format!("reading the state of {name}"))?;
        Ok(info.state.last_sequence.saturating_sub(through).min(info.state.messages))
    }
    .boxed()
}

/// Returns the sequence of the last message of a lane, as its leader knows it; 0 if it has had none.
pub fn read_lane_end<'a>(bus: &'a Bus, lane: Lane) -> BoxFuture<'a, Result<u64, Fault>> {
    async move {
        let name = lane_stream(lane);
        let what = || format!("reading the state of {name}");
        let stream = bus.request_context().get_stream_no_info(&name).await.or_fault_with(what)?;
        let info = stream.get_info().await.or_fault_with(what)?;
        Ok(info.state.last_sequence)
    }
    .boxed()
}

/// Removes the messages of a run from its lane, up to and including sequence `through`. Returns how many were removed.
pub fn purge_run<'a>(
    bus: &'a Bus,
    lane: Lane,
    run: &'a RunId,
    through: u64,
) -> BoxFuture<'a, Result<u64, Fault>> {
    async move {
        let name = lane_stream(lane);
        let stream = bus.request_context().get_stream_no_info(&name).await.or_fault(&name)?;
        let response = stream
            .purge()
            .filter(subject::all_subjects_of_run(lane, run))
            .sequence(through + 1)
            .await
            .or_fault_with(|| format!("removing run {run} from {name}"))?;
        Ok(response.purged)
    }
    .boxed()
}

/// A run that was submitted.
#[derive(Debug, Clone)]
pub struct SubmittedRun {
    pub run: RunId,
    /// When the server stored the submission.
    pub at: Timestamp,
    pub submission: Submission,
}

/// The submissions of all lanes, read in passes: each pass returns those that were added since the one before.
#[derive(Default)]
pub struct SubmittedRuns {
    tails: Vec<StreamTail>,
    /// The lane that is being read.
    lane: usize,
}

impl SubmittedRuns {
    /// Returns the next submissions of runs that are still in their lanes, live or ended; `None` at the end of a pass. Invalid
    /// submissions are ignored.
    /// Errors: the server does not respond. The next call continues after the submissions that were returned.
    pub async fn next_page(&mut self, bus: &Bus) -> Result<Option<Vec<SubmittedRun>>, Fault> {
        loop {
            if self.lane >= usize::from(bus.settings().lanes) {
                self.lane = 0;
                return Ok(None);
            }
            if self.tails.len() <= self.lane {
                let lane = Lane(u16::try_from(self.lane).unwrap_or(u16::MAX));
                let filter = subject::submission_subjects_of_lane(lane);
                self.tails.push(StreamTail::new(lane_stream(lane), filter, 1));
            }
            let tail = &mut self.tails[self.lane];
            let before = tail.seen();
            let records = tail.next_page(bus.client()).await?;
            if records.is_empty() {
                self.lane += 1;
                continue;
            }
            let mut page = Vec::with_capacity(records.len());
            for record in records {
                let Some((_, run, _)) = subject::parse_lane_subject(&record.subject) else { continue };
                match bus.decode_record::<Submission>(&record).await {
                    Ok(submission) => page.push(SubmittedRun { run, at: record.time, submission }),
                    Err(fault) if fault.is_transient() => {
                        tail.continue_after(before);
                        return Err(fault);
                    }
                    Err(fault) => tracing::debug!(%run, %fault, "ignoring an invalid submission"),
                }
            }
            return Ok(Some(page));
        }
    }
}
