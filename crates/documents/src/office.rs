//! Text of office documents. In DOCX and PPTX files paragraphs become lines between blank lines, rows of tables become lines of cells.
//! In workbooks each sheet is a part, with a line for each row that has values.

use std::io::Cursor;

use calamine::{Data, Error, ExcelDateTime, Range, Reader, XlsError, XlsxError, open_workbook_auto_from_rs};
use roxmltree::Node;

use crate::archive::{Archive, find_attribute, find_elements, has_name, parse_xml, resolve_target};

use crate::{ExtractError, ExtractedText, TextPart};

const TEXT_BODY: &str = "word/document.xml";
/// The parts of a text document that follow its body.
const NOTES: [(&str, &str); 2] = [("word/footnotes.xml", "Footnotes"), ("word/endnotes.xml", "Endnotes")];
const PRESENTATION: &str = "ppt/presentation.xml";
pub(crate) const CELL_BORDER: &str = " | ";

/// Extracts a text document. It has no pages: where they begin is up to the program that shows it.
pub(crate) fn extract_text_document(bytes: &[u8]) -> Result<ExtractedText, ExtractError> {
    let mut archive = Archive::open(bytes)?;
    let title = archive.read_title()?;
    let body = archive.read_required_part(TEXT_BODY)?;
    let mut text = format_blocks(parse_xml(TEXT_BODY, &body)?.root());
    for (part, heading) in NOTES {
        let Some(notes) = archive.read_part(part)? else { continue };
        let notes = format_blocks(parse_xml(part, &notes)?.root());
        if !notes.trim().is_empty() {
            text.push_str(&format!("## {heading}\n\n{notes}"));
        }
    }
    Ok(ExtractedText::from_single_text(title, text))
}

/// Extracts slides in their order, each with its notes.
pub(crate) fn extract_slides(bytes: &[u8]) -> Result<ExtractedText, ExtractError> {
    let mut archive = Archive::open(bytes)?;
    let title = archive.read_title()?;
    let mut parts = Vec::new();
    for (at, slide) in list_slides(&mut archive)?.iter().enumerate() {
        let body = archive.read_required_part(slide)?;
        let mut text = format_blocks(parse_xml(slide, &body)?.root());
        if let Some((_, notes)) =
            list_links(&mut archive, slide)?.into_iter().find(|(_, target)| target.contains("notesSlide"))
            && let Some(body) = archive.read_part(&notes)?
        {
            let notes = format_blocks(parse_xml(&notes, &body)?.root());
            if !notes.trim().is_empty() {
                text.push_str(&format!("Notes:\n\n{notes}"));
            }
        }
        parts.push(TextPart { place: Some(format!("slide {}", at + 1)), text });
    }
    Ok(ExtractedText { title, parts })
}

/// Lists the parts of the slides in the order of the presentation.
fn list_slides(archive: &mut Archive<'_>) -> Result<Vec<String>, ExtractError> {
    let presentation = archive.read_required_part(PRESENTATION)?;
    let presentation = parse_xml(PRESENTATION, &presentation)?;
    let links = list_links(archive, PRESENTATION)?;
    let relation = |node: Node<'_, '_>| {
        let namespaced = node.attributes().find(|one| one.name() == "id" && one.namespace().is_some());
        namespaced.map(|attribute| attribute.value().to_owned())
    };
    let ids = find_elements(presentation.root(), "sldId").filter_map(relation);
    Ok(ids
        .filter_map(|id| links.iter().find(|(own, _)| *own == id).map(|(_, target)| target.clone()))
        .collect())
}

/// Lists the links of a part: their ids and targets.
fn list_links(archive: &mut Archive<'_>, part: &str) -> Result<Vec<(String, String)>, ExtractError> {
    let (folder, name) = part.rsplit_once('/').unwrap_or(("", part));
    let path = format!("{folder}/_rels/{name}.rels");
    let Some(text) = archive.read_part(&path)? else { return Ok(Vec::new()) };
    let links = parse_xml(&path, &text)?;
    let links = find_elements(links.root(), "Relationship").filter_map(|link| {
        let (id, target) = (find_attribute(link, "Id")?, find_attribute(link, "Target")?);
        Some((id.to_owned(), resolve_target(part, target)))
    });
    Ok(links.collect())
}

/// Formats the paragraphs and tables below a node.
fn format_blocks(root: Node<'_, '_>) -> String {
    let mut text = String::new();
    let mut is_table = false;
    let mut walk = BlockWalk { next: Some(root), root };
    while let Some(node) = walk.next_block() {
        let block = if has_name(node, "tr") { format_row(node) } else { format_paragraph(node) };
        if block.trim().is_empty() {
            continue;
        }
        if is_table && !has_name(node, "tr") {
            text.push('\n');
        }
        is_table = has_name(node, "tr");
        text.push_str(&block);
        text.push_str(if is_table { "\n" } else { "\n\n" });
    }
    text
}

/// Walks over the outermost paragraphs and rows, in document order, without recursion. The stand-ins that a document has for
/// older programs are skipped.
struct BlockWalk<'a, 'i> {
    next: Option<Node<'a, 'i>>,
    root: Node<'a, 'i>,
}

impl<'a, 'i> BlockWalk<'a, 'i> {
    fn next_block(&mut self) -> Option<Node<'a, 'i>> {
        while let Some(node) = self.next {
            let is_block = has_name(node, "p") || has_name(node, "tr");
            let inner = node.first_child().filter(|_| !is_block && !has_name(node, "Fallback"));
            self.next = inner.or_else(|| self.node_after(node));
            if is_block {
                return Some(node);
            }
        }
        None
    }

    /// Returns the node after a node and everything within it.
    fn node_after(&self, node: Node<'a, 'i>) -> Option<Node<'a, 'i>> {
        let mut node = node;
        loop {
            if node == self.root {
                return None;
            }
            match node.next_sibling() {
                Some(sibling) => return Some(sibling),
                None => node = node.parent()?,
            }
        }
    }
}

fn format_row(row: Node<'_, '_>) -> String {
    let cell = |cell: Node<'_, '_>| format_inline(cell).split_whitespace().collect::<Vec<_>>().join(" ");
    let cells = row.children().filter(|node| has_name(*node, "tc")).map(cell);
    cells.collect::<Vec<_>>().join(CELL_BORDER)
}

fn format_paragraph(paragraph: Node<'_, '_>) -> String {
    let style = find_elements(paragraph, "pStyle").find_map(|style| find_attribute(style, "val"));
    let level = style.and_then(|style| match style.to_lowercase().as_str() {
        "title" => Some(1),
        other => other.strip_prefix("heading")?.trim().parse::<usize>().ok(),
    });
    let text = format_inline(paragraph);
    match level {
        Some(level) if !text.trim().is_empty() => {
            format!("{} {}", "#".repeat(level.clamp(1, 6)), text.trim())
        }
        Some(_) | None => text,
    }
}

fn format_inline(node: Node<'_, '_>) -> String {
    let mut text = String::new();
    for inner in node.descendants() {
        match inner.tag_name().name() {
            "t" => text.push_str(inner.text().unwrap_or_default()),
            "tab" if inner.parent().is_some_and(|parent| has_name(parent, "r")) => text.push('\t'),
            "br" | "cr" => text.push('\n'),
            // Between the paragraphs of a cell.
            "p" if !text.is_empty() => text.push(' '),
            _ => {}
        }
    }
    text
}

pub(crate) fn extract_sheets(bytes: &[u8]) -> Result<ExtractedText, ExtractError> {
    let title = match bytes.starts_with(b"PK") {
        // The parser of workbooks has no limit of its own on what it unpacks.
        true => Archive::open(bytes)?.read_title()?,
        false => None,
    };
    let mut workbook = open_workbook_auto_from_rs(Cursor::new(bytes)).map_err(to_extract_error)?;
    let mut parts = Vec::new();
    for name in workbook.sheet_names() {
        // A sheet may be a chart, which has no cells.
        let Ok(range) = workbook.worksheet_range(&name) else { continue };
        parts.push(TextPart { place: Some(format!("sheet {name}")), text: format_range(&range) });
    }
    Ok(ExtractedText { title, parts })
}

fn format_range(range: &Range<Data>) -> String {
    let mut text = String::new();
    for row in range.rows() {
        let cells: Vec<String> = row.iter().map(format_cell).collect();
        let line = cells.join(CELL_BORDER);
        let line = line.trim_end_matches([' ', '|']);
        if !line.is_empty() {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

fn format_cell(cell: &Data) -> String {
    if let Data::DateTime(time) = cell
        && time.is_datetime()
    {
        return format_time(time);
    }
    cell.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn format_time(time: &ExcelDateTime) -> String {
    let (year, month, day, hour, minute, second, _) = time.to_ymd_hms_milli();
    match (hour, minute, second) {
        (0, 0, 0) => format!("{year:04}-{month:02}-{day:02}"),
        _ => format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}"),
    }
}

fn to_extract_error(error: Error) -> ExtractError {
    let needs_password = matches!(error, Error::Xls(XlsError::Password) | Error::Xlsx(XlsxError::Password));
    if needs_password { ExtractError::Encrypted } else { ExtractError::Damaged(error.to_string()) }
}
