//! The events of a task as a stream: the task, a status update for each event of the run's log, the artifacts, and the last status. Each
//! update has the position of its event as `metadata.sequence` and as the id of its frame; a client that reconnects with the last
//! id gets every later one.

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use a2a::{
    A2AError, SendMessageRequest, StreamResponse, TaskArtifactUpdateEvent, TaskState, TaskStatus,
    TaskStatusUpdateEvent,
};
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::binding::A2aFault;
use super::operations::{Delivery, deliver_message};
use super::task::{RunTask, read_artifacts, status_of};
use crate::feed::EventLevel;
use crate::problem::Problem;
use crate::standards::api::{Operator, RunEvent, RunEvents};
use crate::standards::run_view::RunView;

/// The interval of the comments that keep connections open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The number of updates that wait for a client.
const QUEUE: usize = 64;

#[derive(Debug)]
pub enum StreamPart {
    /// An update, with the position of its event.
    Update(Option<String>, Box<StreamResponse>),
    /// Nothing happened for some time.
    KeepAlive,
    /// The stream ends with an error.
    Fault(A2aFault),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    Task,
    /// With the task, or when it needs input.
    TaskOrInput,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamStart {
    /// The first event of the run.
    First,
    /// The next event.
    Now,
    /// The event after the one with this id.
    After(String),
}

/// Delivers a message, and follows its task until it has ended or needs input.
pub async fn start_message_stream(
    operator: &Operator,
    request: SendMessageRequest,
    last: Option<String>,
) -> Result<mpsc::Receiver<StreamPart>, A2aFault> {
    let Delivery { run, before } = deliver_message(operator, &request).await?;
    let start = match (last, before) {
        (Some(id), _) => StreamStart::After(id),
        (None, Some(before)) => StreamStart::After(before.to_string()),
        (None, None) => StreamStart::First,
    };
    start_stream(operator, &run, start, StreamEnd::TaskOrInput).await
}

/// Follows a task until it has ended.
pub async fn start_task_stream(
    operator: &Operator,
    run: &str,
    last: Option<String>,
) -> Result<mpsc::Receiver<StreamPart>, A2aFault> {
    let start = last.map_or(StreamStart::Now, StreamStart::After);
    start_stream(operator, run, start, StreamEnd::Task).await
}

/// Returns a stream of server-sent events; `encode` returns the data of an update or a fault.
pub fn stream_response(
    receiver: mpsc::Receiver<StreamPart>,
    encode: impl Fn(Result<&StreamResponse, A2aFault>) -> Value + Send + 'static,
) -> Response {
    let frames = futures::stream::unfold((receiver, encode), |(mut receiver, encode)| async move {
        let frame = match receiver.recv().await? {
            StreamPart::KeepAlive => ": keep-alive\n\n".to_owned(),
            StreamPart::Update(id, update) => {
                let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
                format!("{id}data: {}\n\n", encode(Ok(&update)))
            }
            StreamPart::Fault(fault) => format!("data: {}\n\n", encode(Err(fault))),
        };
        Some((Ok::<_, Infallible>(Bytes::from(frame)), (receiver, encode)))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // Proxies must not collect events.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(frames)).into_response()
}

async fn start_stream(
    operator: &Operator,
    run: &str,
    start: StreamStart,
    end: StreamEnd,
) -> Result<mpsc::Receiver<StreamPart>, A2aFault> {
    let first = RunTask::read(operator, run, None).await?;
    if first.view.has_ended() && start == StreamStart::Now {
        let detail = format!("task {run} has ended; read it instead");
        return Err(A2AError::unsupported_operation(detail).into());
    }
    let after = match start {
        StreamStart::First => String::new(),
        StreamStart::Now => first.sequence.to_string(),
        StreamStart::After(id) => id,
    };
    let events = RunEvents::open(operator, run, &after, EventLevel::Decisions).await?;
    let (sender, receiver) = mpsc::channel(QUEUE);
    let context = first.task.context_id.clone();
    let follower = Follower { operator: operator.clone(), run: run.to_owned(), context, end, sender };
    tokio::spawn(follower.follow(first, events));
    Ok(receiver)
}

struct Follower {
    operator: Operator,
    run: String,
    context: String,
    end: StreamEnd,
    sender: mpsc::Sender<StreamPart>,
}

impl Follower {
    async fn follow(self, first: RunTask, mut events: RunEvents) {
        let needs_input = first.task.status.state == TaskState::InputRequired;
        let task = StreamResponse::Task(first.task);
        if self.send(StreamPart::Update(None, Box::new(task))).await.is_err() {
            return;
        }
        // A subscriber of a task that waits already knows the question from the task.
        let mut is_over = needs_input && self.end == StreamEnd::TaskOrInput;
        while !is_over {
            let next = tokio::select! {
                next = timeout_at(Instant::now() + KEEP_ALIVE, events.next_event()) => next,
                () = self.sender.closed() => return,
            };
            let sent = match next {
                Err(_) => self.send(StreamPart::KeepAlive).await.map(|()| false),
                // The run has ended, or the gateway stops.
                Ok(None) => return,
                Ok(Some(event)) => match self.send_updates(&event).await {
                    Ok(sent) => sent,
                    Err(problem) => self.send(StreamPart::Fault(problem.into())).await.map(|()| true),
                },
            };
            let Ok(has_ended) = sent else { return };
            is_over = has_ended;
        }
    }

    async fn send(&self, part: StreamPart) -> Result<(), ()> {
        self.sender.send(part).await.map_err(drop)
    }

    /// Sends the updates of an event, and returns `true` after the last one.
    async fn send_updates(&self, event: &RunEvent) -> Result<Result<bool, ()>, Problem> {
        let Some(id) = &event.id else {
            // A notice of the stream.
            return Ok(Ok(event.is_end()));
        };
        let view = match event.name.as_str() {
            "run_ended" | "attempt_parked" | "plan_question_asked" | "question_renewed" => {
                Some(RunView::read(&self.operator, &self.run).await?)
            }
            _ => None,
        };
        let view = view.filter(|view| view.has_ended() || !view.open_questions.is_empty());
        let has_ended = event.name == "run_ended" && view.as_ref().is_some_and(RunView::has_ended);
        if has_ended && let Some(view) = &view {
            for artifact in read_artifacts(&self.operator, view).await? {
                let update = TaskArtifactUpdateEvent {
                    task_id: self.run.clone(),
                    context_id: self.context.clone(),
                    artifact,
                    append: Some(false),
                    last_chunk: Some(true),
                    metadata: Some(metadata_of(event)),
                };
                // Without the id: a client that is cut off here gets the artifacts again.
                let update = StreamPart::Update(None, Box::new(StreamResponse::ArtifactUpdate(update)));
                if self.send(update).await.is_err() {
                    return Ok(Err(()));
                }
            }
        }
        let status = match &view {
            Some(view) if has_ended || !view.has_ended() => status_of(view, &self.context),
            _ => TaskStatus {
                state: TaskState::Working,
                message: None,
                timestamp: event.data["at"].as_str().and_then(|at| at.parse().ok()),
            },
        };
        let needs_input = status.state == TaskState::InputRequired;
        let update = TaskStatusUpdateEvent {
            task_id: self.run.clone(),
            context_id: self.context.clone(),
            status,
            metadata: Some(metadata_of(event)),
        };
        let update = StreamPart::Update(Some(id.clone()), Box::new(StreamResponse::StatusUpdate(update)));
        let sent = self.send(update).await;
        Ok(sent.map(|()| has_ended || (needs_input && self.end == StreamEnd::TaskOrInput)))
    }
}

/// Returns the position, the name and the task of an event.
fn metadata_of(event: &RunEvent) -> HashMap<String, Value> {
    let mut metadata = HashMap::from([("event".to_owned(), event.name.as_str().into())]);
    if let Some(id) = &event.id {
        metadata.insert("sequence".into(), id.as_str().into());
    }
    if let Some(task) = event.data.get("task").filter(|task| !task.is_null()) {
        metadata.insert("task".into(), task.clone());
    }
    metadata
}
