//! Text of EPUB files: a part for each section, in reading order.

use crate::archive::{Archive, find_attribute, find_elements, parse_xml, resolve_target};
use crate::markdown::html_to_markdown;
use crate::{ExtractError, ExtractedText, TextPart};

const CONTAINER: &str = "META-INF/container.xml";
const ENCRYPTION: &str = "META-INF/encryption.xml";
/// Fonts in a readable publication may be encrypted by these methods.
const FONT_ENCRYPTION: [&str; 2] = ["http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC"];
const MAX_SECTIONS: usize = 5_000;
/// The maximum nesting of a section's HTML. The converter takes up to 64 KiB of the child's stack for each level.
const MAX_NESTING: usize = 500;
/// The elements of a section that are no text.
const SKIPPED: [&str; 6] = ["script", "style", "svg", "img", "title", "template"];

pub(crate) fn extract_sections(bytes: &[u8]) -> Result<ExtractedText, ExtractError> {
    let mut archive = Archive::open(bytes)?;
    refuse_encrypted_content(&mut archive)?;
    let container = archive.read_required_part(CONTAINER)?;
    let container = parse_xml(CONTAINER, &container)?;
    let package =
        find_elements(container.root(), "rootfile").find_map(|file| find_attribute(file, "full-path"));
    let package = package.ok_or_else(|| ExtractError::Damaged("it names no package".into()))?.to_owned();
    let text = archive.read_required_part(&package)?;
    let document = parse_xml(&package, &text)?;
    let title = find_elements(document.root(), "title").find_map(|title| title.text());
    let title = title.map(|title| title.trim().to_owned()).filter(|title| !title.is_empty());
    let items: Vec<(&str, &str)> = find_elements(document.root(), "item")
        .filter_map(|item| Some((find_attribute(item, "id")?, find_attribute(item, "href")?)))
        .collect();
    let spine = find_elements(document.root(), "itemref").filter_map(|item| find_attribute(item, "idref"));
    let sections = spine.filter_map(|id| items.iter().find(|(own, _)| *own == id).map(|(_, target)| *target));
    let mut parts = Vec::new();
    for (at, target) in sections.take(MAX_SECTIONS).enumerate() {
        let target = resolve_target(&package, &decode_percent(target));
        let Some(html) = archive.read_part(&target)? else { continue };
        let text = html_to_markdown(&html, &SKIPPED, MAX_NESTING)
            .map_err(|fault| ExtractError::Damaged(format!("its section {}: {fault}", at + 1)))?;
        parts.push(TextPart { place: Some(format!("section {}", at + 1)), text });
    }
    Ok(ExtractedText { title, parts })
}

fn refuse_encrypted_content(archive: &mut Archive<'_>) -> Result<(), ExtractError> {
    let Some(text) = archive.read_part(ENCRYPTION)? else { return Ok(()) };
    let document = parse_xml(ENCRYPTION, &text)?;
    let mut methods =
        find_elements(document.root(), "EncryptionMethod").filter_map(|one| find_attribute(one, "Algorithm"));
    match methods.all(|method| FONT_ENCRYPTION.contains(&method)) {
        true => Ok(()),
        false => Err(ExtractError::Encrypted),
    }
}

/// Decodes the escapes of a URL.
fn decode_percent(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let escape = after.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match escape.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_a_url_are_decoded() {
        assert_eq!(decode_percent("a%20b%C3%A9/100%.x%4"), "a bé/100%.x%4");
    }
}
