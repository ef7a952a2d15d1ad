//! The field `tools` of an agent: names of tools, each perhaps with settings and a condition.

use millrace_strict_yaml::{
    MistakeCollector, Position, ValueMistake, YamlMistake, YamlNode, YamlValue, did_you_mean_hint,
};
use serde::Deserialize;

use crate::state::Condition;

/// The tools that a file may name.
pub trait ToolNames {
    /// All names.
    fn names(&self) -> Vec<&str>;

    /// `true` if the tool of this name takes settings.
    fn has_settings(&self, name: &str) -> bool;
}

/// A tool of an agent.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "ToolNode")]
pub struct ToolReference {
    /// Its name.
    pub name: String,
    /// Its position in the file.
    pub position: Position,
    /// Its settings, if the file has any.
    pub settings: Option<YamlNode>,
    /// The condition under which it is available.
    pub when: Option<Condition>,
}

impl ToolReference {
    /// A tool without settings.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let position = Position { line: 1, column: 1 };
        Self { name: name.to_owned(), position, settings: None, when: None }
    }
}

#[derive(Deserialize)]
#[serde(rename = "tool")]
struct ToolNode(YamlNode);

impl TryFrom<ToolNode> for ToolReference {
    type Error = ValueMistake;

    fn try_from(ToolNode(node): ToolNode) -> Result<Self, ValueMistake> {
        let expected = "the name of a tool, or a map from its name to its settings";
        let (name, position, mut settings) = match node.value {
            YamlValue::Text(name) => return Ok(Self { position: node.position, ..Self::named(&name) }),
            YamlValue::Map(ref entries) if entries.len() == 1 => {
                (entries[0].key.clone(), entries[0].position, entries[0].node.clone())
            }
            YamlValue::Nothing
            | YamlValue::Flag(_)
            | YamlValue::Number(_)
            | YamlValue::List(_)
            | YamlValue::Map(_) => return Err(node.mismatch(expected)),
        };
        let mut when = None;
        if let YamlValue::Map(entries) = &mut settings.value
            && let Some(at) = entries.iter().position(|entry| entry.key == "when")
        {
            let node = entries.remove(at).node;
            let mistake = |why: String| ValueMistake::at(format!("{name}/when"), format!("\"when\" {why}"));
            let text = node.as_text().ok_or_else(|| mistake(node.mismatch("text").predicate()))?;
            let condition = Condition::parse(text);
            let condition = condition.map_err(|error| mistake(format!("is not a condition: {error}")))?;
            when = Some(condition);
        }
        let is_only_condition =
            when.is_some() && matches!(&settings.value, YamlValue::Map(entries) if entries.is_empty());
        Ok(Self { name, position, settings: (!is_only_condition).then_some(settings), when })
    }
}

/// Checks that the tools exist, that each is named once, and that those with settings take some.
pub(super) fn check_tools(tools: &[ToolReference], names: &dyn ToolNames, mistakes: &mut MistakeCollector) {
    let all = names.names();
    for (at, tool) in tools.iter().enumerate() {
        let name = &tool.name;
        let text = if !all.contains(&name.as_str()) {
            unknown_tool(name, &all, std::iter::empty())
        } else if tools[..at].iter().any(|earlier| earlier.name == *name) {
            format!("the tool {name:?} is listed twice")
        } else if tool.settings.is_some() && !names.has_settings(name) {
            format!("the tool {name:?} takes no settings but \"when\"; write only its name")
        } else {
            continue;
        };
        mistakes.add(YamlMistake::at_position(tool.position, text));
    }
}

/// The mistake that there is no tool of this name; `more` are patterns of other names that are allowed.
pub(super) fn unknown_tool(name: &str, names: &[&str], more: impl Iterator<Item = String>) -> String {
    let hint = did_you_mean_hint(name, names.iter().copied());
    let all: Vec<String> = names.iter().map(|&name| name.to_owned()).chain(more).collect();
    format!("there is no tool {name:?}{hint}; the tools are {}", all.join(", "))
}
