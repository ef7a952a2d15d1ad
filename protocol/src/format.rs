//! The version of everything that Millrace stores or sends. It is in the settings of a cluster, the envelope of each message and
//! the manifest of a backup, and a program refuses all others before it writes anything. A change of a stored format is
//! additive (a field with a default that older programs may ignore), or increments [`FORMAT`].
//!
//! # Invariants
//!
//! - I61: Stores of this format are read, and their runs complete; a store of an older release is refused, and nothing of it is changed.
//!   (`tests/tests/stored_format.rs::stores_of_this_format_fold_to_the_same_state_and_their_runs_complete`,
//!   `tests/tests/stored_format.rs::commands_refuse_a_store_of_0_4_and_change_nothing`,
//!   `tests/tests/stored_format.rs::programs_refuse_to_join_a_cluster_of_0_4_and_change_nothing`)

/// The format that this program reads and writes. Formats 1 and 2 are those of the releases before 0.5.
pub const FORMAT: u16 = 3;
/// The first format of release 0.5.
const FIRST: u16 = 3;

/// The format of something that this program does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OtherFormat {
    /// A release before 0.5 wrote it.
    #[error(
        "was written by a release before 0.5 (format {0}; this release has format {format}), and release 0.4.x can finish its runs",
        format = FORMAT
    )]
    Before05(u16),
    /// A later release wrote it.
    #[error(
        "was written by a newer release (format {0}; this release has format {format}); use that release",
        format = FORMAT
    )]
    Newer(u16),
}

/// Checks the format of something that is read.
///
/// # Errors
/// This program does not read it.
pub fn check_format(found: u16) -> Result<(), OtherFormat> {
    match found {
        FORMAT => Ok(()),
        ..FIRST => Err(OtherFormat::Before05(found)),
        _ => Err(OtherFormat::Newer(found)),
    }
}
