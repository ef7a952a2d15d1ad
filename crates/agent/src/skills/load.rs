//! Loads skills from folders of this machine, when a worker starts. A skill is loaded whole or skipped with a warning. Links are not
//! followed.
//!
//! A skill as one value: its files in the order of their paths, encoded so that equal folders have equal bytes. The SHA-256 of the bytes
//! names the skill's content on every worker.
//!
//! # Invariants
//!
//! - I128: No file from outside of a skill's folder becomes a part of it, and no agent or command changes a skill.
//!   (`crates/agent/src/skills/load.rs::no_skill_has_files_from_outside_its_folder`,
//!   `crates/agent/tests/skills.rs::skills_are_never_changed`)

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_protocol::file::FilePath;
use millrace_protocol::wire;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::format::parse_skill_header;
use super::{SKILL_FILE, SKILLS, SkillEntry};
use crate::files::{FolderFiles, sha256_hex};

/// The maximum size of a skill with all its files, in bytes.
const MAX_SKILL_BYTES: u64 = 10 * 1024 * 1024;
/// The maximum number of files of a skill.
const MAX_SKILL_FILES: usize = 500;
/// The maximum nesting of folders in a skill.
const MAX_DEPTH: usize = 16;
/// The maximum number of skills of a capability.
const MAX_SKILLS: usize = 100;
/// The maximum number of warnings. If there are more, the last one has the number of the others.
const MAX_WARNINGS: usize = 20;
/// A folder that Python makes for itself. Names that begin with a dot are passed over as well.
const IGNORED: &str = "__pycache__";

/// The skills of a capability.
#[derive(Debug, Clone, Default)]
pub struct LoadedSkills {
    /// The skills, by name.
    pub skills: Vec<Arc<Skill>>,
    /// The skills that were skipped, each with its file and the mistake.
    pub warnings: Vec<String>,
}

/// A folder of skills that can't be used.
#[derive(Debug, thiserror::Error)]
#[error("the folder of skills {} can't be read: {source}", folder.display())]
pub struct LoadSkillsError {
    folder: PathBuf,
    source: std::io::Error,
}

/// Loads the skills of these folders: each has a folder for every skill, or is the folder of one. Of skills with the same name the one
/// of the later folder counts.
pub fn load_skills(folders: &[PathBuf]) -> Result<LoadedSkills, LoadSkillsError> {
    let (mut skills, mut warnings) = (BTreeMap::new(), Vec::new());
    for folder in folders {
        for place in list_skill_folders(folder, &mut warnings)? {
            match load_skill(&place) {
                Ok(skill) => {
                    skills.insert(skill.entry.name.clone(), Arc::new(skill));
                }
                Err(SkipReason { file, why }) => warnings.push(format!("{}: {why}", file.display())),
            }
        }
    }
    let mut skills: Vec<Arc<Skill>> = skills.into_values().collect();
    for skill in skills.split_off(skills.len().min(MAX_SKILLS)) {
        warnings.push(format!("{}: there are more than {MAX_SKILLS} skills", skill.entry.name));
    }
    if warnings.len() > MAX_WARNINGS {
        let more = warnings.len() - (MAX_WARNINGS - 1);
        warnings.truncate(MAX_WARNINGS - 1);
        warnings.push(format!("{more} more skills were skipped"));
    }
    Ok(LoadedSkills { skills, warnings })
}

/// The mistake for which a skill is skipped.
struct SkipReason {
    file: PathBuf,
    why: String,
}

impl SkipReason {
    fn new(file: &Path, why: impl Into<String>) -> Self {
        Self { file: file.to_owned(), why: why.into() }
    }
}

/// Returns the folders of skills in a folder, or itself if it has a `SKILL.md`, sorted. The folder itself may be a link.
fn list_skill_folders(folder: &Path, warnings: &mut Vec<String>) -> Result<Vec<PathBuf>, LoadSkillsError> {
    let unreadable = |source| LoadSkillsError { folder: folder.to_owned(), source };
    let place = folder.canonicalize().map_err(unreadable)?;
    if place.join(SKILL_FILE).symlink_metadata().is_ok() {
        return Ok(vec![place]);
    }
    let mut places = Vec::new();
    for entry in std::fs::read_dir(&place).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let kind = entry.file_type().map_err(unreadable)?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if kind.is_symlink() && entry.path().is_dir() {
            warnings.push(format!("{}: it is a link; name its target in \"skills\"", entry.path().display()));
        } else if kind.is_dir() && !is_hidden {
            places.push(entry.path());
        }
    }
    places.sort();
    warnings.sort();
    Ok(places)
}

fn load_skill(folder: &Path) -> Result<Skill, SkipReason> {
    let main = folder.join(SKILL_FILE);
    let name = folder.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| SkipReason::new(folder, "the name of the folder is not UTF-8"))?;
    match main.symlink_metadata() {
        Ok(about) if about.is_file() => {}
        Ok(_) => return Err(SkipReason::new(&main, "it is not a regular file")),
        Err(error) => return Err(SkipReason::new(&main, format!("it can't be read: {error}"))),
    }
    let mut paths = Vec::new();
    collect_paths(folder, "", 0, &mut paths)?;
    paths.sort();
    let place = FolderFiles::open(folder).map_err(|error| SkipReason::new(folder, error.to_string()))?;
    let (mut files, mut size) = (Vec::with_capacity(paths.len()), 0_u64);
    for path in paths {
        let file = folder.join(path.as_str().trim_start_matches('/'));
        // The agent sees it below the folder of all skills.
        FilePath::new(&format!("{SKILLS}/{name}{path}"))
            .map_err(|invalid| SkipReason::new(&file, invalid.to_string()))?;
        let read = place.read_file(&path).map_err(|error| SkipReason::new(&file, error.to_string()))?;
        let read = read.ok_or_else(|| SkipReason::new(&file, "it disappeared while it was read"))?;
        size += read.bytes.len() as u64;
        if size > MAX_SKILL_BYTES {
            let why = format!("the skill has more than {} MiB", MAX_SKILL_BYTES / 1024 / 1024);
            return Err(SkipReason::new(folder, why));
        }
        files.push(PackagedFile { path, content: ByteBuf::from(read.bytes) });
    }
    let is_main = |file: &&PackagedFile| file.path.as_str().trim_start_matches('/') == SKILL_FILE;
    let text = files.iter().find(is_main).map(|file| file.content.as_slice()).unwrap_or_default();
    let header = parse_skill_header(text, name).map_err(|why| SkipReason::new(&main, why))?;
    Ok(Skill::new(header.name, header.description, header.tools, files))
}

/// Collects the paths of all files below a folder of a skill.
fn collect_paths(
    folder: &Path,
    below: &str,
    depth: usize,
    paths: &mut Vec<FilePath>,
) -> Result<(), SkipReason> {
    if depth > MAX_DEPTH {
        return Err(SkipReason::new(folder, format!("folders are nested more than {MAX_DEPTH} deep")));
    }
    let unreadable = |error: std::io::Error| SkipReason::new(folder, format!("it can't be listed: {error}"));
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let (place, kind) = (entry.path(), entry.file_type().map_err(unreadable)?);
        let name = entry.file_name();
        let name = name.to_str().ok_or_else(|| SkipReason::new(&place, "its name is not UTF-8"))?;
        if name.starts_with('.') || name == IGNORED {
            continue;
        }
        let path = format!("{below}/{name}");
        if kind.is_dir() {
            collect_paths(&place, &path, depth + 1, paths)?;
        } else if kind.is_file() {
            let path =
                FilePath::new(&path).map_err(|invalid| SkipReason::new(&place, invalid.to_string()))?;
            if entry.metadata().map_err(unreadable)?.len() > MAX_SKILL_BYTES {
                let why = format!("it has more than {} MiB", MAX_SKILL_BYTES / 1024 / 1024);
                return Err(SkipReason::new(&place, why));
            }
            paths.push(path);
        } else {
            let kind =
                if kind.is_symlink() { "a link, and links are not followed" } else { "not a regular file" };
            return Err(SkipReason::new(&place, format!("it is {kind}")));
        }
        if paths.len() > MAX_SKILL_FILES {
            return Err(SkipReason::new(folder, format!("the skill has more than {MAX_SKILL_FILES} files")));
        }
    }
    Ok(())
}

/// A skill that a worker has loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skill {
    /// Its name, description and hash.
    pub entry: SkillEntry,
    /// Its files.
    pub package: SkillPackage,
    /// The encoded package.
    pub bytes: Vec<u8>,
}

/// The files of a skill.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillPackage {
    /// The files, by path.
    pub files: Vec<PackagedFile>,
}

/// A file of a skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackagedFile {
    /// Its path within the skill's folder.
    pub path: FilePath,
    pub content: ByteBuf,
}

/// A package that is not what its entry says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the files of the skill {name} can't be read: {why}")]
pub struct UnreadablePackage {
    /// The name of the skill.
    pub name: String,
    /// The reason.
    pub why: String,
}

impl Skill {
    /// A skill with these files, in any order.
    #[must_use]
    pub fn new(name: String, description: String, tools: Vec<String>, mut files: Vec<PackagedFile>) -> Self {
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let package = SkillPackage { files };
        let bytes = wire::encode_body(&package);
        let entry = SkillEntry { name, description, tools, sha256: sha256_hex(&bytes) };
        Self { entry, package, bytes }
    }

    /// The skill of a recorded entry, from its stored bytes.
    pub fn from_stored_bytes(entry: SkillEntry, bytes: Vec<u8>) -> Result<Self, UnreadablePackage> {
        let unreadable = |why: String| UnreadablePackage { name: entry.name.clone(), why };
        let sha256 = sha256_hex(&bytes);
        if sha256 != entry.sha256 {
            return Err(unreadable(format!("their SHA-256 is {sha256}, and {} was recorded", entry.sha256)));
        }
        let package = wire::decode_message_pack(&bytes, "the files of a skill")
            .map_err(|garbage| unreadable(garbage.to_string()))?;
        Ok(Self { entry, package, bytes })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn write_skill(folder: &Path, name: &str, description: &str) {
        fs::create_dir_all(folder.join(name)).unwrap();
        let text = format!("---\nname: {name}\ndescription: {description}\n---\nDo it.\n");
        fs::write(folder.join(name).join(SKILL_FILE), text).unwrap();
    }

    fn describe(loaded: &LoadedSkills) -> Vec<String> {
        let describe = |skill: &Arc<Skill>| format!("{}: {}", skill.entry.name, skill.entry.description);
        loaded.skills.iter().map(describe).collect()
    }

    #[test]
    fn later_source_wins_by_name() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write_skill(first.path(), "both", "first");
        write_skill(first.path(), "only", "first");
        write_skill(second.path(), "both", "second");
        let folders = [first.path().to_owned(), second.path().join("both")];
        let loaded = load_skills(&folders).unwrap();
        assert_eq!(describe(&loaded), ["both: second", "only: first"]);
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
        let reversed = load_skills(&[second.path().to_owned(), first.path().to_owned()]).unwrap();
        assert_eq!(describe(&reversed), ["both: first", "only: first"]);
        let missing = load_skills(&[first.path().join("none")]).unwrap_err().to_string();
        assert!(missing.contains("the folder of skills") && missing.contains("none"), "{missing}");
    }

    #[test]
    fn bad_skills_are_skipped_with_file_and_mistake() {
        let folder = tempfile::tempdir().unwrap();
        write_skill(folder.path(), "good", "fine");
        write_skill(folder.path(), "Bad", "x");
        fs::create_dir(folder.path().join("empty")).unwrap();
        fs::create_dir(folder.path().join(".git")).unwrap();
        fs::write(folder.path().join("README.md"), "not a skill").unwrap();
        write_skill(folder.path(), "large", "x");
        let large = fs::File::create(folder.path().join("large/data.bin")).unwrap();
        large.set_len(MAX_SKILL_BYTES + 1).unwrap();
        write_skill(folder.path(), "sum", "x");
        for part in 0..3 {
            let part = fs::File::create(folder.path().join(format!("sum/{part}"))).unwrap();
            part.set_len(4 * 1024 * 1024).unwrap();
        }
        write_skill(folder.path(), "long", "x");
        let deep = folder.path().join("long").join(["x".repeat(249), "y".repeat(249)].join("/"));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("z"), "x").unwrap();
        write_skill(folder.path(), "many", "x");
        (0..MAX_SKILL_FILES).for_each(|n| fs::write(folder.path().join(format!("many/{n}")), "x").unwrap());
        let loaded = load_skills(&[folder.path().to_owned()]).unwrap();
        assert_eq!(describe(&loaded), ["good: fine"]);
        let expected = [
            ("/Bad/SKILL.md", "\"Bad\" is not a valid name"),
            ("/empty/SKILL.md", "can't be read"),
            ("/large/data.bin", "more than 10 MiB"),
            ("/long/", "it is longer than 512 bytes"),
            ("/many", "more than 500 files"),
            ("/sum", "more than 10 MiB"),
        ];
        assert_eq!(loaded.warnings.len(), expected.len(), "{:?}", loaded.warnings);
        for ((file, mistake), warning) in expected.iter().zip(&loaded.warnings) {
            assert!(warning.contains(file) && warning.contains(mistake), "{warning}");
        }
    }

    #[test]
    fn no_skill_has_files_from_outside_its_folder() {
        let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write_skill(outside.path(), "outer", "secret");
        fs::write(outside.path().join("key"), "secret").unwrap();
        for name in ["file", "folder", "main", "name"] {
            write_skill(folder.path(), name, "x");
        }
        symlink(outside.path().join("key"), folder.path().join("file/key")).unwrap();
        symlink(outside.path(), folder.path().join("folder/more")).unwrap();
        fs::remove_file(folder.path().join("main/SKILL.md")).unwrap();
        symlink(outside.path().join("outer/SKILL.md"), folder.path().join("main/SKILL.md")).unwrap();
        symlink(outside.path().join("outer"), folder.path().join("outer")).unwrap();
        fs::write(folder.path().join("name/a\u{202e}b"), "x").unwrap();
        let loaded = load_skills(&[folder.path().to_owned()]).unwrap();
        assert_eq!(describe(&loaded), Vec::<String>::new());
        assert_eq!(loaded.warnings.len(), 5, "{:?}", loaded.warnings);
        for (file, why) in [
            ("/file/key", "a link"),
            ("/folder/more", "a link"),
            ("/main/SKILL.md", "not a regular file"),
            ("/outer", "it is a link; name its target"),
            ("/name/", "control characters"),
        ] {
            let is_named = |warning: &String| warning.contains(file) && warning.contains(why);
            assert!(loaded.warnings.iter().any(is_named), "{file}: {:?}", loaded.warnings);
        }
        // A folder that a person names may be a link.
        let place = tempfile::tempdir().unwrap();
        symlink(outside.path(), place.path().join("skills")).unwrap();
        let loaded = load_skills(&[place.path().join("skills")]).unwrap();
        assert_eq!(describe(&loaded), ["outer: secret"]);
    }

    #[test]
    fn warnings_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        (0..30).for_each(|n| fs::create_dir(folder.path().join(format!("s{n:02}"))).unwrap());
        let loaded = load_skills(&[folder.path().to_owned()]).unwrap();
        assert_eq!(loaded.warnings.len(), MAX_WARNINGS);
        assert_eq!(loaded.warnings.last().map(String::as_str), Some("11 more skills were skipped"));
    }

    #[test]
    fn package_does_not_depend_on_the_order_of_files_and_is_verified() {
        let file = |path: &str| PackagedFile {
            path: FilePath::new(path).unwrap(),
            content: ByteBuf::from(path.as_bytes().to_vec()),
        };
        let skill =
            |paths: [&str; 2]| Skill::new("a".into(), "b".into(), Vec::new(), paths.map(file).to_vec());
        let (one, other) = (skill(["SKILL.md", "scripts/a.py"]), skill(["scripts/a.py", "SKILL.md"]));
        assert_eq!(one, other);
        let read = Skill::from_stored_bytes(one.entry.clone(), one.bytes.clone()).unwrap();
        assert_eq!(read, one);
        let mut damaged = one.bytes.clone();
        *damaged.last_mut().unwrap() ^= 1;
        let error = Skill::from_stored_bytes(one.entry.clone(), damaged).unwrap_err().to_string();
        assert!(error.contains("the files of the skill a can't be read: their SHA-256 is"), "{error}");
    }
}
