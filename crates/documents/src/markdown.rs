//! Converts untrusted HTML to Markdown. The converter recurses once per level of the tree, and a stack overflow would
//! end the whole process: hence the depth is measured on the parsed tree before conversion, not guessed from the text.
//! The caller provides the thread and its stack size.

use crate::html_tree::prepare;
use dom_query::Document;
use html5ever::tendril::TendrilSink;

/// The levels that every tree has: the document, `html`, `body`, and a final text.
const ALWAYS: usize = 4;
/// The number of depth checks during parsing, and the minimum size of a piece between two checks: for each element that
/// opens, the parser scans all open elements, so a text that only opens elements must be stopped early.
const LOOKS: usize = 32;
const PIECE: usize = 16 * 1024;

/// The error for HTML whose elements are nested too deep to be converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is nested more than {0} deep")]
pub struct TooDeep(pub usize);

/// Converts a page or a part of one to Markdown, without the elements in `skipped` (at least one). Elements may be nested
/// up to `deepest` levels; an unoptimised build takes about 64 KiB of stack per level.
pub fn html_to_markdown(html: &str, skipped: &[&str], deepest: usize) -> Result<String, TooDeep> {
    parse_html(html, deepest).map(|document| document_to_markdown(&document, skipped))
}

/// Parses a page.
pub fn parse_html(html: &str, deepest: usize) -> Result<Document, TooDeep> {
    let mut parser = html5ever::parse_document(Document::default(), html5ever::ParseOpts::default());
    for piece in split_into_pieces(html, PIECE.max(html.len() / LOOKS)) {
        parser.process(piece.into());
        if is_deeper(&parser.tokenizer.sink.sink, deepest) {
            return Err(TooDeep(deepest));
        }
    }
    Ok(parser.finish())
}

/// Converts a parsed page to Markdown, without the elements in `skipped` (at least one). Changes the page.
pub fn document_to_markdown(document: &Document, skipped: &[&str]) -> String {
    prepare(document, skipped);
    document.root().md(Some(&["head"])).to_string()
}

/// Splits a text into pieces of about `size` bytes.
fn split_into_pieces(text: &str, size: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(size));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// `true` if the elements of a page are nested deeper than `deepest`, not counting the levels that every tree has.
/// Iterates level by level instead of recursing.
fn is_deeper(document: &Document, deepest: usize) -> bool {
    let mut level = vec![document.root()];
    for _ in 0..deepest + ALWAYS {
        level = level.iter().flat_map(|node| node.children_it(false)).collect();
        if level.is_empty() {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_measured_on_the_tree_not_the_text() {
        for tag in [
            "<div>",
            "<div></x>",
            "<b></x>",
            "<div><!--</div>-->",
            "<div title='</div>'>",
            "<div><script></div></script>",
        ] {
            assert_eq!(html_to_markdown(&tag.repeat(103), &["style"], 100), Err(TooDeep(100)), "{tag}");
            assert!(
                html_to_markdown(&(tag.repeat(98) + "x"), &["style"], 100).unwrap().contains('x'),
                "{tag}"
            );
        }
        let flat = html_to_markdown(&"<p>x<li>y<br><div></div>".repeat(1_000), &["style"], 100);
        assert!(flat.is_ok(), "elements that close by themselves are not nested: {flat:?}");
    }

    #[test]
    fn parsing_stops_early_when_elements_are_only_opened() {
        let began = std::time::Instant::now();
        for tag in ["<div>", "<b></x>", "<div><table><td>"] {
            assert_eq!(html_to_markdown(&tag.repeat(150_000), &["style"], 500), Err(TooDeep(500)), "{tag}");
        }
        assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
    }

    #[test]
    fn pieces_concatenate_to_the_text() {
        for size in 4..9 {
            assert_eq!(split_into_pieces("aäö€😀 b", size).collect::<String>(), "aäö€😀 b");
        }
    }

    #[test]
    fn skipped_elements_are_left_out() {
        assert_eq!(html_to_markdown("<h1>a</h1><style>b</style>", &["style"], 10).unwrap().trim(), "# a");
    }
}
