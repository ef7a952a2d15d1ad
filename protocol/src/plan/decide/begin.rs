//! A run that is handed in.

use super::super::spec::{Consult, MAX_OBJECTIVE, Mode, Submission, TaskSpec};
use super::super::state::{EndReason, Occasion, Plan};
use super::super::{Event, Refusal, check};
use crate::ids::TaskId;
use crate::result::MAX_SUMMARY;

pub(super) fn submit(plan: &Plan, submission: &Submission) -> Result<Vec<Event>, Refusal> {
    if plan.start.is_some() {
        return Err(Refusal::AlreadySubmitted);
    }
    let fault = objective_fault(&submission.objective).or_else(|| {
        let (field, expected) = submission.budget.check().err()?;
        Some(format!("the budget: {field} must be {expected}"))
    });
    let started = Event::RunStarted {
        objective: match fault {
            Some(_) => submission.objective.chars().take(MAX_SUMMARY).collect(),
            None => submission.objective.clone(),
        },
        mode: submission.mode,
        documents: submission.documents.clone(),
        model: submission.model.clone(),
        models: submission.models.clone(),
        fail_fast: submission.fail_fast,
        budget: Box::new(submission.budget.clone()),
        consult: consult(submission),
    };
    if let Some(detail) = fault {
        return Ok(vec![started, failed(detail)]);
    }
    let mut events = vec![started];
    let has_seed = submission.mode == Mode::Fixed || !submission.tasks.is_empty();
    if has_seed {
        match check(plan, &submission.tasks) {
            Ok(()) => events.extend(added(plan, &submission.tasks)),
            Err(error) => events.push(failed(format!("the plan was refused: {error}"))),
        }
    } else {
        let occasions = vec![Occasion::NoPlan];
        events.push(Event::PlanningAsked { turn: 1, attempt: 1, feedback: None, occasions });
    }
    Ok(events)
}

fn consult(submission: &Submission) -> Consult {
    match submission.mode {
        Mode::Fixed => submission.consult.unwrap_or(Consult::Never),
        // A plan that nobody is to make is none.
        Mode::Llm | Mode::Hybrid => submission.consult.unwrap_or(Consult::Judgement).max(Consult::Judgement),
    }
}

fn failed(detail: String) -> Event {
    Event::RunEnded { reason: EndReason::Failed, detail, deliverable: None }
}

fn objective_fault(objective: &str) -> Option<String> {
    if objective.trim().is_empty() {
        return Some("the objective is empty".into());
    }
    let bytes = objective.len();
    (bytes > MAX_OBJECTIVE)
        .then(|| format!("the objective has {bytes} bytes; at most {MAX_OBJECTIVE} are allowed"))
}

/// Adds tasks to the plan, each ready or pending.
pub(super) fn added(plan: &Plan, tasks: &[TaskSpec]) -> Vec<Event> {
    tasks
        .iter()
        .map(|spec| {
            let ready = spec.depends_on.iter().all(|id| is_met(plan, spec, id));
            Event::TaskAdded { spec: spec.clone(), ready }
        })
        .collect()
}

/// Whether a task need not wait for one that it depends on.
pub(super) fn is_met(plan: &Plan, spec: &TaskSpec, dependency: &TaskId) -> bool {
    plan.task(dependency).is_some_and(|task| task.state.meets(spec.on_failed_dependency))
}
