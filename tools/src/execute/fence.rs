//! What the kernel holds a command within, apart from namespaces: landlock, capabilities, limits. Landlock and
//! capabilities belong to a thread and what it starts, limits to the process.

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

use super::launcher::{Confinement, Network, Order};
use super::root;
use super::settings::Limits;

/// The landlock that is asked for. The kernel gives what it has of it.
const WANTED: ABI = ABI::V6;
/// Processes that are this program's: the two launchers, and the thread that starts the shell.
const OWN: u64 = 3;
const MIB: u64 = 1024 * 1024;

/// Raises the fence around this thread. `alone` if it has a root and a network of its own.
pub(super) fn raise(order: &Order, alone: bool) -> io::Result<Confinement> {
    set_no_new_privs(true)?;
    // Where there is nothing to give up, giving up is refused.
    let _ = clear_ambient_capability_set();
    for bit in 0..u64::BITS {
        let _ = remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit));
    }
    if let Ok(mut sets) = capabilities(None) {
        sets.inheritable = CapabilitySet::empty();
        let _ = set_capabilities(None, sets);
    }
    let landlock = landlock(order, alone).map_err(|e| io::Error::other(format!("landlock: {e}")))?;
    let network = match (order.network, alone, landlock) {
        (true, ..) => Network::Open,
        (false, true, _) => Network::None,
        (false, false, Some(abi)) if abi >= ABI::V4 => Network::NoTcp,
        (false, false, _) => Network::Open,
    };
    let signals = alone || landlock.is_some_and(|abi| abi >= ABI::V6);
    Ok(Confinement { landlock: landlock.is_some(), namespaces: alone, signals, processes: false, network })
}

/// Which landlock holds, if any.
fn landlock(order: &Order, alone: bool) -> Result<Option<ABI>, RulesetError> {
    let read = AccessFs::from_read(WANTED);
    let device = AccessFs::ReadFile | AccessFs::WriteFile;
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(WANTED))?
        .scope(Scope::from_all(WANTED))?;
    if !order.network {
        ruleset = ruleset.handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp)?;
    }
    let readable = root::readable(order).into_iter().chain(alone.then(|| "/proc".into()));
    let writable = [order.folder.as_path()].into_iter().chain(root::OWN_FOLDERS.map(Path::new));
    // Without a root of its own, those folders are everybody's.
    let writable = writable.take(if alone { usize::MAX } else { 1 });
    let status = ruleset
        .create()?
        .add_rules(path_beneath_rules(readable, read))?
        .add_rules(path_beneath_rules(root::DEVICES, device))?
        .add_rules(path_beneath_rules(writable, AccessFs::from_all(WANTED)))?
        .restrict_self()?;
    Ok(match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, _) => None,
        (_, LandlockStatus::Available { effective_abi, .. }) => Some(effective_abi),
        (_, LandlockStatus::NotEnabled | LandlockStatus::NotImplemented) => None,
    })
}

/// Sets the limits of this process and all that it starts. `others`: threads of this user that are counted with the
/// command's.
pub(super) fn limit(limits: &Limits, others: u64) -> io::Result<()> {
    for (resource, most) in [
        (Resource::Cpu, limits.cpu_s),
        (Resource::Data, limits.memory_mb.saturating_mul(MIB)),
        (Resource::Nofile, limits.files),
        (Resource::Nproc, limits.processes.saturating_add(others).saturating_add(OWN)),
        (Resource::Fsize, limits.file_size_mb.saturating_mul(MIB)),
        (Resource::Core, 0),
    ] {
        let most = getrlimit(resource).maximum.map_or(most, |already| most.min(already));
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}
