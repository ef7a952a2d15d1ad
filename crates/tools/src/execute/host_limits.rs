//! The memory and disk space that this process may use, from its control group and file systems. The default limits of
//! commands are derived from them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Minimum of the limits on memory: with less, the launcher and a shell do not start.
pub const MIN_MEMORY_MB: u64 = 64;

pub(super) const MIB: u64 = 1024 * 1024;
/// The mount point of control groups.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// Controllers of version 1 report a number of this size if there is no limit.
const NO_LIMIT: u64 = 1 << 60;
/// Maximum default for the temporary folders of a process, if its memory is limited as in a container, where the space of
/// such a folder is usually limited as well but cannot be read (`sizeLimit` in Kubernetes).
const CONTAINER_DISK: u64 = 512 * MIB;
/// The same without such a limit.
const MACHINE_DISK: u64 = 8 * 1024 * MIB;
const MAX_DEFAULT_MEMORY: u64 = 4 * 1024 * MIB;
/// Minimum default memory of a command, with which at least a shell runs.
const MIN_DEFAULT_MEMORY: u64 = MIN_MEMORY_MB * MIB;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HostLimits {
    machine_memory: u64,
    /// Bytes of memory that the control group allows, if it has a limit.
    memory_limit: Option<u64>,
    /// Free bytes on the file system of the working folder.
    free_disk: u64,
}

impl HostLimits {
    #[cfg(test)]
    pub(super) fn new(machine_memory: u64, memory_limit: Option<u64>, free_disk: u64) -> Self {
        Self { machine_memory, memory_limit, free_disk }
    }

    /// Detects the resources of this process and of the file system of a folder.
    pub(super) fn detect(folder: &Path) -> io::Result<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Ok(Self {
            machine_memory: machine_memory().unwrap_or(u64::MAX),
            memory_limit: cgroup_memory_limit(&groups, Path::new(CGROUP_ROOT)),
            free_disk: free_bytes(folder)?,
        })
    }

    /// Returns the bytes of memory that all commands of this process may use together: half of all.
    pub(super) fn memory_for_commands(self) -> u64 {
        let all = self.memory_limit.map_or(self.machine_memory, |limit| limit.min(self.machine_memory));
        (all / 2).max(MIN_DEFAULT_MEMORY)
    }

    /// Returns the default limit on the memory of one command.
    pub(super) fn default_command_memory(self) -> u64 {
        self.memory_for_commands().min(MAX_DEFAULT_MEMORY)
    }

    /// Returns the bytes that all temporary working folders of this process may have together.
    pub(super) fn temporary_disk(self) -> u64 {
        let most = if self.memory_limit.is_some() { CONTAINER_DISK } else { MACHINE_DISK };
        self.free_half().min(most)
    }

    /// Returns half of the free space on the file system of the working folder.
    pub(super) fn free_half(self) -> u64 {
        self.free_disk / 2
    }
}

/// Returns the free bytes of the file system of a path.
pub(super) fn free_bytes(path: &Path) -> io::Result<u64> {
    let status = rustix::fs::statvfs(path)?;
    Ok(status.f_bavail.saturating_mul(status.f_frsize))
}

fn machine_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kilobytes: u64 = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()?;
    kilobytes.checked_mul(1024)
}

/// Returns the lowest memory limit of a control group and its parents. `groups` is the content of `/proc/self/cgroup`.
fn cgroup_memory_limit(groups: &str, root: &Path) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let is_memory = controllers.split(',').any(|one| one == "memory");
        let (mounts, file) = match controllers {
            "" => (vec![root.to_owned(), root.join("unified")], "memory.max"),
            _ if is_memory => (vec![root.join(controllers), root.join("memory")], "memory.limit_in_bytes"),
            _ => return None,
        };
        mounts.iter().filter_map(|mount| lowest_limit(mount, path, file)).min()
    });
    limits.min()
}

/// In a container the path may be the one of the host, of which only the last folder is mounted; so the root counts too.
fn lowest_limit(mount: &Path, path: &str, file: &str) -> Option<u64> {
    let group: PathBuf = mount.join(path.trim_start_matches('/'));
    let groups = group.ancestors().take_while(|folder| folder.starts_with(mount));
    let limit = |folder: &Path| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
    groups.filter_map(limit).filter(|limit| *limit < NO_LIMIT).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(groups: &str, files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        cgroup_memory_limit(groups, root.path())
    }

    #[test]
    fn the_lowest_memory_limit_of_the_control_group_counts() {
        let v2 = [("a/memory.max", "2000\n"), ("a/b/memory.max", "max\n"), ("a/b/c/memory.max", "3000\n")];
        assert_eq!(limit("0::/a/b/c\n", &v2), Some(2000));
        assert_eq!(limit("0::/a/b\n", &v2[1..2]), None);
        assert_eq!(limit("0::/\n", &[("memory.max", "1073741824\n")]), Some(1024 * MIB), "a container");
        assert_eq!(limit("0::/\n", &[]), None);
        let v1 = "5:devices:/x\n4:memory:/pod/one\n0::/\n";
        assert_eq!(limit(v1, &[("memory/pod/one/memory.limit_in_bytes", "5000\n")]), Some(5000));
        assert_eq!(
            limit(v1, &[("memory/memory.limit_in_bytes", "7000\n")]),
            Some(7000),
            "a path of the host"
        );
        assert_eq!(limit(v1, &[("memory/memory.limit_in_bytes", "9223372036854771712\n")]), None);
        assert_eq!(limit("../::\n:", &v2), None);
    }

    #[test]
    fn defaults_fit_the_shipped_pods() {
        // A worker of `deploy/kubernetes`: 1 GiB of memory, 1 GiB for /tmp on a node with more space.
        let gib = 1024 * MIB;
        let pod = HostLimits::new(64 * gib, Some(gib), 200 * gib);
        assert_eq!(pod.memory_for_commands(), gib / 2);
        assert_eq!(pod.default_command_memory(), gib / 2);
        assert_eq!(pod.temporary_disk(), gib / 2);
        let laptop = HostLimits::new(16 * gib, None, 100 * gib);
        assert_eq!(laptop.memory_for_commands(), 8 * gib);
        assert_eq!(laptop.default_command_memory(), 4 * gib);
        assert_eq!(laptop.temporary_disk(), 8 * gib);
        let full = HostLimits { free_disk: 100 * MIB, ..laptop };
        assert_eq!(full.temporary_disk(), 50 * MIB);
    }
}
