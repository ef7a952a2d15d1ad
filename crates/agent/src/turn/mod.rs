//! One agent's work on one task: the [`Machine`] decides the next step and performs no I/O, the loop in `drive` carries the
//! step out of a [`Conversation`], and the [`Host`] records each completed step so that it is never repeated.

mod answer;
mod calls;
mod check;
mod compact;
mod context;
mod conversation;
mod drive;
mod file_changes;
mod fork;
mod host;
mod limits;
mod machine;
mod outage;
mod outcome;
mod read_lines;
pub(crate) mod record;
mod scratch;

pub(crate) use answer::parse_json_answer;
pub use answer::{Answer, JsonAnswer, PlainText};
pub use calls::MAX_RESULT;
pub use check::AnswerCheck;
pub use context::ContextSettings;
pub use conversation::AttemptName;
pub use conversation::{ContinuedConversation, Conversation};
pub(crate) use drive::{CONVERSATION_STEP, select_affordable};
pub use file_changes::{ArtifactChange, FileChangesError, RecordedChanges, WrittenChanges};
pub use fork::{ForkedConversation, format_fork_task};
pub use host::{Host, JournalStep, KEEPALIVE, MemoryHost};
pub(crate) use host::{RecordedBeginning, read_recorded_beginning};
pub use limits::{Dollars, Limits};
pub use machine::{
    AgentBrief, MAX_CALLS_AT_ONCE, MAX_COMPACTIONS, Machine, MachineStep, UnexpectedInput, ValidatedToolCall,
};
pub use outcome::DriveError;
pub use outcome::UsageTotals;
pub use outcome::{AnsweredWork, StopReason, WorkFailure, WorkOutcome, WorkSummary};
pub(crate) use outcome::{describe_uncounted_cost, encode_step};
pub(crate) use read_lines::ReadLines;
pub use record::ToolCallRecord;
pub(crate) use record::{InheritedState, to_millis};
pub(crate) use scratch::{collect_recorded_notes, format_notes};
