//! The field `hooks` of a capability file: programs that see the calls of its agent.

use std::time::Duration;

use millrace_strict_yaml::ValueMistake;
use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::hooks::HookPoint;

/// The maximum number of hooks of a capability.
pub(super) const MAX_HOOKS: usize = 16;
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
    pub fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout_s)
    }

    fn find_mistake(&self) -> Option<String> {
        if self.on.is_empty() {
            let points = HookPoint::ALL.map(HookPoint::name).join(", ");
            return Some(format!("\"on\" must name a point at which it is called: {points}"));
        }
        if self.command.first().is_none_or(String::is_empty) {
            return Some("\"command\" must be a list that begins with a program".into());
        }
        (!(self.timeout_s > 0.0 && self.timeout_s <= MAX_TIMEOUT))
            .then(|| format!("\"timeout_s\" must be more than 0 and at most {MAX_TIMEOUT} seconds"))
    }
}

/// Reads the field.
pub(super) fn read_hooks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<CommandHook>, D::Error> {
    let hooks = Vec::<CommandHook>::deserialize(deserializer)?;
    if hooks.len() > MAX_HOOKS {
        return Err(D::Error::custom(format!("it must be a list of at most {MAX_HOOKS} hooks, not a list")));
    }
    match hooks.iter().enumerate().find_map(|(at, hook)| Some((at, hook.find_mistake()?))) {
        None => Ok(hooks),
        Some((at, why)) => {
            Err(D::Error::custom(ValueMistake::at(at.to_string(), format!("\"hooks\": {why}"))))
        }
    }
}
