//! Validates a set of tasks as a plan. Linear in tasks and edges.

use std::borrow::Borrow;
use std::collections::{HashSet, VecDeque};

use foldhash::HashMap;
use foldhash::fast::RandomState;
use serde_json::Value;

use super::GraphError;
use super::spec::{
    MAX_OBJECTIVE, MAX_PARAMETER_DEPTH, MAX_PERSONS, MAX_TASKS, ReviewCheck, ReviewPolicy, TaskLimits,
    TaskSpec, VALID_ATTEMPTS,
};
use super::start::find_start_mistake;
use super::state::Plan;
use crate::ids::TaskId;

/// Capabilities that only the supervisor assigns work to.
const RESERVED: [&str; 2] = ["planner", "critic"];

/// Validates `tasks` as an addition to `plan`: ids, dependencies, cycles, final tasks, objectives and limits.
/// Errors: the first mistake, in the order of the tasks; cycles are checked last.
pub fn check_new_tasks(plan: &Plan, tasks: &[impl Borrow<TaskSpec>]) -> Result<(), GraphError> {
    let tasks: Vec<&TaskSpec> = tasks.iter().map(Borrow::borrow).collect();
    if tasks.is_empty() && plan.tasks().is_empty() {
        return Err(GraphError::Empty);
    }
    if plan.tasks().len() + tasks.len() > MAX_TASKS {
        return Err(GraphError::TooManyTasks(plan.tasks().len() + tasks.len()));
    }
    let mut new = HashMap::with_capacity_and_hasher(tasks.len(), RandomState::default());
    for (at, &task) in tasks.iter().enumerate() {
        if new.insert(&task.id, at).is_some() || plan.task_position(&task.id).is_some() {
            return Err(GraphError::DuplicateTask(task.id.clone()));
        }
        check_text_and_list_sizes(task)?;
    }
    check_single_final_task(plan, &tasks)?;
    for task in &tasks {
        check_dependencies(plan, &new, task)?;
    }
    match find_cycle(&tasks, &new) {
        Some(ids) => Err(GraphError::Cycle(ids)),
        None => Ok(()),
    }
}

/// Validates a task of the plan in its changed form.
/// Errors: the first mistake; cycles are checked last.
pub(super) fn check_patched_task(plan: &Plan, task: &TaskSpec) -> Result<(), GraphError> {
    check_text_and_list_sizes(task)?;
    check_dependencies(plan, &HashMap::default(), task)?;
    // A cycle must lead from the task along its dependencies back to itself.
    let mut came_from: HashMap<&TaskId, &TaskId> = HashMap::default();
    let mut queue: VecDeque<&TaskId> = task.depends_on.iter().collect();
    came_from.extend(task.depends_on.iter().map(|id| (id, &task.id)));
    while let Some(id) = queue.pop_front() {
        if *id == task.id {
            let mut ids = vec![id.clone()];
            let mut at = came_from.get(id);
            while let Some(before) = at.filter(|before| **before != &task.id) {
                ids.push((*before).clone());
                at = came_from.get(*before);
            }
            ids.reverse();
            ids.rotate_right(1);
            return Err(GraphError::Cycle(ids));
        }
        for next in plan.task(id).iter().flat_map(|task| &task.spec.depends_on) {
            if !came_from.contains_key(next) {
                came_from.insert(next, id);
                queue.push_back(next);
            }
        }
    }
    Ok(())
}

/// Returns the depth of the plan with these tasks: the maximum number of tasks in a row that wait for each other. A task
/// that exists already counts in its new form. There must be no cycles.
pub(super) fn plan_depth(plan: &Plan, tasks: &[TaskSpec]) -> u32 {
    let new: HashMap<&TaskId, &TaskSpec> = tasks.iter().map(|task| (&task.id, task)).collect();
    let spec_of = |id: &TaskId| new.get(id).copied().or_else(|| plan.task(id).map(|task| &*task.spec));
    let mut depths: HashMap<&TaskId, u32> = HashMap::default();
    // Delegated tasks are no part of the plan: calls of a shared conversation wait for each other.
    let planned = plan.tasks().iter().filter(|task| !task.spec.is_child());
    let all = planned.map(|task| &task.spec.id).chain(tasks.iter().map(|task| &task.id));
    for id in all {
        // A task is done after all of its dependencies; the list replaces the call stack.
        let mut open = vec![id];
        while let Some(&at) = open.last() {
            let Some(spec) = spec_of(at).filter(|_| !depths.contains_key(at)) else {
                open.pop();
                continue;
            };
            let missing: Vec<&TaskId> = spec
                .depends_on
                .iter()
                .filter(|id| spec_of(id).is_some() && !depths.contains_key(id))
                .collect();
            if missing.is_empty() {
                let before = spec.depends_on.iter().filter_map(|id| depths.get(id)).max().copied();
                depths.insert(&spec.id, before.unwrap_or(0) + 1);
                open.pop();
            } else {
                open.extend(missing);
            }
        }
    }
    depths.values().max().copied().unwrap_or(0)
}

fn check_text_and_list_sizes(task: &TaskSpec) -> Result<(), GraphError> {
    if task.objective.trim().is_empty() {
        return Err(GraphError::EmptyObjective(task.id.clone()));
    }
    if task.objective.len() > MAX_OBJECTIVE {
        return Err(GraphError::LongObjective { task: task.id.clone(), bytes: task.objective.len() });
    }
    if RESERVED.contains(&task.capability.as_str()) {
        let capability = task.capability.clone();
        return Err(GraphError::ReservedCapability { task: task.id.clone(), capability });
    }
    if !task.parameters.values().all(|value| is_within_depth(value, MAX_PARAMETER_DEPTH)) {
        let expected = format!("nested at most {MAX_PARAMETER_DEPTH} deep");
        return Err(GraphError::Limit { task: task.id.clone(), limit: "parameters".into(), expected });
    }
    if let Some((field, expected)) = find_start_mistake(task.not_before, task.wait_for_event.as_deref()) {
        let (limit, expected) = (field.into(), expected.into());
        return Err(GraphError::Limit { task: task.id.clone(), limit, expected });
    }
    check_review(task)?;
    check_limits(task, &task.limits)
}

fn check_review(task: &TaskSpec) -> Result<(), GraphError> {
    check_review_policy(task, &task.review)
}

fn check_review_policy(task: &TaskSpec, review: &ReviewPolicy) -> Result<(), GraphError> {
    let refuse = |expected: &str| {
        Err(GraphError::Limit { task: task.id.clone(), limit: "review".into(), expected: expected.into() })
    };
    match review {
        ReviewPolicy::None => Ok(()),
        ReviewPolicy::Checks { checks } if checks.is_empty() => refuse("at least one check, or a critic"),
        ReviewPolicy::Checks { checks } => check_review_checks(task, checks),
        ReviewPolicy::Critic { checks, models, quorum, sample_percent, .. } => {
            let judges = u32::try_from(models.len().max(1)).unwrap_or(u32::MAX);
            if quorum.is_some_and(|quorum| quorum == 0 || quorum > judges) {
                return refuse("one with a quorum from 1 to the number of its models");
            }
            if sample_percent.is_some_and(|percent| percent > 100) {
                return refuse("one with a sample_percent from 0 to 100");
            }
            check_review_checks(task, checks)
        }
        ReviewPolicy::Persons(review) => {
            if review.ask.is_empty() || review.ask.len() > MAX_PERSONS {
                return refuse(&format!("one by 1 to {MAX_PERSONS} persons"));
            }
            if review.quorum.is_some_and(|quorum| quorum == 0 || quorum > review.vote_count()) {
                return refuse("one with a quorum from 1 to the number of its persons, plus 1 for a critic");
            }
            if matches!(review.first, ReviewPolicy::Persons(_)) {
                return refuse("one in which persons judge once");
            }
            check_review_policy(task, &review.first)
        }
    }
}

fn check_review_checks(task: &TaskSpec, checks: &[ReviewCheck]) -> Result<(), GraphError> {
    let is_empty = |check: &ReviewCheck| match check {
        ReviewCheck::Matches(pattern) | ReviewCheck::MatchesNot(pattern) => pattern.is_empty(),
        ReviewCheck::Command { command, timeout_s } => {
            command.first().is_none_or(String::is_empty) || *timeout_s == Some(0)
        }
        ReviewCheck::Schema(schema) => !is_within_depth(schema, MAX_PARAMETER_DEPTH),
        ReviewCheck::Citations | ReviewCheck::Quotations => false,
    };
    if checks.iter().any(is_empty) {
        let expected = format!(
            "one without empty checks or timeouts of 0, and with schemas nested at most {MAX_PARAMETER_DEPTH} deep"
        );
        return Err(GraphError::Limit { task: task.id.clone(), limit: "review".into(), expected });
    }
    Ok(())
}

fn is_within_depth(value: &Value, depth: usize) -> bool {
    match value {
        Value::Array(values) => depth > 0 && values.iter().all(|value| is_within_depth(value, depth - 1)),
        Value::Object(fields) => depth > 0 && fields.values().all(|value| is_within_depth(value, depth - 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

fn check_limits(task: &TaskSpec, limits: &TaskLimits) -> Result<(), GraphError> {
    let refuse = |limit: &str, expected: &str| {
        Err(GraphError::Limit { task: task.id.clone(), limit: limit.into(), expected: expected.into() })
    };
    if !(1..=100).contains(&limits.max_attempts) {
        return refuse("max_attempts", VALID_ATTEMPTS);
    }
    let clocks =
        [("queue_wait", limits.queue_wait), ("run_time", limits.run_time), ("silence", limits.silence)];
    for (name, clock) in clocks {
        if clock.is_zero() {
            return refuse(name, "more than 0 seconds");
        }
    }
    if task.budget.iter().any(|(_, amount)| amount == 0) {
        return refuse("budget", "at least 1 of each resource that it limits");
    }
    let longest = [limits.backoff, limits.queue_wait, limits.run_time, limits.silence].into_iter().max();
    if longest.is_some_and(|longest| longest.as_secs() > 366 * 86_400) {
        return refuse("each duration", "at most a year");
    }
    Ok(())
}

fn check_single_final_task(plan: &Plan, tasks: &[&TaskSpec]) -> Result<(), GraphError> {
    // A new final task takes the place of that of a run that has ended.
    let old = plan.tasks().iter().filter(|_| plan.run.end.is_none()).map(|task| &*task.spec);
    let mut finals = old.chain(tasks.iter().copied()).filter(|spec| spec.is_final).map(|spec| &spec.id);
    match (finals.next(), finals.next()) {
        (Some(one), Some(two)) => Err(GraphError::TwoFinal(one.clone(), two.clone())),
        (Some(_) | None, _) => Ok(()),
    }
}

fn check_dependencies(plan: &Plan, new: &HashMap<&TaskId, usize>, task: &TaskSpec) -> Result<(), GraphError> {
    let mut seen = HashSet::with_capacity(task.depends_on.len());
    for dependency in &task.depends_on {
        if *dependency == task.id {
            return Err(GraphError::SelfDependency(task.id.clone()));
        }
        if !new.contains_key(dependency) && plan.task_position(dependency).is_none() {
            return Err(GraphError::MissingDependency {
                task: task.id.clone(),
                dependency: dependency.clone(),
            });
        }
        if !seen.insert(dependency) {
            return Err(GraphError::DuplicateDependency {
                task: task.id.clone(),
                dependency: dependency.clone(),
            });
        }
    }
    Ok(())
}

/// Returns a cycle among the new tasks, if there is one: each id depends on the next, the last on the first. Existing
/// tasks can't be part of one, since they depend on existing tasks only.
fn find_cycle(tasks: &[&TaskSpec], new: &HashMap<&TaskId, usize>) -> Option<Vec<TaskId>> {
    let left = find_tasks_on_or_behind_cycle(tasks, new);
    let mut at = *left.first()?;
    // Every task that is left depends on another one that is left, so a walk along them must return to its start.
    let mut walked = Vec::new();
    let mut seen = HashMap::default();
    let is_left: HashSet<usize> = left.into_iter().collect();
    let begin = loop {
        if let Some(&begin) = seen.get(&at) {
            break begin;
        }
        seen.insert(at, walked.len());
        walked.push(at);
        at = *tasks[at].depends_on.iter().filter_map(|id| new.get(id)).find(|next| is_left.contains(next))?;
    };
    Some(walked[begin..].iter().map(|&at| tasks[at].id.clone()).collect())
}

/// Returns the positions of the tasks that no topological order reaches (Kahn's algorithm).
fn find_tasks_on_or_behind_cycle(tasks: &[&TaskSpec], new: &HashMap<&TaskId, usize>) -> Vec<usize> {
    let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); tasks.len()];
    let mut unmet = vec![0_usize; tasks.len()];
    for (at, task) in tasks.iter().enumerate() {
        for &dependency in task.depends_on.iter().filter_map(|id| new.get(id)) {
            dependents[dependency].push(at);
            unmet[at] += 1;
        }
    }
    let mut free: Vec<usize> = (0..tasks.len()).filter(|&at| unmet[at] == 0).collect();
    while let Some(at) = free.pop() {
        for &dependent in &dependents[at] {
            unmet[dependent] -= 1;
            if unmet[dependent] == 0 {
                free.push(dependent);
            }
        }
    }
    (0..tasks.len()).filter(|&at| unmet[at] > 0).collect()
}
