//! `millrace show`: a run as it stands, and its deliverable if it is over.

use clap::Args;
use jiff::Timestamp;
use millrace_runtime::Bus;

use crate::client::{Reading, Target, find, story};
use crate::commands::list::ASLEEP;
use crate::commands::watch::print;
use crate::exit::{Exit, Stop};
use crate::report::{Report, json};
use crate::view::{Live, board, history, print_line, say};

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
    let is_asleep = reading.is_asleep();
    reading.with(async |bus| show(bus, &arguments, is_asleep).await).await
}

async fn show(bus: &Bus, arguments: &Arguments, is_asleep: bool) -> Result<Exit, Stop> {
    let run = find(bus, &arguments.run).await?;
    let story = story(bus, &run).await?;
    let now = Timestamp::now();
    if !arguments.json {
        board(&run, &story.plan, &Live::default(), now, 200, usize::MAX)
            .iter()
            .for_each(|line| print_line(line));
        history(&story).iter().for_each(|line| print_line(line));
    }
    match (Report::fetch(bus, &run, story).await?, arguments.json) {
        (Ok(report), true) => print_line(&format!("{:#}", report.json())),
        (Ok(report), false) => report.markdown().iter().for_each(|text| print(text)),
        (Err(story), true) => print_line(&format!("{:#}", json(&run, &story, None, now))),
        (Err(_), false) if is_asleep => say(ASLEEP),
        (Err(_), false) => {}
    }
    Ok(Exit::Completed)
}
