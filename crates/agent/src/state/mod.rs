//! The typed state of an agent: named values that it reads and writes with tools, conditions for tools, policies that veto,
//! and phases. All of it is part of the agent's machine, and its rules are recorded with the first request, so that a
//! takeover continues with the same state under the same rules. No I/O.
//!
//! ```text
//! StateRules          from the capability file: fields, policies, conditions of tools, phases, the prompt
//! └─ AgentState       the values and the phase
//!    ├─ run_tool      get_FIELD, set_FIELD, append_FIELD
//!    ├─ is_available  the tools whose condition holds
//!    └─ end_turn      at most one change of the phase
//! ```
//!
//! The tools over an agent's state. The machine answers their calls: see [`super::AgentState::run_tool`].
//!
//! # Invariants
//!
//! - I153: A veto of a policy changes nothing, and the model reads the reason; falsy defaults are values.
//!   (`crates/agent/src/state/mod.rs::a_veto_changes_nothing_and_says_why`,
//!   `crates/agent/src/state/mod.rs::falsy_defaults_are_values`)
//! - I154: State, phase and their rules are those that the conversation began with, on every worker; at most one change of the
//!   phase happens after a turn.
//!   (`crates/agent/tests/answers.rs::a_resumed_conversation_has_the_state_and_the_rules_that_were_recorded`,
//!   `crates/agent/tests/turn/programs.rs::stored_machine_keeps_state_and_phase`,
//!   `crates/agent/src/state/mod.rs::phases_change_once_a_turn_in_the_order_of_the_list`)

mod policy;
mod reference;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use millrace_strict_yaml::{tidy_schema, without_defaults};
use policy::JudgedValue;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::model::ToolSpec;
use crate::skills::{SkillEntry, SkillProgress};

use crate::spec::fields::AnyObject;
use crate::spec::template::{Template, TemplateError};

use crate::tool::{Call, InnerTool, Output, Tool, ToolError};

pub use policy::{Condition, ConditionView, StateOperation, StatePolicy};
pub(crate) use reference::{list_references, resolve_schema, without_references};

/// The maximum size of a value as JSON, in bytes.
const MAX_VALUE: usize = 64 * 1024;

/// The rules for an agent's state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StateRules {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, StateField>,
    /// The conditions under which tools are available, by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub conditions: BTreeMap<String, Condition>,
    /// The changes of the phase, in the order in which they are checked. The agent begins in the phase that the first one
    /// leaves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseChange>,
    /// The prompt, if it shows the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<StatePrompt>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename = "field of the state")]
#[schemars(deny_unknown_fields, transform = tidy_schema, transform = without_defaults)]
pub struct StateField {
    /// Its meaning, for the agent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    // It may have references to the state: see [`reference`].
    /// The JSON Schema of its values. {$state: FIELD} in it stands for the current value of a field.
    #[serde(default = "any_value")]
    #[schemars(with = "AnyObject")]
    pub schema: Value,
    /// Its value at the beginning; null by default.
    #[serde(default)]
    pub default: Value,
    /// The tools that the agent has for it; read by default.
    #[serde(default)]
    pub access: StateAccess,
    /// Rules that can veto an operation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<StatePolicy>,
}

/// The schema that every value fits.
fn any_value() -> Value {
    Value::Object(serde_json::Map::new())
}

/// The access of an agent to a field of its state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StateAccess {
    /// None: the field is for conditions and for the prompt.
    Hidden,
    /// It can read it.
    #[default]
    Read,
    /// It can write it.
    Write,
    /// It can read and write it.
    #[serde(rename = "readwrite")]
    ReadWrite,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename = "change of the phase")]
#[schemars(deny_unknown_fields, transform = tidy_schema)]
pub struct PhaseChange {
    #[schemars(length(min = 1, max = 40))]
    pub from: String,
    #[schemars(length(min = 1, max = 40))]
    pub to: String,
    /// An expression over state.FIELD and phase, such as: phase == 'write' and state.count > 2
    #[schemars(with = "String", length(min = 1))]
    pub when: Condition,
}

/// A prompt that shows the state: it is rendered for each request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatePrompt {
    pub template: Template,
    /// The other values that it shows.
    pub view: Value,
    /// The text of the prompt after the template.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sections: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentState {
    rules: StateRules,
    values: BTreeMap<String, Value>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    phase: String,
    #[serde(default, skip_serializing_if = "SkillProgress::is_empty")]
    skills: SkillProgress,
}

impl StateRules {
    /// `true` if the agent has neither state nor phases nor conditions.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.conditions.is_empty() && self.phases.is_empty()
    }

    /// The phase at the beginning; empty if there are no phases.
    pub fn first_phase(&self) -> &str {
        self.phases.first().map_or("", |change| &change.from)
    }

    /// The values at the beginning.
    pub fn default_values(&self) -> BTreeMap<String, Value> {
        self.fields.iter().map(|(name, field)| (name.clone(), field.default.clone())).collect()
    }
}

impl StateAccess {
    /// `true` if the agent has a tool that reads.
    #[must_use]
    pub const fn can_read(self) -> bool {
        matches!(self, Self::Read | Self::ReadWrite)
    }

    /// `true` if the agent has a tool that writes.
    #[must_use]
    pub const fn can_write(self) -> bool {
        matches!(self, Self::Write | Self::ReadWrite)
    }
}

impl StateField {
    /// `true` if its values are lists.
    pub fn is_list(&self) -> bool {
        self.schema.get("type").and_then(Value::as_str) == Some("array")
    }

    /// The operations for which the agent has tools.
    pub fn operations(&self) -> impl Iterator<Item = StateOperation> + use<> {
        let (reads, writes) = (self.access.can_read(), self.access.can_write());
        let appends = writes && self.is_list();
        [(reads, StateOperation::Get), (writes, StateOperation::Set), (appends, StateOperation::Append)]
            .into_iter()
            .filter_map(|(has_tool, operation)| has_tool.then_some(operation))
    }
}

/// The name of the tool for an operation on a field.
#[must_use]
pub fn state_tool_name(operation: StateOperation, field: &str) -> String {
    format!("{}_{field}", operation.name())
}

impl AgentState {
    /// The state at the beginning.
    #[must_use]
    pub fn new(rules: StateRules) -> Self {
        let (values, phase) = (rules.default_values(), rules.first_phase().to_owned());
        Self { rules, values, phase, skills: SkillProgress::default() }
    }

    pub fn rules(&self) -> &StateRules {
        &self.rules
    }

    pub fn value(&self, field: &str) -> Option<&Value> {
        self.values.get(field)
    }

    /// The phase; empty if there are none.
    pub fn phase(&self) -> &str {
        &self.phase
    }

    /// `true` if a tool has no condition, or its condition holds. One that can't be evaluated does not hold.
    pub fn is_available(&self, tool: &str) -> bool {
        let condition = self.rules.conditions.get(tool);
        condition.is_none_or(|condition| condition.evaluate(&self.view()).unwrap_or(false))
    }

    /// The refusal of a call of a tool whose condition does not hold.
    pub fn unavailable_tool_error(&self, tool: &str) -> String {
        let condition = self.rules.conditions.get(tool).map_or("", Condition::as_str);
        format!("{tool} is not available now: it is available where {condition}. It was not run.")
    }

    /// Returns the spec of a tool with the current schema of its field.
    ///
    /// # Errors
    /// The schema has no meaning with the current values, so that the tool can't be offered; with the reason.
    pub fn resolve_tool_spec(&self, spec: &ToolSpec) -> Result<ToolSpec, String> {
        let Some((name, operation)) = self.find_operation(&spec.name) else { return Ok(spec.clone()) };
        let field = &self.rules.fields[&name];
        if list_references(&field.schema).is_empty() {
            return Ok(spec.clone());
        }
        let schema = resolve_schema(&field.schema, &self.values)?;
        Ok(describe_tool(&name, &StateField { schema, ..field.clone() }, operation))
    }

    fn find_operation(&self, tool: &str) -> Option<(String, StateOperation)> {
        self.rules.fields.iter().find_map(|(name, field)| {
            let operation = field.operations().find(|operation| state_tool_name(*operation, name) == tool)?;
            Some((name.clone(), operation))
        })
    }

    /// The prompt with the current state, if it shows the state.
    pub fn render_prompt(&self) -> Option<Result<String, TemplateError>> {
        let StatePrompt { template, view, sections } = self.rules.prompt.as_ref()?;
        let mut view = view.clone();
        view["state"] = self.values.clone().into_iter().collect();
        view["phase"] = self.phase.clone().into();
        let append = |text: String| match sections.as_str() {
            "" => text,
            sections => format!("{}{sections}", text.trim_end()),
        };
        Some(template.render_value(&view).map(append))
    }

    /// Executes a call of one of the state's tools. The arguments have been validated against its schema.
    ///
    /// # Errors
    /// A policy vetoes it: nothing has changed. The text is for the model.
    pub fn run_tool(&mut self, tool: &str, arguments: &Value) -> Result<String, String> {
        let Some((name, operation)) = self.find_operation(tool) else {
            return Err(format!("there is no tool {tool}"));
        };
        let argument = || arguments.get("value").cloned().unwrap_or(Value::Null);
        match operation {
            StateOperation::Get => self.read_field(&name),
            StateOperation::Set => {
                let value = argument();
                self.write_field(&name, operation, &value, value.clone())
            }
            StateOperation::Append => {
                let item = argument();
                let mut items = self.values.get(&name).and_then(Value::as_array).cloned().unwrap_or_default();
                items.push(item.clone());
                self.write_field(&name, operation, &item, Value::Array(items))
            }
        }
    }

    fn read_field(&self, name: &str) -> Result<String, String> {
        let value = self.values.get(name).unwrap_or(&Value::Null);
        let judged = JudgedValue { operation: StateOperation::Get, value, after: value };
        self.check_policies(name, &judged).map_err(|reason| format!("{name} can't be read: {reason}"))?;
        Ok(value.to_string())
    }

    fn write_field(
        &mut self,
        name: &str,
        operation: StateOperation,
        value: &Value,
        after: Value,
    ) -> Result<String, String> {
        let judged = JudgedValue { operation, value, after: &after };
        let checked = self.check_schema(name, &after).and_then(|()| self.check_policies(name, &judged));
        if let Err(reason) = checked {
            let old = self.values.get(name).unwrap_or(&Value::Null);
            return Err(format!("{name} was not changed: {reason}. It is still {old}."));
        }
        let text = match operation {
            StateOperation::Append => {
                format!("{name} has {} items now", after.as_array().map_or(0, Vec::len))
            }
            StateOperation::Get | StateOperation::Set => format!("{name} is {after} now"),
        };
        self.values.insert(name.to_owned(), after);
        Ok(text)
    }

    fn check_schema(&self, name: &str, value: &Value) -> Result<(), String> {
        let size = value.to_string().len();
        if size > MAX_VALUE {
            return Err(format!("its value would have {size} bytes; the maximum is {MAX_VALUE}"));
        }
        let Some(field) = self.rules.fields.get(name) else { return Ok(()) };
        let schema = resolve_schema(&field.schema, &self.values)?;
        millrace_protocol::schema::check_value_against_schema(&schema, value)
            .map_err(|mistakes| format!("the value does not fit: {mistakes}"))
    }

    fn check_policies(&self, name: &str, judged: &JudgedValue<'_>) -> Result<(), String> {
        let Some(field) = self.rules.fields.get(name) else { return Ok(()) };
        let old = self.values.get(name).unwrap_or(&Value::Null);
        let view = ConditionView { old: Some(old), value: Some(judged.value), ..self.view() };
        field.policies.iter().try_for_each(|policy| policy.check_operation(judged, &view))
    }

    /// Changes the phase after a turn, if a condition holds: the first one of the current phase, and only once. Returns the
    /// notice for the model.
    pub fn end_turn(&mut self) -> Option<String> {
        let view = self.view();
        let happens =
            |change: &&PhaseChange| change.from == self.phase && change.when.evaluate(&view).unwrap_or(false);
        let to = self.rules.phases.iter().find(happens)?.to.clone();
        let from = std::mem::replace(&mut self.phase, to);
        Some(format!("The phase has changed from {from} to {}.", self.phase))
    }

    /// Adds a skill whose instructions were read.
    pub fn add_skill(&mut self, skill: &SkillEntry) {
        self.skills.add_skill(skill);
    }

    fn view(&self) -> ConditionView<'_> {
        let Self { values, phase, skills, .. } = self;
        ConditionView { state: values, phase, skills, old: None, value: None }
    }
}

struct StateTool(ToolSpec);

/// Creates the tools over the fields that an agent may read or write. Their schemas are those before any reference to the state is
/// resolved: [`AgentState::resolve_tool_spec`] returns the current ones.
#[must_use]
pub fn create_state_tools(rules: &StateRules) -> Vec<Arc<dyn Tool>> {
    let tools = rules.fields.iter().flat_map(|(name, field)| {
        field.operations().map(move |operation| -> Arc<dyn Tool> {
            let field = StateField { schema: without_references(&field.schema), ..field.clone() };
            Arc::new(StateTool(describe_tool(name, &field, operation)))
        })
    });
    tools.collect()
}

fn describe_tool(name: &str, field: &StateField, operation: StateOperation) -> ToolSpec {
    let (description, value) = match operation {
        StateOperation::Get => (format!("Returns the value of {name}"), None),
        StateOperation::Set => (format!("Sets the value of {name}"), Some(field.schema.clone())),
        StateOperation::Append => {
            let items = field.schema.get("items").cloned().unwrap_or_else(|| json!({}));
            (format!("Adds an item to the list {name}"), Some(items))
        }
    };
    let description = match field.description.as_str() {
        "" => format!("{description}."),
        text => format!("{description}: {text}"),
    };
    let schema = match value {
        None => json!({"type": "object", "properties": {}, "additionalProperties": false}),
        Some(value) => json!({
            "type": "object",
            "properties": {"value": value},
            "required": ["value"],
            "additionalProperties": false,
        }),
    };
    ToolSpec {
        name: state_tool_name(operation, name),
        description: description.into(),
        schema: schema.into(),
    }
}

impl Tool for StateTool {
    fn spec(&self) -> ToolSpec {
        self.0.clone()
    }

    fn inner(&self) -> Option<InnerTool> {
        Some(InnerTool::State)
    }

    fn call<'a>(&'a self, _: Value, _: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        let text = format!("{} works only inside an agent's conversation", self.0.name);
        Box::pin(futures::future::ready(Err(ToolError::Refused(text))))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules(json: Value) -> StateRules {
        serde_json::from_value(json).unwrap()
    }

    fn state(fields: Value) -> AgentState {
        AgentState::new(rules(json!({"fields": fields})))
    }

    fn field(schema: Value, default: Value, policies: Value) -> Value {
        json!({"schema": schema, "default": default, "access": "readwrite", "policies": policies})
    }

    #[test]
    fn falsy_defaults_are_values() {
        for default in [json!(0), json!(false), json!(""), json!([]), json!({}), json!(null)] {
            let mut state = state(json!({"x": field(json!({}), default.clone(), json!([]))}));
            assert_eq!(state.run_tool("get_x", &json!({})).unwrap(), default.to_string());
        }
    }

    #[test]
    fn a_veto_changes_nothing_and_says_why() {
        for (schema, old, policy, tool, value, reason) in [
            (
                json!({"type": "integer"}),
                json!(3),
                json!({"on": ["set"], "max": 5.0}),
                "set_x",
                json!(6),
                "the number must be at most 5",
            ),
            (
                json!({"type": "integer"}),
                json!(3),
                json!({"on": ["set"], "min": 1.0}),
                "set_x",
                json!(0),
                "the number must be at least 1",
            ),
            (
                json!({"type": "string"}),
                json!("A"),
                json!({"on": ["set"], "matches": "^[A-Z]+$"}),
                "set_x",
                json!("b"),
                "matches \"^[A-Z]+$\"",
            ),
            (
                json!({"type": "string"}),
                json!("A"),
                json!({"on": ["set"], "max": 2.0}),
                "set_x",
                json!("äöü"),
                "the length of the text must be at most 2",
            ),
            (
                json!({"type": "integer"}),
                json!(3),
                json!({"on": ["set"], "deny": "value < old"}),
                "set_x",
                json!(2),
                "it is denied where value < old",
            ),
            (
                json!({"type": "integer"}),
                json!(3),
                json!({"on": ["set"], "deny": "value < old", "message": "It only grows"}),
                "set_x",
                json!(2),
                "x was not changed: It only grows. It is still 3.",
            ),
            (
                json!({"type": "array"}),
                json!(["a"]),
                json!({"on": ["append"], "max": 1.0}),
                "append_x",
                json!("b"),
                "the number of items must be at most 1",
            ),
            (
                json!({"type": "array"}),
                json!(["a"]),
                json!({"on": ["append"], "schema": {"type": "string"}}),
                "append_x",
                json!(2),
                "does not fit",
            ),
            (
                json!({"type": "array"}),
                json!(["a"]),
                json!({"on": ["append"], "deny": "value in state.x"}),
                "append_x",
                json!("a"),
                "it is denied where",
            ),
            (
                json!({"type": "integer"}),
                json!(3),
                json!({"on": ["set"], "deny": "value | length > 1"}),
                "set_x",
                json!(2),
                "can't be checked",
            ),
            (
                json!({"type": "integer"}),
                json!(3),
                json!({"on": ["get"], "deny": "phase == ''"}),
                "get_x",
                json!(null),
                "x can't be read",
            ),
            (
                json!({"type": "integer"}),
                json!(3),
                json!({"on": ["get"], "max": 1.0}),
                "set_x",
                json!("text"),
                "does not fit",
            ),
        ] {
            let mut state = state(json!({"x": field(schema, old.clone(), json!([policy]))}));
            let refusal = state.run_tool(tool, &json!({"value": value})).unwrap_err();
            assert!(refusal.contains(reason), "{refusal}");
            assert_eq!(state.value("x"), Some(&old), "{refusal}");
        }
    }

    #[test]
    fn schemas_follow_the_values_that_they_refer_to() {
        let mut state = state(json!({
            "options": field(json!({"type": "array"}), json!([]), json!([])),
            "choice": field(json!({"enum": {"$state": "options.*.id"}}), json!(null), json!([])),
            "picks": field(json!({"type": "array", "items": {"enum": {"$state": "options.*.id"}}}), json!([]), json!([])),
        }));
        let specs: Vec<ToolSpec> = create_state_tools(state.rules()).iter().map(|tool| tool.spec()).collect();
        let spec = |name: &str| specs.iter().find(|spec| spec.name == name).unwrap();
        let value_schema = |state: &AgentState, name: &str| {
            state.resolve_tool_spec(spec(name)).map(|spec| spec.schema["properties"]["value"].clone())
        };
        assert_eq!(
            spec("set_choice").schema["properties"]["value"],
            json!({}),
            "any value may be allowed later"
        );
        assert_eq!(value_schema(&state, "set_choice"), Err("there is no value to choose from".into()));
        let refusal = state.run_tool("set_choice", &json!({"value": "x"})).unwrap_err();
        assert!(refusal.contains("there is no value to choose from"), "{refusal}");
        state.run_tool("set_options", &json!({"value": [{"id": "x"}, {"id": "y"}]})).unwrap();
        assert_eq!(value_schema(&state, "set_choice"), Ok(json!({"enum": ["x", "y"]})));
        assert_eq!(value_schema(&state, "append_picks"), Ok(json!({"enum": ["x", "y"]})));
        let refusal = state.run_tool("set_choice", &json!({"value": "z"})).unwrap_err();
        assert!(refusal.contains("does not fit") && refusal.contains("It is still null"), "{refusal}");
        state.run_tool("set_choice", &json!({"value": "y"})).unwrap();
        state.run_tool("append_picks", &json!({"value": "x"})).unwrap();
        assert!(state.run_tool("append_picks", &json!({"value": "z"})).is_err());
        let stored: AgentState = serde_json::from_value(serde_json::to_value(&state).unwrap()).unwrap();
        assert_eq!(value_schema(&stored, "set_choice"), value_schema(&state, "set_choice"));
    }

    #[test]
    fn policies_apply_to_their_operations_only() {
        let policy = json!([{"on": ["append"], "max": 1.0}]);
        let mut state = state(json!({"x": field(json!({"type": "array"}), json!([]), policy)}));
        assert_eq!(state.run_tool("append_x", &json!({"value": "a"})).unwrap(), "x has 1 items now");
        assert_eq!(state.run_tool("set_x", &json!({"value": ["a", "b"]})).unwrap(), "x is [\"a\",\"b\"] now");
        assert!(state.run_tool("append_x", &json!({"value": "c"})).is_err());
        assert_eq!(state.run_tool("get_x", &json!({})).unwrap(), "[\"a\",\"b\"]");
    }

    #[test]
    fn access_decides_on_the_tools() {
        let names = |access: &str, schema: Value| -> Vec<String> {
            let field = json!({"schema": schema, "default": null, "access": access});
            let rules = rules(json!({"fields": {"x": field}}));
            create_state_tools(&rules).iter().map(|tool| tool.spec().name).collect()
        };
        let list = json!({"type": "array"});
        assert!(names("hidden", list.clone()).is_empty());
        assert_eq!(names("read", list.clone()), ["get_x"]);
        assert_eq!(names("write", json!({})), ["set_x"]);
        assert_eq!(names("readwrite", list), ["get_x", "set_x", "append_x"]);
    }

    #[test]
    fn phases_change_once_a_turn_in_the_order_of_the_list() {
        let mut state = AgentState::new(rules(json!({
            "fields": {"n": field(json!({"type": "integer"}), json!(0), json!([]))},
            "conditions": {"publish": "phase == 'c'"},
            "phases": [
                {"from": "a", "to": "b", "when": "state.n > 0"},
                {"from": "a", "to": "c", "when": "state.n > 0"},
                {"from": "b", "to": "c", "when": "true"},
            ],
        })));
        assert_eq!(state.phase(), "a");
        assert_eq!(state.end_turn(), None);
        state.run_tool("set_n", &json!({"value": 1})).unwrap();
        assert_eq!(state.end_turn().as_deref(), Some("The phase has changed from a to b."));
        assert!(!state.is_available("publish") && state.is_available("other"));
        assert_eq!(state.end_turn().as_deref(), Some("The phase has changed from b to c."));
        assert!(state.is_available("publish"));
        assert_eq!(state.end_turn(), None);
        let stored: AgentState = serde_json::from_value(serde_json::to_value(&state).unwrap()).unwrap();
        assert_eq!(stored, state);
    }
}
