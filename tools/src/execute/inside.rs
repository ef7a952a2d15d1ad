//! What the launcher does in its own process: entering namespaces, starting the shell behind its fence, and watching
//! over it until it ends or the tool goes. It is single-threaded but for the moment in which the shell is started.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getgid, getpid, getuid, kill_process, pidfd_open,
    set_child_subreaper, set_parent_process_death_signal, setsid, waitpid,
};
use rustix::thread::{
    CapabilitySet, UnshareFlags, capabilities, configure_capability_in_ambient_set, set_capabilities,
};

use super::launcher::{Confinement, EXECUTE_INSIDE, Order, Report};
use super::{fence, root};

/// How often the processes of a command are counted.
const COUNTED_EVERY: Duration = Duration::from_millis(200);
/// How long killing what a command has left behind may take.
const KILLING: Duration = Duration::from_secs(5);

/// The socket to the tool: reports go out on it, and it closes when the tool goes.
pub(super) struct Lifeline(UnixStream);

impl Lifeline {
    pub(super) fn from_stdin() -> io::Result<Self> {
        Ok(Self(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?)))
    }

    pub(super) fn say(&mut self, report: &Report) -> io::Result<()> {
        let mut line = serde_json::to_string(report)?;
        line.push('\n');
        self.0.write_all(line.as_bytes())
    }
}

/// Puts this program, once more, into namespaces of its own, and waits for it.
pub(super) fn start_within_namespaces(order: &Order) -> io::Result<ExitCode> {
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    // The session's leader can't be told apart from a command by its terminal: there is none.
    let _ = setsid();
    let mut flags = UnshareFlags::NEWUSER | UnshareFlags::NEWPID | UnshareFlags::NEWNS | UnshareFlags::NEWIPC;
    if !order.network {
        flags |= UnshareFlags::NEWNET;
    }
    unshare(flags).map_err(|e| told("no namespaces of its own", e))?;
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{uid} {uid} 1")),
        ("gid_map", format!("{gid} {gid} 1")),
    ] {
        fs::write(format!("/proc/self/{file}"), text).map_err(|e| told("no users of its own", e))?;
    }
    keep_over_exec(CapabilitySet::SYS_ADMIN | CapabilitySet::SETPCAP)
        .map_err(|e| told("no rights in its own namespaces", e))?;
    let status =
        Command::new("/proc/self/exe").arg(EXECUTE_INSIDE).arg(serde_json::to_string(order)?).status()?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}

/// Within its new user namespace this process has every capability, but unless it is root the next `exec` takes them.
fn keep_over_exec(wanted: CapabilitySet) -> rustix::io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable |= wanted;
    set_capabilities(None, sets)?;
    wanted.iter().try_for_each(|one| configure_capability_in_ambient_set(one, true))
}

/// The function is deprecated for what `FILES` does, which is not among the flags.
#[expect(deprecated, reason = "its successor is unsafe for a flag that is not used here")]
fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    rustix::thread::unshare(flags)
}

fn told(what: &str, error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Starts the shell and watches over it. `alone` if this process is the first of its namespace.
pub(super) fn run(order: &Order, alone: bool, tool: &mut Lifeline) -> io::Result<ExitCode> {
    // The kernel's limit of a user's processes does not hold root.
    let mut bounded = !getuid().is_root();
    if alone {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        bounded |= root::enter(order).map_err(|e| told("no root of its own", e))?;
    } else {
        let _ = setsid();
        set_child_subreaper(Some(getpid()))?;
    }
    std::env::set_current_dir(&order.folder).map_err(|e| told("the folder can't be entered", e))?;
    let others = if alone { 0 } else { threads_of_this_user() };
    fence::limit(&order.limits, others)?;
    let (shell, confinement) = start(order, alone)?;
    tool.say(&Report::Started(Confinement { processes: bounded, ..confinement }))?;
    let watch = Watch { shell, alone, most: order.limits.processes };
    let end = watch.until_the_end(tool)?;
    if !alone {
        end_descendants();
    }
    // If the tool is gone, nobody is left to tell.
    let _ = end.map(|end| tool.say(&end));
    Ok(ExitCode::SUCCESS)
}

/// The shell, started by a thread that is behind the fence: what watches over the shell must not be.
fn start(order: &Order, alone: bool) -> io::Result<(Pid, Confinement)> {
    let started = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let confinement = fence::raise(order, alone)?;
            let mut shell = Command::new("/bin/sh");
            shell.arg("-c").arg(&order.command).stdin(Stdio::null());
            let child = shell.spawn().map_err(|e| told("/bin/sh can't be run", e))?;
            Ok((child.id(), confinement))
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the fence gave up")))
    });
    let (id, confinement) = started?;
    let pid =
        Pid::from_raw(id.cast_signed()).ok_or_else(|| io::Error::other("a process without a number"))?;
    Ok((pid, confinement))
}

struct Watch {
    shell: Pid,
    alone: bool,
    most: u64,
}

impl Watch {
    /// Waits for the shell's end; `None` if the tool went before it. The shell and what it started may still be
    /// there.
    fn until_the_end(&self, tool: &Lifeline) -> io::Result<Option<Report>> {
        let shell: OwnedFd = pidfd_open(self.shell, PidfdFlags::empty())?;
        let tick = Timespec { tv_sec: 0, tv_nsec: COUNTED_EVERY.subsec_nanos().into() };
        loop {
            let mut events = [PollFd::new(&tool.0, PollFlags::IN), PollFd::new(&shell, PollFlags::IN)];
            match poll(&mut events, Some(&tick)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            // The tool says nothing: whatever comes from it is its end.
            if !events[0].revents().is_empty() {
                return Ok(None);
            }
            if let Some(status) = self.reap() {
                return Ok(Some(ended(status)));
            }
            if self.processes() > self.most {
                let code = 128 + Signal::KILL.as_raw();
                return Ok(Some(Report::Ended { code, signal: Some(Signal::KILL.as_raw()), crowded: true }));
            }
        }
    }

    /// Collects all that has ended; the shell's status, if it is among them.
    fn reap(&self) -> Option<WaitStatus> {
        let mut found = None;
        while let Ok(Some((pid, status))) = waitpid(None, WaitOptions::NOHANG) {
            if pid == self.shell {
                found = Some(status);
            }
        }
        found
    }

    fn processes(&self) -> u64 {
        let count = if self.alone { process_ids().len() } else { descendants().len() };
        count as u64
    }
}

fn ended(status: WaitStatus) -> Report {
    let signal = status.terminating_signal();
    let code = status.exit_status().or(signal.map(|signal| 128 + signal)).unwrap_or(1);
    Report::Ended { code, signal, crowded: false }
}

/// Ends everything that this process started and that came back to it: first they are stopped, until none is new, so
/// that none can start another; then they are killed.
fn end_descendants() {
    let deadline = Instant::now() + KILLING;
    let mut stopped = HashSet::new();
    loop {
        let found = descendants();
        let new: Vec<Pid> = found.iter().copied().filter(|pid| stopped.insert(*pid)).collect();
        for pid in &new {
            let _ = kill_process(*pid, Signal::STOP);
        }
        if new.is_empty() || Instant::now() > deadline {
            break;
        }
    }
    while Instant::now() < deadline {
        for pid in descendants() {
            let _ = kill_process(pid, Signal::KILL);
        }
        loop {
            match waitpid(None, WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn descendants() -> HashSet<Pid> {
    let parents: HashMap<Pid, Pid> =
        process_ids().into_iter().filter_map(|pid| Some((pid, parent_of(pid)?))).collect();
    let me = getpid();
    let below = |mut pid: Pid| {
        // A process that ends in between may leave a chain without end.
        (0..parents.len()).any(|_| match parents.get(&pid) {
            Some(parent) if *parent == me => true,
            Some(parent) => {
                pid = *parent;
                false
            }
            None => false,
        })
    };
    parents.keys().copied().filter(|pid| below(*pid)).collect()
}

fn process_ids() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw);
    entries.filter_map(|entry| number(entry.ok()?)).collect()
}

fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, parentheses and blanks too.
    let after = &stat[stat.rfind(')')? + 1..];
    Pid::from_raw(after.split_whitespace().nth(1)?.parse().ok()?)
}

/// The kernel counts a user's processes by thread, over the whole machine where there is no user namespace.
fn threads_of_this_user() -> u64 {
    let mine = getuid().as_raw().to_string();
    let threads = |pid: Pid| -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let user = field("Uid:")?.split_whitespace().next()?;
        (user == mine).then(|| field("Threads:")?.trim().parse().ok()).flatten()
    };
    process_ids().into_iter().filter_map(threads).sum()
}
