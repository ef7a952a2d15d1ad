//! `edit_file`: replaces one text in a file by another. Finding the text, and the hints when it is missing or not unique,
//! are pure functions.

use std::borrow::Cow;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::result::Artifact;
use schemars::JsonSchema;
use serde::Deserialize;

use super::change::{build_artifact, find_version_of_repeated_call, replace_known_version};

use super::session::{FileSession, KnownFileState, refused_error};

use super::similar_text::{SimilarText, find_similar_text, name_hidden_difference};

use super::{Call, Effect, FileTool, Tool, ToolError, session};

use crate::files::FileContent;
use crate::files::permissions::FileOperation;
use crate::turn::ArtifactChange;

/// The maximum number of characters quoted back to the model.
const MAX_QUOTED: usize = 200;
/// The maximum size of a file that is searched for a text with other characters, in bytes.
const MAX_COMPARED: usize = 8 << 20;
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
        if let Some(content) =
            current.as_ref().filter(|content| session::decode_text(&content.bytes).is_none())
        {
            return Err(refused_error(format!(
                "Error: {}; it can't be edited as text",
                session::describe_binary_file(content)
            )));
        }
        let state = session.known_state(&path);
        let known = |content: &&FileContent| state == Some(KnownFileState::Version(content.entry.version));
        let Some(text) =
            current.as_ref().filter(known).and_then(|content| session::decode_text(&content.bytes))
        else {
            return edit_unknown_version(session, &arguments, call).await;
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

/// Replaces the text, or returns the mistake. The line ends of the file are kept, whichever the call has.
fn replace_text(text: &str, arguments: &EditFileArguments) -> Result<Replacement, String> {
    let EditFileArguments { old_string, new_string: new, replace_all, .. } = arguments;
    let old = fit_line_ends(text, old_string);
    let positions = find_positions(text, &old);
    match positions.as_slice() {
        [] => Err(explain_missing_text(text, old_string)),
        [_] => Ok(replace_at(&positions, text, &old, new)),
        _ if *replace_all => Ok(replace_at(&positions, text, &old, new)),
        several => Err(format!(
            "String '{}' appears {} times in file ({}). Use replace_all=true to replace all instances, or provide a more \
             specific string with surrounding context.",
            escape_to_single_line(&old),
            several.len(),
            format_line_numbers(text, several),
        )),
    }
}

/// Returns the text to replace; with the line ends of the file if it only occurs with these.
fn fit_line_ends<'a>(text: &str, old: &'a str) -> Cow<'a, str> {
    if !old.contains(LINE_ENDS) || occurs_whole(text, old) {
        return Cow::Borrowed(old);
    }
    let fits = |fitted: &String| occurs_whole(text, fitted);
    let fitted = ["\r\n", "\n", "\r"].map(|line_end| convert_line_ends(old, line_end)).into_iter().find(fits);
    fitted.map_or(Cow::Borrowed(old), Cow::Owned)
}

/// Replaces the text at these positions; of those that overlap, the first.
fn replace_at(positions: &[usize], text: &str, old: &str, new: &str) -> Replacement {
    // An edit that only changes line ends, or a half of one, keeps those of the call.
    let has_half_line_end = text.contains('\n') && old.replace("\r\n", "").contains('\r');
    let keeps_line_ends = new.contains(LINE_ENDS)
        && !has_half_line_end
        && convert_line_ends(old, "\n") != convert_line_ends(new, "\n");
    let (mut replaced, mut count, mut end) = (String::with_capacity(text.len()), 0, 0);
    let mut line_end = None;
    for at in positions.iter().copied() {
        if at < end {
            continue;
        }
        replaced.push_str(&text[end..at]);
        if keeps_line_ends {
            let near = line_end.filter(|near: &LineEnd| at <= near.place).or_else(|| LineEnd::near(text, at));
            line_end = near;
            replaced.push_str(&near.map_or(new.into(), |near| convert_line_ends(new, near.characters)));
        } else {
            replaced.push_str(new);
        }
        (count, end) = (count + 1, at + old.len());
    }
    replaced.push_str(&text[end..]);
    Replacement { text: replaced, count }
}

fn occurs_whole(text: &str, wanted: &str) -> bool {
    text.match_indices(wanted).any(|(at, _)| !begins_within_line_end(text, at))
}

/// `true` between the two characters of a CRLF line end.
fn begins_within_line_end(text: &str, at: usize) -> bool {
    text[at..].starts_with('\n') && text[..at].ends_with('\r')
}

/// The characters that end lines.
const LINE_ENDS: [char; 2] = ['\n', '\r'];

/// The end of a line of a file.
#[derive(Debug, Clone, Copy)]
struct LineEnd {
    characters: &'static str,
    /// The end of the part of the file for which it counts.
    place: usize,
}

impl LineEnd {
    /// Returns the end of the line at a place, or of the last line before it; `None` if the file has a single line.
    fn near(text: &str, at: usize) -> Option<Self> {
        let next = text[at..].find('\n').map(|next| at + next);
        let place = next.unwrap_or(text.len());
        match next.or_else(|| text[..at].rfind('\n')) {
            Some(feed) if text[..feed].ends_with('\r') => Some(Self { characters: "\r\n", place }),
            Some(_) => Some(Self { characters: "\n", place }),
            None => text.contains('\r').then_some(Self { characters: "\r", place }),
        }
    }
}

fn convert_line_ends(text: &str, line_end: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n").replace('\n', line_end)
}

/// The positions of a text in another, including overlaps, but not within a line end.
fn find_positions(text: &str, wanted: &str) -> Vec<usize> {
    let mut positions = Vec::new();
    let mut from = 0;
    while let Some(at) = text[from..].find(wanted) {
        if !begins_within_line_end(text, from + at) {
            positions.push(from + at);
        }
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
        .or_else(|| hint_at_hidden_difference(text, old))
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

/// Finds the text with other characters that look alike, or with different spaces and line ends.
fn hint_at_hidden_difference(text: &str, old: &str) -> Option<String> {
    if text.len() > MAX_COMPARED {
        return None;
    }
    let SimilarText { start, text: there, kind, differences } = find_similar_text(text, old)?;
    let line = text[..start].matches('\n').count() + 1;
    Some(format!("From line {line} on it is there with {kind}: {differences}:\n{}", quote_text(there)))
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
    let difference = name_hidden_difference(line.trim(), wanted).map(|named| format!("; {named}"));
    let difference = difference.unwrap_or_default();
    (best >= 0.6).then(|| format!("The most similar line is {}: '{}'{difference}", at + 1, quote_text(line)))
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
    fn inserted_lines_take_the_line_ends_of_the_file() {
        for (text, old, new, expected) in [
            ("a\r\nb\r\nc\r\n", "b", "b\nx", "a\r\nb\r\nx\r\nc\r\n"),
            ("a\r\nb\r\n", "a\nb", "a\nx\nb", "a\r\nx\r\nb\r\n"),
            ("a\r\nb\r\n", "a\r\nb", "a\nx\r\nb", "a\r\nx\r\nb\r\n"),
            ("a\nb\n", "b", "b\r\nx", "a\nb\nx\n"),
            ("a\nb\n", "a\r\nb", "a\r\nx\r\nb", "a\nx\nb\n"),
            ("a\rb\rc", "b", "b\nx", "a\rb\rx\rc"),
            ("a\r\nlast", "last", "last\nmore", "a\r\nlast\r\nmore"),
            ("only", "only", "one\r\ntwo", "one\r\ntwo"),
            // Each line of a file with both takes its own.
            ("a\r\nb\n", "a", "a\nx", "a\r\nx\r\nb\n"),
            ("a\r\nb\n", "b", "b\nx", "a\r\nb\nx\n"),
            // A text that begins with a line end.
            ("a\r\nfoo\r\n", "\nfoo", "\nbar\nfoo", "a\r\nbar\r\nfoo\r\n"),
            ("a\r\nfoo\r\n", "\nfoo", " foo", "a foo\r\n"),
            // Line ends that are replaced by others.
            ("a\r\nb\r\n", "a\r\n", "a\n", "a\nb\r\n"),
            ("a\nb\n", "a\nb\n", "a\r\nb\r\n", "a\r\nb\r\n"),
        ] {
            let (replaced, _) = replace_in_sample(text, old, new, false).unwrap();
            assert_eq!(replaced, expected, "{text:?}: {old:?} by {new:?}");
        }
        let all = replace_in_sample("x,\r\nx,\nx,", "x", "y\nz", true);
        assert_eq!(all, Ok(("y\r\nz,\r\ny\nz,\ny\nz,".to_owned(), 3)));
        let unix = replace_in_sample("a\r\nb\r\n", "\r\n", "\n", true);
        assert_eq!(unix, Ok(("a\nb\n".to_owned(), 2)));
        let without = replace_in_sample("a\r\nb\r\n", "\r", "", true);
        assert_eq!(without, Ok(("a\nb\n".to_owned(), 2)));
        let blank = replace_in_sample("a\r\n\n\nb", "\n\n", "\n", true);
        assert_eq!(blank, Ok(("a\r\n\nb".to_owned(), 1)));
        let dos = replace_in_sample("a\r\nb\n", "\n", "\r\n", true);
        assert_eq!(dos, Ok(("a\r\nb\r\n".to_owned(), 1)));
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
            (
                "un\ncafe\u{301}\n",
                "caf\u{e9}",
                "From line 2 on it is there with another Unicode form: the file has 'e\u{301}' (U+0065 U+0301)",
            ),
            (
                "p\u{430}ss = 1\n",
                "pass = 1",
                "'p\u{430}ss = 1'; the file has '\u{430}' (U+0430) where old_string has 'a' (U+0061)",
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
