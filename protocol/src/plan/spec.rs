//! The specifications that users and planners submit: tasks with their limits and reviews, and the run as a whole. Plain data;
//! [`super::graph`] validates it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use millrace_api_form::Named;
use schemars::JsonSchema;
use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::budget::{Budget, ResourceAmounts};
use super::start::{PlanTime, StartEvent, start_waits};
use crate::child::ParentTask;
use crate::ids::{Capability, RunId, SessionId, TaskId};
use crate::labels::Labels;
use crate::overrides::{AgentOverrides, PermissionRules};
use crate::parameters::TaskParameters;
use crate::question::QuestionExpiry;
use crate::result::VerificationPolicy;
use crate::trace_context::TraceParent;
use crate::wait::Wait;
use crate::wire::InlineOrStoredBytes;

/// The maximum size of the objective of a run or a task, in bytes.
pub const MAX_OBJECTIVE: usize = 64 * 1024;
/// A valid number of attempts, for people.
pub(super) const VALID_ATTEMPTS: &str = "a whole number from 1 to 100";
/// The maximum nesting depth of the values of a task's parameters. Far below the depth that the decoders of the log
/// accept, so that an accepted task can always be written and read.
pub const MAX_PARAMETER_DEPTH: usize = 64;
/// The largest number of persons that judge a result.
pub const MAX_PERSONS: usize = 32;
/// The maximum number of tasks of a plan.
pub const MAX_TASKS: usize = 1_000_000;

// Tasks are in the log, so readers ignore unknown fields of newer writers. The schema, which models and users follow,
// allows only these fields.

/// A task of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct TaskSpec {
    /// Its id, unique within the plan.
    pub id: TaskId,
    /// The objective, in plain language.
    pub objective: String,
    /// The capability that executes it.
    pub capability: Capability,
    /// The tasks whose results it uses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<TaskId>,
    /// Named parameters of the capability.
    #[serde(default, skip_serializing_if = "TaskParameters::is_empty")]
    pub parameters: TaskParameters,
    /// The review of its result.
    #[serde(default, skip_serializing_if = "ReviewPolicy::is_none")]
    pub review: ReviewPolicy,
    /// Its time limits and attempts.
    #[serde(default, skip_serializing_if = "TaskLimits::is_default")]
    pub limits: TaskLimits,
    /// The policy for a dependency that fails or is cancelled.
    #[serde(default, skip_serializing_if = "OnFailedDependency::is_default")]
    pub on_failed_dependency: OnFailedDependency,
    /// The budget of its attempts and their reviews together.
    #[serde(default, skip_serializing_if = "ResourceAmounts::is_empty")]
    pub budget: ResourceAmounts,
    /// The time before which no attempt at it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<PlanTime>,
    /// The event of the run without which no attempt at it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_event: Option<Box<StartEvent>>,
    /// `true` if its result is the deliverable of the run. At most one task of a plan is final.
    #[serde(default, rename = "final", skip_serializing_if = "std::ops::Not::not")]
    pub is_final: bool,
    /// The attempt that delegated it; `None` for a task of a planner or a user. Only the rules set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub parent: Option<ParentTask>,
    /// The overrides of the agent that does it. Only delegated tasks have any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub overrides: Option<Box<AgentOverrides>>,
    /// The conversation that it continues, if it is a fork of its parent's attempt. Only workers read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub fork: Option<Box<InlineOrStoredBytes>>,
    /// `true` if it continues the conversation that all such tasks of its capability in the run with the same restrictions share, one
    /// after the other.
    #[serde(default, rename = "shared", skip_serializing_if = "std::ops::Not::not")]
    #[schemars(skip)]
    pub is_shared: bool,
}

impl TaskSpec {
    /// Creates a task with all defaults.
    #[must_use]
    pub fn new(id: TaskId, objective: impl Into<String>, capability: Capability) -> Self {
        Self {
            id,
            objective: objective.into(),
            capability,
            depends_on: Vec::new(),
            parameters: TaskParameters::new(),
            review: ReviewPolicy::None,
            limits: TaskLimits::default(),
            on_failed_dependency: OnFailedDependency::default(),
            budget: ResourceAmounts::default(),
            not_before: None,
            wait_for_event: None,
            is_final: false,
            parent: None,
            overrides: None,
            fork: None,
            is_shared: false,
        }
    }

    /// `true` if an attempt at another task delegated it.
    pub fn is_child(&self) -> bool {
        self.parent.is_some()
    }

    /// `true` if an attempt at it starts only at a time or after an event.
    pub fn has_start_conditions(&self) -> bool {
        self.not_before.is_some() || self.wait_for_event.is_some()
    }

    /// The waits that must have ended before an attempt at it starts, in a run that started at `start`.
    pub(in crate::plan) fn start_waits(&self, start: Timestamp) -> Vec<Wait> {
        start_waits(self.not_before, self.wait_for_event.as_deref(), start)
    }

    /// `true` if it continues the same conversation as another task. The restrictions must be equal, so that a restricted agent does not
    /// learn the content that an unrestricted one has read.
    pub fn shares_conversation_with(&self, other: &Self) -> bool {
        let is_shared = self.is_shared && other.is_shared && self.capability == other.capability;
        is_shared && self.restrictions() == other.restrictions()
    }

    /// The only tools of the agent that does it, and the file rules in addition to its own.
    fn restrictions(&self) -> (Option<&BTreeSet<String>>, &[PermissionRules]) {
        self.overrides.as_deref().map_or((None, &[]), |own| (own.tools.as_ref(), &own.permissions))
    }

    /// `true` if it has fields that only a delegated task can have.
    pub fn has_fields_of_children(&self) -> bool {
        self.parent.is_some() || self.overrides.is_some() || self.fork.is_some() || self.is_shared
    }

    /// The task without the fields that only a delegated task can have.
    pub fn without_fields_of_children(&self) -> Self {
        Self { parent: None, overrides: None, fork: None, is_shared: false, ..self.clone() }
    }
}

/// The review of a result before it is accepted. Checks run first and cost no model call; only a result that passes them
/// goes to a critic.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Review")]
pub enum ReviewPolicy {
    /// The review that the capability declares; if it declares none, the result is accepted.
    #[default]
    None,
    /// Checks only, no model.
    Checks {
        /// The checks, at least one.
        checks: Vec<ReviewCheck>,
    },
    /// A critic's review by these criteria, in addition to those that it always applies.
    Critic {
        /// The criteria, one sentence each. May be empty: the critic's own criteria still apply.
        #[serde(default)]
        criteria: Vec<String>,
        /// The checks that run before a model is called.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        checks: Vec<ReviewCheck>,
        /// The models that judge independently; empty uses the critic's own model.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        models: Vec<String>,
        /// The number of models that must accept the result; `None` is a majority.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        quorum: Option<u32>,
        /// The percentage of results that models judge; the others only run the checks. `None` is all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sample_percent: Option<u8>,
    },
    /// Persons judge the result.
    Persons(Box<PersonReview>),
}

/// A review by persons. Each of them gets a question and has one vote; a critic that reviews the result before them has one
/// vote too. A result that fails the checks reaches no person, and neither does one whose fate is decided without them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PersonReview {
    /// The persons or roles that should judge, at least one; an empty name is anyone.
    pub ask: Vec<String>,
    /// The criteria, one sentence each; may be empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub criteria: Vec<String>,
    /// The number of votes that accept the result, of the persons and the critic; `None` is a majority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quorum: Option<u32>,
    /// The consequence of an expired question; `None` if the questions do not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry: Option<QuestionExpiry>,
    /// The review before that of the persons: none, checks or a critic.
    #[serde(default, skip_serializing_if = "ReviewPolicy::is_none")]
    pub first: ReviewPolicy,
}

impl PersonReview {
    /// The number of votes: those of the persons, and that of the critic if there is one.
    pub fn vote_count(&self) -> u32 {
        let persons = u32::try_from(self.ask.len()).unwrap_or(u32::MAX);
        persons.saturating_add(u32::from(matches!(self.first, ReviewPolicy::Critic { .. })))
    }

    /// The number of votes that accept the result.
    pub fn required_votes(&self) -> u32 {
        let votes = self.vote_count();
        self.quorum.map_or(votes / 2 + 1, |quorum| quorum.min(votes))
    }

    /// The same persons after another review. The vote of a critic that is new does not replace one of theirs.
    pub(in crate::plan) fn after(&self, first: ReviewPolicy) -> Self {
        let mut review = Self { first, ..self.clone() };
        if review.vote_count() > self.vote_count() {
            review.quorum = Some(self.required_votes() + 1);
        }
        review
    }
}

impl ReviewPolicy {
    /// `true` if no review is requested.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// The review that a critic does: this one, or the one before that of persons.
    pub fn by_critic(&self) -> &Self {
        if let Self::Persons(review) = self { &review.first } else { self }
    }

    /// The same review with more criteria for the critic or the persons; where there is neither, a critic reviews by them.
    #[must_use]
    pub fn with_criteria(self, more: &[String]) -> Self {
        if more.is_empty() {
            return self;
        }
        let append = |mut criteria: Vec<String>| {
            criteria.extend_from_slice(more);
            criteria
        };
        match self {
            Self::None => Self::critic(more.to_vec()),
            Self::Checks { checks } => Self::Critic {
                criteria: more.to_vec(),
                checks,
                models: Vec::new(),
                quorum: None,
                sample_percent: None,
            },
            Self::Critic { criteria, checks, models, quorum, sample_percent } => {
                Self::Critic { criteria: append(criteria), checks, models, quorum, sample_percent }
            }
            Self::Persons(review) => {
                let review = *review;
                Self::Persons(Box::new(PersonReview { criteria: append(review.criteria), ..review }))
            }
        }
    }

    /// Creates a critic's review by these criteria.
    #[must_use]
    pub fn critic(criteria: Vec<String>) -> Self {
        Self::Critic { criteria, checks: Vec::new(), models: Vec::new(), quorum: None, sample_percent: None }
    }
}

/// A check of a result without a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReviewCheck {
    /// Every citation in the output names a source of the result, every source is cited, and sources that are documents
    /// of the run are readable.
    Citations,
    /// Every quotation occurs verbatim in its source.
    Quotations,
    /// The result's data, or its output parsed as JSON, matches this JSON Schema.
    Schema(serde_json::Value),
    /// The output matches this regular expression somewhere.
    Matches(String),
    /// The output matches this regular expression nowhere.
    MatchesNot(String),
    /// A program that reads the result as JSON from standard input exits with 0.
    Command {
        /// The program and its arguments.
        command: Vec<String>,
        /// Its timeout in seconds; `None` is 60.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_s: Option<u32>,
    },
}

/// The time limits and attempts of a task. Durations are in seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Limits", deny_unknown_fields)]
pub struct TaskLimits {
    /// The number of attempts before the task fails, at least 1.
    #[serde(deserialize_with = "read_attempts")]
    pub max_attempts: u32,
    /// The backoff before the second attempt after an error; it doubles with each further attempt, up to 5 minutes.
    #[serde(with = "seconds")]
    #[schemars(with = "f64")]
    pub backoff: Duration,
    /// The maximum time that an attempt waits for a worker to claim it.
    #[serde(with = "seconds")]
    #[schemars(with = "f64")]
    pub queue_wait: Duration,
    /// The maximum time from an attempt's claim to its end.
    #[serde(with = "seconds")]
    #[schemars(with = "f64")]
    pub run_time: Duration,
    /// The maximum time between two journal entries of a running attempt.
    #[serde(with = "seconds")]
    #[schemars(with = "f64")]
    pub silence: Duration,
}

/// Reads a number of attempts. The rules check its bounds; a mistake names them.
fn read_attempts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    struct AttemptsVisitor;

    impl Visitor<'_> for AttemptsVisitor {
        type Value = u32;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(VALID_ATTEMPTS)
        }

        fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<u32, E> {
            u32::try_from(number).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
        }
    }

    deserializer.deserialize_u32(AttemptsVisitor)
}

impl Default for TaskLimits {
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

impl TaskLimits {
    /// `true` if all limits have their defaults.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the backoff before attempt `next` (2 or more) after an error: `backoff × 2^(next − 2)`, at most 5 minutes.
    pub fn backoff_before_attempt(&self, next: u32) -> Duration {
        let doublings = next.saturating_sub(2).min(20);
        self.backoff.saturating_mul(1 << doublings).min(Duration::from_secs(300).max(self.backoff))
    }
}

/// Durations as seconds, with fractions, in every format.
mod seconds {
    use std::fmt;
    use std::time::Duration;

    use serde::de::{Deserializer, Error, Unexpected, Visitor};
    use serde::ser::Serializer;

    use crate::time_text::{MAX_DURATION, duration_from_seconds, parse_duration_or_zero};

    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_secs_f64())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        deserializer.deserialize_any(SecondsVisitor)
    }

    /// Accepts the notation of files, too: text such as `90s`.
    struct SecondsVisitor;

    impl Visitor<'_> for SecondsVisitor {
        type Value = Duration;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let text = r#"a duration: seconds as a number, or text such as "90s", "1h 30m" or "30d""#;
            write!(f, "{text}, at most {} days", MAX_DURATION.as_secs() / 86_400)
        }

        #[expect(clippy::cast_precision_loss, reason = "numbers that lose precision are above the maximum")]
        fn visit_u64<E: Error>(self, seconds: u64) -> Result<Duration, E> {
            duration_from_seconds(seconds as f64)
                .map_err(|_| E::invalid_value(Unexpected::Unsigned(seconds), &self))
        }

        fn visit_i64<E: Error>(self, seconds: i64) -> Result<Duration, E> {
            Err(E::invalid_value(Unexpected::Signed(seconds), &self))
        }

        fn visit_f64<E: Error>(self, seconds: f64) -> Result<Duration, E> {
            duration_from_seconds(seconds).map_err(|_| E::invalid_value(Unexpected::Float(seconds), &self))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
            parse_duration_or_zero(text).map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
        }
    }
}

/// The policy of a task for a dependency that fails or is cancelled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFailedDependency {
    /// The task is cancelled too, and so are its dependents.
    #[default]
    Cancel,
    /// The task runs without that result.
    Skip,
    /// The task waits, and the planner decides; without a planner, it waits until a user changes the plan.
    #[serde(alias = "block")]
    Ask,
}

impl OnFailedDependency {
    /// `true` for the default.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The author of the plan of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Named)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Mode")]
pub enum PlanningMode {
    /// The planner makes and changes the plan.
    #[default]
    Llm,
    /// The planner extends and changes a plan that the user started.
    Hybrid,
    /// The user's plan is executed as it is.
    Fixed,
}

/// The submission of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// The user's objective, in plain language.
    pub objective: String,
    /// The author of the plan.
    pub mode: PlanningMode,
    /// The user's tasks; the whole plan for [`PlanningMode::Fixed`]. Shared with the decision that adds them, and with the plan.
    #[serde(default)]
    pub tasks: Vec<Arc<TaskSpec>>,
    /// The documents of the run, in the blob store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<DocumentSet>,
    /// The model that agents use, as `provider:model`; `None` uses each worker's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Models by capability, including `planner` and `critic`; they override `model`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<Capability, String>,
    /// `true` if the first failed task ends the run.
    #[serde(default)]
    pub fail_fast: bool,
    /// The budget.
    #[serde(default, skip_serializing_if = "Budget::is_default")]
    pub budget: Budget,
    /// The events on which the planner is called; `None` follows the mode: never for [`PlanningMode::Fixed`], else when judgement is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consult: Option<PlannerConsultMode>,
    /// `true` if a person must approve the plan before its first task starts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub approve_plan: bool,
    /// The consequence of verdicts on statements; `None` is that of each capability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<VerificationPolicy>,
    /// The criteria for the deliverable, one sentence each: they are added to the review of the final task.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub criteria: Vec<String>,
    /// The runs that this run follows up on; their results are among its documents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<EarlierRun>,
    /// The labels.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The session; the run starts when the runs that were submitted before it in the same session have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// The span in which the run was submitted: its trace links to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_parent: Option<TraceParent>,
}

/// A run that another one follows up on. The results of the earlier run are documents of the later one, so that agents search and
/// cite them, and the later run needs nothing of the earlier one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EarlierRun {
    /// Its id.
    pub run: RunId,
    /// Its objective, cut to [`MAX_EARLIER_TEXT`] bytes.
    pub objective: String,
    /// Its deliverable in a sentence; empty if it has none.
    pub summary: String,
    /// The folder, among the documents, with its results.
    pub folder: String,
}

/// The maximum number of runs that a run may follow up on.
pub const MAX_EARLIER_RUNS: usize = 16;
/// The maximum size, in bytes, of each text about an earlier run.
pub const MAX_EARLIER_TEXT: usize = 4_000;

impl Submission {
    /// `true` if the run has a planner.
    pub fn has_planner(&self) -> bool {
        match self.mode {
            PlanningMode::Llm | PlanningMode::Hybrid => true,
            PlanningMode::Fixed => self.consult.is_some_and(|consult| consult > PlannerConsultMode::Never),
        }
    }

    /// Creates a submission with all defaults.
    #[must_use]
    pub fn new(objective: impl Into<String>, mode: PlanningMode) -> Self {
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
            approve_plan: false,
            verification: None,
            criteria: Vec::new(),
            after: Vec::new(),
            labels: Labels::new(),
            session: None,
            trace_parent: None,
        }
    }

    /// The same submission with these tasks instead of its own.
    #[must_use]
    pub fn with_tasks(self, tasks: impl IntoIterator<Item = TaskSpec>) -> Self {
        Self { tasks: tasks.into_iter().map(Arc::new).collect(), ..self }
    }
}

/// The events on which the planner of a run is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Consult")]
pub enum PlannerConsultMode {
    /// Never.
    Never,
    /// When judgement is needed: no plan, a failure, nothing left to do, no progress, a message, a low budget.
    Judgement,
    /// The same, and after every accepted result.
    EveryResult,
}

/// The documents of a run: a manifest in the blob store, which is a MessagePack list of [`Document`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DocumentSet {
    /// The SHA-256 of the manifest in hexadecimal: its name in the blob store.
    pub manifest: String,
    /// The number of documents.
    pub count: u32,
    /// Their total size in bytes.
    pub bytes: u64,
}

/// A document that was submitted with a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// Its path below the submitted folder, with `/` between parts.
    pub path: String,
    /// The SHA-256 of its bytes in hexadecimal: its name in the blob store.
    pub sha256: String,
    /// Its size in bytes.
    pub size: u64,
}
