//! Processes of Millrace that a test starts, kills, stops, pauses and starts again by name, wherever their server is.
//! Nothing is restarted by itself, and nothing outlives the fleet.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The variable by which all that descends from a test's processes is found.
const MARK: &str = "MILLRACE_TEST_MARK";
/// How long a process may take to end when it is asked to.
const STOP: Duration = Duration::from_secs(30);

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

/// Processes by name, and the folder in which they leave what they say. Dropping it kills all of them.
pub struct Fleet {
    folder: TempDir,
    members: BTreeMap<String, Member>,
}

/// How a process is started, under the id that it gets.
type Start = Box<dyn Fn(&str) -> Command + Send + Sync>;

struct Member {
    role: Role,
    child: Option<Child>,
    /// How often it was started.
    starts: u32,
    start: Start,
}

impl Default for Fleet {
    fn default() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder"), members: BTreeMap::new() }
    }
}

impl Fleet {
    /// Starts a process under a new name. `start` makes the command that starts it, from the id that it gets in the
    /// cluster: the name with a number.
    ///
    /// # Panics
    /// It can't be started.
    pub fn launch(
        &mut self,
        role: Role,
        name: &str,
        start: impl Fn(&str) -> Command + Send + Sync + 'static,
    ) {
        let member = Member { role, child: None, starts: 0, start: Box::new(start) };
        let earlier = self.members.insert(name.into(), member);
        assert!(earlier.is_none(), "there is a {name} already");
        self.restart(name);
    }

    /// Starts a process again that was killed or has ended, under the same name. Its id in the cluster is new.
    ///
    /// # Panics
    /// It can't be started.
    pub fn restart(&mut self, name: &str) {
        let log = OpenOptions::new().create(true).append(true).open(self.log_file(name)).expect("a log file");
        let (ledger, mark) = (self.ledger(), self.mark());
        let member = self.members.get_mut(name).expect("it was added");
        member.starts += 1;
        let mut command = (member.start)(&format!("{name}-{}", member.starts));
        command.env(MARK, mark).env("MILLRACE_ECHO_LEDGER", ledger);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        member.child = Some(command.spawn().expect("millrace can be started"));
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

    /// How a process ended that was asked to stop; `None` while it runs.
    ///
    /// # Panics
    /// It was never started.
    pub fn ended(&mut self, name: &str) -> Option<ExitStatus> {
        let member = self.members.get_mut(name).expect("it was added");
        let status = member.child.as_mut().expect("it was started").try_wait().expect("a child can be asked");
        status.inspect(|_| member.child = None)
    }

    /// Sends a process a signal.
    ///
    /// # Panics
    /// It does not run.
    pub fn signal(&self, name: &str, signal: Signal) {
        let child = self.members.get(name).and_then(|member| member.child.as_ref()).expect("it runs");
        kill_process(Pid::from_child(child), signal).expect("a child can be signalled");
    }

    /// The number of a process, while it runs.
    #[must_use]
    pub fn pid(&self, name: &str) -> Option<u32> {
        self.members.get(name)?.child.as_ref().map(Child::id)
    }

    /// Whether a process runs.
    ///
    /// # Panics
    /// It was never added.
    pub fn is_running(&mut self, name: &str) -> bool {
        let member = self.members.get_mut(name).expect("it was added");
        member.child.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|status| status.is_none()))
    }

    /// Starts processes again that have ended by themselves, as whoever keeps a fleet would; gives their names.
    pub fn keep(&mut self) -> Vec<String> {
        let ended = self.members.iter_mut().filter_map(|(name, member)| {
            let has_ended = |child: &mut Child| child.try_wait().is_ok_and(|status| status.is_some());
            member.child.as_mut().is_some_and(has_ended).then(|| name.clone())
        });
        let ended: Vec<String> = ended.collect();
        ended.iter().for_each(|name| self.restart(name));
        ended
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

    /// The file with these lines.
    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.folder.path().join("ledger")
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

    /// By which all that descends from the fleet's processes is found.
    pub(crate) fn mark(&self) -> String {
        self.folder.path().display().to_string()
    }

    fn log_file(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.log"))
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let names: Vec<String> = self.members.keys().cloned().collect();
        if std::thread::panicking() {
            keep_logs(self.folder.path());
        }
        names.iter().for_each(|name| self.kill(name));
    }
}

/// Where `$MILLRACE_TEST_LOGS` names a folder, the logs of a test that failed are kept there.
pub(crate) fn keep_logs(from: &Path) {
    let Some(to) = std::env::var_os("MILLRACE_TEST_LOGS").map(PathBuf::from) else { return };
    drop(fs::create_dir_all(&to));
    for entry in fs::read_dir(from).into_iter().flatten().flatten() {
        drop(fs::copy(entry.path(), to.join(entry.file_name())));
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
