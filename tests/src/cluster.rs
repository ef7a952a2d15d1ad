//! A cluster that a test holds in its hands: a real nats-server and the fleet of real `millrace` processes that share it.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use millrace_protocol::registry;
use millrace_runtime::connection::Credentials;
use millrace_runtime::topology::LEASES;
use millrace_runtime::{Bus, Connection, duration};

pub use crate::fleet::{Fleet, Role, clean, file, left, mark, wait_for};
use crate::program::millrace;
use crate::{NatsServer, Options, eventually};

/// Held while a test has the machine to itself: clusters share two cores, and tests that measure share nothing.
pub struct Alone(#[expect(dead_code, reason = "held, not used")] MutexGuard<'static, ()>);

/// Waits until no other test of this process holds the machine.
#[must_use]
pub fn alone() -> Alone {
    static MACHINE: Mutex<()> = Mutex::new(());
    Alone(MACHINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

/// How a cluster is made.
#[derive(Debug, Clone)]
pub struct Setup {
    /// How many lanes; 1 by default.
    pub lanes: u16,
    /// How long a silent supervisor keeps its lanes; 1 s by default, `None` is the product's own default.
    pub lane_lease: Option<Duration>,
    /// How long a silent worker keeps its work; 1 s by default, `None` is the product's own default.
    pub work_lease: Option<Duration>,
    /// How long a run stays in its lane after its end; 5 s by default.
    pub linger: Duration,
    /// How many tasks a worker or critic does at once; 8 by default.
    pub slots: u32,
    /// How the server is set up.
    pub server: Options,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            lanes: 1,
            lane_lease: Some(Duration::from_secs(1)),
            work_lease: Some(Duration::from_secs(1)),
            linger: Duration::from_secs(5),
            slots: 8,
            server: Options::default(),
        }
    }
}

/// A server and the fleet that shares it. Dropping it kills all of them.
pub struct Cluster {
    fleet: Fleet,
    /// The server.
    pub server: NatsServer,
    setup: Setup,
}

impl Deref for Cluster {
    type Target = Fleet;

    fn deref(&self) -> &Fleet {
        &self.fleet
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut Fleet {
        &mut self.fleet
    }
}

impl Cluster {
    /// A cluster of a server alone.
    ///
    /// # Panics
    /// The server does not start.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        Self { fleet: Fleet::default(), server: NatsServer::with(&setup.server), setup }
    }

    /// A cluster with a supervisor `supervisor-1`, workers `worker-1` and on, and a critic `critic-1`.
    ///
    /// # Panics
    /// Something does not start.
    #[must_use]
    pub fn start(setup: Setup, workers: u32) -> Self {
        let mut cluster = Self::new(setup);
        cluster.add(Role::Supervisor, "supervisor-1", &[]);
        cluster.add(Role::Critic, "critic-1", &[]);
        for number in 1..=workers {
            cluster.add(Role::Worker, &format!("worker-{number}"), &["--capability", "echo"]);
        }
        cluster
    }

    /// Starts a process under a new name, with more arguments.
    ///
    /// # Panics
    /// It can't be started.
    pub fn add(&mut self, role: Role, name: &str, more: &[&str]) {
        let more: Vec<String> = more.iter().map(|&argument| argument.to_owned()).collect();
        let (setup, environment) = (self.setup.clone(), self.environment());
        self.fleet.launch(role, name, move |id| {
            let mut command = clean(Command::new(millrace()));
            command.envs(environment.clone()).args(setup.arguments(role, id)).args(&more);
            command
        });
    }

    /// The program under test as it is to be called in this cluster: its environment says where the server is.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = clean(Command::new(millrace()));
        command.stdin(Stdio::null()).envs(self.environment());
        mark(&mut command, &self.fleet.mark());
        command
    }

    fn environment(&self) -> BTreeMap<&'static str, String> {
        let folder = |name: &str| self.folder().join(name).display().to_string();
        let mut environment = BTreeMap::from([
            ("MILLRACE_NATS_URL", self.server.url.clone()),
            ("MILLRACE_ECHO_LEDGER", self.ledger().display().to_string()),
            ("MILLRACE_DOCUMENT_CACHE", folder("documents")),
            ("MILLRACE_DATA", folder("data")),
        ]);
        if let Some((user, password)) = self.setup.server.user.clone() {
            environment.extend([("MILLRACE_NATS_USER", user), ("MILLRACE_NATS_PASSWORD", password)]);
        }
        environment
    }

    /// A connection to the cluster, which may be just being made.
    ///
    /// # Panics
    /// There is none within 30 s.
    pub async fn bus(&self) -> Bus {
        Bus::join(&self.connection(), "test", Duration::from_secs(30))
            .await
            .expect("the cluster can be joined")
    }

    /// Where the cluster is.
    #[must_use]
    pub fn connection(&self) -> Connection {
        let credentials = match self.setup.server.user.clone() {
            Some((user, password)) => Credentials::Password { user, password },
            None => Credentials::None,
        };
        Connection { credentials, ..Connection::open(self.server.url.clone()) }
    }

    /// Who holds each lane, by the names that the test gave.
    pub async fn owners(&self, bus: &Bus) -> BTreeMap<u16, String> {
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

    /// Who holds the only lane, once that has not changed for a while.
    ///
    /// # Panics
    /// It goes from hand to hand.
    pub async fn owner(&self, bus: &Bus) -> String {
        let (mut last, mut seen) = (None, 0);
        eventually(Duration::from_secs(30), "an owner who stays", async || {
            let owner = self.owners(bus).await.remove(&0);
            seen = if owner.is_some() && owner == last { seen + 1 } else { 0 };
            last.clone_from(&owner);
            owner.filter(|_| seen > 60)
        })
        .await
    }

    /// Waits until the cluster knows so many processes of a kind by their signs of life.
    ///
    /// # Panics
    /// They do not come.
    pub async fn known(&self, bus: &Bus, role: registry::Role, count: usize) {
        eventually(Duration::from_secs(30), "signs of life", async || {
            let beats = millrace_runtime::registry::beats(bus).await.ok()?;
            (beats.iter().filter(|beat| beat.role == role).count() >= count).then_some(())
        })
        .await;
    }

    /// Stops everything in order and shows that nothing is left.
    ///
    /// # Panics
    /// A process fails, does not end, or leaves another behind.
    pub fn end(self) {
        self.fleet.end();
    }
}

impl Setup {
    /// The arguments of a process of that role.
    #[must_use]
    pub fn arguments(&self, role: Role, id: &str) -> Vec<String> {
        let text = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        match role {
            Role::Supervisor => {
                let mut words = text(&["supervisor", "--id", id, "--lanes", &self.lanes.to_string()]);
                words.extend(text(&["--linger", &duration::format(self.linger)]));
                for (name, lease) in [("--lane-lease", self.lane_lease), ("--work-lease", self.work_lease)] {
                    words.extend(lease.into_iter().flat_map(|lease| text(&[name, &duration::format(lease)])));
                }
                words
            }
            Role::Worker => {
                text(&["worker", "--id", id, "--slots", &self.slots.to_string(), "--grace", "2s"])
            }
            Role::Critic => {
                text(&["critic", "--id", id, "--slots", &self.slots.to_string(), "--grace", "2s"])
            }
        }
    }
}
