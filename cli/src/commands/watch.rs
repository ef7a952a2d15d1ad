//! `millrace watch`: follows a run until it ends, then prints its deliverable.
//!
//! # Invariants
//!
//! - I96: A command that follows a run ends when the run is interrupted, and prints the command that continues it.
//!   (`tests/tests/first_command.rs::watch_ends_when_its_run_is_interrupted`)

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use futures::StreamExt;
use millrace_client::{find_run, follow_run, read_plan};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Decision, PauseReason, Plan, work_in_flight};
use millrace_protocol::safe_text::single_line;
use millrace_protocol::subject;
use millrace_runtime::{Bus, Fault};
use tokio_util::sync::CancellationToken;

use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::history::RunHistory;
use crate::interrupted::interrupt_run;
use crate::invocation::command_hint;
use crate::json::{ErrorLine, print_json};
use crate::monitors::{ConnectionMonitor, DiskMonitor, LinkState};
use crate::questions::InPlaceAnswers;
use crate::report::RunReport;
use crate::session::ClusterSession;
use crate::target::{ClusterTarget, ReadConnection, read_run_history, refuse_damaged_log};
use crate::view::{
    LiveModelOutput, RunDisplay, describe_requested_wait, print_deliverable, print_stderr_line,
};

/// Redraw interval while nothing happens.
const REDRAW: Duration = Duration::from_millis(250);

/// Output files and formats of a run.
#[derive(Args, Debug, Clone)]
pub struct OutputOptions {
    /// File for the deliverable, as Markdown [default: print it, and save it below the data folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// File for the complete result, as JSON [default: below the data folder]
    #[arg(long, value_name = "FILE")]
    result: Option<PathBuf>,
    /// End with exit code 3 if fewer of the deliverable's statements are verified, such as 90%
    #[arg(long, value_name = "PERCENT", value_parser = parse_percentage)]
    min_verified: Option<f64>,
    /// Print a JSON object for each event, and the result as the last one (see `millrace schema run`)
    #[arg(long)]
    pub json: bool,
}

impl OutputOptions {
    /// Refuses output options of a command that does not wait for the result.
    pub fn refuse_without_wait(&self) -> Result<(), CommandError> {
        let given = [
            ("--out", self.out.is_some()),
            ("--result", self.result.is_some()),
            ("--min-verified", self.min_verified.is_some()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => Err(refused!(
                "{name} needs --wait: without it, the command prints the run's id and returns at once"
            )),
            None => Ok(()),
        }
    }

    /// Refuses output paths that are folders, or in folders that do not exist, before anything is started: a path with a
    /// slip would otherwise create folders.
    pub fn refuse_unusable_paths(&self) -> Result<(), CommandError> {
        for path in [&self.out, &self.result].into_iter().flatten() {
            let refuse = |text: String| Err(refused!(text));
            if path.is_dir() {
                return refuse(format!("{} is a folder; give the path of a file", path.display()));
            }
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
                let (path, folder) = (path.display(), folder.display());
                return refuse(format!(
                    "{path} can't be written: there is no folder {folder}; create it first"
                ));
            }
        }
        Ok(())
    }

    /// Prints why a command stops watching a run that has not ended. Returns the exit code.
    fn print_stop(&self, exit: CommandExit, text: String) -> CommandExit {
        if self.json {
            print_json(&ErrorLine::new(exit, text));
        } else {
            note!("{text}");
        }
        exit
    }
}

const EXAMPLES: &str = "\
Ctrl-C stops watching; the run continues.

Examples:
  millrace watch latest
  millrace watch latest --out report.md";

/// The arguments of `millrace watch`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct WatchArguments {
    /// Run id, a unique prefix of it, or `latest`
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    run: String,
    #[command(flatten, next_help_heading = "Output")]
    output: OutputOptions,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

pub async fn run_command(arguments: WatchArguments, interrupt: CancellationToken) -> CommandResult {
    let WatchArguments { run, output, target } = arguments;
    output.refuse_unusable_paths()?;
    let reading = ReadConnection::open_for_reading(&target).await?;
    let is_offline = reading.is_offline();
    let watch = async |bus: &Bus| {
        let run = find_run(bus, &run).await?;
        refuse_damaged_log(bus, &run).await?;
        if is_offline {
            return print_ended_run(bus, &run, &output, &target).await;
        }
        watch_run(bus, &run, RunDisplay::new(output.json), &output, &target, None, &interrupt).await
    };
    Box::pin(reading.read_and_close(watch)).await
}

/// Prints and saves the result of a run while no cluster is running.
async fn print_ended_run(
    bus: &Bus,
    run: &RunId,
    output: &OutputOptions,
    target: &ClusterTarget,
) -> CommandResult {
    let history = read_run_history(bus, run).await?;
    match RunReport::fetch_if_ended(bus, run, history).await? {
        Ok(report) => print_and_save_result(&report, output, &target.data),
        Err(_) => Err(CommandError::unusable_environment(anyhow!(
            "run {run} is unfinished, and no cluster is running on {}: continue it with `{}`",
            target.data.display(),
            command_hint(&format!("resume {run}"))
        ))),
    }
}

/// Shows a run until it ends and saves its results; stops showing when the user interrupts. The run of a `session` stops
/// then, too, unless its cluster keeps running.
pub async fn watch_run(
    bus: &Bus,
    run: &RunId,
    view: RunDisplay,
    output: &OutputOptions,
    target: &ClusterTarget,
    session: Option<&ClusterSession>,
    interrupt: &CancellationToken,
) -> CommandResult {
    let mut decisions = follow_run(bus, run);
    let mut writing = bus
        .client()
        .subscribe(subject::live_output_subjects_of_run(run))
        .await
        .map_err(CommandError::unusable_environment)?;
    let mut redraw = tokio::time::interval(REDRAW);
    redraw.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    // Answers are given in place by those who started the run; others use `millrace answer`.
    let answers = session.and_then(|_| InPlaceAnswers::open(bus, run, &view));
    let connection = ConnectionMonitor::new(bus, target);
    let disk = target.nats.is_none().then(|| DiskMonitor::new(&target.data));
    let (history, live) = (RunHistory::default(), LiveModelOutput::default());
    let mut watched = WatchedRun { run, history, live, view, connection, disk, answers };
    // A resumed run has ended before: `follow` knows which end is the last one.
    loop {
        tokio::select! {
            decision = decisions.recv() => {
                let Some(decision) = decision else { break };
                watched.add_decision(decision)?;
            }
            Some(message) = writing.next() => {
                watched.live.add_message(&message.subject, &message.payload, jiff::Timestamp::now());
            }
            event = InPlaceAnswers::next_event(&mut watched.answers) => {
                if let Some(answers) = &mut watched.answers {
                    answers.handle(event, &mut watched.view);
                }
                watched.redraw();
            }
            _ = redraw.tick() => {
                let is_redrawn = watched.check_surroundings(&target.data)?;
                // The decisions may be those before a later resumption, so that the log has the last word.
                if is_redrawn && is_at_rest(&watched.history.plan) && is_at_rest(&read_plan(bus, run).await?) {
                    break;
                }
            }
            () = interrupt.cancelled() => {
                watched.close();
                let text = match watched.connection.is_lost() {
                    true => watched.connection.describe_unreachable_run(run),
                    false => stop_watching(bus, run, session).await?,
                };
                return Ok(output.print_stop(CommandExit::Interrupted, text));
            }
        }
    }
    watched.close();
    print_watched_result(bus, run, watched.history, output, &target.data).await
}

/// Prints and saves the result of a run that was shown to its end, or says that it is paused.
async fn print_watched_result(
    bus: &Bus,
    run: &RunId,
    history: RunHistory,
    output: &OutputOptions,
    data: &Path,
) -> CommandResult {
    if let Some(text) = describe_pause(run, &history.plan) {
        return Ok(output.print_stop(CommandExit::Paused, text));
    }
    let report = RunReport::fetch_if_ended(bus, run, history).await?;
    let report = report.map_err(|_| {
        CommandError::unusable_environment(anyhow!(
            "lost track of run {run}: the cluster no longer reports it"
        ))
    })?;
    print_and_save_result(&report, output, data)
}

/// A run that is shown until it ends.
struct WatchedRun<'a> {
    run: &'a RunId,
    history: RunHistory,
    live: LiveModelOutput,
    view: RunDisplay,
    connection: ConnectionMonitor,
    disk: Option<DiskMonitor>,
    answers: Option<InPlaceAnswers>,
}

impl WatchedRun<'_> {
    fn add_decision(&mut self, decision: Result<(u64, Decision), Fault>) -> Result<(), CommandError> {
        let (sequence, decision) = match decision {
            Err(_) if self.connection.is_lost() => {
                self.view.end_view(self.run, &self.history.plan);
                return Err(self.connection.ended_error(self.run));
            }
            decision => decision?,
        };
        self.history.add_decision(&decision);
        self.follow_questions();
        self.view.show_decision(self.run, &self.history.plan, &self.live, sequence, &decision);
        self.print_answers();
        Ok(())
    }

    fn follow_questions(&mut self) {
        if let Some(answers) = &mut self.answers {
            answers.follow(&self.history.plan, &mut self.view);
        }
    }

    fn print_answers(&mut self) {
        if let Some(answers) = &mut self.answers {
            answers.print_lines(&mut self.view);
        }
    }

    fn redraw(&mut self) {
        self.follow_questions();
        self.view.redraw(self.run, &self.history.plan, &self.live);
        self.print_answers();
    }

    /// Reports a change of the disk or of the connection, and redraws the view while the connection is well, as the result says.
    fn check_surroundings(&mut self, data: &Path) -> Result<bool, CommandError> {
        if let Some(change) = self.disk.as_mut().and_then(DiskMonitor::check_if_due) {
            print_stderr_line(&change.describe(data));
        }
        match self.connection.check() {
            LinkState::Lost(since) => self.view.show_lost_connection(self.run, &self.history.plan, since),
            LinkState::Ended => {
                self.view.end_view(self.run, &self.history.plan);
                return Err(self.connection.ended_error(self.run));
            }
            LinkState::Recovered(outage) => self.view.show_recovered_connection(outage),
            LinkState::Connected => {
                self.redraw();
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn close(&mut self) {
        if let Some(mut answers) = self.answers.take() {
            answers.close(&mut self.view);
        }
        self.view.end_view(self.run, &self.history.plan);
    }
}

/// Returns the line about a run that stands still until a user resumes it.
pub fn describe_pause(run: &RunId, plan: &Plan) -> Option<String> {
    let resume = command_hint(&format!("resume {run}"));
    match plan.pause_reason()? {
        PauseReason::Provider(wait) => Some(format!(
            "run {run} is paused: the provider of {} does not answer ({}); `{resume}` tries again at once{}",
            single_line(&wait.model),
            single_line(&wait.error),
            describe_requested_wait(wait, jiff::Timestamp::now())
        )),
        PauseReason::Interruption => Some(format!("run {run} was interrupted; continue it with `{resume}`")),
        PauseReason::User => None,
    }
}

/// Stops a run that ends with its command. Returns the line about the run.
async fn stop_watching(
    bus: &Bus,
    run: &RunId,
    session: Option<&ClusterSession>,
) -> Result<String, CommandError> {
    let plan = read_plan(bus, run).await?;
    if let Some(line) = describe_pause(run, &plan).filter(|_| is_at_rest(&plan)) {
        return Ok(line);
    }
    let stopping = session.filter(|session| session.stops_with_its_users());
    let Some(session) = stopping else {
        return Ok(format!(
            "run {run} continues in the background; follow it with `{}`, cancel it with `{}`",
            command_hint(&format!("watch {run}")),
            command_hint(&format!("cancel {run}"))
        ));
    };
    // Otherwise the cluster interrupts it when its workers have stopped.
    if session.has_other_users() {
        interrupt_run(bus, run).await?;
    }
    Ok(format!("interrupted; run {run} is kept, resume it with `{}`", command_hint(&format!("resume {run}"))))
}

/// `true` if nothing more happens in a run until it is resumed.
pub fn is_at_rest(plan: &Plan) -> bool {
    is_paused_for_provider(plan) || is_interrupted(plan)
}

/// `true` if a run was interrupted and not resumed since.
fn is_interrupted(plan: &Plan) -> bool {
    plan.is_live() && plan.run.is_interrupted
}

/// `true` if a run is paused because its provider does not answer, and none of its work is in flight any more.
fn is_paused_for_provider(plan: &Plan) -> bool {
    plan.is_live() && plan.run.paused_for_provider.is_some() && work_in_flight(plan).is_empty()
}

/// Saves and prints the results of a run. If saving fails, the deliverable is still printed.
fn print_and_save_result(report: &RunReport, output: &OutputOptions, data: &Path) -> CommandResult {
    let saved = report.save_files(data, output.out.as_deref(), output.result.as_deref());
    if output.json {
        print_json(&report.result_json());
    } else {
        report.summary_lines().iter().for_each(|line| note!("{line}"));
        if let Some(text) = report.deliverable_markdown().filter(|_| output.out.is_none() || saved.is_err()) {
            print_deliverable(&text);
        }
    }
    let saved = saved.map_err(|CommandError { exit, error }| {
        let run = report.run_id();
        let show = command_hint(&format!("show {run}"));
        let error = error.context(format!("the run has ended; `{show}` prints its results"));
        CommandError { exit, error }
    })?;
    if !output.json {
        if let Some(path) = &saved.report {
            note!("report in {}", path.display());
        }
        note!("result in {}", saved.json.display());
        if let Some(notice) = report.missing_review_line() {
            note!("{notice}");
        }
    }
    let exit = CommandExit::from_run_end(report.run_end());
    match output.min_verified.and_then(|least| describe_missing_verification(report, least)) {
        Some(text) if exit == CommandExit::Completed => {
            note!("{text}");
            Ok(CommandExit::Partial)
        }
        Some(_) | None => Ok(exit),
    }
}

/// The reason that a deliverable has too few verified statements; `None` if it has enough, or if there is none.
fn describe_missing_verification(report: &RunReport, percent: f64) -> Option<String> {
    let counts = report.verification()?;
    if counts.statements == 0 {
        return (percent > 0.0).then(|| {
            format!("no statement of the deliverable was verified, and --min-verified asks for {percent}%")
        });
    }
    (counts.share() * 100.0 < percent).then(|| format!("{counts}; --min-verified asks for {percent}%"))
}

/// Parses `90%` or `90`.
fn parse_percentage(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>().ok();
    let percent = number.filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "expected a percentage from 0% to 100%, such as 90%".to_owned())
}
