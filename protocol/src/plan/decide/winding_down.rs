//! The limits of a run as a whole, and winding a run down: it goes on with what it has, up to its final task.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::super::budget::{BudgetExhaustionPolicy, ElapsedRunTime};
use super::super::spec::{OnFailedDependency, TaskSpec};
use super::super::state::{EndReason, ErroredTaskWait, Plan, PlannerTrigger, Task, TaskState};
use super::super::{BudgetEvent, Event, GraphEvent, PlanningEvent, Refusal, RunEvent, TaskEvent};
use super::turn::give_up_turn;
use super::usage_of_work_in_flight;
use crate::result::Usage;

/// Returns a percentage of an amount, without overflow.
pub(super) fn percentage_of(amount: u64, percent: u64) -> u64 {
    amount / 100 * percent + amount % 100 * percent / 100
}

/// Warns once that the soft limit of the budget has been reached.
pub(super) fn warn_once_at_soft_limit(plan: &Plan, now: Timestamp) -> Vec<Event> {
    if plan.budget.is_low || plan.run.winding_down.is_some() {
        return Vec::new();
    }
    let Some(detail) = soft_limit_detail(plan, now) else { return Vec::new() };
    let low = Event::Budget(BudgetEvent::Low { detail: detail.clone() });
    let trigger =
        Event::Planning(PlanningEvent::TriggerRaised { trigger: PlannerTrigger::BudgetLow { detail } });
    std::iter::once(low).chain(plan.has_planner().then_some(trigger)).collect()
}

fn soft_limit_detail(plan: &Plan, now: Timestamp) -> Option<String> {
    let budget = &plan.run.start.as_ref()?.budget;
    let soft = u64::from(budget.soft_percent);
    let amounts = budget.amounts.iter().find_map(|(dimension, limit)| {
        let used = dimension.amount_used(&plan.budget.spend.total);
        (used >= percentage_of(limit, soft))
            .then(|| format!("{} of {} used", dimension.format_amount(used), dimension.format_amount(limit)))
    });
    amounts.or_else(|| {
        let time = plan.elapsed_time(now).filter(ElapsedRunTime::is_past_soft_limit)?;
        Some(format!("{:#} of {:#} elapsed", round_to_seconds(time.worked), round_to_seconds(time.limit)))
    })
}

fn round_to_seconds(time: SignedDuration) -> SignedDuration {
    SignedDuration::from_secs(time.as_secs())
}

/// Handles the run's time limit or its soft limit.
pub(super) fn handle_time_limit(plan: &Plan, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    match plan.elapsed_time(now) {
        Some(time) if time.is_past_limit() && plan.run.winding_down.is_none() => {
            let detail = format!("the time limit of {:#} has passed", round_to_seconds(time.limit));
            Ok(wind_down_run(plan, EndReason::BudgetExhausted, &detail))
        }
        Some(_) => match warn_once_at_soft_limit(plan, now) {
            events if events.is_empty() => Err(Refusal::WrongMoment("the time limit has not passed".into())),
            events => Ok(events),
        },
        None => Err(Refusal::WrongMoment("the run has no time limit".into())),
    }
}

/// Winds the run down: no task starts except the final one, which runs without its missing dependencies.
pub(super) fn wind_down_run(plan: &Plan, reason: EndReason, detail: &str) -> Vec<Event> {
    let finishes = plan
        .run
        .start
        .as_ref()
        .is_some_and(|start| start.budget.when_spent == BudgetExhaustionPolicy::Finish);
    let stays = |task: &Task| {
        let is_in_flight = matches!(task.state(), TaskState::Running | TaskState::NeedsReview)
            || task.waits_for_children_only();
        finishes && is_in_flight && !task.spec.is_final
    };
    let can_succeed = |task: &&Task| !plan.needs_approval() && can_final_task_succeed(plan, task, &stays);
    let last = plan.final_task().filter(can_succeed);
    let mut events = vec![Event::Run(RunEvent::WindingDown { reason, detail: detail.to_owned() })];
    events.extend(give_up_turn(plan, detail));
    if let Some(task) = last.filter(|task| task.state() == TaskState::Pending) {
        let spec = TaskSpec { on_failed_dependency: OnFailedDependency::Skip, ..TaskSpec::clone(&task.spec) };
        events.push(Event::Graph(GraphEvent::TaskPatched { spec: Arc::new(spec), attempt: 0 }));
    }
    let is_last = |task: &Task| last.is_some_and(|last| last.spec.id == task.spec.id);
    for task in plan.tasks.iter().filter(|task| !task.state().is_terminal() && !stays(task) && !is_last(task))
    {
        events.push(Event::Task(TaskEvent::Cancelled {
            task: task.spec.id.clone(),
            reason: format!("the run is winding down: {detail}"),
            with: None,
            usage: usage_of_work_in_flight(plan, task),
        }));
    }
    if let Some(task) = last.filter(|task| task.state() == TaskState::Pending) {
        let dependencies = task.spec.depends_on.iter().filter_map(|id| plan.task(id));
        if !dependencies.into_iter().any(&stays) {
            let attempt = task.attempt.max(1);
            events.push(Event::Task(TaskEvent::Ready { task: task.spec.id.clone(), attempt }));
        }
    }
    events
}

/// `true` if the final task can still produce the deliverable: it is in flight, or a result that it uses exists or is about
/// to.
fn can_final_task_succeed(plan: &Plan, task: &Task, stays: &impl Fn(&Task) -> bool) -> bool {
    let has_something = || {
        let mut dependencies = task.spec.depends_on.iter().filter_map(|id| plan.task(id));
        task.spec.depends_on.is_empty()
            || dependencies.any(|dependency| dependency.state() == TaskState::Completed || stays(dependency))
    };
    match task.state() {
        TaskState::Running | TaskState::NeedsReview | TaskState::Ready | TaskState::Rerun => true,
        TaskState::Errored => matches!(task.errored_wait(), Some(ErroredTaskWait::Retry(_))),
        TaskState::Pending => has_something(),
        // Any other wait may take longer than any limit of the run.
        TaskState::Waiting => task.waits_for_children_only(),
        TaskState::Completed | TaskState::Failed | TaskState::Cancelled => false,
    }
}

/// Gives up a final task that was to run without its missing dependencies, if all of them are missing.
pub(super) fn cancel_final_task_without_inputs(plan: &Plan) -> Vec<Event> {
    if plan.run.winding_down.is_none() {
        return Vec::new();
    }
    let waits = |task: &&Task| matches!(task.state(), TaskState::Ready | TaskState::Pending);
    let Some(task) = plan.final_task().filter(waits) else { return Vec::new() };
    let dependencies = || task.spec.depends_on.iter().filter_map(|id| plan.task(id));
    let is_lost = |dependency: &Task| matches!(dependency.state(), TaskState::Failed | TaskState::Cancelled);
    if task.spec.depends_on.is_empty() || !dependencies().all(is_lost) {
        return Vec::new();
    }
    vec![Event::Task(TaskEvent::Cancelled {
        task: task.spec.id.clone(),
        reason: "none of its dependencies has a result".into(),
        with: None,
        usage: Usage::default(),
    })]
}
