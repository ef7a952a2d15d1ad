//! The format of `SKILL.md`: YAML front matter between two lines `---`, then the instructions in Markdown. Parsing only.
//!
//! The rules are those of the open Agent Skills specification: `name` is that of the folder and has 1 to 64 small letters, digits and
//! single hyphens; `description` has 1 to 1,024 characters; `compatibility` at most 500; `metadata` is a map; `allowed-tools` is a list
//! of names separated by white space. Unknown fields are ignored, so that newer skills can be read.

use millrace_strict_yaml::{FileDescription, YamlNode, YamlValue};

/// The maximum length of a name, in characters.
const MAX_NAME: usize = 64;
/// The maximum length of a description, in characters.
const MAX_DESCRIPTION: usize = 1_024;
/// The maximum length of the field `compatibility`, in characters.
const MAX_COMPATIBILITY: usize = 500;
/// The maximum size of the front matter, in bytes.
const MAX_FRONT_MATTER: usize = 64 * 1024;
/// The maximum number of tools that a skill lists.
const MAX_TOOLS: usize = 100;

const KIND: FileDescription = FileDescription { name: "skill", holds: "a name and a description" };

/// The fields of a skill that agents use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SkillHeader {
    pub name: String,
    /// On one line.
    pub description: String,
    pub tools: Vec<String>,
}

/// Parses the header of a `SKILL.md` in a folder of this name.
///
/// # Errors
/// The first mistake, with its line in the file if it has one.
pub(super) fn parse_skill_header(bytes: &[u8], folder: &str) -> Result<SkillHeader, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        format!("the byte at position {} is not UTF-8; a skill must be UTF-8 text", error.valid_up_to())
    })?;
    let front_matter = find_front_matter(text.strip_prefix('\u{feff}').unwrap_or(text))?;
    if front_matter.len() > MAX_FRONT_MATTER {
        return Err(format!(
            "the front matter has {} bytes; the maximum is {MAX_FRONT_MATTER}",
            front_matter.len()
        ));
    }
    // The opening line becomes a comment, so that the positions are those of the file.
    let yaml = format!("#\n{front_matter}");
    let root = millrace_strict_yaml::parse_yaml(yaml.as_bytes(), KIND).map_err(|error| error.to_string())?;
    if !matches!(root.value, YamlValue::Map(_)) {
        return Err("the front matter is not a map with a name and a description".into());
    }
    let field = |name: &str| root.child(name);
    let name = parse_required_text(field("name"), "name")?;
    check_name(&name, folder)?;
    let description = parse_required_text(field("description"), "description")?;
    check_length("description", &description, MAX_DESCRIPTION)?;
    let description = description.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some(node) = field("compatibility") {
        check_length("compatibility", &parse_text(node, "compatibility")?, MAX_COMPATIBILITY)?;
    }
    if let Some(node) = field("license") {
        parse_text(node, "license")?;
    }
    if let Some(node) = field("metadata")
        && !matches!(node.value, YamlValue::Map(_) | YamlValue::Nothing)
    {
        return Err(mismatch(node, "metadata", "a map from names to values"));
    }
    let tools = field("allowed-tools").map(parse_tools).transpose()?.unwrap_or_default();
    Ok(SkillHeader { name, description, tools })
}

/// Returns the lines between the first two lines `---`.
fn find_front_matter(text: &str) -> Result<&str, String> {
    let missing =
        || "it does not begin with front matter: a line ---, the fields name and description, a line ---";
    let (first, rest) = text.split_once('\n').ok_or_else(missing)?;
    if first.trim_end() != "---" {
        return Err(missing().into());
    }
    let mut end = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return Ok(&rest[..end]);
        }
        end += line.len();
    }
    Err("the front matter has no end: add a line --- after its fields".into())
}

fn parse_required_text(node: Option<&YamlNode>, name: &str) -> Result<String, String> {
    let node = node.ok_or_else(|| format!("the field {name:?} is missing"))?;
    let text = parse_text(node, name)?;
    if text.is_empty() { Err(format!("the field {name:?} is empty")) } else { Ok(text) }
}

fn mismatch(node: &YamlNode, name: &str, expected: &str) -> String {
    format!("{}: {name:?} {}", node.position, node.mismatch(expected).predicate())
}

/// Reads a text; numbers and truth values are texts here, as in `name: 2024`.
fn parse_text(node: &YamlNode, name: &str) -> Result<String, String> {
    match &node.value {
        YamlValue::Text(text) => Ok(text.trim().to_owned()),
        YamlValue::Flag(flag) => Ok(flag.to_string()),
        YamlValue::Number(number) => Ok(number.to_string()),
        YamlValue::Nothing => Ok(String::new()),
        YamlValue::List(_) | YamlValue::Map(_) => Err(mismatch(node, name, "a text")),
    }
}

fn check_length(name: &str, text: &str, max: usize) -> Result<(), String> {
    match text.chars().count() {
        length if length > max => Err(format!("{name:?} has {length} characters; the maximum is {max}")),
        _ => Ok(()),
    }
}

fn check_name(name: &str, folder: &str) -> Result<(), String> {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_valid = name.chars().count() <= MAX_NAME
        && name.chars().all(is_allowed)
        && name.split('-').all(|part| !part.is_empty());
    let shown: String = name.chars().take(80).collect();
    if !is_valid {
        return Err(format!(
            "{shown:?} is not a valid name: 1 to {MAX_NAME} small letters, digits and single hyphens, with none at the ends"
        ));
    }
    if name != folder {
        return Err(format!("the name {shown:?} is not that of its folder {folder:?}; rename one of them"));
    }
    Ok(())
}

/// Reads the names of tools: separated by white space or commas, or as a list.
fn parse_tools(node: &YamlNode) -> Result<Vec<String>, String> {
    let texts = match &node.value {
        YamlValue::List(items) => {
            items.iter().map(|item| parse_text(item, "allowed-tools")).collect::<Result<Vec<_>, _>>()?
        }
        YamlValue::Text(_)
        | YamlValue::Nothing
        | YamlValue::Flag(_)
        | YamlValue::Number(_)
        | YamlValue::Map(_) => vec![parse_text(node, "allowed-tools")?],
    };
    let mut tools: Vec<String> = Vec::new();
    for tool in texts.iter().flat_map(|text| text.split(|c: char| c.is_whitespace() || c == ',')) {
        if !tool.is_empty() && !tools.iter().any(|known| known == tool) {
            tools.push(tool.to_owned());
        }
    }
    if tools.len() > MAX_TOOLS {
        return Err(format!("\"allowed-tools\" has {} tools; the maximum is {MAX_TOOLS}", tools.len()));
    }
    Ok(tools)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_has_the_fields_of_the_open_format() {
        let text = "\u{feff}---\r\nname: pdf-forms2\r\ndescription: >-\r\n  Fills forms.\r\n  Use it for PDF.\r\n\
                    license: Apache-2.0\r\ncompatibility: Needs python3.\r\nmetadata:\r\n  author: a\r\n  version: 1.0\r\n\
                    allowed-tools: execute Bash(git:*) read_file execute\r\nfuture: [1]\r\n---\r\n# Forms\r\n---\r\n";
        let header = parse_skill_header(text.as_bytes(), "pdf-forms2").unwrap();
        assert_eq!(header.name, "pdf-forms2");
        assert_eq!(header.description, "Fills forms. Use it for PDF.");
        assert_eq!(header.tools, ["execute", "Bash(git:*)", "read_file"]);
        let list = "---\nname: a\ndescription: b\nallowed-tools: [execute, read_file]\n---\n";
        assert_eq!(parse_skill_header(list.as_bytes(), "a").unwrap().tools, ["execute", "read_file"]);
    }

    #[test]
    fn mistakes_are_named() {
        let long = |field: &str, length: usize| format!("{field}: {}", "x".repeat(length));
        let body = |fields: &str| format!("---\n{fields}\n---\nText.\n");
        for (text, expected) in [
            ("# Title\n".into(), "does not begin with front matter"),
            (String::new(), "does not begin with front matter"),
            ("---\nname: a\n".into(), "has no end"),
            (body("- a"), "is not a map"),
            (body("description: b"), "\"name\" is missing"),
            (body("name: a"), "\"description\" is missing"),
            (body("name: a\ndescription: ''"), "\"description\" is empty"),
            (body("name: a\ndescription: [b]"), "3:14: \"description\" must be a text"),
            (body("name: A\ndescription: b"), "\"A\" is not a valid name"),
            (body("name: a--b\ndescription: b"), "\"a--b\" is not a valid name"),
            (body("name: -a\ndescription: b"), "\"-a\" is not a valid name"),
            (body("name: ../a\ndescription: b"), "\"../a\" is not a valid name"),
            (body("name: ä\ndescription: b"), "is not a valid name"),
            (body(&format!("{}\ndescription: b", long("name", 65))), "is not a valid name"),
            (body("name: b\ndescription: b"), "is not that of its folder \"a\""),
            (
                body(&format!("name: a\n{}", long("description", 1_025))),
                "1025 characters; the maximum is 1024",
            ),
            (body(&format!("name: a\ndescription: b\n{}", long("compatibility", 501))), "the maximum is 500"),
            (body("name: a\ndescription: b\nmetadata: c"), "\"metadata\""),
            (body("name: a\nname: a\ndescription: b"), "3:"),
            (body("name: a\ndescription: Use it: now"), "3:"),
        ] {
            let mistake = parse_skill_header(text.as_bytes(), "a").unwrap_err();
            assert!(mistake.contains(expected), "{text:?}: {mistake}");
        }
        assert!(parse_skill_header(b"---\nname: \xff\n---\n", "a").unwrap_err().contains("not UTF-8"));
        let longest = body(&format!("name: a\n{}", long("description", 1_024)));
        assert!(parse_skill_header(longest.as_bytes(), "a").is_ok());
    }
}
