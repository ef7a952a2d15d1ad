//! The files of skills, read-only. A path is `/NAME/…` with the name of the skill, below the folder that they are mounted on.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};

use super::{FileContent, FileEntry, FilePath, Files, FilesError, WriteCondition, is_below};
use crate::skills::{PackagedFile, Skill};

/// The files of the skills of an attempt.
pub struct SkillFiles(Vec<Arc<Skill>>);

impl SkillFiles {
    /// The files of these skills.
    #[must_use]
    pub fn new(skills: Vec<Arc<Skill>>) -> Self {
        Self(skills)
    }

    fn all_files(&self) -> impl Iterator<Item = (FilePath, &Skill, &PackagedFile)> {
        self.0.iter().flat_map(|skill| {
            skill.package.files.iter().filter_map(move |file| {
                let path = FilePath::new(&format!("{}{}", skill.entry.name, file.path)).ok()?;
                Some((path, skill.as_ref(), file))
            })
        })
    }
}

fn skill_file_entry(path: FilePath, skill: &Skill, file: &PackagedFile) -> FileEntry {
    let author = format!("the skill {}", skill.entry.name);
    FileEntry { path, size: file.content.len() as u64, version: 1, author }
}

fn read_only_error<T: Send + 'static>(path: &FilePath) -> BoxFuture<'static, Result<T, FilesError>> {
    let text =
        format!("/skills{path} can't be changed: skills are read-only; write to a path outside of /skills");
    ready(Err(FilesError::Denied(text))).boxed()
}

impl Files for SkillFiles {
    fn list<'a>(&'a self, folder: &'a str) -> BoxFuture<'a, Result<Vec<FileEntry>, FilesError>> {
        let entries = self.all_files().filter(|(path, ..)| is_below(path, folder));
        let mut entries: Vec<FileEntry> =
            entries.map(|(path, skill, file)| skill_file_entry(path, skill, file)).collect();
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        ready(Ok(entries)).boxed()
    }

    fn read<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<FileContent>, FilesError>> {
        let content = self.all_files().find(|(known, ..)| known == path).map(|(path, skill, file)| {
            FileContent { entry: skill_file_entry(path, skill, file), bytes: file.content.to_vec() }
        });
        ready(Ok(content)).boxed()
    }

    fn write<'a>(
        &'a self,
        path: &'a FilePath,
        _: Vec<u8>,
        _: WriteCondition,
        _: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>> {
        read_only_error(path)
    }

    fn delete<'a>(
        &'a self,
        path: &'a FilePath,
        _: WriteCondition,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), FilesError>> {
        read_only_error(path)
    }
}
