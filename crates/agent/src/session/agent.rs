//! One agent that works on one order: it reads what the order refers to, opens the model and the tools, builds the conversation, and
//! turns the answer into a task's result.

use std::collections::BTreeSet;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::result::{CapabilityDescription, ErrorKind, TaskError, TaskResult};
use millrace_protocol::work::{Assignment, Order};
use millrace_verification::Phrases;

use super::environment::{
    SessionEnvironment, SessionError, host_error, invalid_order_error, read_beginning, restore_prompt,
};
use super::host::AgentHost;
use super::inputs::{self, InputExcerpt, SessionInputs};
use super::memory::AttemptSkills;
use super::memory::{mount_memories, read_memory_section};
use super::models::{ModelConsultants, RunModels};
use super::prompts::{built_in_instructions, choose_max_output_tokens, format_sections, render_instructions};
use super::rerun::EarlierAttempts;
use super::tools::{self, ToolContext};
use super::verdicts::add_verdicts;

use crate::answers::labels::PassageLabels;
use crate::answers::{FindingsChecker, NumberedResults, ReportChecker, findings, report};
use crate::corpus::Corpus;
use crate::corpus::pages::AttemptPages;
use crate::embeddings::{self, AttemptEmbeddings, DocumentEmbedding};
use crate::files::{AgentFiles, CompositeFiles, Files};
use crate::hooks::{AttemptHooks, HookContext};
use crate::model::{AnswerSchema, Model, ModelAbility};
use crate::roles::{self, DocumentList, WorkTask};
use crate::spec::{AgentSpec, AnswerForm, RevisionMode, Template, ToolReference};
use crate::state::{StateRules, create_state_tools};
use crate::tool::{ChildTasks, Tool, Toolbox, describe_wait_end};
use crate::turn::{
    AgentBrief, Answer, AnsweredWork, AttemptName, ContinuedConversation, Conversation, ForkedConversation,
    JsonAnswer, PlainText, ReadLines, RecordedBeginning, UsageTotals, format_fork_task,
};

const SEARCH: &str = "search_documents";
const READ: &str = "read_document";
const LIST: &str = "list_completed_tasks";
const GET: &str = "get_task_result";
const THINK: &str = "think";
/// The beginning of the names of built-in models.
const BUILT_IN_MODEL: &str = "builtin:";

/// One agent that works on one order.
pub struct AgentSession<'a> {
    host: &'a AgentHost,
    pub(super) spec: &'a AgentSpec,
    pub(super) order: &'a Order,
    pub(super) env: SessionEnvironment<'a>,
    pub(super) inputs: SessionInputs,
    /// The conversation that it continues, if the task is a fork or a call of a shared agent.
    fork: Option<ForkedConversation>,
    /// The state of the earlier attempts at the task.
    earlier: EarlierAttempts,
    /// The search by meaning; `None` if documents are searched by words alone.
    embeddings: Option<Arc<AttemptEmbeddings>>,
    /// The usage before the conversation, and how long it took.
    prepared: (UsageTotals, Duration),
    /// The section of the prompt with the memory.
    memory: Option<String>,
    /// The skills that the agent can read.
    skills: AttemptSkills,
    /// The capabilities of the cluster, if the agent may delegate.
    capabilities: Vec<CapabilityDescription>,
    /// The names of tools that would show nothing but what the prompt shows.
    useless_tools: &'static [&'static str],
    /// The built-in instructions of a planner's turn.
    pub(super) turn_instructions: Option<Template>,
}

impl<'a> AgentSession<'a> {
    /// Starts a session: reads the documents and results that the order refers to.
    pub async fn prepare(
        host: &'a AgentHost,
        spec: &'a AgentSpec,
        order: &'a Order,
        mut env: SessionEnvironment<'a>,
    ) -> Result<Self, SessionError> {
        let mut inputs =
            SessionInputs::read_inputs(&host.documents, spec, order, env.sources.as_ref()).await?;
        let (embeddings, prepared) = embed_documents(host, spec, order, &mut env, &mut inputs).await?;
        let delegates = spec.tools.iter().any(|tool| tools::DELEGATION.contains(&tool.name.as_str()));
        let capabilities = if delegates { env.sources.read_capabilities().await? } else { Vec::new() };
        let fork = inputs::read_continued_conversation(order, env.sources.as_ref()).await?;
        let beginning = read_beginning(env.host).await?;
        let recorded = beginning.as_ref().map(|beginning| beginning.inherited.clone());
        let earlier = EarlierAttempts::read(spec, order, recorded, env.sources.as_ref()).await?;
        let continued = fork.as_ref().or(earlier.conversation.as_ref());
        let recorded = continued.map(|conversation| conversation.skills().to_vec());
        let recorded = recorded.or_else(|| beginning.map(|beginning| beginning.skills));
        let skills = AttemptSkills::open(spec, recorded, &mut env).await?;
        let beside = take(&mut env.memory_files);
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
            embeddings,
            prepared,
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
        let (model, beginning) = self.open_model().await?;
        let is_new = beginning.prompt.is_none();
        // The built-in model answers from documents only, and says itself that there are none.
        let has_memory = !model.name().starts_with(BUILT_IN_MODEL);
        if is_new && has_memory && self.has_no_sources() {
            return Ok(no_sources_result(&order.objective));
        }
        let ability = beginning.ability;
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
        self.withdraw_useless_tools(ability, &excerpt);
        let conversation = self.prepare_conversation(model, beginning, question, schema, Vec::new())?;
        let embeddings = self.embeddings.clone();
        let mut result = self.request_result(conversation).await?;
        if let Some(notice) = embeddings.as_deref().and_then(AttemptEmbeddings::notice) {
            let notes = result.notes.iter().map(String::as_str).chain([notice]);
            result.notes = Some(notes.collect::<Vec<_>>().join("\n\n"));
        }
        Ok(result)
    }

    /// Drives the conversation and converts the answer into a task's result.
    async fn request_result(self, mut conversation: Conversation) -> Result<TaskResult, SessionError> {
        let Self { host: agents, spec, order, env, inputs, .. } = self;
        let (host, corpus) = (env.host, inputs.corpus.as_deref());
        let is_cited = matches!(spec.answer, AnswerForm::Findings | AnswerForm::Report);
        if is_cited && !conversation.model.name().starts_with(BUILT_IN_MODEL) {
            (conversation.is_verified, conversation.verifier) = (true, agents.open_verifier(order)?);
        }
        let author = conversation.is_verified.then(|| conversation.model.name().to_owned());
        let policy = order.verification.unwrap_or(spec.verification);
        match spec.answer {
            AnswerForm::Findings => {
                let labels = PassageLabels::read_from_prompt(conversation.newest_task());
                let used = inputs.list_used_results();
                let (read_lines, pages) = (conversation.read_lines.clone(), conversation.pages.clone());
                let list_sources =
                    || pages.as_ref().map(|pages| pages.list_sources()).or_else(|| corpus.cloned());
                let checker = FindingsChecker::new(&order.objective, labels, read_lines, used, list_sources)
                    .with_policy(policy);
                let mut work = conversation.drive(host, &checker).await?.into_result()?;
                let statements = take(&mut work.answer.statements);
                let result = findings::resolve_findings(&work.answer, list_sources().as_ref());
                let result = result.map_err(repeated_check_error)?;
                let result = add_verdicts(result, statements, policy, &order.objective, order.is_final)?;
                Ok(complete_result(TaskResult { author, ..result }, work))
            }
            AnswerForm::Report => {
                let none = NumberedResults::default();
                let results = inputs.numbered.as_deref().unwrap_or(&none);
                let cited = results.cited_sources();
                let documents = order.documents.as_ref();
                let corpus = agents.open_sources_of_result(documents, &cited, env.sources.as_ref()).await?;
                let checker = ReportChecker::new(&order.mission, results, corpus.as_deref(), policy);
                let mut work = conversation.drive(host, &checker).await?.into_result()?;
                let statements = take(&mut work.answer.statements);
                let result = results.resolve_citations(&work.answer).map_err(repeated_check_error)?;
                let result = add_verdicts(result, statements, policy, &order.mission, order.is_final)?;
                Ok(complete_result(TaskResult { author, ..result }, work))
            }
            AnswerForm::Text => {
                let work = conversation.drive(host, &|text: PlainText| Ok(text)).await?.into_result()?;
                let result = TaskResult { output: work.answer.0.clone(), ..TaskResult::default() };
                Ok(complete_result(result, work))
            }
            AnswerForm::Data | AnswerForm::Plan => {
                let work = conversation.drive(host, &|data: JsonAnswer| Ok(data)).await?.into_result()?;
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

    /// Opens the model, and reads the beginning of the conversation from the journal if it has begun.
    pub(super) async fn open_model(&mut self) -> Result<(Arc<dyn Model>, RecordedBeginning), SessionError> {
        let (model, ability) = self.open_pooled_model()?;
        let state = Some(self.spec.state.clone()).filter(|rules| !rules.is_empty());
        let is_task = matches!(self.order.assignment, Assignment::Task { .. });
        let context = is_task.then(|| self.spec.context.settings_for(model.as_ref()));
        let new = RecordedBeginning { ability, state, context, ..RecordedBeginning::default() };
        let mut beginning = read_beginning(self.env.host).await?.unwrap_or(new);
        if let Some(conversation) = self.fork.as_ref().or(self.earlier.conversation.as_ref()) {
            (beginning.ability, beginning.prompt) = (conversation.ability(), None);
            beginning.state = conversation.state_rules().cloned();
        }
        Ok((model, beginning))
    }

    /// Opens the model, with the ability that its prompts are written for.
    pub(super) fn open_pooled_model(&self) -> Result<(Arc<dyn Model>, ModelAbility), TaskError> {
        let Self { host, spec, order, .. } = self;
        let model = host.models.open_for_order(order, &spec.about.name, spec.model.as_ref());
        let model = model.map_err(|error| invalid_order_error(&error.to_string()))?;
        let ability = spec.prompts.unwrap_or_else(|| model.ability());
        Ok((model, ability))
    }

    /// Opens the tools and writes the brief. `stateful` are tools that share state outside of this
    /// session, such as a planner's.
    pub(super) fn prepare_conversation(
        &mut self,
        model: Arc<dyn Model>,
        mut beginning: RecordedBeginning,
        task: String,
        answer: Option<AnswerSchema>,
        stateful: Vec<Arc<dyn Tool>>,
    ) -> Result<Conversation, TaskError> {
        let continued = self.continued_conversation(&task);
        let (spec, order, ability, context) = (self.spec, self.order, beginning.ability, beginning.context);
        let mut state = beginning.state.take();
        let attempt = AttemptName::from_order(order);
        let hooks = AttemptHooks::new(hook_context(spec, order), take(&mut self.env.hooks));
        let agent_files = self.open_files()?;
        let pages = self.open_pages()?;
        let own_tools = self.own_tool_names();
        let sections = format_sections([self.skills.format_section(&own_tools), self.memory.take()]);
        let context_of_tools =
            ToolContext { pages: pages.clone(), stateful, ..self.tool_context(&model, own_tools) };
        let toolbox = self.open_toolbox(context_of_tools, agent_files.as_ref(), state.as_ref(), &hooks)?;
        let brief = AgentBrief {
            system: self.render_system(&toolbox, ability, state.as_mut(), &sections)?,
            task,
            tools: toolbox.specs(),
            answer,
            limits: spec.limits,
            max_output_tokens: choose_max_output_tokens(spec.answer, ability),
            ability,
        };
        let brief = match &continued {
            Some(continued) => continued.conversation.to_brief(brief),
            None => restore_prompt(brief, beginning),
        };
        let read_lines = continued.as_ref().map(|it| ReadLines::of_conversation(&it.conversation));
        let can_wait = matches!(order.assignment, Assignment::Task { .. });
        Ok(Conversation {
            continued,
            summarizer: self.open_summarizer()?,
            attempt,
            listener: self.env.observer.clone(),
            files: self.env.files.clone(),
            agent_files,
            pages,
            read_lines: Arc::new(read_lines.unwrap_or_default()),
            state,
            skills: self.skills.entries(),
            inherited: take(&mut self.earlier.inherited),
            approvals: spec.approvals.clone(),
            can_wait,
            is_recorded: order.shared.is_some()
                || (can_wait && spec.revise == RevisionMode::SameConversation),
            context,
            allowance: self.env.allowance,
            prepared: take(&mut self.prepared),
            provider_timeout: self.env.provider_timeout,
            hooks: Some(hooks),
            ..Conversation::new(brief, model, toolbox)
        })
    }

    /// The names of the tools of the capability file and of the host.
    fn own_tool_names(&self) -> BTreeSet<String> {
        let of_host = self.env.tools.iter().map(|tool| tool.spec().name);
        self.spec.tools.iter().map(|tool| tool.name.clone()).chain(of_host).collect()
    }

    /// The data that the built-in tools work on, but for those of the run's files.
    fn tool_context(&mut self, model: &Arc<dyn Model>, own_tools: BTreeSet<String>) -> ToolContext {
        let Self { host, spec, order, env, inputs, capabilities, .. } = self;
        let consultants = ModelConsultants::new(
            spec.about.name.clone(),
            env.sources.clone(),
            host.models.clone(),
            RunModels::of_order(order),
            model.clone(),
        );
        let results = inputs.open_results(order, spec.results, &env.sources);
        let (sources, capabilities) = (env.sources.clone(), take(capabilities));
        let children = ChildTasks::new(order, spec.agents.clone(), sources, results.clone(), capabilities)
            .map(|children| Arc::new(children.with_own_tools(own_tools)));
        ToolContext {
            corpus: inputs.corpus.clone(),
            embeddings: self.embeddings.clone(),
            results,
            children,
            consultants: Some(Arc::new(consultants)),
            can_wait: matches!(order.assignment, Assignment::Task { .. }),
            ..ToolContext::default()
        }
    }

    /// Opens the agent's files: those of the run with everything that is mounted into them; `None` if it has no workspace.
    fn open_files(&self) -> Result<Option<AgentFiles>, TaskError> {
        let Some(files) = self.env.files.clone() else { return Ok(None) };
        let files = self.inputs.mount_documents(files);
        let files = mount_memories(self.spec, files, self.env.memories.as_ref());
        open_agent_files(self.spec, self.skills.mount_files(files)).map(Some)
    }

    /// Opens the web pages that the attempt reads; `None` if it reads none.
    fn open_pages(&self) -> Result<Option<Arc<AttemptPages>>, TaskError> {
        if !self.reads_web() {
            return Ok(None);
        }
        let opened = AttemptPages::new(self.env.sources.clone(), self.inputs.corpus.as_deref());
        opened.map(Arc::new).map(Some).map_err(|error| invalid_order_error(&error.to_string()))
    }

    /// Opens the tools of the capability, those of its host and those of its state, as the hooks see them.
    fn open_toolbox(
        &mut self,
        context: ToolContext,
        files: Option<&AgentFiles>,
        state: Option<&StateRules>,
        hooks: &AttemptHooks,
    ) -> Result<Toolbox, TaskError> {
        let context = match files {
            Some(agent) => context.with_files(agent.files.clone(), agent.permissions.clone()),
            None => context,
        };
        let is_useful = |tool: &&ToolReference| !self.useless_tools.contains(&tool.name.as_str());
        let references: Vec<ToolReference> = self.spec.tools.iter().filter(is_useful).cloned().collect();
        let own = take(&mut self.env.tools).into_iter().map(|tool| {
            let of_attempt = files.and_then(|files| tool.for_attempt(files));
            of_attempt.unwrap_or(tool)
        });
        let of_state = state.map(create_state_tools).unwrap_or_default();
        let tools = context.open_tools(&references).into_iter().chain(own).chain(of_state);
        let tools = tools.map(|tool| hooks.wrap_tool(tool));
        Toolbox::new(tools).map_err(|duplicate| invalid_order_error(&duplicate.to_string()))
    }

    /// Renders the system prompt with its sections.
    fn render_system(
        &mut self,
        toolbox: &Toolbox,
        ability: ModelAbility,
        state: Option<&mut StateRules>,
        sections: &str,
    ) -> Result<String, TaskError> {
        let tool_names: Vec<String> = toolbox.specs().iter().map(|tool| tool.name.clone()).collect();
        let built_in = self.turn_instructions.take();
        let built_in = built_in.or_else(|| built_in_instructions(self.spec.answer, ability));
        let instructions = render_instructions(
            self.spec,
            self.order,
            (&self.inputs.document_list(), &tool_names),
            built_in,
            state,
            sections,
        )?;
        Ok(match sections {
            "" => instructions,
            sections => format!("{}{sections}", instructions.trim_end()),
        })
    }

    /// Opens the model that summarises the conversation; `None` is its own.
    fn open_summarizer(&self) -> Result<Option<Arc<dyn Model>>, TaskError> {
        let Some(selection) = &self.spec.context.summary_model else { return Ok(None) };
        let opened = self.host.models.open_for_run(&RunModels::of_order(self.order), selection);
        opened.map(Some).map_err(|error| invalid_order_error(&error.to_string()))
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

fn hook_context(spec: &AgentSpec, order: &Order) -> HookContext {
    HookContext { attempt: AttemptName::from_order(order), capability: spec.about.name.clone() }
}

/// Embeds the documents of a task that searches them, if a model for embeddings is configured, or reads the recorded vectors. Returns the
/// search by meaning, and the usage.
async fn embed_documents(
    agents: &AgentHost,
    spec: &AgentSpec,
    order: &Order,
    env: &mut SessionEnvironment<'_>,
    inputs: &mut SessionInputs,
) -> Result<(Option<Arc<AttemptEmbeddings>>, (UsageTotals, Duration)), SessionError> {
    let is_task = matches!(order.assignment, Assignment::Task { .. });
    let searches = spec.answer == AnswerForm::Findings || spec.tools.iter().any(|tool| tool.name == SEARCH);
    let corpus = inputs.corpus.clone().filter(|corpus| !corpus.documents().is_empty());
    let Some(corpus) = corpus.filter(|_| is_task && searches) else { return Ok(Default::default()) };
    let hooks = AttemptHooks::new(hook_context(spec, order), env.hooks.clone());
    let embedding = DocumentEmbedding {
        embedder: agents.open_embedder(order, hooks)?,
        corpus: &corpus,
        objective: &order.objective,
        cache: agents.documents.cache.clone(),
        allowance: env.allowance,
    };
    let begun = embeddings::begin(embedding, env.host).await.map_err(host_error)?;
    let Some(begun) = begun else { return Ok(Default::default()) };
    if let Some(embedded) = begun.vectors {
        inputs.corpus = Some(Arc::new(embedded.corpus));
        inputs.objective_vector = Some(embedded.objective);
    }
    Ok((Some(Arc::new(begun.search)), (begun.spent, begun.took)))
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

/// Adds the usage of the work and the files that it made to its result.
pub(super) fn complete_result<A>(result: TaskResult, work: AnsweredWork<A>) -> TaskResult {
    let UsageTotals { usage, models } = work.spent;
    TaskResult { usage, models, artifacts: work.artifacts, ..result }
}

/// The result of a question that there is nothing to answer from.
fn no_sources_result(question: &str) -> TaskResult {
    let Phrases { no_sources, no_sources_advice, .. } = Phrases::choose(question, "");
    let output = format!("{no_sources} {no_sources_advice}");
    TaskResult { summary: no_sources.clone(), output, answered: Some(false), ..TaskResult::default() }
}

/// The answer passed this check a moment ago, and the documents can't have changed since.
fn repeated_check_error(mistake: String) -> TaskError {
    TaskError::new(ErrorKind::Panic, format!("an answer that was valid is invalid now: {mistake}"))
}
