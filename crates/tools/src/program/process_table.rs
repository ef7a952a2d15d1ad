//! The processes below this one and their memory, from `/proc`, and how they are ended.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{Dir, Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

const KILL_TIMEOUT: Duration = Duration::from_secs(5);
const KILL_INTERVAL: Duration = Duration::from_millis(5);

/// An open `/proc`. It stays usable after the root file system was replaced by one without it.
pub(crate) struct ProcessTable {
    proc: OwnedFd,
    own_pid: Pid,
}

impl ProcessTable {
    pub(crate) fn open() -> io::Result<Self> {
        let proc = open("/proc", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let own_pid = rustix::fs::readlinkat(&proc, "self", Vec::new())?;
        let own_pid = own_pid.to_str().ok().and_then(|text| Pid::from_raw(text.parse().ok()?));
        let own_pid = own_pid.ok_or_else(|| io::Error::other("/proc/self is not a process id"))?;
        Ok(Self { proc, own_pid })
    }

    pub(crate) fn descendants(&self) -> HashSet<Pid> {
        let parents: HashMap<Pid, Pid> =
            self.all_pids().into_iter().filter_map(|pid| Some((pid, self.parent_of(pid)?))).collect();
        let below = |mut pid: Pid| {
            // A process that ends meanwhile may leave a cycle.
            (0..parents.len()).any(|_| match parents.get(&pid) {
                Some(parent) if *parent == self.own_pid => true,
                Some(parent) => {
                    pid = *parent;
                    false
                }
                None => false,
            })
        };
        parents.keys().copied().filter(|pid| below(*pid)).collect()
    }

    /// Counts the threads of a user on the whole machine, as the kernel does for rlimits without a user namespace.
    pub(crate) fn threads_of_user(&self, user: u32) -> u64 {
        let user = user.to_string();
        let threads = |pid: Pid| -> Option<u64> {
            let status = self.read(pid, "status")?;
            let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
            let owner = field("Uid:")?.split_whitespace().next()?;
            (owner == user).then(|| field("Threads:")?.trim().parse().ok()).flatten()
        };
        self.all_pids().into_iter().filter_map(threads).sum()
    }

    /// Returns the bytes of memory that these processes use together. If that may be over half of `limit`, pages that
    /// several of them share are counted once, which takes longer.
    pub(crate) fn memory(&self, processes: &HashSet<Pid>, limit: u64) -> u64 {
        let resident: u64 = processes.iter().filter_map(|pid| self.resident_bytes(*pid)).sum();
        if processes.len() < 2 || resident <= limit / 2 {
            return resident;
        }
        let own_share = |pid: &Pid| self.proportional_bytes(*pid).or_else(|| self.resident_bytes(*pid));
        processes.iter().filter_map(own_share).sum()
    }

    fn resident_bytes(&self, pid: Pid) -> Option<u64> {
        let pages: u64 = self.read(pid, "statm")?.split_whitespace().nth(1)?.parse().ok()?;
        Some(pages.saturating_mul(rustix::param::page_size() as u64))
    }

    /// Returns a process's memory, of shared pages its share. `None` if the process does not allow others to read it.
    fn proportional_bytes(&self, pid: Pid) -> Option<u64> {
        let text = self.read(pid, "smaps_rollup")?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    }

    /// Returns a process for a log line: its id and its name.
    fn describe(&self, pid: Pid) -> String {
        let name = self.read(pid, "comm").unwrap_or_default();
        format!("{} ({})", pid.as_raw_nonzero(), name.trim_end())
    }

    fn all_pids(&self) -> Vec<Pid> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let entries = openat(&self.proc, ".", flags, Mode::empty()).and_then(Dir::new);
        let Ok(entries) = entries else { return Vec::new() };
        let number = |name: &std::ffi::CStr| name.to_str().ok()?.parse().ok().and_then(Pid::from_raw);
        entries.filter_map(|entry| number(entry.ok()?.file_name())).collect()
    }

    fn parent_of(&self, pid: Pid) -> Option<Pid> {
        let stat = self.read(pid, "stat")?;
        // The name in parentheses may contain anything, including parentheses and spaces.
        let after = &stat[stat.rfind(')')? + 1..];
        Pid::from_raw(after.split_whitespace().nth(1)?.parse().ok()?)
    }

    fn read(&self, pid: Pid, file: &str) -> Option<String> {
        let path = format!("{}/{file}", pid.as_raw_nonzero());
        let opened = openat(&self.proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut bytes = Vec::new();
        std::fs::File::from(opened).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Kills all descendants of this process, which must be a subreaper. First they are stopped until no new ones appear, so that
/// none can start another one; then they are killed. Returns those that could not be killed in time.
pub(crate) fn end_descendants(table: &ProcessTable) -> Vec<String> {
    let deadline = Instant::now() + KILL_TIMEOUT;
    let mut stopped = HashSet::new();
    while reap_until_running() && Instant::now() < deadline {
        let processes = table.descendants();
        let new: Vec<Pid> = processes.into_iter().filter(|pid| stopped.insert(*pid)).collect();
        if new.is_empty() {
            break;
        }
        for pid in new {
            let _ = kill_process(pid, Signal::STOP);
        }
    }
    while reap_until_running() {
        let processes = table.descendants();
        if Instant::now() >= deadline {
            return processes.into_iter().map(|pid| table.describe(pid)).collect();
        }
        for pid in processes {
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(KILL_INTERVAL);
    }
    Vec::new()
}

fn reap_until_running() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}
