//! Events about waits for models' providers.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::TaskId;
use crate::plan::JournalKey;
use crate::provider::ProviderWait;

/// An event about the wait of a piece of work for its model's provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ProviderEvent {
    /// A request failed; the work waits for the next try.
    #[serde(rename = "ProviderAwaited")]
    Awaited {
        /// The journal of the work.
        journal: JournalKey,
        wait: ProviderWait,
    },
    /// The provider answered.
    #[serde(rename = "ProviderRecovered")]
    Recovered {
        /// The journal of the work.
        journal: JournalKey,
    },
    /// The provider did not answer in time: the work is returned, without the loss of an attempt, and the run is paused.
    #[serde(rename = "ProviderGivenUp")]
    GivenUp {
        /// The journal of the work.
        journal: JournalKey,
        wait: ProviderWait,
    },
}

impl ProviderEvent {
    /// The journal of the work.
    #[must_use]
    pub fn journal(&self) -> &JournalKey {
        match self {
            Self::Awaited { journal, .. } | Self::Recovered { journal } | Self::GivenUp { journal, .. } => {
                journal
            }
        }
    }

    /// The task that this event concerns, if it concerns one.
    #[must_use]
    pub fn task(&self) -> Option<&TaskId> {
        self.journal().task()
    }

    pub(super) fn affects_all_tasks(&self) -> bool {
        match self {
            Self::GivenUp { .. } => true,
            Self::Awaited { .. } | Self::Recovered { .. } => false,
        }
    }
}

impl fmt::Display for ProviderEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Awaited { journal, wait } => write!(f, "{journal} waiting for {wait}"),
            Self::Recovered { journal } => write!(f, "{journal} continues: its provider answers again"),
            Self::GivenUp { journal, wait } => {
                write!(f, "paused: {journal} has waited too long for {}: {}", wait.model, wait.error)
            }
        }
    }
}
