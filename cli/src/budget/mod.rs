//! The budget of a run on the command line, and its use as text. `millrace_plan_file` parses its entries.

use std::time::Duration;

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use millrace_plan_file::limits::{POLICY, set_budget_entry};
use millrace_protocol::plan::{Budget, Plan, ResourceKind};
use millrace_runtime::clock;

/// The budget of a run on the command line.
#[derive(Args, Debug, Clone, Default)]
pub struct BudgetArguments {
    /// Budget of the run, as totals from its start: tokens, in, out, cached, calls, cost (US dollars), time, steps (planner
    /// turns), tasks, depth. Prefix with attempt. for each attempt, or with NAME. for a capability (attempt.tokens=20k).
    /// Amounts may end in k or M: --budget tokens=200k,cost=2.00,time=30m. May be given several times
    #[arg(long = "budget", value_name = "NAME=AMOUNT", value_delimiter = ',')]
    entries: Vec<String>,
    /// Time that work waits for a model provider that does not answer before the run pauses [default: 30m]
    #[arg(long, value_name = "DURATION", value_parser = parse_provider_timeout)]
    provider_timeout: Option<Duration>,
}

fn parse_provider_timeout(text: &str) -> Result<Duration, String> {
    match clock::parse_duration(text) {
        Ok(timeout) if timeout.is_zero() => Err("it must be more than 0 seconds".into()),
        parsed => parsed.map_err(|why| why.to_string()),
    }
}

impl BudgetArguments {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.provider_timeout.is_none()
    }

    /// Overrides the values in `budget` with those on the command line.
    pub fn override_budget(&self, mut budget: Budget) -> Result<Budget, String> {
        let mut seen = std::collections::BTreeSet::new();
        for entry in &self.entries {
            let (name, value) = entry
                .split_once('=')
                .map(|(name, value)| (name.trim(), value.trim()))
                .ok_or_else(|| format!("--budget {entry:?}: expected NAME=AMOUNT, such as tokens=200k"))?;
            if !seen.insert(name) {
                return Err(format!("--budget: {name} is given twice; remove one of them"));
            }
            set_budget_entry(&mut budget, name, value).map_err(|why| format!("--budget: {why}"))?;
        }
        budget.provider_timeout = self.provider_timeout.or(budget.provider_timeout);
        Ok(budget)
    }

    /// Returns the new limits for a run with the budget `old`; `None` if no budget is given.
    pub fn compute_new_limits(&self, old: &Budget) -> Result<Option<Budget>, String> {
        if self.is_empty() {
            return Ok(None);
        }
        let is_policy = |entry: &String| POLICY.iter().any(|name| entry.split('=').next() == Some(*name));
        if let Some(entry) = self.entries.iter().find(|entry| is_policy(entry)) {
            let name = entry.split('=').next().unwrap_or(entry);
            return Err(format!("--budget {entry}: {name} can only be set at submission"));
        }
        // The budgets of capabilities are replaced as a whole, so those that stay are repeated.
        let base = Budget { capabilities: old.capabilities.clone(), ..Budget::default() };
        self.override_budget(base).map(Some)
    }
}

// ---- usage and remaining budget

/// Describes the used part of a budget in one line; `None` if nothing is limited.
pub fn describe_used_budget(plan: &Plan, now: Timestamp) -> Option<String> {
    let budget = &plan.run.start.as_ref()?.budget;
    let amounts = budget.amounts.iter().map(|(dimension, limit)| {
        let used = describe_used_amount(dimension, dimension.amount_used(&plan.budget.spend.total), limit);
        match plan.budget.reserved.total_reserved(dimension) {
            0 => used,
            reserved => format!("{used} (and {} reserved)", format_amount(dimension, reserved)),
        }
    });
    let time = budget.wall_time.map(|limit| {
        let limit = SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX);
        let until = plan.run.end.as_ref().map_or(now, |end| end.at);
        format!("{:#} of {:#}", truncate_to_seconds(plan.worked_time(until)), truncate_to_seconds(limit))
    });
    let steps = budget.steps.map(|limit| format!("{} of {limit} steps", plan.planning.turns));
    let all: Vec<String> = amounts.chain(time).chain(steps).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

fn describe_used_amount(dimension: ResourceKind, used: u64, limit: u64) -> String {
    match dimension {
        ResourceKind::Cost => {
            format!("{} of {}", format_amount(dimension, used), format_amount(dimension, limit))
        }
        ResourceKind::Tokens
        | ResourceKind::InputTokens
        | ResourceKind::OutputTokens
        | ResourceKind::CachedTokens
        | ResourceKind::ModelCalls => format!("{used} of {}", dimension.format_amount(limit)),
    }
}

fn format_amount(dimension: ResourceKind, amount: u64) -> String {
    match dimension {
        ResourceKind::Cost => dimension.format_amount(amount),
        ResourceKind::Tokens
        | ResourceKind::InputTokens
        | ResourceKind::OutputTokens
        | ResourceKind::CachedTokens
        | ResourceKind::ModelCalls => amount.to_string(),
    }
}

fn truncate_to_seconds(time: SignedDuration) -> SignedDuration {
    SignedDuration::from_secs(time.as_secs())
}

#[cfg(test)]
mod tests;
