//! What was decided, as a line for a person. Pure.

use millrace_protocol::plan::Event;

use super::board::one_line;

/// The line for an event.
pub fn line(event: &Event) -> String {
    match event {
        Event::RunStarted { .. } => "run started".to_owned(),
        Event::PlanningAsked { attempt, .. } => format!("planning, attempt {attempt}"),
        Event::PlanningClaimed { worker, .. } => format!("planning on {worker}"),
        Event::ProposalAccepted { reasoning, .. } => format!("planned: {}", one_line(reasoning)),
        Event::PlanningErrored { error, .. } => format!("planning failed: {}", one_line(error)),
        Event::TaskAdded { spec, .. } => {
            format!("{} added ({}): {}", spec.id, spec.capability, one_line(&spec.objective))
        }
        Event::TaskReady { task, attempt } => format!("{task} ready, attempt {attempt}"),
        Event::CapabilityMissing { task, capability } => {
            format!("{task} waits: no worker offers {:?}", capability.as_str())
        }
        Event::AttemptClaimed { task, attempt, worker } => {
            format!("{task} running, attempt {attempt} on {worker}")
        }
        Event::AttemptFinished { task, summary, .. } => format!("{task} finished: {}", one_line(summary)),
        Event::AttemptErrored { task, attempt, error, retry_at } => {
            let then = if retry_at.is_some() { "; tries again" } else { "" };
            format!("{task} attempt {attempt} failed: {}{then}", one_line(&error.message))
        }
        Event::AttemptTimedOut { task, attempt, clock, retry_at, .. } => {
            let then = if retry_at.is_some() { "; tries again" } else { "" };
            format!("{task} attempt {attempt} timed out: {clock}{then}")
        }
        Event::ReviewErrored { task, error, .. } => {
            format!("{task} could not be judged: {}", one_line(error))
        }
        Event::VerdictGiven { task, critic, verdict, .. } => {
            let verdict_text = if verdict.passed { "passed" } else { "rejected" };
            format!("{task} {verdict_text} by {critic}: {}", one_line(&verdict.reasoning))
        }
        Event::TaskAccepted { task, .. } => format!("{task} completed"),
        Event::TaskRerun { task, attempt } => format!("{task} runs again, attempt {attempt}"),
        Event::TaskFailed { task, reason } => format!("{task} failed: {}", one_line(reason)),
        Event::TaskCancelled { task, reason, .. } => format!("{task} cancelled: {}", one_line(reason)),
        Event::RunEnded { reason, detail, .. } if detail.is_empty() => format!("run {reason}"),
        Event::RunEnded { reason, detail, .. } => format!("run {reason}: {}", one_line(detail)),
        Event::ParametersWrong { task, problem } => format!("{task} waits: {}", one_line(problem)),
        Event::OccasionRaised { occasion } => {
            format!("the planner is to be asked: {}", one_line(&occasion.to_string()))
        }
        Event::TaskPatched { spec, .. } => format!("{} changed: {}", spec.id, one_line(&spec.objective)),
        Event::FinalMarked { task } => format!("{task} is the final task"),
        Event::TaskReopened { task, attempt, .. } => format!("{task} opened again, attempt {attempt}"),
        Event::TaskInvalidated { task, .. } => format!("{task} is to be done again with what it builds on"),
        Event::Reserved { work, amounts } => {
            let amounts: Vec<String> =
                amounts.iter().map(|(dimension, amount)| dimension.say(amount)).collect();
            let what = work.task().map_or("the planner", |task| task.as_str());
            format!("{what} may use {}", amounts.join(", "))
        }
        Event::ReviewReady { task } => format!("{task} is judged again"),
        Event::BudgetLow { detail } => format!("the budget comes to its end: {detail}"),
        Event::WindingDown { reason, detail } => format!("winding down ({reason}): {}", one_line(detail)),
        Event::Commanded { by, what, .. } => format!("{by}: {}", one_line(what)),
        Event::MessageReceived { by, text } => format!("{by} tells the planner: {}", one_line(text)),
        Event::Paused => "paused".into(),
        Event::Resumed { .. } => "resumed".into(),
        Event::RunReopened => "run goes on".into(),
        Event::RunRetired => "run can't be gone on with any more".into(),
        Event::TaskPending { task } => format!("{task} waits for what it depends on"),
    }
}
