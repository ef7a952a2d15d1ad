//! What a run may use, and how much of it is set aside before work is given out. Arithmetic only; when a budget is
//! asked is a matter of the rules.
//!
//! ```text
//! limit ── used ── reserved ── left
//!          │       └ what work in flight may still use; its worker is held to it
//!          └ what work that has ended did use
//! ```
//!
//! Work is given out only when its reservation fits into what is left, so that a budget can be exceeded by what workers
//! use beyond their reservations and by nothing else: at most one model call each.

use std::time::Duration;

use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::result::Usage;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dimension {
    /// Tokens sent and received.
    Tokens,
    /// Tokens sent.
    InputTokens,
    /// Tokens received.
    OutputTokens,
    /// Tokens sent that the provider had in its cache.
    CachedTokens,
    /// Calls to models.
    ModelCalls,
    /// Money, in millionths of a US dollar.
    Cost,
}

impl Dimension {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 6] = [
        Self::Tokens,
        Self::InputTokens,
        Self::OutputTokens,
        Self::CachedTokens,
        Self::ModelCalls,
        Self::Cost,
    ];

    /// How much of it was used.
    #[must_use]
    pub fn of(self, usage: &Usage) -> u64 {
        match self {
            Self::Tokens => usage.input_tokens.saturating_add(usage.output_tokens),
            Self::InputTokens => usage.input_tokens,
            Self::OutputTokens => usage.output_tokens,
            Self::CachedTokens => usage.cached_tokens,
            Self::ModelCalls => usage.model_calls,
            Self::Cost => usage.cost_micros,
        }
    }

    /// An amount of it, for a person.
    #[must_use]
    pub fn say(self, amount: u64) -> String {
        match self {
            Self::Tokens => format!("{amount} tokens"),
            Self::InputTokens => format!("{amount} tokens sent"),
            Self::OutputTokens => format!("{amount} tokens received"),
            Self::CachedTokens => format!("{amount} cached tokens"),
            Self::ModelCalls => format!("{amount} model calls"),
            #[expect(clippy::cast_precision_loss, reason = "it is for a person")]
            Self::Cost => format!("${:.4}", amount as f64 / 1e6),
        }
    }
}

/// An amount of each thing that is counted; `None` is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct Amounts {
    /// Tokens sent and received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Tokens sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Tokens received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Tokens sent that the provider had in its cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Calls to models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_calls: Option<u64>,
    /// Money, in millionths of a US dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<u64>,
}

impl Amounts {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The amount of one thing.
    #[must_use]
    pub fn get(&self, dimension: Dimension) -> Option<u64> {
        match dimension {
            Dimension::Tokens => self.tokens,
            Dimension::InputTokens => self.input_tokens,
            Dimension::OutputTokens => self.output_tokens,
            Dimension::CachedTokens => self.cached_tokens,
            Dimension::ModelCalls => self.model_calls,
            Dimension::Cost => self.cost_micros,
        }
    }

    /// Sets the amount of one thing.
    pub fn set(&mut self, dimension: Dimension, amount: Option<u64>) {
        *match dimension {
            Dimension::Tokens => &mut self.tokens,
            Dimension::InputTokens => &mut self.input_tokens,
            Dimension::OutputTokens => &mut self.output_tokens,
            Dimension::CachedTokens => &mut self.cached_tokens,
            Dimension::ModelCalls => &mut self.model_calls,
            Dimension::Cost => &mut self.cost_micros,
        } = amount;
    }

    /// The things that are limited, with their amounts.
    pub fn iter(&self) -> impl Iterator<Item = (Dimension, u64)> + '_ {
        Dimension::ALL.into_iter().filter_map(|dimension| Some((dimension, self.get(dimension)?)))
    }

    /// The smaller of both, thing by thing.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        let mut smaller = self;
        for (dimension, amount) in other.iter() {
            let own = smaller.get(dimension);
            smaller.set(dimension, Some(own.map_or(amount, |own| own.min(amount))));
        }
        smaller
    }

    /// What is known to be used when nobody says what was: all of it, tokens of both kinds together no more than all
    /// tokens.
    #[must_use]
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

/// What a run as a whole may use. Shares are in percent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct Budget {
    /// What all work together may use: planner, workers, critics, and whom they consult.
    #[serde(flatten)]
    pub amounts: Amounts,
    /// What one attempt reserves where nothing smaller limits it; `None` is a quarter of what is left.
    #[serde(skip_serializing_if = "Amounts::is_empty")]
    pub attempt: Amounts,
    /// What all work of a capability may use; `planner` and `critic` are capabilities here too.
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub capabilities: std::collections::BTreeMap<crate::ids::Capability, Amounts>,
    /// How long the run may take from its start, pauses apart, in seconds.
    #[serde(skip_serializing_if = "Option::is_none", with = "optional_seconds")]
    #[schemars(with = "Option<f64>")]
    pub wall_time: Option<Duration>,
    /// How often the planner may be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    /// How many tasks a planner may have in the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<u32>,
    /// How many tasks of a plan that a planner extends may stand in a row, each waiting for the one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// At which part of an amount or of the time the planner is told to come to an end.
    pub soft_percent: u8,
    /// Which part of the amounts only the final task, its review, and the ends of running work may use.
    pub final_percent: u8,
    /// What becomes of running work when the budget is used up.
    pub when_spent: WhenSpent,
}

/// How often a planner may be asked in a run that says nothing about it.
pub const DEFAULT_STEPS: u32 = 20;
/// How many tasks a planner may have in a plan that says nothing about it.
pub const DEFAULT_TASKS: u32 = 1_000;
/// How deep a planner may make a plan that says nothing about it.
pub const DEFAULT_DEPTH: u32 = 100;

impl Default for Budget {
    fn default() -> Self {
        Self {
            amounts: Amounts::default(),
            attempt: Amounts::default(),
            capabilities: std::collections::BTreeMap::new(),
            wall_time: None,
            steps: None,
            tasks: None,
            depth: None,
            soft_percent: 80,
            final_percent: 10,
            when_spent: WhenSpent::Finish,
        }
    }
}

impl Budget {
    /// Whether it says nothing.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether work needs a reservation before it is given out, whatever its task says.
    #[must_use]
    pub fn counts(&self) -> bool {
        !self.amounts.is_empty() || !self.attempt.is_empty() || !self.capabilities.is_empty()
    }

    /// What of the time that it may take is over for a run that has worked so long; `None` if it may take any.
    #[must_use]
    pub(super) fn elapsed(&self, worked: SignedDuration) -> Option<Elapsed> {
        let limit = SignedDuration::try_from(self.wall_time?).ok()?;
        Some(Elapsed { worked, limit, soft_percent: self.soft_percent })
    }

    /// The budget with what `more` says in the place of what this one says.
    #[must_use]
    pub fn raised(&self, more: &Self) -> Self {
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
            steps: more.steps.or(self.steps),
            tasks: more.tasks.or(self.tasks),
            depth: more.depth.or(self.depth),
            ..self.clone()
        }
    }

    /// What is wrong with it, if anything is.
    ///
    /// # Errors
    /// The name of the field, and what it must be.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        if self.soft_percent == 0 || self.soft_percent > 100 {
            return Err(("soft_percent", "from 1 to 100"));
        }
        if self.final_percent > 90 {
            return Err(("final_percent", "from 0 to 90"));
        }
        if self.wall_time.is_some_and(|time| time.is_zero()) {
            return Err(("wall_time", "more than 0 seconds"));
        }
        let amounts = [self.amounts, self.attempt].into_iter().chain(self.capabilities.values().copied());
        if amounts.into_iter().any(|amounts| amounts.iter().any(|(_, amount)| amount == 0)) {
            return Err(("each amount", "1 or more"));
        }
        Ok(())
    }
}

/// What of a run's time is over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Elapsed {
    /// How long it has worked.
    pub worked: SignedDuration,
    /// How long it may.
    pub limit: SignedDuration,
    soft_percent: u8,
}

impl Elapsed {
    /// Whether the soft part is over: it is time to come to an end.
    pub fn is_low(&self) -> bool {
        self.worked.as_nanos() * 100 >= self.limit.as_nanos() * i128::from(self.soft_percent)
    }

    /// Whether all of it is over.
    pub fn is_over(&self) -> bool {
        self.worked >= self.limit
    }
}

/// What becomes of running work when the budget is used up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhenSpent {
    /// It goes on within what it has reserved.
    #[default]
    Finish,
    /// It is cancelled.
    Cancel,
}

/// Durations that may be missing, as seconds with fractions.
mod optional_seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    #[expect(clippy::ref_option, reason = "serde asks for it")]
    pub fn serialize<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        time.map(|time| time.as_secs_f64()).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        let Some(seconds) = Option::<f64>::deserialize(deserializer)? else { return Ok(None) };
        let time = Duration::try_from_secs_f64(seconds)
            .map_err(|_| D::Error::custom(format!("{seconds} is no number of seconds, 0 or more")))?;
        Ok(Some(time))
    }
}
