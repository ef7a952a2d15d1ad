//! What a plan's derived values must be, worked out from scratch from its tasks alone.

use std::collections::BTreeSet;

use jiff::Timestamp;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{
    Effect, ErroredFor, OnFailedDependency, Overdue, Plan, Scope, Task, TaskState, due, next_retry, overdue,
};

/// Everything that holds of any fold whatever: derived values equal their recomputation.
pub fn check(plan: &Plan) {
    for state in TaskState::ALL {
        let count = plan.tasks().iter().filter(|task| task.state == state).count();
        assert_eq!(plan.count(state) as usize, count, "the count of {state}");
    }
    let open = plan.tasks().iter().filter(|task| !task.state.is_terminal()).count();
    assert_eq!(plan.open() as usize, open);
    let retries = retries(plan);
    let planning = plan.planning.as_ref().and_then(|planning| planning.retry_at);
    assert_eq!(next_retry(plan), retries.iter().map(|(at, _)| *at).chain(planning).min());
    if plan.is_live() {
        let is_over: Vec<_> = overdue(plan, Timestamp::MAX, |_| None)
            .into_iter()
            .filter_map(|overdue| match overdue {
                Overdue::Retry(task) => Some(task),
                Overdue::RetryPlanning | Overdue::Clock(..) => None,
            })
            .collect();
        let expected: Vec<_> = retries.into_iter().map(|(_, at)| plan.tasks()[at].spec.id.clone()).collect();
        assert_eq!(is_over, expected, "retries come in the order of their times");
    }
    for task in plan.tasks() {
        assert!(std::ptr::eq(plan.task(&task.spec.id).unwrap(), task), "{} is found by its id", task.spec.id);
        let found: BTreeSet<&TaskId> = plan.dependents(task).collect();
        let dependents = plan.tasks().iter().filter(|other| other.spec.depends_on.contains(&task.spec.id));
        assert_eq!(found, dependents.map(|other| &other.spec.id).collect(), "dependents of {}", task.spec.id);
    }
}

fn retries(plan: &Plan) -> BTreeSet<(Timestamp, usize)> {
    let waits = |task: &Task| match task.errored {
        Some(ErroredFor::Retry(at)) => Some(at),
        Some(ErroredFor::Capability) | None => None,
    };
    plan.tasks().iter().enumerate().filter_map(|(at, task)| Some((waits(task)?, at))).collect()
}

/// How many of the tasks it depends on are neither accepted nor skipped.
fn unmet(plan: &Plan, task: &Task) -> usize {
    let skips = task.spec.on_failed_dependency == OnFailedDependency::Skip;
    task.spec
        .depends_on
        .iter()
        .filter(|id| match plan.task(id).unwrap().state {
            TaskState::Completed => false,
            TaskState::Failed | TaskState::Cancelled => !skips,
            TaskState::Pending
            | TaskState::Ready
            | TaskState::Running
            | TaskState::NeedsReview
            | TaskState::Rerun
            | TaskState::Errored => true,
        })
        .count()
}

/// What holds besides of every plan that the rules have decided.
pub fn check_decided(plan: &Plan) {
    check(plan);
    for task in plan.tasks() {
        let id = &task.spec.id;
        let unmet = unmet(plan, task);
        assert_eq!(task.unmet as usize, unmet, "unmet of {id}");
        match task.state {
            TaskState::Pending => assert!(unmet > 0, "{id} is pending and waits for nothing"),
            TaskState::Ready
            | TaskState::Running
            | TaskState::NeedsReview
            | TaskState::Completed
            | TaskState::Rerun => assert_eq!(unmet, 0, "{id} is {} before its time", task.state),
            TaskState::Errored => {
                assert!(task.errored.is_some(), "{id} is errored and says not what it waits for");
            }
            TaskState::Failed | TaskState::Cancelled => assert!(task.reason.is_some(), "{id} says not why"),
        }
        assert!(task.state == TaskState::Errored || task.errored.is_none(), "{id}");
        assert!(task.attempt <= task.spec.limits.max_attempts, "{id} is at attempt {}", task.attempt);
        assert_eq!(task.state == TaskState::Completed, task.accepted().is_some(), "{id}");
        let numbers: Vec<_> = task.attempts.iter().map(|attempt| attempt.number).collect();
        assert!(
            numbers.is_sorted() && numbers.last().is_none_or(|&last| last <= task.attempt),
            "{numbers:?}"
        );
    }
    if plan.is_live() {
        assert!(owes_or_waits(plan), "nothing is owed and nothing is waited for: {plan:?}");
    }
}

/// Whether a live plan has something to offer, or waits for something that it can name.
fn owes_or_waits(plan: &Plan) -> bool {
    let is_offer = |effect: &Effect| matches!(effect, Effect::Offer(_));
    let is_claimed = plan.planning.as_ref().is_some_and(|planning| planning.worker.is_some());
    let waits = |task: &Task| task.state == TaskState::Running || task.errored.is_some();
    due(plan, Scope::All).iter().any(is_offer)
        || is_claimed
        || next_retry(plan).is_some()
        || plan.tasks().iter().any(waits)
}

/// What has ended stays as it ended: tasks and runs.
pub fn check_ended_stays(before: &Plan, now: &Plan) {
    for (old, new) in before.tasks().iter().zip(now.tasks()) {
        // How many dependencies are open is counted on, which harms nobody.
        let mut new = new.clone();
        new.unmet = old.unmet;
        assert!(!old.state.is_terminal() || *old == new, "{} was {}", old.spec.id, old.state);
    }
    assert!(before.end.is_none() || before.end == now.end);
}
