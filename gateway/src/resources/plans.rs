//! `POST /plans/check`: checks a plan without submitting it.

use millrace_plan_file::{
    CapabilityMistakes, PlanFile, find_capability_mistakes, parse_additional_tasks, parse_plan_file,
};
use millrace_protocol::plan::CapabilityRegistry;
use millrace_protocol::token::Scope;
use millrace_runtime::work::registry;
use millrace_strict_yaml::{YamlMistake, YamlMistakes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::extract::Json;
use crate::problem::ApiResult;
use crate::state::reply;

pub fn routes() -> ApiRoutes {
    ApiRoutes::new().scoped(Scope::Read, routes!(check_plan))
}

/// A plan to check.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanCheckBody {
    /// The plan as in a plan file: YAML or JSON in a string, whose lines the mistakes name; or an object.
    plan: Value,
    /// The run to which the tasks of the plan would be added; they may depend on its tasks.
    #[serde(default)]
    run: Option<String>,
}

/// The result of a check.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum PlanCheck {
    /// The plan was checked.
    PlanCheck {
        /// `true` if a run with this plan can be submitted.
        valid: bool,
        /// The mistakes, in the order of their places. Warnings do not keep the plan from being submitted.
        mistakes: Vec<PlanMistake>,
        /// The objective of the plan, if it has one.
        objective: Option<String>,
        /// The tasks, if the plan is valid.
        tasks: Vec<CheckedTask>,
    },
}

/// A mistake in a plan.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PlanMistake {
    /// The severity.
    severity: MistakeSeverity,
    /// The line, from 1.
    line: u64,
    /// The column in characters, from 1.
    column: u64,
    /// The mistake and the expected value.
    message: String,
}

/// The severity of a mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MistakeSeverity {
    /// The plan can't be submitted.
    Error,
    /// The plan can be submitted, but a task may wait for ever.
    Warning,
}

/// A task of a valid plan.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CheckedTask {
    /// Its id.
    id: String,
    /// Its objective.
    objective: String,
    /// Its capability.
    capability: String,
    /// The tasks that it depends on.
    depends_on: Vec<String>,
    /// `true` if its result is the deliverable.
    #[serde(rename = "final")]
    is_final: bool,
}

impl PlanMistake {
    fn new(severity: MistakeSeverity, mistake: &YamlMistake) -> Self {
        let (line, column) = (mistake.position.line, mistake.position.column);
        Self { severity, line, column, message: mistake.text.clone() }
    }
}

/// Check a plan without submitting it: each mistake has its line and column.
#[utoipa::path(
    post, path = "/plans/check", tag = "runs",
    request_body = ref("#/components/schemas/PlanCheckBody"),
    responses((status = 200, description = "The plan was checked; `valid` says whether it can be submitted", body = ref("#/components/schemas/PlanCheck")))
)]
async fn check_plan(gateway: Access, Json(body): Json<PlanCheckBody>) -> ApiResult {
    let text = body.plan.as_str().map_or_else(|| format!("{:#}", body.plan), str::to_owned);
    let parsed = match &body.run {
        None => parse_plan_file(text.as_bytes()),
        Some(run) => {
            let (run, _) = gateway.find_run(run).await?;
            let state = gateway.read_history(&run, None).await?;
            let additional = parse_additional_tasks(text.as_bytes(), state.plan());
            additional.map(|additional| PlanFile {
                tasks: additional.tasks,
                positions: additional.positions,
                ..PlanFile::default()
            })
        }
    };
    let known = registry::read_capabilities(&gateway.bus).await?;
    let known = CapabilityRegistry::from_descriptions(known.values());
    reply(&describe_check(parsed, &known))
}

fn describe_check(parsed: Result<PlanFile, YamlMistakes>, known: &CapabilityRegistry) -> PlanCheck {
    let plan = match parsed {
        Ok(plan) => plan,
        Err(mistakes) => {
            let mistakes = mistakes.iter().map(|mistake| PlanMistake::new(MistakeSeverity::Error, mistake));
            let (objective, tasks) = (None, Vec::new());
            return PlanCheck::PlanCheck { valid: false, mistakes: mistakes.collect(), objective, tasks };
        }
    };
    let CapabilityMistakes { unknown, parameters } =
        find_capability_mistakes(&plan.tasks, &plan.positions, known);
    let warnings = unknown.iter().map(|mistake| PlanMistake::new(MistakeSeverity::Warning, mistake));
    let errors = parameters.iter().map(|mistake| PlanMistake::new(MistakeSeverity::Error, mistake));
    let mut mistakes: Vec<PlanMistake> = warnings.chain(errors).collect();
    mistakes.sort_by_key(|mistake| (mistake.line, mistake.column));
    let tasks = plan.tasks.iter().map(|task| CheckedTask {
        id: task.id.to_string(),
        objective: task.objective.clone(),
        capability: task.capability.to_string(),
        depends_on: task.depends_on.iter().map(ToString::to_string).collect(),
        is_final: task.is_final,
    });
    PlanCheck::PlanCheck {
        valid: mistakes.iter().all(|mistake| mistake.severity != MistakeSeverity::Error),
        tasks: tasks.collect(),
        mistakes,
        objective: plan.objective,
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::ids::Capability;
    use millrace_protocol::result::CapabilityDescription;

    use super::*;

    fn check(text: &str) -> (bool, Vec<PlanMistake>) {
        let echo = CapabilityDescription::new(Capability::new("echo").unwrap(), "says it again");
        let known = CapabilityRegistry::from_descriptions([&echo]);
        let PlanCheck::PlanCheck { valid, mistakes, .. } =
            describe_check(parse_plan_file(text.as_bytes()), &known);
        (valid, mistakes)
    }

    #[test]
    fn mistakes_have_their_places() {
        assert_eq!(check("tasks:\n- {id: a, objective: o, capability: echo}\n"), (true, Vec::new()));
        let (valid, mistakes) = check("tasks:\n- {id: a, objective: o, capability: ecko}\n");
        assert!(valid, "a task may wait for its capability");
        assert_eq!((mistakes[0].severity, mistakes[0].line), (MistakeSeverity::Warning, 2));
        assert!(mistakes[0].message.contains("echo"), "{mistakes:?}");
        let (valid, mistakes) =
            check("objektive: x\ntasks:\n- {id: a, objective: o, capability: echo}\n- {id: a}\n");
        assert!(!valid);
        let lines: Vec<u64> = mistakes.iter().map(|mistake| mistake.line).collect();
        assert_eq!((lines[0], lines.contains(&4)), (1, true), "{mistakes:?}");
        assert!(!check("tasks: [").0);
    }
}
