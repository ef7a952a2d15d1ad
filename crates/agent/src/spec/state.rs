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
use millrace_strict_yaml::{
    MappingFields, MistakeCollector, Position, YamlMistake, YamlNode, YamlValue, deserialize_node,
    did_you_mean_hint,
};
use serde_json::{Value, json};

use super::{Template, check_json_schema, read_json_schema};
use crate::skills::SkillProgress;
use crate::state::{
    Condition, ConditionView, PhaseChange, StateAccess, StateField, StateOperation, StatePolicy, StateRules,
    list_references, resolve_schema, state_tool_name, without_references,
};

/// The maximum length of a field's name.
pub(super) const MAX_NAME: usize = 40;
/// The maximum number of fields.
pub(super) const MAX_FIELDS: usize = 100;

pub(super) const ACCESS: [(&str, StateAccess); 4] = [
    ("hidden", StateAccess::Hidden),
    ("read", StateAccess::Read),
    ("write", StateAccess::Write),
    ("readwrite", StateAccess::ReadWrite),
];
pub(super) const OPERATIONS: [(&str, StateOperation); 3] =
    [("get", StateOperation::Get), ("set", StateOperation::Set), ("append", StateOperation::Append)];

/// The names that a policy's condition may use in addition to those of all conditions.
const POLICY_NAMES: [&str; 2] = ["value", "old"];
/// The names that the conditions of tools and phases may use if the agent has skills.
const SKILL_NAMES: [&str; 1] = ["skills"];

pub(super) type PlacedCondition = (Condition, Position);

/// The conditions of a file, which are checked when all fields and phases are known.
#[derive(Default)]
struct PlacedConditions {
    /// They can be evaluated at any time.
    of_tools_and_phases: Vec<PlacedCondition>,
    of_policies: Vec<PlacedCondition>,
    /// The fields whose schemas refer to the state.
    of_fields: Vec<(String, Position)>,
}

/// The parts of a file that its state rules come from.
pub(super) struct StateSource<'a> {
    pub fields: &'a MappingFields<'a>,
    /// The conditions of tools.
    pub conditions: BTreeMap<String, PlacedCondition>,
    /// The names that tools of the state can't have.
    pub tool_names: Vec<&'a str>,
}

/// Reads the rules for the state.
pub(super) fn collect_state(source: StateSource<'_>, mistakes: &mut MistakeCollector) -> StateRules {
    let StateSource { fields, conditions, tool_names } = source;
    let mut placed = PlacedConditions::default();
    placed.of_tools_and_phases.extend(conditions.values().cloned());
    let state = fields.find_field("state").map(|node| read_fields(node, &tool_names, &mut placed));
    let phases = fields.find_field("phases").map(|node| read_phases(node, &mut placed));
    let has_skills = fields.find_field("skills").is_some();
    let rules = StateRules {
        fields: mistakes.check_optional(state).unwrap_or_default(),
        conditions: conditions.into_iter().map(|(tool, (condition, _))| (tool, condition)).collect(),
        phases: mistakes.check_optional(phases).unwrap_or_default(),
        prompt: None,
    };
    // A mistake in the fields would be repeated by all conditions that use them.
    if mistakes.is_empty() {
        mistakes.check(check_conditions(&rules, &placed, has_skills));
    }
    rules
}

/// Reads the condition `when` of a tool.
pub(super) fn read_condition(node: &YamlNode) -> Result<PlacedCondition, YamlMistake> {
    let condition = Condition::parse(node.parse_text("when")?).map_err(|error| {
        YamlMistake::at_position(node.position, format!("\"when\" is not a condition: {error}"))
    })?;
    Ok((condition, node.position))
}

/// Checks that the instructions use no unknown field of the state.
pub(super) fn check_template(
    template: &Template,
    node: &YamlNode,
    rules: &StateRules,
) -> Result<(), YamlMistake> {
    template.state_names().iter().try_for_each(|name| {
        check_name(name, rules, &[])
            .map_err(|text| YamlMistake::at_position(node.position, format!("\"instructions\": {text}")))
    })
}

fn check_conditions(
    rules: &StateRules,
    placed: &PlacedConditions,
    has_skills: bool,
) -> Result<(), YamlMistake> {
    for (condition, position) in &placed.of_policies {
        check_names(condition, *position, rules, &POLICY_NAMES)?;
    }
    let (values, skills) = (rules.default_values(), SkillProgress::default());
    for (name, position) in &placed.of_fields {
        check_references(&rules.fields[name], *position, rules, &values)?;
    }
    let more = if has_skills { &SKILL_NAMES[..] } else { &[] };
    for (condition, position) in &placed.of_tools_and_phases {
        check_names(condition, *position, rules, more)?;
        let (phase, skills) = (rules.first_phase(), &skills);
        let view = ConditionView { state: &values, phase, skills, old: None, value: None };
        condition.evaluate(&view).map_err(|error| {
            let text = format!(
                "{:?} can't be evaluated with the defaults of the state: {error}",
                condition.as_str()
            );
            YamlMistake::at_position(*position, text)
        })?;
    }
    Ok(())
}

/// Checks that the references of a schema lead to fields of the state, and that the schema has a meaning with their defaults.
/// There may be nothing to choose from yet, and a field without a value yet fits.
fn check_references(
    field: &StateField,
    position: Position,
    rules: &StateRules,
    values: &BTreeMap<String, Value>,
) -> Result<(), YamlMistake> {
    let mistake = |text: String| YamlMistake::at_position(position, format!("\"schema\": {text}"));
    for path in list_references(&field.schema) {
        check_name(&format!("state.{path}"), rules, &[]).map_err(mistake)?;
    }
    match resolve_schema(&field.schema, values) {
        Ok(schema) if !field.default.is_null() => check_value_against_schema(&schema, &field.default)
            .map_err(|mistakes| {
                YamlMistake::at_position(position, format!("\"default\" does not fit the schema: {mistakes}"))
            }),
        Ok(_) => Ok(()),
        // The values of other fields decide later.
        Err(_) if field.default.is_null() || field.default == json!([]) => Ok(()),
        Err(why) => Err(mistake(why)),
    }
}

fn check_names(
    condition: &Condition,
    position: Position,
    rules: &StateRules,
    more: &[&str],
) -> Result<(), YamlMistake> {
    condition.used_names().iter().try_for_each(|name| {
        check_name(name, rules, more)
            .map_err(|text| YamlMistake::at_position(position, format!("{:?}: {text}", condition.as_str())))
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

fn read_fields(
    node: &YamlNode,
    tool_names: &[&str],
    placed: &mut PlacedConditions,
) -> Result<BTreeMap<String, StateField>, YamlMistake> {
    let YamlValue::Map(entries) = &node.value else {
        return Err(node.mismatch_error("state", "a map from names to fields"));
    };
    if entries.len() > MAX_FIELDS {
        return Err(YamlMistake::at_position(
            node.position,
            format!("the state has {} fields; the maximum is {MAX_FIELDS}", entries.len()),
        ));
    }
    let mut fields = BTreeMap::new();
    for entry in entries {
        check_field_name(&entry.key, entry.position)?;
        let field = read_field(&entry.node, placed)?;
        if !list_references(&field.schema).is_empty() {
            placed.of_fields.push((entry.key.clone(), entry.position));
        }
        for name in field.operations().map(|operation| state_tool_name(operation, &entry.key)) {
            if tool_names.contains(&name.as_str()) {
                let text = format!(
                    "the field {:?} would have the tool {name:?}, which is another tool; choose another name",
                    entry.key
                );
                return Err(YamlMistake::at_position(entry.position, text));
            }
        }
        fields.insert(entry.key.clone(), field);
    }
    Ok(fields)
}

fn check_field_name(name: &str, position: Position) -> Result<(), YamlMistake> {
    let is_valid = name.len() <= MAX_NAME
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if is_valid {
        return Ok(());
    }
    let text = format!(
        "{name:?} is not a valid name of a field: it begins with a small letter and has small letters, digits and '_', at most \
         {MAX_NAME}"
    );
    Err(YamlMistake::at_position(position, text))
}

fn read_field(node: &YamlNode, placed: &mut PlacedConditions) -> Result<StateField, YamlMistake> {
    let known = ["description", "schema", "default", "access", "policies"];
    let fields = MappingFields::from_node(node, "field of the state", &known)?;
    let text = |name| fields.find_field(name).map(|node| node.parse_text(name).map(str::to_owned));
    let schema = fields.find_field("schema").map(read_schema).transpose()?.unwrap_or_else(|| json!({}));
    let default = fields.find_field("default");
    let value = default.map_or(Value::Null, YamlNode::to_json);
    let is_checked_later = !list_references(&schema).is_empty();
    if !is_checked_later && let Err(mistakes) = check_value_against_schema(&schema, &value) {
        let (position, what) = match default {
            Some(default) => (default.position, "\"default\" does not fit the schema"),
            None => (node.position, "the field needs a \"default\" that fits its schema"),
        };
        return Err(YamlMistake::at_position(position, format!("{what}: {mistakes}")));
    }
    let access = fields.find_field("access").map(|node| {
        let at = node.index_of_choice("access", &ACCESS.map(|(name, _)| name))?;
        Ok::<StateAccess, YamlMistake>(ACCESS[at].1)
    });
    let mut field = StateField {
        description: text("description").transpose()?.unwrap_or_default(),
        schema,
        default: value,
        access: access.transpose()?.unwrap_or_default(),
        policies: Vec::new(),
    };
    if let Some(node) = fields.find_field("policies") {
        for item in node.parse_list("policies", "policies")? {
            let policy = read_policy(item, field.is_list(), placed)?;
            field.policies.push(policy);
        }
    }
    Ok(field)
}

fn read_schema(node: &YamlNode) -> Result<Value, YamlMistake> {
    let schema = match list_references(&node.to_json()).is_empty() {
        true => read_json_schema(node, "schema")?,
        false => {
            let open = without_references(&node.to_json());
            check_json_schema(&open, node.position, "schema")?;
            node.to_json()
        }
    };
    // The schema becomes a part of the schema of a tool.
    if schema.to_string().contains("\"$ref\"") {
        let text = "\"schema\" can't have \"$ref\": write the referenced part in its place";
        return Err(YamlMistake::at_position(node.position, text));
    }
    Ok(schema)
}

fn read_policy_schema(node: &YamlNode) -> Result<Value, YamlMistake> {
    let schema = read_schema(node)?;
    match list_references(&schema).is_empty() {
        true => Ok(schema),
        false => Err(YamlMistake::at_position(
            node.position,
            "a policy's \"schema\" can't refer to the state; use \"deny\", or the schema of the field",
        )),
    }
}

fn read_policy(
    node: &YamlNode,
    is_list: bool,
    placed: &mut PlacedConditions,
) -> Result<StatePolicy, YamlMistake> {
    let known = ["on", "schema", "matches", "min", "max", "deny", "message"];
    let fields = MappingFields::from_node(node, "policy", &known)?;
    let number = |name| fields.find_field(name).map(|node| deserialize_node::<f64>(node, name)).transpose();
    let deny = fields.find_field("deny").map(read_denial).transpose()?;
    let policy = StatePolicy {
        on: read_operations(&fields, is_list)?,
        schema: fields.find_field("schema").map(read_policy_schema).transpose()?,
        matches: fields.find_field("matches").map(read_pattern).transpose()?,
        min: number("min")?,
        max: number("max")?,
        deny: deny.as_ref().map(|(condition, _)| condition.clone()),
        message: fields
            .find_field("message")
            .map(|node| node.parse_text("message").map(str::to_owned))
            .transpose()?,
    };
    placed.of_policies.extend(deny);
    let StatePolicy { schema, matches, min, max, deny, .. } = &policy;
    let has_rule = schema.is_some() || matches.is_some() || min.is_some() || max.is_some() || deny.is_some();
    if !has_rule {
        let text = "this policy has no rule: add \"schema\", \"matches\", \"min\", \"max\" or \"deny\"";
        return Err(YamlMistake::at_position(node.position, text));
    }
    Ok(policy)
}

/// Reads the operations that a policy applies to: by default all that write.
fn read_operations(fields: &MappingFields<'_>, is_list: bool) -> Result<Vec<StateOperation>, YamlMistake> {
    let Some(node) = fields.find_field("on") else {
        return Ok(vec![StateOperation::Set, StateOperation::Append]);
    };
    let names = OPERATIONS.map(|(name, _)| name);
    let list = if let YamlValue::List(items) = &node.value { Some(items) } else { None };
    let items = list.filter(|items| !items.is_empty()).map_or(std::slice::from_ref(node), Vec::as_slice);
    let mut operations = BTreeSet::new();
    for item in items {
        let at = item.index_of_choice("on", &names)?;
        if OPERATIONS[at].1 == StateOperation::Append && !is_list {
            let text = "\"append\" needs a list: the schema of the field has no \"type: array\"";
            return Err(YamlMistake::at_position(item.position, text));
        }
        operations.insert(at);
    }
    Ok(operations.into_iter().map(|at| OPERATIONS[at].1).collect())
}

fn read_denial(node: &YamlNode) -> Result<PlacedCondition, YamlMistake> {
    let text = if let YamlValue::Flag(flag) = &node.value {
        flag.to_string()
    } else {
        node.parse_text("deny")?.to_owned()
    };
    let condition = Condition::parse(&text).map_err(|error| {
        YamlMistake::at_position(node.position, format!("\"deny\" is not a condition: {error}"))
    })?;
    Ok((condition, node.position))
}

fn read_pattern(node: &YamlNode) -> Result<String, YamlMistake> {
    let pattern = node.parse_text("matches")?;
    match regex::Regex::new(pattern) {
        Ok(_) => Ok(pattern.to_owned()),
        Err(error) => {
            let text = format!("\"matches\" is not a valid regular expression: {error}");
            Err(YamlMistake::at_position(node.position, text))
        }
    }
}

fn read_phases(node: &YamlNode, placed: &mut PlacedConditions) -> Result<Vec<PhaseChange>, YamlMistake> {
    let items = node.parse_list("phases", "changes of the phase")?;
    let mut changes: Vec<(PhaseChange, Position)> = Vec::with_capacity(items.len());
    for item in items {
        let fields = MappingFields::from_node(item, "change of the phase", &["from", "to", "when"])?;
        let from = fields.require_field("from")?;
        let (condition, position) = read_condition(fields.require_field("when")?)?;
        placed.of_tools_and_phases.push((condition.clone(), position));
        let change = PhaseChange {
            from: read_phase_name(from, "from")?,
            to: read_phase_name(fields.require_field("to")?, "to")?,
            when: condition,
        };
        changes.push((change, from.position));
    }
    check_reachable(&changes)?;
    Ok(changes.into_iter().map(|(change, _)| change).collect())
}

fn read_phase_name(node: &YamlNode, field: &str) -> Result<String, YamlMistake> {
    let name = node.parse_text(field)?;
    match !name.is_empty() && name.len() <= MAX_NAME && !name.chars().any(char::is_control) {
        true => Ok(name.to_owned()),
        false => Err(node.mismatch_error(field, "the name of a phase, at most 40 characters")),
    }
}

/// Checks that every phase that is left can be entered.
fn check_reachable(changes: &[(PhaseChange, Position)]) -> Result<(), YamlMistake> {
    let first = changes.first().map(|(change, _)| change.from.as_str());
    let entered: BTreeSet<&str> =
        first.into_iter().chain(changes.iter().map(|(change, _)| change.to.as_str())).collect();
    let Some((change, position)) = changes.iter().find(|(change, _)| !entered.contains(change.from.as_str()))
    else {
        return Ok(());
    };
    let hint = did_you_mean_hint(&change.from, entered.iter().copied());
    let text = format!(
        "no change leads to the phase {:?}{hint}; the agent begins in {:?}, which the first change leaves",
        change.from,
        first.unwrap_or_default()
    );
    Err(YamlMistake::at_position(*position, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{AgentSpec, ToolNames};

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
