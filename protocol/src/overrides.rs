//! Overrides: the changes by the capability file of a delegating agent to the agent that does the task. They only take away, except for
//! the model. The rules add what the delegating attempt itself was restricted to, so that no chain of tasks gets around them.
//!
//! # Invariants
//!
//! - I120: A delegated agent has no tool and no file permission beyond what its delegation and all delegations above it allow,
//!   and a capability that can't apply that refuses the task.
//!   (`protocol/tests/rules/delegation.rs::restrictions_of_a_parent_hold_for_all_tasks_below_it`,
//!   `crates/agent/tests/turn/delegation.rs::task_has_the_overrides_of_the_file`,
//!   `crates/agent/src/spec/mod.rs::overrides_only_take_away`,
//!   `tests/tests/delegation.rs::restricted_agent_gets_no_more_by_delegating`)

use std::collections::BTreeSet;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The largest number of tools, and of file rules, that overrides may name.
pub const MAX_OVERRIDE_ENTRIES: usize = 256;

/// The overrides of an agent that does a delegated task, in place of the settings in its capability file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AgentOverrides {
    /// The model, as `provider:model`, with fallbacks after commas; `None` leaves the capability its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The only tools that it gets, of those that its capability has; `None` leaves it all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<BTreeSet<String>>,
    /// Lists of file rules in addition to those of its capability. Each list decides for itself, and the strictest decision counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<PermissionRules>,
    /// The largest number of model replies of one attempt, if its capability allows more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<u32>,
    /// The largest number of tool calls of one attempt, if its capability allows more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u32>,
}

impl AgentOverrides {
    /// `true` if they change nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// `true` if they restrict the tools or the files of an attempt. Only agents can apply that.
    pub fn has_restrictions(&self) -> bool {
        self.tools.is_some() || !self.permissions.is_empty()
    }

    /// Adds the restrictions of the attempt that delegates: its tools and its file rules. Its model and its limits are its own.
    #[must_use]
    pub fn within(mut self, outer: &Self) -> Self {
        self.tools = match (self.tools, &outer.tools) {
            (Some(own), Some(outer)) => Some(own.intersection(outer).cloned().collect()),
            (own, outer) => own.or_else(|| outer.clone()),
        };
        let inherited = outer.permissions.iter().filter(|rules| !self.permissions.contains(rules)).cloned();
        let inherited: Vec<PermissionRules> = inherited.collect();
        self.permissions.extend(inherited);
        self
    }

    /// Checks their size.
    pub fn check_size(&self) -> Result<(), String> {
        let tools = self.tools.as_ref().map_or(0, BTreeSet::len);
        let rules: usize = self.permissions.iter().map(|rules| rules.0.len()).sum();
        if tools.max(rules).max(self.permissions.len()) > MAX_OVERRIDE_ENTRIES {
            return Err(format!("its overrides have more than {MAX_OVERRIDE_ENTRIES} tools or file rules"));
        }
        Ok(())
    }
}

/// `the model openai:small, the tools grep ls, 2 file rules, 5 turns, 9 tool calls`.
impl fmt::Display for AgentOverrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tools = self.tools.as_ref().map(|tools| match tools.len() {
            0 => "no tools".to_owned(),
            _ => format!("the tools {}", tools.iter().map(String::as_str).collect::<Vec<_>>().join(" ")),
        });
        let rules: usize = self.permissions.iter().map(|rules| rules.0.len()).sum();
        let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let limit = |limit: Option<u32>, what: &str| limit.map(|limit| count(limit as usize, what));
        let parts = [
            self.model.as_ref().map(|model| format!("the model {model}")),
            tools,
            (rules > 0).then(|| count(rules, "file rule")),
            limit(self.turns, "turn"),
            limit(self.tool_calls, "tool call"),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

// They are in the log, so readers ignore unknown fields. The schema, which people follow, allows only these.

/// File rules as written in a capability file. The first rule that matches a path and an operation decides whether it is
/// permitted; without a match it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Permissions")]
#[serde(transparent)]
pub struct PermissionRules(pub Vec<PermissionRule>);

/// A rule over files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Rule", deny_unknown_fields)]
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

/// The decision of a rule, from the most lenient to the strictest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Mode")]
pub enum PermissionMode {
    /// It is permitted.
    Allow,
    /// A person must approve each call. Files that may only be read so are not listed, found or searched.
    Ask,
    /// It is denied. A file that may not be read is not listed either.
    Deny,
}

/// Returns all operations on files.
#[must_use]
pub fn all_operations() -> Vec<FileOperation> {
    vec![FileOperation::Read, FileOperation::Write]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(names: &[&str]) -> AgentOverrides {
        let tools = Some(names.iter().map(|name| (*name).to_owned()).collect());
        AgentOverrides { tools, ..AgentOverrides::default() }
    }

    #[test]
    fn restrictions_of_the_delegating_attempt_are_added() {
        let (free, some) = (AgentOverrides::default(), tools(&["ls", "grep"]));
        assert_eq!(free.clone().within(&some).tools, some.tools);
        assert_eq!(some.clone().within(&free).tools, some.tools);
        assert_eq!(some.clone().within(&tools(&["grep", "execute"])).tools, tools(&["grep"]).tools);
        let outer = AgentOverrides {
            model: Some("openai:a".into()),
            turns: Some(2),
            permissions: vec![PermissionRules(Vec::new())],
            ..AgentOverrides::default()
        };
        let both = some.clone().within(&outer);
        assert_eq!((both.model, both.turns, both.permissions.len()), (None, None, 1));
        assert!(!free.has_restrictions() && some.has_restrictions());
        let limited = AgentOverrides { turns: Some(1), tool_calls: Some(9), ..some };
        assert_eq!(limited.to_string(), "the tools grep ls, 1 turn, 9 tool calls");
    }

    #[test]
    fn size_is_bounded() {
        let names: Vec<String> = (0..=MAX_OVERRIDE_ENTRIES).map(|number| format!("t{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(tools(&names).check_size().is_err() && tools(&names[1..]).check_size().is_ok());
    }
}
