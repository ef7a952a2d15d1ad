//! How far an agent may go. This file owns the limits of one attempt, their defaults and how they are written; the
//! machine holds to them.

use std::fmt;
use std::time::Duration;

use millrace_protocol::result::Usage;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Stop;

/// How far an agent may go in one attempt. Reaching a limit ends the attempt, with what was produced by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Replies of the model, all in all.
    #[schemars(range(min = 1))]
    pub turns: u32,
    /// Tool calls, the refused ones included. After the conversation was made shorter they are counted anew, up to half
    /// of this.
    pub tool_calls: u32,
    /// How often one call with the same arguments may be made.
    #[schemars(range(min = 1))]
    pub identical_calls: u32,
    /// How often an unusable answer may be mended.
    pub repairs: u32,
    /// Tokens sent, those from the provider's cache included; none is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Tokens received; none is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Tokens sent that the provider had in its cache; none is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// US dollars, as far as prices are known; none is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Dollars>,
    /// Working time: what model calls and tool calls took, those that ran at once counted by the longest. In seconds,
    /// or as text such as `15m`; none is no limit.
    #[serde(skip_serializing_if = "Option::is_none", with = "time")]
    #[schemars(with = "Option<time::Written>")]
    pub time: Option<Duration>,
}

impl Limits {
    /// 30 turns, 20 tool calls, one call at most 3 times, 2 repairs, and no other limits.
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

    /// Which limit stands against another question to the model, which would send at least `next_input` tokens.
    pub(super) fn reached(&self, usage: &Usage, worked: Duration, next_input: u64) -> Option<Stop> {
        let over = |limit: Option<u64>, used: u64| limit.filter(|limit| used >= *limit);
        if let Some(limit) = self.time.filter(|limit| worked >= *limit) {
            return Some(Stop::Time { limit });
        }
        if let Some(limit) = self.cost.filter(|limit| usage.cost_micros >= limit.micros()) {
            return Some(Stop::Cost { limit, used: Dollars::of_micros(usage.cost_micros) });
        }
        if let Some(limit) = over(self.output_tokens, usage.output_tokens) {
            return Some(Stop::OutputTokens { limit, used: usage.output_tokens });
        }
        if let Some(limit) = over(self.cached_tokens, usage.cached_tokens) {
            return Some(Stop::CachedTokens { limit, used: usage.cached_tokens });
        }
        // Asking again sends the conversation again: what would pass the limit for certain is not asked.
        let limit = self.input_tokens?;
        let would = usage.input_tokens.saturating_add(next_input.max(1));
        (would > limit).then_some(Stop::InputTokens { limit, used: usage.input_tokens })
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// An amount of money in US dollars, kept in millionths. Written as a number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
#[schemars(with = "f64")]
pub struct Dollars(u64);

impl Dollars {
    /// An amount in millionths of a dollar.
    #[must_use]
    pub const fn of_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The amount in millionths of a dollar.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0
    }

    #[expect(clippy::cast_precision_loss, reason = "amounts of money stay far below 2^53 millionths")]
    fn as_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl fmt::Display for Dollars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${}", self.as_f64())
    }
}

impl Serialize for Dollars {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.as_f64())
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
            return Err(serde::de::Error::custom(format!("{amount} is no amount of dollars from 0 to 1e9")));
        }
        Ok(Self((amount * 1e6).round() as u64))
    }
}

/// A span of time, written as seconds and read as those or as text such as `15m` or `1h 30m`.
mod time {
    use std::time::Duration;

    use jiff::SignedDuration;
    use schemars::JsonSchema;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(untagged, expecting = "expected seconds, or a text such as 15m or 1h 30m")]
    pub(super) enum Written {
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
        let Some(written) = Option::<Written>::deserialize(deserializer)? else {
            return Ok(None);
        };
        let span = match written {
            Written::Seconds(seconds) => Duration::try_from_secs_f64(seconds).ok(),
            Written::Text(text) => text.parse::<SignedDuration>().ok().and_then(|span| span.try_into().ok()),
        };
        span.map(Some)
            .ok_or_else(|| serde::de::Error::custom("expected seconds, or a text such as 15m or 1h 30m"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn limits_are_read_as_people_write_them_and_survive_being_written() {
        let read = |value| serde_json::from_value::<Limits>(value);
        assert_eq!(read(json!({})).unwrap(), Limits::DEFAULT);
        let limits = read(json!({"turns": 5, "cost": 0.25, "time": "1h 30m", "input_tokens": 1000})).unwrap();
        let expected = Limits {
            turns: 5,
            cost: Some(Dollars::of_micros(250_000)),
            time: Some(Duration::from_secs(5400)),
            input_tokens: Some(1000),
            ..Limits::DEFAULT
        };
        assert_eq!(limits, expected);
        assert_eq!(read(serde_json::to_value(limits).unwrap()).unwrap(), limits);
        assert_eq!(read(json!({"time": 1.5})).unwrap().time, Some(Duration::from_millis(1500)));
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
    fn a_limit_is_reached_when_another_question_would_pass_it() {
        let usage = Usage {
            input_tokens: 80,
            output_tokens: 10,
            cached_tokens: 5,
            cost_micros: 7,
            ..Usage::default()
        };
        let none = Limits::DEFAULT;
        let limited = |limits: Limits| limits.reached(&usage, Duration::from_secs(3), 30);
        let cents = Dollars::of_micros;
        let table = [
            (none, None),
            (Limits { input_tokens: Some(110), ..none }, None),
            (Limits { input_tokens: Some(109), ..none }, Some(Stop::InputTokens { limit: 109, used: 80 })),
            (Limits { output_tokens: Some(11), ..none }, None),
            (Limits { output_tokens: Some(10), ..none }, Some(Stop::OutputTokens { limit: 10, used: 10 })),
            (Limits { cached_tokens: Some(5), ..none }, Some(Stop::CachedTokens { limit: 5, used: 5 })),
            (Limits { cost: Some(cents(8)), ..none }, None),
            (Limits { cost: Some(cents(7)), ..none }, Some(Stop::Cost { limit: cents(7), used: cents(7) })),
            (
                Limits { time: Some(Duration::from_secs(3)), ..none },
                Some(Stop::Time { limit: Duration::from_secs(3) }),
            ),
        ];
        for (limits, expected) in table {
            assert_eq!(limited(limits), expected, "{limits:?}");
        }
    }
}
