//! The words in which people say and read budgets, the same on the command line and in plan files: `tokens=200k`,
//! `cost=2.00`, `time=30m`, `attempt.tokens=20k`, `research.tokens=50k`. What a budget means is the protocol's.

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use millrace_forms::did_you_mean;
use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{Amounts, Budget, Dimension, EndReason, Plan, WhenSpent};
use millrace_runtime::duration;

/// What is counted, in the order of [`Dimension::ALL`].
pub const AMOUNTS: [&str; 6] = ["tokens", "in", "out", "cached", "calls", "cost"];
/// What limits a run as a whole beside that.
pub const WHOLE: [&str; 4] = ["time", "steps", "tasks", "depth"];
/// How a run comes to the end of its budget.
pub const POLICY: [&str; 3] = ["soft", "final", "when_spent"];
/// What may become of running work then.
pub const WHEN_SPENT: [&str; 2] = ["finish", "cancel"];

/// The budget of a run, as it is said on a command line.
#[derive(Args, Debug, Clone, Default)]
pub struct BudgetArguments {
    /// What the run may use, all together and from its beginning: tokens, in, out, cached, calls, cost (in US dollars),
    /// time, steps (turns of the planner), tasks, depth; attempt.tokens and so on for each attempt, NAME.tokens and so on
    /// for a capability. Amounts may end in k or M: --budget tokens=200k,cost=2.00,time=30m. May be given several times
    #[arg(long = "budget", value_name = "NAME=AMOUNT", value_delimiter = ',')]
    said: Vec<String>,
}

impl BudgetArguments {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        self.said.is_empty()
    }

    /// A budget with what is said here in the place of what it said.
    ///
    /// # Errors
    /// What is wrong with the first that can't be.
    pub fn over(&self, mut budget: Budget) -> Result<Budget, String> {
        let mut seen = std::collections::BTreeSet::new();
        for said in &self.said {
            let (name, value) = said
                .split_once('=')
                .map(|(name, value)| (name.trim(), value.trim()))
                .ok_or_else(|| format!("--budget {said:?}: expected NAME=AMOUNT, such as tokens=200k"))?;
            if !seen.insert(name) {
                return Err(format!("--budget: {name} is there twice; leave one of them away"));
            }
            set(&mut budget, name, value).map_err(|why| format!("--budget: {why}"))?;
        }
        Ok(budget)
    }

    /// What takes the place of what the budget of a run says; `None` where nothing is said.
    ///
    /// # Errors
    /// What is wrong with the first that can't be.
    pub fn more(&self, old: &Budget) -> Result<Option<Budget>, String> {
        if self.is_empty() {
            return Ok(None);
        }
        let is_policy = |said: &String| POLICY.iter().any(|name| said.split('=').next() == Some(*name));
        if let Some(said) = self.said.iter().find(|said| is_policy(said)) {
            return Err(format!(
                "--budget {said}: how a run ends is said when it is handed in, and stays so"
            ));
        }
        // What a capability may use is replaced as a whole, so that what stays is said again.
        let base = Budget { capabilities: old.capabilities.clone(), ..Budget::default() };
        self.over(base).map(Some)
    }
}

/// What an amount is counted in, by its word.
pub fn dimension(word: &str) -> Option<Dimension> {
    AMOUNTS.iter().position(|known| *known == word).map(|at| Dimension::ALL[at])
}

/// The word for what is counted.
pub fn word(dimension: Dimension) -> &'static str {
    match dimension {
        Dimension::Tokens => "tokens",
        Dimension::InputTokens => "in",
        Dimension::OutputTokens => "out",
        Dimension::CachedTokens => "cached",
        Dimension::ModelCalls => "calls",
        Dimension::Cost => "cost",
    }
}

fn set(budget: &mut Budget, name: &str, value: &str) -> Result<(), String> {
    let wrong = |expected: &str| format!("{name} must be {expected}, not {value:?}");
    if let Some((whose, what)) = name.rsplit_once('.') {
        let dimension = dimension(what).ok_or_else(|| unknown(name))?;
        let amount = amount(dimension, value).ok_or_else(|| wrong(expected(dimension)))?;
        let amounts = if whose == "attempt" {
            &mut budget.attempt
        } else {
            let capability = Capability::new(whose).map_err(|error| format!("{name}: {error}"))?;
            budget.capabilities.entry(capability).or_default()
        };
        amounts.set(dimension, Some(amount));
        return Ok(());
    }
    if let Some(dimension) = dimension(name) {
        let amount = amount(dimension, value).ok_or_else(|| wrong(expected(dimension)))?;
        budget.amounts.set(dimension, Some(amount));
        return Ok(());
    }
    let count = || count(value).ok_or_else(|| wrong(A_COUNT));
    match name {
        "time" => {
            budget.wall_time = Some(duration::parse(value).map_err(|why| format!("time={value}: {why}"))?);
        }
        "steps" => budget.steps = Some(count()?),
        "tasks" => budget.tasks = Some(count()?),
        "depth" => budget.depth = Some(count()?),
        "soft" => {
            budget.soft_percent =
                percent(value, 1..=100).ok_or_else(|| wrong("a percentage from 1 to 100"))?;
        }
        "final" => {
            budget.final_percent =
                percent(value, 0..=90).ok_or_else(|| wrong("a percentage from 0 to 90"))?;
        }
        "when_spent" => {
            budget.when_spent = when_spent(value).ok_or_else(|| wrong("finish or cancel"))?;
        }
        _ => return Err(unknown(name)),
    }
    Ok(())
}

fn unknown(name: &str) -> String {
    let known = || AMOUNTS.into_iter().chain(WHOLE).chain(POLICY);
    let last = name.rsplit('.').next().unwrap_or(name);
    let hint = did_you_mean(last, known());
    let (all, amounts) = (known().collect::<Vec<_>>().join(", "), AMOUNTS.join(", "));
    format!("there is no {name:?}{hint}; known are {all}, and attempt.NAME or CAPABILITY.NAME for {amounts}")
}

/// What a count must be.
pub const A_COUNT: &str = "a whole number, 1 or more";

/// What an amount must be.
pub fn expected(dimension: Dimension) -> &'static str {
    match dimension {
        Dimension::Cost => "US dollars, more than 0, such as 2.50",
        Dimension::Tokens
        | Dimension::InputTokens
        | Dimension::OutputTokens
        | Dimension::CachedTokens
        | Dimension::ModelCalls => "a whole number, 1 or more, such as 5000, 200k or 1.5M",
    }
}

/// An amount as people write it: `200k`, `1.5M`; dollars with up to six decimals.
pub fn amount(dimension: Dimension, text: &str) -> Option<u64> {
    let amount = match dimension {
        Dimension::Cost => scaled(text.strip_prefix('$').unwrap_or(text), 6),
        Dimension::Tokens
        | Dimension::InputTokens
        | Dimension::OutputTokens
        | Dimension::CachedTokens
        | Dimension::ModelCalls => match text.strip_suffix(['k', 'K']) {
            Some(thousands) => scaled(thousands, 3),
            None => text.strip_suffix('M').map_or_else(|| scaled(text, 0), |millions| scaled(millions, 6)),
        },
    };
    amount.filter(|amount| *amount > 0)
}

/// A count of steps, tasks or levels.
pub fn count(text: &str) -> Option<u32> {
    text.parse().ok().filter(|count| *count > 0)
}

/// A percentage within a range.
pub fn percent(text: &str, range: std::ops::RangeInclusive<u8>) -> Option<u8> {
    let text = text.strip_suffix('%').unwrap_or(text);
    text.parse().ok().filter(|percent| range.contains(percent))
}

/// What becomes of running work, by its word.
pub fn when_spent(text: &str) -> Option<WhenSpent> {
    match text {
        "finish" => Some(WhenSpent::Finish),
        "cancel" => Some(WhenSpent::Cancel),
        _ => None,
    }
}

/// A decimal number times a power of ten, exactly; `None` where that is no whole number.
fn scaled(text: &str, power: usize) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > power {
        return None;
    }
    format!("{whole}{fraction:0<power$}").parse().ok()
}

// ---- what is left, for people

/// How much of its budget a run has used, in a line; `None` where nothing of it is limited.
pub fn used(plan: &Plan, now: Timestamp) -> Option<String> {
    let budget = &plan.start.as_ref()?.budget;
    let amounts = budget.amounts.iter().map(|(dimension, limit)| {
        let used = of(dimension, dimension.of(&plan.spend.total), limit);
        match plan.reserved.total(dimension) {
            0 => used,
            reserved => format!("{used} (and {} reserved)", number(dimension, reserved)),
        }
    });
    let time = budget.wall_time.map(|limit| {
        let limit = SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX);
        let until = plan.end.as_ref().map_or(now, |end| end.at);
        format!("{:#} of {:#}", whole_seconds(plan.worked(until)), whole_seconds(limit))
    });
    let steps = budget.steps.map(|limit| format!("{} of {limit} steps", plan.turns));
    let all: Vec<String> = amounts.chain(time).chain(steps).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

fn of(dimension: Dimension, used: u64, limit: u64) -> String {
    match dimension {
        Dimension::Cost => format!("{} of {}", number(dimension, used), number(dimension, limit)),
        Dimension::Tokens
        | Dimension::InputTokens
        | Dimension::OutputTokens
        | Dimension::CachedTokens
        | Dimension::ModelCalls => format!("{used} of {}", dimension.say(limit)),
    }
}

fn number(dimension: Dimension, amount: u64) -> String {
    match dimension {
        Dimension::Cost => dimension.say(amount),
        Dimension::Tokens
        | Dimension::InputTokens
        | Dimension::OutputTokens
        | Dimension::CachedTokens
        | Dimension::ModelCalls => amount.to_string(),
    }
}

fn whole_seconds(time: SignedDuration) -> SignedDuration {
    SignedDuration::from_secs(time.as_secs())
}

/// What is left of the amounts.
pub fn left(plan: &Plan) -> Amounts {
    let mut left = Amounts::default();
    for (dimension, limit) in plan.start.iter().flat_map(|start| start.budget.amounts.iter()) {
        let taken = dimension.of(&plan.spend.total).saturating_add(plan.reserved.total(dimension));
        left.set(dimension, Some(limit.saturating_sub(taken)));
    }
    left
}

/// What to give a run that has ended and can be gone on with: twice of what it ran out of, as an argument.
pub fn suggestion(plan: &Plan) -> Option<String> {
    let (end, start) = (plan.end.as_ref()?, plan.start.as_ref()?);
    let steps = || format!("steps={}", plan.steps().saturating_mul(2));
    match end.reason {
        EndReason::MaxSteps => Some(steps()),
        EndReason::BudgetExhausted => Some(match (nearest(plan), start.budget.wall_time) {
            (Some((dimension, limit)), _) => twice(dimension, limit),
            (None, Some(limit)) => {
                format!("time={}", duration::format(limit.saturating_mul(2)).replace(' ', ""))
            }
            (None, None) => "tokens=…".into(),
        }),
        EndReason::Completed
        | EndReason::CompletedPartial
        | EndReason::Failed
        | EndReason::Cancelled
        | EndReason::NoProgress
        | EndReason::PlannerUnavailable => None,
    }
}

/// The amount that is nearest to its limit; `None` where the time came to its end before any of them.
fn nearest(plan: &Plan) -> Option<(Dimension, u64)> {
    let (end, start) = (plan.end.as_ref()?, plan.start.as_ref()?);
    let is_late = start.budget.wall_time.is_some_and(|limit| plan.worked(end.at).unsigned_abs() >= limit);
    let share = |(dimension, limit): &(Dimension, u64)| {
        u128::from(dimension.of(&plan.spend.total)) * 1_000_000 / u128::from((*limit).max(1))
    };
    let nearest = start.budget.amounts.iter().max_by_key(share)?;
    (!is_late || share(&nearest) >= 900_000).then_some(nearest)
}

fn twice(dimension: Dimension, limit: u64) -> String {
    let limit = limit.saturating_mul(2);
    let word = word(dimension);
    match dimension {
        Dimension::Cost => format!("{word}={}.{:02}", limit / 1_000_000, limit % 1_000_000 / 10_000),
        Dimension::Tokens
        | Dimension::InputTokens
        | Dimension::OutputTokens
        | Dimension::CachedTokens
        | Dimension::ModelCalls => format!("{word}={limit}"),
    }
}

#[cfg(test)]
mod tests;
