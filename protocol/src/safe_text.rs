//! Text of others (documents, models, tools, names, users) in a form that is safe to show. This module alone decides
//! which characters are unsafe; one function per medium makes a text safe for it:
//!
//! | medium | function |
//! |---|---|
//! | terminal, log, file with plain text | [`terminal_text`], [`single_line`] |
//! | JSON that is printed or written | [`json_line`], [`json_document`] |
//! | a name or a quotation in Markdown | [`markdown_line`] |
//! | Markdown that a model wrote | [`markdown_document`] |
//! | prompt of a model | [`strip_control_characters`] |
//!
//! # Invariants
//!
//! - I69: No text of documents, models, tools, names or users puts a control character into an output, or an image, a link or
//!   HTML into a quotation or a name in Markdown; `protocol/src/safe_text.rs` alone decides what is safe.
//!   (`protocol/src/safe_text.rs::control_characters_do_not_reach_a_terminal`,
//!   `protocol/src/safe_text.rs::a_name_or_a_quotation_is_no_markdown`,
//!   `tests/tests/first_command.rs::hostile_documents_steer_neither_a_terminal_nor_a_renderer`,
//!   `tests/tests/behaviours/hostile_text.rs::hostile_text_reaches_no_output`,
//!   `tests/tests/architecture.rs::only_the_view_prints`)

use std::fmt::Write;

use serde::Serialize;

/// `true` for a character that steers a terminal or hides or reorders text: C0 except newline and tab, DEL, C1, line and
/// paragraph separators, controls of the reading direction, annotations, and tags (U+E0000 to U+E007F), which are
/// invisible to people but readable for models.
#[must_use]
pub fn is_unsafe(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{61c}' | '\u{200e}' | '\u{200f}' => true,
        '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{206f}' | '\u{fff9}'..='\u{fffb}' => true,
        '\u{e0000}'..='\u{e007f}' => true,
        _ => c.is_control(),
    }
}

/// Returns a text that a terminal shows as it is: unsafe characters are replaced by `�`. Line breaks and tabs stay.
#[must_use]
pub fn terminal_text(text: &str) -> String {
    let unified = text.replace("\r\n", "\n");
    unified.chars().map(|c| if is_unsafe(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Returns a text on one line: white space and control characters become single blanks, other unsafe characters `�`.
#[must_use]
pub fn single_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    terminal_text(&words.collect::<Vec<_>>().join(" "))
}

/// Returns a text without its unsafe characters, for a model. Line ends become `\n`; line and paragraph separators stay,
/// since they separate words.
#[must_use]
pub fn strip_control_characters(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    text.chars().filter(|&c| matches!(c, '\u{2028}' | '\u{2029}') || !is_unsafe(c)).collect()
}

/// Returns a value as JSON on one line. Unsafe characters are escaped as `\uXXXX`: JSON itself escapes C0 only.
///
/// # Panics
/// The value has a map with keys that are not text.
#[must_use]
pub fn json_line(value: &impl Serialize) -> String {
    escape_json(&serde_json::to_string(value).expect("the value serialises to JSON"))
}

/// Returns a value as indented JSON, escaped as by [`json_line`].
///
/// # Panics
/// As for [`json_line`].
#[must_use]
pub fn json_document(value: &impl Serialize) -> String {
    escape_json(&serde_json::to_string_pretty(value).expect("the value serialises to JSON"))
}

/// Escapes the unsafe characters of JSON text. They occur in its strings only; the rest of JSON is ASCII.
#[must_use]
pub fn escape_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if is_unsafe(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(escaped, "\\u{unit:04x}").expect("writing to a String can't fail");
            }
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Returns a name or a quotation on one line of Markdown that renders as the text itself: it contains no image, link,
/// citation, heading, code or HTML. Emphasis and the marks of list items stay, so that the source is readable.
#[must_use]
pub fn markdown_line(text: &str) -> String {
    let line = single_line(text);
    let mut escaped = String::with_capacity(line.len() + 16);
    for (at, c) in line.char_indices() {
        let (before, after) = (&line[..at], &line[at + c.len_utf8()..]);
        let is_special = match c {
            '[' | ']' | '<' | '`' => true,
            '\\' => after.starts_with(|next: char| next.is_ascii_punctuation()) || after.is_empty(),
            '&' => after.starts_with(|next: char| next == '#' || next.is_ascii_alphabetic()),
            // Renderers make links of bare addresses.
            ':' => after.starts_with("//"),
            '.' => before.to_ascii_lowercase().ends_with("www"),
            '#' | '>' | '~' | '=' | '|' => before.is_empty(),
            _ => false,
        };
        if is_special {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// Returns Markdown that a model wrote without what acts when it is rendered: an image of another host, which would be
/// fetched and could carry what the model read, and HTML, which is shown as text instead. Links, headings, code and
/// images of relative paths stay.
#[must_use]
pub fn markdown_document(text: &str) -> String {
    let text = terminal_text(text);
    let mut written = String::with_capacity(text.len() + 16);
    let mut fence: Option<&str> = None;
    // `true` while no line of the block has an unpaired backtick: only then are code spans certain per line.
    let mut is_paired = true;
    for line in text.split_inclusive('\n') {
        if let Some(open) = fence {
            written.push_str(line);
            if closes_fence(line, open) {
                fence = None;
            }
            continue;
        }
        if let Some(mark) = opening_fence(line) {
            written.push_str(line);
            (fence, is_paired) = (Some(mark), true);
            continue;
        }
        if line.trim().is_empty() {
            is_paired = true;
        }
        // A bar may separate cells of a table, which code spans do not cross.
        let (spans, has_unpaired) = code_spans(line);
        is_paired = is_paired && !has_unpaired && !line.contains('|');
        push_inactive_line(line, if is_paired { &spans } else { &[] }, &mut written);
    }
    written
}

/// Writes a line of Markdown with its images of other hosts and its HTML escaped, except in code spans.
fn push_inactive_line(line: &str, spans: &[std::ops::Range<usize>], written: &mut String) {
    let mut escapes = 0_usize;
    for (at, c) in line.char_indices() {
        let after = &line[at + c.len_utf8()..];
        let is_code = spans.iter().any(|span| span.contains(&at));
        let is_active = match c {
            '<' => after.starts_with(|next: char| next.is_ascii_alphabetic() || "/!?".contains(next)),
            '[' => line[..at].ends_with('!') && !is_relative_image(after),
            _ => false,
        };
        if is_active && !is_code && escapes.is_multiple_of(2) {
            written.push('\\');
        }
        written.push(c);
        escapes = if c == '\\' { escapes + 1 } else { 0 };
    }
}

/// `true` if the text after `![` is an image of a relative path, such as `chart](charts/a.png)`.
fn is_relative_image(after: &str) -> bool {
    let Some((label, rest)) = after.split_once("](") else { return false };
    let Some((path, _)) = rest.split_once(')') else { return false };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    !label.contains(['[', ']', '\\', '`', '\n']) && path.chars().all(is_plain) && !path.contains("//")
}

/// Returns the mark of a code fence that a line opens. Only fences at the beginning of a line are certain: others may
/// belong to a list or a quotation, and end with it.
fn opening_fence(line: &str) -> Option<&str> {
    let c = line.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let length = line.len() - line.trim_start_matches(c).len();
    let is_fence = length >= 3 && !(c == '`' && line[length..].contains('`'));
    is_fence.then(|| &line[..length])
}

fn closes_fence(line: &str, open: &str) -> bool {
    // A closing fence may be indented by up to three blanks, and only blanks and tabs may follow it.
    let unindented = line.trim_start_matches(' ');
    let mark = unindented.trim_end_matches([' ', '\t', '\r', '\n']);
    line.len() - unindented.len() <= 3 && mark.starts_with(open) && mark.chars().all(|c| open.starts_with(c))
}

/// Returns the code spans of a line, and `true` if a run of backticks has no counterpart in it.
fn code_spans(line: &str) -> (Vec<std::ops::Range<usize>>, bool) {
    let (mut spans, mut has_unpaired) = (Vec::new(), false);
    let mut at = 0;
    while let Some(found) = line[at..].find('`') {
        let start = at + found;
        let run = run_length(&line[start..]);
        if line[..start].ends_with('\\') {
            // Possibly escaped: too uncertain to call anything after it code.
            return (Vec::new(), true);
        }
        match find_run(line, start + run, run) {
            Some(end) => {
                spans.push(start..end + run);
                at = end + run;
            }
            None => {
                has_unpaired = true;
                at = start + run;
            }
        }
    }
    (spans, has_unpaired)
}

fn run_length(text: &str) -> usize {
    text.len() - text.trim_start_matches('`').len()
}

/// Returns the position of the next run of exactly `length` backticks.
fn find_run(line: &str, from: usize, length: usize) -> Option<usize> {
    let mut at = from;
    loop {
        let start = at + line[at..].find('`')?;
        let run = run_length(&line[start..]);
        if run == length {
            return Some(start);
        }
        at = start + run;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One text per kind of control.
    const HOSTILE: [&str; 14] = [
        "\u{1b}]52;c;ZXZpbA==\u{7}",
        "\u{1b}]0;title\u{7}",
        "\u{1b}[2J\u{1b}[31m",
        "\u{9d}8;;http://evil.example\u{9c}",
        "\u{9b}31m",
        "a\rb",
        "a\u{8}b\u{b}c\u{c}d\u{0}e\u{7f}",
        "\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}txt.exe",
        "\u{2066}\u{2067}\u{2068}x\u{2069}",
        "\u{61c}\u{200e}\u{200f}",
        "\u{2028}\u{2029}\u{85}",
        "\u{206a}\u{206f}",
        "\u{fff9}\u{fffb}",
        "\u{e0001}\u{e0041}\u{e007f}",
    ];

    #[test]
    fn text_after_a_fence_that_a_renderer_closes_is_not_code() {
        for text in [
            "```\nx\n   ```\n![c](http://127.0.0.1/leak)",
            "```\nx\n``` \t\n![c](http://127.0.0.1/leak)",
            "```\nx\n```\u{a0}\n```\n![c](http://127.0.0.1/leak)",
        ] {
            assert!(!markdown_document(text).contains("![c]("), "{text:?}");
        }
        let code = "```\n    ```\n![c](http://127.0.0.1/code)\n```";
        assert!(markdown_document(code).contains("![c]("), "four blanks close no fence");
    }

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        for hostile in HOSTILE {
            let shown = terminal_text(hostile);
            assert!(!shown.chars().any(is_unsafe) && shown.contains('�'), "{hostile:?}: {shown:?}");
            assert!(!single_line(hostile).chars().any(|c| is_unsafe(c) || c == '\n'), "{hostile:?}");
            assert!(!markdown_line(hostile).chars().any(is_unsafe), "{hostile:?}");
            assert!(!markdown_document(hostile).chars().any(is_unsafe), "{hostile:?}");
        }
        assert_eq!(terminal_text("one\r\n\ttwo\nthrée ✓ 👩‍💻"), "one\n\ttwo\nthrée ✓ 👩‍💻");
        assert_eq!(single_line(" a\nb\r\n[end]\u{0}\tc \u{202e}"), "a b [end] c �");
    }

    #[test]
    fn a_model_reads_a_text_without_control_characters() {
        let text = "a\r\nb\rc\td\u{0}\u{1b}[31m\u{7f}\u{9b}\u{202e}\u{2066}\u{200f}\u{e0041}e\u{2029}é🏳";
        assert_eq!(strip_control_characters(text), "a\nb\nc\td[31me\u{2029}é🏳");
    }

    #[test]
    fn json_keeps_every_character_and_shows_none_that_is_unsafe() {
        for hostile in HOSTILE {
            let value = serde_json::json!({ hostile: [hostile, "thrée ✓"] });
            for json in [json_line(&value), json_document(&value)] {
                assert!(!json.chars().any(is_unsafe), "{json:?}");
                assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), value);
            }
        }
        assert_eq!(json_line(&"\u{9b}\u{e0041}é"), r#""\u009b\udb40\udc41é""#);
    }

    #[test]
    fn a_name_or_a_quotation_is_no_markdown() {
        for (text, escaped) in [
            ("![x](http://evil.example/leak)", r"!\[x\](http\://evil.example/leak)"),
            ("# Title\n## second", r"\# Title ## second"),
            ("<img src=x> &lt;b&#62; R&D", r"\<img src=x> \&lt;b\&#62; R&D".replace("R&D", "R\\&D").as_str()),
            ("> quoted", r"\> quoted"),
            ("a\\[b\\", r"a\\\[b\\"),
            ("C:\\dir `code` *b* snake_case", r"C:\dir \`code\` *b* snake_case"),
            ("see WWW.evil.example", r"see WWW\.evil.example"),
            ("~~~", r"\~~~"),
            ("1. the licence [7] (a)", r"1. the licence \[7\] (a)"),
        ] {
            assert_eq!(markdown_line(text), escaped);
        }
    }

    #[test]
    fn images_of_other_hosts_and_html_of_a_model_are_shown_as_text() {
        for (text, shown) in [
            ("![x](http://evil.example/leak)", r"!\[x](http://evil.example/leak)"),
            ("![x][ref]\n\n[ref]: http://evil.example", "!\\[x][ref]\n\n[ref]: http://evil.example"),
            (
                "![chart](charts/a-1.png) ![a](//evil.example/x)",
                r"![chart](charts/a-1.png) !\[a](//evil.example/x)",
            ),
            ("![a](b%3a//x)", r"!\[a](b%3a//x)"),
            (r"\\![x](http://e) !\[x](http://e)", r"\\!\[x](http://e) !\[x](http://e)"),
            ("<img src=http://e> 1 < 2 </b> <!-- x -->", r"\<img src=http://e> 1 < 2 \</b> \<!-- x -->"),
            ("`Vec<String>` and ``a ` <b>``", "`Vec<String>` and ``a ` <b>``"),
            ("```html\n<img>\n``\n```\n<img>", "```html\n<img>\n``\n```\n\\<img>"),
            (
                "# Heading\n\n- [link](https://example.org) [S1]",
                "# Heading\n\n- [link](https://example.org) [S1]",
            ),
            // Backticks that pair within the line but not within the paragraph, list or table.
            ("a `b\n`<img>`", "a `b\n`\\<img>`"),
            ("- `a\n- <img> `b", "- `a\n- \\<img> `b"),
            ("| ` | <img> ` |", "| ` | \\<img> ` |"),
            ("- a\n\n  ```\n<img>", "- a\n\n  ```\n\\<img>"),
            ("> ```\n<img>", "> ```\n\\<img>"),
            ("\\` <img> `", "\\` \\<img> `"),
            ("``` a`b\n<img>", "``` a`b\n\\<img>"),
        ] {
            assert_eq!(markdown_document(text), shown);
            assert_eq!(markdown_document(shown), shown, "a second time changes nothing");
        }
    }
}
