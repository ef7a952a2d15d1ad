//! Lists the files below a folder that become documents. It owns the rules for including files; the caller reads them one
//! by one, since all together may not fit into memory, and their content is not checked here.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::reading;
use super::{InputFile, MAX_BYTES, SkipReason, SkippedFile};

/// The reason that a folder can't be listed.
#[derive(Debug, thiserror::Error)]
pub enum FolderWalkError {
    /// The path does not exist.
    #[error("there is no folder {0}; name the folder with the documents")]
    Missing(String),
    /// The path is not a folder.
    #[error("{0} is not a folder; name the folder with the documents")]
    NotAFolder(String),
    /// The operating system denied access.
    #[error("cannot read the folder {path}: {source}")]
    Unreadable {
        /// The folder.
        path: String,
        /// The operating system's error.
        source: io::Error,
    },
}

/// A file that can be opened but has not been read yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedFile {
    /// Its path below the folder, with `/` between parts.
    pub path: String,
    content: FileContent,
}

/// The place of a file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FileContent {
    /// A file, by its absolute path.
    Path(PathBuf),
    /// Memory.
    Bytes(Arc<Vec<u8>>),
}

impl ListedFile {
    /// Checks that it is readable as a document. Its text is extracted for that.
    pub fn check_readable(&self) -> Result<(), SkippedFile> {
        let skip = |reason| SkippedFile { path: self.path.clone(), reason };
        reading::check_file_content(&self.clone().read_file()?).map_err(skip)
    }

    /// Reads it.
    ///
    /// # Errors
    /// It can no longer be read, or has become too large.
    pub fn read_file(self) -> Result<InputFile, SkippedFile> {
        let bytes = match &self.content {
            FileContent::Path(file) => fs::read(file).map_err(|error| to_skip_reason(&error)),
            FileContent::Bytes(bytes) => Ok(bytes.to_vec()),
        };
        match bytes {
            Ok(bytes) if bytes.len() as u64 > MAX_BYTES => {
                Err(SkippedFile { path: self.path, reason: SkipReason::TooLarge(bytes.len() as u64) })
            }
            Ok(bytes) => Ok(InputFile { path: self.path, bytes }),
            Err(reason) => Err(SkippedFile { path: self.path, reason }),
        }
    }
}

impl ListedFile {
    /// Returns a document whose content is in memory.
    #[must_use]
    pub fn from_bytes(path: String, bytes: Vec<u8>) -> Self {
        Self { path, content: FileContent::Bytes(Arc::new(bytes)) }
    }

    /// Returns a single file, under its name. A link is followed, since the caller names it.
    pub fn open_single_file(file: &Path) -> Result<Self, SkippedFile> {
        let path = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
        let opened = fs::canonicalize(file).map_err(|error| to_skip_reason(&error)).and_then(check_file);
        match opened {
            Ok(file) => Ok(Self { path, content: FileContent::Path(file) }),
            Err(reason) => Err(SkippedFile { path, reason }),
        }
    }
}

/// Lists the files below a folder, by path, and the skipped ones: hidden files and folders among them; a link is followed
/// to a file inside the folder, never out of it or to a folder.
///
/// # Errors
/// The folder is missing, not a folder, or unreadable. An unreadable file or folder below it is skipped.
pub fn list_folder_files(folder: &Path) -> Result<(Vec<ListedFile>, Vec<SkippedFile>), FolderWalkError> {
    let shown = folder.display().to_string();
    let root = match fs::canonicalize(folder) {
        Ok(root) if root.is_dir() => root,
        Ok(_) => return Err(FolderWalkError::NotAFolder(shown)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(FolderWalkError::Missing(shown)),
        Err(source) => return Err(FolderWalkError::Unreadable { path: shown, source }),
    };
    let mut walk = FolderWalk { root, files: Vec::new(), skipped: Vec::new() };
    let root = walk.root.clone();
    walk.list_files(&root, "").map_err(|source| FolderWalkError::Unreadable { path: shown, source })?;
    walk.files.sort_by(|a, b| a.path.cmp(&b.path));
    walk.skipped.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((walk.files, walk.skipped))
}

struct FolderWalk {
    root: PathBuf,
    files: Vec<ListedFile>,
    skipped: Vec<SkippedFile>,
}

impl FolderWalk {
    /// Adds the files of a folder and of the folders below it.
    fn list_files(&mut self, folder: &Path, prefix: &str) -> io::Result<()> {
        let mut pending = vec![(folder.to_owned(), prefix.to_owned())];
        let mut is_root = true;
        while let Some((folder, prefix)) = pending.pop() {
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(error) if is_root => return Err(error),
                Err(error) => {
                    self.skip_file(prefix.trim_end_matches('/').to_owned(), to_skip_reason(&error));
                    continue;
                }
            };
            is_root = false;
            for entry in entries {
                let Ok(entry) = entry else { continue };
                let name = entry.file_name().to_string_lossy().into_owned();
                let path = format!("{prefix}{name}");
                if name.starts_with('.') {
                    self.skip_file(path, SkipReason::Hidden);
                    continue;
                }
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => pending.push((entry.path(), format!("{path}/"))),
                    Ok(kind) => self.add_file(&entry.path(), path, kind.is_symlink()),
                    Err(error) => self.skip_file(path, to_skip_reason(&error)),
                }
            }
        }
        Ok(())
    }

    fn add_file(&mut self, file: &Path, path: String, is_link: bool) {
        match self.resolve_link(file, is_link) {
            Ok(file) => self.files.push(ListedFile { path, content: FileContent::Path(file) }),
            Err(reason) => self.skip_file(path, reason),
        }
    }

    /// Resolves a link and checks that the file can be included.
    fn resolve_link(&self, file: &Path, is_link: bool) -> Result<PathBuf, SkipReason> {
        let mut file = file.to_owned();
        if is_link {
            file = fs::canonicalize(&file).map_err(|error| to_skip_reason(&error))?;
            if file.is_dir() || !file.starts_with(&self.root) {
                return Err(SkipReason::Link);
            }
        }
        check_file(file)
    }

    fn skip_file(&mut self, path: String, reason: SkipReason) {
        self.skipped.push(SkippedFile { path, reason });
    }
}

/// Checks that a file can be opened and is small enough.
fn check_file(file: PathBuf) -> Result<PathBuf, SkipReason> {
    let metadata = fs::metadata(&file).map_err(|error| to_skip_reason(&error))?;
    if !metadata.is_file() {
        return Err(SkipReason::NotAFile);
    }
    if metadata.len() > MAX_BYTES {
        return Err(SkipReason::TooLarge(metadata.len()));
    }
    // Opening it here reports an unreadable file before anything has started.
    fs::File::open(&file).map_err(|error| to_skip_reason(&error))?;
    Ok(file)
}

fn to_skip_reason(error: &io::Error) -> SkipReason {
    SkipReason::Unreadable(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_file(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn files_are_sorted_hidden_ones_are_named_and_links_stay_inside() {
        let outside = tempfile::tempdir().unwrap();
        write_file(outside.path(), "secret.txt", "secret");
        let root = tempfile::tempdir().unwrap();
        for path in ["b.txt", "a/z.txt", "a/deep/x.md", ".hidden", ".git/config", "B.txt"] {
            write_file(root.path(), path, path);
        }
        let link =
            |target: &Path, name: &str| std::os::unix::fs::symlink(target, root.path().join(name)).unwrap();
        link(&root.path().join("b.txt"), "inside.txt");
        link(&outside.path().join("secret.txt"), "outside.txt");
        link(outside.path(), "folder");
        link(root.path(), "loop");
        link(Path::new("nowhere"), "broken.txt");

        let (files, skipped) = list_folder_files(root.path()).unwrap();
        let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["B.txt", "a/deep/x.md", "a/z.txt", "b.txt", "inside.txt"]);
        assert_eq!(files[4].clone().read_file().unwrap().bytes, b"b.txt");
        fs::remove_file(root.path().join("B.txt")).unwrap();
        assert_eq!(files[0].clone().read_file().unwrap_err().path, "B.txt");
        let reported: Vec<(&str, bool)> =
            skipped.iter().map(|s| (s.path.as_str(), s.reason == SkipReason::Link)).collect();
        assert_eq!(
            reported,
            [
                (".git", false),
                (".hidden", false),
                ("broken.txt", false),
                ("folder", true),
                ("loop", true),
                ("outside.txt", true)
            ]
        );
    }

    #[test]
    fn a_missing_folder_or_a_file_is_reported() {
        let root = tempfile::tempdir().unwrap();
        write_file(root.path(), "file.txt", "x");
        let missing = list_folder_files(&root.path().join("no")).unwrap_err().to_string();
        assert!(
            missing.starts_with("there is no folder ")
                && missing.ends_with("name the folder with the documents")
        );
        assert!(matches!(
            list_folder_files(&root.path().join("file.txt")),
            Err(FolderWalkError::NotAFolder(_))
        ));
    }
}
