//! What a capability's agents may do with files: rules of which the first that fits says so. It owns the rules and how
//! they are read; whoever touches files asks them.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FilePath;

/// The longest pattern, in bytes.
const MAX_PATTERN: usize = 1_000;

/// Rules over files, as a capability file has them. The first rule that fits a path and what is done with it says
/// whether that may be done; where none fits, it may.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Permissions(pub Vec<Rule>);

/// A rule over files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// What is done; everything if left out.
    #[serde(default = "everything")]
    pub operations: Vec<Operation>,
    /// Where: patterns that begin with `/`. `*` stands for any part of a name, `**` for any folders, `{a,b}` for either;
    /// a pattern that fits a folder fits all that is in it.
    pub paths: Vec<String>,
    /// What the rule says.
    pub mode: Mode,
}

/// What can be done with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// To read it, to list it, and to find it.
    Read,
    /// To write, edit or delete it.
    Write,
}

/// What a rule says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// It may be done.
    Allow,
    /// It may not be done. A file that may not be read is not seen either.
    Deny,
    /// A person must agree. Nobody can be asked yet, so that it may not be done.
    Ask,
}

fn everything() -> Vec<Operation> {
    vec![Operation::Read, Operation::Write]
}

/// A pattern that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pattern:?} is no pattern of paths: {reason}")]
pub struct InvalidPattern {
    /// The pattern, cut to 200 characters.
    pub pattern: String,
    /// What is wrong, and what is allowed.
    pub reason: String,
}

/// Why something may not be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// A rule says so.
    #[error("{path} may not be {done} here: this capability's permissions deny it")]
    ByRule {
        /// Where.
        path: FilePath,
        /// What was to be done, as in "may not be read".
        done: &'static str,
    },
    /// A person would have to be asked.
    #[error(
        "{path} may be {done} only if a person agrees, and nobody can be asked here yet: it counts as denied. Go on without it, and say so in your answer"
    )]
    NobodyToAsk {
        /// Where.
        path: FilePath,
        /// What was to be done, as in "may not be read".
        done: &'static str,
    },
}

/// Permissions that are ready to be asked.
#[derive(Debug, Clone, Default)]
pub struct Rules(Vec<Ready>);

#[derive(Debug, Clone)]
struct Ready {
    operations: Vec<Operation>,
    paths: GlobSet,
    mode: Mode,
}

impl Permissions {
    /// Makes them ready to be asked.
    ///
    /// # Errors
    /// A pattern is none.
    pub fn compile(&self) -> Result<Rules, InvalidPattern> {
        let ready = |rule: &Rule| {
            let mut paths = GlobSetBuilder::new();
            for pattern in &rule.paths {
                let pattern = pattern.trim_end_matches('/');
                paths.add(glob(pattern)?);
                paths.add(glob(&format!("{pattern}/**"))?);
            }
            let paths = paths.build().map_err(|error| refuse("", error.to_string()))?;
            Ok(Ready { operations: rule.operations.clone(), paths, mode: rule.mode })
        };
        self.0.iter().map(ready).collect::<Result<_, _>>().map(Rules)
    }
}

/// A pattern of whole paths, from the root on.
pub(crate) fn glob(pattern: &str) -> Result<globset::Glob, InvalidPattern> {
    if !pattern.starts_with('/') {
        return Err(refuse(pattern, "it must begin with '/'; '/**/' stands for any folder".into()));
    }
    if pattern.len() > MAX_PATTERN {
        return Err(refuse(pattern, format!("it is longer than {MAX_PATTERN} bytes")));
    }
    let built = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
    built.map_err(|error| refuse(pattern, error.kind().to_string()))
}

fn refuse(pattern: &str, reason: String) -> InvalidPattern {
    InvalidPattern { pattern: pattern.chars().take(200).collect(), reason }
}

impl Rules {
    /// Whether something may be done with a file.
    ///
    /// # Errors
    /// It may not.
    pub fn check(&self, operation: Operation, path: &FilePath) -> Result<(), Denied> {
        let fits = |rule: &&Ready| rule.operations.contains(&operation) && rule.paths.is_match(path.as_str());
        let done = match operation {
            Operation::Read => "read",
            Operation::Write => "changed",
        };
        match self.0.iter().find(fits).map_or(Mode::Allow, |rule| rule.mode) {
            Mode::Allow => Ok(()),
            Mode::Deny => Err(Denied::ByRule { path: path.clone(), done }),
            Mode::Ask => Err(Denied::NobodyToAsk { path: path.clone(), done }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(yaml_like: serde_json::Value) -> Rules {
        serde_json::from_value::<Permissions>(yaml_like).unwrap().compile().unwrap()
    }

    #[test]
    fn the_first_rule_that_fits_says_what_may_be_done() {
        let rules = rules(serde_json::json!([
            {"operations": ["write"], "paths": ["/reports/final.md"], "mode": "ask"},
            {"operations": ["write"], "paths": ["/reports/**"], "mode": "allow"},
            {"paths": ["/secrets"], "mode": "deny"},
            {"operations": ["write"], "paths": ["/**"], "mode": "deny"}
        ]));
        for (path, read, write) in [
            ("/reports/a.md", true, true),
            ("/reports/deep/a.md", true, true),
            ("/reports/final.md", true, false),
            ("/secrets", false, false),
            ("/secrets/deep/key", false, false),
            ("/secretsnot", true, false),
            ("/other", true, false),
        ] {
            let path = FilePath::new(path).unwrap();
            let may = |operation| rules.check(operation, &path).is_ok();
            assert_eq!((may(Operation::Read), may(Operation::Write)), (read, write), "{path}");
        }
        let told = |path: &str| {
            rules.check(Operation::Write, &FilePath::new(path).unwrap()).unwrap_err().to_string()
        };
        assert_eq!(told("/x"), "/x may not be changed here: this capability's permissions deny it");
        assert!(told("/reports/final.md").contains("nobody can be asked here yet"));
        assert!(Rules::default().check(Operation::Write, &FilePath::new("/x").unwrap()).is_ok());
    }

    #[test]
    fn a_star_stays_within_a_name_and_a_bad_pattern_is_told() {
        let rules = rules(serde_json::json!([{"paths": ["/a/*.md"], "mode": "deny"}]));
        let may = |path: &str| rules.check(Operation::Read, &FilePath::new(path).unwrap()).is_ok();
        assert!(!may("/a/x.md") && may("/a/b/x.md") && may("/b/x.md"));
        for (pattern, reason) in [("*.md", "must begin with '/'"), ("/[", "unclosed character class")] {
            let rule = Rule { operations: everything(), paths: vec![pattern.into()], mode: Mode::Deny };
            let told = Permissions(vec![rule]).compile().unwrap_err().to_string();
            assert!(told.contains(reason), "{told}");
        }
    }
}
