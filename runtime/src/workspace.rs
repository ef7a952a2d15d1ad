//! The files of a run. Each version of a file is a message on the subject of its path, and none is ever removed: a
//! file's state is the last message of its subject, a deletion is one too, and the workspace of a run stays when the
//! run is over.
//!
//! A write names the last message of its very subject, so that of two writers who know the same version the server
//! refuses one. What a key has written is recognised when the same comes again, also after an answer was lost.

use async_nats::jetstream::stream::LastRawMessageErrorKind;
use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::file::{Expected, FilePath, FileVersion, MAX_FILE};
use millrace_protocol::ids::RunId;
use millrace_protocol::subject;
use millrace_protocol::wire::{Blob, body, seal};
use serde_bytes::ByteBuf;
use tracing::warn;

use crate::blobs::sha256;
use crate::bus::Bus;
use crate::fault::pause;
use crate::log::{AppendError, append_payload};
use crate::record::Record;
use crate::topology::{FILES, fault};
use crate::{Fault, direct};

/// Contents above this many bytes go to the blob store: a listing reads what is in the messages.
const MAX_INLINE: usize = 64 * 1024;
/// How often a reading is made again that lags behind what the leader has.
const TRIES: u32 = 8;

/// The files of one run.
pub struct Workspace {
    bus: Bus,
    run: RunId,
}

/// A version of a file, without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where it is.
    pub path: FilePath,
    /// Its number, from 1.
    pub version: u64,
    /// Who wrote it.
    pub author: String,
    /// The size of its content in bytes.
    pub size: u64,
    /// Whether it says that the file is deleted.
    pub is_deletion: bool,
    /// When the server stored it.
    pub time: jiff::Timestamp,
}

/// A version of a file with its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// What it is.
    pub entry: Entry,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// Who writes, and what for.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a> {
    /// Who it is, such as `task draft`.
    pub author: &'a str,
    /// What the write is known by: the same again is done already.
    pub key: &'a str,
}

/// Why a file was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// There is something else than was expected.
    #[error("it has another version than was expected")]
    Stale {
        /// What there is; `None` if there is no file.
        current: Option<Box<File>>,
    },
    /// It is larger than [`MAX_FILE`].
    #[error("it would have {size} bytes; at most {MAX_FILE} are kept")]
    TooLarge {
        /// Its size in bytes.
        size: u64,
    },
    /// A name can't be that of a file and of a folder.
    #[error("{with} is a file, so that one of them would be a folder and a file at once")]
    Clash {
        /// The file that is there.
        with: FilePath,
    },
    /// The server does not take it, or what is there can't be read.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// A version of a file as it stands in its message.
struct Head {
    version: FileVersion,
    entry: Entry,
}

/// The end of a file's subject. What stands there that nobody wrote is no version, and is written behind all the same.
struct Tip {
    /// The last version, if there is one.
    head: Option<Head>,
    /// The sequence of the last message; 0 if there is none.
    last: u64,
}

impl Workspace {
    /// The workspace of a run. Asks nothing yet.
    #[must_use]
    pub fn new(bus: &Bus, run: &RunId) -> Self {
        Self { bus: bus.clone(), run: run.clone() }
    }

    /// The files below a folder, or all of them, by path. On a replicated stream the copy that answers may lag.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn list<'a>(&'a self, folder: Option<&'a FilePath>) -> BoxFuture<'a, Result<Vec<Entry>, Fault>> {
        async move {
            let filters = [subject::files(&self.run, folder)];
            let records = match direct::last_of_each(self.bus.client(), FILES, &filters).await? {
                Some(records) => records,
                None => self.last_of_many(&filters[0]).await?,
            };
            let mut entries = Vec::new();
            for record in &records {
                entries.extend(self.version_of(record).await?.map(|head| head.entry));
            }
            entries.retain(|entry| !entry.is_deletion);
            entries.sort_by(|a, b| a.path.cmp(&b.path));
            Ok(entries)
        }
        .boxed()
    }

    /// A file as it is; `None` if there is none.
    ///
    /// # Errors
    /// The server does not answer, or the content can't be had.
    pub fn read<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<File>, Fault>> {
        async move {
            match self.tip(path).await?.head {
                Some(head) => self.content(head).await,
                None => Ok(None),
            }
        }
        .boxed()
    }

    /// A version of a file; `None` if there is no such version, or it is a deletion.
    ///
    /// # Errors
    /// As for [`Workspace::read`].
    pub fn read_version<'a>(
        &'a self,
        path: &'a FilePath,
        version: u64,
    ) -> BoxFuture<'a, Result<Option<File>, Fault>> {
        async move {
            let all = self.history(path).await?;
            match all.into_iter().find(|head| head.entry.version == version) {
                Some(head) => self.content(head).await,
                None => Ok(None),
            }
        }
        .boxed()
    }

    /// All versions of a file, oldest first, deletions among them.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn versions(&self, path: &FilePath) -> Result<Vec<Entry>, Fault> {
        Ok(self.history(path).await?.into_iter().map(|head| head.entry).collect())
    }

    /// The version that a key has written; `None` if it wrote none.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn made<'a>(&'a self, path: &'a FilePath, key: &'a str) -> BoxFuture<'a, Result<Option<u64>, Fault>> {
        async move {
            let all = self.history(path).await?;
            Ok(all.iter().find(|head| head.version.key == key).map(|head| head.entry.version))
        }
        .boxed()
    }

    /// Writes a file, and gives its new version. The same key with the same expectation again is the same write, and
    /// gives the version that it made; a new expectation asks for a new key.
    ///
    /// # Errors
    /// See [`WriteError`]; nothing was written.
    pub fn write<'a>(
        &'a self,
        path: &'a FilePath,
        bytes: Vec<u8>,
        expected: Expected,
        writer: Writer<'a>,
    ) -> BoxFuture<'a, Result<u64, WriteError>> {
        async move {
            let size = bytes.len() as u64;
            if size > MAX_FILE {
                return Err(WriteError::TooLarge { size });
            }
            self.append(path, Some(bytes), expected, writer).await
        }
        .boxed()
    }

    /// Deletes a file, and gives the version that says so.
    ///
    /// # Errors
    /// See [`WriteError`]; nothing was deleted.
    pub fn delete<'a>(
        &'a self,
        path: &'a FilePath,
        expected: Expected,
        writer: Writer<'a>,
    ) -> BoxFuture<'a, Result<u64, WriteError>> {
        self.append(path, None, expected, writer).boxed()
    }

    async fn append(
        &self,
        path: &FilePath,
        bytes: Option<Vec<u8>>,
        expected: Expected,
        writer: Writer<'_>,
    ) -> Result<u64, WriteError> {
        let size = bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
        let mut content = None;
        loop {
            let Tip { head, last } = self.tip(path).await?;
            if let Some(version) = self.is_done(path, head.as_ref(), expected, writer.key).await? {
                return Ok(version);
            }
            if !fits(head.as_ref(), expected) {
                let current = match head {
                    Some(head) => self.content(head).await?,
                    None => None,
                };
                return Err(WriteError::Stale { current: current.map(Box::new) });
            }
            if let (None, Some(bytes)) = (&content, &bytes) {
                self.check_place(path, head.as_ref()).await?;
                content = Some(self.keep(bytes).await?);
            }
            let version = FileVersion {
                version: head.as_ref().map_or(0, |head| head.entry.version) + 1,
                author: writer.author.to_owned(),
                key: writer.key.to_owned(),
                size,
                content: content.clone(),
            };
            match self.put(path, &version, last).await {
                Ok(()) => return Ok(version.version),
                // Somebody was faster: what is there now decides.
                Err(AppendError::Fenced { .. }) => {}
                Err(AppendError::Fault(fault)) => return Err(fault.into()),
            }
        }
    }

    /// Keeps a content where it belongs.
    async fn keep(&self, bytes: &[u8]) -> Result<Blob, Fault> {
        if bytes.len() <= MAX_INLINE {
            return Ok(Blob::Inline(ByteBuf::from(bytes)));
        }
        Ok(Blob::Stored(self.bus.blobs().put(bytes).await?))
    }

    async fn put(&self, path: &FilePath, version: &FileVersion, last: u64) -> Result<(), AppendError> {
        let payload = seal::<FileVersion>(&body(version));
        let subject = subject::file(&self.run, path);
        let id = sha256(version.key.as_bytes());
        append_payload(&self.bus, "file", FILES.into(), subject, payload.into(), last, id).await.map(|_| ())
    }

    /// The version that a key has written already. Where the version that was expected is there, it can't have.
    async fn is_done(
        &self,
        path: &FilePath,
        head: Option<&Head>,
        expected: Expected,
        key: &str,
    ) -> Result<Option<u64>, Fault> {
        match (head, expected) {
            (None, _) => Ok(None),
            (Some(head), _) if head.version.key == key => Ok(Some(head.entry.version)),
            (Some(head), Expected::Version(version)) if head.entry.version == version => Ok(None),
            (Some(_), Expected::Version(_) | Expected::Nothing | Expected::Anything) => {
                self.made(path, key).await
            }
        }
    }

    /// Refuses a file where a folder is, or below a file.
    async fn check_place(&self, path: &FilePath, head: Option<&Head>) -> Result<(), WriteError> {
        if head.is_some_and(|head| !head.entry.is_deletion) {
            return Ok(());
        }
        let mut filters = vec![subject::files(&self.run, Some(path))];
        let text = path.as_str();
        let folders = text.match_indices('/').skip(1).map(|(end, _)| &text[..end]);
        filters.extend(
            folders.filter_map(|text| FilePath::new(text).ok()).map(|path| subject::file(&self.run, &path)),
        );
        let records = direct::last_of_each(self.bus.client(), FILES, &filters).await?;
        // More than can be told: a folder with a thousand files.
        for record in records.ok_or_else(|| WriteError::Clash { with: path.clone() })? {
            if let Some(head) = self.version_of(&record).await?
                && !head.entry.is_deletion
            {
                return Err(WriteError::Clash { with: head.entry.path });
            }
        }
        Ok(())
    }

    /// The end of a file, as its leader has it. Where the last message is a stray, the last version stands before it.
    async fn tip(&self, path: &FilePath) -> Result<Tip, Fault> {
        let Some(record) = self.last(path).await? else { return Ok(Tip { head: None, last: 0 }) };
        if !record.is_stray {
            return Ok(Tip { head: Some(self.open(&record).await?), last: record.sequence });
        }
        let records = self.through(path, record.sequence).await?;
        let last = records.last().map_or(0, |last| last.sequence);
        if last < record.sequence {
            let what = format!("reading {path} of run {}", self.run);
            return Err(Fault::unavailable(what, "the copy that answers lags behind its leader"));
        }
        Ok(Tip { head: self.last_version(&records).await?, last })
    }

    /// The last message of a file, as its leader has it.
    async fn last(&self, path: &FilePath) -> Result<Option<Record>, Fault> {
        let subject = subject::file(&self.run, path);
        let what = || format!("reading {path} of run {}", self.run);
        for tries in 1.. {
            let stream = self.bus.control().get_stream_no_info(FILES).await;
            let stream = stream.map_err(|error| fault(&what(), &error))?;
            let error = match stream.get_last_raw_message_by_subject(&subject).await {
                Ok(found) => return Ok(Some(found.into())),
                Err(error) => error,
            };
            match error.kind() {
                LastRawMessageErrorKind::NoMessageFound => return Ok(None),
                LastRawMessageErrorKind::InvalidSubject
                | LastRawMessageErrorKind::JetStream(_)
                | LastRawMessageErrorKind::Other
                    if tries > TRIES =>
                {
                    return Err(fault(&what(), &error));
                }
                LastRawMessageErrorKind::InvalidSubject
                | LastRawMessageErrorKind::JetStream(_)
                | LastRawMessageErrorKind::Other => tokio::time::sleep(pause(tries)).await,
            }
        }
        Ok(None)
    }

    /// All versions of a file, up to the last that its leader has.
    async fn history(&self, path: &FilePath) -> Result<Vec<Head>, Fault> {
        let Some(last) = self.last(path).await? else { return Ok(Vec::new()) };
        let records = self.through(path, last.sequence).await?;
        let mut all = Vec::with_capacity(records.len());
        for record in &records {
            all.extend(self.decode(record).await?);
        }
        Ok(all)
    }

    /// All messages of a file, up to the one with the sequence `last` at the least if that comes in time.
    async fn through(&self, path: &FilePath, last: u64) -> Result<Vec<Record>, Fault> {
        let subject = subject::file(&self.run, path);
        for tries in 1.. {
            let records = direct::read(self.bus.client(), FILES, &subject, 1).await?;
            if records.last().is_some_and(|record| record.sequence >= last) || tries > TRIES {
                return Ok(records);
            }
            tokio::time::sleep(pause(tries)).await;
        }
        Ok(Vec::new())
    }

    /// The version that the last message of a subject says; where that is a stray, the last one before it.
    async fn version_of(&self, last: &Record) -> Result<Option<Head>, Fault> {
        if !last.is_stray {
            return self.decode(last).await;
        }
        let records = direct::read(self.bus.client(), FILES, &last.subject, 1).await?;
        self.last_version(&records).await
    }

    /// The last version among the messages of a file.
    async fn last_version(&self, records: &[Record]) -> Result<Option<Head>, Fault> {
        match records.iter().rev().find(|record| !record.is_stray) {
            Some(record) => self.decode(record).await,
            None => Ok(None),
        }
    }

    /// The last message of each subject that is no stray, where these are too many to be asked for: all are read.
    async fn last_of_many(&self, filter: &str) -> Result<Vec<Record>, Fault> {
        let mut last = std::collections::HashMap::new();
        let mut pages = direct::Pages::new(self.bus.client(), FILES.into(), filter.into(), 1);
        loop {
            let records = pages.next().await?;
            if records.is_empty() {
                return Ok(last.into_values().collect());
            }
            let records = records.into_iter().filter(|record| !record.is_stray);
            last.extend(records.map(|record| (record.subject.to_string(), record)));
        }
    }

    /// A message as a version of a file; `None` if it is none, and is passed over.
    async fn decode(&self, record: &Record) -> Result<Option<Head>, Fault> {
        match self.open(record).await {
            Ok(head) => Ok(Some(head)),
            Err(fault) if fault.is_transient() => Err(fault),
            Err(fault) => {
                warn!(%fault, "a version of a file is passed over");
                Ok(None)
            }
        }
    }

    async fn open(&self, record: &Record) -> Result<Head, Fault> {
        let version: FileVersion = self.bus.open(record).await?;
        let (_, path) = subject::parse_file(&record.subject).ok_or_else(|| Fault::Garbage {
            subject: record.subject.to_string(),
            sequence: record.sequence,
            garbage: millrace_protocol::wire::Garbage::Unreadable {
                what: "its subject".into(),
                why: "it names no path".into(),
            },
        })?;
        let entry = Entry {
            path,
            version: version.version,
            author: version.author.clone(),
            size: version.size,
            is_deletion: version.content.is_none(),
            time: record.time,
        };
        Ok(Head { version, entry })
    }

    async fn content(&self, head: Head) -> Result<Option<File>, Fault> {
        match &head.version.content {
            None => Ok(None),
            Some(content) => {
                let bytes = self.bus.blobs().resolve(content).await?;
                Ok(Some(File { entry: head.entry, bytes }))
            }
        }
    }
}

fn fits(head: Option<&Head>, expected: Expected) -> bool {
    let current = head.filter(|head| !head.entry.is_deletion);
    match expected {
        Expected::Anything => true,
        Expected::Nothing => current.is_none(),
        Expected::Version(version) => current.is_some_and(|head| head.entry.version == version),
    }
}
