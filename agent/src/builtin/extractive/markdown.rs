//! The little Markdown that answers are made of: quotations, citations, and finding both again. A mark inside a
//! quotation, a title or a path never passes for a citation: quotations are recognised by their words, and
//! everything else that comes from a document is written so that it means nothing.

use std::ops::Range;

use millrace_protocol::result::Quotation;

use super::sentences::fold;

/// A quotation as a block, with its citation and its lines.
pub(super) fn quote(quotation: &Quotation, citation: &str) -> String {
    let text = quoted(&quotation.text);
    format!("> {text} [{citation}] ({})\n", lines(quotation.first_line, quotation.last_line))
}

/// The text of a quotation as it stands in Markdown: `<` would begin HTML and swallow words.
fn quoted(text: &str) -> String {
    fold(text).replace('<', "\\<")
}

/// A text of somebody else's in one line, in which nothing is a citation, a link or HTML.
pub(super) fn plain(text: &str) -> String {
    fold(text).replace('<', "\\<").replace('[', "\\[")
}

/// A range of lines in words.
pub(super) fn lines(first: u32, last: u32) -> String {
    format!("{} {}", if first == last { "line" } else { "lines" }, range(first, last))
}

/// A range of lines in numbers.
pub(super) fn range(first: u32, last: u32) -> String {
    if first == last { first.to_string() } else { format!("{first}–{last}") }
}

/// The citations in a text, such as `S1` for `[S1]`, in order. Links, and what stands in a quotation, are none.
pub(super) fn citations<'a>(text: &'a str, quotations: &[Quotation]) -> Vec<&'a str> {
    let quoted = places(text, quotations);
    marks(text).filter(|(at, _)| !within(&quoted, *at)).map(|(_, mark)| mark).collect()
}

/// Gives citations other names; one without a new name becomes plain text.
pub(super) fn renumber(
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
pub(super) fn has_marks(text: &str) -> bool {
    marks(text).next().is_some()
}

/// Marks of the form `[S1]` or `[12]` with the place of what is inside the brackets.
fn marks(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.match_indices('[').filter_map(move |(at, _)| {
        let inner = &text[at + 1..];
        let mark = &inner[..inner.find(']')?];
        let digits = mark.strip_prefix('S').unwrap_or(mark);
        let is_number =
            !digits.is_empty() && digits.len() <= 6 && digits.bytes().all(|byte| byte.is_ascii_digit());
        let is_link = inner[mark.len() + 1..].starts_with('(') || text[..at].ends_with(['\\', '!']);
        (is_number && !is_link).then_some((at + 1, mark))
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
