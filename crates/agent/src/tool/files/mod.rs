//! The tools with which an agent lists, finds, reads and changes files. They own the texts that the model reads, and the
//! rule that an agent only changes versions that it has seen: each result that shows or makes a file has its version in
//! the first line, and a change of a file with another version is refused with the current content.
//!
//! ```text
//! FileTool         one tool: its arguments, its function, and what it restores from a recorded call
//! └─ FileSession   shared by an agent's tools: the files, the permissions, and the versions seen
//!    └─ SeenFiles  the versions that the agent knows
//! ```

mod change;
mod edit;
mod find;
mod read;
mod session;
mod similar_text;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures::future::{BoxFuture, ready};
use futures::{FutureExt, TryFutureExt};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Call, Effect, Output, Tool, ToolError, ToolResult, ToolSpec, read_arguments, typed_spec};
use crate::files::permissions::{CompiledPermissions, FileOperation, PermissionDenied};
use crate::files::{FilePath, Files};
use session::FileSession;

pub use read::{DEFAULT_LIMIT, MAX_READ};

/// The tools of one agent over its files: `ls`, `read_file`, `write_file`, `edit_file`, `delete`, `glob`, `grep`. They
/// share the versions that the agent has seen, so each agent, and each attempt, needs its own.
#[must_use]
pub fn create_file_tools(files: Arc<dyn Files>, rules: CompiledPermissions) -> Vec<Arc<dyn Tool>> {
    let session = Arc::new(FileSession::new(files, rules));
    vec![
        find::ls_tool(&session),
        read::read_file_tool(&session),
        change::write_file_tool(&session),
        edit::edit_file_tool(&session),
        change::delete_tool(&session),
        find::glob_tool(&session),
        find::grep_tool(&session),
    ]
}

type FileToolFunction<A> =
    for<'a> fn(&'a FileSession, A, &'a Call) -> BoxFuture<'a, Result<String, ToolError>>;
/// Restores state from a recorded call.
type RestoreFileState<A> = fn(&FileSession, &A, &ToolResult, &Call);

struct FileTool<A> {
    spec: ToolSpec,
    effect: Effect,
    /// The operations on its file for which a person's approval may be needed.
    operations: &'static [FileOperation],
    session: Arc<FileSession>,
    run: FileToolFunction<A>,
    remember: RestoreFileState<A>,
}

impl<A: DeserializeOwned + JsonSchema + Send + 'static> FileTool<A> {
    /// A tool without effects or state.
    fn new(name: &str, description: &str, session: &Arc<FileSession>, run: FileToolFunction<A>) -> Self {
        let spec = typed_spec::<A>(name, description);
        Self {
            spec,
            effect: Effect::Pure,
            operations: &[],
            session: session.clone(),
            run,
            remember: |_, _, _, _| {},
        }
    }
}

impl<A: DeserializeOwned + Send + 'static> Tool for FileTool<A> {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn effect(&self) -> Effect {
        self.effect
    }

    fn approval_reason(&self, arguments: &Value) -> Option<String> {
        let path = FilePath::new(arguments.get("file_path")?.as_str()?).ok()?;
        let denied = |operation: &FileOperation| self.session.check_permission(*operation, &path).err();
        let denied: Vec<PermissionDenied> = self.operations.iter().filter_map(denied).collect();
        let needs_approval =
            |denied: &PermissionDenied| matches!(denied, PermissionDenied::NeedsApproval { .. });
        // A call that is denied anyway needs no person.
        denied.iter().all(needs_approval).then(|| denied.first().map(ToString::to_string)).flatten()
    }

    fn call<'a>(&'a self, arguments: Value, call: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        match read_arguments(&self.spec.name, arguments) {
            Ok(arguments) => (self.run)(&self.session, arguments, call)
                .map_ok(|text| Output {
                    artifacts: self.session.take_artifacts(&call.key),
                    images: self.session.take_images(&call.key),
                    ..text.into()
                })
                .boxed(),
            Err(refusal) => ready(Err(refusal)).boxed(),
        }
    }

    fn has_bounded_output(&self) -> bool {
        true
    }

    fn names_its_changes(&self) -> bool {
        true
    }

    fn on_replay(&self, arguments: &Value, result: &ToolResult, call: &Call) {
        if let Ok(arguments) = serde_json::from_value(arguments.clone()) {
            (self.remember)(&self.session, &arguments, result, call);
        }
    }
}
