//! `builtin:extractive`: a model that reads instead of writing. It answers with what stands in the documents, found and
//! read through the same tools as any model's. It owns nothing between two requests: each reply follows from the
//! request alone. It invents no sentence about a subject; the only words of its own are those that connect.
//!
//! What it is to do is told by the name of the answer's schema, and what can be done by the tools that are offered.

mod conversation;
mod criteria;
mod plan;
mod question;
mod ranking;
mod report;
mod research;
mod sentences;
mod split;
mod verdict;

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::critic::{self, VERDICT};
use crate::model::{Model, ModelError, Reply, Request, Watch};
use crate::planner::{PlanAnswer, glance};
use crate::roles::task_of;
use crate::spec::AnswerForm;

/// The model `builtin:extractive`: deterministic, offline, and the same for the same documents wherever it runs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extractive;

impl Extractive {
    /// Its full name.
    pub const NAME: &'static str = "builtin:extractive";
}

impl Model for Extractive {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        _: &'a dyn Watch,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        futures::future::ready(reply(request)).boxed()
    }
}

fn reply(request: &Request) -> Result<Reply, ModelError> {
    let name = request.answer.as_ref().map(|answer| answer.name.as_str()).unwrap_or_default();
    let reply = match name {
        PLAN => glance(request).map(|glance| conversation::answer(&plan::propose(&glance))),
        FINDINGS => task_of(request).map(|task| research::reply(request, &task)),
        REPORT => task_of(request).map(|task| report::reply(request, &task)),
        VERDICT => critic::task_of(request).map(|task| verdict::reply(request, &task)),
        _ => None,
    };
    reply.ok_or_else(|| ModelError::BadRequest {
        message: format!(
            "{} can plan, research, report and judge, and was asked for {}; name a language model for other work",
            Extractive::NAME,
            if name.is_empty() { "an answer without a form".to_owned() } else { format!("{name:?}") },
        ),
    })
}

/// What it would answer as a planner that is asked for a first plan, in the fewest words.
pub(crate) fn plain_plan(objective: &str) -> PlanAnswer {
    plan::plain(objective)
}

const FINDINGS: &str = AnswerForm::Findings.name();
const REPORT: &str = AnswerForm::Report.name();
const PLAN: &str = AnswerForm::Plan.name();
