//! The limits of a delegated task, as a capability file or a call sets them: some are limits of the task, the others of the agent.

use std::time::Duration;

use millrace_protocol::overrides::AgentOverrides;
use millrace_protocol::plan::{ResourceAmounts, TaskLimits};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::turn::Dollars;

/// The limits of a delegated task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ChildLimits {
    /// Input and output tokens of all its attempts and reviews. An attempt may use half of what is left.
    #[schemars(range(min = 1))]
    pub tokens: Option<u64>,
    /// Model calls, as for tokens.
    #[schemars(range(min = 1))]
    pub model_calls: Option<u64>,
    /// Cost in US dollars, as for tokens.
    pub cost: Option<Dollars>,
    /// Seconds of one attempt from its claim to its end; 1800 by default.
    #[schemars(range(min = 1, max = 604_800))]
    pub seconds: Option<u32>,
    /// Seconds that an attempt waits for a worker; 3600 by default.
    #[schemars(range(min = 1, max = 604_800))]
    pub wait_seconds: Option<u32>,
    /// Attempts until it fails; 3 by default.
    #[schemars(range(min = 1, max = 100))]
    pub attempts: Option<u32>,
    /// Model replies of one attempt, at most those of the capability.
    #[schemars(range(min = 1))]
    pub turns: Option<u32>,
    /// Tool calls of one attempt, at most those of the capability.
    pub tool_calls: Option<u32>,
}

impl ChildLimits {
    /// The budget of the task.
    pub fn amounts(&self) -> ResourceAmounts {
        ResourceAmounts {
            tokens: self.tokens,
            model_calls: self.model_calls,
            cost_micros: self.cost.map(Dollars::micros),
            ..ResourceAmounts::default()
        }
    }

    /// The limits that the agent itself keeps, if there are any.
    pub fn to_overrides(&self) -> Option<Box<AgentOverrides>> {
        let overrides =
            AgentOverrides { turns: self.turns, tool_calls: self.tool_calls, ..AgentOverrides::default() };
        (!overrides.is_empty()).then(|| Box::new(overrides))
    }

    /// The smaller of each limit.
    pub(super) fn min(self, other: Self) -> Self {
        fn smaller<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
            match (one, other) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            }
        }
        Self {
            tokens: smaller(self.tokens, other.tokens),
            model_calls: smaller(self.model_calls, other.model_calls),
            cost: smaller(self.cost, other.cost),
            seconds: smaller(self.seconds, other.seconds),
            wait_seconds: smaller(self.wait_seconds, other.wait_seconds),
            attempts: smaller(self.attempts, other.attempts),
            turns: smaller(self.turns, other.turns),
            tool_calls: smaller(self.tool_calls, other.tool_calls),
        }
    }

    /// The limits of each of its attempts that are no overrides.
    pub fn task_limits(&self) -> TaskLimits {
        let default = TaskLimits::default();
        let seconds = |seconds: Option<u32>| seconds.map(|seconds| Duration::from_secs(seconds.into()));
        TaskLimits {
            run_time: seconds(self.seconds).unwrap_or(default.run_time),
            queue_wait: seconds(self.wait_seconds).unwrap_or(default.queue_wait),
            max_attempts: self.attempts.unwrap_or(default.max_attempts),
            ..default
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_the_file_and_of_the_call_are_both_kept() {
        let call = ChildLimits { tokens: Some(900), seconds: Some(60), ..ChildLimits::default() };
        let file = ChildLimits { tokens: Some(500), attempts: Some(1), ..ChildLimits::default() };
        let both = call.min(file);
        assert_eq!((both.tokens, both.seconds, both.attempts), (Some(500), Some(60), Some(1)));
        assert_eq!(both.task_limits().run_time, Duration::from_secs(60));
    }
}
