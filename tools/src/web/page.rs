//! From the bytes of a page to text that a model reads: the content type, the character set, and for HTML the part
//! that is worth reading, as Markdown. Pages are written by strangers: work on them is bounded and may fail, and takes
//! nothing else down with it.

use dom_query::{Document, NodeRef};
use dom_smoothie::Readability;
use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};
use millrace_agent::markdown::{TooDeep, is_deeper};

/// How deep HTML may be nested: the converter calls itself for each level, on a stack of [`STACK`] bytes.
const MAX_NESTING: usize = 1_000;
/// Room for [`MAX_NESTING`] levels several times over, in an unoptimised build too.
const STACK: usize = 128 * 1024 * 1024;
/// How far into a page a `meta` element with its character set is looked for.
const META_WITHIN: usize = 2_048;
/// With less than this part of a page's text, the readable part was chosen badly: the whole page is shown.
const READABLE_SHARE: usize = 10;
/// The longest title, in characters.
const MAX_TITLE: usize = 200;

/// What a content type means for reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// HTML, to be made readable.
    Html,
    /// Anything that is text as it is.
    Text,
}

/// A page as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) title: Option<String>,
    pub(crate) text: String,
}

/// The kind of a content type, and its name without parameters; `Err` with that name where it can't be read. A page
/// without a content type is taken for what its first bytes look like.
pub(crate) fn kind(content_type: Option<&str>, body: &[u8]) -> Result<(Kind, String), String> {
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
        "text/html" | "application/xhtml+xml" => Ok((Kind::Html, name)),
        "image/svg+xml" => Err(name),
        _ if text => Ok((Kind::Text, name)),
        "" => guess(body).ok_or_else(|| "no content type and bytes that are no text".to_owned()),
        _ => Err(name),
    }
}

fn guess(body: &[u8]) -> Option<(Kind, String)> {
    let start = &body[..body.len().min(512)];
    let lower = String::from_utf8_lossy(start).trim_start().to_lowercase();
    if lower.starts_with("<!doctype html") || lower.starts_with("<html") {
        return Some((Kind::Html, "text/html, guessed".into()));
    }
    (!start.contains(&0)).then(|| (Kind::Text, "text/plain, guessed".into()))
}

/// The text of a body: by its byte order mark, else by what the content type says, else by what the page says of
/// itself, else as UTF-8 if it is that, else as windows-1252.
pub(crate) fn decode(content_type: Option<&str>, body: &[u8]) -> String {
    let said = content_type.and_then(|text| charset(text.as_bytes())).or_else(|| {
        let start = &body[..body.len().min(META_WITHIN)];
        // A page that could be read up to here is not in UTF-16, whatever it says of itself.
        charset(start).map(|found| if found.is_ascii_compatible() { found } else { UTF_8 })
    });
    // A body that was cut may end within a character.
    let cut = body.len() >= super::fetch::MAX_BODY;
    let valid = || std::str::from_utf8(body).map_or_else(|e| cut && e.error_len().is_none(), |_| true);
    let fallback = || if valid() { UTF_8 } else { WINDOWS_1252 };
    said.unwrap_or_else(fallback).decode(body).0.into_owned()
}

fn charset(bytes: &[u8]) -> Option<&'static Encoding> {
    let text = String::from_utf8_lossy(bytes).to_lowercase();
    let after = text.split("charset").nth(1)?.trim_start().strip_prefix('=')?;
    let label: String = after
        .trim_start_matches([' ', '"', '\''])
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || "-_:.+".contains(*c))
        .collect();
    Encoding::for_label(label.as_bytes())
}

/// Makes a page of decoded text. Runs on a thread of its own with a large stack; a converter that panics is an error.
///
/// # Errors
/// The HTML can't be converted; the text says why.
pub(crate) async fn read(kind: Kind, text: String, url: String) -> Result<Page, String> {
    match kind {
        Kind::Text => Ok(Page { title: None, text: printable(&text) }),
        Kind::Html => {
            let (done, when_done) = tokio::sync::oneshot::channel();
            std::thread::Builder::new()
                .name("html".into())
                .stack_size(STACK)
                .spawn(move || drop(done.send(readable(&text, &url))))
                .map_err(|e| format!("no thread to convert its HTML on: {e}"))?;
            when_done.await.unwrap_or_else(|_| Err("the converter gave its HTML up".into()))
        }
    }
}

fn readable(html: &str, url: &str) -> Result<Page, String> {
    let whole = markdown(html)?;
    let parsed = Document::from(html);
    if is_deeper(vec![parsed.root()], NodeRef::children, MAX_NESTING) {
        return Err(unreadable(TooDeep(MAX_NESTING)));
    }
    let title = parsed.select_single("title").text().to_string();
    let article = Readability::with_document(parsed, Some(url), None).and_then(|mut page| page.parse()).ok();
    let best = article.as_ref().and_then(|article| markdown(&article.content).ok());
    let text = best.filter(|best| best.len() * READABLE_SHARE >= whole.len()).unwrap_or(whole);
    let title = Some(crate::material::one_line(&title, MAX_TITLE)).filter(|title| !title.is_empty());
    Ok(Page { title, text: printable(&text) })
}

fn markdown(html: &str) -> Result<String, String> {
    let skipped =
        ["script", "style", "noscript", "template", "svg", "img", "iframe", "title", "button", "form"];
    millrace_agent::markdown::markdown(html, &skipped, MAX_NESTING).map_err(unreadable)
}

fn unreadable(fault: TooDeep) -> String {
    format!("its HTML can't be read: {fault}")
}

/// One kind of line end, no control characters, no blanks at the ends of lines, no more than one empty line in a row.
fn printable(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut empty = 0;
    for line in text.replace("\r\n", "\n").replace('\r', "\n").split('\n') {
        let line = line.trim_end();
        empty = if line.is_empty() { empty + 1 } else { 0 };
        if empty < 2 {
            clean.extend(line.chars().filter(|c| *c == '\t' || !c.is_control()));
            clean.push('\n');
        }
    }
    clean.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn html(text: &str) -> Result<Page, String> {
        read(Kind::Html, text.to_owned(), "https://example.org/".to_owned()).await
    }

    #[test]
    fn content_types_are_read_or_refused_by_name() {
        for (content_type, expected) in [
            ("text/html; charset=utf-8", Some(Kind::Html)),
            ("Application/XHTML+XML", Some(Kind::Html)),
            ("text/plain", Some(Kind::Text)),
            ("text/csv", Some(Kind::Text)),
            ("application/json", Some(Kind::Text)),
            ("application/ld+json", Some(Kind::Text)),
            ("application/atom+xml", Some(Kind::Text)),
            ("application/pdf", None),
            ("image/png", None),
            ("image/svg+xml", None),
            ("application/octet-stream", None),
            ("video/mp4", None),
            ("json", None),
        ] {
            assert_eq!(kind(Some(content_type), b"").ok().map(|found| found.0), expected, "{content_type}");
        }
        assert_eq!(kind(None, b" <!DOCTYPE html><p>x").unwrap().0, Kind::Html);
        assert_eq!(kind(None, b"plain").unwrap().0, Kind::Text);
        assert!(kind(None, b"\x7fELF\0\0").is_err());
    }

    #[test]
    fn character_sets_are_found_wherever_they_are_said() {
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
            assert_eq!(decode(content_type, body), expected, "{content_type:?}");
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
        assert!(page.text.contains("The mill race carries water"), "{}", page.text);
        assert!(page.text.contains("](https://example.org/more)"), "{}", page.text);
        assert!(!page.text.contains("secret") && !page.text.contains('<'), "{}", page.text);
    }

    #[tokio::test]
    async fn a_page_with_nothing_to_choose_from_is_shown_whole() {
        let page = html("<ul><li><a href='/x'>a link</a></li><li>words</li></ul>").await.unwrap();
        assert!(page.text.contains("a link") && page.text.contains("words"), "{}", page.text);
        assert_eq!(html("").await.unwrap(), Page { title: None, text: String::new() });
    }

    #[tokio::test]
    async fn html_made_to_exhaust_the_stack_is_refused() {
        for tag in ["<div>", "<b>", "<table><td>", "<svg><g>", "<blockquote><p>"] {
            let bomb = tag.repeat(100_000);
            assert!(html(&bomb).await.unwrap_err().contains("nested more than"), "{tag}");
            let deep = format!("{}inside", tag.repeat(200));
            let page = html(&deep).await.unwrap();
            assert!(tag.starts_with("<svg") || page.text.contains("inside"), "{tag}");
        }
    }

    #[tokio::test]
    async fn html_that_only_seems_to_close_what_it_opens_is_refused_as_well() {
        for tag in ["<div></x>", "<b></x>", "<div><!--</div>-->", "<div title='</div>'>"] {
            let bomb = html(&tag.repeat(50_000)).await;
            assert!(
                bomb.as_ref().is_err_and(|told| told.contains("nested more than")),
                "{tag}: {bomb:.200?}"
            );
        }
    }

    #[test]
    fn control_characters_and_runs_of_empty_lines_go() {
        assert_eq!(printable("a\r\nb\rc \n\n\n\nd\u{0}\u{1b}[31me\tf\n"), "a\nb\nc\n\nd[31me\tf");
    }
}
