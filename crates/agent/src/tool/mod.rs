//! Tools that a model can call. This file owns the interface, the toolbox and the helper for typed arguments; the tools
//! themselves are in the other files of this folder. A tool only gets arguments that fit its schema, and a panic in a tool
//! does not end the agent.

mod children;
mod consult;
mod delegation;
mod documents;
pub mod files;
mod inner;
mod results;
mod specs;
mod waiting;

use std::collections::BTreeMap;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::child::Delegation;
use millrace_protocol::foreign_json::plain_json_error;
use millrace_protocol::plan::{ResourceAmounts, TaskSpec};
use millrace_protocol::result::{ModelUsage, Usage};
use millrace_protocol::wait::{WaitCondition, WaitEnd};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::corpus::pages::PageContent;
use crate::files::{AgentFiles, FileChanges};

use crate::turn::{ArtifactChange, ForkedConversation};

pub use children::{ChildLimits, ChildTasks};
pub use consult::{ConsultableCapabilities, consult_tool};
pub use consult::{ModelCallBudget, ModelCallBudgetGuard};
pub use delegation::{
    cancel_child_tool, check_task_tool, list_tasks_tool, message_task_tool, start_task_tool, task_tool,
    wait_for_tool,
};
pub use documents::{
    MAX_PASSAGES, MAX_READ_CHARS, MAX_READ_LINES, ReadableDocuments, read_document_tool,
    search_documents_tool,
};
pub(crate) use documents::{find_passages, list_shown_lines, parse_numbered_lines, unknown_document_error};
pub(crate) use inner::APPEND_NOTE_NAME;
pub use inner::now_tool;
pub(crate) use inner::{AppendNoteArguments, ReadNotesArguments, ThinkArguments, WriteTodosArguments};
pub use inner::{
    InnerTool, MAX_NOTE, MAX_NOTES_READ, MAX_TODOS, Todo, TodoStatus, append_note_tool,
    compact_conversation_tool, read_notes_tool, think_tool, write_todos_tool,
};
pub use millrace_protocol::schema::check_value_against_schema;
pub use results::{
    DEFAULT_RESULT_CHARS, MAX_RESULT_CHARS, ResultEntry, TaskResultSource, get_task_result_tool,
    list_completed_tasks_tool,
};
pub(crate) use results::{ResultView, keep_head_and_tail};
pub use specs::ToolSpecs;
pub(crate) use specs::ValidatedCall;
pub(crate) use specs::parse_lenient_json;
pub use waiting::ask_user_tool;
pub(crate) use waiting::{CONTINUE_AT_FIRST, describe_wait_end};
pub use waiting::{continue_at_first_tool, sleep_for_tool, sleep_until_tool, wait_for_event_tool};

pub use crate::model::{Image, ToolResult, ToolSpec};

/// A tool that a model can call.
pub trait Tool: Send + Sync {
    /// The name, description and schema for the model.
    fn spec(&self) -> ToolSpec;

    /// The effect of running it twice.
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    /// `true` if the tool limits its results itself, to at most about 100,000 characters. A longer result of any other
    /// tool is stored in a file, and the model sees both ends of it.
    fn has_bounded_output(&self) -> bool {
        false
    }

    /// `true` if its outputs name all that it changes, the files, so that one without files has changed nothing.
    fn names_its_changes(&self) -> bool {
        false
    }

    /// `true` if its outputs have web pages, which can be cited.
    fn reads_pages(&self) -> bool {
        false
    }

    /// The reason for which a call with these arguments needs a person's approval; `None` if it needs none by itself. The rules of
    /// a capability may ask for more.
    fn approval_reason(&self, arguments: &Value) -> Option<String> {
        let _ = arguments;
        None
    }

    /// The inner tool that this is, if it is one; the machine answers it, and `call` is never called.
    fn inner(&self) -> Option<InnerTool> {
        None
    }

    /// Runs it once. `arguments` have passed [`check_value_against_schema`] against the tool's schema.
    ///
    /// # Errors
    /// See [`ToolError`]; its kind decides whether the model can continue.
    fn call<'a>(&'a self, arguments: Value, call: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>>;

    /// The tool for one attempt with these files, if it works on files; `None` if one tool serves all attempts.
    fn for_attempt(&self, files: &AgentFiles) -> Option<Arc<dyn Tool>> {
        let _ = files;
        None
    }

    /// The number of tasks that a call delegates: the amounts that the attempt has left are shared among them.
    fn delegated_tasks(&self) -> u32 {
        0
    }

    /// The result of a call that has waited, after the end of its wait.
    ///
    /// # Errors
    /// As for [`Tool::call`]; it must not wait again.
    fn end_wait<'a>(
        &'a self,
        arguments: Value,
        end: &'a WaitEnd,
        call: &'a Call,
    ) -> BoxFuture<'a, Result<Output, ToolError>> {
        let _ = (arguments, call);
        futures::future::ready(Ok(describe_wait_end(end).into())).boxed()
    }

    /// Called on resume, instead of [`Tool::call`], for each recorded call with its result: a tool that keeps state
    /// between calls restores it here.
    fn on_replay(&self, arguments: &Value, result: &ToolResult, call: &Call) {
        let _ = (arguments, result, call);
    }
}

/// The effect of running a call twice. Decides what happens to a call that began and has no recorded result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// None: it changes nothing outside. It is run again.
    Pure,
    /// None: it recognises the key of its call. It is run again with the same key.
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

/// The context of a tool call.
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// The idempotency key: the same whenever this call is run, on any machine, and unique to it:
    /// `<run>/<task>/<attempt>/<turn>.<index>`.
    pub key: String,
    /// The turn of the conversation, from 0. Calls of one turn run concurrently.
    pub turn: u64,
    /// The time after which the result is no longer needed.
    pub deadline: Option<Instant>,
    /// The model usage that the calls of the turn may have together: a tool that calls a model locks and charges it.
    pub budget: ModelCallBudget,
    /// `true` if a person has approved it.
    pub is_approved: bool,
    /// The index of the call among those of its turn.
    pub index: usize,
    /// The budget of a task that the call delegates, at most: its share of what is left.
    pub share: ResourceAmounts,
    /// The conversation, forked at this call; only for tools that delegate tasks.
    pub fork: Option<Arc<ForkedConversation>>,
}

/// The output of a tool.
#[derive(Debug, Default)]
pub struct Output {
    /// The text for the model.
    pub text: String,
    /// The usage that costs money.
    pub usage: Usage,
    /// The part of it by full model name.
    pub models: ModelUsage,
    /// The usage of delegated tasks that counts against the limits of the attempt. Those tasks report it.
    pub delegated: Usage,
    /// The changes of the attempt's children. They are in the journal before the result is.
    pub delegation: Option<Box<Delegation>>,
    /// The files that the call changed.
    pub artifacts: Vec<ArtifactChange>,
    /// The changes in a program's working folder. They are in the journal before they are written.
    pub changes: Option<Box<FileChanges>>,
    /// The web page that was read. It is kept, and can be cited like a document.
    pub page: Option<Box<PageContent>>,
    /// The images that belong to the text, with their bytes. They are stored before the result is recorded.
    pub images: Vec<Image>,
}

impl From<String> for Output {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}

/// The reason that a tool gave no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// The call is invalid. The model reads the text and can correct it.
    #[error("{0}")]
    Refused(String),
    /// The tool failed. The model reads `message` and can continue without it; `detail` is for the operator.
    #[error("{message} ({detail})")]
    Failed {
        /// The text for the model.
        message: String,
        /// The text for the operator.
        detail: String,
    },
    /// A service that the tool needs is unavailable. The attempt is given back, and the worker that resumes it repeats
    /// the call.
    #[error("{0}")]
    Unavailable(String),
    /// The call waits for something outside. The attempt is parked; the end of the wait is the result of the call.
    #[error("the call waits for {0}")]
    Waits(WaitCondition),
    /// The call delegates this task and waits for its end, as [`ToolError::Waits`] does.
    #[error("the call waits for the task {}", .0.id)]
    Delegates(Box<TaskSpec>),
    /// Delegated tasks did not succeed. The model reads the text; `delegated` counts against the limits of the attempt.
    #[error("{text}")]
    Lost {
        /// The text for the model.
        text: String,
        /// The usage of the tasks.
        delegated: Usage,
    },
}

/// Two tools have the same name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("two tools are named {0:?}; rename one of them")]
pub struct DuplicateToolName(pub String);

/// The tools of one agent, by name.
#[derive(Clone, Default)]
pub struct Toolbox {
    tools: BTreeMap<String, Arc<dyn Tool>>,
}

impl Toolbox {
    /// A toolbox with these tools.
    pub fn new(tools: impl IntoIterator<Item = Arc<dyn Tool>>) -> Result<Self, DuplicateToolName> {
        let mut toolbox = Self::default();
        for tool in tools {
            toolbox.add(tool)?;
        }
        Ok(toolbox)
    }

    /// Adds a tool.
    pub fn add(&mut self, tool: Arc<dyn Tool>) -> Result<(), DuplicateToolName> {
        let name = tool.spec().name;
        if self.tools.contains_key(&name) {
            return Err(DuplicateToolName(name));
        }
        self.tools.insert(name, tool);
        Ok(())
    }

    /// The specs of the tools for the model, by name.
    pub fn specs(&self) -> ToolSpecs {
        ToolSpecs::new(self.tools.values().map(|tool| (tool.spec(), tool.inner())))
    }

    /// Returns the tool of this name.
    pub fn get(&self, name: &str) -> Option<&dyn Tool> {
        self.tools.get(name).map(AsRef::as_ref)
    }
}

/// Builds a pure tool from its name, its description, and a function of typed arguments. The schema is that of `A`, whose
/// doc comments become the descriptions; `A` should deny unknown fields.
pub fn tool_from_function<A, F, R>(name: &str, description: &str, run: F) -> Arc<dyn Tool>
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    F: Fn(A, Call) -> R + Send + Sync + 'static,
    R: Future<Output = Result<String, ToolError>> + Send + 'static,
{
    tool_with_effect(Effect::Pure, name, description, run)
}

/// Like [`typed`], for a tool that is not pure.
pub fn tool_with_effect<A, F, R>(effect: Effect, name: &str, description: &str, run: F) -> Arc<dyn Tool>
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    F: Fn(A, Call) -> R + Send + Sync + 'static,
    R: Future<Output = Result<String, ToolError>> + Send + 'static,
{
    Arc::new(TypedTool { spec: typed_spec::<A>(name, description), effect, run, arguments: PhantomData })
}

/// Like [`tool_from_function`], for outputs with more than a text.
pub(crate) fn tool_with_output<A, F, R>(name: &str, description: &str, run: F) -> Arc<dyn Tool>
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    F: Fn(A, Call) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Output, ToolError>> + Send + 'static,
{
    let spec = typed_spec::<A>(name, description);
    Arc::new(TypedTool { spec, effect: Effect::Pure, run, arguments: PhantomData })
}

fn typed_spec<A: JsonSchema>(name: &str, description: &str) -> ToolSpec {
    ToolSpec { name: name.to_owned(), description: description.into(), schema: schema_of::<A>().into() }
}

/// Deserialises the arguments of a call. Mistakes are reported to the model.
pub fn read_arguments<A: DeserializeOwned>(tool: &str, arguments: Value) -> Result<A, ToolError> {
    serde_json::from_value(arguments).map_err(|mistake| {
        ToolError::Refused(format!(
            "the arguments of {tool} do not fit: {}",
            plain_json_error(&mistake.to_string())
        ))
    })
}

/// The JSON Schema of a type in the form that models expect: everything inline, no references unless the type is
/// recursive.
#[must_use]
pub fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

struct TypedTool<A, F> {
    spec: ToolSpec,
    effect: Effect,
    run: F,
    arguments: PhantomData<fn(A)>,
}

impl<A, F, R, T> Tool for TypedTool<A, F>
where
    A: DeserializeOwned + Send + 'static,
    F: Fn(A, Call) -> R + Send + Sync,
    R: Future<Output = Result<T, ToolError>> + Send + 'static,
    T: Into<Output>,
{
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn effect(&self) -> Effect {
        self.effect
    }

    fn call<'a>(&'a self, arguments: Value, call: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        match read_arguments(&self.spec.name, arguments) {
            Ok(arguments) => (self.run)(arguments, call.clone()).map(|done| done.map(Into::into)).boxed(),
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
    struct GreetArguments {
        /// The person to greet.
        name: String,
    }

    fn greet_tool() -> Arc<dyn Tool> {
        tool_from_function("greet", "Greets.", |GreetArguments { name }: GreetArguments, _| async move {
            Ok(format!("hello {name}"))
        })
    }

    #[tokio::test]
    async fn a_typed_tool_has_the_schema_of_its_arguments() {
        let tool = greet_tool();
        let schema = tool.spec().schema;
        assert_eq!(schema["properties"]["name"]["description"], "The person to greet.");
        assert_eq!(schema["required"], json!(["name"]));
        assert_eq!(schema["additionalProperties"], json!(false));
        assert_eq!(tool.call(json!({"name": "you"}), &Call::default()).await.unwrap().text, "hello you");
        assert!(matches!(
            tool.call(json!({"nome": "you"}), &Call::default()).await,
            Err(ToolError::Refused(_))
        ));
    }

    #[test]
    fn tools_of_the_same_name_are_refused() {
        let refusal = Toolbox::new([greet_tool(), greet_tool()]).err().unwrap();
        assert_eq!(refusal, DuplicateToolName("greet".into()));
    }
}
