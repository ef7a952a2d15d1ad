//! `millrace answer`: answers questions of runs.

use std::io::Read;

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args};
use millrace_protocol::foreign_json::parse_foreign_json;
use millrace_protocol::question::{Answer, AnswerScope, MAX_ANSWER};
use millrace_runtime::Bus;
use tokio_util::sync::CancellationToken;

use crate::exit::{CommandError, CommandExit, CommandResult, run_until_interrupt};
use crate::invocation::{command_hint, complete_hints};
use crate::json::{AnswerLine, print_json};
use crate::questions::{AnswerOutcome, AnswerRequest, OutcomeKind, PlanCache, answer_question};
use crate::steer::{author_name, patience};
use crate::target::{ClusterTarget, ReadConnection};
use crate::view::print_error;

const EXPLANATION: &str = "\
`millrace inbox` lists the open questions with their ids and the decisions that each allows. The first answer counts; a later
one is refused with its author. RUN or RUN/TASK is enough as an id if it has one open question.

Exit codes: 0 every question was answered; 2 an answer was refused, or came too late: the others count.

Examples:
  millrace answer latest --approve
  millrace answer latest/deploy/1/1 --reject \"not on a Friday\" --scope this_tool_in_run
  millrace answer latest/deploy/1/1 --edit arguments.json
  millrace answer r-7/choose/1/1 r-9/choose/1/1 --value north
  millrace answer latest/report/1/1 --fail \"the table has no units\"
  millrace answer latest/plan/1 --approve";

/// The arguments of `millrace answer`.
#[derive(Args, Debug)]
#[command(after_help = EXPLANATION)]
#[command(group = ArgGroup::new("decision").required(true).multiple(false))]
pub struct AnswerArguments {
    /// Questions, as `millrace inbox` prints their ids
    #[arg(required = true, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    ids: Vec<String>,
    /// Run the tool call as proposed, or start the tasks of the plan
    #[arg(long, group = "decision", help_heading = "Decision")]
    approve: bool,
    /// Do not run the tool call, or do not carry out the plan; the agent or the planner receives this reason
    #[arg(long, group = "decision", value_name = "TEXT", help_heading = "Decision")]
    reject: Option<String>,
    /// Run the tool call with the complete arguments in this file, as JSON; - is standard input
    #[arg(long, group = "decision", value_name = "FILE", help_heading = "Decision")]
    edit: Option<String>,
    /// Do not run the tool call; the agent is given this text as its result
    #[arg(long, group = "decision", value_name = "TEXT", help_heading = "Decision")]
    respond: Option<String>,
    /// Give the requested input: JSON, or a text
    #[arg(long, group = "decision", value_name = "VALUE", help_heading = "Decision")]
    value: Option<String>,
    /// Decline to give the requested input
    #[arg(long, group = "decision", help_heading = "Decision")]
    decline: bool,
    /// Accept the result
    #[arg(long, group = "decision", help_heading = "Decision")]
    pass: bool,
    /// Reject the result; the next attempt receives this feedback
    #[arg(long, group = "decision", value_name = "TEXT", help_heading = "Decision")]
    fail: Option<String>,
    /// Calls that the approval or rejection also decides: this call only, all calls of the tool with the same arguments, or
    /// all calls of the tool, each by the same capability in this run
    #[arg(
        long, value_name = "SCOPE", default_value = AnswerScope::Once.name(), help_heading = "Decision",
        value_parser = PossibleValuesParser::new(AnswerScope::ALL.map(AnswerScope::name)).map(scope_of_name),
    )]
    scope: AnswerScope,
    /// Author of the answer, recorded in the log [default: your login name]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Print a JSON object for each question
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

fn scope_of_name(name: String) -> AnswerScope {
    let scope = AnswerScope::ALL.into_iter().find(|scope| scope.name() == name);
    scope.expect("the parser accepts the names of scopes only")
}

/// Answers the questions one by one; the mistakes of one do not affect the others.
pub async fn run_command(arguments: AnswerArguments, interrupt: CancellationToken) -> CommandResult {
    let request = read_request(&arguments)?;
    let AnswerArguments { ids, scope, by, json, target, .. } = arguments;
    let by = author_name(by);
    let work = async {
        let connection = ReadConnection::open_for_command(&target).await?;
        let is_offline = connection.is_offline();
        let answer = async |bus: &Bus| {
            let (mut plans, mut exit) = (PlanCache::new(), CommandExit::Completed);
            let mut has_answered = false;
            for id in &ids {
                let answer = (&request, scope, by.as_str());
                let outcome = answer_question(bus, &mut plans, id, answer, patience(&interrupt)).await?;
                print_outcome(&outcome, json);
                match outcome.kind {
                    OutcomeKind::Answered => has_answered = true,
                    OutcomeKind::Sent => return Ok(CommandExit::Interrupted),
                    OutcomeKind::Already
                    | OutcomeKind::Expired
                    | OutcomeKind::Withdrawn
                    | OutcomeKind::Unknown
                    | OutcomeKind::Ambiguous
                    | OutcomeKind::Refused => exit = CommandExit::Refused,
                }
            }
            if is_offline && has_answered {
                note!(
                    "no cluster is running, so the runs make no progress; `{}` continues unfinished runs",
                    command_hint("up")
                );
            }
            Ok(exit)
        };
        connection.read_and_close(answer).await
    };
    run_until_interrupt(&interrupt, work).await
}

fn print_outcome(outcome: &AnswerOutcome, json: bool) {
    if json {
        print_json(&AnswerLine::from(outcome));
    } else if outcome.kind == OutcomeKind::Answered || outcome.kind == OutcomeKind::Sent {
        note!("{}", outcome.line());
    } else {
        print_error(&complete_hints(&outcome.line()));
    }
}

/// Reads the decision of the command line.
fn read_request(arguments: &AnswerArguments) -> Result<AnswerRequest, CommandError> {
    let AnswerArguments { approve, reject, edit, respond, value, pass, fail, .. } = arguments;
    if let Some(value) = value {
        let read = AnswerRequest::from_value(value);
        return read.map_err(|mistake| refused!("the value {mistake}"));
    }
    let answer = match (approve, reject, edit, respond, pass, fail) {
        (true, ..) => Answer::Approve,
        (_, Some(message), ..) => Answer::Reject { message: message.clone() },
        (_, _, Some(file), ..) => Answer::Edit { arguments: read_arguments(file)? },
        (_, _, _, Some(content), ..) => Answer::Respond { content: content.clone() },
        (_, _, _, _, true, _) => Answer::Pass,
        (_, _, _, _, _, Some(feedback)) => Answer::Fail { feedback: feedback.clone() },
        (..) => Answer::Decline,
    };
    Ok(AnswerRequest::Given(answer))
}

/// Reads the arguments of a call from a file or from standard input.
fn read_arguments(file: &str) -> Result<String, CommandError> {
    let is_stdin = file == "-";
    let name = if is_stdin { "standard input" } else { file };
    let mut text = String::new();
    // One byte more than an answer may have, so that longer ones are refused.
    let limit = MAX_ANSWER as u64 + 1;
    let read = if is_stdin {
        std::io::stdin().take(limit).read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(limit).read_to_string(&mut text))
    };
    read.map_err(|error| refused!("{name} can't be read: {error}"))?;
    let value: Result<serde_json::Value, _> = parse_foreign_json(&text);
    match value {
        _ if text.len() > MAX_ANSWER => Err(refused!("{name} is longer than {MAX_ANSWER} bytes")),
        Ok(value) => Ok(value.to_string()),
        Err(error) => Err(refused!("{name} is not JSON: {error}")),
    }
}
