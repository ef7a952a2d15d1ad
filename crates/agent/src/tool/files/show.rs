//! The display of files to a model: a conflict with the current content, and descriptions of binary files. FileContent always
//! comes after the first line, so that nothing in a file can pass for a version.

use std::borrow::Cow;
use std::fmt::Write;

use millrace_models::image::{Image, InvalidImage};

use crate::files::{FileContent, FileEntry};

/// The maximum number of characters of a file shown with a refusal.
const MAX_SHOWN: usize = 8_000;
/// The part of it for the end of the file.
const END_SHOWN: usize = 2_000;

/// The version in the first line of a result; `None` if there is none.
pub(super) fn parse_version(text: &str) -> Option<u64> {
    let line = text.lines().next()?.trim_end_matches([' ', '@', ')', ':', '.']);
    line.rsplit_once("version ")?.1.parse().ok()
}

/// The refusal to change a file whose current version the model does not know.
pub(super) fn describe_conflict(content: &FileContent, was_seen: bool) -> String {
    let FileEntry { path, author, version, .. } = &content.entry;
    let what = if was_seen {
        format!("was changed since you read it, by {author}")
    } else {
        format!("exists, written by {author}, and you have not read it")
    };
    let mut text = format!("Error: {path} {what}; nothing was changed. It has version {version}\n");
    let next = "Below is its current content, which counts as read now. Repeat your change on it if it is still needed, so \
                that the work of others is kept.";
    writeln!(text, "{next}").expect("writing to a String can't fail");
    text + &format_content(content)
}

/// The content, with its middle cut out if it is long.
fn format_content(content: &FileContent) -> String {
    let Some(body) = decode_text(&content.bytes) else {
        return format!("({})", describe_binary_file(content));
    };
    if body.is_empty() {
        return "(it is empty)".to_owned();
    }
    let count = body.chars().count();
    if count <= MAX_SHOWN {
        return body.to_owned();
    }
    let head: String = body.chars().take(MAX_SHOWN - END_SHOWN).collect();
    let tail: String = body.chars().skip(count - END_SHOWN).collect();
    let left_out = count - MAX_SHOWN;
    format!("{head}\n[… {left_out} characters left out here; read_file shows them …]\n{tail}")
}

/// Decodes text; `None` for binary data.
pub(super) fn decode_text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

pub(super) fn describe_binary_file(content: &FileContent) -> String {
    let FileEntry { path, size, .. } = &content.entry;
    let kind = identify_file_type(&content.bytes)
        .map_or_else(|| describe_unknown_type(&content.bytes), Cow::Borrowed);
    let why = match Image::from_bytes(path.as_str(), &content.bytes) {
        Err(error @ (InvalidImage::TooLarge(_) | InvalidImage::TooManyPixels(..))) => {
            format!("; it can't be shown as an image either: {error}")
        }
        Ok(_)
        | Err(
            InvalidImage::Format
            | InvalidImage::Damaged(_)
            | InvalidImage::Pages(_)
            | InvalidImage::LargePdf(_),
        ) => String::new(),
    };
    format!("'{path}' can't be shown as text: it is {kind}, {size} bytes{why}")
}

/// Says why a file of no known type is not text.
fn describe_unknown_type(bytes: &[u8]) -> Cow<'static, str> {
    let utf_16 = [&b"\xff\xfe"[..], b"\xfe\xff"];
    if utf_16.iter().any(|mark| bytes.starts_with(mark)) {
        return Cow::Borrowed("text in UTF-16; a program can convert it to UTF-8");
    }
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        return Cow::Owned(format!("binary, with a NUL byte at position {at}"));
    }
    match std::str::from_utf8(bytes) {
        Ok(_) => Cow::Borrowed("text"),
        Err(error) => {
            let at = error.valid_up_to();
            Cow::Owned(format!("not UTF-8 text: see the byte {:#04x} at position {at}", bytes[at]))
        }
    }
}

/// Identifies the type of a file by its first bytes.
fn identify_file_type(bytes: &[u8]) -> Option<&'static str> {
    const KINDS: [(&[u8], &str); 17] = [
        (b"\x89PNG\r\n", "an image (PNG)"),
        (b"\xff\xd8\xff", "an image (JPEG)"),
        (b"GIF8", "an image (GIF)"),
        (b"BM", "an image (BMP)"),
        (b"II*\0", "an image (TIFF)"),
        (b"MM\0*", "an image (TIFF)"),
        (b"%PDF", "a document (PDF)"),
        (b"PK\x03\x04", "an archive (ZIP, or an office document)"),
        (b"\x1f\x8b", "an archive (gzip)"),
        (b"BZh", "an archive (bzip2)"),
        (b"\xfd7zXZ", "an archive (xz)"),
        (b"\x28\xb5\x2f\xfd", "an archive (zstd)"),
        (b"\x7fELF", "a program (ELF)"),
        (b"\0asm", "a program (WebAssembly)"),
        (b"SQLite format 3\0", "a database (SQLite)"),
        (b"ID3", "sound (MP3)"),
        (b"OggS", "sound or video (Ogg)"),
    ];
    let by_magic = KINDS.iter().find(|(first, _)| bytes.starts_with(first)).map(|(_, kind)| *kind);
    let riff = || match (bytes.starts_with(b"RIFF"), bytes.get(8..12)?) {
        (true, b"WEBP") => Some("an image (WebP)"),
        (true, b"WAVE") => Some("sound (WAV)"),
        (true, _) => Some("sound or video (RIFF)"),
        (false, _) => None,
    };
    let video = || (bytes.get(4..8)? == b"ftyp").then_some("video (MP4)");
    by_magic.or_else(riff).or_else(video)
}

/// Formats a count: `1 file`, `1,204 bytes`.
pub(super) fn format_count(number: u64, thing: &str) -> String {
    let digits = number.to_string();
    let mut shown = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    format!("{shown} {thing}{}", if number == 1 { "" } else { "s" })
}
