//! The board on a terminal, redrawn in place.

use std::io;
use std::time::{Duration, Instant};

use console::{Term, measure_text_width};
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
/// Minimum time between two redraws.
const REDRAW: Duration = Duration::from_millis(100);
/// Maximum number of lines that stay on the screen after the run has ended.
const LAST_LINES: usize = 40;

pub struct TerminalBoard {
    terminal: Term,
    has_colours: bool,
    /// The prompt below the board; empty if there is none.
    prompt: Vec<String>,
    /// The lines that are on the screen above the cursor.
    shown: Vec<String>,
    /// The time of the last redraw.
    redrawn: Option<Instant>,
    /// Another program has the terminal.
    is_hidden: bool,
    /// The lines to print above the board when it is drawn next.
    above: Vec<String>,
}

impl TerminalBoard {
    pub fn new() -> Self {
        Self {
            terminal: Term::buffered_stderr(),
            has_colours: wants_colours(true),
            prompt: Vec::new(),
            shown: Vec::new(),
            redrawn: None,
            is_hidden: false,
            above: Vec::new(),
        }
    }

    /// Draws the state, unless it was drawn just now.
    pub fn draw_board(&mut self, run: &RunId, plan: &Plan, live: &LiveModelOutput, now: Timestamp) {
        if self.redrawn.is_some_and(|redrawn| redrawn.elapsed() < REDRAW) {
            return;
        }
        let (height, width) = self.terminal.size();
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
        self.show(&lines);
    }

    pub fn set_prompt(&mut self, lines: Vec<String>) {
        self.prompt = lines;
        self.redrawn = None;
    }

    /// Leaves the terminal to another program.
    pub fn hide(&mut self) {
        self.show(&[]);
        self.is_hidden = true;
    }

    /// Draws again after [`Self::hide`].
    pub fn show_again(&mut self) {
        self.is_hidden = false;
        self.redrawn = None;
    }

    pub fn print_line(&mut self, line: &str) {
        self.above.push(terminal_text(line));
        self.redraw(self.shown.clone());
    }

    /// Draws the state as of the loss of the connection, below a line about it.
    pub fn draw_lost_board(&mut self, run: &RunId, plan: &Plan, since: Timestamp, now: Timestamp) {
        let (height, width) = self.terminal.size();
        let height = usize::from(height).saturating_sub(MARGIN + 1).max(3);
        let width = usize::from(width).saturating_sub(1);
        let seconds = now.duration_since(since).as_secs().max(0);
        let mut lines = vec![format!("{} ({seconds} s)", describe_lost_connection(since))];
        lines.extend(render_board_lines(run, plan, &LiveModelOutput::default(), since, width, height));
        self.show(&lines);
    }

    /// Draws the final state and leaves it on the screen.
    pub fn draw_final_board(&mut self, run: &RunId, plan: &Plan, now: Timestamp) {
        let mut lines = Vec::new();
        if plan.run.start.is_some() {
            let (_, width) = self.terminal.size();
            let width = usize::from(width).saturating_sub(1);
            lines = render_final_board_lines(run, plan, now, width, LAST_LINES);
        }
        self.is_hidden = false;
        self.show(&lines);
        self.shown.clear();
    }

    fn show(&mut self, lines: &[String]) {
        let lines = lines.iter().map(|line| self.paint(line)).collect();
        self.redraw(lines);
    }

    /// Replaces what is on the screen by `lines`. Errors are ignored: a board that cannot be drawn must not end the command.
    fn redraw(&mut self, lines: Vec<String>) {
        if self.is_hidden {
            return;
        }
        let _ = self.try_redraw(&lines);
        self.shown = lines;
        self.redrawn = Some(Instant::now());
    }

    fn try_redraw(&mut self, lines: &[String]) -> io::Result<()> {
        let columns = usize::from(self.terminal.size().1).max(1);
        // A line that was drawn on a wider terminal takes several rows.
        let rows = self.shown.iter().map(|line| measure_text_width(line).div_ceil(columns).max(1)).sum();
        self.terminal.move_cursor_up(rows)?;
        for line in self.above.drain(..).chain(lines.iter().cloned()) {
            self.terminal.clear_line()?;
            self.terminal.write_line(&line)?;
        }
        self.terminal.clear_to_end_of_screen()?;
        self.terminal.flush()
    }

    /// Returns a line that is safe for a terminal, with colours.
    fn paint(&self, line: &str) -> String {
        let line = terminal_text(line);
        if self.has_colours { paint_board_line(&line) } else { line }
    }
}
