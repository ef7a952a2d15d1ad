//! What somebody can want changed in a plan: the same words for a planner's turn and for a user who steers. Whether it is
//! acceptable is said by the rules, one edit after the other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::budget::Budget;
use super::spec::{Limits, OnFailedDependency, Review, TaskSpec};
use crate::ids::{Capability, TaskId};
use crate::result::Parameters;

/// One change of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "an edit is made, tried and dropped; lists of them are short")]
pub enum Edit {
    /// More tasks, all of them or none; they may depend on each other and on tasks of the plan.
    Add(Vec<TaskSpec>),
    /// Other words, parameters or dependencies for a task that waits.
    Patch(Patch),
    /// A task is not wanted any more. What hangs on it goes by its own policy.
    Cancel {
        /// The task.
        task: TaskId,
        /// Why.
        reason: String,
    },
    /// A task runs once more: one that failed, was cancelled, waits to try again, or is completed. What was built on a
    /// result that is given up is done again too.
    Retry {
        /// The task.
        task: TaskId,
        /// What the next attempt is told, beside its objective.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        feedback: Option<String>,
    },
    /// The task whose result is the deliverable; no other is then.
    MarkFinal {
        /// The task.
        task: TaskId,
    },
    /// The objective is achieved: the deliverable is there, and whatever is still open is not needed.
    Finish {
        /// Why the objective is achieved.
        reason: String,
    },
    /// Nothing more can be done: the run ends with what it has. Only where nothing is under way.
    GiveUp {
        /// What is lost, and why nothing makes up for it.
        reason: String,
    },
}

impl Edit {
    /// What it is, in the words that models and people use for it.
    #[must_use]
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

    /// Whether it changes what the plan is, beyond running, cancelling and judging what is there.
    #[must_use]
    pub fn changes_the_graph(&self) -> bool {
        match self {
            Self::Add(_) | Self::Patch(_) | Self::MarkFinal { .. } => true,
            Self::Cancel { .. } | Self::Retry { .. } | Self::Finish { .. } | Self::GiveUp { .. } => false,
        }
    }
}

/// What changes in a task; what is `None` stays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Patch {
    /// The task.
    pub task: TaskId,
    /// What is to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<String>,
    /// The capability that does it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability: Option<Capability>,
    /// The tasks it builds on, all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<Vec<TaskId>>,
    /// Parameters that are set; a null takes one away, the others stay.
    #[serde(default, skip_serializing_if = "Parameters::is_empty")]
    pub parameters: Parameters,
    /// How its result is judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review: Option<Review>,
    /// How long and how often it may try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// What happens to it when a task it depends on is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failed_dependency: Option<OnFailedDependency>,
}

impl Patch {
    /// A patch that changes nothing yet.
    #[must_use]
    pub fn of(task: TaskId) -> Self {
        Self {
            task,
            objective: None,
            capability: None,
            depends_on: None,
            parameters: Parameters::new(),
            review: None,
            limits: None,
            on_failed_dependency: None,
        }
    }
}

/// What a user can ask of a run under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Control {
    /// Cancel the whole run.
    CancelRun {
        /// Why, and who says so.
        reason: String,
    },
    /// Cancel one task, and what hangs on it.
    CancelTask {
        /// The task.
        task: TaskId,
        /// Why, and who says so.
        reason: String,
    },
    /// Change the plan.
    Edit(Edit),
    /// Give nothing more out. What runs goes on to its end.
    Pause,
    /// Go on: after a pause, or with more after the budget was used up.
    Resume {
        /// What takes the place of what the budget said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        budget: Option<Budget>,
    },
    /// Tell the planner something.
    Message {
        /// What.
        text: String,
    },
}

/// The most characters of a message to the planner.
pub const MAX_TEXT: usize = 16_000;

/// A wish of a user, with the name by which it is known again: a command is applied once, however often it is written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// Its name, made up by whoever gives it.
    pub id: String,
    /// Who gives it, as they call themselves.
    pub by: String,
    /// What is wanted.
    pub control: Control,
}
