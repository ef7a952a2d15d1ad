//! The field `agents` of a capability file: the capabilities that its agent may ask, and how often and how deep it may
//! delegate.

use std::borrow::Cow;
use std::collections::BTreeSet;

use millrace_models::ModelSelection;
use millrace_protocol::child::{MAX_CHILD_DEPTH, MAX_CHILDREN};
use millrace_protocol::ids::Capability;
use millrace_protocol::overrides::{AgentOverrides, PermissionRules};
use millrace_strict_yaml::{
    MistakeCollector, ValueMistake, Whole, YamlMistake, YamlNode, one_of, tidy_schema,
};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::ToolReference;
use super::server_tools::ServerToolNames;
use crate::files::permissions::CompiledPermissions;
use crate::tool::ChildLimits;

/// The capabilities that an agent may ask.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "AccessForm")]
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

// The notations of `AgentAccess`.
#[derive(Deserialize, JsonSchema)]
#[serde(rename = "a list of capabilities, or a map of ask, fork, depth and max", rename_all = "lowercase")]
#[schemars(untagged, transform = one_of)]
enum AccessForm {
    List(Vec<AskableAgent>),
    Map(AccessFields),
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename = "list of agents", default, deny_unknown_fields)]
#[schemars(transform = tidy_schema)]
struct AccessFields {
    ask: Option<Vec<AskableAgent>>,
    /// true, or bounds, if its tasks may continue its own conversation with "mode": "fork".
    fork: ForkForm,
    depth: Whole<1, MAX_CHILD_DEPTH>,
    max: Whole<1, MAX_CHILDREN>,
}

impl Default for AccessFields {
    fn default() -> Self {
        let (depth, max) = (Whole(MAX_CHILD_DEPTH), Whole(MAX_CHILDREN));
        Self { ask: None, fork: ForkForm::Flag(false), depth, max }
    }
}

// The notations of `ForkAccess`.
#[derive(Deserialize, JsonSchema)]
#[serde(rename = "true, false or a map of fields", rename_all = "lowercase")]
#[schemars(untagged, transform = one_of)]
enum ForkForm {
    Flag(bool),
    Map(ForkAccess),
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
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "AskableForm")]
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

// The notations of `AskableAgent`.
#[derive(Deserialize, JsonSchema)]
#[serde(rename = "a capability, or a map with its name", rename_all = "lowercase")]
#[schemars(untagged, transform = one_of)]
enum AskableForm {
    Text(Capability),
    Map(Box<AskableFields>),
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename = "askable capability", deny_unknown_fields)]
#[schemars(transform = tidy_schema)]
struct AskableFields {
    name: Capability,
    description: Option<String>,
    max: Option<Whole<1, MAX_CHILDREN>>,
    #[serde(default)]
    limits: ChildLimits,
    /// true if its tasks in a run continue one conversation, one after the other.
    #[serde(default)]
    shared: bool,
    /// The model in place of that of its file: provider:model, optionally followed by comma-separated fallbacks.
    #[serde(default, deserialize_with = "read_model")]
    model: Option<String>,
    /// The only tools that it gets, of its own and of those of this agent.
    tools: Option<Vec<String>>,
    /// File rules in addition to its own; the stricter decision counts.
    #[serde(default, deserialize_with = "read_permissions")]
    permissions: Option<PermissionRules>,
}

impl TryFrom<AskableForm> for AskableAgent {
    type Error = ValueMistake;

    fn try_from(form: AskableForm) -> Result<Self, ValueMistake> {
        let agent = match form {
            AskableForm::Text(name) => Self::new(name),
            AskableForm::Map(fields) => Self {
                description: fields.description,
                max: fields.max.map(u32::from),
                limits: fields.limits,
                is_shared: fields.shared,
                overrides: AgentOverrides {
                    model: fields.model,
                    tools: fields.tools.map(BTreeSet::from_iter),
                    permissions: fields.permissions.into_iter().collect(),
                    ..AgentOverrides::default()
                },
                ..Self::new(fields.name)
            },
        };
        match agent.name.as_str() {
            name @ ("planner" | "critic") => {
                Err(ValueMistake::at("name", format!("no agent can ask {name}: only the supervisor does")))
            }
            _ => Ok(agent),
        }
    }
}

impl TryFrom<AccessForm> for AgentAccess {
    type Error = ValueMistake;

    fn try_from(form: AccessForm) -> Result<Self, ValueMistake> {
        let (access, place) = match form {
            AccessForm::List(agents) => (Self { agents: Some(agents), ..Self::default() }, ""),
            AccessForm::Map(AccessFields { ask, fork, depth, max }) => {
                let fork = match fork {
                    ForkForm::Flag(is_allowed) => is_allowed.then(ForkAccess::default),
                    ForkForm::Map(bounds) => Some(bounds),
                };
                (Self { agents: ask, fork, depth: depth.0, max: max.0 }, "ask/")
            }
        };
        let agents = access.agents.as_deref().unwrap_or_default();
        let is_repeated = |&at: &usize| agents[..at].iter().any(|earlier| earlier.name == agents[at].name);
        match (0..agents.len()).find(is_repeated) {
            None => Ok(access),
            Some(at) => {
                let text = format!("the capability {:?} is listed twice", agents[at].name.as_str());
                Err(ValueMistake::at(format!("{place}{at}"), text))
            }
        }
    }
}

fn read_model<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let names = String::deserialize(deserializer)?;
    ModelSelection::parse(&names).map_err(D::Error::custom)?;
    Ok(Some(names))
}

fn read_permissions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PermissionRules>, D::Error> {
    let rules = PermissionRules::deserialize(deserializer)?;
    let compiled = CompiledPermissions::compile(&rules);
    compiled
        .map_err(|invalid| D::Error::custom(ValueMistake::sentence(format!("\"permissions\": {invalid}"))))?;
    Ok(Some(rules))
}

impl Default for AgentAccess {
    fn default() -> Self {
        Self { agents: None, fork: None, depth: MAX_CHILD_DEPTH, max: MAX_CHILDREN }
    }
}

impl AgentAccess {
    /// Returns the entry of a capability; `None` if it is not listed.
    pub fn entry(&self, name: &Capability) -> Option<&AskableAgent> {
        self.agents.iter().flatten().find(|agent| agent.name == *name)
    }

    /// `true` if the agent may ask this capability.
    pub fn allows(&self, name: &Capability) -> bool {
        !matches!(name.as_str(), "planner" | "critic")
            && (self.agents.is_none() || self.entry(name).is_some())
    }
}

/// Checks that the agent passes on only its own tools.
pub(super) fn check_tools(
    root: &YamlNode,
    own: &[ToolReference],
    servers: &ServerToolNames,
    mistakes: &mut MistakeCollector,
) {
    let listed = root.child("agents").map_or(&[][..], |agents| agents.items_of("ask"));
    for item in root.items_of("agents").iter().chain(listed).flat_map(|agent| agent.items_of("tools")) {
        let Some(name) = item.as_text() else { continue };
        if !own.iter().any(|tool| tool.name == name) && !servers.may_include(name) {
            let own: Vec<String> =
                own.iter().map(|tool| tool.name.clone()).chain(servers.patterns()).collect();
            let text = format!(
                "the tool {name:?} is none of this agent's own, and it can pass on no others; its tools are {}",
                own.join(", ")
            );
            mistakes.add(YamlMistake::at_position(item.position, text));
        }
    }
}

macro_rules! schema_of_form {
    ($($type:ty = $form:ty),*) => {$(
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                <$form>::schema_name()
            }

            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                <$form>::json_schema(generator)
            }
        }
    )*};
}
schema_of_form!(AgentAccess = AccessForm, AskableAgent = AskableForm);

#[cfg(test)]
mod tests {
    use millrace_strict_yaml::{deserialize_field, parse_yaml};

    use super::*;

    fn read(text: &str) -> Result<AgentAccess, String> {
        let text = format!("agents: {}", text.replace('\n', ""));
        let root = parse_yaml(text.as_bytes(), crate::spec::KIND).unwrap();
        let access = deserialize_field(root.child("agents").unwrap(), "agents");
        let own = [ToolReference::named("task"), ToolReference::named("grep")];
        let servers = parse_yaml(b"[{name: time, command: mcp-server-time}]\n", crate::spec::KIND).unwrap();
        let mut mistakes = MistakeCollector::default();
        check_tools(&root, &own, &ServerToolNames::from_servers(servers.items()), &mut mistakes);
        let checked = mistakes.finish();
        access.and_then(|access| checked.map(|()| access)).map_err(|mistakes| mistakes.to_string())
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
                "1:9: \"agents\" must be a list of capabilities, or a map of ask, fork, depth and max",
            ),
            ("[critic]\n", "1:10: no agent can ask critic"),
            ("[a, a]\n", "1:13: the capability \"a\" is listed twice"),
            ("[{name: a, maximum: 2}]\n", "1:20: there is no field \"maximum\" in an askable capability"),
            (
                "[{name: a, tools: [execute]}]\n",
                "1:28: the tool \"execute\" is none of this agent's own, and it can pass on no others; its tools are task, grep, time_*",
            ),
            ("[{name: a, model: \"\"}]\n", "1:27: \"model\": \"\" names no model"),
            (
                "[{name: a, permissions: [{paths: [a], mode: deny}]}]\n",
                "1:33: \"permissions\": \"a\" is not a valid path",
            ),
            ("{depth: 9}\n", "1:17: \"depth\" must be a whole number from 1 to 3, not the number 9"),
            (
                "[{name: a, limits: {token: 2}}]\n",
                "1:29: there is no field \"token\" in \"limits\"; did you mean \"tokens\"?",
            ),
        ] {
            let mistake = read(text).unwrap_err();
            assert!(mistake.starts_with(expected), "{mistake}\n{expected}");
        }
    }
}
