//! The settings of MCP servers in a capability file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use globset::Glob;
use millrace_agent::files::ProgramFiles;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::web::Endpoint;

/// The placeholder of the working folder in the arguments of a server.
const FOLDER: &str = "{folder}";
/// Default timeout of a call in seconds.
pub const DEFAULT_TIMEOUT: u32 = 60;
/// Default maximum length of a result in characters.
pub const MAX_RESULT: usize = 400_000;
/// Maximum length of a tool name that all providers accept.
const MAX_TOOL_NAME_LENGTH: usize = 64;

/// An MCP server: a program (`command`) or an address (`url`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Server")]
pub struct McpServer {
    /// The name of the server: letters, digits, `_` and `-`.
    pub name: String,
    /// The program to start; it communicates over standard input and output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<PathBuf>,
    /// The program's arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Variables of the worker's environment to pass to the program in addition to PATH, HOME and similar ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// The working folder of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathBuf>,
    /// The files of the run that the program works on, in a working folder of each attempt; its changes are written back. In `args`,
    /// `{folder}` stands for that folder. Without this field, the program gets no files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<ProgramFiles>,
    /// The URL of a server with streamable HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<Endpoint>,
    /// Headers of all requests: header names, each with the variable of the worker's environment that has its value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Include only these tools, by the server's names; `*` matches anything. Empty includes all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// Exclude these tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Prefix of the tool names, followed by an underscore: by default the server's name; none if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Timeout of a call in seconds; default 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3_600))]
    pub timeout_s: Option<u32>,
    /// Maximum length of a result in characters; default 400000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_result: Option<usize>,
}

impl McpServer {
    /// Validates the settings as a whole.
    pub fn check(&self) -> Result<(), String> {
        let valid = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if self.name.is_empty() || !self.name.chars().all(valid) {
            return Err(format!("name is {:?}; only letters, digits, '_' and '-' are allowed", self.name));
        }
        match (&self.command, &self.url) {
            (Some(_), None) if !self.headers.is_empty() => {
                return Err("headers can only be used with url, not with command".into());
            }
            (None, Some(_)) if !self.args.is_empty() || !self.env.is_empty() || self.cwd.is_some() => {
                return Err("args, env and cwd can only be used with command, not with url".into());
            }
            (None, Some(_)) if self.files.is_some() => {
                return Err("files can only be used with command: a server with a url does not see this machine's folders".into());
            }
            (Some(_), None) if self.files.is_some() && self.cwd.is_some() => {
                return Err(
                    "both cwd and files are set; with files, the program has a working folder of its own"
                        .into(),
                );
            }
            (Some(_), None) if self.files.is_none() && self.args.iter().any(|word| word.contains(FOLDER)) => {
                return Err(format!(
                    "args name {FOLDER}, and there is no working folder; add files, such as files: {{}}"
                ));
            }
            (Some(_), None) | (None, Some(_)) => {}
            (Some(_), Some(_)) => return Err("both command and url are set; remove one of them".into()),
            (None, None) => return Err("command or url is missing".into()),
        }
        if let Some(seconds) = self.timeout_s.filter(|seconds| !(1..=3_600).contains(seconds)) {
            return Err(format!("timeout_s is {seconds}; it must be 1 to 3600"));
        }
        let patterns = self.include.iter().chain(&self.exclude);
        patterns
            .map(|pattern| Glob::new(pattern))
            .find_map(Result::err)
            .map_or(Ok(()), |e| Err(e.to_string()))
    }

    /// Returns `true` if a tool of this name is included.
    pub(super) fn includes_tool(&self, tool: &str) -> bool {
        let any = |patterns: &[String]| {
            patterns
                .iter()
                .any(|text| Glob::new(text).is_ok_and(|glob| glob.compile_matcher().is_match(tool)))
        };
        (self.include.is_empty() || any(&self.include)) && !any(&self.exclude)
    }

    /// Returns the local names of tools: valid for all providers, and unique.
    pub(super) fn local_tool_names(&self, tools: &[String]) -> Vec<String> {
        let prefix = self.prefix.as_deref().unwrap_or(&self.name);
        let mut names: Vec<String> = Vec::new();
        for tool in tools {
            let whole = if prefix.is_empty() { tool.clone() } else { format!("{prefix}_{tool}") };
            let valid = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
            let name: String = whole.chars().map(valid).take(MAX_TOOL_NAME_LENGTH).collect();
            let numbered = (2..).map(|n| {
                let end = format!("_{n}");
                name.chars().take(MAX_TOOL_NAME_LENGTH - end.len()).chain(end.chars()).collect::<String>()
            });
            let free = std::iter::once(name.clone()).chain(numbered).find(|name| !names.contains(name));
            names.extend(free);
        }
        names
    }
}

impl McpServer {
    /// Returns the settings of the server in this working folder.
    pub(super) fn in_folder(&self, folder: &Path) -> Self {
        let path = folder.display().to_string();
        let args = self.args.iter().map(|argument| argument.replace(FOLDER, &path)).collect();
        Self { args, cwd: Some(folder.to_owned()), files: None, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(yaml: &str) -> McpServer {
        serde_json::from_str(yaml).unwrap()
    }

    fn names(server: &McpServer, tools: &[&str]) -> Vec<String> {
        server.local_tool_names(&tools.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn a_server_is_a_command_or_a_url() {
        let mistake = |json: &str| server(json).check().err().unwrap_or_default();
        assert_eq!(mistake(r#"{"name":"time","command":"mcp-server-time","args":["--utc"]}"#), "");
        assert_eq!(mistake(r#"{"name":"x","url":"http://127.0.0.1:1/mcp","headers":{"a":"A"}}"#), "");
        assert!(mistake(r#"{"name":"x"}"#).contains("command or url is missing"));
        assert!(mistake(r#"{"name":"x","command":"a","url":"http://b/"}"#).contains("both"));
        assert!(
            mistake(r#"{"name":"x","command":"a","headers":{"a":"A"}}"#)
                .contains("headers can only be used with url")
        );
        assert!(
            mistake(r#"{"name":"x","url":"http://b/","args":["a"]}"#)
                .contains("can only be used with command")
        );
        assert!(mistake(r#"{"name":"a b","command":"a"}"#).contains("letters, digits"));
        assert!(mistake(r#"{"name":"x","command":"a","include":["["]}"#).contains('['));
        assert!(mistake(r#"{"name":"x","command":"a","timeout_s":0}"#).contains("1 to 3600"));
        assert!(serde_json::from_str::<McpServer>(r#"{"name":"x","url":"ftp://b/"}"#).is_err());
        assert!(serde_json::from_str::<McpServer>(r#"{"name":"x","comand":"a"}"#).is_err());
    }

    #[test]
    fn tools_are_included_by_name() {
        let all = server(r#"{"name":"x","command":"a"}"#);
        assert!(all.includes_tool("anything"));
        let some = server(r#"{"name":"x","command":"a","include":["get_*","put"],"exclude":["get_secret"]}"#);
        assert!(some.includes_tool("get_time") && some.includes_tool("put"));
        assert!(
            !some.includes_tool("get_secret")
                && !some.includes_tool("set_time")
                && !some.includes_tool("put_all")
        );
    }

    #[test]
    fn names_become_valid_and_unique() {
        let plain = server(r#"{"name":"time","command":"a"}"#);
        assert_eq!(
            names(&plain, &["get.time", "get-time", "get time"]),
            ["time_get_time", "time_get_time_2", "time_get_time_3"]
        );
        let bare = server(r#"{"name":"time","command":"a","prefix":""}"#);
        assert_eq!(names(&bare, &["now", "zeit_für"]), ["now", "zeit_f_r"]);
        let long = "x".repeat(100);
        let names_for_long = names(&plain, &[&long, &long]);
        assert!(
            names_for_long.iter().all(|name| name.len() == MAX_TOOL_NAME_LENGTH)
                && names_for_long[1].ends_with("_2")
        );
    }
}
