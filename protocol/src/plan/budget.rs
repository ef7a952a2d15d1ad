//! Budgets of runs, and the part of them that is reserved before work is dispatched. Arithmetic only; the rules decide
//! when a budget is checked.
//!
//! ```text
//! limit ── used ── reserved ── left
//!          │       └ what work in flight may still use; its worker enforces it
//!          └ what finished work has used
//! ```
//!
//! Work is dispatched only when its reservation fits into what is left. So a budget can be exceeded only by
//! workers that use more than they have reserved: at most one model call each.

use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::result::Usage;

/// A resource that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResourceKind {
    /// Input and output tokens.
    Tokens,
    InputTokens,
    OutputTokens,
    /// Input tokens that were read from the provider's cache.
    CachedTokens,
    ModelCalls,
    /// Cost, in millionths of a US dollar.
    Cost,
}

impl ResourceKind {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 6] = [
        Self::Tokens,
        Self::InputTokens,
        Self::OutputTokens,
        Self::CachedTokens,
        Self::ModelCalls,
        Self::Cost,
    ];

    #[must_use]
    pub fn amount_used(self, usage: &Usage) -> u64 {
        match self {
            Self::Tokens => usage.input_tokens.saturating_add(usage.output_tokens),
            Self::InputTokens => usage.input_tokens,
            Self::OutputTokens => usage.output_tokens,
            Self::CachedTokens => usage.cached_tokens,
            Self::ModelCalls => usage.model_calls,
            Self::Cost => usage.cost_micros,
        }
    }

    /// `true` if each model call uses some of it. The cost may be 0, because a model on one's own machine is free, and so may
    /// be the cached tokens, because not every provider caches.
    #[must_use]
    pub fn is_used_by_each_call(self) -> bool {
        match self {
            Self::Tokens | Self::InputTokens | Self::OutputTokens | Self::ModelCalls => true,
            Self::CachedTokens | Self::Cost => false,
        }
    }

    /// Formats an amount for a person.
    #[must_use]
    pub fn format_amount(self, amount: u64) -> String {
        match self {
            Self::Tokens => format!("{amount} tokens"),
            Self::InputTokens => format!("{amount} input tokens"),
            Self::OutputTokens => format!("{amount} output tokens"),
            Self::CachedTokens => format!("{amount} cached tokens"),
            Self::ModelCalls => format!("{amount} model calls"),
            #[expect(clippy::cast_precision_loss, reason = "it is shown to a person")]
            Self::Cost => format!("${:.4}", amount as f64 / 1e6),
        }
    }
}

/// An amount of each resource; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Amounts", deny_unknown_fields)]
pub struct ResourceAmounts {
    /// Input and output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Input tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Input tokens that were read from the provider's cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Model calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_calls: Option<u64>,
    /// Cost, in millionths of a US dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<u64>,
}

/// `5000 tokens, 3 model calls`; empty if nothing is limited.
impl fmt::Display for ResourceAmounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amounts: Vec<String> =
            self.iter().map(|(dimension, amount)| dimension.format_amount(amount)).collect();
        f.write_str(&amounts.join(", "))
    }
}

impl ResourceAmounts {
    /// `true` if nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the amount of a resource.
    pub fn get(&self, dimension: ResourceKind) -> Option<u64> {
        match dimension {
            ResourceKind::Tokens => self.tokens,
            ResourceKind::InputTokens => self.input_tokens,
            ResourceKind::OutputTokens => self.output_tokens,
            ResourceKind::CachedTokens => self.cached_tokens,
            ResourceKind::ModelCalls => self.model_calls,
            ResourceKind::Cost => self.cost_micros,
        }
    }

    pub fn set(&mut self, dimension: ResourceKind, amount: Option<u64>) {
        *match dimension {
            ResourceKind::Tokens => &mut self.tokens,
            ResourceKind::InputTokens => &mut self.input_tokens,
            ResourceKind::OutputTokens => &mut self.output_tokens,
            ResourceKind::CachedTokens => &mut self.cached_tokens,
            ResourceKind::ModelCalls => &mut self.model_calls,
            ResourceKind::Cost => &mut self.cost_micros,
        } = amount;
    }

    /// Returns the limited resources with their amounts.
    pub fn iter(&self) -> impl Iterator<Item = (ResourceKind, u64)> + '_ {
        ResourceKind::ALL.into_iter().filter_map(|dimension| Some((dimension, self.get(dimension)?)))
    }

    /// Returns the smaller amount of each resource.
    #[must_use]
    pub fn min_per_resource(self, other: Self) -> Self {
        let mut smaller = self;
        for (dimension, amount) in other.iter() {
            let own = smaller.get(dimension);
            smaller.set(dimension, Some(own.map_or(amount, |own| own.min(amount))));
        }
        smaller
    }

    /// Returns the amounts of the resources that `other` limits.
    #[must_use]
    pub fn of_same_dimensions(self, other: Self) -> Self {
        let mut same = Self::default();
        for (dimension, _) in other.iter() {
            same.set(dimension, self.get(dimension));
        }
        same
    }

    /// Returns the larger amount of each resource; no amount is the smallest.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        let mut larger = self;
        for (dimension, amount) in other.iter() {
            larger.set(dimension, larger.get(dimension).max(Some(amount)));
        }
        larger
    }

    /// Returns the usage to assume when the actual usage is unknown: everything; input and output tokens together at most
    /// the limit of all tokens.
    pub fn as_usage(&self) -> Usage {
        let (sent, received) = (self.input_tokens, self.output_tokens.unwrap_or(0));
        let (input_tokens, output_tokens) = match self.tokens {
            None => (sent.unwrap_or(0), received),
            Some(all) => {
                let received = received.min(all);
                (sent.unwrap_or(all).min(all - received), received)
            }
        };
        Usage {
            model_calls: self.model_calls.unwrap_or(0),
            input_tokens,
            output_tokens,
            cached_tokens: self.cached_tokens.unwrap_or(0),
            cost_micros: self.cost_micros.unwrap_or(0),
            ..Usage::default()
        }
    }
}

/// The budget of a run. Shares are in percent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct Budget {
    /// The limits of all work together: planner, workers, critics, and consulted capabilities.
    #[serde(flatten)]
    pub amounts: ResourceAmounts,
    /// The reservation of one attempt if nothing smaller limits it; `None` is a quarter of the rest.
    #[serde(skip_serializing_if = "ResourceAmounts::is_empty")]
    pub attempt: ResourceAmounts,
    /// The limits of all work of a capability, including `planner` and `critic`.
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub capabilities: std::collections::BTreeMap<crate::ids::Capability, ResourceAmounts>,
    /// The maximum duration of the run from its start, without pauses, in seconds.
    #[serde(skip_serializing_if = "Option::is_none", with = "optional_seconds")]
    #[schemars(with = "Option<f64>")]
    pub wall_time: Option<Duration>,
    /// The time that work may wait for a provider that does not answer before the run pauses, in seconds; `None` is
    /// [`DEFAULT_PROVIDER_TIMEOUT`].
    #[serde(skip_serializing_if = "Option::is_none", with = "optional_seconds")]
    #[schemars(with = "Option<f64>")]
    pub provider_timeout: Option<Duration>,
    /// The maximum number of planning turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    /// The maximum number of tasks in a plan with a planner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<u32>,
    /// The maximum depth of a plan with a planner: the number of tasks in a row that wait for each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// The share of an amount or of the time after which the planner must finish soon.
    pub soft_percent: u8,
    /// The share of the amounts that is kept for the final task, its review, and the ends of running work.
    pub final_percent: u8,
    /// The policy for running work when the budget is exhausted.
    pub when_spent: BudgetExhaustionPolicy,
}

/// The default of [`Budget::provider_timeout`]: longer than the usual incident of a provider, shorter than anybody should
/// have to wait for the news that a run stands still.
pub const DEFAULT_PROVIDER_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// The default of [`Budget::steps`].
pub const DEFAULT_STEPS: u32 = 20;
/// The default of [`Budget::tasks`].
pub const DEFAULT_TASKS: u32 = 1_000;
/// The tokens that a run without a limit may use for each different task of a plan that its planner makes: ten times what
/// tasks usually need, so that only work that goes round in circles reaches it.
pub const DEFAULT_TOKENS_PER_TASK: u64 = 100_000;
/// The default of [`Budget::depth`].
pub const DEFAULT_DEPTH: u32 = 100;

impl Default for Budget {
    fn default() -> Self {
        Self {
            amounts: ResourceAmounts::default(),
            attempt: ResourceAmounts::default(),
            capabilities: std::collections::BTreeMap::new(),
            wall_time: None,
            provider_timeout: None,
            steps: None,
            tasks: None,
            depth: None,
            soft_percent: 80,
            final_percent: 10,
            when_spent: BudgetExhaustionPolicy::Finish,
        }
    }
}

impl Budget {
    /// `true` if all fields have their defaults.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// `true` if all work of the run needs a reservation, even for tasks without a budget.
    pub fn needs_reservations(&self) -> bool {
        !self.amounts.is_empty() || !self.attempt.is_empty() || !self.capabilities.is_empty()
    }

    /// Returns the elapsed part of the time limit for a run that has run for `worked`; `None` without a limit.
    pub(super) fn elapsed_time(&self, worked: SignedDuration) -> Option<ElapsedRunTime> {
        let limit = SignedDuration::try_from(self.wall_time?).ok()?;
        Some(ElapsedRunTime { worked, limit, soft_percent: self.soft_percent })
    }

    /// Returns the budget with the fields of `more` that are set.
    pub fn with_overrides(&self, more: &Self) -> Self {
        let mut amounts = self.amounts;
        more.amounts.iter().for_each(|(dimension, amount)| amounts.set(dimension, Some(amount)));
        let mut attempt = self.attempt;
        more.attempt.iter().for_each(|(dimension, amount)| attempt.set(dimension, Some(amount)));
        let mut capabilities = self.capabilities.clone();
        capabilities.extend(more.capabilities.clone());
        Self {
            amounts,
            attempt,
            capabilities,
            wall_time: more.wall_time.or(self.wall_time),
            provider_timeout: more.provider_timeout.or(self.provider_timeout),
            steps: more.steps.or(self.steps),
            tasks: more.tasks.or(self.tasks),
            depth: more.depth.or(self.depth),
            ..self.clone()
        }
    }

    /// Validates it.
    pub fn check_values(&self) -> Result<(), (&'static str, &'static str)> {
        if self.soft_percent == 0 || self.soft_percent > 100 {
            return Err(("soft_percent", "from 1 to 100"));
        }
        if self.final_percent > 90 {
            return Err(("final_percent", "from 0 to 90"));
        }
        if self.wall_time.is_some_and(|time| time.is_zero()) {
            return Err(("wall_time", "more than 0 seconds"));
        }
        if self.provider_timeout.is_some_and(|time| time.is_zero()) {
            return Err(("provider_timeout", "more than 0 seconds"));
        }
        let amounts = [self.amounts, self.attempt].into_iter().chain(self.capabilities.values().copied());
        if amounts.into_iter().any(|amounts| amounts.iter().any(|(_, amount)| amount == 0)) {
            return Err(("each amount", "1 or more"));
        }
        Ok(())
    }
}

/// The elapsed part of a run's time limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct ElapsedRunTime {
    /// The run time so far.
    pub worked: SignedDuration,
    pub limit: SignedDuration,
    soft_percent: u8,
}

impl ElapsedRunTime {
    /// `true` if the soft limit has passed.
    pub fn is_past_soft_limit(&self) -> bool {
        self.worked.as_nanos() * 100 >= self.limit.as_nanos() * i128::from(self.soft_percent)
    }

    /// `true` if the limit has passed.
    pub fn is_past_limit(&self) -> bool {
        self.worked >= self.limit
    }
}

/// The policy for running work when the budget is exhausted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "WhenSpent")]
pub enum BudgetExhaustionPolicy {
    /// It continues within its reservation.
    #[default]
    Finish,
    /// It is cancelled.
    Cancel,
}

/// Optional durations, as seconds with fractions.
pub(crate) mod optional_seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    use crate::time_text::duration_from_seconds;

    #[expect(clippy::ref_option, reason = "serde requires it")]
    pub fn serialize<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        time.map(|time| time.as_secs_f64()).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        let Some(seconds) = Option::<f64>::deserialize(deserializer)? else { return Ok(None) };
        duration_from_seconds(seconds).map(Some).map_err(D::Error::custom)
    }
}
