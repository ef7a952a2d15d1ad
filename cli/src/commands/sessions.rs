//! `millrace sessions`: lists the sessions of a cluster, by their last changes.

use clap::Args;
use jiff::Timestamp;

use crate::exit::{CommandExit, CommandResult};
use crate::invocation::{command_hint, is_remote};
use crate::json::{SessionLine, SessionTable, print_json};
use crate::target::{ClusterTarget, ReadConnection};
use crate::view::{align_columns, format_age, print_stdout_line, separate_thousands};
use millrace_client::{list_runs, list_runs_from_log};
use millrace_runtime::Bus;

const EXAMPLES: &str = "\
`millrace list --session NAME` lists the runs of a session.

Examples:
  millrace sessions
  millrace sessions --limit 20 --json";

/// The arguments of `millrace sessions`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SessionsArguments {
    /// Only the N sessions that changed last
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Print a JSON object for each session
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

pub async fn run_command(arguments: SessionsArguments) -> CommandResult {
    let reading = ReadConnection::open_for_reading(&arguments.target).await?;
    let is_offline = reading.is_offline();
    let runs = async |bus: &Bus| match is_offline {
        true => Ok(list_runs_from_log(bus).await?),
        false => Ok(list_runs(bus).await?),
    };
    let mut table = SessionTable::default();
    for (_, summary) in reading.read_and_close(runs).await? {
        summary.iter().for_each(|summary| table.add_run(summary));
    }
    let mut sessions = table.into_lines();
    sessions.truncate(arguments.limit.unwrap_or(usize::MAX));
    if arguments.json {
        sessions.iter().for_each(print_json);
    } else if sessions.is_empty() {
        let submit = if is_remote() { "submit" } else { "run" };
        let hint = command_hint(&format!("{submit} OBJECTIVE --session NAME"));
        note!("there are no sessions yet; `{hint}` starts one");
    } else {
        format_sessions(&sessions, Timestamp::now()).iter().for_each(|line| print_stdout_line(line));
    }
    Ok(CommandExit::Completed)
}

fn format_sessions(sessions: &[SessionLine], now: Timestamp) -> Vec<String> {
    let heads = ["SESSION", "RUNS", "STATES", "CHANGED", "TOKENS", "LAST RUN"].map(str::to_owned);
    let lines = sessions.iter().map(|session| {
        let states: Vec<String> =
            session.states.iter().map(|(state, count)| format!("{count} {state}")).collect();
        let tokens = session.usage.input_tokens.saturating_add(session.usage.output_tokens);
        [
            session.session.to_string(),
            session.run_count.to_string(),
            states.join(", "),
            format_age(now.duration_since(session.updated_at.timestamp())),
            separate_thousands(&tokens.to_string()),
            session.last_run.to_string(),
        ]
    });
    let rows: Vec<[String; 6]> = [heads].into_iter().chain(lines).collect();
    align_columns(&rows)
}
