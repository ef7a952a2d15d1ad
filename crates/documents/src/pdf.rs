//! Text of PDF files by pages, in the order of the page's content; tables as rows. If the cross-reference table is damaged, the file
//! is scanned for its objects, as other readers do. A page that cannot be parsed does not affect the others.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pdf_extract::{Dictionary, Document, Error, Object, ObjectId, OutputError, output_doc_page};

use crate::pdf_layout::PageLayout;
use crate::{ExtractError, ExtractedText, TextPart};

/// The maximum number of objects that are searched for in a damaged file.
const MAX_OBJECTS: usize = 1_000_000;

/// Extracts the pages of a PDF file. A file that opens with an empty password is readable.
pub(crate) fn extract_pages(bytes: &[u8]) -> Result<ExtractedText, ExtractError> {
    let loaded = load(bytes);
    if let Err(ExtractError::Encrypted) = loaded {
        return Err(ExtractError::Encrypted);
    }
    let read = loaded.map(|document| read_pages(&document));
    if let Ok(pages) = &read
        && pages.is_complete()
    {
        return read.map(Pages::into_text);
    }
    let repaired = catch_unwind(|| rebuild(bytes)).ok().flatten().map(|document| read_pages(&document));
    let repaired = repaired
        .filter(|repaired| repaired.count_characters() > read.as_ref().map_or(0, Pages::count_characters));
    match (repaired, read) {
        (Some(repaired), _) => Ok(repaired.into_text()),
        (None, Ok(pages)) if pages.is_readable() => Ok(pages.into_text()),
        (None, Ok(_)) => Err(ExtractError::Damaged("none of its pages can be read".into())),
        (None, Err(error)) => Err(error),
    }
}

fn load(bytes: &[u8]) -> Result<Document, ExtractError> {
    let mut document = Document::load_mem(bytes).map_err(to_extract_error)?;
    if document.is_encrypted() {
        document.decrypt("").map_err(to_extract_error)?;
    }
    Ok(document)
}

fn to_extract_error(error: Error) -> ExtractError {
    let needs_password = matches!(error, Error::Decryption(_) | Error::InvalidPassword);
    if needs_password {
        ExtractError::Encrypted
    } else {
        ExtractError::Damaged(OutputError::from(error).to_string())
    }
}

struct Pages {
    title: Option<String>,
    /// The text of each page; `None` if it cannot be read.
    texts: Vec<Option<String>>,
}

impl Pages {
    /// `true` if all pages were parsed and have text.
    fn is_complete(&self) -> bool {
        self.texts.iter().all(Option::is_some) && self.count_characters() > 0
    }

    fn is_readable(&self) -> bool {
        self.texts.iter().any(Option::is_some)
    }

    fn count_characters(&self) -> usize {
        self.texts.iter().flatten().map(|text| text.trim().len()).sum()
    }

    fn into_text(self) -> ExtractedText {
        let number_page = |(at, text): (usize, Option<String>)| TextPart {
            place: Some(format!("page {}", at + 1)),
            text: text.unwrap_or_default(),
        };
        let parts = self.texts.into_iter().enumerate().map(number_page).collect();
        ExtractedText { title: self.title, parts }
    }
}

fn read_pages(document: &Document) -> Pages {
    let numbers: Vec<u32> =
        catch_unwind(AssertUnwindSafe(|| document.get_pages().into_keys().collect())).unwrap_or_default();
    Pages {
        title: read_title(document),
        texts: numbers.into_iter().map(|number| read_page(document, number)).collect(),
    }
}

/// Reads a page, or its beginning if its content is damaged.
fn read_page(document: &Document, number: u32) -> Option<String> {
    let mut layout = PageLayout::default();
    let read = catch_unwind(AssertUnwindSafe(|| output_doc_page(document, &mut layout, number)));
    let text = layout.format();
    if let Ok(Ok(())) = read {
        return Some(text);
    }
    let other = catch_unwind(AssertUnwindSafe(|| document.extract_text(&[number]).ok())).ok().flatten();
    let longest = other.into_iter().chain([text]).max_by_key(|text| text.trim().len())?;
    (!longest.trim().is_empty()).then_some(longest)
}

fn read_title(document: &Document) -> Option<String> {
    let info = document.trailer.get(b"Info").ok()?.as_reference().ok()?;
    let Object::String(title, _) = document.get_dictionary(info).ok()?.get(b"Title").ok()? else {
        return None;
    };
    let title = decode_string(title);
    Some(title.trim_matches(['\0', ' ']).trim().to_owned()).filter(|title| !title.is_empty())
}

/// Decodes a text string: UTF-16 with a byte order mark, else a superset of ASCII.
fn decode_string(bytes: &[u8]) -> String {
    let (encoding, bytes) = match bytes.strip_prefix(&[0xfe, 0xff]) {
        Some(units) => (encoding_rs::UTF_16BE, units),
        None => (encoding_rs::WINDOWS_1252, bytes),
    };
    encoding.decode_without_bom_handling(bytes).0.into_owned()
}

/// Rebuilds a damaged file from its objects, with a new cross-reference table and the actual lengths of streams.
fn rebuild(bytes: &[u8]) -> Option<Document> {
    if contains(bytes, b"/Encrypt") {
        return None;
    }
    let mut file = b"%PDF-1.7\n".to_vec();
    let mut places: BTreeMap<u32, (u16, usize)> = BTreeMap::new();
    let mut at = 0;
    while let Some(object) = find_object(bytes, at) {
        // The last one counts: a file is changed by appending new versions of objects.
        places.insert(object.number, (object.generation, file.len()));
        file.extend(format!("{} {} obj\n", object.number, object.generation).bytes());
        file.extend(object.head);
        if let Some(stream) = object.stream {
            file.extend(format!("/Length {}>>\nstream\n", stream.len()).bytes());
            file.extend(stream);
            file.extend(b"\nendstream");
        }
        file.extend(b"\nendobj\n");
        at = object.end;
        if places.len() >= MAX_OBJECTS {
            break;
        }
    }
    let size = places.keys().last()?.checked_add(1)?;
    let start = file.len();
    file.extend(b"xref\n0 1\n0000000000 65535 f \n");
    for (number, (generation, place)) in &places {
        file.extend(format!("{number} 1\n{place:010} {generation:05} n \n").bytes());
    }
    let (root, info) = (find_reference(bytes, b"/Root "), find_reference(bytes, b"/Info "));
    file.extend(format!("trailer\n<</Size {size}{root}{info}>>\nstartxref\n{start}\n%%EOF").bytes());
    let mut document = Document::load_mem(&file).ok()?;
    add_catalog(&mut document);
    Some(document)
}

/// An object in the bytes of a file.
struct FoundObject<'a> {
    number: u32,
    generation: u16,
    /// Its content; of a stream its dictionary without length and without the marks at the end.
    head: Vec<u8>,
    stream: Option<&'a [u8]>,
    end: usize,
}

/// Finds the next `N G obj` from a place on.
fn find_object(bytes: &[u8], from: usize) -> Option<FoundObject<'_>> {
    let mut at = from;
    loop {
        let mark = at + find(bytes.get(at..)?, b"obj")?;
        at = mark + 3;
        let Some((number, generation)) = read_numbers_before(&bytes[from..mark]) else { continue };
        return Some(read_object(bytes, at, number, generation));
    }
}

/// Parses the object number and generation before `obj`.
fn read_numbers_before(before: &[u8]) -> Option<(u32, u16)> {
    let start = before.len().saturating_sub(24);
    let text = String::from_utf8_lossy(&before[start..]);
    if !text.ends_with(|c: char| c.is_ascii_whitespace()) {
        return None;
    }
    let mut words = text.split_ascii_whitespace().rev();
    let generation = words.next()?.parse().ok()?;
    let word = words.next()?;
    // A damaged line may have something before the number.
    let digits = word.len() - word.bytes().rev().take_while(u8::is_ascii_digit).count();
    let number = word.get(digits..)?.parse().ok()?;
    (number < 10_000_000).then_some((number, generation))
}

fn read_object(bytes: &[u8], start: usize, number: u32, generation: u16) -> FoundObject<'_> {
    let rest = &bytes[start..];
    let end = find(rest, b"endobj").unwrap_or(rest.len());
    let next = find(&rest[..end], b" obj").unwrap_or(end);
    let head_end = find(&rest[..end], b"stream").filter(|at| *at < next);
    let Some(head_end) = head_end else {
        // The numbers of the next object, if the end of this one is lost.
        let is_number = |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_whitespace();
        let numbers = rest[..next].iter().rev().take_while(|byte| next < end && is_number(byte)).count();
        let length = next - numbers;
        let head = rest[..length].to_vec();
        return FoundObject { number, generation, head, stream: None, end: start + length };
    };
    let mut content = head_end + b"stream".len();
    if rest.get(content) == Some(&b'\r') {
        content += 1;
    }
    if rest.get(content) == Some(&b'\n') {
        content += 1;
    }
    let content = content.min(rest.len());
    let length = find(&rest[content..], b"endstream").unwrap_or(rest.len() - content);
    let mut stream = &rest[content..content + length];
    for end in [b'\n', b'\r'] {
        stream = stream.strip_suffix(&[end]).unwrap_or(stream);
    }
    let head = remove_length(&rest[..head_end]);
    FoundObject { number, generation, head, stream: Some(stream), end: start + content + length }
}

/// Returns a dictionary without its entry for the length and without the marks at its end.
fn remove_length(dictionary: &[u8]) -> Vec<u8> {
    let end = dictionary.windows(2).rposition(|window| window == b">>").unwrap_or(dictionary.len());
    let mut kept = Vec::with_capacity(end);
    let mut rest = &dictionary[..end];
    while let Some(at) = find(rest, b"/Length") {
        let after = &rest[at + b"/Length".len()..];
        // There are others, such as `/Length1` of a font.
        let is_length = after.first().is_none_or(|byte| !byte.is_ascii_alphanumeric());
        kept.extend(&rest[..at]);
        rest = after;
        if !is_length {
            kept.extend(b"/Length");
            continue;
        }
        let is_value = |byte: &&u8| byte.is_ascii_digit() || byte.is_ascii_whitespace() || **byte == b'R';
        rest = &rest[rest.iter().take_while(is_value).count()..];
        kept.push(b' ');
    }
    kept.extend(rest);
    kept
}

/// Finds the last entry of a name that refers to an object; empty if there is none.
fn find_reference(bytes: &[u8], name: &[u8]) -> String {
    let read = || {
        let at = bytes.windows(name.len()).rposition(|window| window == name)? + name.len();
        let text = String::from_utf8_lossy(&bytes[at..bytes.len().min(at + 34)]).into_owned();
        let mut words = text.split_ascii_whitespace();
        let (number, generation) = (words.next()?.parse::<u32>().ok()?, words.next()?.parse::<u16>().ok()?);
        Some(format!("{}{number} {generation} R", String::from_utf8_lossy(name)))
    };
    read().unwrap_or_default()
}

/// Adds a catalog to a document without one: all pages in the order of their object numbers.
fn add_catalog(document: &mut Document) {
    if !document.get_pages().is_empty() {
        return;
    }
    let is_kind =
        |object: &Object, kind: &[u8]| object.as_dict().is_ok_and(|dictionary| dictionary.has_type(kind));
    let catalog = document.objects.iter().find(|(_, object)| is_kind(object, b"Catalog")).map(|(id, _)| *id);
    if let Some(id) = catalog {
        document.trailer.set("Root", Object::Reference(id));
        if !document.get_pages().is_empty() {
            return;
        }
    }
    let pages: Vec<ObjectId> =
        document.objects.iter().filter(|(_, object)| is_kind(object, b"Page")).map(|(id, _)| *id).collect();
    let kids: Vec<Object> = pages.iter().map(|id| Object::Reference(*id)).collect();
    let list = Dictionary::from_iter([
        ("Type", Object::Name(b"Pages".to_vec())),
        ("Count", Object::Integer(pages.len().try_into().unwrap_or(0))),
        ("Kids", Object::Array(kids)),
    ]);
    let list = document.add_object(list);
    let root = Dictionary::from_iter([
        ("Type", Object::Name(b"Catalog".to_vec())),
        ("Pages", Object::Reference(list)),
    ]);
    let root = document.add_object(root);
    document.trailer.set("Root", Object::Reference(root));
}

fn find(bytes: &[u8], mark: &[u8]) -> Option<usize> {
    bytes.windows(mark.len()).position(|window| window == mark)
}

fn contains(bytes: &[u8], mark: &[u8]) -> bool {
    find(bytes, mark).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_of_a_stream_is_removed_from_its_dictionary() {
        let text = |dictionary: &str| String::from_utf8(remove_length(dictionary.as_bytes())).unwrap();
        assert_eq!(text("<</Length 12 0 R/Length1 5 /Filter/A>>\n"), "<< /Length1 5 /Filter/A");
        assert_eq!(text("<</Filter/A/Length 5>>"), "<</Filter/A ");
    }

    #[test]
    fn numbers_before_an_object_are_read() {
        assert_eq!(read_numbers_before(b"endobj\r\n12 0 "), Some((12, 0)));
        assert_eq!(read_numbers_before(b"%comment12 0 "), Some((12, 0)));
        assert_eq!(read_numbers_before(b"end"), None);
    }
}
