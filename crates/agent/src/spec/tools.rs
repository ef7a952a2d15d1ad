//! The field `tools` of an agent: names of tools, each perhaps with settings and a condition.

use std::collections::BTreeMap;

use millrace_strict_yaml::{YamlMistake, YamlNode, YamlValue, did_you_mean_hint};

use super::state::{self, PlacedCondition};
use super::{ToolNames, ToolReference};

/// The tools of an agent, and the conditions under which some of them are available.
type ListedTools = (Vec<ToolReference>, BTreeMap<String, PlacedCondition>);

/// Reads the tools.
///
/// # Errors
/// The first mistake.
pub(super) fn read_tools(node: &YamlNode, tool_names: &dyn ToolNames) -> Result<ListedTools, YamlMistake> {
    let (mut entries, mut conditions) = (Vec::<ToolReference>::new(), BTreeMap::new());
    for item in node.parse_list("tools", "tools")? {
        let (entry, condition) = read_tool(item, tool_names)?;
        if let Some(condition) = condition {
            conditions.insert(entry.name.clone(), condition);
        }
        if entries.iter().any(|earlier| earlier.name == entry.name) {
            return Err(YamlMistake::at_position(
                entry.position,
                format!("the tool {:?} is listed twice", entry.name),
            ));
        }
        entries.push(entry);
    }
    Ok((entries, conditions))
}

/// Takes the condition `when` out of the settings of a tool.
fn take_condition(settings: YamlNode) -> Result<(Option<YamlNode>, Option<PlacedCondition>), YamlMistake> {
    let YamlValue::Map(mut entries) = settings.value else { return Ok((Some(settings), None)) };
    let Some(at) = entries.iter().position(|entry| entry.key == "when") else {
        return Ok((Some(YamlNode { value: YamlValue::Map(entries), ..settings }), None));
    };
    let condition = state::read_condition(&entries.remove(at).node)?;
    let rest = YamlNode { value: YamlValue::Map(entries), ..settings };
    let is_empty = matches!(&rest.value, YamlValue::Map(entries) if entries.is_empty());
    Ok(((!is_empty).then_some(rest), Some(condition)))
}

fn read_tool(
    item: &YamlNode,
    tool_names: &dyn ToolNames,
) -> Result<(ToolReference, Option<PlacedCondition>), YamlMistake> {
    let (name, position, settings) = match &item.value {
        YamlValue::Text(name) => (name, item.position, None),
        YamlValue::Map(entries) if entries.len() == 1 => {
            (&entries[0].key, entries[0].position, Some(entries[0].node.clone()))
        }
        YamlValue::Nothing
        | YamlValue::Flag(_)
        | YamlValue::Number(_)
        | YamlValue::List(_)
        | YamlValue::Map(_) => {
            return Err(
                item.mismatch_error("tools", "the name of a tool, or a map from its name to its settings")
            );
        }
    };
    let names = tool_names.names();
    if !names.contains(&name.as_str()) {
        let hint = did_you_mean_hint(name, names.iter().copied());
        let text = format!("there is no tool {name:?}{hint}; the tools are {}", names.join(", "));
        return Err(YamlMistake::at_position(position, text));
    }
    let (settings, condition) = settings.map(take_condition).transpose()?.unwrap_or_default();
    match settings {
        Some(_) if !tool_names.has_settings(name) => Err(YamlMistake::at_position(
            position,
            format!("the tool {name:?} takes no settings but \"when\"; write only its name"),
        )),
        settings => Ok((ToolReference { name: name.clone(), position, settings }, condition)),
    }
}
