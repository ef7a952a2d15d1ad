//! `millrace show`: a run as it stands, and its deliverable if it is over.

use clap::Args;
use jiff::Timestamp;
use millrace_runtime::Bus;

use crate::client::{Reading, Target, find, fold};
use crate::commands::watch::print;
use crate::exit::{Exit, Stop};
use crate::report::Report;
use crate::view::{Live, board};

/// The arguments of `millrace show`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The run, the beginning of its id, or `latest`
    run: String,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Shows a run.
pub async fn command(arguments: Arguments) -> Result<Exit, Stop> {
    let reading = Reading::open(&arguments.target).await?;
    reading.with(async |bus| show(bus, &arguments).await).await
}

async fn show(bus: &Bus, arguments: &Arguments) -> Result<Exit, Stop> {
    let run = find(bus, &arguments.run).await?;
    let plan = fold(bus, &run, None).await?;
    if !arguments.json {
        board(&run, &plan, &Live::default(), Timestamp::now(), 200, usize::MAX)
            .iter()
            .for_each(|line| println!("{line}"));
    }
    let unfinished = arguments.json.then(|| serde_json::json!({ "run": run, "plan": plan }));
    match (Report::fetch(bus, &run, plan).await?, unfinished) {
        (Some(report), Some(_)) => println!("{:#}", report.json()),
        (Some(report), None) => report.markdown().iter().for_each(|text| print(text)),
        (None, Some(state)) => println!("{state:#}"),
        (None, None) => {}
    }
    Ok(Exit::Completed)
}
