//! The field `hooks` of a capability file: programs that see the calls of its agent.

use std::time::Duration;

use millrace_strict_yaml::{YamlMistake, YamlNode, deserialize_node};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::hooks::HookPoint;

/// The maximum number of hooks of a capability.
const MAX_HOOKS: usize = 16;
/// The timeout of a call, if none is given, in seconds.
const TIMEOUT: f64 = 10.0;
/// The longest timeout, in seconds.
const MAX_TIMEOUT: f64 = 600.0;

/// A program that sees the calls of an agent: it reads a call as JSON from standard input, and writes its changes or its refusal
/// to standard output.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandHook {
    /// The points at which it is called.
    #[schemars(length(min = 1))]
    pub on: Vec<HookPoint>,
    /// The tools whose calls it sees; all of them if absent.
    #[serde(default)]
    pub tools: Option<Vec<String>>,
    /// The program and its arguments. It runs in the folder of the capability file.
    #[schemars(length(min = 1))]
    pub command: Vec<String>,
    /// The environment variables that it gets, beside PATH, HOME, LANG, TMPDIR and TZ.
    #[serde(default)]
    pub environment: Vec<String>,
    /// The timeout of one call in seconds [default: 10].
    #[serde(default = "default_timeout")]
    timeout_s: f64,
}

fn default_timeout() -> f64 {
    TIMEOUT
}

impl CommandHook {
    /// The timeout of one call.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout_s)
    }
}

/// Reads the field.
pub(super) fn read_hooks(node: &YamlNode) -> Result<Vec<CommandHook>, YamlMistake> {
    let items = node.parse_list("hooks", "hooks")?;
    if items.len() > MAX_HOOKS {
        return Err(node.mismatch_error("hooks", &format!("a list of at most {MAX_HOOKS} hooks")));
    }
    items.iter().map(read_hook).collect()
}

fn read_hook(node: &YamlNode) -> Result<CommandHook, YamlMistake> {
    let hook: CommandHook = deserialize_node(node, "hook")?;
    let invalid = |why: String| YamlMistake::at_position(node.position, format!("\"hooks\": {why}"));
    if hook.on.is_empty() {
        let points = HookPoint::ALL.map(HookPoint::name).join(", ");
        return Err(invalid(format!("\"on\" must name a point at which it is called: {points}")));
    }
    if hook.command.first().is_none_or(String::is_empty) {
        return Err(invalid("\"command\" must be a list that begins with a program".into()));
    }
    if !(hook.timeout_s > 0.0 && hook.timeout_s <= MAX_TIMEOUT) {
        return Err(invalid(format!("\"timeout_s\" must be more than 0 and at most {MAX_TIMEOUT} seconds")));
    }
    Ok(hook)
}

/// The schema of the field.
pub(super) fn hooks_schema() -> Value {
    let mut schema = crate::tool::schema_of::<Vec<CommandHook>>();
    schema["description"] =
        "Programs that see its calls of models and tools, to redact, guard or log.".into();
    schema["maxItems"] = MAX_HOOKS.into();
    schema
}
