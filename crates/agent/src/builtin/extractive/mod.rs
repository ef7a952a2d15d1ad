//! `builtin:extractive`: a model that quotes instead of writing. It answers with sentences from the documents, which it
//! searches and reads through the same tools as any model. It is stateless: each reply depends on the request alone. It
//! invents no statement about a subject; only the connecting phrases are its own.
//!
//! The name of the answer's schema selects the role, and the offered tools define what it can do.
//!
//! The planner role: one research task for each question of the objective, and one task that reports on all of them.
//! Later it changes nothing, and gives up once nothing is in progress: it can't judge how to replace a lost task.
//!
//! The criteria that can be checked without judgement, as sentences. Planner and critic share them: the critic recognises
//! the sentences that the planner writes.

mod conversation;
mod question;
mod ranking;
mod report;
mod research;
mod sentences;
mod split;
mod verdict;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::plan::OnFailedDependency;

use crate::critic::{self, VERDICT};

use crate::model::{DeltaListener, Model, ModelError, Reply, Request};

use crate::planner::{BoardFacts, PlanAnswer, TaskRequest, read_board};

use crate::roles::{PRODUCER, RESEARCH, read_task_from_request};

use crate::spec::AnswerForm;

pub(super) use crate::critic::standing::{CITATIONS, NOT_EMPTY, QUOTATIONS};

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
        PLAN => {
            read_board(request).map(|board| conversation::reply_with_answer(&build_plan_for_board(&board)))
        }
        FINDINGS => {
            read_task_from_request(request).map(|task| research::reply_to_research_task(request, &task))
        }
        REPORT => read_task_from_request(request).map(|task| report::reply_to_report_task(request, &task)),
        VERDICT => {
            critic::read_review_task(request).map(|task| verdict::reply_to_review_task(request, &task))
        }
        _ => None,
    };
    reply.ok_or_else(|| ModelError::bad_request(format!(
            "{} can plan, research, report and judge, but was asked for {}; use a language model for other work",
            Extractive::NAME,
            if name.is_empty() { "an answer without a schema".to_owned() } else { format!("{name:?}") },
        )))
}

const FINDINGS: &str = AnswerForm::Findings.name();
const REPORT: &str = AnswerForm::Report.name();
const PLAN: &str = AnswerForm::Plan.name();

const NO_JUDGEMENT: &str =
    "There is no language model to judge what else the plan needs: nothing is added and nothing repeated.";

fn build_plan_for_board(board: &BoardFacts) -> PlanAnswer {
    if board.is_planned {
        let give_up = board.is_idle.then(|| {
            "the deliverable was lost, and there is no language model to find another way to it".to_owned()
        });
        return PlanAnswer { reasoning: NO_JUDGEMENT.into(), give_up, ..PlanAnswer::default() };
    }
    let answer = build_first_plan(&board.objective);
    let reasoning = match answer.tasks.len() - 1 {
        1 => "The objective has one question: one task researches it, another reports on it.".to_owned(),
        count => format!(
            "The objective has {count} questions: a task researches each, and another reports on all of them."
        ),
    };
    PlanAnswer { reasoning, ..answer }
}

/// A first plan without its reasoning.
fn build_first_plan(objective: &str) -> PlanAnswer {
    let questions = split::split_into_questions(objective);
    let research: Vec<TaskRequest> =
        questions.iter().enumerate().map(|(at, question)| build_research_task(at + 1, question)).collect();
    let report = build_report_task(objective, &research);
    PlanAnswer { tasks: research.into_iter().chain([report]).collect(), ..PlanAnswer::default() }
}

fn build_research_task(number: usize, question: &str) -> TaskRequest {
    build_task_request(format!("research-{number}"), question, RESEARCH)
}

fn build_report_task(objective: &str, research: &[TaskRequest]) -> TaskRequest {
    TaskRequest {
        depends_on: research.iter().filter_map(|task| task.id.clone()).collect(),
        // An incomplete report is better than none.
        on_failed_dependency: Some(OnFailedDependency::Skip),
        is_final: true,
        ..build_task_request("report".into(), objective, PRODUCER)
    }
}

fn build_task_request(id: String, objective: &str, capability: &str) -> TaskRequest {
    let criteria = [CITATIONS, QUOTATIONS, REASON];
    TaskRequest {
        id: Some(id),
        objective: objective.to_owned(),
        capability: capability.to_owned(),
        criteria: criteria.map(str::to_owned).to_vec(),
        ..TaskRequest::default()
    }
}

const REASON: &str = "It quotes its sources, or its notes say why it does not.";
