//! The amounts that an attempt may use: the smaller of its capability's limits and its reservation in the run's budget.
//! Arithmetic only. The machine checks before each model request, so an amount is exceeded by at most one request.
//!
//! # Invariants
//!
//! - I68: No attempt sends a first request that its reservation does not pay for; fewer run at once, and the final task keeps
//!   enough for its own. (`tests/tests/behaviours/providers.rs::small_budget_ends_with_an_answer_and_pays_for_every_request`,
//!   `crates/agent/tests/turn/allowance.rs::attempt_exceeds_its_reservation_by_at_most_one_call`)

use millrace_protocol::plan::{ResourceAmounts, ResourceKind};
use millrace_protocol::result::Usage;

use super::{Limits, StopReason};

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
    use super::*;

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
