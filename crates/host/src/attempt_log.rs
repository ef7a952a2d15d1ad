//! The two log lines of each piece of work: when it is claimed, and when its outcome is in the log. Of many pieces that begin within
//! the same second, most are only counted.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_protocol::ids::{Capability, RunId, TaskId};
use millrace_protocol::plan::Work;
use millrace_protocol::result::{ErrorKind, Usage};
use millrace_protocol::work::{Order, WorkOutcome};
use tracing::field::display;
use tracing::{Level, debug, enabled, info, warn};

/// The maximum number of characters of an error in a line.
const MAX_ERROR: usize = 300;
/// The number of pieces of work of a process that are logged one by one, of those that begin within the same second. A log
/// with thousands of lines per second is of no use, and writing it takes longer than short work itself.
const MAX_PER_SECOND: u32 = 50;
/// Work that takes longer gets the line about its end in any case.
const ALWAYS_LOGGED_AFTER: Duration = Duration::from_secs(1);

/// Decides which pieces of work of a process are logged one by one.
pub(crate) struct AttemptLogLimit(Mutex<LogSecond>);

/// A second in which work began.
struct LogSecond {
    began: Instant,
    logged: u32,
    /// The number of pieces of work that were not logged since the last report on them.
    left_out: u64,
}

impl AttemptLogLimit {
    pub fn new(now: Instant) -> Self {
        Self(Mutex::new(LogSecond { began: now, logged: 0, left_out: 0 }))
    }

    /// Returns `true` if the work that begins at this time is logged.
    fn admit(&self, now: Instant) -> bool {
        let mut second = self.lock();
        if now.duration_since(second.began) >= Duration::from_secs(1) {
            (second.began, second.logged) = (now, 0);
        }
        let is_admitted = second.logged < MAX_PER_SECOND;
        match is_admitted {
            true => second.logged += 1,
            false => second.left_out += 1,
        }
        is_admitted
    }

    /// Logs how many pieces of work were left out since the last call, if any were.
    pub fn report_left_out(&self) {
        let left_out = self.take_left_out();
        if left_out > 0 {
            info!(
                left_out,
                "more work began than is logged one by one ({MAX_PER_SECOND} per second; all with MILLRACE_LOG=debug)"
            );
        }
    }

    fn take_left_out(&self) -> u64 {
        std::mem::take(&mut self.lock().left_out)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LogSecond> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fields that both lines of a piece of work have.
pub(crate) struct AttemptLog {
    run: RunId,
    work: &'static str,
    task: Option<TaskId>,
    turn: Option<u32>,
    attempt: u32,
    capability: Capability,
    is_admitted: bool,
}

/// The parts of an outcome that the log shows.
pub(crate) struct OutcomeSummary {
    outcome: &'static str,
    usage: Usage,
    error: Option<(ErrorKind, String)>,
}

impl AttemptLog {
    pub fn new(order: &Order, limit: &AttemptLogLimit) -> Self {
        let (work, task, turn, attempt) = match order.work() {
            Work::Task { task, attempt } => ("attempt", Some(task), None, attempt),
            Work::Review { task, attempt, .. } => ("review", Some(task), None, attempt),
            Work::Planning { turn, attempt } => ("planning", None, Some(turn), attempt),
        };
        Self {
            run: order.run.clone(),
            work,
            task,
            turn,
            attempt,
            capability: order.capability.clone(),
            is_admitted: limit.admit(Instant::now()),
        }
    }

    /// Logs that this process has claimed the work; `claim` counts the claims.
    pub fn record_start(&self, claim: u32) {
        let Self { run, work, task, turn, attempt, capability, is_admitted } = self;
        if !is_admitted && !enabled!(Level::DEBUG) {
            return;
        }
        let (task, claim) = (task.as_ref().map(display), (claim > 1).then_some(claim));
        match is_admitted {
            true => info!(%run, task, turn, attempt, %capability, claim, "{work} started"),
            false => debug!(%run, task, turn, attempt, %capability, claim, "{work} started"),
        }
    }

    /// Logs the outcome of the work. A failure is a warning, which the heartbeat reports.
    pub fn record_end(&self, summary: &OutcomeSummary, took: Duration) {
        let Self { run, work, task, turn, attempt, capability, is_admitted } = self;
        let OutcomeSummary { outcome, usage, error } = summary;
        let is_logged = *is_admitted || took >= ALWAYS_LOGGED_AFTER;
        if error.is_none() && !is_logged && !enabled!(Level::DEBUG) {
            return;
        }
        let task = task.as_ref().map(display);
        let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let tokens = usage.input_tokens.saturating_add(usage.output_tokens);
        match error {
            None if is_logged => {
                info!(%run, task, turn, attempt, %capability, outcome, duration_ms, tokens, "{work} ended")
            }
            None => {
                debug!(%run, task, turn, attempt, %capability, outcome, duration_ms, tokens, "{work} ended")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_beyond_the_limit_of_a_second_is_counted() {
        let start = Instant::now();
        let limit = AttemptLogLimit::new(start);
        let later = start + Duration::from_millis(999);
        let admitted = (0..MAX_PER_SECOND + 3).filter(|_| limit.admit(later)).count();
        assert_eq!(admitted, MAX_PER_SECOND as usize);
        assert_eq!((limit.take_left_out(), limit.take_left_out()), (3, 0));
        assert!(limit.admit(start + Duration::from_secs(1)), "the next second has places of its own");
    }
}
