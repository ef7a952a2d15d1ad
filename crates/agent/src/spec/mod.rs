//! The definition of an agent as data, from YAML in a capability file or from a builder in Rust. It owns the file format,
//! its error messages and the template of the instructions; it opens no model and no tool, and runs nothing.

mod agents;
pub(crate) mod fields;
mod person_review;
mod review;
mod schema;
mod server_tools;
mod state;
pub(crate) mod template;
mod tools;

use std::path::{Path, PathBuf};

use millrace_models::{ModelAbility, ModelSelection};
use millrace_protocol::ids::Capability;
use millrace_protocol::overrides::{AgentOverrides, PermissionRules};
use millrace_protocol::plan::ReviewPolicy;
use millrace_protocol::result::{
    CapabilityDescription, CapabilityVersion, ConsultSettings, MAX_VERSION, VerificationPolicy,
};
use millrace_strict_yaml::{
    FileDescription, LoadError, MistakeCollector, Parts, ValueMistake, Whole, YamlMistake, YamlMistakes,
    YamlNode, checked_text, collect_node, from_form, tidy_schema, without_defaults,
};
use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

pub use agents::{AgentAccess, AskableAgent, ForkAccess};
pub use fields::{CommandHook, ContextSpec, HostFolder, MEMORIES, MemoryPlace};
pub use review::ReviewForm;
pub use schema::{agent_file_schema, common_properties_schema, merge_json, review_schema};
use server_tools::ServerToolNames;
pub use template::{
    RunTemplateView, TaskTemplateView, Template, TemplateError, TemplateView, format_utc_date,
};
pub use tools::{ToolNames, ToolReference};

use crate::approval::{ApprovalRule, ApprovalRules};
use crate::files::permissions::CompiledPermissions;
use crate::state::{PhaseChange, StateRules};
use crate::turn::Limits;

/// The maximum size of a capability file, in bytes.
pub const MAX_BYTES: u64 = 1024 * 1024;
/// The name of the file's content in error messages.
pub const KIND: FileDescription = FileDescription { name: "capability", holds: "a name and a description" };

/// The self-description of a capability of any kind.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename = "capability")]
#[schemars(transform = tidy_schema, transform = without_defaults)]
pub struct CapabilityFields {
    /// Its name: letters, digits, '-' and '_'.
    pub name: Capability,
    #[serde(default, rename = "kind")]
    #[schemars(skip)]
    _kind: Option<CapabilityKind>,
    /// Its version. Every attempt names it, beside the SHA-256 of this file.
    #[serde(default, deserialize_with = "read_version")]
    #[schemars(with = "Option<String>", length(min = 1, max = MAX_VERSION))]
    pub version: CapabilityVersion,
    /// A description of its purpose, for planners and people.
    #[serde(deserialize_with = "read_description")]
    #[schemars(regex(pattern = r"\S"))]
    pub description: String,
    /// The number of attempts that a worker runs concurrently.
    #[serde(default, rename = "concurrency")]
    pub slots: Option<Whole<1, 1000>>,
    /// The JSON Schema of a task's parameters.
    #[serde(default, deserialize_with = "read_optional_json_schema")]
    #[schemars(with = "fields::AnyObject")]
    pub input: Option<Value>,
    /// The JSON Schema of a result's data.
    #[serde(default, deserialize_with = "read_optional_json_schema")]
    #[schemars(with = "fields::AnyObject")]
    pub output: Option<Value>,
    /// The review of a result before it is accepted: none, a critic, checks only, or checks first, then critics, then persons.
    #[serde(default, deserialize_with = "from_form::<_, ReviewForm, _>")]
    #[schemars(with = "ReviewForm")]
    pub review: ReviewPolicy,
}

/// The kind of work that a capability file describes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CapabilityKind {
    #[default]
    Agent,
    Command,
    Http,
}

/// An agent: its instructions, its tools and limits, and the form of its answer.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename = "capability", default)]
#[schemars(transform = tidy_schema, transform = without_defaults)]
pub struct AgentSpec {
    /// Its self-description.
    #[serde(skip)]
    pub about: CapabilityFields,
    /// The agent's instructions: a Jinja template over run.id, run.objective, task.id, task.objective, task.feedback, task.final, parameters, documents.count, documents.paths, documents.passed_over, today, state and phase.
    #[serde(deserialize_with = "read_instructions")]
    #[schemars(with = "String", regex(pattern = r"\S"))]
    pub instructions: Template,
    /// Its model: provider:model or tier:NAME, optionally followed by comma-separated fallbacks, or a map with settings.
    #[schemars(with = "fields::TextOrObject")]
    pub model: Option<ModelSelection>,
    /// The variant of its prompts and of the form of its answers: for small models or for strong ones; by default that of its model.
    pub prompts: Option<ModelAbility>,
    /// The tools it gets.
    #[schemars(with = "Vec<String>")]
    pub tools: Vec<ToolReference>,
    /// The capabilities that it may ask with the tools task and start_task; by default all.
    pub agents: AgentAccess,
    /// The MCP servers whose tools it gets.
    #[serde(rename = "mcp", deserialize_with = "server_tools::read_servers")]
    #[schemars(with = "Vec<String>")]
    pub servers: Vec<YamlNode>,
    /// A folder of the host among its files.
    #[serde(rename = "files")]
    pub folder: Option<HostFolder>,
    /// File rules as written in a capability file. The first rule that matches a path and an operation decides whether it is permitted; without a match it is.
    #[serde(deserialize_with = "read_permissions")]
    #[schemars(with = "PermissionRules")]
    pub permissions: CompiledPermissions,
    /// Its calls that need a person's approval before they run.
    #[serde(rename = "approve", deserialize_with = "read_approvals")]
    #[schemars(with = "Vec<ApprovalRule>")]
    pub approvals: ApprovalRules,
    /// The limits of an agent in one attempt. Reaching one ends the attempt, with the partial result so far.
    pub limits: Limits,
    /// The form of its answer.
    pub answer: AnswerForm,
    /// The rules that keep its conversation within the context window of its model.
    pub context: ContextSpec,
    /// Files whose text it has in its prompt: paths relative to the capability file, or below /memories/ for files that agents keep across runs. Missing ones are passed over. With this field, even if it is empty, its file tools reach /memories.
    #[serde(deserialize_with = "fields::read_places")]
    #[schemars(with = "Option<Vec<String>>", length(max = fields::MAX_FILES), inner(length(min = 1)))]
    pub memory: Option<Vec<MemoryPlace>>,
    /// Programs that see its calls of models and tools, to redact, guard or log.
    #[serde(deserialize_with = "fields::read_hooks")]
    #[schemars(length(max = fields::MAX_HOOKS))]
    pub hooks: Vec<CommandHook>,
    /// Folders with skills, relative to the folder of this file: each has a folder with a SKILL.md for every skill, or is the folder of one. Of skills with the same name the one of the later folder counts. The agent needs the tool read_file.
    #[serde(deserialize_with = "read_skill_folders")]
    #[schemars(with = "Vec<String>", length(min = 1, max = MAX_SKILL_FOLDERS), inner(length(min = 1)))]
    pub skills: Vec<PathBuf>,
    /// The consequence of verdicts on statements, unless the run names one: `mark` delivers them with footnotes (the default), `remove` takes refuted ones out, `require` fails the attempt if a statement is not supported.
    pub verification: VerificationPolicy,
    /// The conversation in which a rejected result is revised: a new one with the rejected result, the verdict and the notes (the default), or that of the rejected attempt.
    pub revise: RevisionMode,
    /// The tasks whose results it may list and read: those on which its task depends, directly or through others (the default), or all tasks of the run.
    pub results: ResultScope,
    /// true if other agents may ask it short questions.
    #[serde(rename = "consult")]
    pub is_consultable: bool,
    /// The typed state of the agent: fields that it reads and writes with tools.
    #[serde(deserialize_with = "state::read_fields")]
    #[schemars(schema_with = "state::fields_schema")]
    pub state: StateRules,
    /// The changes of the agent's phase. It begins in the phase that the first one leaves; after a turn, the first one of the current phase happens whose condition holds.
    #[serde(rename = "phases")]
    phases: Vec<PhaseChange>,
}

/// The conversation in which the attempt after a rejection works.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RevisionMode {
    /// A new one, whose first message has the rejected result, the verdict and the notes.
    #[default]
    NewConversation,
    /// That of the rejected attempt, which continues with the feedback.
    SameConversation,
}

/// The tasks whose results an agent may list and read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResultScope {
    /// Those on which its task depends, directly or through others.
    #[default]
    Dependencies,
    /// All tasks of the run.
    Run,
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
    const ALL: [Self; 5] = [Self::Findings, Self::Report, Self::Text, Self::Data, Self::Plan];

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

/// The maximum number of folders with skills of a capability.
const MAX_SKILL_FOLDERS: usize = 16;
/// The tool with which an agent reads a skill.
const SKILL_READER: &str = "read_file";

impl Default for CapabilityFields {
    fn default() -> Self {
        Self {
            name: Capability::new("agent").expect("a valid name"),
            _kind: None,
            version: CapabilityVersion::default(),
            description: String::new(),
            slots: None,
            input: None,
            output: None,
            review: ReviewPolicy::None,
        }
    }
}

impl CapabilityFields {
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
        let about = CapabilityFields { name, description: description.to_owned(), ..Default::default() };
        Self { about, ..Self::default() }
    }

    /// Reads a file.
    pub fn load(path: &Path, tool_names: &dyn ToolNames) -> Result<Self, LoadError> {
        millrace_strict_yaml::load_yaml_file(path, KIND, MAX_BYTES, |bytes| Self::parse(bytes, tool_names))
    }

    /// Parses the bytes of a file.
    pub fn parse(bytes: &[u8], tool_names: &dyn ToolNames) -> Result<Self, YamlMistakes> {
        Self::read(&millrace_strict_yaml::parse_yaml(bytes, KIND)?, tool_names)
    }

    /// Parses the tree of a file.
    pub fn read(root: &YamlNode, tool_names: &dyn ToolNames) -> Result<Self, YamlMistakes> {
        let mut mistakes = MistakeCollector::default();
        let parts: Option<Parts<CapabilityFields, Self>> = collect_node(root, "capability", &mut mistakes);
        let spec =
            parts.map(|Parts(about, spec)| Self { about, ..spec }.check(root, tool_names, &mut mistakes));
        mistakes.finish()?;
        Ok(spec.expect("a file that can't be read has a mistake"))
    }

    /// Checks the rules between the fields and derives what follows from several of them. A file that has mistakes lacks the values
    /// that can't be read.
    fn check(mut self, root: &YamlNode, names: &dyn ToolNames, mistakes: &mut MistakeCollector) -> Self {
        let has = |field: &str| root.child(field).is_some();
        if !has("answer") && has("output") {
            self.answer = AnswerForm::Data;
        }
        // Without instructions, the built-in ones apply.
        if !has("instructions") && !self.answer.has_built_in_prompts() && !mistakes.has_hint("instructions") {
            let text = "this capability lacks the field \"instructions\"";
            mistakes.add(YamlMistake::at_position(root.position, text));
        }
        if self.answer == AnswerForm::Data && !has("output") {
            let text = "an answer of the form data needs a JSON Schema: add the field \"output\"";
            mistakes.add(YamlMistake::at_position(root.position_of("answer"), text));
        }
        let servers = ServerToolNames::from_servers(&self.servers);
        let mut of_tools = MistakeCollector::default();
        tools::check_tools(&self.tools, names, &mut of_tools);
        let listed = root.child("tools").map(YamlNode::items);
        if of_tools.is_empty()
            && listed.is_some_and(|listed| listed.len() == self.tools.len())
            && !self.tools.is_empty()
        {
            agents::check_tools(root, &self.tools, &servers, mistakes);
        }
        mistakes.append(of_tools);
        check_approvals(root, names, &servers, mistakes);
        if !self.skills.is_empty() && !self.tools.iter().any(|tool| tool.name == SKILL_READER) {
            let text = "\"skills\": an agent reads its skills with the tool read_file; add it to \"tools\"";
            mistakes.add(YamlMistake::at_position(root.position_of("skills"), text));
        }
        state::check_state(&mut self, root, &names.names(), mistakes);
        self
    }

    /// The agent with overrides: another model, fewer tools, stricter permissions, lower limits.
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

/// Checks that the approvals name tools that the agent may have.
fn check_approvals(
    root: &YamlNode,
    names: &dyn ToolNames,
    servers: &ServerToolNames,
    mistakes: &mut MistakeCollector,
) {
    let names = names.names();
    for rule in root.items_of("approve") {
        let Some(tool) = rule.child("tool").and_then(YamlNode::as_text) else { continue };
        if !tool.ends_with('*') && !names.contains(&tool) && !servers.may_include(tool) {
            let text = tools::unknown_tool(tool, &names, servers.patterns());
            mistakes.add(YamlMistake::at_position(rule.position, text));
        }
    }
}

fn read_version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CapabilityVersion, D::Error> {
    let expected = format!("a text of at most {MAX_VERSION} characters on one line, such as \"1.2\"");
    let is_valid =
        |text: &str| (1..=MAX_VERSION).contains(&text.chars().count()) && !text.contains(char::is_control);
    let text = checked_text(deserializer, &expected, |text| is_valid(text.trim()))?;
    Ok(CapabilityVersion { version: Some(text.trim().to_owned()), ..CapabilityVersion::default() })
}

fn read_description<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let is_valid = |text: &str| !text.trim().is_empty();
    let text = checked_text(deserializer, "a sentence that describes what it does", is_valid)?;
    Ok(text.trim().to_owned())
}

fn read_instructions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Template, D::Error> {
    let is_valid = |text: &str| !text.trim().is_empty();
    let text = checked_text(deserializer, "the agent's instructions", is_valid)?;
    Template::new(&text).map_err(D::Error::custom)
}

/// Reads file rules and compiles them.
fn read_permissions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CompiledPermissions, D::Error> {
    let compiled = CompiledPermissions::compile(&PermissionRules::deserialize(deserializer)?);
    compiled
        .map_err(|invalid| D::Error::custom(ValueMistake::sentence(format!("\"permissions\": {invalid}"))))
}

fn read_approvals<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ApprovalRules, D::Error> {
    let rules: Vec<ApprovalRule> = Vec::deserialize(deserializer)?;
    for (at, rule) in rules.iter().enumerate() {
        ApprovalRules::compile(vec![rule.clone()]).map_err(|mistake| {
            D::Error::custom(ValueMistake::at(at.to_string(), format!("\"approve\": {mistake}")))
        })?;
    }
    ApprovalRules::compile(rules).map_err(D::Error::custom)
}

fn read_skill_folders<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename = "folder")]
    struct Folder(String);
    let folders = Vec::<Folder>::deserialize(deserializer)?;
    if !(1..=MAX_SKILL_FOLDERS).contains(&folders.len()) {
        return Err(D::Error::custom("it must be a list of 1 to 16 folders, not a list"));
    }
    let folder = |(at, Folder(text)): (usize, Folder)| match text.trim() {
        "" => {
            let text = format!("\"skills\" must be the path of a folder, not the text {text:?}");
            Err(D::Error::custom(ValueMistake::at(at.to_string(), text)))
        }
        text => Ok(PathBuf::from(text)),
    };
    folders.into_iter().enumerate().map(folder).collect()
}

/// A JSON Schema as a field of a file.
#[derive(Deserialize)]
#[serde(rename = "a JSON Schema, which is a map", rename_all = "lowercase")]
enum JsonSchemaForm {
    Map(Value),
}

pub(crate) fn read_json_schema<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    let JsonSchemaForm::Map(schema) = JsonSchemaForm::deserialize(deserializer)?;
    check_json_schema(&schema).map_err(D::Error::custom)?;
    Ok(schema)
}

fn read_optional_json_schema<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    read_json_schema(deserializer).map(Some)
}

fn check_json_schema(schema: &Value) -> Result<(), String> {
    let checked = jsonschema::validator_for(schema);
    checked.map(drop).map_err(|error| format!("it is not a valid JSON Schema: {error}"))
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
            (spec.about.name.as_str(), spec.about.slots.map(u32::from), spec.answer),
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
            (
                instead("name: legal", "name: le gal"),
                "1:7: \"name\": \"le gal\" is not a valid capability name",
            ),
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
            (
                with("limits: {turn: 3}"),
                "8:10: there is no field \"turn\" in \"limits\"; did you mean \"turns\"?",
            ),
            (
                with("limits: {turns: many}"),
                "8:17: \"turns\" must be a whole number of 0 or more, not the text \"many\"",
            ),
            (with("consult: maybe"), "8:10: \"consult\" must be true or false, not the text \"maybe\""),
            (with("prompts: large"), "8:10: \"prompts\" must be small or strong, not the text \"large\""),
            (with("mcp: {}"), "8:6: \"mcp\" must be a list of MCP servers, not a map"),
        ] {
            assert!(mistake_text.starts_with(expected), "{mistake_text}\n{expected}");
        }
    }
}
