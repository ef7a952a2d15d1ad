//! `POST /runs`: submits a run, with its documents: JSON, or a form with documents, which are stored as they arrive.
//!
//! With an `Idempotency-Key` the request can be repeated at any time, also after this process has died: the key names the run
//! before it is submitted ([`crate::idempotency`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{FromRequest, Multipart, Request};
use axum::http::StatusCode;
use axum::response::Response;
use millrace_agent::corpus::MAX_BYTES;
use millrace_agent::model::validate_selection;
use millrace_agent::session::ModelPreferences;
use millrace_client::webhooks::NewPushConfig;
use millrace_client::{
    EarlierResults, EarlierRunError, FindError, generate_run_id, read_earlier_run, store_document_list,
    submit_run_with_id,
};
use millrace_plan_file::{
    PlanFile, RunDescription, find_capability_mistakes, parse_plan_file, parse_run_budget,
};
use millrace_protocol::ids::{RunId, SessionId};
use millrace_protocol::labels::Labels;
use millrace_protocol::plan::{
    Budget, CapabilityRegistry, Document, EarlierRun, PlannerConsultMode, PlanningMode, Submission,
    find_earlier_runs_problem,
};
use millrace_protocol::result::VerificationPolicy;
use millrace_protocol::subject::Topic;
use millrace_protocol::token::Scope;
use millrace_protocol::trace_context::TraceParent;
use millrace_runtime::Fault;
use millrace_runtime::log::read_topic;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::store::blobs::sha256_hex;
use millrace_runtime::work::registry;
use millrace_strict_yaml::{FileDescription, YamlMistake, YamlMistakes, parse_yaml};
use millrace_views::CommandOutcome;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa_axum::routes;

use super::Written;
use super::limits::find_problem_of_full_cluster;
use super::webhooks::PushConfigBody;
use crate::access::{Access, ApiRoutes};
use crate::extract::{ClientTrace, IdempotencyKey, Json, media_type, parse_json, within_time};
use crate::idempotency::{EarlyReply, RepeatableRequest};
use crate::problem::{Mistake, Problem, ProblemKind};
use crate::state::{Gateway, find_blob};

/// The maximum size of a submission with its documents: some thousand documents of usual size.
pub const MAX_SUBMISSION: usize = 512 * 1024 * 1024;

pub fn routes() -> ApiRoutes {
    ApiRoutes::new().scoped(Scope::Submit, routes!(submit_run)).limit_body(MAX_SUBMISSION)
}

/// A run to submit.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SubmissionBody {
    /// The question to answer or the work to do; may be omitted if the plan has an objective.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) objective: Option<String>,
    /// Your own tasks: a plan as in a plan file (`millrace schema plan`), as JSON, or as YAML in a string.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) plan: Option<Value>,
    /// The planning mode: `llm`, `hybrid` or `fixed`. By default that of the plan, or else `fixed` with a plan and `llm` without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mode: Option<PlanningMode>,
    /// When the planner is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) consult: Option<PlannerConsultMode>,
    /// The budget of the run, as in a plan file, such as `{"tokens": "200k", "time": "30m"}`; it replaces that of the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) budget: Option<Value>,
    /// `true` if the first failed task ends the run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) fail_fast: bool,
    /// `true` if a person must approve the plan before its first task starts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) approve_plan: bool,
    /// The consequence of verdicts on statements; by default that of the plan, or else of each capability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) verification: Option<VerificationPolicy>,
    /// Criteria for the deliverable, one sentence each, in addition to those of the plan.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) criteria: Vec<String>,
    /// The models of agents, as `[CAPABILITY=]provider:model`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) models: Vec<String>,
    /// Ended runs to follow up on: their results and files are documents of this run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) after: Vec<String>,
    /// Labels, to find the run by: a value for each name.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub(super) labels: Labels,
    /// The session: the run starts when the runs that were submitted to the session before it have ended, and sees their results
    /// and files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<SessionId>,
    /// Documents that are in the blob store already, in addition to those that are uploaded with this request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) documents: Vec<DocumentReference>,
    /// A receiver of A2A notifications about the status of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) push_config: Option<PushConfigBody>,
}

/// A document in the blob store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DocumentReference {
    /// The path under which agents see and cite it.
    path: String,
    /// The SHA-256 of its content in hexadecimal.
    sha256: String,
}

/// Submit a run: a description as JSON, or as `multipart/form-data` with the part `run` (JSON) and a part `documents` with a
/// file name for each document.
#[utoipa::path(
    post, path = "/runs", tag = "runs",
    params(("Idempotency-Key" = Option<String>, Header, description = "A key by which a repetition of this request is recognised: it returns the same run")),
    request_body(content(
        (ref("#/components/schemas/SubmissionBody") = "application/json"),
        (ref("#/components/schemas/SubmissionBody") = "multipart/form-data")
    )),
    responses(
        (status = 201, description = "The run was submitted, now or by the same request with this key before; Location is its path", body = ref("#/components/schemas/SubmittedRun"))
    )
)]
async fn submit_run(
    gateway: Access,
    key: IdempotencyKey,
    ClientTrace(trace_parent): ClientTrace,
    request: Request,
) -> Result<Response, EarlyReply> {
    let described = read_request(&gateway, request).await?;
    submit(&gateway, described, key, trace_parent).await
}

/// Submits a run with documents that are stored already.
pub async fn submit(
    gateway: &Access,
    (mut body, uploaded): (SubmissionBody, Vec<Document>),
    key: IdempotencyKey,
    trace_parent: Option<TraceParent>,
) -> Result<Response, EarlyReply> {
    // The content, not its bytes: a repetition has another boundary between its parts, and may have them in another order.
    let documents: BTreeMap<&str, &str> =
        uploaded.iter().map(|document| (document.path.as_str(), document.sha256.as_str())).collect();
    let scope = ("submit_run", "");
    let mut repeatable = RepeatableRequest::look_up(gateway, key, scope, &(&body, documents)).await?;
    // A config with a mistake starts no run.
    let push_config = body.push_config.take().map(|config| gateway.check_push_config(config)).transpose()?;
    let earlier = match repeatable.earlier() {
        // The process that claimed the key has died, before or after it submitted the run.
        Some((run, _)) => find_submission(gateway, run).await?.map(|sequence| (run.clone(), sequence)),
        None => None,
    };
    let (run, sequence) = match earlier {
        Some(earlier) => earlier,
        None => {
            let (submission, documents) = describe_submission(gateway, body, uploaded).await?;
            let submission = Submission { trace_parent, ..submission };
            let submission = match documents.is_empty() {
                true => submission,
                false => {
                    let documents = Some(store_document_list(&gateway.bus, &documents).await?);
                    Submission { documents, ..submission }
                }
            };
            if let Some(problem) = find_problem_of_full_cluster(gateway).await? {
                return Err(problem.into());
            }
            let run = generate_run_id(&gateway.bus, submission.session.as_ref());
            let (run, _) = repeatable.claim(run.clone(), run.to_string()).await?;
            let sequence = submit_run_with_id(&gateway.bus, &run, &submission).await?;
            let sequence = match sequence {
                Some(sequence) => Some(sequence),
                None => find_submission(gateway, &run).await?,
            };
            (run, sequence.unwrap_or(0))
        }
    };
    if let Some(config) = push_config {
        // A repetition after a crash sets no second one.
        let id =
            config.config.clone().unwrap_or_else(|| sha256_hex(run.as_str().as_bytes())[..32].to_owned());
        gateway.set_push_config(&run, NewPushConfig { config: Some(id), ..config }).await?;
    }
    let written = Written { sequence, outcome: CommandOutcome::RunSubmitted { run: &run } };
    let location = Some(format!("/api/v1/runs/{run}"));
    Ok(repeatable.reply((StatusCode::CREATED, location), &written).await?)
}

/// Returns the messages with the submission of a run in its lane, the first one first.
async fn read_submissions(gateway: &Gateway, run: &RunId) -> Result<Vec<StreamRecord>, Fault> {
    read_topic(&gateway.bus, gateway.bus.lane_of_run(run), run, &Topic::Submitted).await
}

/// Reads what was submitted as a run, as of a sequence of its lane if there is one; `None` if it is not in the lane, or can't be read.
pub async fn read_submission(
    gateway: &Gateway,
    run: &RunId,
    at: Option<u64>,
) -> Result<Option<Submission>, Problem> {
    let records = read_submissions(gateway, run).await?;
    for record in records.iter().filter(|record| at.is_none_or(|at| record.sequence <= at)) {
        // Supervisors ignore a message that is no submission.
        if let Ok(submission) = gateway.bus.decode_record(record).await {
            return Ok(Some(submission));
        }
    }
    Ok(None)
}

/// Returns the sequence of the submission of a run, if it was submitted; 0 if it is archived, and so is visible at any sequence.
async fn find_submission(gateway: &Gateway, run: &RunId) -> Result<Option<u64>, Problem> {
    match read_submissions(gateway, run).await?.first() {
        Some(record) => Ok(Some(record.sequence)),
        None => Ok(registry::read_summary(&gateway.bus, run).await?.map(|_| 0)),
    }
}

pub fn invalid_run(pointer: &str, message: impl ToString) -> Problem {
    let message = message.to_string();
    let place = if pointer.is_empty() { String::new() } else { format!("{pointer}: ") };
    Problem::new(ProblemKind::InvalidRun, format!("{place}{message}"))
        .with_mistakes(vec![Mistake { pointer: pointer.to_owned(), message }])
}

/// Builds the submission by the rules of `millrace submit`.
async fn describe_submission(
    gateway: &Gateway,
    body: SubmissionBody,
    uploaded: Vec<Document>,
) -> Result<(Submission, Vec<Document>), Problem> {
    let plan = body.plan.as_ref().map(parse_plan).transpose()?;
    let positions = plan.as_ref().map(|plan| plan.positions.clone()).unwrap_or_default();
    let description = RunDescription {
        objective: body.objective,
        mode: body.mode,
        consult: body.consult,
        models: parse_models(&body.models)?,
        budget: body.budget.as_ref().map(parse_budget).transpose()?,
        fail_fast: body.fail_fast,
        approve_plan: body.approve_plan,
        verification: body.verification,
        criteria: body.criteria,
        labels: body.labels,
        session: body.session,
    };
    let submission =
        description.into_submission(plan).map_err(|mistake| invalid_run(mistake.field(), mistake))?;
    if !submission.tasks.is_empty() && !submission.has_planner() {
        let named = submission.tasks.iter().map(|task| &task.capability).collect();
        let known = registry::read_named_capabilities(&gateway.bus, &named).await?;
        let known = CapabilityRegistry::from_descriptions(known.values());
        let tasks = submission.tasks.iter().map(AsRef::as_ref);
        // Tasks wait for a capability that nobody provides yet.
        let mistakes = find_capability_mistakes(tasks, &positions, &known).parameters.into_iter();
        let mistake = |mistake: YamlMistake| Mistake { pointer: "plan.tasks".into(), message: mistake.text };
        refuse_mistakes(mistakes.map(mistake).collect())?;
    }
    let (after, earlier) = store_earlier_results(gateway, &body.after).await?;
    let documents = find_documents(gateway, body.documents, [uploaded, earlier].concat()).await?;
    Ok((Submission { after, ..submission }, documents))
}

/// Refuses a run with these mistakes, if there are any.
fn refuse_mistakes(mistakes: Vec<Mistake>) -> Result<(), Problem> {
    let all: Vec<&str> = mistakes.iter().map(|mistake| mistake.message.as_str()).collect();
    let detail = all.join("\n");
    match mistakes.is_empty() {
        true => Ok(()),
        false => Err(Problem::new(ProblemKind::InvalidRun, detail).with_mistakes(mistakes)),
    }
}

/// Parses a plan by the rules of plan files: JSON is YAML, and a string may have any YAML.
fn parse_plan(plan: &Value) -> Result<PlanFile, Problem> {
    let text = plan.as_str().map_or_else(|| escape_for_yaml(&format!("{plan:#}")), str::to_owned);
    parse_plan_file(text.as_bytes()).map_err(|mistakes| invalid_run("plan", mistakes))
}

/// Escapes the characters that strings of JSON may have and YAML refuses or takes for the end of a line.
fn escape_for_yaml(json: &str) -> String {
    let is_refused = |c: char| (c.is_control() && c != '\n') || ('\u{2028}'..='\u{2029}').contains(&c);
    let is_mark = |c: char| matches!(c, '\u{feff}' | '\u{fffe}' | '\u{ffff}');
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match is_refused(c) || is_mark(c) {
            true => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => text.push(c),
        }
    }
    text
}

/// Parses a budget by the rules of plan files.
pub fn parse_budget(budget: &Value) -> Result<Budget, Problem> {
    let kind = FileDescription { name: "budget", holds: "limits" };
    let node = parse_yaml(budget.to_string().as_bytes(), kind);
    let read = node.map_err(Into::into).and_then(|node| parse_run_budget(&node));
    read.map_err(|mistakes: YamlMistakes| invalid_run("budget", mistakes.texts()))
}

fn parse_models(texts: &[String]) -> Result<ModelPreferences, Problem> {
    let models = ModelPreferences::parse(texts.iter().map(String::as_str));
    let models = models.map_err(|error| invalid_run("models", error))?;
    models.selections().try_for_each(validate_selection).map_err(|error| invalid_run("models", error))?;
    Ok(models)
}

/// Stores the results of ended runs as documents.
async fn store_earlier_results(
    gateway: &Gateway,
    runs: &[String],
) -> Result<(Vec<EarlierRun>, Vec<Document>), Problem> {
    let (mut after, mut stored): (Vec<EarlierRun>, Vec<Document>) = (Vec::new(), Vec::new());
    for run in runs {
        // Prefixes and `latest` are for people.
        let (run, _) = gateway.find_run(run).await?;
        if after.iter().any(|earlier| earlier.run == run) {
            continue;
        }
        let EarlierResults { about, documents } =
            read_earlier_run(&gateway.bus, run.as_str()).await.map_err(|error| match error {
                EarlierRunError::NotEnded(_) => Problem::new(ProblemKind::RunNotEnded, error),
                EarlierRunError::Fault(fault) | EarlierRunError::Find(FindError::Fault(fault)) => {
                    fault.into()
                }
                EarlierRunError::Find(error) => Problem::new(ProblemKind::RunNotFound, error),
            })?;
        for (path, bytes) in documents {
            let blob = gateway.bus.blobs().put_blob(&bytes).await?;
            stored.push(Document { path, sha256: blob.sha256, size: blob.size });
        }
        after.push(about);
    }
    match find_earlier_runs_problem(&after) {
        Some(problem) => Err(invalid_run("after", problem)),
        None => Ok((after, stored)),
    }
}

/// Returns the documents of the run: those that were uploaded, and those that are referred to, which must be there.
async fn find_documents(
    gateway: &Gateway,
    references: Vec<DocumentReference>,
    uploaded: Vec<Document>,
) -> Result<Vec<Document>, Problem> {
    let mut documents = uploaded;
    for DocumentReference { path, sha256 } in references {
        check_document_path(&path)?;
        let Some(bytes) = find_blob(&gateway.bus, &sha256).await? else {
            let detail =
                format!("the document {path:?} refers to the blob {sha256:?}, which is not in the store");
            return Err(Problem::new(ProblemKind::BlobNotFound, detail));
        };
        // Stored again, so that no sweep removes it before the run refers to it.
        gateway.bus.blobs().put_blob(&bytes).await?;
        documents.push(Document { path, sha256, size: bytes.len() as u64 });
    }
    let mut paths = BTreeSet::new();
    match documents.iter().find(|document| !paths.insert(document.path.as_str())) {
        Some(twice) => Err(invalid_run("documents", format!("two documents have the path {:?}", twice.path))),
        None => Ok(documents),
    }
}

/// The maximum size of a submission without documents, which is that of a plan file.
const MAX_DESCRIPTION: usize = 32 * 1024 * 1024;
/// The time in which all documents must arrive.
const UPLOAD_TIME: Duration = Duration::from_secs(600);
/// The maximum length of a document's path in bytes.
const MAX_PATH: usize = 1_024;
/// The name of the part of a multipart body that describes the run.
const RUN_PART: &str = "run";
/// The name of the parts that are documents.
const DOCUMENT_PART: &str = "documents";

/// Reads the body of the request: a description, and documents, which are stored as they arrive.
pub async fn read_request<T: DeserializeOwned>(
    gateway: &Gateway,
    request: Request,
) -> Result<(T, Vec<Document>), Problem> {
    if !media_type(request.headers()).eq_ignore_ascii_case("multipart/form-data") {
        let Json(body) = Json::from_request(request, &()).await?;
        return Ok((body, Vec::new()));
    }
    let parts = Multipart::from_request(request, &()).await;
    let parts = parts.map_err(|error| Problem::invalid(error.body_text()))?;
    within_time(UPLOAD_TIME, read_parts(gateway, parts)).await?
}

async fn read_parts<T: DeserializeOwned>(
    gateway: &Gateway,
    mut parts: Multipart,
) -> Result<(T, Vec<Document>), Problem> {
    let (mut body, mut documents) = (None, Vec::new());
    while let Some(part) = parts.next_field().await.map_err(part_problem)? {
        match part.name() {
            Some(RUN_PART) => {
                let bytes = read_part(part, MAX_DESCRIPTION).await?;
                if body.replace(parse_json(&bytes)?).is_some() {
                    return Err(Problem::invalid("the part \"run\" is there twice"));
                }
            }
            Some(DOCUMENT_PART) => {
                let path = part.file_name().map(ToOwned::to_owned).unwrap_or_default();
                check_document_path(&path)?;
                let bytes = read_part(part, usize::try_from(MAX_BYTES).unwrap_or(usize::MAX)).await?;
                documents.push(store_document(gateway, path, &bytes).await?);
            }
            other => {
                let detail =
                    format!("the part {other:?} is unknown; valid: \"run\" (JSON), \"documents\" (files)");
                return Err(Problem::invalid(detail));
            }
        }
    }
    let body = body.ok_or_else(|| Problem::invalid("the part \"run\" is missing: a run as JSON"))?;
    Ok((body, documents))
}

pub async fn store_document(gateway: &Gateway, path: String, content: &[u8]) -> Result<Document, Problem> {
    check_document_path(&path)?;
    let stored = gateway.bus.blobs().put_blob(content).await?;
    Ok(Document { path, sha256: stored.sha256, size: stored.size })
}

/// Reads a part that may have at most `limit` bytes.
async fn read_part(mut part: Field<'_>, limit: usize) -> Result<Vec<u8>, Problem> {
    let name = part.file_name().or_else(|| part.name()).unwrap_or_default().to_owned();
    let mut bytes = Vec::new();
    while let Some(chunk) = part.chunk().await.map_err(part_problem)? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > limit {
            let detail = format!("{name:?} has more than {limit} bytes");
            return Err(Problem::new(ProblemKind::BodyTooLarge, detail));
        }
    }
    Ok(bytes)
}

fn part_problem(error: MultipartError) -> Problem {
    let kind = match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ProblemKind::BodyTooLarge,
        _ => ProblemKind::InvalidRequest,
    };
    Problem::new(kind, error.body_text())
}

/// Checks that a path is one of a document.
pub fn check_document_path(path: &str) -> Result<(), Problem> {
    let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
    let is_valid = path.len() <= MAX_PATH && path.split('/').all(is_part) && !path.contains(char::is_control);
    match is_valid {
        true => Ok(()),
        false => Err(Problem::invalid(format!(
            "{path:?} is no path of a document; give each document a relative path as its file name"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_json_or_yaml() {
        let json = serde_json::json!({"tasks": [{"id": "a", "objective": "o", "capability": "echo"}]});
        let yaml = Value::from("tasks:\n- {id: a, objective: o, capability: echo}\n");
        assert_eq!(parse_plan(&json).unwrap().tasks, parse_plan(&yaml).unwrap().tasks);
        assert!(parse_plan(&serde_json::json!({"task": []})).is_err());
        let text = "a\u{0}\u{7f}\u{85}\r\n\t\u{2028}\u{feff}\u{ffff}ü😀\"\\";
        let task = serde_json::json!({"id": "a", "objective": "o", "capability": "echo", "parameters": {"text": text}});
        let plan = parse_plan(&serde_json::json!({ "tasks": [task] })).unwrap();
        assert_eq!(plan.tasks[0].parameters.get("text").unwrap(), text);
        assert_eq!(parse_budget(&serde_json::json!({"tokens": "2k"})).unwrap().amounts.tokens, Some(2_000));
        assert!(parse_budget(&serde_json::json!({"token": 1})).is_err());
    }
}

#[cfg(test)]
mod upload_tests {
    use super::*;

    #[test]
    fn paths_of_documents_stay_below_their_folder() {
        for path in ["a.md", "notes/plan.md", "ä/b c.pdf"] {
            assert!(check_document_path(path).is_ok(), "{path}");
        }
        for path in ["", "/etc/passwd", "a/../b", "a//b", "./a", "a\n", "x/"] {
            assert!(check_document_path(path).is_err(), "{path:?}");
        }
    }
}
