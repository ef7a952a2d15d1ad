//! The `budget` field of a plan file: of the run with all limits, of a task with amounts only.

use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{Budget, BudgetExhaustionPolicy, ResourceAmounts};
use millrace_strict_yaml::{MappingFields, YamlMistake, YamlNode, YamlValue};

use crate::limits::{A_COUNT, AMOUNTS, WHEN_SPENT, describe_valid_amount, parse_amount, parse_dimension};

/// The fields of a run's budget.
pub const FIELDS: [&str; 16] = [
    "tokens",
    "in",
    "out",
    "cached",
    "calls",
    "cost",
    "time",
    "provider_timeout",
    "steps",
    "tasks",
    "depth",
    "attempt",
    "capabilities",
    "soft",
    "final",
    "when_spent",
];

/// Reads the budget of a run.
pub fn parse_run_budget(node: &YamlNode) -> Result<Budget, YamlMistake> {
    let fields = MappingFields::from_node(node, "budget", &FIELDS)?;
    let count = |name: &str| fields.find_field(name).map(|node| parse_count_field(node, name)).transpose();
    let share = |name: &str, default, least, most| match fields.find_field(name) {
        None => Ok(default),
        Some(node) => parse_percent_field(node, name, least, most),
    };
    let defaults = Budget::default();
    Ok(Budget {
        amounts: parse_amount_fields(&fields)?,
        attempt: fields
            .find_field("attempt")
            .map(|node| parse_amounts(node, "budget of an attempt"))
            .transpose()?
            .unwrap_or_default(),
        capabilities: match fields.find_field("capabilities") {
            None => defaults.capabilities,
            Some(node) => parse_capability_budgets(node)?,
        },
        wall_time: fields.find_field("time").map(|node| parse_duration_field(node, "time")).transpose()?,
        provider_timeout: fields
            .find_field("provider_timeout")
            .map(|node| parse_duration_field(node, "provider_timeout"))
            .transpose()?,
        steps: count("steps")?,
        tasks: count("tasks")?,
        depth: count("depth")?,
        soft_percent: share("soft", defaults.soft_percent, 1, 100)?,
        final_percent: share("final", defaults.final_percent, 0, 90)?,
        when_spent: match fields
            .find_field("when_spent")
            .map(|node| node.index_of_choice("when_spent", &WHEN_SPENT))
            .transpose()?
        {
            Some(1) => BudgetExhaustionPolicy::Cancel,
            Some(_) | None => BudgetExhaustionPolicy::Finish,
        },
    })
}

/// Reads the budget of a task, an attempt or a capability.
pub fn parse_amounts(node: &YamlNode, what: &'static str) -> Result<ResourceAmounts, YamlMistake> {
    parse_amount_fields(&MappingFields::from_node(node, what, &AMOUNTS)?)
}

fn parse_capability_budgets(
    node: &YamlNode,
) -> Result<std::collections::BTreeMap<Capability, ResourceAmounts>, YamlMistake> {
    let YamlValue::Map(entries) = &node.value else {
        return Err(node.mismatch_error("capabilities", "a map of capabilities to budgets"));
    };
    let budgets = entries.iter().map(|entry| {
        let name = Capability::new(entry.key.as_str());
        let name = name.map_err(|error| YamlMistake::at_position(entry.position, error.to_string()))?;
        Ok((name, parse_amounts(&entry.node, "budget of a capability")?))
    });
    budgets.collect()
}

fn parse_amount_fields(fields: &MappingFields<'_>) -> Result<ResourceAmounts, YamlMistake> {
    let mut amounts = ResourceAmounts::default();
    for name in AMOUNTS {
        let (Some(node), Some(dimension)) = (fields.find_field(name), parse_dimension(name)) else {
            continue;
        };
        let parsed = read_scalar_text(node).and_then(|text| parse_amount(dimension, &text));
        amounts.set(
            dimension,
            Some(parsed.ok_or_else(|| node.mismatch_error(name, describe_valid_amount(dimension)))?),
        );
    }
    Ok(amounts)
}

/// Returns a number or a text as it is written.
fn read_scalar_text(node: &YamlNode) -> Option<String> {
    match &node.value {
        YamlValue::Number(number) => Some(number.to_string()),
        YamlValue::Text(text) => Some(text.clone()),
        YamlValue::Nothing | YamlValue::Flag(_) | YamlValue::List(_) | YamlValue::Map(_) => None,
    }
}

fn parse_duration_field(node: &YamlNode, name: &'static str) -> Result<std::time::Duration, YamlMistake> {
    let time = node.parse_duration(name)?;
    if time.is_zero() { Err(node.mismatch_error(name, "more than 0 seconds")) } else { Ok(time) }
}

fn parse_count_field(node: &YamlNode, name: &str) -> Result<u32, YamlMistake> {
    match node.parse_integer(name, "of 1 or more")? {
        0 => Err(node.mismatch_error(name, A_COUNT)),
        count => Ok(count),
    }
}

fn parse_percent_field(node: &YamlNode, name: &str, least: u8, most: u8) -> Result<u8, YamlMistake> {
    let range = format!("a percentage from {least} to {most}");
    let parsed = read_scalar_text(node).and_then(|text| crate::limits::parse_percent(&text, least..=most));
    parsed.ok_or_else(|| node.mismatch_error(name, &range))
}
