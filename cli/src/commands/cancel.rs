//! `millrace cancel`: a run, or one of its tasks with what hangs on it.

use anyhow::anyhow;
use clap::Args;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{Control, Plan, apply_decision};

use crate::client::{Target, control, find, fold, follow};
use crate::exit::{Exit, Stop};
use crate::view::say;

/// The arguments of `millrace cancel`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The run, the beginning of its id, or `latest`
    run: String,
    /// Only this task, and what hangs on it
    #[arg(long, value_name = "TASK")]
    task: Option<TaskId>,
    /// Why; it is written into the log
    #[arg(long, value_name = "TEXT", default_value = "cancelled by the user")]
    reason: String,
    #[command(flatten)]
    target: Target,
}

/// Cancels, and waits until it is decided.
pub async fn command(arguments: Arguments) -> Result<Exit, Stop> {
    let Arguments { run, task, reason, target } = arguments;
    let bus = target.connect().await?;
    let run = find(&bus, &run).await?;
    let plan = fold(&bus, &run, None).await?;
    check(&plan, task.as_ref())?;
    let what = task.as_ref().map_or_else(|| format!("run {run}"), |task| format!("task {task}"));
    let wish = match task.clone() {
        None => Control::CancelRun { reason },
        Some(task) => Control::CancelTask { task, reason },
    };
    control(&bus, &run, &wish).await?;
    let mut decisions = follow(&bus, &run);
    let mut plan = Plan::default();
    while let Some(decision) = decisions.recv().await {
        apply_decision(&mut plan, &decision?.1);
        if check(&plan, task.as_ref()).is_err() {
            break;
        }
    }
    say(&format!("millrace: {what} is cancelled"));
    Ok(Exit::Completed)
}

/// Whether there is still something to cancel.
fn check(plan: &Plan, task: Option<&TaskId>) -> Result<(), Stop> {
    let Some(id) = task else {
        return match &plan.end {
            Some(end) => Err(Stop::refused(anyhow!("the run has already ended ({})", end.reason))),
            None => Ok(()),
        };
    };
    match plan.task(id).map(|task| task.state) {
        Some(state) if state.is_terminal() => Err(Stop::refused(anyhow!("task {id} is already {state}"))),
        Some(_) => Ok(()),
        // Before its first decision a run has no tasks; the rules will say whether this one exists.
        None if plan.start.is_none() => Ok(()),
        None => {
            let known: Vec<&str> = plan.tasks().iter().take(20).map(|task| task.spec.id.as_str()).collect();
            Err(Stop::refused(anyhow!("there is no task {id}; there are: {}", known.join(", "))))
        }
    }
}
