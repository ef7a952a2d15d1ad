//! The `budget` field of a plan file: of the run with all limits, of a task with amounts only.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{Budget, BudgetExhaustionPolicy, ResourceAmounts, ResourceKind};
use millrace_strict_yaml::{
    FileDuration, Parts, ValueMistake, Whole, YamlMistakes, YamlNode, deserialize_field, from_form,
    tidy_schema,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use crate::limits::{describe_valid_amount, parse_amount, parse_percent};

/// Reads the budget of a run.
pub fn parse_run_budget(node: &YamlNode) -> Result<Budget, YamlMistakes> {
    #[derive(Deserialize)]
    struct RunBudget(#[serde(deserialize_with = "from_form::<_, BudgetForm, _>")] Budget);
    deserialize_field(node, "budget").map(|RunBudget(budget)| budget)
}

// The notation of a `Budget`.
#[derive(Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct BudgetForm(Parts<AmountFields, LimitFields>);

/// Budget of attempts and their reviews; amounts that are not given are unlimited.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename = "budget", default, deny_unknown_fields)]
#[schemars(rename = "Amounts", transform = tidy_schema)]
pub struct AmountFields {
    /// Tokens sent and received.
    tokens: Option<Count>,
    /// Tokens sent.
    r#in: Option<Count>,
    /// Tokens received.
    out: Option<Count>,
    /// Tokens sent that the provider read from its cache.
    cached: Option<Count>,
    /// Calls to models.
    calls: Option<Count>,
    /// US dollars.
    cost: Option<Micros>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename = "budget", default, deny_unknown_fields)]
#[schemars(transform = tidy_schema)]
struct LimitFields {
    /// Time limit from the start of the run, pauses excluded.
    time: Option<PositiveDuration>,
    /// Time that work waits for a model provider that does not answer before the run pauses; 30m by default.
    provider_timeout: Option<PositiveDuration>,
    /// Maximum number of planner turns; 20 by default.
    steps: Option<Whole<1, { u32::MAX }>>,
    /// Maximum number of tasks in a planner's plan; 1000 by default.
    tasks: Option<Whole<1, { u32::MAX }>>,
    /// Maximum length of a chain of dependent tasks in a planner's plan; 100 by default.
    depth: Option<Whole<1, { u32::MAX }>>,
    /// Budget of one attempt; by default a quarter of the remaining budget.
    attempt: AmountFields,
    /// Budget of all work of a capability, including planner and critic.
    #[schemars(with = "BTreeMap<String, AmountFields>")]
    capabilities: BTreeMap<Capability, AmountFields>,
    /// Percentage of the budget at which the planner is asked to wrap up.
    #[schemars(extend("default" = 80))]
    soft: Option<SoftPercent>,
    /// Percentage of the budget that is reserved for the final task and its review.
    #[schemars(extend("default" = 10))]
    r#final: Option<FinalPercent>,
    /// Policy for running work when the budget is used up: let it finish, or cancel it.
    #[schemars(with = "WhenSpent", extend("default" = "finish"))]
    when_spent: BudgetExhaustionPolicy,
}

/// The names of a [`BudgetExhaustionPolicy`].
#[derive(JsonSchema)]
#[schemars(inline, rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
enum WhenSpent {
    Finish,
    Cancel,
}

impl From<BudgetForm> for Budget {
    fn from(BudgetForm(Parts(amounts, limits)): BudgetForm) -> Self {
        let defaults = Self::default();
        let capabilities = limits.capabilities.into_iter().map(|(name, amounts)| (name, amounts.into()));
        Self {
            amounts: amounts.into(),
            attempt: limits.attempt.into(),
            capabilities: capabilities.collect(),
            wall_time: limits.time.map(|time| time.0),
            provider_timeout: limits.provider_timeout.map(|time| time.0),
            steps: limits.steps.map(u32::from),
            tasks: limits.tasks.map(u32::from),
            depth: limits.depth.map(u32::from),
            soft_percent: limits.soft.map_or(defaults.soft_percent, |share| share.0),
            final_percent: limits.r#final.map_or(defaults.final_percent, |share| share.0),
            when_spent: limits.when_spent,
        }
    }
}

impl From<AmountFields> for ResourceAmounts {
    fn from(amounts: AmountFields) -> Self {
        let count = |count: Option<Count>| count.map(|count| count.0);
        Self {
            tokens: count(amounts.tokens),
            input_tokens: count(amounts.r#in),
            output_tokens: count(amounts.out),
            cached_tokens: count(amounts.cached),
            model_calls: count(amounts.calls),
            cost_micros: amounts.cost.map(|cost| cost.0),
        }
    }
}

macro_rules! scalars {
    ($($(#[$doc:meta])* $name:ident($inner:ty) = $read:expr, $schema:tt;)*) => {$(
        $(#[$doc])*
        #[derive(Deserialize)]
        #[serde(try_from = "YamlNode")]
        struct $name($inner);

        impl TryFrom<YamlNode> for $name {
            type Error = ValueMistake;

            fn try_from(node: YamlNode) -> Result<Self, ValueMistake> {
                $read(&node).map(Self)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    )*};
}
scalars! {
    /// A number of tokens or calls.
    Count(u64) = |node| read_amount(node, ResourceKind::Tokens), {
        "anyOf": [
            { "type": "integer", "minimum": 1 },
            { "type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?[kKM]?$", "examples": ["200k", "1.5M"] },
        ],
    };
    /// An amount of money in millionths of a dollar.
    Micros(u64) = |node| read_amount(node, ResourceKind::Cost), {
        "anyOf": [
            { "type": "number", "minimum": 0.000_001 },
            { "type": "string", "pattern": r"^\$?[0-9]+(\.[0-9]{1,6})?$" },
        ],
    };
    SoftPercent(u8) = |node| read_percent(node, 1..=100), { "type": "integer", "minimum": 1, "maximum": 100 };
    FinalPercent(u8) = |node| read_percent(node, 0..=90), { "type": "integer", "minimum": 0, "maximum": 90 };
    /// A duration that is longer than zero.
    PositiveDuration(Duration) = |node: &YamlNode| match FileDuration::try_from(node.clone())?.0 {
        Duration::ZERO => Err(node.mismatch("more than 0 seconds")),
        duration => Ok(duration),
    }, {
        "anyOf": [
            { "type": "number", "description": "Seconds." },
            { "type": "string", "examples": ["30m", "1h 30m"] },
        ],
    };
}

fn read_amount(node: &YamlNode, kind: ResourceKind) -> Result<u64, ValueMistake> {
    node.parse_scalar(describe_valid_amount(kind), |text| parse_amount(kind, text))
}

fn read_percent(node: &YamlNode, range: RangeInclusive<u8>) -> Result<u8, ValueMistake> {
    let expected = format!("a percentage from {} to {}", range.start(), range.end());
    node.parse_scalar(&expected, |text| parse_percent(text, range))
}
