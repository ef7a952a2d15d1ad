//! The field `agents` of a capability file: the capabilities that its agent may ask, and how often and how deep it may
//! delegate.

use std::collections::BTreeSet;

use millrace_models::ModelSelection;
use millrace_protocol::child::{MAX_CHILD_DEPTH, MAX_CHILDREN};
use millrace_protocol::ids::Capability;
use millrace_protocol::overrides::{AgentOverrides, PermissionRules};
use millrace_strict_yaml::{MappingFields, YamlMistake, YamlNode, YamlValue, deserialize_node};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::ToolReference;
use super::server_tools::ServerToolNames;
use crate::tool::ChildLimits;

/// The fields of an askable capability.
const FIELDS: [&str; 8] = ["name", "description", "max", "limits", "shared", "model", "tools", "permissions"];

/// The capabilities that an agent may ask.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentAccess {
    /// The capabilities; `None` allows all that are registered.
    pub agents: Option<Vec<AskableAgent>>,
    /// The bounds of its forks; `None` if it may not fork itself.
    pub fork: Option<ForkAccess>,
    /// The largest depth of the tasks that it delegates.
    pub depth: u32,
    /// The largest number of tasks that one of its attempts delegates.
    pub max: u32,
}

/// The bounds of the forks of an agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ForkAccess {
    /// The largest number of forks of one attempt.
    #[schemars(range(min = 1, max = 32))]
    pub max: Option<u32>,
    /// The limits of each fork.
    pub limits: ChildLimits,
}

/// A capability that an agent may ask.
#[derive(Debug, Clone, PartialEq)]
pub struct AskableAgent {
    pub name: Capability,
    /// The description for the asking agent, in place of the registered one.
    pub description: Option<String>,
    /// The largest number of tasks for it of one attempt.
    pub max: Option<u32>,
    /// The limits of each of these tasks.
    pub limits: ChildLimits,
    /// `true` if these tasks continue one conversation, one after the other.
    pub is_shared: bool,
    /// The overrides of the agent that does them.
    pub overrides: AgentOverrides,
}

impl AskableAgent {
    /// A capability without bounds and overrides.
    #[must_use]
    pub fn new(name: Capability) -> Self {
        let (limits, overrides) = (ChildLimits::default(), AgentOverrides::default());
        Self { name, description: None, max: None, limits, is_shared: false, overrides }
    }
}

/// The tools of the agent that delegates: it can only pass on its own.
pub(super) struct OwnTools<'a> {
    /// The tools that its file names; `None` if they are not known.
    pub tools: Option<&'a [ToolReference]>,
    /// The names that the tools of its MCP servers may have.
    pub of_servers: &'a ServerToolNames,
}

impl Default for AgentAccess {
    fn default() -> Self {
        Self { agents: None, fork: None, depth: MAX_CHILD_DEPTH, max: MAX_CHILDREN }
    }
}

impl AgentAccess {
    /// Returns the entry of a capability; `None` if it is not listed.
    #[must_use]
    pub fn entry(&self, name: &Capability) -> Option<&AskableAgent> {
        self.agents.iter().flatten().find(|agent| agent.name == *name)
    }

    /// `true` if the agent may ask this capability.
    #[must_use]
    pub fn allows(&self, name: &Capability) -> bool {
        !matches!(name.as_str(), "planner" | "critic")
            && (self.agents.is_none() || self.entry(name).is_some())
    }
}

/// Reads the field: a list of capabilities, or a map with the list and bounds.
pub(super) fn read_agents(node: &YamlNode, own: &OwnTools<'_>) -> Result<AgentAccess, YamlMistake> {
    match &node.value {
        YamlValue::List(items) => {
            Ok(AgentAccess { agents: Some(read_list(items, own)?), ..AgentAccess::default() })
        }
        YamlValue::Map(_) => {
            let fields = MappingFields::from_node(node, "list of agents", &["ask", "fork", "depth", "max"])?;
            let ask =
                fields.find_field("ask").map(|ask| read_list(ask.parse_list("ask", "capabilities")?, own));
            let bound = |name: &'static str, most: u32| match fields.find_field(name) {
                None => Ok(most),
                Some(node) => read_bound(node, name, most),
            };
            Ok(AgentAccess {
                agents: ask.transpose()?,
                fork: fields.find_field("fork").map(read_fork).transpose()?.flatten(),
                depth: bound("depth", MAX_CHILD_DEPTH)?,
                max: bound("max", MAX_CHILDREN)?,
            })
        }
        YamlValue::Nothing | YamlValue::Flag(_) | YamlValue::Number(_) | YamlValue::Text(_) => {
            Err(node.mismatch_error("agents", "a list of capabilities, or a map of ask, fork, depth and max"))
        }
    }
}

/// Reads `true`, `false`, or the bounds of forks.
fn read_fork(node: &YamlNode) -> Result<Option<ForkAccess>, YamlMistake> {
    match &node.value {
        YamlValue::Flag(is_allowed) => Ok(is_allowed.then(ForkAccess::default)),
        YamlValue::Nothing
        | YamlValue::Number(_)
        | YamlValue::Text(_)
        | YamlValue::List(_)
        | YamlValue::Map(_) => deserialize_node(node, "fork").map(Some),
    }
}

fn read_bound(node: &YamlNode, name: &str, most: u32) -> Result<u32, YamlMistake> {
    let expected = format!("a whole number from 1 to {most}");
    match node.parse_integer(name, &format!("from 1 to {most}"))? {
        bound if (1..=most).contains(&bound) => Ok(bound),
        _ => Err(node.mismatch_error(name, &expected)),
    }
}

fn read_list(items: &[YamlNode], own: &OwnTools<'_>) -> Result<Vec<AskableAgent>, YamlMistake> {
    let mut agents: Vec<AskableAgent> = Vec::new();
    for item in items {
        let agent = read_agent(item, own)?;
        if agents.iter().any(|earlier| earlier.name == agent.name) {
            let text = format!("the capability {:?} is listed twice", agent.name.as_str());
            return Err(YamlMistake::at_position(item.position, text));
        }
        agents.push(agent);
    }
    Ok(agents)
}

fn read_agent(item: &YamlNode, own: &OwnTools<'_>) -> Result<AskableAgent, YamlMistake> {
    if let YamlValue::Text(_) = item.value {
        return Ok(AskableAgent::new(read_name(item)?));
    }
    let fields = MappingFields::from_node(item, "askable capability", &FIELDS)?;
    let description = fields.find_field("description").map(|node| node.parse_text("description"));
    let max = fields.find_field("max").map(|node| read_bound(node, "max", MAX_CHILDREN));
    let limits = fields.find_field("limits").map(|node| deserialize_node(node, "limits"));
    let shared = fields.find_field("shared").map(|node| node.parse_boolean("shared"));
    let permissions = fields.find_field("permissions").map(super::read_permissions);
    Ok(AskableAgent {
        description: description.transpose()?.map(str::to_owned),
        max: max.transpose()?,
        limits: limits.transpose()?.unwrap_or_default(),
        is_shared: shared.transpose()?.unwrap_or(false),
        overrides: AgentOverrides {
            model: fields.find_field("model").map(read_model).transpose()?,
            tools: fields.find_field("tools").map(|node| own.read_subset(node)).transpose()?,
            permissions: permissions.transpose()?.map(|(rules, _)| rules).into_iter().collect(),
            ..AgentOverrides::default()
        },
        ..AskableAgent::new(read_name(fields.require_field("name")?)?)
    })
}

fn read_model(node: &YamlNode) -> Result<String, YamlMistake> {
    let names = node.parse_text("model")?;
    match ModelSelection::parse(names) {
        Ok(_) => Ok(names.to_owned()),
        Err(error) => Err(YamlMistake::at_position(node.position, error.to_string())),
    }
}

impl OwnTools<'_> {
    /// Reads the tools that an agent passes on.
    fn read_subset(&self, node: &YamlNode) -> Result<BTreeSet<String>, YamlMistake> {
        let mut names = BTreeSet::new();
        for item in node.parse_list("tools", "tools")? {
            let name = item.parse_text("tools")?;
            if !self.may_include(name) {
                let own = self.tools.unwrap_or_default().iter().map(|tool| tool.name.clone());
                let own: Vec<String> = own.chain(self.of_servers.patterns()).collect();
                let text = format!(
                    "the tool {name:?} is none of this agent's own, and it can pass on no others; its tools are {}",
                    own.join(", ")
                );
                return Err(YamlMistake::at_position(item.position, text));
            }
            names.insert(name.to_owned());
        }
        Ok(names)
    }

    /// `true` if the agent may have a tool of this name.
    fn may_include(&self, name: &str) -> bool {
        self.tools.is_none_or(|tools| tools.iter().any(|tool| tool.name == name))
            || self.of_servers.may_include(name)
    }
}

fn read_name(node: &YamlNode) -> Result<Capability, YamlMistake> {
    let name = Capability::new(node.parse_text("name")?)
        .map_err(|invalid| YamlMistake::at_position(node.position, invalid.to_string()))?;
    match name.as_str() {
        "planner" | "critic" => {
            let text = format!("no agent can ask {name}: only the supervisor does");
            Err(YamlMistake::at_position(node.position, text))
        }
        _ => Ok(name),
    }
}

/// The JSON Schema of the field.
pub(super) fn agents_schema() -> Value {
    let name = json!({ "type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$" });
    let bound = |most: u32| json!({ "type": "integer", "minimum": 1, "maximum": most });
    let mut permissions = crate::tool::schema_of::<PermissionRules>();
    permissions["description"] = "File rules in addition to its own; the stricter decision counts.".into();
    let agent = json!({
        "type": "object",
        "properties": {
            "name": name,
            "description": { "type": "string" },
            "max": bound(MAX_CHILDREN),
            "limits": crate::tool::schema_of::<ChildLimits>(),
            "shared": {
                "description": "true if its tasks in a run continue one conversation, one after the other.",
                "type": "boolean",
            },
            "model": {
                "description": "The model in place of that of its file: provider:model, optionally followed by \
                                comma-separated fallbacks.",
                "type": "string",
            },
            "tools": {
                "description": "The only tools that it gets, of its own and of those of this agent.",
                "type": "array",
                "items": { "type": "string" },
            },
            "permissions": permissions,
        },
        "required": ["name"],
        "additionalProperties": false,
    });
    let list = json!({ "type": "array", "items": { "oneOf": [name, agent] } });
    let mut fork = json!({ "oneOf": [{ "type": "boolean" }, crate::tool::schema_of::<ForkAccess>()] });
    fork["description"] =
        "true, or bounds, if its tasks may continue its own conversation with \"mode\": \"fork\".".into();
    let map = json!({
        "type": "object",
        "properties": { "ask": list, "fork": fork, "depth": bound(MAX_CHILD_DEPTH), "max": bound(MAX_CHILDREN) },
        "additionalProperties": false,
    });
    json!({
        "description": "The capabilities that it may ask with the tools task and start_task; by default all.",
        "oneOf": [list, map],
    })
}

#[cfg(test)]
mod tests {
    use millrace_strict_yaml::parse_yaml;

    use super::*;

    fn read(text: &str) -> Result<AgentAccess, String> {
        let node = parse_yaml(text.as_bytes(), crate::spec::KIND).unwrap();
        let position = millrace_strict_yaml::Position { line: 1, column: 1 };
        let tool = |name: &str| ToolReference { name: name.into(), position, settings: None };
        let own = [tool("task"), tool("grep")];
        let servers = parse_yaml(b"[{name: time, command: mcp-server-time}]\n", crate::spec::KIND).unwrap();
        let servers = ServerToolNames::from_servers(servers.parse_list("mcp", "MCP servers").unwrap());
        let own = OwnTools { tools: Some(&own), of_servers: &servers };
        read_agents(&node, &own).map_err(|mistake| mistake.to_string())
    }

    #[test]
    fn list_or_map_names_the_capabilities() {
        let short = read("[research, {name: worker, max: 2, limits: {tokens: 900}}]\n").unwrap();
        let worker = short.entry(&Capability::new("worker").unwrap()).unwrap();
        assert_eq!((worker.max, worker.limits.tokens), (Some(2), Some(900)));
        assert!(!short.allows(&Capability::new("other").unwrap()));
        let bounds = read("{depth: 1, max: 4}\n").unwrap();
        assert_eq!((bounds.depth, bounds.max, bounds.agents.is_none()), (1, 4, true));
        assert!(bounds.allows(&Capability::new("other").unwrap()));
        assert_eq!((bounds.fork, read("{fork: false}\n").unwrap().fork), (None, None));
        assert_eq!(read("{fork: true}\n").unwrap().fork, Some(ForkAccess::default()));
        let fork = read("{fork: {max: 2, limits: {turns: 4}}}\n").unwrap().fork.unwrap();
        assert_eq!((fork.max, fork.limits.turns), (Some(2), Some(4)));
        assert!(!bounds.allows(&Capability::new("critic").unwrap()));
    }

    #[test]
    fn overrides_are_read_with_the_agent() {
        let access = read(
            "[{name: a, shared: true, model: \"openai:x, openai:y\", tools: [grep, time_now], limits: {turns: 3},\n\
             permissions: [{paths: [/a], mode: deny}]}]\n",
        )
        .unwrap();
        let entry = access.entry(&Capability::new("a").unwrap()).unwrap();
        let tools: Vec<&str> = entry.overrides.tools.iter().flatten().map(String::as_str).collect();
        assert_eq!((tools.as_slice(), entry.limits.turns), (["grep", "time_now"].as_slice(), Some(3)));
        assert_eq!(entry.overrides.model.as_deref(), Some("openai:x, openai:y"));
        assert!(entry.is_shared);
        assert_eq!(entry.overrides.permissions[0].0[0].paths, ["/a"]);
    }

    #[test]
    fn mistakes_name_the_line() {
        for (text, expected) in [
            (
                "research\n",
                "1:1: \"agents\" must be a list of capabilities, or a map of ask, fork, depth and max",
            ),
            ("[critic]\n", "1:2: no agent can ask critic"),
            ("[a, a]\n", "1:5: the capability \"a\" is listed twice"),
            ("[{name: a, maximum: 2}]\n", "1:12: there is no field \"maximum\" in an askable capability"),
            (
                "[{name: a, tools: [execute]}]\n",
                "1:20: the tool \"execute\" is none of this agent's own, and it can pass on no others; its tools are task, grep, time_*",
            ),
            ("[{name: a, model: \"\"}]\n", "1:19: \"\" names no model"),
            (
                "[{name: a, permissions: [{paths: [a], mode: deny}]}]\n",
                "1:25: \"permissions\": \"a\" is not a valid path",
            ),
            ("{depth: 9}\n", "1:9: \"depth\" must be a whole number from 1 to 3, not the number 9"),
            (
                "[{name: a, limits: {token: 2}}]\n",
                "1:21: there is no field \"token\" here; did you mean \"tokens\"?",
            ),
        ] {
            let mistake = read(text).unwrap_err();
            assert!(mistake.starts_with(expected), "{mistake}\n{expected}");
        }
    }
}
