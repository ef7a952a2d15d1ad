//! Converts untrusted HTML to Markdown. The converter recurses once per level of the tree, and a stack overflow would
//! end the whole process: hence the depth is measured on the parsed tree before conversion, not guessed from the text.
//! The caller provides the thread and its stack size.
//!
//! Prepares a page for the Markdown converter of `dom_query`, which takes many elements for parts of a line, drops captions
//! and links without text, and writes only tables with rows of one length as tables.

use dom_query::{Document, NodeRef};
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

/// Elements that stand on lines of their own, but are parts of a line to the converter.
const BLOCKS: &str = "address, aside, caption, center, dd, details, dialog, dt, fieldset, figcaption, figure, footer, form, \
     header, hgroup, legend, main, nav, optgroup, option, search, summary, textarea";
/// Elements that are blocks to the converter, once those above are `div`.
const CONVERTED_BLOCKS: [&str; 16] = [
    "article",
    "blockquote",
    "div",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "li",
    "ol",
    "p",
    "pre",
    "section",
    "table",
];
/// The number of empty cells for each cell of a table that are added at most, so that the memory stays proportional.
const MAX_PADDING: usize = 8;

/// Removes the elements in `skipped`, and brings the rest into the form that the converter writes without loss. Takes time
/// proportional to the number of elements times their nesting, which the caller limits.
pub(crate) fn prepare(document: &Document, skipped: &[&str]) {
    document.select(&skipped.join(", ")).remove();
    for caption in document.select("table > caption").nodes() {
        if let Some(table) = caption.parent() {
            table.insert_before(caption);
        }
    }
    document.select(BLOCKS).rename("div");
    document.select("dir, menu").rename("ul");
    document.select("a:not([href])").rename("span");
    replace_with_text(document, "pre br", "\n");
    replace_with_text(document, "h1 br, h2 br, h3 br, h4 br, h5 br, h6 br", " ");
    document.select("pre").nodes().iter().for_each(prepare_preformatted);
    document.select("table").nodes().iter().for_each(prepare_table);
    document.select("code:not(pre code, code code)").nodes().iter().for_each(prepare_code);
    document.select("a").nodes().iter().for_each(prepare_link);
    document.select("h1, h2, h3, h4, h5, h6").nodes().iter().for_each(prepare_heading);
    let emphasised = document.select("b, em, i, strong");
    emphasised.nodes().iter().filter(|part| has_block(part)).for_each(|part| part.rename("div"));
}

fn replace_with_text(document: &Document, selector: &str, text: &str) {
    for node in document.select(selector).nodes() {
        node.replace_with(&node.tree.new_text(text));
    }
}

/// Shows the language of preformatted text, and the lines in it that begin and end by their elements alone.
fn prepare_preformatted(pre: &NodeRef<'_>) {
    let class = pre.class().unwrap_or_default();
    if let Some(language) = class.split_ascii_whitespace().find_map(|name| name.strip_prefix("language-")) {
        pre.set_attr("data-language", language);
    }
    for node in pre.descendants() {
        let is_line = ["div", "li", "p", "td", "th", "tr"].iter().any(|name| node.has_name(name));
        let is_listing = node.has_name("code") && node.text().contains('\n');
        if is_line || is_listing && node.next_sibling().is_some_and(|next| next.is_element()) {
            let before = node.prev_sibling().filter(|_| is_line);
            before.iter().chain([&node]).filter(|part| !part.text().ends_with('\n')).for_each(|part| {
                part.insert_after(&part.tree.new_text("\n"));
            });
        }
    }
}

/// Joins the lines of code that is a part of a line: the converter takes code of several lines for a block.
fn prepare_code(code: &NodeRef<'_>) {
    let text = code.text();
    let in_cell = || code.ancestors(None).iter().any(|node| node.has_name("td") || node.has_name("th"));
    if text.trim().lines().count() == 2 || in_cell() {
        code.set_text(text.split_whitespace().collect::<Vec<_>>().join(" "));
    }
}

/// Makes the rows of a table equally long, or, if it is one for the layout or very uneven, its cells blocks.
fn prepare_table(table: &NodeRef<'_>) {
    let rows = own_rows(table);
    let lengths: Vec<usize> = rows.iter().map(|row| row.element_children().len()).collect();
    let (cells, longest) = (lengths.iter().sum::<usize>(), lengths.iter().copied().max().unwrap_or(0));
    let missing = lengths.len() * longest - cells;
    if table.descendants_it().any(|node| node.has_name("table") || node.has_name("pre"))
        || missing > cells * MAX_PADDING
    {
        let parts = rows.iter().flat_map(|row| row.element_children());
        parts.for_each(|cell| cell.rename("div"));
        rows.iter().chain([table]).for_each(|node| node.rename("div"));
        return;
    }
    for (row, length) in rows.iter().zip(lengths) {
        (length..longest).for_each(|_| row.append_child(&row.tree.new_element("td")));
    }
    if table.parent().is_some_and(|parent| parent.has_name("li")) {
        // The converter writes a table as text if it is directly in an item.
        table.wrap_node(&table.tree.new_element("div"));
    }
}

fn own_rows<'a>(table: &NodeRef<'a>) -> Vec<NodeRef<'a>> {
    let parts = table.element_children().into_iter();
    parts
        .flat_map(|part| if part.has_name("tr") { vec![part] } else { part.element_children() })
        .filter(|row| row.has_name("tr"))
        .collect()
}

/// Shows the target of a link without text. If a link has blocks, moves it to the first text in them.
fn prepare_link(link: &NodeRef<'_>) {
    let Some(target) = link.attr("href") else { return };
    let Some(text) = link.descendants_it().find(|node| node.is_nonempty_text()) else {
        if !target.starts_with('#') {
            link.set_text(link.attr("aria-label").or_else(|| link.attr("title")).unwrap_or(target));
        }
        return;
    };
    if !has_block(link) {
        return;
    }
    link.rename("div");
    link.remove_attr("href");
    let mut first = text;
    while let Some(parent) = first.parent().filter(|parent| !is_block(parent)) {
        first = parent;
    }
    let moved = link.tree.new_element("a");
    moved.set_attr("href", &target);
    first.insert_before(&moved);
    let mut next = Some(first);
    while let Some(node) = next.filter(|node| !is_block(node) && !has_block(node)) {
        next = node.next_sibling();
        moved.append_child(&node);
    }
}

fn is_block(node: &NodeRef<'_>) -> bool {
    CONVERTED_BLOCKS.iter().any(|name| node.has_name(name))
}

fn has_block(node: &NodeRef<'_>) -> bool {
    node.descendants_it().any(|node| is_block(&node))
}

/// Makes the block at the beginning of a heading a part of its line, which the converter would end before it.
fn prepare_heading(heading: &NodeRef<'_>) {
    let mut node = *heading;
    while let Some(first) = first_content(&node) {
        if first.has_name("div") || first.has_name("p") {
            first.rename("span");
            first.insert_after(&first.tree.new_text(" "));
        }
        node = first;
    }
}

fn first_content<'a>(node: &NodeRef<'a>) -> Option<NodeRef<'a>> {
    node.children_it(false).find(|child| !child.is_text() || child.is_nonempty_text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::markdown::html_to_markdown;

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

    fn check(html: &str, expected: &str) {
        let lines = html_to_markdown(html, &["img", "script", "svg"], 100).unwrap();
        let lines: Vec<&str> = lines.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        assert_eq!(lines.join("\n"), expected, "{html}");
    }

    #[test]
    fn elements_on_lines_of_their_own_are_not_joined() {
        check("<dl><dt>a<dd>b</dl><nav>c</nav><header>d</header><menu><li>e</menu>", "a\nb\nc\nd\n- e");
        check(
            "<select><option>a<option>b</select><figure>c<figcaption>d</figcaption></figure>",
            "a\nb\nc\nd",
        );
        check("<b>a<p>b</p></b><i>c</i>", "a\nb\n*c*");
    }

    #[test]
    fn tables_keep_captions_rows_and_cells() {
        check(
            "<table><caption>c</caption><tr><th>a<th>b<tr><td colspan=2>1<tr><th>2<td><code>3\n4\n5</code></table>",
            "c\n| a | b |\n| - | - |\n| 1 |  |\n| 2 | `3 4 5` |",
        );
        check("<table><tr><td><a name=x>a<br>b</a><td>c</table>", "|   |   |\n| - | - |\n| a  <br>b | c |");
        check("<ul><li>a<table><tr><th>b<tr><td>1</table></ul>", "- a\n| b |\n| - |\n| 1 |");
    }

    #[test]
    fn cells_of_layout_tables_are_blocks() {
        check("<table><tr><td>a<td><table><tr><th>b<tr><td>1</table></table>", "a\n| b |\n| - |\n| 1 |");
        check("<table><tr><td>1\n2<td><pre>a\n  b</pre></table>", "1 2\n```\na\n  b\n```");
        let uneven = format!("<table><tr>{}{}</table>", "<td>a".repeat(20), "<tr><td>b".repeat(20));
        check(&uneven, &[["a"; 20], ["b"; 20]].concat().join("\n"));
    }

    #[test]
    fn links_keep_targets_and_the_blocks_in_them() {
        check("<a href=/u><h3>a</h3><p>b <b>c</b></p></a>", "### [a](/u)\nb **c**");
        check("<a href=/u>\n<div><svg>x</svg><i>a</i> b<ul><li>c</ul></div></a>", "[a b](/u)\n- c");
        check("<a href=/u><img src=i></a> <a href=/v title=t><svg>s</svg></a>", "[/u](/u) [t](/v \"t\")");
        check("a<a href='#b'></a> <a name=c><p>d</p></a>", "a\nd");
    }

    #[test]
    fn lines_of_code_are_kept() {
        check("<pre>a<br> b<div>c</div><div>d</div></pre>", "```\na\n b\nc\nd\n```");
        check("<pre class='x language-rs'><code>a\nb</code><code>c</code></pre>", "```rs\na\nb\nc\n```");
        check("<p>a <code>b\nc</code> d</p>", "a `b c` d");
    }

    #[test]
    fn headings_are_one_line() {
        check("<h1><div>a</div></h1><h2>b<br>c</h2>", "# a\n## b c");
        check("<h2><a href=/u><div>a</div></a><span>b</span></h2>", "## [a](/u) b");
    }
}
