//! One agent's work on one task: the [`Machine`] decides what comes next and does nothing itself, [`drive`] does
//! what it says, and the [`Journal`] remembers what was done so that it is never done twice.

mod answer;
mod drive;
mod journal;
mod machine;

pub use answer::{Answer, PlainText};
pub use drive::{DriveError, drive};
pub use journal::{Journal, JournalError, MemoryJournal, Step as JournalStep};
pub use machine::{Brief, Ended, Invocation, Limits, Machine, OutOfStep, Outcome, Step, Stop};
