//! The gateway: Millrace over HTTP. It reads lanes and archives, folds them with the rules of `millrace_protocol`, and appends
//! facts, like any other client; it holds nothing that could not be read again. So any number of gateways serve a cluster side
//! by side, and a client continues with another one where it has stopped.
//!
//! | module | contents |
//! |---|---|
//! | `server` | connections and their limits |
//! | `tls` | the certificate of encrypted connections |
//! | `access` | authentication and authorisation of requests |
//! | `account` | a served NATS account with its background work: webhooks, traces, heartbeats |
//! | `tenants` | the accounts of several tenants, from a folder |
//! | `resources` | the resources, one file each |
//! | `dashboard` | the web pages |
//! | `pages` | the description of the API and reports as pages |
//! | `feed` | the events of a run as a stream |
//! | `trace_export` | traces of all runs, for a receiver of OpenTelemetry |
//! | `standards` | façades over the API for other protocols |
//! | `webhooks` | messages to receivers of events |
//! | `held_position` | the position of a follower of all lanes, which one gateway holds |
//! | `problem` | errors |
//! | `openapi` | the description of the API |

mod access;
mod account;
mod arguments;
mod content;
mod dashboard;
mod extract;
mod feed;
mod held_position;
mod history;
mod idempotency;
mod listed_run;
mod openapi;
mod pages;
mod problem;
mod queue_places;
mod resources;
mod run_filter;
mod run_index;
mod server;
mod standards;
mod state;
mod tenants;
mod tls;
mod trace_export;
mod waiting;
mod webhooks;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use access::{Authenticator, Caller, CallerLimits, ServedTenants, TenantAccess};
use account::{AccountSettings, ServedAccount};
use arguments::AccessArguments;
use millrace_address_policy::{Cidr, ReceiverPolicy};
use millrace_client::author_name;
use millrace_runtime::ops::health::HttpArgs;
use millrace_runtime::ops::metrics::names::ProcessKind;
use millrace_runtime::program::{ClusterProgram, ProgramError};
use millrace_runtime::{Bus, ConnectionSettings};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use openapi::api_document;
use server::ServerSettings;
use standards::McpServer;
use state::Gateway;
use tenants::{TenantKeeper, TenantSettings};
use tls::ReloadedCertificate;
use tokio::task::JoinHandle;
use trace_export::{ExportSettings, OtlpReceiver};

/// The address if the user gives none.
pub const DEFAULT_API: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7070);
/// The number of ports that are tried after one that is taken.
const PORTS: u16 = 100;
/// The time that the work of several tenants has to stop.
const STOP_TIME: Duration = Duration::from_secs(5);

/// Serve the dashboard, the HTTP API and its documentation (at /docs) for a cluster. Any number of such processes may run side by side.
///
/// Credentials are read from the same environment variables as those of a client.
#[derive(Debug, Clone, clap::Args)]
pub struct ServeArguments {
    /// NATS server, or several separated by commas
    #[arg(
        long,
        env = "MILLRACE_NATS_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "nats://127.0.0.1:4222"
    )]
    nats: String,
    /// Folder with the identities of several tenants: the folder `seeds` of `millrace nats-config`, or NAME.nk and NAME.creds; it is read
    /// again when it changes
    #[arg(long, env = "MILLRACE_TENANTS", value_name = "FOLDER")]
    tenants: Option<PathBuf>,
    /// Address to serve the API on [default: 127.0.0.1:7070, or the next free port]
    #[arg(long, env = "MILLRACE_API", value_name = "ADDR")]
    api: Option<SocketAddr>,
    /// Author of commands and answers without a token, recorded in the log [default: your login name]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Serve the API and its documentation only, without the dashboard
    #[arg(long)]
    no_dashboard: bool,
    /// File into which the URL of the API is written as soon as it is served
    #[arg(long, value_name = "FILE")]
    url_file: Option<PathBuf>,
    #[command(flatten, next_help_heading = "Access")]
    access: AccessArguments,
    /// Network outside the public internet in which receivers of webhooks may be, such as 10.1.0.0/16; may be repeated
    #[arg(
        long,
        env = "MILLRACE_ALLOW_PRIVATE_WEBHOOKS",
        value_name = "NETWORK",
        value_delimiter = ',',
        help_heading = "Webhooks"
    )]
    allow_private_webhooks: Vec<Cidr>,
    /// The address of the metrics page.
    #[command(flatten)]
    http: HttpArgs,
}

/// Serves the API until the token is cancelled.
pub async fn run_with_args(
    arguments: ServeArguments,
    shutdown: CancellationToken,
) -> Result<(), ProgramError> {
    let ServeArguments { nats, tenants, api, by, no_dashboard, url_file, access, .. } = arguments;
    // Before the cluster is joined: a mistake is reported at once.
    let export = read_export_settings()?;
    let chosen = api.unwrap_or(DEFAULT_API);
    access.check_address(chosen)?;
    access.check_tenants(tenants.is_some())?;
    let certificate = access.certificate_files().map(ReloadedCertificate::open).transpose();
    let certificate = certificate.map_err(ProgramError::refused_input)?;
    let listener = open_listener(api).await?;
    let address = listener.local_addr()?;
    let settings = access.settings(address, tenants.is_none().then(|| author_name(by)))?;
    let mut program =
        ClusterProgram::open_with_health_page(ProcessKind::Gateway, arguments.http.address, &shutdown)
            .await?;
    let connection = ConnectionSettings::from_environment(nats);
    let receivers = ReceiverPolicy::new(arguments.allow_private_webhooks);
    let in_progress = tenants.is_some().then(|| access.max_in_progress()).flatten();
    let account = AccountSettings { receivers, export, limits: settings.limits, in_progress };
    let joined = match tenants {
        None => join_only_account(&mut program, &connection, account, &shutdown).await?,
        Some(folder) => Some(connect_tenants(&program, folder, connection, account, &shutdown).await?),
    };
    let Some(ServedAccounts { tenants, stopping }) = joined else { return Ok(()) };
    let scheme = if certificate.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{address}");
    url_file.as_deref().map_or(Ok(()), |file| write_url(file, &url))?;
    tracing::info!(%url, "serving the API");
    let authenticator = Authenticator::new(tenants, settings).map_err(ProgramError::bad_environment)?;
    let server = ServerSettings {
        has_dashboard: !no_dashboard,
        tls: certificate
            .as_ref()
            .map(ReloadedCertificate::acceptor)
            .transpose()
            .map_err(ProgramError::bad_environment)?,
        max_per_address: access.max_connections(),
    };
    if let Some(certificate) = certificate {
        tokio::spawn(certificate.follow_files(shutdown.clone()));
    }
    server::serve(listener, Arc::new(authenticator), server, shutdown).await;
    // It stops with the same signal, each kind of work in bounded time.
    let _ = tokio::time::timeout(STOP_TIME, stopping).await;
    if let Some(file) = &url_file {
        // A file that is left names a process that is gone; the next one replaces it.
        let _ = std::fs::remove_file(file);
    }
    Ok(())
}

struct ServedAccounts {
    tenants: ServedTenants,
    /// Ends when the background work of all accounts has stopped, after the shutdown signal.
    stopping: JoinHandle<()>,
}

/// Joins the cluster of the only account. `None` if the process is stopped first.
async fn join_only_account(
    program: &mut ClusterProgram,
    connection: &ConnectionSettings,
    settings: AccountSettings,
    shutdown: &CancellationToken,
) -> Result<Option<ServedAccounts>, ProgramError> {
    let Some(bus) = program.join_existing_cluster(connection, "millrace-gateway").await? else {
        return Ok(None);
    };
    let account =
        ServedAccount::start(None, bus, settings, shutdown).map_err(ProgramError::bad_environment)?;
    let (tenants, shutdown) = (ServedTenants::Only(account.access()), shutdown.clone());
    let stopping = tokio::spawn(async move {
        shutdown.cancelled().await;
        account.stop().await;
    });
    Ok(Some(ServedAccounts { tenants, stopping }))
}

/// Connects the tenants of a folder, as far as that is possible now.
async fn connect_tenants(
    program: &ClusterProgram,
    folder: PathBuf,
    connection: ConnectionSettings,
    account: AccountSettings,
    shutdown: &CancellationToken,
) -> Result<ServedAccounts, ProgramError> {
    program.health().add_readiness_check("tenants", || Err("connecting them".into()));
    let poller = program.server_poller();
    let settings = TenantSettings { folder: folder.clone(), connection, account, poller };
    let keeper = TenantKeeper::start(settings, shutdown.clone()).await;
    let keeper = keeper.map_err(|error| {
        ProgramError::refused_input(format!(
            "--tenants: can't read the folder {}: {error}; it has an entry for each tenant, as the folder `seeds` that \
             `millrace nats-config` writes",
            folder.display()
        ))
    })?;
    // From here on `log` tells if one of them responds.
    program.health().add_readiness_check("tenants", || Ok(()));
    let tenants = ServedTenants::Several(keeper.directory());
    Ok(ServedAccounts { tenants, stopping: keeper.follow_folder() })
}

/// Serves MCP over standard input and output, for the program that has started this process.
pub async fn serve_mcp_on_stdio(
    bus: &Bus,
    by: Option<String>,
    shutdown: CancellationToken,
) -> Result<(), ProgramError> {
    let gateway = Arc::new(Gateway::new(None, bus.clone(), ReceiverPolicy::default(), shutdown.clone()));
    // The user of this process has no limits.
    let limits = CallerLimits { requests: None, streams: None };
    let access = TenantAccess::new(gateway, limits, None).admit(Arc::new(Caller::local(author_name(by))));
    let access = access.map_err(|problem| ProgramError::bad_environment(problem.detail().to_owned()))?;
    let served = Box::pin(McpServer::for_local_user(access).serve_stdio(shutdown)).await;
    bus.flush_client().await;
    served.map_err(|error| ProgramError::refused_input(format!("the client does not speak MCP: {error}")))
}

/// Returns the settings of the receiver of traces that the variables of OpenTelemetry name, if they name one.
fn read_export_settings() -> Result<Option<ExportSettings>, ProgramError> {
    let refused = |error: &dyn std::fmt::Display| {
        ProgramError::refused_input(format!("traces can't be exported: {error}"))
    };
    let settings = ExportSettings::from_environment().map_err(|error| refused(&error))?;
    if let Some(settings) = &settings {
        // A mistake is reported before the cluster is joined.
        OtlpReceiver::new(settings).map_err(|error| refused(&error))?;
    }
    Ok(settings)
}

/// Writes a file that a reader sees completely or not at all.
fn write_url(file: &Path, url: &str) -> Result<(), ProgramError> {
    let unfinished = file.with_extension("tmp");
    let written = std::fs::write(&unfinished, format!("{url}\n"));
    written.and_then(|()| std::fs::rename(unfinished, file)).map_err(|error| {
        ProgramError::bad_environment(format!("can't write the URL to {}: {error}", file.display()))
    })
}

/// Opens the address. If the user gives none and the port is taken, the next free one is used.
async fn open_listener(chosen: Option<SocketAddr>) -> Result<TcpListener, ProgramError> {
    let address = chosen.unwrap_or(DEFAULT_API);
    let ports = if chosen.is_some() { 0 } else { PORTS };
    let mut taken = None;
    for port in address.port()..=address.port().saturating_add(ports) {
        match TcpListener::bind(SocketAddr::new(address.ip(), port)).await {
            Ok(listener) => return Ok(listener),
            Err(error) => taken = Some(error),
        }
    }
    let why = taken.map(|error| error.to_string()).unwrap_or_default();
    Err(ProgramError::bad_environment(format!(
        "cannot serve the API at {address}: {why}; choose another address with --api or MILLRACE_API"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_that_others_reach_need_encryption() {
        let (plain, proxied) = (AccessArguments::default(), AccessArguments::behind_proxy());
        let encrypted = AccessArguments { tls_cert: Some("a.pem".into()), ..AccessArguments::default() };
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
            let address = address.parse().unwrap();
            let error = plain.check_address(address).unwrap_err();
            assert!(error.to_string().contains("--behind-proxy"), "{error}");
            assert!(proxied.check_address(address).is_ok() && encrypted.check_address(address).is_ok());
        }
        assert!(plain.check_address(DEFAULT_API).is_ok());
    }

    #[test]
    fn requests_without_a_token_are_accepted_on_this_machine_only() {
        let user = |arguments: &AccessArguments, address: &str| {
            arguments.settings(address.parse().unwrap(), Some("ann".into())).unwrap().local_user
        };
        let (plain, proxied) = (AccessArguments::default(), AccessArguments::behind_proxy());
        assert_eq!(user(&plain, "127.0.0.1:1").as_deref(), Some("ann"));
        assert_eq!(user(&proxied, "127.0.0.1:1"), None, "the proxy connects from this machine");
        assert_eq!(user(&plain, "10.0.0.1:1"), None);
        assert_eq!(user(&AccessArguments { require_token: true, ..plain }, "127.0.0.1:1"), None);
    }

    #[test]
    fn tokens_of_a_provider_name_their_tenant_if_there_are_several() {
        let check = |oidc: &[&str], has_tenants| {
            let arguments = ["serve"].iter().chain(oidc);
            let command = <AccessArguments as clap::Args>::augment_args(clap::Command::new("serve"));
            let mut matches = command.try_get_matches_from(arguments).unwrap();
            let access = <AccessArguments as clap::FromArgMatches>::from_arg_matches_mut(&mut matches);
            access.unwrap().check_tenants(has_tenants).map_err(|error| error.to_string())
        };
        let provider = ["--oidc-issuer", "https://id.example", "--oidc-audience", "millrace"];
        let with_claim = [&provider[..], &["--oidc-tenant-claim", "groups"]].concat();
        assert_eq!([check(&[], false), check(&[], true), check(&provider, false)], [Ok(()), Ok(()), Ok(())]);
        assert_eq!(check(&with_claim, true), Ok(()));
        assert!(check(&provider, true).unwrap_err().contains("needs --oidc-tenant-claim"));
        assert!(check(&with_claim, false).unwrap_err().contains("needs --tenants"));
    }

    #[tokio::test]
    async fn next_free_port_is_used_unless_the_user_chooses_one() {
        // Another process may have it already.
        let _taken = TcpListener::bind(DEFAULT_API).await;
        let listener = open_listener(None).await.unwrap();
        assert!(listener.local_addr().unwrap().port() > DEFAULT_API.port());
        assert!(open_listener(Some(listener.local_addr().unwrap())).await.is_err());
    }
}
