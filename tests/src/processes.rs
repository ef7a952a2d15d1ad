//! Millrace processes that a test starts, kills, stops, pauses and restarts by name, wherever their server is. None is
//! restarted automatically, and none outlives its [`NamedProcesses`].

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The environment variable by which all descendants of a test's processes are found.
const TAG_VARIABLE: &str = "MILLRACE_TEST_MARK";
/// The time within which a process must exit after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);

/// The roles of the processes besides the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessRole {
    /// Owns plans.
    Supervisor,
    /// Runs tasks.
    Worker,
    /// Reviews results.
    Critic,
}

/// Processes by name, and the folder with their logs. Dropping it kills all of them.
pub struct NamedProcesses {
    folder: TempDir,
    processes: BTreeMap<String, NamedProcess>,
}

/// Makes the command that starts a process, given its id in the cluster.
type CommandFactory = Box<dyn Fn(&str) -> Command + Send + Sync>;

struct NamedProcess {
    role: ProcessRole,
    child: Option<Child>,
    /// The number of starts.
    starts: u32,
    start: CommandFactory,
}

impl Default for NamedProcesses {
    fn default() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder"), processes: BTreeMap::new() }
    }
}

impl NamedProcesses {
    /// Starts a process under a new name. `start` makes its command from the id that it gets in the cluster: the name
    /// with a number.
    ///
    /// # Panics
    /// It can't be started.
    pub fn start_process(
        &mut self,
        role: ProcessRole,
        name: &str,
        start: impl Fn(&str) -> Command + Send + Sync + 'static,
    ) {
        let process = NamedProcess { role, child: None, starts: 0, start: Box::new(start) };
        let previous = self.processes.insert(name.into(), process);
        assert!(previous.is_none(), "the name {name} is taken");
        self.restart_process(name);
    }

    /// Restarts a process that was killed or has exited, under the same name. Its id in the cluster is new.
    ///
    /// # Panics
    /// It can't be started.
    pub fn restart_process(&mut self, name: &str) {
        let log = OpenOptions::new().create(true).append(true).open(self.log_path(name)).expect("a log file");
        let (ledger, tag) = (self.ledger_path(), self.process_tag());
        let process = self.processes.get_mut(name).expect("it was added");
        process.starts += 1;
        let mut command = (process.start)(&format!("{name}-{}", process.starts));
        command.env(TAG_VARIABLE, tag).env("MILLRACE_ECHO_LEDGER", ledger);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        process.child = Some(command.spawn().expect("millrace can be started"));
    }

    /// The names of all processes, running or not.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.processes.keys().cloned().collect()
    }

    /// Kills a process with SIGKILL and waits until it has exited.
    pub fn kill_process(&mut self, name: &str) {
        if let Some(mut child) = self.processes.get_mut(name).and_then(|process| process.child.take()) {
            drop(child.kill());
            child.wait().expect("a child can be waited for");
        }
    }

    /// Stops a process with SIGTERM; returns its exit status and the time it took.
    ///
    /// # Panics
    /// It does not exit in time.
    pub fn stop_process(&mut self, name: &str) -> (ExitStatus, Duration) {
        let started = Instant::now();
        self.send_signal(name, Signal::TERM);
        let process = self.processes.get_mut(name).expect("it was added");
        let status = wait_for_exit(name, process.child.as_mut().expect("it runs"));
        process.child = None;
        (status, started.elapsed())
    }

    /// The exit status of a process that was told to stop; `None` while it runs.
    ///
    /// # Panics
    /// It was never started.
    pub fn exit_status(&mut self, name: &str) -> Option<ExitStatus> {
        let process = self.processes.get_mut(name).expect("it was added");
        let status = process
            .child
            .as_mut()
            .expect("it was started")
            .try_wait()
            .expect("the status of a child can be read");
        status.inspect(|_| process.child = None)
    }

    /// Sends a process a signal.
    ///
    /// # Panics
    /// It does not run.
    pub fn send_signal(&self, name: &str, signal: Signal) {
        let child = self.processes.get(name).and_then(|process| process.child.as_ref()).expect("it runs");
        kill_process(Pid::from_child(child), signal).expect("a child can be signalled");
    }

    /// The process id, while it runs.
    #[must_use]
    pub fn pid(&self, name: &str) -> Option<u32> {
        self.processes.get(name)?.child.as_ref().map(Child::id)
    }

    /// `true` if the process runs.
    ///
    /// # Panics
    /// It was never added.
    pub fn is_running(&mut self, name: &str) -> bool {
        let process = self.processes.get_mut(name).expect("it was added");
        process.child.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|status| status.is_none()))
    }

    /// Restarts processes that have exited by themselves, as a service manager would, and returns their names.
    pub fn restart_exited(&mut self) -> Vec<String> {
        let exited = self.processes.iter_mut().filter_map(|(name, process)| {
            let has_exited = |child: &mut Child| child.try_wait().is_ok_and(|status| status.is_some());
            process.child.as_mut().is_some_and(has_exited).then(|| name.clone())
        });
        let exited: Vec<String> = exited.collect();
        exited.iter().for_each(|name| self.restart_process(name));
        exited
    }

    /// The names of the processes of a role.
    #[must_use]
    pub fn names_with_role(&self, role: ProcessRole) -> Vec<String> {
        let matching = self.processes.iter().filter(|(_, process)| process.role == role);
        matching.map(|(name, _)| name.clone()).collect()
    }

    /// Waits until a process logs something that contains `text`, and returns the time from now.
    ///
    /// # Panics
    /// It does not log that within `patience`.
    pub async fn wait_for_log(&self, name: &str, text: &str, patience: Duration) -> Duration {
        self.wait_for_log_again(name, text, 0, patience).await
    }

    /// The same if the log contains the text `before` times already.
    ///
    /// # Panics
    /// It does not log that within `patience`.
    pub async fn wait_for_log_again(
        &self,
        name: &str,
        text: &str,
        before: usize,
        patience: Duration,
    ) -> Duration {
        let started = Instant::now();
        loop {
            let log = self.read_log(name);
            if log.matches(text).count() > before {
                return started.elapsed();
            }
            assert!(started.elapsed() < patience, "{name} did not log {text:?} within {patience:?}:\n{log}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The log of a process since its first start.
    #[must_use]
    pub fn read_log(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.log_path(name)).unwrap_or_default()).into_owned()
    }

    /// The logs of all processes.
    #[must_use]
    pub fn read_all_logs(&self) -> String {
        self.processes.keys().map(|name| format!("== {name}\n{}", self.read_log(name))).collect()
    }

    /// The lines that the capability `echo` wrote, one for each step that it really did.
    #[must_use]
    pub fn read_ledger(&self) -> String {
        fs::read_to_string(self.ledger_path()).unwrap_or_default()
    }

    /// The file with these lines.
    #[must_use]
    pub fn ledger_path(&self) -> PathBuf {
        self.folder.path().join("ledger")
    }

    /// A folder for files of the test.
    #[must_use]
    pub fn test_folder(&self) -> &Path {
        self.folder.path()
    }

    /// Stops all processes in order and checks that none is left.
    ///
    /// # Panics
    /// A process fails, does not exit, or leaves another one behind.
    pub fn stop_all(mut self) {
        for role in [ProcessRole::Worker, ProcessRole::Critic, ProcessRole::Supervisor] {
            for name in self.names_with_role(role) {
                if self.is_running(&name) {
                    let is_ready =
                        self.read_log(&name).contains(&format!("id={name}-{}", self.processes[&name].starts));
                    let (status, _) = self.stop_process(&name);
                    // One that has just been restarted may have no handler of the signal yet.
                    let was_starting = !is_ready && status.signal() == Some(Signal::TERM.as_raw());
                    assert!(
                        status.success() || was_starting,
                        "{name} exited with {status}:\n{}",
                        self.read_log(&name)
                    );
                }
            }
        }
        assert_eq!(find_tagged_processes(&self.process_tag()), Vec::<u32>::new(), "processes are left");
    }

    /// The tag that all descendants of these processes carry in their environment.
    pub(crate) fn process_tag(&self) -> String {
        self.folder.path().display().to_string()
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.log"))
    }
}

impl Drop for NamedProcesses {
    fn drop(&mut self) {
        let names: Vec<String> = self.processes.keys().cloned().collect();
        if std::thread::panicking() {
            save_logs(self.folder.path());
        }
        names.iter().for_each(|name| self.kill_process(name));
    }
}

/// Copies the logs of a failed test into the folder `$MILLRACE_TEST_LOGS`, if that is set.
pub(crate) fn save_logs(from: &Path) {
    let Some(to) = std::env::var_os("MILLRACE_TEST_LOGS").map(PathBuf::from) else { return };
    drop(fs::create_dir_all(&to));
    for entry in fs::read_dir(from).into_iter().flatten().flatten() {
        drop(fs::copy(entry.path(), to.join(entry.file_name())));
    }
}

/// Removes all variables of Millrace from a command's environment, except the nats-server to use.
#[must_use]
pub fn remove_millrace_variables(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MILLRACE_") {
            command.env_remove(name);
        }
    }
    command.env("MILLRACE_NATS_SERVER", crate::find_nats_server_program());
    command
}

/// Tags all processes that a command starts, so that [`find_tagged_processes`] finds them.
pub fn set_process_tag(command: &mut Command, tag: &str) {
    command.env(TAG_VARIABLE, tag);
}

/// The ids of running processes with a tag. Empty where there is no `/proc`.
#[must_use]
pub fn find_tagged_processes(tag: &str) -> Vec<u32> {
    let entry = format!("{TAG_VARIABLE}={tag}");
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|variable| variable == entry.as_bytes())
        })
        .filter(|&pid| pid != std::process::id())
        .collect()
}

/// Waits until a process exits.
///
/// # Panics
/// It does not exit within 30 seconds.
pub fn wait_for_exit(name: &str, child: &mut Child) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("the status of a child can be read") {
            return status;
        }
        assert!(started.elapsed() < STOP_TIMEOUT, "{name} does not exit");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Creates an empty file in a folder.
///
/// # Panics
/// It can't be created.
#[must_use]
pub fn create_file(folder: &Path, name: &str) -> File {
    File::create(folder.join(name)).expect("a file in a temporary folder")
}
