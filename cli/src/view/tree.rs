//! The board on a terminal, redrawn in place.

use std::io::Write;
use std::time::Duration;

use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::Timestamp;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::Plan;
use millrace_protocol::safe_text::terminal_text;

use crate::questions::format_board_lines;

use super::board::{render_board_lines, render_final_board_lines};
use super::lines::describe_lost_connection;
use super::live::LiveModelOutput;
use super::style::{paint_board_line, wants_colours};

/// Number of terminal lines that the board leaves free.
const MARGIN: usize = 2;
/// Number of columns that the board leaves free.
const ROOM: usize = 3;
/// Maximum number of redraws per second.
const HZ: u8 = 10;
/// Maximum number of lines that stay on the screen after the run has ended.
const LAST_LINES: usize = 40;

/// The board on a terminal.
pub struct TerminalBoard {
    bar: ProgressBar,
    has_colours: bool,
    /// The prompt below the board; empty if there is none.
    prompt: Vec<String>,
}

impl TerminalBoard {
    /// An empty board.
    pub fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(HZ));
        let style = ProgressStyle::with_template("{msg}").expect("the constant template is valid");
        bar.set_style(style);
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar, has_colours: wants_colours(true), prompt: Vec::new() }
    }

    /// Draws the state.
    pub fn draw_board(&self, run: &RunId, plan: &Plan, live: &LiveModelOutput, now: Timestamp) {
        let (height, width) = Term::stderr().size();
        let height = usize::from(height).saturating_sub(MARGIN).max(3);
        // The terminal shows ^C for an interrupt; it must fit into the last line.
        let width = usize::from(width).saturating_sub(ROOM);
        // An open question has to be read; it may take all but a few lines.
        let questions = match self.prompt.is_empty() {
            true => format_board_lines(run, plan, now, width),
            false => self.prompt.clone(),
        };
        let height = height.saturating_sub(questions.len()).max(3);
        let mut lines = render_board_lines(run, plan, live, now, width, height);
        lines.extend(questions);
        let lines: Vec<String> = lines.iter().map(|line| self.paint(line)).collect();
        self.bar.set_message(lines.join("\n"));
    }

    /// Sets the prompt below the board.
    pub fn set_prompt(&mut self, lines: Vec<String>) {
        self.prompt = lines;
    }

    /// Leaves the terminal to another program.
    pub fn hide(&self) {
        self.bar.set_message("");
        self.bar.tick();
        self.bar.set_draw_target(ProgressDrawTarget::hidden());
    }

    /// Draws again after [`Self::hide`].
    pub fn show_again(&self) {
        self.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(HZ));
    }

    /// Prints a line above the board.
    pub fn print_line(&self, line: &str) {
        self.bar.println(terminal_text(line));
    }

    /// Draws the state as of the loss of the connection, below a line about it.
    pub fn draw_lost_board(&self, run: &RunId, plan: &Plan, since: Timestamp, now: Timestamp) {
        let (height, width) = Term::stderr().size();
        let height = usize::from(height).saturating_sub(MARGIN + 1).max(3);
        let width = usize::from(width).saturating_sub(1);
        let seconds = now.duration_since(since).as_secs().max(0);
        let mut lines = vec![format!("{} ({seconds} s)", describe_lost_connection(since))];
        lines.extend(render_board_lines(run, plan, &LiveModelOutput::default(), since, width, height));
        let lines: Vec<String> = lines.iter().map(|line| self.paint(line)).collect();
        self.bar.set_message(lines.join("\n"));
    }

    /// Draws the final state and leaves it on the screen.
    pub fn draw_final_board(&self, run: &RunId, plan: &Plan, now: Timestamp) {
        self.bar.finish_and_clear();
        if plan.run.start.is_none() {
            return;
        }
        let (_, width) = Term::stderr().size();
        let width = usize::from(width).saturating_sub(1);
        for line in render_final_board_lines(run, plan, now, width, LAST_LINES) {
            let _ = writeln!(std::io::stderr(), "{}", self.paint(&line));
        }
    }

    /// Returns a line that is safe for a terminal, with colours.
    fn paint(&self, line: &str) -> String {
        let line = terminal_text(line);
        if self.has_colours { paint_board_line(&line) } else { line }
    }
}
