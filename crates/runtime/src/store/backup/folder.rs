//! The folder of a backup: written next to its destination and renamed when complete, and verified byte by byte before
//! use. This module knows files and checksums, and no server.

use std::fs;
use std::io::{BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use millrace_protocol::wire::check_format;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::{BackupError, BackupManifest, BackupPart, BackupProgress, OnBackupProgress};

const MANIFEST: &str = "manifest.json";
/// The checksum of the manifest.
const MANIFEST_SUM: &str = "manifest.json.sha256";
/// The mode of the folder: only its owner may enter. It contains everything that the runs of a cluster have read and
/// written.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// The size of one read.
const BUFFER_SIZE: usize = 256 * 1024;
/// The number of bytes between two progress reports.
const PROGRESS_INTERVAL: u64 = 64 * 1024 * 1024;

/// A folder that is being written. It is removed if it is dropped before [`UnfinishedBackupFolder::finish_with_manifest`].
pub struct UnfinishedBackupFolder {
    destination: PathBuf,
    temporary: PathBuf,
    is_finished: bool,
}

impl UnfinishedBackupFolder {
    /// Creates a folder that will be renamed to `destination`.
    /// Errors: the destination exists, or the folder can't be created next to it.
    pub fn new(destination: &Path) -> Result<Self, BackupError> {
        let destination =
            std::path::absolute(destination).map_err(|why| file_error("resolving", destination, why))?;
        check_destination_is_free(&destination)?;
        let name =
            destination.file_name().ok_or_else(|| BackupError::Exists { folder: destination.clone() })?;
        let parent = destination.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(parent).map_err(|why| file_error("creating", parent, why))?;
        // The process id is not unique: in containers it is often the same, and a killed process leaves its folder
        // behind.
        let name = format!(".{}.{}.unfinished", name.to_string_lossy(), uuid::Uuid::now_v7().simple());
        let temporary = parent.join(name);
        fs::DirBuilder::new()
            .mode(FOLDER_MODE)
            .create(&temporary)
            .map_err(|why| file_error("creating", &temporary, why))?;
        Ok(Self { destination, temporary, is_finished: false })
    }

    /// Creates a file in the folder.
    pub fn create_file(&self, name: &str) -> Result<ChecksummedFile, BackupError> {
        let path = self.temporary.join(name);
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(FILE_MODE);
        let inner = options.open(&path).map_err(|why| file_error("creating", &path, why))?;
        Ok(ChecksummedFile {
            path,
            inner: BufWriter::with_capacity(BUFFER_SIZE, inner),
            sum: Sha256::new(),
            bytes: 0,
        })
    }

    /// Writes the manifest, waits until everything is on disk, and renames the folder to its destination.
    /// Errors: a file can't be written, or the destination was created meanwhile.
    pub fn finish_with_manifest(mut self, manifest: &BackupManifest) -> Result<(), BackupError> {
        let mut text = serde_json::to_vec_pretty(manifest).expect("a manifest serialises to JSON");
        text.push(b'\n');
        let mut output = self.create_file(MANIFEST)?;
        output.write_bytes(&text)?;
        let (_, sum) = output.finish_with_checksum()?;
        let mut output = self.create_file(MANIFEST_SUM)?;
        output.write_bytes(format!("{sum}  {MANIFEST}\n").as_bytes())?;
        output.finish_with_checksum()?;
        sync_folder(&self.temporary)?;
        check_destination_is_free(&self.destination)?;
        fs::rename(&self.temporary, &self.destination)
            .map_err(|why| file_error("renaming to", &self.destination, why))?;
        self.is_finished = true;
        sync_folder(self.destination.parent().unwrap_or(Path::new("/")))
    }
}

impl Drop for UnfinishedBackupFolder {
    fn drop(&mut self) {
        if !self.is_finished
            && let Err(error) = fs::remove_dir_all(&self.temporary)
        {
            tracing::warn!(folder = %self.temporary.display(), %error, "removing an unfinished backup failed");
        }
    }
}

/// A file that is being written, with its checksum.
pub struct ChecksummedFile {
    path: PathBuf,
    inner: BufWriter<fs::File>,
    sum: Sha256,
    bytes: u64,
}

impl ChecksummedFile {
    /// Appends bytes to the file. Writes go to the page cache, so this hardly blocks.
    pub fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        self.inner.write_all(bytes).map_err(|why| file_error("writing", &self.path, why))?;
        self.sum.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Returns the number of bytes written.
    pub fn written_bytes(&self) -> u64 {
        self.bytes
    }

    /// Waits until the file is on disk. Returns its size and checksum.
    pub fn finish_with_checksum(self) -> Result<(u64, String), BackupError> {
        let Self { path, inner, sum, bytes } = self;
        let inner = inner.into_inner().map_err(|error| file_error("writing", &path, error.into_error()))?;
        inner.sync_all().map_err(|why| file_error("writing", &path, why))?;
        Ok((bytes, checksum_hexadecimal(sum)))
    }
}

/// Verifies every byte of a backup and returns its manifest.
/// Errors: the folder is not a backup or is from a newer program, a file is missing, damaged or truncated, or `stop` was
/// cancelled.
pub fn verify_backup(
    folder: &Path,
    stop: &CancellationToken,
    on_progress: OnBackupProgress<'_>,
) -> Result<BackupManifest, BackupError> {
    let manifest = read_manifest(folder)?;
    for part in &manifest.parts {
        verify_backup_part(folder, part, stop, on_progress)?;
    }
    Ok(manifest)
}

/// Reads and verifies the manifest.
fn read_manifest(folder: &Path) -> Result<BackupManifest, BackupError> {
    let not_a_backup = |why: String| BackupError::NotABackup { folder: folder.into(), why };
    let read = |name: &str| match fs::read(folder.join(name)) {
        Ok(bytes) => Ok(bytes),
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => {
            Err(not_a_backup(format!("it contains no {name}")))
        }
        Err(why) if why.kind() == std::io::ErrorKind::NotADirectory => {
            Err(not_a_backup("it is not a folder".into()))
        }
        Err(why) => Err(file_error("reading", &folder.join(name), why)),
    };
    let bytes = read(MANIFEST)?;
    let expected = read(MANIFEST_SUM)?;
    let actual = crate::store::blobs::sha256_hex(&bytes);
    if !expected.starts_with(actual.as_bytes()) {
        let why = "its checksum does not match".into();
        return Err(BackupError::Damaged { file: folder.join(MANIFEST), why });
    }
    let value: serde_json::Value = serde_json::from_slice(&bytes)
        .map_err(|error| not_a_backup(format!("{MANIFEST} is not JSON ({error})")))?;
    let format = value["format"].as_u64().and_then(|format| u16::try_from(format).ok());
    let format = format.ok_or_else(|| not_a_backup(format!("{MANIFEST} names no format")))?;
    check_format(format).map_err(|format| BackupError::OtherFormat { folder: folder.into(), format })?;
    let manifest: BackupManifest = serde_json::from_value(value)
        .map_err(|error| not_a_backup(format!("{MANIFEST} is invalid ({error})")))?;
    let is_plain = |part: &BackupPart| {
        let mut components = Path::new(&part.file).components();
        matches!((components.next(), components.next()), (Some(Component::Normal(_)), None))
    };
    match manifest.parts.iter().find(|part| !is_plain(part)) {
        Some(part) => Err(not_a_backup(format!(
            "{MANIFEST} contains {:?}, which is not a file name in this folder",
            part.file
        ))),
        None => Ok(manifest),
    }
}

/// Verifies one file of a backup.
fn verify_backup_part(
    folder: &Path,
    part: &BackupPart,
    stop: &CancellationToken,
    on_progress: OnBackupProgress<'_>,
) -> Result<(), BackupError> {
    let path = folder.join(&part.file);
    let damaged = |why: String| BackupError::Damaged { file: path.clone(), why };
    let mut opened = match fs::File::open(&path) {
        Ok(opened) => opened,
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => {
            return Err(damaged("it is missing".into()));
        }
        Err(why) => return Err(file_error("reading", &path, why)),
    };
    let (mut sum, mut bytes, mut buffer) = (Sha256::new(), 0_u64, vec![0; BUFFER_SIZE]);
    let mut next = PROGRESS_INTERVAL;
    loop {
        let count = opened.read(&mut buffer).map_err(|why| file_error("reading", &path, why))?;
        if count == 0 {
            break;
        }
        sum.update(&buffer[..count]);
        bytes += count as u64;
        if stop.is_cancelled() {
            return Err(BackupError::Stopped);
        }
        if bytes >= next {
            next += PROGRESS_INTERVAL;
            on_progress(BackupProgress { operation: "checking", what: &part.file, bytes, is_done: false });
        }
    }
    on_progress(BackupProgress { operation: "checking", what: &part.file, bytes, is_done: true });
    if bytes != part.bytes {
        return Err(damaged(format!("its size is {bytes} bytes, expected {}", part.bytes)));
    }
    let actual = checksum_hexadecimal(sum);
    if actual != part.sha256 {
        return Err(damaged(format!("its SHA-256 is {actual}, expected {}", part.sha256)));
    }
    Ok(())
}

/// Checks that a path does not exist or is an empty folder.
fn check_destination_is_free(path: &Path) -> Result<(), BackupError> {
    match fs::read_dir(path) {
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Ok(entries) => match entries.count() {
            0 => Ok(()),
            _ => Err(BackupError::Exists { folder: path.into() }),
        },
        Err(_) => Err(BackupError::Exists { folder: path.into() }),
    }
}

fn sync_folder(path: &Path) -> Result<(), BackupError> {
    fs::File::open(path).and_then(|folder| folder.sync_all()).map_err(|why| file_error("writing", path, why))
}

fn checksum_hexadecimal(sum: Sha256) -> String {
    sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Converts an error of the operating system.
pub fn file_error(what: &'static str, path: &Path, why: std::io::Error) -> BackupError {
    BackupError::File { what, path: path.into(), why }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use millrace_protocol::registry::ClusterSettings;
    use millrace_protocol::wire::FORMAT;

    use super::*;
    use crate::store::backup::BackupPartContent;

    fn test_manifest(parts: Vec<BackupPart>) -> BackupManifest {
        let settings = ClusterSettings {
            version: FORMAT,
            lanes: 1,
            replicas: 1,
            lane_lease_ms: 6_000,
            work_lease_ms: 15_000,
        };
        let version = "0.0.0".into();
        BackupManifest {
            format: FORMAT,
            version,
            taken: Timestamp::UNIX_EPOCH,
            settings,
            files_through: vec![0],
            parts,
        }
    }

    fn write_test_backup(place: &Path, file: &str) {
        let folder = UnfinishedBackupFolder::new(place).unwrap();
        let mut output = folder.create_file("runs.jsonl").unwrap();
        output.write_bytes(b"{}\n").unwrap();
        let (bytes, sha256) = output.finish_with_checksum().unwrap();
        let content = BackupPartContent::Bucket { name: "runs".into(), entries: 1 };
        folder
            .finish_with_manifest(&test_manifest(vec![BackupPart {
                file: file.into(),
                bytes,
                sha256,
                content,
            }]))
            .unwrap();
    }

    fn ignore_progress(_: BackupProgress<'_>) {}

    #[test]
    fn written_backup_can_be_verified() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join("deep/backup");
        write_test_backup(&place, "runs.jsonl");
        assert_eq!(
            verify_backup(&place, &CancellationToken::new(), &ignore_progress).unwrap().parts[0]
                .message_or_entry_count(),
            1
        );
        assert_eq!(fs::read_dir(place.parent().unwrap()).unwrap().count(), 1, "no temporary folder is left");
    }

    #[test]
    fn unfinished_folder_is_removed() {
        let home = tempfile::tempdir().unwrap();
        let folder = UnfinishedBackupFolder::new(&home.path().join("backup")).unwrap();
        folder.create_file("runs.jsonl").unwrap().write_bytes(b"{}").unwrap();
        assert!(!home.path().join("backup").exists());
        drop(folder);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    }

    #[test]
    fn existing_destination_is_rejected() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("file"), "").unwrap();
        for place in [home.path().to_owned(), home.path().join("file"), "/".into()] {
            assert!(
                matches!(UnfinishedBackupFolder::new(&place), Err(BackupError::Exists { .. })),
                "{place:?}"
            );
        }
    }

    #[test]
    fn every_change_to_a_backup_is_detected() {
        let home = tempfile::tempdir().unwrap();
        type BackupChange = (&'static str, fn(&Path), &'static str);
        let changes: [BackupChange; 9] = [
            ("flipped", |it| fs::write(it.join("runs.jsonl"), "[]\n").unwrap(), "its SHA-256 is"),
            (
                "short",
                |it| fs::write(it.join("runs.jsonl"), "{}").unwrap(),
                "its size is 2 bytes, expected 3",
            ),
            ("gone", |it| fs::remove_file(it.join("runs.jsonl")).unwrap(), "it is missing"),
            ("manifest", |it| fs::write(it.join(MANIFEST), "{}").unwrap(), "checksum does not match"),
            ("no-manifest", |it| fs::remove_file(it.join(MANIFEST)).unwrap(), "is not a backup"),
            ("no-sum", |it| fs::remove_file(it.join(MANIFEST_SUM)).unwrap(), "is not a backup"),
            (
                "newer",
                |it| write_manifest(it, serde_json::json!({ "format": 4 })),
                "was written by a newer release (format 4",
            ),
            (
                "older",
                |it| write_manifest(it, serde_json::json!({ "format": 1 })),
                "release 0.4.x can finish its runs",
            ),
            ("no-format", |it| write_manifest(it, serde_json::json!({})), "names no format"),
        ];
        for (name, change, expected) in changes {
            let place = home.path().join(name);
            write_test_backup(&place, "runs.jsonl");
            change(&place);
            let error =
                verify_backup(&place, &CancellationToken::new(), &ignore_progress).unwrap_err().to_string();
            assert!(error.contains(expected), "{name}: {error}");
        }
    }

    fn write_manifest(place: &Path, manifest: serde_json::Value) {
        let text = manifest.to_string();
        fs::write(place.join(MANIFEST_SUM), crate::store::blobs::sha256_hex(text.as_bytes())).unwrap();
        fs::write(place.join(MANIFEST), text).unwrap();
    }

    #[test]
    fn manifest_can_not_name_files_outside_its_folder() {
        let home = tempfile::tempdir().unwrap();
        for (name, file) in [("up", "../runs.jsonl"), ("root", "/etc/passwd"), ("self", "."), ("none", "")] {
            write_test_backup(&home.path().join(name), file);
            let error = verify_backup(&home.path().join(name), &CancellationToken::new(), &ignore_progress)
                .unwrap_err();
            assert!(matches!(error, BackupError::NotABackup { .. }), "{file}: {error}");
        }
    }

    #[test]
    fn backup_is_readable_by_its_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join("backup");
        write_test_backup(&place, "runs.jsonl");
        let others = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o077;
        assert_eq!(others(&place), 0, "the folder");
        for entry in fs::read_dir(&place).unwrap().flatten() {
            assert_eq!(others(&entry.path()), 0, "{}", entry.path().display());
        }
    }
}
