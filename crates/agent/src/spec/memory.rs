//! The field `memory` of a capability file: the files whose text its agent has in its prompt. With the field, the agent's file
//! tools reach the memories that outlive its run.

use std::path::PathBuf;

use millrace_protocol::file::FilePath;
use millrace_strict_yaml::{YamlMistake, YamlNode};
use serde_json::{Value, json};

/// The folder of the memories in an agent's files.
pub const MEMORIES: &str = "/memories";
/// The most files of a capability.
const MAX_FILES: usize = 8;

/// The place of a memory file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryPlace {
    /// A file beside the capability file, or below its folder.
    Beside(PathBuf),
    /// A file of the memories, as the agent's file tools name it: below [`MEMORIES`].
    Stored(FilePath),
}

/// Reads the field.
pub(super) fn read_memory(node: &YamlNode) -> Result<Vec<MemoryPlace>, YamlMistake> {
    let items = node.parse_list("memory", "files")?;
    if items.len() > MAX_FILES {
        return Err(node.mismatch_error("memory", "a list of at most 8 files"));
    }
    items.iter().map(read_place).collect()
}

fn read_place(node: &YamlNode) -> Result<MemoryPlace, YamlMistake> {
    let text = node.parse_text("memory")?;
    let invalid = |why: String| YamlMistake::at_position(node.position, format!("\"memory\": {why}"));
    let path = FilePath::new(text).map_err(|error| invalid(error.to_string()))?;
    if !text.starts_with('/') {
        return Ok(MemoryPlace::Beside(PathBuf::from(path.as_str().trim_start_matches('/'))));
    }
    if !path.as_str().starts_with("/memories/") {
        let hint = "write a path relative to the capability file, or a path below /memories/";
        return Err(invalid(format!("{text:?} is neither; {hint}")));
    }
    Ok(MemoryPlace::Stored(path))
}

/// The schema of the field.
pub(super) fn memory_schema() -> Value {
    json!({
        "description": "Files whose text it has in its prompt: paths relative to the capability file, or below /memories/ for files \
                        that agents keep across runs. Missing ones are passed over. With this field, even if it is empty, its file \
                        tools reach /memories.",
        "type": "array",
        "maxItems": MAX_FILES,
        "items": { "type": "string", "minLength": 1 },
    })
}
