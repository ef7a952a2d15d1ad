//! The skills of an attempt: those that the worker has loaded, or those with which the attempt or the conversation began on another
//! worker. It owns the order of storing and recording; the host provides the blobs.
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

use super::environment::{SessionEnvironment, SessionError, host_error};
use crate::files::{CompositeFiles, FilePath, Files, SkillFiles};
use crate::skills::{SKILLS, Skill, SkillEntry, format_skill_list};
use crate::spec::AgentSpec;

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
