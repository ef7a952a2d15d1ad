//! The field `memory` of a capability file: the files whose text its agent has in its prompt. With the field, the agent's file
//! tools reach the memories that outlive its run.

use std::path::PathBuf;

use millrace_protocol::file::FilePath;
use millrace_strict_yaml::ValueMistake;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// The folder of the memories in an agent's files.
pub const MEMORIES: &str = "/memories";
/// The most files of a capability.
pub(super) const MAX_FILES: usize = 8;

/// The place of a memory file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum MemoryPlace {
    /// A file beside the capability file, or below its folder.
    Beside(PathBuf),
    /// A file of the memories, as the agent's file tools name it: below [`MEMORIES`].
    Stored(FilePath),
}

/// Reads the field.
pub(super) fn read_places<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<MemoryPlace>>, D::Error> {
    let places = Vec::<MemoryPlace>::deserialize(deserializer)?;
    match places.len() > MAX_FILES {
        true => Err(D::Error::custom("it must be a list of at most 8 files, not a list")),
        false => Ok(Some(places)),
    }
}

impl TryFrom<String> for MemoryPlace {
    type Error = ValueMistake;

    fn try_from(text: String) -> Result<Self, ValueMistake> {
        let invalid = |why: String| ValueMistake::sentence(format!("\"memory\": {why}"));
        let path = FilePath::new(&text).map_err(|error| invalid(error.to_string()))?;
        if !text.starts_with('/') {
            return Ok(Self::Beside(PathBuf::from(path.as_str().trim_start_matches('/'))));
        }
        if !path.as_str().starts_with("/memories/") {
            let hint = "write a path relative to the capability file, or a path below /memories/";
            return Err(invalid(format!("{text:?} is neither; {hint}")));
        }
        Ok(Self::Stored(path))
    }
}
