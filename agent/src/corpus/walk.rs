//! Lists the files below a folder, to be handed in as documents. It owns the rules of what is taken along; their bytes
//! are read one by one by whoever wants them, since all together may be more than a machine holds, and what they hold is
//! not judged here.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{File, MAX_BYTES, SkipReason, Skipped};

/// Why a folder can't be listed.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// There is nothing at the path.
    #[error("there is no folder {0}; give one that holds the documents")]
    Missing(String),
    /// What is there is no folder.
    #[error("{0} is not a folder; give the folder that holds the documents")]
    NotAFolder(String),
    /// The system refused.
    #[error("the folder {path} can't be read: {source}")]
    Unreadable {
        /// The folder.
        path: String,
        /// What the system said.
        source: io::Error,
    },
}

/// A file that is there and can be opened, but was not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its path below the folder, with `/` between parts.
    pub path: String,
    /// Where it is.
    file: PathBuf,
}

impl Listed {
    /// Reads it.
    ///
    /// # Errors
    /// It can't be read any more, or has grown too large since.
    pub fn read(self) -> Result<File, Skipped> {
        let bytes = fs::read(&self.file).map_err(|error| unreadable(&error));
        match bytes {
            Ok(bytes) if bytes.len() as u64 > MAX_BYTES => {
                Err(Skipped { path: self.path, reason: SkipReason::TooLarge(bytes.len() as u64) })
            }
            Ok(bytes) => Ok(File { path: self.path, bytes }),
            Err(reason) => Err(Skipped { path: self.path, reason }),
        }
    }
}

/// The files below a folder, by path, and those that were passed over. Hidden files and folders are left out without
/// a word; a link is followed to a file inside the folder and never out of it or to a folder.
///
/// # Errors
/// The folder is missing, is no folder, or can't be read. A file or folder below it that can't be read is passed over.
pub fn walk(folder: &Path) -> Result<(Vec<Listed>, Vec<Skipped>), WalkError> {
    let shown = folder.display().to_string();
    let root = match fs::canonicalize(folder) {
        Ok(root) if root.is_dir() => root,
        Ok(_) => return Err(WalkError::NotAFolder(shown)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(WalkError::Missing(shown)),
        Err(source) => return Err(WalkError::Unreadable { path: shown, source }),
    };
    let mut walk = Walk { root, files: Vec::new(), skipped: Vec::new() };
    let root = walk.root.clone();
    walk.list(&root, "").map_err(|source| WalkError::Unreadable { path: shown, source })?;
    walk.files.sort_by(|a, b| a.path.cmp(&b.path));
    walk.skipped.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((walk.files, walk.skipped))
}

struct Walk {
    root: PathBuf,
    files: Vec<Listed>,
    skipped: Vec<Skipped>,
}

impl Walk {
    /// Takes what is in a folder, and in the folders below it.
    fn list(&mut self, folder: &Path, prefix: &str) -> io::Result<()> {
        let mut pending = vec![(folder.to_owned(), prefix.to_owned())];
        let mut is_root = true;
        while let Some((folder, prefix)) = pending.pop() {
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(error) if is_root => return Err(error),
                Err(error) => {
                    self.pass_over(prefix.trim_end_matches('/').to_owned(), unreadable(&error));
                    continue;
                }
            };
            is_root = false;
            for entry in entries {
                let Ok(entry) = entry else { continue };
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with('.') {
                    continue;
                }
                let path = format!("{prefix}{name}");
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => pending.push((entry.path(), format!("{path}/"))),
                    Ok(kind) => self.take(&entry.path(), path, kind.is_symlink()),
                    Err(error) => self.pass_over(path, unreadable(&error)),
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, file: &Path, path: String, is_link: bool) {
        match self.look(file, is_link) {
            Ok(file) => self.files.push(Listed { path, file }),
            Err(reason) => self.pass_over(path, reason),
        }
    }

    /// Where a file really is, if it can be taken along.
    fn look(&self, file: &Path, is_link: bool) -> Result<PathBuf, SkipReason> {
        let mut file = file.to_owned();
        if is_link {
            file = fs::canonicalize(&file).map_err(|error| unreadable(&error))?;
            if file.is_dir() || !file.starts_with(&self.root) {
                return Err(SkipReason::Link);
            }
        }
        let metadata = fs::metadata(&file).map_err(|error| unreadable(&error))?;
        if !metadata.is_file() {
            return Err(SkipReason::NotAFile);
        }
        if metadata.len() > MAX_BYTES {
            return Err(SkipReason::TooLarge(metadata.len()));
        }
        // That it can be opened is found out here, where it can still be told before anything is started.
        fs::File::open(&file).map_err(|error| unreadable(&error))?;
        Ok(file)
    }

    fn pass_over(&mut self, path: String, reason: SkipReason) {
        self.skipped.push(Skipped { path, reason });
    }
}

fn unreadable(error: &io::Error) -> SkipReason {
    SkipReason::Unreadable(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn files_come_by_path_without_hidden_ones_and_links_stay_inside() {
        let outside = tempfile::tempdir().unwrap();
        put(outside.path(), "secret.txt", "secret");
        let root = tempfile::tempdir().unwrap();
        for path in ["b.txt", "a/z.txt", "a/deep/x.md", ".hidden", ".git/config", "B.txt"] {
            put(root.path(), path, path);
        }
        let link =
            |target: &Path, name: &str| std::os::unix::fs::symlink(target, root.path().join(name)).unwrap();
        link(&root.path().join("b.txt"), "inside.txt");
        link(&outside.path().join("secret.txt"), "outside.txt");
        link(outside.path(), "folder");
        link(root.path(), "loop");
        link(Path::new("nowhere"), "broken.txt");

        let (files, skipped) = walk(root.path()).unwrap();
        let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["B.txt", "a/deep/x.md", "a/z.txt", "b.txt", "inside.txt"]);
        assert_eq!(files[4].clone().read().unwrap().bytes, b"b.txt");
        fs::remove_file(root.path().join("B.txt")).unwrap();
        assert_eq!(files[0].clone().read().unwrap_err().path, "B.txt");
        let told: Vec<(&str, bool)> =
            skipped.iter().map(|s| (s.path.as_str(), s.reason == SkipReason::Link)).collect();
        assert_eq!(told, [("broken.txt", false), ("folder", true), ("loop", true), ("outside.txt", true)]);
    }

    #[test]
    fn a_folder_that_is_missing_or_none_is_named() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), "file.txt", "x");
        let missing = walk(&root.path().join("no")).unwrap_err().to_string();
        assert!(
            missing.starts_with("there is no folder ")
                && missing.ends_with("give one that holds the documents")
        );
        assert!(matches!(walk(&root.path().join("file.txt")), Err(WalkError::NotAFolder(_))));
    }
}
