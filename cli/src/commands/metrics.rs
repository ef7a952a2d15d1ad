//! `millrace metrics`: measures a cluster as a whole, for as long as it is let, and serves what it finds.

use std::time::Duration;

use millrace_runtime::health::{Health, HttpArgs, Page};
use millrace_runtime::metrics::cluster::measure;
use millrace_runtime::metrics::names::Process;
use millrace_runtime::{Bus, Connection};
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Stop};

/// How long a cluster that is only just being made is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Measure a cluster: its queues, lanes, streams, runs and processes. One such process is enough for a cluster; what
/// each of the others does is on its own page.
///
/// Credentials come from the same variables as those of a worker.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// The NATS server, or several separated by commas
    #[arg(long, env = "MILLRACE_NATS_URL", hide_env_values = true, default_value = "nats://127.0.0.1:4222")]
    nats: String,
    /// Where it says what it measures.
    #[command(flatten)]
    http: HttpArgs,
}

pub async fn command(arguments: Arguments, shutdown: CancellationToken) -> Result<Exit, Stop> {
    let Some(address) = arguments.http.address else {
        return Err(Stop::refused(anyhow::anyhow!(
            "nobody would see what is measured: name an address with --http or MILLRACE_HTTP, such as 0.0.0.0:8080"
        )));
    };
    let health = Health::new(shutdown.clone());
    let page = Page::open(Some(address), Process::Metrics, health.clone()).await;
    let mut page = page.map_err(Stop::environment)?;
    let connection = Connection::with_environment(arguments.nats);
    let joining = Bus::join(&connection, "millrace-metrics", PATIENCE);
    let Some(bus) = page.join(joining).await? else { return Ok(Exit::Completed) };
    measure(bus, health, shutdown).await;
    Ok(Exit::Completed)
}
