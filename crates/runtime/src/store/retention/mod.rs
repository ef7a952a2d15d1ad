//! Deleting runs, and sweeping the blobs that nothing refers to any more.
//!
//! # Deleting a run
//!
//! A client writes a *deletion record* ([`requests`]). A supervisor carries it out ([`removal`]), in this order, in which each
//! step can be repeated, so that whoever continues after a crash starts from the beginning:
//!
//! ```text
//! record "removing" ─▶ summary ─▶ late messages, orders ─▶ files ─▶ archive ─▶ record "removed"
//! ```
//!
//! From the first step on the run counts as deleted. A live run is refused: cancel it first. The record stays for
//! [`removal::RECORD_AGE`], so that readers learn that the run was deleted, and so that a submission which is repeated with its
//! idempotency key does not bring the run back. Then the record, the idempotency keys and the marker of the summary go too.
//!
//! # Sweeping blobs
//!
//! Blobs are shared: by content, by runs, and by files. No counter of references is kept. A *sweep* marks every blob that
//! something refers to, and removes the others ([`mark`], [`sweep`]). What refers to blobs:
//!
//! | reference | place |
//! |---|---|
//! | the body of a large message | an envelope in a lane, a queue or the files |
//! | the list of documents of a submission, and the documents in it | a submission; the list is a blob itself |
//! | values of steps and results: model replies, tool results, conversations, forks | journals in lanes and archives, orders |
//! | images, web pages as sources, skills, files that programs wrote | steps of journals, as fields of their values |
//! | contents of files, of all versions, and of memories | the files |
//! | results and files of an earlier run (`--after`) | documents of the later run, which has copies |
//! | versions of capabilities | the registry |
//!
//! This list is for readers; the code does not depend on it. All references are names in text form, so the mark takes every
//! sequence of 64 hexadecimal digits that names a stored blob as a reference to it, in every message of every stream, in
//! archives, and in referenced blobs themselves. A new kind of reference needs no code here; a text that looks like a name
//! keeps a blob for longer.
//!
//! # Races
//!
//! A blob is stored before a message refers to it, and a stored blob may be used again at any time. Four rules keep a sweep
//! from removing such a blob:
//!
//! 1. *Age.* Only blobs whose last description is older than the grace period when the mark begins are removed. Storing a blob again
//!    adds a description, unless it is younger than `BLOB_RENEWAL_AGE`, which is far below the grace period. So at that time
//!    whoever stored the blob has had at least 50 minutes to append the message that refers to it, and the mark finds it.
//! 2. *Second check.* After the mark, everything that was appended since its beginning is read too, which includes runs that moved
//!    from a lane to the archive meanwhile, and everything in blobs that are new.
//! 3. *Fence.* The first step of a removal is a description that says "deleted", appended only if no description was added
//!    since the mark. Storing a blob again appends a description under the same condition, so one of both fails and looks again.
//! 4. *Hold.* While a backup is taken, nothing is removed ([`hold`]).
//!
//! A sweep that dies has removed some blobs completely, and at most some partly, which the next sweep completes.
//!
//! # Invariants
//!
//! - I170: If processes die while runs are deleted and blobs are swept, the other runs keep their results, files and blobs, also
//!   those that are stored again meanwhile; in the end nothing of the deleted runs is left.
//!   (`crates/runtime/tests/retention.rs::everything_of_remaining_runs_is_kept_and_nothing_else`)
//! - I171: A live run is never deleted, and nothing is while a backup is taken.
//!   (`crates/runtime/tests/retention.rs::live_runs_are_refused_and_deletions_are_idempotent`)

mod hold;
mod mark;
mod objects;
mod removal;
mod requests;
mod sweep;

pub use hold::RetentionHold;
pub use mark::forecast_prune;
pub use removal::{RECORD_AGE, expire_records, remove_requested_run};
pub use requests::{
    DeletionError, DeletionFeed, DeletionRequest, list_deletions, list_rules, read_deletion,
    read_sweep_record, read_sweep_settings, remove_rule, request_deletion, request_sweep, select_runs,
    set_rule, set_sweep_settings, wait_for_deletion, was_sweep_requested_since, write_sweep_record,
};
pub use sweep::{SweepOptions, sweep_blobs};
