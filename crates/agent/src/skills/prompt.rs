//! The section of the prompt that lists the skills. Formatting only.

use std::fmt::Write;

use super::SkillEntry;

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
