//! Pieces of work: what a worker can claim, the journal it writes, and the queue in which it waits.

use std::fmt;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::state::Plan;
use crate::ids::{Capability, TaskId};
use crate::subject::{CRITIC, PLANNER};

/// A piece of work that a worker can claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Work {
    /// An attempt at a task.
    Task {
        task: TaskId,
        /// The attempt, from 1.
        attempt: u32,
    },
    /// A review of an attempt's result.
    Review {
        task: TaskId,
        /// The attempt under review.
        attempt: u32,
        /// The number of the try at the review, from 1.
        review: u32,
    },
    /// An attempt at a turn of the planner.
    Planning {
        /// The turn, from 1.
        turn: u32,
        /// The attempt, from 1.
        attempt: u32,
    },
}

impl Work {
    /// The task that the work is for, if it is for one.
    pub fn task(&self) -> Option<&TaskId> {
        match self {
            Self::Task { task, .. } | Self::Review { task, .. } => Some(task),
            Self::Planning { .. } => None,
        }
    }

    pub fn kind(&self) -> WorkKind {
        match self {
            Self::Task { .. } => WorkKind::Task,
            Self::Review { .. } => WorkKind::Review,
            Self::Planning { .. } => WorkKind::Planning,
        }
    }

    /// The journal that the claimant writes.
    pub fn journal_key(&self) -> JournalKey {
        match self {
            Self::Task { task, attempt } => JournalKey::Task(task.clone(), *attempt),
            Self::Review { task, attempt, .. } => JournalKey::Review(task.clone(), *attempt),
            Self::Planning { turn, attempt } => JournalKey::Planning(*turn, *attempt),
        }
    }

    /// The queue in which the work waits; `capability` is that of its task.
    pub fn queue_name(&self, capability: &Capability) -> Capability {
        self.kind().queue_name(capability)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkKind {
    /// An attempt at a task.
    Task,
    /// A review of a result.
    Review,
    /// A turn of the planner.
    Planning,
}

impl WorkKind {
    /// The queue of all work of this kind; `None` if each capability has one.
    fn shared_queue_name(self) -> Option<Capability> {
        static SHARED: LazyLock<[Capability; 2]> =
            LazyLock::new(|| [CRITIC, PLANNER].map(|name| Capability::new(name).expect("it is letters")));
        let [critic, planner] = &*SHARED;
        match self {
            Self::Task => None,
            Self::Review => Some(critic.clone()),
            Self::Planning => Some(planner.clone()),
        }
    }

    fn queue_name(self, capability: &Capability) -> Capability {
        self.shared_queue_name().unwrap_or_else(|| capability.clone())
    }
}

/// `t`, `the review of t`, `planner turn 2`.
impl fmt::Display for JournalKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task(task, _) => task.fmt(f),
            Self::Review(task, _) => write!(f, "the review of {task}"),
            Self::Planning(turn, _) => write!(f, "planner turn {turn}"),
        }
    }
}

/// The key of a journal. All tries at the review of one result share a journal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum JournalKey {
    /// An attempt at a task.
    Task(TaskId, u32),
    /// The reviews of an attempt's result.
    Review(TaskId, u32),
    /// An attempt at a turn of the planner.
    Planning(u32, u32),
}

impl JournalKey {
    /// The task that the journal is about, if it is about one.
    pub fn task(&self) -> Option<&TaskId> {
        match self {
            Self::Task(task, _) | Self::Review(task, _) => Some(task),
            Self::Planning(..) => None,
        }
    }

    /// The number by which a user selects the journal: the attempt at a task, or the turn of the planner.
    pub fn number(&self) -> u32 {
        match self {
            Self::Task(_, attempt) | Self::Review(_, attempt) => *attempt,
            Self::Planning(turn, _) => *turn,
        }
    }

    /// The kind of work that writes the journal.
    pub fn kind(&self) -> WorkKind {
        match self {
            Self::Task(..) => WorkKind::Task,
            Self::Review(..) => WorkKind::Review,
            Self::Planning(..) => WorkKind::Planning,
        }
    }
}

impl Plan {
    /// The queue in which work waits, which is also the capability whose budget it counts against; `None` if the plan does
    /// not have its task.
    pub fn queue_of_work(&self, work: &Work) -> Option<Capability> {
        self.find_queue(work.kind(), work.task())
    }

    /// The queue in which the work of a journal waits; `None` if the plan does not have its task.
    pub fn queue_of_journal(&self, journal: &JournalKey) -> Option<Capability> {
        self.find_queue(journal.kind(), journal.task())
    }

    fn find_queue(&self, kind: WorkKind, task: Option<&TaskId>) -> Option<Capability> {
        match task {
            Some(task) => Some(kind.queue_name(&self.task(task)?.spec.capability)),
            None => kind.shared_queue_name(),
        }
    }
}
