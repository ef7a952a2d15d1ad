//! The bodies of commands.

use std::collections::BTreeMap;

use millrace_plan_file::{parse_not_before, parse_on_failed_dependency, parse_review, parse_start_event};
use millrace_protocol::ids::{Capability, TaskId};
use millrace_protocol::plan::{Edit, Plan, TaskLimits, TaskPatch};
use millrace_runtime::duration::parse_duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::problem::{Problem, ProblemKind};

/// The body of a cancellation.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CancelBody {
    /// The reason; recorded in the log.
    pub reason: Option<String>,
}

impl CancelBody {
    /// The reason, or the usual one.
    pub fn into_reason(self) -> String {
        self.reason.unwrap_or_else(|| "cancelled by the user".into())
    }
}

/// The body of a resumption.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResumeBody {
    /// New total limits, as in a plan file, such as `{"tokens": "400k"}`; the others stay.
    pub budget: Option<Value>,
}

/// The body of a message to the planner.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MessageBody {
    /// The message.
    pub text: String,
}

/// The body of a signal.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalBody {
    /// The name of the event.
    pub name: String,
    /// The data of the event, which the attempt that waits for it receives.
    #[serde(default)]
    pub data: Option<Value>,
}

/// The body of a retry.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetryBody {
    /// Feedback for the next attempt.
    pub feedback: Option<String>,
    /// Changes of the task for the next attempt; `final` is none of them.
    #[serde(flatten)]
    pub changes: EditBody,
}

/// Tasks to add.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddBody {
    /// The tasks, as in a plan file. Either all are added or none; they may depend on tasks of the run.
    pub tasks: Value,
}

/// Changes of a task that no worker has claimed yet, or that is retried. Fields that are absent stay as they are.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EditBody {
    /// The objective.
    pub objective: Option<String>,
    /// The capability.
    pub capability: Option<Capability>,
    /// The complete list of its dependencies.
    pub depends_on: Option<Vec<TaskId>>,
    /// Parameters to set; `null` removes one, the others stay.
    pub parameters: BTreeMap<String, Value>,
    /// The review of its result, as in a plan file.
    pub review: Option<Value>,
    /// The maximum number of attempts.
    pub max_attempts: Option<u32>,
    /// The maximum run time of an attempt, such as `15m`.
    pub run_time: Option<String>,
    /// The policy if a task it depends on fails or is cancelled: `cancel`, `skip` or `ask`.
    pub on_failed_dependency: Option<String>,
    /// The time before which it does not start, or a duration after the start of the run; `none` removes it.
    pub not_before: Option<String>,
    /// The event without which it does not start, as in a plan file; `none` removes it.
    pub wait_for_event: Option<Value>,
    /// `true` makes its result the deliverable; no other change is possible then.
    #[serde(rename = "final")]
    pub is_final: bool,
}

impl RetryBody {
    /// Returns the retry in the form of the rules.
    ///
    /// # Errors
    /// A field is invalid.
    pub fn into_edit(self, task: TaskId, plan: &Plan) -> Result<Edit, Problem> {
        let Self { feedback, changes } = self;
        if changes.is_final {
            let detail = "final: a retry can't change it; change it with a PATCH of the task";
            return Err(Problem::new(ProblemKind::InvalidRequest, detail.to_owned()));
        }
        let changes = changes.into_patch(task.clone(), plan)?;
        let is_changed = !changes.changed_fields().is_empty();
        Ok(Edit::Retry { task, feedback, changes: is_changed.then(|| Box::new(changes)) })
    }
}

impl EditBody {
    /// Returns the changes in the form of the rules.
    ///
    /// # Errors
    /// A field is invalid.
    pub fn into_patch(self, task: TaskId, plan: &Plan) -> Result<TaskPatch, Problem> {
        let mistake = |pointer: &str, message: String| {
            Problem::new(ProblemKind::InvalidRequest, format!("{pointer}: {message}"))
        };
        let text_of = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let run_time = self.run_time.as_deref().map(parse_duration).transpose();
        let run_time = run_time.map_err(|error| mistake("run_time", error.to_string()))?;
        let old = plan.task(&task).map(|task| task.spec.limits.clone()).unwrap_or_default();
        let limits = (self.max_attempts.is_some() || run_time.is_some()).then(|| TaskLimits {
            max_attempts: self.max_attempts.unwrap_or(old.max_attempts),
            run_time: run_time.unwrap_or(old.run_time),
            ..old
        });
        let review = self.review.as_ref().map(|review| parse_review(&text_of(review))).transpose();
        let policy = self.on_failed_dependency.as_deref().map(parse_on_failed_dependency).transpose();
        let not_before = self.not_before.as_deref().map(parse_not_before).transpose();
        let event = self.wait_for_event.as_ref().map(|event| parse_start_event(&text_of(event))).transpose();
        Ok(TaskPatch {
            objective: self.objective,
            capability: self.capability,
            depends_on: self.depends_on,
            parameters: self.parameters.into_iter().collect(),
            review: review.map_err(|error| mistake("review", error.texts()))?,
            limits,
            on_failed_dependency: policy
                .map_err(|error| mistake("on_failed_dependency", error.to_string()))?,
            not_before: not_before.map_err(|error| mistake("not_before", error.texts()))?,
            wait_for_event: event.map_err(|error| mistake("wait_for_event", error.texts()))?,
            ..TaskPatch::without_changes(task)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_takes_the_fields_of_an_edit_and_no_others() {
        let read = |text: &str| serde_json::from_str::<RetryBody>(text).map_err(|error| error.to_string());
        let body = read(r#"{"feedback": "again", "parameters": {"limit": 100}, "max_attempts": 5}"#).unwrap();
        assert_eq!(body.changes.parameters["limit"], 100);
        assert_eq!((body.feedback.as_deref(), body.changes.max_attempts), (Some("again"), Some(5)));
        assert!(read("{}").unwrap().changes.parameters.is_empty());
        let unknown = read(r#"{"feedbak": "again"}"#).unwrap_err();
        assert!(unknown.contains("feedbak"), "{unknown}");
    }
}
