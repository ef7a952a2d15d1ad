//! Skills of an agent: folders with a `SKILL.md` in the open Agent Skills format, whose names and descriptions are in its prompt, and
//! whose files it reads when it needs them. It owns the format, the limits and the form in which skills are stored; it does not know
//! where blobs are kept.
//!
//! ```text
//! a worker starts:     load_skills(folders) ─▶ Skill { SkillEntry, SkillPackage, its bytes }
//! an attempt begins:   the packages are stored as blobs ─▶ the list of entries is recorded with the first request
//! another worker:      recorded entries ─▶ the packages with these hashes, not its own folders
//! ```

mod format;
mod load;
mod package;
mod prompt;

use serde::{Deserialize, Serialize};

pub use load::{LoadSkillsError, LoadedSkills, load_skills};
pub use package::{PackagedFile, Skill, SkillPackage, UnreadablePackage};
pub(crate) use prompt::format_skill_list;

/// The folder of the skills in an agent's files.
pub const SKILLS: &str = "/skills";
/// The file with the description and the instructions of a skill.
pub const SKILL_FILE: &str = "SKILL.md";

/// A skill without its files, as it is recorded with the first request of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillEntry {
    /// Its name, which is also that of its folder.
    pub name: String,
    /// The description of its purpose, on one line.
    pub description: String,
    /// The tools that it lists as `allowed-tools`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// The SHA-256 of its package in hexadecimal: the name of the blob.
    pub sha256: String,
}

/// The skills whose instructions an agent has read, for the conditions of its tools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillProgress {
    /// Their names, in the order in which they were read.
    pub read: Vec<String>,
    /// The tools that they list, sorted.
    pub tools: Vec<String>,
}

impl SkillProgress {
    /// `true` if no skill has been read.
    pub fn is_empty(&self) -> bool {
        self.read.is_empty()
    }

    /// Adds a skill whose instructions were read.
    pub fn add_skill(&mut self, skill: &SkillEntry) {
        if self.read.contains(&skill.name) {
            return;
        }
        self.read.push(skill.name.clone());
        self.tools.extend(skill.tools.iter().cloned());
        self.tools.sort_unstable();
        self.tools.dedup();
    }
}

impl SkillEntry {
    /// The path of its instructions in the agent's files.
    pub fn path(&self) -> String {
        format!("{SKILLS}/{}/{SKILL_FILE}", self.name)
    }
}
