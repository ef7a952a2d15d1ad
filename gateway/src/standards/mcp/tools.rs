//! The tools, as a table: names, descriptions for models, the scopes that they need, and their calls. The JSON Schemas of arguments and
//! results come from the types of the calls.

use std::sync::{Arc, LazyLock};

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::foreign_json::plain_json_error;
use millrace_protocol::token::{Scope, ScopeSet};
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::calls::{
    Call, answer_question, cancel_run, get_report, get_run, list_capabilities, list_files, list_questions,
    list_runs, message_run, pause_run, read_events, read_file, resume_run, retry_task, start_run,
    verify_text, wait_for_run,
};
use crate::problem::Problem;

/// The tool that starts a run, which may be a task of the client.
pub const START_RUN: &str = "start_run";

/// The consequences of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// It reads.
    None,
    /// It adds something.
    Additive,
    /// It ends work, or changes what is there.
    Destructive,
}

type Outcome = Result<CallToolResult, Problem>;

pub struct McpTool {
    tool: Tool,
    scope: Scope,
    call: Box<dyn Fn(Call, JsonObject) -> BoxFuture<'static, Outcome> + Send + Sync>,
}

impl McpTool {
    /// Creates a tool with a structured result.
    fn new<A, R, F>(
        (name, scope, effect): (&'static str, Scope, Effect),
        description: &'static str,
        run: impl Fn(Call, A) -> F + Send + Sync + Copy + 'static,
    ) -> Self
    where
        A: DeserializeOwned + JsonSchema,
        R: Serialize + JsonSchema + 'static,
        F: Future<Output = Result<R, Problem>> + Send + 'static,
    {
        // A result as JSON, and as its text for clients that know no other.
        let structured = |result: R| CallToolResult::structured(millrace_views::to_value(&result));
        let Self { tool, scope, call } = Self::of_calls((name, scope, effect), description, run, structured);
        let result = settings().for_serialize().into_generator().into_root_schema_for::<R>();
        Self { tool: tool.with_raw_output_schema(Arc::new(object_of(result))), scope, call }
    }

    /// Creates a tool whose result is a text.
    fn of_text<A, F>(
        (name, scope, effect): (&'static str, Scope, Effect),
        description: &'static str,
        run: impl Fn(Call, A) -> F + Send + Sync + Copy + 'static,
    ) -> Self
    where
        A: DeserializeOwned + JsonSchema,
        F: Future<Output = Result<String, Problem>> + Send + 'static,
    {
        let text = |text: String| CallToolResult::success(vec![ContentBlock::text(text)]);
        Self::of_calls((name, scope, effect), description, run, text)
    }

    fn of_calls<A, R: 'static, F>(
        (name, scope, effect): (&'static str, Scope, Effect),
        description: &'static str,
        run: impl Fn(Call, A) -> F + Send + Sync + Copy + 'static,
        result: fn(R) -> CallToolResult,
    ) -> Self
    where
        A: DeserializeOwned + JsonSchema,
        F: Future<Output = Result<R, Problem>> + Send + 'static,
    {
        let arguments = settings().for_deserialize().into_generator().into_root_schema_for::<A>();
        let annotations = ToolAnnotations::new()
            .read_only(effect == Effect::None)
            .destructive(effect == Effect::Destructive)
            .open_world(false);
        let tool = Tool::new(name, description, Arc::new(object_of(arguments))).with_annotations(annotations);
        let call = move |call, arguments| match parse(arguments) {
            Ok(arguments) => run(call, arguments).map(move |outcome| outcome.map(result)).boxed(),
            Err(problem) => std::future::ready(Err(problem)).boxed(),
        };
        Self { tool, scope, call: Box::new(call) }
    }

    /// Carries out a call. A refusal is a result that the model reads.
    pub async fn call(&self, call: Call, arguments: JsonObject) -> CallToolResult {
        let outcome = match call.operator.with(self.scope) {
            Ok(_) => (self.call)(call, arguments).await,
            Err(problem) => Err(problem),
        };
        outcome.unwrap_or_else(|problem| error_result(&problem))
    }
}

/// The tools, in the order of the list.
static TOOLS: LazyLock<[McpTool; 17]> = LazyLock::new(|| {
    [
        McpTool::new(
            (START_RUN, Scope::Submit, Effect::Additive),
            "Start a run: agents plan the objective, carry it out and write a deliverable with sources. Returns the id of the run at once; \
             use wait_for_run next. Runs take minutes to days and survive restarts.",
            start_run,
        ),
        McpTool::new(
            ("wait_for_run", Scope::Read, Effect::None),
            "Wait until a run has ended, has a question for the user, or is paused, at most 50 seconds, and return its state. Call it again \
             while `end` is absent and `open_questions` is empty.",
            wait_for_run,
        ),
        McpTool::new(
            ("verify_text", Scope::Submit, Effect::Additive),
            "Verify a text: compare each of its statements with documents, and return the verdicts with their lines and reasons. It is a run; \
             it waits at most 50 seconds. If its state is not ended then, call it again with the same arguments and key, or use wait_for_run \
             and get_report, whose footnotes are the verdicts.",
            verify_text,
        ),
        McpTool::new(
            ("get_run", Scope::Read, Effect::None),
            "Read the state of a run: its tasks, last errors, usage and open questions.",
            get_run,
        ),
        McpTool::new(
            ("read_events", Scope::Read, Effect::None),
            "Read the events of a run after a position, to see what happened since the last call. With timeout_seconds it waits for the \
             next one. Nothing is lost between calls.",
            read_events,
        ),
        McpTool::of_text(
            ("get_report", Scope::Read, Effect::None),
            "Read the deliverable of a run that has ended, as Markdown with its sources.",
            get_report,
        ),
        McpTool::new(("list_runs", Scope::Read, Effect::None), "List runs, newest first.", list_runs),
        McpTool::new(
            ("list_questions", Scope::Read, Effect::None),
            "List the open questions of runs to persons: approvals of tool calls, inputs, reviews of results, approvals of plans. Ask the \
             user; do not decide yourself.",
            list_questions,
        ),
        McpTool::new(
            ("answer_question", Scope::Answer, Effect::Additive),
            "Send the user's answer to an open question. The first answer counts; it can't be changed.",
            answer_question,
        ),
        McpTool::new(
            ("message_run", Scope::Steer, Effect::Additive),
            "Send a message to the planner of a run: a correction, an additional wish, a fact. The planner changes the plan.",
            message_run,
        ),
        McpTool::new(
            ("pause_run", Scope::Steer, Effect::Additive),
            "Pause a run: running tasks finish, no new ones start.",
            pause_run,
        ),
        McpTool::new(
            ("resume_run", Scope::Steer, Effect::Additive),
            "Resume a run that is paused or interrupted, or that has ended and is resumable, with a larger budget if that was used up.",
            resume_run,
        ),
        McpTool::new(
            ("cancel_run", Scope::Steer, Effect::Destructive),
            "Cancel a run: its work stops. This can't be undone.",
            cancel_run,
        ),
        McpTool::new(
            ("retry_task", Scope::Steer, Effect::Destructive),
            "Retry a task of a run and everything that depends on it.",
            retry_task,
        ),
        McpTool::new(
            ("list_capabilities", Scope::Read, Effect::None),
            "List what the workers of the cluster can do: the capabilities for the tasks of a plan, with their parameters.",
            list_capabilities,
        ),
        McpTool::new(
            ("list_files", Scope::Read, Effect::None),
            "List the files that the agents of a run have written.",
            list_files,
        ),
        McpTool::of_text(
            ("read_file", Scope::Read, Effect::None),
            "Read a text file that the agents of a run have written.",
            read_file,
        ),
    ]
});

pub fn find_tool(name: &str) -> Option<&'static McpTool> {
    TOOLS.iter().find(|tool| tool.tool.name == name)
}

/// Returns the tools that a caller with these scopes can use.
pub fn list_tools(scopes: &ScopeSet) -> Vec<Tool> {
    TOOLS.iter().filter(|tool| scopes.contains(tool.scope)).map(|tool| tool.tool.clone()).collect()
}

/// Returns a refusal as a result, for the model to read.
pub fn error_result(problem: &Problem) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(problem.detail().to_owned())])
}

/// Parses the arguments of a call, and names the field of a mistake.
pub fn parse<T: DeserializeOwned>(arguments: JsonObject) -> Result<T, Problem> {
    serde_path_to_error::deserialize(Value::Object(arguments)).map_err(|error| {
        let place = error.path().to_string();
        let place = if place == "." { String::new() } else { format!("{place}: ") };
        let mistake = plain_json_error(&error.into_inner().to_string());
        Problem::invalid(format!("the arguments are invalid: {place}{mistake}"))
    })
}

/// References are resolved: not every client follows them.
fn settings() -> SchemaSettings {
    SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    })
}

fn object_of(schema: schemars::Schema) -> JsonObject {
    let mut object = schema.to_value().as_object().cloned().unwrap_or_default();
    // The description is that of the tool, and the title the name of a type.
    object.remove("title");
    object.remove("description");
    object.entry("properties").or_insert_with(|| JsonObject::new().into());
    object
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn every_tool_has_valid_schemas_without_references() {
        for tool in list_tools(&ScopeSet::all()) {
            let name = tool.name;
            assert!(find_tool(&name).is_some());
            let schemas = [Some(tool.input_schema), tool.output_schema];
            for schema in schemas.into_iter().flatten() {
                let schema = Value::Object((*schema).clone());
                assert!(jsonschema::meta::is_valid(&schema), "{}: {schema:#}", name);
                assert_eq!(schema["type"], "object", "{}", name);
                assert!(!schema.to_string().contains("$ref"), "{}: {schema:#}", name);
                for (name, property) in schema["properties"].as_object().unwrap() {
                    let text = property["description"].as_str().unwrap_or_default();
                    assert!(text.ends_with('.'), "{} {name}: {text:?}", name);
                }
            }
        }
    }

    #[test]
    fn no_tool_makes_administrative_changes() {
        // They are recorded in the audit: a tool that makes one belongs in the test of the surfaces that do.
        assert!(TOOLS.iter().all(|tool| tool.scope != Scope::Admin));
    }

    #[test]
    fn caller_who_may_only_read_sees_no_tool_that_writes() {
        let tools = list_tools(&ScopeSet::from_iter([Scope::Read]));
        assert_eq!(tools.len(), 9);
        assert!(tools.iter().all(|tool| tool.annotations.as_ref().unwrap().read_only_hint == Some(true)));
        assert_eq!(list_tools(&ScopeSet::all()).len(), TOOLS.len());
    }
}
