//! Reads claim files: in each line a claim with its evidence, and a label that tells if the evidence supports it.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::file::EntryName;
use super::reading::{ItemOrigin, file_names, json_message, name_in_file, read_input_text};
use crate::exit::CommandError;

const CONTENT: &str =
    "in each line an object with \"claim\", \"evidence\" (a text or a list of texts) and \"label\"";
const LABELS: &str = "\"supported\", \"partially_supported\", \"not_supported\", true or false";

/// A claim with its evidence.
#[derive(Debug, Clone)]
pub struct Claim {
    pub id: EntryName,
    pub text: String,
    /// The lines of its only document.
    pub evidence: Vec<String>,
    pub label: ClaimLabel,
    pub origin: ItemOrigin,
}

/// The label of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClaimLabel {
    /// The evidence supports it.
    Supported,
    /// The evidence supports a part of it.
    PartiallySupported,
    /// The evidence does not support it.
    NotSupported,
}

impl ClaimLabel {
    /// All labels.
    pub const ALL: [Self; 3] = [Self::Supported, Self::PartiallySupported, Self::NotSupported];

    /// Its name for a person.
    pub fn name(self) -> &'static str {
        match self {
            Self::Supported => "supported",
            Self::PartiallySupported => "supported in part",
            Self::NotSupported => "not supported",
        }
    }

    fn read(value: &Value) -> Option<Self> {
        let text = match value {
            Value::Bool(true) => return Some(Self::Supported),
            Value::Bool(false) => return Some(Self::NotSupported),
            Value::String(text) => text.trim().to_lowercase().replace([' ', '-'], "_"),
            Value::Null | Value::Number(_) | Value::Array(_) | Value::Object(_) => return None,
        };
        Some(match text.as_str() {
            "supported" => Self::Supported,
            "partially_supported" | "partly_supported" | "supported_in_part" | "partially" | "partly" => {
                Self::PartiallySupported
            }
            "not_supported" | "unsupported" => Self::NotSupported,
            _ => return None,
        })
    }
}

#[derive(Deserialize)]
struct ClaimLine {
    claim: String,
    evidence: EvidenceForm,
    label: Value,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "\"evidence\" must be a text or a list of texts")]
enum EvidenceForm {
    Text(String),
    List(Vec<String>),
}

/// Reads claim files.
pub fn load_claims(paths: &[PathBuf]) -> Result<Vec<Claim>, CommandError> {
    let mut claims = Vec::new();
    for (path, file) in paths.iter().zip(file_names(paths)) {
        let text = read_input_text(path, CONTENT)?;
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            claims.push(read_claim(line, at + 1, &file, path)?);
        }
    }
    Ok(claims)
}

fn read_claim(line: &str, number: usize, file: &str, path: &Path) -> Result<Claim, CommandError> {
    let refuse = |why: &str| refused!("{}:{number}: {why}", path.display());
    let ClaimLine { claim, evidence, label } = serde_json::from_str(line)
        .map_err(|error| refuse(&format!("{}; a claim file has {CONTENT}", json_message(&error))))?;
    let known = ClaimLabel::read(&label)
        .ok_or_else(|| refuse(&format!("the label {label} is unknown; a label is one of {LABELS}")))?;
    let lines = match evidence {
        EvidenceForm::Text(text) => text.lines().map(str::to_owned).collect(),
        EvidenceForm::List(lines) => lines,
    };
    let one_line = |text: &String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let evidence: Vec<String> = lines.iter().map(one_line).filter(|line| !line.is_empty()).collect();
    if claim.trim().is_empty() {
        return Err(refuse("\"claim\" is empty; give a sentence, or remove the line"));
    }
    if evidence.is_empty() {
        return Err(refuse("\"evidence\" is empty; give the lines that the claim is compared with"));
    }
    let id = format!("line-{number}");
    Ok(Claim {
        id: EntryName::from_any_text(&name_in_file(file, '.', &id)),
        text: one_line(&claim),
        evidence,
        label: known,
        origin: ItemOrigin { file: file.to_owned(), id },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Vec<Claim>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.jsonl");
        std::fs::write(&path, text).unwrap();
        let prefix = format!("{}/", folder.path().display());
        load_claims(&[path]).map_err(|error| error.error.to_string().replace(&prefix, ""))
    }

    #[test]
    fn labels_have_several_spellings() {
        for (label, expected) in [
            ("\"supported\"", ClaimLabel::Supported),
            ("true", ClaimLabel::Supported),
            ("\"Partially supported\"", ClaimLabel::PartiallySupported),
            ("\"partly\"", ClaimLabel::PartiallySupported),
            ("\"NOT_SUPPORTED\"", ClaimLabel::NotSupported),
            ("false", ClaimLabel::NotSupported),
        ] {
            let line = format!(
                "{{\"claim\": \"A\\nb.\", \"evidence\": [\"x\\ny\", \" \"], \"label\": {label}, \"meta\": 1}}"
            );
            let claims = load(&line).unwrap();
            assert_eq!(claims[0].label, expected, "{label}");
            assert_eq!(
                (claims[0].text.as_str(), claims[0].evidence.as_slice()),
                ("A b.", &["x y".to_owned()][..])
            );
        }
    }

    #[test]
    fn mistakes_name_the_file_the_line_and_the_remedy() {
        let good = r#"{"claim": "The mill is old.", "evidence": "It was built in 1811.\nIt stands.", "label": true}"#;
        assert_eq!(load(good).unwrap()[0].evidence.len(), 2);
        for (bad, expected) in [
            ("{", "c.jsonl:3: EOF while parsing an object; a claim file has in each line"),
            (r#"{"claim": "a", "evidence": "b"}"#, "c.jsonl:3: missing field `label`"),
            (
                r#"{"claim": "a", "evidence": 1, "label": true}"#,
                "c.jsonl:3: \"evidence\" must be a text or a list",
            ),
            (r#"{"claim": "a", "evidence": [], "label": true}"#, "c.jsonl:3: \"evidence\" is empty"),
            (r#"{"claim": " ", "evidence": "b", "label": true}"#, "c.jsonl:3: \"claim\" is empty"),
            (
                r#"{"claim": "a", "evidence": "b", "label": "maybe"}"#,
                "c.jsonl:3: the label \"maybe\" is unknown; a label is one of",
            ),
            (r#"{"claim": "a", "evidence": "b", "label": 2}"#, "c.jsonl:3: the label 2 is unknown"),
        ] {
            let error = load(&format!("{good}\n\n{bad}\n")).map(drop).unwrap_err();
            assert!(error.starts_with(expected), "expected {expected}\nactual   {error}");
        }
        assert!(load("\n").map(drop).unwrap_err().contains("is empty; it should have in each line"));
    }
}
