//! How a capability names an MCP server.

use std::collections::BTreeMap;
use std::path::PathBuf;

use globset::Glob;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::web::Endpoint;

/// Seconds that a call may take unless the settings say otherwise.
pub const TIMEOUT: u32 = 60;
/// Characters of one result that are kept unless the settings say otherwise.
pub const MAX_RESULT: usize = 400_000;
/// The longest name of a tool that every provider takes.
const MAX_NAME: usize = 64;

/// An MCP server: a program (`command`) or an address (`url`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// What the server is called here: letters, digits, `_` and `-`.
    pub name: String,
    /// The program to start, spoken to over its standard input and output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<PathBuf>,
    /// The program's arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Variables of the worker's environment that the program gets besides PATH, HOME and their like.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// The folder that the program starts in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathBuf>,
    /// The address of a server that speaks streamable HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<Endpoint>,
    /// Headers of each request: which variable of the worker's environment holds the value of which header.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// If any are named, only these tools are taken, by the server's names; `*` stands for anything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// These tools are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// What the tools' names begin with, before an underscore: the server's name unless given, nothing if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Seconds that a call may take: 60 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3_600))]
    pub timeout_s: Option<u32>,
    /// Characters of one result that are kept: 400000 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_result: Option<usize>,
}

impl Server {
    /// What is wrong with the settings as a whole, if anything is.
    ///
    /// # Errors
    /// A text that names the field and what was expected.
    pub fn check(&self) -> Result<(), String> {
        let valid = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if self.name.is_empty() || !self.name.chars().all(valid) {
            return Err(format!("name is {:?}; it must be of letters, digits, '_' and '-'", self.name));
        }
        match (&self.command, &self.url) {
            (Some(_), None) if !self.headers.is_empty() => {
                return Err("headers go with url, not with command".into());
            }
            (None, Some(_)) if !self.args.is_empty() || !self.env.is_empty() || self.cwd.is_some() => {
                return Err("args, env and cwd go with command, not with url".into());
            }
            (Some(_), None) | (None, Some(_)) => {}
            (Some(_), Some(_)) => return Err("both command and url are given; leave one of them out".into()),
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

    /// Whether a tool of this name is taken.
    pub(super) fn takes(&self, tool: &str) -> bool {
        let any = |patterns: &[String]| {
            patterns
                .iter()
                .any(|text| Glob::new(text).is_ok_and(|glob| glob.compile_matcher().is_match(tool)))
        };
        (self.include.is_empty() || any(&self.include)) && !any(&self.exclude)
    }

    /// The names under which tools are offered: valid for every provider, and each its own.
    pub(super) fn names(&self, tools: &[String]) -> Vec<String> {
        let prefix = self.prefix.as_deref().unwrap_or(&self.name);
        let mut names: Vec<String> = Vec::new();
        for tool in tools {
            let whole = if prefix.is_empty() { tool.clone() } else { format!("{prefix}_{tool}") };
            let valid = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
            let name: String = whole.chars().map(valid).take(MAX_NAME).collect();
            let numbered = (2..).map(|n| {
                let end = format!("_{n}");
                name.chars().take(MAX_NAME - end.len()).chain(end.chars()).collect::<String>()
            });
            let free = std::iter::once(name.clone()).chain(numbered).find(|name| !names.contains(name));
            names.extend(free);
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(yaml: &str) -> Server {
        serde_json::from_str(yaml).unwrap()
    }

    fn names(server: &Server, tools: &[&str]) -> Vec<String> {
        server.names(&tools.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn a_server_is_a_command_or_a_url() {
        let mistake = |json: &str| server(json).check().err().unwrap_or_default();
        assert_eq!(mistake(r#"{"name":"time","command":"mcp-server-time","args":["--utc"]}"#), "");
        assert_eq!(mistake(r#"{"name":"x","url":"http://127.0.0.1:1/mcp","headers":{"a":"A"}}"#), "");
        assert!(mistake(r#"{"name":"x"}"#).contains("command or url is missing"));
        assert!(mistake(r#"{"name":"x","command":"a","url":"http://b/"}"#).contains("both"));
        assert!(mistake(r#"{"name":"x","command":"a","headers":{"a":"A"}}"#).contains("headers go with url"));
        assert!(mistake(r#"{"name":"x","url":"http://b/","args":["a"]}"#).contains("go with command"));
        assert!(mistake(r#"{"name":"a b","command":"a"}"#).contains("letters, digits"));
        assert!(mistake(r#"{"name":"x","command":"a","include":["["]}"#).contains('['));
        assert!(mistake(r#"{"name":"x","command":"a","timeout_s":0}"#).contains("1 to 3600"));
        assert!(serde_json::from_str::<Server>(r#"{"name":"x","url":"ftp://b/"}"#).is_err());
        assert!(serde_json::from_str::<Server>(r#"{"name":"x","comand":"a"}"#).is_err());
    }

    #[test]
    fn tools_are_taken_by_name() {
        let all = server(r#"{"name":"x","command":"a"}"#);
        assert!(all.takes("anything"));
        let some = server(r#"{"name":"x","command":"a","include":["get_*","put"],"exclude":["get_secret"]}"#);
        assert!(some.takes("get_time") && some.takes("put"));
        assert!(!some.takes("get_secret") && !some.takes("set_time") && !some.takes("put_all"));
    }

    #[test]
    fn names_become_valid_and_each_its_own() {
        let plain = server(r#"{"name":"time","command":"a"}"#);
        assert_eq!(
            names(&plain, &["get.time", "get-time", "get time"]),
            ["time_get_time", "time_get_time_2", "time_get_time_3"]
        );
        let bare = server(r#"{"name":"time","command":"a","prefix":""}"#);
        assert_eq!(names(&bare, &["now", "zeit_für"]), ["now", "zeit_f_r"]);
        let long = "x".repeat(100);
        let found = names(&plain, &[&long, &long]);
        assert!(found.iter().all(|name| name.len() == MAX_NAME) && found[1].ends_with("_2"));
    }
}
