//! The host of an agent: the interface to the process that runs the attempt, and an in-memory implementation; a worker keeps its
//! journal on the log. A journal is an ordered list of named values: on resume it is read from the front, and only steps that are not
//! in it are carried out.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use millrace_protocol::child::Delegation;
use millrace_protocol::result::{ErrorKind, TaskError};
use millrace_protocol::wait::{EndedWait, ProviderStatus, WaitEnd};
use millrace_protocol::wire::{BlobRef, InlineOrStoredBytes};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ContextSettings;
use super::record::{InheritedState, SentMessages};
use crate::files::ContentStream;
use crate::model::ModelAbility;
use crate::skills::SkillEntry;
use crate::state::StateRules;

/// The process that an attempt runs in, as its agent sees it: the journal of the attempt, its stores and its waits. Every error is one
/// after which the attempt can't continue here.
pub trait Host: Send {
    /// Returns the next recorded step, which must be one of `names`: its index among them, and its value. `None` once the
    /// recorded steps are used up. Each recorded step is returned once, in recorded order.
    ///
    /// # Errors
    /// The next recorded step has another name, or its value can't be fetched.
    fn replay<'a>(
        &'a mut self,
        names: &'a [String],
    ) -> BoxFuture<'a, Result<Option<(usize, Value)>, TaskError>>;

    /// Returns the name and the value of the next recorded step and leaves it in place; `None` once the recorded steps are
    /// used up.
    fn peek(&mut self) -> BoxFuture<'_, Result<Option<(String, Value)>, TaskError>>;

    /// Records a completed step. When this returns, the step is durable. Called only after [`Host::replay`] returned `None`.
    ///
    /// # Errors
    /// The step could not be stored: the log is unreachable, or another process took the attempt over.
    fn record<'a>(&'a mut self, name: &'a str, value: &'a Value) -> BoxFuture<'a, Result<(), TaskError>>;

    /// Writes a keepalive with a line for observers, if there are any. It is not a step.
    fn note<'a>(&'a mut self, text: &'a str) -> BoxFuture<'a, Result<(), TaskError>> {
        let _ = text;
        ready(Ok(())).boxed()
    }

    /// Reports a change in the wait for the model's provider, with a line for observers. It is not a step, and a keepalive.
    fn report_provider<'a>(
        &'a mut self,
        text: &'a str,
        status: &'a ProviderStatus,
    ) -> BoxFuture<'a, Result<(), TaskError>> {
        let _ = status;
        self.note(text)
    }

    /// Starts, cancels or instructs children of the attempt. It is not a step; appended twice, it has no further effect.
    ///
    /// # Errors
    /// As for [`Host::record`]; or the work is not an attempt at a task.
    fn delegate(&mut self, delegation: Delegation) -> BoxFuture<'_, Result<(), TaskError>> {
        drop(delegation);
        ready(Err(TaskError::new(ErrorKind::Other, "only an attempt at a task can delegate"))).boxed()
    }

    /// Stores a value that a step or a delegated task refers to, and returns it or its address. It is not a step.
    fn store_value(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<InlineOrStoredBytes, TaskError>> {
        ready(Ok(InlineOrStoredBytes::Inline(bytes.into()))).boxed()
    }

    /// Loads a value that [`Host::store_value`] has stored, on this machine or another.
    fn load_value<'a>(
        &'a mut self,
        stored: &'a InlineOrStoredBytes,
    ) -> BoxFuture<'a, Result<Vec<u8>, TaskError>> {
        ready(match stored {
            InlineOrStoredBytes::Inline(bytes) => Ok(bytes.to_vec()),
            InlineOrStoredBytes::Stored(blob) => Err(missing_value_error(blob)),
        })
        .boxed()
    }

    /// Stores bytes under their SHA-256, for later readers of the run. It is not a step. The default has no store.
    fn store_blob(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), TaskError>> {
        drop(bytes);
        ready(Ok(())).boxed()
    }

    /// Stores the content of a file, which may be larger than the memory. It is not a step. The default has no store.
    fn store_file(&mut self, file: Arc<File>) -> BoxFuture<'_, Result<BlobRef, TaskError>> {
        drop(file);
        ready(Err(TaskError::new(ErrorKind::Other, "this journal stores no files"))).boxed()
    }

    /// Opens a value that [`Host::store_file`] or [`Host::store_value`] has stored, on this machine or another.
    fn open_stored<'a>(
        &'a mut self,
        blob: &'a BlobRef,
    ) -> BoxFuture<'a, Result<Box<dyn ContentStream>, TaskError>> {
        ready(Err(missing_value_error(blob))).boxed()
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

fn missing_value_error(blob: &BlobRef) -> TaskError {
    TaskError::new(ErrorKind::Other, format!("this journal has no stored value {}", blob.sha256))
}

/// The beginning of a conversation, as recorded with its first request.
#[derive(Debug, Clone, Default, PartialEq)]
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

/// Returns the beginning of the conversation that the journal's next step begins; `None` if it has not begun.
pub(crate) async fn read_recorded_beginning(
    host: &mut dyn Host,
) -> Result<Option<RecordedBeginning>, TaskError> {
    let Some((_, value)) = host.peek().await? else { return Ok(None) };
    let ability = value.get("ability").map(ModelAbility::deserialize).transpose().map_err(|mistake| {
        TaskError::new(
            ErrorKind::Other,
            format!("the recorded ability of the model can't be read: {mistake}"),
        )
    })?;
    let sent = value.get("sent").and_then(|sent| SentMessages::deserialize(sent).ok());
    let prompt = sent.and_then(SentMessages::into_whole_prompt);
    let state = value.get("state").map(StateRules::deserialize).transpose().map_err(|mistake| {
        TaskError::new(
            ErrorKind::Other,
            format!("the recorded rules for the agent's state can't be read: {mistake}"),
        )
    })?;
    let inherited = value.get("inherited").and_then(|state| InheritedState::deserialize(state).ok());
    let skills = value.get("skills").map(Vec::<SkillEntry>::deserialize).transpose().map_err(|mistake| {
        TaskError::new(ErrorKind::Other, format!("the recorded skills can't be read: {mistake}"))
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

/// One recorded step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JournalStep {
    pub name: String,
    /// Its outcome.
    pub value: Value,
}

/// A host that keeps the journal in memory, for tests and for work that is never resumed.
#[derive(Debug, Clone, Default)]
pub struct MemoryHost {
    steps: Vec<JournalStep>,
    position: usize,
    ended_waits: Vec<EndedWait>,
    delegations: Vec<Delegation>,
    provider: Option<ProviderStatus>,
}

impl MemoryHost {
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

impl MemoryHost {
    fn replay_next_step(&mut self, names: &[String]) -> Result<Option<(usize, Value)>, TaskError> {
        let Some(step) = self.steps.get(self.position) else {
            return Ok(None);
        };
        let Some(index) = names.iter().position(|name| *name == step.name) else {
            let (position, recorded, requested) = (self.position, &step.name, names.join(" or "));
            let why = format!(
                "the journal diverged at step {position}: it holds {recorded:?}, the work requests {requested:?}"
            );
            return Err(TaskError::new(ErrorKind::Panic, why));
        };
        self.position += 1;
        Ok(Some((index, step.value.clone())))
    }
}

impl Host for MemoryHost {
    fn replay<'a>(
        &'a mut self,
        names: &'a [String],
    ) -> BoxFuture<'a, Result<Option<(usize, Value)>, TaskError>> {
        ready(self.replay_next_step(names)).boxed()
    }

    fn peek(&mut self) -> BoxFuture<'_, Result<Option<(String, Value)>, TaskError>> {
        let next = self.steps.get(self.position).map(|step| (step.name.clone(), step.value.clone()));
        ready(Ok(next)).boxed()
    }

    fn record<'a>(&'a mut self, name: &'a str, value: &'a Value) -> BoxFuture<'a, Result<(), TaskError>> {
        self.steps.push(JournalStep { name: name.to_owned(), value: value.clone() });
        self.position = self.steps.len();
        ready(Ok(())).boxed()
    }

    fn delegate(&mut self, delegation: Delegation) -> BoxFuture<'_, Result<(), TaskError>> {
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
