//! The journal of an agent's steps: the interface and the in-memory implementation; a worker keeps its journal on the
//! log. A journal is an ordered list of named values: on resume it is read from the front, and only steps that are not
//! in it are carried out.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use millrace_protocol::child::Delegation;
use millrace_protocol::provider::ProviderStatus;
use millrace_protocol::wait::{EndedWait, WaitEnd};
use millrace_protocol::wire::{BlobRef, InlineOrStoredBytes};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ContextSettings;
use super::record::{InheritedState, SentMessages};
use crate::files::ContentStream;
use crate::model::ModelAbility;
use crate::skills::SkillEntry;
use crate::state::StateRules;

/// The journal of one attempt.
pub trait Journal: Send {
    /// Returns the next recorded step, which must be one of `names`: its index among them, and its value. `None` once the
    /// recorded steps are used up. Each recorded step is returned once, in recorded order.
    ///
    /// # Errors
    /// [`JournalError::Diverged`] if the next recorded step has another name, [`JournalError::Failed`] if its value
    /// can't be fetched.
    fn read_recorded_step<'a>(
        &'a mut self,
        names: &'a [String],
    ) -> BoxFuture<'a, Result<Option<(usize, Value)>, JournalError>>;

    /// Returns the name and the value of the next recorded step and leaves it in place; `None` once the recorded steps are
    /// used up.
    fn peek_recorded_step(&mut self) -> BoxFuture<'_, Result<Option<(String, Value)>, JournalError>>;

    /// Appends a completed step. When this returns, the step is durable. Called only after [`Journal::read_recorded_step`] returned
    /// `None`.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if the step could not be stored: the log is unreachable, or another process took the
    /// attempt over.
    fn append_step<'a>(
        &'a mut self,
        name: &'a str,
        value: &'a Value,
    ) -> BoxFuture<'a, Result<(), JournalError>>;

    /// Writes a keepalive with a line for observers, if the journal has any. It is not a step.
    fn append_note<'a>(&'a mut self, text: &'a str) -> BoxFuture<'a, Result<(), JournalError>> {
        let _ = text;
        ready(Ok(())).boxed()
    }

    /// Reports a change in the wait for the model's provider, with a line for observers. It is not a step, and a keepalive.
    fn report_provider<'a>(
        &'a mut self,
        text: &'a str,
        status: &'a ProviderStatus,
    ) -> BoxFuture<'a, Result<(), JournalError>> {
        let _ = status;
        self.append_note(text)
    }

    /// Starts, cancels or instructs children of the attempt. It is not a step; appended twice, it has no further effect.
    ///
    /// # Errors
    /// As for [`Journal::append_step`]; or the journal is not that of an attempt at a task.
    fn append_delegation(&mut self, delegation: Delegation) -> BoxFuture<'_, Result<(), JournalError>> {
        drop(delegation);
        ready(Err(JournalError::Failed("only an attempt at a task can delegate".into()))).boxed()
    }

    /// Stores a value that a step or a delegated task refers to, and returns it or its address. It is not a step.
    fn store_value(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<InlineOrStoredBytes, JournalError>> {
        ready(Ok(InlineOrStoredBytes::Inline(bytes.into()))).boxed()
    }

    /// Loads a value that [`Journal::store_value`] has stored, on this machine or another.
    fn load_value<'a>(
        &'a mut self,
        stored: &'a InlineOrStoredBytes,
    ) -> BoxFuture<'a, Result<Vec<u8>, JournalError>> {
        ready(match stored {
            InlineOrStoredBytes::Inline(bytes) => Ok(bytes.to_vec()),
            InlineOrStoredBytes::Stored(blob) => {
                Err(JournalError::Failed(format!("this journal has no stored value {}", blob.sha256)))
            }
        })
        .boxed()
    }

    /// Stores bytes under their SHA-256, for later readers of the run. It is not a step. The default has no store.
    fn store_blob(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), JournalError>> {
        drop(bytes);
        ready(Ok(())).boxed()
    }

    /// Stores the content of a file, which may be larger than the memory. It is not a step. The default has no store.
    fn store_file(&mut self, file: Arc<File>) -> BoxFuture<'_, Result<BlobRef, JournalError>> {
        drop(file);
        ready(Err(JournalError::Failed("this journal stores no files".into()))).boxed()
    }

    /// Opens a value that [`Journal::store_file`] or [`Journal::store_value`] has stored, on this machine or another.
    fn open_stored<'a>(
        &'a mut self,
        blob: &'a BlobRef,
    ) -> BoxFuture<'a, Result<Box<dyn ContentStream>, JournalError>> {
        ready(Err(JournalError::Failed(format!("this journal has no stored value {}", blob.sha256)))).boxed()
    }

    /// Notes that the wait is interrupted by a request to the provider.
    fn interrupt_wait(&mut self) {}

    /// Returns the last report of the attempt about its provider since the last step, on this machine or another.
    fn provider_status(&self) -> Option<ProviderStatus> {
        None
    }

    /// Returns the end of the wait with this key, if the attempt was parked with it and it has ended.
    fn ended_wait(&self, key: &str) -> Option<WaitEnd> {
        let _ = key;
        None
    }

    /// The interval without writes after which a keepalive is due.
    fn keepalive_interval(&self) -> Duration {
        KEEPALIVE
    }
}

impl<J: Journal + ?Sized> Journal for &mut J {
    fn read_recorded_step<'a>(
        &'a mut self,
        names: &'a [String],
    ) -> BoxFuture<'a, Result<Option<(usize, Value)>, JournalError>> {
        (**self).read_recorded_step(names)
    }

    fn peek_recorded_step(&mut self) -> BoxFuture<'_, Result<Option<(String, Value)>, JournalError>> {
        (**self).peek_recorded_step()
    }

    fn append_step<'a>(
        &'a mut self,
        name: &'a str,
        value: &'a Value,
    ) -> BoxFuture<'a, Result<(), JournalError>> {
        (**self).append_step(name, value)
    }

    fn append_note<'a>(&'a mut self, text: &'a str) -> BoxFuture<'a, Result<(), JournalError>> {
        (**self).append_note(text)
    }

    fn report_provider<'a>(
        &'a mut self,
        text: &'a str,
        status: &'a ProviderStatus,
    ) -> BoxFuture<'a, Result<(), JournalError>> {
        (**self).report_provider(text, status)
    }

    fn append_delegation(&mut self, delegation: Delegation) -> BoxFuture<'_, Result<(), JournalError>> {
        (**self).append_delegation(delegation)
    }

    fn store_value(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<InlineOrStoredBytes, JournalError>> {
        (**self).store_value(bytes)
    }

    fn load_value<'a>(
        &'a mut self,
        stored: &'a InlineOrStoredBytes,
    ) -> BoxFuture<'a, Result<Vec<u8>, JournalError>> {
        (**self).load_value(stored)
    }

    fn store_blob(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), JournalError>> {
        (**self).store_blob(bytes)
    }

    fn store_file(&mut self, file: Arc<File>) -> BoxFuture<'_, Result<BlobRef, JournalError>> {
        (**self).store_file(file)
    }

    fn open_stored<'a>(
        &'a mut self,
        blob: &'a BlobRef,
    ) -> BoxFuture<'a, Result<Box<dyn ContentStream>, JournalError>> {
        (**self).open_stored(blob)
    }

    fn interrupt_wait(&mut self) {
        (**self).interrupt_wait();
    }

    fn provider_status(&self) -> Option<ProviderStatus> {
        (**self).provider_status()
    }

    fn ended_wait(&self, key: &str) -> Option<WaitEnd> {
        (**self).ended_wait(key)
    }

    fn keepalive_interval(&self) -> Duration {
        (**self).keepalive_interval()
    }
}

/// The beginning of a conversation, as recorded with its first request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RecordedBeginning {
    /// The ability of the model that the prompts were written for.
    pub ability: ModelAbility,
    /// The system prompt and the task; `None` in journals that do not hold them as a whole.
    pub prompt: Option<(String, String)>,
    /// The rules for the agent's state, if it has one.
    pub state: Option<StateRules>,
    /// The state that the attempt took over from earlier ones.
    pub inherited: InheritedState,
    /// The settings of the conversation's context; `None` if it is not kept within a window.
    pub context: Option<ContextSettings>,
    /// The skills that the agent can read.
    pub skills: Vec<SkillEntry>,
}

impl RecordedBeginning {
    /// The beginning of a new conversation.
    pub fn new(ability: ModelAbility, state: Option<StateRules>, context: Option<ContextSettings>) -> Self {
        Self {
            ability,
            prompt: None,
            state,
            inherited: InheritedState::default(),
            context,
            skills: Vec::new(),
        }
    }
}

/// Returns the beginning of the conversation that the journal's next step begins; `None` if it has not begun.
pub(crate) async fn read_recorded_beginning(
    journal: &mut dyn Journal,
) -> Result<Option<RecordedBeginning>, JournalError> {
    let Some((_, value)) = journal.peek_recorded_step().await? else { return Ok(None) };
    let ability = value.get("ability").map(ModelAbility::deserialize).transpose().map_err(|mistake| {
        JournalError::Failed(format!("the recorded ability of the model can't be read: {mistake}"))
    })?;
    let sent = value.get("sent").and_then(|sent| SentMessages::deserialize(sent).ok());
    let prompt = sent.and_then(SentMessages::into_whole_prompt);
    let state = value.get("state").map(StateRules::deserialize).transpose().map_err(|mistake| {
        JournalError::Failed(format!("the recorded rules for the agent's state can't be read: {mistake}"))
    })?;
    let inherited = value.get("inherited").and_then(|state| InheritedState::deserialize(state).ok());
    let skills =
        value.get("skills").map(Vec::<SkillEntry>::deserialize).transpose().map_err(|mistake| {
            JournalError::Failed(format!("the recorded skills can't be read: {mistake}"))
        })?;
    Ok(Some(RecordedBeginning {
        ability: ability.unwrap_or_default(),
        prompt,
        state,
        inherited: inherited.unwrap_or_default(),
        context: value.get("context").and_then(|context| ContextSettings::deserialize(context).ok()),
        skills: skills.unwrap_or_default(),
    }))
}

/// The default interval between keepalives.
pub const KEEPALIVE: Duration = Duration::from_secs(60);

/// The reason that a journal can't continue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// The work requests another step than the journal holds: the program or its input changed.
    #[error(
        "the journal diverged at step {position}: it holds {recorded:?}, the work requests {requested:?}"
    )]
    Diverged {
        /// The place in the journal, from 0.
        position: usize,
        /// The step's name in the journal.
        recorded: String,
        /// The names of the requested steps.
        requested: String,
    },
    /// The journal can't be read or written.
    #[error("cannot use the journal: {0}")]
    Failed(String),
}

/// One recorded step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JournalStep {
    pub name: String,
    /// Its outcome.
    pub value: Value,
}

/// A journal in memory, for tests and for work that is never resumed.
#[derive(Debug, Clone, Default)]
pub struct MemoryJournal {
    steps: Vec<JournalStep>,
    position: usize,
    ended_waits: Vec<EndedWait>,
    delegations: Vec<Delegation>,
    provider: Option<ProviderStatus>,
}

impl MemoryJournal {
    /// A journal that already holds these steps.
    #[must_use]
    pub fn with_steps(steps: Vec<JournalStep>) -> Self {
        Self { steps, ..Self::default() }
    }

    /// The same journal after these waits have ended, read from its beginning.
    #[must_use]
    pub fn with_ended_waits(self, ended_waits: Vec<EndedWait>) -> Self {
        Self { ended_waits, position: 0, ..self }
    }

    /// The same journal with this last report about the provider.
    #[must_use]
    pub fn with_provider_status(self, status: ProviderStatus) -> Self {
        Self { provider: Some(status), ..self }
    }

    /// The changes of children, oldest first.
    pub fn delegations(&self) -> &[Delegation] {
        &self.delegations
    }

    /// All steps, oldest first.
    pub fn steps(&self) -> &[JournalStep] {
        &self.steps
    }
}

impl MemoryJournal {
    fn replay_next_step(&mut self, names: &[String]) -> Result<Option<(usize, Value)>, JournalError> {
        let Some(step) = self.steps.get(self.position) else {
            return Ok(None);
        };
        let Some(index) = names.iter().position(|name| *name == step.name) else {
            return Err(JournalError::Diverged {
                position: self.position,
                recorded: step.name.clone(),
                requested: names.join(" or "),
            });
        };
        self.position += 1;
        Ok(Some((index, step.value.clone())))
    }
}

impl Journal for MemoryJournal {
    fn read_recorded_step<'a>(
        &'a mut self,
        names: &'a [String],
    ) -> BoxFuture<'a, Result<Option<(usize, Value)>, JournalError>> {
        ready(self.replay_next_step(names)).boxed()
    }

    fn peek_recorded_step(&mut self) -> BoxFuture<'_, Result<Option<(String, Value)>, JournalError>> {
        let next = self.steps.get(self.position).map(|step| (step.name.clone(), step.value.clone()));
        ready(Ok(next)).boxed()
    }

    fn append_step<'a>(
        &'a mut self,
        name: &'a str,
        value: &'a Value,
    ) -> BoxFuture<'a, Result<(), JournalError>> {
        self.steps.push(JournalStep { name: name.to_owned(), value: value.clone() });
        self.position = self.steps.len();
        ready(Ok(())).boxed()
    }

    fn append_delegation(&mut self, delegation: Delegation) -> BoxFuture<'_, Result<(), JournalError>> {
        self.delegations.push(delegation);
        ready(Ok(())).boxed()
    }

    fn provider_status(&self) -> Option<ProviderStatus> {
        self.provider.clone()
    }

    fn ended_wait(&self, key: &str) -> Option<WaitEnd> {
        self.ended_waits.iter().find(|wait| wait.key == key).map(|wait| wait.end.clone())
    }
}
