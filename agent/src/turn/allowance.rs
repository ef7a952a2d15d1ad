//! What an attempt may use of models: the smaller of what its capability allows and what is reserved of the run's
//! budget. Arithmetic only; the machine asks before each question, so that what is used beyond an amount is at most one
//! question's.

use millrace_protocol::plan::{Amounts, Dimension};
use millrace_protocol::result::Usage;

use super::{Limits, Stop};

/// At which part of an amount an agent is told to come to an end.
const NEARLY_PERCENT: u128 = 80;

/// The amounts of one attempt.
pub(super) struct Allowance {
    /// What is reserved of the run's budget.
    reserved: Amounts,
    /// The smaller of this and the capability's own limits.
    smaller: Amounts,
}

impl Allowance {
    pub fn of(limits: &Limits, reserved: Amounts) -> Self {
        let own = Amounts {
            input_tokens: limits.input_tokens,
            output_tokens: limits.output_tokens,
            cached_tokens: limits.cached_tokens,
            cost_micros: limits.cost.map(super::Dollars::micros),
            ..Amounts::default()
        };
        Self { reserved, smaller: own.min(reserved) }
    }

    /// Which reserved amount stands against another question, which sends at least `next_input` tokens.
    pub fn reached(&self, used: &Usage, next_input: u64) -> Option<Stop> {
        let (dimension, limit) = beyond(&self.reserved, used, next_input, 1)?;
        Some(Stop::Allowance { dimension, limit, used: dimension.of(used) })
    }

    /// Whether another question can be asked and none after it.
    pub fn is_last(&self, used: &Usage, next_input: u64) -> bool {
        beyond(&self.smaller, used, next_input, 2).is_some()
    }

    /// Whether so much is used that it is time to come to an end.
    pub fn is_nearly_used(&self, used: &Usage) -> bool {
        let nearly = |(dimension, limit): (Dimension, u64)| {
            u128::from(dimension.of(used)) * 100 >= u128::from(limit) * NEARLY_PERCENT
        };
        self.smaller.iter().any(nearly)
    }

    /// The most tokens that the reply to the next question may have.
    pub fn of_next_reply(&self, used: &Usage, next_input: u64) -> u32 {
        let sent = next_input.max(1);
        let tokens = self.smaller.tokens.map(|limit| limit.saturating_sub(Dimension::Tokens.of(used) + sent));
        let output = self.smaller.output_tokens.map(|limit| limit.saturating_sub(used.output_tokens));
        let left = [tokens, output].into_iter().flatten().min();
        left.and_then(|left| u32::try_from(left).ok()).unwrap_or(u32::MAX)
    }

    /// What is left for the calls of a turn: all but what the question behind them needs.
    pub fn left_for_calls(&self, used: &Usage, next_input: u64) -> Amounts {
        let mut left = self.smaller;
        for (dimension, limit) in self.smaller.iter() {
            let kept = dimension.of(used).saturating_add(least(dimension, next_input));
            left.set(dimension, Some(limit.saturating_sub(kept)));
        }
        left
    }
}

/// The first amount that so many questions would pass for certain.
fn beyond(amounts: &Amounts, used: &Usage, next_input: u64, questions: u64) -> Option<(Dimension, u64)> {
    amounts.iter().find(|(dimension, limit)| {
        let more = least(*dimension, next_input).saturating_mul(questions);
        dimension.of(used).saturating_add(more) > *limit
    })
}

/// The least that a question uses which sends at least so many tokens.
fn least(dimension: Dimension, next_input: u64) -> u64 {
    match dimension {
        Dimension::Tokens => next_input.max(1).saturating_add(1),
        Dimension::InputTokens => next_input.max(1),
        Dimension::OutputTokens | Dimension::CachedTokens | Dimension::ModelCalls | Dimension::Cost => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_amount_is_reached_when_another_question_would_pass_it() {
        let used = Usage {
            model_calls: 2,
            input_tokens: 80,
            output_tokens: 10,
            cached_tokens: 5,
            cost_micros: 7,
            ..Usage::default()
        };
        let table = [
            // Thirty tokens go out again, and at least one comes back.
            (Dimension::Tokens, 121, 120),
            (Dimension::InputTokens, 110, 109),
            (Dimension::OutputTokens, 11, 10),
            (Dimension::CachedTokens, 6, 5),
            (Dimension::ModelCalls, 3, 2),
            (Dimension::Cost, 8, 7),
        ];
        for (dimension, enough, too_little) in table {
            let reached = |limit| {
                let mut reserved = Amounts::default();
                reserved.set(dimension, Some(limit));
                let allowance = Allowance::of(&Limits::DEFAULT, reserved);
                (allowance.reached(&used, 30), allowance.is_last(&used, 30))
            };
            assert_eq!(reached(enough), (None, true), "{dimension:?}");
            let stop = Stop::Allowance { dimension, limit: too_little, used: dimension.of(&used) };
            assert_eq!(reached(too_little), (Some(stop), true), "{dimension:?}");
            assert_eq!(reached(1_000), (None, false), "{dimension:?}");
        }
    }

    #[test]
    fn of_the_capability_s_own_limits_and_what_is_reserved_the_smaller_counts() {
        let limits = Limits { output_tokens: Some(100), input_tokens: Some(1_000), ..Limits::DEFAULT };
        let reserved = Amounts { output_tokens: Some(500), tokens: Some(120), ..Amounts::default() };
        let used = Usage { input_tokens: 60, output_tokens: 20, ..Usage::default() };
        let allowance = Allowance::of(&limits, reserved);
        assert_eq!(allowance.of_next_reply(&Usage::default(), 0), 100);
        assert_eq!(allowance.of_next_reply(&used, 30), 10);
        let left = allowance.left_for_calls(&used, 30);
        assert_eq!((left.tokens, left.input_tokens, left.output_tokens), (Some(9), Some(910), Some(79)));
        assert!(!allowance.is_nearly_used(&used));
        assert!(allowance.is_nearly_used(&Usage { input_tokens: 76, ..used }));
    }
}
