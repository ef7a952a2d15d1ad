//! The scopes of callers: the kinds of operations that they may use.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use millrace_api_form::Named;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A kind of operations of the HTTP API. No scope includes another one.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, Named,
)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Reads runs, their files and events, and the state of the cluster.
    Read,
    /// Submits runs.
    Submit,
    /// Sends commands to runs.
    Steer,
    /// Answers the questions of runs.
    Answer,
    /// Changes what holds for all runs: tokens, limits.
    Admin,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no scope, or none at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no scope; use one or more of read, submit, steer, answer and admin, separated by commas"
)]
pub struct InvalidScope {
    /// The text, cut to 100 characters.
    pub text: String,
}

impl FromStr for Scope {
    type Err = InvalidScope;

    fn from_str(text: &str) -> Result<Self, InvalidScope> {
        let scope = Self::ALL.into_iter().find(|scope| scope.name() == text);
        scope.ok_or_else(|| InvalidScope { text: text.chars().take(100).collect() })
    }
}

/// The scopes of a caller.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ScopeSet(BTreeSet<Scope>);

impl ScopeSet {
    /// Returns the set of all scopes.
    #[must_use]
    pub fn all() -> Self {
        Self(Scope::ALL.into())
    }

    /// Returns `true` if the set has this scope.
    pub fn contains(&self, scope: Scope) -> bool {
        self.0.contains(&scope)
    }

    /// Returns `true` if the set has every scope of another one.
    pub fn includes(&self, other: &Self) -> bool {
        self.0.is_superset(&other.0)
    }

    /// Returns `true` if there is no scope.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the scopes in the order of their declaration.
    pub fn iter(&self) -> impl Iterator<Item = Scope> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<Scope> for ScopeSet {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().collect())
    }
}

impl FromStr for ScopeSet {
    type Err = InvalidScope;

    /// Parses names that are separated by commas, at least one.
    fn from_str(text: &str) -> Result<Self, InvalidScope> {
        text.split(',').map(|name| name.trim().parse()).collect()
    }
}

impl fmt::Display for ScopeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.iter().map(Scope::name).collect();
        f.pad(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_lists_of_names() {
        let scopes: ScopeSet = "answer, read".parse().unwrap();
        assert_eq!(scopes.to_string(), "read,answer");
        assert!(scopes.contains(Scope::Read) && !scopes.contains(Scope::Admin));
        assert_eq!(serde_json::to_string(&scopes).unwrap(), r#"["read","answer"]"#);
        for text in ["", "read,", "write", "Read", "all"] {
            assert!(text.parse::<ScopeSet>().is_err(), "{text}");
        }
        for scope in Scope::ALL {
            assert_eq!(scope.name().parse(), Ok(scope));
            assert_eq!(serde_json::to_value(scope).unwrap(), scope.name());
        }
    }
}
