//! The binary formats: detection by content, and the parser of each.

use serde::{Deserialize, Serialize};

use crate::{
    ExtractError, ExtractedText, compound, mail, notebook, office, office_97, open_document, pdf,
    publication, rich_text, workbook,
};

/// The number of bytes in which the marks of a format are searched.
const HEAD: usize = 4_096;

/// The namespace of a flat OpenDocument file, which is XML.
const FLAT_OPEN_DOCUMENT: &[u8] = b"urn:oasis:names:tc:opendocument:xmlns:office:1.0";

/// The marks of text documents of Word that are a single XML document.
const FLAT_TEXT_DOCUMENTS: [&[u8]; 2] =
    [b"<w:wordDocument", b"http://schemas.microsoft.com/office/2006/xmlPackage"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BinaryFormat {
    Pdf,
    /// A text document of Word (DOCX).
    TextDocument,
    /// Slides of PowerPoint (PPTX).
    Slides,
    /// A workbook: XLSX, XLSB, XLS, ODS.
    Workbook,
    /// A text document, presentation or drawing of OpenDocument: ODT, ODP, ODG, packed or flat.
    OpenDocument,
    /// A document of Word or PowerPoint before 2007, or an Outlook message.
    Compound,
    /// RTF.
    RichText,
    /// A Jupyter notebook.
    Notebook,
    /// EPUB.
    Publication,
    /// An e-mail message.
    Mail,
    /// An office document that is encrypted.
    Encrypted,
}

impl BinaryFormat {
    pub const ALL: [Self; 11] = [
        Self::Pdf,
        Self::TextDocument,
        Self::Slides,
        Self::Workbook,
        Self::OpenDocument,
        Self::Compound,
        Self::RichText,
        Self::Notebook,
        Self::Publication,
        Self::Mail,
        Self::Encrypted,
    ];

    /// Its name on the command line of the child process.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pdf => "pdf",
            Self::TextDocument => "text-document",
            Self::Slides => "slides",
            Self::Workbook => "workbook",
            Self::OpenDocument => "open-document",
            Self::Compound => "compound",
            Self::RichText => "rich-text",
            Self::Notebook => "notebook",
            Self::Publication => "publication",
            Self::Mail => "mail",
            Self::Encrypted => "encrypted",
        }
    }
}

/// Returns the format of a file by its content; the name's ending decides only where the content can't. `None` if it has
/// none of these formats.
pub fn detect_binary_format(bytes: &[u8], ending: Option<&str>) -> Option<BinaryFormat> {
    let head = &bytes[..bytes.len().min(HEAD)];
    let ending = ending.map(str::to_lowercase);
    let ending = ending.as_deref().unwrap_or_default();
    if find(&head[..head.len().min(1_024)], b"%PDF-") {
        return Some(BinaryFormat::Pdf);
    }
    if bytes.starts_with(compound::MARK) {
        let name: Vec<u8> = "EncryptedPackage".encode_utf16().flat_map(u16::to_le_bytes).collect();
        if find(bytes, &name) {
            return Some(BinaryFormat::Encrypted);
        }
        return match ending {
            "xls" => Some(BinaryFormat::Workbook),
            "doc" | "dot" | "ppt" | "pps" | "pot" | "msg" => Some(BinaryFormat::Compound),
            _ => office_97::is_document(bytes).then_some(BinaryFormat::Compound),
        };
    }
    // The second one is an archive without parts.
    if bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"PK\x05\x06") {
        return detect_packed_format(bytes, ending);
    }
    if bytes.starts_with(rich_text::MARK) {
        return Some(BinaryFormat::RichText);
    }
    if find(head, FLAT_OPEN_DOCUMENT) && find(head, b"<office:document") {
        return Some(BinaryFormat::OpenDocument);
    }
    if FLAT_TEXT_DOCUMENTS.iter().any(|mark| find(head, mark)) && head.starts_with(b"<?xml") {
        return Some(BinaryFormat::TextDocument);
    }
    match ending {
        "eml" | "mht" | "mhtml" => Some(BinaryFormat::Mail),
        "ipynb" if find(bytes, b"\"nbformat\"") => Some(BinaryFormat::Notebook),
        _ => None,
    }
}

fn detect_packed_format(bytes: &[u8], ending: &str) -> Option<BinaryFormat> {
    match ending {
        "docx" | "docm" | "dotx" | "dotm" => return Some(BinaryFormat::TextDocument),
        "pptx" | "pptm" | "ppsx" | "ppsm" | "potx" | "potm" => return Some(BinaryFormat::Slides),
        "xlsx" | "xlsm" | "xlsb" | "xltx" | "ods" | "ots" => return Some(BinaryFormat::Workbook),
        "odt" | "ott" | "odm" | "odp" | "otp" | "odg" | "otg" => return Some(BinaryFormat::OpenDocument),
        "epub" => return Some(BinaryFormat::Publication),
        _ => {}
    }
    [
        (&b"word/document.xml"[..], BinaryFormat::TextDocument),
        (b"ppt/presentation.xml", BinaryFormat::Slides),
        (b"xl/workbook.", BinaryFormat::Workbook),
        (b"application/epub+zip", BinaryFormat::Publication),
        (b"application/vnd.oasis.opendocument.spreadsheet", BinaryFormat::Workbook),
        (b"application/vnd.oasis.opendocument.", BinaryFormat::OpenDocument),
    ]
    .into_iter()
    .find_map(|(mark, format)| find(bytes, mark).then_some(format))
}

/// Extracts the text of a document, in this process.
///
/// # Errors
/// See [`ExtractError`]. On a damaged file the parser may also panic, loop, or use up the memory.
pub fn extract_text(format: BinaryFormat, bytes: &[u8]) -> Result<ExtractedText, ExtractError> {
    match format {
        BinaryFormat::Pdf => pdf::extract_pages(bytes),
        BinaryFormat::TextDocument => office::extract_text_document(bytes),
        BinaryFormat::Slides => office::extract_slides(bytes),
        BinaryFormat::Workbook => workbook::extract_sheets(bytes),
        BinaryFormat::OpenDocument => open_document::extract_open_document(bytes),
        BinaryFormat::Compound => office_97::extract_compound(bytes),
        BinaryFormat::RichText => rich_text::extract_document(bytes),
        BinaryFormat::Notebook => notebook::extract_cells(bytes),
        BinaryFormat::Publication => publication::extract_sections(bytes),
        BinaryFormat::Mail => mail::extract_message(bytes),
        BinaryFormat::Encrypted => Err(ExtractError::Encrypted),
    }
}

fn find(bytes: &[u8], mark: &[u8]) -> bool {
    bytes.windows(mark.len()).any(|window| window == mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the name of a stream as the directory of a compound file has it.
    fn encode_name(name: &str) -> Vec<u8> {
        name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect()
    }

    #[test]
    fn formats_are_detected_by_content() {
        let packed = |part: &str| [b"PK\x03\x04....", part.as_bytes()].concat();
        for (bytes, ending, expected) in [
            (b"%PDF-1.7\n".to_vec(), "txt", Some(BinaryFormat::Pdf)),
            (packed("word/document.xml"), "zip", Some(BinaryFormat::TextDocument)),
            (packed(""), "PPTX", Some(BinaryFormat::Slides)),
            (packed("xl/workbook.xml"), "", Some(BinaryFormat::Workbook)),
            (packed("mimetypeapplication/epub+zip"), "", Some(BinaryFormat::Publication)),
            (packed("a.txt"), "zip", None),
            (compound::MARK.to_vec(), "xls", Some(BinaryFormat::Workbook)),
            (compound::MARK.to_vec(), "doc", Some(BinaryFormat::Compound)),
            (compound::MARK.to_vec(), "msi", None),
            ([compound::MARK, &encode_name("WordDocument")].concat(), "", Some(BinaryFormat::Compound)),
            (b"{\\rtf1 a}".to_vec(), "doc", Some(BinaryFormat::RichText)),
            (packed("mimetypeapplication/vnd.oasis.opendocument.text"), "", Some(BinaryFormat::OpenDocument)),
            (b"{\"cells\": [], \"nbformat\": 4}".to_vec(), "ipynb", Some(BinaryFormat::Notebook)),
            (b"{\"cells\": []}".to_vec(), "ipynb", None),
            (b"<?xml version='1.0'?><w:wordDocument>".to_vec(), "doc", Some(BinaryFormat::TextDocument)),
            (b"From: a@b\n\nHello".to_vec(), "eml", Some(BinaryFormat::Mail)),
            (b"no PDF".to_vec(), "pdf", None),
        ] {
            assert_eq!(detect_binary_format(&bytes, Some(ending)), expected, "{ending}");
        }
        let name: Vec<u8> = "EncryptedPackage".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let encrypted = [compound::MARK, &name].concat();
        assert_eq!(detect_binary_format(&encrypted, Some("docx")), Some(BinaryFormat::Encrypted));
    }
}
