//! Markdown from HTML that strangers wrote. The converter calls itself for each level of the tree, and a stack that
//! overflows ends the whole process: hence the depth is measured on the tree itself, not guessed from the text, before
//! it is walked. Threads, and how large their stacks are, are the caller's.

use htmd::HtmlToMarkdown;
use html5ever::tendril::TendrilSink;
use markup5ever_rcdom::RcDom;

/// The levels that every tree has: the document, `html`, `body`, and a text at the end.
const ALWAYS: usize = 4;
/// How often the depth is looked at while a text is parsed, and in what pieces at least: the parser looks through all
/// elements that are open for each that is opened, so that it must not get far with a text that opens them only.
const LOOKS: usize = 32;
const PIECE: usize = 16 * 1024;

/// HTML that is not made into Markdown: its elements are nested deeper than this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is nested more than {0} deep")]
pub struct TooDeep(pub usize);

/// The Markdown of a page or a part of one, without the elements that `skipped` names, at
/// least one. Elements may be nested `deepest`
/// deep; an unoptimised build takes about 64 KiB of stack for each.
///
/// # Errors
/// They are nested deeper.
pub fn markdown(html: &str, skipped: &[&str], deepest: usize) -> Result<String, TooDeep> {
    let mut parser = html5ever::parse_document(RcDom::default(), html5ever::ParseOpts::default());
    for piece in pieces(html, PIECE.max(html.len() / LOOKS)) {
        parser.process(piece.into());
        let root = parser.tokenizer.sink.sink.document.clone();
        if is_deeper(vec![root], |node| node.children.borrow().clone(), deepest) {
            return Err(TooDeep(deepest));
        }
    }
    let converter = HtmlToMarkdown::builder().skip_tags(skipped.to_vec()).build();
    Ok(converter.tree_to_markdown(&parser.finish().document))
}

/// A text in pieces of about `size` bytes.
fn pieces(text: &str, size: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(size));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Whether the elements of a tree are nested deeper than `deepest`, beside what every tree has. Level by level, on a
/// stack of its own.
pub fn is_deeper<N>(root: Vec<N>, children: impl Fn(&N) -> Vec<N>, deepest: usize) -> bool {
    let mut level = root;
    for _ in 0..deepest + ALWAYS {
        level = level.iter().flat_map(&children).collect();
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
    fn depth_is_that_of_the_tree_whatever_the_text_pretends() {
        for tag in [
            "<div>",
            "<div></x>",
            "<b></x>",
            "<div><!--</div>-->",
            "<div title='</div>'>",
            "<div><script></div></script>",
        ] {
            assert_eq!(markdown(&tag.repeat(103), &["style"], 100), Err(TooDeep(100)), "{tag}");
            assert!(markdown(&(tag.repeat(98) + "x"), &["style"], 100).unwrap().contains('x'), "{tag}");
        }
        let flat = markdown(&"<p>x<li>y<br><div></div>".repeat(1_000), &["style"], 100);
        assert!(flat.is_ok(), "what ends by itself is not nested: {flat:?}");
    }

    #[test]
    fn a_text_that_opens_elements_only_is_not_parsed_to_its_end() {
        let began = std::time::Instant::now();
        for tag in ["<div>", "<b></x>", "<div><table><td>"] {
            assert_eq!(markdown(&tag.repeat(150_000), &["style"], 500), Err(TooDeep(500)), "{tag}");
        }
        assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
    }

    #[test]
    fn pieces_make_the_text_again() {
        for size in 4..9 {
            assert_eq!(pieces("aäö€😀 b", size).collect::<String>(), "aäö€😀 b");
        }
    }

    #[test]
    fn what_is_to_be_left_out_is() {
        assert_eq!(markdown("<h1>a</h1><style>b</style>", &["style"], 10).unwrap().trim(), "# a");
    }
}
