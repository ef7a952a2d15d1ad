//! The names of the tools of MCP servers, as far as a capability file determines them: by a prefix for each server. The tools
//! themselves are known only when a worker has connected to the server.

use millrace_strict_yaml::YamlNode;
use serde::{Deserialize, Deserializer};

/// Reads the field `mcp`: servers, which are described elsewhere.
pub(super) fn read_servers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<YamlNode>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename = "MCP server")]
    struct Server(YamlNode);
    Ok(Vec::<Server>::deserialize(deserializer)?.into_iter().map(|Server(node)| node).collect())
}

/// The prefixes of the tool names of an agent's MCP servers; an empty one allows any name.
#[derive(Debug, Default)]
pub(super) struct ServerToolNames(Vec<String>);

impl ServerToolNames {
    /// Reads the prefixes from the servers of a file. They are validated elsewhere: a server without a readable name allows any tool, so
    /// that only the mistake in the server is reported.
    pub fn from_servers(servers: &[YamlNode]) -> Self {
        Self(servers.iter().map(read_prefix).collect())
    }

    /// `true` if a tool of a server may have this name.
    pub fn may_include(&self, name: &str) -> bool {
        let is_valid = name.chars().all(is_valid_in_tool_name);
        is_valid && self.0.iter().any(|prefix| name.len() > prefix.len() && name.starts_with(prefix))
    }

    /// The patterns of the names, for people.
    pub fn patterns(&self) -> impl Iterator<Item = String> + '_ {
        self.0.iter().map(|prefix| format!("{prefix}*"))
    }
}

fn is_valid_in_tool_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// The prefix of a server's tools, with the underscore after it: its field `prefix`, or its name.
fn read_prefix(server: &YamlNode) -> String {
    let text = |key: &str| server.child(key).and_then(YamlNode::as_text);
    match text("prefix").or_else(|| text("name")) {
        None | Some("") => String::new(),
        Some(prefix) => {
            let valid = |letter| if is_valid_in_tool_name(letter) { letter } else { '_' };
            prefix.chars().map(valid).chain(['_']).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(servers: &str) -> ServerToolNames {
        let node = millrace_strict_yaml::parse_yaml(servers.as_bytes(), crate::spec::KIND).unwrap();
        ServerToolNames::from_servers(node.items())
    }

    #[test]
    fn tools_have_the_prefix_of_their_server() {
        let names = names("[{name: git-hub, command: a}, {name: time, prefix: clock, command: b}]\n");
        let expected = [
            ("git_hub_search", true),
            ("clock_now", true),
            ("time_now", false),
            ("git-hub_search", false),
            ("clock_", false),
            ("execute", false),
        ];
        for (name, is_included) in expected {
            assert_eq!(names.may_include(name), is_included, "{name}");
        }
        assert_eq!(names.patterns().collect::<Vec<_>>(), ["git_hub_*", "clock_*"]);
        assert!(!ServerToolNames::default().may_include("clock_now"));
    }

    #[test]
    fn tools_without_a_prefix_may_have_any_valid_name() {
        for servers in ["[{name: time, prefix: \"\", command: b}]\n", "[{command: b}]\n", "[time]\n"] {
            assert!(
                names(servers).may_include("now") && !names(servers).may_include("right now"),
                "{servers}"
            );
        }
    }
}
