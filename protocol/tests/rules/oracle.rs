//! Invariants of a plan, computed from scratch from its tasks alone.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use millrace_protocol::child::{MAX_CHILD_DEPTH, MAX_CHILDREN};
use millrace_protocol::ids::{Capability, TaskId};
use millrace_protocol::plan::{
    Attendance, BudgetEvent, Effect, EffectScope, ErroredTaskWait, Event, OnFailedDependency, OverdueInput,
    Plan, ResourceAmounts, ResourceKind, RunEvent, StartExpiryAction, Task, TaskEvent, TaskPhase, TaskSpec,
    TaskState, Work, next_backoff_end, overdue_inputs, pending_effects,
};
use millrace_protocol::result::Usage;
use millrace_protocol::wait::WaitCondition;
use petgraph::graph::DiGraph;

/// Checks what holds of any fold: derived values equal their recomputation.
pub fn check_invariants(plan: &Plan) {
    for state in TaskState::ALL {
        let count = plan.tasks().iter().filter(|task| task.state() == state).count();
        assert_eq!(plan.task_count_in_state(state) as usize, count, "the count of {state}");
    }
    let open = plan.tasks().iter().filter(|task| !task.state().is_terminal()).count();
    assert_eq!(plan.open_task_count() as usize, open);
    check_backoffs(plan);
    for task in plan.tasks() {
        assert!(
            std::ptr::eq(plan.task(&task.spec.id).unwrap(), task),
            "lookup of {} by its id",
            task.spec.id
        );
        let from_plan: BTreeSet<&TaskId> = plan.dependents(task).collect();
        let dependents = plan.tasks().iter().filter(|other| other.spec.depends_on.contains(&task.spec.id));
        assert_eq!(
            from_plan,
            dependents.map(|other| &other.spec.id).collect(),
            "dependents of {}",
            task.spec.id
        );
    }
}

/// Checks that ended backoffs of tasks and reviews are reported in the order of their times.
fn check_backoffs(plan: &Plan) {
    let at = |waits: fn(&Task) -> Option<Timestamp>| -> BTreeSet<(Timestamp, usize)> {
        plan.tasks().iter().enumerate().filter_map(|(at, task)| Some((waits(task)?, at))).collect()
    };
    let retries = at(|task| match task.errored_wait() {
        Some(ErroredTaskWait::Retry(at)) => Some(*at),
        Some(ErroredTaskWait::Capability { .. } | ErroredTaskWait::Parameters { .. }) | None => None,
    });
    let reviews = at(|task| task.review_retry_at());
    let waits = at(|task| if let TaskPhase::Waiting { until } = task.phase { until } else { None });
    let planning = plan.planning.turn.as_ref().and_then(|planning| planning.retry_at);
    assert_eq!(
        next_backoff_end(plan),
        retries.iter().chain(&reviews).chain(&waits).map(|(at, _)| *at).chain(planning).min()
    );
    if !plan.is_live() {
        return;
    }
    let (mut is_over, mut is_judged_again, mut has_waited) = (Vec::new(), Vec::new(), Vec::new());
    for overdue in overdue_inputs(plan, Timestamp::MAX, &Attendance::begin(Timestamp::MAX), |_| None) {
        match overdue {
            OverdueInput::Retry(task) => is_over.push(task),
            OverdueInput::RetryReview(task) => is_judged_again.push(task),
            OverdueInput::WaitTime(task) => has_waited.push(task),
            OverdueInput::RetryPlanning
            | OverdueInput::Clock(..)
            | OverdueInput::Absence(_)
            | OverdueInput::WallTime
            | OverdueInput::Retire => {}
        }
    }
    let named = |all: BTreeSet<(Timestamp, usize)>| -> Vec<TaskId> {
        all.into_iter().map(|(_, at)| plan.tasks()[at].spec.id.clone()).collect()
    };
    assert_eq!(is_over, named(retries), "retries come in the order of their times");
    assert_eq!(is_judged_again, named(reviews), "and so do reviews");
    assert_eq!(has_waited, named(waits), "and so do waits");
}

/// The number of dependencies that are neither accepted nor skipped.
fn count_unmet_dependencies(plan: &Plan, task: &Task) -> usize {
    let skips = task.spec.on_failed_dependency == OnFailedDependency::Skip;
    task.spec
        .depends_on
        .iter()
        .filter(|id| match plan.task(id).unwrap().state() {
            TaskState::Completed => false,
            TaskState::Failed | TaskState::Cancelled => !skips,
            TaskState::Pending
            | TaskState::Ready
            | TaskState::Running
            | TaskState::NeedsReview
            | TaskState::Rerun
            | TaskState::Waiting
            | TaskState::Errored => true,
        })
        .count()
}

/// Checks what holds, in addition, of every plan that the rules have decided on.
pub fn check_invariants_after_decision(plan: &Plan) {
    check_invariants(plan);
    assert_eq!(plan.with_recounted_index(), *plan, "the indices do not match the tasks");
    check_dependency_graph(plan);
    for task in plan.tasks() {
        check_task_invariants(plan, task);
    }
    check_reservations(plan);
    check_children(plan);
    assert!(
        plan.planning.turns <= plan.max_planning_turns(),
        "the planner was called {} times",
        plan.planning.turns
    );
    for effect in pending_effects(plan, EffectScope::All) {
        if let Effect::Offer(work) = effect {
            assert!(
                plan.is_live() && plan.run.paused.is_none() && !plan.is_held(),
                "{work:?} is offered while the run is not live"
            );
            assert!(has_required_reservation(plan, &work), "{work:?} is offered without its reservation");
        }
    }
    if plan.is_live() {
        assert!(has_effects_or_waits(plan), "no effect is pending and nothing is awaited: {plan:#?}");
    }
}

/// Checks that there is no cycle, at most one final task, and no unknown dependency.
fn check_dependency_graph(plan: &Plan) {
    let mut graph = DiGraph::<(), ()>::new();
    let nodes: BTreeMap<&TaskId, _> =
        plan.tasks().iter().map(|task| (&task.spec.id, graph.add_node(()))).collect();
    for task in plan.tasks() {
        for dependency in &task.spec.depends_on {
            graph.add_edge(nodes[&task.spec.id], nodes[dependency], ());
        }
    }
    assert!(!petgraph::algo::is_cyclic_directed(&graph), "tasks depend on each other in a cycle");
    let mut finals = plan.tasks().iter().filter(|task| task.spec.is_final);
    assert_eq!(plan.final_task().map(|task| &task.spec.id), finals.next().map(|task| &task.spec.id));
    assert!(finals.next().is_none(), "two tasks are final");
}

fn check_task_invariants(plan: &Plan, task: &Task) {
    let id = &task.spec.id;
    let unmet = count_unmet_dependencies(plan, task);
    assert_eq!(task.unmet as usize, unmet, "unmet of {id}");
    match task.state() {
        TaskState::Pending => assert!(unmet > 0, "{id} is pending without an open dependency"),
        TaskState::Ready
        | TaskState::Running
        | TaskState::Waiting
        | TaskState::NeedsReview
        | TaskState::Completed
        | TaskState::Rerun => assert_eq!(unmet, 0, "{id} is {} with open dependencies", task.state()),
        TaskState::Errored => {
            assert!(task.errored_wait().is_some(), "{id} is errored and awaits nothing");
        }
        TaskState::Failed | TaskState::Cancelled => {
            assert!(task.end_reason().is_some(), "{id} has no reason")
        }
    }
    assert!(task.state() == TaskState::Errored || task.errored_wait().is_none(), "{id}");
    if task.state() == TaskState::Waiting {
        let attempt = task.current_attempt().expect("a parked attempt has a record");
        assert!(attempt.open_waits().next().is_some(), "{id} is parked and waits for nothing");
        let keys: BTreeSet<_> = attempt.waits.iter().map(|wait| &wait.wait.key).collect();
        assert_eq!(keys.len(), attempt.waits.len(), "{id} has two waits of one key");
        let first = attempt.first_wait_time();
        assert!(matches!(task.phase, TaskPhase::Waiting { until } if until == first), "{id}");
    }

    assert!(
        task.state() == TaskState::NeedsReview || task.review_retry_at().is_none(),
        "{id} waits for a review"
    );
    assert!(task.attempt <= task.granted, "{id} is at attempt {} of {}", task.attempt, task.granted);
    assert_eq!(task.state() == TaskState::Completed, task.accepted_result().is_some(), "{id}");
    let numbers: Vec<_> = task.attempts.iter().map(|attempt| attempt.number).collect();
    let is_rising = numbers.windows(2).all(|pair| pair[0] < pair[1]);
    assert!(is_rising && numbers.last().is_none_or(|&last| last <= task.attempt), "{numbers:?}");
    let wanted = task.dispatched_work();
    assert!(
        task.superseded.iter().all(|(work, _)| wanted.as_ref() != Some(work)),
        "{id} withdraws work that it needs"
    );
}

/// Checks that an attempt that is dispatched at `now` may start: its time has come, and its event was signalled or has
/// expired with that consequence.
pub fn check_start_conditions(plan: &Plan, work: &Work, now: Timestamp) {
    let Work::Task { task, .. } = work else { return };
    let (spec, start) = (&plan.task(task).unwrap().spec, plan.run.start.as_ref().unwrap().at);
    assert!(spec.not_before.is_none_or(|time| time.resolve(start) <= now), "{task} starts too early");
    let Some(event) = &spec.wait_for_event else { return };
    let is_signalled = plan.run.signals.iter().any(|signal| signal.name == event.name);
    let may_start = event.expiry.as_ref().is_some_and(|expiry| {
        expiry.action == StartExpiryAction::Start && expiry.until.resolve(start) <= now
    });
    assert!(is_signalled || may_start, "{task} starts without its event");
}

/// Checks that finished work has no reservation.
fn check_reservations(plan: &Plan) {
    for (work, _) in plan.budget.reserved.iter() {
        let is_wanted = match work {
            Work::Planning { .. } => plan
                .planning
                .turn
                .as_ref()
                .is_some_and(|planning| planning.retry_at.is_none() && planning.work() == *work),
            Work::Task { task, .. } | Work::Review { task, .. } => {
                plan.task(task).and_then(Task::reserved_work).as_ref() == Some(work)
            }
        };
        assert!(is_wanted, "{work:?} has ended and still has a reservation");
    }
}

/// Checks that open children have a live parent, in which they are listed, and hold no more than it does.
fn check_children(plan: &Plan) {
    for task in plan.tasks() {
        let Some(own) = &task.spec.parent else { continue };
        let parent = plan.task(&own.task).expect("a child is added after its parent");
        let id = &task.spec.id;
        assert!(plan.children(parent).any(|child| child.spec.id == *id), "{id} is no child of {}", own.task);
        let depth = parent.spec.parent.as_ref().map_or(0, |parent| parent.depth) + 1;
        assert!(own.depth == depth && depth <= MAX_CHILD_DEPTH, "{id} is at depth {depth}");
        let is_live = parent.live_attempt() == Some(own.attempt);
        assert!(task.state().is_terminal() || is_live || !plan.is_live(), "{id} outlives its parent");
        let is_earlier_call =
            |id: &TaskId| plan.task(id).is_some_and(|other| task.spec.shares_conversation_with(&other.spec));
        let is_outside_plan = !task.spec.is_final && task.spec.depends_on.iter().all(is_earlier_call);
        assert!(is_outside_plan, "{id} is part of the plan");
    }
    check_shared_conversations(plan);
    for task in plan.tasks() {
        let attempts: BTreeSet<u32> =
            plan.children(task).filter_map(|child| Some(child.spec.parent.as_ref()?.attempt)).collect();
        for attempt in attempts {
            let of_attempt =
                |child: &&Task| child.spec.parent.as_ref().is_some_and(|own| own.attempt == attempt);
            let children = plan.children(task).filter(of_attempt).count();
            assert!(children <= MAX_CHILDREN as usize, "{} has {children} children", task.spec.id);
        }
        let open = task.current_attempt().into_iter().flat_map(|attempt| attempt.open_waits());
        for wait in open.filter(|_| task.state() == TaskState::Waiting && plan.is_live()) {
            let is_over = |id: &TaskId| {
                let child = plan.task(id).filter(|child| {
                    let own = child.spec.parent.as_ref();
                    own.is_some_and(|own| own.task == task.spec.id && own.attempt == task.attempt)
                });
                child.is_none_or(|child| child.state().is_terminal())
            };
            if let WaitCondition::Tasks { tasks, any, .. } = &wait.condition {
                let is_due = if *any { tasks.iter().any(is_over) } else { tasks.iter().all(is_over) };
                assert!(!is_due, "the wait {} of {} is over and open", wait.key, task.spec.id);
            }
        }
    }
    let deliverable = plan.run.end.as_ref().and_then(|end| end.deliverable.as_ref());
    assert!(deliverable.is_none_or(|(task, _)| !plan.is_child(task)), "a child is the deliverable");
}

/// Checks that at most one call of a shared conversation may run: all other open ones wait for earlier calls, however those end.
fn check_shared_conversations(plan: &Plan) {
    let open = plan.tasks().iter().filter(|task| task.spec.is_shared && !task.state().is_terminal());
    let mut first: Vec<&TaskSpec> = Vec::new();
    for task in open {
        assert_eq!(task.spec.on_failed_dependency, OnFailedDependency::Skip, "{}", task.spec.id);
        if task.unmet == 0 {
            let is_alone = first.iter().all(|other| !other.shares_conversation_with(&task.spec));
            assert!(is_alone, "{} may run while another call of its conversation is open", task.spec.id);
            first.push(&task.spec);
        }
    }
}

/// `true` if work has its reservation, or needs none.
pub fn has_required_reservation(plan: &Plan, work: &Work) -> bool {
    !plan.needs_reservation(work) || plan.budget.reserved.amounts_of_work(work).is_some()
}

/// `true` if a live plan has pending effects, or waits for something that it can name.
fn has_effects_or_waits(plan: &Plan) -> bool {
    if plan.is_held() {
        return true;
    }
    let is_offer = |effect: &Effect| matches!(effect, Effect::Offer(_));
    let is_claimed = plan.planning.turn.as_ref().is_some_and(|planning| planning.worker.is_some());
    let waits = |task: &Task| {
        matches!(task.state(), TaskState::Running | TaskState::Waiting) || task.errored_wait().is_some()
    };
    pending_effects(plan, EffectScope::All).iter().any(is_offer)
        || is_claimed
        || plan.run.paused.is_some()
        || next_backoff_end(plan).is_some()
        || plan.open_questions().next().is_some()
        || plan.tasks().iter().any(waits)
}

/// Checks that ended tasks and runs stay as they ended, except those that these events reopen: a task that is retried, and
/// its dependents.
pub fn check_ended_tasks_stay_ended(before: &Plan, now: &Plan, events: &[Event]) {
    let mut again: BTreeSet<&TaskId> = BTreeSet::new();
    let mut is_reopened = false;
    for event in events {
        if let Event::Task(TaskEvent::Reopened { task, .. }) = event {
            again.insert(task);
        }
        is_reopened |= matches!(event, Event::Run(RunEvent::Reopened));
    }
    for event in events {
        if let Event::Task(TaskEvent::Invalidated { task, .. }) = event {
            // A planner may change its dependencies afterwards.
            let specs = [before, now].map(|plan| plan.task(task).map(|task| &task.spec.depends_on));
            let mut dependencies = specs.into_iter().flatten().flatten();
            assert!(dependencies.any(|id| again.contains(id)), "{task} runs again without a reason");
            again.insert(task);
        }
    }
    for (old, new) in before.tasks().iter().zip(now.tasks()) {
        assert_eq!(old.spec.id, new.spec.id);
        let is_same =
            (old.state(), old.attempt, &old.attempts, &old.end_reason(), &old.instructions, old.since)
                == (new.state(), new.attempt, &new.attempts, &new.end_reason(), &new.instructions, new.since);
        let id = &old.spec.id;
        assert!(!old.state().is_terminal() || is_same || again.contains(id), "{id} was {}", old.state());
    }
    let retired = |end: &millrace_protocol::plan::RunEnd| {
        let mut end = end.clone();
        end.is_resumable = false;
        end
    };
    let is_ended_so = before.run.end.as_ref().map(retired) == now.run.end.as_ref().map(retired);
    assert!(
        before.run.end.is_none() || is_ended_so || is_reopened,
        "an ended run continues without a command"
    );
}

/// Checks that usage and reservations stay within every limit when a reservation is made.
pub fn check_new_reservations(plan: &Plan, events: &[Event]) {
    let Some(budget) = plan.run.start.as_ref().map(|start| &start.budget) else { return };
    let mut made: Vec<(Work, ResourceAmounts)> =
        plan.budget.reserved.iter().map(|(work, amounts)| (work.clone(), *amounts)).collect();
    let mut made_of_run: Vec<(Work, ResourceAmounts)> = Vec::new();
    for event in events {
        let Event::Budget(BudgetEvent::Reserved { work, amounts }) = event else { continue };
        assert!(plan.budget.reserved.amounts_of_work(work).is_none(), "{work:?} has two reservations");
        made.push((work.clone(), *amounts));
        let task = work.task().and_then(|task| plan.task(task));
        let is_last = plan.run.winding_down.is_some() || task.is_some_and(|task| task.spec.is_final);
        let is_made = plan.final_task().is_some_and(|task| task.state().is_terminal());
        let percent = if is_last || is_made { 0 } else { u64::from(budget.final_percent) };
        let is_from_parent = has_reserved_parent(plan, work);
        if !is_from_parent {
            made_of_run.push((work.clone(), *amounts));
            check_total_with_reservations(plan, percent, &made_of_run);
        }
        let name = charged_capability(plan, work);
        if let Some(limits) = budget.capabilities.get(&name).filter(|_| !is_from_parent) {
            let used = plan.budget.spend.by_capability.get(&name).copied().unwrap_or_default();
            assert_within_limit(
                limits,
                0,
                &used,
                &made,
                |other| charged_capability(plan, other) == name,
                "a capability's budget",
            );
        }
        if let Some(task) = task {
            let of_task = |other: &Work| other.task() == Some(&task.spec.id);
            let used = plan.usage_with_children(task);
            assert_within_limit(&task.spec.budget, 0, &used, &made, of_task, "a task's budget");
        }
    }
}

/// `true` if work is that of a child whose parent has a reservation.
fn has_reserved_parent(plan: &Plan, work: &Work) -> bool {
    let parent = work.task().and_then(|task| plan.task(task)).and_then(|task| plan.parent(task));
    let parent = parent.and_then(Task::reserved_work);
    parent.is_some_and(|work| plan.budget.reserved.amounts_of_work(&work).is_some())
}

/// Checks that the run's limits hold what is used, reserved before, and reserved now.
fn check_total_with_reservations(plan: &Plan, percent: u64, made: &[(Work, ResourceAmounts)]) {
    let limits = plan.run.start.as_ref().map(|start| start.budget.amounts).unwrap_or_default();
    for (dimension, limit) in limits.iter() {
        let new: u64 = made.iter().map(|(_, amounts)| amounts.get(dimension).unwrap_or(0)).sum();
        let used = dimension.amount_used(&plan.budget.spend.total);
        let all =
            u128::from(used) + u128::from(plan.budget.reserved.total_reserved(dimension)) + u128::from(new);
        let limit = u128::from(limit) - u128::from(limit) * u128::from(percent) / 100;
        assert!(
            all <= limit,
            "{all} of {limit} ({dimension:?}) of the run's budget would be used and reserved"
        );
    }
}

fn assert_within_limit(
    limits: &ResourceAmounts,
    held_back: u64,
    used: &Usage,
    made: &[(Work, ResourceAmounts)],
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
        let all = u128::from(dimension.amount_used(used)) + reserved;
        assert!(all <= limit, "{whose}: {all} of {limit} ({dimension:?}) would be used and reserved");
    }
}

/// Returns the capability whose budget work counts against.
pub fn charged_capability(plan: &Plan, work: &Work) -> Capability {
    let own = |name| crate::cast::capability_name(name);
    match work {
        Work::Planning { .. } => own("planner"),
        Work::Review { .. } => own("critic"),
        Work::Task { task, .. } => plan.task(task).unwrap().spec.capability.clone(),
    }
}

/// The part of a reservation that the work may use itself: without the usage and the reservations of its children.
pub fn left_of_reservation(plan: &Plan, work: &Work) -> Option<ResourceAmounts> {
    let reserved = plan.budget.reserved.amounts_of_work(work)?;
    let task = work.task().and_then(|task| plan.task(task));
    let mut left = reserved;
    for (dimension, amount) in reserved.iter() {
        let children = task.into_iter().flat_map(|task| plan.children(task));
        let held = children.map(|child| {
            let used = dimension.amount_used(&plan.usage_with_children(child));
            match child.state().is_terminal() {
                true => used,
                false => used.max(child.spec.budget.get(dimension).unwrap_or(0)),
            }
        });
        left.set(dimension, Some(amount.saturating_sub(held.sum())));
    }
    Some(left)
}

/// The amounts by which work may have exceeded its reservations: what workers used above them, and nothing else.
#[derive(Default)]
pub struct ReservationOvershoot(BTreeMap<ResourceKind, u128>);

impl ReservationOvershoot {
    /// Adds an accepted end of work with this usage.
    pub fn add_used_beyond_reservation(&mut self, before: &Plan, work: &Work, usage: &Usage) {
        let reserved = before.budget.reserved.amounts_of_work(work).unwrap_or_default();
        for dimension in ResourceKind::ALL {
            let beyond = dimension.amount_used(usage).saturating_sub(reserved.get(dimension).unwrap_or(0));
            *self.0.entry(dimension).or_default() += u128::from(beyond);
        }
    }

    /// Checks that usage and reservations are within the run's limits, except for that overshoot.
    pub fn check_run_limits(&self, plan: &Plan) {
        let Some(start) = &plan.run.start else { return };
        for (dimension, limit) in start.budget.amounts.iter() {
            let all = u128::from(dimension.amount_used(&plan.budget.spend.total))
                + u128::from(plan.budget.reserved.total_reserved(dimension));
            let beyond = self.0.get(&dimension).copied().unwrap_or(0);
            assert!(
                all <= u128::from(limit) + beyond,
                "{all} of {limit} ({dimension:?}) are used and reserved, {beyond} beyond reservations"
            );
        }
    }
}
