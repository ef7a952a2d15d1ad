//! The resources that a host provides to an agent for one order (files, tools, budget), and the failures of a session.

use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::plan::{DEFAULT_PROVIDER_TIMEOUT, ResourceAmounts, TaskSpec};
use millrace_protocol::result::{ErrorKind, TaskError};
use millrace_protocol::wait::{ProviderWait, Wait};

use crate::files::Files;
use crate::hooks::Hook;
use crate::model::DeltaListener;
use crate::skills::Skill;
use crate::sources::{OrderInputError, OrderInputs};
use crate::tool::Tool;
use crate::turn::{AgentBrief, DriveError, Host, RecordedBeginning, WorkFailure, read_recorded_beginning};

/// A file beside the capability file, as read by the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryFile {
    /// Its place, for people.
    pub place: String,
    pub text: String,
}

pub struct SessionEnvironment<'a> {
    /// Records the agent's steps.
    pub host: &'a mut dyn Host,
    /// Reads results, documents, the plan and the registry.
    pub sources: Arc<dyn OrderInputs>,
    /// The files of the run; `None` if it has no workspace.
    pub files: Option<Arc<dyn Files>>,
    /// The memories of the account; `None` if there are none.
    pub memories: Option<Arc<dyn Files>>,
    /// The existing memory files beside the capability file.
    pub memory_files: Vec<MemoryFile>,
    /// The skills of the capability that this worker has loaded.
    pub skills: Vec<Arc<Skill>>,
    /// Receives the model's output as it is generated.
    pub observer: Arc<dyn DeltaListener>,
    /// Tools in addition to those of this crate.
    pub tools: Vec<Arc<dyn Tool>>,
    /// The hooks that see the agent's calls.
    pub hooks: Vec<Arc<dyn Hook>>,
    /// The part of the run's budget that is reserved for this order. It applies in addition to the capability's limits.
    pub allowance: ResourceAmounts,
    /// How long to wait for a model's provider that does not answer.
    pub provider_timeout: Duration,
}

impl<'a> SessionEnvironment<'a> {
    /// Creates an environment without files, extra tools, observer or reservation.
    pub fn new(sources: Arc<dyn OrderInputs>, host: &'a mut dyn Host) -> Self {
        Self {
            host,
            sources,
            files: None,
            memories: None,
            memory_files: Vec::new(),
            skills: Vec::new(),
            observer: Arc::new(()),
            tools: Vec::new(),
            hooks: Vec::new(),
            allowance: ResourceAmounts::default(),
            provider_timeout: DEFAULT_PROVIDER_TIMEOUT,
        }
    }
}

/// Replaces the prompt of a brief by the recorded one, so that a resumed conversation is the one that began.
pub(super) fn restore_prompt(brief: AgentBrief, beginning: RecordedBeginning) -> AgentBrief {
    match beginning.prompt {
        Some((system, task)) => AgentBrief { system, task, ..brief },
        None => brief,
    }
}

/// Returns the beginning of the conversation that the journal's next step begins; `None` if it has not begun.
pub(super) async fn read_beginning(host: &mut dyn Host) -> Result<Option<RecordedBeginning>, SessionError> {
    read_recorded_beginning(host).await.map_err(host_error)
}

/// Converts an error of the host.
pub(super) fn host_error(error: TaskError) -> SessionError {
    TaskError::new(ErrorKind::Other, format!("cannot use the journal: {}", error.message)).into()
}

/// A failure of a session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The work failed.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// An input can't be read.
    #[error(transparent)]
    Source(#[from] OrderInputError),
    /// The reservation does not pay for the first request, which needs these amounts. The attempt can continue with more.
    #[error("the first request needs {0}, more than was reserved")]
    ReservationTooSmall(ResourceAmounts),
    /// The model's provider did not answer for too long. The attempt can continue later.
    #[error("the provider of {} does not answer: {}", .0.model, .0.error)]
    ProviderAway(ProviderWait),
    /// The attempt waits for something outside. It can continue when all of these waits have ended. The tasks are children
    /// that the waits are for.
    #[error("{} calls wait for something outside", .0.len())]
    Parked(Vec<Wait>, Vec<TaskSpec>),
}

impl From<WorkFailure> for SessionError {
    /// An unavailable tool may be available again soon, so the attempt and its journal stay and can be resumed.
    fn from(failure: WorkFailure) -> Self {
        match failure.error.as_ref() {
            DriveError::ProviderAway(wait) => Self::ProviderAway(wait.clone()),
            DriveError::ReservationTooSmall(needs) => Self::ReservationTooSmall(*needs),
            DriveError::Parked(waits, children) => Self::Parked(waits.clone(), children.clone()),
            DriveError::Tool { .. } => Self::Source(OrderInputError::Unavailable(failure.error.to_string())),
            DriveError::Model(_)
            | DriveError::UncountedCost { .. }
            | DriveError::Host(_)
            | DriveError::Unreadable { .. }
            | DriveError::OutOfStep(_) => Self::Task(failure.into()),
        }
    }
}

/// An order that the agent can't do.
pub(super) fn invalid_order_error(why: &str) -> TaskError {
    TaskError::new(ErrorKind::InvalidTask, format!("an agent can't do this order: {why}"))
}
