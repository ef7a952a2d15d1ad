//! Reads the files of a run as documents, and names the reasons for skipping a file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use millrace_documents::markdown::html_to_markdown;
use millrace_documents::text::{decode_text, find_declared_encoding};
use millrace_documents::{
    BinaryFormat, ExtractError, ExtractedText, Extractor, TextPart, detect_binary_format,
};
use millrace_protocol::safe_text::single_line;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::document::{Document, DocumentPlace, StoredDocument};

use crate::model::{Image, InvalidImage};

/// The maximum length of a line, in characters; a longer line is broken between words. Shorter lines are unchanged, so
/// that line numbers are those of the file.
pub const MAX_LINE: usize = 2_000;
/// The maximum length of a title, in characters.
const MAX_TITLE: usize = 80;
/// The maximum nesting of HTML. The converter recurses for each level, on a stack of [`HTML_STACK`] bytes.
const MAX_NESTING: usize = 2_000;
/// Enough for [`MAX_NESTING`] levels several times over, even in an unoptimised build.
const HTML_STACK: usize = 256 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputFile {
    /// Its path below the documents' folder, with `/` between parts.
    pub path: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// Converts files to documents; both lists are ordered by path.
pub(super) fn read_documents(mut files: Vec<InputFile>) -> (Vec<Document>, Vec<SkippedFile>) {
    let paths = readable_paths(&files);
    files.sort_by(|a, b| paths[&a.path].cmp(&paths[&b.path]));
    let (mut documents, mut skipped) = (Vec::new(), Vec::new());
    let mut seen = BTreeSet::new();
    let mut total = 0;
    for mut file in files {
        file.path.clone_from(&paths[&file.path]);
        let read = if !seen.insert(file.path.clone()) {
            Err(SkipReason::SamePath)
        } else if total > MAX_TOTAL {
            Err(SkipReason::TooMuch)
        } else {
            read_document(&file)
        };
        match read {
            Ok(document) => {
                total += document.text().len();
                documents.push(document);
            }
            Err(reason) => skipped.push(SkippedFile { path: file.path, reason }),
        }
    }
    (documents, skipped)
}

/// Returns the path under which each file is shown, searched and cited. Tools and models write paths into lines of text, so
/// a part of a path loses white space at its ends, white space within it becomes one blank, and unsafe characters become
/// `�`. If two files would have one path, the files that need no change keep theirs, and others get a number.
fn readable_paths(files: &[InputFile]) -> BTreeMap<String, String> {
    let raw: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let (unchanged, changed): (Vec<&str>, Vec<&str>) =
        raw.into_iter().partition(|path| readable_path(path) == *path);
    let mut paths: BTreeMap<String, String> =
        unchanged.iter().map(|path| ((*path).to_owned(), (*path).to_owned())).collect();
    let mut used: BTreeSet<String> = paths.keys().cloned().collect();
    for path in changed {
        let readable = readable_path(path);
        let (stem, ending) = readable.rsplit_once('.').unwrap_or((&readable, ""));
        let dot = if ending.is_empty() { "" } else { "." };
        let numbered = (2..).map(|number| format!("{stem} ({number}){dot}{ending}"));
        let free = std::iter::once(readable.clone()).chain(numbered).find(|path| !used.contains(path));
        let free = free.expect("there are more numbers than files");
        used.insert(free.clone());
        paths.insert(path.to_owned(), free);
    }
    paths
}

fn readable_path(path: &str) -> String {
    let parts = path.split('/').map(|part| match single_line(part) {
        name if name.is_empty() => char::REPLACEMENT_CHARACTER.to_string(),
        name => name,
    });
    parts.collect::<Vec<_>>().join("/")
}

/// Checks that a file can be read as a document.
pub(super) fn check_file_content(file: &InputFile) -> Result<(), SkipReason> {
    read_document(file).map(drop)
}

/// Reads a file as agents see it. Blocks while a parser runs.
pub fn read_document(file: &InputFile) -> Result<Document, SkipReason> {
    let size = file.bytes.len() as u64;
    if size > MAX_BYTES {
        return Err(SkipReason::TooLarge(size));
    }
    match Image::from_bytes(&file.path, &file.bytes) {
        Ok(image) => return Ok(image_document(file, image)),
        Err(why @ (InvalidImage::TooLarge(_) | InvalidImage::TooManyPixels(..))) => {
            return Err(SkipReason::Image(why.to_string()));
        }
        Err(
            InvalidImage::Format
            | InvalidImage::Damaged(_)
            | InvalidImage::Pages(_)
            | InvalidImage::LargePdf(_),
        ) => {}
    }
    let ending = file_ending(&file.path);
    let is_title = |text: &str| match ending.as_deref() {
        None | Some("txt" | "text" | "rst") => first_line_title(text),
        Some(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => first_line_title(text),
        Some("md" | "markdown" | "html" | "htm" | "xhtml") => heading_title(text),
        Some(_) => None,
    };
    let format = detect_binary_format(&file.bytes, ending.as_deref());
    let ExtractedText { title, parts } = match format {
        Some(format) => extract_in_child(format, &file.bytes)?,
        None => read_text(&file.bytes, ending.as_deref())?,
    };
    let (text, places) = join_parts(&parts);
    if text.trim().is_empty() {
        let pages = describe_pages(&file.path, &file.bytes, format, &parts);
        return pages.map(|pages| image_document(file, pages)).ok_or_else(|| empty_reason(format));
    }
    let title = title.and_then(|title| shorten_title(&title)).or_else(|| is_title(&text));
    let title = title.unwrap_or_else(|| title_of_file(&file.path).to_owned());
    let sha256 = encode_hex(&Sha256::digest(&file.bytes));
    Ok(StoredDocument { path: file.path.clone(), title, sha256, text, places, image: None }.into())
}

fn empty_reason(format: Option<BinaryFormat>) -> SkipReason {
    if format == Some(BinaryFormat::Pdf) { SkipReason::Scan } else { SkipReason::Empty }
}

/// Returns the document that an image is, or a PDF file without text: its text is a description.
fn image_document(file: &InputFile, image: Image) -> Document {
    let why = if image.is_pdf() { ": its pages have no text, as of a scan" } else { "" };
    let stored = StoredDocument {
        path: file.path.clone(),
        title: title_of_file(&file.path).to_owned(),
        sha256: image.sha256.clone(),
        text: format!("[{}{why}]\n", image.describe()),
        places: Vec::new(),
        image: Some(image.without_content()),
    };
    stored.into()
}

/// Returns the pages of a PDF file as models see them; `None` if it is no PDF file, or one that is too large for that.
fn describe_pages(
    path: &str,
    bytes: &[u8],
    format: Option<BinaryFormat>,
    parts: &[TextPart],
) -> Option<Image> {
    let pages = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    (format == Some(BinaryFormat::Pdf)).then(|| Image::from_pdf(path, bytes, pages).ok()).flatten()
}

/// The content of a file in a binary format.
pub(crate) struct BinaryContent {
    /// Its text, with a line before each page, slide, sheet or section, such as `[page 3]`; empty if its pages have none.
    pub text: String,
    /// Its pages as models see them, if it is a PDF file of a few pages.
    pub pages: Option<Image>,
}

/// Returns the content of a file in a binary format; `None` if the file is in no such format. Blocks while a parser runs.
pub(crate) fn read_binary_content(path: &str, bytes: &[u8]) -> Option<Result<BinaryContent, SkipReason>> {
    let format = detect_binary_format(bytes, file_ending(path).as_deref())?;
    Some(extract_in_child(format, bytes).and_then(|extracted| {
        let text = format_parts(&extracted.parts);
        let pages = describe_pages(path, bytes, Some(format), &extracted.parts);
        match text.is_empty() && pages.is_none() {
            true => Err(empty_reason(Some(format))),
            false => Ok(BinaryContent { text, pages }),
        }
    }))
}

fn format_parts(parts: &[TextPart]) -> String {
    let mut text = String::new();
    for part in parts {
        let normal = normalize_text(&part.text);
        if normal.trim().is_empty() {
            continue;
        }
        if let Some(place) = &part.place {
            text.push_str(&format!("[{}]\n", single_line(place)));
        }
        text.push_str(&normal);
    }
    text
}

/// Extracts the text of a binary format. Its parser runs in a process of its own, without the keys of this one.
fn extract_in_child(format: BinaryFormat, bytes: &[u8]) -> Result<ExtractedText, SkipReason> {
    Extractor::this_program()
        .and_then(|extractor| extractor.extract_text(format, bytes))
        .map_err(SkipReason::Unextractable)
}

/// Decodes text. HTML becomes Markdown.
fn read_text(bytes: &[u8], ending: Option<&str>) -> Result<ExtractedText, SkipReason> {
    let is_markup = matches!(ending, Some("html" | "htm" | "xhtml"));
    let declared = if is_markup { find_declared_encoding(bytes) } else { None };
    let not_text = || ending.map_or(SkipReason::Binary, |ending| SkipReason::Kind(ending.to_owned()));
    let raw = decode_text(bytes, declared).ok_or_else(not_text)?;
    let (title, text) = if is_markup { (html_title(&raw), html_to_text(&raw)?) } else { (None, raw) };
    Ok(ExtractedText { title, parts: vec![TextPart { place: None, text }] })
}

/// Joins the parts of a document to its text, with the first line of each.
pub(super) fn join_parts(parts: &[TextPart]) -> (String, Vec<DocumentPlace>) {
    let (mut text, mut places) = (String::new(), Vec::new());
    let mut lines = 0;
    for part in parts {
        let normal = normalize_text(&part.text);
        if normal.trim().is_empty() {
            continue;
        }
        if !text.is_empty() {
            text.push('\n');
            lines += 1;
        }
        if let Some(name) = &part.place {
            places.push(DocumentPlace { name: single_line(name), first_line: lines + 1 });
        }
        lines += normal.matches('\n').count();
        text.push_str(&normal);
    }
    (text, places)
}

/// Normalises line ends, removes control characters and trailing blanks, and breaks lines longer than [`MAX_LINE`].
pub(crate) fn normalize_text(raw: &str) -> String {
    let mut text = String::with_capacity(raw.len());
    for line in raw.replace("\r\n", "\n").replace('\r', "\n").trim_end().split('\n') {
        let printable: String =
            line.chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect();
        break_long_line(printable.trim_end(), &mut text);
    }
    text
}

fn break_long_line(line: &str, text: &mut String) {
    let mut rest = line;
    while let Some((limit, _)) = rest.char_indices().nth(MAX_LINE) {
        let cut = rest[..limit].rfind(' ').map_or(limit, |at| at + 1);
        text.push_str(rest[..cut].trim_end());
        text.push('\n');
        rest = &rest[cut..];
    }
    text.push_str(rest);
    text.push('\n');
}

/// Converts HTML to Markdown on a thread with a large enough stack; if the converter panics, the file is skipped.
fn html_to_text(html: &str) -> Result<String, SkipReason> {
    let skipped = ["script", "style", "noscript", "template", "svg", "img", "iframe", "title"];
    let convert =
        || html_to_markdown(html, &skipped, MAX_NESTING).map_err(|fault| SkipReason::Html(fault.to_string()));
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("html".into()).stack_size(HTML_STACK);
        let running =
            thread.spawn_scoped(scope, convert).map_err(|fault| SkipReason::Html(fault.to_string()))?;
        running.join().unwrap_or_else(|_| Err(SkipReason::Html("the converter failed".into())))
    })
}

fn html_title(html: &str) -> Option<String> {
    let lower = html.to_ascii_lowercase();
    let start = lower.find("<title")?;
    let start = start + lower[start..].find('>')? + 1;
    let end = start + lower[start..].find("</title")?;
    let title = html[start..end].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    shorten_title(&title)
}

fn heading_title(text: &str) -> Option<String> {
    let heading = text.lines().find_map(|line| line.strip_prefix("# "))?;
    shorten_title(heading.trim_matches(['#', ' ', '*', '_']))
}

/// The first line, if it looks like a title rather than the beginning of a sentence or a notice.
fn first_line_title(text: &str) -> Option<String> {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let is_notice = first.to_lowercase().starts_with("copyright") || first.ends_with(['.', ',', ';', ':']);
    if is_notice { None } else { shorten_title(first) }
}

fn shorten_title(raw: &str) -> Option<String> {
    let title = raw.split_whitespace().collect::<Vec<_>>().join(" ");
    let fits = title.chars().any(char::is_alphabetic) && title.chars().count() <= MAX_TITLE;
    fits.then_some(title)
}

/// The title of a document without one: the name of its file, without the ending of a format for reading.
fn title_of_file(path: &str) -> &str {
    const READING: [&str; 19] = [
        "txt", "text", "rst", "md", "markdown", "html", "htm", "pdf", "docx", "pptx", "doc", "ppt", "odt",
        "odp", "rtf", "epub", "eml", "msg", "ipynb",
    ];
    let name = path.rsplit('/').next().unwrap_or(path);
    match name.rsplit_once('.') {
        Some((stem, ending)) if !stem.is_empty() && READING.contains(&ending.to_lowercase().as_str()) => stem,
        Some(_) | None => name,
    }
}

pub(crate) fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The maximum size of a file, in bytes.
pub const MAX_BYTES: u64 = 32 * 1024 * 1024;
/// The maximum size of a corpus' text, in bytes: further documents are skipped.
pub(super) const MAX_TOTAL: usize = 1024 * 1024 * 1024;

/// A file that was skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedFile {
    /// Its path below the documents' folder.
    pub path: String,
    pub reason: SkipReason,
}

/// The reason for skipping a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// It is binary, and its format is not supported. Its file extension, if it has one.
    Kind(String),
    /// It contains bytes that do not occur in text.
    Binary,
    /// Its text can't be extracted.
    Unextractable(ExtractError),
    /// It is larger than [`MAX_BYTES`]; its size.
    TooLarge(u64),
    /// Earlier documents used up the corpus' maximum size.
    TooMuch,
    /// It contains no text.
    Empty,
    /// It is a PDF file whose pages have no text, and that is too large to be shown to models.
    Scan,
    /// It is an image that can't be shown to models.
    Image(String),
    /// Its HTML is nested too deep, or the converter failed.
    Html(String),
    /// Another file has the same path.
    SamePath,
    /// It is hidden: its name, or that of a folder above it, begins with a dot.
    Hidden,
    /// It is a link to a folder or out of the documents' folder.
    Link,
    /// It is not a file: a socket, a pipe, a device.
    NotAFile,
    /// The operating system denied access.
    Unreadable(String),
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: u64 = 1024 * 1024;
        match self {
            Self::Kind(kind) => {
                write!(f, "binary files of the kind .{kind} are not supported; {SUPPORTED} are")
            }
            Self::Binary => f.write_str("it is binary, not text"),
            Self::Unextractable(error) => error.fmt(f),
            Self::TooLarge(size) => {
                write!(f, "it has {} MiB; the maximum is {} MiB", size.div_ceil(MIB), MAX_BYTES / MIB)
            }
            Self::TooMuch => {
                write!(f, "the documents before it reach the maximum of {} MiB", MAX_TOTAL as u64 / MIB)
            }
            Self::Empty => f.write_str("it contains no text"),
            Self::Scan => f.write_str(
                "its pages are images without text, as of a scan; let a program for OCR add the text",
            ),
            Self::Image(reason) => write!(f, "it can't be shown to models: {reason}"),
            Self::Html(reason) => write!(f, "its HTML can't be read: {reason}"),
            Self::SamePath => f.write_str("another file has the same path"),
            Self::Hidden => f.write_str("it is hidden"),
            Self::Link => f.write_str("it is a link to a folder or out of the documents' folder"),
            Self::NotAFile => f.write_str("it is not a regular file"),
            Self::Unreadable(reason) => write!(f, "it can't be opened: {reason}"),
        }
    }
}

/// The supported formats, for messages.
pub const SUPPORTED: &str = "text in any character set, HTML, PDF, office documents (DOCX, PPTX, XLSX, DOC, PPT, XLS, ODT, ODP, ODS, RTF), EPUB, notebooks, e-mail (EML, MSG) and images (PNG, JPEG, GIF, WebP)";

impl SkipReason {
    /// `true` if another try, or another machine, would have the same result.
    pub(super) fn is_lasting(&self) -> bool {
        match self {
            Self::Unextractable(error) => error.is_lasting(),
            Self::Unreadable(_) => false,
            Self::Kind(_)
            | Self::Binary
            | Self::TooLarge(_)
            | Self::TooMuch
            | Self::Empty
            | Self::Scan
            | Self::Image(_)
            | Self::Html(_)
            | Self::SamePath
            | Self::Hidden
            | Self::Link
            | Self::NotAFile => true,
        }
    }

    /// A word or two for a summary of many files.
    pub fn summary(&self, path: &str) -> String {
        match self {
            Self::Hidden => "hidden".into(),
            Self::Link => "link".into(),
            Self::Empty => "empty".into(),
            Self::Scan => "without text".into(),
            Self::TooLarge(_) | Self::TooMuch | Self::Image(_) => "too large".into(),
            Self::Unextractable(ExtractError::Encrypted) => "encrypted".into(),
            Self::Unextractable(_) | Self::Html(_) => "damaged".into(),
            Self::Unreadable(_) | Self::NotAFile => "unreadable".into(),
            Self::SamePath => "same path".into(),
            Self::Kind(kind) => kind.clone(),
            Self::Binary => file_ending(path).unwrap_or_else(|| "binary".into()),
        }
    }
}

/// Returns the ending of a file's name, in lower case.
pub(super) fn file_ending(path: &str) -> Option<String> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let (stem, ending) = name.rsplit_once('.')?;
    (!stem.is_empty() && !ending.is_empty()).then(|| ending.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_file(path: &str, bytes: impl AsRef<[u8]>) -> InputFile {
        InputFile { path: path.into(), bytes: bytes.as_ref().to_vec() }
    }

    #[test]
    fn parts_of_a_binary_file_begin_with_their_place() {
        let part = |place: &str, text: &str| TextPart { place: Some(place.into()), text: text.into() };
        let text =
            format_parts(&[part("page 1", "one\r\ntwo"), part("page 2", " \n"), part("page 3", "three")]);
        assert_eq!(text, "[page 1]\none\ntwo\n[page 3]\nthree\n");
        assert!(read_binary_content("/a.bin", b"\0\x01").is_none());
    }

    fn read_single_document(path: &str, bytes: impl AsRef<[u8]>) -> Document {
        let (mut documents, skipped) = read_documents(vec![build_file(path, bytes)]);
        assert_eq!(skipped, vec![]);
        documents.remove(0)
    }

    #[test]
    fn unreadable_files_are_listed_with_the_reason() {
        let files = vec![
            build_file("z.txt", "last"),
            build_file("a.pdf", "%PDF-1.7"),
            build_file("b.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"),
            build_file("c", b"\x7fELF\0\0"),
            build_file("d.md", " \n\t\n"),
            build_file("e.txt", vec![b'x'; MAX_BYTES as usize + 1]),
            build_file("z.txt", "again"),
            build_file("GPL-3.0", "the text"),
        ];
        let (documents, skipped) = read_documents(files);
        let read: Vec<&str> = documents.iter().map(|document| document.path.as_str()).collect();
        assert_eq!(read, ["GPL-3.0", "z.txt"]);
        let reasons: Vec<String> = skipped.iter().map(|s| format!("{}: {}", s.path, s.reason)).collect();
        assert_eq!(
            reasons,
            [
                "a.pdf: no process for reading it can be started: the program's main does not begin with run_as_launcher()",
                "b.png: binary files of the kind .png are not supported; text in any character set, HTML, PDF, office documents (DOCX, PPTX, XLSX, DOC, PPT, XLS, ODT, ODP, ODS, RTF), EPUB, notebooks, e-mail (EML, MSG) and images (PNG, JPEG, GIF, WebP) are",
                "c: it is binary, not text",
                "d.md: it contains no text",
                "e.txt: it has 33 MiB; the maximum is 32 MiB",
                "z.txt: another file has the same path",
            ]
        );
    }

    #[test]
    fn images_are_documents_with_a_description() {
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x02\0\0\0\x03\x08\x02\0\0\0";
        let document = read_single_document("plots/wheel.png", png);
        assert_eq!(document.text(), "[image plots/wheel.png, PNG 2×3, 29 bytes]\n");
        assert_eq!(document.title, "wheel.png");
        let image = document.image.clone().unwrap();
        assert_eq!((&image.sha256, image.bytes()), (&document.sha256, None));
        let stored = serde_json::to_string(&document).unwrap();
        assert_eq!(serde_json::from_str::<Document>(&stored).unwrap(), document);
        let large = [png.as_slice(), &vec![0; crate::model::MAX_IMAGE_BYTES]].concat();
        let (_, skipped) = read_documents(vec![build_file("large.png", large)]);
        assert!(
            skipped[0].reason.to_string().starts_with("it can't be shown to models: it has 3750029 bytes")
        );
    }

    #[test]
    fn any_text_is_a_document() {
        let latin = encoding_rs::WINDOWS_1252.encode("Größe: 3 Fuß, Breite: müßig").0.into_owned();
        let utf16: Vec<u8> = "\u{feff}a;b\r\n1;2".encode_utf16().flat_map(u16::to_le_bytes).collect();
        for (path, bytes, title, text) in [
            ("table.csv", b"part,weight\nwheel,501\n".to_vec(), "table.csv", "part,weight\nwheel,501\n"),
            ("data.json", b"{\"a\": 1}".to_vec(), "data.json", "{\"a\": 1}\n"),
            ("plan.yaml", b"a: [1]".to_vec(), "plan.yaml", "a: [1]\n"),
            ("mill.log", b"12:00 INFO turning".to_vec(), "mill.log", "12:00 INFO turning\n"),
            ("src/main.rs", b"fn main() {}\n".to_vec(), "main.rs", "fn main() {}\n"),
            ("todo.org", b"* Mills\n** Wheel".to_vec(), "todo.org", "* Mills\n** Wheel\n"),
            ("Makefile", b"all:\n\tgrind".to_vec(), "Makefile", "all:\n\tgrind\n"),
            ("latin.txt", latin, "Größe: 3 Fuß, Breite: müßig", "Größe: 3 Fuß, Breite: müßig\n"),
            ("excel.csv", utf16, "excel.csv", "a;b\n1;2\n"),
        ] {
            let document = read_single_document(path, bytes);
            assert_eq!((document.title.as_str(), document.text()), (title, text), "{path}");
        }
    }

    #[test]
    fn parts_of_a_document_are_places_of_its_lines() {
        let part = |place: &str, text: &str| TextPart { place: Some(place.into()), text: text.into() };
        let parts =
            [part("page 1", "a\nb"), part("page 2", " \n"), part("page 3", "c"), part("page 4", "d\n\ne")];
        let (text, places) = join_parts(&parts);
        assert_eq!(text, "a\nb\n\nc\n\nd\n\ne\n");
        let (path, title, sha256) = (String::new(), String::new(), String::new());
        let document = Document::from(StoredDocument { path, title, sha256, text, places, image: None });
        for (lines, place) in [
            ((1, 1), Some("page 1")),
            ((2, 3), Some("page 1")),
            ((4, 4), Some("page 3")),
            ((2, 6), Some("page 1 to page 4")),
            ((8, 8), Some("page 4")),
        ] {
            assert_eq!(document.place_of_lines(lines.0, lines.1).as_deref(), place, "{lines:?}");
        }
        let begins = |first, last| -> Vec<usize> {
            document.places_in_lines(first, last).iter().map(|place| place.first_line).collect()
        };
        assert_eq!(
            (begins(1, 4), begins(2, 6), begins(7, 8), begins(5, 2)),
            (vec![1, 4], vec![4, 6], vec![], vec![])
        );
        assert_eq!(read_single_document("a.txt", "a").place_of_lines(1, 1), None);
    }

    #[test]
    fn paths_are_readable_and_distinct() {
        let raw =
            [" lead.txt", "a\nb.txt", "a b.txt", "lead.txt", "x/ \t/\u{1b}]0;t\u{7}c.txt", "a\tb.txt", "n "];
        let files = raw.iter().map(|path| build_file(path, *path)).collect();
        let (documents, skipped) = read_documents(files);
        assert_eq!(skipped, vec![]);
        let read: Vec<(&str, &str)> =
            documents.iter().map(|document| (document.path.as_str(), document.text())).collect();
        assert_eq!(
            read,
            [
                ("a b (2).txt", "a\tb.txt\n"),
                ("a b (3).txt", "a\nb.txt\n"),
                ("a b.txt", "a b.txt\n"),
                ("lead (2).txt", " lead.txt\n"),
                ("lead.txt", "lead.txt\n"),
                ("n", "n\n"),
                ("x/�/]0;t c.txt", "x/ \t/ ]0;t c.txt\n"),
            ]
        );
    }

    #[test]
    fn lines_are_those_of_the_file() {
        let document = read_single_document("a.txt", "\u{feff}one\r\ntwo  \r\n\r\nfour");
        assert_eq!(document.line_count(), 4);
        assert_eq!(document.nth_line(1), Some("one"));
        assert_eq!(document.nth_line(3), Some(""));
        assert_eq!(document.line_range(2, 4), "two\n\nfour");
        assert_eq!(document.line_range(4, 9), "four");
        assert_eq!((document.nth_line(0), document.nth_line(5), document.line_range(5, 6)), (None, None, ""));
    }

    #[test]
    fn long_lines_are_broken_between_words_if_possible() {
        let words = read_single_document("a.txt", "word ".repeat(1_000));
        assert!((1..=words.line_count()).all(|n| words.nth_line(n).unwrap().chars().count() <= MAX_LINE));
        assert!(words.text().split_whitespace().all(|word| word == "word"));
        let solid = read_single_document("b.txt", "ü".repeat(5_000));
        assert_eq!(solid.line_count(), 3);
    }

    #[test]
    fn html_becomes_text_with_its_title_and_without_scripts() {
        let html = "<html><head><title>The &amp; title</title><script>var secret = 1;</script></head>\
            <body><h1>Heading</h1><p>First <b>bold</b> words.<p>Second.<ul><li>item</ul></body>";
        let document = read_single_document("a.html", html);
        assert_eq!(document.title, "The & title");
        assert!(document.text().contains("# Heading") && document.text().contains("First **bold** words."));
        assert!(!document.text().contains("secret"));
    }

    #[test]
    fn unbounded_html_is_skipped_and_deep_html_is_read() {
        for bomb in [
            "<div>".repeat(MAX_NESTING + 1),
            "<div></x>".repeat(100_000),
            "<div><!--</div>-->".repeat(100_000),
        ] {
            let (_, skipped) = read_documents(vec![build_file("a.html", bomb + "x")]);
            assert!(skipped[0].reason.to_string().contains("nested more than 2000 deep"));
        }
        for (tag, levels) in [
            ("<div>", 1),
            ("<font>", 1),
            ("<ul><li>", 2),
            ("<blockquote>", 1),
            ("<table><tr><td>", 4),
            ("<span>", 1),
        ] {
            let document = read_single_document("a.html", tag.repeat(MAX_NESTING / levels) + "deep inside");
            assert!(document.text().contains("deep inside"), "{tag} {:.300}", document.text());
        }
        let many = read_single_document("a.html", "<p>x<li>y<br>".repeat(20_000));
        assert!(many.line_count() > 1_000, "elements that close by themselves are not nested");
    }

    #[test]
    fn a_title_comes_from_the_content_or_the_name() {
        let table = [
            ("a.txt", "\n     Apache   License\n  Version 2.0", "Apache License"),
            ("dir/BSD-3-Clause.txt", "Copyright (c) somebody\n\nmore", "BSD-3-Clause"),
            ("plain.txt", "This is the first sentence.", "plain"),
            ("a.md", "text\n# *The Heading* #\n", "The Heading"),
            (".txt", "This is.", ".txt"),
        ];
        for (path, text, title) in table {
            assert_eq!(read_single_document(path, text).title, title, "{path}");
        }
    }
}
