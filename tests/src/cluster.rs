//! A cluster that a test holds in its hands: a real nats-server and real `millrace` processes that the test starts,
//! kills, stops, pauses and starts again by name. Nothing is restarted by itself, and nothing outlives it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use millrace_protocol::registry;
use millrace_runtime::bus::Credentials;
use millrace_runtime::topology::LEASES;
use millrace_runtime::{Bus, Connection, duration};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::program::millrace;
use crate::{NatsServer, Options, eventually};

/// The variable by which all that descends from a test's processes is found.
const MARK: &str = "MILLRACE_TEST_MARK";
/// How long a process may take to end when it is asked to.
const STOP: Duration = Duration::from_secs(30);

/// Held while a test has the machine to itself: clusters share two cores, and tests that measure share nothing.
pub struct Alone(#[expect(dead_code, reason = "held, not used")] MutexGuard<'static, ()>);

/// Waits until no other test of this process holds the machine.
#[must_use]
pub fn alone() -> Alone {
    static MACHINE: Mutex<()> = Mutex::new(());
    Alone(MACHINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

/// The roles of the processes beside the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It owns plans.
    Supervisor,
    /// It does tasks.
    Worker,
    /// It judges results.
    Critic,
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

/// A server and the processes that share it, by name. Dropping it kills all of them.
pub struct Cluster {
    /// The server.
    pub server: NatsServer,
    setup: Setup,
    folder: TempDir,
    members: BTreeMap<String, Member>,
}

struct Member {
    role: Role,
    child: Option<Child>,
    /// How often it was started.
    starts: u32,
    more: Vec<String>,
}

impl Cluster {
    /// A cluster of a server alone.
    ///
    /// # Panics
    /// The server does not start.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let server = NatsServer::with(&setup.server);
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self { server, setup, folder, members: BTreeMap::new() }
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
        let more = more.iter().map(|&argument| argument.to_owned()).collect();
        let earlier = self.members.insert(name.into(), Member { role, child: None, starts: 0, more });
        assert!(earlier.is_none(), "there is a {name} already");
        self.restart(name);
    }

    /// Starts a process again that was killed or has ended, under the same name. Its id in the cluster is new.
    ///
    /// # Panics
    /// It can't be started.
    pub fn restart(&mut self, name: &str) {
        let log = OpenOptions::new().create(true).append(true).open(self.log_file(name)).expect("a log file");
        let mut command = self.command();
        let member = self.members.get_mut(name).expect("it was added");
        member.starts += 1;
        command.args(arguments(&self.setup, member.role, &format!("{name}-{}", member.starts)));
        command.args(&member.more).stdout(Stdio::null()).stderr(log);
        member.child = Some(command.spawn().expect("millrace can be started"));
    }

    /// The program under test as it is to be called in this cluster: its environment says where the server is.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = clean(Command::new(millrace()));
        command
            .stdin(Stdio::null())
            .env(MARK, self.mark())
            .env("MILLRACE_NATS_URL", &self.server.url)
            .env("MILLRACE_ECHO_LEDGER", self.ledger())
            .env("MILLRACE_DOCUMENT_CACHE", self.folder.path().join("documents"))
            .env("MILLRACE_DATA", self.folder.path().join("data"));
        if let Some((user, password)) = &self.setup.server.user {
            command.env("MILLRACE_NATS_USER", user).env("MILLRACE_NATS_PASSWORD", password);
        }
        command
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

    /// Kills a process at once, and waits until it is gone.
    pub fn kill(&mut self, name: &str) {
        if let Some(mut child) = self.members.get_mut(name).and_then(|member| member.child.take()) {
            drop(child.kill());
            child.wait().expect("a child can be waited for");
        }
    }

    /// Asks a process to stop, and says how it ended and how long that took.
    ///
    /// # Panics
    /// It does not end.
    pub fn stop(&mut self, name: &str) -> (ExitStatus, Duration) {
        let started = Instant::now();
        self.signal(name, Signal::TERM);
        let member = self.members.get_mut(name).expect("it was added");
        let status = wait_for(name, member.child.as_mut().expect("it runs"));
        member.child = None;
        (status, started.elapsed())
    }

    /// Sends a process a signal.
    ///
    /// # Panics
    /// It does not run.
    pub fn signal(&self, name: &str, signal: Signal) {
        let child = self.members.get(name).and_then(|member| member.child.as_ref()).expect("it runs");
        kill_process(Pid::from_child(child), signal).expect("a child can be signalled");
    }

    /// Whether a process runs.
    ///
    /// # Panics
    /// It was never added.
    pub fn is_running(&mut self, name: &str) -> bool {
        let member = self.members.get_mut(name).expect("it was added");
        member.child.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|status| status.is_none()))
    }

    /// Starts processes again that have ended by themselves, as whoever keeps a fleet would.
    pub fn keep(&mut self) {
        let ended = self.members.iter_mut().filter_map(|(name, member)| {
            let has_ended = |child: &mut Child| child.try_wait().is_ok_and(|status| status.is_some());
            member.child.as_mut().is_some_and(has_ended).then(|| name.clone())
        });
        for name in ended.collect::<Vec<_>>() {
            self.restart(&name);
        }
    }

    /// The names of the processes of a role.
    #[must_use]
    pub fn names(&self, role: Role) -> Vec<String> {
        let of_role = self.members.iter().filter(|(_, member)| member.role == role);
        of_role.map(|(name, _)| name.clone()).collect()
    }

    /// Waits until a process says something that holds `text`, and says how long that took from now.
    ///
    /// # Panics
    /// It does not say so within `patience`.
    pub async fn heard(&self, name: &str, text: &str, patience: Duration) -> Duration {
        self.heard_again(name, text, 0, patience).await
    }

    /// The same, for what it has said `before` times already.
    ///
    /// # Panics
    /// It does not say so within `patience`.
    pub async fn heard_again(&self, name: &str, text: &str, before: usize, patience: Duration) -> Duration {
        let started = Instant::now();
        loop {
            let log = self.log(name);
            if log.matches(text).count() > before {
                return started.elapsed();
            }
            assert!(started.elapsed() < patience, "{name} does not say {text:?} within {patience:?}:\n{log}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
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

    /// What a process has said, in all its lives.
    #[must_use]
    pub fn log(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.log_file(name)).unwrap_or_default()).into_owned()
    }

    /// What all processes have said.
    #[must_use]
    pub fn logs(&self) -> String {
        self.members.keys().map(|name| format!("== {name}\n{}", self.log(name))).collect()
    }

    /// The lines that `echo` wrote, one for each step that was really done.
    #[must_use]
    pub fn ledger_text(&self) -> String {
        fs::read_to_string(self.ledger()).unwrap_or_default()
    }

    /// A folder for what the test writes.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Stops everything in order and shows that nothing is left.
    ///
    /// # Panics
    /// A process fails, does not end, or leaves another behind.
    pub fn end(mut self) {
        for role in [Role::Worker, Role::Critic, Role::Supervisor] {
            for name in self.names(role) {
                if self.is_running(&name) {
                    let (status, _) = self.stop(&name);
                    assert!(status.success(), "{name} ended with {status}:\n{}", self.log(&name));
                }
            }
        }
        assert_eq!(left(&self.mark()), Vec::<u32>::new(), "processes are left");
    }

    fn ledger(&self) -> PathBuf {
        self.folder.path().join("ledger")
    }

    fn log_file(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.log"))
    }

    fn mark(&self) -> String {
        self.folder.path().display().to_string()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let names: Vec<String> = self.members.keys().cloned().collect();
        if std::thread::panicking() {
            keep_logs(self.folder.path());
        }
        names.iter().for_each(|name| self.kill(name));
    }
}

/// Where `$MILLRACE_TEST_LOGS` names a folder, the logs of a test that failed are kept there.
fn keep_logs(from: &Path) {
    let Some(to) = std::env::var_os("MILLRACE_TEST_LOGS").map(PathBuf::from) else { return };
    drop(fs::create_dir_all(&to));
    for entry in fs::read_dir(from).into_iter().flatten().flatten() {
        drop(fs::copy(entry.path(), to.join(entry.file_name())));
    }
}

fn arguments(setup: &Setup, role: Role, id: &str) -> Vec<String> {
    let text = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    match role {
        Role::Supervisor => {
            let mut words = text(&["supervisor", "--id", id, "--lanes", &setup.lanes.to_string()]);
            words.extend(text(&["--linger", &duration::format(setup.linger)]));
            for (name, lease) in [("--lane-lease", setup.lane_lease), ("--work-lease", setup.work_lease)] {
                words.extend(lease.into_iter().flat_map(|lease| text(&[name, &duration::format(lease)])));
            }
            words
        }
        Role::Worker => text(&["worker", "--id", id, "--slots", &setup.slots.to_string(), "--grace", "2s"]),
        Role::Critic => text(&["critic", "--id", id, "--slots", &setup.slots.to_string(), "--grace", "2s"]),
    }
}

/// A command that inherits nothing of what Millrace reads from the environment, but the server to use.
#[must_use]
pub fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MILLRACE_") {
            command.env_remove(name);
        }
    }
    command.env("MILLRACE_NATS_SERVER", crate::binary());
    command
}

/// Marks all that a command starts, so that [`left`] finds it.
pub fn mark(command: &mut Command, mark: &str) {
    command.env(MARK, mark);
}

/// The processes of a mark that are alive. Only where `/proc` says so.
#[must_use]
pub fn left(mark: &str) -> Vec<u32> {
    let wanted = format!("{MARK}={mark}");
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes())
        })
        .filter(|&pid| pid != std::process::id())
        .collect()
}

/// Waits for the end of a process.
///
/// # Panics
/// It does not end within half a minute.
pub fn wait_for(name: &str, child: &mut Child) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child can be asked") {
            return status;
        }
        assert!(started.elapsed() < STOP, "{name} does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An empty file in a folder.
///
/// # Panics
/// It can't be made.
#[must_use]
pub fn file(folder: &Path, name: &str) -> File {
    File::create(folder.join(name)).expect("a file in a temporary folder")
}
