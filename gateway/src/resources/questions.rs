//! The questions of runs to persons, and their answers, one by one or in a batch.

use axum::http::StatusCode;
use futures::StreamExt;
use millrace_client::Patience;
use millrace_client::questions::{
    AnswerOutcome, AnswerRequest, OutcomeKind, PlanCache, QuestionReference, Selection, SendAnswerError,
    answer_question, open_questions_of_plan,
};
use millrace_client::{list_runs, read_plan};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::Plan;
use millrace_protocol::question::{Answer, AnswerKind, AnswerScope};
use millrace_protocol::token::Scope;
use millrace_views::{AnswerLine, QuestionLine};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::extract::{Json, Path, Query};
use crate::problem::{ApiResult, Problem, ProblemKind};
use crate::state::{json_response, reply};

/// The maximum number of answers in a batch.
const MAX_BATCH: usize = 1_000;
/// The number of plans that are read at once.
const READS: usize = 8;
/// The time that a supervisor has to decide on an answer.
const DECISION_TIME: std::time::Duration = std::time::Duration::from_secs(10);

pub fn routes() -> ApiRoutes {
    ApiRoutes::new()
        .scoped(Scope::Read, routes!(list_all_questions))
        .scoped(Scope::Read, routes!(list_run_questions))
        .scoped(Scope::Read, routes!(read_question))
        .scoped(Scope::Answer, routes!(send_answer))
        .scoped(Scope::Answer, routes!(send_answers))
}

/// Questions.
#[derive(Debug, Serialize, JsonSchema)]
pub struct QuestionList<'a> {
    /// The questions; those of a run oldest first.
    pub questions: Vec<QuestionLine<'a>>,
}

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct QuestionQuery {
    /// `true` lists closed questions too, with their answers.
    #[serde(default)]
    pub history: bool,
}

fn lines_of<'a>(run: &'a RunId, plan: &'a Plan, has_history: bool) -> Vec<QuestionLine<'a>> {
    let records = match has_history {
        true => plan.questions().collect(),
        false => open_questions_of_plan(plan),
    };
    records.into_iter().map(|record| QuestionLine::new(run, record)).collect()
}

/// List the open questions of all runs.
#[utoipa::path(
    get, path = "/questions", tag = "questions", params(QuestionQuery),
    responses((status = 200, description = "The questions", body = ref("#/components/schemas/QuestionList")))
)]
pub async fn list_all_questions(gateway: Access, Query(query): Query<QuestionQuery>) -> ApiResult {
    // Only the logs of runs are read whose summary counts questions.
    let runs = list_runs(&gateway.bus).await?.into_iter().filter_map(|(run, summary)| {
        let summary = summary?;
        let count = if query.history { summary.questions } else { summary.open_questions };
        (count > 0).then_some(run)
    });
    let bus = &gateway.bus;
    let reads = runs.map(|run| async move { read_plan(bus, &run).await.map(|plan| (run, plan)) });
    let plans: Vec<_> = futures::stream::iter(reads).buffered(READS).collect().await;
    let plans: Vec<(RunId, Plan)> = plans.into_iter().collect::<Result<_, _>>()?;
    let questions = plans.iter().flat_map(|(run, plan)| lines_of(run, plan, query.history)).collect();
    reply(&QuestionList { questions })
}

/// List the open questions of a run.
#[utoipa::path(
    get, path = "/runs/{run}/questions", tag = "questions",
    params(("run" = String, Path, description = "The run"), QuestionQuery),
    responses((status = 200, description = "The questions", body = ref("#/components/schemas/QuestionList")))
)]
pub async fn list_run_questions(
    gateway: Access,
    Path(run): Path<String>,
    Query(query): Query<QuestionQuery>,
) -> ApiResult {
    let (run, _) = gateway.find_run(&run).await?;
    let plan = read_plan(&gateway.bus, &run).await?;
    let questions = lines_of(&run, &plan, query.history);
    reply(&QuestionList { questions })
}

/// Read a question: `RUN/TASK/ATTEMPT/NUMBER` or `RUN/plan/NUMBER`.
#[utoipa::path(
    get, path = "/questions/{*question}", tag = "questions",
    params(("question" = String, Path, description = "The id of the question; its slashes are part of the path")),
    responses((status = 200, description = "The question", body = ref("#/components/schemas/QuestionLine")))
)]
pub async fn read_question(gateway: Access, Path(id): Path<String>) -> ApiResult {
    let unknown = |why: String| Problem::new(ProblemKind::QuestionNotFound, why);
    let reference = id.parse::<QuestionReference>().map_err(unknown)?;
    let (run, _) = gateway.find_run(&reference.run).await?;
    let plan = read_plan(&gateway.bus, &run).await?;
    match reference.select(&run, &plan) {
        Selection::One(record) => reply(&QuestionLine::new(&run, *record)),
        Selection::None(why) => Err(unknown(why)),
        Selection::Several(ids) => {
            Err(unknown(format!("{id} has {} open questions: {}", ids.len(), ids.join(", "))))
        }
    }
}

/// An answer.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerBody {
    /// The kind of the answer, one of the question's `decisions`.
    pub answer: AnswerKind,
    /// With `edit` the changed arguments, with `answer` the value.
    #[serde(default)]
    pub value: Option<Value>,
    /// With `reject` the reason, with `respond` the content, with `fail` the feedback.
    #[serde(default)]
    pub text: Option<String>,
    /// The calls that the answer also decides.
    #[serde(default)]
    pub scope: AnswerScope,
}

impl AnswerBody {
    fn into_answer(self) -> Result<(Answer, AnswerScope), Problem> {
        let Self { answer: kind, value, text, scope } = self;
        let missing = |field: &str| {
            let detail = format!("an answer of the kind {} needs the field {field:?}", kind.name());
            Problem::invalid(detail)
        };
        let json =
            |value: Option<Value>| value.map(|value| value.to_string()).ok_or_else(|| missing("value"));
        let words = |text: Option<String>| text.ok_or_else(|| missing("text"));
        let answer = match kind {
            AnswerKind::Approve => Answer::Approve,
            AnswerKind::Edit => Answer::Edit { arguments: json(value)? },
            AnswerKind::Reject => Answer::Reject { message: words(text)? },
            AnswerKind::Respond => Answer::Respond { content: words(text)? },
            AnswerKind::Answer => Answer::Answer { value: json(value)? },
            AnswerKind::Decline => Answer::Decline,
            AnswerKind::Pass => Answer::Pass,
            AnswerKind::Fail => Answer::Fail { feedback: words(text)? },
        };
        Ok((answer, scope))
    }
}

/// Answer a question. The first answer counts; a later one is refused with the author of the first.
#[utoipa::path(
    post, path = "/questions/{*question}", tag = "questions",
    params(("question" = String, Path, description = "The id of the question; its slashes are part of the path")),
    request_body = ref("#/components/schemas/AnswerBody"),
    responses(
        (status = 200, description = "The answer counts", body = ref("#/components/schemas/AnswerLine")),
        (status = 202, description = "The answer is in the log; no supervisor has decided on it yet", body = ref("#/components/schemas/AnswerLine"))
    )
)]
pub async fn send_answer(gateway: Access, Path(id): Path<String>, Json(body): Json<AnswerBody>) -> ApiResult {
    let (answer, scope) = body.into_answer()?;
    let outcome = answer_one(&gateway, &mut PlanCache::new(), &id, answer, scope).await?;
    let status = match outcome.kind {
        OutcomeKind::Answered => StatusCode::OK,
        OutcomeKind::Sent => StatusCode::ACCEPTED,
        OutcomeKind::Already | OutcomeKind::Expired | OutcomeKind::Withdrawn => {
            return Err(Problem::new(ProblemKind::QuestionClosed, outcome.line()));
        }
        OutcomeKind::Unknown | OutcomeKind::Ambiguous => {
            let run = id.split('/').next().and_then(|run| RunId::new(run).ok());
            if let Some(run) = run {
                gateway.refuse_deleted(&run).await?;
            }
            return Err(Problem::new(ProblemKind::QuestionNotFound, outcome.line()));
        }
        OutcomeKind::Refused => return Err(Problem::new(ProblemKind::AnswerRefused, outcome.line())),
    };
    Ok(json_response(status, &AnswerLine::from(&outcome)))
}

async fn answer_one(
    gateway: &Access,
    plans: &mut PlanCache,
    id: &str,
    answer: Answer,
    scope: AnswerScope,
) -> Result<AnswerOutcome, Problem> {
    let interrupt = CancellationToken::new();
    let timer = {
        let interrupt = interrupt.clone();
        tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::time::sleep(DECISION_TIME).await;
            interrupt.cancel();
        }))
    };
    let patience = Patience { interrupt: &interrupt, on_quiet: &|| {} };
    let request = AnswerRequest::Given(answer);
    let answering =
        answer_question(&gateway.bus, plans, id, (&request, scope, &gateway.caller.name), patience);
    let outcome = Box::pin(answering).await;
    drop(timer);
    outcome.map_err(|error| match error {
        SendAnswerError::Fault(fault) => fault.into(),
        lost @ SendAnswerError::LostRun(_) => Problem::new(ProblemKind::RunNotFound, lost),
    })
}

/// Answers to several questions.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerBatch {
    /// The answers, at most 1000; each has an outcome of its own.
    answers: Vec<BatchItem>,
}

/// An answer with its question.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct BatchItem {
    /// The id of the question.
    question: String,
    /// The answer.
    #[serde(flatten)]
    answer: AnswerBody,
}

/// The outcomes of a batch.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AnswerList<'a> {
    /// The outcomes, in the order of the answers.
    pub outcomes: Vec<AnswerLine<'a>>,
}

/// Answer several questions. The mistakes of one do not affect the others.
#[utoipa::path(
    post, path = "/answers", tag = "questions",
    request_body = ref("#/components/schemas/AnswerBatch"),
    responses((status = 200, description = "The outcome of each answer", body = ref("#/components/schemas/AnswerList")))
)]
async fn send_answers(gateway: Access, Json(AnswerBatch { answers }): Json<AnswerBatch>) -> ApiResult {
    if answers.len() > MAX_BATCH {
        let detail = format!("{} answers; a batch has at most {MAX_BATCH}", answers.len());
        return Err(Problem::invalid(detail));
    }
    let (mut plans, mut outcomes) = (PlanCache::new(), Vec::new());
    for BatchItem { question, answer } in answers {
        let outcome = match answer.into_answer() {
            Ok((answer, scope)) => answer_one(&gateway, &mut plans, &question, answer, scope).await?,
            Err(problem) => AnswerOutcome::new(question, OutcomeKind::Refused, problem.detail().to_owned()),
        };
        outcomes.push(outcome);
    }
    let outcomes = outcomes.iter().map(AnswerLine::from).collect();
    reply(&AnswerList { outcomes })
}
