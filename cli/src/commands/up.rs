//! `millrace up` and `millrace down`: a local cluster that stays.

use std::path::PathBuf;

use clap::Args;
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Stop};
use crate::folders;
use crate::intake::try_models;
use crate::local::{self, Cluster, Event, Options};
use crate::view::say;

/// The arguments of `millrace up`.
#[derive(Args, Debug)]
pub struct UpArguments {
    #[command(flatten)]
    options: Options,
}

/// The arguments of `millrace down`.
#[derive(Args, Debug)]
pub struct DownArguments {
    /// Data folder of the cluster
    #[arg(long, env = "MILLRACE_DATA", value_name = "DIR", default_value_os_t = folders::data())]
    data: PathBuf,
}

/// Starts a cluster, and stops it when the user interrupts.
pub async fn up(arguments: UpArguments, interrupt: CancellationToken) -> Result<Exit, Stop> {
    try_models(&arguments.options.model, arguments.options.record.as_deref())?;
    arguments.options.capabilities().map_err(Stop::refused)?;
    let data = arguments.options.data.clone();
    let mut cluster = Cluster::start(arguments.options).await.map_err(Stop::environment)?;
    say(&format!("millrace: the cluster is up on {} (data in {})", cluster.info().url, data.display()));
    say("millrace: hand runs in with `millrace submit`; Ctrl-C stops the cluster and loses nothing");
    loop {
        tokio::select! {
            () = interrupt.cancelled() => break,
            event = cluster.event() => match event {
                Some(event) => report(&event),
                None => break,
            },
        }
    }
    cluster.stop().await;
    say("millrace: the cluster is down");
    Ok(Exit::Completed)
}

/// Says what went wrong with a process; that all is well is nothing to say.
pub fn report(event: &Event) {
    match event {
        Event::Started { restarts: 0, .. } => {}
        Event::Started { name, pid, restarts } => {
            say(&format!("millrace: {name} runs again (process {pid}, restart {restarts})"));
        }
        Event::Died { name, status, last_words, .. } => {
            say(&format!(
                "millrace: {name} ended ({status}) and is started again; its last words: {last_words}"
            ));
        }
        Event::NotStarted { name, error, .. } => {
            say(&format!("millrace: {name} can't be started: {error}; trying again"));
        }
    }
}

/// Stops a cluster that runs in the background.
pub async fn down(arguments: DownArguments) -> Result<Exit, Stop> {
    let was_up = local::stop(&arguments.data).await.map_err(Stop::environment)?;
    let data = arguments.data.display();
    say(&if was_up {
        format!("millrace: the cluster on {data} is down")
    } else {
        format!("millrace: no cluster runs on {data}")
    });
    Ok(Exit::Completed)
}
