//! One agent's work on one task: the [`Machine`] decides what comes next and does nothing itself, the [`Driver`] does
//! what it says, and the [`Journal`] remembers what was done so that it is never done twice.

mod allowance;
mod answer;
mod calls;
mod compact;
mod drive;
mod ended;
mod journal;
mod large;
mod limits;
mod machine;
mod name;
mod pulse;
mod record;
mod scratch;
mod spent;

pub use answer::{Answer, Data, PlainText};
pub use drive::{Check, DriveError, Driver};
pub use ended::{Ended, Failure, Outcome, Stop};
pub use journal::{Journal, JournalError, MemoryJournal, PULSE, Step as JournalStep};
pub use large::MAX_RESULT;
pub use limits::{Dollars, Limits};
pub use machine::{Brief, Invocation, MAX_CALLS_AT_ONCE, MAX_COMPACTIONS, Machine, OutOfStep, Step};
pub use name::AttemptName;
pub use record::Returned;
pub use spent::Spent;
