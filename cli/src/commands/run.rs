//! `millrace run`: a local cluster for one run. Starts it (or uses the one that runs on the data folder), hands the run
//! in, shows it, leaves the deliverable, and stops what it started.

use anyhow::anyhow;
use clap::Args;
use millrace_agent::model::Choice;
use millrace_models::provider::default_choice;
use millrace_protocol::ids::RunId;
use millrace_runtime::log::handed_in;
use millrace_runtime::{Bus, registry};
use tokio_util::sync::CancellationToken;

use crate::client::{join, submit};
use crate::commands::submit::warn_of_names;
use crate::commands::up::{self, Disk};
use crate::commands::watch::{Output, Unwatched, watch};
use crate::exit::{Exit, Stop};
use crate::intake::{Intake, IntakeArguments, try_models, warn_of_unused};
use crate::local::{self, Cluster, ClusterInfo, Options};
use crate::view::{View, print_line, say};

/// The arguments of `millrace run`.
#[derive(Args, Debug)]
pub struct RunArguments {
    #[command(flatten)]
    intake: IntakeArguments,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    options: Options,
    /// Leave the cluster running in the background and print the run's id
    #[arg(long)]
    detach: bool,
}

/// What a plan's capabilities may be in a cluster of this program alone.
const BUILT_IN: [&str; 4] = ["echo", "producer", "research", "worker"];

/// The models that the environment asks for where nobody names one.
fn models_of_environment() -> Option<Choice> {
    default_choice(&|name| std::env::var(name).ok())
}

/// Does a run.
pub async fn run(arguments: RunArguments, interrupt: CancellationToken) -> Result<Exit, Stop> {
    let RunArguments { intake, output, options, detach } = arguments;
    let intake = Intake::read(&intake, &options.model)?;
    output.check()?;
    for skipped in &intake.skipped {
        say(&format!("millrace: passed over {}: {}", skipped.path, skipped.reason));
    }
    intake.warning().iter().for_each(|warning| say(warning));
    let is_up = running(&options)?;
    if is_up.is_none() {
        try_models(&options)?;
        let own = options.capabilities().map_err(Stop::refused)?;
        refuse_unknown(&intake, &own)?;
        warn_of_unused(intake.budgeted(), BUILT_IN.into_iter().chain(own.iter().map(String::as_str)));
    }
    if !intake.names_models() && models_of_environment().is_none() && intake.asks_models() {
        say(
            "millrace: no language model is in use; builtin:extractive answers with quotations from your documents \
             (name a model with --model provider:model)",
        );
    }
    if detach {
        let (info, is_new) = match is_up {
            Some(info) => (info, false),
            None => (local::start_detached(&options).await.map_err(Stop::environment)?, true),
        };
        let bus = join(&info).await?;
        if !is_new {
            warn_of_names(&bus, &intake).await?;
        }
        let run = submit(&bus, &intake.into_submission(&bus).await?).await?;
        print_line(run.as_str());
        say(&format!(
            "millrace: follow it with `millrace watch {run}`, stop the cluster with `millrace down`"
        ));
        return Ok(Exit::Completed);
    }
    // What else is under way in a cluster that stays is nobody's surprise.
    let (then, is_new) = match &is_up {
        Some(_) => (Unwatched::GoesOn, false),
        None => (Unwatched::IsKept, true),
    };
    let work = in_cluster(&options, is_up, interrupt.clone(), async |bus| {
        let others = if is_new {
            unfinished(bus).await?
        } else {
            warn_of_names(bus, &intake).await?;
            Vec::new()
        };
        let run = submit(bus, &intake.into_submission(bus).await?).await?;
        for other in others {
            say(&format!(
                "millrace: run {other}, which was interrupted, goes on too (`millrace cancel {other}`)"
            ));
        }
        watch(bus, &run, View::new(output.json), &output, &options.data, (&interrupt, then)).await
    });
    Box::pin(work).await
}

/// The cluster that runs already on the data folder. Its workers have their capabilities: none can be added.
pub fn running(options: &Options) -> Result<Option<ClusterInfo>, Stop> {
    let is_up = local::running(&options.data);
    if is_up.is_some() && !options.capability.is_empty() {
        return Err(Stop::refused(anyhow!(
            "a cluster runs on {} already, and its workers can't be given other capabilities: stop it with `millrace \
             down`, or leave --capability away",
            options.data.display()
        )));
    }
    options.capabilities().map_err(Stop::refused)?;
    let idle = options.chosen_for_a_start();
    if is_up.is_some() && !idle.is_empty() {
        warn_of_running(options, &idle.join(", "));
    }
    Ok(is_up)
}

/// Says that a cluster which runs already stays as it is.
pub fn warn_of_running(options: &Options, idle: &str) {
    let data = options.data.display();
    say(&format!(
        "millrace: warning: a cluster runs on {data} already, of which {idle} can change nothing (`millrace down` stops it)"
    ));
}

/// Does something in a local cluster: the one that runs, or one that is started for it and stopped after it.
pub async fn in_cluster(
    options: &Options,
    is_up: Option<ClusterInfo>,
    interrupt: CancellationToken,
    work: impl AsyncFnOnce(&Bus) -> Result<Exit, Stop>,
) -> Result<Exit, Stop> {
    if let Some(info) = is_up {
        let bus = join(&info).await?;
        return until(&interrupt, work(&bus)).await;
    }
    let mut cluster = tokio::select! {
        cluster = Cluster::start(options.clone()) => cluster.map_err(Stop::environment)?,
        () = interrupt.cancelled() => return Ok(Exit::Interrupted),
    };
    let info = cluster.info().clone();
    let mut disk = Disk::of(&options.data);
    let worked = {
        let work = until(&interrupt, async {
            let bus = join(&info).await?;
            work(&bus).await
        });
        tokio::pin!(work);
        loop {
            tokio::select! {
                worked = &mut work => break worked,
                Some(event) = cluster.event() => up::report(&event),
                line = disk.news() => say(&line),
            }
        }
    };
    cluster.stop().await;
    worked
}

/// Waits for work, but not beyond an interruption: the work's own end, soon after it, is still waited for.
pub async fn until(
    interrupt: &CancellationToken,
    work: impl Future<Output = Result<Exit, Stop>>,
) -> Result<Exit, Stop> {
    let grace = async {
        interrupt.cancelled().await;
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    };
    tokio::select! {
        worked = work => worked,
        () = grace => Ok(Exit::Interrupted),
    }
}

/// A task that nobody in this cluster can ever do is a mistake in the plan, unless a planner can mend it.
fn refuse_unknown(intake: &Intake, own: &[String]) -> Result<(), Stop> {
    if intake.has_planner() {
        return Ok(());
    }
    let offered: Vec<&str> = BUILT_IN.into_iter().chain(own.iter().map(String::as_str)).collect();
    match intake.capabilities().into_iter().find(|capability| !offered.contains(&capability.as_str())) {
        None => Ok(()),
        Some(unknown) => Err(Stop::refused(anyhow!(
            "no worker of this cluster offers the capability {:?}; it has {}, and those that --capability FILE adds",
            unknown.as_str(),
            offered.join(", ")
        ))),
    }
}

/// The runs under way. The log says which those are: a run that was cut off in its first moment has no summary yet.
pub async fn unfinished(bus: &Bus) -> Result<Vec<RunId>, Stop> {
    let summaries = registry::runs(bus).await?;
    let ended = |run: &RunId| summaries.iter().any(|summary| summary.run == *run && summary.end.is_some());
    Ok(handed_in(bus).await?.into_iter().filter(|run| !ended(run)).collect())
}
