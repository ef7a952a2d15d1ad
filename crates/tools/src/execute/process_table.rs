//! The processes of a command and their memory, from `/proc`.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, Mode, OFlags, open, openat};
use rustix::process::Pid;

/// An open `/proc`. It stays usable after the root file system was replaced by one without it.
pub(super) struct ProcessTable {
    proc: OwnedFd,
    /// The id of this process in that `/proc`.
    own_pid: Pid,
}

impl ProcessTable {
    /// Opens `/proc`.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn open() -> io::Result<Self> {
        let proc = open("/proc", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let own_pid = rustix::fs::readlinkat(&proc, "self", Vec::new())?;
        let own_pid = own_pid.to_str().ok().and_then(|text| Pid::from_raw(text.parse().ok()?));
        let own_pid = own_pid.ok_or_else(|| io::Error::other("/proc/self is not a process id"))?;
        Ok(Self { proc, own_pid })
    }

    /// Returns all descendants of this process.
    pub(super) fn descendants(&self) -> HashSet<Pid> {
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
    pub(super) fn threads_of_user(&self, user: u32) -> u64 {
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
    pub(super) fn memory(&self, processes: &HashSet<Pid>, limit: u64) -> u64 {
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
