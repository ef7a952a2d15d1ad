//! A clock that a test moves, for the processes that it starts: all of them read the time of this machine plus an offset in a
//! file. The programs do not know it: a library that the loader puts before theirs answers `clock_gettime`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

/// Adds the seconds in the file to the wall clock. The monotonic clock stays as it is.
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile long *offset;

__attribute__((constructor)) static void open_offset(void) {
    const char *path = getenv("MILLRACE_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) offset = page;
    if (file >= 0) close(file);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    int is_moved = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    if (result == 0 && offset && is_moved) time->tv_sec += *offset;
    return result;
}
"#;

/// A clock that a test moves. Cloning it gives the same clock.
#[derive(Debug, Clone)]
pub struct TestClock {
    folder: Arc<TempDir>,
}

impl TestClock {
    /// Creates a clock that shows the time of this machine.
    ///
    /// # Errors
    /// This is not Linux, or there is no C compiler.
    pub fn new() -> Result<Self, String> {
        if !cfg!(target_os = "linux") {
            return Err("the loader is not that of Linux".into());
        }
        let clock = Self { folder: Arc::new(tempfile::tempdir().map_err(|error| error.to_string())?) };
        clock.write_offset(Duration::ZERO);
        let source = clock.folder.path().join("clock.c");
        std::fs::write(&source, LIBRARY).map_err(|error| error.to_string())?;
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .arg(clock.library())
            .arg(&source)
            .output()
            .map_err(|error| format!("cc: {error}"))?;
        match compiled.status.success() {
            true => Ok(clock),
            false => Err(String::from_utf8_lossy(&compiled.stderr).into_owned()),
        }
    }

    /// Moves the clock: from now on it shows the time of this machine plus `offset`. Running processes see that their wall clock
    /// jumps, which is no time in which anything could have been done; a process that starts believes it.
    ///
    /// # Panics
    /// The file can't be written.
    pub fn write_offset(&self, offset: Duration) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(self.offset());
        let seconds = i64::try_from(offset.as_secs()).expect("a test takes less than 292 billion years");
        file.and_then(|file| file.write_all_at(&seconds.to_ne_bytes(), 0))
            .expect("the offset can be written");
    }

    /// The environment of processes that read this clock.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, String); 2] {
        let text = |path: PathBuf| path.display().to_string();
        [("LD_PRELOAD", text(self.library())), ("MILLRACE_TEST_CLOCK", text(self.offset()))]
    }

    fn library(&self) -> PathBuf {
        self.path("clock.so")
    }

    fn offset(&self) -> PathBuf {
        self.path("offset")
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::join(self.folder.path(), name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_read_the_moved_clock() {
        let clock = TestClock::new().expect("this machine builds programs");
        let year = || {
            let output =
                Command::new("date").arg("+%Y").envs(clock.environment()).output().expect("date runs");
            String::from_utf8_lossy(&output.stdout).trim().parse::<u32>().expect("a year")
        };
        let before = year();
        clock.write_offset(Duration::from_secs(366 * 86_400));
        assert_eq!(year(), before + 1);
    }
}
