//! Text of OpenDocument files: text documents, presentations, drawings, and flat ones, which are a single XML document.

use encoding_rs::UTF_8;
use roxmltree::{Document, Node};

use crate::archive::{Archive, find_attribute, find_child, find_elements, find_title, has_name, parse_xml};
use crate::blocks::{BlockText, BlockWriter, ReferencedText, append_section, format_blocks};
use crate::{ExtractError, ExtractedText, TextPart};

const CONTENT: &str = "content.xml";
const STYLES: &str = "styles.xml";
const MANIFEST: &str = "META-INF/manifest.xml";
/// The elements of a page style that hold the text of headers and footers.
const EDGES: [&str; 6] = ["header", "header-first", "header-left", "footer", "footer-first", "footer-left"];

/// Extracts an OpenDocument file that is packed or flat.
pub(crate) fn extract_open_document(bytes: &[u8]) -> Result<ExtractedText, ExtractError> {
    if !bytes.starts_with(b"PK") {
        let xml = UTF_8.decode(bytes).0;
        let document = parse_xml("of XML", &xml)?;
        let parts = format_body(&document, &document, &ReferencedText::new())?;
        return Ok(ExtractedText { title: find_title(document.root()), parts });
    }
    let mut archive = Archive::open(bytes)?;
    if let Some(manifest) = archive.read_part(MANIFEST)?
        && find_elements(parse_xml(MANIFEST, &manifest)?.root(), "encryption-data").next().is_some()
    {
        return Err(ExtractError::Encrypted);
    }
    let title = archive.read_title("meta.xml")?;
    let content = archive.read_required_part(CONTENT)?;
    let content = parse_xml(CONTENT, &content)?;
    let styles = archive.read_part(STYLES)?.unwrap_or_else(|| "<styles/>".into());
    let styles = parse_xml(STYLES, &styles)?;
    let referenced = read_objects(&mut archive, &content)?;
    Ok(ExtractedText { title, parts: format_body(&content, &styles, &referenced)? })
}

/// Reads the charts and other objects in a document.
fn read_objects(archive: &mut Archive<'_>, content: &Document<'_>) -> Result<ReferencedText, ExtractError> {
    let mut objects = ReferencedText::new();
    for object in find_elements(content.root(), "object") {
        let Some(target) = find_attribute(object, "href") else { continue };
        let part = format!("{}/{CONTENT}", target.trim_start_matches("./").trim_end_matches('/'));
        let Some(xml) = archive.read_part(&part)? else { continue };
        // Formulas have a document type, which is refused.
        if let Ok(object) = parse_xml(&part, &xml) {
            objects.insert(target.to_owned(), format_blocks(object.root()));
        }
    }
    Ok(objects)
}

fn format_body(
    content: &Document<'_>,
    styles: &Document<'_>,
    referenced: &ReferencedText,
) -> Result<Vec<TextPart>, ExtractError> {
    let body = find_elements(content.root(), "body").next().and_then(|body| body.first_element_child());
    let body = body.ok_or_else(|| ExtractError::Damaged("it has no body".into()))?;
    Ok(match body.tag_name().name() {
        "presentation" => {
            [format_pages(body, "slide", referenced), format_masters(styles, "slide master")].concat()
        }
        "drawing" => [format_pages(body, "page", referenced), format_masters(styles, "page master")].concat(),
        "spreadsheet" => format_tables(body, referenced),
        _ => vec![format_text_document(body, styles, referenced)],
    })
}

fn format_text_document(body: Node<'_, '_>, styles: &Document<'_>, referenced: &ReferencedText) -> TextPart {
    let BlockText { mut text, notes, comments } = write_blocks(body, referenced);
    let mut edges = Vec::new();
    for page in find_elements(styles.root(), "master-page") {
        for edge in page.children().filter(|child| EDGES.contains(&child.tag_name().name())) {
            let edge = format_blocks(edge);
            if !edges.contains(&edge) {
                edges.push(edge);
            }
        }
    }
    append_section(&mut text, "Headers and footers", &edges.concat());
    append_section(&mut text, "Footnotes", &join_blocks(&notes));
    append_section(&mut text, "Comments", &join_blocks(&comments));
    TextPart { place: None, text }
}

/// Formats slides, or the pages of a drawing.
fn format_pages(body: Node<'_, '_>, name: &str, referenced: &ReferencedText) -> Vec<TextPart> {
    let pages = body.children().filter(|child| has_name(*child, "page"));
    let part = |(at, page): (usize, Node<'_, '_>)| {
        let BlockText { mut text, comments, .. } = write_blocks(page, referenced);
        for (kind, attribute) in [("header-decl", "use-header-name"), ("footer-decl", "use-footer-name")] {
            let used = find_attribute(page, attribute);
            let is_used =
                |edge: &Node<'_, '_>| has_name(*edge, kind) && find_attribute(*edge, "name") == used;
            let edge = used.and_then(|_| body.children().find(is_used)).and_then(|edge| edge.text());
            text.push_str(&join_blocks(edge.as_slice()));
        }
        let notes = find_child(page, "notes").map(|notes| {
            notes.children().map(|child| write_blocks(child, referenced).text).collect::<String>()
        });
        for (heading, section) in [("Comments", join_blocks(&comments)), ("Notes", notes.unwrap_or_default())]
        {
            if !section.trim().is_empty() {
                text.push_str(&format!("{heading}:\n\n{section}"));
            }
        }
        TextPart { place: Some(format!("{name} {}", at + 1)), text }
    };
    pages.enumerate().map(part).collect()
}

/// Formats what is shown on each slide or page; nothing if there is no such text.
fn format_masters(styles: &Document<'_>, name: &str) -> Vec<TextPart> {
    let referenced = ReferencedText::new();
    let pages = find_elements(styles.root(), "master-page");
    let text: String = pages.map(|page| write_blocks(page, &referenced).text).collect();
    let part = TextPart { place: Some(name.to_owned()), text };
    if part.text.is_empty() { Vec::new() } else { vec![part] }
}

/// Formats the sheets of a flat workbook.
fn format_tables(body: Node<'_, '_>, referenced: &ReferencedText) -> Vec<TextPart> {
    let sheets = body.children().filter(|child| has_name(*child, "table"));
    let part = |sheet: Node<'_, '_>| TextPart {
        place: find_attribute(sheet, "name").map(|name| format!("sheet {name}")),
        text: write_blocks(sheet, referenced).text,
    };
    sheets.map(part).collect()
}

fn write_blocks(node: Node<'_, '_>, referenced: &ReferencedText) -> BlockText {
    let mut writer = BlockWriter::new(referenced);
    writer.write(node);
    writer.finish()
}

fn join_blocks<T: AsRef<str>>(blocks: &[T]) -> String {
    blocks.iter().map(|block| format!("{}\n\n", block.as_ref())).collect()
}
