//! The settings for the files that a program gets and whose changes are kept. Parsing and matching only.

use globset::{GlobSet, GlobSetBuilder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FilePath;
use super::permissions::{InvalidGlobPattern, parse_glob};

/// The files that a program gets in its working folder, and those whose changes are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProgramFiles {
    /// Patterns of the files that it gets, such as `/data/**`. By default all that may be read.
    #[serde(rename = "in", skip_serializing_if = "Option::is_none")]
    pub input: Option<PathPatterns>,
    /// Patterns of the files whose changes are kept, such as `/reports/**`. By default all that may be changed.
    #[serde(rename = "out", skip_serializing_if = "Option::is_none")]
    pub output: Option<PathPatterns>,
    /// The maximum number of files that it gets, and of files that one run of it changes.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_files: MaxFiles,
    /// The maximum size of these files together, in MiB.
    #[schemars(range(min = 1, max = 4_096))]
    pub max_mb: MaxMegabytes,
}

impl Default for ProgramFiles {
    fn default() -> Self {
        Self { input: None, output: None, max_files: MaxFiles(2_000), max_mb: MaxMegabytes(256) }
    }
}

impl ProgramFiles {
    /// `true` if the program gets this file.
    pub fn includes_input(&self, path: &FilePath) -> bool {
        self.input.as_ref().is_none_or(|patterns| patterns.matches(path))
    }

    /// `true` if changes of this file are kept.
    pub fn includes_output(&self, path: &FilePath) -> bool {
        self.output.as_ref().is_none_or(|patterns| patterns.matches(path))
    }

    /// The maximum size of the files together, in bytes.
    pub fn max_bytes(&self) -> u64 {
        u64::from(self.max_mb.0) * 1024 * 1024
    }
}

/// A number of files from 1 to 10,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "u32")]
pub struct MaxFiles(pub u32);

impl TryFrom<u32> for MaxFiles {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        match number {
            1..=10_000 => Ok(Self(number)),
            _ => Err(format!("it must be a whole number from 1 to 10000, not {number}")),
        }
    }
}

/// A size from 1 to 4,096 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "u32")]
pub struct MaxMegabytes(pub u32);

impl TryFrom<u32> for MaxMegabytes {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        match number {
            1..=4_096 => Ok(Self(number)),
            _ => Err(format!("it must be a whole number from 1 to 4096, not {number}")),
        }
    }
}

/// Patterns for whole paths. A pattern also matches everything below a folder that it matches.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
#[schemars(with = "Vec<String>")]
pub struct PathPatterns {
    texts: Vec<String>,
    patterns: GlobSet,
}

impl PathPatterns {
    /// `true` if a pattern matches the path.
    pub fn matches(&self, path: &FilePath) -> bool {
        self.patterns.is_match(path.as_str())
    }
}

impl PartialEq for PathPatterns {
    fn eq(&self, other: &Self) -> bool {
        self.texts == other.texts
    }
}

impl Eq for PathPatterns {}

impl TryFrom<Vec<String>> for PathPatterns {
    type Error = InvalidGlobPattern;

    fn try_from(texts: Vec<String>) -> Result<Self, InvalidGlobPattern> {
        let mut patterns = GlobSetBuilder::new();
        for text in &texts {
            let text = text.trim_end_matches('/');
            patterns.add(parse_glob(text)?);
            patterns.add(parse_glob(&format!("{text}/**"))?);
        }
        let invalid = |error: globset::Error| InvalidGlobPattern {
            pattern: texts.join(", ").chars().take(200).collect(),
            reason: error.to_string(),
        };
        let patterns = patterns.build().map_err(invalid)?;
        Ok(Self { texts, patterns })
    }
}

impl From<PathPatterns> for Vec<String> {
    fn from(patterns: PathPatterns) -> Self {
        patterns.texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_choose_files_and_mistakes_are_named() {
        let parse = |json: &str| serde_json::from_str::<ProgramFiles>(json);
        let settings = parse(r#"{"in": ["/data", "/*.py"], "out": []}"#).unwrap();
        let path = |text: &str| FilePath::new(text).unwrap();
        for (text, is_included) in
            [("/data/a/b.csv", true), ("/x.py", true), ("/lib/x.py", false), ("/database", false)]
        {
            assert_eq!(settings.includes_input(&path(text)), is_included, "{text}");
            assert!(!settings.includes_output(&path(text)));
        }
        assert!(ProgramFiles::default().includes_output(&path("/any")));
        for (json, expected) in [
            (r#"{"in": ["data"]}"#, "it must begin with '/'"),
            (r#"{"max_files": 0}"#, "from 1 to 10000, not 0"),
            (r#"{"max_mb": 5000}"#, "from 1 to 4096, not 5000"),
            (r#"{"inn": []}"#, "unknown field `inn`"),
        ] {
            let mistake = parse(json).unwrap_err().to_string();
            assert!(mistake.contains(expected), "{mistake}");
        }
    }
}
