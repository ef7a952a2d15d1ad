//! Skills of an agent: folders with a `SKILL.md` in the open Agent Skills format, whose names and descriptions are in its prompt, and
//! whose files it reads when it needs them. It owns the format, the limits and the form in which skills are stored; it does not know
//! where blobs are kept.
//!
//! ```text
//! a worker starts:     load_skills(folders) ─▶ Skill { SkillEntry, SkillPackage, its bytes }
//! an attempt begins:   the packages are stored as blobs ─▶ the list of entries is recorded with the first request
//! another worker:      recorded entries ─▶ the packages with these hashes, not its own folders
//! ```
//!
//! The section of the prompt that lists the skills. Formatting only.

mod format;
mod load;

use std::fmt::Write;

use serde::{Deserialize, Serialize};

pub use load::{LoadSkillsError, LoadedSkills, load_skills};
pub use load::{PackagedFile, Skill, SkillPackage, UnreadablePackage};

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

/// The most characters of all descriptions. The prompt is recorded whole only up to 64,000.
const MAX_DESCRIPTIONS: usize = 16_000;

const INTRODUCTION: &str = "## Skills\n\nSkills are folders with instructions for kinds of work. If the description of one fits your \
task, read its SKILL.md with read_file before you begin, and follow it. Read its other files where it names them. The files below \
/skills are read-only.";
const COMMANDS: &str = " Commands of execute find them in skills/ of their working folder.";

/// Returns the section; `None` if there are no skills. `has_commands`: the agent can run commands.
pub(crate) fn format_skill_list(skills: &[SkillEntry], has_commands: bool) -> Option<String> {
    if skills.is_empty() {
        return None;
    }
    let limit = MAX_DESCRIPTIONS / skills.len();
    let mut text = format!("{INTRODUCTION}{}\n", if has_commands { COMMANDS } else { "" });
    for skill in skills {
        let description = match skill.description.chars().count() > limit {
            true => skill.description.chars().take(limit).chain(['…']).collect(),
            false => skill.description.clone(),
        };
        write!(text, "\n- {}: {description} ({})", skill.name, skill.path())
            .expect("writing to a String can't fail");
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skill(name: &str, description: &str) -> SkillEntry {
        SkillEntry {
            name: name.into(),
            description: description.into(),
            tools: Vec::new(),
            sha256: String::new(),
        }
    }

    #[test]
    fn list_has_names_descriptions_and_places() {
        assert_eq!(format_skill_list(&[], true), None);
        let text =
            format_skill_list(&[skill("csv", "Reads tables."), skill("pdf", "Fills forms.")], false).unwrap();
        assert!(text.ends_with(
            "\n- csv: Reads tables. (/skills/csv/SKILL.md)\n- pdf: Fills forms. (/skills/pdf/SKILL.md)"
        ));
        assert!(!text.contains("execute"));
    }

    #[test]
    fn long_lists_are_bounded() {
        let skills: Vec<SkillEntry> = (0..100).map(|n| skill(&format!("s{n}"), &"x".repeat(1_024))).collect();
        let text = format_skill_list(&skills, true).unwrap();
        assert!(text.chars().count() < 22_000, "{}", text.chars().count());
        assert_eq!(text.matches("/SKILL.md)").count(), 100);
    }
}
