//! What a user or a planner asks for: tasks, their limits and reviews, and the run as a whole. Plain data; whether
//! it is acceptable is said by [`super::graph`].

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::budget::{Amounts, Budget};
use crate::ids::{Capability, TaskId};
use crate::result::Parameters;

/// The most bytes of an objective, of a run or of a task.
pub const MAX_OBJECTIVE: usize = 64 * 1024;
/// How deep the values of a task's parameters may be nested. Far below the depth that the decoders of the log take,
/// so that what was accepted can always be written and read again.
pub const MAX_PARAMETER_DEPTH: usize = 64;
/// The most tasks of one plan.
pub const MAX_TASKS: usize = 1_000_000;

// Tasks stand in the log, so that reading one passes over the fields of newer writers. The schema, by which models and
// people write, allows none but these.

/// One task of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct TaskSpec {
    /// Its name, unique within the plan.
    pub id: TaskId,
    /// What is to be done, in words.
    pub objective: String,
    /// The capability that does it.
    pub capability: Capability,
    /// The tasks whose results it builds on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<TaskId>,
    /// Named values for the capability.
    #[serde(default, skip_serializing_if = "Parameters::is_empty")]
    pub parameters: Parameters,
    /// How its result is judged.
    #[serde(default, skip_serializing_if = "Review::is_none")]
    pub review: Review,
    /// How long and how often it may try.
    #[serde(default, skip_serializing_if = "Limits::is_default")]
    pub limits: Limits,
    /// What happens to it when a task it depends on ends failed or cancelled.
    #[serde(default, skip_serializing_if = "OnFailedDependency::is_default")]
    pub on_failed_dependency: OnFailedDependency,
    /// What its attempts and their reviews together may use.
    #[serde(default, skip_serializing_if = "Amounts::is_empty")]
    pub budget: Amounts,
    /// Whether its result is the deliverable of the run. At most one task of a plan is final.
    #[serde(default, rename = "final", skip_serializing_if = "std::ops::Not::not")]
    pub is_final: bool,
}

impl TaskSpec {
    /// A task with the defaults of everything.
    #[must_use]
    pub fn new(id: TaskId, objective: impl Into<String>, capability: Capability) -> Self {
        Self {
            id,
            objective: objective.into(),
            capability,
            depends_on: Vec::new(),
            parameters: Parameters::new(),
            review: Review::None,
            limits: Limits::default(),
            on_failed_dependency: OnFailedDependency::default(),
            budget: Amounts::default(),
            is_final: false,
        }
    }
}

/// How a result is judged before it is accepted. Checks come first and cost no model; only a result that passes them is
/// shown to a critic.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Review {
    /// As the capability asks; where that asks nothing, it is accepted as it comes.
    #[default]
    None,
    /// These checks judge it, and no model.
    Checks {
        /// What the result must stand, at least one.
        checks: Vec<ReviewCheck>,
    },
    /// A critic judges it against these criteria, and against those it always applies.
    Critic {
        /// What the result must do, a sentence each. May be empty: the critic's own criteria still apply.
        #[serde(default)]
        criteria: Vec<String>,
        /// What it must stand before a model is asked.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        checks: Vec<ReviewCheck>,
        /// The models that judge, each by itself; empty is the one model that critics use.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        models: Vec<String>,
        /// How many of the models must accept it; `None` is more than half.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        quorum: Option<u32>,
        /// Of a hundred results, how many models judge; the others stand the checks alone. `None` is all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sample_percent: Option<u8>,
    },
}

impl Review {
    /// Whether nothing is asked.
    #[must_use]
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// A critic's review by these criteria.
    #[must_use]
    pub fn critic(criteria: Vec<String>) -> Self {
        Self::Critic { criteria, checks: Vec::new(), models: Vec::new(), quorum: None, sample_percent: None }
    }
}

/// What can be said of a result without a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReviewCheck {
    /// Every citation in the output names a source of the result, every source is cited, and those that are documents
    /// of the run can be read.
    Citations,
    /// Every quotation stands in its source word for word.
    Quotations,
    /// The result's data, or its output read as JSON, fits this JSON Schema.
    Schema(serde_json::Value),
    /// The output has a place that this regular expression matches.
    Matches(String),
    /// The output has no place that this regular expression matches.
    MatchesNot(String),
    /// A program that is given the result as JSON on its standard input ends with 0.
    Command {
        /// The program and its arguments.
        command: Vec<String>,
        /// How long it may take, in seconds; `None` is 60.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_s: Option<u32>,
    },
}

/// How long and how often a task may try. Durations are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct Limits {
    /// Attempts before the task fails, 1 or more.
    pub max_attempts: u32,
    /// The wait before the second attempt after an error; it doubles with each further one, up to 5 minutes.
    #[serde(with = "seconds")]
    #[schemars(with = "f64")]
    pub backoff: Duration,
    /// How long an attempt may wait for a worker to claim it.
    #[serde(with = "seconds")]
    #[schemars(with = "f64")]
    pub queue_wait: Duration,
    /// How long an attempt may run after it was claimed.
    #[serde(with = "seconds")]
    #[schemars(with = "f64")]
    pub run_time: Duration,
    /// How long a running attempt may write nothing to its journal.
    #[serde(with = "seconds")]
    #[schemars(with = "f64")]
    pub silence: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            backoff: Duration::from_secs(1),
            queue_wait: Duration::from_secs(3600),
            run_time: Duration::from_secs(1800),
            silence: Duration::from_secs(600),
        }
    }
}

impl Limits {
    /// Whether nothing differs from the defaults.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The wait before attempt `next` (2 or more) after an error: `backoff × 2^(next − 2)`, at most 5 minutes.
    #[must_use]
    pub fn backoff_before(&self, next: u32) -> Duration {
        let doublings = next.saturating_sub(2).min(20);
        self.backoff.saturating_mul(1 << doublings).min(Duration::from_secs(300).max(self.backoff))
    }
}

/// Durations as seconds, with fractions, in every format.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_secs_f64())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(seconds)
            .map_err(|_| D::Error::custom(format!("{seconds} is no number of seconds, 0 or more")))
    }
}

/// What happens to a task when one it depends on ends failed or cancelled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFailedDependency {
    /// It is cancelled too, and so are those behind it.
    #[default]
    Cancel,
    /// It goes on without that result.
    Skip,
    /// It waits, and the planner is asked; where there is none, until somebody changes the plan.
    #[serde(alias = "block")]
    Ask,
}

impl OnFailedDependency {
    /// Whether it is the default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Who makes the plan of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The planner makes the plan and changes it.
    #[default]
    Llm,
    /// The planner extends and changes a plan that the user began.
    Hybrid,
    /// The user's plan is carried out as it is.
    Fixed,
}

/// A run as it is handed in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// What the user wants, in words.
    pub objective: String,
    /// Who makes the plan.
    pub mode: Mode,
    /// The user's tasks; for [`Mode::Fixed`] the whole plan.
    #[serde(default)]
    pub tasks: Vec<TaskSpec>,
    /// The documents of the run, kept in the object store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<DocumentSet>,
    /// The model that agents use, as `provider:model`; `None` leaves it to each worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The models of single capabilities, `planner` and `critic` among them; they go before `model`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<Capability, String>,
    /// Whether the first failed task ends the run.
    #[serde(default)]
    pub fail_fast: bool,
    /// What it may use.
    #[serde(default, skip_serializing_if = "Budget::is_default")]
    pub budget: Budget,
    /// When the planner is asked; `None` goes by the mode: never for [`Mode::Fixed`], else where judgement is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consult: Option<Consult>,
}

impl Submission {
    /// A run with the defaults of everything.
    #[must_use]
    pub fn new(objective: impl Into<String>, mode: Mode) -> Self {
        Self {
            objective: objective.into(),
            mode,
            tasks: Vec::new(),
            documents: None,
            model: None,
            models: BTreeMap::new(),
            fail_fast: false,
            budget: Budget::default(),
            consult: None,
        }
    }
}

/// When the planner of a run is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Consult {
    /// Never.
    Never,
    /// Where judgement is needed: no plan, a failure, nothing left to do, no progress, a message, a budget that ends.
    Judgement,
    /// The same, and whenever a result was accepted.
    EveryResult,
}

/// The documents of a run: a manifest in the blob store, which is a MessagePack list of [`Document`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentSet {
    /// The SHA-256 of the manifest, in hexadecimal: its name in the blob store.
    pub manifest: String,
    /// How many documents there are.
    pub count: u32,
    /// Their size together, in bytes.
    pub bytes: u64,
}

/// A document that was handed in with a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// Its path below the folder it was handed in with, with `/` between parts.
    pub path: String,
    /// The SHA-256 of its bytes, in hexadecimal: its name in the blob store.
    pub sha256: String,
    /// Its size in bytes.
    pub size: u64,
}
