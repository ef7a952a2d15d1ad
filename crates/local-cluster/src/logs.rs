//! The log files of a cluster's processes in its data folder: which there are, their last lines, and following them. It
//! only reads.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::options::ChildRole;

/// The number of bytes that are read at once, from the end of a file backwards.
const CHUNK: u64 = 64 << 10;
/// The maximum length of a line; a longer one is split.
const MAX_LINE: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogFile {
    /// The process: `worker-1`, `nats-server`.
    pub process: String,
    pub role: ChildRole,
    /// The file.
    pub path: PathBuf,
}

/// Returns the log files in a data folder, by process; those of one role if `role` is given.
/// Errors: the folder with the logs can't be read; it is missing if no cluster has run there.
pub fn log_files(data: &Path, role: Option<ChildRole>) -> io::Result<Vec<LogFile>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(data.join("logs"))? {
        let path = entry?.path();
        let Some(process) =
            path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".log"))
        else {
            continue;
        };
        let Some(of) = role_of_process(process) else { continue };
        if role.is_none_or(|role| role == of) {
            files.push(LogFile { process: process.to_owned(), role: of, path });
        }
    }
    files.sort();
    Ok(files)
}

fn role_of_process(name: &str) -> Option<ChildRole> {
    let roles = [
        ChildRole::NatsServer,
        ChildRole::Supervisor,
        ChildRole::Worker,
        ChildRole::Critic,
        ChildRole::Gateway,
    ];
    roles.into_iter().find(|role| {
        let rest = name.strip_prefix(&role.to_string());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    })
}

impl LogFile {
    /// Returns the last lines of the log, the rotated part included, and the length up to which it was read.
    pub fn last_lines(&self, count: usize) -> io::Result<(Vec<String>, u64)> {
        let (mut lines, length) = last_lines_of(&self.path, count)?;
        if lines.len() < count {
            let rotated = self.path.with_extension("log.1");
            let (mut older, _) = match last_lines_of(&rotated, count - lines.len()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => (Vec::new(), 0),
                older => older?,
            };
            older.append(&mut lines);
            lines = older;
        }
        Ok((lines, length))
    }
}

/// Returns the last complete lines of a file, and the length of the file without an incomplete last line.
fn last_lines_of(path: &Path, count: usize) -> io::Result<(Vec<String>, u64)> {
    let mut file = File::open(path)?;
    let mut from = file.metadata()?.len();
    let mut bytes = Vec::new();
    // One line break more than lines: the one before the first line.
    while from > 0 && bytes.iter().filter(|byte| **byte == b'\n').count() <= count {
        let size = CHUNK.min(from);
        from -= size;
        file.seek(SeekFrom::Start(from))?;
        let mut chunk = Vec::new();
        file.by_ref().take(size).read_to_end(&mut chunk)?;
        chunk.append(&mut bytes);
        bytes = chunk;
    }
    let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let length = from + complete as u64;
    let text = String::from_utf8_lossy(&bytes[..complete]).into_owned();
    let all: Vec<&str> = text.lines().collect();
    let skipped = all.len().saturating_sub(count);
    Ok((all[skipped..].iter().map(|line| (*line).to_owned()).collect(), length))
}

/// Follows log files: returns the lines that are appended, also to files that are created later or after a rotation.
#[derive(Debug)]
pub struct LogFollower {
    data: PathBuf,
    role: Option<ChildRole>,
    /// The length up to which each file was read.
    read: BTreeMap<PathBuf, u64>,
}

impl LogFollower {
    /// A follower of the logs in a data folder that has read these files up to these lengths.
    #[must_use]
    pub fn new(data: &Path, role: Option<ChildRole>, read: BTreeMap<PathBuf, u64>) -> Self {
        Self { data: data.to_owned(), role, read }
    }

    /// Returns the lines that were completed since the last call, by process.
    pub fn new_lines(&mut self) -> io::Result<Vec<(LogFile, Vec<String>)>> {
        let mut new = Vec::new();
        for file in log_files(&self.data, self.role)? {
            let from = self.read.entry(file.path.clone()).or_default();
            let lines = match read_completed_lines(&file.path, from) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                lines => lines?,
            };
            if !lines.is_empty() {
                new.push((file, lines));
            }
        }
        Ok(new)
    }
}

/// The lines that are appended to one log file.
#[derive(Debug)]
pub struct AppendedLines {
    path: PathBuf,
    read: u64,
}

impl AppendedLines {
    /// The lines that are appended from now on.
    #[must_use]
    pub fn from_end(path: PathBuf) -> Self {
        let read = path.metadata().map_or(0, |metadata| metadata.len());
        Self { path, read }
    }

    /// Returns the lines that were completed since the last call. A file that can't be read has none.
    pub fn read_new_lines(&mut self) -> Vec<String> {
        read_completed_lines(&self.path, &mut self.read).unwrap_or_default()
    }
}

/// Returns the lines of a file that were completed after the position, and advances the position.
fn read_completed_lines(path: &Path, from: &mut u64) -> io::Result<Vec<String>> {
    let mut file = File::open(path)?;
    // A file that is shorter than before was rotated.
    if file.metadata()?.len() < *from {
        *from = 0;
    }
    file.seek(SeekFrom::Start(*from))?;
    let mut bytes = Vec::new();
    file.take(MAX_LINE as u64).read_to_end(&mut bytes)?;
    let is_full = bytes.len() == MAX_LINE;
    let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let complete = if complete == 0 && is_full { MAX_LINE } else { complete };
    *from += complete as u64;
    let text = String::from_utf8_lossy(&bytes[..complete]).into_owned();
    Ok(text.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("logs")).unwrap();
        folder
    }

    fn write(folder: &tempfile::TempDir, name: &str, text: &str) {
        fs::write(folder.path().join("logs").join(name), text).unwrap();
    }

    #[test]
    fn logs_are_found_by_role() {
        let folder = folder();
        for name in
            ["worker-1.log", "worker-2.log", "nats-server.log", "nats-server.log.1", "else.log", "worker.txt"]
        {
            write(&folder, name, "");
        }
        let names = |role| -> Vec<String> {
            log_files(folder.path(), role).unwrap().into_iter().map(|file| file.process).collect()
        };
        assert_eq!(names(None), ["nats-server", "worker-1", "worker-2"]);
        assert_eq!(names(Some(ChildRole::Worker)), ["worker-1", "worker-2"]);
        assert_eq!(names(Some(ChildRole::Critic)), Vec::<String>::new());
        assert!(log_files(&folder.path().join("absent"), None).is_err());
    }

    #[test]
    fn last_lines_reach_into_the_rotated_log() {
        let folder = folder();
        write(&folder, "worker-1.log.1", "a\nb\n");
        write(&folder, "worker-1.log", "c\nd\nincomple");
        let file = log_files(folder.path(), None).unwrap().remove(0);
        assert_eq!(file.last_lines(1).unwrap(), (vec!["d".to_owned()], 4));
        assert_eq!(file.last_lines(3).unwrap().0, ["b", "c", "d"]);
        assert_eq!(file.last_lines(9).unwrap().0, ["a", "b", "c", "d"]);
        let long: String = (0..50_000).map(|n| format!("line {n}\n")).collect();
        write(&folder, "worker-1.log", &long);
        let (lines, length) = file.last_lines(20_000).unwrap();
        assert_eq!((lines.len(), lines[0].as_str(), length), (20_000, "line 30000", long.len() as u64));
    }

    #[test]
    fn follower_returns_each_completed_line_once() {
        let folder = folder();
        write(&folder, "worker-1.log", "old\n");
        let path = folder.path().join("logs/worker-1.log");
        let mut follower = LogFollower::new(folder.path(), None, BTreeMap::from([(path.clone(), 4)]));
        let mut lines = || -> Vec<String> {
            follower.new_lines().unwrap().into_iter().flat_map(|(_, lines)| lines).collect()
        };
        assert_eq!(lines(), Vec::<String>::new());
        let append = |text: &str| {
            File::options().append(true).open(&path).unwrap().write_all(text.as_bytes()).unwrap()
        };
        append("one\ntw");
        assert_eq!(lines(), ["one"]);
        append("o\n");
        write(&folder, "critic-1.log", "new\n");
        assert_eq!(lines(), ["new", "two"]);
        write(&folder, "worker-1.log", "r\n");
        assert_eq!(lines(), ["r"], "a rotated file is read from its start");
    }
}
