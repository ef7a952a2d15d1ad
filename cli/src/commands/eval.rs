//! `millrace eval`: measures how well models and capability files answer objectives and questions, and how well claims are verified.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use millrace_agent::corpus::{Corpus, InputFile, ListedFile, SkippedFile};
use millrace_local_cluster::folders;
use millrace_runtime::clock;
use millrace_strict_yaml::{LoadError, did_you_mean_hint};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::budget::BudgetArguments;
use crate::evaluation::environment::EvaluationEnvironment;
use crate::evaluation::input::claims::Claim;
use crate::evaluation::input::file::{
    Configuration, EntryName, EvaluationFile, MAX_SAMPLES, Objective, configurations_of_arguments,
    has_web_tools,
};
use crate::evaluation::input::squad::{ANSWER_CHARACTERS, QuestionTerms};
use crate::evaluation::input::{EvaluationInput, ObjectiveInput, load_input};
use crate::evaluation::item::EvaluationItem;
use crate::evaluation::measurement::{Evaluation, SampleProgress};
use crate::evaluation::output::{print_answer_scores, print_claim_scores};
use crate::evaluation::score::answers::AnswerSums;
use crate::evaluation::score::{ConfigurationScores, MethodScore};
use crate::evaluation::selection::select_items;
use crate::evaluation::setup::SampleConditions;
use crate::evaluation::store::{ResultsFolder, SampleMethod};
use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::invocation::this_command;
use crate::target::ClusterTarget;
use crate::view::print_stderr_line;

/// The time limit of a sample if nothing sets one.
const TIMEOUT: Duration = Duration::from_secs(600);
/// The number of samples that are measured at the same time if nothing sets it.
const PARALLEL: u16 = 4;
/// The most samples that are measured at the same time.
const MAX_PARALLEL: i64 = 256;

const EXAMPLES: &str = "\
The results are kept in a folder: after an interruption, the same command continues where it stopped. \
A sample is measured again only if something that determines its outcome has changed. \
`millrace schema evaluation` describes the evaluation file.

Exit codes: 0 all samples were measured; 1 a configuration found fewer facts than --min-facts; 2 the file or the arguments \
are invalid; 3 some samples could not be measured; 4 the environment is unusable; 130 interrupted.

Examples:
  millrace eval questions.yaml --model ollama:qwen3:4b --model openai:gpt-5.2
  millrace eval questions.yaml --limit 10 --samples 3 --ceiling
  millrace eval questions.yaml --configuration lean --only opening-hours --json
  millrace eval squad.en.json squad.zh.json --limit 60 --seed 3 --ceiling
  millrace eval claims.jsonl --model verifier=ollama:bespoke-minicheck --limit 200 --direct";

/// The arguments of `millrace eval`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct EvalArguments {
    /// Evaluation file (see `millrace schema evaluation`), or question files in the format of SQuAD (.json), or claim files with a
    /// claim, its evidence and its label in each line (.jsonl)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
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
    /// Measure only the objective, question or claim with this id; may be given several times, or separated by commas
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    only: Vec<String>,
    /// Measure only N objectives, questions or claims, chosen by --seed, as many of each file
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Seed of the choice of --limit: the same seed chooses the same ones
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of samples of each objective, question or claim [default: as in the file; or else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SAMPLES)))]
    samples: Option<u32>,
    /// Also measure the model alone, with the documents that have the answer in one prompt
    #[arg(long)]
    ceiling: bool,
    /// Leave the article of a question out of its folder, so that no document answers it
    #[arg(long)]
    without_article: bool,
    /// Number of characters of the deliverable that are searched for facts [default: 1200 for question files, or else all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    answer_characters: Option<u32>,
    /// Also ask the model that verifies claims directly, with the claim and its whole evidence in one prompt
    #[arg(long)]
    direct: bool,
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
    let terms = QuestionTerms {
        without_article: arguments.samples.without_article,
        answer_characters: arguments.samples.answer_characters.unwrap_or(ANSWER_CHARACTERS),
    };
    match load_input(&arguments.files, has_web, &terms)? {
        EvaluationInput::Objectives(input) => {
            Box::pin(evaluate_objectives(&arguments, *input, interrupt)).await
        }
        EvaluationInput::Claims { name, claims } => {
            evaluate_claims(&arguments, name, &claims, interrupt).await
        }
    }
}

/// Measures objectives as runs, and with the model alone.
async fn evaluate_objectives(
    arguments: &EvalArguments,
    input: ObjectiveInput,
    interrupt: CancellationToken,
) -> CommandResult {
    let ObjectiveInput { mut file, documents, skipped, has_questions } = input;
    let samples = &arguments.samples;
    samples.refuse_other_options(&[("--direct", samples.direct, "claims in a .jsonl file")])?;
    if !has_questions {
        let without_article = ("--without-article", samples.without_article, "questions in a .json file");
        samples.refuse_other_options(&[without_article])?;
        let characters = samples.answer_characters.map(|count| count as usize);
        file.objectives.iter_mut().for_each(|objective| objective.answer_characters = characters);
    }
    let environment = EvaluationEnvironment::of_this_process();
    let configurations = choose_configurations(&arguments.configurations, &file, &environment)?;
    let reads_web = find_web_readers(&configurations).map_err(CommandError::invalid_input)?;
    if documents.is_empty() {
        refuse_without_sources(&configurations, &reads_web)?;
    }
    if arguments.cluster.nats.is_some() {
        refuse_capability_files(&configurations)?;
    }
    let objectives = samples.select(&file.objectives)?;
    if samples.ceiling {
        refuse_without_documents(&objectives)?;
    }
    if arguments.cluster.nats.is_none() {
        let (reads_web, lacks_web) = (reads_web.contains(&true), configurations.iter().any(|one| !one.web));
        environment.notes(reads_web, lacks_web).iter().for_each(|note| print_stderr_line(note));
    }
    let results = arguments.open_results(&file.name)?;
    let conditions = samples.conditions(&file)?;
    let corpus = read_corpus(&documents, skipped)?;
    let documents = (documents, corpus);
    let evaluation = arguments.prepare(objectives, conditions, documents, environment, &interrupt);
    let mut scores = Vec::new();
    for configuration in &configurations {
        scores.push(evaluation.measure_configuration(configuration, samples.ceiling, &results).await?);
        if interrupt.is_cancelled() {
            break;
        }
    }
    print_answer_scores(&scores, arguments.output.json);
    conclude(&results, &scores, &interrupt, || find_too_few(&scores, arguments.output.min_facts)).await
}

/// Verifies claims, and asks the verifier's model directly.
async fn evaluate_claims(
    arguments: &EvalArguments,
    name: EntryName,
    claims: &[Claim],
    interrupt: CancellationToken,
) -> CommandResult {
    let samples = &arguments.samples;
    let is_given = |option| (option, true, "objectives and questions");
    let others = [
        arguments.configurations.option_for_runs(),
        samples.option_for_runs(),
        arguments.output.min_facts.map(|_| "--min-facts"),
        arguments.cluster.nats.as_ref().map(|_| "--nats"),
    ];
    samples.refuse_other_options(&others.into_iter().flatten().map(is_given).collect::<Vec<_>>())?;
    let environment = EvaluationEnvironment::of_this_process();
    let file = EvaluationFile::of_objectives(name, Vec::new());
    let configurations = choose_configurations(&arguments.configurations, &file, &environment)?;
    let results = arguments.open_results(&file.name)?;
    let selected = samples.select(claims)?;
    let conditions = samples.conditions(&file)?;
    let documents = (Vec::new(), read_corpus(&[], Vec::new())?);
    let evaluation = arguments.prepare(selected, conditions, documents, environment, &interrupt);
    let mut scores = Vec::new();
    for configuration in &configurations {
        scores.push(evaluation.measure_configuration(configuration, samples.direct, &results).await?);
        if interrupt.is_cancelled() {
            break;
        }
    }
    print_claim_scores(&scores, arguments.output.json);
    conclude(&results, &scores, &interrupt, Vec::new).await
}

impl EvalArguments {
    fn open_results(&self, name: &EntryName) -> Result<Mutex<ResultsFolder>, CommandError> {
        let default_results = || self.cluster.data.join("evaluations").join(name.as_str());
        let results = self.output.results.clone().unwrap_or_else(default_results);
        Ok(Mutex::new(ResultsFolder::open(&results)?))
    }

    fn prepare<'a, T>(
        &self,
        items: Vec<&'a T>,
        conditions: SampleConditions,
        (files, corpus): (Vec<ListedFile>, Corpus),
        environment: EvaluationEnvironment,
        interrupt: &CancellationToken,
    ) -> Evaluation<'a, T> {
        let EvaluationClusterArguments { nats, data, parallel } = &self.cluster;
        Evaluation {
            items,
            conditions,
            files,
            corpus,
            environment,
            target: ClusterTarget { nats: nats.clone(), data: data.clone() },
            parallel: *parallel,
            call_timeout: self.samples.call_timeout,
            progress: SampleProgress { is_json: self.output.json },
            interrupt: interrupt.clone(),
        }
    }
}

/// Names the results folder and returns the exit code, after a line on why it is not 0. `find_failures` returns the demands that are
/// not met.
async fn conclude<S>(
    results: &Mutex<ResultsFolder>,
    scores: &[ConfigurationScores<S>],
    interrupt: &CancellationToken,
    find_failures: impl FnOnce() -> Vec<String>,
) -> CommandResult {
    let path = results.lock().await.path().display().to_string();
    note!("results in {path}");
    if interrupt.is_cancelled() {
        note!("interrupted; continue with `{}`", this_command());
        return Ok(CommandExit::Interrupted);
    }
    let all = || scores.iter().flat_map(|one| one.methods.iter().map(|(_, score)| score));
    let missing: u32 = all().map(MethodScore::missing).sum();
    if missing > 0 {
        note!("{missing} samples could not be measured; try them again with `{}`", this_command());
        let is_nothing_measured = all().all(|score| score.samples == 0);
        return Ok(if is_nothing_measured { CommandExit::Environment } else { CommandExit::Partial });
    }
    let failures = find_failures();
    failures.iter().for_each(|line| print_stderr_line(line));
    Ok(if failures.is_empty() { CommandExit::Completed } else { CommandExit::Failed })
}

/// Returns a line for each configuration that found too few facts.
fn find_too_few(scores: &[ConfigurationScores<AnswerSums>], min_facts: Option<u32>) -> Vec<String> {
    let too_few = |score: &ConfigurationScores<AnswerSums>| {
        let share = score.find(SampleMethod::Run)?.sums.facts().percent()?;
        let least = min_facts.filter(|least| share < *least)?;
        Some(format!("millrace: {} found {share}% of the facts; at least {least}% are required", score.name))
    };
    scores.iter().filter_map(too_few).collect()
}

impl SampleArguments {
    /// Selects the items to measure.
    fn select<'a, T: EvaluationItem>(&self, items: &'a [T]) -> Result<Vec<&'a T>, CommandError> {
        let limit = self.limit.map(|limit| limit as usize);
        let selected = select_items(items, &self.only, limit, self.seed)?;
        if let Some(limit) = limit.filter(|limit| selected.len() < *limit) {
            note!("--limit {limit}: there are only {}, and all of them are measured", selected.len());
        }
        Ok(selected)
    }

    /// The first option that only samples of runs have.
    fn option_for_runs(&self) -> Option<&'static str> {
        let options = [
            ("--ceiling", self.ceiling),
            ("--without-article", self.without_article),
            ("--answer-characters", self.answer_characters.is_some()),
        ];
        options.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }

    /// Refuses options that are given and belong to files of another kind.
    fn refuse_other_options(&self, options: &[(&str, bool, &str)]) -> Result<(), CommandError> {
        match options.iter().find(|(_, is_given, _)| *is_given) {
            None => Ok(()),
            Some((option, _, kind)) => Err(refused!("{option} is for evaluations of {kind}; omit it")),
        }
    }

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
    /// The first option that only runs have.
    fn option_for_runs(&self) -> Option<&'static str> {
        let options = [("--web", self.web), ("--capability", !self.capability.is_empty())];
        options.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }

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

fn read_corpus(files: &[ListedFile], mut skipped: Vec<SkippedFile>) -> Result<Corpus, CommandError> {
    let mut inputs: Vec<InputFile> = Vec::new();
    for listed in files {
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
    Ok(corpus)
}
