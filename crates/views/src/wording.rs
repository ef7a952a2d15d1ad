//! Sentences about a run that views share. Pure.

use millrace_protocol::plan::{DeliverableRule, Plan, RunHold, Task};

/// Describes what keeps work from starting even if there is a worker for it; `None` if nothing does.
pub fn describe_hold(plan: &Plan, is_offline: bool) -> Option<&'static str> {
    match plan.pause_reason() {
        Some(_) => Some("the run to be resumed"),
        None if is_offline && plan.is_live() => Some("a cluster; none is running"),
        None if plan.is_held() => match plan.run.holds.first() {
            Some(RunHold::Session) => Some("the runs before it in its session"),
            Some(RunHold::Place) | None => Some("a place among the running runs"),
        },
        None if plan.is_live() && plan.needs_approval() => Some("the approval of the plan"),
        None => None,
    }
}

/// Describes what a task waits for: `hold` instead of a worker.
pub fn describe_task_wait(task: &Task, hold: Option<&str>) -> Option<String> {
    match hold.filter(|_| task.is_waiting_for_worker()) {
        Some(hold) => Some(hold.to_owned()),
        None => task.describe_wait(),
    }
}

pub fn explain_deliverable_choice(rung: DeliverableRule) -> &'static str {
    match rung {
        DeliverableRule::Final => "its task is the final one",
        DeliverableRule::Detailed => {
            "no final task was completed; it is the newest result with text beyond its summary"
        }
        DeliverableRule::Producer => "no final task was completed; it is the newest result of a producer",
        DeliverableRule::Any => "no final task was completed; it is the newest result",
    }
}
