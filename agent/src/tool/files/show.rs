//! How files are shown to a model: the line that begins a reading, a file that somebody else has changed, bytes that
//! are no text. Whatever stands in a file comes after the first line, so that nothing in it can pass for a version.

use std::fmt::Write;

use crate::files::{Content, Entry};

/// The most characters of a file that are shown beside a refusal.
const MAX_SHOWN: usize = 8_000;
/// How many of these are the end of the file.
const END_SHOWN: usize = 2_000;

/// The version that the first line of a result names; `None` if it names none.
pub(super) fn version_in(text: &str) -> Option<u64> {
    let line = text.lines().next()?.trim_end_matches([' ', '@', ')', ':', '.']);
    line.rsplit_once("version ")?.1.parse().ok()
}

/// The refusal of a change of a file that is not what the model knows.
pub(super) fn conflict(content: &Content, was_seen: bool) -> String {
    let Entry { path, author, version, .. } = &content.entry;
    let what = if was_seen {
        format!("was changed since you read it, by {author}")
    } else {
        format!("exists, written by {author}, and you have not read it")
    };
    let mut text = format!("Error: {path} {what}; nothing was changed. It has version {version}\n");
    let next = "Below is what it holds now; you have seen it by this. Make your change to it anew, if it is still needed, \
                so that what others wrote stays.";
    writeln!(text, "{next}").expect("a string takes what is written to it");
    text + &bounded(content)
}

/// The content, its middle left out where it is long.
fn bounded(content: &Content) -> String {
    let Some(body) = text(&content.bytes) else {
        return format!("({})", binary(content));
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
    format!("{head}\n[… {left_out} characters are left out here; read_file shows them …]\n{tail}")
}

/// The text that some bytes are; `None` if they are none.
pub(super) fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

/// What a file is that is no text.
pub(super) fn binary(content: &Content) -> String {
    let Entry { path, size, .. } = &content.entry;
    let kind = kind(&content.bytes).unwrap_or("bytes that are no UTF-8 text");
    format!("'{path}' can't be shown as text: it is {kind}, {size} bytes")
}

/// What the first bytes say that a file is.
fn kind(bytes: &[u8]) -> Option<&'static str> {
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
    let known = KINDS.iter().find(|(first, _)| bytes.starts_with(first)).map(|(_, kind)| *kind);
    let riff = || match (bytes.starts_with(b"RIFF"), bytes.get(8..12)?) {
        (true, b"WEBP") => Some("an image (WebP)"),
        (true, b"WAVE") => Some("sound (WAV)"),
        (true, _) => Some("sound or video (RIFF)"),
        (false, _) => None,
    };
    let video = || (bytes.get(4..8)? == b"ftyp").then_some("video (MP4)");
    known.or_else(riff).or_else(video)
}

/// A number of things, in words: `1 file`, `1,204 bytes`.
pub(super) fn count(number: u64, thing: &str) -> String {
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
