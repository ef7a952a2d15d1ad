//! The tools through which an agent lists, finds, reads and changes files. They own the texts that the model reads, and
//! the rule that nobody changes what he has not seen: the version of a file stands in the first line of each result
//! that shows or makes one, and a change of a file whose version is another is refused with what there is now.
//!
//! ```text
//! FileTool         one tool: its arguments, what runs it, what it remembers of a recorded call
//! └─ Session       what an agent's tools share: the files, what may be done with them, what was seen
//!    └─ Seen       the versions that the agent knows
//! ```

mod change;
mod delete;
mod edit;
mod find;
mod grep;
mod read;
mod session;
mod show;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures::future::{BoxFuture, ready};
use futures::{FutureExt, TryFutureExt};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Call, Effect, Output, Tool, ToolError, ToolResult, ToolSpec, read_arguments, schema_of};
use crate::files::Files;
use crate::files::permissions::Rules;
use session::Session;

pub use read::{DEFAULT_LIMIT, MAX_READ};

/// The names of the tools, as capability files use them.
pub const NAMES: [&str; 7] = ["ls", "read_file", "write_file", "edit_file", "delete", "glob", "grep"];

/// The tools of one agent over its files: `ls`, `read_file`, `write_file`, `edit_file`, `delete`, `glob`, `grep`. They
/// share what the agent has seen, so that each agent, and each attempt, gets its own.
#[must_use]
pub fn file_tools(files: Arc<dyn Files>, rules: Rules) -> Vec<Arc<dyn Tool>> {
    let session = Arc::new(Session::new(files, rules));
    vec![
        find::ls(&session),
        read::read_file(&session),
        change::write_file(&session),
        edit::edit_file(&session),
        delete::delete(&session),
        find::glob(&session),
        grep::grep(&session),
    ]
}

/// What runs a tool.
type Run<A> = for<'a> fn(&'a Session, A, &'a Call) -> BoxFuture<'a, Result<String, ToolError>>;
/// What a tool remembers of a recorded call.
type Remember<A> = fn(&Session, &A, &ToolResult, &Call);

struct FileTool<A> {
    spec: ToolSpec,
    effect: Effect,
    session: Arc<Session>,
    run: Run<A>,
    remember: Remember<A>,
}

impl<A: DeserializeOwned + JsonSchema + Send + 'static> FileTool<A> {
    /// A tool that changes nothing and remembers nothing.
    fn new(name: &str, description: &str, session: &Arc<Session>, run: Run<A>) -> Self {
        let spec =
            ToolSpec { name: name.to_owned(), description: description.to_owned(), schema: schema_of::<A>() };
        Self { spec, effect: Effect::Pure, session: session.clone(), run, remember: |_, _, _, _| {} }
    }
}

impl<A: DeserializeOwned + Send + 'static> Tool for FileTool<A> {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn effect(&self) -> Effect {
        self.effect
    }

    fn call<'a>(&'a self, arguments: Value, call: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        match read_arguments(&self.spec.name, arguments) {
            Ok(arguments) => (self.run)(&self.session, arguments, call).map_ok(Output::from).boxed(),
            Err(refusal) => ready(Err(refusal)).boxed(),
        }
    }

    fn bounds_itself(&self) -> bool {
        true
    }

    fn replayed(&self, arguments: &Value, result: &ToolResult, call: &Call) {
        if let Ok(arguments) = serde_json::from_value(arguments.clone()) {
            (self.remember)(&self.session, &arguments, result, call);
        }
    }
}
