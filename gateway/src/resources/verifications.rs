//! `POST /verifications`: verifies a text with documents. A verification is a run of one task of the capability `verify`, so that it is
//! as durable, and has the same budgets, sessions, models and repetitions, as any other.

use axum::extract::Request;
use axum::response::Response;
use millrace_agent::verification::MAX_TEXT;
use millrace_protocol::ids::SessionId;
use millrace_protocol::labels::Labels;
use millrace_protocol::plan::Document;
use millrace_protocol::subject::VERIFY;
use millrace_protocol::token::Scope;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa_axum::routes;

use super::submission::{
    DocumentReference, MAX_SUBMISSION, SubmissionBody, invalid_run, read_request, submit,
};
use crate::access::{Access, ApiRoutes};
use crate::extract::{ClientTrace, IdempotencyKey};
use crate::idempotency::EarlyReply;
use crate::problem::{Problem, ProblemKind};

/// The most characters of the text in the objective of its run.
const MAX_TITLE: usize = 80;
/// The longest work on one text.
const RUN_TIME: &str = "24h";

pub fn routes() -> ApiRoutes {
    ApiRoutes::new().scoped(Scope::Submit, routes!(submit_verification)).limit_body(MAX_SUBMISSION)
}

/// A text to verify with documents.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerificationBody {
    /// The text, as Markdown, of at most 256 KiB. Its marks may be those of reports, links to documents and footnotes; a statement
    /// without marks is compared with all documents.
    pub text: String,
    /// The models, as `[ROLE=]provider:model`: that of the role `verifier` judges the statements, and `verifier=none` lets no model do so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// The budget of the run, as in a plan file, such as `{"tokens": "200k", "time": "30m"}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Value>,
    /// Ended runs: their results and files are documents too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// Labels, to find the run by: a value for each name.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The session: the run starts when the runs that were submitted to the session before it have ended, and their results and files
    /// are documents too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Documents that are in the blob store already, in addition to those that are uploaded with this request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub documents: Vec<DocumentReference>,
}

/// Verify the statements of a text with documents: JSON, or `multipart/form-data` with the part `run` (JSON) and a part `documents` with a
/// file name for each document. It starts a run; the verdicts are the `statements` of its result.
#[utoipa::path(
    post, path = "/verifications", tag = "runs",
    params(("Idempotency-Key" = Option<String>, Header, description = "A key by which a repetition of this request is recognised: it returns the same run")),
    request_body(content(
        (ref("#/components/schemas/VerificationBody") = "application/json"),
        (ref("#/components/schemas/VerificationBody") = "multipart/form-data")
    )),
    responses(
        (status = 201, description = "The run was submitted, now or by the same request with this key before; Location is its path", body = ref("#/components/schemas/SubmittedRun"))
    )
)]
async fn submit_verification(
    gateway: Access,
    key: IdempotencyKey,
    ClientTrace(trace_parent): ClientTrace,
    request: Request,
) -> Result<Response, EarlyReply> {
    let (body, uploaded) = read_request::<VerificationBody>(&gateway, request).await?;
    let run = body.into_submission(&uploaded)?;
    submit(&gateway, (run, uploaded), key, trace_parent).await
}

impl VerificationBody {
    /// Returns the run that verifies the text with the documents that it names and those that were uploaded.
    pub fn into_submission(self, uploaded: &[Document]) -> Result<SubmissionBody, Problem> {
        let Self { text, models, budget, after, labels, session, documents } = self;
        if text.len() > MAX_TEXT {
            let most = MAX_TEXT / 1024;
            let detail = format!(
                "text: it has {} bytes; a text has at most {most} KiB. Verify it in parts, or use `millrace verify`",
                text.len()
            );
            return Err(Problem::new(ProblemKind::BodyTooLarge, detail));
        }
        let Some(line) = text.lines().map(str::trim).find(|line| line.contains(char::is_alphanumeric)) else {
            return Err(invalid_run("text", "it has no words, so there is nothing to verify"));
        };
        if uploaded.is_empty() && documents.is_empty() && after.is_empty() && session.is_none() {
            let missing =
                "a text is compared with documents: upload some with the text, or name some that are stored";
            return Err(invalid_run("documents", missing));
        }
        let title: String = line.trim_start_matches(['#', ' ']).chars().take(MAX_TITLE).collect();
        let objective = format!("Verify: {title}");
        let task = json!({
            "id": VERIFY, "capability": VERIFY, "objective": objective, "parameters": {"text": text},
            "limits": {"run_time": RUN_TIME}, "final": true,
        });
        Ok(SubmissionBody {
            objective: Some(objective),
            plan: Some(json!({ "mode": "fixed", "tasks": [task] })),
            models,
            budget,
            after,
            labels,
            session,
            documents,
            ..SubmissionBody::default()
        })
    }
}
