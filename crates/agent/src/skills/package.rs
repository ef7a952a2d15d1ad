//! A skill as one value: its files in the order of their paths, encoded so that equal folders have equal bytes. The SHA-256 of the bytes
//! names the skill's content on every worker.

use millrace_protocol::file::FilePath;
use millrace_protocol::wire;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::SkillEntry;
use crate::files::sha256_hex;

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
    use super::*;

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
