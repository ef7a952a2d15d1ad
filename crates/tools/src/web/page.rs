//! Converts the bytes of a page to text for a model: content type, character set, for HTML the readable part as Markdown, and
//! the pages of PDF and office documents, which are parsed in a process of their own. Pages are untrusted: the work on them is
//! bounded, and a failure has no effect on anything else.

use dom_smoothie::Readability;
use encoding_rs::{UTF_8, WINDOWS_1252};
use millrace_agent::corpus::pages::PageText;
use millrace_documents::markdown::{TooDeep, document_to_markdown, parse_html};
use millrace_documents::text::find_declared_encoding;
use millrace_documents::{BinaryFormat, Extractor, TextPart};
use millrace_protocol::safe_text::strip_control_characters;

/// Maximum number of bytes read from a page, after decompression.
pub const MAX_BODY: usize = 1_000_000;

/// Maximum nesting of HTML: the converter is recursive and has a stack of [`PARSER_STACK_SIZE`] bytes.
const MAX_NESTING: usize = 1_000;
/// Several times the stack that [`MAX_NESTING`] levels need, even in an unoptimised build.
const PARSER_STACK_SIZE: usize = 128 * 1024 * 1024;
/// If the readable part is less than one in this many bytes of the page, it was chosen badly and the whole page is used.
const READABLE_SHARE: usize = 10;
/// The elements of a page that are no text.
const SKIPPED: [&str; 10] =
    ["script", "style", "noscript", "template", "svg", "img", "iframe", "title", "button", "form"];
/// Maximum length of a title in characters.
const MAX_TITLE: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextKind {
    /// HTML, which is converted.
    Html,
    /// Text, which is used unchanged.
    Text,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyKind {
    Text(TextKind),
    /// A document in a binary format, or bytes of unknown format that may be one.
    Document,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) title: Option<String>,
    pub(crate) text: PageText,
}

/// The content types of documents in binary formats, and of bytes of unknown format.
const DOCUMENT_TYPES: [&str; 26] = [
    "application/pdf",
    "application/x-pdf",
    "application/epub+zip",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.template",
    "application/vnd.ms-word.document.macroenabled.12",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "application/vnd.openxmlformats-officedocument.presentationml.slideshow",
    "application/vnd.ms-powerpoint.presentation.macroenabled.12",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "application/vnd.ms-excel",
    "application/vnd.ms-excel.sheet.macroenabled.12",
    "application/vnd.ms-excel.sheet.binary.macroenabled.12",
    "application/vnd.oasis.opendocument.spreadsheet",
    "application/vnd.oasis.opendocument.text",
    "application/vnd.oasis.opendocument.presentation",
    "application/vnd.oasis.opendocument.graphics",
    "application/msword",
    "application/vnd.ms-powerpoint",
    "application/vnd.ms-outlook",
    "application/rtf",
    "application/x-ole-storage",
    "message/rfc822",
    "application/octet-stream",
    "binary/octet-stream",
    "application/force-download",
];

/// Returns the kind of a body by its content type, before it is read, and the name of the type without parameters; `Err` with
/// the name if it is not supported.
pub(crate) fn detect_body_kind(content_type: Option<&str>) -> Result<(BodyKind, String), String> {
    match detect_text_kind(content_type, b"") {
        Ok((kind, name)) => Ok((BodyKind::Text(kind), name)),
        Err(name) if DOCUMENT_TYPES.contains(&name.as_str()) => Ok((BodyKind::Document, name)),
        Err(name) => Err(name),
    }
}

/// Returns the ending by which the format of a document is chosen where its content does not decide: that of its path, or of its
/// content type.
pub(crate) fn document_ending(path: &str, content_type: &str) -> Option<String> {
    match content_type {
        "message/rfc822" => return Some("eml".into()),
        "application/vnd.ms-excel" => return Some("xls".into()),
        _ => {}
    }
    let name = path.rsplit('/').next().unwrap_or_default();
    name.rsplit_once('.').map(|(_, ending)| ending.to_lowercase())
}

/// Extracts the text of a document with its pages, in a child process.
pub(crate) async fn convert_document(
    format: BinaryFormat,
    body: Vec<u8>,
    extractor: Extractor,
) -> Result<Page, String> {
    let extracted = tokio::task::spawn_blocking(move || extractor.extract_text(format, &body)).await;
    let extracted = extracted.map_err(|panic| format!("the work on it failed: {panic}"))?;
    let extracted = extracted.map_err(|error| error.to_string())?;
    let clean = |part: TextPart| TextPart { text: strip_control_characters(&part.text), ..part };
    let parts: Vec<TextPart> = extracted.parts.into_iter().map(clean).collect();
    let title = extracted.title.map(|title| crate::untrusted::one_line(&title, MAX_TITLE));
    Ok(Page { title: title.filter(|title| !title.is_empty()), text: PageText::from_parts(&parts) })
}

/// Returns the kind of a content type and its name without parameters; `Err` with the name if it is not supported. If
/// there is no content type, the kind is guessed from the first bytes.
pub(crate) fn detect_text_kind(
    content_type: Option<&str>,
    body: &[u8],
) -> Result<(TextKind, String), String> {
    let name = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_lowercase();
    let (main, sub) = name.split_once('/').unwrap_or((&name, ""));
    let text = main == "text"
        || sub.ends_with("+json")
        || sub.ends_with("+xml")
        || matches!(
            name.as_str(),
            "application/json"
                | "application/xml"
                | "application/x-ndjson"
                | "application/yaml"
                | "application/toml"
                | "application/javascript"
        ) && !sub.is_empty();
    match name.as_str() {
        "text/html" | "application/xhtml+xml" => Ok((TextKind::Html, name)),
        "image/svg+xml" => Err(name),
        _ if text => Ok((TextKind::Text, name)),
        "" => {
            guess_text_kind(body).ok_or_else(|| "of unknown type (no content type, and not text)".to_owned())
        }
        _ => Err(name),
    }
}

fn guess_text_kind(body: &[u8]) -> Option<(TextKind, String)> {
    let start = &body[..body.len().min(512)];
    let lower = String::from_utf8_lossy(start).trim_start().to_lowercase();
    if lower.starts_with("<!doctype html") || lower.starts_with("<html") {
        return Some((TextKind::Html, "text/html, guessed".into()));
    }
    (!start.contains(&0)).then(|| (TextKind::Text, "text/plain, guessed".into()))
}

/// Decodes a body by its byte order mark, else by the content type, else by the character set in the page, else as UTF-8
/// if it is valid, else as windows-1252.
pub(crate) fn decode_to_utf8(content_type: Option<&str>, body: &[u8]) -> String {
    let declared = content_type.and_then(|text| find_declared_encoding(text.as_bytes())).or_else(|| {
        // A page that could be parsed up to here is not UTF-16, even if it claims to be.
        find_declared_encoding(body)
            .map(|encoding| if encoding.is_ascii_compatible() { encoding } else { UTF_8 })
    });
    // A truncated body may end inside a character.
    let cut = body.len() >= MAX_BODY;
    let valid = || std::str::from_utf8(body).map_or_else(|e| cut && e.error_len().is_none(), |_| true);
    let fallback = || if valid() { UTF_8 } else { WINDOWS_1252 };
    declared.unwrap_or_else(fallback).decode(body).0.into_owned()
}

/// Converts decoded text to a page, on a separate thread with a large stack. A panic of the converter is an error.
pub(crate) async fn convert_to_page(text_kind: TextKind, text: String, url: String) -> Result<Page, String> {
    match text_kind {
        TextKind::Text => Ok(Page { title: None, text: readable_lines(&text) }),
        TextKind::Html => {
            let (done, when_done) = tokio::sync::oneshot::channel();
            std::thread::Builder::new()
                .name("html".into())
                .stack_size(PARSER_STACK_SIZE)
                .spawn(move || drop(done.send(readable_page(&text, &url))))
                .map_err(|e| format!("cannot start a thread for the conversion: {e}"))?;
            when_done.await.unwrap_or_else(|_| Err("the converter panicked on its HTML".into()))
        }
    }
}

fn readable_page(html: &str, url: &str) -> Result<Page, String> {
    let parsed = parse_html(html, MAX_NESTING).map_err(html_error)?;
    let whole = document_to_markdown(&parsed.clone(), &SKIPPED);
    let title = parsed.select_single("title").text().to_string();
    let article = Readability::with_document(parsed, Some(url), None).and_then(|mut page| page.parse()).ok();
    let best = article.and_then(|article| parse_html(&article.content, MAX_NESTING).ok());
    let best = best.map(|best| document_to_markdown(&best, &SKIPPED));
    let text = best.filter(|best| best.len() * READABLE_SHARE >= whole.len()).unwrap_or(whole);
    let title = Some(crate::untrusted::one_line(&title, MAX_TITLE)).filter(|title| !title.is_empty());
    Ok(Page { title, text: readable_lines(&text) })
}

fn html_error(fault: TooDeep) -> String {
    format!("its HTML cannot be converted: {fault}")
}

fn readable_lines(text: &str) -> PageText {
    let text = remove_control_characters(text);
    if text.is_empty() { PageText::default() } else { PageText::from_text(&text) }
}

/// Normalises line breaks, and removes control characters, trailing spaces and repeated empty lines.
fn remove_control_characters(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut empty = 0;
    for line in strip_control_characters(text).split('\n') {
        let line = line.trim_end();
        empty = if line.is_empty() { empty + 1 } else { 0 };
        if empty < 2 {
            clean.push_str(line);
            clean.push('\n');
        }
    }
    clean.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn html(text: &str) -> Result<Page, String> {
        convert_to_page(TextKind::Html, text.to_owned(), "https://example.org/".to_owned()).await
    }

    #[test]
    fn content_types_are_supported_by_name() {
        for (content_type, expected) in [
            ("text/html; charset=utf-8", Some(TextKind::Html)),
            ("Application/XHTML+XML", Some(TextKind::Html)),
            ("text/plain", Some(TextKind::Text)),
            ("text/csv", Some(TextKind::Text)),
            ("application/json", Some(TextKind::Text)),
            ("application/ld+json", Some(TextKind::Text)),
            ("application/atom+xml", Some(TextKind::Text)),
            ("application/pdf", None),
            ("image/png", None),
            ("image/svg+xml", None),
            ("application/octet-stream", None),
            ("video/mp4", None),
            ("json", None),
        ] {
            assert_eq!(
                detect_text_kind(Some(content_type), b"").ok().map(|encoding| encoding.0),
                expected,
                "{content_type}"
            );
        }
        assert_eq!(detect_text_kind(None, b" <!DOCTYPE html><p>x").unwrap().0, TextKind::Html);
        assert_eq!(detect_text_kind(None, b"plain").unwrap().0, TextKind::Text);
        assert!(detect_text_kind(None, b"\x7fELF\0\0").is_err());
    }

    #[test]
    fn character_sets_are_found_in_all_places() {
        let latin1 = b"<meta charset=\"iso-8859-1\"><p>caf\xe9".as_slice();
        for (content_type, body, expected) in [
            (Some("text/html; charset=ISO-8859-1"), b"caf\xe9".as_slice(), "café"),
            (Some("text/html; charset=\"utf-8\""), "café".as_bytes(), "café"),
            (Some("text/html"), latin1, "<meta charset=\"iso-8859-1\"><p>café"),
            (None, b"caf\xe9", "café"),
            (None, "café".as_bytes(), "café"),
            (None, b"caf\xc3", "cafÃ"),
            (Some("text/html; charset=latin1"), b"\xef\xbb\xbfcaf\xc3\xa9", "café"),
            (Some("text/plain; charset=shift_jis"), b"\x93\xfa\x96\x7b", "日本"),
            (Some("text/plain; charset=klingon"), "café".as_bytes(), "café"),
            (None, b"\xff\xfea\0b\0", "ab"),
        ] {
            assert_eq!(decode_to_utf8(content_type, body), expected, "{content_type:?}");
        }
    }

    #[tokio::test]
    async fn the_readable_part_of_a_page_becomes_markdown() {
        let paragraph =
            "The mill race carries water to the wheel, and the wheel turns the stones. ".repeat(8);
        let page = html(&format!(
            "<html><head><title>Of  mills\n&amp; races</title><script>var secret = 1</script></head><body>\
             <nav><a href='/a'>Home</a> <a href='/b'>About</a></nav>\
             <article><h1>Mills</h1><p>{paragraph}</p><ul><li>one</li><li>two</li></ul>\
             <p>{paragraph}<a href='/more'>more</a></p></article><footer>imprint</footer></body></html>"
        ))
        .await
        .unwrap();
        assert_eq!(page.title.as_deref(), Some("Of mills & races"));
        assert!(page.text.lines.contains("The mill race carries water"), "{}", page.text.lines);
        assert!(page.text.lines.contains("](https://example.org/more)"), "{}", page.text.lines);
        assert!(!page.text.lines.contains("secret") && !page.text.lines.contains('<'), "{}", page.text.lines);
    }

    #[tokio::test]
    async fn a_page_without_a_readable_part_is_shown_completely() {
        let page = html("<ul><li><a href='/x'>a link</a></li><li>words</li></ul>").await.unwrap();
        assert!(
            page.text.lines.contains("a link") && page.text.lines.contains("words"),
            "{}",
            page.text.lines
        );
        assert_eq!(html("").await.unwrap(), Page { title: None, text: PageText::default() });
    }

    #[tokio::test]
    async fn deeply_nested_html_is_refused() {
        for tag in ["<div>", "<b>", "<table><td>", "<svg><g>", "<blockquote><p>"] {
            let bomb = tag.repeat(100_000);
            assert!(html(&bomb).await.unwrap_err().contains("nested more than"), "{tag}");
            let deep = format!("{}inside", tag.repeat(200));
            let page = html(&deep).await.unwrap();
            assert!(tag.starts_with("<svg") || page.text.lines.contains("inside"), "{tag}");
        }
    }

    #[tokio::test]
    async fn deeply_nested_html_with_stray_end_tags_is_refused() {
        for tag in ["<div></x>", "<b></x>", "<div><!--</div>-->", "<div title='</div>'>"] {
            let bomb = html(&tag.repeat(50_000)).await;
            assert!(
                bomb.as_ref().is_err_and(|error| error.contains("nested more than")),
                "{tag}: {bomb:.200?}"
            );
        }
    }

    #[test]
    fn control_characters_and_repeated_empty_lines_are_removed() {
        assert_eq!(
            remove_control_characters("a\r\nb\rc \n\n\n\nd\u{0}\u{1b}[31me\tf\n"),
            "a\nb\nc\n\nd[31me\tf"
        );
    }
}
