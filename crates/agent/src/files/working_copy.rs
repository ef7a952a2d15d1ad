//! A copy of an agent's files in a local folder, for a program that works on them. It lays the files out, remembers their
//! versions, and finds what the program changed. It writes nothing back: see `turn::file_changes`.
//!
//! Only regular files are exchanged: links, devices, and names that begin with a dot stay in the folder.
//!
//! The settings for the files that a program gets and whose changes are kept. Parsing and matching only.
//!
//! # Invariants
//!
//! - I152: A program gets no file that its agent may not read, and changes none that it may not change; links and files beyond
//!   the limits stay in its folder, and the result names them.
//!   (`crates/agent/src/files/working_copy.rs::permissions_hold_for_programs`,
//!   `crates/agent/src/files/working_copy.rs::limits_and_settings_leave_files_out_with_the_reason`)

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use globset::{GlobSet, GlobSetBuilder};
use millrace_protocol::file::MAX_STREAMED_FILE;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::permissions::{
    CompiledPermissions, FileOperation, InvalidGlobPattern, PermissionDenied, parse_glob,
};

use super::{FileEntry, FilePath, Files, FilesError, FolderFiles, WriteCondition, is_below};

/// Folders that a program makes for itself. Names that begin with a dot are ignored as well.
const IGNORED: [&str; 2] = ["node_modules", "__pycache__"];

/// The files of an agent, and what it may do with them.
#[derive(Clone)]
pub struct AgentFiles {
    pub files: Arc<dyn Files>,
    pub permissions: CompiledPermissions,
}

impl AgentFiles {
    /// Files without restrictions.
    #[must_use]
    pub fn unrestricted(files: Arc<dyn Files>) -> Self {
        Self { files, permissions: CompiledPermissions::default() }
    }
}

/// A copy of an agent's files in a local folder.
pub struct WorkingCopy {
    agent: AgentFiles,
    settings: ProgramFiles,
    folder: FolderFiles,
    /// The files that were laid out, as they were then.
    base_files: BTreeMap<FilePath, BaseFile>,
    /// The local versions of files that were not kept, so that they are reported once.
    reported: BTreeMap<FilePath, u64>,
}

struct BaseFile {
    /// Its version where the agent's files are stored.
    version: u64,
    /// Its version in the folder.
    local: u64,
    sha256: String,
}

/// The changes that a program made, and the folder that has their contents.
#[derive(Debug)]
pub struct FileChanges {
    /// The changes, by path.
    pub changes: Vec<FileChange>,
    /// The changes that are not kept, each with its reason.
    pub exclusions: Vec<String>,
    pub folder: FolderFiles,
}

impl FileChanges {
    /// `true` if there is nothing to write and nothing to report.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.exclusions.is_empty()
    }
}

/// A file that a program changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    pub path: FilePath,
    /// The version that the program got; `None` if the program made the file.
    pub base: Option<u64>,
    /// Its new content; `None` if the program removed it.
    pub content: Option<FileDigest>,
}

/// The size of a content, and its SHA-256 in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileDigest {
    /// The number of bytes.
    pub size: u64,
    /// The digest.
    pub sha256: String,
}

impl WorkingCopy {
    /// An empty copy in an existing folder.
    pub fn open(agent: AgentFiles, settings: ProgramFiles, folder: &Path) -> std::io::Result<Self> {
        let folder = FolderFiles::open(folder)?.with_programs();
        Ok(Self { agent, settings, folder, base_files: BTreeMap::new(), reported: BTreeMap::new() })
    }

    /// Brings the folder up to date: writes the files that are new or have changed, and removes those that are gone.
    /// Returns the files that the program does not get, each with the reason.
    pub async fn update_folder(&mut self) -> Result<Vec<String>, FilesError> {
        let (wanted, mut omissions) = self.choose_files().await?;
        let paths: BTreeSet<&FilePath> = wanted.iter().map(|entry| &entry.path).collect();
        let gone: Vec<FilePath> =
            self.base_files.keys().filter(|path| !paths.contains(path)).cloned().collect();
        for path in gone {
            self.base_files.remove(&path);
            // A link in its place stays: it leads nowhere for these files.
            let _ = self.folder.delete(&path, WriteCondition::Always, "").await;
        }
        let local = self.list_local_versions().await?;
        for entry in &wanted {
            let is_current = self.base_files.get(&entry.path).is_some_and(|file| {
                file.version == entry.version && local.get(&entry.path) == Some(&file.local)
            });
            if !is_current && let Some(reason) = self.copy_file(&entry.path).await? {
                omissions.push(reason);
            }
        }
        Ok(omissions)
    }

    /// Returns the files that were laid out.
    pub fn paths(&self) -> impl Iterator<Item = &FilePath> {
        self.base_files.keys()
    }

    /// Chooses the files that fit the limits, in the order of their paths.
    async fn choose_files(&self) -> Result<(Vec<FileEntry>, Vec<String>), FilesError> {
        let (mut wanted, mut too_many, mut bytes) = (Vec::new(), 0_usize, 0_u64);
        for entry in self.agent.files.list("/").await? {
            let may_read = self.agent.permissions.check_permission(FileOperation::Read, &entry.path).is_ok();
            if !may_read || !self.settings.includes_input(&entry.path) {
                continue;
            }
            let is_full = wanted.len() >= self.settings.max_files.0 as usize;
            if is_full || bytes.saturating_add(entry.size) > self.settings.max_bytes() {
                too_many += 1;
                continue;
            }
            bytes += entry.size;
            wanted.push(entry);
        }
        let omissions = (too_many > 0)
            .then(|| format!("{too_many} more files: the limits are {}", self.describe_limits()));
        Ok((wanted, omissions.into_iter().collect()))
    }

    fn describe_limits(&self) -> String {
        format!("{} files and {} MiB together", self.settings.max_files.0, self.settings.max_mb.0)
    }

    /// Writes one file into the folder. Returns the reason if the folder can't hold it.
    async fn copy_file(&mut self, path: &FilePath) -> Result<Option<String>, FilesError> {
        // Deleted since it was listed.
        let Some(mut opened) = self.agent.files.open(path).await? else { return Ok(None) };
        match self.folder.write_content(path, opened.content.as_mut(), WriteCondition::Always).await {
            Ok((local, FileDigest { sha256, .. })) => {
                let version = opened.entry.version;
                self.base_files.insert(path.clone(), BaseFile { version, local, sha256 });
                Ok(None)
            }
            Err(error @ FilesError::Unavailable(_)) => Err(error),
            Err(error) => {
                self.base_files.remove(path);
                Ok(Some(error.to_string()))
            }
        }
    }

    /// Finds what the program changed since the files were laid out. `is_approved`: a person has approved the run of the
    /// program, and with it changes that need an approval.
    pub async fn find_changes(&mut self, is_approved: bool) -> Result<FileChanges, FilesError> {
        let mut found =
            FileChanges { changes: Vec::new(), exclusions: Vec::new(), folder: self.folder.clone() };
        let entries = self.list_local_files().await?;
        let present: BTreeSet<FilePath> = entries.iter().map(|entry| entry.path.clone()).collect();
        let mut bytes = 0_u64;
        for entry in entries {
            if let Some(change) = self.find_change(&entry, is_approved, &mut found.exclusions).await? {
                bytes = bytes.saturating_add(entry.size);
                self.add_change(change, (bytes, entry.version), &mut found);
            }
        }
        let removed: Vec<(FilePath, u64)> = self
            .base_files
            .iter()
            .filter(|(path, _)| !present.contains(*path))
            .map(|(path, file)| (path.clone(), file.version))
            .collect();
        for (path, version) in removed {
            let reason = match self.folder.open_file(&path).await {
                Ok(_) => self.reason_to_leave_out(&path, is_approved),
                Err(error) => Some(error.to_string()),
            };
            match reason {
                Some(reason) => found.exclusions.push(reason),
                None => found.changes.push(FileChange { path, base: Some(version), content: None }),
            }
        }
        found.changes.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(found)
    }

    /// Adds a change as far as the limits allow.
    fn add_change(&mut self, change: FileChange, (bytes, local): (u64, u64), found: &mut FileChanges) {
        let is_full = found.changes.len() >= self.settings.max_files.0 as usize;
        if is_full || bytes > self.settings.max_bytes() {
            let path = &change.path;
            found.exclusions.push(format!("{path}: the limits are {}", self.describe_limits()));
            self.reported.insert(change.path, local);
        } else {
            found.changes.push(change);
        }
    }

    /// Returns the change of a file in the folder; `None` if there is none, or it is left out.
    async fn find_change(
        &mut self,
        entry: &FileEntry,
        is_approved: bool,
        exclusions: &mut Vec<String>,
    ) -> Result<Option<FileChange>, FilesError> {
        let path = &entry.path;
        let base = self.base_files.get(path);
        let is_known = base.is_some_and(|file| file.local == entry.version)
            || self.reported.get(path) == Some(&entry.version);
        if is_known {
            return Ok(None);
        }
        let reason = match entry.size > MAX_STREAMED_FILE {
            true => Some(format!("{path} has {} bytes; the maximum is {MAX_STREAMED_FILE}", entry.size)),
            false => self.reason_to_leave_out(path, is_approved),
        };
        if let Some(reason) = reason {
            exclusions.push(reason);
            self.reported.insert(path.clone(), entry.version);
            return Ok(None);
        }
        let Some(digest) = self.folder.digest_file(path).await? else { return Ok(None) };
        if base.is_some_and(|file| file.sha256 == digest.sha256) {
            return Ok(None);
        }
        let base = base.map(|file| file.version);
        Ok(Some(FileChange { path: path.clone(), base, content: Some(digest) }))
    }

    /// Returns the reason for which a change of this file is not kept.
    fn reason_to_leave_out(&self, path: &FilePath, is_approved: bool) -> Option<String> {
        if !self.settings.includes_output(path) {
            return Some(format!("{path} matches no pattern of the files whose changes are saved"));
        }
        match self.agent.permissions.check_permission(FileOperation::Write, path) {
            Ok(()) => None,
            Err(PermissionDenied::NeedsApproval { .. }) if is_approved => None,
            Err(denied) => Some(denied.to_string()),
        }
    }

    async fn list_local_files(&self) -> Result<Vec<FileEntry>, FilesError> {
        let exchanged: Vec<FilePath> = self.base_files.keys().cloned().collect();
        let is_skipped = move |path: &FilePath| {
            is_ignored(path) && !exchanged.iter().any(|file| file == path || is_below(file, path.as_str()))
        };
        self.folder.list_except(is_skipped).await
    }

    async fn list_local_versions(&self) -> Result<BTreeMap<FilePath, u64>, FilesError> {
        let entries = self.list_local_files().await?;
        Ok(entries.into_iter().map(|entry| (entry.path, entry.version)).collect())
    }
}

fn is_ignored(path: &FilePath) -> bool {
    let name = path.parts().last().unwrap_or_default();
    name.starts_with('.') || IGNORED.contains(&name)
}

/// The SHA-256 of bytes in hexadecimal.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The files that a program gets in its working folder, and those whose changes are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProgramFiles {
    /// Patterns of the files that it gets, such as `/data/**`. By default all that may be read.
    #[serde(rename = "in", skip_serializing_if = "Option::is_none")]
    pub input: Option<PathPatterns>,
    /// Patterns of the files whose changes are kept, such as `/reports/**`. By default all that may be changed.
    #[serde(rename = "out", skip_serializing_if = "Option::is_none")]
    pub output: Option<PathPatterns>,
    /// The maximum number of files that it gets, and of files that one run of it changes.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_files: MaxFiles,
    /// The maximum size of these files together, in MiB.
    #[schemars(range(min = 1, max = 4_096))]
    pub max_mb: MaxMegabytes,
}

impl Default for ProgramFiles {
    fn default() -> Self {
        Self { input: None, output: None, max_files: MaxFiles(2_000), max_mb: MaxMegabytes(256) }
    }
}

impl ProgramFiles {
    /// `true` if the program gets this file.
    pub fn includes_input(&self, path: &FilePath) -> bool {
        self.input.as_ref().is_none_or(|patterns| patterns.matches(path))
    }

    /// `true` if changes of this file are kept.
    pub fn includes_output(&self, path: &FilePath) -> bool {
        self.output.as_ref().is_none_or(|patterns| patterns.matches(path))
    }

    /// The maximum size of the files together, in bytes.
    pub fn max_bytes(&self) -> u64 {
        u64::from(self.max_mb.0) * 1024 * 1024
    }
}

/// A number of files from 1 to 10,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "u32")]
pub struct MaxFiles(pub u32);

impl TryFrom<u32> for MaxFiles {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        match number {
            1..=10_000 => Ok(Self(number)),
            _ => Err(format!("it must be a whole number from 1 to 10000, not {number}")),
        }
    }
}

/// A size from 1 to 4,096 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "u32")]
pub struct MaxMegabytes(pub u32);

impl TryFrom<u32> for MaxMegabytes {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        match number {
            1..=4_096 => Ok(Self(number)),
            _ => Err(format!("it must be a whole number from 1 to 4096, not {number}")),
        }
    }
}

/// Patterns for whole paths. A pattern also matches everything below a folder that it matches.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
#[schemars(with = "Vec<String>")]
pub struct PathPatterns {
    texts: Vec<String>,
    patterns: GlobSet,
}

impl PathPatterns {
    /// `true` if a pattern matches the path.
    pub fn matches(&self, path: &FilePath) -> bool {
        self.patterns.is_match(path.as_str())
    }
}

impl PartialEq for PathPatterns {
    fn eq(&self, other: &Self) -> bool {
        self.texts == other.texts
    }
}

impl Eq for PathPatterns {}

impl TryFrom<Vec<String>> for PathPatterns {
    type Error = InvalidGlobPattern;

    fn try_from(texts: Vec<String>) -> Result<Self, InvalidGlobPattern> {
        let mut patterns = GlobSetBuilder::new();
        for text in &texts {
            let text = text.trim_end_matches('/');
            patterns.add(parse_glob(text)?);
            patterns.add(parse_glob(&format!("{text}/**"))?);
        }
        let invalid = |error: globset::Error| InvalidGlobPattern {
            pattern: texts.join(", ").chars().take(200).collect(),
            reason: error.to_string(),
        };
        let patterns = patterns.build().map_err(invalid)?;
        Ok(Self { texts, patterns })
    }
}

impl From<PathPatterns> for Vec<String> {
    fn from(patterns: PathPatterns) -> Self {
        patterns.texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place {
        stored: tempfile::TempDir,
        local: tempfile::TempDir,
        files: Arc<dyn Files>,
    }

    impl Place {
        fn new() -> Self {
            let (stored, local) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let files = Arc::new(FolderFiles::open(stored.path()).unwrap());
            Self { stored, local, files }
        }

        fn copy(&self, settings: &str) -> WorkingCopy {
            let settings = serde_json::from_str(settings).unwrap();
            let agent = AgentFiles::unrestricted(self.files.clone());
            WorkingCopy::open(agent, settings, self.local.path()).unwrap()
        }

        fn store(&self, path: &str, text: &str) {
            write(&self.stored, path, text);
        }
    }

    fn write(folder: &tempfile::TempDir, path: &str, text: &str) {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn describe(found: &FileChanges) -> Vec<String> {
        let describe = |change: &FileChange| {
            let kind = match (&change.base, &change.content) {
                (None, _) => "new",
                (Some(_), Some(_)) => "changed",
                (Some(_), None) => "removed",
            };
            format!("{kind} {}", change.path)
        };
        found.changes.iter().map(describe).collect()
    }

    #[tokio::test]
    async fn changes_of_a_program_are_found() {
        let place = Place::new();
        for path in ["same.txt", "touched.txt", "edited.txt", "gone.txt", ".hidden/kept.txt"] {
            place.store(path, path);
        }
        let mut copy = place.copy("{}");
        assert_eq!(copy.update_folder().await.unwrap(), Vec::<String>::new());
        assert_eq!(std::fs::read(place.local.path().join("same.txt")).unwrap(), b"same.txt");
        assert!(copy.find_changes(false).await.unwrap().changes.is_empty(), "nothing has changed yet");
        write(&place.local, "touched.txt", "touched.txt");
        write(&place.local, "edited.txt", "other");
        write(&place.local, "made/new.txt", "new");
        write(&place.local, ".cache/x", "not exchanged");
        write(&place.local, "node_modules/a/x", "not exchanged");
        write(&place.local, ".hidden/kept.txt", "a file of the agent");
        std::fs::remove_file(place.local.path().join("gone.txt")).unwrap();
        let found = copy.find_changes(false).await.unwrap();
        let expected =
            ["changed /.hidden/kept.txt", "changed /edited.txt", "removed /gone.txt", "new /made/new.txt"];
        assert_eq!((describe(&found), found.exclusions), (expected.map(str::to_owned).to_vec(), Vec::new()));
    }

    #[tokio::test]
    async fn scripts_with_an_interpreter_can_be_run() {
        use std::os::unix::fs::PermissionsExt;

        let place = Place::new();
        place.store("run.sh", "#!/bin/sh\n");
        place.store("data.txt", "# data");
        place.copy("{}").update_folder().await.unwrap();
        let mode =
            |name: &str| std::fs::metadata(place.local.path().join(name)).unwrap().permissions().mode();
        assert_eq!((mode("run.sh") & 0o111, mode("data.txt") & 0o111), (0o111, 0));
    }

    #[tokio::test]
    async fn the_folder_follows_the_files() {
        let place = Place::new();
        place.store("a.txt", "one");
        place.store("b.txt", "b");
        let mut copy = place.copy("{}");
        copy.update_folder().await.unwrap();
        write(&place.local, "a.txt", "a change that was not kept");
        place.store("c.txt", "c");
        std::fs::remove_file(place.stored.path().join("b.txt")).unwrap();
        copy.update_folder().await.unwrap();
        let local = |name: &str| std::fs::read_to_string(place.local.path().join(name)).ok();
        assert_eq!(
            (local("a.txt").as_deref(), local("b.txt"), local("c.txt").as_deref()),
            (Some("one"), None, Some("c"))
        );
        assert!(copy.find_changes(false).await.unwrap().changes.is_empty());
    }

    #[tokio::test]
    async fn limits_and_settings_leave_files_out_with_the_reason() {
        let place = Place::new();
        for path in ["data/a", "data/b", "other"] {
            place.store(path, path);
        }
        let mut copy = place.copy(r#"{"in": ["/data"], "out": ["/out"], "max_files": 1}"#);
        assert_eq!(
            copy.update_folder().await.unwrap(),
            ["1 more files: the limits are 1 files and 256 MiB together"]
        );
        assert!(place.local.path().join("data/a").exists() && !place.local.path().join("other").exists());
        for path in ["data/a", "out/1", "out/2"] {
            write(&place.local, path, "made");
        }
        std::os::unix::fs::symlink("/etc/passwd", place.local.path().join("out/link")).unwrap();
        let found = copy.find_changes(false).await.unwrap();
        assert_eq!(describe(&found), ["new /out/1"]);
        assert_eq!(
            found.exclusions,
            [
                "/data/a matches no pattern of the files whose changes are saved",
                "/out/2: the limits are 1 files and 256 MiB together"
            ]
        );
        let again = copy.find_changes(false).await.unwrap();
        assert!(again.exclusions.is_empty(), "each is reported once: {:?}", again.exclusions);
    }

    #[tokio::test]
    async fn permissions_hold_for_programs() {
        let place = Place::new();
        place.store("secret.txt", "secret");
        place.store("fixed.txt", "fixed");
        let rules = r#"[{"paths": ["/secret.txt"], "mode": "deny"},
                        {"operations": ["write"], "paths": ["/fixed.txt"], "mode": "deny"},
                        {"operations": ["write"], "paths": ["/ask.txt"], "mode": "ask"}]"#;
        let permissions = CompiledPermissions::compile(&serde_json::from_str(rules).unwrap()).unwrap();
        let agent = AgentFiles { permissions, ..AgentFiles::unrestricted(place.files.clone()) };
        let mut copy = WorkingCopy::open(agent, ProgramFiles::default(), place.local.path()).unwrap();
        copy.update_folder().await.unwrap();
        assert!(!place.local.path().join("secret.txt").exists());
        write(&place.local, "fixed.txt", "changed");
        write(&place.local, "ask.txt", "made");
        let found = copy.find_changes(false).await.unwrap();
        assert!(found.changes.is_empty(), "{:?}", found.changes);
        assert_eq!(found.exclusions.len(), 2, "{:?}", found.exclusions);
        write(&place.local, "ask.txt", "made again");
        assert_eq!(describe(&copy.find_changes(true).await.unwrap()), ["new /ask.txt"]);
    }

    #[test]
    fn patterns_choose_files_and_mistakes_are_named() {
        let parse = |json: &str| serde_json::from_str::<ProgramFiles>(json);
        let settings = parse(r#"{"in": ["/data", "/*.py"], "out": []}"#).unwrap();
        let path = |text: &str| FilePath::new(text).unwrap();
        for (text, is_included) in
            [("/data/a/b.csv", true), ("/x.py", true), ("/lib/x.py", false), ("/database", false)]
        {
            assert_eq!(settings.includes_input(&path(text)), is_included, "{text}");
            assert!(!settings.includes_output(&path(text)));
        }
        assert!(ProgramFiles::default().includes_output(&path("/any")));
        for (json, expected) in [
            (r#"{"in": ["data"]}"#, "it must begin with '/'"),
            (r#"{"max_files": 0}"#, "from 1 to 10000, not 0"),
            (r#"{"max_mb": 5000}"#, "from 1 to 4096, not 5000"),
            (r#"{"inn": []}"#, "unknown field `inn`"),
        ] {
            let mistake = parse(json).unwrap_err().to_string();
            assert!(mistake.contains(expected), "{mistake}");
        }
    }
}
