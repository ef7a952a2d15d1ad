//! The operations of A2A, for both bindings.

use std::collections::BTreeMap;
use std::time::Duration;

use a2a::{
    A2AError, CancelTaskRequest, GetTaskRequest, ListTasksRequest, ListTasksResponse, Message, Part, Role,
    SendMessageRequest, Task, TaskState, TaskStatus,
};
use millrace_protocol::token::Scope;
use serde::Deserialize;
use tokio::time::Instant;

use super::binding::A2aFault;
use super::message::{CONTEXT_LABEL, answer_of_message, check_context, describe_run, find_question, text_of};
use super::push::{describe_config_of_message, set_config};
use super::task::{RunTask, context_of, run_states_of, state_of};
use crate::extract::Query;
use crate::problem::{Problem, ProblemKind};
use crate::resources::runs::{ListQuery, list_runs};
use crate::resources::steering::{CancelBody, MessageBody, Steering};
use crate::standards::api::{Operator, answer_question, steer_run, value_of};
use crate::standards::run_view::{ReportProgress, RunView};

/// The longest wait for the end of a task or a question; a client then gets the task as it is.
const MAX_WAIT: Duration = Duration::from_secs(300);
/// The number of tasks in a list if the client does not choose one.
const DEFAULT_PAGE: i32 = 50;
/// The maximum number of tasks in a list.
const MAX_PAGE: i32 = 100;
/// The number of tasks up to which a list knows its total size.
const MAX_COUNT: usize = 1_000;

/// The page token of the part with the run of a context alone.
const OWN_PART: &str = "own";

/// Ignores the progress of a run.
struct NoProgress;

impl ReportProgress for NoProgress {
    async fn report_progress(&self, _: &RunView) {}
}

pub struct Delivery {
    pub run: String,
    /// The sequence of the log before it; `None` if the run is new.
    pub before: Option<u64>,
}

pub async fn deliver_message(
    operator: &Operator,
    request: &SendMessageRequest,
) -> Result<Delivery, A2aFault> {
    let message = &request.message;
    let configuration = request.configuration.as_ref();
    let push = configuration.and_then(|one| one.task_push_notification_config.as_ref());
    let push = push.map(|config| describe_config_of_message(config, &message.message_id));
    if message.message_id.is_empty() {
        return Err(A2aFault::invalid("message.messageId must not be empty"));
    }
    match message.task_id.as_deref().filter(|task| !task.is_empty()) {
        None => {
            let mut run = describe_run(message)?;
            let push = push.map(|config| ("push_config".to_owned(), millrace_views::to_value(&config)));
            run.description.extend(push);
            // A repeated message is the same run.
            let key = format!("a2a/{}", message.message_id);
            let run = operator.submit_run(&run.description, run.documents, Some(&key)).await?;
            Ok(Delivery { run, before: None })
        }
        Some(task) => {
            if let Some(config) = push {
                // Before the message, so that the config tells of its effect.
                RunTask::read(operator, task, Some(0)).await?;
                set_config(operator, task, config).await?;
            }
            let before = continue_run(operator, task, message).await?;
            Ok(Delivery { run: task.to_owned(), before: Some(before) })
        }
    }
}

/// Answers the open question of a run, or sends a message to its planner. Returns the sequence of the log before.
async fn continue_run(operator: &Operator, run: &str, message: &Message) -> Result<u64, A2aFault> {
    let current = RunTask::read(operator, run, Some(0)).await?;
    if message.context_id.as_ref().is_some_and(|context| *context != current.task.context_id) {
        return Err(A2aFault::invalid(format!("task {run} is not of the context of the message")));
    }
    if current.view.has_ended() {
        let detail =
            format!("task {run} has ended; send a message without taskId that names it in referenceTaskIds");
        return Err(A2AError::unsupported_operation(detail).into());
    }
    if let Some(question) = find_question(message, &current.view.open_questions)? {
        let answer = answer_of_message(message, question)?;
        answer_question(operator, &question.id, &answer).await?;
        return Ok(current.sequence);
    }
    let steering = Steering::SendMessage(MessageBody { text: text_of(message) });
    steer_run(operator, run, steering, Some(&format!("a2a/{}", message.message_id))).await?;
    Ok(current.sequence)
}

/// Sends a message, and returns the task when it has ended or needs input, or at once if the client wants that.
pub async fn send_message(operator: &Operator, request: SendMessageRequest) -> Result<Task, A2aFault> {
    let Delivery { run, .. } = deliver_message(operator, &request).await?;
    let configuration = request.configuration.unwrap_or(a2a::SendMessageConfiguration {
        accepted_output_modes: None,
        task_push_notification_config: None,
        history_length: None,
        return_immediately: None,
    });
    if !configuration.return_immediately.unwrap_or(false) {
        let deadline = Instant::now() + MAX_WAIT;
        let is_wanted = |view: &RunView| view.has_ended() || !view.open_questions.is_empty();
        RunView::wait(operator, &run, deadline, is_wanted, &NoProgress).await?;
    }
    Ok(RunTask::read(operator, &run, configuration.history_length)
        .await?
        .with_artifacts(operator)
        .await?
        .task)
}

pub async fn get_task(operator: &Operator, request: GetTaskRequest) -> Result<Task, A2aFault> {
    let task = RunTask::read(operator, &request.id, request.history_length).await?;
    Ok(task.with_artifacts(operator).await?.task)
}

pub async fn cancel_task(operator: &Operator, request: CancelTaskRequest) -> Result<Task, A2aFault> {
    let run = &request.id;
    let task = RunTask::read(operator, run, Some(0)).await?;
    if task.view.has_ended() {
        return Err(A2AError::task_not_cancelable(run).into());
    }
    let reason = Some("cancelled by an A2A client".to_owned());
    match steer_run(operator, run, Steering::CancelRun(CancelBody { reason }), None).await {
        Ok(()) => {}
        Err(problem) if problem.is(ProblemKind::CommandRefused) => {
            return Err(A2AError::task_not_cancelable(run).into());
        }
        Err(problem) => return Err(problem.into()),
    }
    // Attempts in flight stop before the run ends.
    let deadline = Instant::now() + Duration::from_secs(5);
    RunView::wait(operator, run, deadline, RunView::has_ended, &NoProgress).await?;
    Ok(RunTask::read(operator, run, None).await?.task)
}

#[derive(Default, Deserialize)]
struct Runs {
    runs: Vec<RunLine>,
    next: String,
}

#[derive(Deserialize)]
struct RunLine {
    run: String,
    state: String,
    #[serde(default)]
    updated_at: Option<String>,
    open_questions: u32,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

impl RunLine {
    fn into_task(self) -> Task {
        let context = context_of(&self.run, self.labels.as_ref());
        let status = TaskStatus {
            state: state_of(&self.state, self.open_questions > 0),
            message: Some(Message {
                message_id: format!("{}/{}", self.run, self.state),
                context_id: Some(context.clone()),
                task_id: Some(self.run.clone()),
                role: Role::Agent,
                parts: vec![Part::text(self.state.replace('_', " "))],
                metadata: None,
                extensions: None,
                reference_task_ids: None,
            }),
            timestamp: self.updated_at.as_ref().and_then(|at| at.parse().ok()),
        };
        Task { id: self.run, context_id: context, status, artifacts: None, history: None, metadata: None }
    }
}

/// Lists tasks, newest first.
pub async fn list_tasks(
    operator: &Operator,
    request: ListTasksRequest,
) -> Result<ListTasksResponse, A2aFault> {
    let size = request.page_size.unwrap_or(DEFAULT_PAGE);
    if !(1..=MAX_PAGE).contains(&size) {
        return Err(A2aFault::invalid(format!("pageSize must be from 1 to {MAX_PAGE}")));
    }
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let Some(filter) = filter_of(&request)? else {
        // No task has the state.
        let (tasks, next_page_token) = (Vec::new(), String::new());
        return Ok(ListTasksResponse { tasks, next_page_token, page_size: 0, total_size: 0 });
    };
    // A run without a label is a context of its own.
    let own_context = match request.context_id.as_deref().filter(|context| !context.is_empty()) {
        None => None,
        Some(context) => {
            let own = RunTask::read(operator, context, Some(0)).await.ok();
            own.filter(|own| own.task.context_id == context)
        }
    };
    let list = async |query| -> Result<Runs, Problem> {
        value_of(list_runs(operator.with(Scope::Read)?, Query(query)).await).await
    };
    let page = match request.page_token.as_deref() == Some(OWN_PART) {
        true => Runs::default(),
        false => {
            let cursor = request.page_token.clone();
            list(ListQuery { cursor, limit: Some(size), ..filter.clone() }).await?
        }
    };
    let all = list(ListQuery { limit: Some(MAX_COUNT), ..filter }).await?;
    // The run of the context is the oldest one: it is at the end, in a part of its own if the last one is full.
    let has_room = page.next.is_empty() && page.runs.len() < size;
    let next_page_token = match own_context.is_some() && page.next.is_empty() && !has_room {
        true => OWN_PART.to_owned(),
        false => page.next,
    };
    let own = own_context.filter(|_| has_room).map(|own| own.task);
    let is_wanted = |task: &Task| is_wanted(task, &request);
    let listed: Vec<Task> =
        page.runs.into_iter().map(RunLine::into_task).chain(own).filter(is_wanted).collect();
    let total = all.runs.into_iter().map(RunLine::into_task).filter(is_wanted).count().max(listed.len());
    let tasks = complete_tasks(operator, listed, &request).await?;
    let page_size = i32::try_from(tasks.len()).unwrap_or(i32::MAX);
    let total_size = i32::try_from(total).unwrap_or(i32::MAX);
    Ok(ListTasksResponse { tasks, next_page_token, page_size, total_size })
}

/// Returns the selection of runs for a list; `None` if no task has the requested state.
fn filter_of(request: &ListTasksRequest) -> Result<Option<ListQuery>, A2aFault> {
    let mut filter = ListQuery::default();
    if let Some(status) = &request.status {
        let states = run_states_of(status);
        if states.is_empty() && *status != TaskState::Unspecified {
            return Ok(None);
        }
        filter.state = Some(states);
    }
    if let Some(context) = request.context_id.as_deref().filter(|context| !context.is_empty()) {
        check_context(context)?;
        filter.label = Some(format!("{CONTEXT_LABEL}={context}"));
    }
    Ok(Some(filter))
}

fn is_wanted(task: &Task, request: &ListTasksRequest) -> bool {
    let is_recent = request
        .status_timestamp_after
        .is_none_or(|after| task.status.timestamp.is_some_and(|timestamp| timestamp >= after));
    let is_any = |status: &TaskState| *status == TaskState::Unspecified || *status == task.status.state;
    is_recent && request.status.as_ref().is_none_or(is_any)
}

/// Adds the history and the artifacts that the client wants.
async fn complete_tasks(
    operator: &Operator,
    listed: Vec<Task>,
    request: &ListTasksRequest,
) -> Result<Vec<Task>, A2aFault> {
    let has_artifacts = request.include_artifacts.unwrap_or(false);
    let history = request.history_length.unwrap_or(0);
    if !has_artifacts && history <= 0 {
        return Ok(listed);
    }
    let mut tasks = Vec::with_capacity(listed.len());
    for task in listed {
        let full = RunTask::read(operator, &task.id, Some(history)).await?;
        tasks.push(match has_artifacts {
            true => full.with_artifacts(operator).await?.task,
            false => full.task,
        });
    }
    Ok(tasks)
}
