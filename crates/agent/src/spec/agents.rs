//! The field `agents` of a capability file: the capabilities that its agent may ask, and how often and how deep it may
//! delegate.

use millrace_protocol::child::{MAX_CHILD_DEPTH, MAX_CHILDREN};
use millrace_protocol::ids::Capability;
use millrace_strict_yaml::{MappingFields, YamlMistake, YamlNode, YamlValue, deserialize_node};
use serde_json::{Value, json};

use crate::tool::ChildLimits;

/// The capabilities that an agent may ask.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentAccess {
    /// The capabilities; `None` allows all that are registered.
    pub agents: Option<Vec<AskableAgent>>,
    /// The largest depth of the tasks that it delegates.
    pub depth: u32,
    /// The largest number of tasks that one of its attempts delegates.
    pub max: u32,
}

/// A capability that an agent may ask.
#[derive(Debug, Clone, PartialEq)]
pub struct AskableAgent {
    /// Its name.
    pub name: Capability,
    /// The description for the asking agent, in place of the registered one.
    pub description: Option<String>,
    /// The largest number of tasks for it of one attempt.
    pub max: Option<u32>,
    /// The limits of each of these tasks.
    pub limits: ChildLimits,
}

impl Default for AgentAccess {
    fn default() -> Self {
        Self { agents: None, depth: MAX_CHILD_DEPTH, max: MAX_CHILDREN }
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
pub(super) fn read_agents(node: &YamlNode) -> Result<AgentAccess, YamlMistake> {
    match &node.value {
        YamlValue::List(items) => {
            Ok(AgentAccess { agents: Some(read_list(items)?), ..AgentAccess::default() })
        }
        YamlValue::Map(_) => {
            let fields = MappingFields::from_node(node, "list of agents", &["ask", "depth", "max"])?;
            let ask = fields.find_field("ask").map(|ask| read_list(ask.parse_list("ask", "capabilities")?));
            let bound = |name: &'static str, most: u32| match fields.find_field(name) {
                None => Ok(most),
                Some(node) => read_bound(node, name, most),
            };
            Ok(AgentAccess {
                agents: ask.transpose()?,
                depth: bound("depth", MAX_CHILD_DEPTH)?,
                max: bound("max", MAX_CHILDREN)?,
            })
        }
        YamlValue::Nothing | YamlValue::Flag(_) | YamlValue::Number(_) | YamlValue::Text(_) => {
            Err(node.mismatch_error("agents", "a list of capabilities, or a map of ask, depth and max"))
        }
    }
}

fn read_bound(node: &YamlNode, name: &str, most: u32) -> Result<u32, YamlMistake> {
    let expected = format!("a whole number from 1 to {most}");
    match node.parse_integer(name, &format!("from 1 to {most}"))? {
        bound if (1..=most).contains(&bound) => Ok(bound),
        _ => Err(node.mismatch_error(name, &expected)),
    }
}

fn read_list(items: &[YamlNode]) -> Result<Vec<AskableAgent>, YamlMistake> {
    let mut agents: Vec<AskableAgent> = Vec::new();
    for item in items {
        let agent = read_agent(item)?;
        if agents.iter().any(|earlier| earlier.name == agent.name) {
            let text = format!("the capability {:?} is listed twice", agent.name.as_str());
            return Err(YamlMistake::at_position(item.position, text));
        }
        agents.push(agent);
    }
    Ok(agents)
}

fn read_agent(item: &YamlNode) -> Result<AskableAgent, YamlMistake> {
    if let YamlValue::Text(_) = item.value {
        let name = read_name(item)?;
        return Ok(AskableAgent { name, description: None, max: None, limits: ChildLimits::default() });
    }
    let fields =
        MappingFields::from_node(item, "askable capability", &["name", "description", "max", "limits"])?;
    let description = fields.find_field("description").map(|node| node.parse_text("description"));
    let max = fields.find_field("max").map(|node| read_bound(node, "max", MAX_CHILDREN));
    let limits = fields.find_field("limits").map(|node| deserialize_node(node, "limits"));
    Ok(AskableAgent {
        name: read_name(fields.require_field("name")?)?,
        description: description.transpose()?.map(str::to_owned),
        max: max.transpose()?,
        limits: limits.transpose()?.unwrap_or_default(),
    })
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
    let agent = json!({
        "type": "object",
        "properties": {
            "name": name,
            "description": { "type": "string" },
            "max": bound(MAX_CHILDREN),
            "limits": crate::tool::schema_of::<ChildLimits>(),
        },
        "required": ["name"],
        "additionalProperties": false,
    });
    let list = json!({ "type": "array", "items": { "oneOf": [name, agent] } });
    let map = json!({
        "type": "object",
        "properties": { "ask": list, "depth": bound(MAX_CHILD_DEPTH), "max": bound(MAX_CHILDREN) },
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
        read_agents(&node).map_err(|mistake| mistake.to_string())
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
        assert!(!bounds.allows(&Capability::new("critic").unwrap()));
    }

    #[test]
    fn mistakes_name_the_line() {
        for (text, expected) in [
            ("research\n", "1:1: \"agents\" must be a list of capabilities, or a map of ask, depth and max"),
            ("[critic]\n", "1:2: no agent can ask critic"),
            ("[a, a]\n", "1:5: the capability \"a\" is listed twice"),
            ("[{name: a, maximum: 2}]\n", "1:12: there is no field \"maximum\" in an askable capability"),
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
