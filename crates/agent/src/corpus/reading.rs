//! Converts bytes to numbered lines: the readable formats, the conversion of each to text, and the reasons for skipping a
//! file. It never fails as a whole: an unreadable file is listed with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use millrace_protocol::safe_text::single_line;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::markdown::html_to_markdown;

/// The maximum size of a file, in bytes.
pub const MAX_BYTES: u64 = 32 * 1024 * 1024;
/// The maximum size of a corpus' text, in bytes: further documents are skipped.
const MAX_TOTAL: usize = 1024 * 1024 * 1024;
/// The maximum length of a line, in characters; a longer line is broken between words. Shorter lines are unchanged, so
/// that line numbers are those of the file.
pub const MAX_LINE: usize = 2_000;
/// The maximum length of a title, in characters.
const MAX_TITLE: usize = 80;
/// The maximum nesting of HTML. The converter recurses for each level, on a stack of [`HTML_STACK`] bytes.
const MAX_NESTING: usize = 2_000;
/// Enough for [`MAX_NESTING`] levels several times over, even in an unoptimised build.
const HTML_STACK: usize = 256 * 1024 * 1024;

/// An input file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputFile {
    /// Its path below the documents' folder, with `/` between parts.
    pub path: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// A document as text. Lines are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredDocument", into = "StoredDocument")]
pub struct Document {
    /// Its path below the documents' folder, readable and safe to cite: see `readable_paths`.
    pub path: String,
    /// Its title: from its content, otherwise from its name.
    pub title: String,
    /// The SHA-256 of its bytes, in hexadecimal.
    pub sha256: String,
    text: String,
    /// The offset of each line in `text`.
    starts: Vec<usize>,
}

/// A document without the fields derived from its text.
#[derive(Clone, Serialize, Deserialize)]
struct StoredDocument {
    path: String,
    title: String,
    sha256: String,
    text: String,
}

impl From<StoredDocument> for Document {
    fn from(stored: StoredDocument) -> Self {
        let StoredDocument { path, title, sha256, text } = stored;
        let ends = text.match_indices('\n').map(|(at, _)| at + 1).filter(|&at| at < text.len());
        let starts = std::iter::once(0).chain(ends).collect();
        Self { path, title, sha256, text, starts }
    }
}

impl From<Document> for StoredDocument {
    fn from(document: Document) -> Self {
        let Document { path, title, sha256, text, starts: _ } = document;
        Self { path, title, sha256, text }
    }
}

impl Document {
    /// The number of lines; at least 1.
    #[must_use]
    pub fn line_count(&self) -> usize {
        self.starts.len()
    }

    /// The whole text, its lines ending in `\n`.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A line without its line end; `None` if there is no such line.
    #[must_use]
    pub fn nth_line(&self, number: usize) -> Option<&str> {
        let start = *self.starts.get(number.checked_sub(1)?)?;
        let end = self.starts.get(number).copied().unwrap_or(self.text.len());
        Some(self.text[start..end].trim_end_matches('\n'))
    }

    /// The lines from `first` to `last`, inclusive.
    #[must_use]
    pub fn line_range(&self, first: usize, last: usize) -> &str {
        let Some(&start) = first.checked_sub(1).and_then(|at| self.starts.get(at)) else {
            return "";
        };
        let end = self.starts.get(last).copied().unwrap_or(self.text.len());
        self.text[start..end.max(start)].trim_end_matches('\n')
    }
}

/// A file that was skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedFile {
    /// Its path below the documents' folder.
    pub path: String,
    /// The reason.
    pub reason: SkipReason,
}

/// The reason for skipping a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// Its file extension is not supported.
    Kind(String),
    /// It contains bytes that do not occur in text.
    Binary,
    /// It is not valid UTF-8 from this byte on.
    NotUtf8(usize),
    /// It is larger than [`MAX_BYTES`]; its size.
    TooLarge(u64),
    /// Earlier documents used up the corpus' maximum size.
    TooMuch,
    /// It contains no text.
    Empty,
    /// Its HTML is nested too deep, or the converter failed.
    Html(String),
    /// Another file has the same path.
    SamePath,
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
                write!(
                    f,
                    "files of the kind .{kind} are not supported; text, Markdown, reStructuredText and HTML are"
                )
            }
            Self::Binary => f.write_str("it is binary, not text"),
            Self::NotUtf8(at) => write!(f, "it is not UTF-8 text (byte {at})"),
            Self::TooLarge(size) => {
                write!(f, "it has {} MiB; the maximum is {} MiB", size.div_ceil(MIB), MAX_BYTES / MIB)
            }
            Self::TooMuch => {
                write!(f, "the documents before it reach the maximum of {} MiB", MAX_TOTAL as u64 / MIB)
            }
            Self::Empty => f.write_str("it contains no text"),
            Self::Html(reason) => write!(f, "its HTML can't be read: {reason}"),
            Self::SamePath => f.write_str("another file has the same path"),
            Self::Link => f.write_str("it is a link to a folder or out of the documents' folder"),
            Self::NotAFile => f.write_str("it is not a regular file"),
            Self::Unreadable(reason) => write!(f, "it can't be opened: {reason}"),
        }
    }
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
                total += document.text.len();
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

/// Checks that a file with this path could be a document, by its name alone.
pub(super) fn check_file_name(path: &str) -> Result<(), SkipReason> {
    detect_format(path).map(drop)
}

/// Checks that a file can be read as a document.
pub(super) fn check_file_content(file: &InputFile) -> Result<(), SkipReason> {
    read_document(file).map(drop)
}

fn read_document(file: &InputFile) -> Result<Document, SkipReason> {
    let format = detect_format(&file.path)?;
    let size = file.bytes.len() as u64;
    if size > MAX_BYTES {
        return Err(SkipReason::TooLarge(size));
    }
    if file.bytes.contains(&0) {
        return Err(SkipReason::Binary);
    }
    let raw = std::str::from_utf8(&file.bytes).map_err(|fault| SkipReason::NotUtf8(fault.valid_up_to()))?;
    let raw = raw.strip_prefix('\u{feff}').unwrap_or(raw);
    let (title, text) = match format {
        DocumentFormat::Text => (None, normalize_text(raw)),
        DocumentFormat::Markdown => (None, normalize_text(raw)),
        DocumentFormat::Html => (html_title(raw), normalize_text(&html_to_text(raw)?)),
    };
    if text.trim().is_empty() {
        return Err(SkipReason::Empty);
    }
    let title = title
        .or_else(
            || if format == DocumentFormat::Text { first_line_title(&text) } else { heading_title(&text) },
        )
        .unwrap_or_else(|| file_stem(&file.path).to_owned());
    let sha256 = encode_hex(&Sha256::digest(&file.bytes));
    Ok(StoredDocument { path: file.path.clone(), title, sha256, text }.into())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DocumentFormat {
    Text,
    Markdown,
    Html,
}

/// Determines the format by the file extension. A name without one, or with a number (`GPL-3.0`), is treated as text.
fn detect_format(path: &str) -> Result<DocumentFormat, SkipReason> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let Some((_, ending)) = name.rsplit_once('.') else {
        return Ok(DocumentFormat::Text);
    };
    match ending.to_lowercase().as_str() {
        "txt" | "text" | "rst" => Ok(DocumentFormat::Text),
        "md" | "markdown" => Ok(DocumentFormat::Markdown),
        "html" | "htm" => Ok(DocumentFormat::Html),
        number if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => {
            Ok(DocumentFormat::Text)
        }
        other => Err(SkipReason::Kind(other.to_owned())),
    }
}

/// Normalises line ends, removes control characters and trailing blanks, and breaks lines longer than [`MAX_LINE`].
fn normalize_text(raw: &str) -> String {
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

fn file_stem(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    if stem.is_empty() { name } else { stem }
}

pub(crate) fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_file(path: &str, bytes: impl AsRef<[u8]>) -> InputFile {
        InputFile { path: path.into(), bytes: bytes.as_ref().to_vec() }
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
            build_file("b.txt", [0xff, b'a']),
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
                "a.pdf: files of the kind .pdf are not supported; text, Markdown, reStructuredText and HTML are",
                "b.txt: it is not UTF-8 text (byte 0)",
                "c: it is binary, not text",
                "d.md: it contains no text",
                "e.txt: it has 33 MiB; the maximum is 32 MiB",
                "z.txt: another file has the same path",
            ]
        );
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
