//! Latency of a task by stage, from the storage times of its messages: decision to claim (queue, pull, claim), claim to
//! outcome (the work itself), outcome to next decision (read, decide, append). Only meaningful with one task in flight.

use std::time::Duration;

use jiff::Timestamp;

use crate::report::quantile;

/// The message that ends a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatencyStage {
    Decision,
    Claim,
    Outcome,
}

/// The times of all tasks by stage.
#[derive(Debug, Default)]
pub struct StageLatencies {
    last: Option<(LatencyStage, Timestamp)>,
    to_claim: Vec<Duration>,
    to_outcome: Vec<Duration>,
    to_decision: Vec<Duration>,
}

impl StageLatencies {
    /// Adds the next message.
    pub fn add_message(&mut self, stage: LatencyStage, at: Timestamp) {
        let Some((before, since)) = self.last.replace((stage, at)) else { return };
        let Ok(took) = Duration::try_from(at.duration_since(since)) else { return };
        match (before, stage) {
            (LatencyStage::Decision, LatencyStage::Claim) => self.to_claim.push(took),
            (LatencyStage::Claim, LatencyStage::Outcome) => self.to_outcome.push(took),
            (LatencyStage::Outcome, LatencyStage::Decision) => self.to_decision.push(took),
            // For example a separate decision on a claim.
            (LatencyStage::Decision | LatencyStage::Claim | LatencyStage::Outcome, _) => {}
        }
    }

    /// Returns the median of each stage in milliseconds: to the claim, to the outcome, to the next decision.
    pub fn median_milliseconds(&self) -> [f64; 3] {
        [&self.to_claim, &self.to_outcome, &self.to_decision]
            .map(|times| quantile(times.iter().map(|time| time.as_secs_f64() * 1e3), 0.5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_separated_and_unordered_messages_ignored() {
        let mut stages = StageLatencies::default();
        let mut at = Timestamp::UNIX_EPOCH;
        for (stage, millis) in [
            (LatencyStage::Decision, 0),
            (LatencyStage::Claim, 1),
            (LatencyStage::Outcome, 2),
            (LatencyStage::Decision, 4),
            (LatencyStage::Decision, 100),
            (LatencyStage::Claim, 1),
            (LatencyStage::Decision, 100),
            (LatencyStage::Outcome, 100),
        ] {
            at += Duration::from_millis(millis);
            stages.add_message(stage, at);
        }
        assert_eq!(stages.median_milliseconds(), [1.0, 2.0, 4.0]);
    }
}
