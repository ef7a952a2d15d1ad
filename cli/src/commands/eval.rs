//! `millrace eval`: measures how well models and capability files answer the objectives of an evaluation file.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use millrace_agent::corpus::{Corpus, InputFile, ListedFile, list_folder_files};
use millrace_local_cluster::folders;
use millrace_runtime::clock;
use millrace_strict_yaml::{LoadError, did_you_mean_hint};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::budget::BudgetArguments;
use crate::evaluation::environment::EvaluationEnvironment;
use crate::evaluation::file::{
    Configuration, EntryName, EvaluationFile, MAX_SAMPLES, Objective, configurations_of_arguments,
    has_web_tools, load_evaluation_file,
};
use crate::evaluation::measurement::{Evaluation, SampleProgress};
use crate::evaluation::score::{ConfigurationScore, ConfigurationScores, percent, table_lines};
use crate::evaluation::selection::{SampleConditions, select_objectives};
use crate::evaluation::store::{ResultsFolder, SampleMethod};
use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::invocation::this_command;
use crate::json::{EvaluationConfigurationJson, print_json};
use crate::target::ClusterTarget;
use crate::view::{print_stderr_line, print_stdout_line};

/// The time limit of a sample if nothing sets one.
const TIMEOUT: Duration = Duration::from_secs(600);
/// The number of samples that are measured at the same time if nothing sets it.
const PARALLEL: u16 = 4;
/// The most samples that are measured at the same time.
const MAX_PARALLEL: i64 = 256;

const EXAMPLES: &str = "\
The results are kept in a folder: after an interruption, the same command continues where it stopped. \
A sample is measured again only if something that determines its outcome has changed. \
`millrace schema evaluation` describes the file.

Exit codes: 0 all samples were measured; 1 a configuration found fewer facts than --min-facts; 2 the file or the arguments \
are invalid; 3 some samples could not be measured; 4 the environment is unusable; 130 interrupted.

Examples:
  millrace eval questions.yaml --model ollama:qwen3:4b --model openai:gpt-5.2
  millrace eval questions.yaml --limit 10 --samples 3 --ceiling
  millrace eval questions.yaml --configuration lean --only opening-hours --json";

/// The arguments of `millrace eval`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct EvalArguments {
    /// Evaluation file (see `millrace schema evaluation`)
    file: PathBuf,
    #[command(flatten, next_help_heading = "Configurations")]
    configurations: ConfigurationArguments,
    #[command(flatten, next_help_heading = "Samples")]
    samples: SampleArguments,
    #[command(flatten, next_help_heading = "Output")]
    output: EvaluationOutputArguments,
    #[command(flatten, next_help_heading = "Cluster")]
    cluster: EvaluationClusterArguments,
}

/// The arguments that choose configurations.
#[derive(Args, Debug)]
struct ConfigurationArguments {
    /// Language model, as provider:model. Each is a configuration of its own; prefix with CAPABILITY= to set a model of all
    /// of them. May be given several times [default: the configurations of the file]
    #[arg(long, value_name = "[CAPABILITY=]MODEL")]
    model: Vec<String>,
    /// Capability file for the configurations of --model; may be given several times
    #[arg(long, value_name = "FILE")]
    capability: Vec<PathBuf>,
    /// Measure only this configuration of the file; may be given several times
    #[arg(long, value_name = "NAME", conflicts_with_all = ["model", "capability"])]
    configuration: Vec<String>,
    /// Let agents search and read the web, with the capability web_research [default: as in the file; or else not, whatever
    /// the environment says]
    #[arg(long)]
    web: bool,
}

/// The arguments that choose samples and their conditions.
#[derive(Args, Debug)]
struct SampleArguments {
    /// Measure only the objective with this id; may be given several times, or separated by commas
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    only: Vec<String>,
    /// Measure only N objectives, chosen by --seed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Seed of the choice of --limit: the same seed chooses the same objectives
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of samples of each objective [default: as in the file; or else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SAMPLES)))]
    samples: Option<u32>,
    /// Also measure the model alone, with the documents that have the answer in one prompt
    #[arg(long)]
    ceiling: bool,
    /// Time limit of a sample, such as 10m [default: as in the file; or else 10m]
    #[arg(long, value_name = "TIME", value_parser = clock::parse_duration)]
    timeout: Option<Duration>,
    /// Time limit of one call of a model, such as 20m, unless the model's settings have a timeout [default: 10m]
    #[arg(long, env = "MILLRACE_CALL_TIMEOUT", value_name = "TIME", value_parser = clock::parse_duration)]
    call_timeout: Option<Duration>,
    #[command(flatten)]
    budget: BudgetArguments,
}

/// The arguments about results.
#[derive(Args, Debug)]
struct EvaluationOutputArguments {
    /// Folder for the results [default: evaluations/NAME in the data folder]
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    /// Exit with 1 if a configuration finds fewer of the expected facts, in percent
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    min_facts: Option<u32>,
    /// Print a JSON object for each sample and each configuration
    #[arg(long)]
    json: bool,
}

/// The arguments about the cluster.
#[derive(Args, Debug)]
struct EvaluationClusterArguments {
    /// Number of samples that are measured at the same time
    #[arg(long, value_name = "N", default_value_t = PARALLEL, value_parser = clap::value_parser!(u16).range(1..=MAX_PARALLEL))]
    parallel: u16,
    /// NATS server of a cluster that runs the samples, with credentials as for other commands [default: a local cluster for
    /// each configuration]
    #[arg(long, value_name = "URL", value_parser = NonEmptyStringValueParser::new())]
    nats: Option<String>,
    /// Data folder, in which results are kept
    #[arg(long, env = "MILLRACE_DATA", value_name = "DIR", default_value_os_t = folders::default_data_folder())]
    data: PathBuf,
}

pub async fn run_command(arguments: EvalArguments, interrupt: CancellationToken) -> CommandResult {
    let has_web = arguments.configurations.reads_web().map_err(CommandError::invalid_input)?;
    let file = load_evaluation_file(&arguments.file, has_web).map_err(CommandError::invalid_input)?;
    let environment = EvaluationEnvironment::of_this_process();
    let configurations = choose_configurations(&arguments.configurations, &file, &environment)?;
    let reads_web = find_web_readers(&configurations).map_err(CommandError::invalid_input)?;
    if file.documents.is_none() {
        refuse_without_sources(&configurations, &reads_web)?;
    }
    if arguments.cluster.nats.is_some() {
        refuse_capability_files(&configurations)?;
    }
    let samples = &arguments.samples;
    let limit = samples.limit.map(|limit| limit as usize);
    let objectives = select_objectives(&file.objectives, &samples.only, limit, samples.seed)?;
    if samples.ceiling {
        refuse_without_documents(&objectives)?;
    }
    let conditions = samples.conditions(&file)?;
    let (files, corpus) = read_corpus(&file)?;
    if arguments.cluster.nats.is_none() {
        let (reads_web, lacks_web) = (reads_web.contains(&true), configurations.iter().any(|one| !one.web));
        environment.notes(reads_web, lacks_web).iter().for_each(|note| print_stderr_line(note));
    }
    let default_results = || arguments.cluster.data.join("evaluations").join(file.name.as_str());
    let results = arguments.output.results.clone().unwrap_or_else(default_results);
    let results = Mutex::new(ResultsFolder::open(&results)?);
    let progress = SampleProgress { is_json: arguments.output.json };
    let EvaluationClusterArguments { nats, data, parallel } = arguments.cluster;
    let evaluation = Evaluation {
        objectives,
        conditions,
        files,
        corpus,
        environment,
        target: ClusterTarget { nats, data },
        parallel,
        call_timeout: samples.call_timeout,
        progress,
        interrupt: interrupt.clone(),
    };
    let mut scores = Vec::new();
    let mut is_interrupted = false;
    for configuration in &configurations {
        let measured = evaluation.measure_configuration(configuration, samples.ceiling, &results).await?;
        scores.push(measured);
        if interrupt.is_cancelled() {
            is_interrupted = true;
            break;
        }
    }
    print_scores(&scores, arguments.output.json);
    let path = results.lock().await.path().display().to_string();
    note!("results in {path}");
    if is_interrupted {
        note!("interrupted; continue with `{}`", this_command());
        return Ok(CommandExit::Interrupted);
    }
    Ok(choose_exit(&scores, arguments.output.min_facts))
}

/// Returns the exit code of an evaluation that was not interrupted, after a line on why it is not 0.
fn choose_exit(scores: &[ConfigurationScores], min_facts: Option<u32>) -> CommandExit {
    let all = || scores.iter().flat_map(|one| [Some(&one.runs), one.ceiling.as_ref()]).flatten();
    let missing: u32 = all().map(ConfigurationScore::missing).sum();
    if missing > 0 {
        note!("{missing} samples could not be measured; try them again with `{}`", this_command());
        let is_nothing_measured = all().all(|score| score.samples == 0);
        return if is_nothing_measured { CommandExit::Environment } else { CommandExit::Partial };
    }
    let too_few = |score: &ConfigurationScores| {
        let share = percent(score.runs.facts_found, score.runs.facts_expected)?;
        let least = min_facts.filter(|least| share < *least)?;
        Some(format!("millrace: {} found {share}% of the facts; at least {least}% are required", score.name))
    };
    let too_few: Vec<String> = scores.iter().filter_map(too_few).collect();
    too_few.iter().for_each(|line| print_stderr_line(line));
    if too_few.is_empty() { CommandExit::Completed } else { CommandExit::Failed }
}

fn print_scores(scores: &[ConfigurationScores], is_json: bool) {
    if !is_json {
        table_lines(scores).iter().for_each(|line| print_stdout_line(line));
        return;
    }
    for configuration in scores {
        let ceiling = configuration.ceiling.as_ref();
        let share = ceiling.and_then(|ceiling| configuration.runs.share_of_ceiling(ceiling));
        let line = |method, score, share| {
            print_json(&EvaluationConfigurationJson::new(&configuration.name, method, score, share));
        };
        line(SampleMethod::Run, &configuration.runs, share);
        if let Some(ceiling) = ceiling {
            line(SampleMethod::Ceiling, ceiling, None);
        }
    }
}

impl SampleArguments {
    /// The conditions of the command line, or else those of the file.
    fn conditions(&self, file: &EvaluationFile) -> Result<SampleConditions, CommandError> {
        let budget = self.budget.override_budget(file.budget.clone()).map_err(|why| refused!(why))?;
        Ok(SampleConditions {
            samples: self.samples.or(file.samples.map(u32::from)).unwrap_or(1),
            timeout: self.timeout.or(file.timeout).unwrap_or(TIMEOUT),
            budget,
        })
    }
}

impl ConfigurationArguments {
    /// `true` if the command line lets agents read the web.
    fn reads_web(&self) -> Result<bool, LoadError> {
        let mut reads_web = self.web;
        for file in &self.capability {
            reads_web |= has_web_tools(file)?;
        }
        Ok(reads_web)
    }
}

/// Returns the configurations: those of the command line, or else those of the file, or else the default models.
fn choose_configurations(
    arguments: &ConfigurationArguments,
    file: &EvaluationFile,
    environment: &EvaluationEnvironment,
) -> Result<Vec<Configuration>, CommandError> {
    let web = arguments.web || file.web;
    if !arguments.model.is_empty() || !arguments.capability.is_empty() {
        return configurations_of_arguments(&arguments.model, &arguments.capability, web);
    }
    let known = || file.configurations.iter().map(|one| one.name.as_str());
    if let Some(unknown) = arguments.configuration.iter().find(|name| known().all(|one| one != **name)) {
        let hint = did_you_mean_hint(unknown, known());
        return Err(refused!("--configuration: there is no configuration {unknown:?} in the file{hint}"));
    }
    if file.configurations.is_empty() {
        let models = environment.default_models();
        let name = EntryName::from_any_text("default");
        return Ok(vec![Configuration { name, models, capabilities: Vec::new(), web }]);
    }
    let is_chosen = |one: &&Configuration| {
        arguments.configuration.is_empty()
            || arguments.configuration.iter().any(|name| name == one.name.as_str())
    };
    let chosen = file.configurations.iter().filter(is_chosen).cloned();
    Ok(chosen.map(|one| Configuration { web: one.web || arguments.web, ..one }).collect())
}

/// Returns for each configuration whether its agents may read the web.
fn find_web_readers(configurations: &[Configuration]) -> Result<Vec<bool>, LoadError> {
    configurations.iter().map(Configuration::reads_web).collect()
}

fn refuse_without_sources(configurations: &[Configuration], reads_web: &[bool]) -> Result<(), CommandError> {
    match configurations.iter().zip(reads_web).find(|(_, reads_web)| !**reads_web) {
        None => Ok(()),
        Some((one, _)) => Err(refused!(
            "configuration {:?} has neither documents nor the web: add \"documents\" or \"web: true\" to the file, or use --web",
            one.name.as_str()
        )),
    }
}

fn refuse_capability_files(configurations: &[Configuration]) -> Result<(), CommandError> {
    match configurations.iter().find(|one| !one.capabilities.is_empty()) {
        None => Ok(()),
        Some(one) => Err(refused!(
            "configuration {:?} has capability files, which belong to workers: start a worker with them on that cluster, or \
             omit --nats",
            one.name.as_str()
        )),
    }
}

fn refuse_without_documents(objectives: &[&Objective]) -> Result<(), CommandError> {
    match objectives.iter().find(|one| one.is_answerable() && one.documents.is_empty()) {
        None => Ok(()),
        Some(one) => Err(refused!(
            "--ceiling: objective {:?} does not name the documents that have its answer; add \"documents\" to it",
            one.id.as_str()
        )),
    }
}

fn read_corpus(file: &EvaluationFile) -> Result<(Vec<ListedFile>, Corpus), CommandError> {
    let (files, mut skipped) = match &file.documents {
        Some(folder) => list_folder_files(folder).map_err(CommandError::invalid_input)?,
        None => (Vec::new(), Vec::new()),
    };
    let mut inputs: Vec<InputFile> = Vec::new();
    for listed in &files {
        match listed.clone().read_file() {
            Ok(input) => inputs.push(input),
            Err(reason) => skipped.push(reason),
        }
    }
    let corpus = Corpus::build_or_load(inputs, None).map_err(CommandError::unusable_environment)?;
    skipped.extend(corpus.skipped_files().iter().cloned());
    for one in &skipped {
        note!("skipped {}: {}", one.path, one.reason);
    }
    Ok((files, corpus))
}
