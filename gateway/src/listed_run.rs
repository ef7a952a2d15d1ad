//! The runs of the list, and their positions in it. Pure.

use std::str::FromStr;
use std::sync::Arc;

use jiff::Timestamp;
use millrace_protocol::ids::{RunId, SessionId};
use millrace_protocol::labels::Labels;
use millrace_protocol::registry::RunSummary;
use millrace_runtime::log::SubmittedRun;
use millrace_runtime::work::queue_place::{PlacesInQueue, WaitingWork};
use millrace_views::{RunListLine, RunState, describe_wait_of_summary, waiting_work_of_summary};

use crate::run_filter::RunTraits;

/// The position of a run in the list: the time in its id, and the id. It stays the same while the run starts and ends, so that a client
/// that reads the list in parts gets each run once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunPosition {
    pub created: Timestamp,
    /// `None` is before all runs with this time.
    run: Option<RunId>,
}

#[derive(Debug, thiserror::Error)]
#[error("the cursor is not one that a list has returned")]
pub struct InvalidPosition;

impl RunPosition {
    /// Returns the position of a run. `known` is the time of a run whose id has none.
    pub fn new(run: &RunId, known: Timestamp) -> Self {
        Self { created: run.created().unwrap_or(known), run: Some(run.clone()) }
    }

    /// Returns the position before all runs of a time.
    pub fn at(created: Timestamp) -> Self {
        Self { created, run: None }
    }

    /// Returns the position as an opaque text.
    pub fn to_cursor(&self) -> String {
        let run = self.run.as_ref().map_or("", RunId::as_str);
        let text = format!("{} {run}", self.created.as_nanosecond());
        data_encoding::BASE64URL_NOPAD.encode(text.as_bytes())
    }
}

impl FromStr for RunPosition {
    type Err = InvalidPosition;

    fn from_str(text: &str) -> Result<Self, InvalidPosition> {
        let bytes = data_encoding::BASE64URL_NOPAD.decode(text.as_bytes()).map_err(|_| InvalidPosition)?;
        let text = String::from_utf8(bytes).map_err(|_| InvalidPosition)?;
        let (created, run) = text.split_once(' ').ok_or(InvalidPosition)?;
        let created = created.parse().map_err(|_| InvalidPosition)?;
        Ok(Self {
            created: Timestamp::from_nanosecond(created).map_err(|_| InvalidPosition)?,
            run: Some(RunId::new(run).map_err(|_| InvalidPosition)?),
        })
    }
}

/// Returns the text of a run in which searches look.
fn searched_text(run: &RunId, objective: &str) -> String {
    format!("{run}\n{objective}").to_lowercase()
}

#[derive(Debug)]
pub struct IndexedRun {
    pub summary: RunSummary,
    /// The sequence of its summary in the bucket; it grows with each change.
    pub revision: u64,
    pub position: RunPosition,
    /// Its id and its objective in lowercase, for searches.
    text: String,
}

impl IndexedRun {
    pub fn new(summary: RunSummary, revision: u64) -> Self {
        let text = searched_text(&summary.run, &summary.objective);
        let position = RunPosition::new(&summary.run, summary.started);
        Self { summary, revision, position, text }
    }

    pub fn traits(&self) -> RunTraits<'_> {
        let RunSummary { labels, session, started, .. } = &self.summary;
        let state = RunState::of_summary(Some(&self.summary));
        let wait = self.summary.wait.as_ref().map(|wait| wait.kind);
        RunTraits { state, wait, labels, session: session.as_ref(), started: *started, text: &self.text }
    }

    /// The key of a run with a part in the archive: one that is archived, or was reopened.
    pub fn archived_key(&self) -> Option<(u16, u64, u64)> {
        let (_, last) = self.summary.archived_span?;
        Some((self.summary.lane.0, last, self.revision))
    }

    pub fn state(&self) -> &'static str {
        RunState::of_summary(Some(&self.summary)).name()
    }
}

/// A run that no supervisor has summarized yet.
#[derive(Debug)]
pub struct UnstartedRun {
    pub run: RunId,
    objective: String,
    labels: Labels,
    session: Option<SessionId>,
    submitted: Timestamp,
    text: String,
}

impl UnstartedRun {
    pub fn new(SubmittedRun { run, at, submission }: SubmittedRun) -> Self {
        let objective: String = submission.objective.chars().take(200).collect();
        Self {
            text: searched_text(&run, &objective),
            run,
            objective,
            labels: submission.labels,
            session: submission.session,
            submitted: at,
        }
    }

    pub fn traits(&self) -> RunTraits<'_> {
        let Self { labels, session, submitted, text, .. } = self;
        let state = RunState::Submitted;
        RunTraits { state, wait: None, labels, session: session.as_ref(), started: *submitted, text }
    }
}

#[derive(Debug, Clone)]
pub enum ListedRun {
    Started(Arc<IndexedRun>),
    /// A run that was submitted, and has no summary yet.
    Submitted(Arc<UnstartedRun>),
}

impl ListedRun {
    pub fn position(&self) -> RunPosition {
        match self {
            Self::Started(run) => run.position.clone(),
            Self::Submitted(run) => RunPosition::new(&run.run, run.submitted),
        }
    }

    /// Returns the work for which it waits for a worker, if it does.
    pub fn waiting_work(&self) -> Option<WaitingWork> {
        match self {
            Self::Started(run) => waiting_work_of_summary(&run.summary),
            Self::Submitted(_) => None,
        }
    }

    pub fn line(&self, places: &PlacesInQueue) -> RunListLine<'_> {
        match self {
            Self::Started(run) => RunListLine::new(&run.summary.run, Some(&run.summary))
                .with_waiting_for(describe_wait_of_summary(&run.summary, places)),
            Self::Submitted(run) => {
                RunListLine::submitted(&run.run, &run.objective, &run.labels, run.session.as_ref())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_back_and_others_are_refused() {
        let position = RunPosition {
            created: "2026-11-24T01:02:03.5Z".parse().unwrap(),
            run: Some(RunId::new("r-1").unwrap()),
        };
        assert_eq!(position.to_cursor().parse::<RunPosition>().unwrap(), position);
        for text in ["", "x", "AAAA", "=", "\u{e9}"] {
            assert!(text.parse::<RunPosition>().is_err(), "{text}");
        }
    }
}
