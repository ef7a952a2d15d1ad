//! `millrace run`: a local cluster for one run. Starts the cluster (or uses the one running on the data folder), submits
//! the run, shows it, saves the deliverable, and stops what it started.

use std::collections::BTreeSet;

use clap::Args;
use millrace_agent::builtin::Extractive;
use millrace_agent::model::ModelSelection;
use millrace_client::submit_run;
use millrace_models::provider::default_model_selection;
use millrace_protocol::plan::CapabilityRegistry;
use millrace_protocol::result::CapabilityDescription;
use millrace_worker::{builtin, file};
use tokio_util::sync::CancellationToken;

use crate::commands::submit::{print_submitted_run, refuse_full_cluster, warn_of_missing_capabilities};
use crate::commands::watch::{OutputOptions, watch_run};
use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::interrupted::print_stopped_runs;
use crate::invocation::command_hint;
use crate::open_page::open_run_page;
use crate::session::{LastingCluster, run_with_local_cluster};
use crate::submission::{
    PendingSubmission, SubmissionArguments, open_models_to_check, warn_of_unprovided_capabilities,
};
use crate::target::ClusterTarget;
use crate::view::{RunDisplay, print_stderr_line};
use millrace_local_cluster::{self as local, ApiAddress, ClusterInfo, ClusterLifetime, LocalOptions};

const EXAMPLES: &str = "\
Starts a cluster on the data folder, or joins the one that is running. It stops when nobody uses it any more. \
An interrupted run stays stopped until `millrace resume` continues it, without repeating finished work.

Examples:
  millrace run \"What do these licences require?\" --docs licences/
  millrace run \"Which licences allow this?\" --docs 'notes/**/*.pdf' --docs LICENSE.docx
  millrace run \"What changed in TLS 1.3?\" --web --model openai:gpt-5.2
  millrace run \"Compare the two designs\" --docs designs/ --model openai:gpt-5.2 --out report.md
  millrace run --plan plan.yaml --budget tokens=200k,cost=2.00,time=30m";

/// The arguments of `millrace run`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RunArguments {
    #[command(flatten, next_help_heading = "Run")]
    pending: SubmissionArguments,
    #[command(flatten, next_help_heading = "Output")]
    output: OutputOptions,
    #[command(flatten, next_help_heading = "Cluster")]
    options: LocalOptions,
    /// Leave the cluster running in the background, print the run's id and return
    #[arg(long, help_heading = "Cluster")]
    detach: bool,
    /// Open the page of the run in a browser, or print its address where there is none. The cluster serves the HTTP API and
    /// the dashboard, and keeps running until `millrace down`
    #[arg(long, help_heading = "Output")]
    open: bool,
}

/// The capabilities that a plan may use in a cluster without capability files.
const BUILT_IN: [&str; 5] = ["echo", "producer", "research", "verify", "worker"];

/// The default models, chosen by the API keys in the environment.
fn choose_models_from_environment() -> Option<ModelSelection> {
    default_model_selection(&|name| std::env::var(name).ok())
}

pub async fn run_command(arguments: RunArguments, interrupt: CancellationToken) -> CommandResult {
    let RunArguments { pending, output, mut options, detach, open } = arguments;
    let pending = PendingSubmission::read_arguments(&pending, &options.model).await?;
    output.refuse_unusable_paths()?;
    warn_of_ignored_server("run");
    pending.print_documents();
    let is_up = find_running_cluster(&options)?;
    if open && is_up.is_none() {
        options.api.get_or_insert(ApiAddress::Default);
    }
    let has_no_model = !pending.has_model_argument() && choose_models_from_environment().is_none();
    if is_up.is_none() {
        open_models_to_check(&options)?;
        let own = options.file_capability_names().map_err(CommandError::invalid_input)?;
        refuse_impossible_tasks(&pending, &options)?;
        if has_no_model {
            pending.refuse_without_material(&own)?;
        }
        let provided = provided_capabilities(&options)?;
        warn_of_unprovided_capabilities(
            pending.capabilities_with_budget(),
            provided.iter().map(String::as_str),
        );
        if has_no_model && pending.calls_default_model(&capabilities_with_own_model(&options)?) {
            print_stderr_line(EXTRACTIVE_NOTICE);
        }
    }
    if detach {
        return submit_and_detach(&options, pending, output.json, open).await;
    }
    let target = ClusterTarget::of_data_folder(&options.data);
    let work = run_with_local_cluster(&options, &interrupt, async |bus, session| {
        if session.is_new() {
            print_stopped_runs(bus, None).await?;
        } else {
            print_joined_cluster(session.info(), &options, &pending);
            warn_of_missing_capabilities(bus, &pending).await?;
        }
        refuse_full_cluster(bus).await?;
        let run = submit_run(bus, &pending.into_submission(bus).await?).await?;
        if open {
            session.keep_cluster_running()?;
            open_run_page(&options.api_url_path(), &run).await;
        }
        let view = RunDisplay::new(output.json);
        watch_run(bus, &run, view, &output, &target, Some(session), &interrupt).await
    });
    Box::pin(work).await
}

/// The capabilities of files that have a model of their own or need none.
fn capabilities_with_own_model(options: &LocalOptions) -> Result<Vec<String>, CommandError> {
    let mut names = Vec::new();
    for file in &options.capability {
        if !file::needs_default_model(file).map_err(CommandError::invalid_input)? {
            let described = file::describe_capability_file(file).map_err(CommandError::invalid_input)?;
            names.push(described.name.to_string());
        }
    }
    Ok(names)
}

/// The notice about a run that no language model answers.
pub const EXTRACTIVE_NOTICE: &str = "millrace: no language model configured; using builtin:extractive, which only quotes your documents \
                                 (choose a model with --model provider:model)";

/// Submits a run to a cluster that keeps running in the background.
async fn submit_and_detach(
    options: &LocalOptions,
    pending: PendingSubmission,
    json: bool,
    open: bool,
) -> CommandResult {
    let cluster = LastingCluster::join_or_start(options).await?;
    let bus = &cluster.bus;
    if !cluster.is_new {
        print_joined_cluster(&cluster.info, options, &pending);
        warn_of_missing_capabilities(bus, &pending).await?;
    }
    refuse_full_cluster(bus).await?;
    let run = submit_run(bus, &pending.into_submission(bus).await?).await?;
    print_submitted_run(&run, json);
    if open {
        open_run_page(&options.api_url_path(), &run).await;
    }
    note!(
        "follow the run with `{}`, stop the cluster with `{}`",
        command_hint(&format!("watch {run}")),
        command_hint("down")
    );
    Ok(CommandExit::Completed)
}

/// Says whose cluster a run uses, which model answers, and which options have no effect.
fn print_joined_cluster(info: &ClusterInfo, options: &LocalOptions, pending: &PendingSubmission) {
    let model = match (pending.has_model_argument(), info.models.as_slice()) {
        (true, _) => String::new(),
        (false, []) => String::new(),
        (false, models) => format!("; its model is {}", models.join("; ")),
    };
    let ignored = options.start_only_option_names();
    let ignored =
        if ignored.is_empty() { String::new() } else { format!("; ignoring {}", ignored.join(", ")) };
    note!("joined the cluster of process {}{model}{ignored}", info.pid);
    let is_extractive = !pending.has_model_argument() && info.models == [Extractive::NAME];
    if is_extractive && pending.calls_default_model(&[]) {
        print_stderr_line(EXTRACTIVE_NOTICE);
    }
}

/// The models of a cluster as it tells them to those who join it: those of its command line, or else the defaults.
pub fn effective_models(options: &LocalOptions) -> Vec<String> {
    if !options.model.is_empty() {
        return options.model.clone();
    }
    vec![
        choose_models_from_environment()
            .map_or_else(|| Extractive::NAME.to_owned(), |models| models.to_string()),
    ]
}

/// Returns the cluster that is already running on the data folder. Capabilities can't be added to its workers.
pub fn find_running_cluster(options: &LocalOptions) -> Result<Option<ClusterInfo>, CommandError> {
    let running = local::find_running_cluster(&options.data);
    let running = running.filter(|info| info.lifetime != ClusterLifetime::OneCommand);
    if running.is_some() && !options.capability.is_empty() {
        return Err(refused!(
            "a cluster is already running on {}, and capabilities can't be added to its workers: stop it with `{}`, or \
             omit --capability",
            options.data.display(),
            command_hint("down")
        ));
    }
    options.file_capability_names().map_err(CommandError::invalid_input)?;
    Ok(running)
}

/// Warns that a command works on a local cluster, whatever server the environment names.
pub fn warn_of_ignored_server(command: &str) {
    if std::env::var_os("MILLRACE_NATS_URL").is_some_and(|url| !url.is_empty()) {
        note!(
            "warning: `{command}` works on a local cluster and ignores MILLRACE_NATS_URL; `millrace submit` and \
             `millrace watch` use that server"
        );
    }
}

/// The capabilities of tasks that the workers of a cluster with these options provide.
pub fn provided_capabilities(options: &LocalOptions) -> Result<BTreeSet<String>, CommandError> {
    let own = options.file_capability_names().map_err(CommandError::invalid_input)?;
    let built_in = BUILT_IN.into_iter().chain(builtin::web_capability_names(options.web));
    Ok(built_in.map(str::to_owned).chain(own).collect())
}

/// Refuses a plan with tasks that no worker of this cluster can ever do: of an unknown capability, or with parameters that
/// it does not accept. A planner can repair both.
fn refuse_impossible_tasks(pending: &PendingSubmission, options: &LocalOptions) -> Result<(), CommandError> {
    let own = options.describe_file_capabilities().map_err(CommandError::invalid_input)?;
    let built_in = BUILT_IN.into_iter().chain(builtin::web_capability_names(options.web));
    let built_in = built_in.filter_map(builtin::describe_built_in);
    let known: Vec<CapabilityDescription> = built_in.chain(own).collect();
    let unknown = pending.check_tasks(&CapabilityRegistry::from_descriptions(&known))?;
    if unknown.is_empty() || pending.has_planner() {
        return Ok(());
    }
    Err(refused!("{} (add others with --capability FILE)", unknown.join("\n")))
}
