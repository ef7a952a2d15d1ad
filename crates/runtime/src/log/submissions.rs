//! The runs whose submissions are in the lanes.

use jiff::Timestamp;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::Submission;
use millrace_protocol::subject;

use crate::nats::stream_tail::StreamTail;
use crate::nats::topology::lane_stream;
use crate::{Bus, Fault};

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
    ///
    /// # Errors
    /// The server does not respond. The next call continues after the submissions that were returned.
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
