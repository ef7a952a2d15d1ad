//! What must hold of a plan, worked out from scratch from its tasks alone.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use millrace_protocol::ids::{Capability, TaskId};
use millrace_protocol::plan::{
    Amounts, Dimension, Effect, ErroredFor, Event, OnFailedDependency, Overdue, Plan, Scope, Task, TaskState,
    Work, due, next_retry, overdue,
};
use millrace_protocol::result::Usage;
use petgraph::graph::DiGraph;

/// Everything that holds of any fold whatever: derived values equal their recomputation.
pub fn check(plan: &Plan) {
    for state in TaskState::ALL {
        let count = plan.tasks().iter().filter(|task| task.state == state).count();
        assert_eq!(plan.count(state) as usize, count, "the count of {state}");
    }
    let open = plan.tasks().iter().filter(|task| !task.state.is_terminal()).count();
    assert_eq!(plan.open() as usize, open);
    check_backoffs(plan);
    for task in plan.tasks() {
        assert!(std::ptr::eq(plan.task(&task.spec.id).unwrap(), task), "{} is found by its id", task.spec.id);
        let found: BTreeSet<&TaskId> = plan.dependents(task).collect();
        let dependents = plan.tasks().iter().filter(|other| other.spec.depends_on.contains(&task.spec.id));
        assert_eq!(found, dependents.map(|other| &other.spec.id).collect(), "dependents of {}", task.spec.id);
    }
}

/// Backoffs of tasks and of reviews are told when they are over, in the order of their times.
fn check_backoffs(plan: &Plan) {
    let at = |waits: fn(&Task) -> Option<Timestamp>| -> BTreeSet<(Timestamp, usize)> {
        plan.tasks().iter().enumerate().filter_map(|(at, task)| Some((waits(task)?, at))).collect()
    };
    let retries = at(|task| match task.errored {
        Some(ErroredFor::Retry(at)) => Some(at),
        Some(ErroredFor::Capability | ErroredFor::Parameters) | None => None,
    });
    let reviews = at(|task| task.review_at);
    let planning = plan.planning.as_ref().and_then(|planning| planning.retry_at);
    assert_eq!(next_retry(plan), retries.iter().chain(&reviews).map(|(at, _)| *at).chain(planning).min());
    if !plan.is_live() {
        return;
    }
    let (mut is_over, mut is_judged_again) = (Vec::new(), Vec::new());
    for overdue in overdue(plan, Timestamp::MAX, |_| None) {
        match overdue {
            Overdue::Retry(task) => is_over.push(task),
            Overdue::RetryReview(task) => is_judged_again.push(task),
            Overdue::RetryPlanning | Overdue::Clock(..) | Overdue::WallTime | Overdue::Retire => {}
        }
    }
    let named = |all: BTreeSet<(Timestamp, usize)>| -> Vec<TaskId> {
        all.into_iter().map(|(_, at)| plan.tasks()[at].spec.id.clone()).collect()
    };
    assert_eq!(is_over, named(retries), "retries come in the order of their times");
    assert_eq!(is_judged_again, named(reviews), "and so do reviews");
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
    assert_eq!(plan.recounted(), *plan, "what is kept beside the tasks is not what they say");
    check_graph(plan);
    for task in plan.tasks() {
        check_task(plan, task);
    }
    check_reservations(plan);
    assert!(plan.turns <= plan.steps(), "the planner was asked {} times", plan.turns);
    for effect in due(plan, Scope::All) {
        if let Effect::Offer(work) = effect {
            assert!(plan.is_live() && plan.paused.is_none(), "{work:?} is offered out of time");
            assert!(is_covered(plan, &work), "{work:?} is offered without its reservation");
        }
    }
    if plan.is_live() {
        assert!(owes_or_waits(plan), "nothing is owed and nothing is waited for: {plan:#?}");
    }
}

/// No circle, at most one final task, and every dependency is there.
fn check_graph(plan: &Plan) {
    let mut graph = DiGraph::<(), ()>::new();
    let nodes: BTreeMap<&TaskId, _> =
        plan.tasks().iter().map(|task| (&task.spec.id, graph.add_node(()))).collect();
    for task in plan.tasks() {
        for dependency in &task.spec.depends_on {
            graph.add_edge(nodes[&task.spec.id], nodes[dependency], ());
        }
    }
    assert!(!petgraph::algo::is_cyclic_directed(&graph), "tasks wait for each other in a circle");
    let mut finals = plan.tasks().iter().filter(|task| task.spec.is_final);
    assert_eq!(plan.final_task().map(|task| &task.spec.id), finals.next().map(|task| &task.spec.id));
    assert!(finals.next().is_none(), "two tasks are final");
}

fn check_task(plan: &Plan, task: &Task) {
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
    assert_eq!(task.problem.is_some(), task.errored == Some(ErroredFor::Parameters), "the problem of {id}");
    assert!(task.state == TaskState::NeedsReview || task.review_at.is_none(), "{id} waits for a review");
    assert!(task.attempt <= task.granted, "{id} is at attempt {} of {}", task.attempt, task.granted);
    assert_eq!(task.state == TaskState::Completed, task.accepted().is_some(), "{id}");
    let numbers: Vec<_> = task.attempts.iter().map(|attempt| attempt.number).collect();
    let is_rising = numbers.windows(2).all(|pair| pair[0] < pair[1]);
    assert!(is_rising && numbers.last().is_none_or(|&last| last <= task.attempt), "{numbers:?}");
    let wanted = task.given_out();
    assert!(
        task.superseded.iter().all(|(work, _)| wanted.as_ref() != Some(work)),
        "{id} takes back what it wants"
    );
}

/// Nothing is reserved for work that is over.
fn check_reservations(plan: &Plan) {
    for (work, _) in plan.reserved.iter() {
        let is_wanted = match work {
            Work::Planning { .. } => plan
                .planning
                .as_ref()
                .is_some_and(|planning| planning.retry_at.is_none() && planning.work() == *work),
            Work::Task { task, .. } | Work::Review { task, .. } => {
                plan.task(task).and_then(Task::given_out).as_ref() == Some(work)
            }
        };
        assert!(is_wanted, "{work:?} is over, and something is reserved for it");
    }
}

/// Whether work has its reservation, where it needs one.
pub fn is_covered(plan: &Plan, work: &Work) -> bool {
    !plan.needs_reservation(work) || plan.reserved.of(work).is_some()
}

/// Whether a live plan has something to offer, or waits for something that it can name.
fn owes_or_waits(plan: &Plan) -> bool {
    let is_offer = |effect: &Effect| matches!(effect, Effect::Offer(_));
    let is_claimed = plan.planning.as_ref().is_some_and(|planning| planning.worker.is_some());
    let waits = |task: &Task| task.state == TaskState::Running || task.errored.is_some();
    due(plan, Scope::All).iter().any(is_offer)
        || is_claimed
        || plan.paused.is_some()
        || next_retry(plan).is_some()
        || plan.tasks().iter().any(waits)
}

/// What has ended stays as it ended, tasks and runs, but for what these events open again by name: a task that somebody
/// wants once more, and what is built on it.
pub fn check_ended_stays(before: &Plan, now: &Plan, events: &[Event]) {
    let mut again: BTreeSet<&TaskId> = BTreeSet::new();
    let mut is_reopened = false;
    for event in events {
        if let Event::TaskReopened { task, .. } = event {
            again.insert(task);
        }
        is_reopened |= matches!(event, Event::RunReopened);
    }
    for event in events {
        if let Event::TaskInvalidated { task, .. } = event {
            // A planner may let it build on another behind that.
            let specs = [before, now].map(|plan| plan.task(task).map(|task| &task.spec.depends_on));
            let mut dependencies = specs.into_iter().flatten().flatten();
            assert!(dependencies.any(|id| again.contains(id)), "{task} is done again for nothing");
            again.insert(task);
        }
    }
    for (old, new) in before.tasks().iter().zip(now.tasks()) {
        assert_eq!(old.spec.id, new.spec.id);
        let is_same = (old.state, old.attempt, &old.attempts, &old.reason, &old.told, old.since)
            == (new.state, new.attempt, &new.attempts, &new.reason, &new.told, new.since);
        let id = &old.spec.id;
        assert!(!old.state.is_terminal() || is_same || again.contains(id), "{id} was {}", old.state);
    }
    let retired = |end: &millrace_protocol::plan::End| {
        let mut end = end.clone();
        end.is_resumable = false;
        end
    };
    let is_ended_so = before.end.as_ref().map(retired) == now.end.as_ref().map(retired);
    assert!(before.end.is_none() || is_ended_so || is_reopened, "a run that had ended goes on by itself");
}

/// At the moment of a reservation, what is used and reserved stays within every limit that it counts against.
pub fn check_reserved(plan: &Plan, events: &[Event]) {
    let Some(budget) = plan.start.as_ref().map(|start| &start.budget) else { return };
    let mut made: Vec<(Work, Amounts)> =
        plan.reserved.iter().map(|(work, amounts)| (work.clone(), *amounts)).collect();
    for event in events {
        let Event::Reserved { work, amounts } = event else { continue };
        assert!(plan.reserved.of(work).is_none(), "{work:?} has two reservations");
        made.push((work.clone(), *amounts));
        let task = work.task().and_then(|task| plan.task(task));
        let is_last = plan.winding_down.is_some() || task.is_some_and(|task| task.spec.is_final);
        let is_made = plan.final_task().is_some_and(|task| task.state.is_terminal());
        let percent = if is_last || is_made { 0 } else { u64::from(budget.final_percent) };
        let all = |_: &Work| true;
        within(&budget.amounts, percent, &plan.spend.total, &made, all, "the run's budget");
        let name = capability(plan, work);
        if let Some(limits) = budget.capabilities.get(&name) {
            let used = plan.spend.by_capability.get(&name).copied().unwrap_or_default();
            within(limits, 0, &used, &made, |other| capability(plan, other) == name, "a capability's budget");
        }
        if let Some(task) = task {
            let of_task = |other: &Work| other.task() == Some(&task.spec.id);
            within(&task.spec.budget, 0, &task.usage(), &made, of_task, "a task's budget");
        }
    }
}

fn within(
    limits: &Amounts,
    held_back: u64,
    used: &Usage,
    made: &[(Work, Amounts)],
    counts: impl Fn(&Work) -> bool,
    whose: &str,
) {
    for (dimension, limit) in limits.iter() {
        let reserved: u128 = made
            .iter()
            .filter(|(work, _)| counts(work))
            .map(|(_, amounts)| u128::from(amounts.get(dimension).unwrap_or(0)))
            .sum();
        let limit = u128::from(limit) - u128::from(limit) * u128::from(held_back) / 100;
        let all = u128::from(dimension.of(used)) + reserved;
        assert!(all <= limit, "{whose}: {all} of {limit} ({dimension:?}) would be used and reserved");
    }
}

/// The capability whose budget work counts against.
pub fn capability(plan: &Plan, work: &Work) -> Capability {
    let own = |name| crate::cast::capability(name);
    match work {
        Work::Planning { .. } => own("planner"),
        Work::Review { .. } => own("critic"),
        Work::Task { task, .. } => plan.task(task).unwrap().spec.capability.clone(),
    }
}

/// How far beyond their reservations work may have gone, dimension by dimension: what workers used above what was
/// set aside for them, and nothing else.
#[derive(Default)]
pub struct Overshoot(BTreeMap<Dimension, u128>);

impl Overshoot {
    /// An end of work is accepted that used so much.
    pub fn add(&mut self, before: &Plan, work: &Work, usage: &Usage) {
        let reserved = before.reserved.of(work).unwrap_or_default();
        for dimension in Dimension::ALL {
            let beyond = dimension.of(usage).saturating_sub(reserved.get(dimension).unwrap_or(0));
            *self.0.entry(dimension).or_default() += u128::from(beyond);
        }
    }

    /// What is used and reserved of the run's budget is within its limits but for that.
    pub fn check(&self, plan: &Plan) {
        let Some(start) = &plan.start else { return };
        for (dimension, limit) in start.budget.amounts.iter() {
            let all =
                u128::from(dimension.of(&plan.spend.total)) + u128::from(plan.reserved.total(dimension));
            let beyond = self.0.get(&dimension).copied().unwrap_or(0);
            assert!(
                all <= u128::from(limit) + beyond,
                "{all} of {limit} ({dimension:?}) are used and reserved, {beyond} beyond reservations"
            );
        }
    }
}
