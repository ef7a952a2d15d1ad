//! `millrace show`: shows the current state of a run, and its deliverable if it has ended; or the transcript of one of its
//! tasks ([`task`]).

mod task;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use jiff::Timestamp;
use millrace_runtime::Bus;

use crate::commands::watch::print_deliverable;
use crate::exit::{CommandExit, CommandResult};
use crate::interrupted::offline_run_hint;
use crate::json::{RunResult, print_json};
use crate::questions::{format_question_line, open_questions_of_plan};
use crate::report::{RunReport, resume_command_hint};
use crate::target::{ClusterTarget, ReadConnection, read_run_history, refuse_damaged_log};
use crate::view::{
    self, LiveModelOutput, print_board_lines, print_stderr_line, print_stdout_line, render_board_lines,
    render_offline_board_lines,
};
use millrace_client::find_run;

/// Maximum number of characters of a line of the board.
const WIDTH: usize = 200;

const EXAMPLES: &str = "\
With a task, shows what its agents did: messages, tool calls with arguments and
results, usage, verdicts. `@planner` as the task shows the planner's turns.

Examples:
  millrace show latest
  millrace show latest --json
  millrace show latest report
  millrace show latest report --attempt 2 --full
  millrace show latest report --follow
  millrace show latest @planner";

/// The arguments of `millrace show`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ShowArguments {
    /// Run id, a unique prefix of it, or `latest`
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    run: String,
    /// Task whose transcript to show, or `@planner`
    task: Option<String>,
    /// Print everything as one JSON object, or with --follow one for each entry
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Transcript of a task")]
    transcript: task::TranscriptOptions,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

/// Shows a run, or the transcript of a task.
pub async fn run_command(arguments: ShowArguments) -> CommandResult {
    let reading = ReadConnection::open_for_reading(&arguments.target).await?;
    let is_offline = reading.is_offline();
    let show = async |bus: &Bus| match &arguments.task {
        None => show_run(bus, &arguments, is_offline).await,
        Some(task) => {
            let run = find_run(bus, &arguments.run).await?;
            let options = (&arguments.transcript, arguments.json);
            Box::pin(task::show_task(bus, &run, task, options, &arguments.target, is_offline)).await
        }
    };
    reading.read_and_close(show).await
}

async fn show_run(bus: &Bus, arguments: &ShowArguments, is_offline: bool) -> CommandResult {
    let run = find_run(bus, &arguments.run).await?;
    let history = read_run_history(bus, &run).await?;
    if history.plan.run.end.is_none() {
        refuse_damaged_log(bus, &run).await?;
    }
    let now = Timestamp::now();
    if !arguments.json {
        let live = LiveModelOutput::default();
        print_board_lines(&match is_offline {
            true => render_offline_board_lines(&run, &history.plan, now, WIDTH),
            false => render_board_lines(&run, &history.plan, &live, now, WIDTH, usize::MAX),
        });
        for record in open_questions_of_plan(&history.plan) {
            print_stdout_line(&format_question_line(&run, &record));
        }
        view::format_history_lines(&history).iter().for_each(|line| print_stdout_line(line));
    }
    match (RunReport::fetch_if_ended(bus, &run, history).await?, arguments.json) {
        (Ok(report), true) => print_json(&report.result_json()),
        (Ok(report), false) => report.deliverable_markdown().iter().for_each(|text| print_deliverable(text)),
        (Err(history), true) => {
            let result = RunResult::new(&run, &history, None, now, resume_command_hint(&run, &history.plan));
            print_json(&if is_offline { result.without_cluster(&history) } else { result });
        }
        (Err(history), false) if is_offline => print_stderr_line(&offline_run_hint(&run, &history.plan)),
        (Err(_), false) => {}
    }
    Ok(CommandExit::Completed)
}
