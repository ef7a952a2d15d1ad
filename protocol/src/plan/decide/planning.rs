//! Planning turns. A turn starts with triggers; its answer is a list of edits, each of which is validated against the plan
//! at that time. One decision applies the valid edits; the planner is asked again about the others.
//!
//! # Invariants
//!
//! - I87: A planner without any valid answer leaves a plan that the rules accept, and the end of the run names that.
//!   (`crates/agent/tests/planner/small.rs::planner_without_any_valid_answer_leaves_a_plain_plan`,
//!   `protocol/tests/rules/repetition.rs::end_says_that_a_plain_plan_was_carried_out`)

use jiff::Timestamp;

use super::super::spec::TaskLimits;
use super::super::state::{Plan, PlannerTrigger, PlanningTurn};
use super::super::{AttemptClock, Edit, EndReason, Event, PlanningEvent, Refusal, apply};
use super::edits::{EditAuthor, decide_edit, why_run_cannot_finish};
use super::turn::{find_open_turn, turn_errored_event, usage_of_turn_in_flight};
use super::{
    MAX_PLANNING_ATTEMPTS, PlanningResult, STALE_JOURNAL, has_work_in_progress, timeout_error,
    timestamp_after, truncate_for_plan, turn,
};
use crate::result::{ErrorKind, ExceededLimit, PlanProposal, TaskError};

/// The maximum number of rejected edits of one turn that the planner is shown.
const MAX_REFUSED: usize = 20;

pub(super) fn handle_turn_end(
    plan: &Plan,
    turn: u32,
    attempt: u32,
    outcome: &Result<PlanningResult, TaskError>,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let current = find_open_turn(plan, turn, attempt)?;
    match outcome {
        Ok(planned) => Ok(complete_turn(plan, current, planned, now)),
        // It had all that was left of the budget.
        Err(error) if error.limit == Some(ExceededLimit::Allowance) && current.exceeded_reservation => {
            Ok(wind_down_for_planner_budget(plan, current, error))
        }
        Err(error) => Ok(vec![fail_turn(current, error, now)]),
    }
}

/// Returns the events of a run whose planner needs more than the rest of the budget.
fn wind_down_for_planner_budget(plan: &Plan, planning: &PlanningTurn, error: &TaskError) -> Vec<Event> {
    let over = turn_errored_event(planning, error, None);
    let mut after = plan.clone();
    after.planning.turn = None;
    let detail =
        format!("the planner needs more than the rest of the budget: {}", truncate_for_plan(&error.message));
    let end = super::winding_down::wind_down_run(&after, EndReason::BudgetExhausted, &detail);
    std::iter::once(over).chain(end).collect()
}

pub(super) fn time_out_turn(
    plan: &Plan,
    turn: u32,
    attempt: u32,
    clock: AttemptClock,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let current = find_open_turn(plan, turn, attempt)?;
    let error =
        TaskError { usage: usage_of_turn_in_flight(plan, current), ..timeout_error(clock, "the planner: ") };
    Ok(vec![fail_turn(current, &error, now)])
}

/// Fails a dispatched attempt at a turn whose journal has entries from before its dispatch.
pub(super) fn replace_attempt_with_stale_journal(
    plan: &Plan,
    turn: u32,
    attempt: u32,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let current = find_open_turn(plan, turn, attempt)?;
    if current.worker.is_some() {
        return Err(Refusal::WrongMoment("the planner has claimed the turn".into()));
    }
    Ok(vec![fail_turn(current, &TaskError::new(ErrorKind::Other, STALE_JOURNAL), now)])
}

pub(super) fn retry_turn(plan: &Plan, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    let waiting = plan.planning.turn.as_ref().and_then(|planning| Some((planning, planning.retry_at?)));
    match waiting {
        Some((planning, at)) if at <= now => Ok(vec![Event::Planning(PlanningEvent::Requested {
            turn: planning.turn,
            attempt: planning.attempt + 1,
            feedback: planning.feedback.clone(),
            triggers: planning.triggers.clone(),
        })]),
        Some((_, at)) => Err(Refusal::NotDue(at)),
        None => Err(Refusal::NotCurrentTurn { turn: 0, attempt: 0 }),
    }
}

fn fail_turn(planning: &PlanningTurn, error: &TaskError, now: Timestamp) -> Event {
    let is_last = planning.attempt >= MAX_PLANNING_ATTEMPTS || !error.kind.is_retryable();
    let next = TaskLimits::default().backoff_before_attempt(planning.attempt + 1);
    turn_errored_event(planning, error, (!is_last).then(|| timestamp_after(now, next)))
}

/// The result of carrying out a proposal on a copy of the plan.
struct TriedProposal {
    plan: Plan,
    events: Vec<Event>,
    /// The first refusals, as text, and the number of the others.
    refused: Vec<String>,
    accepted: usize,
    /// The number of accepted edits that only repeat a lost task.
    repeated: usize,
    /// The reason for which the run is not over although the proposal says so.
    not_the_end: Option<String>,
}

fn try_proposal(plan: &Plan, proposal: &PlanProposal, now: Timestamp) -> TriedProposal {
    let mut trial = plan.clone();
    trial.planning.turn = None;
    let (mut events, mut refused, mut accepted, mut repeated) = (Vec::new(), Vec::new(), 0, 0);
    let mut not_the_end = None;
    for wanted in proposal.all_edits() {
        if let Edit::Finish { .. } = &wanted
            && let Some(why) = why_run_cannot_finish(&trial)
        {
            not_the_end = Some(why);
            continue;
        }
        match decide_edit(&trial, &wanted, EditAuthor::Planner) {
            Ok(made) => {
                accepted += 1;
                repeated += usize::from(turn::is_repetition(plan, &wanted));
                made.iter().for_each(|event| apply(&mut trial, event, now));
                events.extend(made);
                if trial.run.end.is_some() {
                    break;
                }
            }
            Err(refusal) => refused.push(truncate_for_plan(&format!("{}: {refusal}", wanted.name()))),
        }
    }
    let refused = truncate_refusals(refused, MAX_REFUSED);
    TriedProposal { plan: trial, events, refused, accepted, repeated, not_the_end }
}

fn complete_turn(
    plan: &Plan,
    planning: &PlanningTurn,
    planned: &PlanningResult,
    now: Timestamp,
) -> Vec<Event> {
    let (turn, attempt) = (planning.turn, planning.attempt);
    let PlanningResult { proposal, usage, models } = planned;
    let TriedProposal { plan: trial, events, refused, accepted, repeated, not_the_end } =
        try_proposal(plan, proposal, now);
    let nothing = accepted == 0 && not_the_end.is_none();
    if nothing && (!refused.is_empty() || trial.tasks().is_empty()) {
        let why = refused.first().cloned().unwrap_or_else(|| "the plan has no tasks".into());
        let error = TaskError {
            usage: *usage,
            models: models.clone(),
            ..TaskError::new(ErrorKind::Model, format!("the proposed plan was rejected: {why}"))
        };
        return vec![fail_turn(planning, &error, now)];
    }
    let over = Event::Planning(PlanningEvent::ProposalAccepted {
        turn,
        attempt,
        reasoning: truncate_for_plan(&proposal.reasoning),
        refused: refused.clone(),
        fallback: proposal.fallback.as_deref().map(truncate_for_plan),
        is_idle: not_the_end.is_some() || (accepted == 0 && !has_work_in_progress(plan)),
        is_repetition: accepted > 0 && accepted == repeated,
        usage: *usage,
        models: models.clone(),
    });
    let mut all = vec![over];
    all.extend(events);
    if trial.run.end.is_none() {
        if !refused.is_empty() {
            all.push(Event::Planning(PlanningEvent::TriggerRaised {
                trigger: PlannerTrigger::Refused { reasons: refused },
            }));
        }
        if let Some(why) = not_the_end {
            all.push(Event::Planning(PlanningEvent::TriggerRaised {
                trigger: PlannerTrigger::FalseEnd { why },
            }));
        }
    }
    all
}

/// Returns the first rejected edits and the number of the others.
fn truncate_refusals(mut refused: Vec<String>, most: usize) -> Vec<String> {
    let more = refused.len().saturating_sub(most);
    refused.truncate(most);
    if more > 0 {
        refused.push(format!("and {more} more"));
    }
    refused
}
