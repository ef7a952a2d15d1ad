//! The outcomes of commands.

use millrace_protocol::ids::{RunId, WebhookId};
use millrace_protocol::plan::Event;
use millrace_protocol::token::{ScopeSet, StoredToken, TokenId, TokenText};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{EventJson, Time};

/// The outcome of a command other than the objects it lists.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CommandOutcome<'a> {
    /// A run was submitted.
    RunSubmitted {
        /// The run.
        run: &'a RunId,
    },
    /// A supervisor has decided on a command for a run.
    CommandApplied {
        /// The run.
        run: &'a RunId,
        /// The changes, for a person.
        summary: String,
        /// The events.
        events: Vec<EventJson<'a>>,
    },
    /// A local cluster is running.
    ClusterStarted {
        /// The address of its NATS server.
        url: &'a str,
        /// Its data folder.
        data: &'a str,
        /// The process that keeps it.
        pid: u32,
    },
    /// A local cluster was stopped.
    ClusterStopped {
        /// Its data folder.
        data: &'a str,
        /// `false` if none was running.
        was_running: bool,
    },
    /// A rate limit was set.
    LimitSet {
        /// The model or provider.
        name: &'a str,
        /// Requests per minute; `null` is unlimited.
        requests: Option<u64>,
        /// Tokens per minute; `null` is unlimited.
        tokens: Option<u64>,
    },
    /// A rate limit was removed.
    LimitCleared {
        /// The model or provider.
        name: &'a str,
    },
    /// The caps on the number of runs were set.
    RunCapsSet {
        /// The maximum number of running runs; `null` is unlimited.
        max_running_runs: Option<u32>,
        /// The maximum number of waiting runs; `null` is unlimited.
        max_waiting_runs: Option<u32>,
    },
    /// A token of the HTTP API was created.
    TokenCreated {
        /// Its id.
        id: &'a TokenId,
        /// The name of its holder.
        name: &'a str,
        /// The operations that it allows.
        scopes: &'a ScopeSet,
        /// When it expires.
        #[serde(skip_serializing_if = "Option::is_none")]
        expires_at: Option<Time>,
        /// The token. It can't be read again.
        token: String,
    },
    /// A token of the HTTP API was revoked.
    TokenRevoked {
        /// Its id.
        id: &'a TokenId,
        /// The name of its holder.
        name: &'a str,
    },
    /// A webhook was deleted.
    WebhookDeleted {
        /// Its id.
        id: &'a WebhookId,
        /// The URL of its receiver.
        url: &'a str,
    },
    /// A retention rule was set.
    RetentionRuleSet {
        /// Its name.
        name: &'a str,
    },
    /// A retention rule was removed.
    RetentionRuleRemoved {
        /// Its name.
        name: &'a str,
    },
    /// The time for which unreferenced blobs stay was changed.
    BlobGraceSet {
        /// The time.
        blob_grace_ms: u64,
    },
    /// A supervisor sweeps blobs as soon as it can.
    SweepRequested,
    /// Files of a run were written to the disk.
    FilesWritten {
        /// The file or folder.
        path: String,
        /// The number of files.
        files: u64,
        /// Their size in bytes.
        bytes: u64,
    },
    /// A memory was removed.
    MemoryRemoved {
        /// Its path.
        path: &'a str,
        /// The version of the removal.
        version: u64,
    },
    /// The configuration of NATS servers was written.
    NatsConfigWritten {
        /// The folder.
        folder: String,
        /// The changes of its files, in order.
        changes: Vec<FileChangeJson<'a>>,
        /// Notes for a person.
        notes: Vec<String>,
        /// The next steps, for a person.
        next: Vec<String>,
    },
}

/// A change of a file.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FileChangeJson<'a> {
    /// The path in the folder.
    pub file: &'a str,
    /// The kind of the change.
    pub change: FileChangeName,
    /// The reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'a str>,
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileChangeName {
    /// The file is new.
    New,
    /// The file was changed.
    Changed,
    /// The file was removed.
    Removed,
}

impl<'a> CommandOutcome<'a> {
    /// Returns the outcome of the creation of a token, with its text.
    #[must_use]
    pub fn token_created(text: &TokenText, stored: &'a StoredToken) -> Self {
        let StoredToken { id, name, scopes, expires, .. } = stored;
        Self::TokenCreated { id, name, scopes, expires_at: expires.map(Time::from), token: text.reveal() }
    }

    /// Returns the outcome of a command for a run.
    pub fn applied(run: &'a RunId, summary: String, events: &'a [Event]) -> Self {
        Self::CommandApplied { run, summary, events: events.iter().map(EventJson::from).collect() }
    }
}
