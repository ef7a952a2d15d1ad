//! Runs as tasks: the state with open questions, the report and the files as artifacts, and the messages of users as history.

use std::collections::{BTreeMap, HashMap};

use a2a::{Artifact, Message, Part, Role, Task, TaskState, TaskStatus};
use millrace_protocol::token::Scope;
use millrace_views::RunState;
use serde::Deserialize;
use serde_json::{Value, json};

use super::message::CONTEXT_LABEL;
use crate::extract::{Path, Query};
use crate::openapi::API_ROOT;
use crate::problem::{Problem, ProblemKind};
use crate::resources::files::{FolderQuery, list_files};
use crate::standards::api::{Operator, encode_path, read_content, read_report, value_of, versioned_value_of};
use crate::standards::run_view::{self, QuestionView, RunView, UsageView, read_questions};

/// The size in bytes up to which an artifact contains its file; of larger ones it has the path in the API.
const MAX_INLINE: u64 = 256 * 1024;
/// The id of the artifact with the report.
const REPORT: &str = "report";

/// The fields of a run that its task shows.
#[derive(Deserialize)]
struct RunSource {
    #[serde(flatten)]
    view: RunView,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    messages: Vec<UserMessage>,
}

#[derive(Deserialize)]
struct UserMessage {
    at: String,
    by: String,
    text: String,
}

#[derive(Deserialize)]
struct Questions {
    questions: Vec<AskedQuestion>,
}

/// A question, open or closed.
#[derive(Deserialize)]
struct AskedQuestion {
    id: String,
    text: String,
    asked_at: String,
    decided_at: Option<String>,
    by: Option<String>,
    answer: Option<QuestionAnswer>,
}

#[derive(Deserialize)]
struct QuestionAnswer {
    answer: String,
    value: Option<Value>,
    text: Option<String>,
}

#[derive(Deserialize)]
struct Files {
    files: Vec<FileLine>,
}

#[derive(Deserialize)]
struct FileLine {
    path: String,
    bytes: u64,
    version: u64,
}

/// A task with the run that it shows.
pub struct RunTask {
    /// The task, without artifacts.
    pub task: Task,
    pub view: RunView,
    /// The sequence of the log as of which it is.
    pub sequence: u64,
}

/// Returns the state of the task of a run in a state, with open questions or without.
pub fn state_of(state: &str, has_questions: bool) -> TaskState {
    let Some(state) = RunState::ALL.into_iter().find(|known| known.name() == state) else {
        return TaskState::Unspecified;
    };
    match state {
        RunState::Completed | RunState::CompletedPartial => TaskState::Completed,
        RunState::Cancelled => TaskState::Canceled,
        RunState::Failed
        | RunState::LogDamaged
        | RunState::NoProgress
        | RunState::PlannerUnavailable
        | RunState::BudgetExhausted
        | RunState::MaxSteps => TaskState::Failed,
        RunState::Submitted
        | RunState::Queued
        | RunState::Running
        | RunState::Paused
        | RunState::Interrupted
        | RunState::WindingDown
            if has_questions =>
        {
            TaskState::InputRequired
        }
        RunState::Submitted | RunState::Queued => TaskState::Submitted,
        RunState::Running | RunState::Paused | RunState::Interrupted | RunState::WindingDown => {
            TaskState::Working
        }
    }
}

/// Returns the names of the states of runs whose tasks may have a state, separated by commas.
pub fn run_states_of(state: &TaskState) -> String {
    let names = RunState::ALL.map(RunState::name).into_iter();
    let names = names.filter(|name| state_of(name, false) == *state || state_of(name, true) == *state);
    names.collect::<Vec<_>>().join(",")
}

/// Returns the context of a run: that of its message, or else a context of its own.
pub fn context_of(run: &str, labels: Option<&BTreeMap<String, String>>) -> String {
    labels.and_then(|labels| labels.get(CONTEXT_LABEL)).cloned().unwrap_or_else(|| run.to_owned())
}

impl RunTask {
    /// Reads a run as a task, with at most this many messages of its history.
    pub async fn read(operator: &Operator, run: &str, history: Option<i32>) -> Result<Self, Problem> {
        let (source, sequence) = versioned_value_of(run_view::read(operator, run).await).await?;
        let RunSource { view, labels, messages } = source;
        let view = view.complete(operator).await?;
        let context = context_of(&view.run, labels.as_ref());
        let asked = match history {
            Some(..=0) => Vec::new(),
            Some(_) | None => read_questions::<Questions>(operator, &view.run, true).await?.questions,
        };
        let task = Task {
            id: view.run.clone(),
            status: status_of(&view, &context),
            artifacts: None,
            history: history_of(&view, &context, (&messages, &asked), history),
            metadata: Some(metadata_of(&view, sequence)),
            context_id: context,
        };
        Ok(Self { task, view, sequence })
    }

    pub async fn with_artifacts(mut self, operator: &Operator) -> Result<Self, Problem> {
        let artifacts = read_artifacts(operator, &self.view).await?;
        self.task.artifacts = Some(artifacts).filter(|artifacts| !artifacts.is_empty());
        Ok(self)
    }
}

fn metadata_of(view: &RunView, sequence: u64) -> HashMap<String, Value> {
    let UsageView { model_calls, tool_calls, input_tokens, output_tokens, cost_micros } = view.usage;
    let usage = json!({
        "modelCalls": model_calls, "toolCalls": tool_calls, "inputTokens": input_tokens,
        "outputTokens": output_tokens, "costMicros": cost_micros,
    });
    HashMap::from([
        ("sequence".to_owned(), sequence.into()),
        ("state".to_owned(), view.state.as_str().into()),
        ("usage".to_owned(), usage),
    ])
}

pub fn status_of(view: &RunView, context: &str) -> TaskStatus {
    let state = state_of(&view.state, !view.open_questions.is_empty());
    let parts = match state == TaskState::InputRequired {
        true => view.open_questions.iter().flat_map(parts_of_question).collect(),
        false => vec![Part::text(view.describe())],
    };
    let id = match view.open_questions.first() {
        Some(question) => question.id.clone(),
        None => format!("{}/{}", view.run, view.state),
    };
    let time = match (&view.end, view.open_questions.first()) {
        (Some(end), _) => Some(&end.at),
        (None, Some(question)) => Some(&question.asked_at),
        (None, None) => view.started_at.as_ref(),
    };
    TaskStatus {
        state,
        message: Some(message_of_agent(&view.run, context, id, parts)),
        timestamp: time.and_then(|time| time.parse().ok()),
    }
}

/// Returns a question as text for a person and as data for a program.
pub fn parts_of_question(question: &QuestionView) -> [Part; 2] {
    let mut text = question.text.clone();
    if let Some(tool) = &question.tool {
        text.push_str(&format!("\n\nCall: {tool} {}", question.arguments));
    }
    if let Some(result) = &question.result {
        text.push_str(&format!("\n\nResult: {result}"));
    }
    if !question.options.is_empty() {
        text.push_str(&format!("\n\nOptions: {}", question.options.join("; ")));
    }
    [Part::text(text), Part::data(json!({ "question": question }))]
}

/// Returns a message of the agent in a task.
pub fn message_of_agent(run: &str, context: &str, id: String, parts: Vec<Part>) -> Message {
    message(run, context, id, Role::Agent, parts)
}

fn message(run: &str, context: &str, id: String, role: Role, parts: Vec<Part>) -> Message {
    Message {
        message_id: id,
        context_id: Some(context.to_owned()),
        task_id: Some(run.to_owned()),
        role,
        parts,
        metadata: None,
        extensions: None,
        reference_task_ids: None,
    }
}

/// Returns the last messages, oldest first: the objective, the user's messages, and the questions with their answers.
fn history_of(
    view: &RunView,
    context: &str,
    (messages, asked): (&[UserMessage], &[AskedQuestion]),
    length: Option<i32>,
) -> Option<Vec<Message>> {
    let user = |id: String, part: Part, (at, by): (&str, &str)| {
        let mut message = message(&view.run, context, id, Role::User, vec![part]);
        let metadata = [("at", at), ("by", by)];
        message.metadata = Some(metadata.map(|(name, value)| (name.to_owned(), value.into())).into());
        message
    };
    let mut timed: Vec<(&str, Message)> = Vec::new();
    for (number, one) in messages.iter().enumerate() {
        let id = format!("{}/message/{}", view.run, number + 1);
        timed.push((&one.at, user(id, Part::text(&one.text), (&one.at, &one.by))));
    }
    for question in asked {
        let text = vec![Part::text(&question.text)];
        timed.push((&question.asked_at, message_of_agent(&view.run, context, question.id.clone(), text)));
        if let (Some(answer), Some(at)) = (&question.answer, &question.decided_at) {
            let (id, by) = (format!("{}/answer", question.id), question.by.as_deref().unwrap_or_default());
            timed.push((at, user(id, part_of_answer(answer), (at, by))));
        }
    }
    timed.sort_by_key(|(at, _)| at.parse::<jiff::Timestamp>().ok());
    let objective = view.objective.iter().map(|text| {
        let id = format!("{}/objective", view.run);
        message(&view.run, context, id, Role::User, vec![Part::text(text)])
    });
    let mut all: Vec<Message> = objective.chain(timed.into_iter().map(|(_, message)| message)).collect();
    if let Some(length) = length {
        let length = usize::try_from(length).unwrap_or(0);
        all.drain(..all.len().saturating_sub(length));
    }
    Some(all).filter(|all| !all.is_empty())
}

/// Returns an answer as a message has it: an input as itself, anything else as the text that a client may send.
fn part_of_answer(answer: &QuestionAnswer) -> Part {
    let QuestionAnswer { answer: kind, value, text } = answer;
    match (value, text) {
        (Some(Value::String(value)), _) if kind == "answer" => Part::text(value),
        (Some(value), _) if kind == "answer" => Part::data(value.clone()),
        (Some(value), _) => Part::data(json!({ "answer": kind, "value": value })),
        (None, Some(text)) => Part::text(format!("{kind}: {text}")),
        (None, None) => Part::text(kind),
    }
}

/// Reads the report of a run that has ended, and the files of a run.
pub async fn read_artifacts(operator: &Operator, view: &RunView) -> Result<Vec<Artifact>, Problem> {
    let mut artifacts = Vec::new();
    if view.has_ended() {
        match read_report(operator, &view.run).await {
            Ok(report) => {
                let part =
                    Part::text(report.trim_end()).with_media_type("text/markdown").with_filename("report.md");
                artifacts.push(artifact(REPORT, "The deliverable with its sources", part));
            }
            Err(problem) if problem.is(ProblemKind::NoDeliverable) => {}
            Err(problem) => return Err(problem),
        }
    }
    let query = Query(FolderQuery::default());
    let list = list_files(operator.with(Scope::Read)?, Path(view.run.clone()), query).await;
    let list: Files = value_of(list).await?;
    for FileLine { path, bytes, version } in list.files {
        let part = match bytes <= MAX_INLINE {
            false => Part::url(format!("{API_ROOT}/runs/{}/files/{}", view.run, encode_path(&path))),
            true => match String::from_utf8(read_content(operator, &view.run, &path).await?) {
                Ok(text) => Part::text(text).with_media_type("text/plain"),
                Err(error) => Part::raw(error.into_bytes()).with_media_type("application/octet-stream"),
            },
        };
        let mut file = artifact(&format!("files/{path}"), "A file of the run", part.with_filename(&path));
        file.name = Some(path);
        file.metadata = Some(HashMap::from([("version".to_owned(), version.into())]));
        artifacts.push(file);
    }
    Ok(artifacts)
}

fn artifact(id: &str, description: &str, part: Part) -> Artifact {
    Artifact {
        artifact_id: id.to_owned(),
        name: Some(id.to_owned()),
        description: Some(description.to_owned()),
        parts: vec![part],
        metadata: None,
        extensions: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_runs_are_states_of_tasks() {
        for (state, has_questions, expected) in [
            ("submitted", false, TaskState::Submitted),
            ("queued", false, TaskState::Submitted),
            ("running", false, TaskState::Working),
            ("paused", false, TaskState::Working),
            ("running", true, TaskState::InputRequired),
            ("completed", false, TaskState::Completed),
            ("completed_partial", false, TaskState::Completed),
            ("cancelled", false, TaskState::Canceled),
            ("failed", false, TaskState::Failed),
            ("budget_exhausted", false, TaskState::Failed),
            ("log_damaged", false, TaskState::Failed),
        ] {
            assert_eq!(state_of(state, has_questions), expected, "{state}");
            assert!(run_states_of(&expected).split(',').any(|name| name == state), "{state}");
        }
        assert_eq!(run_states_of(&TaskState::Completed), "completed,completed_partial");
        assert_eq!(run_states_of(&TaskState::Rejected), "");
    }

    #[test]
    fn histories_are_in_order_and_cut_to_the_newest_messages() {
        let view: RunView = serde_json::from_value(json!({
            "run": "r", "state": "running", "objective": "ask", "resumable": false, "tasks": [], "usage": {}, "errors": [],
        }))
        .unwrap();
        let messages: Vec<UserMessage> =
            serde_json::from_value(json!([{ "at": "2026-01-01T00:00:03Z", "by": "ann", "text": "hurry" }]))
                .unwrap();
        let asked: Vec<AskedQuestion> = serde_json::from_value(json!([
            { "id": "r/t/1/1", "text": "Which?", "asked_at": "2026-01-01T00:00:01Z",
              "decided_at": "2026-01-01T00:00:02Z", "by": "ann",
              "answer": { "answer": "answer", "value": "eu", "text": null } },
            { "id": "r/t/1/2", "text": "Send it?", "asked_at": "2026-01-01T00:00:04Z",
              "decided_at": "2026-01-01T00:00:05Z", "by": "ann",
              "answer": { "answer": "reject", "value": null, "text": "no" } },
        ]))
        .unwrap();
        let texts = |length: Option<i32>| -> Vec<String> {
            let history = history_of(&view, "c", (&messages, &asked), length).unwrap_or_default();
            history.iter().filter_map(|message| message.parts[0].as_text().map(str::to_owned)).collect()
        };
        assert_eq!(texts(None), ["ask", "Which?", "eu", "hurry", "Send it?", "reject: no"]);
        assert_eq!(texts(Some(2)), ["Send it?", "reject: no"]);
        assert!(texts(Some(0)).is_empty());
    }
}
