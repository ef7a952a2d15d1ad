//! Writes the files that a run delivers to the folder of the session, through the editor and after permission. The others are
//! named, with the command that fetches them.

use std::path::{Path, PathBuf};

use agent_client_protocol::schema::v1::{
    Diff, PermissionOption, PermissionOptionKind, SessionUpdate, ToolCall, ToolCallId, ToolCallLocation,
    ToolCallStatus, ToolCallUpdateFields, ToolKind,
};
use millrace_agent::files::FilePath;
use millrace_protocol::ids::RunId;
use millrace_protocol::result::Artifact;
use millrace_protocol::safe_text::{markdown_line, single_line};
use millrace_runtime::store::workspace::RunWorkspace;
use millrace_runtime::{Bus, Fault};

use super::editor::Editor;
use super::updates::call_update;
use crate::invocation::command_hint;

/// The maximum number of files that are offered one by one.
const MAX_OFFERED: usize = 50;
/// The maximum size of a file that is offered: an editor shows it, and holds it in memory.
const MAX_TEXT: u64 = 2 * 1024 * 1024;

const WRITE: &str = "write";
const WRITE_ALL: &str = "write-all";
const SKIP: &str = "skip";

/// Offers the files to the user, and names those that are not written. Those of a run that had ended before are only named: they
/// were offered when it ended.
pub async fn deliver_files(
    editor: &Editor,
    folder: &Path,
    (bus, run): (&Bus, &RunId),
    (artifacts, had_ended): (&[Artifact], bool),
) -> Result<(), Fault> {
    let workspace = RunWorkspace::new(bus, run);
    let mut left: Vec<String> = Vec::new();
    let (mut writes_all, mut is_stopped) = (false, had_ended);
    for (number, artifact) in artifacts.iter().enumerate() {
        let is_offered = !is_stopped && number < MAX_OFFERED && artifact.bytes <= MAX_TEXT;
        let target = target_below(folder, &artifact.path).filter(|_| is_offered && editor.can_write_files());
        let text = match &target {
            Some(_) => workspace.read_file_version(&artifact.path, artifact.version).await?,
            None => None,
        };
        let text = text.and_then(|file| String::from_utf8(file.bytes).ok());
        let (Some(target), Some(text)) = (target, text) else {
            left.push(markdown_line(artifact.path.as_str()));
            continue;
        };
        match offer_file(editor, run, &artifact.path, (&target, text), writes_all).await {
            Offer::Written => {}
            Offer::AllWritten => writes_all = true,
            declined @ (Offer::Declined | Offer::Stopped) => {
                is_stopped = matches!(declined, Offer::Stopped);
                left.push(markdown_line(artifact.path.as_str()));
            }
            Offer::Failed(error) => {
                left.push(format!("{} ({})", markdown_line(artifact.path.as_str()), single_line(&error)));
            }
        }
    }
    if !left.is_empty() {
        let command = command_hint(&format!("files {run} --output DIR"));
        editor.say(&format!(
            "Files of the run that are not in your folder: {}. `{command}` fetches all of them.",
            left.join(", ")
        ));
    }
    Ok(())
}

enum Offer {
    Written,
    /// Written, and the user wants the further ones without a question.
    AllWritten,
    Declined,
    /// The user has cancelled the prompt, or the editor has ended.
    Stopped,
    Failed(String),
}

async fn offer_file(
    editor: &Editor,
    run: &RunId,
    path: &FilePath,
    (target, text): (&Path, String),
    is_permitted: bool,
) -> Offer {
    let old = match editor.read_text_file(target).await {
        Some(old) => Some(old),
        None => tokio::fs::read_to_string(target).await.ok(),
    };
    if old.as_ref() == Some(&text) {
        return Offer::Written;
    }
    let id = ToolCallId::new(format!("{run}/files{path}"));
    let call = ToolCall::new(id.clone(), format!("Write {}", single_line(&target.display().to_string())))
        .kind(ToolKind::Edit)
        .status(ToolCallStatus::Pending)
        .locations(vec![ToolCallLocation::new(target)])
        .content(vec![Diff::new(target, text.clone()).old_text(old).into()]);
    editor.send(SessionUpdate::ToolCall(call.clone()));
    let chosen = match is_permitted {
        true => Some(WRITE.to_owned()),
        false => {
            use PermissionOptionKind::{AllowAlways, AllowOnce, RejectOnce};
            let options = vec![
                PermissionOption::new(WRITE, "Write this file", AllowOnce),
                PermissionOption::new(WRITE_ALL, "Write all files of this run", AllowAlways),
                PermissionOption::new(SKIP, "Do not write it", RejectOnce),
            ];
            editor.ask_permission(call.into(), options).await.map(|id| id.0.to_string())
        }
    };
    let finish = |status| editor.send(call_update(id, ToolCallUpdateFields::new().status(status)));
    if !matches!(chosen.as_deref(), Some(WRITE | WRITE_ALL)) {
        finish(ToolCallStatus::Failed);
        return if chosen.is_some() { Offer::Declined } else { Offer::Stopped };
    }
    match editor.write_text_file(target, text).await {
        Ok(()) => {
            finish(ToolCallStatus::Completed);
            if chosen.as_deref() == Some(WRITE_ALL) { Offer::AllWritten } else { Offer::Written }
        }
        Err(error) => {
            finish(ToolCallStatus::Failed);
            Offer::Failed(error)
        }
    }
}

/// Returns the place of a file of the run below a folder; `None` if a link there leads out of the folder.
fn target_below(folder: &Path, path: &FilePath) -> Option<PathBuf> {
    let root = folder.canonicalize().ok()?;
    let target = folder.join(path.as_str().trim_start_matches('/'));
    let existing = target.ancestors().find(|part| part.symlink_metadata().is_ok())?;
    existing.canonicalize().ok()?.starts_with(&root).then_some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_stay_below_the_folder_of_the_session() {
        let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = folder.path();
        std::fs::create_dir(root.join("notes")).unwrap();
        std::os::unix::fs::symlink(outside.path(), root.join("out")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("missing"), root.join("dangling")).unwrap();
        let target = |path: &str| target_below(root, &FilePath::new(path).unwrap());
        assert_eq!(target("/a.txt"), Some(root.join("a.txt")));
        assert_eq!(target("/notes/new/b.txt"), Some(root.join("notes/new/b.txt")));
        assert_eq!(target("/out/c.txt"), None);
        assert_eq!(target("/out/new/c.txt"), None);
        assert_eq!(target("/dangling"), None);
    }
}
