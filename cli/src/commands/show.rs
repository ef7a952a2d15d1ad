//! `millrace show`: shows the current state of a run, and its deliverable if it has ended; or the transcript of one of its
//! tasks or of the planner, once or as it grows.

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use jiff::Timestamp;
use millrace_client::{Journals, TaskUpdate, find_run, follow_task, read_task};
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{Attempt, Plan, Task, TaskState};
use millrace_protocol::safe_text::single_line;
use millrace_protocol::schema::find_nearest_name;
use millrace_runtime::Bus;
use millrace_runtime::work::queue_place::read_places;
use millrace_views::journal::{TranscriptEntry, read_entry};

use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::history::RunHistory;
use crate::interrupted::offline_run_hint;
use crate::invocation::command_hint;
use crate::json::{
    EntryLine, PlannerTranscript, RunResult, TaskTranscript, describe_wait_of_plan, print_json,
    waiting_work_of_plan,
};
use crate::monitors::{ConnectionMonitor, LinkState};
use crate::questions::{
    format_closed_question, format_question, format_question_line, open_questions_of_plan,
};
use crate::report::{RunReport, resume_command_hint};
use crate::target::{ClusterTarget, ReadConnection, read_run_history, refuse_damaged_log};
use crate::transcript::{TranscriptPrinter, attempt_heading};
use crate::view::{
    self, LiveModelOutput, describe_lost_connection, describe_recovery, print_board_lines, print_deliverable,
    print_stderr_line, print_stdout_line, render_board_lines, render_offline_board_lines,
};

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
    transcript: TranscriptOptions,
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
            Box::pin(show_task(bus, &run, task, options, &arguments.target, is_offline)).await
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
    let waiting = if is_offline { Vec::new() } else { waiting_work_of_plan(&run, &history.plan) };
    let places = read_places(bus, waiting).await?;
    if !arguments.json {
        let live = LiveModelOutput::default();
        print_board_lines(&match is_offline {
            true => render_offline_board_lines(&run, &history.plan, now, WIDTH),
            false => render_board_lines(&run, &history.plan, &live, now, WIDTH, usize::MAX),
        });
        if let Some(wait) = describe_wait_of_plan(&run, &history.plan, &places) {
            print_stdout_line(&single_line(&wait));
        }
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
            print_json(&match is_offline {
                true => result.without_cluster(&history),
                false => result.with_places(&history, &places),
            });
        }
        (Err(history), false) if is_offline => print_stderr_line(&offline_run_hint(&run, &history.plan)),
        (Err(_), false) => {}
    }
    Ok(CommandExit::Completed)
}

/// The name that selects the planner instead of a task; no task can have it.
const PLANNER: &str = "@planner";
/// The interval at which a follower checks its connection.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// The maximum number of tasks that an error lists.
const LISTED_TASKS: usize = 20;

/// The options of a transcript.
#[derive(Args, Debug)]
pub struct TranscriptOptions {
    /// Attempt to show; for @planner, the turn [default: all]
    #[arg(long, value_name = "N", requires = "task", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: Option<u32>,
    /// Follow until the attempt or, without --attempt, the task ends
    #[arg(long, requires = "task")]
    follow: bool,
    /// Show long texts in full on a terminal
    #[arg(long, requires = "task")]
    full: bool,
}

/// Shows the transcript of the task that `name` names.
pub async fn show_task(
    bus: &Bus,
    run: &RunId,
    name: &str,
    (options, json): (&TranscriptOptions, bool),
    target: &ClusterTarget,
    is_offline: bool,
) -> CommandResult {
    let journals = match name {
        PLANNER => Journals::Planner,
        name => Journals::Task(TaskId::new(name).map_err(CommandError::invalid_input)?),
    };
    let mut view = TranscriptView::new(run, &journals, options, json);
    let updates = read_task(bus, run, &journals).await?;
    for update in &updates {
        if let TaskUpdate::Decision { decision, .. } = update {
            view.history.add_decision(decision);
        }
    }
    view.check_selection()?;
    let is_over = view.is_over();
    let is_following = options.follow && !is_over && !is_offline;
    // Entries after the last decision are read again by the follower, which reads the journals in the order of the log.
    let last = updates.iter().rev().find(|update| matches!(update, TaskUpdate::Decision { .. }));
    let last = last.map_or(0, TaskUpdate::sequence);
    for update in updates {
        match update {
            TaskUpdate::Entry(entry) if !is_following || entry.sequence <= last => {
                view.add_entry(read_entry(bus, *entry).await?);
            }
            TaskUpdate::Entry(_) | TaskUpdate::Decision { .. } => {}
        }
    }
    view.print_start(options.follow);
    if is_following {
        follow_journals(bus, &journals, last, &mut view, target).await?;
    }
    view.print_end(options.follow);
    if is_offline && !is_over {
        print_stderr_line(&offline_run_hint(run, &view.history.plan));
    }
    Ok(CommandExit::Completed)
}

/// Adds what happens after a sequence, until the task or attempt has ended.
async fn follow_journals(
    bus: &Bus,
    journals: &Journals,
    last: u64,
    view: &mut TranscriptView<'_>,
    target: &ClusterTarget,
) -> Result<(), CommandError> {
    let mut arriving = follow_task(bus, view.run, journals, last);
    let mut connection = ConnectionMonitor::new(bus, target);
    let mut is_lost = false;
    loop {
        let updates = tokio::select! {
            updates = arriving.recv() => updates,
            () = tokio::time::sleep(CHECK_INTERVAL) => {
                match connection.check() {
                    LinkState::Lost(since) if !std::mem::replace(&mut is_lost, true) => {
                        note!("{}", describe_lost_connection(since));
                    }
                    LinkState::Recovered(outage) => {
                        is_lost = false;
                        note!("{}", describe_recovery(outage));
                    }
                    LinkState::Ended => return Err(connection.ended_error(view.run)),
                    LinkState::Lost(_) | LinkState::Connected => {}
                }
                continue;
            }
        };
        let Some(updates) = updates else { return Ok(()) };
        if updates.is_err() && connection.is_lost() {
            return Err(connection.ended_error(view.run));
        }
        for update in updates? {
            match update {
                TaskUpdate::Entry(entry) => view.add_entry(read_entry(bus, *entry).await?),
                TaskUpdate::Decision { decision, .. } => {
                    view.history.add_decision(&decision);
                    if view.is_over() {
                        return Ok(());
                    }
                }
            }
        }
    }
}

struct TranscriptView<'a> {
    run: &'a RunId,
    journals: &'a Journals,
    number: Option<u32>,
    json: bool,
    history: RunHistory,
    /// The entries that were read before the output began.
    entries: Vec<TranscriptEntry>,
    has_started: bool,
    printer: TranscriptPrinter,
}

impl<'a> TranscriptView<'a> {
    fn new(run: &'a RunId, journals: &'a Journals, options: &TranscriptOptions, json: bool) -> Self {
        let is_cutting = !options.full && std::io::stdout().is_terminal();
        Self {
            run,
            journals,
            number: options.attempt,
            json,
            history: RunHistory::default(),
            entries: Vec::new(),
            has_started: false,
            printer: TranscriptPrinter::new(is_cutting),
        }
    }

    fn plan(&self) -> &Plan {
        &self.history.plan
    }

    fn task(&self) -> Option<&Task> {
        match self.journals {
            Journals::Task(task) => self.plan().task(task),
            Journals::Planner => None,
        }
    }

    /// Checks that the task and the attempt exist, or may come to exist in a run that has not ended.
    fn check_selection(&self) -> Result<(), CommandError> {
        let run = self.run;
        let (last, what) = match (self.journals, self.task()) {
            (Journals::Task(name), None) => return Err(self.unknown_task(name)),
            (Journals::Task(name), Some(task)) => (task.attempt, format!("task {name} has no attempt")),
            (Journals::Planner, _) if !self.plan().has_planner() => {
                return Err(refused!("run {run} has no planner: its plan is fixed"));
            }
            (Journals::Planner, _) => (self.plan().planning.turns, "the planner has no turn".to_owned()),
        };
        match self.number {
            Some(number) if number > last && self.is_over() => {
                Err(refused!("{what} {number}; the last one is {last}"))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn unknown_task(&self, name: &TaskId) -> CommandError {
        let all: Vec<&str> = self.plan().tasks().iter().map(|task| task.spec.id.as_str()).collect();
        let hint = match (find_nearest_name(name.as_str(), all.iter().copied()), all.as_slice()) {
            (Some(near), _) => format!("did you mean {near}?"),
            (None, []) => "it has no tasks yet".to_owned(),
            (None, all) if all.len() <= LISTED_TASKS => format!("its tasks are {}", all.join(", ")),
            (None, all) => {
                format!("`{}` lists its {} tasks", command_hint(&format!("show {}", self.run)), all.len())
            }
        };
        refused!("run {} has no task {name}; {hint}", self.run)
    }

    /// `true` if nothing more is to be expected: the attempt or turn, the task, or the run has ended.
    fn is_over(&self) -> bool {
        if self.plan().run.end.is_some() {
            return true;
        }
        match (self.journals, self.task(), self.number) {
            (Journals::Planner, _, None) | (Journals::Task(_), None, _) => false,
            (Journals::Planner, _, Some(number)) => {
                self.history.turns.iter().any(|turn| turn.turn == number && turn.ended_at.is_some())
            }
            (Journals::Task(_), Some(task), None) => task.state().is_terminal(),
            (Journals::Task(_), Some(task), Some(number)) => {
                let has_ended = |number| {
                    let attempt = task.attempts.iter().find(|attempt| attempt.number == number);
                    attempt.is_some_and(|attempt| attempt.end.is_some())
                };
                let is_under_review = matches!(task.state(), TaskState::NeedsReview | TaskState::Waiting);
                task.state().is_terminal()
                    || task.attempt > number
                    || (task.attempt == number && has_ended(number) && !is_under_review)
            }
        }
    }

    /// Adds an entry; once the output has begun, prints it.
    fn add_entry(&mut self, entry: TranscriptEntry) {
        if self.number.is_some_and(|number| entry.journal.number() != number) {
            return;
        }
        if self.has_started { self.print_entry(&entry) } else { self.entries.push(entry) }
    }

    /// Prints what was read so far. A document is printed here, unless the transcript is followed.
    fn print_start(&mut self, is_following: bool) {
        self.has_started = true;
        let entries = std::mem::take(&mut self.entries);
        if self.json && !is_following {
            match self.task() {
                Some(task) => print_json(&TaskTranscript::new(
                    self.run,
                    (self.plan(), task),
                    self.number,
                    &entries,
                    Timestamp::now(),
                )),
                None => print_json(&PlannerTranscript::new(self.run, &self.history, self.number, &entries)),
            }
            return;
        }
        if !self.json {
            self.heading().iter().for_each(|line| print_stdout_line(line));
        }
        entries.iter().for_each(|entry| self.print_entry(entry));
        if entries.is_empty() && !is_following {
            print_stdout_line("no attempt has begun");
        }
    }

    fn heading(&self) -> Vec<String> {
        match self.task() {
            Some(task) => {
                let id = &task.spec.id;
                vec![
                    format!("task {id} of run {}  {}  {}", self.run, task.state(), task.spec.capability),
                    format!("  {}", single_line(&task.spec.objective)),
                ]
            }
            None => vec![format!("planner of run {}", self.run)],
        }
    }

    fn print_entry(&mut self, entry: &TranscriptEntry) {
        if self.json {
            print_json(&EntryLine { run: self.run, task: entry.journal.task(), entry });
            return;
        }
        if self.printer.starts_attempt(&entry.journal) {
            print_stdout_line(&format!("\n{}", attempt_heading(&entry.journal, self.task())));
        }
        self.printer.entry_lines(entry).iter().for_each(|line| print_stdout_line(line));
    }

    /// Prints the questions to persons, with the decisions, their authors and the time that each took.
    fn print_questions(&self) {
        let Some(task) = self.task() else { return };
        let is_shown = |attempt: &&Attempt| self.number.is_none_or(|number| number == attempt.number);
        let attempts = task.attempts.iter().filter(is_shown);
        let records: Vec<_> = attempts.flat_map(|attempt| attempt.questions(task)).collect();
        if !records.is_empty() {
            print_stdout_line("\nquestions");
        }
        for record in records {
            let lines = match record.is_open() {
                true => format_question(self.run, &record, Timestamp::now(), None),
                false => format_closed_question(self.run, &record, None),
            };
            lines.iter().for_each(|line| print_stdout_line(&format!("  {line}")));
        }
    }

    fn print_end(&self, is_following: bool) {
        if self.json {
            return;
        }
        self.print_questions();
        if is_following && let Some(task) = self.task() {
            let reason =
                task.end_reason().map(|reason| format!(": {}", single_line(reason))).unwrap_or_default();
            note!("task {} is {}{reason}", task.spec.id, task.state());
        }
        if self.printer.has_cut() {
            print_stderr_line("millrace: long texts are cut; --full shows all of them");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millrace_protocol::ids::{Capability, WorkerId};
    use millrace_protocol::plan::{AttemptEvent, Decision, Event, GraphEvent, TaskSpec};
    use millrace_protocol::result::{ErrorKind, TaskError};

    use super::*;

    #[test]
    fn attempt_is_over_while_its_task_waits_for_the_retry() {
        let (task, worker) = (TaskId::new("text").unwrap(), WorkerId::new("worker-1").unwrap());
        let spec = TaskSpec::new(task.clone(), "write it", Capability::new("writer").unwrap());
        let events = [
            Event::Graph(GraphEvent::TaskAdded { spec: Arc::new(spec), ready: true }),
            Event::Attempt(AttemptEvent::Claimed {
                task: task.clone(),
                attempt: 1,
                worker: worker.clone(),
                build: None,
            }),
            Event::Attempt(AttemptEvent::Errored {
                task: task.clone(),
                attempt: 1,
                error: TaskError::new(ErrorKind::Model, "the model's service answered 503").into(),
                retry_at: Some(Timestamp::UNIX_EPOCH),
            }),
        ];
        let (run, journals) = (RunId::new("20270115-080000-aaaaaa").unwrap(), Journals::Task(task));
        let is_over = |events: &[Event], attempt: Option<u32>| {
            let options = TranscriptOptions { attempt, follow: true, full: false };
            let mut view = TranscriptView::new(&run, &journals, &options, false);
            view.history.add_decision(&Decision {
                by: worker.clone(),
                previous: 0,
                at: Timestamp::UNIX_EPOCH,
                answers: Vec::new(),
                events: events.to_vec(),
            });
            view.is_over()
        };
        assert!(!is_over(&events[..2], Some(1)), "the attempt runs");
        assert!(is_over(&events, Some(1)), "the attempt ended");
        assert!(!is_over(&events, None), "the task is retried");
    }
}
