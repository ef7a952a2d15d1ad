//! Holds: a run that was submitted and waits before its first task, for its turn in its session or for a place among the
//! running ones. No clock runs meanwhile, and nothing is reserved.

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::spec::{DocumentSet, EarlierRun};

/// The reason for which a run waits before its first task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunHold {
    /// The runs before it in its session have not ended.
    Session,
    /// As many runs as allowed are running.
    Place,
}

impl fmt::Display for RunHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Session => "the runs before it in its session",
            Self::Place => "a place among the running runs",
        })
    }
}

/// The holds of a run, and when they ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunHolds {
    pub(in crate::plan) current: BTreeSet<RunHold>,
    /// The time of the submission, by which places are given; `None` if the run never waited for one.
    pub submitted: Option<Timestamp>,
    /// When the last hold ended; `None` before, and if there was none.
    pub ended: Option<Timestamp>,
    /// The number of the run in its session, from 1; `None` before its turn.
    pub position: Option<u32>,
}

impl RunHolds {
    /// `true` if the run waits for this reason.
    pub fn has(&self, hold: RunHold) -> bool {
        self.current.contains(&hold)
    }

    /// Returns the reason for which the run waits, if it does. The session comes first: a run gets a place after its turn has come.
    pub fn first(&self) -> Option<RunHold> {
        self.current.first().copied()
    }
}

/// The turn of a run in its session: its number, and the results of the runs before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionTurn {
    /// The number of the run in its session, from 1.
    pub position: u32,
    /// The runs before it whose results it sees, in addition to those that its submission names.
    pub earlier: Vec<EarlierRun>,
    /// All of its documents, the results of these runs included.
    pub documents: Option<DocumentSet>,
}

/// A change of the holds of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldChange {
    /// The run, submitted at this time, waits for a place.
    WaitForPlace(Timestamp),
    /// Its turn in its session has come.
    SessionTurn(Box<SessionTurn>),
    PlaceGranted,
    /// It can't wait for a place: this number of runs wait already, as many as allowed.
    PlaceRefused {
        /// The number of waiting runs.
        waiting: u32,
    },
}
