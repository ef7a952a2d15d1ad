//! Events about waits for models' providers.

use std::fmt;

use millrace_api_form::ApiForm;
use serde::{Deserialize, Serialize};

use crate::form::WorkJson;
use crate::ids::TaskId;
use crate::plan::JournalKey;
use crate::provider::{ProviderWait, ProviderWaitJson};

/// An event about the wait of a piece of work for its model's provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ApiForm)]
pub enum ProviderEvent {
    /// Work waits for the provider of its model.
    #[serde(rename = "ProviderAwaited")]
    Awaited {
        /// The work.
        #[api(name = "work", form(WorkJson<'a>))]
        journal: JournalKey,
        /// The wait.
        #[api(form(ProviderWaitJson<'a>))]
        wait: ProviderWait,
    },
    /// The provider answers again.
    #[serde(rename = "ProviderRecovered")]
    Recovered {
        /// The work.
        #[api(name = "work", form(WorkJson<'a>))]
        journal: JournalKey,
    },
    /// The provider did not answer in time; the run is paused.
    // The work is returned, without the loss of an attempt.
    #[serde(rename = "ProviderGivenUp")]
    GivenUp {
        /// The work.
        #[api(name = "work", form(WorkJson<'a>))]
        journal: JournalKey,
        /// The wait.
        #[api(form(ProviderWaitJson<'a>))]
        wait: ProviderWait,
    },
}

impl ProviderEvent {
    /// The journal of the work.
    pub fn journal(&self) -> &JournalKey {
        match self {
            Self::Awaited { journal, .. } | Self::Recovered { journal } | Self::GivenUp { journal, .. } => {
                journal
            }
        }
    }

    /// The task that this event concerns, if it concerns one.
    pub fn task(&self) -> Option<&TaskId> {
        self.journal().task()
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
