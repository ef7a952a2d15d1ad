//! A server with the identities and permissions that `millrace nats-config` generates.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use millrace_runtime::nats::connection::Credentials;
use millrace_runtime::nats::topology::ClusterOptions;
use millrace_runtime::{Bus, ConnectionSettings};
use millrace_tests::cluster::remove_millrace_variables;
use millrace_tests::program::millrace_program;
use millrace_tests::{NatsServer, ServerOptions};
use tempfile::TempDir;

use super::raw::RawNatsClient;

/// The number of lanes.
pub const LANES: u16 = 2;
/// The workers with identities of their own.
const WORKERS: [&str; 5] = ["research", "producer", "planner", "echo", "writer"];

/// The server and the identities.
pub struct RestrictedServer {
    pub server: NatsServer,
    pub folder: TempDir,
    /// `true` if identities are JWTs.
    jwt: bool,
}

impl RestrictedServer {
    /// Starts a server with an account for each of these tenants.
    pub fn start_for_tenants(tenants: &[&str]) -> Self {
        Self::start_with_arguments(tenants, &[])
    }

    /// The same with more arguments for the command.
    pub fn start_with_arguments(tenants: &[&str], more: &[&str]) -> Self {
        let jwt = more.contains(&"--jwt");
        let folder = tempfile::tempdir().unwrap();
        let mut command = remove_millrace_variables(Command::new(millrace_program()));
        command
            .args(["nats-config", "--no-tls", "--lanes", &LANES.to_string(), "--out"])
            .arg(folder.path().join("nats"));
        command.args(more).args(tenants.iter().flat_map(|tenant| ["--tenant", tenant]));
        command.args(WORKERS.iter().flat_map(|worker| ["--worker", worker]));
        if tenants.len() > 1 {
            command.args(["--max-store", "4GB"]);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let more = std::fs::read_to_string(folder.path().join("nats/accounts.conf")).unwrap();
        Self {
            server: NatsServer::start_with_options(&ServerOptions { more, ..ServerOptions::default() }),
            folder,
            jwt,
        }
    }

    pub fn seed_path(&self, tenant: &str, identity: &str) -> PathBuf {
        let kind = if self.jwt { "creds" } else { "nk" };
        self.folder.path().join(format!("nats/seeds/{tenant}/{identity}.{kind}"))
    }

    /// A raw connection with the stolen seed of an identity.
    pub fn connect_with_stolen_seed(&self, tenant: &str, identity: &str) -> RawNatsClient {
        RawNatsClient::connect(self.server.port(), &self.seed_path(tenant, identity))
    }

    /// A supervisor's connection, which creates the cluster if needed.
    pub async fn connect_supervisor(&self, tenant: &str) -> Bus {
        let wanted = ClusterOptions { lanes: Some(LANES), ..ClusterOptions::default() };
        Bus::connect_and_ensure_cluster(&self.connection_settings(tenant, "supervisor"), "test", &wanted)
            .await
            .unwrap()
    }

    /// A connection of any other identity.
    pub async fn connect_identity(&self, tenant: &str, identity: &str) -> Bus {
        Bus::join_existing_cluster(
            &self.connection_settings(tenant, identity),
            "test",
            Duration::from_secs(30),
        )
        .await
        .unwrap()
    }

    pub fn connection_settings(&self, tenant: &str, identity: &str) -> ConnectionSettings {
        let seed = self.seed_path(tenant, identity);
        let credentials = if self.jwt { Credentials::File(seed) } else { Credentials::NkeyFile(seed) };
        ConnectionSettings { credentials, ..ConnectionSettings::unauthenticated(self.server.url.clone()) }
    }

    /// The program under test as an identity of the default tenant.
    pub fn millrace_command_as(&self, identity: &str) -> Command {
        self.millrace_command_of("millrace", identity)
    }

    /// The program under test as an identity of a tenant.
    pub fn millrace_command_of(&self, tenant: &str, identity: &str) -> Command {
        let mut command = remove_millrace_variables(Command::new(millrace_program()));
        command
            .env("MILLRACE_NATS_URL", &self.server.url)
            .env("MILLRACE_NATS_NKEY", self.seed_path(tenant, identity))
            .env("MILLRACE_DOCUMENT_CACHE", self.folder.path().join(format!("documents-{identity}")))
            .env("MILLRACE_DATA", self.folder.path().join(format!("data-{identity}")));
        command
    }

    /// The output of a command that must succeed.
    pub fn run_and_read_stdout(&self, identity: &str, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } =
            self.millrace_command_as(identity).args(arguments).output().unwrap();
        assert!(status.success(), "{identity} {arguments:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap()
    }

    /// The permission violations in the server's log.
    pub fn logged_permission_violations(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.server.data_folder().join("log")).unwrap();
        log.lines().filter(|line| line.contains("Violation")).map(ToOwned::to_owned).collect()
    }
}
