//! Text of Word documents before 2007 (MS-DOC): the body with headings and tables, and after it headers and footers, notes,
//! comments and text boxes.

use encoding_rs::{UTF_16LE, WINDOWS_1252};

use crate::ExtractError;
use crate::blocks::{CELL_BORDER, append_section, join_words};
use crate::compound::{Compound, read_u16, read_u32};
use crate::text::decode_text;

pub(crate) const STREAM: &str = "WordDocument";
/// The version number of Word 97, which moved the fields of the header.
const WORD_97: u16 = 0xc1;
const HAS_TABLE_1: u16 = 0x0200;
const IS_ENCRYPTED: u16 = 0x0100;
const IS_COMPLEX: u16 = 0x0004;
/// The size of a page with properties of paragraphs.
const PAGE: usize = 512;
/// The paragraph ends a row of a table.
const ENDS_ROW: u16 = 0x2417;

/// Text with the same encoding in the stream of the document.
struct Piece {
    /// The number of its characters.
    length: usize,
    offset: usize,
    is_utf16: bool,
}

/// The properties of the paragraph that ends in a range of the stream.
#[derive(Clone, Copy, Default)]
struct ParagraphStyle {
    start: usize,
    end: usize,
    /// The number of its style: 1 to 9 are those of headings.
    style: u16,
    ends_row: bool,
}

/// A character, and its place in the stream.
type Character = (char, usize);

/// Formats a document whose main stream is `document`.
pub(crate) fn format_document(compound: &mut Compound<'_>, document: &[u8]) -> Result<String, ExtractError> {
    let damaged = |what: &str| ExtractError::Damaged(format!("it has no {what}"));
    let flags = read_u16(document, 0x0a).ok_or_else(|| damaged("header"))?;
    if flags & IS_ENCRYPTED != 0 {
        return Err(ExtractError::Encrypted);
    }
    let is_older = read_u16(document, 2).ok_or_else(|| damaged("header"))? < WORD_97;
    let lengths = read_lengths(document, if is_older { 0x34 } else { 0x4c });
    if is_older {
        return format_older_document(document, flags, &lengths).ok_or_else(|| damaged("text"));
    }
    let name = if flags & HAS_TABLE_1 != 0 { "1Table" } else { "0Table" };
    let table = compound.read(name)?.ok_or_else(|| damaged(&format!("stream {name}")))?;
    let pieces = read_range(document, 0x1a2, &table)
        .and_then(read_pieces)
        .ok_or_else(|| damaged("table of its text"))?;
    let styles =
        read_range(document, 0x102, &table).map(|pages| read_styles(pages, document)).unwrap_or_default();
    let characters = read_characters(document, &pieces);
    Ok(format_stories(&characters, &lengths, &styles))
}

/// Returns the lengths of the stories: body, footnotes, headers, macros, comments, endnotes, text boxes, text boxes of headers.
fn read_lengths(document: &[u8], at: usize) -> [usize; 8] {
    std::array::from_fn(|story| read_u32(document, at + story * 4).unwrap_or(0) as usize)
}

/// Returns the bytes of a table to which two numbers in the header refer: its place and its length.
fn read_range<'t>(document: &[u8], at: usize, table: &'t [u8]) -> Option<&'t [u8]> {
    let (start, length) = (read_u32(document, at)? as usize, read_u32(document, at + 4)? as usize);
    table.get(start..start.checked_add(length)?)
}

/// Reads the table of pieces, which is after descriptions of changes in the same range.
fn read_pieces(range: &[u8]) -> Option<Vec<Piece>> {
    let mut at = 0;
    while *range.get(at)? == 1 {
        at += 3 + usize::from(read_u16(range, at + 1)?);
    }
    let length = read_u32(range, at + 1)? as usize;
    let table = range.get(at + 5..(at + 5).checked_add(length)?)?;
    let count = table.len().checked_sub(4)? / 12;
    let piece = |at: usize| {
        let (start, end) = (read_u32(table, at * 4)?, read_u32(table, at * 4 + 4)?);
        let place = read_u32(table, (count + 1) * 4 + at * 8 + 2)?;
        let is_utf16 = place & 0x4000_0000 == 0;
        let offset = (place & 0x3fff_ffff) as usize;
        Some(Piece {
            length: end.checked_sub(start)? as usize,
            offset: if is_utf16 { offset } else { offset / 2 },
            is_utf16,
        })
    };
    (0..count).map(piece).collect()
}

fn read_characters(document: &[u8], pieces: &[Piece]) -> Vec<Character> {
    let mut characters = Vec::new();
    for piece in pieces {
        let width = if piece.is_utf16 { 2 } else { 1 };
        // Limits the memory: pieces that do not overlap have no more characters than the stream has bytes.
        let length = piece.length.min(document.len().saturating_sub(characters.len()));
        let end = piece.offset.saturating_add(length.saturating_mul(width)).min(document.len());
        let Some(bytes) = document.get(piece.offset..end) else { continue };
        let encoding = if piece.is_utf16 { UTF_16LE } else { WINDOWS_1252 };
        let mut offset = piece.offset;
        for c in encoding.decode_without_bom_handling(bytes).0.chars() {
            characters.push((c, offset));
            offset += if piece.is_utf16 { c.len_utf16() * 2 } else { 1 };
            // The lengths of stories are in UTF-16 units.
            if piece.is_utf16 && c.len_utf16() == 2 {
                characters.push(('\0', offset));
            }
        }
    }
    characters
}

/// Reads the properties of paragraphs, in their order in the stream.
fn read_styles(pages: &[u8], document: &[u8]) -> Vec<ParagraphStyle> {
    let count = pages.len().saturating_sub(4) / 8;
    let mut styles = Vec::new();
    for at in 0..count.min(document.len() / PAGE) {
        let number = read_u32(pages, (count + 1) * 4 + at * 4).unwrap_or(0) as usize;
        let page = number.checked_mul(PAGE).and_then(|start| document.get(start..start + PAGE));
        styles.extend(page.into_iter().flat_map(read_style_page));
    }
    styles.sort_by_key(|style| style.start);
    styles
}

fn read_style_page(page: &[u8]) -> Vec<ParagraphStyle> {
    let count = usize::from(page[PAGE - 1]);
    let read = |at: usize| {
        let (start, end) = (read_u32(page, at * 4)?, read_u32(page, at * 4 + 4)?);
        let mut style =
            ParagraphStyle { start: start as usize, end: end as usize, ..ParagraphStyle::default() };
        let properties = usize::from(*page.get((count + 1) * 4 + at * 13)?) * 2;
        if properties != 0 {
            let (length, skipped) = match *page.get(properties)? {
                0 => (usize::from(*page.get(properties + 1)?) * 2, 2),
                words => (usize::from(words) * 2 - 1, 1),
            };
            let properties = page.get(properties + skipped..(properties + skipped + length).min(PAGE))?;
            style.style = read_u16(properties, 0)?;
            let mark = ENDS_ROW.to_le_bytes();
            style.ends_row = properties[2..].windows(3).any(|window| window[..2] == mark && window[2] == 1);
        }
        Some(style)
    };
    (0..count).filter_map(read).collect()
}

fn format_stories(characters: &[Character], lengths: &[usize; 8], styles: &[ParagraphStyle]) -> String {
    let mut rest = characters;
    let mut stories = lengths.map(|length| {
        let (story, after) = rest.split_at(length.min(rest.len()));
        rest = after;
        format_story(story, styles)
    });
    let [body, footnotes, headers, _, comments, endnotes, boxes, header_boxes] = &mut stories;
    let mut text = std::mem::take(body);
    append_section(&mut text, "Text boxes", boxes);
    append_section(
        &mut text,
        "Headers and footers",
        &without_repetitions(&[headers.as_str(), header_boxes].concat()),
    );
    append_section(&mut text, "Footnotes", footnotes);
    append_section(&mut text, "Endnotes", endnotes);
    append_section(&mut text, "Comments", comments);
    text
}

/// Removes repeated paragraphs: each section of a document has its own headers.
fn without_repetitions(text: &str) -> String {
    let mut seen: Vec<&str> = Vec::new();
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        if !seen.contains(&paragraph) {
            seen.push(paragraph);
        }
    }
    seen.iter().map(|paragraph| format!("{paragraph}\n\n")).collect()
}

fn format_story(characters: &[Character], styles: &[ParagraphStyle]) -> String {
    let mut text = String::new();
    let mut paragraph = String::new();
    let mut cells: Vec<String> = Vec::new();
    // For each open field: `false` inside its instructions, `true` inside its text.
    let mut fields: Vec<bool> = Vec::new();
    let mut last = ' ';
    for &(c, offset) in characters {
        let before = std::mem::replace(&mut last, c);
        let is_hidden = fields.contains(&false);
        match c {
            '\u{13}' => fields.push(false),
            '\u{14}' => fields.last_mut().into_iter().for_each(|field| *field = true),
            '\u{15}' => drop(fields.pop()),
            '\r' | '\u{c}' | '\u{e}' if !is_hidden => {
                match cells.is_empty() {
                    true => {
                        end_paragraph(&mut text, &std::mem::take(&mut paragraph), find_style(styles, offset))
                    }
                    // A paragraph within a cell.
                    false => paragraph.push(' '),
                }
            }
            '\u{7}' if ends_row(styles, offset, before) => {
                text.push_str(&format!("{}\n", std::mem::take(&mut cells).join(CELL_BORDER)));
            }
            '\u{7}' => cells.push(join_words(&std::mem::take(&mut paragraph))),
            '\u{b}' if !is_hidden => paragraph.push('\n'),
            '\t' if !is_hidden => paragraph.push('\t'),
            '\u{1e}' if !is_hidden => paragraph.push('-'),
            c if c < ' ' || c == '\u{1f}' || is_hidden => {}
            c => paragraph.push(c),
        }
    }
    let rest = [cells.join(CELL_BORDER), paragraph].concat();
    end_paragraph(&mut text, &rest, None);
    text
}

/// `true` if a cell mark ends a row. Without paragraph properties, the second of two consecutive marks does.
fn ends_row(styles: &[ParagraphStyle], offset: usize, before: char) -> bool {
    find_style(styles, offset).map_or(before == '\u{7}', |style| style.ends_row)
}

fn end_paragraph(text: &mut String, paragraph: &str, style: Option<ParagraphStyle>) {
    if paragraph.trim().is_empty() {
        return;
    }
    // After a row of a table.
    if !text.is_empty() && !text.ends_with("\n\n") {
        text.push('\n');
    }
    if let level @ 1..=9 = style.map_or(0, |style| style.style) {
        text.push_str(&format!("{} ", "#".repeat(usize::from(level).min(6))));
    }
    text.push_str(&format!("{}\n\n", paragraph.trim()));
}

fn find_style(styles: &[ParagraphStyle], offset: usize) -> Option<ParagraphStyle> {
    let at = styles.partition_point(|style| style.start <= offset).checked_sub(1)?;
    styles.get(at).filter(|style| offset < style.end).copied()
}

/// Formats a document of Word 6 or 95, whose text has no declared character set.
fn format_older_document(document: &[u8], flags: u16, lengths: &[usize; 8]) -> Option<String> {
    let pieces =
        read_range(document, 0x160, document).filter(|_| flags & IS_COMPLEX != 0).and_then(read_pieces);
    let bytes: Vec<u8> = match pieces {
        Some(pieces) => {
            let bytes = |piece: &Piece| document.get(piece.offset..piece.offset.checked_add(piece.length)?);
            pieces.iter().filter_map(bytes).flatten().copied().take(document.len()).collect()
        }
        None => {
            let (start, end) = (read_u32(document, 0x18)? as usize, read_u32(document, 0x1c)? as usize);
            document.get(start..end.min(document.len()))?.to_vec()
        }
    };
    let printable: Vec<u8> = bytes.iter().map(|byte| (*byte).max(b' ')).collect();
    // Control bytes keep their places if each character has one byte.
    let text = decode_text(&printable, None)?;
    let characters: Vec<Character> = match text.chars().count() == bytes.len() {
        true => text
            .chars()
            .zip(&bytes)
            .map(|(c, byte)| (if *byte < b' ' { char::from(*byte) } else { c }, 0))
            .collect(),
        false => decode_text(&bytes, None)?.chars().map(|c| (c, 0)).collect(),
    };
    Some(format_stories(&characters, lengths, &[]))
}
