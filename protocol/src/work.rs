//! The messages between supervisor, workers and critics: orders in a queue, and the entries of the journal that the claimant
//! of an order writes.
//!
//! # Invariants
//!
//! - I36: The wire format is as `docs/wire.md` says: a worker that shares no code with us does tasks and takes over.
//!   (`tests/tests/python_worker.rs::python_worker_runs_tasks_and_another_resumes_its_work`,
//!   `tests/tests/python_worker.rs::examples_in_wire_md_match_the_types`)

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::child::Delegation;
use crate::file::InlineOrStoredBytes;
use crate::ids::{Capability, Lane, RunId, TaskId, WorkerId};
use crate::overrides::AgentOverrides;
use crate::parameters::TaskParameters;
use crate::plan::{
    Attempt, DEFAULT_PROVIDER_TIMEOUT, DocumentSet, ResourceAmounts, ReviewCheck, ReviewPolicy, Task,
    TaskLimits, TaskSpec, WAIT_FOR_EVENT_KEY, Work,
};
use crate::result::{
    Build, CriterionOutcome, ModelUsage, PlanProposal, TaskError, Usage, Verdict, VerificationPolicy,
};
use crate::wait::{EndedWait, ProviderStatus, Wait, WaitEnd};
use crate::wire::WireMessage;

/// An order: the data that a worker needs to do a piece of work without reading the plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "FlatOrder", into = "FlatOrder")]
pub struct Order {
    /// The run.
    pub run: RunId,
    /// The lane of the run.
    pub lane: Lane,
    /// The piece of work, and the data that only work of its kind has.
    pub assignment: Assignment,
    /// The user's objective for the run as a whole.
    pub mission: String,
    /// The objective of this work; for planning, the mission.
    pub objective: String,
    /// The capability of the task, or of the task under review.
    pub capability: Capability,
    /// The parameters of the capability.
    pub parameters: TaskParameters,
    /// The results that the work builds on; for a review, the one result under review.
    pub inputs: Vec<InputResult>,
    /// `true` if the task's result is the deliverable of the run.
    pub is_final: bool,
    /// The feedback on earlier attempts, oldest first.
    pub feedback: Vec<String>,
    /// The amounts reserved for the work, which it must not exceed; `None` is no limit but the capability's own.
    pub allowance: Option<ResourceAmounts>,
    /// Timeouts and retries of the work.
    pub limits: TaskLimits,
    /// How long the work may wait for a provider that does not answer; `None` is [`DEFAULT_PROVIDER_TIMEOUT`].
    pub provider_timeout: Option<Duration>,
    /// The documents of the run.
    pub documents: Option<DocumentSet>,
    /// The model to use if the capability names none of its own.
    pub model: Option<String>,
    /// The model that the run names for this capability or role; it takes precedence over all others.
    pub own_model: Option<String>,
    /// The models of the run for single capabilities and for tiers. A capability file refers to a tier as `tier:NAME`.
    pub models: BTreeMap<Capability, String>,
    /// The consequence of verdicts on statements; `None` is that of the capability.
    pub verification: Option<VerificationPolicy>,
    /// The waits of the attempt that have ended, oldest first, if it was parked.
    pub ended_waits: Vec<EndedWait>,
    /// The depth of the task among delegated tasks; 0 for a task of a planner or a user.
    pub depth: u32,
    /// The overrides of the agent that does the task, if it was delegated with any.
    pub overrides: Option<Box<AgentOverrides>>,
    /// The conversation that the attempt continues, if the task is a fork: [`TaskSpec::fork`].
    pub fork: Option<Box<InlineOrStoredBytes>>,
    /// The conversation that it continues, if it is a call of a shared one.
    pub shared: Option<SharedConversation>,
    /// The decision of the run as of which the order was published; `None` if its supervisor does not report it.
    pub decided: Option<DecisionId>,
}

/// A conversation that tasks of a run share. Each call of it ends with a step that holds the conversation so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedConversation {
    /// The last call that was completed, and its attempt; `None` if the conversation begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_call: Option<(TaskId, u32)>,
}

/// A decision in the log. A server that has lost its newest messages uses their sequences again, so a sequence alone does
/// not identify a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DecisionId {
    /// Its sequence in the lane.
    pub sequence: u64,
    /// Its time, in microseconds since 1970.
    #[serde(with = "jiff::fmt::serde::timestamp::microsecond::required")]
    pub at: Timestamp,
}

impl DecisionId {
    /// Creates the id of a decision with this time. The log keeps whole microseconds only.
    #[must_use]
    pub fn new(sequence: u64, at: Timestamp) -> Self {
        // Every timestamp is in the range of microseconds.
        Self { sequence, at: Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at) }
    }
}

/// A piece of work, with the data that only work of its kind has.
#[derive(Debug, Clone, PartialEq)]
pub enum Assignment {
    /// An attempt at a task.
    Task {
        /// The task.
        task: TaskId,
        /// The attempt, from 1.
        attempt: u32,
        /// The result of an earlier attempt that was rejected last.
        rejected: Option<InputResult>,
        /// The attempt that produced that result, with the verdict on it; `None` if its supervisor does not report it.
        rejection: Option<Rejection>,
        /// The criteria of the run that apply to the result, if it is the deliverable.
        criteria: Vec<String>,
    },
    /// A review of a result.
    Review {
        /// The task.
        task: TaskId,
        /// The attempt under review.
        attempt: u32,
        /// The number of the try at the review, from 1.
        review: u32,
        /// The requirements for the result.
        brief: ReviewBrief,
    },
    /// An attempt at a turn of the planner.
    Planning {
        /// The turn, from 1.
        turn: u32,
        /// The attempt, from 1.
        attempt: u32,
        /// The sequence of the decision up to which the planner reads the plan.
        plan_at: u64,
    },
}

/// The rejection of a result: its attempt, and the verdict by criterion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejection {
    /// The attempt that produced the result.
    pub attempt: u32,
    /// Each criterion with its outcome.
    pub criteria: Vec<CriterionOutcome>,
}

impl Assignment {
    /// The piece of work.
    pub fn work(&self) -> Work {
        match self {
            Self::Task { task, attempt, .. } => Work::Task { task: task.clone(), attempt: *attempt },
            Self::Review { task, attempt, review, .. } => {
                Work::Review { task: task.clone(), attempt: *attempt, review: *review }
            }
            Self::Planning { turn, attempt, .. } => Work::Planning { turn: *turn, attempt: *attempt },
        }
    }
}

/// An assignment without data beyond the work itself.
impl From<Work> for Assignment {
    fn from(work: Work) -> Self {
        match work {
            Work::Task { task, attempt } => {
                Self::Task { task, attempt, rejected: None, rejection: None, criteria: Vec::new() }
            }
            Work::Review { task, attempt, review } => {
                Self::Review { task, attempt, review, brief: ReviewBrief::default() }
            }
            Work::Planning { turn, attempt } => Self::Planning { turn, attempt, plan_at: 0 },
        }
    }
}

/// The requirements for a result under review.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReviewBrief {
    /// The criteria that the result must meet.
    pub criteria: Vec<String>,
    /// The checks that the result must pass before a model judges it.
    pub checks: Vec<ReviewCheck>,
    /// The judges; `None` if the checks alone decide.
    pub panel: Option<JudgePanel>,
    /// The results that the task built on.
    pub evidence: Vec<InputResult>,
}

impl Order {
    /// The end of the wait for the event without which the task does not start, if it has one.
    pub fn start_event(&self) -> Option<&WaitEnd> {
        self.ended_waits.iter().find(|wait| wait.key == WAIT_FOR_EVENT_KEY).map(|wait| &wait.end)
    }

    /// An order with no data beyond its work, objective and capability.
    #[must_use]
    pub fn new(
        run: RunId,
        lane: Lane,
        work: Work,
        objective: impl Into<String>,
        capability: Capability,
    ) -> Self {
        let objective = objective.into();
        Self {
            run,
            lane,
            assignment: work.into(),
            mission: objective.clone(),
            objective,
            capability,
            parameters: TaskParameters::new(),
            inputs: Vec::new(),
            is_final: false,
            feedback: Vec::new(),
            allowance: None,
            limits: TaskLimits::default(),
            provider_timeout: None,
            documents: None,
            model: None,
            own_model: None,
            models: BTreeMap::new(),
            verification: None,
            ended_waits: Vec::new(),
            depth: 0,
            overrides: None,
            fork: None,
            shared: None,
            decided: None,
        }
    }

    /// How long the work may wait for a provider that does not answer.
    pub fn provider_timeout(&self) -> Duration {
        self.provider_timeout.unwrap_or(DEFAULT_PROVIDER_TIMEOUT)
    }

    /// The piece of work, which names the journal.
    pub fn work(&self) -> Work {
        self.assignment.work()
    }

    /// The requirements for the result under review; `None` if the order is no review.
    pub fn review_brief(&self) -> Option<&ReviewBrief> {
        match &self.assignment {
            Assignment::Review { brief, .. } => Some(brief),
            Assignment::Task { .. } | Assignment::Planning { .. } => None,
        }
    }
}

/// An order on the wire: flat, with the fields of all kinds of work side by side.
#[derive(Serialize, Deserialize)]
struct FlatOrder {
    run: RunId,
    lane: Lane,
    work: Work,
    mission: String,
    objective: String,
    capability: Capability,
    #[serde(default, skip_serializing_if = "TaskParameters::is_empty")]
    parameters: TaskParameters,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inputs: Vec<InputResult>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    criteria: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    checks: Vec<ReviewCheck>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    panel: Option<JudgePanel>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    evidence: Vec<InputResult>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rejected: Option<InputResult>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rejection: Option<Rejection>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    deliverable_criteria: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_final: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    feedback: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    allowance: Option<ResourceAmounts>,
    #[serde(default)]
    plan_at: u64,
    #[serde(default, skip_serializing_if = "TaskLimits::is_default")]
    limits: TaskLimits,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::plan::optional_seconds")]
    provider_timeout: Option<Duration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    documents: Option<DocumentSet>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    own_model: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    models: BTreeMap<Capability, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    verification: Option<VerificationPolicy>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ended_waits: Vec<EndedWait>,
    #[serde(default, skip_serializing_if = "is_zero")]
    depth: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    overrides: Option<Box<AgentOverrides>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fork: Option<Box<InlineOrStoredBytes>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shared: Option<SharedConversation>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    decided: Option<DecisionId>,
}

/// Fields that do not belong to the kind of work are ignored.
impl From<FlatOrder> for Order {
    fn from(flat: FlatOrder) -> Self {
        let assignment = match flat.work {
            Work::Task { task, attempt } => {
                let FlatOrder { rejected, rejection, deliverable_criteria: criteria, .. } = flat;
                Assignment::Task { task, attempt, rejected, rejection, criteria }
            }
            Work::Review { task, attempt, review } => {
                let FlatOrder { criteria, checks, panel, evidence, .. } = flat;
                let brief = ReviewBrief { criteria, checks, panel, evidence };
                Assignment::Review { task, attempt, review, brief }
            }
            Work::Planning { turn, attempt } => Assignment::Planning { turn, attempt, plan_at: flat.plan_at },
        };
        Self {
            run: flat.run,
            lane: flat.lane,
            assignment,
            mission: flat.mission,
            objective: flat.objective,
            capability: flat.capability,
            parameters: flat.parameters,
            inputs: flat.inputs,
            is_final: flat.is_final,
            feedback: flat.feedback,
            allowance: flat.allowance,
            limits: flat.limits,
            provider_timeout: flat.provider_timeout,
            documents: flat.documents,
            model: flat.model,
            own_model: flat.own_model,
            models: flat.models,
            verification: flat.verification,
            ended_waits: flat.ended_waits,
            depth: flat.depth,
            overrides: flat.overrides,
            fork: flat.fork,
            shared: flat.shared,
            decided: flat.decided,
        }
    }
}

impl From<Order> for FlatOrder {
    fn from(order: Order) -> Self {
        let work = order.work();
        let none = ReviewBrief::default;
        let (rejected, rejection, deliverable_criteria, brief, plan_at) = match order.assignment {
            Assignment::Task { rejected, rejection, criteria, .. } => {
                (rejected, rejection, criteria, none(), 0)
            }
            Assignment::Review { brief, .. } => (None, None, Vec::new(), brief, 0),
            Assignment::Planning { plan_at, .. } => (None, None, Vec::new(), none(), plan_at),
        };
        let ReviewBrief { criteria, checks, panel, evidence } = brief;
        Self {
            run: order.run,
            lane: order.lane,
            work,
            mission: order.mission,
            objective: order.objective,
            capability: order.capability,
            parameters: order.parameters,
            inputs: order.inputs,
            criteria,
            checks,
            panel,
            evidence,
            rejected,
            rejection,
            deliverable_criteria,
            is_final: order.is_final,
            feedback: order.feedback,
            allowance: order.allowance,
            plan_at,
            limits: order.limits,
            provider_timeout: order.provider_timeout,
            documents: order.documents,
            model: order.model,
            own_model: order.own_model,
            models: order.models,
            verification: order.verification,
            ended_waits: order.ended_waits,
            depth: order.depth,
            overrides: order.overrides,
            fork: order.fork,
            shared: order.shared,
            decided: order.decided,
        }
    }
}

/// The judges of a result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgePanel {
    /// The models, each of which judges independently; empty means the critic's own model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// The number of models that must accept the result, at least 1.
    pub quorum: u32,
}

/// A result that a piece of work builds on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputResult {
    /// The task that produced it.
    pub task: TaskId,
    /// The objective of that task.
    pub objective: String,
    /// The capability of that task.
    pub capability: Capability,
    /// The worker that produced it.
    pub worker: WorkerId,
    /// The result in a sentence.
    pub summary: String,
    /// The sequence, in the lane, of the journal entry with the result.
    pub at_sequence: u64,
}

impl InputResult {
    /// Creates the input from a result of an attempt at a task; `None` if no worker has had the attempt.
    #[must_use]
    pub fn of_attempt(task: &Task, attempt: &Attempt, at_sequence: u64, summary: &str) -> Option<Self> {
        Some(Self {
            task: task.spec.id.clone(),
            objective: task.spec.objective.clone(),
            capability: task.spec.capability.clone(),
            worker: attempt.worker.clone()?,
            summary: summary.to_owned(),
            at_sequence,
        })
    }
}

/// An entry of a journal. A journal is a chain: each append names the entry before it, so that two writers can never both
/// extend it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum JournalEntry {
    /// A worker claimed the work. Entries up to the next claim are its own.
    Claimed {
        /// The claimant.
        worker: WorkerId,
        /// The number of the claim in this journal, from 1.
        claim: u32,
        /// The software of the claimant; absent if it is not known, as of workers in other languages.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        build: Option<Arc<Build>>,
    },
    /// A step that must not be repeated: a model's reply, a tool's result.
    Step {
        /// The number of the step in the attempt, from 1.
        number: u32,
        /// The name of the step; a worker that resumes looks the same steps up by the same names.
        name: String,
        /// The result, as JSON.
        value: InlineOrStoredBytes,
    },
    /// A heartbeat, with a line for people who follow the run.
    Note {
        /// The line.
        text: String,
        /// The change in the attempt's wait for its provider, if the note reports one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider: Option<ProviderStatus>,
    },
    /// The claimant parked the attempt, which waits for something outside. The attempt continues when all of these waits have
    /// ended; it can't be claimed before.
    Parked {
        /// The claimant.
        worker: WorkerId,
        /// The waits, at least one.
        waits: Vec<Wait>,
        /// The children that the waits are for and that are not in the plan yet.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        children: Vec<TaskSpec>,
    },
    /// The claimant starts, cancels or instructs children of the attempt, and goes on.
    Delegated {
        /// The claimant.
        worker: WorkerId,
        /// The changes.
        delegation: Delegation,
    },
    /// The claimant released the work because of a transient fault: its claim does not count.
    Released {
        /// The claimant.
        worker: WorkerId,
        /// The reason.
        why: String,
        /// The provider that the claimant gave up waiting for, if that is the reason: the run pauses.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider: Option<ProviderStatus>,
        /// The amounts that the first request needs, if the reservation is smaller: nothing was sent.
        #[serde(default, skip_serializing_if = "ResourceAmounts::is_empty")]
        needs: ResourceAmounts,
    },
    /// The end of the work.
    Outcome {
        /// The claimant.
        worker: WorkerId,
        /// The number of the try at the review; 0 for other work.
        #[serde(default)]
        review: u32,
        /// The outcome.
        outcome: WorkOutcome,
    },
}

/// The outcome of a piece of work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum WorkOutcome {
    /// A task's result.
    Finished {
        /// The result in a sentence.
        summary: String,
        /// `true` if the result is empty.
        is_empty: bool,
        /// `true` if the result has text beyond the summary.
        #[serde(default = "default_is_detailed")]
        is_detailed: bool,
        /// `false` if the result does not answer its question. Absent on the wire if it does.
        #[serde(default = "default_is_answered", skip_serializing_if = "is_true")]
        is_answered: bool,
        /// The review that the capability requires if the task names none.
        #[serde(default, skip_serializing_if = "ReviewPolicy::is_none")]
        review: ReviewPolicy,
        /// The usage.
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
        /// The usage by model, as far as known.
        #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
        models: ModelUsage,
        /// The [`crate::result::TaskResult`], in MessagePack.
        result: InlineOrStoredBytes,
    },
    /// A critic's verdict.
    Judged(Verdict),
    /// A planner's proposal.
    Proposed {
        /// The proposal.
        proposal: PlanProposal,
        /// The usage.
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
        /// The usage by model, as far as known.
        #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
        models: ModelUsage,
    },
    /// An error.
    Errored(TaskError),
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn default_is_detailed() -> bool {
    true
}

fn default_is_answered() -> bool {
    true
}

fn is_true(value: &bool) -> bool {
    *value
}

impl WireMessage for JournalEntry {
    const KIND: &'static str = "entry";
}

impl WireMessage for Order {
    const KIND: &'static str = "order";
}
