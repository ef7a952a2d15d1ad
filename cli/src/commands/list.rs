//! `millrace list`: the runs of a cluster, oldest first.

use clap::Args;
use millrace_protocol::plan::Dimension;
use millrace_protocol::registry::RunSummary;
use serde_json::json;

use crate::client::{Reading, Target, runs};
use crate::exit::{Exit, Stop};
use crate::view::{emit, one_line, print_line, say};

/// What is said beside runs that are under way where nobody works on them.
pub const ASLEEP: &str = "millrace: no cluster runs on the data folder, so that nothing goes on: `millrace resume` \
                          goes on with a run, `millrace up` with all";

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
    let is_asleep = reading.is_asleep();
    let runs = reading.with(async |bus| Ok(runs(bus).await?)).await?;
    if arguments.json {
        for (run, summary) in &runs {
            emit(&summary.as_ref().map_or_else(|| json!({ "run": run }), |summary| json!(summary)));
        }
        return Ok(Exit::Completed);
    }
    if runs.is_empty() {
        say("millrace: there are no runs yet");
    }
    for (run, summary) in &runs {
        print_line(&summary.as_ref().map_or_else(|| format!("{run}  waits for a supervisor"), line));
    }
    let is_live = |summary: &Option<RunSummary>| summary.as_ref().is_none_or(|summary| summary.end.is_none());
    if is_asleep && runs.iter().any(|(_, summary)| is_live(summary)) {
        say(ASLEEP);
    }
    Ok(Exit::Completed)
}

fn line(summary: &RunSummary) -> String {
    let (all, done) = summary.progress();
    let objective: String = one_line(&summary.objective).chars().take(60).collect();
    let state = state(summary);
    let spend = spend(summary);
    format!("{}  {state:21}  {:>13}  {spend:>14}  {objective}", summary.run, format!("{done}/{all} tasks"))
}

fn state(summary: &RunSummary) -> String {
    match (summary.end, summary.winding_down) {
        (Some(end), _) if summary.is_resumable => format!("{end}, resumable"),
        (Some(end), _) => end.to_string(),
        (None, _) if summary.is_paused => "paused".into(),
        (None, Some(_)) => "winding down".into(),
        (None, None) => "running".into(),
    }
}

/// What it cost, or else how many tokens; nothing where no model was asked.
fn spend(summary: &RunSummary) -> String {
    let tokens = Dimension::Tokens.of(&summary.usage);
    match (summary.usage.cost_micros, tokens) {
        (0, 0) => String::new(),
        (0, tokens) => Dimension::Tokens.say(tokens),
        (cost, _) => Dimension::Cost.say(cost),
    }
}
