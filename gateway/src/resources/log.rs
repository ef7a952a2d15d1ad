//! The log of a run: its decisions with the messages that they answer, its timeline, and the entries of its journals.

use std::collections::BTreeMap;

use millrace_client::ReceivedEntry;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{Decision, JournalKey, RunCommand, Submission};
use millrace_protocol::question::RunAnswer;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::token::Scope;
use millrace_runtime::log::read_message;
use millrace_runtime::nats::direct_get::PagedReader;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::nats::topology::lane_stream;
use millrace_runtime::store::archive;
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, Fault};
use millrace_views::journal::{TranscriptEntry, describe_entry, read_entry, read_entry_without_step};
use millrace_views::{
    EntryLine, LoggedDecision, MessageContent, MessageLine, RunLog, TimelineBuilder, answered_messages,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::extract::{Path, Query};
use crate::problem::{ApiResult, Problem};
use crate::state::reply;

/// The number of decisions or entries in a part if the client does not choose one.
const DEFAULT_LIMIT: usize = 100;
/// The maximum number of decisions or entries in a part.
const MAX_LIMIT: usize = 1_000;

pub fn routes() -> ApiRoutes {
    ApiRoutes::new()
        .scoped(Scope::Read, routes!(read_log))
        .scoped(Scope::Read, routes!(read_timeline))
        .scoped(Scope::Read, routes!(read_journal))
}

/// Checks the limit of a part.
fn parse_limit(limit: Option<usize>) -> Result<usize, Problem> {
    match limit.unwrap_or(DEFAULT_LIMIT) {
        limit @ 1..=MAX_LIMIT => Ok(limit),
        other => {
            let detail = format!("limit={other}: a part has 1 to {MAX_LIMIT} entries");
            Err(Problem::invalid(detail))
        }
    }
}

/// Reads all messages of a run up to sequence `at`.
async fn read_messages(bus: &Bus, run: &RunId, at: Option<u64>) -> Result<Vec<StreamRecord>, Fault> {
    let mut records = archive::read_run_from_log_or_archive(bus, bus.lane_of_run(run), run).await?;
    records.retain(|record| !record.is_forged() && at.is_none_or(|at| record.sequence <= at));
    Ok(records)
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct LogQuery {
    /// Only decisions after this sequence: the `next` of the part before.
    after: Option<u64>,
    /// Only decisions up to this sequence.
    at: Option<u64>,
    /// The number of decisions, 100 by default and at most 1000.
    limit: Option<usize>,
}

/// Read the decisions of a run with the messages that they answer.
#[utoipa::path(
    get, path = "/runs/{run}/log", tag = "runs",
    params(("run" = String, Path, description = "The run"), LogQuery),
    responses((status = 200, description = "A part of the log", body = ref("#/components/schemas/RunLog")))
)]
async fn read_log(gateway: Access, Path(run): Path<String>, Query(query): Query<LogQuery>) -> ApiResult {
    let limit = parse_limit(query.limit)?;
    let (run, summary) = gateway.find_run(&run).await?;
    let after = query.after.unwrap_or(0);
    let is_archived = summary.as_ref().is_some_and(archive::has_archive);
    let records = match is_archived {
        true => read_messages(&gateway.bus, &run, None).await?,
        false => read_plan_part(&gateway.bus, &run, after, limit).await?,
    };
    let plan = records.iter().filter(|record| record.is_decision());
    let plan = plan.filter(|record| record.sequence > after);
    let plan = plan.filter(|record| query.at.is_none_or(|at| record.sequence <= at));
    let mut decisions: Vec<(u64, Decision)> = Vec::new();
    let mut next = None;
    for record in plan {
        if decisions.len() == limit {
            next = decisions.last().map(|(sequence, _)| *sequence);
            break;
        }
        decisions.push((record.sequence, gateway.bus.decode_record(record).await?));
    }
    let mut messages: BTreeMap<u64, MessageLine> = BTreeMap::new();
    for sequence in decisions.iter().flat_map(|(_, decision)| answered_messages(decision)) {
        let record = match is_archived {
            true => records.iter().find(|record| record.sequence == sequence).cloned(),
            false => read_message(&gateway.bus, gateway.bus.lane_of_run(&run), sequence).await?,
        };
        // A message that was removed since is in the archive, to which the next request turns.
        if let Some(record) = record
            && let Some(content) = read_content(&gateway.bus, &record).await?
        {
            messages.insert(sequence, MessageLine::new(sequence, record.time, &content));
        }
    }
    let find = |sequence: u64| messages.get(&sequence);
    let decisions =
        decisions.iter().map(|(sequence, decision)| LoggedDecision::new(&run, (*sequence, decision), find));
    reply(&RunLog { run: &run, decisions: decisions.collect(), next })
}

/// Reads one decision more than `limit` of a run in its lane.
async fn read_plan_part(
    bus: &Bus,
    run: &RunId,
    after: u64,
    limit: usize,
) -> Result<Vec<StreamRecord>, Fault> {
    let lane = bus.lane_of_run(run);
    let filter = subject::topic_subject(lane, run, &Topic::Plan);
    let mut pages =
        PagedReader::new(bus.client(), lane_stream(lane), filter, after + 1).with_page_size(limit + 1);
    let mut all = Vec::new();
    while all.len() <= limit {
        let records = pages.next_page().await?;
        if records.is_empty() {
            break;
        }
        all.extend(records);
    }
    Ok(all)
}

/// Decodes a message that decisions answer; `None` if it is none.
async fn read_content(bus: &Bus, record: &StreamRecord) -> Result<Option<MessageContent>, Fault> {
    let Some((_, _, topic)) = subject::parse_lane_subject(&record.subject) else { return Ok(None) };
    Ok(Some(match topic {
        Topic::Submitted => {
            MessageContent::Submission(Box::new(bus.decode_record::<Submission>(record).await?))
        }
        Topic::Control => MessageContent::Command(Box::new(bus.decode_record::<RunCommand>(record).await?)),
        Topic::Answer => MessageContent::Answer(Box::new(bus.decode_record::<RunAnswer>(record).await?)),
        Topic::Journal(journal) => {
            let received = ReceivedEntry::read(bus, journal, record).await?;
            MessageContent::Entry(Box::new(describe_entry(received, None)))
        }
        Topic::Plan => return Ok(None),
    }))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct TimelineQuery {
    /// Only the attempts at this task.
    task: Option<String>,
    /// The timeline as of this sequence.
    at: Option<u64>,
}

/// Read what each attempt of a run did, from when to when: queued, running, parked, reviewed, and its model calls and tools.
#[utoipa::path(
    get, path = "/runs/{run}/timeline", tag = "runs",
    params(("run" = String, Path, description = "The run"), TimelineQuery),
    responses((status = 200, description = "The timeline", body = ref("#/components/schemas/Timeline")))
)]
async fn read_timeline(
    gateway: Access,
    Path(run): Path<String>,
    Query(query): Query<TimelineQuery>,
) -> ApiResult {
    let (run, _) = gateway.find_run(&run).await?;
    let task = match &query.task {
        Some(task) => Some(gateway.find_task(&run, task).await?),
        None => None,
    };
    let mut timeline = TimelineBuilder::default();
    for record in read_messages(&gateway.bus, &run, query.at).await? {
        match subject::parse_lane_subject(&record.subject) {
            Some((_, _, Topic::Plan)) => {
                timeline.add_decision(record.sequence, &gateway.bus.decode_record(&record).await?);
            }
            Some((_, _, Topic::Journal(journal))) => {
                let received = ReceivedEntry::read(&gateway.bus, journal, &record).await?;
                timeline.add_entry(&describe_entry(received, None));
            }
            Some((_, _, Topic::Submitted | Topic::Control | Topic::Answer)) | None => {}
        }
    }
    reply(&timeline.finish(&run, task.as_ref()))
}

/// A part of the journals of a run.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "JournalPage")]
pub struct JournalPage<'a> {
    /// The entries, oldest first.
    pub entries: Vec<EntryLine<'a>>,
    /// The `after` of the next part; `null` if there are no more entries so far.
    pub next: Option<u64>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct JournalQuery {
    /// Only the journals of this task: of its attempts and of their reviews.
    task: Option<String>,
    /// `true` selects the journals of the planner.
    #[serde(default)]
    planner: bool,
    /// Only this attempt at the task, or this turn of the planner.
    attempt: Option<u32>,
    /// Only entries after this sequence: the `next` of the part before.
    after: Option<u64>,
    /// Only entries up to this sequence.
    at: Option<u64>,
    /// The number of entries, 100 by default and at most 1000.
    limit: Option<usize>,
    /// `true` returns large values with their entries, instead of their names in the blob store.
    #[serde(default)]
    full: bool,
}

impl JournalQuery {
    fn selects(&self, journal: &JournalKey) -> bool {
        let is_selected = match journal.task() {
            Some(task) => self.task.as_deref().is_none_or(|wanted| wanted == task.as_str()) && !self.planner,
            None => self.planner || self.task.is_none(),
        };
        is_selected && self.attempt.is_none_or(|attempt| attempt == journal.number())
    }
}

/// Read the entries of the journals of a run, part by part: model calls, tool results, notes, results and verdicts.
#[utoipa::path(
    get, path = "/runs/{run}/journal", tag = "runs",
    params(("run" = String, Path, description = "The run"), JournalQuery),
    responses((status = 200, description = "A part of the journals; large values are named by their SHA-256 (`stored_step`)", body = ref("#/components/schemas/JournalPage")))
)]
async fn read_journal(
    gateway: Access,
    Path(run): Path<String>,
    Query(query): Query<JournalQuery>,
) -> ApiResult {
    let limit = parse_limit(query.limit)?;
    let (run, _) = gateway.find_run(&run).await?;
    let task = match &query.task {
        Some(task) => Some(gateway.find_task(&run, task).await?),
        None => None,
    };
    let after = query.after.unwrap_or(0);
    let mut entries: Vec<TranscriptEntry> = Vec::new();
    let mut next = None;
    for record in read_journal_messages(&gateway.bus, &run, (&query, task.as_ref()), after, limit).await? {
        let Some((_, _, Topic::Journal(journal))) = subject::parse_lane_subject(&record.subject) else {
            continue;
        };
        let is_in_range = record.sequence > after && query.at.is_none_or(|at| record.sequence <= at);
        if !is_in_range || !query.selects(&journal) {
            continue;
        }
        if entries.len() == limit {
            next = entries.last().map(|entry| entry.sequence);
            break;
        }
        let received = ReceivedEntry::read(&gateway.bus, journal, &record).await?;
        entries.push(match query.full {
            true => read_entry(&gateway.bus, received).await?,
            false => read_entry_without_step(&gateway.bus, received).await?,
        });
    }
    let lines = entries.iter().map(|entry| EntryLine { run: &run, task: entry.journal.task(), entry });
    reply(&JournalPage { entries: lines.collect(), next })
}

/// Reads the messages of the journals that a query may select, at least one more than `limit` if there are so many.
async fn read_journal_messages(
    bus: &Bus,
    run: &RunId,
    (query, task): (&JournalQuery, Option<&TaskId>),
    after: u64,
    limit: usize,
) -> Result<Vec<StreamRecord>, Problem> {
    let lane = bus.lane_of_run(run);
    let subjects = match (task, query.planner, query.attempt) {
        // Of an attempt only some entries are selected, so that no number of messages is known to be enough.
        (_, _, Some(_)) | (None, false, None) => return Ok(read_messages(bus, run, query.at).await?),
        (Some(task), _, None) => subject::journals_of_task(lane, run, task).to_vec(),
        (None, true, None) => vec![subject::journals_of_planner(lane, run)],
    };
    let mut all = Vec::new();
    for subject in subjects {
        let pages = PagedReader::new(bus.client(), lane_stream(lane), subject, after + 1);
        let (mut pages, mut count) = (pages.with_page_size(limit + 1), 0);
        while count <= limit {
            let records = pages.next_page().await?;
            if records.is_empty() {
                break;
            }
            count += records.len();
            all.extend(records.into_iter().filter(|record| !record.is_forged()));
        }
    }
    // The order matters: a run is marked as archived before its messages are removed from the lane.
    if registry::read_summary(bus, run).await?.as_ref().is_some_and(archive::has_archive) {
        return Ok(read_messages(bus, run, None).await?);
    }
    all.sort_by_key(|record| record.sequence);
    Ok(all)
}
