//! `millrace nats-config`: generates NATS server configuration and the credentials of a cluster's processes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;
use millrace_protocol::ids::{Capability, InvalidName};

use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::json::{CommandOutcome, FileChangeJson, FileChangeName, print_json};
use crate::view::print_stdout_line;
use millrace_nats_config::{
    self as nats_config, ByteSize, ConfigError, ConfigReport, ConfigRequest, FileChange, FileChangeKind,
    TenantName,
};

const EXAMPLES: &str = "\
Writes nats.conf, accounts.conf, seeds, certificates and Kubernetes Secrets. Running it again keeps all \
keys, adds what you request, and renews certificates that expire within 60 days. It never prints a seed.

Examples:
  millrace nats-config --out nats
  millrace nats-config --out nats --worker analyst --host nats.example.org
  millrace nats-config --out nats --rotate critic      then deploy the new key, then:
  millrace nats-config --out nats --retire critic";

/// The arguments of `millrace nats-config`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct NatsConfigArguments {
    /// Folder to write to; it must not be readable by other users
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Tenant with a NATS account of its own; tenants can't see each other's runs [default: the existing ones, or millrace]
    #[arg(long, value_name = "NAME")]
    tenant: Vec<TenantName>,
    /// Add an identity for workers with these capabilities [default: one for each built-in capability]
    #[arg(long = "worker", value_name = "CAP[,CAP]", value_parser = parse_capabilities)]
    workers: Vec<BTreeSet<Capability>>,
    /// Maximum number of lanes of the cluster, up to 256; can't be reduced later [default: 16]
    // Permissions name each lane, and a Secret of Kubernetes holds 1 MiB.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    lanes: Option<u16>,
    /// Additional host name of the servers, besides localhost and those in compose.yaml and deploy/kubernetes
    #[arg(long, value_name = "NAME", value_parser = parse_host)]
    host: Vec<String>,
    /// Maximum disk space of a tenant's streams, all replicas together, such as 50GB [default: unlimited]
    #[arg(long, value_name = "SIZE")]
    max_store: Option<ByteSize>,
    /// Use operator-signed JWTs and credentials files instead of bare nkeys
    #[arg(long)]
    jwt: bool,
    /// Configure unencrypted connections: for tests, or if another layer encrypts them
    #[arg(long)]
    no_tls: bool,
    /// Give an identity a new key; the old key stays valid until it is retired
    #[arg(long, value_name = "IDENTITY")]
    rotate: Vec<String>,
    /// Revoke the old key of an identity
    #[arg(long, value_name = "IDENTITY")]
    retire: Vec<String>,
    /// Print the changes as a JSON object
    #[arg(long)]
    json: bool,
}

fn parse_capabilities(text: &str) -> Result<BTreeSet<Capability>, InvalidName> {
    text.split(',').map(|name| Capability::new(name.trim())).collect()
}

/// Parses a DNS name, whose first label may be `*`, or an IP address.
fn parse_host(text: &str) -> Result<String, String> {
    let label = |label: &str| {
        !label.is_empty()
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let name = text.strip_prefix("*.").unwrap_or(text);
    let is_too_wide = text.starts_with('*') && !name.contains('.');
    if text.parse::<IpAddr>().is_ok() || (name.split('.').all(label) && !is_too_wide) {
        Ok(text.to_owned())
    } else {
        Err("expected a host name such as nats-0.example.org or *.example.org, or an IP address, without a port"
            .into())
    }
}

/// Writes the folder, then prints the changes and the next steps.
pub fn run_command(arguments: NatsConfigArguments) -> CommandResult {
    let request = ConfigRequest {
        out: arguments.out,
        tenants: arguments.tenant,
        workers: arguments.workers,
        lanes: arguments.lanes,
        hosts: arguments.host,
        max_store: arguments.max_store,
        jwt: arguments.jwt,
        no_tls: arguments.no_tls,
        rotate: arguments.rotate,
        retire: arguments.retire,
        now: Timestamp::now(),
    };
    let report = nats_config::write_configuration(&request).map_err(map_config_error)?;
    if arguments.json {
        print_json(&config_report_json(&request, &report));
    } else {
        print_config_report(&request, &report);
    }
    Ok(CommandExit::Completed)
}

fn map_config_error(error: ConfigError) -> CommandError {
    if error.is_refusal() {
        CommandError::invalid_input(error)
    } else {
        CommandError::unusable_environment(error)
    }
}

fn config_report_json<'a>(request: &ConfigRequest, report: &'a ConfigReport) -> CommandOutcome<'a> {
    let changes = report.changes.iter().map(|FileChange { name, kind }| {
        let (change, reason) = match kind {
            FileChangeKind::New => (FileChangeName::New, None),
            FileChangeKind::Changed(why) => (FileChangeName::Changed, Some(why.as_str())),
            FileChangeKind::Removed(why) => (FileChangeName::Removed, Some(why.as_str())),
        };
        FileChangeJson { file: name, change, reason }
    });
    CommandOutcome::NatsConfigWritten {
        folder: request.out.display().to_string(),
        changes: changes.collect(),
        notes: report.notes.iter().map(ToString::to_string).collect(),
        next: list_next_steps(request, report),
    }
}

fn print_config_report(request: &ConfigRequest, report: &ConfigReport) {
    if report.changes.is_empty() {
        print_stdout_line(&format!("{}: no changes", request.out.display()));
    } else {
        print_stdout_line(&format!("{}:", request.out.display()));
    }
    for FileChange { name, kind } in &report.changes {
        print_stdout_line(&match kind {
            FileChangeKind::New => format!("  new      {name}"),
            FileChangeKind::Changed(why) => format!("  changed  {name} ({why})"),
            FileChangeKind::Removed(why) => format!("  removed  {name} ({why})"),
        });
    }
    report.notes.iter().for_each(|note| print_stdout_line(&format!("note: {note}")));
    print_stdout_line("next:");
    list_next_steps(request, report).iter().for_each(|line| print_stdout_line(&format!("  {line}")));
}

fn list_next_steps(request: &ConfigRequest, report: &ConfigReport) -> Vec<String> {
    let out = request.out.display();
    let tenant = report.tenants.first().map_or(TenantName::DEFAULT, TenantName::as_str);
    let identity = if report.jwt {
        format!("MILLRACE_NATS_CREDS={out}/seeds/{tenant}/client.creds")
    } else {
        format!("MILLRACE_NATS_NKEY={out}/seeds/{tenant}/client.nk")
    };
    let tls = if report.tls {
        format!(
            " MILLRACE_NATS_CA={out}/tls/ca.crt MILLRACE_NATS_CERT={out}/tls/client.crt \
             MILLRACE_NATS_KEY={out}/tls/client.key"
        )
    } else {
        String::new()
    };
    vec![
        format!(
            "server        nats-server -c {out}/nats.conf, with the environment variables listed at its top"
        ),
        format!("process       {identity}{tls} millrace doctor --nats nats://HOST:4222"),
        format!("Kubernetes    kubectl apply --server-side -k {out}"),
    ]
}
