//! File permissions of an agent: lists of rules, in each of which the first match decides. The strictest decision of all lists
//! counts. File tools check them.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
pub use millrace_protocol::overrides::{FileOperation, PermissionMode, PermissionRule, PermissionRules};

use super::FilePath;

/// The maximum length of a pattern, in bytes.
const MAX_PATTERN: usize = 1_000;

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
        path: FilePath,
        /// The operation, as in "may not be read".
        done: &'static str,
    },
    /// A person must approve.
    #[error("{path} may be {done} only with a person's approval")]
    NeedsApproval {
        path: FilePath,
        /// The operation, as in "may not be read".
        done: &'static str,
    },
}

/// Compiled permissions: lists of rules, of which the strictest decision counts.
#[derive(Debug, Clone, Default)]
pub struct CompiledPermissions(Vec<Vec<CompiledPermissionRule>>);

#[derive(Debug, Clone)]
struct CompiledPermissionRule {
    operations: Vec<FileOperation>,
    paths: GlobSet,
    mode: PermissionMode,
}

impl CompiledPermissionRule {
    fn compile(rule: &PermissionRule) -> Result<Self, InvalidGlobPattern> {
        let mut paths = GlobSetBuilder::new();
        for pattern in &rule.paths {
            let pattern = pattern.trim_end_matches('/');
            paths.add(parse_glob(pattern)?);
            paths.add(parse_glob(&format!("{pattern}/**"))?);
        }
        let paths = paths.build().map_err(|error| invalid_pattern_error("", error.to_string()))?;
        Ok(Self { operations: rule.operations.clone(), paths, mode: rule.mode })
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
    /// Compiles the patterns of a list of rules.
    pub fn compile(rules: &PermissionRules) -> Result<Self, InvalidGlobPattern> {
        let compiled = rules.0.iter().map(CompiledPermissionRule::compile);
        Ok(Self(vec![compiled.collect::<Result<_, _>>()?]))
    }

    /// These permissions and others: the strictest decision counts.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Checks whether an operation on a file is permitted.
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
        let decisions = self.0.iter().filter_map(|rules| rules.iter().find(fits)).map(|rule| rule.mode);
        match decisions.max().unwrap_or(PermissionMode::Allow) {
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
        CompiledPermissions::compile(&serde_json::from_value(yaml_like).unwrap()).unwrap()
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
    fn the_strictest_of_several_lists_decides() {
        let own = compile_rules(
            serde_json::json!([{"paths": ["/a"], "mode": "deny"}, {"paths": ["/b"], "mode": "ask"}]),
        );
        let more = compile_rules(
            serde_json::json!([{"paths": ["/a", "/b"], "mode": "allow"}, {"paths": ["/c"], "mode": "deny"}]),
        );
        for both in [own.clone().and(more.clone()), more.and(own)] {
            let check =
                |path: &str| both.check_permission(FileOperation::Read, &FilePath::new(path).unwrap());
            assert!(matches!(check("/a"), Err(PermissionDenied::ByRule { .. })));
            assert!(matches!(check("/b"), Err(PermissionDenied::NeedsApproval { .. })));
            assert!(matches!(check("/c"), Err(PermissionDenied::ByRule { .. })));
            assert!(check("/d").is_ok());
        }
    }

    #[test]
    fn a_star_matches_within_a_name_and_bad_patterns_are_rejected() {
        let rules = compile_rules(serde_json::json!([{"paths": ["/a/*.md"], "mode": "deny"}]));
        let may =
            |path: &str| rules.check_permission(FileOperation::Read, &FilePath::new(path).unwrap()).is_ok();
        assert!(!may("/a/x.md") && may("/a/b/x.md") && may("/b/x.md"));
        for (pattern, reason) in [("*.md", "must begin with '/'"), ("/[", "unclosed character class")] {
            let rule = PermissionRule {
                operations: vec![FileOperation::Read],
                paths: vec![pattern.into()],
                mode: PermissionMode::Deny,
            };
            let mistake = CompiledPermissions::compile(&PermissionRules(vec![rule])).unwrap_err().to_string();
            assert!(mistake.contains(reason), "{mistake}");
        }
    }
}
