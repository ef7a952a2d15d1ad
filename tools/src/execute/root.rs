//! A root of its own for a command: the programs and libraries of the system and what the settings name, read-only;
//! the working folder; a few devices; `/tmp`, `/dev/shm` and `/proc` of its own. Everything else is not there.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};
use rustix::process::pivot_root;

use super::launcher::Order;

/// Programs, libraries, and what programs of every kind look for.
const SYSTEM: [&str; 15] = [
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
/// What resolving names takes.
const NAMES: [&str; 4] = ["/etc/hosts", "/etc/nsswitch.conf", "/etc/resolv.conf", "/etc/services"];
/// Devices that hold nothing.
pub(super) const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// Folders that are empty for each command, and its own.
pub(super) const OWN_FOLDERS: [&str; 2] = ["/tmp", "/dev/shm"];

/// Where the old root is while the new one is built.
const OLD: &str = "/.old-root";
/// The root holds names only.
const ROOT_OPTIONS: &std::ffi::CStr = c"size=4m,mode=755";
/// Numbers that the kernel does not use again, and room for this program's own processes.
const RESERVED_PIDS: u64 = 310;
const OWN_OPTIONS: &std::ffi::CStr = c"size=256m,mode=1777";

/// What an order lets its command read.
pub(super) fn readable(order: &Order) -> Vec<PathBuf> {
    let names = NAMES.iter().take(if order.network { NAMES.len() } else { 0 });
    SYSTEM.iter().chain(names).map(PathBuf::from).chain(order.read.iter().cloned()).collect()
}

/// A thing to be shown in the new root.
enum Shown {
    Link { at: PathBuf, to: PathBuf },
    Mounted { at: PathBuf, from: PathBuf, writable: bool },
}

/// Leaves the old root for a new one. Needs mount and pid namespaces. Whether the kernel holds the number of processes
/// here even for root.
pub(super) fn enter(order: &Order) -> io::Result<bool> {
    let mut shown: Vec<Shown> = readable(order).iter().filter_map(|path| show(path)).collect();
    shown.extend(DEVICES.map(Path::new).into_iter().filter_map(device));
    let folder = order.folder.clone();
    shown.push(Shown::Mounted { at: folder.clone(), from: folder.clone(), writable: true });
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    // Any folder will do to mount the new root on; this one is known to be there.
    let harmless = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", &folder, "tmpfs", harmless, ROOT_OPTIONS)?;
    fs::create_dir(folder.join(&OLD[1..]))?;
    std::env::set_current_dir(&folder)?;
    pivot_root(".", &OLD[1..])?;
    std::env::set_current_dir("/")?;
    own_folders()?;
    for one in shown {
        build(one)?;
    }
    let bounded = processes(order.limits.processes);
    unmount(OLD, UnmountFlags::DETACH)?;
    fs::remove_dir(OLD)?;
    mount_remount("/", MountFlags::BIND | MountFlags::RDONLY | harmless, c"")?;
    Ok(bounded)
}

/// A symlink that leads to its neighbour (`/bin`, in most systems) stays one; any other is shown as what it leads to.
fn show(path: &Path) -> Option<Shown> {
    let at = path.to_owned();
    match fs::read_link(path) {
        Ok(to) if to.is_relative() && !to.components().any(|part| part == Component::ParentDir) => {
            Some(Shown::Link { at, to })
        }
        Ok(_) | Err(_) => Some(Shown::Mounted { at, from: fs::canonicalize(path).ok()?, writable: false }),
    }
}

fn device(path: &Path) -> Option<Shown> {
    let shown = Shown::Mounted { at: path.to_owned(), from: path.to_owned(), writable: true };
    path.exists().then_some(shown)
}

fn build(shown: Shown) -> io::Result<()> {
    match shown {
        Shown::Link { at, to } => {
            fs::create_dir_all(at.parent().unwrap_or(&at))?;
            symlink(to, at)
        }
        Shown::Mounted { at, from, writable } => {
            let old = Path::new(OLD);
            let from = old.join(from.strip_prefix("/").unwrap_or(&from));
            make_place(&at, from.is_dir())?;
            mount_bind_recursive(&from, &at)?;
            if writable { Ok(()) } else { read_only(&at) }
        }
    }
}

fn make_place(at: &Path, folder: bool) -> io::Result<()> {
    if at.exists() {
        return Ok(());
    }
    if folder {
        return fs::create_dir_all(at);
    }
    fs::create_dir_all(at.parent().unwrap_or(at))?;
    fs::File::create(at).map(drop)
}

/// What a mount may not do it must go on not to do, or the kernel refuses.
fn read_only(at: &Path) -> io::Result<()> {
    use rustix::fs::StatVfsMountFlags as Has;
    let has = rustix::fs::statvfs(at)?.f_flag;
    let kept = [
        (Has::NOSUID, MountFlags::NOSUID),
        (Has::NODEV, MountFlags::NODEV),
        (Has::NOEXEC, MountFlags::NOEXEC),
    ];
    let kept = kept.into_iter().filter(|(flag, _)| has.contains(*flag)).map(|(_, flag)| flag);
    let flags = kept.fold(MountFlags::BIND | MountFlags::RDONLY, |flags, flag| flags | flag);
    mount_remount(at, flags, c"")?;
    Ok(())
}

fn own_folders() -> io::Result<()> {
    for folder in OWN_FOLDERS {
        fs::create_dir_all(folder)?;
        mount("tmpfs", folder, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, OWN_OPTIONS)?;
    }
    for (name, to) in [("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")] {
        symlink(format!("/proc/self/{to}"), Path::new("/dev").join(name))?;
    }
    Ok(())
}

/// The command's own processes. Some containers don't allow it: then there is no `/proc`. Whether the kernel holds
/// their number now, although it would not for this user.
fn processes(most: u64) -> bool {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let mounted = fs::create_dir("/proc").and_then(|()| Ok(mount("proc", "/proc", "proc", flags, None)?));
    let bounded = mounted.is_ok() && bound_pids(most);
    // Read-only: to the machine's own root user, much of what stands in /proc/sys is open.
    let closed = mounted
        .and_then(|()| Ok(mount_remount("/proc", MountFlags::BIND | MountFlags::RDONLY | flags, c"")?));
    if closed.is_err() {
        let _ = unmount("/proc", UnmountFlags::DETACH);
    }
    bounded
}

/// Root's processes no rlimit holds. The highest process number does, where each namespace has its own; where it has
/// not, the number is the machine's, and is left alone.
fn bound_pids(most: u64) -> bool {
    if !rustix::process::getuid().is_root() || !each_namespace_has_its_own_highest_pid() {
        return false;
    }
    fs::write("/proc/sys/kernel/pid_max", most.saturating_add(RESERVED_PIDS).to_string()).is_ok()
}

/// Since Linux 6.14.
fn each_namespace_has_its_own_highest_pid() -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 14)
}
