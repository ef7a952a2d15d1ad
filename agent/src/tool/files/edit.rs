//! `edit_file`: one text of a file replaced by another. Finding the text, and what to say where it is not there or there
//! more than once, are pure functions.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;

use super::change::{made_before, put};
use super::session::{Known, Session, refused};
use super::{Call, Effect, FileTool, Tool, ToolError, show};
use crate::files::permissions::Operation;

/// The most characters of a text that are repeated to the model.
const MAX_QUOTED: usize = 200;
/// The most lines that are named where a text stands more than once.
const MAX_LINES: usize = 10;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EditArguments {
    /// The file's path.
    file_path: String,
    /// The text to be replaced, exactly as it stands in the file, with its spaces and line ends; long enough to stand
    /// there once.
    old_string: String,
    /// The text that takes its place; it must differ.
    new_string: String,
    /// Whether every place is replaced where the text stands; else it must stand there once.
    #[serde(default)]
    replace_all: bool,
}

/// `edit_file{file_path, old_string, new_string, replace_all?}`.
pub(super) fn edit_file(session: &Arc<Session>) -> Arc<dyn Tool> {
    let description = "Replaces a text of a file of the workspace by another one. The file must have been read before. The \
                       text must stand there exactly so, once, unless replace_all is true. If somebody else has changed \
                       the file since, nothing is changed and you are shown what it holds now.";
    let tool = FileTool::new("edit_file", description, session, run);
    Arc::new(FileTool {
        effect: Effect::Idempotent,
        remember: |session, arguments: &EditArguments, result, call| {
            session.remember_change(&arguments.file_path, result, call);
            session.remember(&arguments.file_path, &result.text);
        },
        ..tool
    })
}

fn run<'a>(
    session: &'a Session,
    arguments: EditArguments,
    call: &'a Call,
) -> BoxFuture<'a, Result<String, ToolError>> {
    async move {
        let path = session.path(&arguments.file_path, Operation::Write)?;
        session.path(&arguments.file_path, Operation::Read)?;
        check(&arguments)?;
        session.claim(&path, call)?;
        let current = session.files.read(&path).await.map_err(super::session::failed)?;
        let known = session.known(&path);
        let Some(content) = current.filter(|content| known == Some(Known::Version(content.entry.version)))
        else {
            return beyond_knowledge(session, &arguments, call).await;
        };
        let Some(text) = show::text(&content.bytes) else {
            return Err(refused(format!("Error: {}; it can't be edited as text", show::binary(&content))));
        };
        let Replaced { text, count } =
            replace(text, &arguments).map_err(|mistake| refused(format!("Error: {mistake}")))?;
        let version = put(session, &path, text.into_bytes(), call).await?;
        Ok(format!("Successfully replaced {count} instance(s) of the string in '{path}' (version {version})"))
    }
    .boxed()
}

/// What comes of an edit of a file that is not what the agent knows: it was made already, there is no such file, or
/// somebody else has changed it.
async fn beyond_knowledge(
    session: &Session,
    arguments: &EditArguments,
    call: &Call,
) -> Result<String, ToolError> {
    let path = session.path(&arguments.file_path, Operation::Write)?;
    if let Some(version) = made_before(session, &path, call).await? {
        return Ok(format!("Successfully replaced the string in '{path}' (version {version})"));
    }
    match session.files.read(&path).await.map_err(super::session::failed)? {
        None if matches!(session.known(&path), Some(Known::Version(_))) => Err(session.stale(&path, None)),
        None => Err(session.not_found(&path).await),
        Some(content) => Err(session.stale(&path, Some(&content))),
    }
}

fn check(arguments: &EditArguments) -> Result<(), ToolError> {
    if arguments.old_string.is_empty() {
        return Err(refused(
            "Error: old_string is empty. To create a file or to replace it whole, use write_file; to insert something, \
             take the text beside it as old_string and repeat it in new_string",
        ));
    }
    if arguments.old_string == arguments.new_string {
        return Err(refused("Error: old_string and new_string are the same; nothing would change"));
    }
    Ok(())
}

/// A text after a replacement.
#[derive(Debug, PartialEq, Eq)]
struct Replaced {
    text: String,
    count: usize,
}

/// The text with the replacement made, or what is wrong with it.
fn replace(text: &str, arguments: &EditArguments) -> Result<Replaced, String> {
    let EditArguments { old_string: old, new_string: new, replace_all, .. } = arguments;
    let found = places(text, old);
    if found.is_empty() && text.contains("\r\n") && old.contains('\n') && !old.contains('\r') {
        // Its lines end in the other way, and nobody meant to change that.
        let dos = |text: &str| text.replace("\r\n", "\n").replace('\n', "\r\n");
        let arguments = EditArguments {
            file_path: String::new(),
            old_string: dos(old),
            new_string: dos(new),
            replace_all: *replace_all,
        };
        return replace(text, &arguments);
    }
    match found.as_slice() {
        [] => Err(not_there(text, old)),
        [_] => Ok(Replaced { text: text.replacen(old.as_str(), new, 1), count: 1 }),
        _ if *replace_all => {
            Ok(Replaced { text: text.replace(old.as_str(), new), count: text.matches(old.as_str()).count() })
        }
        several => Err(format!(
            "String '{}' appears {} times in file ({}). Use replace_all=true to replace all instances, or provide a more \
             specific string with surrounding context.",
            on_a_line(old),
            several.len(),
            line_numbers(text, several),
        )),
    }
}

/// Where a text stands in another, overlaps included.
fn places(text: &str, wanted: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = text[from..].find(wanted) {
        found.push(from + at);
        from += at + text[from + at..].chars().next().map_or(1, char::len_utf8);
    }
    found
}

fn line_numbers(text: &str, places: &[usize]) -> String {
    let line = |at: &usize| (text[..*at].matches('\n').count() + 1).to_string();
    let named: Vec<String> = places.iter().take(MAX_LINES).map(line).collect();
    let more = if places.len() > MAX_LINES { " …" } else { "" };
    format!("beginning in lines {}{more}", named.join(", "))
}

/// What is said of a text that is not there, with what the model most likely got wrong.
fn not_there(text: &str, old: &str) -> String {
    let hint = final_newline(text, old)
        .or_else(|| other_spaces(text, old))
        .or_else(|| other_case(text, old))
        .or_else(|| like_line(text, old))
        .unwrap_or_else(|| "read_file shows the text as it is".to_owned());
    format!("String not found in file: '{}'. {hint}", on_a_line(old))
}

fn final_newline(text: &str, old: &str) -> Option<String> {
    let without = old.trim_end_matches(['\n', '\r']);
    let fits = without.len() < old.len() && !without.is_empty() && text.ends_with(without);
    fits.then(|| {
        "It ends in a line end, and the file does not: the text stands at the end of the file without one. Leave the \
         last line end of old_string away"
            .to_owned()
    })
}

/// The text stands there with other spaces, tabs or line ends.
fn other_spaces(text: &str, old: &str) -> Option<String> {
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
        "From line {} on it stands there with other spaces or line ends:\n{}",
        at + 1,
        quoted(&there)
    ))
}

fn other_case(text: &str, old: &str) -> Option<String> {
    let (folded, wanted) = (text.to_lowercase(), old.to_lowercase());
    let at = folded.find(&wanted)?;
    Some(format!("In line {} it stands there with other capitals", folded[..at].matches('\n').count() + 1))
}

/// The line that is most like the first line of what was wanted.
fn like_line(text: &str, old: &str) -> Option<String> {
    let wanted = old.lines().map(str::trim).find(|line| !line.is_empty())?;
    let likeness = |line: &str| strsim::normalized_levenshtein(line.trim(), wanted);
    let cut = |line: &str| line.chars().take(MAX_QUOTED).collect::<String>();
    let near = text.lines().take(5_000).enumerate().map(|(at, line)| (likeness(&cut(line)), at, line));
    let (best, at, line) = near.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best >= 0.6).then(|| format!("Most like it is line {}: '{}'", at + 1, quoted(line)))
}

/// A text on one line: what a model wrote can't pass for a line of its own.
fn on_a_line(text: &str) -> String {
    quoted(text).replace('\r', "\\r").replace('\n', "\\n")
}

fn quoted(text: &str) -> String {
    let cut: String = text.chars().take(MAX_QUOTED).collect();
    if cut.len() < text.len() { cut + "…" } else { cut }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(text: &str, old: &str, new: &str, replace_all: bool) -> Result<(String, usize), String> {
        let arguments = EditArguments {
            file_path: "/x".into(),
            old_string: old.into(),
            new_string: new.into(),
            replace_all,
        };
        replace(text, &arguments).map(|Replaced { text, count }| (text, count))
    }

    #[test]
    fn a_text_that_stands_there_once_is_replaced() {
        let done = |text: &str, count| Ok((text.to_owned(), count));
        assert_eq!(edit("a b c", "b", "x", false), done("a x c", 1));
        assert_eq!(edit("a b b", "b", "x", true), done("a x x", 2));
        assert_eq!(edit("aaa", "aa", "x", true), done("xa", 1));
        assert_eq!(edit("one\r\ntwo\r\n", "one\ntwo", "1\n2", false), done("1\r\n2\r\n", 1));
        assert_eq!(edit("äöü", "ö", "", false), done("äü", 1));
    }

    #[test]
    fn a_text_that_is_not_there_or_too_often_is_told_with_the_way_out() {
        for (text, old, told) in [
            (
                "x\nx",
                "x",
                "String 'x' appears 2 times in file (beginning in lines 1, 2). Use replace_all=true",
            ),
            ("aaa", "aa", "String 'aa' appears 2 times in file"),
            ("abc", "zz", "String not found in file: 'zz'. read_file shows"),
            ("one\ntwo", "two\n", "Leave the last line end of old_string away"),
            (
                "fn a() {\n    b();\n}\n",
                "fn a() {\n\tb();\n}",
                "From line 1 on it stands there with other spaces",
            ),
            ("Hello World", "hello world", "In line 1 it stands there with other capitals"),
            (
                "alpha\nThe quick brown fox\n",
                "The quick brawn fox",
                "Most like it is line 2: 'The quick brown fox'",
            ),
        ] {
            let mistake = edit(text, old, "new", false).unwrap_err();
            assert!(mistake.contains(told), "{mistake}");
        }
    }
}
