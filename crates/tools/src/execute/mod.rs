//! The tool `execute`: runs a shell command, confined as far as the kernel supports. Disabled unless a capability enables
//! it.
//!
//! No unsafe code runs between fork and exec: this program, or another one whose `main` first calls [`launcher`], is
//! started again, confines itself, and starts the shell.
//!
//! ```text
//! tool ── socket: reports; pipe: output ── outer launcher: creates a session and namespaces
//!                                          └─ inner launcher: pid 1 of its namespace, own root file system,
//!                                             limits, reaps processes
//!                                             └─ /bin/sh -c, under landlock
//! ```
//!
//! When the tool ends for any reason, the socket is closed; then the inner launcher exits, and the kernel kills all
//! processes of the command. Without namespaces there is a single launcher; it is the subreaper of all orphaned
//! processes and kills them one by one.
//!
//! Landlock and the own root file system restrict access to files, namespaces to processes, landlock (Linux 6.12) to
//! signals, seccomp filters to the network and to kernel interfaces. Rlimits restrict each process; the launcher counts the
//! processes of a command and their memory, the tool the content of the working folder, and both add up over all commands
//! of this process. No command runs unless everything in [`ExecuteSettings::require`] is available, and none without
//! network access unless something restricts all of it.
//!
//! # Invariants
//!
//! - I33: No command leaves its folder or outlives its call, or has network access unless it is enabled; its processes together
//!   keep to limits that fit the worker's own; no path leaves its root.
//!   (`crates/tools/tests/execute.rs::no_escape_of_the_corpus_succeeds`,
//!   `crates/tools/tests/execute.rs::no_process_outlives_its_command`,
//!   `crates/agent/src/files/folder.rs::a_link_swapped_in_between_check_and_use_is_not_followed`,
//!   `crates/tools/tests/execute.rs::no_datagram_leaves_without_network_access`,
//!   `crates/tools/tests/execute.rs::sockets_and_kernel_interfaces_are_refused`,
//!   `crates/tools/tests/execute.rs::memory_of_all_processes_is_limited_together`,
//!   `crates/tools/tests/execute.rs::growth_of_the_working_folder_is_limited`,
//!   `crates/tools/tests/execute_shared.rs::default_limits_fit_the_control_group`)

mod host_limits;
mod run_program;
mod running_command;
mod settings;
mod tool;
mod usage;
mod workspace;

#[cfg(target_os = "linux")]
#[cfg(target_os = "linux")]
mod sandbox;
#[cfg(target_os = "linux")]
mod seccomp;
#[cfg(target_os = "linux")]
mod supervisor;

pub(crate) mod launch_message;
mod launcher;

pub use launch_message::{Confinement, NetworkAccess};
pub use launcher::{Launcher, launcher};
pub use run_program::ProgramOutcome;
pub use running_command::MAX_OUTPUT;
pub use settings::{CommandLimits, ConfinementKind, DEFAULT_TIMEOUT, ExecuteSettings, MAX_TIMEOUT};
pub use tool::{ExecuteError, ExecuteTool};
pub use workspace::WorkspaceExecuteTool;
