//! Tools: what a model may do besides writing. This file owns the interface, the toolbox and the typed helper; the
//! tools themselves stand in the files beside it. A tool never sees arguments that break its schema, and nothing a
//! tool does may crash the agent.

mod arguments;
mod consult;
mod documents;
pub mod files;
mod inner;
mod purse;
mod results;
mod small;
mod specs;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::result::{ModelUsage, Usage};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use arguments::read_json;
pub use consult::{Consultants, consult};
pub use documents::{MAX_PASSAGES, MAX_READ_CHARS, MAX_READ_LINES, read_document, search_documents};
pub(crate) use documents::{no_document, passages};
pub(crate) use inner::{AppendNote, ReadNotes, Think, WriteTodos};
pub use inner::{
    Inner, MAX_NOTE, MAX_NOTES_READ, MAX_TODOS, Todo, TodoStatus, append_note, read_notes, think, write_todos,
};
pub use millrace_protocol::schema::check;
pub use purse::{Opened, Purse};
pub use results::{
    DEFAULT_RESULT_CHARS, MAX_RESULT_CHARS, ResultEntry, Results, get_task_result, list_completed_tasks,
};
pub(crate) use results::{Shown, head_and_tail};
pub use small::now;
pub(crate) use specs::Readable;
pub use specs::Specs;

pub use crate::model::{ToolResult, ToolSpec};

/// Something a model can call.
pub trait Tool: Send + Sync {
    /// What the model is told of it.
    fn spec(&self) -> ToolSpec;

    /// What running it twice would do.
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    /// Whether its results keep within a bound of their own, at most some 100,000 characters. A long result of any
    /// other tool is put aside, and the model sees its two ends.
    fn bounds_itself(&self) -> bool {
        false
    }

    /// The tool that the machine answers itself, where it is one; then it is never called.
    fn inner(&self) -> Option<Inner> {
        None
    }

    /// Runs it once. `arguments` have passed [`check`] against the tool's schema.
    ///
    /// # Errors
    /// See [`ToolError`]; which kind it is decides whether the model goes on.
    fn call<'a>(&'a self, arguments: Value, call: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>>;

    /// Told, in place of [`Tool::call`], of a call that was made before the work was taken up again, with what came of
    /// it: a tool that remembers something between calls remembers it again.
    fn replayed(&self, arguments: &Value, result: &ToolResult, call: &Call) {
        let _ = (arguments, result, call);
    }
}

/// What running a call twice would do. Decides what becomes of a call that was begun and whose result is not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Nothing: it changes nothing outside. It is run again.
    Pure,
    /// Nothing more: it recognises the key of its call. It is run again, with the same key.
    Idempotent,
    /// It would change something twice. It is not run again: the model is told that its outcome is unknown.
    Effect,
}

impl Effect {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pure, Self::Idempotent, Self::Effect];

    /// Its name in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pure => "pure",
            Self::Idempotent => "idempotent",
            Self::Effect => "effect",
        }
    }
}

/// Which call a tool is running.
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// The same each time this very call is run, on whatever machine, and that of no other call:
    /// `<run>/<task>/<attempt>/<turn>.<index>`.
    pub key: String,
    /// The turn of the conversation it stands in, from 0. Calls of one turn run at once.
    pub turn: u64,
    /// When there is no use any more in going on.
    pub deadline: Option<Instant>,
    /// What the calls of the turn may use of models together: who asks one opens it first and pays from it.
    pub purse: Purse,
}

/// What a tool gives back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// What the model reads.
    pub text: String,
    /// What it took of the things that cost money.
    pub usage: Usage,
    /// Of this, what was used of models, by their full names.
    pub models: ModelUsage,
}

impl From<String> for Output {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}

/// Why a tool gave no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// The call makes no sense as it is. The model reads the text and can do better.
    #[error("{0}")]
    Refused(String),
    /// The tool tried and failed. The model reads `told` and can go on without it; `detail` is for the operator.
    #[error("{told} ({detail})")]
    Failed {
        /// What the model reads.
        told: String,
        /// What the operator reads.
        detail: String,
    },
    /// What the tool rests on can't be reached. The attempt is given back, and whoever goes on with it makes the call
    /// again.
    #[error("{0}")]
    Unavailable(String),
}

/// Two tools of one name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("two tools are called {0:?}; give one of them another name")]
pub struct DuplicateTool(pub String);

/// The tools of one agent, by name.
#[derive(Clone, Default)]
pub struct Toolbox {
    tools: BTreeMap<String, Arc<dyn Tool>>,
}

impl Toolbox {
    /// A toolbox with these tools.
    ///
    /// # Errors
    /// Two of them have one name.
    pub fn new(tools: impl IntoIterator<Item = Arc<dyn Tool>>) -> Result<Self, DuplicateTool> {
        let mut toolbox = Self::default();
        for tool in tools {
            toolbox.add(tool)?;
        }
        Ok(toolbox)
    }

    /// Adds a tool.
    ///
    /// # Errors
    /// There is one of that name already.
    pub fn add(&mut self, tool: Arc<dyn Tool>) -> Result<(), DuplicateTool> {
        let name = tool.spec().name;
        if self.tools.contains_key(&name) {
            return Err(DuplicateTool(name));
        }
        self.tools.insert(name, tool);
        Ok(())
    }

    /// What the model is told of the tools, by name.
    #[must_use]
    pub fn specs(&self) -> Specs {
        Specs::new(self.tools.values().map(|tool| (tool.spec(), tool.inner())))
    }

    /// The tool of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&dyn Tool> {
        self.tools.get(name).map(AsRef::as_ref)
    }
}

/// A pure tool from its name, what it does, and a function of typed arguments. The schema is that of `A`, whose
/// comments become the descriptions; let `A` deny unknown fields.
pub fn typed<A, F, R>(name: &str, description: &str, run: F) -> Arc<dyn Tool>
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    F: Fn(A, Call) -> R + Send + Sync + 'static,
    R: Future<Output = Result<String, ToolError>> + Send + 'static,
{
    typed_as(Effect::Pure, name, description, run)
}

/// As [`typed`], for a tool that is not pure.
pub fn typed_as<A, F, R>(effect: Effect, name: &str, description: &str, run: F) -> Arc<dyn Tool>
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    F: Fn(A, Call) -> R + Send + Sync + 'static,
    R: Future<Output = Result<String, ToolError>> + Send + 'static,
{
    let spec =
        ToolSpec { name: name.to_owned(), description: description.to_owned(), schema: schema_of::<A>() };
    Arc::new(Typed { spec, effect, run, arguments: std::marker::PhantomData })
}

/// The arguments of a call as a type. What does not fit is told to the model.
///
/// # Errors
/// They do not fit the type, though they passed the schema.
pub fn read_arguments<A: DeserializeOwned>(tool: &str, arguments: Value) -> Result<A, ToolError> {
    serde_json::from_value(arguments)
        .map_err(|mistake| ToolError::Refused(format!("the arguments of {tool} do not fit: {mistake}")))
}

/// The JSON Schema of a type as models want it: everything in place, no references unless the type contains
/// itself.
#[must_use]
pub fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

struct Typed<A, F> {
    spec: ToolSpec,
    effect: Effect,
    run: F,
    arguments: std::marker::PhantomData<fn(A)>,
}

impl<A, F, R> Tool for Typed<A, F>
where
    A: DeserializeOwned + Send + 'static,
    F: Fn(A, Call) -> R + Send + Sync,
    R: Future<Output = Result<String, ToolError>> + Send + 'static,
{
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn effect(&self) -> Effect {
        self.effect
    }

    fn call<'a>(&'a self, arguments: Value, call: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        match read_arguments(&self.spec.name, arguments) {
            Ok(arguments) => (self.run)(arguments, call.clone()).map(|done| done.map(Output::from)).boxed(),
            Err(refusal) => futures::future::ready(Err(refusal)).boxed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Greet {
        /// Who is greeted.
        name: String,
    }

    fn greet() -> Arc<dyn Tool> {
        typed("greet", "Greets.", |Greet { name }: Greet, _| async move { Ok(format!("hello {name}")) })
    }

    #[tokio::test]
    async fn a_typed_tool_has_the_schema_of_its_arguments_and_runs_with_them() {
        let tool = greet();
        let schema = tool.spec().schema;
        assert_eq!(schema["properties"]["name"]["description"], "Who is greeted.");
        assert_eq!(schema["required"], json!(["name"]));
        assert_eq!(schema["additionalProperties"], json!(false));
        assert_eq!(tool.call(json!({"name": "you"}), &Call::default()).await.unwrap().text, "hello you");
        assert!(matches!(
            tool.call(json!({"nome": "you"}), &Call::default()).await,
            Err(ToolError::Refused(_))
        ));
    }

    #[test]
    fn two_tools_of_one_name_are_refused() {
        let refusal = Toolbox::new([greet(), greet()]).err().unwrap();
        assert_eq!(refusal, DuplicateTool("greet".into()));
    }
}
