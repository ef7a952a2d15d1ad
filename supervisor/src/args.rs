//! The command line of a supervisor, the same for `millrace supervisor` and `millrace-supervisor`.

use std::time::Duration;

use clap::Args as ClapArgs;
use millrace_protocol::ids::WorkerId;
use millrace_runtime::health::HttpArgs;
use millrace_runtime::topology::{Otherwise, Wanted};
use millrace_runtime::{Connection, duration};

use crate::Config;

/// Own lanes of a cluster: decide, offer work, archive what is over.
///
/// Credentials come from MILLRACE_NATS_NKEY or MILLRACE_NATS_CREDS (files), or from MILLRACE_NATS_USER and
/// MILLRACE_NATS_PASSWORD.
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {
    /// The NATS server, or several separated by commas
    #[arg(long, env = "MILLRACE_NATS_URL", hide_env_values = true, default_value = "nats://127.0.0.1:4222")]
    nats: String,
    /// The name of this supervisor; made up if not given
    #[arg(long)]
    id: Option<WorkerId>,
    /// How many lanes the log has; fixed when the cluster is made
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    lanes: Option<u16>,
    /// How many copies every stream has: 1, 3 or 5; fixed when the cluster is made
    #[arg(long, value_parser = ["1", "3", "5"])]
    replicas: Option<String>,
    /// How long a silent supervisor keeps its lanes, such as 6s; fixed when the cluster is made
    #[arg(long, env = "MILLRACE_LANE_LEASE", value_name = "TIME", value_parser = duration::parse)]
    lane_lease: Option<Duration>,
    /// How long a silent worker keeps its work, such as 15s; fixed when the cluster is made
    #[arg(long, env = "MILLRACE_WORK_LEASE", value_name = "TIME", value_parser = duration::parse)]
    work_lease: Option<Duration>,
    /// The lane lease of a cluster that is only just being made, where --lane-lease is not given
    #[arg(long, env = "MILLRACE_LANE_LEASE_IF_NEW", value_name = "TIME", default_value = "6s", value_parser = duration::parse, hide = true)]
    lane_lease_if_new: Duration,
    /// The work lease of a cluster that is only just being made, where --work-lease is not given
    #[arg(long, env = "MILLRACE_WORK_LEASE_IF_NEW", value_name = "TIME", default_value = "15s", value_parser = duration::parse, hide = true)]
    work_lease_if_new: Duration,
    /// How long a run stays in the lane after its end, before it is archived
    #[arg(long, env = "MILLRACE_LINGER", value_name = "TIME", default_value = "5s", value_parser = duration::parse)]
    linger: Duration,
    /// Where it says how it is.
    #[command(flatten)]
    http: HttpArgs,
}

impl Args {
    /// The configuration that these arguments ask for.
    #[must_use]
    pub fn into_config(self) -> Config {
        Config {
            connection: Connection::with_environment(self.nats),
            id: self.id,
            wanted: Wanted {
                lanes: self.lanes,
                replicas: self.replicas.and_then(|replicas| replicas.parse().ok()),
                lane_lease: self.lane_lease,
                work_lease: self.work_lease,
                otherwise: Otherwise {
                    lane_lease: self.lane_lease_if_new,
                    work_lease: self.work_lease_if_new,
                },
            },
            linger: self.linger,
            http: self.http.address,
        }
    }
}
