//! Parked attempts: their waits, and the ends of these.
//!
//! The start of tasks that wait for a time or an event. Each attempt at such a task is parked once, before its first dispatch:
//! the conditions that are met end at once, and the attempt starts when all have ended. The next step of
//! settling finds every task that became ready, so that no attempt is dispatched too early.
//!
//! Questions of parked attempts that nobody has to answer: those that an earlier answer decides, and those that have expired.
//!
//! # Invariants
//!
//! - I103: A parked attempt holds no slot, no order and no lease, and continues as the same attempt when its last wait has ended,
//!   whatever died meanwhile. (`tests/tests/waiting.rs::parked_attempts_hold_no_slot_and_one_event_wakes_them_all`,
//!   `tests/tests/waiting.rs::sleeping_attempts_survive_the_death_of_every_process`,
//!   `tests/tests/waiting.rs::kills_lose_no_wake_up`)
//! - I104: An event that is signalled to a run is kept: a wait that begins later gets the oldest event of its name that its
//!   attempt has not received. (`tests/tests/waiting.rs::event_that_comes_before_the_wait_is_kept`)
//! - I270: Of a group of waits, the first end wakes the attempt, and the same decision withdraws the others.
//!   (`protocol/tests/rules/table.rs::first_end_of_a_group_withdraws_the_others`,
//!   `tests/tests/waiting.rs::first_of_several_waits_goes_on_whatever_dies`)
//! - I130: No attempt at a task with start conditions is dispatched before its time and without its event, by any path that makes
//!   the task ready; until then it holds no worker, no place in a queue and no reservation.
//!   (`protocol/tests/rules/properties.rs::every_run_of_a_fair_world_ends_for_a_true_reason`,
//!   `protocol/tests/rules/table.rs::table_of_states_and_inputs_is_unchanged`,
//!   `tests/tests/waiting.rs::tasks_start_at_their_time_and_after_their_event`)
//! - I115: A question expires only if its capability asked for that, once for each round, and never as an approval.
//!   (`protocol/tests/rules/questions.rs::questions_expire_only_where_that_was_asked_for`,
//!   `protocol/tests/rules/questions.rs::run_that_winds_down_does_not_wait_for_people`)
//! - I131: In a month of waiting, questions expire only where they have an expiry, once for each round; sleeps and start times
//!   end once. (`tests/tests/month.rs::month_of_waiting_expires_only_what_was_asked_to`)

use std::collections::HashSet;

use jiff::Timestamp;

use super::super::edit::MAX_TEXT;
use super::super::spec::TaskSpec;
use super::super::start::{PLAN_WAIT_PREFIX, StartExpiryAction, WAIT_FOR_EVENT_KEY};
use super::super::state::{Attempt, AttemptWait, Plan, Task, TaskState};
use super::super::{AttemptEvent, Event, Refusal, TaskEvent, UserEvent};
use super::reviews::{count_votes, open_person_review};
use super::wave::append_consequences_of_task_ends;
use super::{
    attempts, children, find_task, find_task_with_attempt, truncate_for_plan, usage_of_work_in_flight,
    wrong_state_refusal,
};
use crate::ids::{TaskId, WorkerId};
use crate::question::{ExpiryAction, Question, StandingAnswer};
use crate::result::{ErrorKind, TaskError};
use crate::wait::{
    EndedWait, MAX_EVENT_NAME, MAX_WAITS, Signal, Wait, WaitCondition, WaitEnd, is_event_name,
};

/// The largest number of events that a run keeps.
const MAX_SIGNALS: usize = 1_000;

pub(super) fn handle_parked(
    plan: &Plan,
    id: &TaskId,
    attempt: u32,
    worker: &WorkerId,
    (waits, children): (&[Wait], &[TaskSpec]),
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let task = find_task_with_attempt(plan, id, attempt)?;
    if !task.has_worker_or_lost_it_to_interrupt() {
        return Err(wrong_state_refusal(task, "waits ignored"));
    }
    let known = |wait: &Wait| {
        let mut earlier = task.current_attempt().into_iter().flat_map(|attempt| &attempt.waits);
        earlier.any(|earlier| earlier.wait.key == wait.key)
    };
    let is_reserved = |wait: &Wait| wait.key.starts_with(PLAN_WAIT_PREFIX);
    if !waits.is_empty() && waits.iter().all(|wait| known(wait) && !is_reserved(wait)) {
        return Err(wrong_state_refusal(task, "it has waited for this already"));
    }
    if let Some(mistake) = find_mistake(task, waits) {
        // No event would wake the attempt.
        let usage = usage_of_work_in_flight(plan, task);
        let error =
            TaskError { usage, ..TaskError::new(ErrorKind::Other, format!("it was parked {mistake}")) };
        return attempts::handle_attempt_end(plan, id, attempt, worker, &Err(error), now);
    }
    if plan.run.winding_down.is_some() && waits.iter().any(|wait| wait.condition.tasks().is_empty()) {
        return Ok(cancel_at_end_of_run(plan, task));
    }
    let mut events = children::add_children(plan, task, children, |_| false);
    events.push(Event::Attempt(AttemptEvent::Parked { task: id.clone(), attempt, waits: waits.to_vec() }));
    let received = task.current_attempt().map(names_of_received_events).unwrap_or_default();
    let mut ended = ends_by_events(waits, plan.run.signals.iter(), received);
    ended.extend(ends_by_standing_answers(task, waits, &plan.run.standing_answers));
    Ok(end_waits(task, events, waits.iter(), ended))
}

/// Cancels a task that would wait longer than its run, which is winding down.
pub(super) fn cancel_at_end_of_run(plan: &Plan, task: &Task) -> Vec<Event> {
    let cancelled = Event::Task(TaskEvent::Cancelled {
        task: task.spec.id.clone(),
        reason: "the run is winding down, and the task waits for something outside".into(),
        with: None,
        usage: usage_of_work_in_flight(plan, task),
    });
    append_consequences_of_task_ends(plan, vec![cancelled])
}

fn find_mistake(task: &Task, waits: &[Wait]) -> Option<&'static str> {
    let earlier = task.current_attempt().into_iter().flat_map(|attempt| &attempt.waits);
    let mut keys: HashSet<&str> = earlier.map(|wait| wait.wait.key.as_str()).collect();
    match waits.len() {
        0 => Some("without a wait"),
        1..=MAX_WAITS if waits.iter().any(|wait| wait.key.starts_with(PLAN_WAIT_PREFIX)) => {
            Some("with a key that begins with \"plan.\"; use another one")
        }
        1..=MAX_WAITS if waits.iter().all(|wait| keys.insert(&wait.key)) => None,
        1..=MAX_WAITS => Some("with two waits of the same key"),
        _ => Some("with too many waits"),
    }
}

/// Handles an event that was signalled to the run.
pub(super) fn handle_signal(plan: &Plan, signal: &Signal) -> Result<Vec<Event>, Refusal> {
    check_signal(plan, signal)?;
    let signals = plan.run.signals.iter().chain([signal]);
    let mut events = vec![Event::User(UserEvent::Signalled(signal.clone()))];
    for (task, attempt) in plan.parked_attempts() {
        let open: Vec<Wait> = attempt.open_waits().cloned().collect();
        let ended = ends_by_events(&open, signals.clone(), names_of_received_events(attempt));
        events = end_waits(task, events, open.iter(), ended);
    }
    Ok(events)
}

fn check_signal(plan: &Plan, signal: &Signal) -> Result<(), Refusal> {
    let refuse = |why: String| Err(Refusal::Unusable(why));
    if !is_event_name(&signal.name) {
        return refuse(format!(
            "the name of an event must be 1 to {MAX_EVENT_NAME} bytes of text in one line"
        ));
    }
    if signal.data.len() > MAX_TEXT {
        return refuse(format!("the data of an event must not be longer than {MAX_TEXT} bytes"));
    }
    if plan.run.signals.len() >= MAX_SIGNALS {
        return refuse(format!("a run keeps at most {MAX_SIGNALS} events"));
    }
    Ok(())
}

/// Ends the waits of a parked attempt whose time has come, and the questions that have expired.
pub(super) fn end_waits_by_time(plan: &Plan, id: &TaskId, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    let task = find_task(plan, id)?;
    let Some(attempt) = task.current_attempt().filter(|_| task.state() == TaskState::Waiting) else {
        return Err(wrong_state_refusal(task, "the time of its wait ignored"));
    };
    let (mut ended, mut renewed) = (Vec::new(), Vec::new());
    for wait in attempt.waits.iter().filter(|wait| wait.is_due(now)) {
        let key = wait.wait.key.clone();
        match &wait.wait.condition {
            WaitCondition::Until(_) => ended.push(EndedWait { key, end: WaitEnd::TimeReached }),
            WaitCondition::Event { .. } => match why_start_fails(task, &key) {
                Some(why) => return Ok(attempts::fail_parked_attempt(plan, task, &why)),
                None => ended.push(EndedWait { key, end: WaitEnd::Expired }),
            },
            WaitCondition::Tasks { tasks, .. } => {
                let end = WaitEnd::TasksEnded(plan.ended_children(task, tasks));
                ended.push(EndedWait { key, end });
            }
            WaitCondition::Answer(question) => match expire_question(task, wait, question) {
                ExpiredQuestion::Ended(end) => ended.push(end),
                ExpiredQuestion::Renewed(event) => renewed.push(event),
                ExpiredQuestion::Failed(why) if attempt.end.is_none() => {
                    return Ok(attempts::fail_parked_attempt(plan, task, &why));
                }
                ExpiredQuestion::Failed(why) => return Ok(fail_unjudged_task(plan, task, &why)),
            },
        }
    }
    if ended.is_empty() && renewed.is_empty() {
        return Err(Refusal::NotDue(attempt.first_wait_time().unwrap_or(Timestamp::MAX)));
    }
    Ok(end_waits_of_attempt(plan, (task, attempt), renewed, ended))
}

/// Fails a task whose result persons did not judge in time.
fn fail_unjudged_task(plan: &Plan, task: &Task, why: &str) -> Vec<Event> {
    let (task, reason) = (task.spec.id.clone(), truncate_for_plan(why));
    append_consequences_of_task_ends(plan, vec![Event::Task(TaskEvent::Failed { task, reason })])
}

/// Appends the ends of waits of a parked attempt, or the votes on its result, and their consequences.
pub(super) fn end_waits_of_attempt(
    plan: &Plan,
    (task, attempt): (&Task, &Attempt),
    events: Vec<Event>,
    ended: Vec<EndedWait>,
) -> Vec<Event> {
    match open_person_review(task, attempt) {
        Some(review) => count_votes(plan, task, (attempt, review), events, ended),
        None => end_waits(task, events, attempt.open_waits(), ended),
    }
}

/// Ends the waits for children that have ended, of one parked attempt.
pub(super) fn end_waits_for_children(plan: &Plan, task: &Task) -> Vec<Event> {
    let Some(attempt) = task.current_attempt() else { return Vec::new() };
    let is_over = |wait: &&Wait| plan.has_wait_ended(task, &wait.condition);
    let end = |wait: &Wait| EndedWait {
        key: wait.key.clone(),
        end: WaitEnd::TasksEnded(plan.ended_children(task, wait.condition.tasks())),
    };
    let ended: Vec<EndedWait> = attempt.open_waits().filter(is_over).map(end).collect();
    end_waits(task, Vec::new(), attempt.open_waits(), ended)
}

/// The names of the events that an attempt has received, one for each event.
fn names_of_received_events(attempt: &Attempt) -> Vec<&str> {
    let received = attempt.waits.iter().filter(|wait| matches!(wait.end, Some(WaitEnd::Signalled { .. })));
    received.filter_map(|AttemptWait { wait, .. }| wait.condition.event()).collect()
}

/// The ends of those of these waits whose events were signalled. `received` names the events that the attempt has received.
pub(super) fn ends_by_events<'a>(
    waits: &'a [Wait],
    signals: impl Iterator<Item = &'a Signal> + Clone,
    mut received: Vec<&'a str>,
) -> Vec<EndedWait> {
    let mut ended = Vec::new();
    for wait in waits {
        let Some(name) = wait.condition.event() else { continue };
        let before = received.iter().filter(|other| **other == name).count();
        let Some(signal) = signals.clone().filter(|signal| signal.name == name).nth(before) else { continue };
        received.push(name);
        let end = WaitEnd::Signalled { by: signal.by.clone(), data: signal.data.clone() };
        ended.push(EndedWait { key: wait.key.clone(), end });
    }
    ended
}

/// Appends the ends of waits, withdraws the others of their groups, and wakes the attempt if none of its open waits is left.
pub(super) fn end_waits<'a>(
    task: &Task,
    mut events: Vec<Event>,
    open: impl Iterator<Item = &'a Wait>,
    mut ended: Vec<EndedWait>,
) -> Vec<Event> {
    let open: Vec<&Wait> = open.collect();
    ended.extend(withdrawn_waits(&open, &ended));
    let is_over = open.len() == ended.len() && !ended.is_empty();
    let (id, attempt) = (&task.spec.id, task.attempt);
    let end = |ended| Event::Attempt(AttemptEvent::WaitEnded { task: id.clone(), attempt, ended });
    events.extend(ended.into_iter().map(end));
    events.extend(is_over.then(|| Event::Attempt(AttemptEvent::Woken { task: id.clone(), attempt })));
    events
}

/// The withdrawals of the open waits of groups of which a wait has ended.
fn withdrawn_waits(open: &[&Wait], ended: &[EndedWait]) -> Vec<EndedWait> {
    let has_ended = |wait: &Wait| ended.iter().any(|ended| ended.key == wait.key);
    let over: HashSet<&str> =
        open.iter().filter(|wait| has_ended(wait)).filter_map(|wait| wait.group.as_deref()).collect();
    let is_withdrawn =
        |wait: &&&Wait| wait.group.as_deref().is_some_and(|group| over.contains(group)) && !has_ended(wait);
    let withdrawn = open.iter().filter(is_withdrawn);
    withdrawn.map(|wait| EndedWait { key: wait.key.clone(), end: WaitEnd::Withdrawn }).collect()
}

/// Returns why a task fails if the wait of this key has expired; `None` if it continues.
fn why_start_fails(task: &Task, key: &str) -> Option<String> {
    let event = task.spec.wait_for_event.as_ref().filter(|_| key == WAIT_FOR_EVENT_KEY)?;
    let expiry = event.expiry.as_ref()?;
    match expiry.action {
        StartExpiryAction::Start => None,
        StartExpiryAction::FailTask => Some(format!(
            "the event {:?} was not signalled until {}; signal it, and retry the task",
            event.name, expiry.until
        )),
    }
}

/// Parks the attempts that would be dispatched without a check of their start.
pub(super) fn park_before_start(plan: &Plan, now: Timestamp) -> Vec<Event> {
    let mut events = Vec::new();
    for &position in &plan.index.unchecked_starts {
        let task = &plan.tasks[position as usize];
        let (waits, ended) = start_waits_of_task(plan, task, now);
        if plan.run.winding_down.is_some() && ended.len() < waits.len() {
            // It may end other tasks of the list as well.
            return if events.is_empty() { cancel_at_end_of_run(plan, task) } else { events };
        }
        events.extend(park_task(task, waits, ended));
    }
    events
}

fn park_task(task: &Task, waits: Vec<Wait>, ended: Vec<EndedWait>) -> Vec<Event> {
    let parked =
        AttemptEvent::Parked { task: task.spec.id.clone(), attempt: task.attempt, waits: waits.clone() };
    end_waits(task, vec![Event::Attempt(parked)], waits.iter(), ended)
}

/// The waits of a task for its start, and the ends of those whose conditions are met. A wait for an event that has expired is
/// left to the clock.
fn start_waits_of_task(plan: &Plan, task: &Task, now: Timestamp) -> (Vec<Wait>, Vec<EndedWait>) {
    let began = plan.began_at().unwrap_or(now);
    let waits = task.spec.start_waits(began);
    let is_over = |wait: &&Wait| matches!(wait.condition, WaitCondition::Until(at) if at <= now);
    let reached = |wait: &Wait| EndedWait { key: wait.key.clone(), end: WaitEnd::TimeReached };
    let mut ended: Vec<EndedWait> = waits.iter().filter(is_over).map(reached).collect();
    ended.extend(ends_by_events(&waits, plan.run.signals.iter(), Vec::new()));
    (waits, ended)
}

/// The ends of those of these waits that an earlier answer decides.
pub(super) fn ends_by_standing_answers(
    task: &Task,
    waits: &[Wait],
    standing: &[StandingAnswer],
) -> Vec<EndedWait> {
    let end = |wait: &Wait| {
        let question = wait.condition.question()?;
        // The newest decision applies.
        let given = standing.iter().rev().find(|given| given.applies_to(&task.spec.capability, question))?;
        let end = WaitEnd::Answered { by: given.by.clone(), answer: given.answer.clone() };
        Some(EndedWait { key: wait.key.clone(), end })
    };
    waits.iter().filter_map(end).collect()
}

/// The consequence of an expired question. It is never an approval.
pub(super) enum ExpiredQuestion {
    Ended(EndedWait),
    /// The question gets another round.
    Renewed(Event),
    /// The task fails, for this reason.
    Failed(String),
}

/// Returns the consequence of an expired question.
pub(super) fn expire_question(task: &Task, wait: &AttemptWait, question: &Question) -> ExpiredQuestion {
    let key = &wait.wait.key;
    let rejected = || {
        let end = WaitEnd::Answered { by: String::new(), answer: question.answer_of_expiry() };
        ExpiredQuestion::Ended(EndedWait { key: key.clone(), end })
    };
    let renewed = |to: &str| {
        ExpiredQuestion::Renewed(Event::Attempt(AttemptEvent::QuestionRenewed {
            task: task.spec.id.clone(),
            attempt: task.attempt,
            key: key.clone(),
            to: to.to_owned(),
        }))
    };
    let Some(expiry) = &question.expiry else { return rejected() };
    match expiry.action {
        ExpiryAction::FailTask => ExpiredQuestion::Failed(format!("nobody answered in time: {question}")),
        ExpiryAction::AskAgain => renewed(&question.to),
        ExpiryAction::Escalate if wait.round == 1 => renewed(&expiry.escalate_to),
        ExpiryAction::Reject | ExpiryAction::Escalate => rejected(),
    }
}
