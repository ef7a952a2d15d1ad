//! Why the rules say no. A refusal is an answer, not a failure: it is comparable, it is logged, and it is shown to
//! whoever asked.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::state::TaskState;
use crate::ids::{Capability, TaskId};

/// Why a fact or a command changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The run was handed in before.
    #[error("the run was already submitted")]
    AlreadySubmitted,
    /// The run does not exist yet.
    #[error("the run was never submitted")]
    NotSubmitted,
    /// The run is over.
    #[error("the run has already ended ({0})")]
    RunAlreadyEnded(super::EndReason),
    /// There is no such task.
    #[error("there is no task {0}")]
    UnknownTask(TaskId),
    /// The attempt is not the one the plan waits for.
    #[error("task {task} is at attempt {current}, not {attempt}")]
    NotCurrentAttempt {
        /// The task.
        task: TaskId,
        /// The attempt that was named.
        attempt: u32,
        /// The attempt that the plan is at; 0 before the first.
        current: u32,
    },
    /// The task is in a state in which this can't happen.
    #[error("task {task} is {state}, so that {what} changes nothing")]
    WrongState {
        /// The task.
        task: TaskId,
        /// Its state.
        state: TaskState,
        /// What was refused.
        what: String,
    },
    /// Who wrote a result can't judge it.
    #[error("the result of task {0} was judged by its own author")]
    AuthorIsCritic(TaskId),
    /// The planner's turn is not the one the plan waits for.
    #[error("planning turn {turn}, attempt {attempt} is not the current one")]
    NotCurrentTurn {
        /// The turn that was named.
        turn: u32,
        /// The attempt that was named.
        attempt: u32,
    },
    /// The clock has not run out.
    #[error("nothing is due before {0}")]
    NotDue(Timestamp),
    /// The command was carried out before.
    #[error("the command {0} was carried out already")]
    AlreadyApplied(String),
    /// The run is not in a state in which this can happen.
    #[error("{0}")]
    WrongMoment(String),
    /// What was said can't be used.
    #[error("{0}")]
    Unusable(String),
    /// Nobody offers the capability.
    #[error("task {task} needs the capability {capability}, which nobody offers; {known}")]
    UnknownCapability {
        /// The task.
        task: TaskId,
        /// What it needs.
        capability: Capability,
        /// What there is, as a sentence.
        known: String,
    },
    /// The parameters are not what the capability takes.
    #[error("the parameters of task {task} are not what {capability} takes: {problem}")]
    WrongParameters {
        /// The task.
        task: TaskId,
        /// Its capability.
        capability: Capability,
        /// What is wrong.
        problem: String,
    },
    /// The planner may not do this in this run.
    #[error("{edit} is not for the planner of a fixed plan, which may run, cancel and judge")]
    FixedPlan {
        /// What was wanted.
        edit: String,
    },
    /// The plan would be larger than the run's budget allows.
    #[error("the plan would have {found} {what}; at most {allowed} are allowed in this run")]
    TooLarge {
        /// "tasks", or "tasks in a row".
        what: String,
        /// How many.
        found: u32,
        /// How many are allowed.
        allowed: u32,
    },
    /// The tasks make no plan.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// What is wrong with a set of tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum GraphError {
    /// Two tasks share an id.
    #[error("task {0} is there twice; every task needs an id of its own")]
    DuplicateTask(TaskId),
    /// A task depends on one that is not there.
    #[error("task {task} depends on {dependency}, which is not in the plan")]
    MissingDependency {
        /// The task.
        task: TaskId,
        /// What it names.
        dependency: TaskId,
    },
    /// A task depends on itself.
    #[error("task {0} depends on itself")]
    SelfDependency(TaskId),
    /// A task names a dependency twice.
    #[error("task {task} names its dependency {dependency} twice")]
    DuplicateDependency {
        /// The task.
        task: TaskId,
        /// What it names twice.
        dependency: TaskId,
    },
    /// Tasks depend on each other in a circle.
    #[error("these tasks wait for each other in a circle: {}", .0.iter().map(TaskId::as_str).collect::<Vec<_>>().join(" → "))]
    Cycle(Vec<TaskId>),
    /// More than one task is final.
    #[error("tasks {0} and {1} are both final; at most one may be")]
    TwoFinal(TaskId, TaskId),
    /// There is nothing to do.
    #[error("the plan has no tasks")]
    Empty,
    /// There are too many tasks.
    #[error("the plan has {0} tasks; at most {max} are allowed", max = super::MAX_TASKS)]
    TooManyTasks(usize),
    /// An objective is missing.
    #[error("task {0} has an empty objective")]
    EmptyObjective(TaskId),
    /// An objective is too long.
    #[error("the objective of task {task} has {bytes} bytes; at most {max} are allowed", max = super::MAX_OBJECTIVE)]
    LongObjective {
        /// The task.
        task: TaskId,
        /// Its length.
        bytes: usize,
    },
    /// A limit is out of its range.
    #[error("task {task}: {limit} must be {expected}")]
    Limit {
        /// The task.
        task: TaskId,
        /// The name of the limit.
        limit: String,
        /// What is allowed.
        expected: String,
    },
    /// Only the cluster may use this capability.
    #[error("task {task}: the capability {capability} is the cluster's own and can't be given a task")]
    ReservedCapability {
        /// The task.
        task: TaskId,
        /// What it names.
        capability: Capability,
    },
}
