//! What is wrong with a file, and where. It owns the words that all files share.

use std::fmt;

/// A place in a file; both count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The line.
    pub line: u64,
    /// The column, in characters.
    pub column: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A mistake in a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {text}")]
pub struct Mistake {
    /// Where it is.
    pub place: Place,
    /// What is wrong, and what was expected.
    pub text: String,
}

impl Mistake {
    /// A mistake at a place.
    pub fn at(place: Place, text: impl Into<String>) -> Self {
        Self { place, text: text.into() }
    }
}

/// A kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// What it is called: `plan`.
    pub name: &'static str,
    /// What is in one: `tasks`.
    pub holds: &'static str,
}

/// Why a file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The file can't be read.
    #[error("can't read the {kind} file {file}")]
    Unreadable {
        /// Its kind.
        kind: &'static str,
        /// Its path.
        file: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is too large.
    #[error("the {kind} file {file} has {bytes} bytes; at most {max} are allowed")]
    TooLarge {
        /// Its kind.
        kind: &'static str,
        /// Its path.
        file: String,
        /// Its size.
        bytes: u64,
        /// The most that is allowed.
        max: u64,
    },
    /// There is a mistake in it.
    #[error("{file}:{mistake}")]
    Mistake {
        /// Its path.
        file: String,
        /// The mistake.
        mistake: Mistake,
    },
}

/// A list of alternatives as people write it: `a, b or c`.
#[must_use]
pub fn any_of(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}

/// `; did you mean "x"?` where a known name is near enough to an unknown one, else nothing.
pub fn did_you_mean<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    // Long texts are no misspelt names, and their distances are dear.
    if unknown.chars().count() > 80 {
        return String::new();
    }
    let near = known.into_iter().map(|name| (distance(unknown, name), name)).min();
    match near {
        Some((distance, name)) if distance <= 1 + name.chars().count() / 3 => {
            format!("; did you mean {name:?}?")
        }
        Some(_) | None => String::new(),
    }
}

/// How many letters must be changed, added, left out or swapped with their neighbour to make one text of another.
fn distance(a: &str, b: &str) -> usize {
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
