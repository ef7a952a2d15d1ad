//! From the command line to a submission: the objective, the plan, the documents. Whatever is wrong with them is said
//! before anything is started.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use futures::StreamExt;
use millrace_agent::corpus::{Listed, Skipped, walk};
use millrace_agent::desk::Preferences;
use millrace_agent::model::{Opener, open};
use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{
    Budget, Consult, Document, DocumentSet, MAX_OBJECTIVE, Mode, Submission, TaskSpec,
};
use millrace_protocol::wire;
use millrace_runtime::{Bus, Fault};
use millrace_worker::builtin;

use crate::budget::BudgetArguments;
use crate::exit::Stop;
use crate::local::Options;
use crate::plan_file::{self, PlanFile};
use crate::prices;
use crate::view::say;

/// How many documents are stored at the same time.
const UPLOADS: usize = 16;

/// What a run is about.
#[derive(Args, Debug, Clone)]
pub struct IntakeArguments {
    /// What you want to know or to have done; may be left away where the plan file has an objective
    objective: Option<String>,
    /// Folder with documents to work from; may be given several times
    #[arg(long, value_name = "DIR")]
    docs: Vec<PathBuf>,
    /// Plan file with tasks of your own (see `millrace schema plan`)
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Who makes the plan [default: what the plan file says, else fixed with a plan file and llm without]
    #[arg(long, value_name = "MODE", value_enum)]
    mode: Option<Modes>,
    /// When the planner is asked [default: never in mode fixed, else where judgement is needed]
    #[arg(long, value_name = "WHEN", value_enum)]
    consult: Option<Consults>,
    #[command(flatten)]
    budget: BudgetArguments,
    /// Let the first failed task end the run
    #[arg(long)]
    fail_fast: bool,
}

/// Who makes the plan.
#[derive(clap::ValueEnum, Debug, Clone, Copy)]
enum Modes {
    /// The planner makes the plan and changes it
    Llm,
    /// The planner extends and changes the plan of --plan
    Hybrid,
    /// The plan of --plan is carried out as it is
    Fixed,
}

impl From<Modes> for Mode {
    fn from(mode: Modes) -> Self {
        match mode {
            Modes::Llm => Self::Llm,
            Modes::Hybrid => Self::Hybrid,
            Modes::Fixed => Self::Fixed,
        }
    }
}

/// When the planner is asked.
#[derive(clap::ValueEnum, Debug, Clone, Copy)]
enum Consults {
    /// Never
    Never,
    /// No plan yet, a failure, nothing left to do, no progress, a message, a budget that comes to its end
    Judgement,
    /// The same, and whenever a result was accepted
    #[value(alias = "every_result")]
    EveryResult,
}

impl From<Consults> for Consult {
    fn from(consult: Consults) -> Self {
        match consult {
            Consults::Never => Self::Never,
            Consults::Judgement => Self::Judgement,
            Consults::EveryResult => Self::EveryResult,
        }
    }
}

/// A run that is ready to be handed in, but for its documents.
pub struct Intake {
    objective: String,
    tasks: Vec<TaskSpec>,
    fail_fast: bool,
    mode: Mode,
    consult: Option<Consult>,
    budget: Budget,
    models: Preferences,
    files: Vec<Listed>,
    /// Files that can't be read, and why.
    pub skipped: Vec<Skipped>,
}

impl Intake {
    /// Reads and checks what the arguments name.
    pub fn read(arguments: &IntakeArguments, models: &[String]) -> Result<Self, Stop> {
        let models = read_models(models)?;
        let plan = arguments.plan.as_deref().map(plan_file::load).transpose().map_err(Stop::refused)?;
        let objective = objective(arguments.objective.as_deref(), plan.as_ref())?;
        let mode = mode(arguments.mode, plan.as_ref())?;
        let plan = plan.unwrap_or_default();
        let consult = consult(mode, arguments.consult, &plan)?;
        let budget = arguments.budget.over(plan.budget).map_err(|why| Stop::refused(anyhow!(why)))?;
        let (files, skipped) = read_documents(&arguments.docs)?;
        let fail_fast = arguments.fail_fast || plan.fail_fast;
        Ok(Self { objective, tasks: plan.tasks, fail_fast, mode, consult, budget, models, files, skipped })
    }

    /// Whether a planner is asked in it, who can mend what is wrong with its tasks.
    pub fn has_planner(&self) -> bool {
        match self.mode {
            Mode::Llm | Mode::Hybrid => true,
            Mode::Fixed => self.consult.is_some_and(|consult| consult > Consult::Never),
        }
    }

    /// The capabilities that the plan's tasks need, without repetition.
    pub fn capabilities(&self) -> BTreeSet<&Capability> {
        self.tasks.iter().map(|task| &task.capability).collect()
    }

    /// The capabilities for which a model of their own is named.
    pub fn modelled(&self) -> impl Iterator<Item = &Capability> {
        self.models.own.keys()
    }

    /// The capabilities that have a budget of their own.
    pub fn budgeted(&self) -> impl Iterator<Item = &Capability> {
        self.budget.capabilities.keys()
    }

    /// Whether a model is named for anything in it.
    pub fn names_models(&self) -> bool {
        !self.models.is_empty()
    }

    /// Whether anything in it is done by a language model: the planning, or a task.
    pub fn asks_models(&self) -> bool {
        self.has_planner() || self.tasks.iter().any(|task| task.capability.as_str() != "echo")
    }

    /// What whoever hands it in should know: a budget in money that can't count everything.
    pub fn warning(&self) -> Option<String> {
        let amounts = [self.budget.amounts, self.budget.attempt].into_iter();
        let mut amounts = amounts.chain(self.budget.capabilities.values().copied());
        amounts.find(|amounts| amounts.cost_micros.is_some())?;
        let unknown = prices::unknown(self.models.choices());
        let unknown: Vec<&str> = unknown.iter().map(String::as_str).collect();
        let names = unknown.join(", ");
        (!unknown.is_empty()).then(|| {
            format!(
                "millrace: warning: no price is known of {names}, so that its cost counts as nothing: {}",
                prices::ADVICE
            )
        })
    }

    /// Stores the documents, and gives the submission.
    ///
    /// # Errors
    /// The server does not answer or is full.
    pub async fn into_submission(self, bus: &Bus) -> Result<Submission, Fault> {
        let documents = if self.files.is_empty() { None } else { Some(store(bus, self.files).await?) };
        Ok(Submission {
            tasks: self.tasks,
            documents,
            model: self.models.general.map(|choice| choice.to_string()),
            models: self.models.own.into_iter().map(|(name, choice)| (name, choice.to_string())).collect(),
            fail_fast: self.fail_fast,
            budget: self.budget,
            consult: self.consult,
            ..Submission::new(self.objective, self.mode)
        })
    }
}

/// The models that the arguments name. A name that can't be is refused here, before anything is started.
pub fn read_models(texts: &[String]) -> Result<Preferences, Stop> {
    let models = Preferences::parse(texts.iter().map(String::as_str)).map_err(Stop::refused)?;
    models.choices().try_for_each(millrace_agent::model::check).map_err(Stop::refused)?;
    Ok(models)
}

/// Opens the models for whose use a cluster is to be started. Its workers have the environment of this process: where a
/// key, an address or a file is missing here, they would end as often as they are started.
pub fn try_models(options: &Options) -> Result<(), Stop> {
    let opener = Opener { record: options.record.clone(), ..Opener::default() };
    let models = read_models(&options.model)?;
    models.choices().try_for_each(|choice| open(choice, &opener).map(drop)).map_err(Stop::environment)?;
    let own = options.capabilities().map_err(Stop::refused)?;
    warn_of_unused(models.own.keys(), builtin::NAMES.into_iter().chain(own.iter().map(String::as_str)));
    Ok(())
}

/// Says for which of these capabilities a model or a budget is named though there is none of the name.
pub fn warn_of_unused<'a>(
    named: impl Iterator<Item = &'a Capability>,
    offered: impl Iterator<Item = &'a str>,
) {
    // Critics need not offer what they do, and a planner may come later.
    let offered: BTreeSet<&str> = offered.chain(["critic", "planner"]).collect();
    for name in named.map(Capability::as_str).filter(|name| !offered.contains(name)).collect::<BTreeSet<_>>()
    {
        let hint = millrace_forms::did_you_mean(name, offered.iter().copied());
        let offered = offered.iter().copied().collect::<Vec<_>>().join(", ");
        say(&format!(
            "millrace: warning: no worker offers {name:?}, for which a model or a budget is named{hint}; there are {offered}"
        ));
    }
}

/// Who makes the plan, as the command line says, or else the plan file.
fn mode(given: Option<Modes>, plan: Option<&PlanFile>) -> Result<Mode, Stop> {
    let refused = |text: &str| Err(Stop::refused(anyhow!("{text}")));
    match (given.map(Mode::from), plan) {
        (None | Some(Mode::Llm), None) => Ok(Mode::Llm),
        (None, Some(plan)) => Ok(plan.mode.unwrap_or(Mode::Fixed)),
        (Some(Mode::Hybrid | Mode::Fixed), Some(_)) => Ok(given.map_or(Mode::Fixed, Mode::from)),
        (Some(Mode::Llm), Some(_)) => refused(
            "in mode llm the planner makes the plan: leave --plan away, or use --mode hybrid to have it extend and change \
             yours",
        ),
        (Some(Mode::Hybrid), None) => refused(
            "mode hybrid needs a plan that the planner extends and changes: name its file with --plan",
        ),
        (Some(Mode::Fixed), None) => {
            refused("mode fixed needs a plan: name its file with --plan, or use --mode llm to have one made")
        }
    }
}

/// When the planner is asked, as the command line says, or else the plan file.
fn consult(mode: Mode, given: Option<Consults>, plan: &PlanFile) -> Result<Option<Consult>, Stop> {
    match (mode, given.map(Consult::from).or(plan.consult)) {
        (Mode::Llm | Mode::Hybrid, Some(Consult::Never)) => Err(Stop::refused(anyhow!(
            "a plan that the planner makes or changes needs it to be asked: `consult` is never in mode fixed alone"
        ))),
        (Mode::Llm | Mode::Hybrid | Mode::Fixed, consult) => Ok(consult),
    }
}

fn objective(given: Option<&str>, plan: Option<&PlanFile>) -> Result<String, Stop> {
    let from_plan = || plan.and_then(|plan| plan.objective.as_deref());
    let objective = given.or_else(from_plan).ok_or_else(|| {
        let hint =
            if plan.is_some() { "give one, or write `objective:` into the plan file" } else { "give one" };
        Stop::refused(anyhow!("there is no objective: {hint}, as in: millrace run \"How does … work?\""))
    })?;
    if objective.trim().is_empty() {
        return Err(Stop::refused(anyhow!(
            "the objective is empty: say what you want to know or to have done"
        )));
    }
    if objective.len() > MAX_OBJECTIVE {
        let (bytes, max) = (objective.len(), MAX_OBJECTIVE);
        return Err(Stop::refused(anyhow!(
            "the objective has {bytes} bytes; at most {max} are allowed: put long material into files, and hand \
             them in with --docs"
        )));
    }
    Ok(objective.trim().to_owned())
}

/// The documents of all folders. Where there are several, each one's name leads its paths.
fn read_documents(folders: &[PathBuf]) -> Result<(Vec<Listed>, Vec<Skipped>), Stop> {
    let (mut files, mut skipped) = (Vec::new(), Vec::new());
    for folder in folders {
        let (mut found, mut passed_over) = walk(folder).map_err(Stop::refused)?;
        if folders.len() > 1 {
            let name = prefix(folder);
            found.iter_mut().for_each(|file| file.path = format!("{name}/{}", file.path));
            passed_over.iter_mut().for_each(|file| file.path = format!("{name}/{}", file.path));
        }
        if found.is_empty() {
            let folder = folder.display();
            return Err(Stop::refused(anyhow!(
                "there is nothing to read in {folder}: text, Markdown and HTML are read"
            )));
        }
        files.extend(found);
        skipped.extend(passed_over);
    }
    let mut paths = BTreeSet::new();
    for file in &files {
        if !paths.insert(file.path.as_str()) {
            return Err(Stop::refused(anyhow!(
                "two documents have the path {}: rename one of the --docs folders",
                file.path
            )));
        }
    }
    Ok((files, skipped))
}

fn prefix(folder: &Path) -> String {
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    whole.file_name().map_or_else(|| "docs".into(), |name| name.to_string_lossy().into_owned())
}

/// Stores files by content, and a manifest that names them. Each is read when its turn comes.
async fn store(bus: &Bus, files: Vec<Listed>) -> Result<DocumentSet, Fault> {
    let puts = futures::stream::iter(files).map(|listed| async move {
        let read =
            tokio::task::spawn_blocking(|| listed.read()).await.expect("reading a file does not panic");
        let file = match read {
            Ok(file) => file,
            Err(Skipped { path, reason }) => {
                say(&format!("millrace: passed over {path}: {reason}"));
                return Ok(None);
            }
        };
        let stored = bus.blobs().put(&file.bytes).await?;
        Ok::<_, Fault>(Some(Document { path: file.path, sha256: stored.sha256, size: stored.size }))
    });
    let documents: Vec<Result<Option<Document>, Fault>> = puts.buffered(UPLOADS).collect().await;
    let documents: Vec<Document> =
        documents.into_iter().filter_map(Result::transpose).collect::<Result<_, _>>()?;
    let manifest = bus.blobs().put(&wire::body(&documents)).await?;
    Ok(DocumentSet {
        manifest: manifest.sha256,
        count: u32::try_from(documents.len()).unwrap_or(u32::MAX),
        bytes: documents.iter().map(|document| document.size).sum(),
    })
}

/// Writes a file, making its folder if need be.
pub fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("can't make the folder {}", folder.display()))?;
    }
    std::fs::write(path, text).with_context(|| format!("can't write {}", path.display()))
}
