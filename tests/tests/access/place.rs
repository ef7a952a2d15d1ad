//! A server that lets in only whom `millrace nats-config` knows, and nobody further than it says.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use millrace_runtime::connection::Credentials;
use millrace_runtime::topology::Wanted;
use millrace_runtime::{Bus, Connection};
use millrace_tests::cluster::clean;
use millrace_tests::program::millrace;
use millrace_tests::{NatsServer, Options};
use tempfile::TempDir;

use crate::raw::Raw;

/// How many lanes there may be.
pub const LANES: u16 = 2;
/// The workers with identities of their own.
const WORKERS: [&str; 5] = ["research", "producer", "planner", "echo", "writer"];

/// The server and the identities.
pub struct Place {
    pub server: NatsServer,
    pub folder: TempDir,
    /// Whether identities are JWTs.
    jwt: bool,
}

impl Place {
    /// With an account for each of these tenants.
    pub fn new(tenants: &[&str]) -> Self {
        Self::with(tenants, &[])
    }

    /// The same, where the command is told more.
    pub fn with(tenants: &[&str], more: &[&str]) -> Self {
        let jwt = more.contains(&"--jwt");
        let folder = tempfile::tempdir().unwrap();
        let mut command = clean(Command::new(millrace()));
        command
            .args(["nats-config", "--no-tls", "--lanes", &LANES.to_string(), "--out"])
            .arg(folder.path().join("nats"));
        command.args(more).args(tenants.iter().flat_map(|tenant| ["--tenant", tenant]));
        command.args(WORKERS.iter().flat_map(|worker| ["--worker", worker]));
        let done = command.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let more = std::fs::read_to_string(folder.path().join("nats/accounts.conf")).unwrap();
        Self { server: NatsServer::with(&Options { more, ..Options::default() }), folder, jwt }
    }

    pub fn seed(&self, tenant: &str, identity: &str) -> PathBuf {
        let kind = if self.jwt { "creds" } else { "nk" };
        self.folder.path().join(format!("nats/seeds/{tenant}/{identity}.{kind}"))
    }

    /// Somebody who holds the seed of an identity, and does by hand what it wants.
    pub fn thief(&self, tenant: &str, identity: &str) -> Raw {
        Raw::connect(self.server.port(), &self.seed(tenant, identity))
    }

    /// A supervisor's connection, which makes the cluster if need be.
    pub async fn supervisor(&self, tenant: &str) -> Bus {
        let wanted = Wanted { lanes: Some(LANES), ..Wanted::default() };
        Bus::connect(&self.connection(tenant, "supervisor"), "test", &wanted).await.unwrap()
    }

    /// The connection of anybody else.
    pub async fn bus(&self, tenant: &str, identity: &str) -> Bus {
        Bus::join(&self.connection(tenant, identity), "test", Duration::from_secs(30)).await.unwrap()
    }

    pub fn connection(&self, tenant: &str, identity: &str) -> Connection {
        let seed = self.seed(tenant, identity);
        let credentials = if self.jwt { Credentials::File(seed) } else { Credentials::NkeyFile(seed) };
        Connection { credentials, ..Connection::open(self.server.url.clone()) }
    }

    /// The program under test as an identity of the first tenant.
    pub fn command(&self, identity: &str) -> Command {
        let mut command = clean(Command::new(millrace()));
        command
            .env("MILLRACE_NATS_URL", &self.server.url)
            .env("MILLRACE_NATS_NKEY", self.seed("millrace", identity))
            .env("MILLRACE_DOCUMENT_CACHE", self.folder.path().join(format!("documents-{identity}")))
            .env("MILLRACE_DATA", self.folder.path().join(format!("data-{identity}")));
        command
    }

    /// What a command prints that ends well.
    pub fn printed(&self, identity: &str, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.command(identity).args(arguments).output().unwrap();
        assert!(status.success(), "{identity} {arguments:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap()
    }

    /// What the server says that it has refused.
    pub fn refusals(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.server.folder().join("log")).unwrap();
        log.lines().filter(|line| line.contains("Violation")).map(ToOwned::to_owned).collect()
    }
}
