//! Citations in Markdown: marks such as `[S1]` or `[3]`, and the blocks that hold quotations. It decides what counts as a
//! mark: a link, a mark inside a quotation, and text from a document do not. Text from documents is escaped, so that it
//! contains no marks.

use std::ops::Range;

use millrace_protocol::result::{Quotation, Source, SourceKind, TaskResult};
use millrace_protocol::safe_text::markdown_line;

use crate::corpus::Corpus;

/// The number of citations in a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CitationCount {
    /// All citations.
    pub total: u32,
    /// Those that resolve.
    pub resolved: u32,
}

/// Counts the citations in the output of a result. A citation resolves if its source is listed, is a document of the
/// corpus with the same content, and its quotations are in their lines. A source of another kind resolves if it
/// is listed.
#[must_use]
pub fn count_resolving_citations(result: &TaskResult, corpus: &Corpus) -> CitationCount {
    let resolves = |mark: &str| {
        let Some(source) = result.sources.iter().find(|source| source.id == mark) else { return false };
        if !is_readable_source(source) {
            return true;
        }
        let is_same = corpus
            .find_source(source)
            .is_some_and(|document| source.sha256.as_ref().is_none_or(|sha256| *sha256 == document.sha256));
        let mut quotations = result.quotations.iter().filter(|quotation| quotation.source == mark);
        is_same && quotations.all(|quotation| is_quotation_at_lines(corpus, source, quotation))
    };
    let marks = find_citations(&result.output, &result.quotations);
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    CitationCount {
        total: count(marks.len()),
        resolved: count(marks.into_iter().filter(|mark| resolves(mark)).count()),
    }
}

/// `true` if the text of a source can be read here: a document of the run, or a web page whose text was kept.
pub(crate) fn is_readable_source(source: &Source) -> bool {
    match source.kind {
        SourceKind::Document => true,
        SourceKind::Web => source.sha256.is_some(),
        SourceKind::Code | SourceKind::Data | SourceKind::Other => false,
    }
}

/// `true` if a source contains the text of a quotation in its lines.
pub(crate) fn is_quotation_at_lines(corpus: &Corpus, source: &Source, quotation: &Quotation) -> bool {
    let wanted = collapse_whitespace(&quotation.text);
    let (first, last) = (quotation.first_line as usize, quotation.last_line as usize);
    !wanted.is_empty()
        && corpus
            .find_source(source)
            .is_some_and(|document| collapse_whitespace(document.line_range(first, last)).contains(&wanted))
}

/// Collapses white space to single blanks.
pub(crate) fn collapse_whitespace(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Formats a quotation as a block quote, with its citation and its lines.
pub(crate) fn format_block_quote(quotation: &Quotation, citation: &str) -> String {
    let text = markdown_line(&quotation.text);
    format!("> {text} [{citation}] ({})\n", format_place_in_words(quotation))
}

/// Formats the place and the lines of a quotation in words, such as `page 3, line 12`.
pub(crate) fn format_place_in_words(quotation: &Quotation) -> String {
    let lines = format_lines_in_words(quotation.first_line, quotation.last_line);
    match &quotation.place {
        Some(place) => format!("{}, {lines}", markdown_line(place)),
        None => lines,
    }
}

/// Formats a range of lines in words.
pub(crate) fn format_lines_in_words(first: u32, last: u32) -> String {
    format!("{} {}", if first == last { "line" } else { "lines" }, format_line_range(first, last))
}

/// Formats a range of lines as numbers.
pub(crate) fn format_line_range(first: u32, last: u32) -> String {
    if first == last { first.to_string() } else { format!("{first}–{last}") }
}

/// Reads `8`, `8-9` or `8–9`.
pub(crate) fn read_line_range(text: &str) -> Option<(u32, u32)> {
    let (first, last) = text.split_once(['-', '–']).unwrap_or((text, text));
    Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
}

/// Returns the citations in a text in order, such as `S1` for `[S1]`. Skips links and marks inside quotations.
pub(crate) fn find_citations<'a>(text: &'a str, quotations: &[Quotation]) -> Vec<&'a str> {
    let quoted = find_quotations(text, quotations);
    find_bracketed_citations(text)
        .filter(|(at, _)| !is_inside_any(&quoted, *at))
        .map(|(_, mark)| mark)
        .collect()
}

/// Renames citations; one for which `name` returns `None` becomes plain text.
pub(crate) fn rename_citations(
    text: &str,
    quotations: &[Quotation],
    name: impl Fn(&str) -> Option<String>,
) -> String {
    let quoted = find_quotations(text, quotations);
    let mut renumbered = String::with_capacity(text.len());
    let mut done = 0;
    for (at, mark) in find_bracketed_citations(text).filter(|(at, _)| !is_inside_any(&quoted, *at)) {
        match name(mark) {
            Some(new) => renumbered.push_str(&format!("{}{new}", &text[done..at])),
            None => renumbered.push_str(&format!("{}\\[{mark}", &text[done..at - 1])),
        }
        done = at + mark.len();
    }
    renumbered.push_str(&text[done..]);
    renumbered
}

/// The positions of the quotations in a text.
fn find_quotations(text: &str, quotations: &[Quotation]) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    for quotation in quotations {
        // As a quotation is formatted here, and as a model copies it.
        let forms = [markdown_line(&quotation.text), collapse_whitespace(&quotation.text)];
        for words in forms.iter().filter(|words| !words.is_empty()) {
            places.extend(text.match_indices(words).map(|(at, matched)| at..at + matched.len()));
        }
    }
    places
}

fn is_inside_any(places: &[Range<usize>], at: usize) -> bool {
    places.iter().any(|place| place.contains(&at))
}

/// `true` if a text contains anything that looks like a citation.
pub(crate) fn has_citations(text: &str) -> bool {
    find_bracketed_citations(text).next().is_some()
}

/// Splits marks of several numbers (`[1, 2]`) into single marks (`[1][2]`).
pub(crate) fn split_combined_citations(text: &str) -> String {
    let mut single = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, inner, after)) = split_at_brackets(rest) {
        let parts: Vec<&str> = inner.split([',', ';']).map(str::trim).collect();
        let are_marks = parts.len() > 1 && parts.iter().all(|part| is_citation(part));
        single.push_str(before);
        match are_marks && !after.starts_with('(') {
            true => single.extend(parts.iter().map(|part| format!("[{part}]"))),
            false => single.push_str(&rest[before.len()..rest.len() - after.len()]),
        }
        rest = after;
    }
    single + rest
}

/// Returns the text before, inside and after the first pair of brackets.
fn split_at_brackets(text: &str) -> Option<(&str, &str, &str)> {
    let open = text.find('[')?;
    let close = open + text[open..].find(']')?;
    Some((&text[..open], &text[open + 1..close], &text[close + 1..]))
}

/// `true` if the text of a bracket is a citation: `S1`, `12`, or one of another task's result, `task/S1`.
fn is_citation(text: &str) -> bool {
    let (task, mark) = text.rsplit_once('/').unwrap_or(("t", text));
    let digits = mark.strip_prefix('S').unwrap_or(mark);
    millrace_protocol::ids::TaskId::new(task).is_ok()
        && !digits.is_empty()
        && digits.len() <= 6
        && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Marks of the form `[S1]`, `[12]` or `[task/S1]`, with the position of the text inside the brackets.
fn find_bracketed_citations(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.match_indices('[').filter_map(move |(at, _)| {
        let inner = &text[at + 1..];
        let mark = &inner[..inner.find(']')?];
        let is_link = inner[mark.len() + 1..].starts_with('(') || text[..at].ends_with(['\\', '!']);
        (is_citation(mark) && !is_link).then_some((at + 1, mark))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::InputFile;

    #[test]
    fn citations_resolve_if_their_source_and_quotations_are_real() {
        let file = InputFile { path: "a.txt".into(), bytes: b"A lease ends at noon.\n\nA lane.".to_vec() };
        let corpus = Corpus::build_or_load(vec![file], None).unwrap();
        let source = |id: &str, location: &str| Source {
            id: id.into(),
            kind: SourceKind::Document,
            title: id.into(),
            location: location.into(),
            sha256: None,
            accessed_at: None,
        };
        let quotation = |source: &str, text: &str| Quotation {
            source: source.into(),
            text: text.into(),
            first_line: 1,
            last_line: 1,
            place: None,
        };
        let mut result = TaskResult {
            output: "It ends at noon [S1]. Elsewhere too [S2], without a source [S3].".into(),
            sources: vec![source("S1", "a.txt"), source("S2", "gone.txt")],
            quotations: vec![quotation("S1", "ends at noon")],
            ..TaskResult::default()
        };
        assert_eq!(count_resolving_citations(&result, &corpus), CitationCount { total: 3, resolved: 1 });
        result.quotations.push(quotation("S1", "ends at midnight"));
        assert_eq!(count_resolving_citations(&result, &corpus), CitationCount { total: 3, resolved: 0 });
        result.quotations.clear();
        result.sources[0].sha256 = Some("another".into());
        assert_eq!(count_resolving_citations(&result, &corpus).resolved, 0, "the document has changed");
    }

    fn build_quotation(text: &str) -> Quotation {
        Quotation { source: "S1".into(), text: text.into(), first_line: 3, last_line: 4, place: None }
    }

    #[test]
    fn marks_in_quotations_and_titles_are_not_citations() {
        let sample = build_quotation("as <name>  says [7] here");
        let title = markdown_line("The [8]\nof <b>");
        assert_eq!(title, "The \\[8\\] of \\<b>");
        let output = format!("{title} [S1].\n\n{}[a](b) [x] [9](link)", format_block_quote(&sample, "S2"));
        assert!(output.contains("> as \\<name> says \\[7\\] here [S2] (lines 3–4)\n"));
        assert_eq!(find_citations(&output, std::slice::from_ref(&sample)), ["S1", "S2"]);
        assert_eq!(find_citations("as <name> says [7] here [S1]", &[sample]), ["S1"]);
    }

    #[test]
    fn marks_of_several_numbers_are_split() {
        assert_eq!(
            split_combined_citations("a [1, 2; S3] b [x, 1] [4,5](link) [6"),
            "a [1][2][S3] b [x, 1] [4,5](link) [6"
        );
        assert_eq!(find_citations("[patents/S2] [a b/S1] [/S1]", &[]), ["patents/S2"]);
    }

    #[test]
    fn citations_are_renumbered_except_unknown_ones_and_quotations() {
        let sample = build_quotation("x [S1] y");
        let text = format!("[S1] and [S2], [S1] [S9]\n{}", format_block_quote(&sample, "S1"));
        let renumbered = rename_citations(&text, &[sample], |mark| match mark {
            "S1" => Some("12".into()),
            "S2" => Some("3".into()),
            _ => None,
        });
        assert_eq!(renumbered, "[12] and [3], [12] \\[S9]\n> x \\[S1\\] y [12] (lines 3–4)\n");
    }
}
