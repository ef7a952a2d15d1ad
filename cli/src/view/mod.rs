//! A run as it goes, for whoever watches: a tree on a terminal, plain lines elsewhere, JSON for machines. Progress is
//! on standard error and JSON on standard output, so that a deliverable can be piped.

mod board;
mod lines;
mod live;
mod tree;

use std::io::{IsTerminal, Write};

use jiff::Timestamp;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Decision, Plan};

use lines::is_news;

pub use board::{board, one_line};
pub use lines::{history, line};
pub use live::Live;

/// How a run is shown.
pub enum View {
    /// A tree that is drawn again and again.
    Tree(tree::Tree),
    /// A line for each change.
    Lines,
    /// A JSON object for each event, a line each.
    Json,
}

impl View {
    /// The view that fits where standard error goes.
    pub fn new(json: bool) -> Self {
        match (json, std::io::stderr().is_terminal()) {
            (true, _) => Self::Json,
            (false, true) => Self::Tree(tree::Tree::new()),
            (false, false) => Self::Lines,
        }
    }

    /// Something was decided, and is in `plan` already.
    pub fn decided(&self, run: &RunId, plan: &Plan, live: &Live, sequence: u64, decision: &Decision) {
        match self {
            Self::Tree(tree) => tree.draw(run, plan, live, Timestamp::now()),
            Self::Lines => {
                for event in decision.events.iter().filter(|event| is_news(event)) {
                    say(&format!("{} {}", decision.at.strftime("%H:%M:%S"), line(event)));
                }
            }
            Self::Json => {
                for event in &decision.events {
                    let at = decision.at.to_string();
                    emit(&serde_json::json!({ "run": run, "sequence": sequence, "at": at, "event": event }));
                }
            }
        }
    }

    /// Time has passed.
    pub fn tick(&self, run: &RunId, plan: &Plan, live: &Live) {
        match self {
            Self::Tree(tree) => tree.draw(run, plan, live, Timestamp::now()),
            Self::Lines | Self::Json => {}
        }
    }

    /// Nothing more is shown.
    pub fn end(&self, run: &RunId, plan: &Plan) {
        match self {
            Self::Tree(tree) => tree.end(run, plan, Timestamp::now()),
            Self::Lines | Self::Json => {}
        }
    }
}

/// A line on standard error. That it may be closed is no reason to stop.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// A line on standard output. Whoever closed the pipe has read enough.
pub fn print_line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// A line of JSON on standard output. If that is closed, whoever read it has seen enough: the run goes on.
pub fn emit(value: &serde_json::Value) {
    let _ = writeln!(std::io::stdout(), "{value}");
}
