//! An agent's desk: where an order becomes an agent's task. It lays out what the order builds on, seats the agent in
//! its role with its model, and gives back what the work came to. One desk serves all agents of a process. It owns no
//! connection: what is on the log and in the blob store is read through [`Sources`].

mod library;
mod results;

use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use millrace_protocol::plan::{DocumentSet, Work};
use millrace_protocol::result::{
    CapabilityDescription, ErrorKind, Proposal, TaskError, TaskResult, Usage, Verdict,
};
use millrace_protocol::work::{Input, Order};

use crate::builtin::Extractive;
use crate::corpus::Corpus;
use crate::model::{self, Choice, Model, OpenError, Opener};
use crate::roles::{self, DocumentList, Materials, PlanTask, ReviewTask, Role, WorkTask};
use crate::tool::Toolbox;
use crate::turn::{Answer, DriveError, Ended, Journal, Machine, Outcome, Stop, drive};

use library::Library;
use results::Inputs;

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

/// What all agents of a process share: the documents that are open, and the model of those that are told none.
pub struct Desk {
    library: Library,
    model: Arc<dyn Model>,
}

impl Desk {
    /// A desk whose agents use `model` where an order names none (`builtin:extractive` if `None`), and keep documents
    /// in the folder `cache`, or in memory only.
    ///
    /// # Errors
    /// No model has that name.
    pub fn new(model: Option<&str>, cache: Option<PathBuf>) -> Result<Self, OpenError> {
        let model = open(model.unwrap_or(Extractive::NAME))?;
        Ok(Self { library: Library::new(cache), model })
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

    /// Makes a plan for an order, with tasks for these capabilities.
    ///
    /// # Errors
    /// The agent failed, or what it builds on can't be read.
    pub async fn plan(
        &self,
        order: &Order,
        capabilities: Vec<CapabilityDescription>,
        sources: Arc<dyn Sources>,
        journal: &mut dyn Journal,
    ) -> Result<(Proposal, Usage), DeskError> {
        let materials = self.materials(order, sources).await?;
        let task = PlanTask {
            objective: order.objective.clone(),
            capabilities,
            tasks: Vec::new(),
            occasions: order.feedback.clone(),
            documents: list(&materials),
        };
        let toolbox = Role::Planner.toolbox(&materials);
        self.seat(order, roles::planner(&task, &toolbox), &toolbox, journal).await
    }

    /// Carries out the task of an order in a role.
    ///
    /// # Errors
    /// As for [`Desk::plan`]; or the order is no task.
    pub async fn work(
        &self,
        role: Role,
        order: &Order,
        sources: Arc<dyn Sources>,
        journal: &mut dyn Journal,
    ) -> Result<TaskResult, DeskError> {
        let Work::Task { task, .. } = &order.work else {
            return Err(invalid("it is no task").into());
        };
        let materials = self.materials(order, sources).await?;
        let task = WorkTask {
            task_id: task.clone(),
            objective: order.objective.clone(),
            run_objective: order.mission.clone(),
            parameters: order.parameters.clone(),
            feedback: order.feedback.clone(),
            documents: list(&materials),
        };
        let toolbox = role.toolbox(&materials);
        let machine = match role {
            Role::Researcher => roles::researcher(&task, &toolbox),
            Role::Producer => roles::producer(&task, &toolbox),
            Role::Planner | Role::Critic => return Err(invalid("its role does no tasks").into()),
        };
        let (result, usage) = self.seat(order, machine, &toolbox, journal).await?;
        Ok(TaskResult { usage, ..result })
    }

    /// Judges the result that an order is about.
    ///
    /// # Errors
    /// As for [`Desk::plan`]; or the order is no review of a result.
    pub async fn judge(
        &self,
        order: &Order,
        sources: Arc<dyn Sources>,
        journal: &mut dyn Journal,
    ) -> Result<Verdict, DeskError> {
        let (Work::Review { task, .. }, Some(input)) = (&order.work, order.inputs.first()) else {
            return Err(invalid("it is no review of a result").into());
        };
        let result = sources.result(input).await?;
        // The one input is the result under review, which the critic is given as it is.
        let corpus = self.corpus(order, sources.as_ref()).await?;
        let materials = Materials { corpus, results: None };
        let task = ReviewTask {
            task_id: task.clone(),
            objective: order.objective.clone(),
            run_objective: order.mission.clone(),
            capability: order.capability.to_string(),
            criteria: order.criteria.clone(),
            documents: list(&materials),
            result,
        };
        let toolbox = Role::Critic.toolbox(&materials);
        let (verdict, usage) = self.seat(order, roles::critic(&task, &toolbox), &toolbox, journal).await?;
        Ok(Verdict { usage, ..verdict })
    }

    async fn materials(&self, order: &Order, sources: Arc<dyn Sources>) -> Result<Materials, DeskError> {
        let corpus = self.corpus(order, sources.as_ref()).await?;
        let results = (!order.inputs.is_empty()).then(|| Inputs::of(order, sources));
        Ok(Materials { corpus, results })
    }

    async fn corpus(&self, order: &Order, sources: &dyn Sources) -> Result<Option<Arc<Corpus>>, SourceError> {
        match &order.documents {
            None => Ok(None),
            Some(set) => self.library.open(set, sources).await.map(Some),
        }
    }

    /// Runs an agent to its end with the model that the order names, or else our own.
    async fn seat<A: Answer>(
        &self,
        order: &Order,
        machine: Machine<A>,
        toolbox: &Toolbox,
        journal: &mut dyn Journal,
    ) -> Result<(A, Usage), DeskError> {
        let model = match &order.model {
            None => self.model.clone(),
            Some(name) => open(name).map_err(|unknown| invalid(&unknown.to_string()))?,
        };
        // On the heap: a conversation in hand makes a large future.
        let Ended { outcome, usage } =
            Box::pin(drive(machine, model.as_ref(), toolbox, journal)).await.map_err(failed)?;
        match outcome {
            Outcome::Answered(answer) => Ok((answer, usage)),
            Outcome::Stopped(stop) => Err(stopped(&stop).into()),
        }
    }
}

fn open(name: &str) -> Result<Arc<dyn Model>, OpenError> {
    let choice = Choice::parse(name).unwrap_or_else(|_| Choice { models: Vec::new() });
    model::open(&choice, &Opener::default())
}

fn list(materials: &Materials) -> DocumentList {
    materials.corpus.as_deref().map(DocumentList::of).unwrap_or_default()
}

fn invalid(why: &str) -> TaskError {
    TaskError::new(ErrorKind::InvalidTask, format!("an agent can't do this order: {why}"))
}

fn failed(error: DriveError) -> TaskError {
    let kind = match &error {
        DriveError::Model(_) => ErrorKind::Model,
        DriveError::Tool { .. } => ErrorKind::Tool,
        DriveError::Journal(_) => ErrorKind::Other,
        DriveError::Unreadable { .. } | DriveError::OutOfStep(_) => ErrorKind::Panic,
    };
    TaskError::new(kind, error.to_string())
}

fn stopped(stop: &Stop) -> TaskError {
    let kind = match stop {
        Stop::Turns { .. } | Stop::ToolCalls { .. } | Stop::IdenticalCalls { .. } => ErrorKind::Limit,
        Stop::UnusableAnswer { .. } | Stop::ContentFilter => ErrorKind::Model,
    };
    TaskError::new(kind, format!("the agent came to no answer: {stop}"))
}
