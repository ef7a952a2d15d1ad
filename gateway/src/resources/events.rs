//! `GET /runs/{run}/events`: the events of a run as a stream of server-sent events.

use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use millrace_protocol::token::Scope;
use serde::Deserialize;
use tokio::sync::mpsc;
use utoipa::IntoParams;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::extract::{PathParts, QueryParts};
use crate::feed::{EventCursor, EventLevel, EventRequest, EventStream, QUEUED_FRAMES};
use crate::problem::{Problem, ProblemKind};

/// The header by which a client that reconnects names the last event that it has received.
const LAST_EVENT_ID: &str = "last-event-id";

/// The routes.
pub fn routes() -> ApiRoutes {
    ApiRoutes::new().scoped(Scope::Read, routes!(stream_events))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct EventQuery {
    /// Send only events after the one with this id; the header Last-Event-ID has precedence.
    after: Option<String>,
    /// `decisions` (default), `steps` (and each entry of the journals) or `live` (and model output as it is written).
    #[param(inline)]
    #[serde(default)]
    level: EventLevel,
    /// Only events with these names, separated by commas, such as `task_completed,run_ended`.
    types: Option<String>,
    /// Only events of this task.
    task: Option<String>,
}

/// Follow the events of a run. Each event has an id; a client that reconnects with the last id it has received gets every later
/// event once. After the run's end a last event `end` follows.
#[utoipa::path(
    get, path = "/runs/{run}/events", tag = "events",
    params(
        ("run" = String, Path, description = "The run"),
        EventQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was received")
    ),
    responses((status = 200, description = "Events: the data of an event is an EventLine, of `step` an EntryLine, of notices a StreamNotice", content_type = "text/event-stream", body = String))
)]
async fn stream_events(
    gateway: Access,
    PathParts(run): PathParts<String>,
    QueryParts(query): QueryParts<EventQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let last = headers.get(LAST_EVENT_ID).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let after = last.or(query.after).filter(|id| !id.is_empty()).map(|id| id.parse::<EventCursor>());
    let after = after.transpose().map_err(|error| Problem::new(ProblemKind::InvalidRequest, error))?;
    let types = query.types.unwrap_or_default();
    let types = types.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
    let request = EventRequest { after, level: query.level, types: types.collect(), task: query.task };
    let (run, _) = gateway.find_run(&run).await?;
    let (sender, receiver) = mpsc::channel(QUEUED_FRAMES);
    EventStream::start((&gateway.bus, &run), request, sender, gateway.shutdown.clone());
    let frames = stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|frame| (Ok::<_, std::convert::Infallible>(frame), receiver))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // Proxies must not collect events.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, Body::from_stream(frames)).into_response())
}
