//! Parses and prints budgets, with the same names on the command line and in plan files: `tokens=200k`, `cost=2.00`,
//! `time=30m`, `attempt.tokens=20k`, `research.tokens=50k`. The rules for budgets are in `millrace_protocol`.

use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::{
    Budget, BudgetExhaustionPolicy, Plan, ResourceAmounts, ResourceKind, suggest_larger_limits,
    tasks_without_budget,
};
use millrace_runtime::clock;
use millrace_strict_yaml::did_you_mean_hint;

/// Names of the counted amounts, in the order of [`ResourceKind::ALL`].
pub const AMOUNTS: [&str; 6] = ["tokens", "in", "out", "cached", "calls", "cost"];
/// Names of the other limits of a run.
pub const WHOLE: [&str; 4] = ["time", "steps", "tasks", "depth"];
/// Names of the settings for the end of a budget.
pub const POLICY: [&str; 3] = ["soft", "final", "when_spent"];
/// Values of `when_spent`.
pub const WHEN_SPENT: [&str; 2] = ["finish", "cancel"];

/// Returns the dimension with this name.
pub fn parse_dimension(word: &str) -> Option<ResourceKind> {
    AMOUNTS.iter().position(|name| *name == word).map(|at| ResourceKind::ALL[at])
}

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

/// Sets the limit or policy with this name.
pub fn set_budget_entry(budget: &mut Budget, name: &str, value: &str) -> Result<(), String> {
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
                Some(clock::parse_duration(value).map_err(|why| format!("time={value}: {why}"))?);
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

pub fn describe_valid_amount(dimension: ResourceKind) -> &'static str {
    match dimension {
        ResourceKind::Cost => "US dollars, from 0.000001 to 1000000000, such as 2.50",
        ResourceKind::Tokens
        | ResourceKind::InputTokens
        | ResourceKind::OutputTokens
        | ResourceKind::CachedTokens
        | ResourceKind::ModelCalls => {
            "a whole number, 1 or more, such as 5000, 200k or 1.5M, and at most 1000000000M"
        }
    }
}

/// The largest amount, of dollars in millionths. No run needs more, and every number up to it is exact in JSON.
const MAX_AMOUNT: u64 = 1_000_000_000_000_000;

/// Parses an amount, up to [`MAX_AMOUNT`]: `200k`, `1.5M`; dollars with up to six decimals.
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
    amount.filter(|amount| (1..=MAX_AMOUNT).contains(amount))
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

/// Returns the `resume` command, without `millrace`, with which a run that has ended continues: with the limits that stop it,
/// raised; `None` if it can't be resumed.
pub fn resume_arguments(run: &RunId, plan: &Plan) -> Option<String> {
    let end = plan.run.end.as_ref().filter(|end| end.is_resumable)?;
    let budget = match suggest_larger_limits(plan) {
        Some(larger) => format!(" --budget {}", format_limits(&larger)),
        None if end.reason.needs_larger_budget() => " --budget NAME=AMOUNT".to_owned(),
        // It would fail again.
        None if !tasks_without_budget(plan).is_empty() => return None,
        None => String::new(),
    };
    Some(format!("resume {run}{budget}"))
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
        budget.wall_time.map(|time| format!("time={}", clock::format_duration(time).replace(' ', ""))),
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
