//! CPU and memory use of processes, from `/proc`. On other systems than Linux nothing is reported.

use std::collections::BTreeMap;
use std::fs;

/// `/proc` reports CPU time in hundredths of a second on every kernel.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU seconds by process name.
pub type CpuSeconds = BTreeMap<String, f64>;

/// Returns the CPU seconds of each process so far; processes that can't be read are omitted.
pub fn read_cpu_seconds<'a>(processes: impl IntoIterator<Item = (&'a str, u32)>) -> CpuSeconds {
    processes
        .into_iter()
        .filter_map(|(name, pid)| Some((name.to_owned(), read_process_cpu_seconds(pid)?)))
        .collect()
}

/// Returns the difference between two readings.
pub fn cpu_seconds_between(before: &CpuSeconds, after: &CpuSeconds) -> CpuSeconds {
    let difference = |(name, after): (&String, &f64)| Some((name.clone(), after - before.get(name)?));
    after.iter().filter_map(difference).collect()
}

fn read_process_cpu_seconds(pid: u32) -> Option<f64> {
    parse_cpu_ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
        .map(|ticks| ticks as f64 / TICKS_PER_SECOND)
}

/// Returns user plus kernel time, fields 14 and 15. Field 2 is the program name in parentheses, with arbitrary content.
fn parse_cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11);
    Some(times.next()?.parse::<u64>().ok()? + times.next()?.parse::<u64>().ok()?)
}

/// Returns the peak memory of a process in bytes.
pub fn read_peak_memory(pid: u32) -> Option<u64> {
    read_status_field(pid, "VmHWM:")
}

/// Returns the current memory of a process in bytes.
pub fn read_resident_memory(pid: u32) -> Option<u64> {
    read_status_field(pid, "VmRSS:")
}

/// Returns a memory value of `/proc/PID/status` in bytes.
fn read_status_field(pid: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_names_with_spaces_and_parentheses_are_skipped() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 250 31 0 0 20 0 1 0 100 0 0";
        assert_eq!(parse_cpu_ticks(stat), Some(281));
        assert_eq!(parse_cpu_ticks("nonsense"), None);
    }

    #[test]
    fn usage_is_the_difference_of_two_readings() {
        let at = |entries: &[(&str, f64)]| -> CpuSeconds {
            entries.iter().map(|(name, seconds)| ((*name).to_owned(), *seconds)).collect()
        };
        let used = cpu_seconds_between(&at(&[("a", 1.0), ("gone", 2.0)]), &at(&[("a", 1.5), ("new", 3.0)]));
        assert_eq!(used, at(&[("a", 0.5)]));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_of_this_process_is_reported() {
        assert!(read_peak_memory(std::process::id()).unwrap() > 1 << 20);
    }
}
