//! The field `files` of an agent: a folder of the host among its files.
//!
//! ```yaml
//! files: {folder: ./project, at: /project, read_only: true}
//! ```

use std::path::{Path, PathBuf};

use millrace_protocol::file::FilePath;
use millrace_protocol::overrides::{FileOperation, PermissionMode, PermissionRule, PermissionRules};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::files::FolderFiles;
use crate::files::permissions::{CompiledPermissions, InvalidGlobPattern};

/// A folder of the host among an agent's files.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostFolder {
    /// The folder, relative to that of the capability file. It must exist. Nothing outside it can be reached.
    pub folder: PathBuf,
    /// The path under which the agent sees it; `/folder` by default. The other files are those of the run.
    #[serde(default = "default_mount")]
    pub at: FilePath,
    /// `true` if the agent may not change it.
    #[serde(default)]
    pub read_only: bool,
}

fn default_mount() -> FilePath {
    FilePath::new("/folder").expect("a valid path")
}

impl HostFolder {
    /// The folder with a path relative to another folder.
    #[must_use]
    pub fn relative_to(self, base: &Path) -> Self {
        Self { folder: base.join(&self.folder), ..self }
    }

    /// Opens the folder.
    ///
    /// # Errors
    /// It does not exist or can't be opened. The text names it.
    pub fn open(&self) -> Result<FolderFiles, String> {
        FolderFiles::open(&self.folder)
            .map_err(|error| format!("the folder {} can't be used: {error}", self.folder.display()))
    }

    /// The permissions of an agent with this folder.
    pub fn restrict_permissions(
        &self,
        permissions: CompiledPermissions,
    ) -> Result<CompiledPermissions, InvalidGlobPattern> {
        if !self.read_only {
            return Ok(permissions);
        }
        let rule = PermissionRule {
            operations: vec![FileOperation::Write],
            paths: vec![globset::escape(self.at.as_str())],
            mode: PermissionMode::Deny,
        };
        Ok(permissions.and(CompiledPermissions::compile(&PermissionRules(vec![rule]))?))
    }
}
