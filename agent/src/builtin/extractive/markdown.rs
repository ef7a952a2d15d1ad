//! The little Markdown that answers are made of: quotations, citations, and finding both again. What `quote` writes
//! `without_quotations` recognises, so a mark inside a quotation never passes for a citation.

use millrace_protocol::result::Quotation;

use super::sentences::fold;

/// A quotation as a block, with its citation and its lines.
pub(super) fn quote(quotation: &Quotation, citation: &str) -> String {
    format!(
        "> {} [{citation}] ({})\n",
        inline(&quotation.text),
        lines(quotation.first_line, quotation.last_line)
    )
}

/// The text of a quotation as it stands in Markdown: `<` would begin HTML and swallow words.
pub(super) fn inline(text: &str) -> String {
    fold(text).replace('<', "\\<")
}

/// A range of lines in words.
pub(super) fn lines(first: u32, last: u32) -> String {
    if first == last { format!("line {first}") } else { format!("lines {first}–{last}") }
}

/// A text without the quotations in it.
pub(super) fn without_quotations(output: &str, quotations: &[Quotation]) -> String {
    let mut longest_first: Vec<String> = quotations.iter().map(|quotation| inline(&quotation.text)).collect();
    longest_first.sort_by_key(|text| std::cmp::Reverse(text.len()));
    longest_first
        .iter()
        .filter(|text| !text.is_empty())
        .fold(output.to_owned(), |rest, text| rest.replace(text, " "))
}

/// The citations in a text, such as `S1` for `[S1]`, in order. Links and `[ ]` are none.
pub(super) fn citations(text: &str) -> Vec<&str> {
    marks(text).map(|(_, mark)| mark).collect()
}

/// Gives citations other names; those without one stay.
pub(super) fn renumber(text: &str, name: impl Fn(&str) -> Option<String>) -> String {
    let mut renumbered = String::with_capacity(text.len());
    let mut done = 0;
    for (at, mark) in marks(text) {
        if let Some(new) = name(mark) {
            renumbered.push_str(&text[done..at]);
            renumbered.push_str(&new);
            done = at + mark.len();
        }
    }
    renumbered.push_str(&text[done..]);
    renumbered
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
    fn a_mark_inside_a_quotation_is_no_citation() {
        let quoted = quotation("as <name>  says [7] here");
        let output = format!("See [S1].\n\n{}[a](b) [x] [8](link) \\[9]", quote(&quoted, "S1"));
        assert!(output.contains("> as \\<name> says [7] here [S1] (lines 3–4)\n"));
        assert_eq!(citations(&output), ["S1", "7", "S1"]);
        assert_eq!(citations(&without_quotations(&output, &[quoted])), ["S1", "S1"]);
    }

    #[test]
    fn citations_get_new_numbers_and_strangers_stay() {
        let new = renumber("[S1] and [S2], [S1] [S9]", |mark| match mark {
            "S1" => Some("12".into()),
            "S2" => Some("3".into()),
            _ => None,
        });
        assert_eq!(new, "[12] and [3], [12] [S9]");
    }
}
