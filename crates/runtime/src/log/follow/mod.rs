//! Following the log from a sequence on, in its order and each message once, wherever the messages are: in the lane, or in the archive
//! since their run has ended. Callers fold what they get, and do not have to know where it was.
//!
//! | module | contents |
//! |---|---|
//! | `run` | the log of one run |
//! | `lane` | the log of all runs of a lane |

mod lane;
mod run;

pub use lane::{ArchivedRun, FindArchived, LaneLog, LanePart};
pub use run::{LogStep, RunFollower, RunLog, RunPosition, find_message};

use crate::nats::record::StreamRecord;

/// The messages that a reader of the log gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogTopics {
    All,
    Decisions,
}

impl LogTopics {
    fn select(self, record: &StreamRecord) -> bool {
        match self {
            Self::All => !record.is_forged(),
            Self::Decisions => record.is_decision(),
        }
    }
}
