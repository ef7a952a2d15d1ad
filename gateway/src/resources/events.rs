//! `GET /runs/{run}/events` and `GET /events`: the events of one run, and of many, as a stream of server-sent events.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use millrace_protocol::token::Scope;
use serde::Deserialize;
use tokio::sync::mpsc;
use utoipa::IntoParams;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes, StreamPermit};
use crate::extract::{Path, Query};
use crate::feed::{
    AllRunsRequest, AllRunsStream, EventCursor, EventFilter, EventLevel, EventRequest, EventStream, Frame,
    QUEUED_FRAMES, RUN_SUMMARY, StreamPosition, StreamSources, StreamStart,
};
use crate::problem::{ApiResult, Problem};
use crate::run_filter::parse_labels;
use crate::state::Gateway;

/// The header by which a client that reconnects names the last event that it has received.
const LAST_EVENT_ID: &str = "last-event-id";

pub fn routes() -> ApiRoutes {
    ApiRoutes::new()
        .scoped(Scope::Read, routes!(stream_events))
        .scoped(Scope::Read, routes!(stream_all_events))
}

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct EventQuery {
    /// Send only events after the one with this id; the header Last-Event-ID has precedence.
    pub after: Option<String>,
    /// `decisions` (default), `steps` (and each entry of the journals) or `live` (and model output as it is written).
    #[param(inline)]
    #[serde(default)]
    pub level: EventLevel,
    /// Only events with these names, separated by commas, such as `task_completed,run_ended`; `step` with `level=steps` or `live`.
    pub types: Option<String>,
    /// Only events of this task.
    pub task: Option<String>,
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
    Path(run): Path<String>,
    Query(query): Query<EventQuery>,
    headers: HeaderMap,
) -> ApiResult {
    let last = headers.get(LAST_EVENT_ID).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let (receiver, permit) =
        open_events(&gateway, &run, EventQuery { after: last.or(query.after), ..query }).await?;
    Ok(stream_response(receiver, permit))
}

/// Opens a stream of the events of a run.
pub async fn open_events(
    gateway: &Access,
    run: &str,
    query: EventQuery,
) -> Result<(mpsc::Receiver<Frame>, StreamPermit), Problem> {
    let after = query.after.filter(|id| !id.is_empty()).map(|id| id.parse::<EventCursor>());
    let after = after.transpose().map_err(Problem::invalid)?;
    let mut filter = parse_filter(query.level, query.types.as_deref(), None)?;
    let (run, _) = gateway.find_run(run).await?;
    if let Some(task) = &query.task {
        filter.task = Some(gateway.find_task(&run, task).await?);
    }
    let request = EventRequest { after, filter };
    let permit = gateway.open_stream()?;
    let (sender, receiver) = mpsc::channel(QUEUED_FRAMES);
    EventStream::start((&gateway.bus, &gateway.hub, &run), request, sender, gateway.shutdown.clone());
    Ok((receiver, permit))
}

fn parse_filter(
    level: EventLevel,
    types: Option<&str>,
    summaries: Option<&str>,
) -> Result<EventFilter, Problem> {
    EventFilter::parse(level, types, summaries).map_err(Problem::invalid)
}

fn split_list(text: Option<&str>) -> Vec<String> {
    let names = text.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

/// Returns the response whose body is a stream of frames. The permit ends with it.
fn stream_response(receiver: mpsc::Receiver<Frame>, permit: StreamPermit) -> Response {
    let frames = stream::unfold((receiver, permit), |(mut receiver, permit)| async move {
        receiver
            .recv()
            .await
            .map(|frame| (Ok::<_, std::convert::Infallible>(frame.encode()), (receiver, permit)))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // Proxies must not collect events.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(frames)).into_response()
}

/// The parts of the runs that a stream of many runs has: it has no model output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
enum AllRunsLevel {
    /// The events of the supervisors' decisions.
    #[default]
    Decisions,
    /// The same, and each entry of the journals.
    Steps,
}

impl From<AllRunsLevel> for EventLevel {
    fn from(level: AllRunsLevel) -> Self {
        match level {
            AllRunsLevel::Decisions => Self::Decisions,
            AllRunsLevel::Steps => Self::Steps,
        }
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct AllEventsQuery {
    /// Send only events after the one with this id, or `start` for all events of all runs; the header Last-Event-ID has precedence.
    /// Without it, the stream begins with the summaries of all runs that have not ended, and has what happens from then on.
    after: Option<String>,
    /// `decisions` (default) or `steps` (and each entry of the journals).
    #[param(inline)]
    #[serde(default)]
    level: AllRunsLevel,
    /// Only events with these names, separated by commas, such as `task_completed,run_ended`; `step` with `level=steps`. `run_summary` is
    /// sent whatever the names are; alone it leaves all events out.
    types: Option<String>,
    /// Only events of these runs, separated by commas.
    runs: Option<String>,
    /// Only events of runs with these labels, separated by commas: `NAME=VALUE`, or `NAME` for any value.
    label: Option<String>,
}

/// Follow the events of all runs, or of some. Each event has an id; a client that reconnects with the last id it has received gets
/// every later event once, also of runs that were archived meanwhile. `run_summary` has the line of a run in the list when it changes.
#[utoipa::path(
    get, path = "/events", tag = "events",
    params(
        AllEventsQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was received")
    ),
    responses((status = 200, description = "Events: the data of an event is an EventLine, of `step` an EntryLine, of `run_summary` a run of RunList, of notices a StreamNotice", content_type = "text/event-stream", body = String))
)]
async fn stream_all_events(
    gateway: Access,
    Query(query): Query<AllEventsQuery>,
    headers: HeaderMap,
) -> ApiResult {
    let last = headers.get(LAST_EVENT_ID).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let start = parse_start(&gateway, last.or(query.after))?;
    let mut runs = BTreeSet::new();
    for run in split_list(query.runs.as_deref()) {
        runs.insert(gateway.find_run(&run).await?.0);
    }
    let request = AllRunsRequest {
        start,
        filter: parse_filter(query.level.into(), query.types.as_deref(), Some(RUN_SUMMARY))?,
        runs,
        labels: parse_labels(query.label.as_deref())?,
    };
    let sources = StreamSources {
        bus: gateway.bus.clone(),
        hub: gateway.hub.clone(),
        histories: gateway.histories.clone(),
        shutdown: gateway.shutdown.clone(),
    };
    let permit = gateway.open_stream()?;
    let (sender, receiver) = mpsc::channel(QUEUED_FRAMES);
    AllRunsStream::start(sources, request, sender);
    Ok(stream_response(receiver, permit))
}

fn parse_start(gateway: &Gateway, after: Option<String>) -> Result<StreamStart, Problem> {
    let lanes = gateway.bus.settings().lanes;
    let position = match after.as_deref() {
        None | Some("") => return Ok(StreamStart::Now),
        Some("start") => StreamPosition::start(lanes),
        Some(id) => id.parse().map_err(Problem::invalid)?,
    };
    if position.lanes.len() != usize::from(lanes) {
        let detail = format!("the event id has {} lanes, and this cluster has {lanes}", position.lanes.len());
        return Err(Problem::invalid(detail));
    }
    Ok(StreamStart::After(position))
}
