//! The `budget:` of a plan file: of the run with all its words, and of a task with amounts alone.

use millrace_forms::{Fields, Mistake, Node, Value};
use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{Amounts, Budget, WhenSpent};

use crate::budget::{A_COUNT, AMOUNTS, WHEN_SPENT, amount, dimension, expected};

/// The fields of a run's budget.
pub const FIELDS: [&str; 15] = [
    "tokens",
    "in",
    "out",
    "cached",
    "calls",
    "cost",
    "time",
    "steps",
    "tasks",
    "depth",
    "attempt",
    "capabilities",
    "soft",
    "final",
    "when_spent",
];

/// Reads what a run may use.
pub fn of_run(node: &Node) -> Result<Budget, Mistake> {
    let fields = Fields::of(node, "budget", &FIELDS)?;
    let count = |name: &str| fields.get(name).map(|node| a_count(node, name)).transpose();
    let share = |name: &str, otherwise, least, most| match fields.get(name) {
        None => Ok(otherwise),
        Some(node) => percent(node, name, least, most),
    };
    let otherwise = Budget::default();
    Ok(Budget {
        amounts: amounts(&fields)?,
        attempt: fields
            .get("attempt")
            .map(|node| of(node, "budget of an attempt"))
            .transpose()?
            .unwrap_or_default(),
        capabilities: match fields.get("capabilities") {
            None => otherwise.capabilities,
            Some(node) => of_capabilities(node)?,
        },
        wall_time: fields.get("time").map(time).transpose()?,
        steps: count("steps")?,
        tasks: count("tasks")?,
        depth: count("depth")?,
        soft_percent: share("soft", otherwise.soft_percent, 1, 100)?,
        final_percent: share("final", otherwise.final_percent, 0, 90)?,
        when_spent: match fields
            .get("when_spent")
            .map(|node| node.choice("when_spent", &WHEN_SPENT))
            .transpose()?
        {
            Some(1) => WhenSpent::Cancel,
            Some(_) | None => WhenSpent::Finish,
        },
    })
}

/// Reads what a task, an attempt or a capability may use.
pub fn of(node: &Node, what: &'static str) -> Result<Amounts, Mistake> {
    amounts(&Fields::of(node, what, &AMOUNTS)?)
}

fn of_capabilities(node: &Node) -> Result<std::collections::BTreeMap<Capability, Amounts>, Mistake> {
    let Value::Map(entries) = &node.value else {
        return Err(node.not("capabilities", "a map of capabilities and what each may use"));
    };
    let read = entries.iter().map(|entry| {
        let name = Capability::new(entry.key.as_str());
        let name = name.map_err(|error| Mistake::at(entry.place, error.to_string()))?;
        Ok((name, of(&entry.node, "budget of a capability")?))
    });
    read.collect()
}

fn amounts(fields: &Fields<'_>) -> Result<Amounts, Mistake> {
    let mut amounts = Amounts::default();
    for name in AMOUNTS {
        let (Some(node), Some(dimension)) = (fields.get(name), dimension(name)) else { continue };
        let read = scalar(node).and_then(|text| amount(dimension, &text));
        amounts.set(dimension, Some(read.ok_or_else(|| node.not(name, expected(dimension)))?));
    }
    Ok(amounts)
}

/// A number or a text, as it is written.
fn scalar(node: &Node) -> Option<String> {
    match &node.value {
        Value::Number(number) => Some(number.to_string()),
        Value::Text(text) => Some(text.clone()),
        Value::Nothing | Value::Flag(_) | Value::List(_) | Value::Map(_) => None,
    }
}

fn time(node: &Node) -> Result<std::time::Duration, Mistake> {
    let time = node.duration("time")?;
    if time.is_zero() { Err(node.not("time", "more than 0 seconds")) } else { Ok(time) }
}

fn a_count(node: &Node, name: &str) -> Result<u32, Mistake> {
    match node.whole(name, "of 1 or more")? {
        0 => Err(node.not(name, A_COUNT)),
        count => Ok(count),
    }
}

fn percent(node: &Node, name: &str, least: u8, most: u8) -> Result<u8, Mistake> {
    let range = format!("a percentage from {least} to {most}");
    let read = scalar(node).and_then(|text| crate::budget::percent(&text, least..=most));
    read.ok_or_else(|| node.not(name, &range))
}
