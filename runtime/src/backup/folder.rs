//! A backup's folder: written beside its place and moved there when it is whole, and checked byte by byte before it is
//! used. It knows files and checksums, and no server.

use std::fs;
use std::io::{BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::manifest::{FORMAT, Manifest, Part};
use super::{Error, Progress, Told};

/// What is there.
const MANIFEST: &str = "manifest.json";
/// The checksum of that.
const MANIFEST_SUM: &str = "manifest.json.sha256";
/// Who may enter the folder: whoever made it, and nobody else. It holds all that the runs of a cluster read and wrote.
const FOLDER_MODE: u32 = 0o700;
/// Who may read its files.
const FILE_MODE: u32 = 0o600;
/// How much is read at once.
const PIECE: usize = 256 * 1024;
/// After how many bytes progress is told again.
const TELL_EVERY: u64 = 64 * 1024 * 1024;

/// A folder that is being written. Dropped before it is [`Unfinished::finish`]ed, it is gone.
pub struct Unfinished {
    place: PathBuf,
    beside: PathBuf,
    is_finished: bool,
}

impl Unfinished {
    /// A folder that will be at `place`.
    ///
    /// # Errors
    /// There is something at that place, or the folder can't be made beside it.
    pub fn new(place: &Path) -> Result<Self, Error> {
        let place = std::path::absolute(place).map_err(|why| file("finding", place, why))?;
        check_free(&place)?;
        let name = place.file_name().ok_or_else(|| Error::Exists { folder: place.clone() })?;
        let parent = place.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(parent).map_err(|why| file("making", parent, why))?;
        // In a container every process has the same number, and one that was killed has left its folder there.
        let name = format!(".{}.{}.unfinished", name.to_string_lossy(), uuid::Uuid::now_v7().simple());
        let beside = parent.join(name);
        fs::DirBuilder::new()
            .mode(FOLDER_MODE)
            .create(&beside)
            .map_err(|why| file("making", &beside, why))?;
        Ok(Self { place, beside, is_finished: false })
    }

    /// Begins a file in it.
    ///
    /// # Errors
    /// The file can't be made.
    pub fn begin(&self, name: &str) -> Result<Output, Error> {
        let path = self.beside.join(name);
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(FILE_MODE);
        let inner = options.open(&path).map_err(|why| file("making", &path, why))?;
        Ok(Output { path, inner: BufWriter::with_capacity(PIECE, inner), sum: Sha256::new(), bytes: 0 })
    }

    /// Writes the manifest, waits until all is on disk, and moves the folder to its place.
    ///
    /// # Errors
    /// Something can't be written, or something came to be at that place.
    pub fn finish(mut self, manifest: &Manifest) -> Result<(), Error> {
        let mut text = serde_json::to_vec_pretty(manifest).expect("a manifest has a form in JSON");
        text.push(b'\n');
        let mut output = self.begin(MANIFEST)?;
        output.write(&text)?;
        let (_, sum) = output.finish()?;
        let mut output = self.begin(MANIFEST_SUM)?;
        output.write(format!("{sum}  {MANIFEST}\n").as_bytes())?;
        output.finish()?;
        sync_folder(&self.beside)?;
        check_free(&self.place)?;
        fs::rename(&self.beside, &self.place).map_err(|why| file("moving to", &self.place, why))?;
        self.is_finished = true;
        sync_folder(self.place.parent().unwrap_or(Path::new("/")))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_finished
            && let Err(error) = fs::remove_dir_all(&self.beside)
        {
            tracing::warn!(folder = %self.beside.display(), %error, "an unfinished backup could not be removed");
        }
    }
}

/// A file that is being written, with its checksum.
pub struct Output {
    path: PathBuf,
    inner: BufWriter<fs::File>,
    sum: Sha256,
    bytes: u64,
}

impl Output {
    /// Writes behind what is there. The operating system takes it into memory: there is nothing to wait for.
    ///
    /// # Errors
    /// The disk is full, or broken.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.inner.write_all(bytes).map_err(|why| file("writing", &self.path, why))?;
        self.sum.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// How many bytes were written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Waits until it is on disk. Gives its size and its checksum.
    ///
    /// # Errors
    /// The disk is full, or broken.
    pub fn finish(self) -> Result<(u64, String), Error> {
        let Self { path, inner, sum, bytes } = self;
        let inner = inner.into_inner().map_err(|error| file("writing", &path, error.into_error()))?;
        inner.sync_all().map_err(|why| file("writing", &path, why))?;
        Ok((bytes, hex(sum)))
    }
}

/// Checks every byte of a backup, and says what is in it.
///
/// # Errors
/// It is no backup, is of a newer program, or a file is missing, damaged or cut short; or `stop` was asked for.
pub fn verify(folder: &Path, stop: &CancellationToken, told: Told<'_>) -> Result<Manifest, Error> {
    let manifest = read(folder)?;
    for part in &manifest.parts {
        check(folder, part, stop, told)?;
    }
    Ok(manifest)
}

/// What is in a backup.
fn read(folder: &Path) -> Result<Manifest, Error> {
    let foreign = |why: String| Error::Foreign { folder: folder.into(), why };
    let read = |name: &str| match fs::read(folder.join(name)) {
        Ok(bytes) => Ok(bytes),
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => {
            Err(foreign(format!("there is no {name} in it")))
        }
        Err(why) if why.kind() == std::io::ErrorKind::NotADirectory => Err(foreign("it is no folder".into())),
        Err(why) => Err(file("reading", &folder.join(name), why)),
    };
    let bytes = read(MANIFEST)?;
    let wanted = read(MANIFEST_SUM)?;
    let found = crate::blobs::sha256(&bytes);
    if !wanted.starts_with(found.as_bytes()) {
        let why = "its content does not have the checksum that stands beside it".into();
        return Err(Error::Damaged { file: folder.join(MANIFEST), why });
    }
    let value: serde_json::Value = serde_json::from_slice(&bytes)
        .map_err(|error| foreign(format!("{MANIFEST} is no JSON ({error})")))?;
    let format = value["format"].as_u64().and_then(|format| u32::try_from(format).ok()).unwrap_or_default();
    if format > FORMAT {
        return Err(Error::Newer { folder: folder.into(), found: format, known: FORMAT });
    }
    let manifest: Manifest = serde_json::from_value(value)
        .map_err(|error| foreign(format!("{MANIFEST} can't be read ({error})")))?;
    let is_plain = |part: &Part| {
        let mut components = Path::new(&part.file).components();
        matches!((components.next(), components.next()), (Some(Component::Normal(_)), None))
    };
    match manifest.parts.iter().find(|part| !is_plain(part)) {
        Some(part) => {
            Err(foreign(format!("{MANIFEST} names {:?}, which is no file of this folder", part.file)))
        }
        None => Ok(manifest),
    }
}

/// Checks one file of a backup.
fn check(folder: &Path, part: &Part, stop: &CancellationToken, told: Told<'_>) -> Result<(), Error> {
    let path = folder.join(&part.file);
    let damaged = |why: String| Error::Damaged { file: path.clone(), why };
    let mut opened = match fs::File::open(&path) {
        Ok(opened) => opened,
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => {
            return Err(damaged("it is missing".into()));
        }
        Err(why) => return Err(file("reading", &path, why)),
    };
    let (mut sum, mut bytes, mut piece) = (Sha256::new(), 0_u64, vec![0; PIECE]);
    let mut next = TELL_EVERY;
    loop {
        let count = opened.read(&mut piece).map_err(|why| file("reading", &path, why))?;
        if count == 0 {
            break;
        }
        sum.update(&piece[..count]);
        bytes += count as u64;
        if stop.is_cancelled() {
            return Err(Error::Stopped);
        }
        if bytes >= next {
            next += TELL_EVERY;
            told(Progress { doing: "checking", what: &part.file, bytes, is_done: false });
        }
    }
    told(Progress { doing: "checking", what: &part.file, bytes, is_done: true });
    if bytes != part.bytes {
        return Err(damaged(format!("it has {bytes} bytes, and had {}", part.bytes)));
    }
    let found = hex(sum);
    if found != part.sha256 {
        return Err(damaged(format!("its SHA-256 is {found}, and was {}", part.sha256)));
    }
    Ok(())
}

/// Refuses a place where something is; an empty folder is nothing.
fn check_free(place: &Path) -> Result<(), Error> {
    match fs::read_dir(place) {
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Ok(entries) => match entries.count() {
            0 => Ok(()),
            _ => Err(Error::Exists { folder: place.into() }),
        },
        Err(_) => Err(Error::Exists { folder: place.into() }),
    }
}

fn sync_folder(path: &Path) -> Result<(), Error> {
    fs::File::open(path).and_then(|folder| folder.sync_all()).map_err(|why| file("writing", path, why))
}

fn hex(sum: Sha256) -> String {
    sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An error of the operating system with a file.
pub fn file(what: &'static str, path: &Path, why: std::io::Error) -> Error {
    Error::File { what, path: path.into(), why }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use millrace_protocol::registry::ClusterSettings;

    use super::*;
    use crate::backup::Content;

    fn manifest(parts: Vec<Part>) -> Manifest {
        let settings = ClusterSettings {
            version: 1,
            lanes: 1,
            replicas: 1,
            lane_lease_ms: 6_000,
            work_lease_ms: 15_000,
            unmarked_orders_through: Some(0),
        };
        let version = "0.0.0".into();
        Manifest {
            format: FORMAT,
            version,
            taken: Timestamp::UNIX_EPOCH,
            settings,
            files_through: vec![0],
            parts,
        }
    }

    fn written(place: &Path, file: &str) {
        let folder = Unfinished::new(place).unwrap();
        let mut output = folder.begin("runs.jsonl").unwrap();
        output.write(b"{}\n").unwrap();
        let (bytes, sha256) = output.finish().unwrap();
        let content = Content::Bucket { name: "runs".into(), entries: 1 };
        folder.finish(&manifest(vec![Part { file: file.into(), bytes, sha256, content }])).unwrap();
    }

    fn quiet(_: Progress<'_>) {}

    #[test]
    fn what_was_written_is_what_is_read() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join("deep/backup");
        written(&place, "runs.jsonl");
        assert_eq!(verify(&place, &CancellationToken::new(), &quiet).unwrap().parts[0].count(), 1);
        assert_eq!(fs::read_dir(place.parent().unwrap()).unwrap().count(), 1, "nothing else is left there");
    }

    #[test]
    fn a_folder_that_is_not_finished_is_gone_and_never_at_its_place() {
        let home = tempfile::tempdir().unwrap();
        let folder = Unfinished::new(&home.path().join("backup")).unwrap();
        folder.begin("runs.jsonl").unwrap().write(b"{}").unwrap();
        assert!(!home.path().join("backup").exists());
        drop(folder);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_place_where_something_is_is_refused() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("file"), "").unwrap();
        for place in [home.path().to_owned(), home.path().join("file"), "/".into()] {
            assert!(matches!(Unfinished::new(&place), Err(Error::Exists { .. })), "{place:?}");
        }
    }

    #[test]
    fn whatever_is_changed_in_a_backup_is_noticed() {
        let home = tempfile::tempdir().unwrap();
        type Change = (&'static str, fn(&Path), &'static str);
        let changes: [Change; 7] = [
            ("flipped", |it| fs::write(it.join("runs.jsonl"), "[]\n").unwrap(), "its SHA-256 is"),
            ("short", |it| fs::write(it.join("runs.jsonl"), "{}").unwrap(), "it has 2 bytes, and had 3"),
            ("gone", |it| fs::remove_file(it.join("runs.jsonl")).unwrap(), "it is missing"),
            ("manifest", |it| fs::write(it.join(MANIFEST), "{}").unwrap(), "does not have the checksum"),
            ("no-manifest", |it| fs::remove_file(it.join(MANIFEST)).unwrap(), "is no backup"),
            ("no-sum", |it| fs::remove_file(it.join(MANIFEST_SUM)).unwrap(), "is no backup"),
            ("newer", newer, "has format 2"),
        ];
        for (name, change, said) in changes {
            let place = home.path().join(name);
            written(&place, "runs.jsonl");
            change(&place);
            let error = verify(&place, &CancellationToken::new(), &quiet).unwrap_err().to_string();
            assert!(error.contains(said), "{name}: {error}");
        }
    }

    fn newer(place: &Path) {
        let text = serde_json::json!({ "format": 2 }).to_string();
        fs::write(place.join(MANIFEST_SUM), crate::blobs::sha256(text.as_bytes())).unwrap();
        fs::write(place.join(MANIFEST), text).unwrap();
    }

    #[test]
    fn a_manifest_names_no_file_outside_of_its_folder() {
        let home = tempfile::tempdir().unwrap();
        for (name, file) in [("up", "../runs.jsonl"), ("root", "/etc/passwd"), ("self", "."), ("none", "")] {
            written(&home.path().join(name), file);
            let error = verify(&home.path().join(name), &CancellationToken::new(), &quiet).unwrap_err();
            assert!(matches!(error, Error::Foreign { .. }), "{file}: {error}");
        }
    }

    #[test]
    fn a_backup_is_readable_to_whoever_took_it_and_to_nobody_else() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join("backup");
        written(&place, "runs.jsonl");
        let others = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o077;
        assert_eq!(others(&place), 0, "the folder");
        for entry in fs::read_dir(&place).unwrap().flatten() {
            assert_eq!(others(&entry.path()), 0, "{}", entry.path().display());
        }
    }
}
