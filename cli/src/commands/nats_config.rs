//! `millrace nats-config`: what NATS servers and the processes of a cluster need to know each other by, as files.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;
use millrace_protocol::ids::{Capability, InvalidName};

use crate::exit::{Exit, Stop};
use crate::nats_config::{self, Change, Error, Report, Request, Size, Tenant, What};
use crate::view::print_line;

/// The arguments of `millrace nats-config`.
///
/// Running it again keeps every key, and adds what is asked for: one more `--worker` is one more identity. No seed is
/// ever printed.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Folder to write to; nobody else may be able to read it
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// A tenant, with an account of its own: its runs are invisible to others [default: those that there are, or millrace]
    #[arg(long, value_name = "NAME")]
    tenant: Vec<Tenant>,
    /// An identity for the workers that offer these capabilities [default: one for each built-in capability]
    #[arg(long = "worker", value_name = "CAP[,CAP]", value_parser = capabilities)]
    workers: Vec<BTreeSet<Capability>>,
    /// How many lanes the cluster may have, up to 256; never fewer than before [default: 16]
    // Permissions name each lane, and a Secret of Kubernetes holds 1 MiB.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    lanes: Option<u16>,
    /// A host that the servers are known by, beside localhost and those of compose.yaml and deploy/kubernetes
    #[arg(long, value_name = "NAME", value_parser = host)]
    host: Vec<String>,
    /// How much the streams of a tenant may take on disk, all copies together, such as 50GB [default: not limited]
    #[arg(long, value_name = "SIZE")]
    max_store: Option<Size>,
    /// Identities as JWTs, signed by an operator, with credentials files
    #[arg(long)]
    jwt: bool,
    /// Connections in the clear: for tests, and where something else encrypts them
    #[arg(long)]
    no_tls: bool,
    /// Give an identity another key; the one it has is let in beside it until it is retired
    #[arg(long, value_name = "IDENTITY")]
    rotate: Vec<String>,
    /// Let the old key of an identity in no more
    #[arg(long, value_name = "IDENTITY")]
    retire: Vec<String>,
}

fn capabilities(text: &str) -> Result<BTreeSet<Capability>, InvalidName> {
    text.split(',').map(|name| Capability::new(name.trim())).collect()
}

/// A name of the DNS, whose first part may be a `*`, or an address.
fn host(text: &str) -> Result<String, String> {
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
        Err("a host is a name such as nats-0.example.org or *.example.org, or an address, without a port"
            .into())
    }
}

/// Writes the folder, and says what was written and what is next.
pub fn command(arguments: Arguments) -> Result<Exit, Stop> {
    let request = Request {
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
    let report = nats_config::write(&request).map_err(stop)?;
    print(&request, &report);
    Ok(Exit::Completed)
}

fn stop(error: Error) -> Stop {
    if error.is_refusal() { Stop::refused(error) } else { Stop::environment(error) }
}

fn print(request: &Request, report: &Report) {
    if report.changes.is_empty() {
        print_line(&format!("{}: as it was, nothing to do", request.out.display()));
    } else {
        print_line(&format!("{}:", request.out.display()));
    }
    for Change { name, what } in &report.changes {
        print_line(&match what {
            What::New => format!("  new      {name}"),
            What::Changed(why) => format!("  changed  {name} ({why})"),
            What::Gone(why) => format!("  gone     {name} ({why})"),
        });
    }
    report.notes.iter().for_each(|note| print_line(&format!("note: {note}")));
    print_line("next:");
    next(request, report).iter().for_each(|line| print_line(&format!("  {line}")));
}

fn next(request: &Request, report: &Report) -> Vec<String> {
    let out = request.out.display();
    let tenant = report.tenants.first().map_or(Tenant::DEFAULT, Tenant::as_str);
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
        format!("a server      nats-server -c {out}/nats.conf, with the variables that its first lines name"),
        format!("a process     {identity}{tls} millrace doctor --nats nats://HOST:4222"),
        format!("Kubernetes    kubectl apply --server-side -k {out}"),
    ]
}
