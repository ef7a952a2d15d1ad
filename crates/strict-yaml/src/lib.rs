//! Strict YAML for files written by people (JSON is YAML as well). Every error has its line, the expected value, and for an
//! unknown name the most similar known one. The crate parses files; their meaning is up to the caller. A file is parsed to
//! a tree of [`YamlNode`]s with their positions, which is deserialised to a type ([`deserialize_node`]).

mod mistake;
mod probe;
mod reading;
mod typed;
mod values;
mod yaml;

use std::path::Path;

pub use mistake::{
    FileDescription, LoadError, MistakeCollector, Position, ValueMistake, YamlMistake, YamlMistakes,
    did_you_mean_hint, join_with_or,
};
pub use typed::{collect_node, deserialize_field, deserialize_node};
pub use values::{
    FileDuration, Parts, Whole, checked_text, command_words, from_form, one_of, one_or_many, tidy_schema,
    without_defaults,
};
pub use yaml::{YamlEntry, YamlNode, YamlValue, parse_yaml};

/// Reads a file of at most `max` bytes and parses it with `parse`.
pub fn load_yaml_file<T, E: Into<YamlMistakes>>(
    path: &Path,
    kind: FileDescription,
    max: u64,
    parse: impl FnOnce(&[u8]) -> Result<T, E>,
) -> Result<T, LoadError> {
    let file = || path.display().to_string();
    let unreadable = |source| LoadError::Unreadable { kind: kind.name, file: file(), source };
    let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
    if bytes > max {
        return Err(LoadError::TooLarge { kind: kind.name, file: file(), bytes, max });
    }
    let bytes = std::fs::read(path).map_err(unreadable)?;
    parse(&bytes).map_err(|mistakes| LoadError::Mistakes { file: file(), mistakes: mistakes.into() })
}
