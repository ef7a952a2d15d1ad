//! The measured plans, as submissions: `echo` tasks that finish at once. Nothing is random, so that every round does the
//! same work.

use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::{Capability, TaskId};
use millrace_protocol::plan::{PlanningMode, ReviewPolicy, Submission, TaskLimits, TaskSpec, Work};

/// Number of tasks in a layer of [`layered_submission`].
pub const LAYER: u32 = 1_000;
/// Distance between the two dependencies of a task in a layer.
const STRIDE: u32 = 7;

/// Independent tasks.
pub fn fan_out_submission(tasks: u32, reviewed: bool) -> Submission {
    let review = if reviewed { ReviewPolicy::critic(Vec::new()) } else { ReviewPolicy::None };
    fixed_submission(
        (0..tasks).map(|at| TaskSpec { review: review.clone(), ..echo_task(at, Vec::new()) }).collect(),
    )
}

/// Like [`fan_out_submission`], but the first task takes `delay`, so that the run lasts at least that long.
pub fn fan_out_submission_with_delay(tasks: u32, delay: Duration) -> Submission {
    let mut plan = fan_out_submission(tasks, false);
    if let Some(first) = plan.tasks.first_mut() {
        let delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        Arc::make_mut(first).parameters.insert("delay_ms".into(), delay.into());
    }
    plan
}

/// Like [`fan_out_submission`], but each task takes `delay` and is reviewed.
pub fn reviewed_submission_with_delay(tasks: u32, delay: Duration) -> Submission {
    let mut plan = fan_out_submission(tasks, true);
    let delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
    for task in &mut plan.tasks {
        Arc::make_mut(task).parameters.insert("delay_ms".into(), delay.into());
    }
    plan
}

/// Tasks that each depend on the one before.
pub fn chain_submission(tasks: u32) -> Submission {
    fixed_submission(
        (0..tasks).map(|at| echo_task(at, at.checked_sub(1).map(task_id).into_iter().collect())).collect(),
    )
}

/// Layers of [`LAYER`] tasks that each depend on two tasks of the layer before.
pub fn layered_submission(tasks: u32) -> Submission {
    let above = |at: u32| match at.checked_sub(LAYER) {
        Some(above) => {
            vec![task_id(above), task_id(above / LAYER * LAYER + (above % LAYER + STRIDE) % LAYER)]
        }
        None => Vec::new(),
    };
    fixed_submission((0..tasks).map(|at| echo_task(at, above(at))).collect())
}

/// Tasks that wait for the second of two events, behind a first task that waits for the first one.
pub fn gated_submission(tasks: u32, [open, go]: [&str; 2]) -> Submission {
    let gate = waiting_task(0, open, Vec::new());
    let behind = (1..=tasks).map(|at| waiting_task(at, go, vec![task_id(0)]));
    fixed_submission([gate].into_iter().chain(behind).collect())
}

/// Independent tasks that finish at once, and a first task that waits for an event.
pub fn fan_out_submission_with_event(tasks: u32, event: &str) -> Submission {
    let first = waiting_task(0, event, Vec::new());
    let others = (1..=tasks).map(|at| echo_task(at, Vec::new()));
    fixed_submission([first].into_iter().chain(others).collect())
}

/// Independent tasks that each run for an hour.
pub fn long_submission(tasks: u32) -> Submission {
    let hour = Duration::from_secs(3_600);
    let limits = TaskLimits { run_time: 2 * hour, silence: 2 * hour, ..TaskLimits::default() };
    let long = |at: u32| {
        let mut task = TaskSpec { limits: limits.clone(), ..echo_task(at, Vec::new()) };
        task.parameters.insert("delay_ms".into(), 3_600_000.into());
        task
    };
    fixed_submission((0..tasks).map(long).collect())
}

/// A task that journals this number of bytes and then waits for an event.
pub fn waiting_submission(journal_bytes: u32, event: &str) -> Submission {
    let mut task = waiting_task(0, event, Vec::new());
    task.parameters.insert("journal_bytes".into(), journal_bytes.into());
    fixed_submission(vec![task])
}

/// The work of [`waiting_submission`].
pub fn waiting_work() -> Work {
    Work::Task { task: task_id(0), attempt: 1 }
}

/// A chain of `tasks` tasks that each delegate one task and wait for it, followed by as many that delegate none.
pub fn delegating_submission(tasks: u32) -> Submission {
    let mut plan = chain_submission(2 * tasks);
    for task in plan.tasks.iter_mut().take(tasks as usize) {
        Arc::make_mut(task).parameters.insert("delegate".into(), serde_json::json!([{}]));
    }
    plan
}

fn fixed_submission(tasks: Vec<TaskSpec>) -> Submission {
    Submission::new("Measure the throughput of tasks.", PlanningMode::Fixed).with_tasks(tasks)
}

fn echo_task(at: u32, depends_on: Vec<TaskId>) -> TaskSpec {
    let capability = Capability::new("echo").expect("the constant is a valid name");
    TaskSpec {
        depends_on,
        ..TaskSpec::new(task_id(at), format!("Finish at once, as number {at}."), capability)
    }
}

/// A task that waits for an event.
fn waiting_task(at: u32, event: &str, depends_on: Vec<TaskId>) -> TaskSpec {
    let mut task = echo_task(at, depends_on);
    task.parameters.insert("await_event".into(), event.into());
    task
}

fn task_id(at: u32) -> TaskId {
    TaskId::new(format!("t{at}")).expect("a letter and digits are a valid name")
}

#[cfg(test)]
mod tests {
    use millrace_protocol::plan::{Plan, check_new_tasks};

    use super::*;

    #[test]
    fn the_plans_are_valid() {
        for plan in [
            fan_out_submission(30, true),
            fan_out_submission_with_delay(30, Duration::from_secs(1)),
            reviewed_submission_with_delay(30, Duration::from_millis(50)),
            chain_submission(30),
            layered_submission(3 * LAYER),
            layered_submission(LAYER + 1),
            waiting_submission(1_000, "go"),
            delegating_submission(30),
            gated_submission(30, ["open", "go"]),
            fan_out_submission_with_event(30, "go"),
            long_submission(30),
        ] {
            assert_eq!(check_new_tasks(&Plan::default(), &plan.tasks), Ok(()));
        }
    }

    #[test]
    fn tasks_below_the_first_layer_have_two_dependencies() {
        for (at, task) in layered_submission(3 * LAYER).tasks.iter().enumerate().skip(LAYER as usize) {
            let above =
                |id: &TaskId| (0..3 * LAYER).position(|at| task_id(at) == *id).unwrap() as u32 / LAYER;
            assert_eq!(task.depends_on.len(), 2, "{at}");
            assert!(task.depends_on[0] != task.depends_on[1]);
            if at % 251 == 0 {
                assert!(task.depends_on.iter().all(|id| above(id) == at as u32 / LAYER - 1), "{at}");
            }
        }
    }
}
