//! The commands with their bodies, in the form of the rules.

use std::collections::BTreeMap;

use millrace_api_form::Named;
use millrace_plan_file::{
    AdditionalTasks, changed_limits, find_capability_mistakes, parse_additional_tasks, parse_not_before,
    parse_on_failed_dependency, parse_review, parse_start_event,
};
use millrace_protocol::ids::{Capability, TaskId};
use millrace_protocol::plan::{CapabilityRegistry, CommandAction, Edit, Plan, TaskPatch};
use millrace_runtime::clock::parse_duration;
use millrace_runtime::work::registry;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::problem::{Problem, ProblemKind};
use crate::resources::submission::parse_budget;
use crate::state::{Gateway, find_task};

/// A command with its body. It is written as its body, whose digest an idempotency key stands for; its name is that of its operation.
#[derive(Debug, Clone, Serialize, Named)]
#[serde(untagged)]
pub enum Steering {
    CancelRun(CancelBody),
    PauseRun,
    InterruptRun,
    ResumeRun(ResumeBody),
    SendMessage(MessageBody),
    SignalEvent(SignalBody),
    AddTasks(AddBody),
    EditTask(EditBody),
    CancelTask(CancelBody),
    RetryTask(RetryBody),
}

impl Steering {
    /// `true` if it is possible for a run in this state: most commands are for runs that have not ended.
    pub fn is_for(&self, plan: &Plan) -> bool {
        let Some(end) = &plan.run.end else { return true };
        match self {
            Self::ResumeRun(_) => end.is_resumable,
            Self::AddTasks(_) | Self::RetryTask(_) => plan.can_be_reopened(),
            Self::CancelRun(_)
            | Self::PauseRun
            | Self::InterruptRun
            | Self::SendMessage(_)
            | Self::SignalEvent(_)
            | Self::EditTask(_)
            | Self::CancelTask(_) => false,
        }
    }

    /// Returns the command in the form of the rules.
    pub async fn into_action(
        self,
        gateway: &Gateway,
        plan: &Plan,
        task: Option<&str>,
    ) -> Result<CommandAction, Problem> {
        let task = || find_task(plan, task.unwrap_or_default());
        Ok(match self {
            Self::CancelRun(body) => CommandAction::CancelRun { reason: body.into_reason() },
            Self::PauseRun => CommandAction::Pause,
            Self::InterruptRun => CommandAction::Interrupt,
            Self::ResumeRun(body) => body.into_action(plan)?,
            Self::SendMessage(MessageBody { text }) => CommandAction::Message { text },
            Self::SignalEvent(SignalBody { name, data }) => {
                CommandAction::Signal { name, data: data.map(|data| data.to_string()).unwrap_or_default() }
            }
            Self::AddTasks(body) => CommandAction::Edit(body.into_edit(gateway, plan).await?),
            Self::EditTask(body) if body.is_final => CommandAction::Edit(Edit::MarkFinal { task: task()? }),
            Self::EditTask(body) => CommandAction::Edit(Edit::Patch(body.into_patch(task()?, plan)?)),
            Self::CancelTask(body) => CommandAction::CancelTask { task: task()?, reason: body.into_reason() },
            Self::RetryTask(body) => CommandAction::Edit(body.into_edit(task()?, plan)?),
        })
    }
}

/// The body of a cancellation.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CancelBody {
    /// The reason; recorded in the log.
    pub reason: Option<String>,
}

impl CancelBody {
    fn into_reason(self) -> String {
        self.reason.unwrap_or_else(|| "cancelled by the user".into())
    }
}

/// The body of a resumption.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResumeBody {
    /// New total limits, as in a plan file, such as `{"tokens": "400k"}`; the others stay.
    pub budget: Option<Value>,
}

/// The body of a message to the planner.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MessageBody {
    /// The message.
    pub text: String,
}

/// The body of a signal.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalBody {
    /// The name of the event.
    pub name: String,
    /// The data of the event, which the attempt that waits for it receives.
    #[serde(default)]
    pub data: Option<Value>,
}

/// The body of a retry.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetryBody {
    /// Feedback for the next attempt.
    pub feedback: Option<String>,
    /// Changes of the task for the next attempt; `final` is none of them.
    #[serde(flatten)]
    pub changes: EditBody,
}

/// Tasks to add.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddBody {
    /// The tasks, as in a plan file. Either all are added or none; they may depend on tasks of the run.
    pub tasks: Value,
}

/// Changes of a task that no worker has claimed yet, or that is retried. Fields that are absent stay as they are.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
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

impl ResumeBody {
    fn into_action(self, plan: &Plan) -> Result<CommandAction, Problem> {
        let old = plan.run.start.as_ref().map(|start| start.budget.capabilities.clone()).unwrap_or_default();
        let budget = self.budget.as_ref().map(parse_budget).transpose()?;
        // The budgets of capabilities are replaced as a whole, so those that stay are repeated.
        let budget = budget.map(|mut budget| {
            let changed = std::mem::replace(&mut budget.capabilities, old);
            budget.capabilities.extend(changed);
            budget
        });
        Ok(CommandAction::Resume { budget })
    }
}

impl AddBody {
    async fn into_edit(self, gateway: &Gateway, plan: &Plan) -> Result<Edit, Problem> {
        let text = serde_json::json!({ "tasks": self.tasks }).to_string();
        let AdditionalTasks { tasks, positions } = parse_additional_tasks(text.as_bytes(), plan)
            .map_err(|mistakes| Problem::new(ProblemKind::InvalidRun, mistakes))?;
        if !plan.has_planner() {
            let known = registry::read_capabilities(&gateway.bus).await?;
            let known = CapabilityRegistry::from_descriptions(known.values());
            let refused = find_capability_mistakes(&tasks, &positions, &known).parameters;
            let refused: Vec<String> = refused.into_iter().map(|mistake| mistake.text).collect();
            if !refused.is_empty() {
                return Err(Problem::new(ProblemKind::InvalidRun, refused.join("\n")));
            }
        }
        Ok(Edit::Add(tasks))
    }
}

impl RetryBody {
    fn into_edit(self, task: TaskId, plan: &Plan) -> Result<Edit, Problem> {
        let Self { feedback, changes } = self;
        if changes.is_final {
            let detail = "final: a retry can't change it; change it with a PATCH of the task";
            return Err(Problem::invalid(detail.to_owned()));
        }
        let changes = changes.into_patch(task.clone(), plan)?;
        let is_changed = !changes.changed_fields().is_empty();
        Ok(Edit::Retry { task, feedback, changes: is_changed.then(|| Box::new(changes)) })
    }
}

impl EditBody {
    fn into_patch(self, task: TaskId, plan: &Plan) -> Result<TaskPatch, Problem> {
        let mistake = |pointer: &str, message: String| Problem::invalid(format!("{pointer}: {message}"));
        let text_of = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let run_time = self.run_time.as_deref().map(parse_duration).transpose();
        let run_time = run_time.map_err(|error| mistake("run_time", error.to_string()))?;
        let limits = changed_limits(plan, &task, (self.max_attempts, run_time));
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
