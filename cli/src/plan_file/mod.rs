//! Plan files: a user's tasks as YAML (JSON is YAML too), turned into those of the protocol. Every mistake is told with
//! the file, the line, what was expected, and where a name is unknown the nearest that is known. It reads files and
//! hands nothing in.

mod schema;
mod tasks;

use std::path::Path;

use millrace_forms::{Fault, Fields, Kind, Mistake};
use millrace_protocol::plan::TaskSpec;

pub use schema::schema;

/// The most bytes of a plan file: 32 MiB, which is 100,000 tasks with all their fields.
const MAX_BYTES: u64 = 32 * 1024 * 1024;

const KIND: Kind = Kind { name: "plan", holds: "tasks" };

/// The fields of a plan.
const FIELDS: [&str; 3] = ["objective", "fail_fast", "tasks"];

/// What a plan file says.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanFile {
    /// What the user wants, where the file says it.
    pub objective: Option<String>,
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

/// Reads the bytes of a plan file.
///
/// # Errors
/// The first mistake in them.
pub fn parse(bytes: &[u8]) -> Result<PlanFile, Mistake> {
    let root = millrace_forms::read(bytes, KIND)?;
    let plan = Fields::of(&root, "plan", &FIELDS)?;
    let objective = plan.get("objective").map(|node| node.text("objective")).transpose()?;
    let fail_fast = plan.get("fail_fast").map(|node| node.flag("fail_fast")).transpose()?;
    let tasks = tasks::read(plan.required("tasks")?)?;
    Ok(PlanFile { objective: objective.map(str::to_owned), fail_fast: fail_fast.unwrap_or_default(), tasks })
}

#[cfg(test)]
mod tests;
