//! An agent of the Agent Client Protocol (ACP) for editors: a session is a session of the cluster, a prompt is a run of it. The runs
//! belong to the cluster. This process holds nothing that can't be read again: if it is killed, the next one loads the
//! session from the log and continues to follow its runs.
//!
//! | module | contents |
//! |---|---|
//! | `agent` | answers the editor's requests |
//! | `session` | a session of the editor: its prompts, their runs, cancellation |
//! | `follow` | follows a run: sends its updates, asks its questions, delivers its files |
//! | `updates` | decisions and journals of a run as updates for the editor |
//! | `questions` | questions of a run as permission requests |
//! | `prompt` | prompts as an objective with documents |
//! | `files` | files that a run delivers, written through the editor |
//! | `editor` | the connection to the editor, for one session |
//!
//! # Invariants
//!
//! - I342: A run of an editor's session outlives the process that the editor has started: the next one loads the session, asks the
//!   open questions again and reports the end of the same run. No model call is repeated.
//!   (`tests/tests/acp.rs::killed_agent_loads_its_session_and_continues_the_run`)
//! - I343: A file is written to the editor's folder only after its permission, and never outside of this folder.
//!   (`tests/tests/acp.rs::killed_agent_loads_its_session_and_continues_the_run`,
//!   `cli/src/acp/files.rs::targets_stay_below_the_folder_of_the_session`)

mod agent;
mod editor;
mod files;
mod follow;
mod prompt;
mod questions;
mod session;
mod updates;

pub use agent::{AgentSettings, ClusterChoice, serve_editor};
pub use session::RunDefaults;
