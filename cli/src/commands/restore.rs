//! `millrace restore`: a backup into an empty account, on a server that is there or in an empty data folder. It starts
//! no cluster; whoever starts one there goes on where the backup was taken.

use std::fmt::Display;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use millrace_runtime::Connection;
use millrace_runtime::backup::{self, Restored, Wish};
use millrace_runtime::connection::Credentials;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::backup::{described, stopped, tell};
use crate::client::Target;
use crate::exit::{Exit, Stop};
use crate::local::{self, Cluster, ClusterInfo, Options};
use crate::view::{emit, print_line, say};

/// How many things that are missing are named one by one.
const SHOWN: usize = 20;

/// The arguments of `millrace restore`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// A folder that `millrace backup` has made
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// How many copies of everything the cluster is to have: 1, 3 or 5 [default: as many as it had]
    #[arg(long, value_name = "N", value_parser = PossibleValuesParser::new(["1", "3", "5"]).map(|n| n.parse::<u8>().unwrap_or(1)), hide_possible_values = true)]
    replicas: Option<u8>,
    /// Remove first what a restore left there that was killed
    #[arg(long)]
    again: bool,
    /// Print what was restored as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Restores a backup. All of it is there at the end, or nothing.
pub async fn command(arguments: Arguments, shutdown: CancellationToken) -> Result<Exit, Stop> {
    let wish =
        Wish { folder: arguments.folder.clone(), replicas: arguments.replicas, again: arguments.again };
    let restored = match &arguments.target.nats {
        Some(url) => put(&Connection::with_environment(url), &wish, &shutdown).await?,
        None => at_home(&arguments.target, &wish, &shutdown).await?,
    };
    Ok(report(&restored, &arguments))
}

async fn put(connection: &Connection, wish: &Wish, shutdown: &CancellationToken) -> Result<Restored, Stop> {
    backup::restore(connection, wish, shutdown, &tell).await.map_err(stopped)
}

/// Restores into the data folder of a local cluster. Where none runs on it, its server is started for as long as this
/// takes.
async fn at_home(target: &Target, wish: &Wish, shutdown: &CancellationToken) -> Result<Restored, Stop> {
    if let Some(info) = local::running(&target.data) {
        return put(&connection(&info), wish, shutdown).await;
    }
    // What is no backup shall leave no data folder behind.
    backup::verify(&wish.folder, shutdown, &|_| {}).map_err(stopped)?;
    let server =
        Cluster::start_with(Options::on(&target.data), Vec::new()).await.map_err(Stop::environment)?;
    let wish = Wish { replicas: wish.replicas.or(Some(1)), ..wish.clone() };
    let restored = put(&connection(server.info()), &wish, shutdown).await;
    server.stop().await;
    restored
}

fn connection(info: &ClusterInfo) -> Connection {
    let credentials = Credentials::Password { user: info.user.clone(), password: info.password.clone() };
    Connection { credentials, ..Connection::open(info.url.clone()) }
}

fn counted<N: Display + PartialEq + From<u8>>(count: N, one: &str, several: &str) -> String {
    format!("{count} {}", if count == N::from(1) { one } else { several })
}

fn report(restored: &Restored, arguments: &Arguments) -> Exit {
    let Restored { manifest, settings, archived, live, missing } = restored;
    if arguments.json {
        let missing: Vec<_> =
            missing.iter().map(|one| json!({ "what": one.what, "named_by": one.named_by })).collect();
        emit(&json!({
            "backup": described(manifest), "settings": settings, "archived_runs": archived, "live_runs": live,
            "missing": missing,
        }));
    } else {
        print_line(&format!(
            "restored, as of {}: {} in the archive and {} in {}, {} of everything",
            manifest.taken.strftime("%Y-%m-%d %H:%M:%S UTC"),
            counted(*archived, "run", "runs"),
            live.len(),
            counted(settings.lanes, "lane", "lanes"),
            counted(settings.replicas, "copy", "copies"),
        ));
        say(match arguments.target.nats {
            Some(_) => {
                "millrace: start supervisors, workers and critics there, and what was under way goes on"
            }
            None => "millrace: `millrace up` with this data folder goes on with what was under way",
        });
    }
    for one in missing.iter().take(SHOWN) {
        say(&format!("millrace: {} is missing, and named by {}", one.what, one.named_by));
    }
    if missing.len() > SHOWN {
        say(&format!("millrace: {} more are missing", missing.len() - SHOWN));
    }
    if missing.is_empty() { Exit::Completed } else { Exit::Partial }
}
