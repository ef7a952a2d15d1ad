//! The submission of a run.
//!
//! Holds of a run before its first task: its turn in its session, and a place among the running runs. The owner of the lane
//! finds out when they end; the rules carry it out once.
//!
//! # Invariants
//!
//! - I182: Runs of a session start in the order of their submissions, one after the other, also across crashes; while a run
//!   waits, nothing of it is dispatched, reserved or timed.
//!   (`protocol/tests/rules/holds.rs::held_run_dispatches_reserves_and_times_nothing`,
//!   `tests/tests/sessions.rs::runs_of_a_session_run_in_their_order_while_supervisors_are_killed`)

use std::sync::Arc;

use super::super::decide::turn::give_up_turn;
use super::super::decide::wave::TaskEndPropagation;
use super::super::hold::{HoldChange, SessionTurn};
use super::super::spec::{
    EarlierRun, MAX_EARLIER_RUNS, MAX_EARLIER_TEXT, MAX_OBJECTIVE, PlannerConsultMode, PlanningMode,
    Submission, TaskSpec,
};
use super::super::state::{EndReason, Plan, PlannerTrigger};
use super::super::{Event, GraphEvent, PlanningEvent, Refusal, RunEvent, RunHold, check_new_tasks};
use crate::ids::TaskId;
use crate::labels::find_labels_problem;
use crate::result::MAX_SUMMARY;

/// The maximum number of criteria for a deliverable.
const MAX_CRITERIA: usize = 50;
/// The maximum size of a criterion in bytes.
const MAX_CRITERION: usize = 2_000;

pub(super) fn start_run(plan: &Plan, submission: &Submission) -> Result<Vec<Event>, Refusal> {
    if plan.run.start.is_some() {
        return Err(Refusal::AlreadySubmitted);
    }
    let fault = find_objective_problem(&submission.objective);
    let fault = fault.or_else(|| find_criteria_problem(&submission.criteria));
    let fault = fault.or_else(|| find_earlier_runs_problem(&submission.after));
    let fault = fault.or_else(|| find_labels_problem(&submission.labels)).or_else(|| {
        let (field, expected) = submission.budget.check_values().err()?;
        Some(format!("invalid budget: {field} must be {expected}"))
    });
    let objective = match fault {
        Some(_) => submission.objective.chars().take(MAX_SUMMARY).collect(),
        None => submission.objective.clone(),
    };
    let started = started_event(submission, objective);
    if let Some(detail) = fault {
        return Ok(vec![started, run_failed_event(detail)]);
    }
    let mut events = vec![started];
    if submission.session.is_some() {
        events.push(Event::Run(RunEvent::Held { hold: RunHold::Session, submitted: None }));
    }
    let has_seed = submission.mode == PlanningMode::Fixed || !submission.tasks.is_empty();
    if has_seed {
        if let Some(task) = submission.tasks.iter().find(|task| task.has_fields_of_children()) {
            let why =
                format!("task {} has fields of a delegated task; only a running task can delegate", task.id);
            events.push(run_failed_event(format!("the plan was rejected: {why}")));
            return Ok(events);
        }
        match check_new_tasks(plan, &submission.tasks) {
            Ok(()) => {
                events.extend(submission.tasks.iter().map(|spec| task_added_event(plan, Arc::clone(spec))))
            }
            Err(error) => events.push(run_failed_event(format!("the plan was rejected: {error}"))),
        }
    } else {
        let triggers = vec![PlannerTrigger::NoPlan];
        events.push(Event::Planning(PlanningEvent::Requested {
            turn: 1,
            attempt: 1,
            feedback: None,
            triggers,
        }));
    }
    Ok(events)
}

fn started_event(submission: &Submission, objective: String) -> Event {
    Event::Run(RunEvent::Started {
        objective,
        mode: submission.mode,
        documents: submission.documents.clone().map(Box::new),
        model: submission.model.clone(),
        models: submission.models.clone(),
        fail_fast: submission.fail_fast,
        budget: Box::new(submission.budget.clone()),
        consult: effective_consult_mode(submission),
        approve_plan: submission.approve_plan,
        verification: submission.verification,
        criteria: submission.criteria.clone(),
        after: submission.after.clone(),
        labels: submission.labels.clone(),
        session: submission.session.clone(),
    })
}

fn effective_consult_mode(submission: &Submission) -> PlannerConsultMode {
    match submission.mode {
        PlanningMode::Fixed => submission.consult.unwrap_or(PlannerConsultMode::Never),
        // These modes require a planner.
        PlanningMode::Llm | PlanningMode::Hybrid => {
            submission.consult.unwrap_or(PlannerConsultMode::Judgement).max(PlannerConsultMode::Judgement)
        }
    }
}

fn run_failed_event(detail: String) -> Event {
    let (reason, deliverable) = (EndReason::Failed, None);
    // A submission that is refused stays refused.
    Event::Run(RunEvent::Ended { reason, detail, deliverable, is_resumable: false })
}

fn find_objective_problem(objective: &str) -> Option<String> {
    if objective.trim().is_empty() {
        return Some("the objective is empty".into());
    }
    let bytes = objective.len();
    (bytes > MAX_OBJECTIVE)
        .then(|| format!("the objective has {bytes} bytes; at most {MAX_OBJECTIVE} are allowed"))
}

/// The mistake in the criteria for the deliverable, if there is one.
#[must_use]
pub fn find_criteria_problem(criteria: &[String]) -> Option<String> {
    if criteria.len() > MAX_CRITERIA {
        let count = criteria.len();
        return Some(format!("there are {count} criteria; at most {MAX_CRITERIA} are allowed"));
    }
    let position = criteria.iter().position(|text| text.trim().is_empty() || text.len() > MAX_CRITERION)?;
    let number = position + 1;
    Some(match criteria[position].trim() {
        "" => format!("criterion {number} is empty; write what the deliverable must do"),
        text => format!(
            "criterion {number} has {} bytes; at most {MAX_CRITERION} are allowed: write one sentence for each",
            text.len()
        ),
    })
}

/// The mistake in the runs that a run follows up on, if there is one.
#[must_use]
pub fn find_earlier_runs_problem(after: &[EarlierRun]) -> Option<String> {
    if after.len() > MAX_EARLIER_RUNS {
        let count = after.len();
        return Some(format!("the run follows {count} runs; at most {MAX_EARLIER_RUNS} are allowed"));
    }
    let is_long = |earlier: &&EarlierRun| {
        [&earlier.objective, &earlier.summary, &earlier.folder]
            .into_iter()
            .any(|it| it.len() > MAX_EARLIER_TEXT)
    };
    let long = after.iter().find(is_long)?;
    Some(format!("the texts about the earlier run {} have more than {MAX_EARLIER_TEXT} bytes each", long.run))
}

/// Adds a task to the plan, ready or pending.
pub(super) fn task_added_event(plan: &Plan, spec: Arc<TaskSpec>) -> Event {
    let ready = spec.depends_on.iter().all(|id| is_dependency_met(plan, &spec, id));
    Event::Graph(GraphEvent::TaskAdded { spec, ready })
}

/// `true` if a task need not wait for a dependency.
pub(super) fn is_dependency_met(plan: &Plan, spec: &TaskSpec, dependency: &TaskId) -> bool {
    plan.task(dependency).is_some_and(|task| task.state().satisfies_dependency(spec.on_failed_dependency))
}

pub(super) fn change_hold(plan: &Plan, change: &HoldChange) -> Result<Vec<Event>, Refusal> {
    let has_begun = plan.run.holds.ended.is_some();
    match change {
        HoldChange::WaitForPlace(_) if plan.run.holds.has(RunHold::Place) || has_begun => {
            Err(refusal("the run waits for a place, or has one"))
        }
        HoldChange::WaitForPlace(submitted) => {
            Ok(vec![Event::Run(RunEvent::Held { hold: RunHold::Place, submitted: Some(*submitted) })])
        }
        HoldChange::SessionTurn(_) if !plan.run.holds.has(RunHold::Session) => {
            Err(refusal("the run does not wait for its session"))
        }
        HoldChange::SessionTurn(turn) => {
            let SessionTurn { position, earlier, documents } = turn.as_ref().clone();
            let documents = documents.map(Box::new);
            Ok(vec![Event::Run(RunEvent::SessionTurnCame { position, earlier, documents })])
        }
        HoldChange::PlaceGranted | HoldChange::PlaceRefused { .. } if !plan.run.holds.has(RunHold::Place) => {
            Err(refusal("the run does not wait for a place"))
        }
        // Its place is free again: a run that is paused before it begins does not block others.
        HoldChange::PlaceGranted if plan.run.paused.is_some() => Err(refusal("the run is paused")),
        HoldChange::PlaceGranted => Ok(vec![Event::Run(RunEvent::PlaceGranted)]),
        HoldChange::PlaceRefused { waiting } => Ok(refuse_place(plan, *waiting)),
    }
}

/// Ends a run that can't wait for a place.
fn refuse_place(plan: &Plan, waiting: u32) -> Vec<Event> {
    let why = format!(
        "the run was refused: {waiting} runs wait for a place, as many as allowed; submit it again later, or raise the limit"
    );
    let mut wave = TaskEndPropagation::default();
    wave.events.push(Event::Run(RunEvent::PlaceRefused { waiting }));
    wave.cancel_all_open_tasks(plan, None, &why);
    wave.events.extend(give_up_turn(plan, "the run was refused"));
    wave.events.push(Event::Run(RunEvent::Ended {
        reason: EndReason::Failed,
        detail: why,
        deliverable: None,
        is_resumable: false,
    }));
    wave.events
}

fn refusal(why: &str) -> Refusal {
    Refusal::WrongMoment(why.into())
}
