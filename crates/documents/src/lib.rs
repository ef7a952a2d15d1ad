//! The text of documents: character sets, HTML, and the binary formats (PDF, office files, EPUB, e-mail). It owns the
//! conversion and its limits, and fetches nothing.
//!
//! ```text
//! process with keys                     child process, without environment
//! Extractor::extract_text ── bytes ──▶  run_as_extractor ─▶ format::extract_text
//!                         ◀─ JSON ───   limits of memory, time and output
//! ```
//! The parsers of binary formats are large and may panic, loop or use any amount of memory on a hostile file. Hence they
//! run in a child process of the same program, whose end is no more than the reason to skip one file.

mod archive;
mod blocks;
mod chart;
mod child;
mod compound;
mod format;
mod mail;
pub mod markdown;
mod notebook;
mod office;
mod office_97;
mod open_document;
mod outlook;
mod pdf;
mod pdf_layout;
mod pdf_tables;
mod publication;
mod rich_text;
mod slides_97;
pub mod text;
mod word_97;
mod workbook;

use serde::{Deserialize, Serialize};

pub use child::{Extractor, ExtractorLimits, run_as_extractor};
pub use format::{BinaryFormat, detect_binary_format, extract_text};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtractedText {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The text by pages, slides, sheets or sections; a single part in a format without any.
    pub parts: Vec<TextPart>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextPart {
    /// Its name for citations, such as `page 3`; `None` if the format has no parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    pub text: String,
}

impl ExtractedText {
    fn from_single_text(title: Option<String>, text: String) -> Self {
        Self { title, parts: vec![TextPart { place: None, text }] }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum ExtractError {
    #[error("it is encrypted; save a copy without a password")]
    Encrypted,
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// It unpacks to more than the limit, in MiB.
    #[error("it unpacks to more than {0} MiB")]
    TooLarge(u64),
    /// The child process did not finish within this number of seconds.
    #[error("its text could not be read within {0} s")]
    TimedOut(u64),
    #[error("the process that read it {0}; it may be damaged, or need more than the allowed memory")]
    Crashed(String),
    #[error("no process for reading it can be started: {0}")]
    NotStarted(String),
}

impl ExtractError {
    /// `true` if another try, or another machine, would have the same result.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Encrypted | Self::Damaged(_) | Self::TooLarge(_) => true,
            Self::TimedOut(_) | Self::Crashed(_) | Self::NotStarted(_) => false,
        }
    }
}
