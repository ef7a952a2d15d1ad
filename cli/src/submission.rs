//! Builds a submission from the command line: the objective, the plan, the documents. Mistakes in them are reported before
//! anything is started.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use millrace_agent::corpus::ListedFile;
use millrace_agent::model::{ModelFactory, ModelSelection, open_model};
use millrace_agent::roles::RESEARCH;
use millrace_agent::session::ModelPreferences;
use millrace_client::{EarlierResults, read_earlier_run};
use millrace_protocol::ids::{Capability, SessionId};
use millrace_protocol::labels::{Labels, parse_label};
use millrace_protocol::plan::{
    CapabilityRegistry, EarlierRun, PlannerConsultMode, PlanningMode, Submission, TaskSpec,
    find_earlier_runs_problem,
};
use millrace_protocol::result::VerificationPolicy;
use millrace_protocol::subject::{CRITIC, EMBEDDINGS, PLANNER, VERIFIER};
use millrace_protocol::trace_context::TraceParent;
use millrace_runtime::Bus;
use millrace_strict_yaml::YamlMistake;
use millrace_worker::{builtin, file};

use crate::budget::BudgetArguments;
use crate::documents::{DocumentFiles, list_skipped_files, upload_documents};
use crate::exit::CommandError;
use crate::plan_file::{self, CapabilityMistakes, RunDescription, RunMistake, TaskFieldPositions};
use crate::view::print_stderr_line;
use millrace_local_cluster::LocalOptions;

/// The arguments that describe a run.
#[derive(Args, Debug, Clone)]
pub struct SubmissionArguments {
    /// The question to answer or the work to do; may be omitted if the plan file has an objective
    objective: Option<String>,
    /// Source documents: a folder, a file, a pattern such as 'notes/**/*.pdf', a URL, or - for standard input; text of any
    /// kind, HTML, PDF, office documents, EPUB, notebooks, e-mail and images are read. May be given several times
    #[arg(long, value_name = "PATH|URL|-")]
    docs: Vec<String>,
    /// List the files that were skipped, with the reasons
    #[arg(long)]
    verbose: bool,
    /// Plan file with your own tasks (see `millrace schema plan`)
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Planning mode [default: as in the plan file; or else fixed with a plan file, llm without]
    #[arg(long, value_name = "MODE", value_enum)]
    mode: Option<ModeArgument>,
    /// When the planner is called [default: never in mode fixed, judgement in the other modes]
    #[arg(long, value_name = "WHEN", value_enum)]
    consult: Option<ConsultArgument>,
    #[command(flatten)]
    budget: BudgetArguments,
    /// End the run when the first task fails
    #[arg(long)]
    fail_fast: bool,
    /// Start no task before a person has approved the plan (`millrace inbox` shows it, `millrace answer` approves it)
    #[arg(long)]
    approve_plan: bool,
    /// Consequence of statements that no source supports: mark delivers them with a footnote, remove takes those out that the
    /// sources refute, require fails the attempt [default: as in the plan file, else as in each capability file, else mark]
    #[arg(long, value_name = "POLICY", value_parser = policy_parser())]
    verification: Option<VerificationPolicy>,
    /// Criterion for the deliverable, one sentence: a critic checks it in the result of the final task; may be given several
    /// times
    #[arg(long, value_name = "TEXT")]
    criteria: Vec<String>,
    /// Follow up on a run that has ended: its results and files are documents of the new run. A run id, a unique prefix of one,
    /// or `latest`; may be given several times
    #[arg(long, value_name = "RUN")]
    after: Vec<String>,
    /// Label of the run, to find it by (`millrace list --label`); may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_label)]
    label: Vec<(String, String)>,
    /// Session of the run: it starts when the runs that were submitted to the session before it have ended, and sees their results
    /// and files as with --after
    #[arg(long, value_name = "NAME")]
    session: Option<SessionId>,
}

fn policy_parser() -> impl TypedValueParser<Value = VerificationPolicy> {
    let names = PossibleValuesParser::new(["mark", "remove", "require"]);
    names.try_map(|name| serde_json::from_value(serde_json::Value::String(name)))
}

/// The planning mode.
#[derive(clap::ValueEnum, Debug, Clone, Copy)]
enum ModeArgument {
    /// The planner makes the plan and changes it
    Llm,
    /// The planner extends and changes the plan in --plan
    Hybrid,
    /// The plan in --plan is executed as it is
    Fixed,
}

impl From<ModeArgument> for PlanningMode {
    fn from(mode: ModeArgument) -> Self {
        match mode {
            ModeArgument::Llm => Self::Llm,
            ModeArgument::Hybrid => Self::Hybrid,
            ModeArgument::Fixed => Self::Fixed,
        }
    }
}

/// When the planner is called.
#[derive(clap::ValueEnum, Debug, Clone, Copy)]
enum ConsultArgument {
    /// Never
    Never,
    /// For the first plan, a failure, no tasks left, no progress, a message, or a budget running low
    Judgement,
    /// The same, and after each accepted result
    #[value(alias = "every_result")]
    EveryResult,
}

impl From<ConsultArgument> for PlannerConsultMode {
    fn from(consult: ConsultArgument) -> Self {
        match consult {
            ConsultArgument::Never => Self::Never,
            ConsultArgument::Judgement => Self::Judgement,
            ConsultArgument::EveryResult => Self::EveryResult,
        }
    }
}

/// A run that is ready for submission once its documents are uploaded.
pub struct PendingSubmission {
    /// The run, without its documents and earlier runs.
    submission: Submission,
    /// The plan file, as named by the user, and the positions of its tasks.
    plan_file: Option<(String, Vec<TaskFieldPositions>)>,
    models: ModelPreferences,
    documents: DocumentFiles,
    /// The runs to follow up on, as the user names them.
    after: Vec<String>,
    is_verbose: bool,
}

/// Collects the labels of a run, each name once.
fn collect_labels(all: &[(String, String)]) -> Result<Labels, CommandError> {
    let mut labels = Labels::new();
    for (name, value) in all {
        if labels.insert(name.clone(), value.clone()).is_some_and(|other| other != *value) {
            return Err(refused!("the label {name} has two values; give it once"));
        }
    }
    Ok(labels)
}

impl PendingSubmission {
    /// Reads and validates the plan, the documents and the other arguments.
    pub async fn read_arguments(
        arguments: &SubmissionArguments,
        models: &[String],
    ) -> Result<Self, CommandError> {
        let models = parse_model_preferences(models)?;
        let plan = arguments
            .plan
            .as_deref()
            .map(plan_file::load_plan_file)
            .transpose()
            .map_err(CommandError::invalid_input)?;
        let has_plan = plan.is_some();
        let positions = plan.as_ref().map(|plan| plan.positions.clone()).unwrap_or_default();
        let plan_file = arguments.plan.as_ref().map(|path| (path.display().to_string(), positions));
        let budget = plan.as_ref().map(|plan| plan.budget.clone()).unwrap_or_default();
        let description = RunDescription {
            objective: arguments.objective.clone(),
            mode: arguments.mode.map(Into::into),
            consult: arguments.consult.map(Into::into),
            models: models.clone(),
            budget: Some(arguments.budget.override_budget(budget).map_err(|why| refused!(why))?),
            fail_fast: arguments.fail_fast,
            approve_plan: arguments.approve_plan,
            verification: arguments.verification,
            criteria: arguments.criteria.clone(),
            labels: collect_labels(&arguments.label)?,
            session: arguments.session.clone(),
        };
        let submission = description.into_submission(plan);
        let submission = submission.map_err(|mistake| describe_run_mistake(&mistake, has_plan))?;
        let documents = DocumentFiles::collect(&arguments.docs).await?;
        let (after, is_verbose) = (arguments.after.clone(), arguments.verbose);
        Ok(Self { submission, plan_file, models, documents, after, is_verbose })
    }

    /// `true` if the run has a planner, which can repair its tasks.
    pub fn has_planner(&self) -> bool {
        self.submission.has_planner()
    }

    fn tasks(&self) -> impl Iterator<Item = &TaskSpec> {
        self.submission.tasks.iter().map(AsRef::as_ref)
    }

    /// Checks the tasks of the plan file against the known capabilities: refuses parameters that a capability does not
    /// accept, all at once, unless a planner can repair them. Returns a line for each task whose capability is unknown.
    pub fn check_tasks(&self, known: &CapabilityRegistry) -> Result<Vec<String>, CommandError> {
        let Some((file, positions)) = &self.plan_file else { return Ok(Vec::new()) };
        check_tasks_of_file(file, (self.tasks(), positions), known, self.has_planner())
    }

    pub fn capabilities_with_model(&self) -> impl Iterator<Item = &Capability> {
        self.models.by_capability.keys()
    }

    pub fn capabilities_with_budget(&self) -> impl Iterator<Item = &Capability> {
        self.submission.budget.capabilities.keys()
    }

    /// `true` if the command line chooses any model.
    pub fn has_model_argument(&self) -> bool {
        !self.models.is_empty()
    }

    /// `true` if the planner or any task calls the default model. `others` are the capabilities of files that have a model of their own
    /// or need none.
    pub fn calls_default_model(&self, others: &[String]) -> bool {
        let needs_none = |name: &str| name == "echo" || others.iter().any(|other| other == name);
        self.has_planner() || self.tasks().any(|task| !needs_none(task.capability.as_str()))
    }

    /// `true` if some of the work can only be done by reading documents as long as no language model is configured. `own` are
    /// the capabilities of files, which may replace the built-in ones.
    fn needs_documents_without_model(&self, own: &[String]) -> bool {
        let is_own = |name: &str| own.iter().any(|capability| capability == name);
        match self.submission.mode {
            PlanningMode::Llm => !is_own(RESEARCH),
            PlanningMode::Hybrid | PlanningMode::Fixed => {
                !is_own(RESEARCH) && self.tasks().any(|task| task.capability.as_str() == RESEARCH)
            }
        }
    }

    /// Refuses a run without a language model that has no readable document: nothing could answer it.
    pub fn refuse_without_material(&self, own: &[String]) -> Result<(), CommandError> {
        if !self.needs_documents_without_model(own) {
            return Ok(());
        }
        const WAY_OUT: &str =
            "choose a language model with --model provider:model, or name documents with --docs";
        let DocumentFiles { readable, skipped, .. } = &self.documents;
        if *readable > 0 || !self.after.is_empty() || self.submission.session.is_some() {
            return Ok(());
        }
        if skipped.is_empty() {
            return Err(refused!(
                "there is nothing to answer from: no documents and no language model; {WAY_OUT}"
            ));
        }
        Err(refused!(
            "there is nothing to answer from: no language model, and none of the {} files can be read; {WAY_OUT}\n{}",
            skipped.len(),
            list_skipped_files(skipped)
        ))
    }

    /// Prints the number of documents of the run and a summary of the skipped files.
    pub fn print_documents(&self) {
        self.documents.summary_lines(self.is_verbose).iter().for_each(|line| print_stderr_line(line));
    }

    /// Uploads the documents, those of earlier runs included, and returns the submission.
    pub async fn into_submission(self, bus: &Bus) -> Result<Submission, CommandError> {
        let mut files = self.documents.files;
        let mut after: Vec<EarlierRun> = Vec::new();
        for text in &self.after {
            let EarlierResults { about, documents } = read_earlier_run(bus, text).await?;
            if after.iter().any(|earlier| earlier.run == about.run) {
                continue;
            }
            let named = documents.len();
            note!("following up on run {} ({named} documents)", about.run);
            files.extend(documents.into_iter().map(|(path, bytes)| ListedFile::from_bytes(path, bytes)));
            after.push(about);
        }
        if let Some(problem) = find_earlier_runs_problem(&after) {
            return Err(refused!("{problem}"));
        }
        let documents = if files.is_empty() { None } else { Some(upload_documents(bus, files).await?) };
        Ok(Submission { documents, after, trace_parent: read_trace_parent(), ..self.submission })
    }
}

/// Returns the span of the calling program, which the variable `TRACEPARENT` names.
fn read_trace_parent() -> Option<TraceParent> {
    let text = std::env::var("TRACEPARENT").ok().filter(|text| !text.is_empty())?;
    let parent = text.parse::<TraceParent>();
    parent.inspect_err(|error| note!("ignoring TRACEPARENT: {error}")).ok()
}

/// Checks the tasks of a plan file, with their positions, against the known capabilities: refuses parameters that a
/// capability does not accept, all at once, unless a planner can repair them. Returns a line for each task whose capability
/// is unknown.
pub fn check_tasks_of_file<'a>(
    file: &str,
    (tasks, positions): (impl IntoIterator<Item = &'a TaskSpec>, &[TaskFieldPositions]),
    known: &CapabilityRegistry,
    has_planner: bool,
) -> Result<Vec<String>, CommandError> {
    let CapabilityMistakes { unknown, parameters } =
        plan_file::find_capability_mistakes(tasks, positions, known);
    let lines = |mistakes: Vec<YamlMistake>| -> Vec<String> {
        mistakes.into_iter().map(|mistake| format!("{file}:{mistake}")).collect()
    };
    if parameters.is_empty() || has_planner {
        return Ok(lines(unknown));
    }
    Err(refused!("{}", lines(parameters).join("\n")))
}

/// The models that the arguments name. A name that can't be is refused here, before anything is started.
pub fn parse_model_preferences(texts: &[String]) -> Result<ModelPreferences, CommandError> {
    let models =
        ModelPreferences::parse(texts.iter().map(String::as_str)).map_err(CommandError::invalid_input)?;
    models
        .selections()
        .try_for_each(millrace_agent::model::validate_selection)
        .map_err(CommandError::invalid_input)?;
    Ok(models)
}

/// Opens the models that a new cluster would use, and looks for the programs of its MCP servers. Its workers inherit the environment of this process: if a key, an
/// address or a file is missing here, they would crash at every start.
pub fn open_models_to_check(options: &LocalOptions) -> Result<(), CommandError> {
    let opener = ModelFactory { record_file: options.record.clone(), ..ModelFactory::default() };
    let models = parse_model_preferences(&options.model)?;
    // Runs may name the models of the tiers that are left.
    let check = |choice: &ModelSelection| match models.replace_tiers(choice) {
        choice if choice.has_tier() => Ok(()),
        choice => open_model(&choice, &opener).map(drop),
    };
    models.selections().try_for_each(check).map_err(CommandError::unusable_environment)?;
    let mut tiers = BTreeSet::new();
    for file in &options.capability {
        if let Some(reason) = file::find_missing_mcp_program(file).map_err(CommandError::invalid_input)? {
            return Err(CommandError::unusable_environment(anyhow!("{}: {reason}", file.display())));
        }
        for warning in file::find_bad_skills(file).map_err(CommandError::invalid_input)? {
            note!("warning: skipping a skill: {warning}");
        }
        let model = file::read_file_model(file).map_err(CommandError::invalid_input)?;
        let Some((name, choice)) = model else { continue };
        tiers.extend(choice.models.iter().filter_map(|model| model.tier().map(str::to_owned)));
        if !models.by_capability.contains_key(&name) {
            check(&choice).map_err(|error| {
                CommandError::unusable_environment(anyhow!("{}: {error}", file.display()))
            })?;
        }
    }
    let own = options.file_capability_names().map_err(CommandError::invalid_input)?;
    warn_of_unprovided_capabilities(
        models.by_capability.keys(),
        builtin::NAMES
            .into_iter()
            .chain(builtin::web_capability_names(options.web))
            .chain(own.iter().chain(&tiers).map(String::as_str)),
    );
    Ok(())
}

/// Warns of capabilities that have a model or a budget but that no worker provides.
pub fn warn_of_unprovided_capabilities<'a>(
    named: impl Iterator<Item = &'a Capability>,
    offered: impl Iterator<Item = &'a str>,
) {
    // Critics are not in the registry, a planner may start later, and verifying and embedding are part of other work.
    let offered: BTreeSet<&str> = offered.chain([CRITIC, EMBEDDINGS, PLANNER, VERIFIER]).collect();
    for name in named.map(Capability::as_str).filter(|name| !offered.contains(name)).collect::<BTreeSet<_>>()
    {
        let hint = millrace_strict_yaml::did_you_mean_hint(name, offered.iter().copied());
        let offered = offered.iter().copied().collect::<Vec<_>>().join(", ");
        note!(
            "warning: {name:?} has a model or a budget, but no worker provides it{hint}; available: {offered}; \
             its model is used where a capability file names tier:{name}"
        );
    }
}

/// Words a mistake in the description of a run for the command line.
fn describe_run_mistake(mistake: &RunMistake, has_plan: bool) -> CommandError {
    let text = match mistake {
        RunMistake::LlmWithPlan => {
            "in mode llm the planner makes the plan: omit --plan, or use --mode hybrid to let the planner extend and \
             change yours"
                .to_owned()
        }
        RunMistake::HybridWithoutPlan => {
            "mode hybrid needs a plan for the planner to extend and change: give its file with --plan".to_owned()
        }
        RunMistake::FixedWithoutPlan => {
            "mode fixed needs a plan: give its file with --plan, or use --mode llm to let the planner make one".to_owned()
        }
        RunMistake::ObjectiveMissing => {
            let hint = if has_plan { "give one, or add `objective:` to the plan file" } else { "give one" };
            format!("the objective is missing: {hint}, as in: millrace run \"How does … work?\"")
        }
        RunMistake::ObjectiveTooLong { .. } => {
            format!("{mistake}: put long material into files and add them with --docs")
        }
        RunMistake::NeverConsulted
        | RunMistake::ObjectiveEmpty
        | RunMistake::Criteria(_)
        | RunMistake::Labels(_) => mistake.to_string(),
    };
    refused!(text)
}

/// Writes a file; creates its folder if necessary.
pub fn write_file_and_create_folder(path: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("can't create the folder {}", folder.display()))?;
    }
    std::fs::write(path, text).with_context(|| format!("can't write {}", path.display()))
}

/// Creates a folder that only this user may read, or makes an existing one so: reports quote the user's documents, and
/// the data folder around it may be one that others read.
pub fn create_private_folder(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let create = || {
        std::fs::create_dir_all(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
    };
    create().with_context(|| format!("can't create the folder {}", path.display()))
}
