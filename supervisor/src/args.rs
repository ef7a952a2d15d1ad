//! The command line of a supervisor, the same for `millrace supervisor` and `millrace-supervisor`.

use std::time::Duration;

use clap::Args as ClapArgs;
use millrace_protocol::ids::WorkerId;
use millrace_runtime::nats::connection::parse_server_urls;
use millrace_runtime::nats::topology::{ClusterDefaults, ClusterOptions};
use millrace_runtime::ops::health::HttpArgs;
use millrace_runtime::{ConnectionSettings, clock};

use crate::SupervisorConfig;

/// Run a supervisor: it owns lanes, decides on their runs, offers work and archives ended runs.
///
/// Credentials are read from MILLRACE_NATS_NKEY or MILLRACE_NATS_CREDS (files), or from MILLRACE_NATS_USER and
/// MILLRACE_NATS_PASSWORD.
#[derive(Debug, Clone, ClapArgs)]
pub struct SupervisorArgs {
    /// The NATS server, or several separated by commas
    #[arg(
        long,
        env = "MILLRACE_NATS_URL",
        hide_env_values = true,
        value_name = "URL",
        value_parser = parse_server_urls,
        default_value = "nats://127.0.0.1:4222"
    )]
    nats: String,
    /// The id of this supervisor; generated if not given
    #[arg(long)]
    id: Option<WorkerId>,
    /// Number of lanes in the log; fixed when the cluster is created
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    lanes: Option<u16>,
    /// Number of replicas of every stream: 1, 3 or 5; fixed when the cluster is created
    #[arg(long, value_parser = ["1", "3", "5"])]
    replicas: Option<String>,
    /// Lease of a lane, such as 6s: a supervisor that does not renew it loses the lane; fixed when the cluster is created
    #[arg(long, env = "MILLRACE_LANE_LEASE", value_name = "TIME", value_parser = clock::parse_duration)]
    lane_lease: Option<Duration>,
    /// Lease of a piece of work, such as 15s: a worker that does not renew it loses the work; fixed when the cluster is created
    #[arg(long, env = "MILLRACE_WORK_LEASE", value_name = "TIME", value_parser = clock::parse_duration)]
    work_lease: Option<Duration>,
    /// The lane lease of a new cluster, if --lane-lease is not given
    #[arg(long, env = "MILLRACE_LANE_LEASE_IF_NEW", value_name = "TIME", default_value = "6s", value_parser = clock::parse_duration, hide = true)]
    lane_lease_if_new: Duration,
    /// The work lease of a new cluster, if --work-lease is not given
    #[arg(long, env = "MILLRACE_WORK_LEASE_IF_NEW", value_name = "TIME", default_value = "15s", value_parser = clock::parse_duration, hide = true)]
    work_lease_if_new: Duration,
    /// Time that a run stays in its lane after its end, before it is archived
    #[arg(long, env = "MILLRACE_LINGER", value_name = "TIME", default_value = "5s", value_parser = clock::parse_duration)]
    linger: Duration,
    /// The address of the health and metrics server.
    #[command(flatten)]
    http: HttpArgs,
}

impl SupervisorArgs {
    /// Returns the configuration for these arguments.
    #[must_use]
    pub fn into_config(self) -> SupervisorConfig {
        SupervisorConfig {
            connection: ConnectionSettings::from_environment(self.nats),
            id: self.id,
            wanted: ClusterOptions {
                lanes: self.lanes,
                replicas: self.replicas.and_then(|replicas| replicas.parse().ok()),
                lane_lease: self.lane_lease,
                work_lease: self.work_lease,
                defaults: ClusterDefaults {
                    lane_lease: self.lane_lease_if_new,
                    work_lease: self.work_lease_if_new,
                },
            },
            linger: self.linger,
            http: self.http.address,
        }
    }
}
