//! Whether a set of tasks makes a plan. Linear in tasks and edges.

use std::collections::HashMap;

use serde_json::Value;

use super::GraphError;
use super::spec::{Limits, MAX_OBJECTIVE, MAX_PARAMETER_DEPTH, MAX_TASKS, Review, ReviewCheck, TaskSpec};
use super::state::Plan;
use crate::ids::TaskId;

/// Capabilities that only the supervisor gives work to.
const RESERVED: [&str; 2] = ["planner", "critic"];

/// Checks `tasks` as an addition to `plan`: ids, dependencies, circles, finals, objectives and limits.
///
/// # Errors
/// The first mistake found, in the order of the tasks; circles are looked for last.
pub fn check(plan: &Plan, tasks: &[TaskSpec]) -> Result<(), GraphError> {
    if tasks.is_empty() && plan.tasks().is_empty() {
        return Err(GraphError::Empty);
    }
    if plan.tasks().len() + tasks.len() > MAX_TASKS {
        return Err(GraphError::TooManyTasks(plan.tasks().len() + tasks.len()));
    }
    let mut new = HashMap::with_capacity(tasks.len());
    for (at, task) in tasks.iter().enumerate() {
        if new.insert(&task.id, at).is_some() || plan.position(&task.id).is_some() {
            return Err(GraphError::DuplicateTask(task.id.clone()));
        }
        check_words(task)?;
    }
    check_finals(plan, tasks)?;
    for task in tasks {
        check_dependencies(plan, &new, task)?;
    }
    match circle(tasks, &new) {
        Some(ids) => Err(GraphError::Cycle(ids)),
        None => Ok(()),
    }
}

/// Checks a task of the plan in the form in which it is to be from now on.
///
/// # Errors
/// The first mistake found; circles are looked for last.
pub(super) fn check_patched(plan: &Plan, task: &TaskSpec) -> Result<(), GraphError> {
    check_words(task)?;
    check_dependencies(plan, &HashMap::new(), task)?;
    // A circle must lead from the task along what it depends on back to itself.
    let mut came_from: HashMap<&TaskId, &TaskId> = HashMap::new();
    let mut queue: std::collections::VecDeque<&TaskId> = task.depends_on.iter().collect();
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

/// How many tasks stand in a row at the most, each waiting for the one before, in the plan with these tasks; a task that
/// is there already counts as it is to be. There must be no circles.
pub(super) fn depth(plan: &Plan, tasks: &[TaskSpec]) -> u32 {
    let new: HashMap<&TaskId, &TaskSpec> = tasks.iter().map(|task| (&task.id, task)).collect();
    let spec_of = |id: &TaskId| new.get(id).copied().or_else(|| plan.task(id).map(|task| &task.spec));
    let mut depths: HashMap<&TaskId, u32> = HashMap::new();
    let all = plan.tasks().iter().map(|task| &task.spec.id).chain(tasks.iter().map(|task| &task.id));
    for id in all {
        // Each task is looked at when all that it depends on have been; the list stands in for the call stack.
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

fn check_words(task: &TaskSpec) -> Result<(), GraphError> {
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
    if !task.parameters.values().all(|value| is_within(value, MAX_PARAMETER_DEPTH)) {
        let expected = format!("nested at most {MAX_PARAMETER_DEPTH} deep");
        return Err(GraphError::Limit { task: task.id.clone(), limit: "parameters".into(), expected });
    }
    check_review(task)?;
    check_limits(task, &task.limits)
}

fn check_review(task: &TaskSpec) -> Result<(), GraphError> {
    let refuse = |expected: &str| {
        Err(GraphError::Limit { task: task.id.clone(), limit: "review".into(), expected: expected.into() })
    };
    match &task.review {
        Review::None => Ok(()),
        Review::Checks { checks } if checks.is_empty() => refuse("one check or more, or a critic"),
        Review::Checks { checks } => check_checks(task, checks),
        Review::Critic { checks, models, quorum, sample_percent, .. } => {
            let judges = u32::try_from(models.len().max(1)).unwrap_or(u32::MAX);
            if quorum.is_some_and(|quorum| quorum == 0 || quorum > judges) {
                return refuse("such that its quorum is from 1 to the number of its models");
            }
            if sample_percent.is_some_and(|percent| percent > 100) {
                return refuse("such that its sample_percent is from 0 to 100");
            }
            check_checks(task, checks)
        }
    }
}

fn check_checks(task: &TaskSpec, checks: &[ReviewCheck]) -> Result<(), GraphError> {
    let is_empty = |check: &ReviewCheck| match check {
        ReviewCheck::Matches(pattern) | ReviewCheck::MatchesNot(pattern) => pattern.is_empty(),
        ReviewCheck::Command { command, timeout_s } => {
            command.first().is_none_or(String::is_empty) || *timeout_s == Some(0)
        }
        ReviewCheck::Schema(schema) => !is_within(schema, MAX_PARAMETER_DEPTH),
        ReviewCheck::Citations | ReviewCheck::Quotations => false,
    };
    if checks.iter().any(is_empty) {
        let expected = format!(
            "such that no check is empty, no time-out is 0, and schemas are nested at most {MAX_PARAMETER_DEPTH} deep"
        );
        return Err(GraphError::Limit { task: task.id.clone(), limit: "review".into(), expected });
    }
    Ok(())
}

fn is_within(value: &Value, depth: usize) -> bool {
    match value {
        Value::Array(values) => depth > 0 && values.iter().all(|value| is_within(value, depth - 1)),
        Value::Object(fields) => depth > 0 && fields.values().all(|value| is_within(value, depth - 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

fn check_limits(task: &TaskSpec, limits: &Limits) -> Result<(), GraphError> {
    let refuse = |limit: &str, expected: &str| {
        Err(GraphError::Limit { task: task.id.clone(), limit: limit.into(), expected: expected.into() })
    };
    if !(1..=100).contains(&limits.max_attempts) {
        return refuse("max_attempts", "a whole number from 1 to 100");
    }
    let clocks =
        [("queue_wait", limits.queue_wait), ("run_time", limits.run_time), ("silence", limits.silence)];
    for (name, clock) in clocks {
        if clock.is_zero() {
            return refuse(name, "more than 0 seconds");
        }
    }
    if task.budget.iter().any(|(_, amount)| amount == 0) {
        return refuse("budget", "1 or more of each thing that it limits");
    }
    let longest = [limits.backoff, limits.queue_wait, limits.run_time, limits.silence].into_iter().max();
    if longest.is_some_and(|longest| longest.as_secs() > 366 * 86_400) {
        return refuse("each duration", "a year at most");
    }
    Ok(())
}

fn check_finals(plan: &Plan, tasks: &[TaskSpec]) -> Result<(), GraphError> {
    let old = plan.tasks().iter().map(|task| &task.spec);
    let mut finals = old.chain(tasks).filter(|spec| spec.is_final).map(|spec| &spec.id);
    match (finals.next(), finals.next()) {
        (Some(one), Some(two)) => Err(GraphError::TwoFinal(one.clone(), two.clone())),
        (Some(_) | None, _) => Ok(()),
    }
}

fn check_dependencies(plan: &Plan, new: &HashMap<&TaskId, usize>, task: &TaskSpec) -> Result<(), GraphError> {
    let mut seen = std::collections::HashSet::with_capacity(task.depends_on.len());
    for dependency in &task.depends_on {
        if *dependency == task.id {
            return Err(GraphError::SelfDependency(task.id.clone()));
        }
        if !new.contains_key(dependency) && plan.position(dependency).is_none() {
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

/// A circle among the new tasks, if there is one: each id depends on the next, the last on the first. Tasks of the
/// plan can't be part of one, since they depend on tasks of the plan only.
fn circle(tasks: &[TaskSpec], new: &HashMap<&TaskId, usize>) -> Option<Vec<TaskId>> {
    let left = unsortable(tasks, new);
    let mut at = *left.first()?;
    // Every task that is left depends on one that is left, so that a walk along them must come back to itself.
    let mut walked = Vec::new();
    let mut seen = HashMap::new();
    let is_left: std::collections::HashSet<usize> = left.into_iter().collect();
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

/// The positions of the tasks that no topological order reaches (Kahn's algorithm).
fn unsortable(tasks: &[TaskSpec], new: &HashMap<&TaskId, usize>) -> Vec<usize> {
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
