//! The work of the launcher in its own process: it enters namespaces, starts the shell inside the sandbox, and supervises
//! it until the shell or the tool ends. It is single-threaded except while the shell is started.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getgid, getpid, getuid, pidfd_open,
    set_child_subreaper, set_parent_process_death_signal, setsid, wait,
};
use rustix::thread::{
    CapabilitySet, UnshareFlags, capabilities, configure_capability_in_ambient_set, set_capabilities,
};

use super::launch_message::{
    ALLOCATOR_VARIABLE, Confinement, ExceededLimit, LaunchRequest, LauncherReport,
    SUPERVISE_IN_NAMESPACES_ARGUMENT,
};

use super::sandbox;
use crate::program::keeper::ignore_termination;
use crate::program::left_message;
use crate::program::process_table::{ProcessTable, end_descendants};

/// Interval for counting the processes of a command and their memory.
const USAGE_INTERVAL: Duration = Duration::from_millis(100);
/// Changes of memory by less than this number of bytes are not reported.
const MIN_REPORTED_CHANGE: u64 = 4 * 1024 * 1024;
/// The kernel kills commands first if memory runs out.
const OOM_SCORE: &str = "1000";

/// The socket to the tool: it carries reports to the tool, and is closed when the tool ends.
pub(super) struct ReportSocket(UnixStream);

impl ReportSocket {
    pub(super) fn from_stdin() -> io::Result<Self> {
        Ok(Self(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?)))
    }

    pub(super) fn send_report(&mut self, report: &LauncherReport) -> io::Result<()> {
        let mut line = serde_json::to_string(report)?;
        line.push('\n');
        self.0.write_all(line.as_bytes())
    }
}

/// Starts this program again in new namespaces, and waits for it.
pub(super) fn start_in_namespaces(request: &LaunchRequest) -> io::Result<ExitCode> {
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    // There is no terminal, so failing to create a session does no harm.
    let _ = setsid();
    let mut flags = UnshareFlags::NEWUSER | UnshareFlags::NEWPID | UnshareFlags::NEWNS | UnshareFlags::NEWIPC;
    if !request.network {
        flags |= UnshareFlags::NEWNET;
    }
    unshare_namespaces(flags).map_err(|e| error_with_context("cannot create namespaces", e))?;
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{uid} {uid} 1")),
        ("gid_map", format!("{gid} {gid} 1")),
    ] {
        fs::write(format!("/proc/self/{file}"), text)
            .map_err(|e| error_with_context("cannot map users", e))?;
    }
    keep_capabilities_over_exec(CapabilitySet::SYS_ADMIN | CapabilitySet::SETPCAP)
        .map_err(|e| error_with_context("cannot keep capabilities in the namespaces", e))?;
    let status = Command::new("/proc/self/exe")
        .arg(SUPERVISE_IN_NAMESPACES_ARGUMENT)
        .arg(serde_json::to_string(request)?)
        .status()?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}

/// In its new user namespace this process has all capabilities, but unless it is root the next `exec` drops them.
fn keep_capabilities_over_exec(capabilities_to_keep: CapabilitySet) -> rustix::io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable |= capabilities_to_keep;
    set_capabilities(None, sets)?;
    capabilities_to_keep.iter().try_for_each(|one| configure_capability_in_ambient_set(one, true))
}

/// The function is deprecated because of the flag `FILES`, which is not used here.
#[expect(deprecated, reason = "its successor is unsafe because of a flag that is not used here")]
fn unshare_namespaces(flags: UnshareFlags) -> rustix::io::Result<()> {
    rustix::thread::unshare(flags)
}

fn error_with_context(what: &str, error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Starts and supervises the shell. `has_namespaces`: this process is the first of its namespace.
pub(super) fn supervise_command(
    request: &LaunchRequest,
    has_namespaces: bool,
    tool: &mut ReportSocket,
) -> io::Result<ExitCode> {
    // Without a `/proc` of its own in the namespaces, the command's processes are found in the one outside of them.
    let mut table = ProcessTable::open().map_err(|e| error_with_context("cannot read /proc", e))?;
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    // The kernel's limit on processes per user does not apply to root.
    let mut processes_limited = !getuid().is_root();
    if has_namespaces {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        processes_limited |= sandbox::enter_new_root(request)
            .map_err(|e| error_with_context("cannot build the root file system", e))?;
        table = ProcessTable::open().unwrap_or(table);
    } else {
        let _ = setsid();
        ignore_termination()?;
        set_child_subreaper(Some(getpid()))?;
    }
    std::env::set_current_dir(&request.folder)
        .map_err(|e| error_with_context("cannot enter the working folder", e))?;
    let other_threads = if has_namespaces { 0 } else { table.threads_of_user(getuid().as_raw()) };
    sandbox::set_resource_limits(request, other_threads)?;
    let (shell, confinement) = start_shell(request, has_namespaces)?;
    let confinement = Confinement { processes: processes_limited, ..confinement };
    // Fails if the tool has ended, which the monitor notices.
    let _ = tool.send_report(&LauncherReport::Started(confinement));
    let monitor = ShellMonitor { shell, table, request, has_namespaces };
    let end = monitor.wait_for_end(tool)?;
    if !has_namespaces {
        let left = end_descendants(&monitor.table);
        if !left.is_empty() && tool.send_report(&LauncherReport::Left(left.clone())).is_err() {
            eprintln!("millrace: {}", left_message(&left));
        }
    }
    // Fails if the tool has ended, so there is no receiver.
    let _ = end.map(|end| tool.send_report(&end));
    Ok(ExitCode::SUCCESS)
}

/// Starts the shell from a sandboxed thread; the supervising thread must not be sandboxed.
fn start_shell(request: &LaunchRequest, has_namespaces: bool) -> io::Result<(Pid, Confinement)> {
    let started = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let confinement = sandbox::apply_sandbox(request, has_namespaces)?;
            let mut shell = Command::new("/bin/sh");
            shell.arg("-c").arg(&request.command).stdin(Stdio::null()).env_remove(ALLOCATOR_VARIABLE);
            let child = shell.spawn().map_err(|e| error_with_context("cannot run /bin/sh", e))?;
            Ok((child.id(), confinement))
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the sandboxed thread panicked")))
    });
    let (id, confinement) = started?;
    let pid = Pid::from_raw(id.cast_signed()).ok_or_else(|| io::Error::other("a process without an id"))?;
    Ok((pid, confinement))
}

struct ShellMonitor<'a> {
    shell: Pid,
    table: ProcessTable,
    request: &'a LaunchRequest,
    has_namespaces: bool,
}

impl ShellMonitor<'_> {
    /// Waits for the end of the shell; `None` if the tool ended first. Processes of the shell may still be running.
    fn wait_for_end(&self, tool: &mut ReportSocket) -> io::Result<Option<LauncherReport>> {
        let shell: OwnedFd = pidfd_open(self.shell, PidfdFlags::empty())?;
        let tick = Timespec { tv_sec: 0, tv_nsec: USAGE_INTERVAL.subsec_nanos().into() };
        let mut reported = 0;
        loop {
            let mut events = [PollFd::new(&tool.0, PollFlags::IN), PollFd::new(&shell, PollFlags::IN)];
            match poll(&mut events, Some(&tick)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            // The tool sends nothing, so any event means that it has ended.
            if !events[0].revents().is_empty() {
                return Ok(None);
            }
            if let Some(status) = self.reap_children() {
                return Ok(Some(ended_report(status)));
            }
            let processes = self.table.descendants();
            if processes.len() as u64 > self.request.limits.processes {
                return Ok(Some(exceeded_report(ExceededLimit::Processes)));
            }
            let memory = self.memory(&processes);
            if memory > self.request.bytes.total_memory {
                return Ok(Some(exceeded_report(ExceededLimit::Memory)));
            }
            if memory.abs_diff(reported) >= MIN_REPORTED_CHANGE {
                reported = memory;
                // Fails if the tool has ended, which the next round notices.
                let _ = tool.send_report(&LauncherReport::Memory(memory));
            }
        }
    }

    fn memory(&self, processes: &HashSet<Pid>) -> u64 {
        let private = if self.has_namespaces { sandbox::private_memory() } else { 0 };
        self.table.memory(processes, self.request.bytes.total_memory).saturating_add(private)
    }

    /// Reaps all ended processes; returns the status of the shell if it is among them.
    fn reap_children(&self) -> Option<WaitStatus> {
        let mut shell_status = None;
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == self.shell {
                shell_status = Some(status);
            }
        }
        shell_status
    }
}

fn ended_report(status: WaitStatus) -> LauncherReport {
    let signal = status.terminating_signal();
    let code = status.exit_status().or(signal.map(|signal| 128 + signal)).unwrap_or(1);
    LauncherReport::Ended { code, signal, exceeded: None }
}

fn exceeded_report(limit: ExceededLimit) -> LauncherReport {
    let signal = Signal::KILL.as_raw();
    LauncherReport::Ended { code: 128 + signal, signal: Some(signal), exceeded: Some(limit) }
}
