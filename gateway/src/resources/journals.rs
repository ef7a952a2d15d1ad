//! What the agents, critics and the planner of a run did: transcripts, spans of OpenTelemetry, and the usage of models and tools.

use std::time::Duration;

use jiff::Timestamp;
use millrace_client::{Journals, TaskUpdate, read_task};
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::Decision;
use millrace_protocol::token::Scope;
use millrace_runtime::clock::parse_duration;
use millrace_runtime::store::archive;
use millrace_traces::otlp::export_request;
use millrace_traces::read::trace_run;
use millrace_traces::{DEFAULT_SPLIT, TraceSettings};
use millrace_views::history::RunHistory;
use millrace_views::journal::{TranscriptEntry, read_entry};
use millrace_views::{PlannerTranscript, RunSpend, SpendGroup, SpendSeries, SpendTable, TaskTranscript};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::IntoParams;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::extract::{Path, Query};
use crate::problem::{ApiResult, Problem, ProblemKind};
use crate::run_filter::RunFilter;
use crate::state::{Gateway, reply};

pub fn routes() -> ApiRoutes {
    ApiRoutes::new()
        .scoped(Scope::Read, routes!(read_task_transcript))
        .scoped(Scope::Read, routes!(read_planner_transcript))
        .scoped(Scope::Read, routes!(read_trace))
        .scoped(Scope::Read, routes!(read_spend))
        .scoped(Scope::Read, routes!(read_run_spend))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct TranscriptQuery {
    /// Only this attempt at the task, or this turn of the planner.
    attempt: Option<u32>,
    /// The transcript as of this sequence.
    at: Option<u64>,
}

/// Read what the agents of a task did: model calls, tool results and reviews, with their texts.
#[utoipa::path(
    get, path = "/runs/{run}/tasks/{task}/transcript", tag = "runs",
    params(("run" = String, Path, description = "The run"), ("task" = String, Path, description = "The task"), TranscriptQuery),
    responses((status = 200, description = "The transcript", body = ref("#/components/schemas/TaskTranscript")))
)]
async fn read_task_transcript(
    gateway: Access,
    Path((run, task)): Path<(String, String)>,
    Query(query): Query<TranscriptQuery>,
) -> ApiResult {
    let unknown = || Problem::new(ProblemKind::TaskNotFound, format!("run {run} has no task {task:?}"));
    let (run_id, _) = gateway.find_run(&run).await?;
    let task_id = TaskId::new(&task).map_err(|_| unknown())?;
    let (history, entries) =
        read_journals(&gateway, &run_id, &Journals::Task(task_id.clone()), (query.attempt, query.at)).await?;
    let plan = &history.plan;
    let task = plan.task(&task_id).ok_or_else(unknown)?;
    let transcript = TaskTranscript::new(&run_id, (plan, task), query.attempt, &entries, Timestamp::now());
    reply(&transcript)
}

/// Read what the planner of a run did.
#[utoipa::path(
    get, path = "/runs/{run}/planner/transcript", tag = "runs",
    params(("run" = String, Path, description = "The run"), TranscriptQuery),
    responses((status = 200, description = "The transcript", body = ref("#/components/schemas/PlannerTranscript")))
)]
async fn read_planner_transcript(
    gateway: Access,
    Path(run): Path<String>,
    Query(query): Query<TranscriptQuery>,
) -> ApiResult {
    let (run, _) = gateway.find_run(&run).await?;
    let (history, entries) =
        read_journals(&gateway, &run, &Journals::Planner, (query.attempt, query.at)).await?;
    let transcript = PlannerTranscript::new(&run, &history, query.attempt, &entries);
    reply(&transcript)
}

/// Reads the history of a run and the entries of journals; `only` selects one attempt or turn.
async fn read_journals(
    gateway: &Gateway,
    run: &RunId,
    journals: &Journals,
    (only, at): (Option<u32>, Option<u64>),
) -> Result<(RunHistory, Vec<TranscriptEntry>), Problem> {
    let (mut history, mut entries) = (RunHistory::default(), Vec::new());
    for update in read_task(&gateway.bus, run, journals).await? {
        if at.is_some_and(|at| update.sequence() > at) {
            break;
        }
        match update {
            TaskUpdate::Decision { sequence: _, decision } => history.add_decision(&decision),
            TaskUpdate::Entry(entry) => {
                let entry = read_entry(&gateway.bus, *entry).await?;
                if only.is_none_or(|only| entry.journal.number() == only) {
                    entries.push(entry);
                }
            }
        }
    }
    Ok((history, entries))
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
async fn read_trace(gateway: Access, Path(run): Path<String>, Query(query): Query<TraceQuery>) -> ApiResult {
    let split: Option<Duration> = query
        .split
        .as_deref()
        .map(parse_duration)
        .transpose()
        .map_err(|problem| Problem::invalid(format!("split: {problem}")))?;
    let (run, _) = gateway.find_run(&run).await?;
    let mut settings = TraceSettings::from_environment(split.unwrap_or(DEFAULT_SPLIT));
    if let Some(content) = query.content {
        settings.options.has_content = content;
    }
    let spans = trace_run(&gateway.bus, &run, settings.options.clone()).await?;
    let request = export_request(&spans, &settings.resource);
    let sources = request.resource_spans.iter().map(serde_json::to_value);
    let resource_spans = sources.collect::<Result<_, _>>().expect("the messages of OTLP serialise to JSON");
    reply(&TraceDocument { resource_spans })
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct SpendQuery {
    /// `capability` (default), `model`, `day` (of the start, in UTC), `state`, or `label:NAME`.
    group: Option<String>,
    /// Only runs in these states, separated by commas.
    state: Option<String>,
    /// Only runs with these labels, separated by commas: `NAME=VALUE`, or `NAME` for any value.
    label: Option<String>,
    /// Only runs that started at this time or later: a time, or a duration before now such as `30d`.
    since: Option<String>,
    /// Only runs that started before this time: a time, or a duration before now.
    until: Option<String>,
}

fn parse_group(text: Option<&str>) -> Result<SpendGroup, Problem> {
    match text.unwrap_or("capability") {
        "capability" => Ok(SpendGroup::Capability),
        "model" => Ok(SpendGroup::Model),
        "day" => Ok(SpendGroup::Day),
        "state" => Ok(SpendGroup::State),
        other => match other.strip_prefix("label:") {
            Some(name) if !name.is_empty() => Ok(SpendGroup::Label(name.to_owned())),
            Some(_) | None => {
                let detail =
                    format!("group={other:?} is no group; valid: capability, model, day, state, label:NAME");
                Err(Problem::invalid(detail))
            }
        },
    }
}

/// Read the usage of all runs by capability, model, label, day or state.
#[utoipa::path(
    get, path = "/spend", tag = "cluster", params(SpendQuery),
    responses((status = 200, description = "The usage", body = ref("#/components/schemas/SpendReport")))
)]
async fn read_spend(gateway: Access, Query(query): Query<SpendQuery>) -> ApiResult {
    let group = parse_group(query.group.as_deref())?;
    let filter = RunFilter::parse(
        (query.state.as_deref(), query.label.as_deref(), None),
        (query.since.as_deref(), query.until.as_deref()),
    )?;
    let mut table = SpendTable::new(group);
    gateway.runs.visit_runs(&gateway.bus, &filter, |run| table.add_run(&run.summary)).await?;
    reply(&table.finish())
}

/// Read the usage of a run by role, capability, model and task, and over time.
#[utoipa::path(
    get, path = "/runs/{run}/spend", tag = "runs",
    params(("run" = String, Path, description = "The run")),
    responses((status = 200, description = "The usage", body = ref("#/components/schemas/RunSpend")))
)]
async fn read_run_spend(gateway: Access, Path(run): Path<String>) -> ApiResult {
    let (run, _) = gateway.find_run(&run).await?;
    let (mut history, mut series) = (RunHistory::default(), SpendSeries::default());
    let lane = gateway.bus.lane_of_run(&run);
    for record in archive::read_decisions_from_log_or_archive(&gateway.bus, lane, &run).await? {
        let decision: Decision = gateway.bus.decode_record(&record).await?;
        history.add_decision(&decision);
        series.add_total(record.sequence, decision.at, history.plan.budget.spend.total);
    }
    let points = series.finish();
    reply(&RunSpend::new(&run, &history.plan, &points))
}
