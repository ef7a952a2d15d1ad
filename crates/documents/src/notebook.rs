//! Text of Jupyter notebooks: a part for each cell, with its text outputs.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{ExtractError, ExtractedText, TextPart};

#[derive(Deserialize)]
struct Notebook {
    #[serde(default)]
    cells: Vec<Cell>,
    /// The cells before version 4 of the format.
    #[serde(default)]
    worksheets: Vec<Worksheet>,
    #[serde(default)]
    metadata: Map<String, Value>,
}

#[derive(Deserialize)]
struct Worksheet {
    #[serde(default)]
    cells: Vec<Cell>,
}

#[derive(Deserialize)]
struct Cell {
    cell_type: String,
    #[serde(default)]
    source: Text,
    /// The source of code cells before version 4.
    #[serde(default)]
    input: Text,
    level: Option<usize>,
    #[serde(default)]
    outputs: Vec<Map<String, Value>>,
}

/// A string, or a list of lines.
#[derive(Default, Deserialize)]
#[serde(untagged)]
enum Text {
    Lines(Vec<String>),
    Whole(String),
    #[default]
    Missing,
}

impl Text {
    fn join(&self) -> String {
        match self {
            Self::Lines(lines) => lines.concat(),
            Self::Whole(text) => text.clone(),
            Self::Missing => String::new(),
        }
    }
}

pub(crate) fn extract_cells(bytes: &[u8]) -> Result<ExtractedText, ExtractError> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let notebook: Notebook = serde_json::from_slice(bytes)
        .map_err(|error| ExtractError::Damaged(format!("it is no notebook: {error}")))?;
    let language = ["/kernelspec/language", "/language_info/name"]
        .iter()
        .find_map(|path| Value::Object(notebook.metadata.clone()).pointer(path)?.as_str().map(str::to_owned));
    let language = language.unwrap_or_default();
    let older = notebook.worksheets.into_iter().flat_map(|sheet| sheet.cells);
    let cells: Vec<Cell> = notebook.cells.into_iter().chain(older).collect();
    let mut parts = Vec::with_capacity(cells.len());
    for (at, cell) in cells.iter().enumerate() {
        parts.push(TextPart { place: Some(format!("cell {}", at + 1)), text: format_cell(cell, &language) });
    }
    let named = notebook.metadata.get("title").and_then(Value::as_str).map(str::to_owned);
    let heading = || {
        let lines = parts.iter().flat_map(|part| part.text.lines());
        lines.filter_map(|line| line.strip_prefix("# ")).next().map(|title| title.trim().to_owned())
    };
    let title = named.or_else(heading).filter(|title| !title.is_empty());
    Ok(ExtractedText { title, parts })
}

fn format_cell(cell: &Cell, language: &str) -> String {
    let source = [&cell.source, &cell.input].map(Text::join).concat();
    let source = source.trim_end();
    match cell.cell_type.as_str() {
        "code" => {
            let mut text = format_listing(source, language);
            for output in &cell.outputs {
                text.push_str(&format_output(output));
            }
            text
        }
        "heading" => format!("{} {source}\n\n", "#".repeat(cell.level.unwrap_or(1).clamp(1, 6))),
        _ => format!("{source}\n\n"),
    }
}

fn format_listing(text: &str, language: &str) -> String {
    match text.is_empty() {
        true => String::new(),
        false => format!("```{language}\n{text}\n```\n\n"),
    }
}

/// Formats an output: printed text, the text of a value, or an error. Pictures are left out.
fn format_output(output: &Map<String, Value>) -> String {
    let text_of = |value: Option<&Value>| -> Option<String> {
        let text: Text = Text::deserialize(value?).ok()?;
        Some(text.join())
    };
    let data = output.get("data").and_then(Value::as_object);
    let richest = data.and_then(|data| {
        let texts = ["text/markdown", "text/plain", "text/latex"];
        texts.iter().find_map(|kind| text_of(data.get(*kind)))
    });
    let traceback = || {
        let (name, value) = (output.get("ename")?.as_str()?, output.get("evalue")?.as_str()?);
        Some(format!("{name}: {value}"))
    };
    let text = richest.or_else(|| text_of(output.get("text"))).or_else(traceback).unwrap_or_default();
    let text = remove_escapes(text.trim_end());
    match text.is_empty() {
        true => String::new(),
        false => format!("Output:\n\n{}", format_listing(&text, "")),
    }
}

/// Removes terminal escape sequences, such as colours.
fn remove_escapes(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut parts = text.split("\u{1b}[");
    kept.push_str(parts.next().unwrap_or_default());
    for part in parts {
        kept.push_str(
            part.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').get(1..).unwrap_or_default(),
        );
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_their_source_and_outputs() {
        let notebook = r##"{"nbformat": 4, "metadata": {"kernelspec": {"language": "python"}}, "cells": [
            {"cell_type": "markdown", "source": ["# Mills\n", "Some *text*"]},
            {"cell_type": "code", "source": "1 + 1", "outputs": [
                {"output_type": "stream", "text": ["\u001b[31mred\u001b[0m\n"]},
                {"output_type": "display_data", "data": {"image/png": "AAAA", "text/plain": "2"}},
                {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []}]}]}"##;
        let document = extract_cells(notebook.as_bytes()).unwrap();
        assert_eq!(document.title.as_deref(), Some("Mills"));
        assert_eq!(document.parts[0].text, "# Mills\nSome *text*\n\n");
        assert_eq!(document.parts[1].place.as_deref(), Some("cell 2"));
        let expected = "```python\n1 + 1\n```\n\nOutput:\n\n```\nred\n```\n\nOutput:\n\n```\n2\n```\n\n\
                        Output:\n\n```\nValueError: no\n```\n\n";
        assert_eq!(document.parts[1].text, expected);
    }

    #[test]
    fn older_notebooks_have_worksheets() {
        let notebook = r#"{"nbformat": 3, "worksheets": [{"cells": [
            {"cell_type": "heading", "level": 2, "source": "A"},
            {"cell_type": "code", "input": "b", "outputs": [{"output_type": "pyout", "text": "c"}]}]}]}"#;
        let parts = extract_cells(notebook.as_bytes()).unwrap().parts;
        assert_eq!(parts[0].text, "## A\n\n");
        assert_eq!(parts[1].text, "```\nb\n```\n\nOutput:\n\n```\nc\n```\n\n");
    }
}
