//! `millrace up` and `millrace down`: a local cluster that stays.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Stop};
use crate::folders;
use crate::intake::try_models;
use crate::local::data::{LEAST_FREE, free_space};
use crate::local::{self, Cluster, Event, Options};
use crate::view::say;

/// How often the disk is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

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
    try_models(&arguments.options)?;
    let data = arguments.options.data.clone();
    let mut cluster = tokio::select! {
        cluster = Cluster::start(arguments.options) => cluster.map_err(Stop::environment)?,
        () = interrupt.cancelled() => return Ok(Exit::Interrupted),
    };
    say(&format!("millrace: the cluster is up on {} (data in {})", cluster.info().url, data.display()));
    say("millrace: hand runs in with `millrace submit`; Ctrl-C stops the cluster and loses nothing");
    let mut disk = Disk::of(&data);
    loop {
        tokio::select! {
            () = interrupt.cancelled() => break,
            line = disk.news() => say(&line),
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

/// The disk of a data folder, of which it is told when it gets full: a server without room takes nothing more, and says
/// so to nobody who only watches a run.
pub struct Disk {
    data: PathBuf,
    is_full: bool,
}

impl Disk {
    /// The one on which `data` lies.
    pub fn of(data: &Path) -> Self {
        Self { data: data.to_owned(), is_full: false }
    }

    /// Waits until there is something to say of it.
    pub async fn news(&mut self) -> String {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            // A disk that can't be looked at is not known to be full.
            if let Some(line) = free_space(&self.data).ok().and_then(|free| self.looks(free)) {
                return line;
            }
        }
    }

    /// What is to be said where so many bytes are free: once, until there is room again.
    fn looks(&mut self, free: u64) -> Option<String> {
        let was_full = std::mem::replace(&mut self.is_full, free < LEAST_FREE);
        (self.is_full && !was_full).then(|| {
            format!(
                "millrace: warning: the disk of the data folder {} is nearly full: {} MiB are free. What is under way may stand \
                 still until some space is freed and the cluster is started again (Ctrl-C, then `millrace resume`); \
                 nothing is lost by that",
                self.data.display(),
                free >> 20
            )
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_disk_that_gets_full_it_is_told_once_until_there_is_room_again() {
        let mut disk = Disk::of(Path::new("/d"));
        assert_eq!(disk.looks(LEAST_FREE), None);
        let told = disk.looks(3 << 20).unwrap();
        assert!(told.contains("/d is nearly full: 3 MiB are free"), "{told}");
        assert_eq!(disk.looks(0), None);
        assert_eq!(disk.looks(LEAST_FREE), None);
        assert!(disk.looks(LEAST_FREE - 1).is_some());
    }
}
