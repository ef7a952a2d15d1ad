//! The lines that `millrace up` prints about the runs of its cluster.

use std::time::Duration;

use millrace_client::{RunChange, RunFeed};
use millrace_local_cluster::ClusterInfo;
use millrace_protocol::safe_text::single_line;
use millrace_runtime::Bus;
use tokio::sync::mpsc;

use crate::exit::CommandError;
use crate::interrupted::{describe_stopped_runs, list_stopped_runs, list_unfinished_runs};
use crate::json::{RunListLine, print_json};
use crate::report::describe_usage;
use crate::view::{format_clock, format_short_duration, print_stderr_line};

/// Maximum number of characters of a run's objective in a line.
const MAX_OBJECTIVE: usize = 60;
/// Delay between two attempts to connect to a starting cluster.
const RECONNECT_DELAY: Duration = Duration::from_millis(500);

/// The lines about the runs of a cluster: one for each that is submitted, resumed or ends.
pub struct RunLines {
    pub lines: mpsc::Receiver<RunLine>,
    /// Reads the runs. It is a task of its own, because a read must not be cancelled halfway.
    reader: tokio::task::JoinHandle<()>,
}

pub enum RunLine {
    Text(String),
    Json(Box<RunChange>),
}

impl RunLine {
    pub fn print(&self) {
        match self {
            Self::Text(line) => print_stderr_line(line),
            Self::Json(change) => {
                let (RunChange::Started(summary) | RunChange::Resumed(summary) | RunChange::Ended(summary)) =
                    change.as_ref();
                print_json(&RunListLine::new(&summary.run, Some(summary)));
            }
        }
    }
}

impl RunLines {
    pub fn follow(info: ClusterInfo, json: bool) -> Self {
        let (sender, lines) = mpsc::channel(64);
        let reader = tokio::spawn(async move {
            let (bus, mut feed) = open_run_feed(&info).await;
            let earlier =
                if json { Vec::new() } else { describe_earlier_runs(&bus).await.unwrap_or_default() };
            for line in earlier {
                let _ = sender.send(RunLine::Text(line)).await;
            }
            while !sender.is_closed() {
                for change in feed.next_changes().await {
                    let line = match json {
                        true => RunLine::Json(Box::new(change)),
                        false => RunLine::Text(format_run_change(&change)),
                    };
                    let _ = sender.send(line).await;
                }
            }
        });
        Self { lines, reader }
    }
}

impl Drop for RunLines {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Connects to a cluster that is starting, and reads its runs. Repeats what fails.
async fn open_run_feed(info: &ClusterInfo) -> (Bus, RunFeed) {
    loop {
        if let Ok(bus) = info.connect().await
            && let Ok(feed) = RunFeed::open(&bus).await
        {
            return (bus, feed);
        }
        tokio::time::sleep(RECONNECT_DELAY).await;
    }
}

/// The lines about the runs that an earlier cluster has left unfinished.
pub async fn describe_earlier_runs(bus: &Bus) -> Result<Vec<String>, CommandError> {
    let stopped = list_stopped_runs(bus).await?;
    let live = list_unfinished_runs(bus).await?.len().saturating_sub(stopped.len());
    let runs = if live == 1 { "run" } else { "runs" };
    let continuing = (live > 0).then(|| format!("millrace: {live} unfinished {runs}; continuing"));
    Ok(continuing.into_iter().chain(describe_stopped_runs(&stopped)).collect())
}

/// Returns the line about a change of a run.
fn format_run_change(change: &RunChange) -> String {
    let (summary, text) = match change {
        RunChange::Started(summary) => {
            let objective: String = single_line(&summary.objective).chars().take(MAX_OBJECTIVE).collect();
            (summary, format!("submitted: {objective}"))
        }
        RunChange::Resumed(summary) => (summary, "resumed".to_owned()),
        RunChange::Ended(summary) => {
            let (tasks, done) = summary.completed_and_total_tasks();
            let took = format_short_duration(summary.updated.duration_since(summary.started));
            let end = summary.end.map(|end| end.to_string()).unwrap_or_default();
            let used = if summary.usage.is_zero() {
                String::new()
            } else {
                format!(", {}", describe_usage(&summary.usage))
            };
            (summary, format!("{end} after {took}: {done} of {tasks} tasks completed{used}"))
        }
    };
    let at = match change {
        RunChange::Started(summary) => summary.started,
        RunChange::Resumed(summary) | RunChange::Ended(summary) => summary.updated,
    };
    format!("millrace: {} run {} {text}", format_clock(at), summary.run)
}

#[cfg(test)]
mod tests {
    use millrace_protocol::ids::{Lane, RunId};
    use millrace_protocol::plan::EndReason;
    use millrace_protocol::registry::RunSummary;
    use millrace_protocol::result::Usage;

    use super::*;

    #[test]
    fn a_line_tells_how_a_run_began_and_ended() {
        let started: jiff::Timestamp = "2026-11-21T23:00:00Z".parse().unwrap();
        let summary = RunSummary {
            run: RunId::new("r-1").unwrap(),
            lane: Lane(0),
            objective: format!("find\n\u{1b}[31m{}", "x".repeat(100)),
            end: None,
            started,
            updated: started + jiff::SignedDuration::from_millis(12_300),
            counts: [0, 0, 0, 0, 2, 0, 0, 1, 0],
            waiting: 0,
            open_questions: 0,
            questions: 0,
            archived: false,
            is_resumable: false,
            is_paused: false,
            is_interrupted: false,
            winding_down: None,
            waiting_for_provider: None,
            usage: Usage { model_calls: 2, input_tokens: 40, output_tokens: 2, ..Usage::default() },
            wait: None,
            waiting_for: None,
            log_damage: None,
            labels: Default::default(),
            session: None,
            session_position: None,
            hold: None,
            queue_place: None,
            spend: None,
            archived_span: None,
        };
        let line = format_run_change(&RunChange::Started(summary.clone()));
        assert!(line.contains(" run r-1 submitted: find [31mxxx") && line.len() < 130, "{line}");
        let ended = RunSummary { end: Some(EndReason::CompletedPartial), ..summary };
        let line = format_run_change(&RunChange::Ended(ended));
        let expected =
            " run r-1 completed_partial after 12.3 s: 2 of 3 tasks completed, 42 tokens in 2 calls";
        assert!(line.ends_with(expected), "{line}");
    }
}
