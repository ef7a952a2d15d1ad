//! The board on a terminal, drawn again in place.

use std::time::Duration;

use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::Timestamp;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::Plan;

use super::board::board;
use super::live::Live;

/// How many lines of a terminal the board leaves free.
const MARGIN: usize = 2;
/// How many lines stay on the screen when the run is over.
const LAST_LINES: usize = 40;

/// The board.
pub struct Tree {
    bar: ProgressBar,
}

impl Tree {
    /// An empty one.
    pub fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
        let style = ProgressStyle::with_template("{msg}").expect("the template is a constant that parses");
        bar.set_style(style);
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar }
    }

    /// Draws the state.
    pub fn draw(&self, run: &RunId, plan: &Plan, live: &Live, now: Timestamp) {
        let (height, width) = Term::stderr().size();
        let height = usize::from(height).saturating_sub(MARGIN).max(3);
        self.bar.set_message(
            board(run, plan, live, now, usize::from(width).saturating_sub(1), height).join("\n"),
        );
    }

    /// Draws it for the last time, and leaves it on the screen.
    pub fn end(&self, run: &RunId, plan: &Plan, now: Timestamp) {
        self.bar.finish_and_clear();
        if plan.start.is_none() {
            return;
        }
        let (_, width) = Term::stderr().size();
        for line in board(run, plan, &Live::default(), now, usize::from(width).saturating_sub(1), LAST_LINES)
        {
            super::say(&line);
        }
    }
}
