//! `millrace watch`: a run as it goes, to its end, and then its deliverable.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use futures::StreamExt;
use millrace_protocol::ids::RunId;
use millrace_protocol::subject;
use millrace_runtime::Bus;
use tokio_util::sync::CancellationToken;

use crate::client::{Target, find, follow};
use crate::exit::{Exit, Stop};
use crate::report::Report;
use crate::story::Story;
use crate::view::{Live, View, emit, say};

/// How often what is shown is drawn again while nothing happens.
const REDRAW: Duration = Duration::from_millis(250);

/// Where the results go.
#[derive(Args, Debug, Clone)]
pub struct Output {
    /// File for the deliverable, as Markdown [default: printed, and kept below the data folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// File for the whole result, as JSON [default: below the data folder]
    #[arg(long, value_name = "FILE")]
    result: Option<PathBuf>,
    /// Print events and the result as JSON, a line each
    #[arg(long)]
    pub json: bool,
}

impl Output {
    /// Whether the files can be written, as far as can be told before there is anything to write.
    pub fn check(&self) -> Result<(), Stop> {
        for path in [&self.out, &self.result].into_iter().flatten() {
            if path.is_dir() {
                return Err(Stop::refused(anyhow!("{} is a folder; a file is needed", path.display())));
            }
        }
        Ok(())
    }
}

/// The arguments of `millrace watch`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The run, the beginning of its id, or `latest`
    run: String,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    target: Target,
}

/// What becomes of a run that is not watched any more.
#[derive(Clone, Copy, Debug)]
pub enum Unwatched {
    /// Its cluster stays, and goes on with it.
    GoesOn,
    /// Its cluster stops; the log has it.
    IsKept,
}

/// Watches a run.
pub async fn command(arguments: Arguments, interrupt: CancellationToken) -> Result<Exit, Stop> {
    let Arguments { run, output, target } = arguments;
    output.check()?;
    let bus = target.connect().await?;
    let run = find(&bus, &run).await?;
    watch(&bus, &run, View::new(output.json), &output, &target.data, (&interrupt, Unwatched::GoesOn)).await
}

/// Shows a run to its end and saves what it leaves; stops showing when the user interrupts.
pub async fn watch(
    bus: &Bus,
    run: &RunId,
    view: View,
    output: &Output,
    data: &Path,
    (interrupt, then): (&CancellationToken, Unwatched),
) -> Result<Exit, Stop> {
    let mut story = Story::default();
    let mut decisions = follow(bus, run);
    let mut live = Live::default();
    let mut writing = bus.client().subscribe(subject::all_live(run)).await.map_err(Stop::environment)?;
    let mut redraw = tokio::time::interval(REDRAW);
    redraw.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    // A run that can be gone on with may have ended before: whoever follows it knows when it is over.
    loop {
        tokio::select! {
            decision = decisions.recv() => {
                let Some(decision) = decision else { break };
                let (sequence, decision) = decision?;
                story.take(&decision);
                view.decided(run, &story.plan, &live, sequence, &decision);
            }
            Some(message) = writing.next() => live.take(&message.subject, &message.payload),
            _ = redraw.tick() => view.tick(run, &story.plan, &live),
            () = interrupt.cancelled() => {
                view.end(run, &story.plan);
                say(&match then {
                    Unwatched::GoesOn => format!(
                        "millrace: run {run} goes on without you; `millrace watch {run}` follows it again, and `millrace cancel \
                         {run}` ends it"
                    ),
                    Unwatched::IsKept => format!(
                        "millrace: interrupted; run {run} is kept, and `millrace resume {run}` goes on with it"
                    ),
                });
                return Ok(Exit::Interrupted);
            }
        }
    }
    view.end(run, &story.plan);
    let report = Report::fetch(bus, run, story).await?;
    let report = report.map_err(|_| Stop::environment(anyhow!("run {run} can't be followed any more")))?;
    deliver(&report, output, data)
}

/// Saves and prints what a run leaves. What can't be saved is printed all the same.
fn deliver(report: &Report, output: &Output, data: &Path) -> Result<Exit, Stop> {
    let saved = report.save(data, output.out.as_deref(), output.result.as_deref());
    if output.json {
        emit(&serde_json::json!({ "result": report.json() }));
    } else {
        report.summary().iter().for_each(|line| say(&format!("millrace: {line}")));
        if let Some(text) = report.markdown().filter(|_| output.out.is_none() || saved.is_err()) {
            print(&text);
        }
    }
    let saved = saved.map_err(|Stop { exit, error }| {
        let run = report.run();
        let error = error.context(format!("the run is over, and `millrace show {run}` shows what it left"));
        Stop { exit, error }
    })?;
    if !output.json {
        if let Some(path) = &saved.report {
            say(&format!("millrace: report in {}", path.display()));
        }
        say(&format!("millrace: result in {}", saved.json.display()));
    }
    Ok(Exit::of(report.end()))
}

/// The deliverable on standard output, set off from what stands above it on a terminal.
pub fn print(text: &str) {
    use std::io::{IsTerminal, Write};
    let mut out = std::io::stdout();
    let gap = if out.is_terminal() { "\n" } else { "" };
    // Whoever closed the pipe has read enough; the file has it all.
    let _ = writeln!(out, "{gap}{}{gap}", text.trim_end());
}
