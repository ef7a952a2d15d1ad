//! A planner's turn. It is asked about occasions; its answer is a list of edits, each of which is tried against the plan as
//! it stands by then. What holds is carried out in one decision; the rest is asked about again.

use jiff::Timestamp;

use super::super::spec::Limits;
use super::super::state::{Occasion, Plan, Planning, TaskState};
use super::super::{Clock, Edit, EndReason, Event, Refusal, apply};
use super::edits::{By, edit, false_end};
use super::{MAX_PLANNING_ATTEMPTS, Planned, after, clock_error, is_in_motion, on_the_plan};
use crate::result::{ErrorKind, Limit, TaskError, Usage};

/// How many refused changes of one turn are told.
const MAX_REFUSED: usize = 20;

pub(super) fn current(plan: &Plan, turn: u32, attempt: u32) -> Result<&Planning, Refusal> {
    let current = plan.planning.as_ref().filter(|planning| planning.retry_at.is_none());
    current
        .filter(|planning| (planning.turn, planning.attempt) == (turn, attempt))
        .ok_or(Refusal::NotCurrentTurn { turn, attempt })
}

pub(super) fn planned(
    plan: &Plan,
    turn: u32,
    attempt: u32,
    outcome: &Result<Planned, TaskError>,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let current = current(plan, turn, attempt)?;
    match outcome {
        Ok(planned) => Ok(landed(plan, current, planned, now)),
        // It had all that was left.
        Err(error) if error.limit == Some(Limit::Allowance) && current.outgrew => {
            Ok(spent(plan, current, error))
        }
        Err(error) => Ok(vec![errored(current, error, now)]),
    }
}

/// The events of a run whose planner needs more than what is left.
fn spent(plan: &Plan, planning: &Planning, error: &TaskError) -> Vec<Event> {
    let over = over(planning, error, None);
    let mut after = plan.clone();
    after.planning = None;
    let detail =
        format!("the planner needs more than what is left of the budget: {}", on_the_plan(&error.message));
    let end = super::budget::wind_down(&after, EndReason::BudgetExhausted, &detail);
    std::iter::once(over).chain(end).collect()
}

pub(super) fn time_out(
    plan: &Plan,
    turn: u32,
    attempt: u32,
    clock: Clock,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let current = current(plan, turn, attempt)?;
    let error = TaskError { usage: in_hand(plan, current), ..clock_error(clock, "the planner: ") };
    Ok(vec![errored(current, &error, now)])
}

pub(super) fn retry(plan: &Plan, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    let waiting = plan.planning.as_ref().and_then(|planning| Some((planning, planning.retry_at?)));
    match waiting {
        Some((planning, at)) if at <= now => Ok(vec![Event::PlanningAsked {
            turn: planning.turn,
            attempt: planning.attempt + 1,
            feedback: planning.feedback.clone(),
            occasions: planning.occasions.clone(),
        }]),
        Some((_, at)) => Err(Refusal::NotDue(at)),
        None => Err(Refusal::NotCurrentTurn { turn: 0, attempt: 0 }),
    }
}

/// Whether the planner may be asked once more: a turn is left, it did not fail for good, the run goes on, and it brought
/// that somewhere lately.
pub(super) fn is_available(plan: &Plan) -> bool {
    can_be_told(plan) && plan.idle_turns < super::MAX_IDLE_TURNS
}

/// Whether the planner will hear of what it is told: a user's word makes good for idle turns.
pub(super) fn can_be_told(plan: &Plan) -> bool {
    plan.has_planner()
        && plan.planner_lost.is_none()
        && plan.turns < plan.steps()
        && plan.winding_down.is_none()
        && !plan.has_failed_fast()
}

/// What is counted as used of a turn that is given up: all that was reserved, where somebody has it in hand.
fn in_hand(plan: &Plan, planning: &Planning) -> Usage {
    if planning.worker.is_some() { super::given_up(plan, &planning.work()) } else { Usage::default() }
}

fn errored(planning: &Planning, error: &TaskError, now: Timestamp) -> Event {
    let is_last = planning.attempt >= MAX_PLANNING_ATTEMPTS || !error.kind.is_retryable();
    let next = Limits::default().backoff_before(planning.attempt + 1);
    over(planning, error, (!is_last).then(|| after(now, next)))
}

/// The attempt is over and came to nothing.
fn over(planning: &Planning, error: &TaskError, retry_at: Option<Timestamp>) -> Event {
    Event::PlanningErrored {
        turn: planning.turn,
        attempt: planning.attempt,
        error: on_the_plan(&error.message),
        retry_at,
        outgrew: error.limit == Some(Limit::Allowance),
        usage: error.usage,
        models: error.models.clone(),
    }
}

fn landed(plan: &Plan, planning: &Planning, planned: &Planned, now: Timestamp) -> Vec<Event> {
    let (turn, attempt) = (planning.turn, planning.attempt);
    let Planned { proposal, usage, models } = planned;
    let mut trial = plan.clone();
    trial.planning = None;
    let (mut events, mut refused, mut accepted) = (Vec::new(), Vec::new(), 0_usize);
    let mut not_the_end = None;
    for wanted in proposal.all() {
        if let Edit::Finish { .. } = &wanted
            && let Some(why) = false_end(&trial)
        {
            not_the_end = Some(why);
            continue;
        }
        match edit(&trial, &wanted, By::Planner) {
            Ok(made) => {
                accepted += 1;
                made.iter().for_each(|event| apply(&mut trial, event, now));
                events.extend(made);
                if trial.end.is_some() {
                    break;
                }
            }
            Err(refusal) => refused.push(on_the_plan(&format!("{}: {refusal}", wanted.name()))),
        }
    }
    let refused = at_most(refused, MAX_REFUSED);
    let nothing = accepted == 0 && not_the_end.is_none();
    if nothing && (!refused.is_empty() || trial.tasks().is_empty()) {
        let why = refused.first().cloned().unwrap_or_else(|| "the plan has no tasks".into());
        let error = TaskError {
            usage: *usage,
            models: models.clone(),
            ..TaskError::new(ErrorKind::Model, format!("the proposed plan was refused: {why}"))
        };
        return vec![errored(planning, &error, now)];
    }
    let over = Event::ProposalAccepted {
        turn,
        attempt,
        reasoning: on_the_plan(&proposal.reasoning),
        refused: refused.clone(),
        is_idle: not_the_end.is_some() || (accepted == 0 && !is_in_motion(plan)),
        usage: *usage,
        models: models.clone(),
    };
    let mut all = vec![over];
    all.extend(events);
    if trial.end.is_none() {
        if !refused.is_empty() {
            all.push(Event::OccasionRaised { occasion: Occasion::Refused { reasons: refused } });
        }
        if let Some(why) = not_the_end {
            all.push(Event::OccasionRaised { occasion: Occasion::FalseEnd { why } });
        }
    }
    all
}

/// The first of what was refused, and how many more there are.
fn at_most(mut refused: Vec<String>, most: usize) -> Vec<String> {
    let more = refused.len().saturating_sub(most);
    refused.truncate(most);
    if more > 0 {
        refused.push(format!("and {more} more"));
    }
    refused
}

/// The events of a run that its planner has finished: what is still open is not needed.
pub(super) fn finished(plan: &Plan, reason: &str) -> Vec<Event> {
    let mut wave = super::wave::Wave::default();
    wave.cancel_all(plan, None, "the planner has finished the run without it");
    let mut events = wave.events;
    let deliverable = plan
        .final_task()
        .filter(|task| task.state == TaskState::Completed)
        .map(|task| (task.spec.id.clone(), super::super::FinalRung::Final));
    events.push(Event::RunEnded { reason: EndReason::Completed, detail: on_the_plan(reason), deliverable });
    events
}

/// The events of a run that its planner has given up: it ends with what it has.
pub(super) fn given_up_run(plan: &Plan, reason: &str) -> Vec<Event> {
    let mut wave = super::wave::Wave::default();
    wave.cancel_all(plan, None, "the planner has given the run up");
    let mut events = wave.events;
    let deliverable = super::settle::deliverable(plan);
    let reached = deliverable.as_ref().map_or(EndReason::Failed, |_| EndReason::CompletedPartial);
    events.push(Event::RunEnded { reason: reached, detail: on_the_plan(reason), deliverable });
    events
}

/// Gives up the planner's turn, if one is open.
pub(super) fn given_up(plan: &Plan, why: &str) -> Option<Event> {
    let planning = plan.planning.as_ref()?;
    let error = TaskError { usage: in_hand(plan, planning), ..TaskError::new(ErrorKind::Other, why) };
    Some(over(planning, &error, None))
}
