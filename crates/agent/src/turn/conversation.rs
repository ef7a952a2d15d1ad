//! A conversation before its first request: what it begins or continues with, and everything that its requests and calls work with.
//! It is built once and borrowed by the loop that drives it.
//!
//! The name of an attempt outside of its journal: in the keys of its tool calls and the paths of its stored results.

use std::fmt;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::plan::{DEFAULT_PROVIDER_TIMEOUT, ResourceAmounts, Work};
use millrace_protocol::work::Order;

use super::{
    AgentBrief, Answer, ContextSettings, ForkedConversation, InheritedState, Machine, ReadLines, UsageTotals,
};
use crate::approval::ApprovalRules;
use crate::corpus::pages::AttemptPages;
use crate::files::{AgentFiles, FilePath, Files, InvalidFilePath};

use crate::hooks::AttemptHooks;
use crate::model::{DeltaListener, Model};

use crate::skills::SkillEntry;
use crate::state::StateRules;
use crate::tool::Toolbox;
use crate::verification::Verifier;

pub struct Conversation {
    pub brief: AgentBrief,
    /// The conversation that it continues, if there is one.
    pub continued: Option<ContinuedConversation>,
    pub model: Arc<dyn Model>,
    /// The model that summarises it; `None` is its own.
    pub summarizer: Option<Arc<dyn Model>>,
    /// `true` if the statements of its answer are verified. The built-in model only quotes.
    pub is_verified: bool,
    /// The model that verifies the statements of its answer; `None` if no model does.
    pub verifier: Option<Verifier>,
    pub toolbox: Toolbox,
    /// The hooks that see the calls of its models.
    pub(crate) hooks: Option<AttemptHooks>,
    /// The attempt's name, used in the keys of its calls and the paths of long results.
    pub attempt: AttemptName,
    /// Sees replies while they are being written.
    pub listener: Arc<dyn DeltaListener>,
    /// The workspace, for long results and the history; `None` if there is none.
    pub files: Option<Arc<dyn Files>>,
    /// The files that programs work on.
    pub agent_files: Option<AgentFiles>,
    /// The web pages that it reads, if it can: they are kept, so that they can be cited.
    pub pages: Option<Arc<AttemptPages>>,
    /// The lines that it reads with its tools, so that they can be cited.
    pub(crate) read_lines: Arc<ReadLines>,
    /// The rules for the agent's state, if it has one.
    pub state: Option<StateRules>,
    /// The skills that it can read.
    pub skills: Vec<SkillEntry>,
    /// The state that the attempt takes over from earlier ones.
    pub(crate) inherited: InheritedState,
    /// The rules for calls that need a person's approval. Where the work can't be parked, such calls are refused.
    pub approvals: ApprovalRules,
    /// `true` if the work may be parked.
    pub can_wait: bool,
    /// `true` if the conversation is recorded after its answer, for a task or an attempt that continues it.
    pub is_recorded: bool,
    /// The settings of its context; `None` if it is not kept within its model's window.
    pub context: Option<ContextSettings>,
    /// The reservation in the run's budget, in addition to the limits.
    pub allowance: ResourceAmounts,
    /// The usage of the attempt before the conversation, and how long it took.
    pub(crate) prepared: (UsageTotals, Duration),
    /// How long to wait for a provider that does not answer.
    pub provider_timeout: Duration,
}

/// A conversation that continues with another message.
pub struct ContinuedConversation {
    pub conversation: ForkedConversation,
    /// The next message.
    pub next: String,
    /// `true` if the next message has the passages for the task; otherwise those of the first message apply.
    pub has_passages: bool,
}

impl Conversation {
    /// A new conversation without files, listener, state or reservation, that may be parked.
    #[must_use]
    pub fn new(brief: AgentBrief, model: Arc<dyn Model>, toolbox: Toolbox) -> Self {
        Self {
            brief,
            continued: None,
            model,
            summarizer: None,
            is_verified: false,
            verifier: None,
            toolbox,
            hooks: None,
            attempt: AttemptName::default(),
            listener: Arc::new(()),
            files: None,
            agent_files: None,
            pages: None,
            read_lines: Arc::default(),
            state: None,
            skills: Vec::new(),
            inherited: InheritedState::default(),
            approvals: ApprovalRules::default(),
            can_wait: true,
            is_recorded: false,
            context: None,
            allowance: ResourceAmounts::default(),
            prepared: Default::default(),
            provider_timeout: DEFAULT_PROVIDER_TIMEOUT,
        }
    }

    /// The message with the passages for the task: that of a fork is the one of its parent.
    pub(crate) fn newest_task(&self) -> &str {
        match &self.continued {
            Some(continued) if continued.has_passages => &continued.next,
            Some(_) | None => &self.brief.task,
        }
    }

    /// Takes out the beginning, and returns the machine before its first step.
    #[must_use]
    pub fn begin<A: Answer>(&mut self) -> Machine<A> {
        let AgentBrief { system, task, tools, answer, limits, max_output_tokens, ability } = &mut self.brief;
        let brief = AgentBrief {
            system: take(system),
            task: take(task),
            tools: tools.clone(),
            answer: answer.take(),
            limits: *limits,
            max_output_tokens: *max_output_tokens,
            ability: *ability,
        };
        let machine = match self.continued.take() {
            Some(continued) => Machine::of_fork(brief, &continued.conversation, &continued.next),
            None => Machine::new(brief),
        };
        let (spent, took) = take(&mut self.prepared);
        machine
            .with_usage_before(&spent, took)
            .with_skills(take(&mut self.skills))
            .with_state(self.state.take())
            .with_notes(self.inherited.notes.clone())
            .with_reserved_amounts(self.allowance)
            .with_context(self.context)
    }
}

/// The folder for results that are too long for the conversation.
const FOLDER: &str = "/large_results";
/// The folder for the conversations of attempts that were shortened.
const HISTORY_FOLDER: &str = "/conversation_history";

/// The name of an attempt: `<run>/<task>/<attempt>`; for a review `<run>/<task>/<attempt>/review.<n>`, for planning
/// `<run>/@planning.<turn>/<attempt>`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttemptName {
    run: String,
    work: String,
}

impl AttemptName {
    /// Names the attempt that an order is for.
    #[must_use]
    pub fn from_order(order: &Order) -> Self {
        let work = match order.work() {
            Work::Task { task, attempt } => format!("{task}/{attempt}"),
            Work::Review { task, attempt, review } => format!("{task}/{attempt}/review.{review}"),
            Work::Planning { turn, attempt } => format!("@planning.{turn}/{attempt}"),
        };
        Self { run: order.run.to_string(), work }
    }

    /// The key of a call: the `index`-th executed call in the reply of a turn.
    pub fn call_key(&self, turn: u64, index: usize) -> String {
        format!("{self}/{turn}.{index}")
    }

    /// The path of the file with the whole conversation.
    pub(super) fn history_path(&self) -> Result<FilePath, InvalidFilePath> {
        FilePath::new(&format!("{HISTORY_FOLDER}/{}.md", self.work))
    }

    /// The path for the long result of a call.
    pub(super) fn large_result_path(&self, turn: u64, index: usize) -> Result<FilePath, InvalidFilePath> {
        FilePath::new(&format!("{FOLDER}/{}/{turn}.{index}.txt", self.work))
    }
}

impl fmt::Display for AttemptName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.run, self.work)
    }
}
