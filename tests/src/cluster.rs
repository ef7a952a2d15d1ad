//! A cluster for a test: a real nats-server and real `millrace` processes that use it.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::process::{Command, Stdio};
use std::time::Duration;

use millrace_protocol::registry;
use millrace_runtime::nats::connection::Credentials;
use millrace_runtime::nats::topology::LEASES;
use millrace_runtime::{Bus, ConnectionSettings, clock};

use crate::clock::TestClock;
pub use crate::processes::{
    NamedProcesses, ProcessRole, create_file, find_tagged_processes, remove_millrace_variables,
    set_process_tag, wait_for_exit,
};
use crate::program::millrace_program;
use crate::{NatsServer, ServerOptions, wait_for_value};

/// The settings of a test cluster.
#[derive(Debug, Clone)]
pub struct ClusterSetup {
    /// The number of lanes; 1 by default.
    pub lanes: u16,
    /// The duration of a supervisor's lane lease; 1 s by default, `None` is the product's own default.
    pub lane_lease: Option<Duration>,
    /// The duration of a worker's lease on its work; 1 s by default, `None` is the product's own default.
    pub work_lease: Option<Duration>,
    /// The time for which an ended run stays in its lane; 5 s by default.
    pub linger: Duration,
    /// The number of tasks that a worker or critic runs at once; 8 by default.
    pub slots: u32,
    /// The options of the server.
    pub server: ServerOptions,
    /// The clock of all processes but the server; `None` is that of this machine.
    pub clock: Option<TestClock>,
}

impl Default for ClusterSetup {
    fn default() -> Self {
        Self {
            lanes: 1,
            lane_lease: Some(Duration::from_secs(1)),
            work_lease: Some(Duration::from_secs(1)),
            linger: Duration::from_secs(5),
            slots: 8,
            server: ServerOptions::default(),
            clock: None,
        }
    }
}

/// A server and the processes that use it. Dropping it kills all of them.
pub struct TestCluster {
    processes: NamedProcesses,
    /// The server.
    pub server: NatsServer,
    setup: ClusterSetup,
}

impl Deref for TestCluster {
    type Target = NamedProcesses;

    fn deref(&self) -> &NamedProcesses {
        &self.processes
    }
}

impl DerefMut for TestCluster {
    fn deref_mut(&mut self) -> &mut NamedProcesses {
        &mut self.processes
    }
}

impl TestCluster {
    /// Kills the server and all processes with SIGKILL, and starts all of them again.
    ///
    /// # Panics
    /// One of them can't be started.
    pub fn kill_and_restart_all(&mut self) {
        let names = self.processes.names();
        self.server.kill();
        names.iter().for_each(|name| self.processes.kill_process(name));
        self.server.restart();
        names.iter().for_each(|name| self.processes.restart_process(name));
    }

    /// A cluster with a server and no other processes.
    ///
    /// # Panics
    /// The server does not start.
    #[must_use]
    pub fn with_server_only(setup: ClusterSetup) -> Self {
        Self {
            processes: NamedProcesses::default(),
            server: NatsServer::start_with_options(&setup.server),
            setup,
        }
    }

    /// A cluster with a supervisor `supervisor-1`, workers `worker-1` and so on, and a critic `critic-1`.
    ///
    /// # Panics
    /// A process does not start.
    #[must_use]
    pub fn start_with_workers(setup: ClusterSetup, workers: u32) -> Self {
        let mut cluster = Self::with_server_only(setup);
        cluster.start_process(ProcessRole::Supervisor, "supervisor-1", &[]);
        cluster.start_process(ProcessRole::Critic, "critic-1", &[]);
        for number in 1..=workers {
            cluster.start_process(
                ProcessRole::Worker,
                &format!("worker-{number}"),
                &["--capability", "echo"],
            );
        }
        cluster
    }

    /// Starts a process under a new name, with additional arguments.
    ///
    /// # Panics
    /// It can't be started.
    pub fn start_process(&mut self, role: ProcessRole, name: &str, more: &[&str]) {
        let more: Vec<String> = more.iter().map(|&argument| argument.to_owned()).collect();
        let (setup, environment) = (self.setup.clone(), self.connection_environment());
        self.processes.start_process(role, name, move |id| {
            let mut command = remove_millrace_variables(Command::new(millrace_program()));
            command.envs(environment.clone()).args(setup.role_arguments(role, id)).args(&more);
            command
        });
    }

    /// A command that runs the program under test against this cluster: its environment names the server.
    #[must_use]
    pub fn millrace_command(&self) -> Command {
        let mut command = remove_millrace_variables(Command::new(millrace_program()));
        command.stdin(Stdio::null()).envs(self.connection_environment());
        set_process_tag(&mut command, &self.processes.process_tag());
        command
    }

    fn connection_environment(&self) -> BTreeMap<&'static str, String> {
        let folder = |name: &str| self.test_folder().join(name).display().to_string();
        let mut environment = BTreeMap::from([
            ("MILLRACE_NATS_URL", self.server.url.clone()),
            ("MILLRACE_ECHO_LEDGER", self.ledger_path().display().to_string()),
            ("MILLRACE_DOCUMENT_CACHE", folder("documents")),
            ("MILLRACE_DATA", folder("data")),
        ]);
        if let Some((user, password)) = self.setup.server.user.clone() {
            environment.extend([("MILLRACE_NATS_USER", user), ("MILLRACE_NATS_PASSWORD", password)]);
        }
        environment.extend(self.setup.clock.iter().flat_map(TestClock::environment));
        environment
    }

    /// A connection to the cluster, which may still be starting.
    ///
    /// # Panics
    /// It can't be reached within 30 s.
    pub async fn connect_bus(&self) -> Bus {
        Bus::join_existing_cluster(&self.connection_settings(), "test", Duration::from_secs(30))
            .await
            .expect("the cluster can be joined")
    }

    /// The address of the cluster and the credentials for it.
    #[must_use]
    pub fn connection_settings(&self) -> ConnectionSettings {
        let credentials = match self.setup.server.user.clone() {
            Some((user, password)) => Credentials::Password { user, password },
            None => Credentials::None,
        };
        ConnectionSettings { credentials, ..ConnectionSettings::unauthenticated(self.server.url.clone()) }
    }

    /// The owner of each lane, by the name that the test gave the supervisor.
    pub async fn lane_owners(&self, bus: &Bus) -> BTreeMap<u16, String> {
        let context = async_nats::jetstream::new(bus.client().clone());
        let Ok(leases) = context.get_key_value(LEASES).await else { return BTreeMap::new() };
        let mut owners = BTreeMap::new();
        for lane in 0..self.setup.lanes {
            if let Ok(Some(id)) = leases.get(format!("lane-{lane}")).await {
                let id = String::from_utf8_lossy(&id).into_owned();
                let name = id.rsplit_once('-').map_or(id.as_str(), |(name, _)| name);
                owners.insert(lane, name.to_owned());
            }
        }
        owners
    }

    /// The owner of the only lane, once it has not changed for a while.
    ///
    /// # Panics
    /// The owner keeps changing.
    pub async fn wait_for_stable_owner(&self, bus: &Bus) -> String {
        let (mut last, mut seen) = (None, 0);
        wait_for_value(Duration::from_secs(30), "a stable owner", async || {
            let owner = self.lane_owners(bus).await.remove(&0);
            seen = if owner.is_some() && owner == last { seen + 1 } else { 0 };
            last.clone_from(&owner);
            owner.filter(|_| seen > 60)
        })
        .await
    }

    /// Waits until so many processes of a role have published a heartbeat.
    ///
    /// # Panics
    /// The heartbeats do not arrive.
    pub async fn wait_for_heartbeats(&self, bus: &Bus, role: registry::ProcessRole, count: usize) {
        wait_for_value(Duration::from_secs(30), "heartbeats", async || {
            let beats = millrace_runtime::work::registry::read_heartbeats(bus).await.ok()?;
            (beats.iter().filter(|beat| beat.role == role).count() >= count).then_some(())
        })
        .await;
    }

    /// Stops all processes in order and checks that none is left.
    ///
    /// # Panics
    /// A process fails, does not exit, or leaves another one behind.
    pub fn stop_all(self) {
        self.processes.stop_all();
    }
}

impl ClusterSetup {
    /// The command-line arguments of a process of that role.
    #[must_use]
    pub fn role_arguments(&self, role: ProcessRole, id: &str) -> Vec<String> {
        let text = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        match role {
            ProcessRole::Supervisor => {
                let mut words = text(&["supervisor", "--id", id, "--lanes", &self.lanes.to_string()]);
                words.extend(text(&["--linger", &clock::format_duration(self.linger)]));
                for (name, lease) in [("--lane-lease", self.lane_lease), ("--work-lease", self.work_lease)] {
                    words.extend(
                        lease.into_iter().flat_map(|lease| text(&[name, &clock::format_duration(lease)])),
                    );
                }
                words
            }
            ProcessRole::Worker => {
                text(&["worker", "--id", id, "--slots", &self.slots.to_string(), "--grace", "2s"])
            }
            ProcessRole::Critic => {
                text(&["critic", "--id", id, "--slots", &self.slots.to_string(), "--grace", "2s"])
            }
        }
    }
}
