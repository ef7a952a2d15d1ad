//! Text of office documents of Microsoft (Office Open XML): the body of a text document or slide, and the parts to which it
//! refers: charts, diagrams (SmartArt), notes, comments, headers and footers.

use std::collections::{BTreeMap, BTreeSet};

use encoding_rs::UTF_8;
use roxmltree::Node;

use crate::archive::{Archive, find_attribute, find_elements, find_title, parse_xml, resolve_target};
use crate::blocks::{BlockWriter, ReferencedText, append_section, format_blocks, format_comment, join_words};
use crate::chart::format_chart;
use crate::mail::extract_message;
use crate::markdown::html_to_markdown;
use crate::{ExtractError, ExtractedText, TextPart, rich_text};

/// The part with title and author.
pub(crate) const PROPERTIES: &str = "docProps/core.xml";
const TEXT_BODY: &str = "word/document.xml";
const PRESENTATION: &str = "ppt/presentation.xml";
/// The maximum nesting of HTML that is a part of a document.
const MAX_NESTING: usize = 500;

/// A link from one part to another.
struct Link {
    id: String,
    /// The last word of its type, such as `chart`.
    kind: String,
    target: String,
}

/// Extracts a text document. It has no pages: where they begin is up to the program that shows it.
pub(crate) fn extract_text_document(bytes: &[u8]) -> Result<ExtractedText, ExtractError> {
    if !bytes.starts_with(b"PK") {
        return extract_flat_text_document(bytes);
    }
    let mut archive = Archive::open(bytes)?;
    let title = archive.read_title(PROPERTIES)?;
    let body = find_main_part(&mut archive, TEXT_BODY)?;
    let mut text = read_blocks(&mut archive, &body)?;
    let links = list_links(&mut archive, &body)?;
    let targets = |kind: &str| -> Vec<String> {
        links.iter().filter(|link| link.kind == kind).map(|link| link.target.clone()).collect()
    };
    let mut edges = Vec::new();
    for part in [targets("header"), targets("footer")].concat() {
        let edge = read_blocks(&mut archive, &part)?;
        // Each section has its own, which are mostly the same.
        if !edges.contains(&edge) {
            edges.push(edge);
        }
    }
    let mut notes = [("Footnotes", Vec::new()), ("Endnotes", Vec::new()), ("Comments", Vec::new())];
    for (kind, at, label) in [("footnotes", 0, ""), ("endnotes", 1, "e")] {
        for part in targets(kind) {
            notes[at].1.extend(read_notes(&mut archive, &part, label)?);
        }
    }
    for part in targets("comments") {
        notes[2].1.extend(read_comments(&mut archive, &part, &BTreeMap::new())?);
    }
    append_section(&mut text, "Headers and footers", &edges.concat());
    for (heading, notes) in notes {
        append_section(
            &mut text,
            heading,
            &notes.iter().map(|note| format!("{note}\n\n")).collect::<String>(),
        );
    }
    Ok(ExtractedText::from_single_text(title, text))
}

/// Extracts a text document that is a single XML document.
fn extract_flat_text_document(bytes: &[u8]) -> Result<ExtractedText, ExtractError> {
    let xml = UTF_8.decode(bytes).0;
    let document = parse_xml("of XML", &xml)?;
    let text = find_elements(document.root(), "body").map(format_blocks).collect();
    Ok(ExtractedText::from_single_text(find_title(document.root()), text))
}

/// Extracts slides in their order, each with its comments and notes, and then the text of the slide masters that they use.
pub(crate) fn extract_slides(bytes: &[u8]) -> Result<ExtractedText, ExtractError> {
    let mut archive = Archive::open(bytes)?;
    let title = archive.read_title(PROPERTIES)?;
    let presentation = find_main_part(&mut archive, PRESENTATION)?;
    let links = list_links(&mut archive, &presentation)?;
    let authors = read_authors(&mut archive, &links)?;
    let mut parts = Vec::new();
    let mut layouts = BTreeSet::new();
    for (at, slide) in list_slides(&mut archive, &presentation, &links)?.iter().enumerate() {
        let mut text = read_blocks(&mut archive, slide)?;
        let (mut comments, mut notes) = (Vec::new(), String::new());
        for link in list_links(&mut archive, slide)? {
            match link.kind.as_str() {
                "comments" => comments.extend(read_comments(&mut archive, &link.target, &authors)?),
                "notesSlide" => notes = read_blocks(&mut archive, &link.target)?,
                "slideLayout" => drop(layouts.insert(link.target)),
                _ => {}
            }
        }
        for (heading, section) in [("Comments", comments.join("\n\n")), ("Notes", notes)] {
            if !section.trim().is_empty() {
                text.push_str(&format!("{heading}:\n\n{}\n\n", section.trim_end()));
            }
        }
        parts.push(TextPart { place: Some(format!("slide {}", at + 1)), text });
    }
    let text = read_masters(&mut archive, layouts)?;
    if !text.is_empty() {
        parts.push(TextPart { place: Some("slide master".into()), text });
    }
    Ok(ExtractedText { title, parts })
}

/// Reads what layouts and their masters show on each slide, without their placeholders.
fn read_masters(archive: &mut Archive<'_>, mut parts: BTreeSet<String>) -> Result<String, ExtractError> {
    for layout in parts.clone() {
        let links = list_links(archive, &layout)?;
        parts.extend(links.into_iter().filter(|link| link.kind == "slideMaster").map(|link| link.target));
    }
    let mut text = String::new();
    for part in parts {
        let Some(xml) = archive.read_part(&part)? else { continue };
        let referenced = ReferencedText::new();
        let mut writer = BlockWriter::new(&referenced).without_placeholders();
        writer.write(parse_xml(&part, &xml)?.root());
        text.push_str(&writer.finish().text);
    }
    Ok(text)
}

/// Returns the part to which the package refers as its document.
fn find_main_part(archive: &mut Archive<'_>, usual: &str) -> Result<String, ExtractError> {
    let links = list_links(archive, "")?;
    let main = links.into_iter().find(|link| link.kind == "officeDocument").map(|link| link.target);
    Ok(main.unwrap_or_else(|| usual.to_owned()))
}

/// Lists the parts of the slides in the order of the presentation.
fn list_slides(
    archive: &mut Archive<'_>,
    presentation: &str,
    links: &[Link],
) -> Result<Vec<String>, ExtractError> {
    let text = archive.read_required_part(presentation)?;
    let document = parse_xml(presentation, &text)?;
    let relation = |node: Node<'_, '_>| {
        let namespaced = node.attributes().find(|one| one.name() == "id" && one.namespace().is_some());
        namespaced.map(|attribute| attribute.value().to_owned())
    };
    let ids = find_elements(document.root(), "sldId").filter_map(relation);
    Ok(ids.filter_map(|id| links.iter().find(|link| link.id == id).map(|link| link.target.clone())).collect())
}

/// Lists the links of a part, or of the package if `part` is empty. Links out of the package are left out.
fn list_links(archive: &mut Archive<'_>, part: &str) -> Result<Vec<Link>, ExtractError> {
    let (folder, name) =
        part.rsplit_once('/').map_or((String::new(), part), |(folder, name)| (format!("{folder}/"), name));
    let path = format!("{folder}_rels/{name}.rels");
    let Some(text) = archive.read_part(&path)? else { return Ok(Vec::new()) };
    let links = parse_xml(&path, &text)?;
    let links = find_elements(links.root(), "Relationship").filter_map(|link| {
        if find_attribute(link, "TargetMode") == Some("External") {
            return None;
        }
        let kind = find_attribute(link, "Type")?.rsplit('/').next().unwrap_or_default();
        Some(Link {
            id: find_attribute(link, "Id")?.to_owned(),
            kind: kind.to_owned(),
            target: resolve_target(part, find_attribute(link, "Target")?),
        })
    });
    Ok(links.collect())
}

/// Reads the blocks of a part, with the charts and diagrams to which it refers.
fn read_blocks(archive: &mut Archive<'_>, part: &str) -> Result<String, ExtractError> {
    let mut referenced = ReferencedText::new();
    for Link { id, kind, target } in list_links(archive, part)? {
        let text = match kind.as_str() {
            "chart" | "chartEx" => read_chart(archive, &target)?,
            "diagramData" => read_part_blocks(archive, &target)?,
            "aFChunk" => read_foreign_text(archive, &target)?,
            _ => continue,
        };
        referenced.insert(id, text);
    }
    let xml = archive.read_required_part(part)?;
    let mut writer = BlockWriter::new(&referenced);
    writer.write(parse_xml(part, &xml)?.root());
    writer.write_unused();
    Ok(writer.finish().text)
}

/// Reads the blocks of a part, without those to which it refers; nothing if there is no such part.
fn read_part_blocks(archive: &mut Archive<'_>, part: &str) -> Result<String, ExtractError> {
    let Some(xml) = archive.read_part(part)? else { return Ok(String::new()) };
    Ok(format_blocks(parse_xml(part, &xml)?.root()))
}

/// Reads a chart, and the shapes that are drawn over it.
fn read_chart(archive: &mut Archive<'_>, part: &str) -> Result<String, ExtractError> {
    let Some(xml) = archive.read_part(part)? else { return Ok(String::new()) };
    let mut text = format_chart(parse_xml(part, &xml)?.root());
    for link in list_links(archive, part)?.into_iter().filter(|link| link.kind == "chartUserShapes") {
        text.push_str(&read_part_blocks(archive, &link.target)?);
    }
    Ok(text)
}

/// Reads a part of a document that is a file of another format: HTML, MHTML, RTF or plain text.
fn read_foreign_text(archive: &mut Archive<'_>, part: &str) -> Result<String, ExtractError> {
    let Some(bytes) = archive.read_bytes(part)? else { return Ok(String::new()) };
    let ending = part.rsplit_once('.').map_or(String::new(), |(_, ending)| ending.to_lowercase());
    let text = UTF_8.decode(&bytes).0;
    match ending.as_str() {
        "html" | "htm" | "xhtml" => {
            html_to_markdown(&text, &["script", "style", "title", "img"], MAX_NESTING)
                .map_err(|fault| ExtractError::Damaged(format!("its part {part}: {fault}")))
        }
        "rtf" => rich_text::format_rich_text(&bytes).map(|read| read.text),
        "mht" | "mhtml" => {
            extract_message(&bytes).map(|message| message.parts.into_iter().map(|part| part.text).collect())
        }
        "txt" => Ok(text.into_owned()),
        _ => Ok(String::new()),
    }
}

/// Reads footnotes or endnotes, each with the mark that it has in the text.
fn read_notes(archive: &mut Archive<'_>, part: &str, label: &str) -> Result<Vec<String>, ExtractError> {
    let Some(xml) = archive.read_part(part)? else { return Ok(Vec::new()) };
    let document = parse_xml(part, &xml)?;
    let is_note = |node: &Node<'_, '_>| {
        let kind = find_attribute(*node, "type").unwrap_or("normal");
        ["footnote", "endnote"].contains(&node.tag_name().name()) && kind == "normal"
    };
    let notes = document.root().descendants().filter(is_note).filter_map(|note| {
        let text = join_words(&format_blocks(note));
        let id = find_attribute(note, "id").unwrap_or("*");
        (!text.is_empty()).then(|| format!("[^{label}{id}]: {text}"))
    });
    Ok(notes.collect())
}

/// Reads the comments of a text document or slide, each with its author.
fn read_comments(
    archive: &mut Archive<'_>,
    part: &str,
    authors: &BTreeMap<String, String>,
) -> Result<Vec<String>, ExtractError> {
    let Some(xml) = archive.read_part(part)? else { return Ok(Vec::new()) };
    let document = parse_xml(part, &xml)?;
    let is_comment = |node: &Node<'_, '_>| ["comment", "cm", "reply"].contains(&node.tag_name().name());
    let comments = document.root().descendants().filter(is_comment).filter_map(|comment| {
        let author = find_attribute(comment, "author");
        let id = find_attribute(comment, "authorId");
        let author = author.or_else(|| id.and_then(|id| authors.get(id)).map(String::as_str));
        let text =
            match comment.children().find(|child| ["text", "txBody"].contains(&child.tag_name().name())) {
                Some(body) if body.tag_name().name() == "text" => body.text().unwrap_or_default().to_owned(),
                Some(body) => format_blocks(body),
                None => format_blocks(comment),
            };
        (!text.trim().is_empty()).then(|| format_comment(author.unwrap_or_default(), &text))
    });
    Ok(comments.collect())
}

/// Returns the names of those who commented slides, by id.
fn read_authors(archive: &mut Archive<'_>, links: &[Link]) -> Result<BTreeMap<String, String>, ExtractError> {
    let mut authors = BTreeMap::new();
    for link in links.iter().filter(|link| ["commentAuthors", "authors"].contains(&link.kind.as_str())) {
        let Some(xml) = archive.read_part(&link.target)? else { continue };
        let document = parse_xml(&link.target, &xml)?;
        authors.extend(document.root().descendants().filter_map(|node| {
            Some((find_attribute(node, "id")?.to_owned(), find_attribute(node, "name")?.to_owned()))
        }));
    }
    Ok(authors)
}
