//! An agent with a tool of its own: a worker that offers `clerk`. Start it beside a cluster with
//! `MILLRACE_NATS_URL=nats://… cargo run -p millrace-rust-tool`, and let a task of any plan name it.

use millrace_worker::{Agent, Config, Connection, ToolError, on_signals, run, telemetry, tool};

/// What the model gives the tool: the comments become its description.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Order {
    /// The order's number.
    number: u32,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    telemetry::init("info");
    let find_order = tool("find_order", "Says where an order is.", |Order { number }, _| async move {
        match number {
            // The model reads this and can do better; it never ends the agent's work.
            0 => Err(ToolError::Refused("orders count from 1".into())),
            number => Ok(format!("order {number} left the mill today")),
        }
    });
    let clerk = Agent::new("clerk", "Answers questions on orders.")
        .instructions("You answer the objective of your task. Look up every order that it names.")
        .tool(find_order)
        .build()?;
    let url = std::env::var("MILLRACE_NATS_URL").unwrap_or_else(|_| "nats://127.0.0.1:4222".into());
    Ok(run(Config::new(Connection::with_environment(url), vec![clerk]), on_signals()?).await?)
}
