//! `millrace inbox`: lists the open questions of runs to persons, once or as they come.
//!
//! Only the logs of runs are read whose summary counts questions, so that the cost does not grow with the number of runs.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use console::Term;
use jiff::Timestamp;
use millrace_client::{find_run, list_runs, list_runs_from_log, read_plan};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Plan, RunQuestion};
use millrace_protocol::safe_text::single_line;
use millrace_runtime::{Bus, Fault};
use tokio_util::sync::CancellationToken;

use crate::exit::{CommandExit, CommandResult};
use crate::invocation::command_hint;
use crate::json::{QuestionLine, print_json};
use crate::questions::{
    QuestionTracker, describe_end, format_closed_question, format_question, full_id, open_questions_of_plan,
};
use crate::target::{ClusterTarget, ReadConnection};
use crate::view::{format_clock, print_stdout_line};

/// The interval at which `--watch` looks for changes.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "\
Examples:
  millrace inbox
  millrace inbox latest --history
  millrace inbox --watch
  millrace inbox --json";

/// The arguments of `millrace inbox`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct InboxArguments {
    /// Only questions of this run: a run id, a unique prefix of it, or `latest` [default: all runs]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    run: Option<String>,
    /// Also list closed questions, with the decision, its author, its time and its duration
    #[arg(long)]
    history: bool,
    /// Print new questions as they come, and those that are answered elsewhere, until Ctrl-C
    #[arg(long, conflicts_with = "history")]
    watch: bool,
    /// Print a JSON object for each question
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

/// The number of open questions of a run, and of all its questions: as long as both stay the same, so do the open ones.
type QuestionCounts = (u32, u32);

/// Lists the questions.
pub async fn run_command(arguments: InboxArguments, interrupt: CancellationToken) -> CommandResult {
    let reading = ReadConnection::open_for_reading(&arguments.target).await?;
    let is_offline = reading.is_offline();
    let read = async |bus: &Bus| {
        let only = match &arguments.run {
            Some(run) => Some(find_run(bus, run).await?),
            None => None,
        };
        match arguments.watch {
            true => watch_questions(bus, &arguments, only.as_ref(), is_offline, &interrupt).await,
            false => list_questions(bus, &arguments, only, is_offline).await,
        }
    };
    reading.read_and_close(read).await
}

/// Returns the runs that have asked questions, with their counts, oldest first.
async fn runs_with_questions(bus: &Bus, is_offline: bool) -> Result<Vec<(RunId, QuestionCounts)>, Fault> {
    let runs = match is_offline {
        // The last summaries of a cluster that has stopped may be older than its last decisions.
        true => list_runs_from_log(bus).await?,
        false => list_runs(bus).await?,
    };
    let counts = |(run, summary): (RunId, Option<_>)| {
        let summary: millrace_protocol::registry::RunSummary = summary?;
        (summary.questions > 0).then_some((run, (summary.open_questions, summary.questions)))
    };
    Ok(runs.into_iter().filter_map(counts).collect())
}

async fn list_questions(
    bus: &Bus,
    arguments: &InboxArguments,
    only: Option<RunId>,
    is_offline: bool,
) -> CommandResult {
    let is_wanted =
        |(run, (open, _)): (RunId, QuestionCounts)| (arguments.history || open > 0).then_some(run);
    let (runs, is_one): (Vec<RunId>, bool) = match only {
        // It may have asked a moment ago, before its summary was written.
        Some(run) => (vec![run], true),
        None => {
            (runs_with_questions(bus, is_offline).await?.into_iter().filter_map(is_wanted).collect(), false)
        }
    };
    let (now, width, mut count) = (Timestamp::now(), output_width(), 0);
    for run in &runs {
        let plan = read_plan(bus, run).await?;
        let records = match arguments.history {
            true => plan.questions().collect(),
            false => open_questions_of_plan(&plan),
        };
        for record in records {
            count += 1;
            print_question(run, record, now, width, arguments.json);
        }
    }
    if count == 0 && !arguments.json {
        let of = match runs.first().filter(|_| is_one) {
            Some(run) => format!("run {run} has"),
            None => "there are".into(),
        };
        let kind = if arguments.history { "no questions" } else { "no open questions" };
        note!("{of} {kind}");
    }
    if is_offline && count > 0 {
        note!(
            "no cluster is running; answers are kept, and `{}` continues unfinished runs",
            command_hint("up")
        );
    }
    Ok(CommandExit::Completed)
}

/// The width to which texts are wrapped, if standard output is a terminal.
fn output_width() -> Option<usize> {
    std::io::stdout().is_terminal().then(|| usize::from(Term::stdout().size().1).saturating_sub(1))
}

fn print_question(run: &RunId, record: RunQuestion<'_>, now: Timestamp, width: Option<usize>, json: bool) {
    if json {
        print_json(&QuestionLine::new(run, record));
        return;
    }
    let lines = match record.is_open() {
        true => format_question(run, &record, now, width),
        false => format_closed_question(run, &record, width),
    };
    lines.iter().for_each(|line| print_stdout_line(line));
    print_stdout_line("");
}

#[derive(Default)]
struct WatchedRun {
    counts: QuestionCounts,
    tracker: QuestionTracker,
}

/// Prints new questions, and those that are closed, until the user interrupts.
async fn watch_questions(
    bus: &Bus,
    arguments: &InboxArguments,
    only: Option<&RunId>,
    is_offline: bool,
    interrupt: &CancellationToken,
) -> CommandResult {
    let mut watched: BTreeMap<RunId, WatchedRun> = BTreeMap::new();
    let mut is_first = true;
    loop {
        for (run, counts) in read_counts(bus, is_offline).await? {
            if only.is_some_and(|only| *only != run) {
                continue;
            }
            let state = watched.entry(run.clone()).or_default();
            if state.counts == counts || (counts.0 == 0 && state.tracker.open_count() == 0) {
                state.counts = counts;
                continue;
            }
            state.counts = counts;
            let plan = millrace_client::retry_transient(|| read_plan(bus, &run)).await?;
            print_changes(&run, &plan, &mut state.tracker, arguments.json);
        }
        let open: usize = watched.values().map(|run| run.tracker.open_count()).sum();
        if std::mem::take(&mut is_first) && !arguments.json {
            let none = if open == 0 { "there are no open questions; " } else { "" };
            note!("{none}waiting for questions (Ctrl-C ends)");
        }
        tokio::select! {
            () = tokio::time::sleep(WATCH_INTERVAL) => {}
            () = interrupt.cancelled() => return Ok(CommandExit::Interrupted),
        }
    }
}

async fn read_counts(bus: &Bus, is_offline: bool) -> Result<Vec<(RunId, QuestionCounts)>, Fault> {
    millrace_client::retry_transient(|| runs_with_questions(bus, is_offline)).await
}

fn print_changes(run: &RunId, plan: &Plan, tracker: &mut QuestionTracker, json: bool) {
    let changes = tracker.take_changes(plan);
    let (now, width) = (Timestamp::now(), output_width());
    for record in changes.opened {
        print_question(run, record, now, width, json);
    }
    for record in changes.closed {
        if json {
            print_json(&QuestionLine::new(run, record));
        } else {
            let (id, end) = (full_id(run, &record.id), describe_end(&record));
            print_stdout_line(&format!("{} {id} is closed: {}\n", format_clock(now), single_line(&end)));
        }
    }
}
