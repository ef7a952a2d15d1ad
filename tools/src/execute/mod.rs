//! `execute`: one command of a shell, confined as far as the kernel allows. Off unless a capability turns it on.
//!
//! No unsafe code runs between fork and exec: this program, or another that calls [`launcher`] first of all in `main`,
//! is started once more, confines itself, and starts the shell.
//!
//! ```text
//! tool ── socket: lifeline and reports; pipe: output ── launcher, outside: a session, namespaces
//!                                                        └─ launcher, inside: pid 1 of its namespace, its own
//!                                                           root, limits, reaps
//!                                                           └─ /bin/sh -c, under landlock
//! ```
//!
//! When the tool goes, however it goes, the socket closes; the inner launcher then ends, and the kernel ends all that
//! the command started. Without namespaces there is one launcher, to which every process that is left alone comes back
//! (it is their reaper), and it ends them one by one.
//!
//! What keeps what: *landlock* and the root of its own the files, *namespaces* processes and network, *landlock*
//! (Linux 6.12) signals, *rlimits* the sizes. [`Settings::require`] names what there must be; without it no command
//! runs.

mod output;
mod program;
mod settings;
mod tool;

#[cfg(target_os = "linux")]
mod fence;
#[cfg(target_os = "linux")]
mod inside;
#[cfg(target_os = "linux")]
mod root;

mod launcher;

pub use launcher::{Confinement, Launcher, Network, launcher};
pub use output::MAX_OUTPUT;
pub use program::Ended;
pub use settings::{Confined, DEFAULT_TIMEOUT, Limits, MAX_TIMEOUT, Settings};
pub use tool::{Execute, OpenError};
