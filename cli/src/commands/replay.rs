//! `millrace replay`: reconstructs the state of a run at any point in its log, and prints its decisions.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use millrace_protocol::plan::{AnswerCause, Decision};
use millrace_runtime::Bus;
use millrace_runtime::store::archive::read_run_from_log_or_archive;

use crate::exit::{CommandExit, CommandResult};
use crate::history::RunHistory;
use crate::json::{DecisionLine, ReplayJson, print_json};
use crate::report::resume_command_hint;
use crate::target::ClusterTarget;
use crate::view::{LiveModelOutput, format_event_line, print_stdout_line, render_board_lines};
use millrace_client::find_run;

const EXAMPLES: &str = "\
Examples:
  millrace replay latest --log              all decisions with their causes
  millrace replay latest --at 120 --json    the state after message 120";

/// The arguments of `millrace replay`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ReplayArguments {
    /// Run id, a unique prefix of it, or `latest`
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    run: String,
    /// Stop after the message with this sequence number [default: the last]
    #[arg(long, value_name = "SEQUENCE")]
    at: Option<u64>,
    /// Also print each decision with its causes and events
    #[arg(long)]
    log: bool,
    /// Print the state (and, with --log, each decision) as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

pub async fn run_command(arguments: ReplayArguments) -> CommandResult {
    arguments.target.read(async |bus| replay_run(bus, &arguments).await).await
}

async fn replay_run(bus: &Bus, arguments: &ReplayArguments) -> CommandResult {
    let run = find_run(bus, &arguments.run).await?;
    let (mut history, mut last) = (RunHistory::default(), None);
    let records = read_run_from_log_or_archive(bus, bus.lane_of_run(&run), &run).await?;
    if let (Some(at), Some(first), Some(end)) = (arguments.at, records.first(), records.last())
        && at < first.sequence
    {
        return Err(refused!(
            "run {run} has no state at {at}: its messages are {} to {} of its lane",
            first.sequence,
            end.sequence
        ));
    }
    for record in records {
        if arguments.at.is_some_and(|last| record.sequence > last) {
            break;
        }
        if !record.is_decision() {
            continue;
        }
        let decision: Decision = bus.decode_record(&record).await?;
        history.add_decision(&decision);
        last = Some((record.sequence, decision.at));
        match (arguments.log, arguments.json) {
            (false, _) => {}
            (true, true) => print_json(&DecisionLine::new(&run, record.sequence, &decision)),
            (true, false) => print_decision(record.sequence, &decision),
        }
    }
    if arguments.json {
        print_json(&ReplayJson::new(&run, &history, last, resume_command_hint(&run, &history.plan)));
    } else {
        let now = last.map_or(jiff::Timestamp::UNIX_EPOCH, |(_, at)| at);
        render_board_lines(&run, &history.plan, &LiveModelOutput::default(), now, 200, usize::MAX)
            .iter()
            .for_each(|line| print_stdout_line(line));
    }
    Ok(CommandExit::Completed)
}

/// Prints a decision: a line for each cause, refusal and event.
fn print_decision(sequence: u64, decision: &Decision) {
    print_stdout_line(&format!("{sequence}  {}  by {}", decision.at, decision.by));
    let mut events = decision.events.iter();
    for answer in &decision.answers {
        let cause = match answer.cause {
            AnswerCause::Fact(fact) => format!("message {fact}"),
            AnswerCause::Clock => "timer".into(),
            AnswerCause::Registry => "capability registry".into(),
            AnswerCause::Rules => "rules".into(),
        };
        if let Some(refusal) = &answer.refusal {
            print_stdout_line(&format!("    {cause}: refused: {refusal}"));
        }
        for event in events.by_ref().take(answer.events as usize) {
            print_stdout_line(&format!("    {cause}: {}", format_event_line(event)));
        }
    }
}
