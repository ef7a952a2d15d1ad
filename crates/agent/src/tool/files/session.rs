//! The state that the file tools of one agent share (the files, the permissions, and the versions that the agent knows), and the
//! display of files to a model. It decides what is stale, and words file errors. Content always comes after the first line, so that
//! nothing in a file can pass for a version.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_models::image::InvalidImage;

use crate::files::permissions::{CompiledPermissions, FileOperation, PermissionDenied};

use crate::files::{
    FileContent, FileEntry, FilePath, Files, FilesError, WriteCondition, find_nearest_names, is_below,
};

use crate::tool::{Call, Image, ToolError, ToolResult};

use crate::turn::ArtifactChange;

/// The beginning of the refusal of a second change of a path in one message.
const PARALLEL: &str = "Error: parallel file mutations to the same path are not allowed";

/// The agent's knowledge of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KnownFileState {
    /// There is no file.
    Absent,
    Version(u64),
}

/// The files of one agent.
pub(super) struct FileSession {
    pub files: Arc<dyn Files>,
    rules: CompiledPermissions,
    seen: Mutex<SeenFiles>,
}

#[derive(Default)]
struct SeenFiles {
    versions: BTreeMap<FilePath, KnownFileState>,
    /// The files that calls have changed, with the keys of the calls.
    artifacts: Vec<(String, ArtifactChange)>,
    /// The images that calls have read, with the keys of the calls.
    images: Vec<(String, Image)>,
    /// The changes of the latest turn that had any: the paths, and the keys of their calls.
    turn: u64,
    changes: Vec<(String, String)>,
}

impl SeenFiles {
    /// Forgets the changes of earlier turns.
    fn begin_turn(&mut self, turn: u64) {
        if self.turn != turn {
            self.turn = turn;
            self.changes.clear();
        }
    }
}

impl FileSession {
    pub fn new(files: Arc<dyn Files>, rules: CompiledPermissions) -> Self {
        Self { files, rules, seen: Mutex::default() }
    }

    /// Parses a path and checks that the operation is permitted there. `is_approved`: a person has approved the call.
    pub fn parse_permitted_path(
        &self,
        text: &str,
        operation: FileOperation,
        is_approved: bool,
    ) -> Result<FilePath, ToolError> {
        let path = FilePath::new(text).map_err(|invalid| refused_error(invalid.to_string()))?;
        self.check_approved_permission(operation, &path, is_approved)
            .map_err(|denied| refused_error(denied.to_string()))?;
        Ok(path)
    }

    /// Parses a folder: `/` or a path without a trailing `/`.
    pub fn parse_folder(text: Option<&str>) -> Result<String, ToolError> {
        match text.map_or("", |text| text.strip_prefix("./").unwrap_or(text).trim_end_matches('/')) {
            "" | "." => Ok("/".to_owned()),
            path => {
                FilePath::new(path).map(String::from).map_err(|invalid| refused_error(invalid.to_string()))
            }
        }
    }

    pub fn check_permission(
        &self,
        operation: FileOperation,
        path: &FilePath,
    ) -> Result<(), PermissionDenied> {
        self.rules.check_permission(operation, path)
    }

    /// Checks a permission for a call; where a person must approve, one that is approved is permitted.
    pub fn check_approved_permission(
        &self,
        operation: FileOperation,
        path: &FilePath,
        is_approved: bool,
    ) -> Result<(), PermissionDenied> {
        match self.check_permission(operation, path) {
            Err(PermissionDenied::NeedsApproval { .. }) if is_approved => Ok(()),
            checked => checked,
        }
    }

    /// The files below a folder that the agent may read, by path.
    pub async fn list_permitted_files(&self, folder: &str) -> Result<Vec<FileEntry>, ToolError> {
        let mut entries = self.files.list(folder).await.map_err(convert_files_error)?;
        entries.retain(|entry| self.check_permission(FileOperation::Read, &entry.path).is_ok());
        Ok(entries)
    }

    /// Reads a file; if there is none, the refusal names similar ones.
    pub async fn read_existing_file(&self, path: &FilePath) -> Result<FileContent, ToolError> {
        match self.files.read(path).await.map_err(convert_files_error)? {
            Some(content) => Ok(content),
            None => Err(self.not_found_error(path).await),
        }
    }

    /// The refusal for a missing file.
    pub async fn not_found_error(&self, path: &FilePath) -> ToolError {
        let entries = self.list_permitted_files("/").await.unwrap_or_default();
        if entries.iter().any(|entry| is_below(&entry.path, path.as_str())) {
            return refused_error(format!("Error: '{path}' is a folder; `ls` shows what is in it"));
        }
        let near = find_nearest_names(path.as_str(), entries.iter().map(|entry| entry.path.as_str()));
        let hint = if near.is_empty() {
            "`ls` and `glob` list the existing files".to_owned()
        } else {
            format!("did you mean {}?", near.join(" or "))
        };
        refused_error(format!("Error: File '{path}' not found; {hint}"))
    }

    pub fn known_state(&self, path: &FilePath) -> Option<KnownFileState> {
        self.lock_seen_files().versions.get(path).copied()
    }

    pub fn set_known_state(&self, path: &FilePath, known: KnownFileState) {
        self.lock_seen_files().versions.insert(path.clone(), known);
    }

    /// Records that a call has changed a file.
    pub fn add_artifact(&self, key: &str, change: ArtifactChange) {
        self.lock_seen_files().artifacts.push((key.to_owned(), change));
    }

    /// Adds an image that a call with this key has read.
    pub fn add_image(&self, key: &str, image: Image) {
        self.lock_seen_files().images.push((key.to_owned(), image));
    }

    /// Takes the images that the call with this key has read.
    pub fn take_images(&self, key: &str) -> Vec<Image> {
        let mut seen = self.lock_seen_files();
        let (taken, others) = std::mem::take(&mut seen.images).into_iter().partition(|(of, _)| of == key);
        seen.images = others;
        let taken: Vec<(String, Image)> = taken;
        taken.into_iter().map(|(_, image)| image).collect()
    }

    /// Returns the files that a call has changed, and forgets them.
    pub fn take_artifacts(&self, key: &str) -> Vec<ArtifactChange> {
        let mut seen = self.lock_seen_files();
        let (taken, others) = std::mem::take(&mut seen.artifacts).into_iter().partition(|(of, _)| of == key);
        seen.artifacts = others;
        let taken: Vec<(String, ArtifactChange)> = taken;
        taken.into_iter().map(|(_, change)| change).collect()
    }

    pub fn list_known_files_below(&self, folder: &FilePath) -> Vec<FilePath> {
        self.lock_seen_files()
            .versions
            .keys()
            .filter(|known| is_below(known, folder.as_str()))
            .cloned()
            .collect()
    }

    /// Records that a path, and everything below it, is gone.
    pub fn forget_files_below(&self, path: &FilePath) {
        let mut seen = self.lock_seen_files();
        seen.versions.retain(|known, _| !is_below(known, path.as_str()));
        seen.versions.insert(path.clone(), KnownFileState::Absent);
    }

    /// The expectation of a write, given the agent's knowledge.
    pub fn write_condition(&self, path: &FilePath) -> WriteCondition {
        match self.known_state(path) {
            Some(KnownFileState::Version(version)) => WriteCondition::Version(version),
            Some(KnownFileState::Absent) | None => WriteCondition::Absent,
        }
    }

    /// Records that a call is about to change a path. If two calls of one message change the same path, or a folder and
    /// something in it, the second is refused, because their order is undefined.
    pub fn claim_path_for_call(&self, path: &FilePath, call: &Call) -> Result<(), ToolError> {
        let mut seen = self.lock_seen_files();
        seen.begin_turn(call.turn);
        let overlaps = |other: &str| {
            other == path.as_str() || is_below(path, other) || other.starts_with(&format!("{path}/"))
        };
        if seen.changes.iter().any(|(other, key)| *key != call.key && overlaps(other)) {
            return Err(refused_error(format!(
                "{PARALLEL}: another call of this message changes {path}. Check its result first, then make this change if it is still needed"
            )));
        }
        seen.changes.push((path.to_string(), call.key.clone()));
        Ok(())
    }

    /// Restores from a recorded call that it was the one of its message to change a path.
    pub fn restore_change(&self, path: &str, result: &ToolResult, call: &Call) {
        // A call that was refused because of another was the second.
        let was_second = result.is_error && result.text.starts_with(PARALLEL);
        if let (Ok(path), false) = (FilePath::new(path), was_second) {
            // Recorded calls of a message do not conflict.
            let _ = self.claim_path_for_call(&path, call);
        }
    }

    /// The refusal of a change that would overwrite another's; from here on the agent knows the current version.
    pub fn stale_version_error(&self, path: &FilePath, current: Option<&FileContent>) -> ToolError {
        let state = self.known_state(path);
        let Some(content) = current else {
            self.set_known_state(path, KnownFileState::Absent);
            return refused_error(format!(
                "Error: {path} was deleted since you read it; nothing was changed. To create it again, call write_file \
                 again"
            ));
        };
        self.set_known_state(path, KnownFileState::Version(content.entry.version));
        refused_error(describe_conflict(content, state.is_some()))
    }

    /// Converts the error of a change.
    pub fn change_failed_error(&self, path: &FilePath, error: FilesError) -> ToolError {
        match error {
            FilesError::Stale { current, .. } => self.stale_version_error(path, current.as_deref()),
            FilesError::Denied(_)
            | FilesError::TooLarge { .. }
            | FilesError::Broken(_)
            | FilesError::Unavailable(_) => convert_files_error(error),
        }
    }

    /// Restores the known version of a file from the first line of a recorded result.
    pub fn restore_known_version(&self, path: &str, text: &str) {
        if let Ok(path) = FilePath::new(path)
            && let Some(version) = parse_version(text)
        {
            self.set_known_state(&path, KnownFileState::Version(version));
        }
    }

    fn lock_seen_files(&self) -> MutexGuard<'_, SeenFiles> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn refused_error(text: impl Into<String>) -> ToolError {
    ToolError::Refused(text.into())
}

pub(super) fn convert_files_error(error: FilesError) -> ToolError {
    match error {
        FilesError::Unavailable(why) => ToolError::Unavailable(why),
        FilesError::Stale { .. }
        | FilesError::Denied(_)
        | FilesError::TooLarge { .. }
        | FilesError::Broken(_) => refused_error(format!("Error: {error}")),
    }
}

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
