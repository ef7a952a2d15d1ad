//! What a worker needs to know, read off the plan. Pure.

use millrace_protocol::ids::{Capability, Lane, RunId};
use millrace_protocol::plan::{Limits, Plan, Review, Task, Work};
use millrace_protocol::result::Parameters;
use millrace_protocol::subject::{CRITIC, PLANNER};
use millrace_protocol::work::{Input, Order};

/// The queue that a piece of work belongs into; `None` if the plan does not know it.
#[must_use]
pub fn queue(plan: &Plan, work: &Work) -> Option<Capability> {
    match work {
        Work::Task { task, .. } => Some(plan.task(task)?.spec.capability.clone()),
        Work::Review { .. } => Some(named(CRITIC)),
        Work::Planning { .. } => Some(named(PLANNER)),
    }
}

pub(crate) fn named(capability: &str) -> Capability {
    Capability::new(capability).expect("the cluster's own capabilities are names")
}

/// The order for a piece of work; `None` if the plan does not know it.
#[must_use]
pub fn order(run: &RunId, lane: Lane, plan: &Plan, work: &Work) -> Option<Order> {
    let start = plan.start.as_ref()?;
    let blank = Order {
        run: run.clone(),
        lane,
        work: work.clone(),
        mission: start.objective.clone(),
        objective: start.objective.clone(),
        capability: named(PLANNER),
        parameters: Parameters::new(),
        inputs: Vec::new(),
        criteria: Vec::new(),
        is_final: false,
        feedback: Vec::new(),
        limits: Limits::default(),
        documents: start.documents.clone(),
        model: start.model.clone(),
        own_model: start.models.get(PLANNER).cloned(),
    };
    match work {
        Work::Planning { .. } => {
            Some(Order { feedback: plan.planning.as_ref()?.feedback.iter().cloned().collect(), ..blank })
        }
        Work::Task { task, .. } => {
            let task = plan.task(task)?;
            let inputs = task.spec.depends_on.iter().filter_map(|id| input(plan.task(id)?)).collect();
            let own_model = start.models.get(&task.spec.capability).cloned();
            Some(Order { inputs, feedback: task.feedback().collect(), own_model, ..of_task(blank, task) })
        }
        Work::Review { task, .. } => {
            let task = plan.task(task)?;
            let criteria = match &task.spec.review {
                Review::None => Vec::new(),
                Review::Critic { criteria } => criteria.clone(),
            };
            let own_model = start.models.get(CRITIC).cloned();
            Some(Order { inputs: vec![finished(task)?], criteria, own_model, ..of_task(blank, task) })
        }
    }
}

fn of_task(blank: Order, task: &Task) -> Order {
    Order {
        objective: task.spec.objective.clone(),
        capability: task.spec.capability.clone(),
        parameters: task.spec.parameters.clone(),
        is_final: task.spec.is_final,
        limits: task.spec.limits.clone(),
        ..blank
    }
}

/// A task's accepted result, for those that build on it.
fn input(task: &Task) -> Option<Input> {
    task.accepted()?;
    finished(task)
}

/// The result of a task's current attempt.
fn finished(task: &Task) -> Option<Input> {
    use millrace_protocol::plan::AttemptEnd;
    let attempt = task.current()?;
    match attempt.end.as_ref()? {
        AttemptEnd::Finished { at_sequence, summary } => Some(Input {
            task: task.spec.id.clone(),
            objective: task.spec.objective.clone(),
            capability: task.spec.capability.clone(),
            worker: attempt.worker.clone()?,
            summary: summary.clone(),
            at_sequence: *at_sequence,
        }),
        AttemptEnd::Errored(_) | AttemptEnd::TimedOut(_) => None,
    }
}
