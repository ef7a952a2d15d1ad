//! `edit_file`: replaces one text in a file by another. Finding the text, and the hints when it is missing or not unique,
//! are pure functions.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::result::Artifact;
use schemars::JsonSchema;
use serde::Deserialize;

use super::change::{build_artifact, find_version_of_repeated_call, replace_known_version};
use super::session::{FileSession, KnownFileState, refused_error};
use super::{Call, Effect, FileTool, Tool, ToolError, show};
use crate::files::permissions::FileOperation;
use crate::turn::ArtifactChange;

/// The maximum number of characters quoted back to the model.
const MAX_QUOTED: usize = 200;
/// The maximum number of lines listed for a text that is not unique.
const MAX_LINES: usize = 10;

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "EditArguments")]
#[serde(deny_unknown_fields)]
pub(super) struct EditFileArguments {
    /// The file's path.
    file_path: String,
    /// The text to replace, exactly as in the file, with its spaces and line ends; long enough to occur only once.
    old_string: String,
    /// The new text; it must differ.
    new_string: String,
    /// true to replace every occurrence; otherwise the text must occur exactly once.
    #[serde(default)]
    replace_all: bool,
}

/// `edit_file{file_path, old_string, new_string, replace_all?}`.
pub(super) fn edit_file_tool(session: &Arc<FileSession>) -> Arc<dyn Tool> {
    let description = "Replaces a text in a file of the workspace. The file must have been read before. The text must occur \
                       exactly as given, and only once unless replace_all is true. If someone else has changed the file \
                       since, nothing is changed and you are shown its current content.";
    let tool = FileTool::new("edit_file", description, session, edit_requested_file);
    Arc::new(FileTool {
        effect: Effect::Idempotent,
        operations: &[FileOperation::Read, FileOperation::Write],
        remember: |session, arguments: &EditFileArguments, result, call| {
            session.restore_change(&arguments.file_path, result, call);
            session.restore_known_version(&arguments.file_path, &result.text);
        },
        ..tool
    })
}

fn edit_requested_file<'a>(
    session: &'a FileSession,
    arguments: EditFileArguments,
    call: &'a Call,
) -> BoxFuture<'a, Result<String, ToolError>> {
    async move {
        let path =
            session.parse_permitted_path(&arguments.file_path, FileOperation::Write, call.is_approved)?;
        session.parse_permitted_path(&arguments.file_path, FileOperation::Read, call.is_approved)?;
        validate_arguments(&arguments)?;
        session.claim_path_for_call(&path, call)?;
        let current = session.files.read(&path).await.map_err(super::session::convert_files_error)?;
        let state = session.known_state(&path);
        let Some(content) =
            current.filter(|content| state == Some(KnownFileState::Version(content.entry.version)))
        else {
            return edit_unknown_version(session, &arguments, call).await;
        };
        let Some(text) = show::decode_text(&content.bytes) else {
            return Err(refused_error(format!(
                "Error: {}; it can't be edited as text",
                show::describe_binary_file(&content)
            )));
        };
        let Replacement { text, count } =
            replace_text(text, &arguments).map_err(|mistake| refused_error(format!("Error: {mistake}")))?;
        let version = replace_known_version(session, &path, text.into_bytes(), call).await?;
        Ok(format!("Successfully replaced {count} instance(s) of the string in '{path}' (version {version})"))
    }
    .boxed()
}

/// Handles an edit of a version that the agent does not know: the edit was made already, there is no such file, or someone
/// else has changed it.
async fn edit_unknown_version(
    session: &FileSession,
    arguments: &EditFileArguments,
    call: &Call,
) -> Result<String, ToolError> {
    let path = session.parse_permitted_path(&arguments.file_path, FileOperation::Write, call.is_approved)?;
    if let Some(version) = find_version_of_repeated_call(session, &path, call).await? {
        let current = session.files.read(&path).await.map_err(super::session::convert_files_error)?;
        if let Some(content) = current.filter(|content| content.entry.version == version) {
            let artifact = Artifact { version, ..build_artifact(&path, &content.bytes) };
            session.add_artifact(&call.key, ArtifactChange::Written(artifact));
        }
        return Ok(format!("Successfully replaced the string in '{path}' (version {version})"));
    }
    match session.files.read(&path).await.map_err(super::session::convert_files_error)? {
        None if matches!(session.known_state(&path), Some(KnownFileState::Version(_))) => {
            Err(session.stale_version_error(&path, None))
        }
        None => Err(session.not_found_error(&path).await),
        Some(content) => Err(session.stale_version_error(&path, Some(&content))),
    }
}

fn validate_arguments(arguments: &EditFileArguments) -> Result<(), ToolError> {
    if arguments.old_string.is_empty() {
        return Err(refused_error(
            "Error: old_string is empty. To create or replace a whole file, use write_file; to insert a text, use the text \
             next to it as old_string and repeat it in new_string",
        ));
    }
    if arguments.old_string == arguments.new_string {
        return Err(refused_error("Error: old_string and new_string are the same; nothing would change"));
    }
    Ok(())
}

/// A text after a replacement, with the number of replacements.
#[derive(Debug, PartialEq, Eq)]
struct Replacement {
    text: String,
    count: usize,
}

/// Replaces the text, or returns the mistake.
fn replace_text(text: &str, arguments: &EditFileArguments) -> Result<Replacement, String> {
    let EditFileArguments { old_string: old, new_string: new, replace_all, .. } = arguments;
    let positions = find_positions(text, old);
    if positions.is_empty() && text.contains("\r\n") && old.contains('\n') && !old.contains('\r') {
        // The file has CRLF line ends and the call has not: keep those of the file.
        let dos = |text: &str| text.replace("\r\n", "\n").replace('\n', "\r\n");
        let arguments = EditFileArguments {
            file_path: String::new(),
            old_string: dos(old),
            new_string: dos(new),
            replace_all: *replace_all,
        };
        return replace_text(text, &arguments);
    }
    match positions.as_slice() {
        [] => Err(explain_missing_text(text, old)),
        [_] => Ok(Replacement { text: text.replacen(old.as_str(), new, 1), count: 1 }),
        _ if *replace_all => Ok(Replacement {
            text: text.replace(old.as_str(), new),
            count: text.matches(old.as_str()).count(),
        }),
        several => Err(format!(
            "String '{}' appears {} times in file ({}). Use replace_all=true to replace all instances, or provide a more \
             specific string with surrounding context.",
            escape_to_single_line(old),
            several.len(),
            format_line_numbers(text, several),
        )),
    }
}

/// The positions of a text in another, including overlaps.
fn find_positions(text: &str, wanted: &str) -> Vec<usize> {
    let mut positions = Vec::new();
    let mut from = 0;
    while let Some(at) = text[from..].find(wanted) {
        positions.push(from + at);
        from += at + text[from + at..].chars().next().map_or(1, char::len_utf8);
    }
    positions
}

fn format_line_numbers(text: &str, places: &[usize]) -> String {
    let line = |at: &usize| (text[..*at].matches('\n').count() + 1).to_string();
    let named: Vec<String> = places.iter().take(MAX_LINES).map(line).collect();
    let more = if places.len() > MAX_LINES { " …" } else { "" };
    format!("beginning in lines {}{more}", named.join(", "))
}

/// The error for a missing text, with the most likely mistake.
fn explain_missing_text(text: &str, old: &str) -> String {
    let hint = hint_at_final_newline(text, old)
        .or_else(|| hint_at_different_whitespace(text, old))
        .or_else(|| hint_at_different_case(text, old))
        .or_else(|| hint_at_similar_line(text, old))
        .unwrap_or_else(|| "read_file shows the exact text".to_owned());
    format!("String not found in file: '{}'. {hint}", escape_to_single_line(old))
}

fn hint_at_final_newline(text: &str, old: &str) -> Option<String> {
    let without = old.trim_end_matches(['\n', '\r']);
    let fits = without.len() < old.len() && !without.is_empty() && text.ends_with(without);
    fits.then(|| {
        "It ends with a line end, but the file does not: the text is at the end of the file, without one. Remove the last \
         line end of old_string"
            .to_owned()
    })
}

/// Finds the text with different spaces, tabs or line ends.
fn hint_at_different_whitespace(text: &str, old: &str) -> Option<String> {
    let wanted: Vec<&str> = old.split_whitespace().collect();
    let lines: Vec<&str> = text.lines().collect();
    let height = old.trim().lines().count();
    if wanted.is_empty() {
        return None;
    }
    let at = (0..lines.len()).find(|&at| {
        let window = &lines[at..(at + height).min(lines.len())];
        let words: Vec<&str> = window.iter().flat_map(|line| line.split_whitespace()).collect();
        words.windows(wanted.len()).any(|some| some == wanted)
    })?;
    let there = lines[at..(at + height).min(lines.len())].join("\n");
    Some(format!(
        "From line {} on it is there with different spaces or line ends:\n{}",
        at + 1,
        quote_text(&there)
    ))
}

fn hint_at_different_case(text: &str, old: &str) -> Option<String> {
    let (folded, wanted) = (text.to_lowercase(), old.to_lowercase());
    let at = folded.find(&wanted)?;
    Some(format!("In line {} it is there with different case", folded[..at].matches('\n').count() + 1))
}

/// Finds the line most similar to the first line of the wanted text.
fn hint_at_similar_line(text: &str, old: &str) -> Option<String> {
    let wanted = old.lines().map(str::trim).find(|line| !line.is_empty())?;
    let likeness = |line: &str| strsim::normalized_levenshtein(line.trim(), wanted);
    let cut = |line: &str| line.chars().take(MAX_QUOTED).collect::<String>();
    let near = text.lines().take(5_000).enumerate().map(|(at, line)| (likeness(&cut(line)), at, line));
    let (best, at, line) = near.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best >= 0.6).then(|| format!("The most similar line is {}: '{}'", at + 1, quote_text(line)))
}

/// Quotes a text on one line, so that text from a model can't pass for a line of the result.
fn escape_to_single_line(text: &str) -> String {
    quote_text(text).replace('\r', "\\r").replace('\n', "\\n")
}

fn quote_text(text: &str) -> String {
    let cut: String = text.chars().take(MAX_QUOTED).collect();
    if cut.len() < text.len() { cut + "…" } else { cut }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replace_in_sample(
        text: &str,
        old: &str,
        new: &str,
        replace_all: bool,
    ) -> Result<(String, usize), String> {
        let arguments = EditFileArguments {
            file_path: "/x".into(),
            old_string: old.into(),
            new_string: new.into(),
            replace_all,
        };
        replace_text(text, &arguments).map(|Replacement { text, count }| (text, count))
    }

    #[test]
    fn a_text_that_occurs_once_is_replaced() {
        let done = |text: &str, count| Ok((text.to_owned(), count));
        assert_eq!(replace_in_sample("a b c", "b", "x", false), done("a x c", 1));
        assert_eq!(replace_in_sample("a b b", "b", "x", true), done("a x x", 2));
        assert_eq!(replace_in_sample("aaa", "aa", "x", true), done("xa", 1));
        assert_eq!(replace_in_sample("one\r\ntwo\r\n", "one\ntwo", "1\n2", false), done("1\r\n2\r\n", 1));
        assert_eq!(replace_in_sample("äöü", "ö", "", false), done("äü", 1));
    }

    #[test]
    fn a_missing_or_repeated_text_is_refused_with_a_hint() {
        for (text, old, hint) in [
            (
                "x\nx",
                "x",
                "String 'x' appears 2 times in file (beginning in lines 1, 2). Use replace_all=true",
            ),
            ("aaa", "aa", "String 'aa' appears 2 times in file"),
            ("abc", "zz", "String not found in file: 'zz'. read_file shows"),
            ("one\ntwo", "two\n", "Remove the last line end of old_string"),
            (
                "fn a() {\n    b();\n}\n",
                "fn a() {\n\tb();\n}",
                "From line 1 on it is there with different spaces",
            ),
            ("Hello World", "hello world", "In line 1 it is there with different case"),
            (
                "alpha\nThe quick brown fox\n",
                "The quick brawn fox",
                "The most similar line is 2: 'The quick brown fox'",
            ),
        ] {
            let mistake = replace_in_sample(text, old, "new", false).unwrap_err();
            assert!(mistake.contains(hint), "{mistake}");
        }
    }
}
