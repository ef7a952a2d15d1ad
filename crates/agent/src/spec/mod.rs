//! The definition of an agent as data, from YAML in a capability file or from a builder in Rust. It owns the file format,
//! its error messages and the template of the instructions; it opens no model and no tool, and runs nothing.

mod agents;
mod context;
mod hooks;
mod host_folder;
mod memory;
mod person_review;
mod review;
mod schema;
mod server_tools;
mod skills;
mod state;
mod state_schema;
mod template;
mod tools;

use std::path::{Path, PathBuf};

use millrace_models::{ModelAbility, ModelSelection};
use millrace_protocol::ids::Capability;
use millrace_protocol::overrides::AgentOverrides;
use millrace_protocol::plan::ReviewPolicy;
use millrace_protocol::result::{CapabilityDescription, CapabilityVersion, ConsultSettings, MAX_VERSION};
use millrace_strict_yaml::{
    FileDescription, LoadError, MappingFields, MistakeCollector, Position, YamlMistake, YamlMistakes,
    YamlNode, YamlValue, deserialize_node, did_you_mean_hint,
};
use serde::{Deserialize, Serialize};

use agents::OwnTools;
pub use agents::{AgentAccess, AskableAgent, ForkAccess};
pub use context::ContextSpec;
pub use hooks::CommandHook;
pub use host_folder::HostFolder;
pub use memory::{MEMORIES, MemoryPlace};
pub use review::{read_review, review_schema};
pub use schema::{agent_file_schema, common_properties_schema, merge_json};
use server_tools::ServerToolNames;
use state::StateSource;
pub use template::{
    RunTemplateView, TaskTemplateView, Template, TemplateError, TemplateView, format_utc_date,
};

use crate::approval::{ApprovalRule, ApprovalRules};
use crate::files::permissions::{CompiledPermissions, PermissionRules};
use crate::state::StateRules;
use crate::turn::Limits;

/// The maximum size of a capability file, in bytes.
pub const MAX_BYTES: u64 = 1024 * 1024;
/// The name of the file's content in error messages.
pub const KIND: FileDescription = FileDescription { name: "capability", holds: "a name and a description" };

/// The fields that all kinds of capabilities have.
pub const COMMON: [&str; 8] =
    ["name", "kind", "version", "description", "concurrency", "input", "output", "review"];
/// The fields of an agent in addition to [`COMMON`].
pub const AGENT: [&str; 20] = [
    "instructions",
    "model",
    "prompts",
    "tools",
    "agents",
    "mcp",
    "files",
    "permissions",
    "approve",
    "limits",
    "answer",
    "consult",
    "state",
    "phases",
    "revise",
    "results",
    "context",
    "memory",
    "hooks",
    "skills",
];

/// The self-description of a capability of any kind.
#[derive(Debug, Clone, PartialEq)]
pub struct CapabilityFields {
    /// Its name.
    pub name: Capability,
    /// A description of its purpose, for planners and people.
    pub description: String,
    /// The number of attempts that a worker runs concurrently; `None` for the worker's default.
    pub slots: Option<u32>,
    /// The JSON Schema of a task's parameters; `None` accepts any.
    pub input: Option<serde_json::Value>,
    /// The JSON Schema of a result's `data`; `None` if there is none.
    pub output: Option<serde_json::Value>,
    /// The review of its results, unless the task has its own.
    pub review: ReviewPolicy,
    /// Its version.
    pub version: CapabilityVersion,
}

/// An agent: its instructions, its tools and limits, and the form of its answer.
#[derive(Debug, Clone)]
pub struct AgentSpec {
    /// Its self-description.
    pub about: CapabilityFields,
    /// The template of its system prompt; empty for the built-in prompts of its form of answer.
    pub instructions: Template,
    /// Its model; `None` leaves it to the run and the worker.
    pub model: Option<ModelSelection>,
    /// The variant of its prompts; `None` leaves it to the model.
    pub prompts: Option<ModelAbility>,
    /// The tools it gets.
    pub tools: Vec<ToolReference>,
    /// The capabilities that it may ask.
    pub agents: AgentAccess,
    /// The MCP servers whose tools it gets, as written in the file.
    pub servers: Vec<YamlNode>,
    /// The folder of the host among its files, if it has one.
    pub folder: Option<HostFolder>,
    /// Its file permissions.
    pub permissions: CompiledPermissions,
    /// Its calls that need a person's approval.
    pub approvals: ApprovalRules,
    /// Its limits.
    pub limits: Limits,
    /// The form of its answer.
    pub answer: AnswerForm,
    /// `true` if other agents may ask it short questions.
    pub is_consultable: bool,
    /// The rules for its state.
    pub state: StateRules,
    /// The conversation in which a rejected result is revised.
    pub revise: RevisionMode,
    /// The tasks whose results it may read.
    pub results: ResultScope,
    /// The rules that keep its conversation within its model's window.
    pub context: ContextSpec,
    /// The files whose text it has in its prompt; `None` if it has no memories.
    pub memory: Option<Vec<MemoryPlace>>,
    /// The programs that see its calls.
    pub hooks: Vec<CommandHook>,
    /// The folders of its skills, relative to that of its file unless they are absolute.
    pub skills: Vec<PathBuf>,
}

/// The conversation in which the attempt after a rejection works.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RevisionMode {
    /// A new one, whose first message has the rejected result, the verdict and the notes.
    #[default]
    NewConversation,
    /// That of the rejected attempt, which continues with the feedback.
    SameConversation,
}

impl RevisionMode {
    const ALL: [Self; 2] = [Self::NewConversation, Self::SameConversation];

    /// Its name in a file.
    const fn name(self) -> &'static str {
        match self {
            Self::NewConversation => "new_conversation",
            Self::SameConversation => "same_conversation",
        }
    }
}

/// The tasks whose results an agent may list and read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ResultScope {
    /// Those on which its task depends, directly or through others.
    #[default]
    Dependencies,
    /// All tasks of the run.
    Run,
}

impl ResultScope {
    const ALL: [Self; 2] = [Self::Dependencies, Self::Run];

    /// Its name in a file.
    const fn name(self) -> &'static str {
        match self {
            Self::Dependencies => "dependencies",
            Self::Run => "run",
        }
    }
}

/// A tool of an agent.
#[derive(Debug, Clone)]
pub struct ToolReference {
    /// Its name.
    pub name: String,
    /// Its position in the file.
    pub position: Position,
    /// Its settings, if the file has any.
    pub settings: Option<YamlNode>,
}

/// The form of an agent's answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerForm {
    /// Markdown that cites passages of the run's documents, each of which is checked against the document.
    Findings,
    /// Markdown that cites the sources of the results it used, each of which is checked.
    Report,
    /// Plain text.
    #[default]
    Text,
    /// A JSON value that fits the capability's output schema.
    Data,
    /// Tasks for a plan. Only for the capability `planner`.
    Plan,
}

impl AnswerForm {
    /// All forms.
    pub const ALL: [Self; 5] = [Self::Findings, Self::Report, Self::Text, Self::Data, Self::Plan];

    /// `true` if there are built-in prompts for it, so that a capability file needs no instructions.
    #[must_use]
    pub const fn has_built_in_prompts(self) -> bool {
        match self {
            Self::Findings | Self::Report | Self::Plan => true,
            Self::Text | Self::Data => false,
        }
    }

    /// Its name in a file; also that of the answer's schema.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Findings => "findings",
            Self::Report => "report",
            Self::Text => "text",
            Self::Data => "data",
            Self::Plan => "plan",
        }
    }
}

/// The tools that a file may name.
pub trait ToolNames {
    /// All names.
    fn names(&self) -> Vec<&str>;

    /// `true` if the tool of this name takes settings.
    fn has_settings(&self, name: &str) -> bool;
}

fn read_version(node: &YamlNode) -> Result<String, YamlMistake> {
    let expected = format!("a text of at most {MAX_VERSION} characters on one line, such as \"1.2\"");
    let text = node.parse_text("version")?.trim();
    let is_valid = (1..=MAX_VERSION).contains(&text.chars().count()) && !text.contains(char::is_control);
    is_valid.then(|| text.to_owned()).ok_or_else(|| node.mismatch_error("version", &expected))
}

impl CapabilityFields {
    /// Reads the common fields.
    ///
    /// # Errors
    /// The first mistake.
    pub fn read_fields(fields: &MappingFields<'_>) -> Result<Self, YamlMistake> {
        let mut mistakes = MistakeCollector::default();
        match Self::collect_fields(fields, &mut mistakes) {
            Some(read) if mistakes.is_empty() => Ok(read),
            Some(_) | None => Err(mistakes.into_first()),
        }
    }

    /// Reads the common fields and collects the mistakes.
    pub fn collect_fields(fields: &MappingFields<'_>, mistakes: &mut MistakeCollector) -> Option<Self> {
        let name = fields.require_field("name").and_then(|name| {
            Capability::new(name.parse_text("name")?)
                .map_err(|invalid| YamlMistake::at_position(name.position, invalid.to_string()))
        });
        let name = mistakes.check(name);
        let description = fields.require_field("description").and_then(|description| {
            match description.parse_text("description")?.trim() {
                "" => {
                    Err(description.mismatch_error("description", "a sentence that describes what it does"))
                }
                text => Ok(text.to_owned()),
            }
        });
        let description = mistakes.check(description);
        let version = mistakes.check_optional(fields.find_field("version").map(read_version));
        let slots = fields.find_field("concurrency").map(|node| {
            match node.parse_integer("concurrency", "from 1 to 1000")? {
                slots @ 1..=1000 => Ok(slots),
                _ => Err(node.mismatch_error("concurrency", "a whole number from 1 to 1000")),
            }
        });
        let slots = mistakes.check_optional(slots);
        let schema = |name: &'static str| fields.find_field(name).map(|node| read_json_schema(node, name));
        let input = mistakes.check_optional(schema("input"));
        let output = mistakes.check_optional(schema("output"));
        let review = mistakes.check_optional(fields.find_field("review").map(read_review));
        Some(Self {
            name: name?,
            description: description?,
            slots,
            input,
            output,
            review: review.unwrap_or_default(),
            version: CapabilityVersion { version, ..CapabilityVersion::default() },
        })
    }

    /// Adds a criterion for critics to every result; a capability without a review gets one.
    pub fn add_criterion(&mut self, sentence: &str) {
        self.review = std::mem::take(&mut self.review).with_criteria(&[sentence.to_owned()]);
    }

    /// The criteria for every result, in addition to those of a task's own review.
    fn criteria(&self) -> Vec<String> {
        match self.review.by_critic() {
            ReviewPolicy::Critic { criteria, .. } => criteria.clone(),
            ReviewPolicy::None | ReviewPolicy::Checks { .. } | ReviewPolicy::Persons(_) => Vec::new(),
        }
    }

    /// The description for the registry.
    #[must_use]
    pub fn to_capability_description(&self) -> CapabilityDescription {
        CapabilityDescription {
            parameters: self.input.clone(),
            output: self.output.clone(),
            criteria: self.criteria(),
            review: self.review.clone(),
            version: (self.version != CapabilityVersion::default()).then(|| self.version.clone()),
            ..CapabilityDescription::new(self.name.clone(), self.description.clone())
        }
    }
}

impl AgentSpec {
    /// An agent that answers in plain text, with this name.
    ///
    /// # Panics
    /// `name` is invalid: letters, digits, '-' and '_', at most 64.
    #[must_use]
    pub fn new(name: &str, description: &str) -> Self {
        let name = Capability::new(name).expect("a capability's name has letters, digits, '-' and '_'");
        Self {
            about: CapabilityFields {
                name,
                description: description.to_owned(),
                slots: None,
                input: None,
                output: None,
                review: ReviewPolicy::None,
                version: CapabilityVersion::default(),
            },
            instructions: Template::default(),
            model: None,
            prompts: None,
            tools: Vec::new(),
            agents: AgentAccess::default(),
            servers: Vec::new(),
            folder: None,
            permissions: CompiledPermissions::default(),
            approvals: ApprovalRules::default(),
            limits: Limits::default(),
            answer: AnswerForm::default(),
            is_consultable: false,
            state: StateRules::default(),
            revise: RevisionMode::default(),
            results: ResultScope::default(),
            context: ContextSpec::default(),
            memory: None,
            hooks: Vec::new(),
            skills: Vec::new(),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It can't be read, or contains a mistake.
    pub fn load(path: &Path, tool_names: &dyn ToolNames) -> Result<Self, LoadError> {
        millrace_strict_yaml::load_yaml_file(path, KIND, MAX_BYTES, |bytes| Self::parse(bytes, tool_names))
    }

    /// Parses the bytes of a file.
    ///
    /// # Errors
    /// All mistakes.
    pub fn parse(bytes: &[u8], tool_names: &dyn ToolNames) -> Result<Self, YamlMistakes> {
        Self::read(&millrace_strict_yaml::parse_yaml(bytes, KIND)?, tool_names)
    }

    /// Parses the tree of a file.
    ///
    /// # Errors
    /// All mistakes.
    pub fn read(root: &YamlNode, tool_names: &dyn ToolNames) -> Result<Self, YamlMistakes> {
        let mut mistakes = MistakeCollector::default();
        let spec = Self::collect(root, tool_names, &mut mistakes);
        mistakes.finish()?;
        Ok(spec.expect("a missing field is a mistake"))
    }

    fn collect(root: &YamlNode, tool_names: &dyn ToolNames, mistakes: &mut MistakeCollector) -> Option<Self> {
        let names: Vec<&str> = COMMON.into_iter().chain(AGENT).collect();
        let fields = MappingFields::collect_from_node(root, "capability", &names, mistakes)?;
        let about = CapabilityFields::collect_fields(&fields, mistakes);
        let model = fields.find_field("model").map(|node| deserialize_node(node, "model"));
        let model = mistakes.check_optional(model);
        let prompts = mistakes.check_optional(fields.find_field("prompts").map(read_prompts));
        let tools = fields.find_field("tools").map(|node| tools::read_tools(node, tool_names));
        let (tools, conditions) = mistakes.check_optional(tools).unzip();
        let servers =
            fields.find_field("mcp").map(|node| Ok(node.parse_list("mcp", "MCP servers")?.to_vec()));
        let servers = mistakes.check_optional(servers).unwrap_or_default();
        let server_tools = ServerToolNames::from_servers(&servers);
        let own_tools = OwnTools { tools: tools.as_deref(), of_servers: &server_tools };
        let agents = fields.find_field("agents").map(|node| agents::read_agents(node, &own_tools));
        let agents = mistakes.check_optional(agents);
        let folder = fields.find_field("files").map(|node| deserialize_node(node, "files"));
        let folder = mistakes.check_optional(folder);
        let permissions = mistakes.check_optional(fields.find_field("permissions").map(read_permissions));
        let approvals =
            fields.find_field("approve").map(|node| read_approvals(node, tool_names, &server_tools));
        let approvals = mistakes.check_optional(approvals);
        let limits = fields.find_field("limits").map(|node| deserialize_node(node, "limits"));
        let limits = mistakes.check_optional(limits);
        let consult = fields.find_field("consult").map(|node| node.parse_boolean("consult"));
        let is_consultable = mistakes.check_optional(consult).unwrap_or(false);
        let revise = mistakes.check_optional(fields.find_field("revise").map(read_revision_mode));
        let results = mistakes.check_optional(fields.find_field("results").map(read_result_scope));
        let context = mistakes.check_optional(fields.find_field("context").map(context::read_context));
        let memory = mistakes.check_optional(fields.find_field("memory").map(memory::read_memory));
        let hooks = mistakes.check_optional(fields.find_field("hooks").map(hooks::read_hooks));
        let listed_tools = tools.as_deref().unwrap_or_default();
        let skills = fields.find_field("skills").map(|node| skills::read_skills(node, listed_tools));
        let skills = mistakes.check_optional(skills).unwrap_or_default();
        let has_output = fields.find_field("output").is_some();
        let answer = mistakes.check_optional(fields.find_field("answer").map(read_answer_form));
        let answer = answer.unwrap_or(if has_output { AnswerForm::Data } else { AnswerForm::Text });
        // Without instructions, the built-in ones apply.
        let instructions = match fields.find_field("instructions") {
            None if answer.has_built_in_prompts() => Ok(Template::default()),
            Some(_) | None => fields.require_field("instructions").and_then(read_instructions),
        };
        let instructions = mistakes.check(instructions);
        let source = StateSource {
            fields: &fields,
            conditions: conditions.unwrap_or_default(),
            tool_names: tool_names.names(),
        };
        let state = state::collect_state(source, mistakes);
        if let (Some(template), Some(node)) = (&instructions, fields.find_field("instructions"))
            && mistakes.is_empty()
        {
            mistakes.check(state::check_template(template, node, &state));
        }
        if answer == AnswerForm::Data && !has_output {
            let position = fields.find_field("answer").map_or(root.position, |node| node.position);
            let text = "an answer of the form data needs a JSON Schema: add the field \"output\"";
            mistakes.check::<()>(Err(YamlMistake::at_position(position, text)));
        }
        Some(Self {
            about: about?,
            instructions: instructions?,
            model,
            prompts,
            tools: tools.unwrap_or_default(),
            agents: agents.unwrap_or_default(),
            servers,
            folder,
            permissions: permissions.map(|(_, compiled)| compiled).unwrap_or_default(),
            approvals: approvals.unwrap_or_default(),
            limits: limits.unwrap_or_default(),
            answer,
            is_consultable,
            state,
            revise: revise.unwrap_or_default(),
            results: results.unwrap_or_default(),
            context: context.unwrap_or_default(),
            memory,
            hooks: hooks.unwrap_or_default(),
            skills,
        })
    }

    /// The agent with overrides: another model, fewer tools, stricter permissions, lower limits.
    ///
    /// # Errors
    /// A model or a pattern in them is invalid.
    pub fn with_overrides(&self, overrides: &AgentOverrides) -> Result<Self, String> {
        let mut spec = self.clone();
        if let Some(names) = &overrides.model {
            spec.model = Some(ModelSelection::parse(names).map_err(|error| error.to_string())?);
        }
        if let Some(allowed) = &overrides.tools {
            spec.tools.retain(|tool| allowed.contains(&tool.name));
        }
        for rules in &overrides.permissions {
            let rules = CompiledPermissions::compile(rules).map_err(|invalid| invalid.to_string())?;
            spec.permissions = spec.permissions.and(rules);
        }
        spec.limits.turns = overrides.turns.map_or(spec.limits.turns, |most| most.min(spec.limits.turns));
        let tool_calls = spec.limits.tool_calls;
        spec.limits.tool_calls = overrides.tool_calls.map_or(tool_calls, |most| most.min(tool_calls));
        Ok(spec)
    }

    /// The description for the registry.
    #[must_use]
    pub fn describe(&self) -> CapabilityDescription {
        let names = |selection: &ModelSelection| {
            let names: Vec<&str> = selection.models.iter().map(|chosen| chosen.name.as_str()).collect();
            names.join(", ")
        };
        let consult = self.is_consultable.then(|| ConsultSettings {
            instructions: self.instructions.render_without_task(),
            model: self.model.as_ref().map(names),
        });
        CapabilityDescription { consult, ..self.about.to_capability_description() }
    }
}

fn read_instructions(node: &YamlNode) -> Result<Template, YamlMistake> {
    let text = node.parse_text("instructions")?;
    if text.trim().is_empty() {
        return Err(node.mismatch_error("instructions", "the agent's instructions"));
    }
    Template::new(text)
        .map_err(|error| YamlMistake::at_position(node.position, format!("\"instructions\": {error}")))
}

/// Reads file rules, as written and compiled.
fn read_permissions(node: &YamlNode) -> Result<(PermissionRules, CompiledPermissions), YamlMistake> {
    if let YamlValue::List(rules) = &node.value {
        for rule in rules {
            MappingFields::from_node(rule, "permission", &["operations", "paths", "mode"])?;
        }
    }
    let rules: PermissionRules = deserialize_node(node, "list of permissions")?;
    let compiled = CompiledPermissions::compile(&rules)
        .map_err(|invalid| YamlMistake::at_position(node.position, format!("\"permissions\": {invalid}")))?;
    Ok((rules, compiled))
}

/// Reads the rules for calls that need an approval.
fn read_approvals(
    node: &YamlNode,
    tool_names: &dyn ToolNames,
    server_tools: &ServerToolNames,
) -> Result<ApprovalRules, YamlMistake> {
    let rules: Vec<ApprovalRule> = deserialize_node(node, "list of approvals")?;
    let items = node.parse_list("approve", "approvals")?;
    let names = tool_names.names();
    for (rule, item) in rules.iter().zip(items) {
        let tool = rule.tool.as_str();
        if !tool.ends_with('*') && !names.contains(&tool) && !server_tools.may_include(tool) {
            let hint = did_you_mean_hint(tool, names.iter().copied());
            let all = names.iter().map(|&name| name.to_owned()).chain(server_tools.patterns());
            let all = all.collect::<Vec<_>>().join(", ");
            let text = format!("there is no tool {tool:?}{hint}; the tools are {all}");
            return Err(YamlMistake::at_position(item.position, text));
        }
        ApprovalRules::compile(vec![rule.clone()])
            .map_err(|mistake| YamlMistake::at_position(item.position, format!("\"approve\": {mistake}")))?;
    }
    ApprovalRules::compile(rules)
        .map_err(|mistake| YamlMistake::at_position(node.position, format!("\"approve\": {mistake}")))
}

fn read_answer_form(node: &YamlNode) -> Result<AnswerForm, YamlMistake> {
    let names = AnswerForm::ALL.map(AnswerForm::name);
    Ok(AnswerForm::ALL[node.index_of_choice("answer", &names)?])
}

fn read_revision_mode(node: &YamlNode) -> Result<RevisionMode, YamlMistake> {
    let names = RevisionMode::ALL.map(RevisionMode::name);
    Ok(RevisionMode::ALL[node.index_of_choice("revise", &names)?])
}

fn read_result_scope(node: &YamlNode) -> Result<ResultScope, YamlMistake> {
    let names = ResultScope::ALL.map(ResultScope::name);
    Ok(ResultScope::ALL[node.index_of_choice("results", &names)?])
}

fn read_prompts(node: &YamlNode) -> Result<ModelAbility, YamlMistake> {
    let names = ModelAbility::ALL.map(ModelAbility::name);
    Ok(ModelAbility::ALL[node.index_of_choice("prompts", &names)?])
}

fn read_json_schema(node: &YamlNode, name: &str) -> Result<serde_json::Value, YamlMistake> {
    let YamlValue::Map(_) = node.value else {
        return Err(node.mismatch_error(name, "a JSON Schema, which is a map"));
    };
    let schema = node.to_json();
    check_json_schema(&schema, node.position, name)?;
    Ok(schema)
}

fn check_json_schema(schema: &serde_json::Value, position: Position, name: &str) -> Result<(), YamlMistake> {
    jsonschema::validator_for(schema).map(drop).map_err(|error| {
        YamlMistake::at_position(position, format!("{name:?} is not a valid JSON Schema: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct ThreeToolNames;

    impl ToolNames for ThreeToolNames {
        fn names(&self) -> Vec<&str> {
            vec!["think", "read_document", "execute"]
        }

        fn has_settings(&self, name: &str) -> bool {
            name == "execute"
        }
    }

    const GOOD: &str = "\
name: legal
description: Answers questions of law.
instructions: You answer {{ task.objective }} for {{ parameters.client }}.
tools: [think, execute: {timeout: 5}]
input: {type: object, required: [client]}
review: {criteria: [It names the law.]}
concurrency: 2
";

    fn parse_mistake(text: &str) -> String {
        match AgentSpec::parse(text.as_bytes(), &ThreeToolNames) {
            Ok(spec) => panic!("it is {}", spec.about.name),
            Err(mistake) => mistake.to_string(),
        }
    }

    #[test]
    fn a_file_defines_an_agent() {
        let spec = AgentSpec::parse(GOOD.as_bytes(), &ThreeToolNames).unwrap();
        assert_eq!(
            (spec.about.name.as_str(), spec.about.slots, spec.answer),
            ("legal", Some(2), AnswerForm::Text)
        );
        assert_eq!(
            spec.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(),
            ["think", "execute"]
        );
        assert!(spec.tools[1].settings.is_some());
        let described = spec.describe();
        assert_eq!(described.criteria, ["It names the law."]);
        assert_eq!(described.review, ReviewPolicy::critic(described.criteria.clone()));
        assert!(described.parameters.is_some() && described.consult.is_none());
        let consultable = AgentSpec::parse(format!("{GOOD}consult: true\n").as_bytes(), &ThreeToolNames)
            .unwrap()
            .describe();
        assert_eq!(consultable.consult.unwrap().instructions, "You answer  for .");
    }

    /// Both the overrides and the approvals of a file may name the tools of its MCP servers.
    #[test]
    fn tools_of_mcp_servers_can_be_named() {
        let file = |tool: &str| {
            format!(
                "{GOOD}mcp: [{{name: time, command: a}}]\nagents: [{{name: a, tools: [think, {tool}]}}]\n\
                 approve: [{{tool: {tool}}}]\n"
            )
        };
        let spec = AgentSpec::parse(file("time_now").as_bytes(), &ThreeToolNames).unwrap();
        let passed = &spec.agents.agents.as_ref().unwrap()[0].overrides.tools;
        assert!(passed.as_ref().unwrap().contains("time_now"));
        for other in ["time__", "clock__now", "times_now"] {
            let is_valid = AgentSpec::parse(file(other).as_bytes(), &ThreeToolNames).is_ok();
            assert_eq!(is_valid, other.starts_with("time_"), "{other}");
        }
        let mistakes = parse_mistake(&file("clock_now"));
        for expected in ["its tools are think, execute, time_*", "are think, read_document, execute, time_*"]
        {
            assert!(mistakes.contains(expected), "{mistakes}");
        }
    }

    #[test]
    fn overrides_only_take_away() {
        let spec = AgentSpec::parse(GOOD.as_bytes(), &ThreeToolNames).unwrap();
        let overrides = AgentOverrides {
            model: Some("openai:other".into()),
            tools: Some(["think", "read_document"].map(str::to_owned).into()),
            turns: Some(4),
            tool_calls: Some(1_000),
            ..AgentOverrides::default()
        };
        let changed = spec.with_overrides(&overrides).unwrap();
        let names: Vec<&str> = changed.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["think"], "a tool that the capability lacks is not added");
        assert_eq!((changed.limits.turns, changed.limits.tool_calls), (4, spec.limits.tool_calls));
        assert_eq!(changed.model.unwrap().models[0].name, "openai:other");
        let invalid = AgentOverrides { model: Some(String::new()), ..AgentOverrides::default() };
        assert!(spec.with_overrides(&invalid).is_err());
    }

    #[test]
    fn mistakes_name_the_line_and_the_expected_value() {
        let with = |line: &str| parse_mistake(&format!("{GOOD}{line}\n"));
        let instead = |from: &str, to: &str| parse_mistake(&GOOD.replace(from, to));
        for (mistake_text, expected) in [
            (
                parse_mistake(""),
                "1:1: there is nothing in the file; a capability has a name and a description",
            ),
            (instead("name: legal", "name: le gal"), "1:7: \"le gal\" is not a valid capability name"),
            (
                with("instrutions: x"),
                "8:1: there is no field \"instrutions\" in a capability; did you mean \"instructions\"?",
            ),
            (
                instead("description: Answers questions of law.\n", ""),
                "1:1: this capability lacks the field \"description\"",
            ),
            (
                instead("{{ task.objective }}", "{{ task.objectiv }}"),
                "3:15: \"instructions\": line 1: there is no \"task.objectiv\"",
            ),
            (instead("{{ task.objective }}", "{{ task.objective"), "3:15: \"instructions\": line 1: "),
            (
                instead("think,", "thikn,"),
                "4:9: there is no tool \"thikn\"; did you mean \"think\"?; the tools are think, read_document, execute",
            ),
            (
                instead("think,", "think: {a: 1},"),
                "4:9: the tool \"think\" takes no settings but \"when\"; write only its name",
            ),
            (instead("think,", "think, think,"), "4:16: the tool \"think\" is listed twice"),
            (instead("type: object", "type: objct"), "5:8: \"input\" is not a valid JSON Schema: "),
            (
                instead("criteria: [It names the law.]", "criteria: It"),
                "6:20: \"criteria\" must be a list of sentences, not the text \"It\"",
            ),
            (
                instead("concurrency: 2", "concurrency: 0"),
                "7:14: \"concurrency\" must be a whole number from 1 to 1000, not the number 0",
            ),
            (
                with("answer: finding"),
                "8:9: \"answer\" must be findings, report, text, data or plan, not the text \"finding\"; did you mean \"findings\"?",
            ),
            (
                with("answer: data"),
                "8:9: an answer of the form data needs a JSON Schema: add the field \"output\"",
            ),
            (with("limits: {turn: 3}"), "8:10: there is no field \"turn\" here; did you mean \"turns\"?"),
            (
                with("limits: {turns: many}"),
                "8:17: \"turns\": it must be a whole number of 0 or more, not the text \"many\"",
            ),
            (with("consult: maybe"), "8:10: \"consult\" must be true or false, not the text \"maybe\""),
            (with("prompts: large"), "8:10: \"prompts\" must be small or strong, not the text \"large\""),
            (with("mcp: {}"), "8:6: \"mcp\" must be a list of MCP servers, not a map"),
        ] {
            assert!(mistake_text.starts_with(expected), "{mistake_text}\n{expected}");
        }
    }
}
