//! The environment that a host provides to an agent for one order: journal, sources, files, tools and budget.

use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::plan::{DEFAULT_PROVIDER_TIMEOUT, ResourceAmounts};
use millrace_protocol::result::{ErrorKind, TaskError};

use super::SessionError;
use super::memory::MemoryFile;
use crate::approval::ApprovalRules;
use crate::corpus::pages::AttemptPages;
use crate::files::{AgentFiles, Files};
use crate::hooks::Hook;
use crate::model::{DeltaListener, Model, ModelAbility};
use crate::skills::{Skill, SkillEntry};
use crate::sources::OrderInputs;
use crate::state::StateRules;
use crate::tool::{Tool, Toolbox};
use crate::turn::{
    AgentBrief, Answer, AnswerCheck, AnsweredWork, AttemptName, ContextSettings, Driver, ForkedConversation,
    InheritedState, Journal, JournalError, Machine, ReadLines, RecordedBeginning, WorkSummary,
    read_recorded_beginning,
};

pub struct SessionEnvironment<'a> {
    /// Records the agent's steps.
    pub journal: Box<dyn Journal + 'a>,
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
    pub fn new(sources: Arc<dyn OrderInputs>, journal: impl Journal + 'a) -> Self {
        Self {
            journal: Box::new(journal),
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

    /// Returns the beginning of the conversation that the journal's next step begins, or that of a new one with prompts for
    /// this ability and these rules for the agent's state.
    pub(super) async fn choose_beginning(
        &mut self,
        ability: ModelAbility,
        state: Option<StateRules>,
        context: Option<ContextSettings>,
    ) -> Result<RecordedBeginning, SessionError> {
        let new = RecordedBeginning::new(ability, state, context);
        Ok(self.read_beginning().await?.unwrap_or(new))
    }

    /// Returns the beginning of the conversation that the journal's next step begins; `None` if it has not begun.
    pub(super) async fn read_beginning(&mut self) -> Result<Option<RecordedBeginning>, SessionError> {
        read_recorded_beginning(self.journal.as_mut()).await.map_err(journal_error)
    }

    /// Drives one conversation with a model to its answer. `check` validates the answer beyond its schema.
    pub(super) async fn run_conversation<A: Answer>(
        self,
        attempt: AttemptName,
        conversation: PreparedConversation,
        check: &AnswerCheck<'_, A>,
    ) -> Result<AnsweredWork<A>, SessionError> {
        Ok(self.run_to_end(attempt, conversation, check).await?.into_result()?)
    }

    /// Drives one conversation with a model to its end, with or without an answer.
    pub(super) async fn run_to_end<A: Answer>(
        mut self,
        attempt: AttemptName,
        conversation: PreparedConversation,
        check: &AnswerCheck<'_, A>,
    ) -> Result<WorkSummary<A>, SessionError> {
        let PreparedConversation {
            brief,
            toolbox,
            model,
            files,
            state,
            approvals,
            can_wait,
            continued,
            records,
            inherited,
            context,
            summarizer,
            pages,
            read_lines,
            skills,
        } = conversation;
        let machine = match continued {
            Some(continued) => Machine::of_fork(brief, &continued.conversation, &continued.next),
            None => Machine::new(brief),
        };
        let machine = machine
            .with_skills(skills)
            .with_state(state)
            .with_notes(inherited.notes.clone())
            .with_reserved_amounts(self.allowance);
        let driver = Driver::new(model.as_ref(), &toolbox, self.journal.as_mut())
            .with_attempt_name(attempt)
            .with_approvals(approvals, can_wait)
            .recording_conversation(records)
            .inheriting(inherited)
            .with_context(context, summarizer.as_deref())
            .with_listener(self.observer.as_ref())
            .with_files(self.files)
            .with_agent_files(files)
            .with_pages(pages)
            .noting_read_lines(read_lines)
            .provider_timeout(self.provider_timeout)
            .with_check(check);
        // Boxed: the future of a running conversation is large.
        Ok(Box::pin(driver.drive(machine)).await?)
    }
}

/// A model, and the beginning of the conversation with it.
pub(super) struct OpenedModel {
    pub model: Arc<dyn Model>,
    pub beginning: RecordedBeginning,
}

/// Replaces the prompt of a brief by the recorded one, so that a resumed conversation is the one that began.
pub(super) fn restore_prompt(brief: AgentBrief, beginning: RecordedBeginning) -> AgentBrief {
    match beginning.prompt {
        Some((system, task)) => AgentBrief { system, task, ..brief },
        None => brief,
    }
}

/// A conversation before its first request: brief, tools and model.
pub(super) struct PreparedConversation {
    pub brief: AgentBrief,
    pub toolbox: Toolbox,
    pub model: Arc<dyn Model>,
    /// The files that programs work on.
    pub files: Option<AgentFiles>,
    /// The rules for the agent's state, if it has one.
    pub state: Option<StateRules>,
    /// The rules for calls that need a person's approval.
    pub approvals: ApprovalRules,
    /// `true` if the work may be parked.
    pub can_wait: bool,
    /// The conversation that it continues, if there is one.
    pub continued: Option<ContinuedConversation>,
    /// `true` if the conversation is recorded after its answer, for a task or an attempt that continues it.
    pub records: bool,
    /// The state that the attempt takes over from earlier ones.
    pub inherited: InheritedState,
    /// The settings of its context; `None` if it is not kept within its model's window.
    pub context: Option<ContextSettings>,
    /// The model that summarises it; `None` is its own.
    pub summarizer: Option<Arc<dyn Model>>,
    /// The web pages that it reads, if it can.
    pub pages: Option<Arc<AttemptPages>>,
    /// The lines that it reads with its tools.
    pub read_lines: Arc<ReadLines>,
    /// The skills that it can read.
    pub skills: Vec<SkillEntry>,
}

/// A conversation that continues with another message.
pub(super) struct ContinuedConversation {
    pub conversation: ForkedConversation,
    /// The next message.
    pub next: String,
    /// `true` if the next message has the passages for the task; otherwise those of the first message apply.
    pub has_passages: bool,
}

impl PreparedConversation {
    /// The message with the passages for the task: that of a fork is the one of its parent.
    pub fn newest_task(&self) -> &str {
        match &self.continued {
            Some(continued) if continued.has_passages => &continued.next,
            Some(_) | None => &self.brief.task,
        }
    }
}

/// Converts a journal error. A journal that diverged is a bug; one that can't be used may be usable again.
pub(super) fn journal_error(error: JournalError) -> SessionError {
    let kind = match &error {
        JournalError::Diverged { .. } => ErrorKind::Panic,
        JournalError::Failed(_) => ErrorKind::Other,
    };
    TaskError::new(kind, error.to_string()).into()
}
