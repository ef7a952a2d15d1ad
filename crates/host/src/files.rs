//! The workspace of a run, and the memories of the account, as an agent's files.
//!
//! # Invariants
//!
//! - I25: Of agents that change one file concurrently one is refused and sees the current content; every change is there once,
//!   whichever worker is lost. (`crates/host/tests/files.rs::no_edit_is_lost_or_repeated_in_any_interleaving`,
//!   `crates/runtime/tests/runtime.rs::with_three_copies_a_file_that_two_write_loses_no_line_when_a_server_dies`)
//! - I147: Memories outlive their run and belong to no run; of two agents that change one at once, one is refused and sees the
//!   current content. (`crates/host/tests/files.rs::agents_of_two_runs_share_the_memories`,
//!   `tests/tests/memories.rs::second_run_uses_what_the_first_one_stored`)

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::files::{
    ContentStream, FileContent, FileEntry, FilePath, Files, FilesError, MAX_FILE, OpenFile, StoredContent,
    WriteCondition,
};
use millrace_protocol::plan::Work;
use millrace_protocol::work::Order;
use millrace_runtime::store::blobs::BlobStream;
use millrace_runtime::store::workspace::{self, FileAuthor, FileStream, FileWriteError, RunWorkspace};
use millrace_runtime::{Bus, Fault};

/// The workspace of a run or the memories, with the author of their writes.
pub struct NatsFiles {
    workspace: RunWorkspace,
    author: String,
}

impl NatsFiles {
    /// Opens the workspace of an order's run. Files record the order's work as their author.
    #[must_use]
    pub fn new(bus: &Bus, order: &Order) -> Self {
        Self { workspace: RunWorkspace::new(bus, &order.run), author: derive_author(&order.work()) }
    }

    /// Opens the memories of the account for an order. They record the order's work and its run as their author.
    #[must_use]
    pub fn of_memories(bus: &Bus, order: &Order) -> Self {
        let author = format!("{} of run {}", derive_author(&order.work()), order.run);
        Self { workspace: RunWorkspace::of_memories(bus), author }
    }

    fn build_writer<'a>(&'a self, key: &'a str) -> FileAuthor<'a> {
        FileAuthor { author: &self.author, key }
    }
}

fn derive_author(work: &Work) -> String {
    match work {
        Work::Task { task, .. } => format!("task {task}"),
        Work::Review { task, .. } => format!("the review of {task}"),
        Work::Planning { .. } => "the planner".to_owned(),
    }
}

fn convert_entry(entry: workspace::FileVersionInfo) -> FileEntry {
    FileEntry { path: entry.path, size: entry.size, version: entry.version, author: entry.author }
}

fn convert_content(file: workspace::WorkspaceFile) -> FileContent {
    FileContent { entry: convert_entry(file.entry), bytes: file.bytes }
}

/// A value of the blob store.
pub(crate) struct BlobContent(pub BlobStream);

impl ContentStream for BlobContent {
    fn next_part(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, FilesError>> {
        async move { self.0.next_part().await.map_err(|fault| convert_read_error(&fault)) }.boxed()
    }
}

/// The content of a file of the workspace.
struct WorkspaceContent(FileStream);

impl ContentStream for WorkspaceContent {
    fn next_part(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, FilesError>> {
        async move { self.0.next_part().await.map_err(|fault| convert_read_error(&fault)) }.boxed()
    }
}

/// The error of reading a file as a whole.
fn convert_file_error(path: &FilePath, fault: &Fault) -> FilesError {
    if let Fault::TooLarge { size, .. } = fault {
        return FilesError::TooLarge { path: path.clone(), size: *size, max: MAX_FILE };
    }
    convert_read_error(fault)
}

fn convert_read_error(fault: &Fault) -> FilesError {
    let why = fault.to_string();
    if fault.is_transient() { FilesError::Unavailable(why) } else { FilesError::Broken(why) }
}

fn convert_write_error(path: &FilePath, error: FileWriteError) -> FilesError {
    let path = path.clone();
    match error {
        FileWriteError::Stale { current } => {
            FilesError::Stale { path, current: current.map(|file| Box::new(convert_content(*file))) }
        }
        FileWriteError::TooLarge { size, max } => FilesError::TooLarge { path, size, max },
        FileWriteError::Clash { with } => FilesError::Broken(format!(
            "{path} can't be written: {with} is a file, and a name can't be both a file and a folder"
        )),
        FileWriteError::Fault(fault) => convert_read_error(&fault),
    }
}

impl Files for NatsFiles {
    fn list<'a>(&'a self, folder: &'a str) -> BoxFuture<'a, Result<Vec<FileEntry>, FilesError>> {
        async move {
            let folder = match folder.trim_matches('/') {
                "" => None,
                folder => Some(FilePath::new(folder).map_err(|bad| FilesError::Broken(bad.to_string()))?),
            };
            let listed = self.workspace.list_files(folder.as_ref()).await;
            listed
                .map(|all| all.into_iter().map(convert_entry).collect())
                .map_err(|fault| convert_read_error(&fault))
        }
        .boxed()
    }

    fn read<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<FileContent>, FilesError>> {
        let read = self.workspace.read_file(path);
        read.map(|read| {
            read.map(|file| file.map(convert_content)).map_err(|fault| convert_file_error(path, &fault))
        })
        .boxed()
    }

    fn open<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<OpenFile>, FilesError>> {
        async move {
            let opened = self.workspace.open_file(path, None).await;
            let opened = opened.map_err(|fault| convert_read_error(&fault))?;
            Ok(opened.map(|file| OpenFile {
                entry: convert_entry(file.entry.clone()),
                content: Box::new(WorkspaceContent(file)),
            }))
        }
        .boxed()
    }

    fn write_stored<'a>(
        &'a self,
        path: &'a FilePath,
        stored: StoredContent,
        expected: WriteCondition,
        key: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>> {
        let written = self.workspace.write_stored_file(path, stored.blob, expected, self.build_writer(key));
        written.map(|done| done.map_err(|error| convert_write_error(path, error))).boxed()
    }

    fn write<'a>(
        &'a self,
        path: &'a FilePath,
        bytes: Vec<u8>,
        expected: WriteCondition,
        key: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>> {
        let written = self.workspace.write_file(path, bytes, expected, self.build_writer(key));
        written.map(|done| done.map_err(|error| convert_write_error(path, error))).boxed()
    }

    fn delete<'a>(
        &'a self,
        path: &'a FilePath,
        expected: WriteCondition,
        key: &'a str,
    ) -> BoxFuture<'a, Result<(), FilesError>> {
        let deleted = self.workspace.delete_file(path, expected, self.build_writer(key));
        deleted.map(|done| done.map(|_| ()).map_err(|error| convert_write_error(path, error))).boxed()
    }

    fn find_version_by_key<'a>(
        &'a self,
        path: &'a FilePath,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<u64>, FilesError>> {
        self.workspace
            .find_version_by_key(path, key)
            .map(|made| made.map_err(|fault| convert_read_error(&fault)))
            .boxed()
    }
}
