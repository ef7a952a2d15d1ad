//! The tools: names, descriptions for models, the scopes that they need, and the JSON Schemas of arguments and results.

use std::sync::{Arc, LazyLock};

use millrace_protocol::token::{Scope, ScopeSet};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;

use super::arguments::{
    AnswerArguments, CancelArguments, EventsArguments, FileArguments, ListRunsArguments, MessageArguments,
    NoArguments, QuestionsArguments, ResumeArguments, RetryArguments, RunArguments, StartRunArguments,
    WaitArguments,
};
use super::results::{
    AnswerResult, CapabilitiesResult, CommandResult, EventsResult, FilesResult, RunsResult, StartedRun,
};
use crate::standards::run_view::{QuestionsView, RunView};

/// The tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolName {
    StartRun,
    WaitForRun,
    GetRun,
    ReadEvents,
    GetReport,
    ListRuns,
    ListQuestions,
    AnswerQuestion,
    MessageRun,
    PauseRun,
    ResumeRun,
    CancelRun,
    RetryTask,
    ListCapabilities,
    ListFiles,
    ReadFile,
}

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

impl ToolName {
    /// All tools, in the order of the list.
    pub const ALL: [Self; 16] = [
        Self::StartRun,
        Self::WaitForRun,
        Self::GetRun,
        Self::ReadEvents,
        Self::GetReport,
        Self::ListRuns,
        Self::ListQuestions,
        Self::AnswerQuestion,
        Self::MessageRun,
        Self::PauseRun,
        Self::ResumeRun,
        Self::CancelRun,
        Self::RetryTask,
        Self::ListCapabilities,
        Self::ListFiles,
        Self::ReadFile,
    ];

    /// Finds a tool by its name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }

    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::StartRun => "start_run",
            Self::WaitForRun => "wait_for_run",
            Self::GetRun => "get_run",
            Self::ReadEvents => "read_events",
            Self::GetReport => "get_report",
            Self::ListRuns => "list_runs",
            Self::ListQuestions => "list_questions",
            Self::AnswerQuestion => "answer_question",
            Self::MessageRun => "message_run",
            Self::PauseRun => "pause_run",
            Self::ResumeRun => "resume_run",
            Self::CancelRun => "cancel_run",
            Self::RetryTask => "retry_task",
            Self::ListCapabilities => "list_capabilities",
            Self::ListFiles => "list_files",
            Self::ReadFile => "read_file",
        }
    }

    /// The description for models.
    const fn description(self) -> &'static str {
        match self {
            Self::StartRun => {
                "Start a run: agents plan the objective, carry it out and write a deliverable with sources. Returns the id of the run at once; \
                 use wait_for_run next. Runs take minutes to days and survive restarts."
            }
            Self::WaitForRun => {
                "Wait until a run has ended, has a question for the user, or is paused, at most 50 seconds, and return its state. Call it again \
                 while `end` is absent and `open_questions` is empty."
            }
            Self::GetRun => "Read the state of a run: its tasks, last errors, usage and open questions.",
            Self::ReadEvents => {
                "Read the events of a run after a position, to see what happened since the last call. With timeout_seconds it waits for the \
                 next one. Nothing is lost between calls."
            }
            Self::GetReport => "Read the deliverable of a run that has ended, as Markdown with its sources.",
            Self::ListRuns => "List runs, newest first.",
            Self::ListQuestions => {
                "List the open questions of runs to persons: approvals of tool calls, inputs, reviews of results, approvals of plans. Ask the \
                 user; do not decide yourself."
            }
            Self::AnswerQuestion => {
                "Send the user's answer to an open question. The first answer counts; it can't be changed."
            }
            Self::MessageRun => {
                "Send a message to the planner of a run: a correction, an additional wish, a fact. The planner changes the plan."
            }
            Self::PauseRun => "Pause a run: running tasks finish, no new ones start.",
            Self::ResumeRun => {
                "Resume a run that is paused or interrupted, or that has ended and is resumable, with a larger budget if that was used up."
            }
            Self::CancelRun => "Cancel a run: its work stops. This can't be undone.",
            Self::RetryTask => "Retry a task of a run and everything that depends on it.",
            Self::ListCapabilities => {
                "List what the workers of the cluster can do: the capabilities for the tasks of a plan, with their parameters."
            }
            Self::ListFiles => "List the files that the agents of a run have written.",
            Self::ReadFile => "Read a text file that the agents of a run have written.",
        }
    }

    /// The scope that a caller needs.
    pub const fn scope(self) -> Scope {
        match self {
            Self::StartRun => Scope::Submit,
            Self::WaitForRun
            | Self::GetRun
            | Self::ReadEvents
            | Self::GetReport
            | Self::ListRuns
            | Self::ListQuestions
            | Self::ListCapabilities
            | Self::ListFiles
            | Self::ReadFile => Scope::Read,
            Self::AnswerQuestion => Scope::Answer,
            Self::MessageRun | Self::PauseRun | Self::ResumeRun | Self::CancelRun | Self::RetryTask => {
                Scope::Steer
            }
        }
    }

    const fn effect(self) -> Effect {
        match self {
            Self::WaitForRun
            | Self::GetRun
            | Self::ReadEvents
            | Self::GetReport
            | Self::ListRuns
            | Self::ListQuestions
            | Self::ListCapabilities
            | Self::ListFiles
            | Self::ReadFile => Effect::None,
            Self::StartRun | Self::AnswerQuestion | Self::MessageRun | Self::PauseRun | Self::ResumeRun => {
                Effect::Additive
            }
            Self::CancelRun | Self::RetryTask => Effect::Destructive,
        }
    }

    /// The JSON Schemas of the arguments, and of the result if it is structured.
    fn schemas(self) -> (JsonObject, Option<JsonObject>) {
        match self {
            Self::StartRun => (input::<StartRunArguments>(), output::<StartedRun>()),
            Self::WaitForRun => (input::<WaitArguments>(), output::<RunView>()),
            Self::GetRun => (input::<RunArguments>(), output::<RunView>()),
            Self::ReadEvents => (input::<EventsArguments>(), output::<EventsResult>()),
            Self::GetReport => (input::<RunArguments>(), None),
            Self::ListRuns => (input::<ListRunsArguments>(), output::<RunsResult>()),
            Self::ListQuestions => (input::<QuestionsArguments>(), output::<QuestionsView>()),
            Self::AnswerQuestion => (input::<AnswerArguments>(), output::<AnswerResult>()),
            Self::MessageRun => (input::<MessageArguments>(), output::<CommandResult>()),
            Self::PauseRun => (input::<RunArguments>(), output::<CommandResult>()),
            Self::ResumeRun => (input::<ResumeArguments>(), output::<CommandResult>()),
            Self::CancelRun => (input::<CancelArguments>(), output::<CommandResult>()),
            Self::RetryTask => (input::<RetryArguments>(), output::<CommandResult>()),
            Self::ListCapabilities => (input::<NoArguments>(), output::<CapabilitiesResult>()),
            Self::ListFiles => (input::<RunArguments>(), output::<FilesResult>()),
            Self::ReadFile => (input::<FileArguments>(), None),
        }
    }

    fn describe(self) -> Tool {
        let effect = self.effect();
        let annotations = ToolAnnotations::new()
            .read_only(effect == Effect::None)
            .destructive(effect == Effect::Destructive)
            .open_world(false);
        let (arguments, result) = self.schemas();
        let tool =
            Tool::new(self.name(), self.description(), Arc::new(arguments)).with_annotations(annotations);
        match result {
            Some(result) => tool.with_raw_output_schema(Arc::new(result)),
            None => tool,
        }
    }
}

/// Returns the tools that a caller with these scopes can use.
pub fn list_tools(scopes: &ScopeSet) -> Vec<Tool> {
    static TOOLS: LazyLock<Vec<(Scope, Tool)>> =
        LazyLock::new(|| ToolName::ALL.map(|tool| (tool.scope(), tool.describe())).into());
    let usable = TOOLS.iter().filter(|(scope, _)| scopes.contains(*scope));
    usable.map(|(_, tool)| tool.clone()).collect()
}

/// References are resolved: not every client follows them.
fn settings() -> SchemaSettings {
    SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    })
}

fn input<T: JsonSchema>() -> JsonObject {
    object_of(settings().for_deserialize().into_generator().into_root_schema_for::<T>())
}

fn output<T: JsonSchema>() -> Option<JsonObject> {
    Some(object_of(settings().for_serialize().into_generator().into_root_schema_for::<T>()))
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
        for tool in ToolName::ALL {
            assert_eq!(ToolName::find(tool.name()), Some(tool));
            let described = tool.describe();
            let schemas = [Some(described.input_schema), described.output_schema];
            for schema in schemas.into_iter().flatten() {
                let schema = Value::Object((*schema).clone());
                assert!(jsonschema::meta::is_valid(&schema), "{}: {schema:#}", tool.name());
                assert_eq!(schema["type"], "object", "{}", tool.name());
                assert!(!schema.to_string().contains("$ref"), "{}: {schema:#}", tool.name());
                for (name, property) in schema["properties"].as_object().unwrap() {
                    let text = property["description"].as_str().unwrap_or_default();
                    assert!(text.ends_with('.'), "{} {name}: {text:?}", tool.name());
                }
            }
        }
    }

    #[test]
    fn caller_who_may_only_read_sees_no_tool_that_writes() {
        let tools = list_tools(&ScopeSet::from_iter([Scope::Read]));
        assert_eq!(tools.len(), 9);
        assert!(tools.iter().all(|tool| tool.annotations.as_ref().unwrap().read_only_hint == Some(true)));
        assert_eq!(list_tools(&ScopeSet::all()).len(), ToolName::ALL.len());
    }
}
