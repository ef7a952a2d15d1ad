//! The field `skills` of a capability file: folders with skills, relative to its own folder.

use std::path::PathBuf;

use millrace_strict_yaml::{YamlMistake, YamlNode};
use serde_json::{Value, json};

use super::ToolReference;

/// The maximum number of folders of a capability.
const MAX_FOLDERS: usize = 16;
/// The tool with which an agent reads a skill.
const READ: &str = "read_file";

/// Reads the field.
///
/// # Errors
/// The first mistake; also that the agent could not read its skills.
pub(super) fn read_skills(node: &YamlNode, tools: &[ToolReference]) -> Result<Vec<PathBuf>, YamlMistake> {
    let items = node.parse_list("skills", "folders")?;
    if items.is_empty() || items.len() > MAX_FOLDERS {
        return Err(node.mismatch_error("skills", "a list of 1 to 16 folders"));
    }
    if !tools.iter().any(|tool| tool.name == READ) {
        let text = "\"skills\": an agent reads its skills with the tool read_file; add it to \"tools\"";
        return Err(YamlMistake::at_position(node.position, text));
    }
    let folder = |item: &YamlNode| match item.parse_text("skills")?.trim() {
        "" => Err(item.mismatch_error("skills", "the path of a folder")),
        text => Ok(PathBuf::from(text)),
    };
    items.iter().map(folder).collect()
}

/// The schema of the field.
pub(super) fn skills_schema() -> Value {
    json!({
        "description": "Folders with skills, relative to the folder of this file: each has a folder with a SKILL.md for every skill, or \
                        is the folder of one. Of skills with the same name the one of the later folder counts. The agent needs the tool \
                        read_file.",
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_FOLDERS,
        "items": { "type": "string", "minLength": 1 },
    })
}
