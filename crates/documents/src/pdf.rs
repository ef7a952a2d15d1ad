//! Text of PDF files by pages. The order of the text is that of the page's content.

use pdf_extract::{Document, Error, Object, OutputError};

use crate::{ExtractError, ExtractedText, TextPart};

/// Extracts the pages of a PDF file. A file that opens with an empty password is readable.
pub(crate) fn extract_pages(bytes: &[u8]) -> Result<ExtractedText, ExtractError> {
    let title = read_title(bytes);
    let pages = pdf_extract::extract_text_from_mem_by_pages(bytes).map_err(to_extract_error)?;
    let number_page = |(at, text)| TextPart { place: Some(format!("page {}", at + 1)), text };
    Ok(ExtractedText { title, parts: pages.into_iter().enumerate().map(number_page).collect() })
}

fn read_title(bytes: &[u8]) -> Option<String> {
    let document = Document::load_mem(bytes).ok()?;
    let info = document.trailer.get(b"Info").ok()?.as_reference().ok()?;
    let Object::String(title, _) = document.get_dictionary(info).ok()?.get(b"Title").ok()? else {
        return None;
    };
    let title = decode_string(title);
    Some(title.trim().to_owned()).filter(|title| !title.is_empty())
}

/// Decodes a text string: UTF-16 with a byte order mark, else a superset of ASCII.
fn decode_string(bytes: &[u8]) -> String {
    let (encoding, bytes) = match bytes.strip_prefix(&[0xfe, 0xff]) {
        Some(units) => (encoding_rs::UTF_16BE, units),
        None => (encoding_rs::WINDOWS_1252, bytes),
    };
    encoding.decode_without_bom_handling(bytes).0.into_owned()
}

fn to_extract_error(error: OutputError) -> ExtractError {
    let needs_password =
        matches!(error, OutputError::PdfError(Error::Decryption(_) | Error::InvalidPassword));
    if needs_password { ExtractError::Encrypted } else { ExtractError::Damaged(error.to_string()) }
}
