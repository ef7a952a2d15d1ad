//! The state of an agent in a capability file: the fields `state` and `phases`, and `when` of its tools.
//!
//! ```yaml
//! tools:
//!   - read_file
//!   - write_file: {when: "phase == 'write'"}
//! state:
//!   facts:
//!     description: the facts so far
//!     schema: {type: array, items: {type: string}}
//!     default: []
//!     access: readwrite          # hidden, read, write or readwrite
//!     policies:
//!       - {on: append, matches: "\\d", message: A fact names a number.}
//! phases:
//!   - {from: search, to: write, when: "state.facts | length >= 3"}
//! ```

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::schema::check_value_against_schema;
use millrace_strict_yaml::{MistakeCollector, YamlMistake, YamlNode, did_you_mean_hint};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::{AgentSpec, check_json_schema};
use crate::skills::SkillProgress;
use crate::state::{
    Condition, ConditionView, PhaseChange, StateField, StatePolicy, StateRules, list_references,
    resolve_schema, state_tool_name, without_references,
};

/// The maximum length of the name of a field or a phase.
const MAX_NAME: usize = 40;
/// The maximum number of fields.
const MAX_FIELDS: usize = 100;

/// The names that a policy's condition may use in addition to those of all conditions.
const POLICY_NAMES: [&str; 2] = ["value", "old"];
/// The names that the conditions of tools and phases may use if the agent has skills.
const SKILL_NAMES: [&str; 1] = ["skills"];

/// A mistake in a part of the file with this path.
type StateMistake = (String, String);

/// Reads the field `state`.
pub(super) fn read_fields<'de, D: Deserializer<'de>>(deserializer: D) -> Result<StateRules, D::Error> {
    let fields = BTreeMap::deserialize(deserializer)?;
    Ok(StateRules { fields, ..StateRules::default() })
}

/// The JSON Schema of the field `state`.
pub(super) fn fields_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "propertyNames": { "pattern": "^[a-z][a-z0-9_]{0,39}$" },
        "additionalProperties": generator.subschema_for::<StateField>(),
        "maxProperties": MAX_FIELDS,
    })
}

/// Completes the rules for the state with the phases and the conditions of tools, and checks them.
pub(super) fn check_state(
    spec: &mut AgentSpec,
    root: &YamlNode,
    tool_names: &[&str],
    mistakes: &mut MistakeCollector,
) {
    spec.state.phases = std::mem::take(&mut spec.phases);
    let conditions = spec.tools.iter().filter_map(|tool| Some((tool.name.clone(), tool.when.clone()?)));
    spec.state.conditions = conditions.collect();
    let rules = &spec.state;
    let mut found: Vec<StateMistake> = Vec::new();
    if rules.fields.len() > MAX_FIELDS {
        let text = format!("the state has {} fields; the maximum is {MAX_FIELDS}", rules.fields.len());
        found.push(("state".into(), text));
    }
    for (name, field) in &rules.fields {
        found.extend(check_field_name(name, field, tool_names).map(|text| (format!("@state/{name}"), text)));
        let place = |(part, text): (String, String)| (format!("state/{name}/{part}"), text);
        found.extend(check_field(field, root.child("state").and_then(|node| node.child(name))).map(place));
    }
    found.extend(check_phases(&rules.phases));
    let has_syntax_mistakes = !found.is_empty();
    let mut add = |found: Vec<StateMistake>| {
        for (path, text) in found {
            mistakes.add(YamlMistake::at_position(root.position_of(&path), text));
        }
    };
    add(found);
    // A mistake in the fields would be repeated by all conditions that use them.
    if has_syntax_mistakes || !mistakes.is_empty() {
        return;
    }
    let has_skills = root.child("skills").is_some();
    if let Err((path, text)) = check_conditions(spec, has_skills) {
        mistakes.add(YamlMistake::at_position(root.position_of(&path), text));
        return;
    }
    for name in spec.instructions.state_names() {
        if let Err(text) = check_name(&name, &spec.state, &[]) {
            let position = root.position_of("instructions");
            mistakes.add(YamlMistake::at_position(position, format!("\"instructions\": {text}")));
            return;
        }
    }
}

fn check_conditions(spec: &AgentSpec, has_skills: bool) -> Result<(), StateMistake> {
    let rules = &spec.state;
    for (name, field) in &rules.fields {
        for (at, policy) in field.policies.iter().enumerate() {
            if let Some(condition) = &policy.deny {
                let place = || format!("state/{name}/policies/{at}/deny");
                check_names(condition, rules, &POLICY_NAMES).map_err(|text| (place(), text))?;
            }
        }
    }
    let values = rules.default_values();
    for (name, field) in rules.fields.iter().filter(|(_, field)| has_references(field)) {
        check_references(field, rules, &values).map_err(|text| (format!("@state/{name}"), text))?;
    }
    let of_tools = spec
        .tools
        .iter()
        .enumerate()
        .filter_map(|(at, tool)| Some((format!("tools/{at}/{}/when", tool.name), tool.when.as_ref()?)));
    let of_phases =
        rules.phases.iter().enumerate().map(|(at, phase)| (format!("phases/{at}/when"), &phase.when));
    let more = if has_skills { &SKILL_NAMES[..] } else { &[] };
    for (place, condition) in of_tools.chain(of_phases) {
        let checked = check_names(condition, rules, more).and_then(|()| {
            let (phase, skills) = (rules.first_phase(), &SkillProgress::default());
            let view = ConditionView { state: &values, phase, skills, old: None, value: None };
            let text = condition.as_str();
            condition.evaluate(&view).map(drop).map_err(|error| {
                format!("{text:?} can't be evaluated with the defaults of the state: {error}")
            })
        });
        checked.map_err(|text| (place, text))?;
    }
    Ok(())
}

fn has_references(field: &StateField) -> bool {
    !list_references(&field.schema).is_empty()
}

/// Checks that the references of a schema lead to fields of the state, and that the schema has a meaning with their defaults.
/// There may be nothing to choose from yet, and a field without a value yet fits.
fn check_references(
    field: &StateField,
    rules: &StateRules,
    values: &BTreeMap<String, Value>,
) -> Result<(), String> {
    let mistake = |text: String| format!("\"schema\": {text}");
    for path in list_references(&field.schema) {
        check_name(&format!("state.{path}"), rules, &[]).map_err(mistake)?;
    }
    match resolve_schema(&field.schema, values) {
        Ok(schema) if !field.default.is_null() => check_value_against_schema(&schema, &field.default)
            .map_err(|mistakes| format!("\"default\" does not fit the schema: {mistakes}")),
        Ok(_) => Ok(()),
        // The values of other fields decide later.
        Err(_) if field.default.is_null() || field.default == json!([]) => Ok(()),
        Err(why) => Err(mistake(why)),
    }
}

fn check_names(condition: &Condition, rules: &StateRules, more: &[&str]) -> Result<(), String> {
    condition.used_names().iter().try_for_each(|name| {
        check_name(name, rules, more).map_err(|text| format!("{:?}: {text}", condition.as_str()))
    })
}

/// Checks a name that a condition or a template uses: `phase`, `state.FIELD` or one of `more`.
fn check_name(name: &str, rules: &StateRules, more: &[&str]) -> Result<(), String> {
    let first = name.split('.').next().unwrap_or(name);
    let second = name.split('.').nth(1);
    if more.contains(&first) {
        return match (first, second) {
            ("skills", Some(field)) if !["read", "tools"].contains(&field) => {
                Err(format!("there is no {name:?}; the names are skills.read and skills.tools"))
            }
            _ => Ok(()),
        };
    }
    match (first, second) {
        ("skills", _) => Err("there are no skills: add the field \"skills\"".into()),
        ("phase", None) if !rules.phases.is_empty() => Ok(()),
        ("phase", None) => Err("there are no phases: add the field \"phases\"".into()),
        ("state", None) if !rules.fields.is_empty() => Ok(()),
        ("state", Some(field)) if rules.fields.contains_key(field) => Ok(()),
        ("state", _) if rules.fields.is_empty() => Err("there is no state: add the field \"state\"".into()),
        ("state", Some(field)) => {
            let known: Vec<&str> = rules.fields.keys().map(String::as_str).collect();
            let hint = did_you_mean_hint(field, known.iter().copied());
            Err(format!("the state has no field {field:?}{hint}; its fields are {}", known.join(", ")))
        }
        _ => {
            let names: Vec<&str> = ["state.FIELD", "phase"].iter().chain(more).copied().collect();
            Err(format!("there is no {name:?}; the names are {}", names.join(", ")))
        }
    }
}

fn check_field_name(name: &str, field: &StateField, tool_names: &[&str]) -> Option<String> {
    let is_valid = name.len() <= MAX_NAME
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if !is_valid {
        return Some(format!(
            "{name:?} is not a valid name of a field: it begins with a small letter and has small letters, digits and '_', at most \
             {MAX_NAME}"
        ));
    }
    let mut tools = field.operations().map(|operation| state_tool_name(operation, name));
    let tool = tools.find(|tool| tool_names.contains(&tool.as_str()))?;
    Some(format!(
        "the field {name:?} would have the tool {tool:?}, which is another tool; choose another name"
    ))
}

/// Returns the first mistake in a field, with its place in it.
fn check_field(field: &StateField, node: Option<&YamlNode>) -> Option<StateMistake> {
    let mistake = |place: &str, text: String| Some((place.to_owned(), text));
    if let Err(text) = check_schema(&field.schema, node) {
        return mistake("schema", text);
    }
    if !has_references(field)
        && let Err(why) = check_value_against_schema(&field.schema, &field.default)
    {
        return match node.and_then(|node| node.child("default")) {
            Some(_) => mistake("default", format!("\"default\" does not fit the schema: {why}")),
            None => mistake("", format!("the field needs a \"default\" that fits its schema: {why}")),
        };
    }
    let nodes = node.map_or(&[][..], |node| node.items_of("policies"));
    let mut policies = field.policies.iter().enumerate();
    policies.find_map(|(at, policy)| {
        let (place, text) = check_policy(policy, field.is_list(), nodes.get(at)?)?;
        Some((format!("policies/{at}/{place}"), text))
    })
}

fn check_schema(schema: &Value, of: Option<&YamlNode>) -> Result<(), String> {
    if let (false, Some(node)) = (schema.is_object(), of.and_then(|of| of.child("schema"))) {
        let mistake = node.mismatch("a JSON Schema, which is a map");
        return Err(format!("\"schema\" {}", mistake.predicate()));
    }
    let checked = match list_references(schema).is_empty() {
        true => check_json_schema(schema),
        false => check_json_schema(&without_references(schema)),
    };
    checked.map_err(|why| format!("\"schema\" {}", why.trim_start_matches("it ")))?;
    // The schema becomes a part of the schema of a tool.
    match schema.to_string().contains("\"$ref\"") {
        true => Err("\"schema\" can't have \"$ref\": write the referenced part in its place".into()),
        false => Ok(()),
    }
}

fn check_policy(policy: &StatePolicy, is_list: bool, node: &YamlNode) -> Option<(String, String)> {
    let StatePolicy { on, schema, matches, deny, .. } = policy;
    let mistake = |place: &str, text: String| Some((place.to_owned(), text));
    if let Some(Err(error)) = deny.as_ref().map(|condition| Condition::parse(condition.as_str())) {
        return mistake("deny", format!("\"deny\" is not a condition: {error}"));
    }
    if on.is_empty() {
        return mistake("on", "\"on\" must be get, set or append, not a list".into());
    }
    let is_append = |node: &YamlNode| node.as_text() == Some("append");
    let at = node.items_of("on").iter().position(is_append);
    if !is_list && (at.is_some() || node.child("on").is_some_and(is_append)) {
        let text = "\"append\" needs a list: the schema of the field has no \"type: array\"";
        return mistake(&at.map_or("on".into(), |at| format!("on/{at}")), text.into());
    }
    if let Some(schema) = schema {
        let text = "a policy's \"schema\" can't refer to the state; use \"deny\", or the schema of the field";
        let checked = check_schema(schema, Some(node)).err();
        let refers = !list_references(schema).is_empty();
        if let Some(text) = checked.or_else(|| refers.then(|| text.into())) {
            return mistake("schema", text);
        }
    }
    if let Some(Err(error)) = matches.as_ref().map(|pattern| regex::Regex::new(pattern)) {
        return mistake("matches", format!("\"matches\" is not a valid regular expression: {error}"));
    }
    let has_rule = ["schema", "matches", "min", "max", "deny"].iter().any(|rule| node.child(rule).is_some());
    let text = "this policy has no rule: add \"schema\", \"matches\", \"min\", \"max\" or \"deny\"";
    if has_rule { None } else { mistake("", text.into()) }
}

/// Returns the first mistake in the phases.
fn check_phases(changes: &[PhaseChange]) -> Option<StateMistake> {
    for (at, change) in changes.iter().enumerate() {
        if let Err(error) = Condition::parse(change.when.as_str()) {
            return Some((format!("phases/{at}/when"), format!("\"when\" is not a condition: {error}")));
        }
        for (field, name) in [("from", &change.from), ("to", &change.to)] {
            if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
                let text = format!(
                    "{field:?} must be the name of a phase, at most {MAX_NAME} characters, not the text {name:?}"
                );
                return Some((format!("phases/{at}/{field}"), text));
            }
        }
    }
    // Every phase that is left can be entered.
    let first = changes.first()?.from.as_str();
    let entered: BTreeSet<&str> = changes.iter().map(|change| change.to.as_str()).chain([first]).collect();
    let at = changes.iter().position(|change| !entered.contains(change.from.as_str()))?;
    let from = &changes[at].from;
    let hint = did_you_mean_hint(from, entered.iter().copied());
    let text = format!(
        "no change leads to the phase {from:?}{hint}; the agent begins in {first:?}, which the first change leaves"
    );
    Some((format!("phases/{at}/from"), text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::ToolNames;
    use crate::state::StateAccess;

    struct Names;

    impl ToolNames for Names {
        fn names(&self) -> Vec<&str> {
            vec!["think", "execute", "get_task_result"]
        }

        fn has_settings(&self, name: &str) -> bool {
            name == "execute"
        }
    }

    const GOOD: &str = "\
name: a
description: x
instructions: In {{ phase }} with {{ state.count }}.
tools: [think, execute: {timeout_s: 5, when: \"phase == 'work' and state.count > 0\"}]
state:
  count: {schema: {type: integer}, default: 0, access: readwrite}
  names: {schema: {type: array, items: {type: string}}, default: [], access: write}
phases: [{from: plan, to: work, when: state.names | length > 0}]
";

    fn parse(text: &str) -> Result<AgentSpec, String> {
        AgentSpec::parse(text.as_bytes(), &Names).map_err(|mistakes| mistakes.to_string())
    }

    #[test]
    fn a_file_defines_state_conditions_and_phases() {
        let spec = parse(GOOD).unwrap();
        let rules = &spec.state;
        assert_eq!((rules.first_phase(), rules.fields["count"].default.clone()), ("plan", json!(0)));
        assert_eq!(rules.fields["names"].access, StateAccess::Write);
        assert_eq!(rules.conditions["execute"].as_str(), "phase == 'work' and state.count > 0");
        let settings = spec.tools[1].settings.as_ref().unwrap().to_json();
        assert_eq!(settings, json!({"timeout_s": 5}), "the condition is no setting of the tool");
        let only =
            parse(&GOOD.replace("[think, execute: {timeout_s: 5, when", "[execute, think: {when")).unwrap();
        assert!(only.tools[1].settings.is_none() && only.state.conditions.contains_key("think"));
        let plain = parse("name: a\ndescription: x\ninstructions: y\n").unwrap();
        assert!(plain.state.is_empty());
    }

    #[test]
    fn mistakes_in_the_state_are_located() {
        let instead = |from: &str, to: &str| match parse(&GOOD.replace(from, to)) {
            Ok(_) => panic!("{to} is valid"),
            Err(mistakes) => mistakes,
        };
        let with = |policy: &str| instead("access: readwrite", &format!("policies: [{policy}]"));
        for (mistake, expected) in [
            (instead("count: {schema", "Count: {schema"), "6: \"Count\" is not a valid name of a field"),
            (instead("default: 0", "default: none"), "6: \"default\" does not fit the schema: "),
            (instead("default: 0, ", ""), "6: the field needs a \"default\" that fits its schema: "),
            (instead("readwrite", "readwrit"), "6: \"access\" must be hidden, read, write or readwrite"),
            (
                instead("default: 0", "defalt: 0"),
                "6: there is no field \"defalt\" in a field of the state; did you mean \"default\"?",
            ),
            (instead("type: integer", "type: int"), "6: \"schema\" is not a valid JSON Schema"),
            (instead("type: integer", "$ref: '#'"), "6: \"schema\" can't have \"$ref\""),
            (
                instead("count: {schema: {type: integer}", "task_result: {schema: {type: integer}"),
                "6: the field \"task_result\" would have the tool \"get_task_result\"",
            ),
            (
                instead("state.count > 0", "state.cuont > 0"),
                "4: \"phase == 'work' and state.cuont > 0\": the state has no field \"cuont\"; did you mean \"count\"?",
            ),
            (
                instead("state.count > 0", "stat.count > 0"),
                "4: \"phase == 'work' and stat.count > 0\": there is no \"stat.count\"; the names are state.FIELD, phase",
            ),
            (instead("state.count > 0", "state.count >"), "4: \"when\" is not a condition: "),
            (
                instead("state.names | length", "state.count | length"),
                "8: \"state.count | length > 0\" can't be evaluated with the defaults of the state: ",
            ),
            (
                instead("{{ state.count }}", "{{ state.total }}"),
                "3: \"instructions\": the state has no field \"total\"",
            ),
            (
                instead("phases:", "# "),
                "4: \"phase == 'work' and state.count > 0\": there are no phases: add the field \"phases\"",
            ),
            (
                instead(
                    "when: state.names | length > 0}",
                    "when: state.count}, {from: wrok, to: plan, when: 'true'}",
                ),
                "8: no change leads to the phase \"wrok\"; did you mean \"work\"?",
            ),
            (instead("from: plan, ", ""), "8: this change of the phase lacks the field \"from\""),
            (with("{on: append, max: 3}"), "6: \"append\" needs a list"),
            (with("{on: sett, max: 3}"), "6: \"on\" must be get, set or append"),
            (with("{on: set}"), "6: this policy has no rule"),
            (with("{matches: '['}"), "6: \"matches\" is not a valid regular expression"),
            (
                with("{deny: 'valu > 3'}"),
                "6: \"valu > 3\": there is no \"valu\"; the names are state.FIELD, phase, value, old",
            ),
            (with("{max: many}"), "6: "),
            (
                instead("type: integer", "maximum: {$state: cuont}"),
                "6: \"schema\": the state has no field \"cuont\"; did you mean \"count\"?",
            ),
            (
                instead("type: integer", "enum: {$state: names.first}"),
                "6: \"schema\": state.names.first has no value",
            ),
            (
                instead("type: integer", "enum: {$state: names}"),
                "6: \"schema\": there is no value to choose from",
            ),
            (
                instead("type: integer", "type: int, enum: {$state: names}"),
                "6: \"schema\" is not a valid JSON Schema",
            ),
            (
                instead(
                    "default: [], access: write",
                    "default: [b], access: write, policies: [{schema: {enum: {$state: count}}}]",
                ),
                "7: a policy's \"schema\" can't refer to the state",
            ),
        ] {
            let (line, text) = expected.split_once(": ").unwrap();
            let is_located = mistake.starts_with(&format!("{line}:"));
            assert!(is_located && mistake.contains(text), "{mistake}\n{expected}");
        }
    }
}
