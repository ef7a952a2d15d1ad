//! Children: tasks that an attempt at another task delegates. A child is a task of the plan with a parent; it ends with its
//! parent's attempt at the latest, and its budget comes out of its parent's reservation.

use std::fmt;

use millrace_api_form::{ApiForm, Named};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{MAX_NAME, TaskId};
use crate::plan::TaskSpec;
use crate::result::{ErrorKind, ExceededLimit, Usage};

/// The largest depth of a child: a task of the plan has depth 0, its children have depth 1.
pub const MAX_CHILD_DEPTH: u32 = 3;
/// The largest number of children of one attempt.
pub const MAX_CHILDREN: u32 = 32;
/// The maximum length of a message to a child, in bytes.
pub const MAX_CHILD_MESSAGE: usize = 4_000;

/// The attempt that delegated a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ParentTask {
    /// The task.
    pub task: TaskId,
    /// The attempt at it.
    pub attempt: u32,
    /// The depth of the child, from 1. The rules set it.
    pub depth: u32,
}

impl ParentTask {
    /// The parent of children of this attempt. The rules set their depth.
    #[must_use]
    pub fn of_attempt(task: TaskId, attempt: u32) -> Self {
        Self { task, attempt, depth: 0 }
    }
}

/// Returns the id of a child: the same for the same parent, attempt and `call`, the place of the call in the attempt. An id
/// that would be too long is shortened and ends with a digest of the whole.
#[must_use]
pub fn child_id(parent: &TaskId, attempt: u32, call: &str) -> TaskId {
    let whole = format!("{parent}-{attempt}-{call}");
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
    let id = if whole.len() <= MAX_NAME && whole.chars().all(is_allowed) {
        whole
    } else {
        // FNV-1a, 64 bit. Ids of one plan must differ; nobody gains anything by two that do not.
        let hash = whole.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let head: String = parent.as_str().chars().take(MAX_NAME - 17).collect();
        format!("{head}-{hash:016x}")
    };
    TaskId::new(id).expect("it begins with a task's id, and has its letters")
}

/// The changes that a running attempt makes to its children, without waiting for them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delegation {
    /// The children to add.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<TaskSpec>,
    /// The children to cancel, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cancels: Vec<(TaskId, String)>,
    /// Instructions for the next attempts of children.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<(TaskId, String)>,
}

impl Delegation {
    /// `true` if it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.children.is_empty() && self.cancels.is_empty() && self.messages.is_empty()
    }
}

/// A delegated task that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ApiForm)]
pub struct EndedTask {
    pub task: TaskId,
    /// `completed`, `failed`, `timed_out`, `cancelled` or `refused`.
    #[api(form(&'static str), value(end.name()))]
    pub end: TaskEnd,
    /// Its usage, with that of the tasks that it delegated.
    #[api(before(#[doc = "Its summary, or the reason for its end."] text: &'a str = end.text()))]
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
}

/// The end of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Named)]
pub enum TaskEnd {
    /// Its result is accepted.
    Completed {
        /// The result in a sentence.
        summary: String,
    },
    /// It failed for good.
    Failed {
        /// The kind of its last error; `None` if a review or its budget ended it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kind: Option<ErrorKind>,
        /// The reason.
        message: String,
        /// The limit that it reached, if it was one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<ExceededLimit>,
        /// The output of its last attempt until the error.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        produced: Option<String>,
    },
    /// Its last attempt timed out.
    TimedOut {
        /// The clock that ran out.
        message: String,
    },
    /// It was cancelled.
    Cancelled {
        /// The reason.
        reason: String,
    },
    /// It was never added to the plan.
    Refused {
        /// The reason.
        reason: String,
    },
}

impl TaskEnd {
    /// The summary of the result, or the reason why there is none.
    pub fn text(&self) -> &str {
        match self {
            Self::Completed { summary } => summary,
            Self::Failed { message, .. } | Self::TimedOut { message } => message,
            Self::Cancelled { reason } | Self::Refused { reason } => reason,
        }
    }
}

/// `a-1-0-0 completed`.
impl fmt::Display for EndedTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.task, self.end.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_of_a_child_is_deterministic_and_short() {
        let parent = TaskId::new("write").unwrap();
        assert_eq!(child_id(&parent, 2, "3-0").as_str(), "write-2-3-0");
        let long = TaskId::new("p".repeat(MAX_NAME)).unwrap();
        let (first, second) = (child_id(&long, 1, "0-0"), child_id(&long, 1, "0-1"));
        assert_eq!(first.as_str().len(), MAX_NAME);
        assert_ne!(first, second);
        assert_eq!(first, child_id(&long, 1, "0-0"));
        assert_ne!(child_id(&parent, 1, "a b"), child_id(&parent, 1, "a c"), "letters that ids do not allow");
    }
}
