//! `GET /runs/{run}/trace`: the spans of a run.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use millrace_protocol::token::Scope;
use millrace_runtime::duration::parse_duration;
use millrace_traces::otlp::export_request;
use millrace_traces::read::trace_run;
use millrace_traces::{DEFAULT_SPLIT, TraceSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::IntoParams;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::extract::{PathParts, QueryParts};
use crate::problem::{Problem, ProblemKind};
use crate::state::json_response;

/// The routes.
pub fn routes() -> ApiRoutes {
    ApiRoutes::new().scoped(Scope::Read, routes!(read_trace))
}

/// The spans of a run as OTLP/JSON: an `ExportTraceServiceRequest` of OpenTelemetry.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TraceDocument {
    /// The spans, by their source.
    resource_spans: Vec<Value>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct TraceQuery {
    /// `true` adds the texts of prompts, replies, arguments, results and errors.
    #[serde(default)]
    content: Option<bool>,
    /// The time without any work after which the run's next trace begins, such as `1h`, the default.
    split: Option<String>,
}

/// Read what a run did as spans of OpenTelemetry, in the form that receivers of traces accept. Any run has a trace, at any time,
/// always with the same ids.
#[utoipa::path(
    get, path = "/runs/{run}/trace", tag = "runs",
    params(("run" = String, Path, description = "The run"), TraceQuery),
    responses((status = 200, description = "The spans as OTLP/JSON", body = ref("#/components/schemas/TraceDocument")))
)]
async fn read_trace(
    gateway: Access,
    PathParts(run): PathParts<String>,
    QueryParts(query): QueryParts<TraceQuery>,
) -> Result<Response, Problem> {
    let split: Option<Duration> = query
        .split
        .as_deref()
        .map(parse_duration)
        .transpose()
        .map_err(|problem| Problem::new(ProblemKind::InvalidRequest, format!("split: {problem}")))?;
    let (run, _) = gateway.find_run(&run).await?;
    let mut settings = TraceSettings::from_environment(split.unwrap_or(DEFAULT_SPLIT));
    if let Some(content) = query.content {
        settings.options.has_content = content;
    }
    let spans = trace_run(&gateway.bus, &run, settings.options.clone()).await?;
    let request = export_request(&spans, &settings.resource);
    let sources = request.resource_spans.iter().map(serde_json::to_value);
    let resource_spans = sources.collect::<Result<_, _>>().expect("the messages of OTLP serialise to JSON");
    Ok(json_response(StatusCode::OK, &TraceDocument { resource_spans }))
}
