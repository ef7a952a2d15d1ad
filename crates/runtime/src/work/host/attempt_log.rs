//! The two log lines of each piece of work: when it is claimed, and when its outcome is in the log.

use std::time::Duration;

use millrace_protocol::ids::{Capability, RunId, TaskId};
use millrace_protocol::plan::Work;
use millrace_protocol::result::{ErrorKind, Usage};
use millrace_protocol::work::{Order, WorkOutcome};
use tracing::field::display;
use tracing::{info, warn};

/// The maximum number of characters of an error in a line.
const MAX_ERROR: usize = 300;

/// The fields that both lines of a piece of work have.
pub(super) struct AttemptLog {
    run: RunId,
    work: &'static str,
    task: Option<TaskId>,
    turn: Option<u32>,
    attempt: u32,
    capability: Capability,
}

/// The parts of an outcome that the log shows.
pub(super) struct OutcomeSummary {
    outcome: &'static str,
    usage: Usage,
    error: Option<(ErrorKind, String)>,
}

impl AttemptLog {
    pub fn new(order: &Order) -> Self {
        let (work, task, turn, attempt) = match order.work() {
            Work::Task { task, attempt } => ("attempt", Some(task), None, attempt),
            Work::Review { task, attempt, .. } => ("review", Some(task), None, attempt),
            Work::Planning { turn, attempt } => ("planning", None, Some(turn), attempt),
        };
        Self { run: order.run.clone(), work, task, turn, attempt, capability: order.capability.clone() }
    }

    /// Logs that this process has claimed the work; `claim` counts the claims.
    pub fn record_start(&self, claim: u32) {
        let Self { run, work, task, turn, attempt, capability } = self;
        let (task, claim) = (task.as_ref().map(display), (claim > 1).then_some(claim));
        info!(%run, task, turn, attempt, %capability, claim, "{work} started");
    }

    /// Logs the outcome of the work. A failure is a warning, which the heartbeat reports.
    pub fn record_end(&self, summary: &OutcomeSummary, took: Duration) {
        let Self { run, work, task, turn, attempt, capability } = self;
        let OutcomeSummary { outcome, usage, error } = summary;
        let task = task.as_ref().map(display);
        let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let tokens = usage.input_tokens.saturating_add(usage.output_tokens);
        match error {
            None => {
                info!(%run, task, turn, attempt, %capability, outcome, duration_ms, tokens, "{work} ended")
            }
            Some((kind, error)) => warn!(
                %run, task, turn, attempt, %capability, outcome, ?kind, ?error, duration_ms,
                tokens, "{work} ended"
            ),
        }
    }
}

impl From<&WorkOutcome> for OutcomeSummary {
    fn from(outcome: &WorkOutcome) -> Self {
        let (outcome, usage, error) = match outcome {
            WorkOutcome::Finished { usage, .. } => ("finished", *usage, None),
            WorkOutcome::Judged(verdict) => {
                (if verdict.passed { "passed" } else { "rejected" }, verdict.usage, None)
            }
            WorkOutcome::Proposed { usage, .. } => ("proposed", *usage, None),
            WorkOutcome::Errored(error) => {
                let message = error.message.chars().take(MAX_ERROR).collect();
                ("errored", error.usage, Some((error.kind, message)))
            }
        };
        Self { outcome, usage, error }
    }
}
