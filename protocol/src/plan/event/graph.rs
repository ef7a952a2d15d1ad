//! Events about the tasks of a plan and their dependencies.

use std::fmt;
use std::sync::Arc;

use millrace_api_form::ApiForm;
use serde::{Deserialize, Serialize};

use crate::ids::TaskId;
use crate::plan::spec::TaskSpec;

/// A change of the task graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ApiForm)]
pub enum GraphEvent {
    /// The plan has one more task.
    TaskAdded {
        /// The specification, as in a plan file.
        #[api(before(task: &'a TaskId = &spec.id))]
        spec: Arc<TaskSpec>,
        /// `true` if it does not wait for dependencies.
        ready: bool,
    },
    /// A task was changed.
    // It was waiting. If it may start now, a separate event follows.
    #[api(name = "task_changed")]
    TaskPatched {
        /// The specification from now on.
        #[api(before(task: &'a TaskId = &spec.id))]
        spec: Arc<TaskSpec>,
        /// The current attempt, if the attempt before was dispatched with the old specification; else 0.
        #[api(skip)]
        attempt: u32,
    },
    /// The result of this task is the deliverable.
    #[api(name = "task_marked_final")]
    FinalMarked { task: TaskId },
}

impl GraphEvent {
    /// The task that is added or changed.
    pub fn task(&self) -> &TaskId {
        match self {
            Self::TaskAdded { spec, .. } | Self::TaskPatched { spec, .. } => &spec.id,
            Self::FinalMarked { task } => task,
        }
    }

    /// The specification of the task from now on, if this event changes it.
    pub fn spec(&self) -> Option<&TaskSpec> {
        match self {
            Self::TaskAdded { spec, .. } | Self::TaskPatched { spec, .. } => Some(spec),
            Self::FinalMarked { .. } => None,
        }
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
