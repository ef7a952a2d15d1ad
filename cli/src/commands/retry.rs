//! `millrace retry`: a task runs once more, and what was built on it too.

use clap::Args;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{Control, Edit};
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Stop};
use crate::steer::{Steering, refuse_unknown};

/// The arguments of `millrace retry`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    steering: Steering,
    /// The task: one that failed, was cancelled, waits to try again, or is completed
    task: TaskId,
    /// What the next attempt is told, beside its objective
    #[arg(long, value_name = "TEXT")]
    feedback: Option<String>,
}

/// Has a task run once more, and waits until it is decided.
pub async fn command(arguments: Arguments, interrupt: CancellationToken) -> Result<Exit, Stop> {
    let Arguments { steering, task, feedback } = arguments;
    let make = async |_: &_, plan: &_| {
        refuse_unknown(plan, &task)?;
        Ok(Control::Edit(Edit::Retry { task, feedback }))
    };
    steering.command(&interrupt, make).await
}
