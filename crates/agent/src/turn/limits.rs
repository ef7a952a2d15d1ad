//! The limits of one attempt, their defaults and their written form; and the amounts that it may use: the smaller of its capability's
//! limits and its reservation in the run's budget. Arithmetic only. The machine checks before each model request, so an amount is
//! exceeded by at most one request.
//!
//! # Invariants
//!
//! - I28: Every limit of an attempt ends it with the limit's name and the output so far; any sequence of replies ends in an
//!   outcome. (`crates/agent/tests/turn/limits.rs::every_limit_ends_the_turn_and_is_named`,
//!   `crates/agent/tests/turn/properties.rs::any_replies_end_in_an_outcome_with_all_calls_answered`)
//! - I68: No attempt sends a first request that its reservation does not pay for; fewer run at once, and the final task keeps
//!   enough for its own. (`tests/tests/behaviours/providers.rs::small_budget_ends_with_an_answer_and_pays_for_every_request`,
//!   `crates/agent/tests/turn/allowance.rs::attempt_exceeds_its_reservation_by_at_most_one_call`)

use std::fmt;
use std::time::Duration;

use millrace_protocol::plan::{ResourceAmounts, ResourceKind};
use millrace_protocol::result::Usage;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::StopReason;

/// The limits of an agent in one attempt. Reaching one ends the attempt, with the partial result so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Maximum number of model replies.
    #[schemars(range(min = 1))]
    pub turns: u32,
    /// Maximum number of tool calls, including refused ones. After the conversation is compacted, counting restarts with
    /// half of this.
    pub tool_calls: u32,
    /// Maximum number of times that a call is made with the same arguments and the same result while nothing else is new or
    /// changed. The second time gets a hint, the last one withdraws the tool until something has changed.
    #[schemars(range(min = 1))]
    pub identical_calls: u32,
    /// Maximum number of corrections of an invalid answer.
    pub repairs: u32,
    /// Maximum number of tokens sent, including cached ones; no limit by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Maximum number of tokens received; no limit by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Maximum number of sent tokens that the provider had cached; no limit by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Maximum cost of an attempt in US dollars; a model whose price is not known is refused. No limit by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Dollars>,
    /// Working time: the duration of model calls and tool calls, counting the longest of concurrent ones. In seconds, or
    /// as text such as `15m`; no limit by default.
    #[serde(skip_serializing_if = "Option::is_none", with = "time")]
    #[schemars(with = "Option<time::DurationInput>")]
    pub time: Option<Duration>,
}

impl Limits {
    /// 30 turns, 20 tool calls, at most 3 identical calls that change nothing, 2 corrections, and no other limits.
    pub const DEFAULT: Self = Self {
        turns: 30,
        tool_calls: 20,
        identical_calls: 3,
        repairs: 2,
        input_tokens: None,
        output_tokens: None,
        cached_tokens: None,
        cost: None,
        time: None,
    };

    /// The limit that another model request of at least `next_input` tokens would exceed.
    pub(super) fn find_exceeded_limit(
        &self,
        usage: &Usage,
        worked: Duration,
        next_input: u64,
    ) -> Option<StopReason> {
        let over = |limit: Option<u64>, used: u64| limit.filter(|limit| used >= *limit);
        if let Some(limit) = self.time.filter(|limit| worked >= *limit) {
            return Some(StopReason::Time { limit });
        }
        if let Some(limit) = self.cost.filter(|limit| usage.cost_micros >= limit.micros()) {
            return Some(StopReason::Cost { limit, used: Dollars::from_micros(usage.cost_micros) });
        }
        if let Some(limit) = over(self.output_tokens, usage.output_tokens) {
            return Some(StopReason::OutputTokens { limit, used: usage.output_tokens });
        }
        if let Some(limit) = over(self.cached_tokens, usage.cached_tokens) {
            return Some(StopReason::CachedTokens { limit, used: usage.cached_tokens });
        }
        // Each request resends the conversation: a request that is certain to exceed the limit is not sent.
        let limit = self.input_tokens?;
        let would = usage.input_tokens.saturating_add(next_input.max(1));
        (would > limit).then_some(StopReason::InputTokens { limit, used: usage.input_tokens })
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// An amount in US dollars, stored in millionths. Serialised as a number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
#[schemars(with = "f64")]
pub struct Dollars(u64);

impl Dollars {
    /// An amount in millionths of a dollar.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The amount in millionths of a dollar.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0
    }

    #[expect(clippy::cast_precision_loss, reason = "amounts of money stay far below 2^53 millionths")]
    fn to_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl fmt::Display for Dollars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${}", self.to_f64())
    }
}

impl Serialize for Dollars {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.to_f64())
    }
}

impl<'de> Deserialize<'de> for Dollars {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the amount was checked to lie between 0 and a billion dollars"
    )]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let amount = f64::deserialize(deserializer)?;
        if !(0.0..=1e9).contains(&amount) {
            return Err(serde::de::Error::custom(format!(
                "{amount} is not an amount of dollars from 0 to 1e9"
            )));
        }
        Ok(Self((amount * 1e6).round() as u64))
    }
}

/// A duration, serialised as seconds and parsed from seconds or from text such as `15m` or `1h 30m`.
mod time {
    use std::time::Duration;

    use millrace_protocol::time_text;
    use schemars::JsonSchema;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(untagged, expecting = "expected seconds, or a text such as 15m or 1h 30m")]
    pub(super) enum DurationInput {
        Seconds(f64),
        Text(String),
    }

    #[expect(clippy::ref_option, reason = "serde gives a reference to the field")]
    pub(super) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        time.map(|time| time.as_secs_f64()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let Some(written) = Option::<DurationInput>::deserialize(deserializer)? else {
            return Ok(None);
        };
        let duration = match written {
            DurationInput::Seconds(seconds) => time_text::duration_from_seconds(seconds),
            DurationInput::Text(text) => time_text::parse_duration_or_zero(&text),
        };
        duration.map(Some).map_err(serde::de::Error::custom)
    }
}

/// The used percentage of an amount at which an agent gets the notice to finish.
const NEARLY_PERCENT: u128 = 80;

/// The amounts of one attempt.
pub(super) struct AttemptAllowance {
    /// The amounts reserved in the run's budget.
    reserved: ResourceAmounts,
    /// For each dimension the smaller of the reservation and the capability's own limit.
    smaller: ResourceAmounts,
}

impl AttemptAllowance {
    pub fn new(limits: &Limits, reserved: ResourceAmounts) -> Self {
        let own = ResourceAmounts {
            input_tokens: limits.input_tokens,
            output_tokens: limits.output_tokens,
            cached_tokens: limits.cached_tokens,
            cost_micros: limits.cost.map(super::Dollars::micros),
            ..ResourceAmounts::default()
        };
        Self { reserved, smaller: own.min_per_resource(reserved) }
    }

    /// The reserved amount that another request of at least `next_input` tokens would exceed.
    pub fn find_exceeded_limit(&self, used: &Usage, next_input: u64) -> Option<StopReason> {
        let (dimension, limit) = find_exceeded_amount(&self.reserved, used, next_input, 1)?;
        Some(StopReason::Allowance { dimension, limit, used: dimension.amount_used(used) })
    }

    /// `true` if the amounts suffice for one more request only.
    pub fn is_last_request(&self, used: &Usage, next_input: u64) -> bool {
        find_exceeded_amount(&self.smaller, used, next_input, 2).is_some()
    }

    /// `true` if so much is used that the agent should finish.
    pub fn is_nearly_used_up(&self, used: &Usage) -> bool {
        let nearly = |(dimension, limit): (ResourceKind, u64)| {
            u128::from(dimension.amount_used(used)) * 100 >= u128::from(limit) * NEARLY_PERCENT
        };
        self.smaller.iter().any(nearly)
    }

    /// The maximum number of tokens for the next reply.
    pub fn max_reply_tokens(&self, used: &Usage, next_input: u64) -> u32 {
        let sent = next_input.max(1);
        let tokens = self
            .smaller
            .tokens
            .map(|limit| limit.saturating_sub(ResourceKind::Tokens.amount_used(used) + sent));
        let output = self.smaller.output_tokens.map(|limit| limit.saturating_sub(used.output_tokens));
        let left = [tokens, output].into_iter().flatten().min();
        left.and_then(|left| u32::try_from(left).ok()).unwrap_or(u32::MAX)
    }

    /// The amounts left for a turn's tool calls: all but what the model request after them needs.
    pub fn amounts_left_for_calls(&self, used: &Usage, next_input: u64) -> ResourceAmounts {
        let mut left = self.smaller;
        for (dimension, limit) in self.smaller.iter() {
            let taken = dimension.amount_used(used).saturating_add(min_request_usage(dimension, next_input));
            left.set(dimension, Some(limit.saturating_sub(taken)));
        }
        left
    }
}

/// The first amount that `requests` more requests would exceed at their minimum.
fn find_exceeded_amount(
    amounts: &ResourceAmounts,
    used: &Usage,
    next_input: u64,
    requests: u64,
) -> Option<(ResourceKind, u64)> {
    amounts.iter().find(|(dimension, limit)| {
        let more = min_request_usage(*dimension, next_input).saturating_mul(requests);
        dimension.amount_used(used).saturating_add(more) > *limit
    })
}

/// The minimum that a request of at least `next_input` tokens uses.
fn min_request_usage(dimension: ResourceKind, next_input: u64) -> u64 {
    match dimension {
        ResourceKind::Tokens => next_input.max(1).saturating_add(1),
        ResourceKind::InputTokens => next_input.max(1),
        ResourceKind::OutputTokens
        | ResourceKind::CachedTokens
        | ResourceKind::ModelCalls
        | ResourceKind::Cost => 1,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn limits_are_parsed_and_serialised() {
        let read = |value| serde_json::from_value::<Limits>(value);
        assert_eq!(read(json!({})).unwrap(), Limits::DEFAULT);
        let limits = read(json!({"turns": 5, "cost": 0.25, "time": "1h 30m", "input_tokens": 1000})).unwrap();
        let expected = Limits {
            turns: 5,
            cost: Some(Dollars::from_micros(250_000)),
            time: Some(Duration::from_secs(5400)),
            input_tokens: Some(1000),
            ..Limits::DEFAULT
        };
        assert_eq!(limits, expected);
        assert_eq!(read(serde_json::to_value(limits).unwrap()).unwrap(), limits);
        assert_eq!(read(json!({"time": 1.5})).unwrap().time, Some(Duration::from_millis(1500)));
        assert_eq!(read(json!({"time": "2d"})).unwrap().time, Some(Duration::from_hours(48)));
        for wrong in [
            json!({"cost": -1}),
            json!({"cost": 1e12}),
            json!({"time": "soon"}),
            json!({"time": -5}),
            json!({"time": "-5s"}),
            json!({"steps": 3}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_limit_is_reached_when_the_next_request_would_exceed_it() {
        let usage = Usage {
            input_tokens: 80,
            output_tokens: 10,
            cached_tokens: 5,
            cost_micros: 7,
            ..Usage::default()
        };
        let none = Limits::DEFAULT;
        let limited = |limits: Limits| limits.find_exceeded_limit(&usage, Duration::from_secs(3), 30);
        let cents = Dollars::from_micros;
        let table = [
            (none, None),
            (Limits { input_tokens: Some(110), ..none }, None),
            (
                Limits { input_tokens: Some(109), ..none },
                Some(StopReason::InputTokens { limit: 109, used: 80 }),
            ),
            (Limits { output_tokens: Some(11), ..none }, None),
            (
                Limits { output_tokens: Some(10), ..none },
                Some(StopReason::OutputTokens { limit: 10, used: 10 }),
            ),
            (Limits { cached_tokens: Some(5), ..none }, Some(StopReason::CachedTokens { limit: 5, used: 5 })),
            (Limits { cost: Some(cents(8)), ..none }, None),
            (
                Limits { cost: Some(cents(7)), ..none },
                Some(StopReason::Cost { limit: cents(7), used: cents(7) }),
            ),
            (
                Limits { time: Some(Duration::from_secs(3)), ..none },
                Some(StopReason::Time { limit: Duration::from_secs(3) }),
            ),
        ];
        for (limits, expected) in table {
            assert_eq!(limited(limits), expected, "{limits:?}");
        }
    }

    #[test]
    fn a_reservation_is_reached_when_the_next_request_would_exceed_it() {
        let used = Usage {
            model_calls: 2,
            input_tokens: 80,
            output_tokens: 10,
            cached_tokens: 5,
            cost_micros: 7,
            ..Usage::default()
        };
        let table = [
            // The next request resends thirty tokens, and at least one comes back.
            (ResourceKind::Tokens, 121, 120),
            (ResourceKind::InputTokens, 110, 109),
            (ResourceKind::OutputTokens, 11, 10),
            (ResourceKind::CachedTokens, 6, 5),
            (ResourceKind::ModelCalls, 3, 2),
            (ResourceKind::Cost, 8, 7),
        ];
        for (dimension, enough, too_little) in table {
            let reached = |limit| {
                let mut reserved = ResourceAmounts::default();
                reserved.set(dimension, Some(limit));
                let allowance = AttemptAllowance::new(&Limits::DEFAULT, reserved);
                (allowance.find_exceeded_limit(&used, 30), allowance.is_last_request(&used, 30))
            };
            assert_eq!(reached(enough), (None, true), "{dimension:?}");
            let stop =
                StopReason::Allowance { dimension, limit: too_little, used: dimension.amount_used(&used) };
            assert_eq!(reached(too_little), (Some(stop), true), "{dimension:?}");
            assert_eq!(reached(1_000), (None, false), "{dimension:?}");
        }
    }

    #[test]
    fn the_smaller_of_limit_and_reservation_counts() {
        let limits = Limits { output_tokens: Some(100), input_tokens: Some(1_000), ..Limits::DEFAULT };
        let reserved =
            ResourceAmounts { output_tokens: Some(500), tokens: Some(120), ..ResourceAmounts::default() };
        let used = Usage { input_tokens: 60, output_tokens: 20, ..Usage::default() };
        let allowance = AttemptAllowance::new(&limits, reserved);
        assert_eq!(allowance.max_reply_tokens(&Usage::default(), 0), 100);
        assert_eq!(allowance.max_reply_tokens(&used, 30), 10);
        let left = allowance.amounts_left_for_calls(&used, 30);
        assert_eq!((left.tokens, left.input_tokens, left.output_tokens), (Some(9), Some(910), Some(79)));
        assert!(!allowance.is_nearly_used_up(&used));
        assert!(allowance.is_nearly_used_up(&Usage { input_tokens: 76, ..used }));
    }
}
