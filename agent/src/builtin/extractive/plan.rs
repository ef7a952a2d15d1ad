//! The planner's part: one research task for each question of the objective, and one task that reports on all of them.
//! Later it changes nothing, and where nothing is under way any more it says so: it can't judge what was lost.

use millrace_protocol::plan::OnFailedDependency;

use super::{criteria, split};
use crate::planner::{Glance, PlanAnswer, TaskWish};
use crate::roles::{PRODUCER, RESEARCH};

const NO_JUDGEMENT: &str = "No language model is in use that could judge what else the plan needs: nothing is added and nothing repeated.";

pub(super) fn propose(glance: &Glance) -> PlanAnswer {
    if glance.is_planned {
        let give_up = glance.stands_still.then(|| {
            "the deliverable was lost, and no language model is in use that could find another way to it"
                .to_owned()
        });
        return PlanAnswer { reasoning: NO_JUDGEMENT.into(), give_up, ..PlanAnswer::default() };
    }
    let answer = first(&glance.objective);
    let reasoning = match answer.tasks.len() - 1 {
        1 => "The objective asks one thing: one task looks for it, another reports on it.".to_owned(),
        count => format!(
            "The objective asks {count} things: a task looks for each, and another reports on all of them."
        ),
    };
    PlanAnswer { reasoning, ..answer }
}

/// A first plan without its reasons.
fn first(objective: &str) -> PlanAnswer {
    let questions = split::questions(objective);
    let research: Vec<TaskWish> =
        questions.iter().enumerate().map(|(at, question)| research(at + 1, question)).collect();
    let report = report(objective, &research);
    PlanAnswer { tasks: research.into_iter().chain([report]).collect(), ..PlanAnswer::default() }
}

/// The first plan in the fewest words: an example for other planners.
pub(super) fn plain(objective: &str) -> PlanAnswer {
    let answer = first(objective);
    let plain = |task: TaskWish| TaskWish { criteria: Vec::new(), on_failed_dependency: None, ..task };
    let reasoning = "One task for each question, and a report on all of them.".to_owned();
    PlanAnswer { reasoning, tasks: answer.tasks.into_iter().map(plain).collect(), ..PlanAnswer::default() }
}

fn research(number: usize, question: &str) -> TaskWish {
    wish(format!("research-{number}"), question, RESEARCH)
}

fn report(objective: &str, research: &[TaskWish]) -> TaskWish {
    TaskWish {
        depends_on: research.iter().filter_map(|task| task.id.clone()).collect(),
        // A report on what could be found is better than none.
        on_failed_dependency: Some(OnFailedDependency::Skip),
        is_final: true,
        ..wish("report".into(), objective, PRODUCER)
    }
}

fn wish(id: String, objective: &str, capability: &str) -> TaskWish {
    let criteria = [criteria::CITATIONS, criteria::QUOTATIONS, criteria::COVERAGE];
    TaskWish {
        id: Some(id),
        objective: objective.to_owned(),
        capability: capability.to_owned(),
        criteria: criteria.map(str::to_owned).to_vec(),
        ..TaskWish::default()
    }
}
