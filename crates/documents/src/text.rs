//! Text in any character set: byte order marks, UTF-16 without one, and statistical detection.

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, UTF_16BE, UTF_16LE};

/// The number of bytes that are searched for a declared character set.
const DECLARATION_BYTES: usize = 2_048;
/// The number of bytes that decide between text and binary data.
const SAMPLE_BYTES: usize = 64 * 1024;
/// Text in a character set of one byte has at most one control character in this many bytes.
const CONTROL_SHARE: usize = 200;

/// Decodes text by its byte order mark, else as UTF-8 if it is valid, else as UTF-16 if every other byte looks like it, else
/// by `declared`, else by statistics. Returns `None` for binary data.
pub fn decode_text(bytes: &[u8], declared: Option<&'static Encoding>) -> Option<String> {
    if let Some((encoding, mark)) = Encoding::for_bom(bytes) {
        return decode_completely(encoding, &bytes[mark..]);
    }
    if bytes.contains(&0) {
        return decode_completely(detect_utf16(bytes)?, bytes);
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Some(text.to_owned());
    }
    if is_binary(bytes) {
        return None;
    }
    let encoding = declared.unwrap_or_else(|| {
        let mut detector = EncodingDetector::new(Iso2022JpDetection::Allow);
        detector.feed(bytes, true);
        detector.guess(None, Utf8Detection::Deny)
    });
    Some(encoding.decode_without_bom_handling(bytes).0.into_owned())
}

/// Returns the character set that a text declares near its beginning, as `charset=…` or `encoding="…"`.
pub fn find_declared_encoding(bytes: &[u8]) -> Option<&'static Encoding> {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(DECLARATION_BYTES)]).to_lowercase();
    let after_key = |key: &str| text.split(key).nth(1)?.trim_start().strip_prefix('=').map(str::to_owned);
    let after = after_key("charset").or_else(|| after_key("encoding"))?;
    let label: String = after
        .trim_start_matches([' ', '"', '\''])
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || "-_:.+".contains(*c))
        .collect();
    Encoding::for_label(label.as_bytes())
}

/// Decodes text that must be valid as a whole.
fn decode_completely(encoding: &'static Encoding, bytes: &[u8]) -> Option<String> {
    let (text, has_errors) = encoding.decode_without_bom_handling(bytes);
    (!has_errors && !text.contains('\0')).then(|| text.into_owned())
}

/// Returns the byte order of text in UTF-16 whose characters are mostly below U+0100.
fn detect_utf16(bytes: &[u8]) -> Option<&'static Encoding> {
    let sample = &bytes[..bytes.len().min(SAMPLE_BYTES) & !1];
    let zeros = |offset: usize| sample.iter().skip(offset).step_by(2).filter(|byte| **byte == 0).count();
    let (even, odd, units) = (zeros(0), zeros(1), sample.len() / 2);
    if bytes.len() % 2 == 1 || units == 0 {
        return None;
    }
    match (even * 10 >= units * 7, odd * 10 >= units * 7) {
        (false, true) if even == 0 => Some(UTF_16LE),
        (true, false) if odd == 0 => Some(UTF_16BE),
        (true | false, true | false) => None,
    }
}

/// `true` if bytes without a zero have more control characters than text has.
fn is_binary(bytes: &[u8]) -> bool {
    let sample = &bytes[..bytes.len().min(SAMPLE_BYTES)];
    let is_control = |byte: &&u8| **byte < 0x20 && !matches!(**byte, b'\t' | b'\n' | b'\r' | 0x0c | 0x1b);
    sample.iter().filter(is_control).count() * CONTROL_SHARE > sample.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode_utf16(text: &str, to_bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
        text.encode_utf16().flat_map(to_bytes).collect()
    }

    #[test]
    fn text_is_decoded_from_any_character_set() {
        let german = "Die Mühle an der Straße mahlt größere Körner für müde Bäcker.";
        let cases: Vec<(&str, Vec<u8>, &str)> = vec![
            ("UTF-8", german.into(), german),
            ("UTF-8 with a mark", format!("\u{feff}{german}").into(), german),
            ("UTF-16 LE with a mark", encode_utf16(&format!("\u{feff}{german}"), u16::to_le_bytes), german),
            ("UTF-16 BE with a mark", encode_utf16(&format!("\u{feff}{german}"), u16::to_be_bytes), german),
            ("UTF-16 LE", encode_utf16(german, u16::to_le_bytes), german),
            ("UTF-16 BE", encode_utf16(german, u16::to_be_bytes), german),
            ("Windows-1252", encoding_rs::WINDOWS_1252.encode(german).0.into_owned(), german),
            (
                "Windows-1251",
                encoding_rs::WINDOWS_1251.encode("Мельница стоит у реки и мелет зерно.").0.into_owned(),
                "Мельница стоит у реки и мелет зерно.",
            ),
        ];
        for (name, bytes, expected) in cases {
            assert_eq!(decode_text(&bytes, None).as_deref(), Some(expected), "{name}");
        }
    }

    #[test]
    fn binary_data_is_no_text() {
        let random: Vec<u8> = (0..10_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let no_zero: Vec<u8> = random.iter().map(|byte| (*byte).max(1)).collect();
        for bytes in [&b"\x7fELF\x02\x01\0\0\0"[..], b"\xff\xfea", &random, &no_zero, b"a\0b\0c"] {
            assert_eq!(decode_text(bytes, None), None, "{:?}", &bytes[..bytes.len().min(8)]);
        }
    }

    #[test]
    fn declared_character_sets_are_found() {
        for (text, name) in [
            ("<meta charset=\"iso-8859-2\">", "ISO-8859-2"),
            ("<?xml version='1.0' encoding='Shift_JIS'?>", "Shift_JIS"),
            ("text/html; charset = koi8-r", "KOI8-R"),
        ] {
            assert_eq!(find_declared_encoding(text.as_bytes()).map(Encoding::name), Some(name), "{text}");
        }
        assert_eq!(find_declared_encoding(b"charset=klingon"), None);
    }
}
