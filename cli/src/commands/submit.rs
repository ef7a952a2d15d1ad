//! `millrace submit`: submits a run to a running cluster, and returns at once or waits for its end.

use std::collections::BTreeSet;

use clap::Args;
use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::CapabilityRegistry;
use millrace_runtime::Bus;
use millrace_runtime::store::admission;
use millrace_runtime::work::registry;
use tokio_util::sync::CancellationToken;

use crate::commands::watch::{OutputOptions, watch_run};
use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::invocation::command_hint;
use crate::json::{CommandOutcome, print_json};
use crate::submission::{PendingSubmission, SubmissionArguments, warn_of_unprovided_capabilities};
use crate::target::ClusterTarget;
use crate::view::{RunDisplay, print_stdout_line};
use millrace_client::{find_admission_problem, submit_run};
use millrace_local_cluster::users::ClusterUse;

const EXAMPLES: &str = "\
Examples:
  millrace submit \"Compare the licences in these files\" --docs licences/
  millrace submit --plan plan.yaml --budget tokens=200k,time=30m
  millrace watch latest
  millrace submit --plan nightly.yaml --wait --out report.md";

/// The arguments of `millrace submit`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SubmitArguments {
    #[command(flatten, next_help_heading = "Run")]
    pending: SubmissionArguments,
    /// Language model for agents, as provider:model; separate fallback models with commas. Prefix with CAPABILITY= (planner, critic,
    /// verifier and embeddings too) to set it for one capability only, or with the name of a tier for `tier:NAME` in capability files. May be given several times [default: the models of the workers]
    #[arg(long, value_name = "[CAPABILITY=]MODEL")]
    model: Vec<String>,
    /// Follow the run until it ends, and exit with the code of its result, as `millrace run` does
    #[arg(long)]
    wait: bool,
    #[command(flatten, next_help_heading = "Output, with --wait")]
    output: OutputOptions,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

/// Prints the id of a run that was submitted.
pub fn print_submitted_run(run: &RunId, json: bool) {
    if json { print_json(&CommandOutcome::RunSubmitted { run }) } else { print_stdout_line(run.as_str()) }
}

/// Submits a run and prints its id, or its result.
pub async fn run_command(arguments: SubmitArguments, interrupt: CancellationToken) -> CommandResult {
    if !arguments.wait {
        arguments.output.refuse_without_wait()?;
    }
    arguments.output.refuse_unusable_paths()?;
    let pending = PendingSubmission::read_arguments(&arguments.pending, &arguments.model).await?;
    pending.print_documents();
    let (bus, cluster_use) = arguments.target.use_cluster().await?;
    let keep_running = cluster_use.as_ref().map(ClusterUse::keep_cluster_running).transpose();
    if keep_running.map_err(CommandError::unusable_environment)? == Some(true) {
        note!(
            "the cluster on {} now keeps running for this run; `{}` stops it",
            arguments.target.data.display(),
            command_hint("down")
        );
    }
    warn_of_missing_capabilities(&bus, &pending).await?;
    refuse_full_cluster(&bus).await?;
    let run = submit_run(&bus, &pending.into_submission(&bus).await?).await?;
    if !arguments.wait {
        print_submitted_run(&run, arguments.output.json);
        return Ok(CommandExit::Completed);
    }
    let SubmitArguments { output, target, .. } = arguments;
    note!("submitted run {run}");
    let view = RunDisplay::new(output.json);
    watch_run(&bus, &run, view, &output, &target, None, &interrupt).await
}

/// Refuses tasks whose parameters their capability does not accept. Warns of capabilities in a submission that no worker
/// provides yet.
pub async fn warn_of_missing_capabilities(
    bus: &Bus,
    pending: &PendingSubmission,
) -> Result<(), CommandError> {
    let known = registry::read_capabilities(bus).await?;
    for unknown in pending.check_tasks(&CapabilityRegistry::from_descriptions(known.values()))? {
        note!("warning: {unknown}; tasks that need it will wait");
    }
    let available = registry::read_capability_names(bus).await?;
    warn_of_unprovided_capabilities(
        pending.capabilities_with_model().chain(pending.capabilities_with_budget()),
        available.iter().map(Capability::as_str),
    );
    Ok(())
}

/// Refuses a run if as many runs as allowed wait for a place.
pub async fn refuse_full_cluster(bus: &Bus) -> Result<(), CommandError> {
    let current = admission::read_caps(bus).await?;
    match find_admission_problem(bus, &current.caps).await? {
        Some(problem) => Err(refused!("{problem}")),
        None => Ok(()),
    }
}

/// Warns of those of `capabilities` that no worker provides yet.
pub async fn warn_of_unregistered_capabilities<'a>(
    bus: &Bus,
    capabilities: impl Iterator<Item = &'a Capability>,
) -> Result<(), CommandError> {
    let available = registry::read_capability_names(bus).await?;
    let available: BTreeSet<String> = available.iter().map(ToString::to_string).collect();
    warn_of_absent_capabilities(capabilities, &available);
    Ok(())
}

/// Warns of those of `capabilities` that are not among the available ones.
pub fn warn_of_absent_capabilities<'a>(
    capabilities: impl Iterator<Item = &'a Capability>,
    available: &BTreeSet<String>,
) {
    let absent: BTreeSet<&Capability> =
        capabilities.filter(|capability| !available.contains(capability.as_str())).collect();
    for capability in absent {
        note!(
            "warning: no worker provides {:?} yet; tasks that need it will wait (available: {}; a worker with \
             --capability FILE provides others)",
            capability.as_str(),
            available.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
        );
    }
}
