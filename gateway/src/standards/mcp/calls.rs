//! The calls of the tools: each is an operation of the API.

use std::time::Duration;

use millrace_protocol::question::AnswerScope;
use millrace_protocol::token::Scope;
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::Peer;
use tokio::time::Instant;

use super::values::{
    AnswerArguments, AnswerResult, CancelArguments, CapabilitiesResult, CommandResult, DocumentArgument,
    EventsArguments, EventsResult, FileArguments, FilesResult, ListRunsArguments, MAX_EVENTS, MAX_WAIT,
    MessageArguments, NoArguments, QuestionsArguments, ResumeArguments, RetryArguments, RunArguments,
    RunsResult, StartRunArguments, StartedRun, VerificationResult, VerifyArguments, WaitArguments,
};
use crate::extract::{IdempotencyKey, Json, Path, Query};
use crate::problem::Problem;
use crate::resources::questions::{AnswerBody, QuestionQuery, list_all_questions, send_answer};
use crate::resources::runs::{self, ListQuery};
use crate::resources::steering::{
    CancelBody, CommandQuery, MessageBody, ResumeBody, RetryBody, Steering, steer,
};
use crate::resources::verifications::VerificationBody;
use crate::resources::{cluster, files};
use crate::standards::api::{
    Operator, RunEvent, RunEvents, SubmittedDocument, read_content, read_report, value_of,
};
use crate::standards::run_view::{QuestionsView, ReportProgress, RunView, read_questions};

/// The longest text of a result, in bytes: a file may be larger than a conversation.
const MAX_TEXT: usize = 400_000;

pub struct Call {
    pub operator: Operator,
    pub progress: ProgressSender,
}

/// Sends progress notifications to the client of a request, if it wants them.
pub struct ProgressSender {
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
}

impl ProgressSender {
    pub fn new(peer: Peer<RoleServer>, token: Option<ProgressToken>) -> Self {
        Self { peer, token }
    }
}

impl ReportProgress for ProgressSender {
    async fn report_progress(&self, run: &RunView) {
        let Some(token) = self.token.clone() else { return };
        let done = run.tasks.iter().filter(|task| task.state == "completed").count();
        let mut progress = ProgressNotificationParam::new(token, count(done));
        progress.total = Some(count(run.tasks.len())).filter(|total| *total > 0.0);
        progress.message = Some(run.describe());
        // A client that is gone ends the call itself.
        drop(self.peer.notify_progress(progress).await);
    }
}

fn count(tasks: usize) -> f64 {
    f64::from(u32::try_from(tasks).unwrap_or(u32::MAX))
}

pub async fn start_run(call: Call, mut arguments: StartRunArguments) -> Result<StartedRun, Problem> {
    let documents = to_submitted(std::mem::take(&mut arguments.documents));
    let run = call.operator.submit_run(&arguments, documents, arguments.key.as_deref()).await?;
    Ok(StartedRun { run })
}

fn to_submitted(documents: Vec<DocumentArgument>) -> Vec<SubmittedDocument> {
    let submitted =
        |one: DocumentArgument| SubmittedDocument { path: one.path, content: one.text.into_bytes() };
    documents.into_iter().map(submitted).collect()
}

pub async fn wait_for_run(
    call: Call,
    WaitArguments { run, timeout_seconds }: WaitArguments,
) -> Result<RunView, Problem> {
    let deadline = Instant::now() + Duration::from_secs(timeout_seconds.min(MAX_WAIT));
    RunView::wait(&call.operator, &run, deadline, RunView::needs_client, &call.progress).await
}

pub async fn verify_text(call: Call, arguments: VerifyArguments) -> Result<VerificationResult, Problem> {
    let VerifyArguments { text, documents, models, budget, after, key, timeout_seconds } = arguments;
    // Before the run is submitted: its verdicts could not be read.
    call.operator.with(Scope::Read)?;
    let body = VerificationBody {
        text,
        models,
        budget: budget.map(Into::into),
        after,
        ..VerificationBody::default()
    };
    let run = call.operator.submit_verification(body, to_submitted(documents), key.as_deref()).await?;
    let operator = call.operator.clone();
    let RunView { run, state, errors, .. } =
        wait_for_run(call, WaitArguments { run, timeout_seconds }).await?;
    let mut verified = VerificationResult { run, state, summary: None, statements: Vec::new(), errors };
    if verified.state == "completed" {
        let access = operator.with(Scope::Read)?;
        let (_, _, result) = runs::require_deliverable(&access, &verified.run).await?;
        verified.summary = Some(result.summary);
        verified.statements = result.statements.into_iter().map(Into::into).collect();
    }
    Ok(verified)
}

pub async fn get_run(call: Call, RunArguments { run }: RunArguments) -> Result<RunView, Problem> {
    RunView::read(&call.operator, &run).await
}

pub async fn read_events(call: Call, arguments: EventsArguments) -> Result<EventsResult, Problem> {
    let EventsArguments { run, after, level, timeout_seconds, limit } = arguments;
    let mut stream = RunEvents::open(&call.operator, &run, &after, level.into()).await?;
    // Time to read the events that are in the log already, also without a wait.
    let wait = Duration::from_secs(timeout_seconds.min(MAX_WAIT)).max(Duration::from_millis(500));
    let mut events = stream.read_batch(limit.clamp(1, MAX_EVENTS), Instant::now() + wait).await;
    let ended = events.last().is_some_and(RunEvent::is_end);
    events.retain(|event| event.id.is_some());
    let after = events.last().and_then(|event| event.id.clone()).unwrap_or(after);
    Ok(EventsResult { events: events.into_iter().map(RunEvent::shortened).collect(), after, ended })
}

pub async fn get_report(call: Call, RunArguments { run }: RunArguments) -> Result<String, Problem> {
    read_report(&call.operator, &run).await
}

pub async fn list_runs(call: Call, arguments: ListRunsArguments) -> Result<RunsResult, Problem> {
    let ListRunsArguments { state, label, text, limit, cursor } = arguments;
    let filled = |text: String| Some(text).filter(|text| !text.is_empty());
    let query = ListQuery {
        state: filled(state),
        label: filled(label),
        text: filled(text),
        limit: Some(limit.clamp(1, 100)),
        cursor: filled(cursor),
        ..ListQuery::default()
    };
    value_of(runs::list_runs(call.operator.with(Scope::Read)?, Query(query)).await).await
}

pub async fn list_questions(
    call: Call,
    QuestionsArguments { run }: QuestionsArguments,
) -> Result<QuestionsView, Problem> {
    let Some(run) = run else {
        let query = Query(QuestionQuery::default());
        return value_of(list_all_questions(call.operator.with(Scope::Read)?, query).await).await;
    };
    read_questions(&call.operator, &run, false).await
}

pub async fn answer_question(call: Call, arguments: AnswerArguments) -> Result<AnswerResult, Problem> {
    let AnswerArguments { question, answer, value, text } = arguments;
    let value = Some(value).filter(|value| !value.is_null());
    let body = Json(AnswerBody { answer, value, text, scope: AnswerScope::default() });
    value_of(send_answer(call.operator.with(Scope::Answer)?, Path(question), body).await).await
}

async fn steer_run(
    call: &Call,
    place: (&str, Option<&str>),
    steering: Steering,
) -> Result<CommandResult, Problem> {
    let repeated = (IdempotencyKey(None), CommandQuery::default());
    value_of(steer(&call.operator.with(Scope::Steer)?, place, steering, repeated).await).await
}

pub async fn message_run(
    call: Call,
    MessageArguments { run, text }: MessageArguments,
) -> Result<CommandResult, Problem> {
    steer_run(&call, (&run, None), Steering::SendMessage(MessageBody { text })).await
}

pub async fn pause_run(call: Call, RunArguments { run }: RunArguments) -> Result<CommandResult, Problem> {
    steer_run(&call, (&run, None), Steering::PauseRun).await
}

pub async fn resume_run(
    call: Call,
    ResumeArguments { run, budget }: ResumeArguments,
) -> Result<CommandResult, Problem> {
    steer_run(&call, (&run, None), Steering::ResumeRun(ResumeBody { budget: budget.map(Into::into) })).await
}

pub async fn cancel_run(
    call: Call,
    CancelArguments { run, reason }: CancelArguments,
) -> Result<CommandResult, Problem> {
    steer_run(&call, (&run, None), Steering::CancelRun(CancelBody { reason })).await
}

pub async fn retry_task(call: Call, arguments: RetryArguments) -> Result<CommandResult, Problem> {
    let RetryArguments { run, task, feedback, changes } = arguments;
    steer_run(&call, (&run, Some(&task)), Steering::RetryTask(RetryBody { feedback, changes })).await
}

pub async fn list_capabilities(call: Call, _: NoArguments) -> Result<CapabilitiesResult, Problem> {
    value_of(cluster::list_capabilities(call.operator.with(Scope::Read)?).await).await
}

pub async fn list_files(call: Call, RunArguments { run }: RunArguments) -> Result<FilesResult, Problem> {
    let query = Query(files::FolderQuery::default());
    value_of(files::list_files(call.operator.with(Scope::Read)?, Path(run), query).await).await
}

pub async fn read_file(call: Call, FileArguments { run, path }: FileArguments) -> Result<String, Problem> {
    let bytes = read_content(&call.operator, &run, &path).await?;
    let size = bytes.len();
    let mut content = String::from_utf8(bytes).map_err(|_| {
        let detail = format!("{path:?} is no text ({size} bytes); read it as a resource instead");
        Problem::invalid(detail)
    })?;
    if size > MAX_TEXT {
        content.truncate(content.floor_char_boundary(MAX_TEXT));
        content.push_str(&format!("\n[cut: the file has {size} bytes; read it as a resource]"));
    }
    Ok(content)
}
