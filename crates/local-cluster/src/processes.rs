//! The processes of a local cluster: starts them, restarts those that die unexpectedly, and stops them in order.
//!
//! One thread uses [`ClusterProcesses`] from creation to drop, because processes are attached to the thread that starts them. A
//! small thread per process waits for its end and sends a message; it never reaps, so that the pid in the state of a
//! running member always belongs to that process. Dropping [`ClusterProcesses`] kills all of them.
//!
//! # Invariants
//!
//! - I93: In a local cluster, nats-server and supervisors do not have the variables of other programs in their environment, such
//!   as the keys of model providers. (`cli/tests/local.rs::keys_of_models_are_only_in_the_environment_of_workers_and_critics`)

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{self, Command, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use millrace_runtime::program::MARK_VARIABLE;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use serde::Serialize;
use tokio::sync::{mpsc::UnboundedSender, oneshot};

use crate::data::{self, DataLayout};
use crate::launcher::Launcher;
use crate::options::{ChildRole, ChildSpec};

const FIRST_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// A process that lived this long has recovered: its next crash starts with the first backoff again.
const STABLE_AFTER: Duration = Duration::from_secs(30);

/// Exit codes of the programs for refused input and an unusable environment. At the start of a process, a restart can't
/// help.
const PERMANENT_EXIT_CODES: [i32; 2] = [2, 4];

/// Workers and critics may finish their current step.
const GRACE_FOR_WORK: Duration = Duration::from_secs(10);
/// Supervisors release their lanes, which takes one or two writes; gateways end open requests.
const GRACE_FOR_SUPERVISORS: Duration = Duration::from_secs(5);
/// The server flushes its memory to disk.
const GRACE_FOR_SERVER: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum ProcessEvent {
    /// The process was started.
    Started {
        /// `worker-1`, `nats-server`.
        name: String,
        /// Its process id.
        pid: u32,
        /// Number of earlier starts.
        restarts: u32,
    },
    /// The process ended unexpectedly and will be restarted.
    Died {
        /// `worker-1`, `nats-server`.
        name: String,
        /// Exit status, such as `signal: 9 (SIGKILL)`.
        status: String,
        /// Backoff before the restart, in milliseconds.
        pause_ms: u64,
        /// Its error, or the last line of its log since its start; empty if it wrote nothing.
        last_words: String,
        /// The file of its log.
        log: PathBuf,
    },
    /// The process refused to start: its configuration or environment is unusable. It is not restarted.
    Refused {
        /// `worker-1`, `supervisor-1`.
        name: String,
        /// The exit code: 2 for refused input, 4 for an unusable environment.
        code: i32,
        /// Its error, or the last line of its log; empty if it wrote nothing.
        last_words: String,
        /// The file of its log.
        log: PathBuf,
    },
    /// The process could not be started; the start will be retried.
    NotStarted {
        /// `worker-1`, `nats-server`.
        name: String,
        /// The cause.
        error: String,
        /// Backoff before the next attempt, in milliseconds.
        pause_ms: u64,
    },
}

/// A message to the manager thread.
pub enum ManagerMessage {
    /// A process ended; with the index of the member and the pid.
    Ended(usize, Pid),
    /// Start more processes.
    Add(Vec<ChildSpec>, oneshot::Sender<Result<(), StartProcessError>>),
    /// Stop the processes of these roles.
    StopRoles(Vec<ChildRole>, oneshot::Sender<()>),
    /// Restart the server, with the current configuration.
    RestartServer,
    /// Stop all processes in order. The reply is sent when the cluster has ended.
    Stop(oneshot::Sender<()>),
    /// Kill all processes now.
    Kill,
}

#[derive(Debug, thiserror::Error)]
pub enum StartProcessError {
    /// Its log can't be written.
    #[error(transparent)]
    Log(#[from] data::DataFolderError),
    /// The operating system refused to start it.
    #[error("{name} can't be started: {source}")]
    Spawn {
        /// `worker-1`, `nats-server`.
        name: String,
        /// The cause.
        source: io::Error,
    },
}

pub struct ClusterProcesses {
    layout: DataLayout,
    launcher: Launcher,
    members: Vec<ManagedProcess>,
    inbox: Receiver<ManagerMessage>,
    outbox: Sender<ManagerMessage>,
    events: UnboundedSender<ProcessEvent>,
    /// `true` once all processes are to be killed: grace periods no longer apply.
    is_killing: bool,
}

struct ManagedProcess {
    child: ChildSpec,
    state: ProcessState,
    restarts: u32,
    backoff: RestartBackoff,
    /// The length of its log when it was last started.
    log_start: u64,
    /// `true` if it was stopped to be started again.
    is_restart_requested: bool,
}

enum ProcessState {
    Running { process: process::Child, since: Instant },
    BackingOff { until: Instant },
    Stopped(Option<ExitStatus>),
}

impl ClusterProcesses {
    /// Returns an empty set of processes, and the sender of its messages.
    pub fn new(
        layout: DataLayout,
        launcher: Launcher,
        events: UnboundedSender<ProcessEvent>,
    ) -> (Self, Sender<ManagerMessage>) {
        let (outbox, inbox) = mpsc::channel();
        let mailbox = outbox.clone();
        (Self { layout, launcher, members: Vec::new(), inbox, outbox, events, is_killing: false }, mailbox)
    }

    pub fn start_and_add(&mut self, child: ChildSpec) -> Result<(), StartProcessError> {
        self.layout.rotate_log(&child.process_name())?;
        let state = ProcessState::Stopped(None);
        self.members.push(ManagedProcess {
            child,
            state,
            restarts: 0,
            backoff: RestartBackoff::new(),
            log_start: 0,
            is_restart_requested: false,
        });
        self.start_process(self.members.len() - 1)
    }

    /// Waits up to `limit` during startup. Returns the exit status of the process with `role` if it ended; it is then not
    /// restarted.
    pub fn wait_for_end(&mut self, role: ChildRole, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(ManagedProcess { state: ProcessState::Stopped(Some(status)), .. }) =
                self.find_process(role)
            {
                return Some(*status);
            }
            match self.inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(ManagerMessage::Ended(place, pid)) => drop(self.reap_process(place, pid)),
                Ok(ManagerMessage::Stop(_) | ManagerMessage::Kill) => self.is_killing = true,
                // Only a cluster that has started gets these.
                Ok(
                    ManagerMessage::Add(..) | ManagerMessage::StopRoles(..) | ManagerMessage::RestartServer,
                ) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Returns the last lines that the process with `role` logged since its last start.
    pub fn last_log_lines(&self, role: ChildRole, lines: usize) -> String {
        self.find_process(role).map_or_else(String::new, |member| {
            data::last_lines_of_file(
                &self.layout.log_path(&member.child.process_name()),
                member.log_start,
                lines,
            )
        })
    }

    fn find_process(&self, role: ChildRole) -> Option<&ManagedProcess> {
        self.members.iter().find(|member| member.child.role == role)
    }

    /// Restarts processes that die, until a stop message arrives; then stops all in order and returns the reply sender.
    pub fn supervise_until_stopped(&mut self) -> Option<oneshot::Sender<()>> {
        loop {
            match self.next_message() {
                Some(ManagerMessage::Ended(place, pid)) => self.restart_or_schedule(place, pid),
                Some(ManagerMessage::Add(children, reply)) => {
                    let started = children.into_iter().try_for_each(|child| self.start_and_add(child));
                    let _ = reply.send(started);
                }
                Some(ManagerMessage::StopRoles(roles, reply)) => {
                    self.stop_roles(&roles, GRACE_FOR_WORK);
                    let _ = reply.send(());
                }
                Some(ManagerMessage::RestartServer) => self.request_server_restart(),
                Some(ManagerMessage::Stop(reply)) => {
                    self.stop_in_order();
                    return Some(reply);
                }
                Some(ManagerMessage::Kill) => {
                    self.is_killing = true;
                    return None;
                }
                None => self.restart_due_processes(),
            }
        }
    }

    /// Waits for a message, or until the next restart is due.
    fn next_message(&self) -> Option<ManagerMessage> {
        let next_restart = self.members.iter().filter_map(ManagedProcess::restart_at).min();
        match next_restart {
            Some(at) => self.inbox.recv_timeout(at.saturating_duration_since(Instant::now())).ok(),
            None => self.inbox.recv().ok(),
        }
    }

    fn start_process(&mut self, place: usize) -> Result<(), StartProcessError> {
        let member = &mut self.members[place];
        let name = member.child.process_name();
        let log = self.layout.open_log(&name)?;
        let spawn_error = |source| StartProcessError::Spawn { name: name.clone(), source };
        let mut command = child_command(&member.child, &self.launcher, &self.layout);
        command.stdout(log.try_clone().map_err(spawn_error)?).stderr(log.try_clone().map_err(spawn_error)?);
        member.log_start = log.metadata().map_or(0, |metadata| metadata.len());
        let mut process = command.spawn().map_err(spawn_error)?;
        let pid = Pid::from_child(&process);
        if let Err(error) = watch_process_end(place, pid, self.outbox.clone()) {
            let _ = process.kill().and_then(|()| process.wait());
            return Err(spawn_error(error));
        }
        let event = ProcessEvent::Started { name, pid: process.id(), restarts: member.restarts };
        member.state = ProcessState::Running { process, since: Instant::now() };
        self.send_event(event);
        Ok(())
    }

    /// Stops the server, to be started again as soon as it has ended.
    fn request_server_restart(&mut self) {
        let server = self.members.iter_mut().find(|member| member.child.role == ChildRole::NatsServer);
        if let Some(server) = server.filter(|server| server.is_running()) {
            server.is_restart_requested = true;
            server.send_sigterm();
        }
    }

    /// Handles the end of a process: one whose restart was requested is started at once.
    fn restart_or_schedule(&mut self, place: usize, pid: Pid) {
        if !std::mem::take(&mut self.members[place].is_restart_requested) {
            return self.schedule_restart_after_crash(place, pid);
        }
        if self.reap_process(place, pid).is_some() {
            self.members[place].state = ProcessState::BackingOff { until: Instant::now() };
            self.restart_due_processes();
        }
    }

    /// Handles the unexpected end of a process.
    fn schedule_restart_after_crash(&mut self, place: usize, pid: Pid) {
        let Some((status, lived)) = self.reap_process(place, pid) else { return };
        let is_refusal = self.is_refusal(place, status, lived);
        let member = &mut self.members[place];
        let name = member.child.process_name();
        let log = self.layout.log_path(&name);
        let last_words = data::last_words_in_file(&log, member.log_start);
        if let Some(code) = status.code().filter(|_| is_refusal) {
            return self.send_event(ProcessEvent::Refused { name, code, last_words, log });
        }
        let pause = member.schedule_restart(lived);
        self.send_event(ProcessEvent::Died {
            name,
            status: status.to_string(),
            pause_ms: whole_milliseconds(pause),
            last_words,
            log,
        });
    }

    /// `true` if a process ended at its start with an exit code that says that a restart can't help. While the server is
    /// away, an unusable environment is transient.
    fn is_refusal(&self, place: usize, status: ExitStatus, lived: Duration) -> bool {
        let is_server_running =
            self.find_process(ChildRole::NatsServer).is_some_and(ManagedProcess::is_running);
        let is_permanent = status.code().is_some_and(|code| PERMANENT_EXIT_CODES.contains(&code));
        let member = &self.members[place];
        member.child.role != ChildRole::NatsServer
            && is_permanent
            && is_server_running
            && member.restarts == 0
            && lived < STABLE_AFTER
    }

    fn restart_due_processes(&mut self) {
        let now = Instant::now();
        let is_due = |member: &ManagedProcess| member.restart_at().is_some_and(|until| until <= now);
        let places: Vec<usize> =
            (0..self.members.len()).filter(|place| is_due(&self.members[*place])).collect();
        for place in places {
            self.members[place].restarts += 1;
            if let Err(error) = self.start_process(place) {
                let member = &mut self.members[place];
                let pause = member.schedule_restart(Duration::ZERO);
                let name = member.child.process_name();
                let error = error.to_string();
                self.send_event(ProcessEvent::NotStarted {
                    name,
                    error,
                    pause_ms: whole_milliseconds(pause),
                });
            }
        }
    }

    /// Stops gateways first, then workers and critics, then supervisors, and the server last, so that each can still write to the
    /// log.
    fn stop_in_order(&mut self) {
        self.stop_roles(&[ChildRole::Gateway], GRACE_FOR_SUPERVISORS);
        self.stop_roles(&[ChildRole::Worker, ChildRole::Critic], GRACE_FOR_WORK);
        self.stop_roles(&[ChildRole::Supervisor], GRACE_FOR_SUPERVISORS);
        self.stop_roles(&[ChildRole::NatsServer], GRACE_FOR_SERVER);
    }

    fn stop_roles(&mut self, roles: &[ChildRole], grace: Duration) {
        let of_roles = |member: &ManagedProcess| roles.contains(&member.child.role);
        for member in self.members.iter_mut().filter(|member| of_roles(member)) {
            member.send_sigterm();
        }
        let deadline = Instant::now() + grace;
        while !self.is_killing && self.members.iter().any(|member| of_roles(member) && member.is_running()) {
            match self.inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(ManagerMessage::Ended(place, pid)) => drop(self.reap_process(place, pid)),
                Ok(ManagerMessage::Kill) => self.is_killing = true,
                Ok(
                    ManagerMessage::Stop(_)
                    | ManagerMessage::Add(..)
                    | ManagerMessage::StopRoles(..)
                    | ManagerMessage::RestartServer,
                ) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        for member in self.members.iter_mut().filter(|member| of_roles(member)) {
            member.kill_and_reap();
        }
    }

    /// Reaps a process that ended. `None` if the member has a different process by now.
    fn reap_process(&mut self, place: usize, pid: Pid) -> Option<(ExitStatus, Duration)> {
        let member = &mut self.members[place];
        match &member.state {
            ProcessState::Running { process, since } if Pid::from_child(process) == pid => {
                let lived = since.elapsed();
                Some((member.kill_and_reap()?, lived))
            }
            ProcessState::Running { .. } | ProcessState::BackingOff { .. } | ProcessState::Stopped(_) => None,
        }
    }

    fn send_event(&self, event: ProcessEvent) {
        // If the receiver is gone, events are discarded.
        let _ = self.events.send(event);
    }
}

impl Drop for ClusterProcesses {
    fn drop(&mut self) {
        for member in self.members.iter_mut().rev() {
            member.kill_and_reap();
        }
    }
}

impl ManagedProcess {
    fn is_running(&self) -> bool {
        matches!(self.state, ProcessState::Running { .. })
    }

    fn restart_at(&self) -> Option<Instant> {
        match self.state {
            ProcessState::BackingOff { until } => Some(until),
            ProcessState::Running { .. } | ProcessState::Stopped(_) => None,
        }
    }

    fn schedule_restart(&mut self, lived: Duration) -> Duration {
        let pause = self.backoff.next_delay(lived);
        self.state = ProcessState::BackingOff { until: Instant::now() + pause };
        pause
    }

    fn send_sigterm(&mut self) {
        match &self.state {
            ProcessState::Running { process, .. } => {
                let _ = kill_process(Pid::from_child(process), Signal::TERM);
            }
            ProcessState::BackingOff { .. } => self.state = ProcessState::Stopped(None),
            ProcessState::Stopped(_) => {}
        }
    }

    /// Kills the process group and reaps the process. Also used for a process that ended, which may have left children.
    fn kill_and_reap(&mut self) -> Option<ExitStatus> {
        let ProcessState::Running { process, .. } = &mut self.state else { return None };
        let _ = kill_process_group(Pid::from_child(process), Signal::KILL);
        let status = process.wait().ok();
        self.state = ProcessState::Stopped(status);
        status
    }
}

/// The backoff before a restart: 0.2 s at first, doubled each time, up to 10 s.
#[derive(Debug)]
struct RestartBackoff {
    next: Duration,
}

impl RestartBackoff {
    fn new() -> Self {
        Self { next: FIRST_BACKOFF }
    }

    fn next_delay(&mut self, lived: Duration) -> Duration {
        if lived >= STABLE_AFTER {
            self.next = FIRST_BACKOFF;
        }
        let pause = self.next;
        self.next = (pause * 2).min(MAX_BACKOFF);
        pause
    }
}

/// Starts the program in its own process group, so that Ctrl-C reaches only this process, which stops all in order.
fn child_command(child: &ChildSpec, launcher: &Launcher, layout: &DataLayout) -> Command {
    let mut command = match child.role {
        ChildRole::NatsServer => {
            let mut command =
                launcher.build_attached_command_with_lock(&child.program, &layout.nats_lock_path());
            command.current_dir(layout.root_path());
            keep_only_variables(&mut command, is_system_variable);
            command
        }
        ChildRole::Supervisor | ChildRole::Worker | ChildRole::Critic | ChildRole::Gateway => {
            let mut command = launcher.build_attached_command(&child.program);
            // Meant for another cluster; it would take precedence over the credentials of this one.
            command.env_remove("MILLRACE_NATS_CREDS");
            // They can't all bind the same address.
            command.env_remove("MILLRACE_HTTP");
            if matches!(child.role, ChildRole::Supervisor | ChildRole::Gateway) {
                keep_only_variables(&mut command, |name| {
                    is_system_variable(name)
                        || SUPERVISOR_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
                });
            }
            command
        }
    };
    command.args(&child.arguments).envs(&child.environment).process_group(0);
    command
}

/// The variables of any program: where things are, and how it prints.
const SYSTEM_VARIABLES: [&str; 10] =
    ["PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "TZ", "NO_COLOR", "LD_LIBRARY_PATH", MARK_VARIABLE];
const SYSTEM_PREFIXES: [&str; 3] = ["LC_", "XDG_", "DYLD_"];
/// The settings of Millrace and of the libraries that it is built with: of their logs, threads, certificates and exporters.
const SUPERVISOR_PREFIXES: [&str; 5] = ["MILLRACE_", "RUST_", "TOKIO_", "SSL_", "OTEL_"];

/// Only workers and critics call models: the keys of providers stay out of the environment of the other processes.
fn keep_only_variables(command: &mut Command, is_kept: impl Fn(&str) -> bool) {
    for (name, _) in std::env::vars_os() {
        if !name.to_str().is_some_and(&is_kept) {
            command.env_remove(name);
        }
    }
}

fn is_system_variable(name: &str) -> bool {
    SYSTEM_VARIABLES.contains(&name) || SYSTEM_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Waits for the end of a process on a separate thread, without reaping it.
fn watch_process_end(place: usize, pid: Pid, outbox: Sender<ManagerMessage>) -> io::Result<()> {
    let wait = move || {
        while let Err(Errno::INTR) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
        }
        let _ = outbox.send(ManagerMessage::Ended(place, pid));
    };
    thread::Builder::new().name("process-watch".to_owned()).stack_size(64 << 10).spawn(wait)?;
    Ok(())
}

fn whole_milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_ten_seconds() {
        let mut backoff = RestartBackoff::new();
        let pauses: Vec<u128> = (0..8).map(|_| backoff.next_delay(Duration::ZERO).as_millis()).collect();
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
    }

    #[test]
    fn backoff_resets_after_a_stable_run() {
        let mut backoff = RestartBackoff::new();
        for _ in 0..8 {
            backoff.next_delay(Duration::ZERO);
        }
        assert_eq!(backoff.next_delay(STABLE_AFTER), FIRST_BACKOFF);
    }
}
