//! What a worker needs to know, read off the plan. Pure.

use millrace_protocol::ids::{Capability, Lane, RunId};
use millrace_protocol::plan::{Attempt, AttemptEnd, Plan, Review, Task, Work};
use millrace_protocol::subject::{CRITIC, PLANNER};
use millrace_protocol::work::{Input, Order, Panel};

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

/// The order for a piece of work in a plan whose last decision has the sequence `last`; `None` if the plan does not know
/// it.
#[must_use]
pub fn order(run: &RunId, lane: Lane, plan: &Plan, last: u64, work: &Work) -> Option<Order> {
    let start = plan.start.as_ref()?;
    let blank = Order {
        allowance: plan.reserved.of(work),
        documents: start.documents.clone(),
        model: start.model.clone(),
        own_model: start.models.get(PLANNER).cloned(),
        ..Order::new(run.clone(), lane, work.clone(), &start.objective, named(PLANNER))
    };
    match work {
        Work::Planning { .. } => {
            let feedback = plan.planning.as_ref()?.feedback.iter().cloned().collect();
            Some(Order { feedback, plan_at: last, ..blank })
        }
        Work::Task { task, .. } => {
            let task = plan.task(task)?;
            let inputs = task.spec.depends_on.iter().filter_map(|id| input(plan.task(id)?)).collect();
            let own_model = start.models.get(&task.spec.capability).cloned();
            let rejected = task.rejected().and_then(|(attempt, at, summary)| of(task, attempt, at, summary));
            let feedback = task.feedback();
            Some(Order { inputs, feedback, rejected, own_model, ..of_task(blank, task) })
        }
        Work::Review { task, .. } => {
            let task = plan.task(task)?;
            let (criteria, checks, panel) = match &task.asked {
                Review::None => (Vec::new(), Vec::new(), Some(Panel { quorum: 1, ..Panel::default() })),
                Review::Checks { checks } => (Vec::new(), checks.clone(), None),
                Review::Critic { criteria, checks, models, quorum, sample_percent: _ } => {
                    let majority = u32::try_from(models.len().max(1) / 2 + 1).unwrap_or(u32::MAX);
                    let panel = Panel { models: models.clone(), quorum: quorum.unwrap_or(majority) };
                    (criteria.clone(), checks.clone(), Some(panel))
                }
            };
            let evidence = task.spec.depends_on.iter().filter_map(|id| input(plan.task(id)?)).collect();
            let own_model = start.models.get(CRITIC).cloned();
            let inputs = vec![finished(task)?];
            Some(Order { inputs, criteria, checks, panel, evidence, own_model, ..of_task(blank, task) })
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
    let attempt = task.current()?;
    match attempt.end.as_ref()? {
        AttemptEnd::Finished { at_sequence, summary, .. } => of(task, attempt, *at_sequence, summary),
        AttemptEnd::Errored(_) | AttemptEnd::TimedOut(_) => None,
    }
}

fn of(task: &Task, attempt: &Attempt, at_sequence: u64, summary: &str) -> Option<Input> {
    Some(Input {
        task: task.spec.id.clone(),
        objective: task.spec.objective.clone(),
        capability: task.spec.capability.clone(),
        worker: attempt.worker.clone()?,
        summary: summary.to_owned(),
        at_sequence,
    })
}
