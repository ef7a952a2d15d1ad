//! `millrace list`: the runs of a cluster, oldest first.

use clap::Args;
use millrace_protocol::registry::RunSummary;
use millrace_runtime::{Bus, registry};

use crate::client::{Reading, Target};
use crate::exit::{Exit, Stop};
use crate::view::{emit, say};

/// The arguments of `millrace list`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Print a JSON object for each run
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Lists the runs.
pub async fn command(arguments: Arguments) -> Result<Exit, Stop> {
    let reading = Reading::open(&arguments.target).await?;
    reading.with(async |bus| list(bus, &arguments).await).await
}

async fn list(bus: &Bus, arguments: &Arguments) -> Result<Exit, Stop> {
    let runs = registry::runs(bus).await?;
    if arguments.json {
        for summary in &runs {
            emit(&serde_json::to_value(summary).expect("a summary has a form in JSON"));
        }
        return Ok(Exit::Completed);
    }
    if runs.is_empty() {
        say("millrace: there are no runs yet");
    }
    for summary in &runs {
        println!("{}", line(summary));
    }
    Ok(Exit::Completed)
}

fn line(summary: &RunSummary) -> String {
    let state = summary.end.map_or_else(|| "running".to_owned(), |end| end.to_string());
    let (all, done) = summary.progress();
    let objective: String = summary.objective.split_whitespace().collect::<Vec<_>>().join(" ");
    let objective: String = objective.chars().take(60).collect();
    format!("{}  {state:19}  {:>13}  {objective}", summary.run, format!("{done}/{all} tasks"))
}
