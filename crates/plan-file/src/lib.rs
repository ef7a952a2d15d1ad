//! Parses plan files: the tasks of a run as YAML (JSON is valid YAML). Every mistake is reported with the file, the line,
//! the expected value, and for an unknown name the most similar valid one. It only reads files; it submits nothing.
//!
//! # Invariants
//!
//! - I79: All mistakes in the parts of a plan or capability file are reported at once.
//!   (`crates/plan-file/src/tests.rs::all_mistakes_of_a_plan_are_reported_at_once`)

mod budget;
pub mod limits;
mod run;
mod tasks;

use std::path::Path;

use millrace_agent::spec::{ReviewForm, review_schema};
use millrace_protocol::plan::{
    Budget, Plan, PlannerConsultMode, PlanningMode, ReviewPolicy, TaskSpec, find_criteria_problem,
};
use millrace_protocol::result::VerificationPolicy;
use millrace_strict_yaml::{
    FileDescription, LoadError, MistakeCollector, ValueMistake, YamlMistake, YamlMistakes, YamlNode,
    collect_node, deserialize_field, from_form, tidy_schema,
};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use tasks::TaskForm;

pub use budget::{BudgetForm, parse_run_budget};
pub use run::{RunDescription, RunMistake};
pub use tasks::{
    CapabilityMistakes, TaskFieldPositions, changed_limits, find_capability_mistakes, parse_not_before,
    parse_on_failed_dependency, parse_start_event,
};

/// The most bytes of a plan file: 32 MiB, which is 100,000 tasks with all their fields.
const MAX_BYTES: u64 = 32 * 1024 * 1024;

const KIND: FileDescription = FileDescription { name: "plan", holds: "tasks" };

/// Fields of the run as a whole, which are not allowed in a file whose tasks are added to an existing run.
const OF_RUN: &[&str] =
    &["criteria", "mode", "consult", "budget", "fail_fast", "approve_plan", "verification"];
/// A plan: the tasks of a run and their dependencies.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename = "plan", deny_unknown_fields)]
#[schemars(rename = "Plan", transform = tidy_schema)]
pub struct PlanFile {
    /// The objective of the run; may be omitted if it is given on the command line.
    pub objective: Option<String>,
    /// The criteria for the deliverable, one sentence each: a critic checks them in the result of the final task.
    #[serde(default, deserialize_with = "read_criteria")]
    #[schemars(length(max = 50))]
    pub criteria: Vec<String>,
    /// Planning mode: `fixed` executes the plan as it is (the default), `hybrid` lets the planner extend and change it.
    #[serde(default, deserialize_with = "read_mode")]
    #[schemars(with = "FileMode")]
    pub mode: Option<PlanningMode>,
    /// When the planner is called; by default `never` for a fixed plan, otherwise `judgement`.
    pub consult: Option<PlannerConsultMode>,
    /// The total budget of the run: planner, workers and critics.
    #[serde(default, deserialize_with = "from_form::<_, BudgetForm, _>")]
    #[schemars(with = "BudgetForm")]
    pub budget: Budget,
    /// If true, the first failed task ends the run.
    #[serde(default)]
    pub fail_fast: bool,
    /// If true, a person must approve the plan before its first task starts.
    #[serde(default)]
    pub approve_plan: bool,
    /// The consequence of verdicts on statements; by default that of each capability.
    pub verification: Option<VerificationPolicy>,
    /// The tasks, in any order.
    #[serde(deserialize_with = "tasks::read_tasks")]
    #[schemars(with = "Vec<TaskForm>", length(min = 1))]
    pub tasks: Vec<TaskSpec>,
    /// The positions of the tasks' fields, in the same order.
    #[serde(skip)]
    pub positions: Vec<TaskFieldPositions>,
}

/// The modes that a plan file can have.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum FileMode {
    Hybrid,
    Fixed,
}

/// Tasks that are added to an existing plan.
#[derive(Debug, Clone, PartialEq)]
pub struct AdditionalTasks {
    /// The tasks; with those of the plan they form a valid plan.
    pub tasks: Vec<TaskSpec>,
    /// The positions of the tasks' fields, in the same order.
    pub positions: Vec<TaskFieldPositions>,
}

/// Reads a plan file.
///
/// # Errors
/// It can't be read, is larger than 32 MiB, or is not a valid plan.
pub fn load_plan_file(path: &Path) -> Result<PlanFile, LoadError> {
    millrace_strict_yaml::load_yaml_file(path, KIND, MAX_BYTES, parse_plan_file)
}

/// Reads a plan file whose tasks are added to an existing plan; they may depend on its tasks.
///
/// # Errors
/// As for [`load_plan_file`]; or it has a field of the run as a whole.
pub fn load_additional_tasks(path: &Path, plan: &Plan) -> Result<AdditionalTasks, LoadError> {
    millrace_strict_yaml::load_yaml_file(path, KIND, MAX_BYTES, |bytes| parse_additional_tasks(bytes, plan))
}

/// Parses the bytes of a plan file.
///
/// # Errors
/// All mistakes in the file. Those of the plan as a whole, such as a cycle, are found once its parts are valid.
pub fn parse_plan_file(bytes: &[u8]) -> Result<PlanFile, YamlMistakes> {
    parse_plan(bytes, &Plan::default(), &[])
}

/// Parses the bytes of a plan file whose tasks are added to an existing plan.
pub fn parse_additional_tasks(bytes: &[u8], plan: &Plan) -> Result<AdditionalTasks, YamlMistakes> {
    let PlanFile { tasks, positions, .. } = parse_plan(bytes, plan, OF_RUN)?;
    Ok(AdditionalTasks { tasks, positions })
}

/// Parses a file without some fields, whose tasks are added to those of `plan`.
fn parse_plan(bytes: &[u8], plan: &Plan, refused: &[&str]) -> Result<PlanFile, YamlMistakes> {
    let root = millrace_strict_yaml::parse_yaml(bytes, KIND)?;
    let mut mistakes = MistakeCollector::default();
    let file: Option<PlanFile> = collect_node(&root, "plan", &mut mistakes);
    for (name, node) in refused.iter().filter_map(|name| Some((name, root.child(name)?))) {
        let text = format!(
            "{name:?} can only be set when a run is submitted; only tasks can be added to an existing run"
        );
        mistakes.add(YamlMistake::at_position(node.position, text));
    }
    mistakes.finish()?;
    let mut file = file.expect("a file that can't be read has a mistake");
    if let Some(list) = root.child("tasks") {
        tasks::check_tasks(list, &file.tasks, plan)?;
        file.positions = tasks::task_field_positions(list);
    }
    Ok(file)
}

fn read_criteria<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename = "sentence")]
    struct Sentence(String);
    let criteria = Vec::<Sentence>::deserialize(deserializer)?;
    let criteria: Vec<String> = criteria.into_iter().map(|Sentence(text)| text).collect();
    match find_criteria_problem(&criteria) {
        None => Ok(criteria),
        Some(problem) => Err(D::Error::custom(ValueMistake::sentence(problem))),
    }
}

fn read_mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PlanningMode>, D::Error> {
    let node = YamlNode::deserialize(deserializer)?;
    if node.as_text() == Some("llm") {
        let text =
            "a plan file is for mode hybrid or fixed; in mode llm the planner makes the plan without a file";
        return Err(D::Error::custom(ValueMistake::sentence(text)));
    }
    let mode = deserialize_field(&node, "mode");
    match mode.map_err(|mistakes| D::Error::custom(ValueMistake::sentence(mistakes.texts())))? {
        FileMode::Hybrid => Ok(Some(PlanningMode::Hybrid)),
        FileMode::Fixed => Ok(Some(PlanningMode::Fixed)),
    }
}

/// Parses the review of a task from the command line, in the format of a plan file.
pub fn parse_review(text: &str) -> Result<ReviewPolicy, YamlMistakes> {
    #[derive(Deserialize)]
    struct Review(#[serde(deserialize_with = "from_form::<_, ReviewForm, _>")] ReviewPolicy);
    let kind = FileDescription { name: "review", holds: "none, critic, or checks and criteria" };
    let node = millrace_strict_yaml::parse_yaml(text.as_bytes(), kind)?;
    deserialize_field(&node, "review").map(|Review(policy)| policy)
}

/// The schema of a review.
pub struct ReviewSchema;

impl JsonSchema for ReviewSchema {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Review".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        Schema::try_from(review_schema()).expect("a schema is a map")
    }
}

/// The JSON Schema of a plan file (draft 2020-12).
pub fn plan_file_schema() -> Value {
    let mut schema = schemars::schema_for!(PlanFile).to_value();
    schema["$defs"]["OnFailedDependency"] = json!({
        "description": "What happens to a task when a task it depends on fails or is cancelled: cancel it too, skip the \
                        dependency and run without it, or ask the planner (block is a deprecated name for ask).",
        "enum": ["cancel", "skip", "ask", "block"],
    });
    schema["$defs"]["TaskSpec"]["properties"]["review"]["default"] = json!("none");
    schema["$defs"]["Limits"]["description"] = json!("Limits on the number and duration of attempts.");
    let limits = &mut schema["$defs"]["Limits"]["properties"];
    limits["max_attempts"]["minimum"] = json!(1);
    limits["max_attempts"]["maximum"] = json!(100);
    for name in ["backoff", "queue_wait", "run_time", "silence"] {
        let description = limits[name]["description"].take();
        let default = limits[name]["default"].take();
        limits[name] = json!({
            "description": description,
            "default": default,
            "anyOf": [
                { "type": "number", "minimum": 0, "description": "Seconds." },
                { "type": "string", "examples": ["90s", "5m", "1h 30m"] },
            ],
        });
    }
    schema
}

#[cfg(test)]
mod tests;
