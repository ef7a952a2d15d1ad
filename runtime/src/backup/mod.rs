//! A copy of a cluster in a folder, taken while it runs, and putting it into an empty account. Nothing here starts or
//! stops a process, or knows what a plan is.
//!
//! What is copied is what can't be thrown away: the lanes, the archive, files, blobs, the settings, limits, known
//! capabilities, and the summaries of archived runs. Queues, leases, members, signs of life and the summaries of live
//! runs are not: whoever starts first on the restored cluster makes them anew, and asks the plans what is due.
//!
//! # What makes the copy whole
//!
//! Streams are copied as the server's own snapshots, which keep every sequence: plans, journals and orders name each
//! other by them. A snapshot is read block by block while writers go on, so that two things can happen to it:
//!
//! - It ends behind any message. A lane that ends anywhere is a lane whose supervisor died there, which everybody knows
//!   how to go on from.
//! - What is *removed* meanwhile may be gone from one block and there in another. Only one thing is ever removed: a run
//!   that is over, from its lane. It is in the archive by then, and its summary says so, in this order.
//!
//! Hence the order of copying, in which nothing can name something that was copied before it was there:
//!
//! ```text
//! lanes ─▶ summaries ─▶ archive ─▶ files ─▶ blobs ─▶ capabilities, limits
//! ```
//!
//! | a run that was, when its summary was copied | is restored from |
//! |---|---|
//! | marked as archived | the archive, which was copied later; what the lane's copy holds of it may be torn and is removed |
//! | not marked | its lane, from which nothing of it had been removed by then; what the archive's copy holds of it is from a later moment and is removed |
//!
//! Files are copied after the lanes, too, so that a lane never tells of a version that is not there. Versions that came
//! behind the moment of a live run's lane are removed when it is restored: the work that wrote them is done again, and
//! must not find them.
//!
//! Blobs and files are never removed from a cluster, and of the archive only what is written again. Where something was
//! removed while one of these was copied, it is copied again.
//!
//! # The folder
//!
//! ```text
//! manifest.json         what is there, with sizes and checksums, the settings, when it was taken, by which version
//! manifest.json.sha256  its own checksum
//! LANE_0.snapshot …     a snapshot of a stream, as the server makes it: a tar in S2
//! runs.jsonl …          the entries of a bucket, a line each
//! ```
//!
//! It appears under its name when all of it is on disk, and not before.

mod check;
mod folder;
mod leading;
mod manifest;
mod restore;
mod snapshot;
mod take;

use std::path::PathBuf;

use crate::Fault;

pub use check::Missing;
pub use folder::verify;
pub use manifest::{Content, Manifest, Part};
pub use restore::{Restored, Wish, restore};
pub use take::take;

/// Why a backup was not taken, is no good, or was not put back.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is something in the way.
    #[error("{} is there already; name a folder that is not", .folder.display())]
    Exists {
        /// Where.
        folder: PathBuf,
    },
    /// A file can't be written or read.
    #[error("{what} {}: {why}", .path.display())]
    File {
        /// What was being done, such as `writing`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        why: std::io::Error,
    },
    /// The folder holds something else.
    #[error("{} is no backup: {why}; name a folder that `millrace backup` has made", .folder.display())]
    Foreign {
        /// The folder.
        folder: PathBuf,
        /// What is missing or strange.
        why: String,
    },
    /// The folder comes from a newer program.
    #[error("the backup {} has format {found}, and this program reads {known}; use the version that took it, or a newer one", .folder.display())]
    Newer {
        /// The folder.
        folder: PathBuf,
        /// Its format.
        found: u32,
        /// The newest that is known.
        known: u32,
    },
    /// A file of the backup is not what it was.
    #[error("{} is damaged: {why}; nothing was restored: take another copy of this backup, or an older backup", .file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// How it differs.
        why: String,
    },
    /// The server did not hand a stream out, or did not take it.
    #[error("{what} stream {stream}: {why}")]
    Stream {
        /// `copying` or `restoring`.
        what: &'static str,
        /// The stream.
        stream: String,
        /// What went wrong.
        why: String,
    },
    /// The account has a cluster already.
    #[error(
        "the account at {url} is not empty: it has {what}; restore into an account of its own, another server, or an \
         empty data folder"
    )]
    Occupied {
        /// Where.
        url: String,
        /// What stands there.
        what: String,
    },
    /// Another restore is under way there, or was killed.
    #[error(
        "something was being restored into the account at {url} and is not finished; wait for it, or, if it was killed, \
         remove what it left with --again"
    )]
    Unfinished {
        /// Where.
        url: String,
    },
    /// Somebody asked for a stop.
    #[error("stopped: nothing is left of it")]
    Stopped,
    /// The server does not answer, or says no.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// What is being done, for whoever watches.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Such as `copying`.
    pub doing: &'static str,
    /// The stream, bucket or file.
    pub what: &'a str,
    /// How many bytes so far.
    pub bytes: u64,
    /// Whether this is all of it.
    pub is_done: bool,
}

/// Who is told of progress.
pub type Told<'a> = &'a (dyn Fn(Progress<'_>) + Send + Sync);
