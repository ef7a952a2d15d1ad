//! Edits of a plan and commands of users. A planner's turn and a user who steers a run make the same edits; the rules
//! validate them one after the other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::budget::Budget;
use super::spec::{OnFailedDependency, ReviewPolicy, TaskLimits, TaskSpec};
use super::start::{PlanTime, StartEvent};
use crate::ids::{Capability, TaskId};
use crate::parameters::TaskParameters;

/// A change of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "an edit is made, tried and dropped; lists of them are short")]
pub enum Edit {
    /// Adds tasks, all or none; they may depend on each other and on tasks of the plan.
    Add(Vec<TaskSpec>),
    /// Changes a waiting task: its objective, parameters, dependencies or limits.
    Patch(TaskPatch),
    /// Cancels a task. The `on_failed_dependency` policy of each dependent decides what happens to it.
    Cancel {
        /// The task.
        task: TaskId,
        /// The reason.
        reason: String,
    },
    /// Runs a task again that has failed, was cancelled, waits for a retry, or is completed. Its dependents run
    /// again too, unless they miss another dependency.
    Retry {
        /// The task.
        task: TaskId,
        /// Feedback for the next attempt, in addition to the objective.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        feedback: Option<String>,
        /// Changes of the task for its next attempt, as [`Self::Patch`] makes them of a waiting one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        changes: Option<Box<TaskPatch>>,
    },
    /// Marks the task whose result is the deliverable; no other task is marked then.
    MarkFinal {
        /// The task.
        task: TaskId,
    },
    /// Ends the run as achieved: the deliverable exists, and open tasks are not needed.
    Finish {
        /// The reason why the objective is achieved.
        reason: String,
    },
    /// Gives up: the run ends with the results that it has. Valid only if no work is in flight.
    GiveUp {
        /// The lost results, and the reason why they can't be replaced.
        reason: String,
    },
}

impl Edit {
    /// Returns its name, as models and users write it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Add(_) => "add_tasks",
            Self::Patch(_) => "patch_task",
            Self::Cancel { .. } => "cancel_task",
            Self::Retry { .. } => "retry_task",
            Self::MarkFinal { .. } => "mark_final",
            Self::Finish { .. } => "finish",
            Self::GiveUp { .. } => "give_up",
        }
    }

    /// `true` if it changes the tasks of the plan; running, cancelling and judging them does not.
    pub fn changes_task_graph(&self) -> bool {
        match self {
            Self::Add(_) | Self::Patch(_) | Self::MarkFinal { .. } => true,
            Self::Retry { changes, .. } => changes.is_some(),
            Self::Cancel { .. } | Self::Finish { .. } | Self::GiveUp { .. } => false,
        }
    }
}

/// A change of a task; `None` fields stay as they are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Patch", deny_unknown_fields)]
pub struct TaskPatch {
    /// The task.
    pub task: TaskId,
    /// The objective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<String>,
    /// The capability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability: Option<Capability>,
    /// The complete list of its dependencies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<Vec<TaskId>>,
    /// Parameters to set; null removes one. The others stay.
    #[serde(default, skip_serializing_if = "TaskParameters::is_empty")]
    pub parameters: TaskParameters,
    /// The review of its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review: Option<ReviewPolicy>,
    /// Its time limits and attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<TaskLimits>,
    /// The policy for a dependency that fails or is cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failed_dependency: Option<OnFailedDependency>,
    /// The time before which it does not start; 0, the start of the run, removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<PlanTime>,
    /// The event without which it does not start; an empty name removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_event: Option<Box<StartEvent>>,
}

impl TaskPatch {
    /// Returns the names of the fields that it changes.
    pub fn changed_fields(&self) -> Vec<&'static str> {
        let Self {
            task: _,
            objective,
            capability,
            depends_on,
            parameters,
            review,
            limits,
            on_failed_dependency,
            not_before,
            wait_for_event,
        } = self;
        let fields = [
            ("objective", objective.is_some()),
            ("capability", capability.is_some()),
            ("depends_on", depends_on.is_some()),
            ("parameters", !parameters.is_empty()),
            ("review", review.is_some()),
            ("limits", limits.is_some()),
            ("on_failed_dependency", on_failed_dependency.is_some()),
            ("not_before", not_before.is_some()),
            ("wait_for_event", wait_for_event.is_some()),
        ];
        fields.into_iter().filter_map(|(name, is_changed)| is_changed.then_some(name)).collect()
    }

    /// Creates a patch without changes.
    #[must_use]
    pub fn without_changes(task: TaskId) -> Self {
        Self {
            task,
            objective: None,
            capability: None,
            depends_on: None,
            parameters: TaskParameters::new(),
            review: None,
            limits: None,
            on_failed_dependency: None,
            not_before: None,
            wait_for_event: None,
        }
    }
}

/// A command to a live run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CommandAction {
    /// Cancels the whole run.
    CancelRun {
        /// The reason, with its author.
        reason: String,
    },
    /// Cancels one task and its dependents.
    CancelTask {
        task: TaskId,
        /// The reason, with its author.
        reason: String,
    },
    /// Changes the plan.
    Edit(Edit),
    /// Pauses the run: running tasks finish, no new ones start.
    Pause,
    /// Interrupts the run: no tasks start, and work in flight is returned, to continue in the same attempts when the run is
    /// resumed. For a cluster that stops with its user, so that its next one does not continue the run by itself.
    Interrupt,
    /// Resumes the run after a pause, or with a larger budget after the budget was exhausted.
    Resume {
        /// Budget fields to replace.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        budget: Option<Budget>,
    },
    /// Sends the planner a message.
    Message { text: String },
    /// Signals an event to the run, which ends the waits for it.
    Signal {
        /// The name of the event.
        name: String,
        /// The data of the event, as JSON text; empty if it has none.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        data: String,
    },
    /// Gives up resuming a run that has ended, so that it can be archived and deleted now.
    Retire,
}

impl CommandAction {
    /// `true` if the command may reopen a run that has ended.
    pub fn can_reopen_run(&self) -> bool {
        match self {
            Self::Edit(edit) => matches!(edit, Edit::Retry { .. } | Edit::Add(_)),
            Self::CancelRun { .. }
            | Self::CancelTask { .. }
            | Self::Pause
            | Self::Interrupt
            | Self::Resume { .. }
            | Self::Message { .. }
            | Self::Signal { .. }
            | Self::Retire => false,
        }
    }
}

/// The maximum length of a message to the planner, in characters.
pub const MAX_TEXT: usize = 16_000;

/// A command with its idempotency key: it is applied once, no matter how often it is written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunCommand {
    /// The key; the client chooses it.
    pub id: String,
    /// The user, as the client names them.
    pub by: String,
    /// The command itself.
    pub control: CommandAction,
}
