//! `millrace replay`: fold the log of a run to its state as of any message, and print it with what was decided.

use clap::Args;
use millrace_protocol::plan::{Cause, Decision, Plan, apply_decision};
use millrace_protocol::subject::{self, Topic};
use millrace_runtime::Bus;
use millrace_runtime::archive::find_run;

use crate::client::{Reading, Target, find};
use crate::exit::{Exit, Stop};
use crate::view::{Live, board, emit, line, print_line};

/// The arguments of `millrace replay`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The run, the beginning of its id, or `latest`
    run: String,
    /// Stop behind the message with this sequence [default: the last]
    #[arg(long, value_name = "SEQUENCE")]
    at: Option<u64>,
    /// Print what each decision answered and decided, too
    #[arg(long)]
    log: bool,
    /// Print the state (and, with --log, each decision) as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Replays a run.
pub async fn command(arguments: Arguments) -> Result<Exit, Stop> {
    let reading = Reading::open(&arguments.target).await?;
    reading.with(async |bus| replay(bus, &arguments).await).await
}

async fn replay(bus: &Bus, arguments: &Arguments) -> Result<Exit, Stop> {
    let run = find(bus, &arguments.run).await?;
    let (mut plan, mut now) = (Plan::default(), jiff::Timestamp::UNIX_EPOCH);
    for record in find_run(bus, bus.lane(&run), &run).await? {
        if arguments.at.is_some_and(|last| record.sequence > last) {
            break;
        }
        if record.is_stray || !matches!(subject::parse(&record.subject), Some((_, _, Topic::Plan))) {
            continue;
        }
        let decision: Decision = bus.open(&record).await?;
        apply_decision(&mut plan, &decision);
        now = decision.at;
        match (arguments.log, arguments.json) {
            (false, _) => {}
            (true, true) => {
                emit(&serde_json::json!({ "sequence": record.sequence, "decision": decision }));
            }
            (true, false) => explain(record.sequence, &decision),
        }
    }
    if arguments.json {
        print_line(&format!("{:#}", serde_json::json!({ "run": run, "plan": plan })));
    } else {
        board(&run, &plan, &Live::default(), now, 200, usize::MAX).iter().for_each(|line| print_line(line));
    }
    Ok(Exit::Completed)
}

/// What was decided and why, a line for each answer and event.
fn explain(sequence: u64, decision: &Decision) {
    print_line(&format!("{sequence}  {}  by {}", decision.at, decision.by));
    let mut events = decision.events.iter();
    for answer in &decision.answers {
        let cause = match answer.cause {
            Cause::Fact(fact) => format!("on message {fact}"),
            Cause::Clock => "as time passed".into(),
            Cause::Registry => "on what the cluster can do".into(),
            Cause::Rules => "by the rules".into(),
        };
        if let Some(refusal) = &answer.refusal {
            print_line(&format!("    {cause}: refused, {refusal}"));
        }
        for event in events.by_ref().take(answer.events as usize) {
            print_line(&format!("    {cause}: {}", line(event)));
        }
    }
}
