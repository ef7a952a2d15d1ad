//! From bytes to numbered lines: which files are readable, how each kind becomes text, and why a file is passed over.
//! It never fails as a whole: a file that can't be read is named with the reason.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::markdown::markdown;

/// The largest file that is read, in bytes.
pub const MAX_BYTES: u64 = 32 * 1024 * 1024;
/// The most text that one corpus holds, in bytes: what comes after it is passed over.
const MAX_TOTAL: usize = 1024 * 1024 * 1024;
/// The longest line, in characters; a longer one is broken between words. Shorter lines stay as they are, so that
/// line numbers are those of the file.
pub const MAX_LINE: usize = 2_000;
/// The longest title, in characters.
const MAX_TITLE: usize = 80;
/// How deep HTML may be nested. The converter calls itself for each level, on a stack of [`HTML_STACK`] bytes.
const MAX_NESTING: usize = 2_000;
/// Room for [`MAX_NESTING`] levels several times over, in an unoptimised build too.
const HTML_STACK: usize = 256 * 1024 * 1024;

/// A file as it was handed in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its path below the documents' folder, with `/` between parts.
    pub path: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// A document as text. Lines count from 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Document {
    /// Its path below the documents' folder.
    pub path: String,
    /// Its title: what it says of itself, else its name.
    pub title: String,
    /// The SHA-256 of its bytes, in hexadecimal.
    pub sha256: String,
    text: String,
    /// Where each line begins in `text`.
    starts: Vec<usize>,
}

/// A document without what follows from its text.
#[derive(Clone, Serialize, Deserialize)]
struct Stored {
    path: String,
    title: String,
    sha256: String,
    text: String,
}

impl From<Stored> for Document {
    fn from(stored: Stored) -> Self {
        let Stored { path, title, sha256, text } = stored;
        let ends = text.match_indices('\n').map(|(at, _)| at + 1).filter(|&at| at < text.len());
        let starts = std::iter::once(0).chain(ends).collect();
        Self { path, title, sha256, text, starts }
    }
}

impl From<Document> for Stored {
    fn from(document: Document) -> Self {
        let Document { path, title, sha256, text, starts: _ } = document;
        Self { path, title, sha256, text }
    }
}

impl Document {
    /// How many lines it has; at least 1.
    #[must_use]
    pub fn line_count(&self) -> usize {
        self.starts.len()
    }

    /// The whole text, its lines ending in `\n`.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A line without its end; `None` if there is no such line.
    #[must_use]
    pub fn line(&self, number: usize) -> Option<&str> {
        let start = *self.starts.get(number.checked_sub(1)?)?;
        let end = self.starts.get(number).copied().unwrap_or(self.text.len());
        Some(self.text[start..end].trim_end_matches('\n'))
    }

    /// The lines from `first` to `last`, both included, as they stand in the text.
    #[must_use]
    pub fn lines(&self, first: usize, last: usize) -> &str {
        let Some(&start) = first.checked_sub(1).and_then(|at| self.starts.get(at)) else {
            return "";
        };
        let end = self.starts.get(last).copied().unwrap_or(self.text.len());
        self.text[start..end.max(start)].trim_end_matches('\n')
    }
}

/// A file that was passed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Its path below the documents' folder.
    pub path: String,
    /// Why.
    pub reason: SkipReason,
}

/// Why a file is passed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// Its kind, by the ending of its name, is not one that is read.
    Kind(String),
    /// It holds bytes that no text has.
    Binary,
    /// It is not UTF-8 from this byte on.
    NotUtf8(usize),
    /// It is larger than [`MAX_BYTES`]; its size.
    TooLarge(u64),
    /// The documents before it fill the corpus.
    TooMuch,
    /// There is no text in it.
    Empty,
    /// Its HTML is nested too deep, or the converter gave it up.
    Html(String),
    /// Another file has the same path.
    SamePath,
    /// It is a link to a folder or out of the documents' folder.
    Link,
    /// It is no file: a socket, a pipe, a device.
    NotAFile,
    /// The system refused it.
    Unreadable(String),
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: u64 = 1024 * 1024;
        match self {
            Self::Kind(kind) => {
                write!(
                    f,
                    "files of the kind .{kind} are not read; text, Markdown, reStructuredText and HTML are"
                )
            }
            Self::Binary => f.write_str("it is binary, not text"),
            Self::NotUtf8(at) => write!(f, "it is not UTF-8 text (byte {at})"),
            Self::TooLarge(size) => {
                write!(f, "it has {} MiB; at most {} MiB are read", size.div_ceil(MIB), MAX_BYTES / MIB)
            }
            Self::TooMuch => {
                write!(
                    f,
                    "the documents before it have {} MiB, the most that is read",
                    MAX_TOTAL as u64 / MIB
                )
            }
            Self::Empty => f.write_str("there is no text in it"),
            Self::Html(reason) => write!(f, "its HTML can't be read: {reason}"),
            Self::SamePath => f.write_str("another file has the same path"),
            Self::Link => f.write_str("it is a link to a folder or out of the documents' folder"),
            Self::NotAFile => f.write_str("it is not a regular file"),
            Self::Unreadable(reason) => write!(f, "it can't be opened: {reason}"),
        }
    }
}

/// Reads files to documents; both lists come back ordered by path.
pub(super) fn read_all(mut files: Vec<File>) -> (Vec<Document>, Vec<Skipped>) {
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let (mut documents, mut skipped) = (Vec::new(), Vec::new());
    let mut seen = BTreeSet::new();
    let mut total = 0;
    for file in files {
        let read = if !seen.insert(file.path.clone()) {
            Err(SkipReason::SamePath)
        } else if total > MAX_TOTAL {
            Err(SkipReason::TooMuch)
        } else {
            read(&file)
        };
        match read {
            Ok(document) => {
                total += document.text.len();
                documents.push(document);
            }
            Err(reason) => skipped.push(Skipped { path: file.path, reason }),
        }
    }
    (documents, skipped)
}

fn read(file: &File) -> Result<Document, SkipReason> {
    let kind = kind_of(&file.path)?;
    let size = file.bytes.len() as u64;
    if size > MAX_BYTES {
        return Err(SkipReason::TooLarge(size));
    }
    if file.bytes.contains(&0) {
        return Err(SkipReason::Binary);
    }
    let raw = std::str::from_utf8(&file.bytes).map_err(|fault| SkipReason::NotUtf8(fault.valid_up_to()))?;
    let raw = raw.strip_prefix('\u{feff}').unwrap_or(raw);
    let (title, text) = match kind {
        Kind::Text => (None, clean(raw)),
        Kind::Markdown => (None, clean(raw)),
        Kind::Html => (html_title(raw), clean(&html_to_text(raw)?)),
    };
    if text.trim().is_empty() {
        return Err(SkipReason::Empty);
    }
    let title = title
        .or_else(|| if kind == Kind::Text { first_line_title(&text) } else { heading_title(&text) })
        .unwrap_or_else(|| file_stem(&file.path).to_owned());
    let sha256 = hex(&Sha256::digest(&file.bytes));
    Ok(Stored { path: file.path.clone(), title, sha256, text }.into())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Markdown,
    Html,
}

/// The kind by the ending of the name. A name without one, or with a number for one (`GPL-3.0`), is taken for text.
fn kind_of(path: &str) -> Result<Kind, SkipReason> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let Some((_, ending)) = name.rsplit_once('.') else {
        return Ok(Kind::Text);
    };
    match ending.to_lowercase().as_str() {
        "txt" | "text" | "rst" => Ok(Kind::Text),
        "md" | "markdown" => Ok(Kind::Markdown),
        "html" | "htm" => Ok(Kind::Html),
        number if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => Ok(Kind::Text),
        other => Err(SkipReason::Kind(other.to_owned())),
    }
}

/// One kind of line end, no control characters, no blanks at the ends of lines, no line longer than [`MAX_LINE`].
fn clean(raw: &str) -> String {
    let mut text = String::with_capacity(raw.len());
    for line in raw.replace("\r\n", "\n").replace('\r', "\n").trim_end().split('\n') {
        let printable: String =
            line.chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect();
        break_line(printable.trim_end(), &mut text);
    }
    text
}

fn break_line(line: &str, text: &mut String) {
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

/// Markdown from HTML, on a thread with a stack large enough for the converter; if it panics, the file is passed over.
fn html_to_text(html: &str) -> Result<String, SkipReason> {
    let skipped = ["script", "style", "noscript", "template", "svg", "img", "iframe", "title"];
    let convert =
        || markdown(html, &skipped, MAX_NESTING).map_err(|fault| SkipReason::Html(fault.to_string()));
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("html".into()).stack_size(HTML_STACK);
        let running =
            thread.spawn_scoped(scope, convert).map_err(|fault| SkipReason::Html(fault.to_string()))?;
        running.join().unwrap_or_else(|_| Err(SkipReason::Html("the converter gave it up".into())))
    })
}

fn html_title(html: &str) -> Option<String> {
    let lower = html.to_ascii_lowercase();
    let start = lower.find("<title")?;
    let start = start + lower[start..].find('>')? + 1;
    let end = start + lower[start..].find("</title")?;
    let title = html[start..end].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    short_title(&title)
}

fn heading_title(text: &str) -> Option<String> {
    let heading = text.lines().find_map(|line| line.strip_prefix("# "))?;
    short_title(heading.trim_matches(['#', ' ', '*', '_']))
}

/// The first line, if it looks like a title and not like the beginning of a sentence or a notice.
fn first_line_title(text: &str) -> Option<String> {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let is_notice = first.to_lowercase().starts_with("copyright") || first.ends_with(['.', ',', ';', ':']);
    if is_notice { None } else { short_title(first) }
}

fn short_title(raw: &str) -> Option<String> {
    let title = raw.split_whitespace().collect::<Vec<_>>().join(" ");
    let fits = title.chars().any(char::is_alphabetic) && title.chars().count() <= MAX_TITLE;
    fits.then_some(title)
}

fn file_stem(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    if stem.is_empty() { name } else { stem }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, bytes: impl AsRef<[u8]>) -> File {
        File { path: path.into(), bytes: bytes.as_ref().to_vec() }
    }

    fn only(path: &str, bytes: impl AsRef<[u8]>) -> Document {
        let (mut documents, skipped) = read_all(vec![file(path, bytes)]);
        assert_eq!(skipped, vec![]);
        documents.remove(0)
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named_with_the_reason_and_the_rest_is_read() {
        let files = vec![
            file("z.txt", "last"),
            file("a.pdf", "%PDF-1.7"),
            file("b.txt", [0xff, b'a']),
            file("c", b"\x7fELF\0\0"),
            file("d.md", " \n\t\n"),
            file("e.txt", vec![b'x'; MAX_BYTES as usize + 1]),
            file("z.txt", "again"),
            file("GPL-3.0", "the text"),
        ];
        let (documents, skipped) = read_all(files);
        let read: Vec<&str> = documents.iter().map(|document| document.path.as_str()).collect();
        assert_eq!(read, ["GPL-3.0", "z.txt"]);
        let told: Vec<String> = skipped.iter().map(|s| format!("{}: {}", s.path, s.reason)).collect();
        assert_eq!(
            told,
            [
                "a.pdf: files of the kind .pdf are not read; text, Markdown, reStructuredText and HTML are",
                "b.txt: it is not UTF-8 text (byte 0)",
                "c: it is binary, not text",
                "d.md: there is no text in it",
                "e.txt: it has 33 MiB; at most 32 MiB are read",
                "z.txt: another file has the same path",
            ]
        );
    }

    #[test]
    fn lines_are_those_of_the_file() {
        let document = only("a.txt", "\u{feff}one\r\ntwo  \r\n\r\nfour");
        assert_eq!(document.line_count(), 4);
        assert_eq!(document.line(1), Some("one"));
        assert_eq!(document.line(3), Some(""));
        assert_eq!(document.lines(2, 4), "two\n\nfour");
        assert_eq!(document.lines(4, 9), "four");
        assert_eq!((document.line(0), document.line(5), document.lines(5, 6)), (None, None, ""));
    }

    #[test]
    fn an_endless_line_is_broken_between_words_and_inside_only_without_any() {
        let words = only("a.txt", "word ".repeat(1_000));
        assert!((1..=words.line_count()).all(|n| words.line(n).unwrap().chars().count() <= MAX_LINE));
        assert!(words.text().split_whitespace().all(|word| word == "word"));
        let solid = only("b.txt", "ü".repeat(5_000));
        assert_eq!(solid.line_count(), 3);
    }

    #[test]
    fn html_becomes_text_with_its_title_and_without_its_scripts() {
        let html = "<html><head><title>The &amp; title</title><script>var secret = 1;</script></head>\
            <body><h1>Heading</h1><p>First <b>bold</b> words.<p>Second.<ul><li>item</ul></body>";
        let document = only("a.html", html);
        assert_eq!(document.title, "The & title");
        assert!(document.text().contains("# Heading") && document.text().contains("First **bold** words."));
        assert!(!document.text().contains("secret"));
    }

    #[test]
    fn html_nested_without_end_is_passed_over_and_deep_html_is_read() {
        for bomb in [
            "<div>".repeat(MAX_NESTING + 1),
            "<div></x>".repeat(100_000),
            "<div><!--</div>-->".repeat(100_000),
        ] {
            let (_, skipped) = read_all(vec![file("a.html", bomb + "x")]);
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
            let document = only("a.html", tag.repeat(MAX_NESTING / levels) + "deep inside");
            assert!(document.text().contains("deep inside"), "{tag} {:.300}", document.text());
        }
        let many = only("a.html", "<p>x<li>y<br>".repeat(20_000));
        assert!(many.line_count() > 1_000, "elements that end by themselves are not nested");
    }

    #[test]
    fn a_title_is_what_the_document_calls_itself() {
        let table = [
            ("a.txt", "\n     Apache   License\n  Version 2.0", "Apache License"),
            ("dir/BSD-3-Clause.txt", "Copyright (c) somebody\n\nmore", "BSD-3-Clause"),
            ("plain.txt", "This is the first sentence.", "plain"),
            ("a.md", "text\n# *The Heading* #\n", "The Heading"),
            (".txt", "This is.", ".txt"),
        ];
        for (path, text, title) in table {
            assert_eq!(only(path, text).title, title, "{path}");
        }
    }
}
