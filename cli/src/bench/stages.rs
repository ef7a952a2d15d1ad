//! Where the time of a hop goes, told by the times at which the server stored its messages: from the decision to the
//! claim (queue, pull, claim), from there to the outcome (the work itself), and from there to the next decision (read
//! back, decide, append). Makes sense only where one task is under way at a time.

use std::time::Duration;

use jiff::Timestamp;

use super::report::quantile;

/// What a message of a hop is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The task was decided on.
    Decision,
    /// Somebody took it.
    Claim,
    /// It came to its end.
    Outcome,
}

/// The times of all hops, stage by stage.
#[derive(Debug, Default)]
pub struct Stages {
    last: Option<(Stage, Timestamp)>,
    to_claim: Vec<Duration>,
    to_outcome: Vec<Duration>,
    to_decision: Vec<Duration>,
}

impl Stages {
    /// Takes in the next message.
    pub fn add(&mut self, stage: Stage, at: Timestamp) {
        let Some((before, since)) = self.last.replace((stage, at)) else { return };
        let Ok(took) = Duration::try_from(at.duration_since(since)) else { return };
        match (before, stage) {
            (Stage::Decision, Stage::Claim) => self.to_claim.push(took),
            (Stage::Claim, Stage::Outcome) => self.to_outcome.push(took),
            (Stage::Outcome, Stage::Decision) => self.to_decision.push(took),
            // A decision of its own on a claim, for one.
            (Stage::Decision | Stage::Claim | Stage::Outcome, _) => {}
        }
    }

    /// The median of each stage in milliseconds: to the claim, to the outcome, to the next decision.
    pub fn medians(&self) -> [f64; 3] {
        [&self.to_claim, &self.to_outcome, &self.to_decision]
            .map(|times| quantile(times.iter().map(|time| time.as_secs_f64() * 1e3), 0.5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stage_is_told_apart_and_what_is_out_of_order_is_passed_over() {
        let mut stages = Stages::default();
        let mut at = Timestamp::UNIX_EPOCH;
        for (stage, millis) in [
            (Stage::Decision, 0),
            (Stage::Claim, 1),
            (Stage::Outcome, 2),
            (Stage::Decision, 4),
            (Stage::Decision, 100),
            (Stage::Claim, 1),
            (Stage::Decision, 100),
            (Stage::Outcome, 100),
        ] {
            at += Duration::from_millis(millis);
            stages.add(stage, at);
        }
        assert_eq!(stages.medians(), [1.0, 2.0, 4.0]);
    }
}
