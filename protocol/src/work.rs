//! The words between supervisor, workers and critics: the order that waits in a queue, and the entries of the
//! journal that whoever claims it writes.

use serde::{Deserialize, Serialize};

use crate::ids::{Capability, Lane, RunId, TaskId, WorkerId};
use crate::plan::{Amounts, DocumentSet, Limits, Review, ReviewCheck, Work};
use crate::result::{ModelUsage, Parameters, Proposal, TaskError, Usage, Verdict};
use crate::wire::Blob;

/// What a worker needs to know to do a piece of work, without reading the plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// The run.
    pub run: RunId,
    /// The lane that the run lives in.
    pub lane: Lane,
    /// The piece of work, which names the journal.
    pub work: Work,
    /// What the user wants of the run as a whole.
    pub mission: String,
    /// What is to be done here; for planning, the mission.
    pub objective: String,
    /// The capability of the task; of the task under review, for a review.
    pub capability: Capability,
    /// Named values for the capability.
    #[serde(default, skip_serializing_if = "Parameters::is_empty")]
    pub parameters: Parameters,
    /// Results that the work builds on; for a review, the one result under review.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<Input>,
    /// For a review: what the result must do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub criteria: Vec<String>,
    /// For a review: what the result must stand before a model is asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<ReviewCheck>,
    /// For a review: who judges; `None` where the checks alone do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub panel: Option<Panel>,
    /// For a review: the results that the task built on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<Input>,
    /// For a task: the result of an earlier attempt that was rejected last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<Input>,
    /// Whether the task's result is the deliverable of the run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_final: bool,
    /// What earlier attempts were told, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feedback: Vec<String>,
    /// What the work may use; it is reserved. `None` is no limit but the capability's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowance: Option<Amounts>,
    /// For planning: the sequence of the decision up to which the planner reads the plan.
    #[serde(default)]
    pub plan_at: u64,
    /// How long the work may take.
    #[serde(default, skip_serializing_if = "Limits::is_default")]
    pub limits: Limits,
    /// The documents of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<DocumentSet>,
    /// The model to use where the capability names none of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The model that the run names for this very capability or role; it goes before all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_model: Option<String>,
}

impl Order {
    /// An order with nothing but its work and its words.
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
            work,
            mission: objective.clone(),
            objective,
            capability,
            parameters: Parameters::new(),
            inputs: Vec::new(),
            criteria: Vec::new(),
            checks: Vec::new(),
            panel: None,
            evidence: Vec::new(),
            rejected: None,
            is_final: false,
            feedback: Vec::new(),
            allowance: None,
            plan_at: 0,
            limits: Limits::default(),
            documents: None,
            model: None,
            own_model: None,
        }
    }
}

/// Who judges a result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Panel {
    /// The models, each of which judges by itself; empty is the one that the critic uses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// How many of them must accept the result, at least 1.
    pub quorum: u32,
}

/// A result that a piece of work builds on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The task it is of.
    pub task: TaskId,
    /// What that task was to do.
    pub objective: String,
    /// Its capability.
    pub capability: Capability,
    /// Who worked on it.
    pub worker: WorkerId,
    /// The result in a sentence.
    pub summary: String,
    /// Where the result is: the sequence, in the lane, of the journal entry with the outcome.
    pub at_sequence: u64,
}

/// One entry of a journal. The journal of a piece of work is a chain: each append names the entry before it, so that
/// two writers can never both extend it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Entry {
    /// Somebody took the work. Entries up to the next claim are theirs.
    Claimed {
        /// Who.
        worker: WorkerId,
        /// Which claim of this journal it is, from 1.
        claim: u32,
    },
    /// Something was done that must not be done again: a model's reply, a tool's result.
    Step {
        /// Its number in the attempt, from 1.
        number: u32,
        /// What was done; a worker that resumes asks for the same steps by the same names.
        name: String,
        /// What came back, as JSON.
        value: Blob,
    },
    /// A sign of life, with a line for whoever watches.
    Note {
        /// The line.
        text: String,
    },
    /// Whoever took it last gave it back in good order, for a fault of the world that may pass: the claim counts for
    /// nothing.
    Released {
        /// Who.
        worker: WorkerId,
        /// Why.
        why: String,
    },
    /// The end of the work.
    Outcome {
        /// Who brings it.
        worker: WorkerId,
        /// For a review, which try it was; else 0.
        #[serde(default)]
        review: u32,
        /// What it brings.
        outcome: Outcome,
    },
}

/// What a piece of work comes to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// A task's result.
    Finished {
        /// The result in a sentence.
        summary: String,
        /// Whether there is nothing in it.
        is_empty: bool,
        /// Whether there is text in it beyond the summary.
        #[serde(default = "yes")]
        is_detailed: bool,
        /// How the capability wants it judged where the task does not say.
        #[serde(default, skip_serializing_if = "Review::is_none")]
        review: Review,
        /// What it took.
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
        /// The same by model, as far as that is known.
        #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
        models: ModelUsage,
        /// The [`crate::result::TaskResult`], in MessagePack.
        result: Blob,
    },
    /// A critic's verdict.
    Judged(Verdict),
    /// A planner's proposal.
    Proposed {
        /// What it proposes.
        proposal: Proposal,
        /// What it took.
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
        /// The same by model, as far as that is known.
        #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
        models: ModelUsage,
    },
    /// Nothing but an error.
    Errored(TaskError),
}

fn yes() -> bool {
    true
}
