//! Text of PowerPoint presentations before 2007 (MS-PPT): the slides in their order, each with its comments and notes.

use std::collections::{BTreeMap, BTreeSet};

use encoding_rs::{UTF_16LE, WINDOWS_1252};

use crate::blocks::format_comment;
use crate::compound::{Compound, decode, read_u16, read_u32};
use crate::{ExtractError, TextPart};

pub(crate) const STREAM: &str = "PowerPoint Document";
const DUAL_STORAGE: &str = "PP97_DUALSTORAGE";
const CURRENT_USER: &str = "Current User";
/// The mark of a presentation that is encrypted.
const ENCRYPTED: u32 = 0xf3d1_c4df;
/// The maximum number of times that a presentation was saved into the same file, and of nested records.
const MAX_EDITS: usize = 10_000;
const MAX_DEPTH: usize = 64;

const DOCUMENT: u16 = 1_000;
const SLIDE: u16 = 1_006;
const NOTES: u16 = 1_008;
const NOTES_ATOM: u16 = 1_009;
const SLIDE_PLACE: u16 = 1_011;
const OUTLINE_REFERENCE: u16 = 3_998;
const TEXT_HEADER: u16 = 3_999;
const TEXT_CHARACTERS: u16 = 4_000;
const TEXT_BYTES: u16 = 4_008;
const STRING: u16 = 4_026;
const HEADERS_FOOTERS: u16 = 4_057;
const SLIDE_LIST: u16 = 4_080;
const USER_EDIT: u16 = 4_085;
/// A record with the data of later versions.
const BINARY_TAG: u16 = 5_003;
const PLACES: u16 = 6_002;
const COMMENT: u16 = 12_000;

/// A record: its kind, its instance, and its content.
#[derive(Clone, Copy)]
struct Record<'a> {
    kind: u16,
    instance: u16,
    is_container: bool,
    content: &'a [u8],
}

/// A slide in the list of the document, with the text of its outline.
struct ListedSlide {
    id: u32,
    /// Its number in the directory of persistent objects.
    place: u32,
    outline: Vec<String>,
}

pub(crate) fn format_slides(compound: &mut Compound<'_>) -> Result<Vec<TextPart>, ExtractError> {
    // A file for both PowerPoint 95 and 97 contains two presentations.
    let folder = if compound.has(DUAL_STORAGE) { format!("{DUAL_STORAGE}/") } else { String::new() };
    let stream = compound.read(&format!("{folder}{STREAM}"))?.unwrap_or_default();
    let user = compound.read(&format!("{folder}{CURRENT_USER}"))?.unwrap_or_default();
    if read_u32(&user, 12) == Some(ENCRYPTED) {
        return Err(ExtractError::Encrypted);
    }
    let places = read_u32(&user, 16).and_then(|edit| read_places(&stream, edit as usize));
    let parts = places.map(|places| format_listed_slides(&stream, &places)).unwrap_or_default();
    if parts.iter().any(|part| !part.text.is_empty()) {
        return Ok(parts);
    }
    // Without a readable slide list, all text is one part.
    let mut texts = Vec::new();
    records(&stream).for_each(|record| collect_texts(record, &[], 0, &mut texts));
    match (texts.is_empty(), parts.is_empty()) {
        (true, true) => Err(ExtractError::Damaged("it has no slides of PowerPoint 97 or later".into())),
        (true, false) => Ok(parts),
        (false, _) => Ok(vec![TextPart { place: None, text: join_blocks(&texts) }]),
    }
}

/// Reads the offsets of the persistent objects by number, from the last edit back to the first, and the number of the document.
/// `None` if there is no edit.
fn read_places(stream: &[u8], last_edit: usize) -> Option<(BTreeMap<u32, usize>, u32)> {
    let mut places = BTreeMap::new();
    let mut document = None;
    let (mut edit, mut seen) = (last_edit, BTreeSet::new());
    while seen.insert(edit) && seen.len() < MAX_EDITS {
        let Some(record) = record_at(stream, edit).filter(|record| record.kind == USER_EDIT) else { break };
        let content = record.content;
        document = document.or(read_u32(content, 16));
        let directory = read_u32(content, 12).and_then(|at| record_at(stream, at as usize));
        for (number, place) in
            directory.filter(|record| record.kind == PLACES).into_iter().flat_map(read_directory)
        {
            places.entry(number).or_insert(place);
        }
        edit = read_u32(content, 8)? as usize;
        if edit == 0 {
            break;
        }
    }
    Some((places, document?))
}

/// Reads runs of numbers and their places.
fn read_directory(directory: Record<'_>) -> Vec<(u32, usize)> {
    let (mut at, mut places) = (0, Vec::new());
    while let Some(run) = read_u32(directory.content, at) {
        let (first, count) = (run & 0xf_ffff, run >> 20);
        for number in 0..count {
            let Some(place) = read_u32(directory.content, at + 4 + number as usize * 4) else { break };
            places.push((first + number, place as usize));
        }
        at += 4 + count as usize * 4;
    }
    places
}

fn format_listed_slides(stream: &[u8], (places, document): &(BTreeMap<u32, usize>, u32)) -> Vec<TextPart> {
    let object = |number: u32| places.get(&number).and_then(|at| record_at(stream, *at));
    let Some(document) = object(*document).filter(|record| record.kind == DOCUMENT) else {
        return Vec::new();
    };
    let mut notes = BTreeMap::new();
    for listed in list_slides(document, 2) {
        if let Some(record) = object(listed.place).filter(|record| record.kind == NOTES) {
            // The slide that they belong to.
            let slide = records(record.content).find(|record| record.kind == NOTES_ATOM);
            let slide = slide.and_then(|atom| read_u32(atom.content, 0));
            notes.insert(slide, format_slide(record, &listed.outline));
        }
    }
    let part = |(at, listed): (usize, ListedSlide)| {
        let slide = object(listed.place).filter(|record| record.kind == SLIDE);
        let mut text = match slide {
            Some(slide) => format_slide(slide, &listed.outline),
            None => join_blocks(&listed.outline),
        };
        if let Some(notes) = notes.get(&Some(listed.id)).filter(|notes| !notes.trim().is_empty()) {
            text.push_str(&format!("Notes:\n\n{notes}"));
        }
        TextPart { place: Some(format!("slide {}", at + 1)), text }
    };
    list_slides(document, 0).into_iter().enumerate().map(part).collect()
}

/// Lists slides (instance 0) or notes (instance 2), in the order of the presentation.
fn list_slides(document: Record<'_>, instance: u16) -> Vec<ListedSlide> {
    let list =
        records(document.content).find(|record| record.kind == SLIDE_LIST && record.instance == instance);
    let mut slides: Vec<ListedSlide> = Vec::new();
    for record in list.into_iter().flat_map(|list| records(list.content)) {
        match record.kind {
            SLIDE_PLACE => {
                let place = read_u32(record.content, 0).unwrap_or(0);
                let id = read_u32(record.content, 12).unwrap_or(0);
                slides.push(ListedSlide { id, place, outline: Vec::new() });
            }
            TEXT_HEADER => {
                slides.last_mut().into_iter().for_each(|slide| slide.outline.push(String::new()));
            }
            TEXT_CHARACTERS | TEXT_BYTES => {
                if let Some(text) = slides.last_mut().and_then(|slide| slide.outline.last_mut()) {
                    *text = read_text(record);
                }
            }
            _ => {}
        }
    }
    slides
}

/// Formats the shapes of a slide. Placeholders refer to the text of the outline.
fn format_slide(slide: Record<'_>, outline: &[String]) -> String {
    let mut texts = Vec::new();
    collect_texts(slide, outline, 0, &mut texts);
    let missing: Vec<&String> = outline.iter().filter(|text| !texts.contains(text)).collect();
    [join_blocks(&missing), join_blocks(&texts)].concat()
}

fn collect_texts(record: Record<'_>, outline: &[String], depth: usize, texts: &mut Vec<String>) {
    match record.kind {
        TEXT_CHARACTERS | TEXT_BYTES => texts.push(read_text(record)),
        OUTLINE_REFERENCE => {
            let at = read_u32(record.content, 0).and_then(|at| usize::try_from(at).ok());
            texts.extend(at.and_then(|at| outline.get(at)).cloned());
        }
        COMMENT => {
            let string = |instance: u16| {
                let found =
                    records(record.content).find(|one| one.kind == STRING && one.instance == instance);
                found.map(read_text).unwrap_or_default()
            };
            let (author, text) = (string(0), string(1));
            if !text.trim().is_empty() {
                texts.push(format!("Comment: {}", format_comment(&author, &text)));
            }
        }
        HEADERS_FOOTERS => {
            texts.extend(records(record.content).filter(|one| one.kind == STRING).map(read_text));
        }
        kind if (record.is_container || kind == BINARY_TAG) && depth < MAX_DEPTH => {
            records(record.content).for_each(|inner| collect_texts(inner, outline, depth + 1, texts));
        }
        _ => {}
    }
}

fn read_text(record: Record<'_>) -> String {
    let encoding = if record.kind == TEXT_BYTES { WINDOWS_1252 } else { UTF_16LE };
    // Paragraphs end with a carriage return, lines with a vertical tab.
    decode(encoding, record.content).replace('\r', "\n\n").replace('\u{b}', "\n")
}

fn join_blocks<T: AsRef<str>>(texts: &[T]) -> String {
    let texts = texts.iter().map(|text| text.as_ref().trim_end()).filter(|text| !text.trim().is_empty());
    texts.map(|text| format!("{text}\n\n")).collect()
}

fn record_at(bytes: &[u8], at: usize) -> Option<Record<'_>> {
    let header = read_u16(bytes, at)?;
    let length = read_u32(bytes, at + 4)? as usize;
    let start = at + 8;
    let end = start.checked_add(length)?.min(bytes.len());
    Some(Record {
        kind: read_u16(bytes, at + 2)?,
        instance: header >> 4,
        is_container: header & 0xf == 0xf,
        content: bytes.get(start..end)?,
    })
}

/// Returns the records that follow each other.
fn records(bytes: &[u8]) -> impl Iterator<Item = Record<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let record = record_at(bytes, at)?;
        at += 8 + record.content.len();
        Some(record)
    })
}
