//! Text of Outlook messages (MS-OXMSG): the headers that a reader sees, the body, and the names of the attachments.

use encoding_rs::{Encoding, UTF_16LE, WINDOWS_1252};
use mail_parser::DateTime;

use crate::compound::{Compound, decode, read_u16, read_u32};
use crate::rich_text::{self, convert_html, format_rich_text};
use crate::text::{decode_text, find_declared_encoding};
use crate::{ExtractError, ExtractedText};

/// The stream that each message has.
pub(crate) const PROPERTIES: &str = "__properties_version1.0";
/// The size of the header of a message's properties, and of each property after it.
const HEADER: usize = 32;
const PROPERTY: usize = 16;
const ATTACHMENT: &str = "__attach_version1.0_";
const SUBJECT: u16 = 0x0037;
const SENDER: u16 = 0x0c1a;
/// The addresses of the sender, the best one first.
const SENDER_ADDRESSES: [u16; 3] = [0x5d01, 0x5d02, 0x0c1f];
const TO: u16 = 0x0e04;
const CC: u16 = 0x0e03;
const BODY: u16 = 0x1000;
const RICH_TEXT: u16 = 0x1009;
const HTML: u16 = 0x1013;
/// The times of sending and delivery.
const TIMES: [u32; 2] = [0x0039_0040, 0x0e06_0040];
/// The code pages of the body and of the message.
const CODE_PAGES: [u32; 2] = [0x3fde_0003, 0x3ffd_0003];
/// The names of an attachment, the longest one first.
const ATTACHMENT_NAMES: [u16; 3] = [0x3707, 0x3704, 0x3001];
/// The seconds from 1601, where times of Windows begin, to 1970.
const EPOCH: i64 = 11_644_473_600;

pub(crate) fn extract_message(compound: &mut Compound<'_>) -> Result<ExtractedText, ExtractError> {
    let properties = compound.read(PROPERTIES)?.unwrap_or_default();
    let encoding = CODE_PAGES.iter().find_map(|tag| {
        let page = u16::try_from(u32::from_le_bytes(find_property(&properties, *tag)?[..4].try_into().ok()?))
            .ok()?;
        codepage::to_encoding(page)
    });
    let mut message = Message { compound, folder: String::new(), encoding: encoding.unwrap_or(WINDOWS_1252) };
    let subject =
        message.read_text(SUBJECT)?.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let mut text = String::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value.map(|value| value.trim().to_owned()).filter(|value| !value.is_empty()) {
            text.push_str(&format!("{name}: {value}\n"));
        }
    };
    add("From", message.read_sender()?);
    add("To", message.read_text(TO)?);
    add("Cc", message.read_text(CC)?);
    add("Date", TIMES.iter().find_map(|tag| format_time(find_property(&properties, *tag)?)));
    add("Subject", subject.clone());
    text.push_str(&format!("\n{}\n", message.read_body()?.trim_end()));
    let attachments: Vec<String> =
        message.compound.list_root().into_iter().filter(|name| name.starts_with(ATTACHMENT)).collect();
    for folder in attachments {
        message.folder = folder;
        let mut name = None;
        for tag in ATTACHMENT_NAMES {
            name = name.or(message.read_text(tag)?);
        }
        text.push_str(&format!("\nAttachment: {}\n", name.as_deref().unwrap_or("without a name").trim()));
    }
    Ok(ExtractedText::from_single_text(subject, text))
}

/// A message, or one of its attachments.
struct Message<'m, 'a> {
    compound: &'m mut Compound<'a>,
    folder: String,
    encoding: &'static Encoding,
}

impl Message<'_, '_> {
    fn read_bytes(&mut self, tag: u16, kind: u16) -> Result<Option<Vec<u8>>, ExtractError> {
        self.compound.read(&format!("{}/__substg1.0_{tag:04X}{kind:04X}", self.folder))
    }

    fn read_text(&mut self, tag: u16) -> Result<Option<String>, ExtractError> {
        if let Some(bytes) = self.read_bytes(tag, 0x001f)? {
            return Ok(Some(decode(UTF_16LE, &bytes)));
        }
        let encoding = self.encoding;
        Ok(self.read_bytes(tag, 0x001e)?.map(|bytes| match std::str::from_utf8(&bytes) {
            Ok(text) => text.trim_end_matches('\0').to_owned(),
            Err(_) => decode(encoding, &bytes),
        }))
    }

    fn read_sender(&mut self) -> Result<Option<String>, ExtractError> {
        let name = self.read_text(SENDER)?;
        let mut address = None;
        for tag in SENDER_ADDRESSES {
            // Internal addresses of Exchange servers begin with a slash.
            address = address.or(self
                .read_text(tag)?
                .filter(|address| address.contains('@') && !address.starts_with('/')));
        }
        Ok(match (name, address) {
            (Some(name), Some(address)) if name.trim() != address.trim() => {
                Some(format!("{} <{}>", name.trim(), address.trim()))
            }
            (name, address) => name.or(address),
        })
    }

    /// Reads the body: plain text, else HTML, else RTF.
    fn read_body(&mut self) -> Result<String, ExtractError> {
        if let Some(text) = self.read_text(BODY)?.filter(|text| !text.trim().is_empty()) {
            return Ok(text.replace("\r\n", "\n"));
        }
        if let Some(bytes) = self.read_bytes(HTML, 0x0102)? {
            let encoding = find_declared_encoding(&bytes).unwrap_or(self.encoding);
            return convert_html(&decode_text(&bytes, Some(encoding)).unwrap_or_default());
        }
        if let Some(text) = self.read_text(HTML)? {
            return convert_html(&text);
        }
        let Some(packed) = self.read_bytes(RICH_TEXT, 0x0102)? else { return Ok(String::new()) };
        let unpacked =
            unpack_rich_text(&packed).ok_or_else(|| ExtractError::Damaged("its body is damaged".into()))?;
        let rich_text::RichText { text, is_html, .. } = format_rich_text(&unpacked)?;
        if is_html { convert_html(&text) } else { Ok(text) }
    }
}

/// Returns the value of a property of fixed size.
fn find_property(properties: &[u8], tag: u32) -> Option<[u8; 8]> {
    let properties = properties.get(HEADER..)?.chunks_exact(PROPERTY);
    let found = properties.into_iter().find(|property| read_u32(property, 0) == Some(tag))?;
    found[8..].try_into().ok()
}

/// Formats a time that Windows counts in units of 100 ns.
fn format_time(value: [u8; 8]) -> Option<String> {
    let seconds = i64::try_from(u64::from_le_bytes(value) / 10_000_000).ok()?;
    (seconds > EPOCH).then(|| DateTime::from_timestamp(seconds - EPOCH).to_rfc3339())
}

/// Decompresses the RTF of a message (MS-OXRTFCP) to at most 9 times its size.
fn unpack_rich_text(packed: &[u8]) -> Option<Vec<u8>> {
    const START: &[u8] =
        b"{\\rtf1\\ansi\\mac\\deff0\\deftab720{\\fonttbl;}{\\f0\\fnil \\froman \\fswiss \\fmodern \\fscript \
        \\fdecor MS Sans SerifSymbolArialTimes New RomanCourier{\\colortbl\\red0\\green0\\blue0\r\n\\par \
        \\pard\\plain\\f0\\fs20\\b\\i\\u\\tab\\tx";
    const WINDOW: usize = 4_096;
    let content = packed.get(16..)?;
    match read_u32(packed, 8)? {
        0x414c_454d => return Some(content.to_vec()),
        0x7546_5a4c => {}
        _ => return None,
    }
    // References may point into this initial content of the window.
    let mut output = START.to_vec();
    let mut bytes = content.iter().copied();
    while let Some(flags) = bytes.next() {
        for bit in 0..8 {
            if flags & (1 << bit) == 0 {
                let Some(byte) = bytes.next() else { return Some(output.split_off(START.len())) };
                output.push(byte);
                continue;
            }
            let (Some(high), Some(low)) = (bytes.next(), bytes.next()) else {
                return Some(output.split_off(START.len()));
            };
            let reference = usize::from(read_u16(&[low, high], 0)?);
            let (offset, length) = (reference >> 4, (reference & 0xf) + 2);
            let distance = (output.len() + WINDOW - offset) % WINDOW;
            if distance == 0 {
                return Some(output.split_off(START.len()));
            }
            for _ in 0..length {
                let from = output.len().checked_sub(distance);
                output.push(from.map_or(b' ', |from| output[from]));
            }
        }
    }
    Some(output.split_off(START.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_rich_text_is_unpacked() {
        // The example of MS-OXRTFCP, 4.1.1.
        let packed = b"\x2d\0\0\0\x2b\0\0\0LZFu\xf1\xc5\xc7\xa7\x03\0\x0a\0rcpg125\x42\x32\x0a\xf3 hel\x09\0 bw\x05\xb0ld}\x0a\x80\x0f\xa0";
        let unpacked = unpack_rich_text(packed).unwrap();
        assert_eq!(String::from_utf8_lossy(&unpacked), "{\\rtf1\\ansi\\ansicpg1252\\pard hello world}\r\n");
        assert_eq!(unpack_rich_text(b"short"), None);
    }
}
