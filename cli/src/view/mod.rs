//! Progress of a run: a tree on a terminal, plain lines otherwise, or JSON for programs. Progress goes to standard error
//! and JSON to standard output, so that the deliverable can be piped. Only this module writes to a terminal, and it makes
//! every text safe for one.

mod board;
mod heartbeat;
mod lines;
mod live;
mod style;
mod tree;

use std::io::{IsTerminal, Write};
use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Decision, Plan};
use millrace_protocol::safe_text;
use millrace_protocol::wait::ProviderWait;
use millrace_views::{EventLine, QuestionLine, to_value};
use serde::Serialize;

use crate::questions::{QuestionTracker, format_question_line};
use heartbeat::Heartbeat;
use lines::is_event_worth_showing;

pub use board::{format_age, render_board_lines, render_offline_board_lines};
pub use lines::{
    describe_lost_connection, describe_recovery, format_byte_size, format_event_line, format_history_lines,
};
pub use live::LiveModelOutput;
pub use millrace_client::format_clock;
pub use style::{error_label, format_short_duration, separate_thousands, wants_colours};

/// The way a run is shown.
pub enum RunDisplay {
    /// A tree that is redrawn in place.
    Tree(tree::TerminalBoard),
    Lines {
        /// `true` if the loss of the connection was reported.
        is_lost: bool,
        /// The lines about work in progress.
        heartbeat: heartbeat::Heartbeat,
        questions: QuestionTracker,
    },
    /// A JSON object for each event, one per line.
    Json {
        /// `true` if the loss of the connection was reported.
        is_lost: bool,
        questions: QuestionTracker,
    },
}

impl RunDisplay {
    /// Chooses the view: JSON if requested, otherwise by whether standard error is a terminal that can be redrawn.
    pub fn new(json: bool) -> Self {
        match (json, std::io::stderr().is_terminal() && !style::is_dumb_terminal()) {
            (true, _) => Self::Json { is_lost: false, questions: QuestionTracker::default() },
            (false, true) => Self::Tree(tree::TerminalBoard::new()),
            (false, false) => Self::Lines {
                is_lost: false,
                heartbeat: Heartbeat::default(),
                questions: QuestionTracker::default(),
            },
        }
    }

    /// Shows a decision, which is already applied to `plan`.
    pub fn show_decision(
        &mut self,
        run: &RunId,
        plan: &Plan,
        live: &LiveModelOutput,
        sequence: u64,
        decision: &Decision,
    ) {
        match self {
            Self::Tree(tree) => tree.draw_board(run, plan, live, Timestamp::now()),
            Self::Lines { .. } => {
                for event in decision.events.iter().filter(|event| is_event_worth_showing(event)) {
                    print_stderr_line(&format!("{} {}", format_clock(decision.at), format_event_line(event)));
                }
            }
            Self::Json { questions, .. } => {
                for event in &decision.events {
                    print_json(&EventLine { run, sequence, at: decision.at.into(), event: event.into() });
                }
                let changes = questions.take_changes(plan);
                for record in changes.opened.into_iter().chain(changes.closed) {
                    print_json(&QuestionLine::new(run, record));
                }
            }
        }
    }

    /// Redraws the tree, or prints lines about work in progress that is silent: time has passed.
    pub fn redraw(&mut self, run: &RunId, plan: &Plan, live: &LiveModelOutput) {
        match self {
            Self::Tree(tree) => tree.draw_board(run, plan, live, Timestamp::now()),
            Self::Lines { heartbeat, questions, .. } => {
                let now = Timestamp::now();
                for line in heartbeat.due_lines(plan, live, now) {
                    print_stderr_line(&format!("{} {line}", format_clock(now)));
                }
                // Not with each decision: of a run that is watched late, most questions are closed already.
                for record in questions.take_changes(plan).opened {
                    note!("{}", format_question_line(run, &record));
                }
            }
            Self::Json { .. } => {}
        }
    }

    /// Shows that the connection to the cluster is lost. The clocks of the board stop.
    pub fn show_lost_connection(&mut self, run: &RunId, plan: &Plan, since: Timestamp) {
        match self {
            Self::Tree(tree) => tree.draw_lost_board(run, plan, since, Timestamp::now()),
            Self::Lines { is_lost, .. } | Self::Json { is_lost, .. } => {
                if !std::mem::replace(is_lost, true) {
                    let line = describe_lost_connection(since);
                    note!("{line}");
                }
            }
        }
    }

    /// Shows that the connection to the cluster is there again.
    pub fn show_recovered_connection(&mut self, outage: Duration) {
        match self {
            Self::Tree(_) => {}
            Self::Lines { is_lost, .. } | Self::Json { is_lost, .. } => {
                if std::mem::take(is_lost) {
                    note!("{}", describe_recovery(outage));
                }
            }
        }
    }

    /// `true` if the view is a board that is redrawn in place.
    pub fn is_board(&self) -> bool {
        matches!(self, Self::Tree(_))
    }

    /// Sets the prompt below the board.
    pub fn set_prompt(&mut self, lines: Vec<String>) {
        if let Self::Tree(tree) = self {
            tree.set_prompt(lines);
        }
    }

    pub fn print_line(&mut self, line: &str) {
        match self {
            Self::Tree(tree) => tree.print_line(&format!("millrace: {line}")),
            Self::Lines { .. } | Self::Json { .. } => note!("{line}"),
        }
    }

    /// Leaves the terminal to another program.
    pub fn hide(&mut self) {
        if let Self::Tree(tree) = self {
            tree.hide();
        }
    }

    /// Draws again after [`Self::hide`].
    pub fn show_again(&mut self) {
        if let Self::Tree(tree) = self {
            tree.show_again();
        }
    }

    pub fn end_view(&mut self, run: &RunId, plan: &Plan) {
        match self {
            Self::Tree(tree) => tree.draw_final_board(run, plan, Timestamp::now()),
            Self::Lines { .. } | Self::Json { .. } => {}
        }
    }
}

/// Returns rows of cells as lines with aligned columns.
pub fn align_columns(rows: &[impl AsRef<[String]>]) -> Vec<String> {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        let row = row.as_ref();
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String]| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(|row| line(row.as_ref())).collect()
}

/// Prints a line to standard error. A closed standard error is ignored.
pub fn print_stderr_line(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", safe_text::terminal_text(text));
}

/// Prints lines of the board to standard output, with colours if it is a terminal.
pub fn print_board_lines(lines: &[String]) {
    let wants_colours = wants_colours(std::io::stdout().is_terminal());
    for line in lines {
        let line = safe_text::terminal_text(line);
        let line = if wants_colours { style::paint_board_line(&line) } else { line };
        let _ = writeln!(std::io::stdout(), "{line}");
    }
}

/// Prints an error to standard error, with a label.
pub fn print_error(message: &str) {
    let label = error_label(wants_colours(std::io::stderr().is_terminal()));
    let _ = writeln!(std::io::stderr(), "{label} {}", safe_text::terminal_text(message));
}

/// Prints an object to standard output, on one line. A closed pipe is ignored: the run continues.
pub fn print_json(value: &impl Serialize) {
    print_stdout_line(&safe_text::json_line(&to_value(value)));
}

/// Prints a line to standard output. A closed pipe is ignored.
pub fn print_stdout_line(text: &str) {
    let _ = write_stdout_line(text);
}

/// Prints a line to standard output, for output that ends with a closed pipe.
pub fn write_stdout_line(text: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{}", safe_text::terminal_text(text))
}

/// Prints the deliverable to standard output; on a terminal with blank lines around it and its verdicts in colour. A closed pipe is
/// ignored.
pub fn print_deliverable(text: &str) {
    let is_terminal = std::io::stdout().is_terminal();
    let text = safe_text::terminal_text(text.trim_end());
    let text = if wants_colours(is_terminal) { style::paint_verdicts(&text) } else { text };
    let gap = if is_terminal { "\n" } else { "" };
    let _ = writeln!(std::io::stdout(), "{gap}{text}{gap}");
}

/// Prints indented JSON to standard output. A closed pipe is ignored.
pub fn print_json_stdout_document(value: &serde_json::Value) {
    print_stdout_line(&safe_text::json_document(value));
}

/// Prints the bytes of a file to standard output: a text on a terminal, otherwise the bytes as they are, so that a file
/// in a pipe is the file itself.
pub fn print_stdout_file(bytes: &[u8]) {
    let mut out = std::io::stdout();
    let _ = match (out.is_terminal(), std::str::from_utf8(bytes)) {
        (true, Ok(text)) => out.write_all(safe_text::terminal_text(text).as_bytes()),
        (true | false, _) => out.write_all(bytes),
    };
}
/// Describes until when the provider of a paused run asked to wait; empty if it did not, or if that time has passed.
pub fn describe_requested_wait(wait: &ProviderWait, now: Timestamp) -> String {
    match wait.next_try > now {
        true => {
            format!(", though it asked to wait until {}", wait.next_try.strftime("%Y-%m-%d %H:%M:%S UTC"))
        }
        false => String::new(),
    }
}
