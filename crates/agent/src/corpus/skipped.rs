//! The reasons for skipping a file, and their words.

use std::fmt;

use millrace_documents::ExtractError;
use serde::{Deserialize, Serialize};

/// The maximum size of a file, in bytes.
pub const MAX_BYTES: u64 = 32 * 1024 * 1024;
/// The maximum size of a corpus' text, in bytes: further documents are skipped.
pub(super) const MAX_TOTAL: usize = 1024 * 1024 * 1024;

/// A file that was skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedFile {
    /// Its path below the documents' folder.
    pub path: String,
    pub reason: SkipReason,
}

/// The reason for skipping a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// It is binary, and its format is not supported. Its file extension, if it has one.
    Kind(String),
    /// It contains bytes that do not occur in text.
    Binary,
    /// Its text can't be extracted.
    Unextractable(ExtractError),
    /// It is larger than [`MAX_BYTES`]; its size.
    TooLarge(u64),
    /// Earlier documents used up the corpus' maximum size.
    TooMuch,
    /// It contains no text.
    Empty,
    /// It is an image that can't be shown to models.
    Image(String),
    /// Its HTML is nested too deep, or the converter failed.
    Html(String),
    /// Another file has the same path.
    SamePath,
    /// It is hidden: its name, or that of a folder above it, begins with a dot.
    Hidden,
    /// It is a link to a folder or out of the documents' folder.
    Link,
    /// It is not a file: a socket, a pipe, a device.
    NotAFile,
    /// The operating system denied access.
    Unreadable(String),
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: u64 = 1024 * 1024;
        match self {
            Self::Kind(kind) => {
                write!(f, "binary files of the kind .{kind} are not supported; {SUPPORTED} are")
            }
            Self::Binary => f.write_str("it is binary, not text"),
            Self::Unextractable(error) => error.fmt(f),
            Self::TooLarge(size) => {
                write!(f, "it has {} MiB; the maximum is {} MiB", size.div_ceil(MIB), MAX_BYTES / MIB)
            }
            Self::TooMuch => {
                write!(f, "the documents before it reach the maximum of {} MiB", MAX_TOTAL as u64 / MIB)
            }
            Self::Empty => f.write_str("it contains no text"),
            Self::Image(reason) => write!(f, "it can't be shown to models: {reason}"),
            Self::Html(reason) => write!(f, "its HTML can't be read: {reason}"),
            Self::SamePath => f.write_str("another file has the same path"),
            Self::Hidden => f.write_str("it is hidden"),
            Self::Link => f.write_str("it is a link to a folder or out of the documents' folder"),
            Self::NotAFile => f.write_str("it is not a regular file"),
            Self::Unreadable(reason) => write!(f, "it can't be opened: {reason}"),
        }
    }
}

/// The supported formats, for messages.
pub const SUPPORTED: &str =
    "text in any character set, HTML, PDF, DOCX, PPTX, XLSX, EPUB, e-mail and images (PNG, JPEG, GIF, WebP)";

impl SkipReason {
    /// `true` if another try, or another machine, would have the same result.
    pub(super) fn is_lasting(&self) -> bool {
        match self {
            Self::Unextractable(error) => error.is_lasting(),
            Self::Unreadable(_) => false,
            Self::Kind(_)
            | Self::Binary
            | Self::TooLarge(_)
            | Self::TooMuch
            | Self::Empty
            | Self::Image(_)
            | Self::Html(_)
            | Self::SamePath
            | Self::Hidden
            | Self::Link
            | Self::NotAFile => true,
        }
    }

    /// A word or two for a summary of many files.
    pub fn summary(&self, path: &str) -> String {
        match self {
            Self::Hidden => "hidden".into(),
            Self::Link => "link".into(),
            Self::Empty => "empty".into(),
            Self::TooLarge(_) | Self::TooMuch | Self::Image(_) => "too large".into(),
            Self::Unextractable(ExtractError::Encrypted) => "encrypted".into(),
            Self::Unextractable(_) | Self::Html(_) => "damaged".into(),
            Self::Unreadable(_) | Self::NotAFile => "unreadable".into(),
            Self::SamePath => "same path".into(),
            Self::Kind(kind) => kind.clone(),
            Self::Binary => file_ending(path).unwrap_or_else(|| "binary".into()),
        }
    }
}

/// Returns the ending of a file's name, in lower case.
pub(super) fn file_ending(path: &str) -> Option<String> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let (stem, ending) = name.rsplit_once('.')?;
    (!stem.is_empty() && !ending.is_empty()).then(|| ending.to_lowercase())
}
