//! Events about the tasks of a plan and their dependencies.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::TaskId;
use crate::plan::spec::TaskSpec;

/// A change of the task graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum GraphEvent {
    /// The plan gets one more task.
    TaskAdded {
        spec: Arc<TaskSpec>,
        /// `true` if all dependencies are met, so that the task is ready at once.
        ready: bool,
    },
    /// A waiting task is changed. If it may start now, a separate event follows.
    TaskPatched {
        /// The task from now on.
        spec: Arc<TaskSpec>,
        /// The current attempt, if the attempt before was dispatched with the old specification; else 0.
        attempt: u32,
    },
    /// The task becomes the one final task: its result is the deliverable.
    FinalMarked { task: TaskId },
}

impl GraphEvent {
    /// The task that is added or changed.
    #[must_use]
    pub fn task(&self) -> &TaskId {
        match self {
            Self::TaskAdded { spec, .. } | Self::TaskPatched { spec, .. } => &spec.id,
            Self::FinalMarked { task } => task,
        }
    }

    /// The specification of the task from now on, if this event changes it.
    #[must_use]
    pub fn spec(&self) -> Option<&TaskSpec> {
        match self {
            Self::TaskAdded { spec, .. } | Self::TaskPatched { spec, .. } => Some(spec),
            Self::FinalMarked { .. } => None,
        }
    }

    pub(super) fn needs_capability_check(&self) -> bool {
        self.spec().is_some()
    }
}

impl fmt::Display for GraphEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TaskAdded { spec, .. } => {
                write!(f, "{} added ({}): {}", spec.id, spec.capability, spec.objective)
            }
            Self::TaskPatched { spec, .. } => write!(f, "{} changed: {}", spec.id, spec.objective),
            Self::FinalMarked { task } => write!(f, "{task} is the final task"),
        }
    }
}
