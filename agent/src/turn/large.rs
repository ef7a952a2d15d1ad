//! Results that are too long for a conversation. It owns the bound, and what the model reads in place of such a result:
//! its two ends and where the whole of it is.

use std::sync::Arc;

use tracing::warn;

use crate::files::{Expected, FilePath, Files};
use crate::tool::{Toolbox, head_and_tail};

/// The most characters of a result that the model reads whole: about 20,000 tokens.
pub const MAX_RESULT: usize = 80_000;
/// The lines at either end that are shown of a longer one.
const SHOWN_LINES: usize = 5;
/// The most characters of a shown line.
const SHOWN_CHARS: usize = 1_000;
/// The tool that reads files.
const READER: &str = "read_file";

/// The result as the model reads it. A long one is put into the workspace as what `key` names, where there is one and
/// the agent can read from it; else its middle is left out.
pub(super) async fn bounded(
    text: String,
    path: impl FnOnce() -> Option<FilePath>,
    key: &str,
    files: Option<&Arc<dyn Files>>,
    toolbox: &Toolbox,
) -> String {
    // Bytes are no fewer than characters, and cheaper to count.
    if text.len() <= MAX_RESULT || text.chars().count() <= MAX_RESULT {
        return text;
    }
    let files = files.filter(|_| toolbox.get(READER).is_some());
    let Some((files, path)) = files.and_then(|files| Some((files, path()?))) else {
        return head_and_tail(&text, MAX_RESULT);
    };
    match files.write(&path, text.clone().into_bytes(), Expected::Anything, key).await {
        Ok(_) => preview(&text, &path),
        Err(error) => {
            warn!(%path, %error, "a long result could not be put aside and is cut");
            head_and_tail(&text, MAX_RESULT)
        }
    }
}

fn preview(text: &str, path: &FilePath) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let count = lines.len();
    let tail = count.saturating_sub(SHOWN_LINES).max(SHOWN_LINES).min(count);
    let shown = |from: usize, to: usize| -> Vec<String> {
        (from..to).map(|at| format!("{:>6}\t{}", at + 1, line(lines[at]))).collect()
    };
    let head = shown(0, SHOWN_LINES.min(count)).join("\n");
    let between = tail.saturating_sub(SHOWN_LINES);
    let between = if between > 0 { format!("\n[… {between} lines …]\n") } else { "\n".to_owned() };
    let tail = shown(tail, count).join("\n");
    format!(
        "The result is too long to be shown here: {} characters in {count} lines. All of it is in {path}; read on with \
         {READER}(file_path, offset, limit), or look for something in it. Its first and last lines:\n\n\
         {head}{between}{tail}",
        text.chars().count(),
    )
}

fn line(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}… (the line goes on)", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_shows_both_ends_and_how_to_read_on() {
        let path = FilePath::new("/large_results/t/1/0.0.txt").unwrap();
        let text: String = (1..=30).map(|n| format!("line {n}\n")).collect();
        let shown = preview(&text, &path);
        for there in
            ["     1\tline 1\n", "     5\tline 5\n[… 20 lines …]\n    26\tline 26\n", "    30\tline 30"]
        {
            assert!(shown.contains(there), "{shown}");
        }
        assert!(
            !shown.contains("line 6\n")
                && shown.contains("in 30 lines. All of it is in /large_results/t/1/0.0.txt")
        );

        let one = preview(&"x".repeat(100_000), &path);
        assert!(one.chars().count() < 1_500 && one.contains("… (the line goes on)"), "{one}");
        let seven: String = (1..=7).map(|n| format!("{n}\n")).collect();
        let shown = preview(&seven, &path);
        assert!(shown.ends_with("     5\t5\n     6\t6\n     7\t7"), "{shown}");
        assert!(preview("", &path).contains("0 characters in 0 lines"));
    }
}
