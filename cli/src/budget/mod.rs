//! Parses and prints budgets, with the same names on the command line and in plan files: `tokens=200k`, `cost=2.00`,
//! `time=30m`, `attempt.tokens=20k`, `research.tokens=50k`. The rules for budgets are in `millrace_protocol`.

use std::time::Duration;

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{
    Budget, BudgetExhaustionPolicy, Plan, ResourceAmounts, ResourceKind, suggest_larger_limits,
};
use millrace_runtime::duration;
use millrace_strict_yaml::did_you_mean_hint;

/// Names of the counted amounts, in the order of [`ResourceKind::ALL`].
pub const AMOUNTS: [&str; 6] = ["tokens", "in", "out", "cached", "calls", "cost"];
/// Names of the other limits of a run.
pub const WHOLE: [&str; 4] = ["time", "steps", "tasks", "depth"];
/// Names of the settings for the end of a budget.
pub const POLICY: [&str; 3] = ["soft", "final", "when_spent"];
/// Values of `when_spent`.
pub const WHEN_SPENT: [&str; 2] = ["finish", "cancel"];

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
    match duration::parse_duration(text) {
        Ok(timeout) if timeout.is_zero() => Err("it must be more than 0 seconds".into()),
        parsed => parsed.map_err(|why| why.to_string()),
    }
}

impl BudgetArguments {
    /// `true` if no budget is given.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.provider_timeout.is_none()
    }

    /// Overrides the values in `budget` with those on the command line.
    ///
    /// # Errors
    /// Describes the first invalid entry.
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
    ///
    /// # Errors
    /// Describes the first invalid entry.
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

/// Returns the dimension with this name.
pub fn parse_dimension(word: &str) -> Option<ResourceKind> {
    AMOUNTS.iter().position(|name| *name == word).map(|at| ResourceKind::ALL[at])
}

/// Returns the name of a dimension.
pub fn dimension_name(dimension: ResourceKind) -> &'static str {
    match dimension {
        ResourceKind::Tokens => "tokens",
        ResourceKind::InputTokens => "in",
        ResourceKind::OutputTokens => "out",
        ResourceKind::CachedTokens => "cached",
        ResourceKind::ModelCalls => "calls",
        ResourceKind::Cost => "cost",
    }
}

fn set_budget_entry(budget: &mut Budget, name: &str, value: &str) -> Result<(), String> {
    let wrong = |expected: &str| format!("{name} must be {expected}, not {value:?}");
    if let Some((whose, what)) = name.rsplit_once('.') {
        let dimension = parse_dimension(what).ok_or_else(|| unknown_budget_entry_message(name))?;
        let amount = parse_amount(dimension, value).ok_or_else(|| wrong(describe_valid_amount(dimension)))?;
        let amounts = if whose == "attempt" {
            &mut budget.attempt
        } else {
            let capability = Capability::new(whose).map_err(|error| format!("{name}: {error}"))?;
            budget.capabilities.entry(capability).or_default()
        };
        amounts.set(dimension, Some(amount));
        return Ok(());
    }
    if let Some(dimension) = parse_dimension(name) {
        let amount = parse_amount(dimension, value).ok_or_else(|| wrong(describe_valid_amount(dimension)))?;
        budget.amounts.set(dimension, Some(amount));
        return Ok(());
    }
    let count = || parse_count(value).ok_or_else(|| wrong(A_COUNT));
    match name {
        "time" => {
            budget.wall_time =
                Some(duration::parse_duration(value).map_err(|why| format!("time={value}: {why}"))?);
        }
        "steps" => budget.steps = Some(count()?),
        "tasks" => budget.tasks = Some(count()?),
        "depth" => budget.depth = Some(count()?),
        "soft" => {
            budget.soft_percent =
                parse_percent(value, 1..=100).ok_or_else(|| wrong("a percentage from 1 to 100"))?;
        }
        "final" => {
            budget.final_percent =
                parse_percent(value, 0..=90).ok_or_else(|| wrong("a percentage from 0 to 90"))?;
        }
        "when_spent" => {
            budget.when_spent = parse_when_spent(value).ok_or_else(|| wrong("finish or cancel"))?;
        }
        _ => return Err(unknown_budget_entry_message(name)),
    }
    Ok(())
}

fn unknown_budget_entry_message(name: &str) -> String {
    let names = || AMOUNTS.into_iter().chain(WHOLE).chain(POLICY);
    let last = name.rsplit('.').next().unwrap_or(name);
    let hint = did_you_mean_hint(last, names());
    let (all, amounts) = (names().collect::<Vec<_>>().join(", "), AMOUNTS.join(", "));
    format!("unknown budget {name:?}{hint}; valid: {all}, and attempt.NAME or CAPABILITY.NAME for {amounts}")
}

/// Describes a valid count.
pub const A_COUNT: &str = "a whole number, 1 or more";

/// Describes a valid amount.
pub fn describe_valid_amount(dimension: ResourceKind) -> &'static str {
    match dimension {
        ResourceKind::Cost => "US dollars, more than 0, such as 2.50",
        ResourceKind::Tokens
        | ResourceKind::InputTokens
        | ResourceKind::OutputTokens
        | ResourceKind::CachedTokens
        | ResourceKind::ModelCalls => "a whole number, 1 or more, such as 5000, 200k or 1.5M",
    }
}

/// Parses an amount: `200k`, `1.5M`; dollars with up to six decimals.
pub fn parse_amount(dimension: ResourceKind, text: &str) -> Option<u64> {
    let amount = match dimension {
        ResourceKind::Cost => parse_scaled_decimal(text.strip_prefix('$').unwrap_or(text), 6),
        ResourceKind::Tokens
        | ResourceKind::InputTokens
        | ResourceKind::OutputTokens
        | ResourceKind::CachedTokens
        | ResourceKind::ModelCalls => match text.strip_suffix(['k', 'K']) {
            Some(thousands) => parse_scaled_decimal(thousands, 3),
            None => text
                .strip_suffix('M')
                .map_or_else(|| parse_scaled_decimal(text, 0), |millions| parse_scaled_decimal(millions, 6)),
        },
    };
    amount.filter(|amount| *amount > 0)
}

/// Parses a count of steps, tasks or levels.
pub fn parse_count(text: &str) -> Option<u32> {
    text.parse().ok().filter(|count| *count > 0)
}

/// Parses a percentage within a range.
pub fn parse_percent(text: &str, range: std::ops::RangeInclusive<u8>) -> Option<u8> {
    let text = text.strip_suffix('%').unwrap_or(text);
    text.parse().ok().filter(|percent| range.contains(percent))
}

/// Parses a value of `when_spent`.
pub fn parse_when_spent(text: &str) -> Option<BudgetExhaustionPolicy> {
    match text {
        "finish" => Some(BudgetExhaustionPolicy::Finish),
        "cancel" => Some(BudgetExhaustionPolicy::Cancel),
        _ => None,
    }
}

/// Multiplies a decimal number by a power of ten, exactly; `None` if the result is no whole number.
fn parse_scaled_decimal(text: &str, power: usize) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > power {
        return None;
    }
    format!("{whole}{fraction:0<power$}").parse().ok()
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

/// Returns the remaining amounts.
pub fn remaining_amounts(plan: &Plan) -> ResourceAmounts {
    let mut remaining = ResourceAmounts::default();
    for (dimension, limit) in plan.run.start.iter().flat_map(|start| start.budget.amounts.iter()) {
        let used = dimension
            .amount_used(&plan.budget.spend.total)
            .saturating_add(plan.budget.reserved.total_reserved(dimension));
        remaining.set(dimension, Some(limit.saturating_sub(used)));
    }
    remaining
}

/// Suggests a `--budget` argument with which a run that has ended continues: the limits that stop it, raised; `None` if no
/// limit stops it.
pub fn suggest_larger_budget(plan: &Plan) -> Option<String> {
    suggest_larger_limits(plan).map(|larger| format_limits(&larger))
}

/// Formats limits as the argument of `--budget`.
fn format_limits(budget: &Budget) -> String {
    let amounts = |prefix: String, amounts: &ResourceAmounts| -> Vec<String> {
        amounts
            .iter()
            .map(|(dimension, limit)| format!("{prefix}{}", format_limit(dimension, limit)))
            .collect()
    };
    let mut all = amounts(String::new(), &budget.amounts);
    all.extend(amounts("attempt.".into(), &budget.attempt));
    all.extend(budget.capabilities.iter().flat_map(|(name, limits)| amounts(format!("{name}."), limits)));
    all.extend(
        budget.wall_time.map(|time| format!("time={}", duration::format_duration(time).replace(' ', ""))),
    );
    all.extend(budget.steps.map(|steps| format!("steps={steps}")));
    all.join(",")
}

fn format_limit(dimension: ResourceKind, limit: u64) -> String {
    let word = dimension_name(dimension);
    match dimension {
        ResourceKind::Cost => {
            let (dollars, micros) = (limit / 1_000_000, format!("{:06}", limit % 1_000_000));
            format!("{word}={dollars}.{:0<2}", micros.trim_end_matches('0'))
        }
        ResourceKind::Tokens
        | ResourceKind::InputTokens
        | ResourceKind::OutputTokens
        | ResourceKind::CachedTokens
        | ResourceKind::ModelCalls => format!("{word}={limit}"),
    }
}

#[cfg(test)]
mod tests;
