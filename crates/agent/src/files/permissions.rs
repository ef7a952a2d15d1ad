//! File permissions of a capability: an ordered list of rules, of which the first match decides. It owns the rules and
//! their format; file tools check them.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FilePath;

/// The maximum length of a pattern, in bytes.
const MAX_PATTERN: usize = 1_000;

/// File rules as written in a capability file. The first rule that matches a path and an operation decides whether it is
/// permitted; without a match it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Permissions")]
#[serde(transparent)]
pub struct PermissionRules(pub Vec<PermissionRule>);

/// A rule over files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Rule")]
#[serde(deny_unknown_fields)]
pub struct PermissionRule {
    /// The operations; all by default.
    #[serde(default = "all_operations")]
    pub operations: Vec<FileOperation>,
    /// The paths: patterns that begin with `/`. `*` matches any part of a name, `**` any folders, `{a,b}` either; a pattern
    /// that matches a folder matches everything in it.
    pub paths: Vec<String>,
    /// The decision.
    pub mode: PermissionMode,
}

/// An operation on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Operation")]
#[serde(rename_all = "snake_case")]
pub enum FileOperation {
    /// Read, list or find it.
    Read,
    /// Write, edit or delete it.
    Write,
}

/// The decision of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Mode")]
pub enum PermissionMode {
    /// It is permitted.
    Allow,
    /// It is denied. A file that may not be read is not listed either.
    Deny,
    /// A person must approve each call. Files that may only be read so are not listed, found or searched.
    Ask,
}

fn all_operations() -> Vec<FileOperation> {
    vec![FileOperation::Read, FileOperation::Write]
}

/// An invalid pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pattern:?} is not a valid path pattern: {reason}")]
pub struct InvalidGlobPattern {
    /// The pattern, cut to 200 characters.
    pub pattern: String,
    /// The mistake, and what is allowed.
    pub reason: String,
}

/// The reason that an operation is not permitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PermissionDenied {
    /// A rule denies it.
    #[error("{path} may not be {done} here: this capability's permissions deny it")]
    ByRule {
        /// The file.
        path: FilePath,
        /// The operation, as in "may not be read".
        done: &'static str,
    },
    /// A person must approve.
    #[error("{path} may be {done} only with a person's approval")]
    NeedsApproval {
        /// The file.
        path: FilePath,
        /// The operation, as in "may not be read".
        done: &'static str,
    },
}

/// CompiledSchema permissions.
#[derive(Debug, Clone, Default)]
pub struct CompiledPermissions(Vec<CompiledPermissionRule>);

#[derive(Debug, Clone)]
struct CompiledPermissionRule {
    operations: Vec<FileOperation>,
    paths: GlobSet,
    mode: PermissionMode,
}

impl PermissionRules {
    /// Compiles the patterns.
    ///
    /// # Errors
    /// A pattern is invalid.
    pub fn compile(&self) -> Result<CompiledPermissions, InvalidGlobPattern> {
        let compiled = |rule: &PermissionRule| {
            let mut paths = GlobSetBuilder::new();
            for pattern in &rule.paths {
                let pattern = pattern.trim_end_matches('/');
                paths.add(parse_glob(pattern)?);
                paths.add(parse_glob(&format!("{pattern}/**"))?);
            }
            let paths = paths.build().map_err(|error| invalid_pattern_error("", error.to_string()))?;
            Ok(CompiledPermissionRule { operations: rule.operations.clone(), paths, mode: rule.mode })
        };
        self.0.iter().map(compiled).collect::<Result<_, _>>().map(CompiledPermissions)
    }
}

/// Parses a pattern for whole paths, from the root on.
pub(crate) fn parse_glob(pattern: &str) -> Result<globset::Glob, InvalidGlobPattern> {
    if !pattern.starts_with('/') {
        return Err(invalid_pattern_error(
            pattern,
            "it must begin with '/'; '/**/' matches any folder".into(),
        ));
    }
    if pattern.len() > MAX_PATTERN {
        return Err(invalid_pattern_error(pattern, format!("it is longer than {MAX_PATTERN} bytes")));
    }
    let built = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
    built.map_err(|error| invalid_pattern_error(pattern, error.kind().to_string()))
}

fn invalid_pattern_error(pattern: &str, reason: String) -> InvalidGlobPattern {
    InvalidGlobPattern { pattern: pattern.chars().take(200).collect(), reason }
}

impl CompiledPermissions {
    /// Checks whether an operation on a file is permitted.
    ///
    /// # Errors
    /// It is not.
    pub fn check_permission(
        &self,
        operation: FileOperation,
        path: &FilePath,
    ) -> Result<(), PermissionDenied> {
        let fits = |rule: &&CompiledPermissionRule| {
            rule.operations.contains(&operation) && rule.paths.is_match(path.as_str())
        };
        let done = match operation {
            FileOperation::Read => "read",
            FileOperation::Write => "changed",
        };
        match self.0.iter().find(fits).map_or(PermissionMode::Allow, |rule| rule.mode) {
            PermissionMode::Allow => Ok(()),
            PermissionMode::Deny => Err(PermissionDenied::ByRule { path: path.clone(), done }),
            PermissionMode::Ask => Err(PermissionDenied::NeedsApproval { path: path.clone(), done }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile_rules(yaml_like: serde_json::Value) -> CompiledPermissions {
        serde_json::from_value::<PermissionRules>(yaml_like).unwrap().compile().unwrap()
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let rules = compile_rules(serde_json::json!([
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
            let may = |operation| rules.check_permission(operation, &path).is_ok();
            assert_eq!((may(FileOperation::Read), may(FileOperation::Write)), (read, write), "{path}");
        }
        let denial = |path: &str| {
            rules
                .check_permission(FileOperation::Write, &FilePath::new(path).unwrap())
                .unwrap_err()
                .to_string()
        };
        assert_eq!(denial("/x"), "/x may not be changed here: this capability's permissions deny it");
        assert!(denial("/reports/final.md").contains("only with a person's approval"));
        assert!(
            CompiledPermissions::default()
                .check_permission(FileOperation::Write, &FilePath::new("/x").unwrap())
                .is_ok()
        );
    }

    #[test]
    fn a_star_matches_within_a_name_and_bad_patterns_are_rejected() {
        let rules = compile_rules(serde_json::json!([{"paths": ["/a/*.md"], "mode": "deny"}]));
        let may =
            |path: &str| rules.check_permission(FileOperation::Read, &FilePath::new(path).unwrap()).is_ok();
        assert!(!may("/a/x.md") && may("/a/b/x.md") && may("/b/x.md"));
        for (pattern, reason) in [("*.md", "must begin with '/'"), ("/[", "unclosed character class")] {
            let rule = PermissionRule {
                operations: all_operations(),
                paths: vec![pattern.into()],
                mode: PermissionMode::Deny,
            };
            let mistake = PermissionRules(vec![rule]).compile().unwrap_err().to_string();
            assert!(mistake.contains(reason), "{mistake}");
        }
    }
}
