//! `millrace cancel`: a run, or one of its tasks with what hangs on it.

use clap::Args;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::Control;
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Stop};
use crate::steer::{Steering, refuse_unknown};

/// The arguments of `millrace cancel`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    steering: Steering,
    /// Only this task; what depends on it goes by its own on_failed_dependency
    #[arg(long, value_name = "TASK")]
    task: Option<TaskId>,
    /// Why; it is written into the log
    #[arg(long, value_name = "TEXT", default_value = "cancelled by the user")]
    reason: String,
}

/// Cancels, and waits until it is decided.
pub async fn command(arguments: Arguments, interrupt: CancellationToken) -> Result<Exit, Stop> {
    let Arguments { steering, task, reason } = arguments;
    let make = async |_: &_, plan: &_| match task {
        None => Ok(Control::CancelRun { reason }),
        Some(task) => {
            refuse_unknown(plan, &task)?;
            Ok(Control::CancelTask { task, reason })
        }
    };
    steering.command(&interrupt, make).await
}
