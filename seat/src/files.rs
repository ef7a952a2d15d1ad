//! The workspace of a run as an agent's files. It translates and keeps nothing.

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::files::{Content, Entry, Expected, FilePath, Files, FilesError, MAX_FILE};
use millrace_protocol::plan::Work;
use millrace_protocol::work::Order;
use millrace_runtime::workspace::{self, Workspace, WriteError, Writer};
use millrace_runtime::{Bus, Fault};

/// The run's workspace, for one author.
pub struct Shared {
    workspace: Workspace,
    author: String,
}

impl Shared {
    /// The workspace of an order's run; its files say which work wrote them.
    #[must_use]
    pub fn of(bus: &Bus, order: &Order) -> Self {
        Self { workspace: Workspace::new(bus, &order.run), author: author(&order.work) }
    }

    fn writer<'a>(&'a self, key: &'a str) -> Writer<'a> {
        Writer { author: &self.author, key }
    }
}

fn author(work: &Work) -> String {
    match work {
        Work::Task { task, .. } => format!("task {task}"),
        Work::Review { task, .. } => format!("the review of {task}"),
        Work::Planning { .. } => "the planner".to_owned(),
    }
}

fn entry(found: workspace::Entry) -> Entry {
    Entry { path: found.path, size: found.size, version: found.version, author: found.author }
}

fn content(found: workspace::File) -> Content {
    Content { entry: entry(found.entry), bytes: found.bytes }
}

fn unreadable(fault: &Fault) -> FilesError {
    let why = fault.to_string();
    if fault.is_transient() { FilesError::Unavailable(why) } else { FilesError::Broken(why) }
}

fn refused(path: &FilePath, error: WriteError) -> FilesError {
    let path = path.clone();
    match error {
        WriteError::Stale { current } => {
            FilesError::Stale { path, current: current.map(|file| Box::new(content(*file))) }
        }
        WriteError::TooLarge { size } => FilesError::TooLarge { path, size, max: MAX_FILE },
        WriteError::Clash { with } => FilesError::Broken(format!(
            "{path} can't be written: {with} is a file, and a name can't be that of a file and of a folder at once"
        )),
        WriteError::Fault(fault) => unreadable(&fault),
    }
}

impl Files for Shared {
    fn list<'a>(&'a self, folder: &'a str) -> BoxFuture<'a, Result<Vec<Entry>, FilesError>> {
        async move {
            let folder = match folder.trim_matches('/') {
                "" => None,
                folder => Some(FilePath::new(folder).map_err(|bad| FilesError::Broken(bad.to_string()))?),
            };
            let listed = self.workspace.list(folder.as_ref()).await;
            listed.map(|all| all.into_iter().map(entry).collect()).map_err(|fault| unreadable(&fault))
        }
        .boxed()
    }

    fn read<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<Content>, FilesError>> {
        let read = self.workspace.read(path);
        read.map(|found| found.map(|file| file.map(content)).map_err(|fault| unreadable(&fault))).boxed()
    }

    fn write<'a>(
        &'a self,
        path: &'a FilePath,
        bytes: Vec<u8>,
        expected: Expected,
        key: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>> {
        let written = self.workspace.write(path, bytes, expected, self.writer(key));
        written.map(|done| done.map_err(|error| refused(path, error))).boxed()
    }

    fn delete<'a>(
        &'a self,
        path: &'a FilePath,
        expected: Expected,
        key: &'a str,
    ) -> BoxFuture<'a, Result<(), FilesError>> {
        let deleted = self.workspace.delete(path, expected, self.writer(key));
        deleted.map(|done| done.map(|_| ()).map_err(|error| refused(path, error))).boxed()
    }

    fn made<'a>(
        &'a self,
        path: &'a FilePath,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<u64>, FilesError>> {
        self.workspace.made(path, key).map(|made| made.map_err(|fault| unreadable(&fault))).boxed()
    }
}
