//! Confinement by landlock, capabilities, seccomp and rlimits (namespaces are created elsewhere). Landlock, capabilities
//! and seccomp apply to a thread and its children, rlimits to the process.
//!
//! The root file system of a command: programs and libraries of the system and the configured paths, read-only; the
//! working folder; a few devices; its own `/tmp`, `/dev/shm` and `/proc`. Nothing else exists in it.

use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};
use rustix::process::{Resource, Rlimit, getrlimit, pivot_root, setrlimit};
use rustix::thread::{
    CapabilitySet, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

use super::launch_message::{Confinement, LaunchRequest, NetworkAccess};

use super::seccomp::{self, SocketRights};

/// The requested landlock version. The kernel enforces the part that it supports.
const LANDLOCK_ABI: ABI = ABI::V6;
/// Processes that do not belong to the command: the two launchers, and the thread that starts the shell.
const OWN_PROCESSES: u64 = 3;

/// Confines this thread. `has_namespaces`: it has its own root file system and network.
pub(super) fn apply_sandbox(request: &LaunchRequest, has_namespaces: bool) -> io::Result<Confinement> {
    set_no_new_privs(true)?;
    // Fails if there is nothing to drop.
    let _ = clear_ambient_capability_set();
    for bit in 0..u64::BITS {
        let _ = remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit));
    }
    if let Ok(mut sets) = capabilities(None) {
        sets.inheritable = CapabilitySet::empty();
        let _ = set_capabilities(None, sets);
    }
    let landlock =
        apply_landlock(request, has_namespaces).map_err(|e| io::Error::other(format!("landlock: {e}")))?;
    let rights = SocketRights { network: request.network, is_isolated: has_namespaces };
    let seccomp = seccomp::apply_filters(rights).is_ok();
    let network = match (request.network, has_namespaces || seccomp, landlock) {
        (true, ..) => NetworkAccess::Open,
        (false, true, _) => NetworkAccess::None,
        (false, false, Some(abi)) if abi >= ABI::V4 => NetworkAccess::NoTcp,
        (false, false, _) => NetworkAccess::Open,
    };
    let signals = has_namespaces || landlock.is_some_and(|abi| abi >= ABI::V6);
    Ok(Confinement {
        landlock: landlock.is_some(),
        seccomp,
        namespaces: has_namespaces,
        signals,
        processes: false,
        network,
    })
}

/// Applies landlock and returns the enforced version, if any.
fn apply_landlock(request: &LaunchRequest, has_namespaces: bool) -> Result<Option<ABI>, RulesetError> {
    let read = AccessFs::from_read(LANDLOCK_ABI);
    let device = AccessFs::ReadFile | AccessFs::WriteFile;
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK_ABI))?
        .scope(Scope::from_all(LANDLOCK_ABI))?;
    if !request.network {
        ruleset = ruleset.handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp)?;
    }
    let readable = readable_paths(request).into_iter().chain(has_namespaces.then(|| "/proc".into()));
    let writable = [request.folder.as_path()].into_iter().chain(PRIVATE_FOLDERS.map(Path::new));
    // Without an own root file system, these folders are shared with other processes.
    let writable = writable.take(if has_namespaces { usize::MAX } else { 1 });
    let status = ruleset
        .create()?
        .add_rules(path_beneath_rules(readable, read))?
        .add_rules(path_beneath_rules(DEVICES, device))?
        .add_rules(path_beneath_rules(writable, AccessFs::from_all(LANDLOCK_ABI)))?
        .restrict_self()?;
    Ok(match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, _) => None,
        (_, LandlockStatus::Available { effective_abi, .. }) => Some(effective_abi),
        (_, LandlockStatus::NotEnabled | LandlockStatus::NotImplemented) => None,
    })
}

/// Sets the limits of this process and all that it starts. `other_threads`: threads of this user that are counted with the
/// together with those of the command.
pub(super) fn set_resource_limits(request: &LaunchRequest, other_threads: u64) -> io::Result<()> {
    let (limits, bytes) = (&request.limits, &request.bytes);
    for (resource, maximum) in [
        (Resource::Cpu, limits.cpu_s),
        (Resource::Data, bytes.memory),
        (Resource::Nofile, limits.files),
        (Resource::Nproc, limits.processes.saturating_add(other_threads).saturating_add(OWN_PROCESSES)),
        (Resource::Fsize, bytes.file_size),
        (Resource::Core, 0),
    ] {
        let maximum = getrlimit(resource).maximum.map_or(maximum, |already| maximum.min(already));
        setrlimit(resource, Rlimit { current: Some(maximum), maximum: Some(maximum) })?;
    }
    Ok(())
}

/// Programs, libraries, and common configuration files.
const SYSTEM_PATHS: [&str; 15] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/pki/tls/certs",
    "/etc/ssl/certs",
];
const NAME_RESOLUTION_FILES: [&str; 4] =
    ["/etc/hosts", "/etc/nsswitch.conf", "/etc/resolv.conf", "/etc/services"];
/// Devices without data.
pub(super) const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// Folders that are private to each command and initially empty.
pub(super) const PRIVATE_FOLDERS: [&str; 2] = ["/tmp", "/dev/shm"];

/// The mount point of the old root while the new one is built.
const OLD_ROOT: &str = "/.old-root";
/// The root contains mount points only.
const ROOT_OPTIONS: &std::ffi::CStr = c"size=4m,mode=755";
/// Process ids that the kernel does not reuse, plus room for the launchers.
const RESERVED_PIDS: u64 = 310;
/// Maximum size of a private folder in bytes. Its content is memory of the command.
const MAX_PRIVATE_FOLDER: u64 = 256 * 1024 * 1024;

/// Returns the paths that the command of a request may read.
pub(super) fn readable_paths(request: &LaunchRequest) -> Vec<PathBuf> {
    let names =
        NAME_RESOLUTION_FILES.iter().take(if request.network { NAME_RESOLUTION_FILES.len() } else { 0 });
    SYSTEM_PATHS.iter().chain(names).map(PathBuf::from).chain(request.read.iter().cloned()).collect()
}

enum RootEntry {
    Link { at: PathBuf, to: PathBuf },
    Mounted { at: PathBuf, from: PathBuf, writable: bool },
}

/// Replaces the root file system. Requires mount and pid namespaces. Returns `true` if the kernel limits the number of
/// processes even for root.
pub(super) fn enter_new_root(request: &LaunchRequest) -> io::Result<bool> {
    let mut entries: Vec<RootEntry> =
        readable_paths(request).iter().filter_map(|path| root_entry_for(path)).collect();
    entries.extend(DEVICES.map(Path::new).into_iter().filter_map(device_entry));
    let folder = request.folder.clone();
    entries.push(RootEntry::Mounted { at: folder.clone(), from: folder.clone(), writable: true });
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    // Any folder can be the mount point of the new root; this one exists.
    let harmless = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", &folder, "tmpfs", harmless, ROOT_OPTIONS)?;
    fs::create_dir(folder.join(&OLD_ROOT[1..]))?;
    std::env::set_current_dir(&folder)?;
    pivot_root(".", &OLD_ROOT[1..])?;
    std::env::set_current_dir("/")?;
    mount_private_folders(request.bytes.total_memory / 4)?;
    for entry in entries {
        create_entry(entry)?;
    }
    let limited = mount_proc(request.limits.processes);
    unmount(OLD_ROOT, UnmountFlags::DETACH)?;
    fs::remove_dir(OLD_ROOT)?;
    mount_remount("/", MountFlags::BIND | MountFlags::RDONLY | harmless, c"")?;
    Ok(limited)
}

/// A relative symlink to a sibling (`/bin`, in most systems) stays a symlink; any other is replaced by its target.
fn root_entry_for(path: &Path) -> Option<RootEntry> {
    let at = path.to_owned();
    match fs::read_link(path) {
        Ok(to) if to.is_relative() && !to.components().any(|part| part == Component::ParentDir) => {
            Some(RootEntry::Link { at, to })
        }
        Ok(_) | Err(_) => {
            Some(RootEntry::Mounted { at, from: fs::canonicalize(path).ok()?, writable: false })
        }
    }
}

fn device_entry(path: &Path) -> Option<RootEntry> {
    let entries = RootEntry::Mounted { at: path.to_owned(), from: path.to_owned(), writable: true };
    path.exists().then_some(entries)
}

fn create_entry(entries: RootEntry) -> io::Result<()> {
    match entries {
        RootEntry::Link { at, to } => {
            fs::create_dir_all(at.parent().unwrap_or(&at))?;
            symlink(to, at)
        }
        RootEntry::Mounted { at, from, writable } => {
            let old = Path::new(OLD_ROOT);
            let from = old.join(from.strip_prefix("/").unwrap_or(&from));
            create_mount_point(&at, from.is_dir())?;
            mount_bind_recursive(&from, &at)?;
            if writable { Ok(()) } else { remount_read_only(&at) }
        }
    }
}

fn create_mount_point(at: &Path, folder: bool) -> io::Result<()> {
    if at.exists() {
        return Ok(());
    }
    if folder {
        return fs::create_dir_all(at);
    }
    fs::create_dir_all(at.parent().unwrap_or(at))?;
    fs::File::create(at).map(drop)
}

/// Makes a mount read-only. Its restrictions must be kept, or the kernel refuses.
fn remount_read_only(at: &Path) -> io::Result<()> {
    use rustix::fs::StatVfsMountFlags as Has;
    let current = rustix::fs::statvfs(at)?.f_flag;
    let preserved = [
        (Has::NOSUID, MountFlags::NOSUID),
        (Has::NODEV, MountFlags::NODEV),
        (Has::NOEXEC, MountFlags::NOEXEC),
    ];
    let preserved = preserved.into_iter().filter(|(flag, _)| current.contains(*flag)).map(|(_, flag)| flag);
    let flags = preserved.fold(MountFlags::BIND | MountFlags::RDONLY, |flags, flag| flags | flag);
    mount_remount(at, flags, c"")?;
    Ok(())
}

/// Returns the bytes of memory that the files in private folders and System V shared memory take.
pub(super) fn private_memory() -> u64 {
    let used = |folder: &&str| {
        let status = rustix::fs::statvfs(*folder).ok()?;
        Some(status.f_blocks.saturating_sub(status.f_bfree).saturating_mul(status.f_frsize))
    };
    // The column `rss` of each segment.
    let segments = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let rss = |line: &str| line.split_whitespace().nth(14)?.parse::<u64>().ok();
    PRIVATE_FOLDERS.iter().filter_map(used).chain(segments.lines().skip(1).filter_map(rss)).sum()
}

fn mount_private_folders(size: u64) -> io::Result<()> {
    let options = format!("size={},mode=1777", size.min(MAX_PRIVATE_FOLDER));
    let options = std::ffi::CString::new(options).map_err(io::Error::other)?;
    for folder in PRIVATE_FOLDERS {
        fs::create_dir_all(folder)?;
        mount("tmpfs", folder, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())?;
    }
    for (name, to) in [("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")] {
        symlink(format!("/proc/self/{to}"), Path::new("/dev").join(name))?;
    }
    Ok(())
}

/// Mounts `/proc`. Some containers do not allow this: then there is none. Returns `true` if the kernel limits the number
/// of processes now, although it would not for this user.
fn mount_proc(max_processes: u64) -> bool {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let mounted = fs::create_dir("/proc").and_then(|()| Ok(mount("proc", "/proc", "proc", flags, None)?));
    let limited = mounted.is_ok() && limit_pids(max_processes);
    // Read-only, because root may write to much of /proc/sys.
    let read_only_result = mounted
        .and_then(|()| Ok(mount_remount("/proc", MountFlags::BIND | MountFlags::RDONLY | flags, c"")?));
    if read_only_result.is_err() {
        let _ = unmount("/proc", UnmountFlags::DETACH);
    }
    limited
}

/// Limits the processes of root, to whom rlimits do not apply, by the highest process id. This needs a kernel in which
/// each namespace has its own highest id; otherwise it belongs to the whole machine and is not changed.
fn limit_pids(max_processes: u64) -> bool {
    if !rustix::process::getuid().is_root() || !pid_max_is_per_namespace() {
        return false;
    }
    fs::write("/proc/sys/kernel/pid_max", max_processes.saturating_add(RESERVED_PIDS).to_string()).is_ok()
}

/// Returns `true` for Linux 6.14 and later.
fn pid_max_is_per_namespace() -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 14)
}
