//! Running an agent on an order. A [`AgentSession`] reads what the order refers to, opens the model and the tools that the
//! agent's [`AgentSpec`] names, drives the conversation, and turns the answer into a result or a proposal.
//!
//! ```text
//! AgentHost                      one per process: open models, cached documents
//! └─ AgentSession::prepare(host, spec, order, SessionEnvironment)
//!    ├─ SessionInputs            documents and results of the order
//!    ├─ ToolContext              opens the tools by the table of names
//!    └─ run_work / run_planning  brief → Driver → answer → TaskResult / Proposal
//!
//! AgentHost::run_review          the same for a critic's order: one or more judges → Verdict
//! ```
//! Nothing here opens a connection: the journal, the log and the blob store are reached through the [`SessionEnvironment`].
//!
//! # Invariants
//!
//! - I156: A worker that takes an attempt over has all that its agent has: skills, pages, state and phase, files, the work of
//!   programs, a shortened conversation; recorded replies and results are not requested again.
//!   (`tests/tests/agent_takeover.rs::takeover_after_any_append_continues_with_all_that_the_agent_has`)

mod consultants;
mod documents;
mod environment;
mod host;
mod inputs;
mod memory;
mod models;
mod plan;
mod prompts;
mod rerun;
mod results;
mod review;
mod skills;
pub mod tools;

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{ResourceAmounts, TaskSpec};
use millrace_protocol::provider::ProviderWait;
use millrace_protocol::result::{CapabilityDescription, ErrorKind, TaskError, TaskResult};
use millrace_protocol::wait::Wait;
use millrace_protocol::work::{Assignment, Order};

use crate::answers::labels::PassageLabels;
use crate::answers::{Findings, FindingsChecker, NumberedResults, Report, ReportChecker, findings, report};
use crate::corpus::Corpus;
use crate::corpus::pages::AttemptPages;
use crate::files::{AgentFiles, CompositeFiles, Files};
use crate::hooks::{AttemptHooks, HookContext};
use crate::model::{AnswerSchema, Model, ModelAbility};
use crate::roles::{self, DocumentList, WorkTask};
use crate::sources::OrderInputError;
use crate::spec::{
    AgentSpec, AnswerForm, RevisionMode, RunTemplateView, TaskTemplateView, Template, TemplateView,
    ToolReference, format_utc_date,
};
use crate::state::{StatePrompt, StateRules, create_state_tools};
use crate::tool::{ChildTasks, Toolbox, describe_wait_end};
use crate::turn::{
    AgentBrief, Answer, AnsweredWork, AttemptName, DriveError, ForkedConversation, JsonAnswer, PlainText,
    ReadLines, UsageTotals, WorkFailure, format_fork_task,
};

use consultants::ModelConsultants;
use environment::{ContinuedConversation, OpenedModel, PreparedConversation, restore_prompt};
use inputs::{InputExcerpt, SessionInputs};
use memory::{mount_memories, read_memory_section};
use models::RunModels;
use rerun::EarlierAttempts;
use skills::AttemptSkills;
use tools::ToolContext;

pub use environment::SessionEnvironment;
pub use host::{AgentHost, HostSettings};
pub use memory::MemoryFile;
pub use models::ModelPreferences;

const SEARCH: &str = "search_documents";
const READ: &str = "read_document";
const LIST: &str = "list_completed_tasks";
const GET: &str = "get_task_result";
const THINK: &str = "think";
/// The beginning of the names of built-in models.
const BUILT_IN_MODEL: &str = "builtin:";

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
            | DriveError::Journal(_)
            | DriveError::Unreadable { .. }
            | DriveError::OutOfStep(_) => Self::Task(failure.into()),
        }
    }
}

/// One agent that works on one order.
pub struct AgentSession<'a> {
    host: &'a AgentHost,
    spec: &'a AgentSpec,
    order: &'a Order,
    env: SessionEnvironment<'a>,
    inputs: SessionInputs,
    /// The conversation that it continues, if the task is a fork or a call of a shared agent.
    fork: Option<ForkedConversation>,
    /// The state of the earlier attempts at the task.
    earlier: EarlierAttempts,
    /// The section of the prompt with the memory.
    memory: Option<String>,
    /// The skills that the agent can read.
    skills: AttemptSkills,
    /// The capabilities of the cluster, if the agent may delegate.
    capabilities: Vec<CapabilityDescription>,
    /// The names of tools that would show nothing but what the prompt shows.
    useless_tools: &'static [&'static str],
    /// The built-in instructions of a planner's turn.
    turn_instructions: Option<Template>,
}

impl<'a> AgentSession<'a> {
    /// Starts a session: reads the documents and results that the order refers to.
    pub async fn prepare(
        host: &'a AgentHost,
        spec: &'a AgentSpec,
        order: &'a Order,
        mut env: SessionEnvironment<'a>,
    ) -> Result<Self, SessionError> {
        let inputs = SessionInputs::read_inputs(&host.documents, spec, order, env.sources.as_ref()).await?;
        let delegates = spec.tools.iter().any(|tool| tools::DELEGATION.contains(&tool.name.as_str()));
        let capabilities = if delegates { env.sources.read_capabilities().await? } else { Vec::new() };
        let fork = inputs::read_continued_conversation(order, env.sources.as_ref()).await?;
        let beginning = env.read_beginning().await?;
        let recorded = beginning.as_ref().map(|beginning| beginning.inherited.clone());
        let earlier = EarlierAttempts::read(spec, order, recorded, env.sources.as_ref()).await?;
        let continued = fork.as_ref().or(earlier.conversation.as_ref());
        let recorded = continued.map(|conversation| conversation.skills().to_vec());
        let recorded = recorded.or_else(|| beginning.map(|beginning| beginning.skills));
        let skills = AttemptSkills::open(spec, recorded, &mut env).await?;
        let beside = std::mem::take(&mut env.memory_files);
        let memory = read_memory_section(spec, beside, env.memories.as_ref()).await?;
        let (useless_tools, turn_instructions) = (&[][..], None);
        Ok(Self {
            host,
            spec,
            order,
            env,
            inputs,
            fork,
            earlier,
            memory,
            skills,
            capabilities,
            useless_tools,
            turn_instructions,
        })
    }

    /// Carries out the task of the order.
    ///
    /// # Errors
    /// The agent failed, an input can't be read, or the order is not a task.
    pub async fn run_work(mut self) -> Result<TaskResult, SessionError> {
        let (spec, order) = (self.spec, self.order);
        let Assignment::Task { task, criteria, .. } = &order.assignment else {
            return Err(invalid_order_error("it is not a task").into());
        };
        let opened = self.open_model().await?;
        let is_new = opened.beginning.prompt.is_none();
        // The built-in model answers from documents only, and says itself that there are none.
        let has_memory = !opened.model.name().starts_with(BUILT_IN_MODEL);
        if is_new && has_memory && self.has_no_sources() {
            return Ok(no_sources_result());
        }
        let ability = opened.beginning.ability;
        let task = WorkTask {
            task_id: task.clone(),
            objective: order.objective.clone(),
            run_objective: order.mission.clone(),
            parameters: order.parameters.clone(),
            event: order.start_event().map(describe_wait_end),
            criteria: criteria.clone(),
            feedback: order.feedback.clone(),
            // A report is written from results alone.
            documents: match spec.answer {
                AnswerForm::Report => DocumentList::default(),
                AnswerForm::Findings | AnswerForm::Text | AnswerForm::Data | AnswerForm::Plan => {
                    self.inputs.document_list()
                }
            },
        };
        let excerpt = self.inputs.format_excerpt(order, spec.answer, ability);
        let more = format!("{}{}", excerpt.text, self.earlier.format_section(order, ability));
        let question = match ability.is_small() {
            true => {
                // What the tools could look up is in the passages.
                let reads = !excerpt.has_passages && spec.tools.iter().any(|tool| tool.name == READ);
                roles::build_task_text(&task, &more, reads)
            }
            false => roles::build_first_message(&task, &more),
        };
        let schema = match spec.answer {
            AnswerForm::Findings => {
                // Web pages have names that are not known yet.
                let listed = self.inputs.corpus.as_deref().filter(|_| !self.reads_web());
                findings::findings_schema(listed, ability, !excerpt.has_passages || self.reads_web())
            }
            AnswerForm::Report => report::report_schema(ability),
            AnswerForm::Text => None,
            AnswerForm::Data => JsonAnswer::answer_schema(spec.answer.name()).map(|schema| AnswerSchema {
                schema: spec.about.output.clone().unwrap_or(schema.schema),
                ..schema
            }),
            AnswerForm::Plan => {
                return Err(invalid_order_error("an agent that answers with a plan can't do tasks").into());
            }
        };
        self.request_result(opened, question, schema, excerpt).await
    }

    /// Drives the conversation and converts the answer into a task's result.
    async fn request_result(
        mut self,
        opened: OpenedModel,
        question: String,
        schema: Option<AnswerSchema>,
        excerpt: InputExcerpt,
    ) -> Result<TaskResult, SessionError> {
        let ability = opened.beginning.ability;
        self.withdraw_useless_tools(ability, &excerpt);
        let conversation = self.prepare_conversation(opened, question, schema, Vec::new())?;
        let Self { spec, order, env, inputs, .. } = self;
        let (attempt, corpus) = (AttemptName::from_order(order), inputs.corpus.as_deref());
        match spec.answer {
            AnswerForm::Findings => {
                let labels = PassageLabels::read_from_prompt(conversation.newest_task());
                let used = inputs.list_used_results();
                let read_lines = conversation.read_lines.clone();
                let checker = FindingsChecker::new(&order.objective, labels, read_lines, used, ability);
                let pages = conversation.pages.clone();
                let list_sources =
                    || pages.as_ref().map(|pages| pages.list_sources()).or_else(|| corpus.cloned());
                let check = |answer: Findings| checker.check_findings(answer, list_sources().as_ref());
                let work = env.run_conversation(attempt, conversation, &check).await?;
                let sources = list_sources();
                let result = findings::resolve_findings(&work.answer, sources.as_ref());
                Ok(complete_result(result.map_err(repeated_check_error)?, work))
            }
            AnswerForm::Report => {
                let none = NumberedResults::default();
                let results = inputs.numbered.as_deref().unwrap_or(&none);
                let checker = ReportChecker::new(&order.mission, results, ability);
                let check = |answer: Report| checker.check_report(answer);
                let work = env.run_conversation(attempt, conversation, &check).await?;
                let result = results.resolve_citations(&work.answer).map_err(repeated_check_error)?;
                Ok(complete_result(result, work))
            }
            AnswerForm::Text => {
                let work = env.run_conversation(attempt, conversation, &|text: PlainText| Ok(text)).await?;
                let result = TaskResult { output: work.answer.0.clone(), ..TaskResult::default() };
                Ok(complete_result(result, work))
            }
            AnswerForm::Data | AnswerForm::Plan => {
                let work = env.run_conversation(attempt, conversation, &|data: JsonAnswer| Ok(data)).await?;
                let (data, summary) = (work.answer.0.clone(), work.answer.summarize());
                let output = format!("```json\n{data:#}\n```");
                let result = TaskResult { summary, output, data: Some(data), ..TaskResult::default() };
                Ok(complete_result(result, work))
            }
        }
    }

    /// `true` if it answers from sources and there are none: a model would answer from memory.
    fn has_no_sources(&self) -> bool {
        let has_documents = self.inputs.corpus.as_deref().is_some_and(Corpus::has_sources);
        let is_bound = self.spec.answer == AnswerForm::Findings && self.spec.instructions.is_empty();
        is_bound && !has_documents && !self.reads_web() && self.order.inputs.is_empty() && self.fork.is_none()
    }

    /// `true` if it has a tool that reads web pages.
    fn reads_web(&self) -> bool {
        self.env.tools.iter().any(|tool| tool.reads_pages())
    }

    /// Withdraws the tools that a small model does not need: it repeats their calls in place of an answer. Where the prompt has
    /// passages and all results, there is nothing left to look up.
    fn withdraw_useless_tools(&mut self, ability: ModelAbility, excerpt: &InputExcerpt) {
        let is_cited = matches!(self.spec.answer, AnswerForm::Findings | AnswerForm::Report);
        if !ability.is_small() || !is_cited {
            return;
        }
        self.useless_tools = match (excerpt.has_passages, excerpt.has_all_results) {
            (true, true) => &[SEARCH, READ, LIST, GET, THINK],
            (true, false) => &[SEARCH, READ, THINK],
            (false, true) => &[LIST, GET, THINK],
            (false, false) => &[THINK],
        };
    }

    /// Opens the model, and reads the format of the conversation from the journal if it has begun.
    async fn open_model(&mut self) -> Result<OpenedModel, SessionError> {
        let (model, ability) = self.open_pooled_model()?;
        let state = Some(self.spec.state.clone()).filter(|rules| !rules.is_empty());
        let is_task = matches!(self.order.assignment, Assignment::Task { .. });
        let context = is_task.then(|| self.spec.context.settings_for(model.as_ref()));
        let mut beginning = self.env.choose_beginning(ability, state, context).await?;
        if let Some(conversation) = self.fork.as_ref().or(self.earlier.conversation.as_ref()) {
            (beginning.ability, beginning.prompt) = (conversation.ability(), None);
            beginning.state = conversation.state_rules().cloned();
        }
        Ok(OpenedModel { model, beginning })
    }

    /// Opens the model, with the ability that its prompts are written for.
    fn open_pooled_model(&self) -> Result<(Arc<dyn Model>, ModelAbility), TaskError> {
        let Self { host, spec, order, .. } = self;
        let model = host.models.open_for_order(order, &spec.about.name, spec.model.as_ref());
        let model = model.map_err(|error| invalid_order_error(&error.to_string()))?;
        let ability = spec.prompts.unwrap_or_else(|| model.ability());
        Ok((model, ability))
    }

    /// Opens the tools and writes the brief. `stateful` are tools that share state outside of this
    /// session, such as a planner's.
    fn prepare_conversation(
        &mut self,
        OpenedModel { model, mut beginning }: OpenedModel,
        task: String,
        answer: Option<AnswerSchema>,
        stateful: Vec<Arc<dyn crate::tool::Tool>>,
    ) -> Result<PreparedConversation, TaskError> {
        let continued = self.continued_conversation(&task);
        let inherited = std::mem::take(&mut self.earlier.inherited);
        let (memory, skills) = (self.memory.take(), std::mem::take(&mut self.skills));
        let Self { host, spec, order, env, inputs, capabilities, useless_tools, turn_instructions, .. } =
            self;
        let directory = ModelConsultants::new(
            spec.about.name.clone(),
            env.sources.clone(),
            host.models.clone(),
            RunModels::of_order(order),
            model.clone(),
        );
        let results = inputs.open_results(order, spec.results, &env.sources);
        let (sources, capabilities) = (env.sources.clone(), std::mem::take(capabilities));
        let own_tools = spec.tools.iter().map(|tool| tool.name.clone());
        let own_tools: BTreeSet<String> =
            own_tools.chain(env.tools.iter().map(|tool| tool.spec().name)).collect();
        let sections = format_sections([skills.format_section(&own_tools), memory]);
        let children = ChildTasks::new(order, spec.agents.clone(), sources, results.clone(), capabilities)
            .map(|children| Arc::new(children.with_own_tools(own_tools)));
        let pages = env.tools.iter().any(|tool| tool.reads_pages());
        let pages = pages.then(|| AttemptPages::new(env.sources.clone(), inputs.corpus.as_deref()));
        let pages = pages.transpose().map_err(|error| invalid_order_error(&error.to_string()))?.map(Arc::new);
        let context = ToolContext {
            corpus: inputs.corpus.clone(),
            pages: pages.clone(),
            results,
            children,
            consultants: Some(Arc::new(directory)),
            can_wait: matches!(order.assignment, Assignment::Task { .. }),
            stateful,
        };
        let files = env.files.clone().map(|files| inputs.mount_documents(files));
        let files = files.map(|files| mount_memories(spec, files, env.memories.as_ref()));
        let files = files.map(|files| skills.mount_files(files));
        let agent_files = files.map(|files| open_agent_files(spec, files)).transpose()?;
        let context = match &agent_files {
            Some(agent) => context.with_files(agent.files.clone(), agent.permissions.clone()),
            None => context,
        };
        let ability = beginning.ability;
        let references: Vec<ToolReference> =
            spec.tools.iter().filter(|tool| !useless_tools.contains(&tool.name.as_str())).cloned().collect();
        let own = std::mem::take(&mut env.tools).into_iter().map(|tool| {
            let of_attempt = agent_files.as_ref().and_then(|files| tool.for_attempt(files));
            of_attempt.unwrap_or(tool)
        });
        let mut state = beginning.state.take();
        let of_state = state.as_ref().map(create_state_tools).unwrap_or_default();
        let hooks =
            HookContext { attempt: AttemptName::from_order(order), capability: spec.about.name.clone() };
        let hooks = AttemptHooks::new(hooks, std::mem::take(&mut env.hooks));
        let tools = context.open_tools(&references).into_iter().chain(own).chain(of_state);
        let tools = tools.map(|tool| hooks.wrap_tool(tool));
        let toolbox = Toolbox::new(tools).map_err(|duplicate| invalid_order_error(&duplicate.to_string()))?;
        let tool_names: Vec<String> = toolbox.specs().iter().map(|tool| tool.name.clone()).collect();
        let built_in =
            turn_instructions.take().or_else(|| prompts::built_in_instructions(spec.answer, ability));
        let instructions = render_instructions(
            spec,
            order,
            (&inputs.document_list(), &tool_names),
            built_in,
            state.as_mut(),
            &sections,
        )?;
        let brief = AgentBrief {
            system: match sections.as_str() {
                "" => instructions,
                sections => format!("{}{sections}", instructions.trim_end()),
            },
            task,
            tools: toolbox.specs(),
            answer,
            limits: spec.limits,
            max_output_tokens: choose_max_output_tokens(spec.answer, ability),
            ability,
        };
        let can_wait = matches!(order.assignment, Assignment::Task { .. });
        let approvals = spec.approvals.clone();
        let context = beginning.context;
        let summarizer = match &spec.context.summary_model {
            Some(selection) => {
                let opened = host.models.open_for_run(&RunModels::of_order(order), selection);
                let opened = opened.map_err(|error| invalid_order_error(&error.to_string()))?;
                Some(hooks.wrap_model(opened))
            }
            None => None,
        };
        let brief = match &continued {
            Some(continued) => continued.conversation.to_brief(brief),
            None => restore_prompt(brief, beginning),
        };
        let read_lines = continued.as_ref().map(|it| ReadLines::of_conversation(&it.conversation));
        let records = order.shared.is_some() || (can_wait && spec.revise == RevisionMode::SameConversation);
        let files = agent_files;
        Ok(PreparedConversation {
            brief,
            toolbox,
            model: hooks.wrap_model(model),
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
            read_lines: Arc::new(read_lines.unwrap_or_default()),
            skills: skills.entries(),
        })
    }

    /// The conversation that the attempt continues, if there is one. `task` is the first message of a new one.
    fn continued_conversation(&mut self, task: &str) -> Option<ContinuedConversation> {
        let revised = self.earlier.conversation.take().map(|conversation| ContinuedConversation {
            conversation,
            next: self.earlier.format_revision_request(self.order),
            has_passages: false,
        });
        let is_fork = self.order.fork.is_some();
        let forked = || {
            let next = if is_fork { format_fork_task(self.order) } else { task.to_owned() };
            let conversation = self.fork.take()?;
            Some(ContinuedConversation { conversation, next, has_passages: !is_fork })
        };
        revised.or_else(forked)
    }
}

/// Adds the host's folder to an agent's files, with the agent's permissions.
fn open_agent_files(spec: &AgentSpec, files: Arc<dyn Files>) -> Result<AgentFiles, TaskError> {
    let permissions = spec.permissions.clone();
    let Some(folder) = &spec.folder else { return Ok(AgentFiles { files, permissions }) };
    let opened = folder.open().map_err(|why| TaskError::new(ErrorKind::Tool, why))?;
    let permissions = folder
        .restrict_permissions(permissions)
        .map_err(|invalid| TaskError::new(ErrorKind::InvalidTask, invalid.to_string()))?;
    let files = CompositeFiles::new(files).with_mount(folder.at.clone(), Arc::new(opened));
    Ok(AgentFiles { files: Arc::new(files), permissions })
}

/// Joins the sections of a prompt that follow its instructions, each after an empty line.
fn format_sections(sections: [Option<String>; 2]) -> String {
    sections.into_iter().flatten().map(|section| format!("\n\n{section}")).collect()
}

/// Adds the usage of the work and the files that it made to its result.
fn complete_result<A>(result: TaskResult, work: AnsweredWork<A>) -> TaskResult {
    let UsageTotals { usage, models } = work.spent;
    TaskResult { usage, models, artifacts: work.artifacts, ..result }
}

/// The result of a question that there is nothing to answer from.
fn no_sources_result() -> TaskResult {
    let summary = "No sources: the run has no documents, and web pages are not read here.";
    let output = format!(
        "{summary} The question was not answered, since an answer from a model's memory can't be checked. Add documents \
         with --docs, or allow the web with --web."
    );
    TaskResult { summary: summary.into(), output, answered: Some(false), ..TaskResult::default() }
}

/// The most tokens of one reply.
fn choose_max_output_tokens(answer: AnswerForm, ability: ModelAbility) -> u32 {
    match (answer, ability) {
        (AnswerForm::Findings, ModelAbility::Small) => findings::MAX_OUTPUT_TOKENS_SMALL,
        (AnswerForm::Report, ModelAbility::Small) => report::MAX_OUTPUT_TOKENS_SMALL,
        (AnswerForm::Text | AnswerForm::Data, ModelAbility::Small) => roles::MAX_OUTPUT_TOKENS_SMALL,
        (AnswerForm::Findings, ModelAbility::Strong) => findings::MAX_OUTPUT_TOKENS,
        (AnswerForm::Report | AnswerForm::Text | AnswerForm::Data, ModelAbility::Strong)
        | (AnswerForm::Plan, _) => roles::MAX_OUTPUT_TOKENS,
    }
}

/// Renders the system prompt. A prompt that shows the state becomes a part of its rules, unless a recorded one is.
fn render_instructions(
    spec: &AgentSpec,
    order: &Order,
    (documents, tools): (&DocumentList, &[String]),
    built_in: Option<Template>,
    state: Option<&mut StateRules>,
    sections: &str,
) -> Result<String, TaskError> {
    let instructions =
        built_in.as_ref().filter(|_| spec.instructions.is_empty()).unwrap_or(&spec.instructions);
    let planning = TaskId::new("planning").expect("a valid name");
    let id = match &order.assignment {
        Assignment::Task { task, .. } | Assignment::Review { task, .. } => task,
        Assignment::Planning { .. } => &planning,
    };
    let task = TaskTemplateView {
        id,
        objective: &order.objective,
        feedback: &order.feedback,
        is_final: order.is_final,
    };
    let view = TemplateView {
        run: RunTemplateView { id: &order.run, objective: &order.mission },
        task,
        parameters: &order.parameters,
        documents,
        tools,
        today: format_utc_date(Timestamp::now()),
        state: state.as_deref().map(StateRules::default_values).unwrap_or_default(),
        phase: state.as_deref().map_or("", StateRules::first_phase).to_owned(),
    };
    let rendered = instructions.render(&view);
    if let Some(rules) = state
        && !instructions.state_names().is_empty()
    {
        let view = serde_json::to_value(&view).expect("a view holds only texts and JSON values");
        let (template, sections) = (instructions.clone(), sections.to_owned());
        rules.prompt.get_or_insert_with(|| StatePrompt { template, view, sections });
    }
    rendered
        .map_err(|error| invalid_order_error(&format!("the instructions of {}: {error}", spec.about.name)))
}

fn invalid_order_error(why: &str) -> TaskError {
    TaskError::new(ErrorKind::InvalidTask, format!("an agent can't do this order: {why}"))
}

/// The answer passed this check a moment ago, and the documents can't have changed since.
fn repeated_check_error(mistake: String) -> TaskError {
    TaskError::new(ErrorKind::Panic, format!("an answer that was valid is invalid now: {mistake}"))
}
