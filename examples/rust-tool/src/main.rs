//! An agent with a custom tool: a worker that provides the capability `clerk`. Start it next to a cluster with
//! `cargo run -p millrace-rust-tool -- --nats nats://…`, and use it in a task of any plan.

use std::process::ExitCode;

use millrace_worker::{Agent, ToolError, run_worker_program, tool};

/// The arguments of the tool; the model sees the comments as their descriptions.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Order {
    /// The number of the order.
    number: u32,
}

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let find_order =
        tool("find_order", "Returns the status of an order.", |Order { number }, _| async move {
            match number {
                // The model sees this error and can correct its call; it does not end the agent's work.
                0 => Err(ToolError::Refused("order numbers start at 1".into())),
                number => Ok(format!("order {number} was shipped today")),
            }
        });
    let clerk = Agent::new("clerk", "Answers questions about orders.")
        .instructions("You answer the objective of your task. Look up every order it mentions.")
        .tool(find_order)
        .build()?;
    Ok(run_worker_program("millrace-rust-tool", vec![clerk]))
}
