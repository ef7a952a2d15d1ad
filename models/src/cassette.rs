//! Real traffic on a file: what is asked of a model and what comes of it, one JSON object a line, and a model that
//! plays such a file back. It owns the file's form and how requests are compared. A request holds no key, so that no
//! key comes into the file.

mod difference;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tracing::{error, warn};

use crate::model::{Delta, Model, ModelError, Reply, Request, Watch};
use difference::nearest;

/// One request and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Entry {
    /// The model that was asked.
    model: String,
    request: Request,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Reply(Reply),
    Error(ModelError),
}

/// A cassette that can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{file} is no cassette: {mistake}")]
pub struct CassetteError {
    /// The file.
    pub file: String,
    /// What is wrong, and where.
    pub mistake: String,
}

/// A model that is listened to.
pub struct Recorded {
    inner: Arc<dyn Model>,
    file: Arc<PathBuf>,
}

impl Recorded {
    /// Keeps what is asked of `inner`, and what comes of it, at the end of a file. Several processes may share it.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn new(inner: Arc<dyn Model>, file: PathBuf) -> Result<Self, CassetteError> {
        let opened = OpenOptions::new().append(true).create(true).open(&file);
        opened.map_err(|error| CassetteError {
            file: file.display().to_string(),
            mistake: format!("it can't be written ({error})"),
        })?;
        Ok(Self { inner, file: Arc::new(file) })
    }

    async fn ask(&self, request: &Request, watch: &dyn Watch) -> Result<Reply, ModelError> {
        let outcome = self.inner.reply(request, watch).await;
        let entry = Entry {
            model: self.inner.name().to_owned(),
            request: request.clone(),
            outcome: outcome.clone().map_or_else(Outcome::Error, Outcome::Reply),
        };
        let file = self.file.clone();
        let written = tokio::task::spawn_blocking(move || {
            let line = serde_json::to_string(&entry).expect("requests and replies are JSON");
            append(&file, &line)
        });
        if let Ok(Err(fault)) = written.await {
            error!(file = %self.file.display(), %fault, "the request could not be recorded");
        }
        outcome
    }
}

impl Model for Recorded {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        watch: &'a dyn Watch,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        self.ask(request, watch).boxed()
    }
}

/// Appends a line to a file, whole, whoever else does the same.
pub(crate) fn append(file: &Path, line: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(file)?;
    file.lock()?;
    file.write_all(format!("{line}\n").as_bytes())?;
    file.unlock()
}

/// A model that answers what was recorded. Requests that are the same are answered in the order of the file, and the
/// last of them ever after.
#[derive(Debug)]
pub struct Replay {
    name: String,
    entries: Vec<Entry>,
    played: Mutex<Vec<bool>>,
}

impl Replay {
    /// Reads a cassette.
    ///
    /// # Errors
    /// The file can't be read or has a mistake in it. A last line that was cut off when its writer died is left out.
    pub fn load(path: &Path) -> Result<Self, CassetteError> {
        let wrong = |mistake: String| CassetteError { file: path.display().to_string(), mistake };
        let text =
            std::fs::read_to_string(path).map_err(|error| wrong(format!("it can't be read ({error})")))?;
        let mut entries = Vec::new();
        for (at, line) in text.split_inclusive('\n').enumerate() {
            match serde_json::from_str(line) {
                Ok(entry) => entries.push(entry),
                Err(_) if !line.ends_with('\n') => warn!(file = %path.display(), "the last line is cut off"),
                Err(error) => return Err(wrong(format!("line {}: {error}", at + 1))),
            }
        }
        let played = Mutex::new(vec![false; entries.len()]);
        Ok(Self { name: format!("replay:{}", path.display()), entries, played })
    }

    fn find(&self, request: &Request) -> Option<&Entry> {
        let mut played = self.played.lock().unwrap_or_else(PoisonError::into_inner);
        let same = || (0..self.entries.len()).filter(|at| self.entries[*at].request == *request);
        let at = same().find(|at| !played[*at]).or_else(|| same().last())?;
        played[at] = true;
        Some(&self.entries[at])
    }

    fn play(&self, request: &Request, watch: &dyn Watch) -> Result<Reply, ModelError> {
        match self.find(request).map(|entry| &entry.outcome) {
            Some(Outcome::Reply(reply)) => {
                if !reply.text.is_empty() {
                    watch.delta(Delta::Text(&reply.text));
                }
                reply.calls.iter().for_each(|call| watch.delta(Delta::Call(&call.name)));
                Ok(reply.clone())
            }
            Some(Outcome::Error(error)) => Err(error.clone()),
            None => {
                let near = nearest(self.entries.iter().map(|entry| &entry.request), request);
                let near = near.map_or_else(|| "it is empty".to_owned(), |near| near.to_string());
                Err(ModelError::BadRequest {
                    message: format!("{} holds no such request; {near}", self.name),
                })
            }
        }
    }
}

impl Model for Replay {
    fn name(&self) -> &str {
        &self.name
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        watch: &'a dyn Watch,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        futures::future::ready(self.play(request, watch)).boxed()
    }
}
