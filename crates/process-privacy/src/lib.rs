//! Hides the environment and the memory of this process from other processes, because both hold keys: of model providers, of
//! services, of NATS.
//!
//! On Linux every process of the same user can read `/proc/PID/environ`. The kernel shows there the bytes that the process got
//! at its start, and [`std::env::remove_var`] leaves them in place. [`hide_from_other_processes`] moves all variables to the
//! heap, overwrites these bytes, and makes the process not dumpable: its memory is then closed to processes of the same user,
//! and the kernel writes no core dump of it. Root can still read its memory. Programs that it starts are dumpable again.
//!
//! # Invariants
//!
//! - I290: No process of a cluster shows a key in `/proc/PID/environ`, and none of its memory to processes of the same user but root.
//!   (`tests/tests/exit_codes.rs::no_role_shows_its_environment_after_the_start`,
//!   `tests/tests/foreign_processes.rs::no_program_reads_the_keys_of_its_worker`)

#![cfg_attr(not(target_os = "linux"), allow(unused, reason = "other platforms have no /proc"))]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// This variable stays readable: tests find the processes of a cluster by its value.
pub const MARK_VARIABLE: &str = "MILLRACE_TEST_MARK";

/// Hides the environment and the memory of this process. Call it early in `main`: it fails if there are several threads. Child
/// processes inherit the environment as before.
///
/// # Errors
/// The environment can't be overwritten, or the kernel refuses to protect the memory. Both are tried.
#[cfg(target_os = "linux")]
pub fn hide_from_other_processes() -> io::Result<()> {
    use rustix::process::{set_dumpable_behavior, DumpableBehavior};
    // First, because a process that isn't dumpable can't open its own memory unless it is root.
    let hidden = hide_environment();
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    hidden
}

/// Other platforms have no `/proc`.
#[cfg(not(target_os = "linux"))]
pub fn hide_from_other_processes() -> io::Result<()> {
    Ok(())
}

fn hide_environment() -> io::Result<()> {
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the process already has several threads"));
    }
    let block = environment_block(&fs::read_to_string("/proc/self/stat")?)
        .ok_or_else(|| io::Error::other("/proc/self/stat does not name the environment"))?;
    let mut bytes = Vec::new();
    File::open("/proc/self/environ")?.read_to_end(&mut bytes)?;
    let memory = File::options().write(true).open("/proc/self/mem")?;
    // The C library replaces each pointer into the block by one to a copy on the heap. Pointers that stay lead to empty entries, which
    // are ignored: those of the second value of a name, and of entries without a name.
    for (name, value) in std::env::vars_os() {
        if !name.as_encoded_bytes().contains(&b'=') && std::env::var_os(&name).as_ref() == Some(&value) {
            std::env::set_var(name, value);
        }
    }
    bytes.truncate(usize::try_from(block.end.saturating_sub(block.start)).unwrap_or_default());
    overwrite_entries(&mut bytes);
    memory.write_all_at(&bytes, block.start)
}

/// Reads the addresses of the environment from the content of `/proc/PID/stat`.
fn environment_block(stat: &str) -> Option<Range<u64>> {
    // The second field is a name in parentheses, which may contain anything; the fields 50 and 51 are the addresses.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace().skip(47);
    let mut address = || fields.next()?.parse().ok().filter(|address| *address != 0);
    Some(address()?..address()?)
}

/// Overwrites all entries except the mark, in place.
fn overwrite_entries(block: &mut [u8]) {
    for entry in block.split_mut(|byte| *byte == 0) {
        let name = entry.split(|byte| *byte == b'=').next().unwrap_or_default();
        if name != OsStr::new(MARK_VARIABLE).as_encoded_bytes() {
            entry.fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_the_only_entry_that_stays() {
        let mut block = b"A=1\0MILLRACE_TEST_MARK=x\0MILLRACE_TEST_MARKER=key\0no entry\0=\0".to_vec();
        let length = block.len();
        overwrite_entries(&mut block);
        assert_eq!(block.len(), length);
        let left: Vec<&[u8]> = block.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()).collect();
        assert_eq!(left, [&b"MILLRACE_TEST_MARK=x"[..]]);
    }

    #[test]
    fn addresses_are_found_behind_any_program_name() {
        let fields = |name: &str| {
            let numbers: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
            format!("7 ({name}) S {}", numbers.join(" "))
        };
        for name in ["millrace", "a) b (c", ""] {
            assert_eq!(environment_block(&fields(name)), Some(50..51), "{name}");
        }
        assert_eq!(environment_block("7 (x) S 1 2"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_with_several_threads_keeps_its_environment() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || stopped.recv());
        let before = fs::read("/proc/self/environ").unwrap();
        let error = hide_environment().unwrap_err();
        assert!(error.to_string().contains("several threads"), "{error}");
        assert_eq!(fs::read("/proc/self/environ").unwrap(), before);
        drop(stop);
        assert!(thread.join().unwrap().is_err());
    }
}
