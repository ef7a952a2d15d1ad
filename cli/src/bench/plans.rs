//! The plans that are measured, as submissions: `echo` tasks that finish at once. Nothing here is random, so that
//! every round of every run of the benchmarks does the same.

use std::time::Duration;

use millrace_protocol::ids::{Capability, TaskId};
use millrace_protocol::plan::{Mode, Review, Submission, TaskSpec};

/// How many tasks a layer of [`layered`] has.
pub const LAYER: u32 = 1_000;
/// How far to the right of the task above it the second dependency of a task in a layer lies.
const STRIDE: u32 = 7;

/// Tasks that depend on nothing.
pub fn fan_out(tasks: u32, reviewed: bool) -> Submission {
    let review = if reviewed { Review::critic(Vec::new()) } else { Review::None };
    submission((0..tasks).map(|at| TaskSpec { review: review.clone(), ..task(at, Vec::new()) }).collect())
}

/// As [`fan_out`], but the first task takes so long: the run is live until then, however few tasks there are.
pub fn fan_out_that_lasts(tasks: u32, delay: Duration) -> Submission {
    let mut plan = fan_out(tasks, false);
    if let Some(first) = plan.tasks.first_mut() {
        let delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        first.parameters.insert("delay_ms".into(), delay.into());
    }
    plan
}

/// As [`fan_out`], each reviewed, and each takes so long.
pub fn that_take(tasks: u32, delay: Duration) -> Submission {
    let mut plan = fan_out(tasks, true);
    let delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
    for task in &mut plan.tasks {
        task.parameters.insert("delay_ms".into(), delay.into());
    }
    plan
}

/// Tasks each of which depends on the one before.
pub fn chain(tasks: u32) -> Submission {
    submission((0..tasks).map(|at| task(at, at.checked_sub(1).map(name).into_iter().collect())).collect())
}

/// Layers of [`LAYER`] tasks, each of which depends on two of the layer before.
pub fn layered(tasks: u32) -> Submission {
    let above = |at: u32| match at.checked_sub(LAYER) {
        Some(above) => vec![name(above), name(above / LAYER * LAYER + (above % LAYER + STRIDE) % LAYER)],
        None => Vec::new(),
    };
    submission((0..tasks).map(|at| task(at, above(at))).collect())
}

fn submission(tasks: Vec<TaskSpec>) -> Submission {
    Submission { tasks, ..Submission::new("Measure how fast tasks go through.", Mode::Fixed) }
}

fn task(at: u32, depends_on: Vec<TaskId>) -> TaskSpec {
    let capability = Capability::new("echo").expect("letters make a name");
    TaskSpec { depends_on, ..TaskSpec::new(name(at), format!("Finish at once, as number {at}."), capability) }
}

fn name(at: u32) -> TaskId {
    TaskId::new(format!("t{at}")).expect("a letter and digits make a name")
}

#[cfg(test)]
mod tests {
    use millrace_protocol::plan::{Plan, check};

    use super::*;

    #[test]
    fn the_plans_are_accepted_by_the_rules() {
        for plan in [
            fan_out(30, true),
            fan_out_that_lasts(30, Duration::from_secs(1)),
            that_take(30, Duration::from_millis(50)),
            chain(30),
            layered(3 * LAYER),
            layered(LAYER + 1),
        ] {
            assert_eq!(check(&Plan::default(), &plan.tasks), Ok(()));
        }
    }

    #[test]
    fn every_task_below_the_first_layer_hangs_on_two_of_the_layer_before() {
        for (at, task) in layered(3 * LAYER).tasks.iter().enumerate().skip(LAYER as usize) {
            let above = |id: &TaskId| (0..3 * LAYER).position(|at| name(at) == *id).unwrap() as u32 / LAYER;
            assert_eq!(task.depends_on.len(), 2, "{at}");
            assert!(task.depends_on[0] != task.depends_on[1]);
            if at % 251 == 0 {
                assert!(task.depends_on.iter().all(|id| above(id) == at as u32 / LAYER - 1), "{at}");
            }
        }
    }
}
