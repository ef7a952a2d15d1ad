//! Confinement by landlock, capabilities, seccomp and rlimits (namespaces are created elsewhere). Landlock, capabilities
//! and seccomp apply to a thread and its children, rlimits to the process.

use std::io;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

use super::launch_message::{Confinement, LaunchRequest, NetworkAccess};
use super::root_fs;
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
    let readable = root_fs::readable_paths(request).into_iter().chain(has_namespaces.then(|| "/proc".into()));
    let writable = [request.folder.as_path()].into_iter().chain(root_fs::PRIVATE_FOLDERS.map(Path::new));
    // Without an own root file system, these folders are shared with other processes.
    let writable = writable.take(if has_namespaces { usize::MAX } else { 1 });
    let status = ruleset
        .create()?
        .add_rules(path_beneath_rules(readable, read))?
        .add_rules(path_beneath_rules(root_fs::DEVICES, device))?
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
