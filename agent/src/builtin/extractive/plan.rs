//! The planner's part: one research task for each question of the objective, and one task that reports on all of them.

use millrace_protocol::ids::{Capability, TaskId};
use millrace_protocol::plan::{OnFailedDependency, Review, TaskSpec};
use millrace_protocol::result::Proposal;

use super::{criteria, split};
use crate::roles::{PRODUCER, PlanTask, RESEARCH};

pub(super) fn propose(task: &PlanTask) -> Proposal {
    if !task.tasks.is_empty() {
        return Proposal {
            reasoning:
                "The plan has tasks already, and no language model is in use that could judge what else it \
                        needs: nothing is added."
                    .into(),
            ..Proposal::default()
        };
    }
    let questions = split::questions(&task.objective);
    let research: Vec<TaskSpec> =
        questions.iter().enumerate().map(|(at, question)| research(at + 1, question)).collect();
    let report = report(&task.objective, &research);
    let count = research.len();
    let reasoning = match count {
        1 => "The objective asks one thing: one task looks for it, another reports on it.".to_owned(),
        _ => format!(
            "The objective asks {count} things: a task looks for each, and another reports on all of them."
        ),
    };
    Proposal { reasoning, tasks: research.into_iter().chain([report]).collect(), ..Proposal::default() }
}

fn research(number: usize, question: &str) -> TaskSpec {
    let criteria = [criteria::CITATIONS, criteria::QUOTATIONS, criteria::COVERAGE];
    spec(&format!("research-{number}"), question, RESEARCH, &criteria)
}

fn report(objective: &str, research: &[TaskSpec]) -> TaskSpec {
    let criteria = [criteria::CITATIONS, criteria::QUOTATIONS, criteria::COVERAGE];
    TaskSpec {
        depends_on: research.iter().map(|task| task.id.clone()).collect(),
        // A report on what could be found is better than none.
        on_failed_dependency: OnFailedDependency::Skip,
        is_final: true,
        ..spec("report", objective, PRODUCER, &criteria)
    }
}

fn spec(id: &str, objective: &str, capability: &str, criteria: &[&str]) -> TaskSpec {
    let id = TaskId::new(id).expect("a word and a number make a name");
    let capability = Capability::new(capability).expect("the built-in capabilities are names");
    TaskSpec {
        review: Review::critic(criteria.iter().map(|&criterion| criterion.to_owned()).collect()),
        ..TaskSpec::new(id, objective, capability)
    }
}
