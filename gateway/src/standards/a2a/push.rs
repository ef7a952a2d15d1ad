//! Push notifications: the configs of a task, which are push configs of its run, and the notifications about a change of its status.
//!
//! # Invariants
//!
//! - I213: A change of the status of an A2A task that a push config is for reaches its receiver at least once, with its token and
//!   credentials, across kills of any process within three days; no caller reads these, another tenant sees no config, and they
//!   are removed with their run.
//!   (`tests/tests/gateway_webhooks.rs::a2a_notifications_arrive_while_gateways_are_killed_and_the_receiver_is_away`,
//!   `tests/tests/gateway_webhooks.rs::push_configs_show_no_secrets_and_are_removed_with_their_run`,
//!   `tests/tests/gateway_tenants.rs::tenants_see_nothing_of_each_other`)

use std::collections::HashMap;

use a2a::{
    AuthenticationInfo, DeleteTaskPushNotificationConfigRequest, GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest, ListTaskPushNotificationConfigsResponse, StreamResponse,
    TaskPushNotificationConfig, TaskState, TaskStatus, TaskStatusUpdateEvent,
};
use millrace_client::questions::{full_id, open_questions_of_plan};
use millrace_client::webhooks::{self, PushConfigError};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Plan, RunQuestion};
use millrace_protocol::token::Scope;
use millrace_protocol::webhook::{SecretText, StoredPushConfig, WebhookEventKind, WebhookMessage};
use millrace_runtime::store::blobs::sha256_hex;
use millrace_views::QuestionLine;
use serde_json::{Value, json};

use super::binding::A2aFault;
use super::task::{context_of, message_of_agent, parts_of_question, state_of};
use crate::problem::Problem;
use crate::resources::webhooks::{PushAuthenticationBody, PushConfigBody};
use crate::standards::api::Operator;
use crate::standards::run_view::QuestionView;

/// Shows a config without its secrets.
fn show_config(config: &StoredPushConfig) -> TaskPushNotificationConfig {
    let scheme = config.authentication.as_ref().map(|one| one.scheme.clone());
    TaskPushNotificationConfig {
        url: config.url.to_string(),
        id: Some(config.config.clone()),
        task_id: config.run.to_string(),
        token: None,
        authentication: scheme.map(|scheme| AuthenticationInfo { scheme, credentials: None }),
        tenant: None,
    }
}

/// Returns a config as the API accepts it. Empty texts are absent ones, as in Protocol Buffers.
pub fn describe_config(config: &TaskPushNotificationConfig) -> PushConfigBody {
    let filled = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let authentication = config.authentication.as_ref().map(|one| PushAuthenticationBody {
        scheme: one.scheme.clone(),
        credentials: filled(&one.credentials).map(SecretText::from),
    });
    let (id, token) = (filled(&config.id), filled(&config.token).map(SecretText::from));
    PushConfigBody { id, url: config.url.clone(), token, authentication }
}

/// Returns the config of a message as the API accepts it. Its id follows from the message, so that a repeated message sets no
/// second one.
pub fn describe_config_of_message(config: &TaskPushNotificationConfig, message: &str) -> PushConfigBody {
    let body = describe_config(config);
    let id = body.id.unwrap_or_else(|| sha256_hex(message.as_bytes())[..32].to_owned());
    PushConfigBody { id: Some(id), ..body }
}

pub async fn set_config(
    operator: &Operator,
    task: &str,
    config: PushConfigBody,
) -> Result<TaskPushNotificationConfig, Problem> {
    let access = operator.with(Scope::Submit)?;
    let (run, _) = access.find_run(task).await?;
    let new = access.check_push_config(config)?;
    Ok(show_config(&access.set_push_config(&run, new).await?))
}

/// Creates a config of a task, or replaces the one with its id.
pub async fn create_push_config(
    operator: &Operator,
    config: TaskPushNotificationConfig,
) -> Result<TaskPushNotificationConfig, A2aFault> {
    Ok(set_config(operator, &config.task_id, describe_config(&config)).await?)
}

pub async fn get_push_config(
    operator: &Operator,
    request: GetTaskPushNotificationConfigRequest,
) -> Result<TaskPushNotificationConfig, A2aFault> {
    let access = operator.with(Scope::Read)?;
    let (run, _) = access.find_run(&request.task_id).await?;
    let config = webhooks::find_push_config(&access.bus, &run, &request.id).await;
    Ok(show_config(&config.map_err(Problem::from)?))
}

/// Lists the configs of a task. There are so few that they are one page.
pub async fn list_push_configs(
    operator: &Operator,
    request: ListTaskPushNotificationConfigsRequest,
) -> Result<ListTaskPushNotificationConfigsResponse, A2aFault> {
    let access = operator.with(Scope::Read)?;
    let (run, _) = access.find_run(&request.task_id).await?;
    let configs = webhooks::list_push_configs(&access.bus, &run).await.map_err(Problem::from)?;
    let configs = configs.iter().map(show_config).collect();
    Ok(ListTaskPushNotificationConfigsResponse { configs, next_page_token: None })
}

/// Deletes a config of a task, unless it is gone already.
pub async fn delete_push_config(
    operator: &Operator,
    request: DeleteTaskPushNotificationConfigRequest,
) -> Result<Value, A2aFault> {
    let access = operator.with(Scope::Submit)?;
    let (run, _) = access.find_run(&request.task_id).await?;
    match webhooks::delete_push_config(&access.bus, &run, &request.id).await {
        Ok(_) | Err(PushConfigError::NotFound(..)) => Ok(json!({})),
        Err(error) => Err(Problem::from(error).into()),
    }
}

/// Returns the body of a notification about an event of a run. `plan` is the run's current plan.
pub fn build_notification(run: &RunId, event: &WebhookMessage, plan: &Plan) -> Vec<u8> {
    let labels = plan.run.start.as_ref().map(|start| &start.labels);
    let context = context_of(run.as_str(), labels);
    let update = TaskStatusUpdateEvent {
        task_id: run.to_string(),
        status: status_after(run, &context, event, plan),
        metadata: Some(metadata_of(event)),
        context_id: context,
    };
    serde_json::to_vec(&StreamResponse::StatusUpdate(update)).expect("the types of A2A serialise to JSON")
}

/// Returns the status of a task after an event.
fn status_after(run: &RunId, context: &str, event: &WebhookMessage, plan: &Plan) -> TaskStatus {
    let timestamp = event.timestamp.to_string().parse().ok();
    let status = |state, id: String, parts| TaskStatus {
        state,
        message: Some(message_of_agent(run.as_str(), context, id, parts)),
        timestamp,
    };
    match event.kind {
        WebhookEventKind::RunEnded => {
            let name = event.data.reason.map_or("failed", |reason| reason.name());
            // Of a run that was resumed since, the plan has another end, or none.
            let end = plan.run.end.as_ref().filter(|end| Some(end.reason) == event.data.reason);
            let text = name.replace('_', " ");
            let text = match end.filter(|end| !end.detail.is_empty()) {
                Some(end) => format!("{text}: {}", end.detail),
                None => text,
            };
            status(state_of(name, false), format!("{run}/{name}"), vec![a2a::Part::text(text)])
        }
        WebhookEventKind::QuestionAsked => {
            let asked = event.data.question.as_ref();
            let is_asked = |question: &RunQuestion<'_>| asked == Some(&full_id(run, &question.id));
            let question = plan.questions().find(is_asked);
            let id = asked.cloned().unwrap_or_else(|| format!("{run}/question"));
            status(
                TaskState::InputRequired,
                id,
                question.into_iter().flat_map(|one| parts_of(run, one)).collect(),
            )
        }
        WebhookEventKind::RunStarted
        | WebhookEventKind::RunPaused
        | WebhookEventKind::RunResumed
        | WebhookEventKind::TaskFailed
        | WebhookEventKind::BudgetLow
        | WebhookEventKind::WebhookTest => {
            let open = open_questions_of_plan(plan);
            let state = if open.is_empty() { TaskState::Working } else { TaskState::InputRequired };
            let parts = open.into_iter().flat_map(|one| parts_of(run, one)).collect::<Vec<_>>();
            match parts.is_empty() {
                true => TaskStatus { state, message: None, timestamp },
                false => status(state, format!("{run}/questions"), parts),
            }
        }
    }
}

fn parts_of(run: &RunId, question: RunQuestion<'_>) -> Vec<a2a::Part> {
    let line = millrace_views::to_value(&QuestionLine::new(run, question));
    let view: Option<QuestionView> = serde_json::from_value(line).ok();
    view.iter().flat_map(parts_of_question).collect()
}

/// Returns the position and the kind of an event, as updates of a stream have them.
fn metadata_of(event: &WebhookMessage) -> HashMap<String, Value> {
    let mut metadata = HashMap::from([("event".to_owned(), event.kind.name().into())]);
    if let Some(sequence) = event.data.sequence {
        metadata.insert("sequence".into(), sequence.to_string().into());
    }
    metadata
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_protocol::plan::EndReason;
    use millrace_protocol::webhook::WebhookData;

    fn event(kind: WebhookEventKind, reason: Option<EndReason>) -> WebhookMessage {
        let data = WebhookData { sequence: Some(7), reason, ..WebhookData::default() };
        WebhookMessage { kind, timestamp: jiff::Timestamp::UNIX_EPOCH, data }
    }

    #[test]
    fn notifications_are_status_updates() {
        let run = RunId::new("r").unwrap();
        let body = |event: &WebhookMessage| -> Value {
            serde_json::from_slice(&build_notification(&run, event, &Plan::default())).unwrap()
        };
        assert_eq!(
            body(&event(WebhookEventKind::RunStarted, None)),
            json!({ "statusUpdate": {
                "taskId": "r", "contextId": "r",
                "status": { "state": "TASK_STATE_WORKING", "timestamp": "1970-01-01T00:00:00Z" },
                "metadata": { "event": "run_started", "sequence": "7" },
            } })
        );
        for (reason, state) in [
            (EndReason::Completed, "TASK_STATE_COMPLETED"),
            (EndReason::CompletedPartial, "TASK_STATE_COMPLETED"),
            (EndReason::Cancelled, "TASK_STATE_CANCELED"),
            (EndReason::BudgetExhausted, "TASK_STATE_FAILED"),
        ] {
            let body = body(&event(WebhookEventKind::RunEnded, Some(reason)));
            assert_eq!(body["statusUpdate"]["status"]["state"], state);
        }
        let asked = body(&event(WebhookEventKind::QuestionAsked, None));
        assert_eq!(asked["statusUpdate"]["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
    }

    #[test]
    fn repeated_messages_name_one_config() {
        let config: TaskPushNotificationConfig =
            serde_json::from_value(json!({ "url": "https://a.example/", "token": "" })).unwrap();
        let (one, other) =
            (describe_config_of_message(&config, "m1"), describe_config_of_message(&config, "m2"));
        assert_eq!(one.id, describe_config_of_message(&config, "m1").id);
        assert_ne!(one.id, other.id);
        assert!(one.token.is_none() && describe_config(&config).id.is_none());
    }
}
