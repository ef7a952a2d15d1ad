//! Runs and questions as models and other agents read them: the parts of the API's JSON that matter for a decision. The full JSON of
//! a run has all attempts with their results, and does not fit into a conversation.

use axum::http::HeaderMap;
use millrace_protocol::foreign_json::parse_foreign_json;
use millrace_protocol::token::Scope;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use super::api::{Operator, value_of};
use crate::extract::{Path, Query};
use crate::problem::{ApiResult, Problem};
use crate::resources::questions::{QuestionQuery, list_run_questions};
use crate::resources::runs::{ReadQuery, WaitQuery, read_run, wait_for_run};

/// The interval in seconds at which a waiting call looks for questions and reports progress.
const LOOK_INTERVAL: u64 = 2;
/// The number of a run's errors that are shown, the last ones.
const MAX_ERRORS: usize = 5;

/// Receives the state of a run that a call waits for.
pub trait ReportProgress {
    fn report_progress(&self, run: &RunView) -> impl Future<Output = ()> + Send;
}

/// A run.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
pub struct RunView {
    /// The id of the run.
    pub run: String,
    /// `submitted`, `queued` in its session, `running`, `paused`, `interrupted` or `winding_down`; once it has ended, `completed`, `completed_partial`, `failed`,
    /// `cancelled`, `no_progress`, `planner_unavailable`, `budget_exhausted` or `max_steps`.
    pub state: String,
    /// The current wait: `question`, `parameters`, `provider`, `worker`, `event`, `time` or `sub_agent`; absent while one of its own
    /// tasks is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// A description of the wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// The objective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<String>,
    /// When it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// Its end; absent until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<RunEndView>,
    /// `true` if it has ended and can be resumed.
    pub resumable: bool,
    /// `false` if the deliverable does not answer its question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered: Option<bool>,
    /// Its tasks.
    pub tasks: Vec<TaskView>,
    /// Its usage so far.
    pub usage: UsageView,
    /// Its last errors.
    pub errors: Vec<ErrorView>,
    /// Its open questions to persons.
    #[serde(default)]
    pub open_questions: Vec<QuestionView>,
}

/// The end of a run.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
pub struct RunEndView {
    /// The reason, for a person.
    pub detail: String,
    /// When it ended.
    pub at: String,
}

/// A task of a run.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
pub struct TaskView {
    /// Its id.
    pub id: String,
    /// Its state.
    pub state: String,
    /// The capability that carries it out.
    pub capability: String,
    /// Its objective.
    pub objective: String,
    /// The reason of its state, if it needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The time, event or person that it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
}

/// The usage of a run.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
pub struct UsageView {
    /// Model calls.
    #[serde(default)]
    pub model_calls: u64,
    /// Tool calls.
    #[serde(default)]
    pub tool_calls: u64,
    /// Input tokens.
    #[serde(default)]
    pub input_tokens: u64,
    /// Output tokens.
    #[serde(default)]
    pub output_tokens: u64,
    /// The cost in millionths of a US dollar, as far as prices are known.
    #[serde(default)]
    pub cost_micros: u64,
}

/// An error in a run.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
pub struct ErrorView {
    /// When.
    pub at: String,
    /// The task; absent for the planner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The error.
    pub message: String,
}

/// A question to a person.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
pub struct QuestionView {
    /// The id of the question, which an answer names.
    pub id: String,
    /// The run.
    pub run: String,
    /// `approval` of a tool call, `input` for an agent, `review` of a result, or approval of the `plan`.
    pub kind: String,
    /// The question.
    pub text: String,
    /// The kinds of answers that are allowed.
    pub decisions: Vec<String>,
    /// The tool whose call needs an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The arguments of that call.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub arguments: Value,
    /// Proposed answers.
    #[serde(default)]
    pub options: Vec<String>,
    /// The JSON Schema of the value or of edited arguments.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub schema: Value,
    /// The result to judge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The criteria to judge it by.
    #[serde(default)]
    pub criteria: Vec<String>,
    /// The time of the question.
    pub asked_at: String,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

/// Questions to persons.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub struct QuestionsView {
    /// The open questions.
    pub questions: Vec<QuestionView>,
}

/// Reads a run with all its tasks.
pub async fn read(operator: &Operator, run: &str) -> ApiResult {
    let query = Query(ReadQuery::default());
    read_run(operator.with(Scope::Read)?, Path(run.to_owned()), query, HeaderMap::new()).await
}

/// Reads the questions of a run, the closed ones too with `history`.
pub async fn read_questions<T: DeserializeOwned>(
    operator: &Operator,
    run: &str,
    history: bool,
) -> Result<T, Problem> {
    let query = Query(QuestionQuery { history });
    value_of(list_run_questions(operator.with(Scope::Read)?, Path(run.to_owned()), query).await).await
}

impl RunView {
    /// Reads a run with its open questions.
    pub async fn read(operator: &Operator, run: &str) -> Result<Self, Problem> {
        let view: Self = value_of(read(operator, run).await).await?;
        view.complete(operator).await
    }

    /// Adds the open questions, and leaves the last errors.
    pub async fn complete(mut self, operator: &Operator) -> Result<Self, Problem> {
        self.errors.drain(..self.errors.len().saturating_sub(MAX_ERRORS));
        if !self.has_ended() {
            self.open_questions =
                read_questions::<QuestionsView>(operator, &self.run, false).await?.questions;
        }
        Ok(self)
    }

    /// Waits until a run is as wanted, or for the deadline, and returns it.
    pub async fn wait(
        operator: &Operator,
        run: &str,
        deadline: Instant,
        is_wanted: impl Fn(&Self) -> bool + Send,
        progress: &(impl ReportProgress + Sync),
    ) -> Result<Self, Problem> {
        loop {
            let view = Self::read(operator, run).await?;
            let left = deadline.saturating_duration_since(Instant::now());
            if is_wanted(&view) || left.is_zero() {
                return Ok(view);
            }
            progress.report_progress(&view).await;
            let query = WaitQuery { timeout: Some(LOOK_INTERVAL.min(left.as_secs().max(1))) };
            wait_for_run(operator.with(Scope::Read)?, Path(run.to_owned()), Query(query)).await?;
        }
    }

    /// `true` if it has ended. A run that has ended may be resumed.
    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// `true` if a client has something to do: read the deliverable, answer a question, or resume the run.
    pub fn needs_client(&self) -> bool {
        let is_stopped = matches!(self.state.as_str(), "paused" | "interrupted");
        self.has_ended() || is_stopped || !self.open_questions.is_empty()
    }

    /// Returns its state in a sentence.
    pub fn describe(&self) -> String {
        let done = self.tasks.iter().filter(|task| task.state == "completed").count();
        let (state, total) = (self.state.replace('_', " "), self.tasks.len());
        match &self.end {
            Some(end) if !end.detail.is_empty() => format!("{state}: {}", end.detail),
            Some(_) => state,
            None if self.open_questions.is_empty() => format!("{state}, {done} of {total} tasks completed"),
            None => {
                let open = self.open_questions.len();
                format!("{state}, {done} of {total} tasks completed, {open} open questions")
            }
        }
    }
}

/// Returns the value that a text stands for: JSON if the schema is not that of a text.
pub fn value_of_text(text: &str, schema: &Value) -> Value {
    let is_text = schema.is_null() || schema["type"] == "string";
    match is_text {
        true => text.into(),
        false => parse_foreign_json(text).unwrap_or_else(|_| text.into()),
    }
}
