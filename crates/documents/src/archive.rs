//! Packed files with XML parts: office documents and EPUB. It owns the limits on what they unpack to.

use std::io::{Cursor, Read};

use encoding_rs::UTF_8;
use roxmltree::{Document, Node, ParsingOptions};
use zip::ZipArchive;
use zip::result::ZipError;

use crate::ExtractError;

/// The maximum number of bytes that all parts unpack to.
pub(crate) const MAX_UNPACKED: u64 = 256 * 1024 * 1024;
/// The maximum number of bytes that one part unpacks to.
const MAX_PART: u64 = 64 * 1024 * 1024;
const MAX_PARTS: usize = 20_000;
/// The maximum number of nodes of an XML part: about 100 bytes of memory each.
const MAX_NODES: u32 = 3_000_000;

pub(crate) struct Archive<'a> {
    zip: ZipArchive<Cursor<&'a [u8]>>,
    /// The number of bytes that may still be unpacked.
    left: u64,
}

impl<'a> Archive<'a> {
    pub fn open(bytes: &'a [u8]) -> Result<Self, ExtractError> {
        let zip = ZipArchive::new(Cursor::new(bytes)).map_err(to_extract_error)?;
        if zip.len() > MAX_PARTS {
            return Err(ExtractError::Damaged(format!("it has {} parts", zip.len())));
        }
        if zip.decompressed_size().is_some_and(|size| size > u128::from(MAX_UNPACKED)) {
            return Err(too_large_error(MAX_UNPACKED));
        }
        Ok(Self { zip, left: MAX_UNPACKED })
    }

    /// Unpacks a part as text; `None` if there is no such part.
    pub fn read_part(&mut self, name: &str) -> Result<Option<String>, ExtractError> {
        // XML has a byte order mark unless it is UTF-8.
        Ok(self.read_bytes(name)?.map(|bytes| UTF_8.decode(&bytes).0.into_owned()))
    }

    /// Unpacks a part; `None` if there is no such part.
    pub fn read_bytes(&mut self, name: &str) -> Result<Option<Vec<u8>>, ExtractError> {
        let part = match self.zip.by_name(name) {
            Ok(part) if part.encrypted() => return Err(ExtractError::Encrypted),
            Ok(part) => part,
            Err(ZipError::FileNotFound) => return Ok(None),
            Err(error) => return Err(to_extract_error(error)),
        };
        let limit = self.left.min(MAX_PART);
        let mut bytes = Vec::new();
        let unpacked = part.take(limit + 1).read_to_end(&mut bytes);
        unpacked.map_err(|error| ExtractError::Damaged(format!("its part {name}: {error}")))?;
        let size = bytes.len() as u64;
        if size > limit {
            return Err(too_large_error(if limit < MAX_PART { MAX_UNPACKED } else { MAX_PART }));
        }
        self.left -= size;
        Ok(Some(bytes))
    }

    /// Unpacks a part that the format requires.
    ///
    /// # Errors
    /// There is no such part, or as for [`Archive::read_part`].
    pub fn read_required_part(&mut self, name: &str) -> Result<String, ExtractError> {
        self.read_part(name)?.ok_or_else(|| ExtractError::Damaged(format!("it has no part {name}")))
    }

    /// Reads the title from the part with the properties of the document.
    pub fn read_title(&mut self, part: &str) -> Result<Option<String>, ExtractError> {
        let Some(properties) = self.read_part(part)? else { return Ok(None) };
        Ok(parse_xml(part, &properties).ok().and_then(|properties| find_title(properties.root())))
    }
}

/// Returns the text of the first element `title`.
pub(crate) fn find_title(root: Node<'_, '_>) -> Option<String> {
    let title = find_elements(root, "title").find_map(|node| node.text());
    title.map(|title| title.trim().to_owned()).filter(|title| !title.is_empty())
}

/// Parses an XML part. A document type, which could define entities, is refused.
pub(crate) fn parse_xml<'t>(name: &str, text: &'t str) -> Result<Document<'t>, ExtractError> {
    let options = ParsingOptions { allow_dtd: false, nodes_limit: MAX_NODES, ..ParsingOptions::default() };
    Document::parse_with_options(text, options)
        .map_err(|error| ExtractError::Damaged(format!("its part {name}: {error}")))
}

/// Returns the elements with a local name, in document order.
pub(crate) fn find_elements<'a, 'i: 'a>(
    root: Node<'a, 'i>,
    name: &'a str,
) -> impl Iterator<Item = Node<'a, 'i>> {
    root.descendants().filter(move |node| has_name(*node, name))
}

/// Returns the first child with a local name.
pub(crate) fn find_child<'a, 'i>(node: Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    node.children().find(|child| has_name(*child, name))
}

/// `true` if a node is an element with this local name.
pub(crate) fn has_name(node: Node<'_, '_>, name: &str) -> bool {
    node.is_element() && node.tag_name().name() == name
}

pub(crate) fn find_attribute<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    node.attributes().find(|attribute| attribute.name() == name).map(|attribute| attribute.value())
}

/// Resolves the target of a link in a part, relative to the part's folder.
pub(crate) fn resolve_target(part: &str, target: &str) -> String {
    let target = target.split('#').next().unwrap_or_default();
    let folder = part.rsplit_once('/').map_or("", |(folder, _)| folder);
    let (mut path, target) = match target.strip_prefix('/') {
        Some(absolute) => (Vec::new(), absolute),
        None => (folder.split('/').filter(|name| !name.is_empty()).collect::<Vec<_>>(), target),
    };
    for name in target.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(path.pop()),
            name => path.push(name),
        }
    }
    path.join("/")
}

fn too_large_error(limit: u64) -> ExtractError {
    ExtractError::TooLarge(limit / (1024 * 1024))
}

fn to_extract_error(error: ZipError) -> ExtractError {
    let needs_password = matches!(
        error,
        ZipError::InvalidPassword | ZipError::UnsupportedArchive(ZipError::PASSWORD_REQUIRED)
    );
    if needs_password { ExtractError::Encrypted } else { ExtractError::Damaged(error.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_resolved_within_the_archive() {
        for (part, target, expected) in [
            ("ppt/presentation.xml", "slides/slide1.xml", "ppt/slides/slide1.xml"),
            ("ppt/slides/slide1.xml", "../notesSlides/notes1.xml", "ppt/notesSlides/notes1.xml"),
            ("OEBPS/content.opf", "text/a.xhtml#top", "OEBPS/text/a.xhtml"),
            ("content.opf", "../../../etc/passwd", "etc/passwd"),
            ("a/b.xml", "/ppt/x.xml", "ppt/x.xml"),
        ] {
            assert_eq!(resolve_target(part, target), expected);
        }
    }

    #[test]
    fn document_types_are_refused() {
        let bomb = "<!DOCTYPE a [<!ENTITY b \"bb\"><!ENTITY c \"&b;&b;\">]><a>&c;</a>";
        assert!(matches!(parse_xml("a.xml", bomb), Err(ExtractError::Damaged(_))));
    }
}
