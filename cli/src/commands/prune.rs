//! `millrace prune`: deletes the runs that ended some time ago.

use std::collections::HashSet;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use millrace_client::{Administrator, author_name};
use millrace_protocol::audit::Actor;
use millrace_protocol::ids::RunId;
use millrace_protocol::labels::LabelSelector;
use millrace_protocol::plan::EndReason;
use millrace_protocol::retention::{PruneForecast, PruneSelection};
use millrace_runtime::Bus;
use millrace_runtime::clock::parse_duration;
use millrace_runtime::store::retention::{forecast_prune, select_runs};

use crate::exit::{CommandExit, CommandResult};
use crate::json::{PruneJson, print_json};
use crate::target::{ClusterTarget, ReadConnection};
use crate::view::{print_stdout_line, separate_thousands};

const EXAMPLES: &str = "\
Runs that have not ended are never selected. `millrace retention set` does the same by a rule.

Examples:
  millrace prune --older-than 30d --dry-run
  millrace prune --older-than 12h --label team=search --state failed";

/// The selection of runs by age, labels and the reason of their end.
#[derive(Args, Debug)]
pub struct SelectionArguments {
    /// Only runs that ended longer ago than this, such as 30d or 12h
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    older_than: Duration,
    /// Only runs with this label, or with any value of it; may be given several times
    #[arg(long, value_name = "NAME[=VALUE]")]
    label: Vec<LabelSelector>,
    /// Only runs that ended in this state; may be given several times
    #[arg(long, value_name = "STATE", value_parser = PossibleValuesParser::new(EndReason::ALL.map(EndReason::name)).map(reason_of_name))]
    state: Vec<EndReason>,
}

fn reason_of_name(name: String) -> EndReason {
    let reason = EndReason::ALL.into_iter().find(|reason| reason.name() == name);
    reason.expect("the parser accepts the names of ends only")
}

impl From<SelectionArguments> for PruneSelection {
    fn from(SelectionArguments { older_than, label, state }: SelectionArguments) -> Self {
        Self { older_than, labels: label, states: state }
    }
}

/// The arguments of `millrace prune`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PruneArguments {
    #[command(flatten)]
    selection: SelectionArguments,
    /// Delete nothing; print the runs, and the storage that their deletion frees
    #[arg(long)]
    dry_run: bool,
    /// Author, recorded with the deletions [default: your login name]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

/// Requests the deletions, or prints what they would delete.
pub async fn run_command(arguments: PruneArguments) -> CommandResult {
    let PruneArguments { selection, dry_run, by, json, target } = arguments;
    let (selection, by) = (PruneSelection::from(selection), author_name(by));
    let connection = match dry_run {
        true => ReadConnection::open_for_reading(&target).await?,
        false => ReadConnection::open_for_command(&target).await?,
    };
    let prune = async |bus: &Bus| {
        if dry_run {
            let selected = select_runs(bus, &selection).await?;
            let runs: Vec<RunId> = selected.into_iter().map(|summary| summary.run).collect();
            let all: HashSet<RunId> = runs.iter().cloned().collect();
            let forecast = forecast_prune(bus, &all).await?;
            print_selection(runs, forecast, json);
        } else {
            let runs = Administrator::new(bus, Actor::local(by)).prune_runs(&selection).await?;
            let count = runs.len();
            match json {
                true => print_json(&PruneJson { runs, dry_run, forecast: None }),
                false => note!("supervisors delete {count} run{}", if count == 1 { "" } else { "s" }),
            }
        }
        Ok(CommandExit::Completed)
    };
    connection.read_and_close(prune).await
}

fn print_selection(runs: Vec<RunId>, forecast: PruneForecast, json: bool) {
    if json {
        print_json(&PruneJson { runs, dry_run: true, forecast: Some(forecast) });
        return;
    }
    for run in &runs {
        print_stdout_line(run.as_str());
    }
    let number = |count: u64| separate_thousands(&count.to_string());
    note!(
        "{} runs would be deleted: {} bytes in the archive, and {} blobs of {} bytes that nothing else refers to",
        number(forecast.runs),
        number(forecast.archive_bytes),
        number(forecast.blobs),
        number(forecast.blob_bytes)
    );
}
