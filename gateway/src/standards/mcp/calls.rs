//! Calls of tools: each sends requests to the API.

use std::time::Duration;

use millrace_protocol::foreign_json::plain_json_error;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::arguments::{
    AnswerArguments, CancelArguments, EventsArguments, FileArguments, ListRunsArguments, MAX_EVENTS,
    MAX_WAIT, MessageArguments, NoArguments, QuestionsArguments, ResumeArguments, RetryArguments,
    RunArguments, StartRunArguments, WaitArguments,
};
use super::results::{
    AnswerResult, CapabilitiesResult, CommandResult, EventsResult, FilesResult, RunsResult, StartedRun,
};
use super::tools::ToolName;
use crate::standards::api::{ApiClient, ApiProblem, encode_part, encode_path};
use crate::standards::events::{RunEvent, RunEvents};
use crate::standards::run_view::{QuestionsView, ReportProgress, RunView};
use crate::standards::submission::{SubmittedDocument, submit_run};

/// The longest text of a result, in bytes: a file may be larger than a conversation.
const MAX_TEXT: usize = 400_000;

/// Carries out a call. A refusal is a result that the model reads.
pub async fn call_tool(
    tool: ToolName,
    arguments: JsonObject,
    api: &ApiClient,
    progress: &(impl ReportProgress + Sync),
) -> CallToolResult {
    let outcome = match tool {
        ToolName::StartRun => start_run(api, arguments).await.map(structured),
        ToolName::WaitForRun => wait_for_run(api, arguments, progress).await.map(structured),
        ToolName::GetRun => get_run(api, arguments).await.map(structured),
        ToolName::ReadEvents => read_events(api, arguments).await.map(structured),
        ToolName::GetReport => get_report(api, arguments).await.map(text),
        ToolName::ListRuns => list_runs(api, arguments).await.map(structured),
        ToolName::ListQuestions => list_questions(api, arguments).await.map(structured),
        ToolName::AnswerQuestion => answer_question(api, arguments).await.map(structured),
        ToolName::MessageRun => message_run(api, arguments).await.map(structured),
        ToolName::PauseRun => pause_run(api, arguments).await.map(structured),
        ToolName::ResumeRun => resume_run(api, arguments).await.map(structured),
        ToolName::CancelRun => cancel_run(api, arguments).await.map(structured),
        ToolName::RetryTask => retry_task(api, arguments).await.map(structured),
        ToolName::ListCapabilities => list_capabilities(api, arguments).await.map(structured),
        ToolName::ListFiles => list_files(api, arguments).await.map(structured),
        ToolName::ReadFile => read_file(api, arguments).await.map(text),
    };
    outcome.unwrap_or_else(|problem| error_result(&problem))
}

/// Returns a refusal as a result, for the model to read.
pub fn error_result(problem: &ApiProblem) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(problem.to_string())])
}

/// Parses the arguments of a call, and names the field of a mistake.
fn parse<T: DeserializeOwned>(arguments: JsonObject) -> Result<T, ApiProblem> {
    serde_path_to_error::deserialize(Value::Object(arguments)).map_err(|error| {
        let place = error.path().to_string();
        let place = if place == "." { String::new() } else { format!("{place}: ") };
        let mistake = plain_json_error(&error.into_inner().to_string());
        ApiProblem::invalid(format!("the arguments are invalid: {place}{mistake}"))
    })
}

/// Returns a result as JSON, and as its text for clients that know no other.
fn structured(result: impl Serialize) -> CallToolResult {
    CallToolResult::structured(millrace_views::to_value(&result))
}

fn text(text: String) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

/// Starts a run.
pub async fn start_run(api: &ApiClient, arguments: JsonObject) -> Result<StartedRun, ApiProblem> {
    let arguments: StartRunArguments = parse(arguments)?;
    let documents: Vec<SubmittedDocument> = arguments
        .documents
        .iter()
        .map(|one| SubmittedDocument { path: one.path.clone(), content: one.text.clone().into_bytes() })
        .collect();
    let submitted = submit_run(api, &arguments, &documents, arguments.key.as_deref()).await?;
    Ok(StartedRun { run: submitted.run })
}

async fn wait_for_run(
    api: &ApiClient,
    arguments: JsonObject,
    progress: &(impl ReportProgress + Sync),
) -> Result<RunView, ApiProblem> {
    let WaitArguments { run, timeout_seconds } = parse(arguments)?;
    let deadline = Instant::now() + Duration::from_secs(timeout_seconds.min(MAX_WAIT));
    RunView::wait(api, &run, deadline, RunView::needs_client, progress).await
}

async fn get_run(api: &ApiClient, arguments: JsonObject) -> Result<RunView, ApiProblem> {
    let RunArguments { run } = parse(arguments)?;
    RunView::read(api, &run).await
}

async fn read_events(api: &ApiClient, arguments: JsonObject) -> Result<EventsResult, ApiProblem> {
    let EventsArguments { run, after, level, timeout_seconds, limit } = parse(arguments)?;
    let mut stream = RunEvents::open(api, &run, &after, level.name()).await?;
    // Time to read the events that are in the log already, also without a wait.
    let wait = Duration::from_secs(timeout_seconds.min(MAX_WAIT)).max(Duration::from_millis(500));
    let mut events = stream.read_batch(limit.clamp(1, MAX_EVENTS), Instant::now() + wait).await;
    let ended = events.last().is_some_and(RunEvent::is_end);
    events.retain(|event| event.id.is_some());
    let after = events.last().and_then(|event| event.id.clone()).unwrap_or(after);
    Ok(EventsResult { events: events.into_iter().map(RunEvent::shortened).collect(), after, ended })
}

async fn get_report(api: &ApiClient, arguments: JsonObject) -> Result<String, ApiProblem> {
    let RunArguments { run } = parse(arguments)?;
    api.get_text(&format!("/runs/{}/report", encode_part(&run))).await
}

async fn list_runs(api: &ApiClient, arguments: JsonObject) -> Result<RunsResult, ApiProblem> {
    let ListRunsArguments { state, label, text, limit, cursor } = parse(arguments)?;
    let mut path = format!("/runs?limit={}", limit.clamp(1, 100));
    for (name, value) in [("state", state), ("label", label), ("text", text), ("cursor", cursor)] {
        if !value.is_empty() {
            path.push_str(&format!("&{name}={}", encode_part(&value)));
        }
    }
    api.get(&path).await
}

async fn list_questions(api: &ApiClient, arguments: JsonObject) -> Result<QuestionsView, ApiProblem> {
    match parse::<QuestionsArguments>(arguments)?.run {
        Some(run) => api.get(&format!("/runs/{}/questions", encode_part(&run))).await,
        None => api.get("/questions").await,
    }
}

async fn answer_question(api: &ApiClient, arguments: JsonObject) -> Result<AnswerResult, ApiProblem> {
    let answer: AnswerArguments = parse(arguments)?;
    api.post(&format!("/questions/{}", encode_path(&answer.question)), &answer).await
}

async fn message_run(api: &ApiClient, arguments: JsonObject) -> Result<CommandResult, ApiProblem> {
    let message: MessageArguments = parse(arguments)?;
    api.post(&format!("/runs/{}/message", encode_part(&message.run)), &message).await
}

async fn pause_run(api: &ApiClient, arguments: JsonObject) -> Result<CommandResult, ApiProblem> {
    let RunArguments { run } = parse(arguments)?;
    api.post(&format!("/runs/{}/pause", encode_part(&run)), &json!({})).await
}

async fn resume_run(api: &ApiClient, arguments: JsonObject) -> Result<CommandResult, ApiProblem> {
    let resume: ResumeArguments = parse(arguments)?;
    api.post(&format!("/runs/{}/resume", encode_part(&resume.run)), &resume).await
}

async fn cancel_run(api: &ApiClient, arguments: JsonObject) -> Result<CommandResult, ApiProblem> {
    let cancel: CancelArguments = parse(arguments)?;
    api.post(&format!("/runs/{}/cancel", encode_part(&cancel.run)), &cancel).await
}

async fn retry_task(api: &ApiClient, arguments: JsonObject) -> Result<CommandResult, ApiProblem> {
    let retry: RetryArguments = parse(arguments)?;
    let (run, task) = (encode_part(&retry.run), encode_part(&retry.task));
    api.post(&format!("/runs/{run}/tasks/{task}/retry"), &retry).await
}

async fn list_capabilities(api: &ApiClient, arguments: JsonObject) -> Result<CapabilitiesResult, ApiProblem> {
    let NoArguments {} = parse(arguments)?;
    api.get("/capabilities").await
}

async fn list_files(api: &ApiClient, arguments: JsonObject) -> Result<FilesResult, ApiProblem> {
    let RunArguments { run } = parse(arguments)?;
    api.get(&format!("/runs/{}/files", encode_part(&run))).await
}

async fn read_file(api: &ApiClient, arguments: JsonObject) -> Result<String, ApiProblem> {
    let FileArguments { run, path } = parse(arguments)?;
    let bytes = api.get_bytes(&format!("/runs/{}/files/{}", encode_part(&run), encode_path(&path))).await?;
    let size = bytes.len();
    let mut content = String::from_utf8(bytes).map_err(|_| {
        ApiProblem::invalid(format!("{path:?} is no text ({size} bytes); read it as a resource instead"))
    })?;
    if size > MAX_TEXT {
        content.truncate(content.floor_char_boundary(MAX_TEXT));
        content.push_str(&format!("\n[cut: the file has {size} bytes; read it as a resource]"));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_in_arguments_name_their_field() {
        let parse = |value: Value| parse::<WaitArguments>(value.as_object().unwrap().clone());
        assert_eq!(parse(json!({ "run": "r" })).unwrap().timeout_seconds, MAX_WAIT);
        for (arguments, mistake) in [
            (json!({}), "missing field `run`"),
            (json!({ "run": 7 }), "run: invalid type"),
            (json!({ "run": "r", "wait": 1 }), "unknown field `wait`"),
        ] {
            let detail = parse(arguments).unwrap_err().detail;
            assert!(detail.contains(mistake), "{detail}");
        }
    }
}
