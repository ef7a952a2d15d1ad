//! Errors in files and their positions, and wording that all kinds of files share.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A position in a file; line and column count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    pub line: u64,
    /// The column, in characters.
    pub column: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// An error in the content of a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{position}: {text}")]
pub struct YamlMistake {
    pub position: Position,
    /// The problem and the expectation.
    pub text: String,
}

impl YamlMistake {
    /// Creates a mistake at a position.
    pub fn at_position(position: Position, text: impl Into<String>) -> Self {
        Self { position, text: text.into() }
    }
}

/// Encloses the path of a [`ValueMistake`] in its text: errors of serde are texts.
const MARK: char = '\u{1}';

/// A mistake that a type finds in its own value, such as a rule between its fields. It is a sentence of its own if it has a
/// path; otherwise the name of the field is put before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{text}", self.path.as_ref().map(|path| format!("{MARK}{path}{MARK}")).unwrap_or_default())]
pub struct ValueMistake {
    path: Option<String>,
    pub(crate) text: String,
}

impl ValueMistake {
    /// A sentence about the whole value.
    pub fn sentence(text: impl Into<String>) -> Self {
        Self::at("", text)
    }

    /// A sentence about a part of the value: names of fields and numbers of items, separated by `/`.
    pub fn at(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: Some(path.into()), text: text.into() }
    }

    /// A part of a sentence, before which the name of the field is put.
    pub fn new(text: impl Into<String>) -> Self {
        Self { path: None, text: text.into() }
    }

    pub(crate) fn from_text(text: &str) -> Self {
        let parts = text.strip_prefix(MARK).and_then(|text| text.split_once(MARK));
        parts.map_or_else(|| Self::new(text), |(path, text)| Self::at(path, text))
    }

    /// The part of the sentence behind its subject.
    pub fn predicate(&self) -> String {
        self.text.trim_start_matches("it ").to_owned()
    }

    pub(crate) fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }
}

/// The maximum number of mistakes that an error shows.
const MAX_SHOWN: usize = 20;

/// The errors in the content of a file, at least one, in the order of their positions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.lines("").join("\n"))]
pub struct YamlMistakes(Vec<YamlMistake>);

impl YamlMistakes {
    /// Iterates over the mistakes.
    pub fn iter(&self) -> impl Iterator<Item = &YamlMistake> {
        self.0.iter()
    }

    /// Returns the mistakes without their positions, for texts that are no files.
    pub fn texts(&self) -> String {
        self.0.iter().map(|mistake| mistake.text.as_str()).collect::<Vec<_>>().join("; ")
    }

    /// Returns a line for each mistake, with `prefix` before its position.
    fn lines(&self, prefix: &str) -> Vec<String> {
        let mut lines: Vec<String> =
            self.0.iter().take(MAX_SHOWN).map(|mistake| format!("{prefix}{mistake}")).collect();
        if self.0.len() > MAX_SHOWN {
            lines.push(format!("and {} more mistakes", self.0.len() - MAX_SHOWN));
        }
        lines
    }
}

impl From<YamlMistake> for YamlMistakes {
    fn from(mistake: YamlMistake) -> Self {
        Self(vec![mistake])
    }
}

/// Collects the mistakes of a file while its parts are read.
#[derive(Debug, Default)]
pub struct MistakeCollector(Vec<YamlMistake>);

impl MistakeCollector {
    pub fn add(&mut self, mistake: YamlMistake) {
        self.0.push(mistake);
    }

    /// Returns the value, or collects the mistake.
    pub fn check<T>(&mut self, result: Result<T, YamlMistake>) -> Option<T> {
        result.map_err(|mistake| self.add(mistake)).ok()
    }

    /// Adds the mistakes of another collector.
    pub fn append(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// `true` if a mistake is a misspelling of this name.
    pub fn has_hint(&self, name: &str) -> bool {
        let hint = did_you_mean_text(name);
        self.0.iter().any(|mistake| mistake.text.ends_with(&hint))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the collected mistakes, if there are any, as an error.
    pub fn finish(mut self) -> Result<(), YamlMistakes> {
        self.0.sort_by_key(|mistake| (mistake.position.line, mistake.position.column));
        self.0.dedup();
        if self.0.is_empty() { Ok(()) } else { Err(YamlMistakes(self.0)) }
    }
}

/// A kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileDescription {
    /// Its name, such as `plan`.
    pub name: &'static str,
    /// Its content, such as `tasks`.
    pub holds: &'static str,
}

/// An error while loading a file.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is unreadable.
    #[error("cannot read the {kind} file {file}")]
    Unreadable {
        /// The kind of file.
        kind: &'static str,
        /// The path of the file.
        file: String,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The file is too large.
    #[error("the {kind} file {file} has {bytes} bytes; at most {max} are allowed")]
    TooLarge {
        /// The kind of file.
        kind: &'static str,
        /// The path of the file.
        file: String,
        /// The size of the file.
        bytes: u64,
        /// The maximum size.
        max: u64,
    },
    /// The file is invalid.
    #[error("{}", mistakes.lines(&format!("{file}:")).join("\n"))]
    Mistakes {
        /// The path of the file.
        file: String,
        /// The errors in its content.
        mistakes: YamlMistakes,
    },
}

/// Formats a list of alternatives: `a, b or c`.
#[must_use]
pub fn join_with_or(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}

/// Returns `; did you mean "x"?` if a known name is similar to an unknown one, else an empty text.
pub fn did_you_mean_hint<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    closest_name(unknown, known).map(did_you_mean_text).unwrap_or_default()
}

fn did_you_mean_text(name: &str) -> String {
    format!("; did you mean {name:?}?")
}

/// Returns the known name that is similar to an unknown one.
pub(crate) fn closest_name<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Long texts are not misspelt names, and computing their distances is expensive.
    if unknown.chars().count() > 80 {
        return None;
    }
    let (distance, name) = known.into_iter().map(|name| (edit_distance(unknown, name), name)).min()?;
    (distance <= 1 + name.chars().count() / 3).then_some(name)
}

/// Returns the Damerau-Levenshtein distance: the number of characters to change, add, remove or swap with a neighbour.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(before[j - 2] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}
