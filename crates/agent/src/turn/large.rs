//! Tool results that are too long for a conversation: the limit, and the preview that the model sees instead, with the
//! beginning, the end and the path of the full text.

use std::sync::Arc;

use tracing::warn;

use crate::files::{FilePath, Files, WriteCondition};
use crate::tool::files::MAX_READ;
use crate::tool::{Toolbox, keep_head_and_tail};

/// The maximum length of a result in the conversation, in characters: about 20,000 tokens.
pub const MAX_RESULT: usize = 80_000;
/// The number of lines shown at either end of a longer result.
const SHOWN_LINES: usize = 5;
/// The maximum number of characters of a shown line.
const SHOWN_CHARS: usize = 1_000;
/// The tool for reading files.
const READER: &str = "read_file";

/// Returns the result as the model sees it. A long result is written to the workspace at `path`, if there is one and the
/// agent can read files; otherwise its middle is cut out.
pub(super) async fn limit_result_size(
    text: String,
    path: impl FnOnce() -> Option<FilePath>,
    key: &str,
    files: Option<&Arc<dyn Files>>,
    toolbox: &Toolbox,
) -> String {
    // A text has at least as many bytes as characters, and bytes are cheaper to count.
    if text.len() <= MAX_RESULT || text.chars().count() <= MAX_RESULT {
        return text;
    }
    let files = files.filter(|_| toolbox.get(READER).is_some());
    let Some((files, path)) = files.and_then(|files| Some((files, path()?))) else {
        return keep_head_and_tail(&text, MAX_RESULT);
    };
    match files.write(&path, text.clone().into_bytes(), WriteCondition::Always, key).await {
        Ok(_) => format_preview(&text, &path),
        Err(error) => {
            warn!(%path, %error, "cannot store a long tool result; cutting it");
            keep_head_and_tail(&text, MAX_RESULT)
        }
    }
}

fn format_preview(text: &str, path: &FilePath) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let count = lines.len();
    let tail = count.saturating_sub(SHOWN_LINES).max(SHOWN_LINES).min(count);
    let shown = |from: usize, to: usize| -> Vec<String> {
        (from..to).map(|at| format!("{:>6}\t{}", at + 1, shorten_line(lines[at]))).collect()
    };
    let head = shown(0, SHOWN_LINES.min(count)).join("\n");
    let between = tail.saturating_sub(SHOWN_LINES);
    let between = if between > 0 { format!("\n[… {between} lines …]\n") } else { "\n".to_owned() };
    let tail = shown(tail, count).join("\n");
    let is_long = |line: &&str| line.len() > MAX_READ;
    let column = if lines.iter().any(is_long) { ", column" } else { "" };
    format!(
        "The result is too long to be shown here: {} characters in {count} lines. It is in {path}, as the tool returned it; \
         continue with {READER}(file_path, offset, limit{column}), or search the file. Its first and last lines:\n\n\
         {head}{between}{tail}",
        text.chars().count(),
    )
}

fn shorten_line(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}… (line cut)", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_shows_both_ends_and_the_path() {
        let path = FilePath::new("/large_results/t/1/0.0.txt").unwrap();
        let text: String = (1..=30).map(|n| format!("line {n}\n")).collect();
        let shown = format_preview(&text, &path);
        for there in
            ["     1\tline 1\n", "     5\tline 5\n[… 20 lines …]\n    26\tline 26\n", "    30\tline 30"]
        {
            assert!(shown.contains(there), "{shown}");
        }
        assert!(
            !shown.contains("line 6\n")
                && shown.contains("in 30 lines. It is in /large_results/t/1/0.0.txt, as the tool returned it; continue with \
                                   read_file(file_path, offset, limit), or")
        );

        let one = format_preview(&"x".repeat(100_000), &path);
        assert!(one.chars().count() < 1_500 && one.contains("… (line cut)"), "{one}");
        assert!(one.contains("read_file(file_path, offset, limit, column)"), "{one}");
        let seven: String = (1..=7).map(|n| format!("{n}\n")).collect();
        let shown = format_preview(&seven, &path);
        assert!(shown.ends_with("     5\t5\n     6\t6\n     7\t7"), "{shown}");
        assert!(format_preview("", &path).contains("0 characters in 0 lines"));
    }
}
