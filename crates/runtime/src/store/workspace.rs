//! The workspace of a run: its files; and the memories of the account, which are kept in the same way. Each version of a file is a message on the subject of its path, a deletion too,
//! and none is ever removed. The current version is the last message of the subject. A workspace outlives its run.
//!
//! Writes are fenced by the last message of the subject, so that the server rejects one of two concurrent writers. They
//! are idempotent: a write with the same key is recognised, also if the response to the first one was lost.

use async_nats::jetstream::stream::LastRawMessageErrorKind;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use millrace_protocol::file::{FilePath, FileVersion, MAX_FILE, MAX_STREAMED_FILE, WriteCondition};
use millrace_protocol::ids::RunId;
use millrace_protocol::subject::{self, FileSpace};
use millrace_protocol::wire::{BlobRef, InlineOrStoredBytes, encode_body, encode_with_inline_body};
use serde_bytes::ByteBuf;
use tracing::warn;

use crate::Fault;
use crate::fault::{ClientResult, backoff, fault_from_client_error};
use crate::log::{AppendError, append_payload};
use crate::nats::bus::Bus;
use crate::nats::direct_get;
use crate::nats::record::StreamRecord;
use crate::nats::topology::FILES;
use crate::store::blobs::{BlobStream, sha256_hex};

/// Larger contents go to the blob store, because a listing reads every message in full.
const MAX_INLINE: usize = 64 * 1024;
/// The maximum number of retries of a read from a lagging replica.
const MAX_RETRIES: u32 = 8;

/// The files of one run, or the memories.
pub struct RunWorkspace {
    bus: Bus,
    space: FileSpace,
}

/// A version of a file, without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileVersionInfo {
    pub path: FilePath,
    /// Its number, from 1.
    pub version: u64,
    pub author: String,
    /// The size of its content in bytes.
    pub size: u64,
    /// `true` if this version deletes the file.
    pub is_deletion: bool,
    /// When the server stored it.
    pub time: jiff::Timestamp,
}

/// A version of a file with its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceFile {
    /// Its metadata.
    pub entry: FileVersionInfo,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// A version of a file whose content is read part by part.
pub struct FileStream {
    /// Its metadata.
    pub entry: FileVersionInfo,
    parts: FileParts,
}

enum FileParts {
    Inline(Option<Bytes>),
    Stored(Box<BlobStream>),
}

impl FileStream {
    /// Returns the next part; `None` after the last one. The last part is returned only if the whole content is right.
    /// Errors: the content is damaged or incomplete, or the server does not respond.
    pub async fn next_part(&mut self) -> Result<Option<Bytes>, Fault> {
        match &mut self.parts {
            FileParts::Inline(bytes) => Ok(bytes.take()),
            FileParts::Stored(blob) => blob.next_part().await,
        }
    }

    /// Returns the parts as a stream. It ends after an error.
    #[must_use]
    pub fn into_stream(self) -> BoxStream<'static, Result<Bytes, Fault>> {
        let next = |mut file: Self| async move { Ok(file.next_part().await?.map(|part| (part, file))) };
        futures::stream::try_unfold(self, next).boxed()
    }
}

/// The content of a new version.
enum NewContent {
    Bytes(Vec<u8>),
    Stored(BlobRef),
    Deletion,
}

impl NewContent {
    fn size(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Stored(blob) => blob.size,
            Self::Deletion => 0,
        }
    }
}

/// The author of a write, and its idempotency key.
#[derive(Debug, Clone, Copy)]
pub struct FileAuthor<'a> {
    /// The author, such as `task draft`.
    pub author: &'a str,
    /// The idempotency key: a second write with the same key has no effect.
    pub key: &'a str,
}

/// The error of a failed write.
#[derive(Debug, thiserror::Error)]
pub enum FileWriteError {
    /// The current version is not the expected one.
    #[error("version conflict: the file has changed")]
    Stale {
        /// The current file, without its content if that is larger than [`MAX_FILE`]; `None` if there is none.
        current: Option<Box<WorkspaceFile>>,
    },
    /// It is larger than the maximum.
    #[error("the file would have {size} bytes; the limit is {max}")]
    TooLarge {
        /// Its size in bytes.
        size: u64,
        /// The limit: [`MAX_FILE`], or [`MAX_STREAMED_FILE`] if it is stored already.
        max: u64,
    },
    /// The path conflicts with another file: a name can't be both a file and a folder.
    #[error("path conflict with the file {with}: a name can't be both a file and a folder")]
    Clash {
        /// The existing file.
        with: FilePath,
    },
    /// The server does not accept the write, or the current version can't be read.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// A decoded version of a file.
struct DecodedVersion {
    version: FileVersion,
    entry: FileVersionInfo,
}

/// The end of a file's subject. A forged message there is no version, but the next write must follow it.
struct FileSubjectTip {
    /// The last version, if there is one.
    head: Option<DecodedVersion>,
    /// The sequence of the last message; 0 if there is none.
    last: u64,
}

impl RunWorkspace {
    /// Creates the workspace of a run. Sends no request.
    #[must_use]
    pub fn new(bus: &Bus, run: &RunId) -> Self {
        Self { bus: bus.clone(), space: FileSpace::Run(run.clone()) }
    }

    /// Opens the memories of the account, which all its runs share. Sends no request.
    #[must_use]
    pub fn of_memories(bus: &Bus) -> Self {
        Self { bus: bus.clone(), space: FileSpace::Memories }
    }

    /// The owner of the files.
    pub fn space(&self) -> &FileSpace {
        &self.space
    }

    /// Returns the files below a folder, or all files, by path. On a replicated stream the responding replica may lag.
    pub fn list_files<'a>(
        &'a self,
        folder: Option<&'a FilePath>,
    ) -> BoxFuture<'a, Result<Vec<FileVersionInfo>, Fault>> {
        async move {
            let filters = [subject::file_subjects_in_folder(&self.space, folder)];
            let records = match direct_get::read_last_per_subject(self.bus.client(), FILES, &filters).await? {
                Some(records) => records,
                None => self.read_last_message_per_subject(&filters[0]).await?,
            };
            let mut entries = Vec::new();
            for record in &records {
                entries.extend(self.read_version_of_last_message(record).await?.map(|head| head.entry));
            }
            entries.retain(|entry| !entry.is_deletion);
            entries.sort_by(|a, b| a.path.cmp(&b.path));
            Ok(entries)
        }
        .boxed()
    }

    /// Returns the files below a folder as they were at a time, by path. It reads all versions.
    pub async fn list_files_at(
        &self,
        folder: Option<&FilePath>,
        time: jiff::Timestamp,
    ) -> Result<Vec<FileVersionInfo>, Fault> {
        let filter = subject::file_subjects_in_folder(&self.space, folder);
        let mut files = std::collections::BTreeMap::new();
        for record in direct_get::read_matching(self.bus.client(), FILES, &filter, 1).await? {
            if record.time > time {
                break;
            }
            if !record.is_forged()
                && let Some(version) = self.decode_or_ignore(&record).await?
            {
                files.insert(version.entry.path.clone(), version.entry);
            }
        }
        Ok(files.into_values().filter(|entry| !entry.is_deletion).collect())
    }

    /// Returns the current version of a file; `None` if there is no file.
    /// Fails also if the content can't be read, or not as a whole: see [`RunWorkspace::open_file`].
    pub fn read_file<'a>(
        &'a self,
        path: &'a FilePath,
    ) -> BoxFuture<'a, Result<Option<WorkspaceFile>, Fault>> {
        async move {
            match self.read_subject_tip(path).await?.head {
                Some(head) => self.load_content(head).await,
                None => Ok(None),
            }
        }
        .boxed()
    }

    /// Returns a version of a file; `None` if there is no such version, or it is a deletion.
    pub fn read_file_version<'a>(
        &'a self,
        path: &'a FilePath,
        version: u64,
    ) -> BoxFuture<'a, Result<Option<WorkspaceFile>, Fault>> {
        async move {
            let all = self.read_history(path).await?;
            match all.into_iter().find(|head| head.entry.version == version) {
                Some(head) => self.load_content(head).await,
                None => Ok(None),
            }
        }
        .boxed()
    }

    /// Opens the current version of a file, or an earlier one, to read it part by part; `None` if there is no such version,
    /// or it is a deletion.
    /// Fails also if the content is missing or damaged.
    pub fn open_file<'a>(
        &'a self,
        path: &'a FilePath,
        version: Option<u64>,
    ) -> BoxFuture<'a, Result<Option<FileStream>, Fault>> {
        async move {
            let found = match version {
                None => self.read_subject_tip(path).await?.head,
                Some(version) => {
                    let all = self.read_history(path).await?;
                    all.into_iter().find(|head| head.entry.version == version)
                }
            };
            let Some(DecodedVersion { version, entry }) = found else { return Ok(None) };
            let parts = match version.content {
                None => return Ok(None),
                Some(InlineOrStoredBytes::Inline(bytes)) => {
                    FileParts::Inline(Some(Bytes::from(bytes.into_vec())).filter(|bytes| !bytes.is_empty()))
                }
                Some(InlineOrStoredBytes::Stored(blob)) => FileParts::Stored(Box::new(
                    self.bus.blobs().open_blob(&blob.sha256, Some(blob.size)).await?,
                )),
            };
            Ok(Some(FileStream { entry, parts }))
        }
        .boxed()
    }

    /// Returns all versions of a file, oldest first, including deletions.
    pub async fn list_versions(&self, path: &FilePath) -> Result<Vec<FileVersionInfo>, Fault> {
        Ok(self.read_history(path).await?.into_iter().map(|head| head.entry).collect())
    }

    /// Returns the version that was written with this key; `None` if there is none.
    pub fn find_version_by_key<'a>(
        &'a self,
        path: &'a FilePath,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<u64>, Fault>> {
        async move {
            let all = self.read_history(path).await?;
            Ok(all.iter().find(|head| head.version.key == key).map(|head| head.entry.version))
        }
        .boxed()
    }

    /// Writes a file and returns its new version. A write with the same key and the same expected version is the same
    /// write, and returns the version that it created. A write with another expected version needs a new key.
    /// Errors: See [`FileWriteError`]; nothing was written.
    pub fn write_file<'a>(
        &'a self,
        path: &'a FilePath,
        bytes: Vec<u8>,
        expected: WriteCondition,
        writer: FileAuthor<'a>,
    ) -> BoxFuture<'a, Result<u64, FileWriteError>> {
        async move {
            let size = bytes.len() as u64;
            if size > MAX_FILE {
                return Err(FileWriteError::TooLarge { size, max: MAX_FILE });
            }
            self.append_version(path, &NewContent::Bytes(bytes), expected, writer).await
        }
        .boxed()
    }

    /// Like [`RunWorkspace::write_file`], with a content that is in the blob store already and may be larger.
    /// Errors: See [`FileWriteError`]; nothing was written.
    pub fn write_stored_file<'a>(
        &'a self,
        path: &'a FilePath,
        content: BlobRef,
        expected: WriteCondition,
        writer: FileAuthor<'a>,
    ) -> BoxFuture<'a, Result<u64, FileWriteError>> {
        async move {
            let size = content.size;
            if size > MAX_STREAMED_FILE {
                return Err(FileWriteError::TooLarge { size, max: MAX_STREAMED_FILE });
            }
            self.append_version(path, &NewContent::Stored(content), expected, writer).await
        }
        .boxed()
    }

    /// Deletes a file and returns the version of the deletion.
    /// Errors: See [`FileWriteError`]; nothing was deleted.
    pub fn delete_file<'a>(
        &'a self,
        path: &'a FilePath,
        expected: WriteCondition,
        writer: FileAuthor<'a>,
    ) -> BoxFuture<'a, Result<u64, FileWriteError>> {
        async move { self.append_version(path, &NewContent::Deletion, expected, writer).await }.boxed()
    }

    async fn append_version(
        &self,
        path: &FilePath,
        new: &NewContent,
        expected: WriteCondition,
        writer: FileAuthor<'_>,
    ) -> Result<u64, FileWriteError> {
        let size = new.size();
        let mut content = None;
        loop {
            let FileSubjectTip { head, last } = self.read_subject_tip(path).await?;
            if let Some(version) = self.find_earlier_write(path, head.as_ref(), expected, writer.key).await? {
                return Ok(version);
            }
            if !meets_write_condition(head.as_ref(), expected) {
                let current = match head {
                    Some(head) if head.entry.size > MAX_FILE => {
                        Some(WorkspaceFile { entry: head.entry, bytes: Vec::new() })
                    }
                    Some(head) => self.load_content(head).await?,
                    None => None,
                };
                return Err(FileWriteError::Stale { current: current.map(Box::new) });
            }
            if content.is_none() && !matches!(new, NewContent::Deletion) {
                self.check_path_conflicts(path, head.as_ref()).await?;
                content = self.store_content(new).await?;
            }
            let version = FileVersion {
                version: head.as_ref().map_or(0, |head| head.entry.version) + 1,
                author: writer.author.to_owned(),
                key: writer.key.to_owned(),
                size,
                content: content.clone(),
            };
            match self.publish_version(path, &version, last).await {
                Ok(()) => return Ok(version.version),
                // Another writer was first: check against the new version.
                Err(AppendError::Fenced { .. }) => {}
                Err(AppendError::Fault(fault)) => return Err(fault.into()),
            }
        }
    }

    /// Stores a content inline or in the blob store; `None` for a deletion.
    async fn store_content(&self, new: &NewContent) -> Result<Option<InlineOrStoredBytes>, Fault> {
        Ok(match new {
            NewContent::Deletion => None,
            NewContent::Stored(blob) => Some(InlineOrStoredBytes::Stored(blob.clone())),
            NewContent::Bytes(bytes) if bytes.len() <= MAX_INLINE => {
                Some(InlineOrStoredBytes::Inline(ByteBuf::from(bytes.as_slice())))
            }
            NewContent::Bytes(bytes) => {
                Some(InlineOrStoredBytes::Stored(self.bus.blobs().put_blob(bytes).await?))
            }
        })
    }

    async fn publish_version(
        &self,
        path: &FilePath,
        version: &FileVersion,
        last: u64,
    ) -> Result<(), AppendError> {
        let payload = encode_with_inline_body::<FileVersion>(&encode_body(version));
        let subject = subject::file_subject(&self.space, path);
        let id = sha256_hex(version.key.as_bytes());
        append_payload(&self.bus, "file", FILES.into(), subject, payload.into(), last, id).await.map(|_| ())
    }

    /// Returns the version that was written with this key before. If the current version is the expected one, there is
    /// none.
    async fn find_earlier_write(
        &self,
        path: &FilePath,
        head: Option<&DecodedVersion>,
        expected: WriteCondition,
        key: &str,
    ) -> Result<Option<u64>, Fault> {
        match (head, expected) {
            (None, _) => Ok(None),
            (Some(head), _) if head.version.key == key => Ok(Some(head.entry.version)),
            (Some(head), WriteCondition::Version(version)) if head.entry.version == version => Ok(None),
            (Some(_), WriteCondition::Version(_) | WriteCondition::Absent | WriteCondition::Always) => {
                self.find_version_by_key(path, key).await
            }
        }
    }

    /// Rejects a path that is a folder, or that is below a file.
    async fn check_path_conflicts(
        &self,
        path: &FilePath,
        head: Option<&DecodedVersion>,
    ) -> Result<(), FileWriteError> {
        if head.is_some_and(|head| !head.entry.is_deletion) {
            return Ok(());
        }
        let mut filters = vec![subject::file_subjects_in_folder(&self.space, Some(path))];
        let text = path.as_str();
        let folders = text.match_indices('/').skip(1).map(|(end, _)| &text[..end]);
        filters.extend(
            folders
                .filter_map(|text| FilePath::new(text).ok())
                .map(|path| subject::file_subject(&self.space, &path)),
        );
        let records = direct_get::read_last_per_subject(self.bus.client(), FILES, &filters).await?;
        // Too many subjects to return: the path is a folder with more than a thousand files.
        for record in records.ok_or_else(|| FileWriteError::Clash { with: path.clone() })? {
            if let Some(head) = self.read_version_of_last_message(&record).await?
                && !head.entry.is_deletion
            {
                return Err(FileWriteError::Clash { with: head.entry.path });
            }
        }
        Ok(())
    }

    /// Returns the end of a file's subject, as its leader knows it. If the last message is forged, the last version is
    /// before it.
    async fn read_subject_tip(&self, path: &FilePath) -> Result<FileSubjectTip, Fault> {
        let Some(record) = self.read_last_message(path).await? else {
            return Ok(FileSubjectTip { head: None, last: 0 });
        };
        if !record.is_forged() {
            return Ok(FileSubjectTip {
                head: Some(self.decode_version(&record).await?),
                last: record.sequence,
            });
        }
        let records = self.read_through(path, record.sequence).await?;
        let last = records.last().map_or(0, |last| last.sequence);
        if last < record.sequence {
            let what = format!("reading {path} of {}", self.space);
            return Err(Fault::unavailable(what, "the replica lags behind its leader"));
        }
        Ok(FileSubjectTip { head: self.find_last_version(&records).await?, last })
    }

    /// Returns the last message of a file, as its leader knows it.
    async fn read_last_message(&self, path: &FilePath) -> Result<Option<StreamRecord>, Fault> {
        let subject = subject::file_subject(&self.space, path);
        let what = || format!("reading {path} of {}", self.space);
        for tries in 1.. {
            let stream = self.bus.request_context().get_stream_no_info(FILES).await.or_fault_with(what)?;
            let error = match stream.get_last_raw_message_by_subject(&subject).await {
                Ok(message) => return Ok(Some(message.into())),
                Err(error) => error,
            };
            match error.kind() {
                LastRawMessageErrorKind::NoMessageFound => return Ok(None),
                LastRawMessageErrorKind::InvalidSubject
                | LastRawMessageErrorKind::JetStream(_)
                | LastRawMessageErrorKind::Other
                    if tries > MAX_RETRIES =>
                {
                    return Err(fault_from_client_error(&what(), error));
                }
                LastRawMessageErrorKind::InvalidSubject
                | LastRawMessageErrorKind::JetStream(_)
                | LastRawMessageErrorKind::Other => tokio::time::sleep(backoff(tries)).await,
            }
        }
        Ok(None)
    }

    /// Returns all versions of a file, up to the last one that its leader knows.
    async fn read_history(&self, path: &FilePath) -> Result<Vec<DecodedVersion>, Fault> {
        let Some(last) = self.read_last_message(path).await? else { return Ok(Vec::new()) };
        let records = self.read_through(path, last.sequence).await?;
        let mut all = Vec::with_capacity(records.len());
        for record in &records {
            all.extend(self.decode_or_ignore(record).await?);
        }
        Ok(all)
    }

    /// Returns all messages of a file. Retries until the message with the sequence `last` is among them, for a limited
    /// time.
    async fn read_through(&self, path: &FilePath, last: u64) -> Result<Vec<StreamRecord>, Fault> {
        let subject = subject::file_subject(&self.space, path);
        for tries in 1.. {
            let records = direct_get::read_matching(self.bus.client(), FILES, &subject, 1).await?;
            if records.last().is_some_and(|record| record.sequence >= last) || tries > MAX_RETRIES {
                return Ok(records);
            }
            tokio::time::sleep(backoff(tries)).await;
        }
        Ok(Vec::new())
    }

    /// Returns the version of the last message of a subject; if that is forged, the last version before it.
    async fn read_version_of_last_message(
        &self,
        last: &StreamRecord,
    ) -> Result<Option<DecodedVersion>, Fault> {
        if !last.is_forged() {
            return self.decode_or_ignore(last).await;
        }
        let records = direct_get::read_matching(self.bus.client(), FILES, &last.subject, 1).await?;
        self.find_last_version(&records).await
    }

    /// Returns the last version among the messages of a file.
    async fn find_last_version(&self, records: &[StreamRecord]) -> Result<Option<DecodedVersion>, Fault> {
        match records.iter().rev().find(|record| !record.is_forged()) {
            Some(record) => self.decode_or_ignore(record).await,
            None => Ok(None),
        }
    }

    /// Returns the last message of each subject that is not forged, by reading all messages: for more subjects than the
    /// server returns at once.
    async fn read_last_message_per_subject(&self, filter: &str) -> Result<Vec<StreamRecord>, Fault> {
        let mut last = std::collections::HashMap::new();
        let mut pages = direct_get::PagedReader::new(self.bus.client(), FILES.into(), filter.into(), 1);
        loop {
            let records = pages.next_page().await?;
            if records.is_empty() {
                return Ok(last.into_values().collect());
            }
            let records = records.into_iter().filter(|record| !record.is_forged());
            last.extend(records.map(|record| (record.subject.to_string(), record)));
        }
    }

    /// Decodes a version of a file; `None` if it is invalid and must be ignored.
    async fn decode_or_ignore(&self, record: &StreamRecord) -> Result<Option<DecodedVersion>, Fault> {
        match self.decode_version(record).await {
            Ok(head) => Ok(Some(head)),
            Err(fault) if fault.is_transient() => Err(fault),
            Err(fault) => {
                warn!(
                    owner = %self.space,
                    subject = %record.subject,
                    sequence = record.sequence,
                    %fault,
                    "ignoring an invalid version of a workspace file; if it is the newest, the file counts as missing"
                );
                Ok(None)
            }
        }
    }

    async fn decode_version(&self, record: &StreamRecord) -> Result<DecodedVersion, Fault> {
        let version: FileVersion = self.bus.decode_record(record).await?;
        let (_, path) =
            subject::parse_file_subject(&record.subject).ok_or_else(|| Fault::InvalidMessage {
                subject: record.subject.to_string(),
                sequence: record.sequence,
                error: millrace_protocol::wire::DecodeError::Unreadable {
                    what: "its subject".into(),
                    why: "it contains no path".into(),
                },
            })?;
        let entry = FileVersionInfo {
            path,
            version: version.version,
            author: version.author.clone(),
            size: version.size,
            is_deletion: version.content.is_none(),
            time: record.time,
        };
        Ok(DecodedVersion { version, entry })
    }

    async fn load_content(&self, head: DecodedVersion) -> Result<Option<WorkspaceFile>, Fault> {
        match &head.version.content {
            None => Ok(None),
            Some(InlineOrStoredBytes::Stored(BlobRef { sha256, size })) if *size > MAX_FILE => {
                Err(Fault::TooLarge { sha256: sha256.clone(), size: *size, max: MAX_FILE })
            }
            Some(content) => {
                let bytes = self.bus.blobs().read_inline_or_stored(content).await?;
                Ok(Some(WorkspaceFile { entry: head.entry, bytes }))
            }
        }
    }
}

/// `true` if the current version is the expected one.
fn meets_write_condition(head: Option<&DecodedVersion>, expected: WriteCondition) -> bool {
    let current = head.filter(|head| !head.entry.is_deletion);
    match expected {
        WriteCondition::Always => true,
        WriteCondition::Absent => current.is_none(),
        WriteCondition::Version(version) => current.is_some_and(|head| head.entry.version == version),
    }
}
