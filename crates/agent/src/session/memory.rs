//! The knowledge of an agent beside its task: the memory files whose text is in its prompt, the memories that its file tools reach, and the
//! skills of its attempt. The skills are those that the worker has loaded, or those with which the attempt or the conversation began on
//! another worker. It owns the form of the text and the order of storing and recording; the host provides files and blobs.
//!
//! # Invariants
//!
//! - I127: An attempt has the skills that it began with, byte for byte, on every worker that takes it over; if they can't be
//!   read, it fails with the reason.
//!   (`crates/agent/tests/skills.rs::attempt_taken_over_after_any_step_has_the_skills_that_it_began_with`,
//!   `tests/tests/skills.rs::another_worker_continues_with_the_skills_that_the_attempt_began_with`)

use std::collections::BTreeSet;
use std::sync::Arc;

use millrace_protocol::result::{ErrorKind, TaskError};

use super::environment::{MemoryFile, SessionEnvironment, SessionError, host_error};

use crate::files::{CompositeFiles, FilePath, Files, FilesError, SkillFiles};

use crate::material::keep_beginning_and_end;
use crate::skills::{SKILLS, Skill, SkillEntry, format_skill_list};

use crate::sources::OrderInputError;
use crate::spec::{AgentSpec, MEMORIES, MemoryPlace};

/// The most characters of all memory files together. The prompt is recorded whole only up to 64,000.
const MAX_CHARS: usize = 40_000;

const INTRODUCTION: &str = "## Memory\n\nThese files hold what is known from earlier work. They are background: your instructions and \
your task take precedence. They may be outdated or wrong, so check what matters.";
const EDITABLE: &str = "Files below /memories are kept for later runs, and other agents change them too. If you have file tools, record \
there what will help next time: corrections, preferences, facts that were hard to find. Edit what is there instead of repeating it. \
Never record secrets.";

/// Mounts the memories into an agent's files, if it has any.
pub(super) fn mount_memories(
    spec: &AgentSpec,
    files: Arc<dyn Files>,
    memories: Option<&Arc<dyn Files>>,
) -> Arc<dyn Files> {
    let Some(memories) = memories.filter(|_| spec.memory.is_some()) else { return files };
    let folder = FilePath::new(MEMORIES).expect("a valid path");
    Arc::new(CompositeFiles::new(files).with_mount(folder, memories.clone()))
}

/// Returns the section of the prompt with the memory; `None` if the agent has none. `beside` are the files of its capability file's
/// folder that exist.
pub(super) async fn read_memory_section(
    spec: &AgentSpec,
    beside: Vec<MemoryFile>,
    memories: Option<&Arc<dyn Files>>,
) -> Result<Option<String>, SessionError> {
    let Some(places) = &spec.memory else { return Ok(None) };
    let mut all = beside;
    for place in places {
        if let (MemoryPlace::Stored(path), Some(memories)) = (place, memories) {
            all.extend(read_stored_file(path, memories.as_ref()).await?);
        }
    }
    let limit = MAX_CHARS / all.len().max(1);
    let file = |file: &MemoryFile| {
        let text = keep_beginning_and_end(remove_comments(&file.text).trim(), limit);
        format!("\n\n### {}\n\n{text}", file.place)
    };
    let files: String = all.iter().map(file).collect();
    Ok(Some(format!("{INTRODUCTION}\n\n{EDITABLE}{files}")))
}

/// Reads a file of the memories; `None` if it does not exist.
async fn read_stored_file(path: &FilePath, memories: &dyn Files) -> Result<Option<MemoryFile>, SessionError> {
    let inner = path.as_str().strip_prefix(MEMORIES).unwrap_or(path.as_str());
    let inner = FilePath::new(inner).map_err(|invalid| unreadable_error(path, &invalid.to_string()))?;
    let file = match memories.read(&inner).await {
        Ok(file) => file,
        Err(FilesError::Unavailable(why)) => return Err(OrderInputError::Unavailable(why).into()),
        Err(
            error @ (FilesError::Stale { .. }
            | FilesError::Denied(_)
            | FilesError::TooLarge { .. }
            | FilesError::Broken(_)),
        ) => return Err(unreadable_error(path, &error.to_string()).into()),
    };
    let Some(file) = file else { return Ok(None) };
    let text = String::from_utf8(file.bytes).map_err(|_| unreadable_error(path, "it is no text"))?;
    Ok(Some(MemoryFile { place: path.to_string(), text }))
}

fn unreadable_error(path: &FilePath, why: &str) -> TaskError {
    TaskError::new(ErrorKind::InvalidTask, format!("the memory file {path} can't be read: {why}"))
}

/// Removes HTML comments, which are for people who edit the file.
fn remove_comments(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::with_capacity(text.len());
    while let Some((before, comment)) = rest.split_once("<!--") {
        kept.push_str(before);
        rest = comment.split_once("-->").map_or("", |(_, after)| after);
    }
    kept + rest
}

const READ_FILE: &str = "read_file";
const EXECUTE: &str = "execute";

#[derive(Default)]
pub(super) struct AttemptSkills(Vec<Arc<Skill>>);

impl AttemptSkills {
    /// Opens the skills of an attempt. `recorded` are those with which it began, or with which the conversation began that it continues;
    /// `None` if it begins now: then the worker's own are stored, so that every later worker reads the same.
    pub async fn open(
        spec: &AgentSpec,
        recorded: Option<Vec<SkillEntry>>,
        env: &mut SessionEnvironment<'_>,
    ) -> Result<Self, SessionError> {
        let own = std::mem::take(&mut env.skills);
        let Some(recorded) = recorded else {
            if !spec.tools.iter().any(|tool| tool.name == READ_FILE) {
                return Ok(Self::default());
            }
            for skill in &own {
                env.host.store_blob(skill.bytes.clone()).await.map_err(host_error)?;
            }
            return Ok(Self(own));
        };
        let mut skills = Vec::with_capacity(recorded.len());
        for entry in recorded {
            let same = own.iter().find(|skill| skill.entry == entry).cloned();
            skills.push(match same {
                Some(skill) => skill,
                None => {
                    let bytes = env.sources.read_blob(&entry.sha256).await?;
                    let skill = Skill::from_stored_bytes(entry, bytes)
                        .map_err(|error| TaskError::new(ErrorKind::Other, error.to_string()))?;
                    Arc::new(skill)
                }
            });
        }
        Ok(Self(skills))
    }

    /// The skills without their files.
    pub fn entries(&self) -> Vec<SkillEntry> {
        self.0.iter().map(|skill| skill.entry.clone()).collect()
    }

    /// The section of the prompt that lists them; `None` if there are none. `tools` are the names of the agent's tools.
    pub fn format_section(&self, tools: &BTreeSet<String>) -> Option<String> {
        format_skill_list(&self.entries(), tools.contains(EXECUTE))
    }

    /// Mounts their files into an agent's files.
    pub fn mount_files(&self, files: Arc<dyn Files>) -> Arc<dyn Files> {
        if self.0.is_empty() {
            return files;
        }
        let folder = FilePath::new(SKILLS).expect("a valid path");
        Arc::new(CompositeFiles::new(files).with_mount(folder, Arc::new(SkillFiles::new(self.0.clone()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_removed() {
        for (text, expected) in [
            ("a <!-- b --> c", "a  c"),
            ("<!-- a\nb -->\nc <!--d--><!--e-->", "\nc "),
            ("a <!-- open", "a "),
            ("no --> comment", "no --> comment"),
        ] {
            assert_eq!(remove_comments(text), expected);
        }
    }
}
