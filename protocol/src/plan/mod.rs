//! The plan of a run: its rules, and nothing else. No I/O, no clock, no randomness.
//!
//! ```text
//! decide(&Plan, &Input, now) -> Result<Vec<Event>, Refusal>   all rules
//! apply(&mut Plan, &Event, at)                                no rules: the fold
//! due(&Plan, Scope) -> Vec<Effect>                            what the world still owes this plan
//! overdue(&Plan, now, heard) -> Vec<Input>                    what time alone has brought about
//! ```
//!
//! The moves of a task. Whatever is not here is refused.
//!
//! | from | to | on | when |
//! |---|---|---|---|
//! | (new) | ready, pending | a seed plan, a proposal | everything it depends on is accepted; or not yet |
//! | pending | ready | a dependency is accepted, or skipped | it was the last one open |
//! | pending, ready, rerun | errored | the registry | nobody offers its capability, or that does not take its parameters |
//! | errored | ready, pending | the registry | somebody offers it now, and it does |
//! | ready, rerun | running | a claim | of the current attempt |
//! | errored | running | a claim | its order is out while its capability is missing, and the claim says that somebody has it |
//! | running | running | a claim | another worker took the attempt over |
//! | running | completed | an outcome | a result, and no review asked for |
//! | running | needs_review | an outcome | a result, and a review asked for |
//! | running | errored | an outcome, a clock | an error, an empty result or a time-out, and attempts are left |
//! | running | failed | an outcome, a clock | the same, and none are left or another can't help |
//! | ready, rerun | errored, failed | the queue-wait clock | as above |
//! | errored | failed | the queue-wait clock | nobody offers its capability, or takes its parameters |
//! | errored | ready | the clock | its backoff is over |
//! | needs_review | completed | a verdict | it passed |
//! | needs_review | rerun | a verdict | it did not, and attempts are left |
//! | needs_review | failed | a verdict | it did not, and none are left |
//! | needs_review | failed | a review's error | three reviews came to nothing |
//! | ready, rerun, needs_review | failed | a reservation | the budget of its own or of its capability is used up |
//! | pending, errored | cancelled | a dependency failed or was cancelled | its policy is `cancel` |
//! | any open state | cancelled | a command, a planner's edit | somebody cancels it or the run, or does without it |
//! | any open state | cancelled | the end of the run | the first failure ends it, or it winds down without the task |
//! | pending, rerun, errored | ready | an edit | as it is now, nothing that it depends on is open |
//! | ready, rerun, errored | pending | an edit | as it is now, something is |
//! | completed, failed, cancelled, errored | ready, pending | an edit, a run that is gone on with | it is wanted once more |
//! | ready, running, needs_review, rerun, completed, errored, cancelled | pending | the same | what it was built on, or lost with, is done again |
//!
//! `completed`, `failed` and `cancelled` are terminal: nothing but the last two rows leads out of them. `errored` is not
//! terminal. A run that winds down takes no more edits but cancellations; one that is paused takes all.

mod apply;
mod budget;
mod cluster;
mod decide;
mod draft;
mod due;
mod edit;
mod event;
mod graph;
mod recount;
mod refusal;
mod reserved;
mod spec;
mod state;

pub use apply::{apply, apply_decision};
pub use budget::{Amounts, Budget, DEFAULT_DEPTH, DEFAULT_STEPS, DEFAULT_TASKS, Dimension, WhenSpent};
pub use cluster::{Cluster, Offered};
pub use decide::{
    Fact, Finished, Input, MAX_IDLE_TURNS, MAX_PLANNING_ATTEMPTS, MAX_REVIEWS, MayBeMissing, Planned, decide,
};
pub use draft::Draft;
pub use due::{Effect, Overdue, RETIREMENT, Scope, Work, due, in_hand, is_owed, next_retry, overdue};
pub use edit::{Command, Control, Edit, MAX_TEXT, Patch};
pub use event::{Answer, Cause, Decision, Event};
pub use graph::check;
pub use refusal::{GraphError, Refusal};
pub use reserved::Reservations;
pub use spec::*;
pub use state::*;
