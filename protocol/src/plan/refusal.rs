//! Refusals: the reasons why the rules reject a fact or a command. A refusal is an answer, not a failure: it is comparable,
//! logged, and shown to the client or the planner.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::state::TaskState;
use crate::ids::{Capability, TaskId};
use crate::question::QuestionId;

/// The reason why a fact or a command has no effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The run was submitted before.
    #[error("the run was already submitted")]
    AlreadySubmitted,
    /// The run does not exist yet.
    #[error("the run was never submitted")]
    NotSubmitted,
    #[error("the run has already ended ({0})")]
    RunAlreadyEnded(super::EndReason),
    /// There is no such task.
    #[error("there is no task {0}")]
    UnknownTask(TaskId),
    /// The attempt is not the one that the plan waits for.
    #[error("task {task} is at attempt {current}, not {attempt}")]
    NotCurrentAttempt {
        task: TaskId,
        /// The given attempt.
        attempt: u32,
        /// The current attempt; 0 before the first.
        current: u32,
    },
    /// The state of the task does not allow it.
    #[error("task {task} is {state}: {what}")]
    WrongState {
        task: TaskId,
        state: TaskState,
        /// The refused action, and a possible alternative.
        what: String,
    },
    /// The author of a result can't review it.
    #[error("the result of task {0} was reviewed by its own author")]
    AuthorIsCritic(TaskId),
    /// The planning turn is not the one that the plan waits for.
    #[error("planning turn {turn}, attempt {attempt} is not the current one")]
    NotCurrentTurn {
        /// The given turn.
        turn: u32,
        /// The given attempt.
        attempt: u32,
    },
    /// The time has not come yet.
    #[error("nothing is due before {0}")]
    NotDue(Timestamp),
    /// The command was applied before.
    #[error("the command {0} was already applied")]
    AlreadyApplied(String),
    /// The state of the run does not allow it.
    #[error("{0}")]
    WrongMoment(String),
    /// The command or edit is invalid.
    #[error("{0}")]
    Unusable(String),
    /// The answer does not fit its question, or the question is not open.
    #[error("question {question}: {why}")]
    Question {
        question: QuestionId,
        /// The reason, with the author of the answer that counts if there is one.
        why: String,
    },
    #[error("task {task} needs the capability {capability}, which no worker provides; {known}")]
    UnknownCapability {
        task: TaskId,
        capability: Capability,
        /// The known capabilities, as a text.
        known: String,
    },
    /// The capability rejects the parameters.
    #[error("invalid parameters of task {task} for {capability}: {problem}")]
    WrongParameters {
        task: TaskId,
        capability: Capability,
        /// The mistake.
        problem: String,
    },
    /// The planner may not make this edit in a fixed plan.
    #[error(
        "{edit} is not allowed in a fixed plan; the planner may only retry and cancel tasks, or end the run"
    )]
    FixedPlan {
        /// The name of the edit.
        edit: String,
    },
    /// The plan would be larger than the run's budget allows.
    #[error("the plan would have {found} {what}; at most {allowed} are allowed in this run")]
    TooLarge {
        /// Either "tasks" or "tasks in a row".
        what: String,
        /// The number.
        found: u32,
        /// The maximum.
        allowed: u32,
    },
    /// The tasks are not a valid plan.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// The reason why a set of tasks is not a valid plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum GraphError {
    /// Two tasks share an id.
    #[error("duplicate task id {0}; every task needs a unique id")]
    DuplicateTask(TaskId),
    /// A task depends on one that does not exist.
    #[error("task {task} depends on {dependency}, which is not in the plan")]
    MissingDependency {
        task: TaskId,
        /// The unknown task.
        dependency: TaskId,
    },
    /// A task depends on itself.
    #[error("task {0} depends on itself")]
    SelfDependency(TaskId),
    /// A task names a dependency twice.
    #[error("task {task} lists its dependency {dependency} twice")]
    DuplicateDependency { task: TaskId, dependency: TaskId },
    /// Tasks depend on each other in a cycle.
    #[error("dependency cycle: {}", .0.iter().map(TaskId::as_str).collect::<Vec<_>>().join(" → "))]
    Cycle(Vec<TaskId>),
    /// More than one task is final.
    #[error("tasks {0} and {1} are both final; at most one may be")]
    TwoFinal(TaskId, TaskId),
    /// The plan is empty.
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
        task: TaskId,
        /// Its length.
        bytes: usize,
    },
    /// A limit is out of its range.
    #[error("task {task}: {limit} must be {expected}")]
    Limit {
        task: TaskId,
        /// The name of the limit.
        limit: String,
        /// The allowed values.
        expected: String,
    },
    /// The capability is reserved for the cluster.
    #[error("task {task}: the capability {capability} is reserved and can't be used for a task")]
    ReservedCapability { task: TaskId, capability: Capability },
}
