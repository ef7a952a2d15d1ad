//! An agent's desk: where an order becomes an agent's task. It lays out what the order builds on, seats the agent that a
//! [`Spec`] describes with its model and its tools, and gives back what the work came to. One desk serves all agents of
//! a process. It owns no connection: what is on the log and in the blob store is read through [`Sources`].
//!
//! ```text
//! Desk
//! ├─ Library   the documents that are open
//! ├─ Models    which model whoever gets, and those that are open
//! └─ Bench     what lies before one agent; from it come its tools
//! ```

mod consulting;
mod findings;
mod judge;
mod laid;
mod library;
mod marks;
mod models;
mod plan;
mod report;
mod results;
pub mod shelf;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use jiff::Timestamp;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{Amounts, DocumentSet, Plan, Work};
use millrace_protocol::result::{CapabilityDescription, ErrorKind, TaskError, TaskResult};
use millrace_protocol::work::{Input, Order};
use serde::de::DeserializeOwned;

use crate::corpus::Corpus;
use crate::files::Files;
use crate::model::{AnswerSchema, Choice, Model, OpenError, Opener, Watch};
use crate::planner::{self, Offer};
use crate::roles::{self, DocumentList, WorkTask};
use crate::spec::{AnswerForm, RunView, Spec, TaskView, View, day};
use crate::tool::{Tool, Toolbox, read_json};
use crate::turn::{
    Answer, AttemptName, Brief, Check, Data, DriveError, Driver, Failure, Journal, Machine, PlainText, Spent,
};

use consulting::Directory;
use laid::Laid;
use library::Library;
use models::Models;
use report::Numbered;

pub use findings::{Findings, Passage};
pub use models::Preferences;
pub use report::Report;

/// How often a model is told that its quotations stand nowhere, before those are left out.
const MAX_TOLD: u32 = 1;

/// What an order builds on, wherever it is kept.
pub trait Sources: Send + Sync + 'static {
    /// The result that an input names.
    ///
    /// # Errors
    /// See [`SourceError`].
    fn result<'a>(&'a self, input: &'a Input) -> BoxFuture<'a, Result<TaskResult, SourceError>>;

    /// The bytes with this SHA-256.
    ///
    /// # Errors
    /// See [`SourceError`].
    fn blob<'a>(&'a self, sha256: &'a str) -> BoxFuture<'a, Result<Vec<u8>, SourceError>>;

    /// The run's plan as its decision with the sequence `through` left it; of a run with none, all that its order says.
    ///
    /// # Errors
    /// See [`SourceError`].
    fn plan<'a>(&'a self, order: &'a Order, through: u64) -> BoxFuture<'a, Result<Plan, SourceError>> {
        let _ = through;
        ready(Ok(planner::blank(order))).boxed()
    }

    /// What the cluster can do, and how many are there to do it, for planners.
    ///
    /// # Errors
    /// See [`SourceError`].
    fn offers(&self) -> BoxFuture<'_, Result<Vec<Offer>, SourceError>> {
        let known = self.capabilities();
        known.map(|known| Ok(known?.into_iter().map(|about| Offer { about, slots: None }).collect())).boxed()
    }

    /// What the cluster can do, for agents that ask each other.
    ///
    /// # Errors
    /// See [`SourceError`].
    fn capabilities(&self) -> BoxFuture<'_, Result<Vec<CapabilityDescription>, SourceError>> {
        ready(Ok(Vec::new())).boxed()
    }
}

/// Why a source can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The store does not answer. Another try may succeed.
    #[error("{0}")]
    Unavailable(String),
    /// It is not there, or not what it should be.
    #[error("{0}")]
    Broken(String),
}

/// Why an agent's work came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeskError {
    /// The work failed.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// What it builds on can't be read.
    #[error(transparent)]
    Source(#[from] SourceError),
}

impl From<Failure> for DeskError {
    /// What a tool rests on may be there again in a moment: the attempt, and all that is in its journal, stays.
    fn from(failure: Failure) -> Self {
        match failure.error.as_ref() {
            DriveError::Tool { .. } => Self::Source(SourceError::Unavailable(failure.error.to_string())),
            DriveError::Model(_)
            | DriveError::Journal(_)
            | DriveError::Unreadable { .. }
            | DriveError::OutOfStep(_) => Self::Task(failure.into()),
        }
    }
}

/// How the agents of a process are set.
#[derive(Clone, Default)]
pub struct Settings {
    /// The models they use where neither run nor capability names one.
    pub models: Preferences,
    /// What models are opened with.
    pub opener: Opener,
    /// The folder in which documents and their indices are kept; `None` keeps them in memory only.
    pub cache: Option<PathBuf>,
}

/// What an agent is seated with besides its order.
pub struct Seat<'a> {
    /// Where it reads.
    pub sources: Arc<dyn Sources>,
    /// Where its steps are kept.
    pub journal: &'a mut dyn Journal,
    /// The files of the run, if there is a place for them.
    pub files: Option<Arc<dyn Files>>,
    /// Tools beyond those of this crate.
    pub tools: Vec<Arc<dyn Tool>>,
    /// Who looks on.
    pub watch: &'a dyn Watch,
    /// What is reserved of the run's budget for it; it counts beside the limits of its capability.
    pub allowance: Amounts,
}

impl<'a> Seat<'a> {
    /// A seat without files, further tools, anybody who looks on, and a reservation.
    pub fn new(sources: Arc<dyn Sources>, journal: &'a mut dyn Journal) -> Self {
        let allowance = Amounts::default();
        Self { sources, journal, files: None, tools: Vec::new(), watch: &(), allowance }
    }
}

/// What all agents of a process share.
pub struct Desk {
    library: Library,
    models: Arc<Models>,
}

/// An agent that is about to begin: what it is told, and what it works with.
struct Ready<'a> {
    attempt: AttemptName,
    brief: Brief,
    toolbox: Toolbox,
    model: Arc<dyn Model>,
    seat: Seat<'a>,
}

impl Desk {
    /// A desk for agents that are set so.
    ///
    /// # Errors
    /// A model that is named can't be opened.
    pub fn new(settings: Settings) -> Result<Self, OpenError> {
        let Settings { models, opener, cache } = settings;
        Ok(Self { library: Library::new(cache), models: Arc::new(Models::new(models, opener)?) })
    }

    /// Whether a model that a capability names can be opened here, so that a mistake is known before there is any work.
    ///
    /// # Errors
    /// It can't.
    pub fn check(&self, choice: &Choice) -> Result<(), OpenError> {
        self.models.open(choice).map(drop)
    }

    /// The documents of a run, opened once for all who ask.
    ///
    /// # Errors
    /// They can't be had or not be indexed.
    pub async fn documents(
        &self,
        set: &DocumentSet,
        sources: &dyn Sources,
    ) -> Result<Arc<Corpus>, SourceError> {
        self.library.open(set, sources).await
    }

    /// Carries out the task of an order.
    ///
    /// # Errors
    /// The agent failed, or what it builds on can't be read; or the order is no task.
    pub async fn work(&self, spec: &Spec, order: &Order, seat: Seat<'_>) -> Result<TaskResult, DeskError> {
        let Work::Task { task, .. } = &order.work else {
            return Err(invalid("it is no task").into());
        };
        let laid = Laid::out(&self.library, spec, order, seat.sources.as_ref()).await?;
        let question = WorkTask {
            task_id: task.clone(),
            objective: order.objective.clone(),
            run_objective: order.mission.clone(),
            parameters: order.parameters.clone(),
            feedback: order.feedback.clone(),
            documents: laid.documents(),
        };
        let question = roles::question(&question, &laid.shown(order, spec.answer));
        let form = spec.answer;
        let answer = match form {
            AnswerForm::Findings => findings::schema(laid.corpus.as_deref()),
            AnswerForm::Report => Report::schema(form.name()),
            AnswerForm::Text => None,
            AnswerForm::Data => Data::schema(form.name()).map(|schema| AnswerSchema {
                schema: spec.about.output.clone().unwrap_or(schema.schema),
                ..schema
            }),
            AnswerForm::Plan => return Err(invalid("an agent that answers with a plan does no tasks").into()),
        };
        let ready = self.ready(spec, order, question, answer, &laid, seat)?;
        let (result, Spent { usage, models }) = ready.result(form, &laid).await?;
        Ok(TaskResult { usage, models, ..result })
    }

    fn ready<'a>(
        &self,
        spec: &Spec,
        order: &Order,
        task: String,
        answer: Option<AnswerSchema>,
        laid: &Laid,
        mut seat: Seat<'a>,
    ) -> Result<Ready<'a>, TaskError> {
        let model = self.models.of(order, &spec.about.name, spec.model.as_ref());
        let model = model.map_err(|error| invalid(&error.to_string()))?;
        let directory =
            Directory::new(spec.about.name.clone(), seat.sources.clone(), self.models.clone(), model.clone());
        let files = seat.files.clone().map(|files| (laid.mounted(files), spec.permissions.clone()));
        let bench = shelf::Bench {
            corpus: laid.corpus.clone(),
            results: laid.results(order, &seat.sources),
            files,
            consultants: Some(Arc::new(directory)),
        };
        let tools = bench.tools(&spec.tools).into_iter().chain(std::mem::take(&mut seat.tools));
        let toolbox = Toolbox::new(tools).map_err(|twice| invalid(&twice.to_string()))?;
        let brief = Brief {
            system: instructions(spec, order, &laid.documents())?,
            task,
            tools: toolbox.specs(),
            answer,
            limits: spec.limits,
            max_output_tokens: match spec.answer {
                AnswerForm::Findings => findings::MAX_OUTPUT_TOKENS,
                AnswerForm::Report | AnswerForm::Text | AnswerForm::Data | AnswerForm::Plan => {
                    roles::MAX_OUTPUT_TOKENS
                }
            },
        };
        Ok(Ready { attempt: AttemptName::of(order), brief, toolbox, model, seat })
    }
}

impl Ready<'_> {
    /// Runs the agent to its end, in the form of a task's result.
    async fn result(self, form: AnswerForm, laid: &Laid) -> Result<(TaskResult, Spent), DeskError> {
        let corpus = laid.corpus.as_deref();
        match form {
            AnswerForm::Findings => {
                let told = AtomicU32::new(0);
                let check = |answer: Findings| match findings::resolve(&answer, corpus) {
                    Ok(_) => Ok(answer),
                    Err(mistake) if told.fetch_add(1, Ordering::Relaxed) < MAX_TOLD => Err(mistake),
                    Err(mistake) => {
                        let rest = findings::without_what_stands_nowhere(&answer, corpus);
                        rest.filter(|rest| findings::resolve(rest, corpus).is_ok()).ok_or(mistake)
                    }
                };
                let (answer, spent) = self.answer(&check).await?;
                Ok((findings::resolve(&answer, corpus).map_err(changed)?, spent))
            }
            AnswerForm::Report => {
                let none = Numbered::default();
                let inputs = laid.numbered.as_deref().unwrap_or(&none);
                let check = |answer: Report| inputs.resolve(&answer).map(|_| answer);
                let (answer, spent) = self.answer(&check).await?;
                Ok((inputs.resolve(&answer).map_err(changed)?, spent))
            }
            AnswerForm::Text => {
                let (PlainText(output), spent) = self.answer(&|text: PlainText| Ok(text)).await?;
                Ok((TaskResult { output, ..TaskResult::default() }, spent))
            }
            AnswerForm::Data | AnswerForm::Plan => {
                let (Data(data), spent) = self.answer(&|data: Data| Ok(data)).await?;
                let output = format!("```json\n{data:#}\n```");
                let summary = data["summary"].as_str().unwrap_or_default().to_owned();
                Ok((TaskResult { summary, output, data: Some(data), ..TaskResult::default() }, spent))
            }
        }
    }

    /// Runs the agent to its end; `check` says what is wrong with an answer beyond its form.
    async fn answer<A: Answer>(self, check: &Check<'_, A>) -> Result<(A, Spent), DeskError> {
        let Self { attempt, brief, toolbox, model, seat } = self;
        let machine = Machine::new(brief).within(seat.allowance);
        let driver = Driver::new(model.as_ref(), &toolbox, seat.journal)
            .attempt(attempt)
            .watch(seat.watch)
            .files(seat.files)
            .check(check);
        // On the heap: a conversation in hand makes a large future.
        let ended = Box::pin(driver.drive(machine)).await?;
        Ok(ended.into_result()?)
    }
}

/// What an agent is told above its conversation.
fn instructions(spec: &Spec, order: &Order, documents: &DocumentList) -> Result<String, TaskError> {
    let planning = TaskId::new("planning").expect("it is letters");
    let id = match &order.work {
        Work::Task { task, .. } | Work::Review { task, .. } => task,
        Work::Planning { .. } => &planning,
    };
    let task =
        TaskView { id, objective: &order.objective, feedback: &order.feedback, is_final: order.is_final };
    let view = View {
        run: RunView { id: &order.run, objective: &order.mission },
        task,
        parameters: &order.parameters,
        documents,
        today: day(Timestamp::now()),
    };
    let rendered = spec.instructions.render(&view);
    rendered.map_err(|error| invalid(&format!("the instructions of {}: {error}", spec.about.name)))
}

/// Reads an answer.
pub(crate) fn read<A: DeserializeOwned>(text: &str) -> Result<A, String> {
    let value =
        read_json(text).map_err(|mistake| format!("The answer is not one JSON object: {mistake}."))?;
    serde_json::from_value(value).map_err(|mistake| format!("The answer does not fit its schema: {mistake}."))
}

fn invalid(why: &str) -> TaskError {
    TaskError::new(ErrorKind::InvalidTask, format!("an agent can't do this order: {why}"))
}

/// What was checked is checked again for what it makes; the documents can't have changed in between.
fn changed(mistake: String) -> TaskError {
    TaskError::new(ErrorKind::Panic, format!("an answer that was right is wrong now: {mistake}"))
}
