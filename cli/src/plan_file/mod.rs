//! Plan files: a user's tasks as YAML (JSON is YAML too), turned into those of the protocol. Every mistake is told with
//! the file, the line, what was expected, and where a name is unknown the nearest that is known. It reads files and
//! hands nothing in.

mod budget;
mod schema;
mod tasks;

use std::path::Path;

use millrace_forms::{Fault, Fields, Kind, Mistake, Node, Value};
use millrace_protocol::plan::{Budget, Consult, Mode, Plan, Review, TaskSpec};

pub use schema::schema;

/// The most bytes of a plan file: 32 MiB, which is 100,000 tasks with all their fields.
const MAX_BYTES: u64 = 32 * 1024 * 1024;

const KIND: Kind = Kind { name: "plan", holds: "tasks" };

/// The fields of a plan.
const FIELDS: [&str; 6] = ["objective", "mode", "consult", "budget", "fail_fast", "tasks"];
/// What is said of a run as a whole, which tasks for a run that is under way can't say.
const OF_RUN: [&str; 4] = ["mode", "consult", "budget", "fail_fast"];
/// The words for [`Consult`], in its order.
const CONSULT: [&str; 3] = ["never", "judgement", "every_result"];

/// What a plan file says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlanFile {
    /// What the user wants, where the file says it.
    pub objective: Option<String>,
    /// Who makes the plan, where the file says it: never the planner alone.
    pub mode: Option<Mode>,
    /// When the planner is asked, where the file says it.
    pub consult: Option<Consult>,
    /// What the run may use.
    pub budget: Budget,
    /// Whether the first failed task ends the run.
    pub fail_fast: bool,
    /// The tasks; together they make a plan.
    pub tasks: Vec<TaskSpec>,
}

/// Reads a plan file.
///
/// # Errors
/// It can't be read, is larger than 32 MiB, or makes no plan.
pub fn load(path: &Path) -> Result<PlanFile, Fault> {
    millrace_forms::load(path, KIND, MAX_BYTES, parse)
}

/// Reads a plan file whose tasks are to be added to a plan, on whose tasks they may depend.
///
/// # Errors
/// As for [`load`]; or it says something of the run as a whole.
pub fn load_more(path: &Path, plan: &Plan) -> Result<Vec<TaskSpec>, Fault> {
    millrace_forms::load(path, KIND, MAX_BYTES, |bytes| more(bytes, plan))
}

/// Reads the bytes of a plan file.
///
/// # Errors
/// The first mistake in them.
pub fn parse(bytes: &[u8]) -> Result<PlanFile, Mistake> {
    let root = millrace_forms::read(bytes, KIND)?;
    let file = Fields::of(&root, "plan", &FIELDS)?;
    let objective = file.get("objective").map(|node| node.text("objective")).transpose()?;
    let fail_fast = file.get("fail_fast").map(|node| node.flag("fail_fast")).transpose()?;
    Ok(PlanFile {
        objective: objective.map(str::to_owned),
        mode: file.get("mode").map(mode).transpose()?,
        consult: file.get("consult").map(consult).transpose()?,
        budget: file.get("budget").map(budget::of_run).transpose()?.unwrap_or_default(),
        fail_fast: fail_fast.unwrap_or_default(),
        tasks: tasks::read(file.required("tasks")?, &Plan::default())?,
    })
}

fn more(bytes: &[u8], plan: &Plan) -> Result<Vec<TaskSpec>, Mistake> {
    let root = millrace_forms::read(bytes, KIND)?;
    let file = Fields::of(&root, "plan", &FIELDS)?;
    let of_run = OF_RUN.iter().find_map(|name| Some((name, file.get(name)?)));
    if let Some((name, node)) = of_run {
        let text =
            format!("{name:?} is said when a run begins; only tasks can be added to one that is under way");
        return Err(Mistake::at(node.place, text));
    }
    tasks::read(file.required("tasks")?, plan)
}

fn mode(node: &Node) -> Result<Mode, Mistake> {
    if matches!(&node.value, Value::Text(text) if text == "llm") {
        let text = "a plan that a user began is for mode hybrid or fixed; in mode llm the planner makes the plan, without a file";
        return Err(Mistake::at(node.place, text));
    }
    Ok(match node.choice("mode", &["hybrid", "fixed"])? {
        0 => Mode::Hybrid,
        _ => Mode::Fixed,
    })
}

fn consult(node: &Node) -> Result<Consult, Mistake> {
    Ok(match node.choice("consult", &CONSULT)? {
        0 => Consult::Never,
        1 => Consult::Judgement,
        _ => Consult::EveryResult,
    })
}

/// Reads the review of a task as it stands in a plan file, from a command line.
///
/// # Errors
/// The first mistake in it.
pub fn review(text: &str) -> Result<Review, Mistake> {
    let kind = Kind { name: "review", holds: "none, critic, or checks and criteria" };
    millrace_agent::spec::review(&millrace_forms::read(text.as_bytes(), kind)?)
}

/// Reads what happens to a task when one it depends on is lost, from a command line.
pub use tasks::on_failed_dependency;

#[cfg(test)]
mod tests;
