//! The JSON of Millrace: the types that commands print with `--json` and that the gateway returns. `docs/json.md` states the
//! rules and the stability of this dialect. Pure, except that [`journal`] reads the values that journals refer to.
//!
//! Every object has a `type`. Times are RFC 3339 in UTC, durations are milliseconds in
//! fields that end in `_ms`, counts have names, and names are in snake_case. A type here is what is printed and what
//! the schemas describe; nothing builds this JSON by hand.
//!
//! | file | objects |
//! |---|---|
//! | `question` | questions to persons, their answers, and other waits |
//! | `run`, `run_state`, `task` | a run: in a list, and completely |
//! | `run_log` | events, and decisions with the messages that they answer |
//! | `timeline` | what each attempt did, from when to when |
//! | `session` | sessions and their runs |
//! | `spend` | the usage of models and tools, of one run and of many |
//! | `cluster` | processes, capabilities, lanes, limits, files, backups |
//! | `check` | the checks of an environment and of a cluster |
//! | `command` | the outcome of a command |
//! | `retention` | rules of retention, sweeps, deletions |
//! | `answer` | the relation of a deliverable to its question |
//! | `gateway` | tokens, administrative actions, webhooks and deliveries |
//! | `history` | the state of a run with what its state does not keep |
//! | `journal` | entries of journals as activities, of which the other views are made; what agents did |
//! | `changes`, `wording` | texts that several views share |

mod answer;
pub mod changes;
mod check;
mod cluster;
mod command;
mod gateway;
pub mod history;
pub mod journal;
mod question;
mod queue_wait;
mod retention;
mod run;
mod run_log;
mod run_state;
mod session;
mod spend;
mod task;
mod timeline;
pub mod wording;

use serde::Serialize;
use serde_json::Value;

pub use answer::*;
pub use check::*;
pub use cluster::*;
pub use command::*;
pub use gateway::*;
pub use journal::{EntryLine, PlannerTranscript, TaskTranscript};
pub use millrace_protocol::form::*;
pub use millrace_protocol::plan::EventJson;
pub use millrace_protocol::wait::{ProviderWaitJson, WaitEndJson};
pub use question::*;
pub use queue_wait::{
    describe_wait_of_plan, describe_wait_of_summary, waiting_work_of_plan, waiting_work_of_summary,
};
pub use retention::*;
pub use run::*;
pub use run_log::*;
pub use run_state::*;
pub use session::*;
pub use spend::*;
pub use task::*;
pub use timeline::*;

/// Converts a value to JSON. Text from outside is made safe when it is printed.
pub fn to_value(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("the types of the dialect can be serialized")
}

/// Returns milliseconds that are not negative.
pub fn milliseconds(duration: jiff::SignedDuration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or_default()
}
