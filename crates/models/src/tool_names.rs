//! Names of tools: the form that servers accept, and the tool that a model means. Models write prefixes and special tokens of their
//! training, white space, other marks and another case.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

/// The maximum length of a tool's name at all providers.
const MAX_LENGTH: usize = 64;
/// The name-spaces in which models were trained to call tools.
const PREFIXES: [&str; 10] = [
    "functions",
    "function",
    "tools",
    "tool",
    "default_api",
    "namespace",
    "multi_tool_use",
    "api",
    "commentary",
    "to=functions",
];

/// The tool that a model means by a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedTool<'a> {
    One(&'a str),
    /// It could be each of these, which differ only in case or marks.
    Several(Vec<&'a str>),
    None,
}

/// Returns the tool that a model means by a name. The exact name precedes any other reading.
pub fn resolve_tool_name<'a>(written: &str, tools: &[&'a str]) -> NamedTool<'a> {
    if let Some(exact) = tools.iter().find(|tool| **tool == written) {
        return NamedTool::One(exact);
    }
    let candidates = readings(written);
    let accepted = |tool: &&&str| candidates.iter().any(|name| *accepted_tool_name(tool) == **name);
    if let Some(exact) = candidates.iter().find_map(|name| tools.iter().find(|tool| *tool == name)) {
        return NamedTool::One(exact);
    }
    if let NamedTool::One(tool) = only(tools.iter().filter(accepted).copied()) {
        return NamedTool::One(tool);
    }
    for fold in [fold_case_and_marks, fold_to_letters] {
        for name in &candidates {
            let folded = fold(name);
            match only(tools.iter().copied().filter(|tool| !folded.is_empty() && fold(tool) == folded)) {
                NamedTool::None => {}
                named @ (NamedTool::One(_) | NamedTool::Several(_)) => return named,
            }
        }
    }
    NamedTool::None
}

/// Returns the tool that a model means, or the name as it wrote it.
pub(crate) fn tool_name_or_written(written: &str, tools: &[&str]) -> String {
    match resolve_tool_name(written, tools) {
        NamedTool::One(tool) => tool.to_owned(),
        NamedTool::Several(_) | NamedTool::None => written.to_owned(),
    }
}

/// Returns a name that all servers accept: the name itself, or one made from it that differs from those made from other names.
pub fn accepted_tool_name(name: &str) -> Cow<'_, str> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() {
        return "unknown".into();
    }
    if name.len() <= MAX_LENGTH && name.chars().all(is_allowed) {
        return name.into();
    }
    let digest = data_encoding::HEXLOWER.encode(&Sha256::digest(name)[..4]);
    let clean = name.chars().map(|c| if is_allowed(c) { c } else { '_' });
    let start: String = clean.take(MAX_LENGTH - digest.len() - 1).collect();
    format!("{start}_{digest}").into()
}

fn only<'a>(mut tools: impl Iterator<Item = &'a str>) -> NamedTool<'a> {
    match (tools.next(), tools.next()) {
        (None, _) => NamedTool::None,
        (Some(one), None) => NamedTool::One(one),
        (Some(one), Some(other)) => NamedTool::Several([one, other].into_iter().chain(tools).collect()),
    }
}

/// Returns the possible readings of a name: without special tokens, white space and quotes, then without prefixes and
/// the number of the call.
fn readings(written: &str) -> Vec<String> {
    let mut readings: Vec<String> = Vec::new();
    let mut add = |name: &str| {
        let name =
            name.trim_matches(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '.' | ':' | '/'));
        let name = name.strip_suffix("()").unwrap_or(name);
        if !name.is_empty() && readings.iter().all(|reading| reading != name) {
            readings.push(name.to_owned());
        }
    };
    for piece in outside_special_tokens(written) {
        let piece = piece.rsplit_once("to=").map_or(piece, |(_, to)| to);
        add(piece);
        let mut name = piece.trim();
        while let Some(rest) = without_prefix(name) {
            name = rest;
            add(name);
        }
        // Kimi's models number their calls: `functions.read:0`.
        if let Some((before, number)) = name.rsplit_once(':')
            && number.trim().bytes().all(|byte| byte.is_ascii_digit())
        {
            add(before);
        }
        // Remarks after a name.
        if let Some(word) = name.split_whitespace().next() {
            add(word);
        }
    }
    readings
}

/// Returns the parts of a text between special tokens such as `<|channel|>`.
fn outside_special_tokens(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("<|") {
        parts.push(before);
        rest = after.split_once("|>").map_or("", |(_, after)| after);
    }
    parts.push(rest);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

fn without_prefix(name: &str) -> Option<&str> {
    let (prefix, rest) = name.split_once(['.', ':', '/'])?;
    let prefix = prefix.trim().to_ascii_lowercase();
    PREFIXES.contains(&prefix.as_str()).then_some(rest.trim()).filter(|rest| !rest.is_empty())
}

fn fold_case_and_marks(name: &str) -> String {
    let mark = |c: char| if c.is_alphanumeric() { c } else { '_' };
    name.chars().map(mark).flat_map(char::to_lowercase).collect()
}

fn fold_to_letters(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOLS: [&str; 6] =
        ["write_file", "read-file", "Read_File", "files__list.all", "to", "functions.odd"];

    #[test]
    fn a_name_is_read_as_models_write_it() {
        for (written, tool) in [
            ("write_file", "write_file"),
            ("functions.write_file", "write_file"),
            ("function:write_file", "write_file"),
            ("default_api.write_file", "write_file"),
            (" write_file \n", "write_file"),
            ("`write_file`", "write_file"),
            ("write_file()", "write_file"),
            ("Write_File", "write_file"),
            ("write-file", "write_file"),
            ("write.file", "write_file"),
            ("writeFile", "write_file"),
            ("write_file<|channel|>commentary", "write_file"),
            ("write_file<|channel|>analysis", "write_file"),
            ("<|channel|>commentary to=functions.write_file<|constrain|>json", "write_file"),
            ("<|start|>functions.write_file", "write_file"),
            ("functions.write_file:0", "write_file"),
            ("write_file json", "write_file"),
            ("read-file", "read-file"),
            ("Read_File", "Read_File"),
            ("functions.read-file", "read-file"),
            ("functions.odd", "functions.odd"),
            ("files__list_all", "files__list.all"),
        ] {
            assert_eq!(resolve_tool_name(written, &TOOLS), NamedTool::One(tool), "{written:?}");
        }
    }

    #[test]
    fn a_name_that_could_be_two_tools_is_none_of_them() {
        assert_eq!(
            resolve_tool_name("READ.FILE", &TOOLS),
            NamedTool::Several(vec!["read-file", "Read_File"])
        );
        for unknown in ["", "<|channel|>", "assistant<|channel|>analysis", "write", "functions."] {
            assert_eq!(resolve_tool_name(unknown, &TOOLS), NamedTool::None, "{unknown:?}");
        }
    }

    #[test]
    fn accepted_names_come_back_as_the_tools_that_they_stand_for() {
        let long = "x".repeat(70);
        let tools = ["a.b", "a/b", "a b", "ok-1", &long, "ä"];
        for tool in tools {
            let accepted = accepted_tool_name(tool);
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            assert!(accepted.len() <= 64 && accepted.chars().all(is_allowed), "{accepted}");
            assert_eq!(resolve_tool_name(&accepted, &tools), NamedTool::One(tool), "{accepted}");
        }
        assert_eq!(accepted_tool_name("ok-1"), "ok-1");
    }
}
