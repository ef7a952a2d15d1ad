//! `builtin:extractive`: a model that quotes instead of writing. It answers with sentences from the documents, which it
//! searches and reads through the same tools as any model. It is stateless: each reply depends on the request alone. It
//! invents no statement about a subject; only the connecting phrases are its own.
//!
//! The name of the answer's schema selects the role, and the offered tools define what it can do.

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
use crate::model::{DeltaListener, Model, ModelError, Reply, Request};
use crate::planner::read_board;
use crate::roles::read_task_from_request;
use crate::spec::AnswerForm;

/// The model `builtin:extractive`: deterministic and offline; the same documents give the same answers on any machine.
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
        _: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        futures::future::ready(choose_reply(request)).boxed()
    }
}

fn choose_reply(request: &Request) -> Result<Reply, ModelError> {
    let name = request.answer.as_ref().map(|answer| answer.name.as_str()).unwrap_or_default();
    let reply = match name {
        PLAN => read_board(request)
            .map(|board| conversation::reply_with_answer(&plan::build_plan_for_board(&board))),
        FINDINGS => {
            read_task_from_request(request).map(|task| research::reply_to_research_task(request, &task))
        }
        REPORT => read_task_from_request(request).map(|task| report::reply_to_report_task(request, &task)),
        VERDICT => {
            critic::read_review_task(request).map(|task| verdict::reply_to_review_task(request, &task))
        }
        _ => None,
    };
    reply.ok_or_else(|| ModelError::BadRequest {
        message: format!(
            "{} can plan, research, report and judge, but was asked for {}; use a language model for other work",
            Extractive::NAME,
            if name.is_empty() { "an answer without a schema".to_owned() } else { format!("{name:?}") },
        ),
    })
}

const FINDINGS: &str = AnswerForm::Findings.name();
const REPORT: &str = AnswerForm::Report.name();
const PLAN: &str = AnswerForm::Plan.name();
