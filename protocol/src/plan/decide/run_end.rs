//! Ends of a run that its planner or a user decides, the deliverable at the end, and larger limits, with which a run that has ended for
//! lack of budget can continue.
//!
//! The approval of the plan by a person, before the first task starts. The question names the digest of the tasks; a plan that
//! changes before the answer starts the next round.
//!
//! # Invariants
//!
//! - I119: No task of a plan that needs an approval starts before a person has approved the plan as it is then.
//!   (`protocol/tests/rules/judgement.rs::plan_starts_when_a_person_approves_it`,
//!   `protocol/tests/rules/judgement.rs::changed_plan_is_asked_about_again`,
//!   `tests/tests/questions.rs::kills_lose_no_question_and_no_answer`)

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;
use sha2::{Digest, Sha256};

use super::super::budget::{Budget, ResourceAmounts, ResourceKind};
use super::super::edit::MAX_TEXT;
use super::super::spec::TaskSpec;
use super::super::state::{
    AttemptEnd, AttemptWait, DeliverableRule, EndReason, Plan, PlannerTrigger, Task, TaskState,
};
use super::super::{Event, PlanningEvent, RunEvent, UserEvent, Work};
use super::budget::{BudgetPoolState, ReservationLedger, SHARE};
use super::truncate_for_plan;
use super::turn::{can_call_planner, give_up_turn};
use super::wave::TaskEndPropagation;
use crate::ids::{Capability, TaskId};
use crate::question::{Answer, AnswerKind, MAX_QUESTION_TEXT, Question, QuestionSubject, hex_digest};
use crate::wait::{Wait, WaitCondition, WaitEnd};

/// Ends a run that its planner has finished: open tasks are not needed.
pub(super) fn finish_run(plan: &Plan, reason: &str) -> Vec<Event> {
    let mut wave = TaskEndPropagation::default();
    wave.cancel_all_open_tasks(plan, None, "the planner finished the run without it");
    let mut events = wave.events;
    let deliverable = plan
        .final_task()
        .filter(|task| task.state() == TaskState::Completed)
        .map(|task| (task.spec.id.clone(), DeliverableRule::Final));
    let detail = mention_plain_plan(plan, truncate_for_plan(reason));
    events.push(Event::Run(RunEvent::ended(EndReason::Completed, detail, deliverable)));
    events
}

/// Ends a run that its planner has given up: it ends with the results that it has.
pub(super) fn give_up_run(plan: &Plan, reason: &str) -> Vec<Event> {
    let mut wave = TaskEndPropagation::default();
    wave.cancel_all_open_tasks(plan, None, "the planner gave up the run");
    let mut events = wave.events;
    let deliverable = choose_deliverable(plan);
    let reached = deliverable.as_ref().map_or(EndReason::Failed, |_| EndReason::CompletedPartial);
    let detail = mention_plain_plan(plan, truncate_for_plan(reason));
    events.push(ended_event(plan, reached, detail, deliverable));
    events
}

pub(super) fn cancel_run(plan: &Plan, reason: &str) -> Vec<Event> {
    let mut wave = TaskEndPropagation::default();
    wave.cancel_all_open_tasks(plan, None, &truncate_for_plan(reason));
    wave.events.extend(give_up_turn(plan, "the run was cancelled"));
    let detail = truncate_for_plan(reason);
    wave.events.push(Event::Run(RunEvent::ended(EndReason::Cancelled, detail, choose_deliverable(plan))));
    wave.events
}

/// Adds to the detail of an end that the planner gave no valid plan.
pub(super) fn mention_plain_plan(plan: &Plan, detail: String) -> String {
    let Some(why) = &plan.planning.fallback else { return detail };
    let plain =
        truncate_for_plan(&format!("the planner gave no valid plan, so a plain one was carried out: {why}"));
    if detail.is_empty() { plain } else { format!("{detail}; {plain}") }
}

/// A rule that chooses the deliverable, and its predicate.
type DeliverablePredicate<'a> = (DeliverableRule, &'a dyn Fn(&&Task) -> bool);

/// The completed task whose result is the deliverable: the final one, else the newest with text beyond its summary, else
/// the newest of a producer, else the newest.
pub(super) fn choose_deliverable(plan: &Plan) -> Option<(TaskId, DeliverableRule)> {
    let is_completed = |task: &&Task| task.state() == TaskState::Completed && !task.spec.is_child();
    let completed = || plan.tasks.iter().rev().filter(is_completed);
    let is_detailed = |task: &&Task| {
        let end = task.current_attempt().and_then(|attempt| attempt.end.as_ref());
        matches!(end, Some(AttemptEnd::Finished { is_detailed: true, .. }))
    };
    let named = |rung| move |task: &Task| (task.spec.id.clone(), rung);
    let rungs: [DeliverablePredicate<'_>; 4] = [
        (DeliverableRule::Final, &|task| task.spec.is_final),
        (DeliverableRule::Detailed, &is_detailed),
        (DeliverableRule::Producer, &|task| task.spec.capability.as_str() == "producer"),
        (DeliverableRule::Any, &|_| true),
    ];
    rungs.iter().find_map(|(rung, is_it)| completed().find(|task| is_it(task)).map(named(*rung)))
}

/// Returns the end of a run by itself. One with results can be resumed if larger limits make its failed tasks run again.
pub(super) fn ended_event(
    plan: &Plan,
    reason: EndReason,
    detail: String,
    deliverable: Option<(TaskId, DeliverableRule)>,
) -> Event {
    let is_limited = reason == EndReason::CompletedPartial && has_task_stopped_by_limits(plan);
    let is_resumable = reason.can_be_retried() || is_limited;
    Event::Run(RunEvent::Ended { reason, detail, deliverable, is_resumable })
}

/// The maximum length of the objective, the parameters and the dependencies of a task in the question, in characters.
const MAX_PART: usize = 200;

/// Asks for the approval of the plan if that is missing: once there is a plan, and again when it has changed.
pub(super) fn ask_about_plan(plan: &Plan) -> Vec<Event> {
    let is_needed = plan.needs_approval() && plan.open_task_count() > 0 && plan.run.winding_down.is_none();
    if !is_needed || is_planner_at_work(plan) {
        return Vec::new();
    }
    let open = plan.run.plan_questions.last().filter(|question| question.end.is_none());
    let question = question_about_plan(plan);
    let is_asked = |open: &AttemptWait| {
        open.wait.condition.question().is_some_and(|asked| asked.digest == question.digest)
    };
    if open.is_some_and(is_asked) {
        return Vec::new();
    }
    let condition = WaitCondition::Answer(Box::new(question));
    let number = plan.run.plan_questions.len() + usize::from(open.is_none());
    let wait = Wait::new(format!("plan.{number}"), condition);
    vec![Event::Run(RunEvent::PlanQuestionAsked { wait, again: open.is_some() })]
}

/// `true` if the planner is about to change the plan: its turn is open, or begins when the run is resumed.
fn is_planner_at_work(plan: &Plan) -> bool {
    plan.planning.turn.is_some() || (!plan.planning.triggers.is_empty() && can_call_planner(plan))
}

fn question_about_plan(plan: &Plan) -> Question {
    let mut digest = Sha256::new();
    let (mut text, mut left_out) = (String::new(), 0_usize);
    let open = plan.tasks().iter().filter(|task| !task.state().is_terminal());
    for spec in open.map(|task| &task.spec) {
        digest.update(serde_json::to_vec(spec).unwrap_or_default());
        let line = describe_task(spec);
        if left_out > 0 || text.len() + line.len() > MAX_QUESTION_TEXT {
            left_out += 1;
        } else {
            text.push_str(&line);
            text.push('\n');
        }
    }
    if left_out > 0 {
        text.push_str(&format!("and {left_out} more tasks"));
    }
    Question {
        subject: QuestionSubject::Plan { tasks: plan.open_task_count() },
        text: text.trim_end().to_owned(),
        digest: hex_digest(digest),
        decisions: vec![AnswerKind::Approve, AnswerKind::Reject],
        to: String::new(),
        expiry: None,
    }
}

/// Describes a task on one line: everything that a person must know to approve it, each part cut at [`MAX_PART`].
fn describe_task(spec: &TaskSpec) -> String {
    let cut = |text: &str| -> String {
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        match line.char_indices().nth(MAX_PART) {
            Some((end, _)) => format!("{}…", &line[..end]),
            None => line,
        }
    };
    let mut line = format!("{} ({}", spec.id, spec.capability);
    if !spec.depends_on.is_empty() {
        let after: Vec<&str> = spec.depends_on.iter().map(|id| id.as_str()).collect();
        line.push_str(&format!(", after {}", cut(&after.join(", "))));
    }
    line.push_str(&format!("): {}", cut(&spec.objective)));
    if !spec.parameters.is_empty() {
        let parameters = serde_json::to_string(&spec.parameters).unwrap_or_default();
        line.push_str(&format!("; parameters {}", cut(&parameters)));
    }
    line
}

/// Applies the answer of a person to the question about the plan. The planner gets the reason of a rejection and makes another
/// plan; without a planner the run is cancelled.
/// Errors: the planner is about to change the plan, so that it can't be approved.
pub(super) fn answer_plan_question(
    plan: &Plan,
    mut events: Vec<Event>,
    by: &str,
    answer: &Answer,
) -> Result<Vec<Event>, String> {
    if *answer == Answer::Approve && is_planner_at_work(plan) {
        return Err("the planner is changing the plan; approve it when its turn has ended".into());
    }
    let end = WaitEnd::Answered { by: by.to_owned(), answer: answer.clone() };
    events.push(Event::Run(RunEvent::PlanQuestionEnded { end }));
    let Answer::Reject { message } = answer else { return Ok(events) };
    if can_call_planner(plan) && plan.run.winding_down.is_none() {
        let text: String = format!("I reject the plan. {message}").chars().take(MAX_TEXT).collect();
        let by = by.to_owned();
        let trigger = PlannerTrigger::Message { by: by.clone(), text: text.clone() };
        events.push(Event::User(UserEvent::MessageReceived { by, text }));
        events.push(Event::Planning(PlanningEvent::TriggerRaised { trigger }));
    } else {
        let why = if message.is_empty() { String::new() } else { format!(": {message}") };
        events.extend(cancel_run(plan, &format!("{by} rejected the plan{why}")));
    }
    Ok(events)
}

/// Returns the limits that a run which has ended needs to be raised, with values with which it continues; `None` if no limit
/// stops it. Reservations count nothing: after the end nothing is in flight.
#[must_use]
pub fn suggest_larger_limits(plan: &Plan) -> Option<Budget> {
    let (end, start) = (plan.run.end.as_ref()?, plan.run.start.as_ref()?);
    let old = &start.budget;
    let ledger = ReservationLedger::new(plan, old);
    let known = plan.budget.needs.values().copied();
    let needs = known.fold(ResourceAmounts::default(), ResourceAmounts::max);
    let needs_of_final = ledger.needs_of_final_task();
    // The final task may have run already; resumed, the run needs its share again.
    let held_back = u64::from(old.final_percent);
    let run_pool = ledger.run_pool(None, SHARE);
    let run_pool = run_pool.map(|pool| BudgetPoolState { needs, needs_of_final, held_back, ..pool });
    let mut larger = Budget {
        amounts: run_pool.as_ref().map(BudgetPoolState::larger_limits).unwrap_or_default(),
        attempt: larger_attempt_limits(plan, old),
        capabilities: larger_capability_limits(plan, &ledger),
        wall_time: old.wall_time.and_then(|limit| larger_wall_time(plan.worked_time(end.at), limit)),
        steps: (end.reason == EndReason::MaxSteps).then(|| plan.max_planning_turns().saturating_mul(2)),
        ..Budget::default()
    };
    if end.reason == EndReason::BudgetExhausted && larger.is_default() {
        let limited = run_pool.as_ref().filter(|_| plan.default_token_limit().is_none());
        larger.amounts = limited.map_or_else(|| larger_default_tokens(plan), nearest_limit_doubled);
    }
    (!larger.is_default()).then_some(larger)
}

/// `true` if a failed task could run again with larger limits of its capability or of an attempt: `millrace resume --budget` can
/// raise these after the end of the run.
pub(super) fn has_task_stopped_by_limits(plan: &Plan) -> bool {
    plan.run.start.as_ref().is_some_and(|start| {
        let ledger = ReservationLedger::new(plan, &start.budget);
        !larger_attempt_limits(plan, &start.budget).is_empty()
            || !larger_capability_limits(plan, &ledger).is_empty()
    })
}

/// Returns the failed tasks of a run that have used up a budget of their own. Nothing raises it after the submission, so they fail
/// again if they are retried or their run is resumed.
#[must_use]
pub fn tasks_without_budget(plan: &Plan) -> Vec<&TaskId> {
    let Some(start) = &plan.run.start else { return Vec::new() };
    let ledger = ReservationLedger::new(plan, &start.budget);
    let failed = plan.tasks.iter().filter(|task| task.state() == TaskState::Failed && !task.spec.is_child());
    let is_spent =
        |task: &&Task| ledger.task_pool(Some(task)).is_some_and(|pool| !pool.larger_limits().is_empty());
    failed.filter(is_spent).map(|task| &task.spec.id).collect()
}

/// Returns the limits of the capabilities of lost work that stop it, each with those that stay.
fn larger_capability_limits(
    plan: &Plan,
    ledger: &ReservationLedger<'_>,
) -> BTreeMap<Capability, ResourceAmounts> {
    let lost_turn = plan.planning.lost.as_ref();
    let lost_turn = lost_turn.map(|_| Work::Planning { turn: plan.planning.turns, attempt: 1 });
    let lost = plan.tasks.iter().filter(|task| task.state() == TaskState::Failed);
    let lost_tasks = lost.flat_map(|task| {
        let (task, attempt) = (task.spec.id.clone(), task.attempt.max(1));
        [Work::Task { task: task.clone(), attempt }, Work::Review { task, attempt, review: 1 }]
    });
    let larger = lost_turn.into_iter().chain(lost_tasks).filter_map(|work| {
        let pool = ledger.capability_pool(&work, SHARE)?;
        let mut limits = pool.limits;
        let larger = BudgetPoolState { needs: ledger.needs_of(&work), ..pool }.larger_limits();
        larger.iter().for_each(|(dimension, limit)| limits.set(dimension, Some(limit)));
        (!larger.is_empty()).then(|| Some((plan.queue_of_work(&work)?, limits)))?
    });
    larger.collect()
}

/// Returns the limits of one attempt that are below what the first request of a failed task needs.
fn larger_attempt_limits(plan: &Plan, old: &Budget) -> ResourceAmounts {
    let mut larger = ResourceAmounts::default();
    let lost = plan.tasks.iter().filter(|task| task.state() == TaskState::Failed);
    for needs in lost.filter_map(|task| plan.budget.needs.get(&task.spec.capability)) {
        for (dimension, limit) in old.attempt.iter() {
            let needed = needs.get(dimension).unwrap_or(0);
            if needed > limit {
                let raised = needed.saturating_mul(2).max(larger.get(dimension).unwrap_or(0));
                larger.set(dimension, Some(raised));
            }
        }
    }
    larger
}

fn larger_wall_time(worked: SignedDuration, limit: Duration) -> Option<Duration> {
    let worked = worked.unsigned_abs();
    let doubled = |limit: &Duration| limit.checked_mul(2);
    let mut longer = std::iter::successors(Some(limit), doubled);
    (worked >= limit).then(|| longer.find(|limit| *limit > worked && *limit - worked >= *limit / 4))?
}

fn larger_default_tokens(plan: &Plan) -> ResourceAmounts {
    let used = ResourceKind::Tokens.amount_used(&plan.budget.spend.total);
    let tokens = plan.default_token_limit().unwrap_or(used).max(used).max(1).saturating_mul(2);
    ResourceAmounts { tokens: Some(tokens), ..ResourceAmounts::default() }
}

/// Doubles the limit of which the largest share is used.
fn nearest_limit_doubled(pool: &BudgetPoolState<'_>) -> ResourceAmounts {
    let share = |(dimension, limit): &(ResourceKind, u64)| {
        u128::from(dimension.amount_used(&pool.used)) * 1_000_000 / u128::from((*limit).max(1))
    };
    let mut larger = ResourceAmounts::default();
    if let Some((dimension, limit)) = pool.limits.iter().max_by_key(share) {
        larger.set(dimension, Some(pool.sufficient_limit(dimension, limit)));
    }
    larger
}
