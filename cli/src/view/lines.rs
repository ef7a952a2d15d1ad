//! The events and the history of a run, as lines for a person. Pure.

use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::plan::{BudgetEvent, Event};

use super::format_clock;
use crate::history::RunHistory;
use millrace_protocol::safe_text::single_line;

pub fn format_event_line(event: &Event) -> String {
    single_line(&event.to_string())
}

/// `true` if a person who follows a run wants to read the event. Reservations are made for every piece of work.
pub fn is_event_worth_showing(event: &Event) -> bool {
    !matches!(event, Event::Budget(BudgetEvent::Reserved { .. }))
}

pub fn describe_lost_connection(since: Timestamp) -> String {
    format!("connection to the cluster lost at {}; reconnecting", format_clock(since))
}

/// The line about a connection that has come back.
pub fn describe_recovery(outage: Duration) -> String {
    format!("connected to the cluster again after {} s", outage.as_secs())
}

/// The history that the state of a run does not show: the planner's turns, and the commands and messages of users.
pub fn format_history_lines(story: &RunHistory) -> Vec<String> {
    let turns = story.turns.iter().map(|turn| {
        let outcome = match (&turn.reasoning, turn.ended_at) {
            (Some(reasoning), _) => single_line(reasoning),
            (None, Some(_)) => "failed".into(),
            (None, None) => "under way".into(),
        };
        let idle = if turn.is_idle { " (no progress)" } else { "" };
        let refused: String =
            turn.refused.iter().map(|why| format!("; refused: {}", single_line(why))).collect();
        let why: Vec<String> = turn.triggers.iter().map(|why| single_line(why)).collect();
        (turn.asked_at, format!("planner turn {}: {} → {outcome}{idle}{refused}", turn.turn, why.join(" ")))
    });
    let commands = story
        .commands
        .iter()
        .map(|one| (one.at, format!("{}: {}", single_line(&one.by), single_line(&one.what))));
    let messages = story
        .messages
        .iter()
        .map(|one| (one.at, format!("{} to the planner: {}", single_line(&one.by), single_line(&one.text))));
    let mut all: Vec<_> = turns.chain(commands).chain(messages).collect();
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(at, line)| format!("{}  {line}", format_clock(at))).collect()
}

/// Returns a number of bytes as people write it, such as "512 KiB".
pub fn format_byte_size(bytes: u64) -> String {
    match bytes {
        0..0x400 => format!("{bytes} B"),
        0x400..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", bytes >> 20),
        0x4000_0000.. => format!("{} GiB", bytes >> 30),
    }
}
