//! Fields of a capability file whose values are types of their own: `context` (how the agent's conversation is kept within its model's
//! window), `hooks` (programs that see its calls), `memory` (files whose text is in its prompt; with the field, its file tools reach
//! the memories that outlive its run) and `files` (a folder of the host).

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_models::{Model, ModelSelection};
use millrace_protocol::file::FilePath;
use millrace_protocol::overrides::{FileOperation, PermissionMode, PermissionRule, PermissionRules};
use millrace_strict_yaml::{ValueMistake, command_words, tidy_schema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer};

use crate::files::FolderFiles;
use crate::files::permissions::{CompiledPermissions, InvalidGlobPattern};
use crate::hooks::HookPoint;
use crate::turn::ContextSettings;

macro_rules! plain_schemas {
    ($($(#[$doc:meta])* $name:ident = $schema:tt;)*) => {$(
        $(#[$doc])*
        pub struct $name;

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    )*};
}
plain_schemas! {
    /// The schema of any map.
    AnyObject = { "type": "object" };
    /// The schema of a text or a map.
    TextOrObject = { "type": ["string", "object"] };
    /// The schema of a text, `true` or `false`.
    TextOrFlag = { "type": ["string", "boolean"] };
}

/// The shares of the window that a file may name, in percent.
const SHARES: std::ops::RangeInclusive<f64> = 10.0..=95.0;

/// The context settings of an agent.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename = "context", default, deny_unknown_fields)]
#[schemars(transform = tidy_schema)]
pub struct ContextSpec {
    /// The share of the window from which on older messages are cut and summarised; 0.85 by default.
    #[serde(deserialize_with = "read_percent")]
    #[schemars(with = "Option<f64>", range(min = 0.1, max = 0.95))]
    pub compact_at: Option<u8>,
    /// The model that summarises, as in `model`; by default the agent's own.
    #[schemars(with = "TextOrObject")]
    pub summary_model: Option<ModelSelection>,
}

impl ContextSpec {
    /// The settings of a conversation with this model.
    pub(crate) fn settings_for(&self, model: &dyn Model) -> ContextSettings {
        let compact_at = self.compact_at.unwrap_or(ContextSettings::COMPACT_AT);
        ContextSettings { window: model.context_window(), compact_at }
    }
}

/// Reads a share as a percentage.
fn read_percent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    let share = f64::deserialize(deserializer)?;
    let percent = (share * 100.0).round();
    if !SHARES.contains(&percent) {
        let expected = &"a share of the context window from 0.1 to 0.95";
        return Err(D::Error::invalid_value(Unexpected::Float(share), expected));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the percentage was checked to lie between 10 and 95"
    )]
    Ok(Some(percent as u8))
}

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
    #[serde(deserialize_with = "command_words")]
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

/// The folder of the memories in an agent's files.
pub const MEMORIES: &str = "/memories";
/// The most files of a capability.
pub(super) const MAX_FILES: usize = 8;

/// The place of a memory file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "FileName")]
pub enum MemoryPlace {
    /// A file beside the capability file, or below its folder.
    Beside(PathBuf),
    /// A file of the memories, as the agent's file tools name it: below [`MEMORIES`].
    Stored(FilePath),
}

/// Reads the field.
pub(super) fn read_places<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<MemoryPlace>>, D::Error> {
    let places = Vec::<MemoryPlace>::deserialize(deserializer)?;
    match places.len() > MAX_FILES {
        true => Err(D::Error::custom("it must be a list of at most 8 files, not a list")),
        false => Ok(Some(places)),
    }
}

#[derive(Deserialize)]
#[serde(rename = "file")]
struct FileName(String);

impl TryFrom<FileName> for MemoryPlace {
    type Error = ValueMistake;

    fn try_from(FileName(text): FileName) -> Result<Self, ValueMistake> {
        let invalid = |why: String| ValueMistake::sentence(format!("\"memory\": {why}"));
        let path = FilePath::new(&text).map_err(|error| invalid(error.to_string()))?;
        if !text.starts_with('/') {
            return Ok(Self::Beside(PathBuf::from(path.as_str().trim_start_matches('/'))));
        }
        if !path.as_str().starts_with("/memories/") {
            let hint = "write a path relative to the capability file, or a path below /memories/";
            return Err(invalid(format!("{text:?} is neither; {hint}")));
        }
        Ok(Self::Stored(path))
    }
}

/// A folder of the host among an agent's files.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostFolder {
    /// The folder, relative to that of the capability file. It must exist. Nothing outside it can be reached.
    pub folder: PathBuf,
    /// The path under which the agent sees it; `/folder` by default. The other files are those of the run.
    #[serde(default = "default_mount")]
    pub at: FilePath,
    /// `true` if the agent may not change it.
    #[serde(default)]
    pub read_only: bool,
}

fn default_mount() -> FilePath {
    FilePath::new("/folder").expect("a valid path")
}

impl HostFolder {
    /// The folder with a path relative to another folder.
    #[must_use]
    pub fn relative_to(self, base: &Path) -> Self {
        Self { folder: base.join(&self.folder), ..self }
    }

    /// Opens the folder.
    ///
    /// # Errors
    /// It does not exist or can't be opened. The text names it.
    pub fn open(&self) -> Result<FolderFiles, String> {
        FolderFiles::open(&self.folder)
            .map_err(|error| format!("the folder {} can't be used: {error}", self.folder.display()))
    }

    /// The permissions of an agent with this folder.
    pub fn restrict_permissions(
        &self,
        permissions: CompiledPermissions,
    ) -> Result<CompiledPermissions, InvalidGlobPattern> {
        if !self.read_only {
            return Ok(permissions);
        }
        let rule = PermissionRule {
            operations: vec![FileOperation::Write],
            paths: vec![globset::escape(self.at.as_str())],
            mode: PermissionMode::Deny,
        };
        Ok(permissions.and(CompiledPermissions::compile(&PermissionRules(vec![rule]))?))
    }
}
