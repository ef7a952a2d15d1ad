//! `millrace resume`: go on with a run, whatever it stopped for: its cluster was cut off, it was paused, or it had used
//! up what it may use. Where no cluster is up, one is started on the data folder and stopped when the run is over.

use anyhow::anyhow;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Control, Plan};
use millrace_runtime::{Bus, registry};
use tokio_util::sync::CancellationToken;

use crate::budget::BudgetArguments;
use crate::client::{Target, find, story};
use crate::commands::run::{in_cluster, running, unfinished, until, warn_of_running};
use crate::commands::watch::{Output, Unwatched, watch};
use crate::exit::{Exit, Stop};
use crate::intake::try_models;
use crate::local::Options;
use crate::report::how_to_go_on;
use crate::steer::{author, decided, give, refuse_over};
use crate::view::{View, say};

/// The arguments of `millrace resume`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The run, or the beginning of its id [default: the newest that is under way, else the newest that can be gone on
    /// with]
    run: Option<String>,
    #[command(flatten)]
    budget: BudgetArguments,
    /// Who gives the command; it is written into the log [default: the name you are logged in by]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// NATS server of the cluster, with credentials as for the other commands [default: a local cluster on the data
    /// folder]
    #[arg(long, env = "MILLRACE_NATS_URL", hide_env_values = true, value_name = "URL", value_parser = NonEmptyStringValueParser::new())]
    nats: Option<String>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    options: Options,
}

/// Goes on with a run and shows it to its end.
pub async fn command(arguments: Arguments, interrupt: CancellationToken) -> Result<Exit, Stop> {
    let Arguments { run, budget, by, nats, output, options } = arguments;
    output.check()?;
    let work = async |bus: &Bus, then: Unwatched| {
        let run = match &run {
            Some(text) => find(bus, text).await?,
            None => newest(bus).await?,
        };
        let plan = story(bus, &run).await?.plan;
        if let Some(control) = what_to_do(&run, &plan, &budget)? {
            let Some(events) = give(bus, &run, author(by), control, &interrupt).await? else {
                return Ok(Exit::Interrupted);
            };
            say(&format!("millrace: {}", decided(&run, &events)));
        }
        watch(bus, &run, View::new(output.json), &output, &options.data, (&interrupt, then)).await
    };
    if nats.is_some() {
        let target = Target { nats, data: options.data.clone() };
        let work = async { work(&target.connect().await?, Unwatched::GoesOn).await };
        return Box::pin(until(&interrupt, work)).await;
    }
    let is_up = running(&options)?;
    match &is_up {
        None => try_models(&options)?,
        // The run has the models that it was handed in with, or those of the workers.
        Some(_) if !options.model.is_empty() => warn_of_running(&options, "--model"),
        Some(_) => {}
    }
    let then = if is_up.is_some() { Unwatched::GoesOn } else { Unwatched::IsKept };
    Box::pin(in_cluster(&options, is_up, interrupt.clone(), async |bus| work(bus, then).await)).await
}

/// The command that goes on with a run; `None` where it needs none: it is under way, or over for good.
fn what_to_do(run: &RunId, plan: &Plan, budget: &BudgetArguments) -> Result<Option<Control>, Stop> {
    let old = plan.start.as_ref().map(|start| start.budget.clone()).unwrap_or_default();
    let more = budget.more(&old).map_err(|why| Stop::refused(anyhow!(why)))?;
    match (more, &plan.end) {
        (None, None) => Ok(plan.paused.is_some().then_some(Control::Resume { budget: None })),
        (Some(more), None) => Ok(Some(Control::Resume { budget: Some(more) })),
        (Some(more), Some(end)) if end.is_resumable => Ok(Some(Control::Resume { budget: Some(more) })),
        (Some(_), Some(_)) => refuse_over(run, plan).map(|()| None),
        (None, Some(end)) if end.is_resumable => {
            let how = how_to_go_on(run, plan).unwrap_or_default();
            Err(Stop::refused(anyhow!(
                "run {run} ended {} ({}): say what it may use from now on, all together, as in: {how}",
                end.reason,
                end.detail
            )))
        }
        (None, Some(_)) => Ok(None),
    }
}

async fn newest(bus: &Bus) -> Result<RunId, Stop> {
    if let Some(run) = unfinished(bus).await?.pop() {
        return Ok(run);
    }
    let ended = registry::runs(bus).await?.into_iter().rev().find(|summary| summary.is_resumable);
    ended.map(|summary| summary.run).ok_or_else(|| {
        Stop::refused(anyhow!(
            "no run is under way or can be gone on with; `millrace list` shows those that ended"
        ))
    })
}
