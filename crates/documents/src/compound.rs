//! Compound files (OLE): their streams, and the title.

use std::io::{Cursor, Read};

use cfb::CompoundFile;
use encoding_rs::{Encoding, UTF_16LE, WINDOWS_1252};

use crate::ExtractError;

/// The beginning of compound files.
pub(crate) const MARK: &[u8] = &[0xd0, 0xcf, 0x11, 0xe0, 0xa1, 0xb1, 0x1a, 0xe1];
/// The maximum number of entries in the root.
const MAX_ENTRIES: usize = 10_000;
/// The maximum size of a stream.
const MAX_STREAM: u64 = 64 * 1024 * 1024;

pub(crate) struct Compound<'a> {
    file: CompoundFile<Cursor<&'a [u8]>>,
}

impl Compound<'_> {
    /// Reads a stream; `None` if there is none of this path.
    pub fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, ExtractError> {
        if !self.file.is_stream(path) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let stream = self.file.open_stream(path).map_err(to_extract_error)?;
        let read = stream.take(MAX_STREAM + 1).read_to_end(&mut bytes);
        // Of a damaged stream, the readable beginning is used.
        if bytes.is_empty() {
            read.map_err(to_extract_error)?;
        }
        if bytes.len() as u64 > MAX_STREAM {
            return Err(ExtractError::TooLarge(MAX_STREAM / (1024 * 1024)));
        }
        Ok(Some(bytes))
    }

    pub fn has(&self, path: &str) -> bool {
        self.file.exists(path)
    }

    /// Returns the names of the storages and streams in the root.
    pub fn list_root(&self) -> Vec<String> {
        self.file.read_root_storage().take(MAX_ENTRIES).map(|entry| entry.name().to_owned()).collect()
    }

    pub fn read_title(&mut self) -> Option<String> {
        let bytes = self.read("/\u{5}SummaryInformation").ok()??;
        find_title(&bytes)
    }
}

/// Opens a file, and reads it with a function that also gets the bytes.
pub(crate) fn read_compound<T>(
    bytes: &[u8],
    read: impl FnOnce(&mut Compound<'_>, &[u8]) -> Result<T, ExtractError>,
) -> Result<T, ExtractError> {
    match CompoundFile::open(Cursor::new(bytes)) {
        Ok(file) => read(&mut Compound { file }, bytes),
        Err(error) => {
            // Some programs, and a truncated download, leave out sectors that the file allocates.
            let padded = pad_to_allocation(bytes).ok_or_else(|| to_extract_error(error))?;
            let file = CompoundFile::open(Cursor::new(padded.as_slice())).map_err(to_extract_error)?;
            read(&mut Compound { file }, &padded)
        }
    }
}

/// Appends zeros up to the size that the allocation table covers; `None` if the file has that size, or is no compound file.
fn pad_to_allocation(bytes: &[u8]) -> Option<Vec<u8>> {
    let sector =
        1_usize.checked_shl(u32::from(read_u16(bytes, 30)?)).filter(|size| [512, 4_096].contains(size))?;
    let tables = read_u32(bytes, 44)? as usize;
    let size = tables.checked_mul(sector / 4)?.checked_add(1)?.checked_mul(sector)?;
    let is_padding = bytes.starts_with(MARK) && size > bytes.len() && size as u64 <= MAX_STREAM;
    is_padding.then(|| [bytes, &vec![0; size - bytes.len()]].concat())
}

/// Finds the title in a property set (MS-OLEPS).
fn find_title(bytes: &[u8]) -> Option<String> {
    const CODE_PAGE: u32 = 1;
    const TITLE: u32 = 2;
    let set = usize::try_from(read_u32(bytes, 44)?).ok()?;
    let count = read_u32(bytes, set + 4)?.min(100);
    let find = |wanted: u32| {
        let entries = (0..count as usize).map(|at| set + 8 + at * 8);
        let entry = entries.into_iter().find(|entry| read_u32(bytes, *entry) == Some(wanted))?;
        set.checked_add(usize::try_from(read_u32(bytes, entry + 4)?).ok()?)
    };
    let encoding = find(CODE_PAGE).and_then(|at| read_u16(bytes, at + 4)).and_then(codepage::to_encoding);
    let at = find(TITLE)?;
    let length = usize::try_from(read_u32(bytes, at + 4)?).ok()?;
    // The length of UTF-16 counts characters.
    let (length, encoding) = match read_u32(bytes, at)? {
        0x1f => (length.checked_mul(2)?, UTF_16LE),
        _ => (length, encoding.unwrap_or(WINDOWS_1252)),
    };
    let text = decode(encoding, bytes.get(at + 8..(at + 8).checked_add(length)?)?);
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Decodes text up to its final zero.
pub(crate) fn decode(encoding: &'static Encoding, bytes: &[u8]) -> String {
    let text = encoding.decode_without_bom_handling(bytes).0;
    text.trim_end_matches('\0').to_owned()
}

pub(crate) fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

pub(crate) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn to_extract_error(error: std::io::Error) -> ExtractError {
    ExtractError::Damaged(error.to_string())
}
