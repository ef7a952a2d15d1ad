//! The walker over text in XML: WordprocessingML, DrawingML (slides, charts, diagrams) and OpenDocument. Paragraphs become lines
//! between blank lines, rows of tables lines of cells. It visits each node once and does not recurse.

use std::collections::{BTreeMap, BTreeSet};

use roxmltree::{Node, NodeId};

use crate::archive::{find_attribute, find_child};

pub(crate) const CELL_BORDER: &str = " | ";
/// The prefix of the OpenDocument namespaces. Its paragraphs contain text nodes directly.
const OPEN_DOCUMENT: &str = "urn:oasis:names:tc:opendocument:";
/// The maximum number of repetitions of a cell or blank with a repetition count.
const MAX_REPEATS: usize = 64;
/// The maximum size of a repeated cell, in bytes.
const MAX_REPEATED_TEXT: usize = 256;

/// The text of referenced parts (charts, diagrams, objects), by the id of the reference.
pub(crate) type ReferencedText = BTreeMap<String, String>;

/// Formats the paragraphs and tables below a node, with the notes after them.
pub(crate) fn format_blocks(root: Node<'_, '_>) -> String {
    let referenced = ReferencedText::new();
    let mut writer = BlockWriter::new(&referenced);
    writer.write(root);
    let BlockText { mut text, notes, comments } = writer.finish();
    notes.iter().chain(&comments).for_each(|note| text.push_str(&format!("{note}\n\n")));
    text
}

#[derive(Debug, Default)]
pub(crate) struct BlockText {
    pub text: String,
    /// Inline footnotes and endnotes (OpenDocument).
    pub notes: Vec<String>,
    /// Inline comments (OpenDocument).
    pub comments: Vec<String>,
}

/// An element that is not finished yet.
enum Block {
    Paragraph { heading: Option<usize>, text: String, is_open_document: bool },
    Row(Vec<String>),
    Cell { text: String, repeats: usize },
    Note { label: String, text: String },
    Comment { author: String, text: String },
}

enum FinishedBlock {
    Paragraph(String),
    Row(String),
}

pub(crate) struct BlockWriter<'r> {
    referenced: &'r ReferencedText,
    used: BTreeSet<String>,
    skips_placeholders: bool,
    open: Vec<(NodeId, Block)>,
    /// Finished blocks inside an open one, such as paragraphs of a text box. They are written after it.
    deferred: Vec<FinishedBlock>,
    is_table: bool,
    done: BlockText,
}

impl<'r> BlockWriter<'r> {
    pub fn new(referenced: &'r ReferencedText) -> Self {
        Self {
            referenced,
            used: BTreeSet::new(),
            skips_placeholders: false,
            open: Vec::new(),
            deferred: Vec::new(),
            is_table: false,
            done: BlockText::default(),
        }
    }

    /// Skips the placeholder shapes of a slide master or layout.
    pub fn without_placeholders(self) -> Self {
        Self { skips_placeholders: true, ..self }
    }

    /// Writes the referenced parts without a reference in the text.
    pub fn write_unused(&mut self) {
        let unused: Vec<&str> = self
            .referenced
            .iter()
            .filter(|(id, _)| !self.used.contains(*id))
            .map(|(_, text)| text.as_str())
            .collect();
        for text in unused {
            self.emit(FinishedBlock::Paragraph(text.trim_end().to_owned()));
        }
    }

    pub fn finish(self) -> BlockText {
        self.done
    }

    /// Writes the blocks below a node.
    pub fn write(&mut self, root: Node<'_, '_>) {
        let mut node = root;
        loop {
            if self.enter(node)
                && let Some(child) = node.first_child()
            {
                node = child;
                continue;
            }
            loop {
                self.leave(node.id());
                if node == root {
                    return;
                }
                if let Some(sibling) = node.next_sibling() {
                    node = sibling;
                    break;
                }
                let Some(parent) = node.parent() else { return };
                node = parent;
            }
        }
    }

    /// Returns `true` if the content of the node is to be visited.
    fn enter(&mut self, node: Node<'_, '_>) -> bool {
        if node.is_text() {
            self.append_open_document_text(node.text().unwrap_or_default());
            return false;
        }
        let namespace = node.tag_name().namespace().unwrap_or_default();
        let open_document = namespace.strip_prefix(OPEN_DOCUMENT);
        match (node.tag_name().name(), open_document) {
            // Fallbacks for older programs, deleted or moved text, and descriptions of shapes.
            ("Fallback" | "moveFrom" | "del", None)
            | ("tracked-changes" | "note-citation" | "page-number" | "binary-data" | "notes", Some(_)) => {
                return false;
            }
            ("title" | "desc", Some(kind)) if kind.contains("svg") => return false,
            ("sp", _) if self.skips_placeholders && is_placeholder(node) => return false,
            ("p" | "h", _) => self.open_block(node, new_paragraph(node, open_document.is_some())),
            ("tr" | "table-row", _) => self.open_block(node, Block::Row(Vec::new())),
            ("tc" | "table-cell" | "covered-table-cell", _) => {
                let repeats = count_attribute(node, "number-columns-repeated");
                self.open_block(node, Block::Cell { text: String::new(), repeats });
            }
            ("note", Some(_)) => self.open_note(node),
            ("annotation", Some(_)) => {
                self.open_block(node, Block::Comment { author: String::new(), text: String::new() });
            }
            ("creator", _) => self.set_author(node),
            ("t", None) => self.append(node.text().unwrap_or_default()),
            ("tab", None) if node.parent().is_some_and(|parent| parent.tag_name().name() == "r") => {
                self.append("\t");
            }
            ("ptab", None) | ("tab", Some(_)) => self.append("\t"),
            ("br" | "cr", None) | ("line-break", Some(_)) => self.append("\n"),
            ("s", Some(_)) => self.append(&" ".repeat(count_attribute(node, "c"))),
            ("noBreakHyphen", None) => self.append("-"),
            ("footnoteReference", None) => self.append(&note_mark("", node)),
            ("endnoteReference", None) => self.append(&note_mark("e", node)),
            ("textpath", None) => self.append(find_attribute(node, "string").unwrap_or_default()),
            ("chart" | "altChunk", None) => self.insert_referenced(find_attribute(node, "id")),
            ("relIds", None) => self.insert_referenced(find_attribute(node, "dm")),
            ("object", Some(_)) => self.insert_referenced(find_attribute(node, "href")),
            _ => {}
        }
        true
    }

    fn open_block(&mut self, node: Node<'_, '_>, block: Block) {
        self.open.push((node.id(), block));
    }

    fn open_note(&mut self, node: Node<'_, '_>) {
        let citation = find_child(node, "note-citation");
        let label = citation.and_then(|citation| citation.text()).unwrap_or("*").trim().to_owned();
        self.append(&format!("[^{label}]"));
        self.open_block(node, Block::Note { label, text: String::new() });
    }

    fn set_author(&mut self, node: Node<'_, '_>) {
        if let Some((_, Block::Comment { author, .. })) = self.open.last_mut() {
            *author = node.text().unwrap_or_default().trim().to_owned();
        }
    }

    /// Appends to the open paragraph.
    fn append(&mut self, appended: &str) {
        if let Some((_, Block::Paragraph { text, .. })) = self.open.last_mut() {
            text.push_str(appended);
        }
    }

    /// Appends to the open paragraph if it is an OpenDocument paragraph; collapses white space.
    fn append_open_document_text(&mut self, appended: &str) {
        let Some((_, Block::Paragraph { text, is_open_document: true, .. })) = self.open.last_mut() else {
            return;
        };
        for c in appended.chars() {
            match c {
                ' ' | '\t' | '\n' | '\r' if text.is_empty() || text.ends_with([' ', '\n', '\t']) => {}
                ' ' | '\t' | '\n' | '\r' => text.push(' '),
                c => text.push(c),
            }
        }
    }

    fn insert_referenced(&mut self, id: Option<&str>) {
        if let Some((id, text)) = id.and_then(|id| self.referenced.get_key_value(id))
            && self.used.insert(id.clone())
        {
            self.close_into_parent(FinishedBlock::Paragraph(text.trim_end().to_owned()));
        }
    }

    fn leave(&mut self, id: NodeId) {
        if self.open.last().is_none_or(|(open, _)| *open != id) {
            return;
        }
        let Some((_, block)) = self.open.pop() else { return };
        match block {
            Block::Paragraph { heading, text, .. } => {
                let text = match heading.filter(|_| !text.trim().is_empty()) {
                    Some(level) => format!("{} {}", "#".repeat(level.clamp(1, 6)), join_words(&text)),
                    None => text,
                };
                self.close_into_parent(FinishedBlock::Paragraph(text));
            }
            Block::Cell { text, repeats } => {
                let text = join_words(&text);
                match self.open.last_mut() {
                    Some((_, Block::Row(cells))) => {
                        let repeats = if text.len() > MAX_REPEATED_TEXT { 1 } else { repeats };
                        cells.extend(std::iter::repeat_n(text, repeats));
                    }
                    Some(_) | None => self.close_into_parent(FinishedBlock::Paragraph(text)),
                }
            }
            Block::Row(mut cells) => {
                let filled = cells.iter().rposition(|cell| !cell.is_empty()).map_or(0, |last| last + 1);
                // A sheet may have empty cells up to its last possible column.
                cells.truncate(filled);
                self.close_into_parent(FinishedBlock::Row(cells.join(CELL_BORDER)));
            }
            Block::Note { label, text } => self.done.notes.push(format!("[^{label}]: {}", join_words(&text))),
            Block::Comment { author, text } => self.done.comments.push(format_comment(&author, &text)),
        }
        if self.open.is_empty() {
            std::mem::take(&mut self.deferred).into_iter().for_each(|block| self.emit(block));
        }
    }

    /// Appends a finished block to the enclosing cell or note, or defers it until the outermost block ends.
    fn close_into_parent(&mut self, block: FinishedBlock) {
        match self.open.last_mut() {
            None => self.emit(block),
            Some((_, Block::Cell { text, .. } | Block::Note { text, .. } | Block::Comment { text, .. })) => {
                let (FinishedBlock::Paragraph(inner) | FinishedBlock::Row(inner)) = block;
                if !text.is_empty() {
                    text.push(' ');
                }
                text.push_str(&inner);
            }
            Some((_, Block::Paragraph { .. } | Block::Row(_))) => self.deferred.push(block),
        }
    }

    fn emit(&mut self, block: FinishedBlock) {
        let (text, is_row) = match &block {
            FinishedBlock::Paragraph(text) => (text, false),
            FinishedBlock::Row(text) => (text, true),
        };
        if text.trim().is_empty() {
            return;
        }
        if self.is_table && !is_row {
            self.done.text.push('\n');
        }
        self.is_table = is_row;
        self.done.text.push_str(text);
        self.done.text.push_str(if is_row { "\n" } else { "\n\n" });
    }
}

/// Formats a comment with its author.
pub(crate) fn format_comment(author: &str, text: &str) -> String {
    match author.trim() {
        "" => join_words(text),
        author => format!("{author}: {}", join_words(text)),
    }
}

pub(crate) fn join_words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn note_mark(kind: &str, node: Node<'_, '_>) -> String {
    find_attribute(node, "id").map(|id| format!("[^{kind}{id}]")).unwrap_or_default()
}

fn new_paragraph(node: Node<'_, '_>, is_open_document: bool) -> Block {
    let heading = match is_open_document {
        true => (node.tag_name().name() == "h").then(|| count_attribute(node, "outline-level")),
        false => heading_level(node),
    };
    Block::Paragraph { heading, text: String::new(), is_open_document }
}

fn heading_level(paragraph: Node<'_, '_>) -> Option<usize> {
    let style = find_child(find_child(paragraph, "pPr")?, "pStyle")?;
    match find_attribute(style, "val")?.to_lowercase().as_str() {
        "title" => Some(1),
        other => other.strip_prefix("heading")?.trim().parse().ok(),
    }
}

/// Returns a repetition count from an attribute; 1 without it.
fn count_attribute(node: Node<'_, '_>, name: &str) -> usize {
    let count = find_attribute(node, name).and_then(|text| text.parse().ok());
    count.unwrap_or(1).min(MAX_REPEATS)
}

/// `true` for a shape of a slide with `nvSpPr/nvPr/ph`.
fn is_placeholder(shape: Node<'_, '_>) -> bool {
    let properties = find_child(shape, "nvSpPr").and_then(|properties| find_child(properties, "nvPr"));
    properties.is_some_and(|properties| find_child(properties, "ph").is_some())
}

pub(crate) fn append_section(text: &mut String, heading: &str, section: &str) {
    if !section.trim().is_empty() {
        if !text.is_empty() && !text.ends_with("\n\n") {
            text.push('\n');
        }
        text.push_str(&format!("## {heading}\n\n{section}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(xml: &str, expected: &str) {
        let document = roxmltree::Document::parse(xml).unwrap();
        assert_eq!(format_blocks(document.root()), expected, "{xml}");
    }

    #[test]
    fn text_boxes_follow_their_paragraph_and_are_written_once() {
        check(
            "<d><p><r><t>a</t><x><Choice><txbxContent><p><r><t>box</t></r></p></txbxContent></Choice>\
             <Fallback><p><r><t>box</t></r></p></Fallback></x><t> b</t></r></p><p><r><t>c</t></r></p></d>",
            "a b\n\nbox\n\nc\n\n",
        );
        check(
            "<d><tr><tc><p><r><t>a</t><p><t>box</t></p></r></p><p><t>b</t></p></tc><tc/><tc><p><t>c</t></p></tc></tr></d>",
            "a b |  | c\n\nbox\n\n",
        );
    }

    #[test]
    fn deleted_and_moved_text_is_left_out() {
        check(
            "<d><p><del><t>a</t></del><moveFrom><t>b</t></moveFrom><moveTo><t>c</t></moveTo></p></d>",
            "c\n\n",
        );
    }

    #[test]
    fn open_document_has_text_notes_and_repeated_cells() {
        let names = "xmlns:text='urn:oasis:names:tc:opendocument:xmlns:text:1.0' \
                     xmlns:table='urn:oasis:names:tc:opendocument:xmlns:table:1.0'";
        check(
            &format!(
                "<d {names}><text:h text:outline-level='2'>A\n  b</text:h><text:p>c<text:s text:c='2'/>d<text:note>\
                 <text:note-citation>1</text:note-citation><text:p>n</text:p></text:note></text:p>\
                 <table:table-row><table:table-cell table:number-columns-repeated='2'><text:p>x</text:p></table:table-cell>\
                 <table:table-cell table:number-columns-repeated='16000'/></table:table-row></d>"
            ),
            "## A b\n\nc  d[^1]\n\nx | x\n[^1]: n\n\n",
        );
    }

    #[test]
    fn nesting_takes_no_stack() {
        let xml = format!("{}<t>x</t>{}", "<p>".repeat(900), "</p>".repeat(900));
        check(&xml, "x\n\n");
    }
}
