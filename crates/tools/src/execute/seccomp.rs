//! The system calls that a command must not use, as seccomp filters of its thread and all its processes. Landlock and
//! namespaces restrict what a call can reach; the filters remove calls that neither of them covers: sockets, further
//! namespaces, and kernel interfaces that ordinary programs do not need but attacks on the kernel do.

use std::io;

/// The rights that decide which sockets and shared memory a command can have.
#[derive(Debug, Clone, Copy)]
pub(super) struct SocketRights {
    /// `true` for internet sockets.
    pub(super) network: bool,
    /// `true` if the command has its own root file system and IPC namespace. Without them, local sockets and System V IPC
    /// reach other processes of the user.
    pub(super) is_isolated: bool,
}

/// Applies the filters to this thread and all that it starts.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) fn apply_filters(rights: SocketRights) -> io::Result<()> {
    for program in filters::build(rights).map_err(io::Error::other)? {
        seccompiler::apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn apply_filters(_: SocketRights) -> io::Result<()> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod filters {
    use std::collections::BTreeMap;

    use seccompiler::{
        BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
        SeccompFilter, SeccompRule, sock_filter,
    };

    use super::SocketRights;

    /// Calls that fail with `EPERM`.
    const REFUSED: &[i64] = &[
        // Namespaces.
        libc::SYS_unshare,
        libc::SYS_setns,
        // Mounts and roots.
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_chroot,
        libc::SYS_move_mount,
        libc::SYS_open_tree,
        libc::SYS_fsopen,
        libc::SYS_fsconfig,
        libc::SYS_fsmount,
        libc::SYS_fspick,
        libc::SYS_mount_setattr,
        libc::SYS_open_by_handle_at,
        // Keyrings: the session keyring of the worker is inherited.
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_keyctl,
        // Other processes.
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_process_madvise,
        libc::SYS_pidfd_getfd,
        libc::SYS_kcmp,
        // Kernel interfaces with a history of vulnerabilities.
        libc::SYS_bpf,
        libc::SYS_userfaultfd,
        libc::SYS_perf_event_open,
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        libc::SYS_fanotify_init,
        libc::SYS_lookup_dcookie,
        // The machine.
        libc::SYS_init_module,
        libc::SYS_finit_module,
        libc::SYS_delete_module,
        libc::SYS_kexec_load,
        // The crate `libc` has no number of it for this target.
        #[cfg(not(all(target_arch = "aarch64", target_env = "musl")))]
        libc::SYS_kexec_file_load,
        libc::SYS_reboot,
        libc::SYS_swapon,
        libc::SYS_swapoff,
        libc::SYS_acct,
        libc::SYS_quotactl,
        libc::SYS_quotactl_fd,
        libc::SYS_nfsservctl,
        libc::SYS_syslog,
        libc::SYS_settimeofday,
        libc::SYS_clock_settime,
        libc::SYS_clock_adjtime,
        libc::SYS_sethostname,
        libc::SYS_setdomainname,
        libc::SYS_vhangup,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_iopl,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_ioperm,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_modify_ldt,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_uselib,
    ];
    /// Calls that fail with `EPERM` unless the command has its own IPC namespace.
    const SYSTEM_V_IPC: [i64; 3] = [libc::SYS_shmget, libc::SYS_msgget, libc::SYS_semget];
    /// Calls that fail with `ENOSYS`, upon which programs use older ones. The flags of `clone3` are in memory, where a
    /// filter cannot read them; memory of a `memfd` belongs to no process, so it could not be counted.
    const ABSENT: [i64; 3] = [libc::SYS_clone3, libc::SYS_memfd_create, libc::SYS_memfd_secret];
    /// The flags of `clone` that create namespaces.
    const NAMESPACE_FLAGS: [i32; 7] = [
        libc::CLONE_NEWNS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
    ];
    /// Requests of `ioctl` that type into a terminal.
    const TERMINAL_REQUESTS: [u64; 2] = [0x5412, 0x541c];
    /// The last call that this list was written for. Later ones, and those of the ABI x32, fail with `ENOSYS`.
    const LAST_KNOWN: u32 = 462;

    type Rules = BTreeMap<i64, Vec<SeccompRule>>;

    /// Returns the programs to apply, in any order.
    pub(super) fn build(rights: SocketRights) -> Result<Vec<BpfProgram>, BackendError> {
        let mut refused: Rules = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
        if !rights.is_isolated {
            refused.extend(SYSTEM_V_IPC.map(|call| (call, Vec::new())));
        }
        let namespace_rules = NAMESPACE_FLAGS.map(|flag| {
            let flag = u64::from(flag.cast_unsigned());
            rule([(0, SeccompCmpOp::MaskedEq(flag), flag)])
        });
        refused.insert(libc::SYS_clone, namespace_rules.into_iter().collect::<Result<_, _>>()?);
        let terminal_rules = TERMINAL_REQUESTS.map(|request| rule([(1, SeccompCmpOp::Eq, request)]));
        refused.insert(libc::SYS_ioctl, terminal_rules.into_iter().collect::<Result<_, _>>()?);

        let absent = ABSENT.into_iter().map(|call| (call, Vec::new())).collect();
        let families = Rules::from([
            (libc::SYS_socket, rules_for_families(&allowed_families(rights))?),
            (libc::SYS_socketpair, rules_for_families(&[libc::AF_UNIX])?),
        ]);
        Ok(vec![
            without_later_calls(),
            compile(refused, libc::EPERM)?,
            compile(absent, libc::ENOSYS)?,
            compile(families, libc::EAFNOSUPPORT)?,
        ])
    }

    fn allowed_families(rights: SocketRights) -> Vec<i32> {
        let internet = [libc::AF_INET, libc::AF_INET6].into_iter().filter(|_| rights.network);
        internet.chain(Some(libc::AF_UNIX).filter(|_| rights.is_isolated)).collect()
    }

    /// Returns rules that match every address family except these.
    fn rules_for_families(allowed: &[i32]) -> Result<Vec<SeccompRule>, BackendError> {
        if allowed.is_empty() {
            return Ok(Vec::new());
        }
        let other = allowed.iter().map(|family| (0, SeccompCmpOp::Ne, u64::from(family.cast_unsigned())));
        Ok(vec![rule(other)?])
    }

    /// Returns a rule with all of these conditions: argument, operator, value of 32 bits.
    fn rule(
        conditions: impl IntoIterator<Item = (u8, SeccompCmpOp, u64)>,
    ) -> Result<SeccompRule, BackendError> {
        let conditions = conditions.into_iter().map(|(argument, operator, value)| {
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
        });
        SeccompRule::new(conditions.collect::<Result<_, _>>()?)
    }

    fn compile(rules: Rules, errno: i32) -> Result<BpfProgram, BackendError> {
        let on_match = SeccompAction::Errno(errno.cast_unsigned());
        let architecture = std::env::consts::ARCH.try_into()?;
        SeccompFilter::new(rules, SeccompAction::Allow, on_match, architecture)?.try_into()
    }

    /// Returns a program that lets calls after [`LAST_KNOWN`] fail with `ENOSYS`.
    fn without_later_calls() -> BpfProgram {
        const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        const JUMP_IF_GREATER: u32 = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
        const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
        let instruction = |code: u32, on_true, k| sock_filter {
            code: u16::try_from(code).expect("codes of BPF have 16 bits"),
            jt: on_true,
            jf: 0,
            k,
        };
        vec![
            // The number of the call is the first field of the kernel's `seccomp_data`.
            instruction(LOAD, 0, 0),
            instruction(JUMP_IF_GREATER, 1, LAST_KNOWN),
            instruction(RETURN, 0, libc::SECCOMP_RET_ALLOW),
            instruction(RETURN, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned()),
        ]
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn families_depend_on_rights() {
            let families = |network, is_isolated| allowed_families(SocketRights { network, is_isolated });
            assert_eq!(families(false, false), [0; 0]);
            assert_eq!(families(false, true), [libc::AF_UNIX]);
            assert_eq!(families(true, false), [libc::AF_INET, libc::AF_INET6]);
            assert_eq!(families(true, true), [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX]);
        }

        #[test]
        fn all_filters_compile() {
            for (network, is_isolated) in [(false, false), (false, true), (true, false), (true, true)] {
                assert_eq!(build(SocketRights { network, is_isolated }).unwrap().len(), 4);
            }
        }
    }
}
