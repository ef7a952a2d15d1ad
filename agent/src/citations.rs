//! Citations in Markdown: marks such as `[S1]` or `[3]`, and the blocks in which quotations stand. It owns what is a
//! mark and what is not: a link, a mark inside a quotation, and what a document says are none. Everything that comes
//! from a document is written so that it means nothing.

use std::ops::Range;

use millrace_protocol::result::Quotation;

/// A text with its white space folded.
pub(crate) fn fold(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A quotation as a block, with its citation and its lines.
pub(crate) fn quote(quotation: &Quotation, citation: &str) -> String {
    let text = quoted(&quotation.text);
    format!("> {text} [{citation}] ({})\n", lines(quotation.first_line, quotation.last_line))
}

/// The text of a quotation as it stands in Markdown: `<` would begin HTML and swallow words.
fn quoted(text: &str) -> String {
    fold(text).replace('<', "\\<")
}

/// A text of somebody else's in one line, in which nothing is a citation, a link or HTML.
pub(crate) fn plain(text: &str) -> String {
    fold(text).replace('<', "\\<").replace('[', "\\[")
}

/// A range of lines in words.
pub(crate) fn lines(first: u32, last: u32) -> String {
    format!("{} {}", if first == last { "line" } else { "lines" }, range(first, last))
}

/// A range of lines in numbers.
pub(crate) fn range(first: u32, last: u32) -> String {
    if first == last { first.to_string() } else { format!("{first}–{last}") }
}

/// The citations in a text, such as `S1` for `[S1]`, in order. Links, and what stands in a quotation, are none.
pub(crate) fn citations<'a>(text: &'a str, quotations: &[Quotation]) -> Vec<&'a str> {
    let quoted = places(text, quotations);
    marks(text).filter(|(at, _)| !within(&quoted, *at)).map(|(_, mark)| mark).collect()
}

/// Gives citations other names; one without a new name becomes plain text.
pub(crate) fn renumber(
    text: &str,
    quotations: &[Quotation],
    name: impl Fn(&str) -> Option<String>,
) -> String {
    let quoted = places(text, quotations);
    let mut renumbered = String::with_capacity(text.len());
    let mut done = 0;
    for (at, mark) in marks(text).filter(|(at, _)| !within(&quoted, *at)) {
        match name(mark) {
            Some(new) => renumbered.push_str(&format!("{}{new}", &text[done..at])),
            None => renumbered.push_str(&format!("{}\\[{mark}", &text[done..at - 1])),
        }
        done = at + mark.len();
    }
    renumbered.push_str(&text[done..]);
    renumbered
}

/// Where quotations stand in a text.
fn places(text: &str, quotations: &[Quotation]) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    for words in quotations.iter().map(|quotation| quoted(&quotation.text)).filter(|words| !words.is_empty())
    {
        places.extend(text.match_indices(&words).map(|(at, found)| at..at + found.len()));
    }
    places
}

fn within(places: &[Range<usize>], at: usize) -> bool {
    places.iter().any(|place| place.contains(&at))
}

/// Whether a text has something in it that looks like a citation.
pub(crate) fn has_marks(text: &str) -> bool {
    marks(text).next().is_some()
}

/// The same text with each mark of several numbers (`[1, 2]`) as several marks (`[1][2]`).
pub(crate) fn single(text: &str) -> String {
    let mut single = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, inner, after)) = bracketed(rest) {
        let parts: Vec<&str> = inner.split([',', ';']).map(str::trim).collect();
        let are_marks = parts.len() > 1 && parts.iter().all(|part| is_mark(part));
        single.push_str(before);
        match are_marks && !after.starts_with('(') {
            true => single.extend(parts.iter().map(|part| format!("[{part}]"))),
            false => single.push_str(&rest[before.len()..rest.len() - after.len()]),
        }
        rest = after;
    }
    single + rest
}

/// What stands before, in and behind the first brackets.
fn bracketed(text: &str) -> Option<(&str, &str, &str)> {
    let open = text.find('[')?;
    let close = open + text[open..].find(']')?;
    Some((&text[..open], &text[open + 1..close], &text[close + 1..]))
}

/// Whether a text in brackets is a citation: `S1`, `12`, or one of another task's result, `task/S1`.
fn is_mark(text: &str) -> bool {
    let (task, mark) = text.rsplit_once('/').unwrap_or(("t", text));
    let digits = mark.strip_prefix('S').unwrap_or(mark);
    millrace_protocol::ids::TaskId::new(task).is_ok()
        && !digits.is_empty()
        && digits.len() <= 6
        && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Marks of the form `[S1]`, `[12]` or `[task/S1]` with the place of what is inside the brackets.
fn marks(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.match_indices('[').filter_map(move |(at, _)| {
        let inner = &text[at + 1..];
        let mark = &inner[..inner.find(']')?];
        let is_link = inner[mark.len() + 1..].starts_with('(') || text[..at].ends_with(['\\', '!']);
        (is_mark(mark) && !is_link).then_some((at + 1, mark))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quotation(text: &str) -> Quotation {
        Quotation { source: "S1".into(), text: text.into(), first_line: 3, last_line: 4 }
    }

    #[test]
    fn a_mark_inside_a_quotation_or_a_title_is_no_citation() {
        let said = quotation("as <name>  says [7] here");
        let title = plain("The [8]\nof <b>");
        assert_eq!(title, "The \\[8] of \\<b>");
        let output = format!("{title} [S1].\n\n{}[a](b) [x] [9](link)", quote(&said, "S2"));
        assert!(output.contains("> as \\<name> says [7] here [S2] (lines 3–4)\n"));
        assert_eq!(citations(&output, std::slice::from_ref(&said)), ["S1", "S2"]);
        assert_eq!(citations(&output, &[]), ["S1", "7", "S2"]);
    }

    #[test]
    fn a_mark_of_several_numbers_is_several_marks() {
        assert_eq!(single("a [1, 2; S3] b [x, 1] [4,5](link) [6"), "a [1][2][S3] b [x, 1] [4,5](link) [6");
        assert_eq!(citations("[patents/S2] [a b/S1] [/S1]", &[]), ["patents/S2"]);
    }

    #[test]
    fn citations_get_new_numbers_and_strangers_and_quotations_stay() {
        let said = quotation("x [S1] y");
        let text = format!("[S1] and [S2], [S1] [S9]\n{}", quote(&said, "S1"));
        let renumbered = renumber(&text, &[said], |mark| match mark {
            "S1" => Some("12".into()),
            "S2" => Some("3".into()),
            _ => None,
        });
        assert_eq!(renumbered, "[12] and [3], [12] \\[S9]\n> x [S1] y [12] (lines 3–4)\n");
    }
}
