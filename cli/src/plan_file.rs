//! Plan files. (Placeholder of the signatures that the commands use: the parser replaces this file.)
use std::path::Path;
use millrace_protocol::plan::TaskSpec;
/// A plan as read.
#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanFile {
    /// What the user wants.
    #[serde(default)]
    pub objective: Option<String>,
    /// Whether the first failure ends the run.
    #[serde(default)]
    pub fail_fast: bool,
    /// The tasks.
    pub tasks: Vec<TaskSpec>,
}
/// Reads a plan file.
pub fn load(path: &Path) -> anyhow::Result<PlanFile> {
    Ok(serde_saphyr::from_str(&std::fs::read_to_string(path)?)?)
}
/// Its JSON Schema.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(PlanFile).into()
}
