//! The planner role: one research task for each question of the objective, and one task that reports on all of them.
//! Later it changes nothing, and gives up once nothing is in progress: it can't judge how to replace a lost task.

use millrace_protocol::plan::OnFailedDependency;

use super::{criteria, split};
use crate::planner::{BoardFacts, PlanAnswer, TaskRequest};
use crate::roles::{PRODUCER, RESEARCH};

const NO_JUDGEMENT: &str =
    "There is no language model to judge what else the plan needs: nothing is added and nothing repeated.";

pub(super) fn build_plan_for_board(board: &BoardFacts) -> PlanAnswer {
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
    let criteria = [criteria::CITATIONS, criteria::QUOTATIONS, criteria::COVERAGE];
    TaskRequest {
        id: Some(id),
        objective: objective.to_owned(),
        capability: capability.to_owned(),
        criteria: criteria.map(str::to_owned).to_vec(),
        ..TaskRequest::default()
    }
}
