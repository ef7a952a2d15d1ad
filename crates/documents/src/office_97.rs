//! Documents in compound files: those of Word, PowerPoint and Excel before 2007, Outlook messages, and encrypted office documents. The
//! streams in the root tell the kind.

use crate::compound::{Compound, read_compound};
use crate::{ExtractError, ExtractedText, outlook, slides_97, word_97, workbook};

/// The names of the main streams of the supported documents.
const STREAMS: [&str; 6] =
    ["EncryptedPackage", word_97::STREAM, slides_97::STREAM, outlook::PROPERTIES, "Workbook", "Book"];

/// `true` if a compound file has the name of a supported main stream.
pub(crate) fn is_document(bytes: &[u8]) -> bool {
    STREAMS.iter().any(|name| {
        let name: Vec<u8> = name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
        bytes.windows(name.len()).any(|window| window == name)
    })
}

pub(crate) fn extract_compound(bytes: &[u8]) -> Result<ExtractedText, ExtractError> {
    read_compound(bytes, extract_document)
}

/// Extracts the document of an open file with these bytes.
fn extract_document(compound: &mut Compound<'_>, bytes: &[u8]) -> Result<ExtractedText, ExtractError> {
    if compound.has("/EncryptedPackage") {
        return Err(ExtractError::Encrypted);
    }
    if compound.has(outlook::PROPERTIES) {
        return outlook::extract_message(compound);
    }
    let title = compound.read_title();
    if let Some(document) = compound.read(word_97::STREAM)? {
        let text = word_97::format_document(compound, &document)?;
        return Ok(ExtractedText::from_single_text(title, text));
    }
    if compound.has(slides_97::STREAM) {
        return Ok(ExtractedText { title, parts: slides_97::format_slides(compound)? });
    }
    if compound.has("Workbook") || compound.has("Book") {
        return workbook::extract_sheets(bytes);
    }
    Err(ExtractError::Damaged("it has no document of Word, PowerPoint, Excel or Outlook".into()))
}
