//! `millrace resume`: resumes a run that was interrupted, paused, out of budget, or has failed. If no cluster is running, one is
//! started on the data folder and stopped when the run ends.

use clap::Args;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{CommandAction, Plan, TaskState};
use millrace_protocol::registry::RunSummary;
use millrace_runtime::Bus;
use millrace_runtime::nats::connection::parse_server_urls;
use millrace_runtime::work::registry;
use tokio_util::sync::CancellationToken;

use crate::budget::BudgetArguments;
use crate::commands::run::{find_running_cluster, provided_capabilities};
use crate::commands::submit::{warn_of_absent_capabilities, warn_of_unregistered_capabilities};
use crate::commands::watch::{OutputOptions, watch_run};
use crate::exit::{CommandError, CommandExit, CommandResult, run_until_interrupt};
use crate::interrupted::{list_unfinished_runs, print_stopped_runs};
use crate::invocation::command_hint;
use crate::report::resume_command_hint;
use crate::session::{ClusterSession, run_with_local_cluster};
use crate::steer::{author_name, describe_changes, refuse_ended_run, send_command_and_await_decision};
use crate::submission::open_models_to_check;
use crate::target::{ClusterTarget, read_run_history, refuse_damaged_log};
use crate::view::RunDisplay;
use millrace_client::find_run;
use millrace_local_cluster::LocalOptions;

const EXAMPLES: &str = "\
Examples:
  millrace resume                              the newest unfinished run
  millrace resume latest --budget tokens=400k  a run that ran out of tokens; amounts are totals";

/// The arguments of `millrace resume`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ResumeArguments {
    /// Run id or a unique prefix of it [default: the newest unfinished run, or else the newest resumable one]
    run: Option<String>,
    #[command(flatten)]
    budget: BudgetArguments,
    /// Author of the command, recorded in the log [default: your login name]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// NATS server of the cluster, with credentials as for other commands [default: a local cluster on the data folder]
    #[arg(long, env = "MILLRACE_NATS_URL", hide_env_values = true, value_name = "URL", value_parser = parse_server_urls)]
    nats: Option<String>,
    #[command(flatten, next_help_heading = "Output")]
    output: OutputOptions,
    #[command(flatten, next_help_heading = "Cluster")]
    options: LocalOptions,
}

/// Resumes a run and shows it until it ends.
pub async fn run_command(arguments: ResumeArguments, interrupt: CancellationToken) -> CommandResult {
    let ResumeArguments { run, budget, by, nats, output, options } = arguments;
    output.refuse_unusable_paths()?;
    let target = ClusterTarget { nats, data: options.data.clone() };
    let work = async |bus: &Bus, session: Option<&ClusterSession>| {
        let run = match &run {
            Some(text) => find_run(bus, text).await?,
            None => find_newest_run(bus).await?,
        };
        refuse_damaged_log(bus, &run).await?;
        if session.is_some_and(ClusterSession::is_new) {
            print_stopped_runs(bus, Some(&run)).await?;
        }
        let plan = read_run_history(bus, &run).await?.plan;
        if let Some(control) = choose_resume_command(&run, &plan, &budget)? {
            let Some(events) =
                send_command_and_await_decision(bus, &run, author_name(by), control, &interrupt).await?
            else {
                return Ok(CommandExit::Interrupted);
            };
            note!("{}", describe_changes(&run, &events));
        }
        let needed = plan.tasks().iter().filter(|task| !task.state().is_terminal() || plan.run.end.is_some());
        let needed = needed.filter(|task| task.state() != TaskState::Completed);
        let needed = needed.map(|task| &task.spec.capability);
        match session.filter(|session| session.is_new()) {
            Some(_) => warn_of_absent_capabilities(needed, &provided_capabilities(&options)?),
            None => warn_of_unregistered_capabilities(bus, needed).await?,
        }
        let view = RunDisplay::new(output.json);
        watch_run(bus, &run, view, &output, &target, session, &interrupt).await
    };
    if target.nats.is_some() {
        let work = async { Box::pin(work(&target.connect().await?, None)).await };
        return run_until_interrupt(&interrupt, work).await;
    }
    match find_running_cluster(&options)? {
        None => open_models_to_check(&options)?,
        Some(_) => print_ignored_options(&options),
    }
    let work = async |bus: &Bus, session: &ClusterSession| Box::pin(work(bus, Some(session))).await;
    Box::pin(run_with_local_cluster(&options, &interrupt, work)).await
}

/// Warns of options that have no effect on a cluster that is already running. A run keeps the models it was submitted with,
/// or uses those of the workers.
fn print_ignored_options(options: &LocalOptions) {
    let model = (!options.model.is_empty()).then_some("--model");
    let ignored: Vec<&str> = options.start_only_option_names().into_iter().chain(model).collect();
    if !ignored.is_empty() {
        note!(
            "warning: a cluster is already running on {}; ignoring {} (`{}` stops the cluster)",
            options.data.display(),
            ignored.join(", "),
            command_hint("down")
        );
    }
}

/// Returns the command that resumes a run; `None` if it needs none: it is in progress, or has ended for good.
fn choose_resume_command(
    run: &RunId,
    plan: &Plan,
    budget: &BudgetArguments,
) -> Result<Option<CommandAction>, CommandError> {
    let old = plan.run.start.as_ref().map(|start| start.budget.clone()).unwrap_or_default();
    let more = budget.compute_new_limits(&old).map_err(|why| refused!(why))?;
    match (more, &plan.run.end) {
        (None, None) => Ok(plan.run.paused.is_some().then_some(CommandAction::Resume { budget: None })),
        (Some(more), None) => Ok(Some(CommandAction::Resume { budget: Some(more) })),
        (Some(more), Some(end)) if end.is_resumable => Ok(Some(CommandAction::Resume { budget: Some(more) })),
        (Some(_), Some(_)) => refuse_ended_run(run, plan).map(|()| None),
        (None, Some(end)) if end.is_resumable && end.reason.can_be_retried() => {
            Ok(Some(CommandAction::Resume { budget: None }))
        }
        (None, Some(end)) if end.is_resumable => {
            let how = resume_command_hint(run, plan).unwrap_or_else(|| command_hint("resume --help"));
            Err(refused!(
                "run {run} ended {} ({}); give it a larger total budget to resume it: {how}",
                end.reason,
                end.detail
            ))
        }
        (None, Some(_)) => Ok(None),
    }
}

async fn find_newest_run(bus: &Bus) -> Result<RunId, CommandError> {
    if let Some(run) = list_unfinished_runs(bus).await?.pop() {
        return Ok(run);
    }
    let summaries = registry::read_run_summaries(bus).await?;
    // A live run whose lane does not hold it is reported by name.
    let is_wanted = |summary: &RunSummary| summary.is_resumable || summary.end.is_none();
    let newest = summaries.into_iter().rev().find(is_wanted);
    newest.map(|summary| summary.run).ok_or_else(|| {
        refused!("no run is unfinished or resumable; `{}` shows all runs", command_hint("list"))
    })
}
