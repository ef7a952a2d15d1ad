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
use super::super::state::{Plan, PlannerTrigger, PlanningTurn, TaskState};
use super::super::{AttemptClock, Edit, EndReason, Event, PlanningEvent, Refusal, RunEvent, apply};
use super::edits::{EditAuthor, decide_edit, why_run_cannot_finish};
use super::{
    MAX_PLANNING_ATTEMPTS, PlanningResult, STALE_JOURNAL, has_work_in_progress, repetition, timeout_error,
    timestamp_after, truncate_for_plan,
};
use crate::result::{ErrorKind, ExceededLimit, TaskError, Usage};

/// The maximum number of rejected edits of one turn that the planner is shown.
const MAX_REFUSED: usize = 20;

pub(super) fn find_open_turn(plan: &Plan, turn: u32, attempt: u32) -> Result<&PlanningTurn, Refusal> {
    let current = plan.planning.turn.as_ref().filter(|planning| planning.retry_at.is_none());
    current
        .filter(|planning| (planning.turn, planning.attempt) == (turn, attempt))
        .ok_or(Refusal::NotCurrentTurn { turn, attempt })
}

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
    let end = super::budget::wind_down_run(&after, EndReason::BudgetExhausted, &detail);
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

/// `true` if the planner may be called again: turns are left, it has not failed for good, the run is not winding down, and
/// its last turns made progress.
pub(super) fn can_call_planner(plan: &Plan) -> bool {
    accepts_messages(plan)
        && plan.planning.idle_turns.max(plan.planning.repeated_turns) < super::MAX_IDLE_TURNS
}

/// `true` if the planner will read a message: a message resets the count of turns without progress.
pub(super) fn accepts_messages(plan: &Plan) -> bool {
    plan.has_planner()
        && plan.planning.lost.is_none()
        && plan.planning.turns < plan.max_planning_turns()
        && plan.run.winding_down.is_none()
        && !plan.has_failed_fast()
}

/// The usage to count for a turn that is given up: all that was reserved, if a worker has claimed it.
fn usage_of_turn_in_flight(plan: &Plan, planning: &PlanningTurn) -> Usage {
    if planning.worker.is_some() {
        super::reserved_amounts_as_usage(plan, &planning.work())
    } else {
        Usage::default()
    }
}

fn fail_turn(planning: &PlanningTurn, error: &TaskError, now: Timestamp) -> Event {
    let is_last = planning.attempt >= MAX_PLANNING_ATTEMPTS || !error.kind.is_retryable();
    let next = TaskLimits::default().backoff_before_attempt(planning.attempt + 1);
    turn_errored_event(planning, error, (!is_last).then(|| timestamp_after(now, next)))
}

/// Ends the attempt with an error.
fn turn_errored_event(planning: &PlanningTurn, error: &TaskError, retry_at: Option<Timestamp>) -> Event {
    Event::Planning(PlanningEvent::Errored {
        turn: planning.turn,
        attempt: planning.attempt,
        error: truncate_for_plan(&error.message),
        retry_at,
        exceeded_reservation: error.limit == Some(ExceededLimit::Allowance),
        is_refused_by_provider: error.is_refused_by_provider,
        usage: error.usage,
        models: error.models.clone(),
    })
}

fn complete_turn(
    plan: &Plan,
    planning: &PlanningTurn,
    planned: &PlanningResult,
    now: Timestamp,
) -> Vec<Event> {
    let (turn, attempt) = (planning.turn, planning.attempt);
    let PlanningResult { proposal, usage, models } = planned;
    let mut trial = plan.clone();
    trial.planning.turn = None;
    let (mut events, mut refused, mut accepted, mut repeated) = (Vec::new(), Vec::new(), 0_usize, 0_usize);
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
                repeated += usize::from(repetition::is_repetition(plan, &wanted));
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

/// Ends a run that its planner has finished: open tasks are not needed.
pub(super) fn finish_run(plan: &Plan, reason: &str) -> Vec<Event> {
    let mut wave = super::wave::TaskEndPropagation::default();
    wave.cancel_all_open_tasks(plan, None, "the planner finished the run without it");
    let mut events = wave.events;
    let deliverable = plan
        .final_task()
        .filter(|task| task.state() == TaskState::Completed)
        .map(|task| (task.spec.id.clone(), super::super::DeliverableRule::Final));
    let detail = super::settle::mention_plain_plan(plan, truncate_for_plan(reason));
    events.push(Event::Run(RunEvent::ended(EndReason::Completed, detail, deliverable)));
    events
}

/// Ends a run that its planner has given up: it ends with the results that it has.
pub(super) fn give_up_run(plan: &Plan, reason: &str) -> Vec<Event> {
    let mut wave = super::wave::TaskEndPropagation::default();
    wave.cancel_all_open_tasks(plan, None, "the planner gave up the run");
    let mut events = wave.events;
    let deliverable = super::settle::choose_deliverable(plan);
    let reached = deliverable.as_ref().map_or(EndReason::Failed, |_| EndReason::CompletedPartial);
    let detail = super::settle::mention_plain_plan(plan, truncate_for_plan(reason));
    events.push(Event::Run(RunEvent::ended(reached, detail, deliverable)));
    events
}

/// Gives up the planning turn, if one is open.
pub(super) fn give_up_turn(plan: &Plan, why: &str) -> Option<Event> {
    let planning = plan.planning.turn.as_ref()?;
    let error =
        TaskError { usage: usage_of_turn_in_flight(plan, planning), ..TaskError::new(ErrorKind::Other, why) };
    Some(turn_errored_event(planning, &error, None))
}
