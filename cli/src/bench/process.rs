//! What a process has used, read from the Linux kernel's `/proc`; where there is none, nothing is known and nothing is
//! shown.

use std::collections::BTreeMap;
use std::fs;

/// The kernel tells processor time in hundredths of a second, whatever its own clock is.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor seconds by process name.
pub type Seconds = BTreeMap<String, f64>;

/// The processor seconds that each process has used so far, by its name; without those that can't be asked.
pub fn seconds<'a>(processes: impl IntoIterator<Item = (&'a str, u32)>) -> Seconds {
    processes.into_iter().filter_map(|(name, pid)| Some((name.to_owned(), seconds_of(pid)?))).collect()
}

/// What was used between two readings.
pub fn used(before: &Seconds, after: &Seconds) -> Seconds {
    let difference = |(name, after): (&String, &f64)| Some((name.clone(), after - before.get(name)?));
    after.iter().filter_map(difference).collect()
}

fn seconds_of(pid: u32) -> Option<f64> {
    ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?).map(|ticks| ticks as f64 / TICKS_PER_SECOND)
}

/// Time in user and in kernel mode, the 14th and 15th fields. The second is the program's name in parentheses, which
/// may hold anything.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11);
    Some(times.next()?.parse::<u64>().ok()? + times.next()?.parse::<u64>().ok()?)
}

/// The most memory that a process has held so far, in bytes.
pub fn peak_memory(pid: u32) -> Option<u64> {
    status(pid, "VmHWM:")
}

/// The memory that a process holds now, in bytes.
pub fn memory(pid: u32) -> Option<u64> {
    status(pid, "VmRSS:")
}

/// A line of a process's status, in bytes.
fn status(pid: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_behind_a_name_with_spaces_and_parentheses() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 250 31 0 0 20 0 1 0 100 0 0";
        assert_eq!(ticks(stat), Some(281));
        assert_eq!(ticks("nonsense"), None);
    }

    #[test]
    fn what_was_used_is_the_difference_for_those_known_at_both_times() {
        let at = |entries: &[(&str, f64)]| -> Seconds {
            entries.iter().map(|(name, seconds)| ((*name).to_owned(), *seconds)).collect()
        };
        let used = used(&at(&[("a", 1.0), ("gone", 2.0)]), &at(&[("a", 1.5), ("new", 3.0)]));
        assert_eq!(used, at(&[("a", 0.5)]));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_held_memory() {
        assert!(peak_memory(std::process::id()).unwrap() > 1 << 20);
    }
}
