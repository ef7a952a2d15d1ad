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
mod schema;
mod start;
mod tasks;

use std::path::Path;

use millrace_protocol::plan::{
    Budget, Plan, PlannerConsultMode, PlanningMode, ReviewPolicy, TaskSpec, find_criteria_problem,
};
use millrace_strict_yaml::{
    FileDescription, LoadError, MappingFields, MistakeCollector, YamlMistake, YamlMistakes, YamlNode,
    YamlValue,
};

pub use run::{RunMistake, resolve_consult, resolve_mode, resolve_objective};
pub use schema::plan_file_schema;
pub use start::{parse_not_before, parse_start_event};

/// The most bytes of a plan file: 32 MiB, which is 100,000 tasks with all their fields.
const MAX_BYTES: u64 = 32 * 1024 * 1024;

const KIND: FileDescription = FileDescription { name: "plan", holds: "tasks" };

/// The fields of a plan.
const FIELDS: [&str; 8] =
    ["objective", "criteria", "mode", "consult", "budget", "fail_fast", "approve_plan", "tasks"];
/// Fields of the run as a whole, which are not allowed in a file whose tasks are added to an existing run.
const OF_RUN: [&str; 6] = ["criteria", "mode", "consult", "budget", "fail_fast", "approve_plan"];
/// The names of the variants of [`PlannerConsultMode`], in order.
const CONSULT: [&str; 3] = ["never", "judgement", "every_result"];

/// The contents of a plan file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlanFile {
    /// The objective, if the file has one.
    pub objective: Option<String>,
    /// The planning mode, if the file sets it; never `llm`.
    pub mode: Option<PlanningMode>,
    /// When the planner is called, if the file sets it.
    pub consult: Option<PlannerConsultMode>,
    /// The budget of the run.
    pub budget: Budget,
    /// `true` if the first failed task ends the run.
    pub fail_fast: bool,
    /// `true` if a person must approve the plan before its first task starts.
    pub approve_plan: bool,
    /// The criteria for the deliverable.
    pub criteria: Vec<String>,
    /// The tasks; they form a valid plan.
    pub tasks: Vec<TaskSpec>,
    /// The positions of the tasks' fields, in the same order.
    pub positions: Vec<TaskFieldPositions>,
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
    let root = millrace_strict_yaml::parse_yaml(bytes, KIND)?;
    let mut mistakes = MistakeCollector::default();
    let Some(file) = MappingFields::collect_from_node(&root, "plan", &FIELDS, &mut mistakes) else {
        mistakes.finish()?;
        return Ok(PlanFile::default());
    };
    let objective = file.find_field("objective").map(|node| node.parse_text("objective"));
    let fail_fast = file.find_field("fail_fast").map(|node| node.parse_boolean("fail_fast"));
    let approve_plan = file.find_field("approve_plan").map(|node| node.parse_boolean("approve_plan"));
    let criteria = mistakes.check_optional(file.find_field("criteria").map(parse_criteria));
    let plan = PlanFile {
        criteria: criteria.unwrap_or_default(),
        objective: mistakes.check_optional(objective).map(str::to_owned),
        mode: mistakes.check_optional(file.find_field("mode").map(parse_mode)),
        consult: mistakes.check_optional(file.find_field("consult").map(parse_consult)),
        budget: mistakes
            .check_optional(file.find_field("budget").map(budget::parse_run_budget))
            .unwrap_or_default(),
        fail_fast: mistakes.check_optional(fail_fast).unwrap_or_default(),
        approve_plan: mistakes.check_optional(approve_plan).unwrap_or_default(),
        ..PlanFile::default()
    };
    let (tasks, positions) = match mistakes.check(file.require_field("tasks")) {
        Some(node) => (
            tasks::parse_and_validate_tasks(node, &Plan::default(), &mut mistakes),
            tasks::task_field_positions(node),
        ),
        None => Default::default(),
    };
    mistakes.finish()?;
    Ok(PlanFile { tasks, positions, ..plan })
}

/// Parses the bytes of a plan file whose tasks are added to an existing plan.
///
/// # Errors
/// All mistakes in the file.
pub fn parse_additional_tasks(bytes: &[u8], plan: &Plan) -> Result<AdditionalTasks, YamlMistakes> {
    let root = millrace_strict_yaml::parse_yaml(bytes, KIND)?;
    let mut mistakes = MistakeCollector::default();
    let file = MappingFields::from_node(&root, "plan", &FIELDS)?;
    for (name, node) in OF_RUN.iter().filter_map(|name| Some((name, file.find_field(name)?))) {
        let text = format!(
            "{name:?} can only be set when a run is submitted; only tasks can be added to an existing run"
        );
        mistakes.check::<()>(Err(YamlMistake::at_position(node.position, text)));
    }
    let node = file.require_field("tasks")?;
    let tasks = tasks::parse_and_validate_tasks(node, plan, &mut mistakes);
    mistakes.finish()?;
    Ok(AdditionalTasks { tasks, positions: tasks::task_field_positions(node) })
}

fn parse_criteria(node: &YamlNode) -> Result<Vec<String>, YamlMistake> {
    let items = node.parse_list("criteria", "sentences")?.iter();
    let criteria: Vec<String> =
        items.map(|item| item.parse_text("criteria").map(str::to_owned)).collect::<Result<_, _>>()?;
    match find_criteria_problem(&criteria) {
        None => Ok(criteria),
        Some(problem) => Err(YamlMistake::at_position(node.position, problem)),
    }
}

fn parse_mode(node: &YamlNode) -> Result<PlanningMode, YamlMistake> {
    if matches!(&node.value, YamlValue::Text(text) if text == "llm") {
        let text =
            "a plan file is for mode hybrid or fixed; in mode llm the planner makes the plan without a file";
        return Err(YamlMistake::at_position(node.position, text));
    }
    Ok(match node.index_of_choice("mode", &["hybrid", "fixed"])? {
        0 => PlanningMode::Hybrid,
        _ => PlanningMode::Fixed,
    })
}

fn parse_consult(node: &YamlNode) -> Result<PlannerConsultMode, YamlMistake> {
    Ok(match node.index_of_choice("consult", &CONSULT)? {
        0 => PlannerConsultMode::Never,
        1 => PlannerConsultMode::Judgement,
        _ => PlannerConsultMode::EveryResult,
    })
}

/// Parses the review of a task from the command line, in the format of a plan file.
///
/// # Errors
/// The first mistake in the text.
pub fn parse_review(text: &str) -> Result<ReviewPolicy, YamlMistake> {
    let kind = FileDescription { name: "review", holds: "none, critic, or checks and criteria" };
    millrace_agent::spec::read_review(&millrace_strict_yaml::parse_yaml(text.as_bytes(), kind)?)
}

/// Reads the budget of a run.
pub use budget::parse_run_budget;
/// Parses `--on-failed-dependency`.
pub use tasks::parse_on_failed_dependency;
pub use tasks::{CapabilityMistake, TaskFieldPositions, find_capability_mistakes};

#[cfg(test)]
mod tests;
