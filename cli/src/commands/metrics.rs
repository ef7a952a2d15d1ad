//! `millrace metrics`: measures the cluster as a whole and exports the metrics to Prometheus until it is stopped.

use millrace_runtime::ConnectionSettings;
use millrace_runtime::ops::cluster_metrics::measure_cluster;
use millrace_runtime::ops::health::HttpArgs;
use millrace_runtime::ops::metrics::names::ProcessKind;
use millrace_runtime::program::{ClusterProgram, ProgramError};
use tokio_util::sync::CancellationToken;

/// Export cluster-wide metrics: queues, lanes, streams, runs and processes. One such process is enough for a cluster; each
/// other process exports its own metrics.
///
/// Credentials are read from the same environment variables as those of a worker.
#[derive(Debug, Clone, clap::Args)]
pub struct MetricsArguments {
    /// NATS server, or several separated by commas
    #[arg(
        long,
        env = "MILLRACE_NATS_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "nats://127.0.0.1:4222"
    )]
    nats: String,
    /// The address of the metrics page.
    #[command(flatten)]
    http: HttpArgs,
}

pub async fn run_command(
    arguments: MetricsArguments,
    shutdown: CancellationToken,
) -> Result<(), ProgramError> {
    let Some(address) = arguments.http.address else {
        return Err(ProgramError::refused_input(
            "no address to serve the metrics on; set one with --http or MILLRACE_HTTP, such as 0.0.0.0:8080",
        ));
    };
    let mut program =
        ClusterProgram::open_with_health_page(ProcessKind::Metrics, Some(address), &shutdown).await?;
    let connection = ConnectionSettings::from_environment(arguments.nats);
    let Some(bus) = program.join_existing_cluster(&connection, "millrace-metrics").await? else {
        return Ok(());
    };
    measure_cluster(bus, program.health().clone(), shutdown).await;
    Ok(())
}
