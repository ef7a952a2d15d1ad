//! Calls that repeat others. A call with the same arguments, the same result and nothing new in between teaches the model
//! nothing, and a small model may make it for ever: its tool is withdrawn.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The calls that were made and the tools that were withdrawn.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct RepetitionTracker {
    /// Each call with its last result, by digest.
    results: BTreeMap<String, SeenResult>,
    /// The number of results that were new.
    fresh: u64,
    withdrawn: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct SeenResult {
    digest: String,
    /// The number of new results when it was last seen.
    fresh: u64,
}

/// A call of one reply with its result.
pub(super) struct AnsweredCall {
    pub tool: String,
    pub call_digest: String,
    pub result_digest: String,
}

impl RepetitionTracker {
    /// `true` if the tool was withdrawn.
    pub fn is_withdrawn(&self, tool: &str) -> bool {
        self.withdrawn.contains(tool)
    }

    /// Adds the calls of one reply; returns for each whether it repeats an earlier one, so that its tool is withdrawn. Calls
    /// of the same reply do not repeat each other. Only calls that count can be repetitions.
    pub fn add_calls(&mut self, calls: &[AnsweredCall], counts: impl Fn(&AnsweredCall) -> bool) -> Vec<bool> {
        let before = self.fresh;
        let repeats: Vec<bool> = calls
            .iter()
            .map(|call| {
                let seen = self.results.get(&call.call_digest);
                counts(call)
                    && seen.is_some_and(|seen| seen.digest == call.result_digest && seen.fresh == before)
            })
            .collect();
        for call in calls {
            let is_known =
                self.results.get(&call.call_digest).is_some_and(|seen| seen.digest == call.result_digest);
            self.fresh += u64::from(!is_known);
        }
        for (call, repeats) in calls.iter().zip(&repeats) {
            let seen = SeenResult { digest: call.result_digest.clone(), fresh: self.fresh };
            self.results.insert(call.call_digest.clone(), seen);
            if *repeats {
                self.withdrawn.insert(call.tool.clone());
            }
        }
        repeats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add_call(tracker: &mut RepetitionTracker, call: &str, result: &str) -> bool {
        let call = AnsweredCall {
            tool: call.split(' ').next().unwrap().into(),
            call_digest: call.into(),
            result_digest: result.into(),
        };
        tracker.add_calls(&[call], |_| true)[0]
    }

    #[test]
    fn a_call_repeats_another_if_nothing_was_new_in_between() {
        let mut tracker = RepetitionTracker::default();
        for (call, result, repeats) in [
            ("test", "1 failed", false),
            ("edit a", "done", false),
            ("test", "1 failed", false),
            ("read a", "x", false),
            ("test", "0 failed", false),
            ("read a", "x", false),
            ("test", "0 failed", true),
            ("read a", "x", true),
        ] {
            assert_eq!(add_call(&mut tracker, call, result), repeats, "{call}");
        }
        assert!(
            tracker.is_withdrawn("test") && tracker.is_withdrawn("read") && !tracker.is_withdrawn("edit")
        );
    }

    #[test]
    fn concurrent_calls_do_not_repeat_each_other() {
        let call = || AnsweredCall { tool: "t".into(), call_digest: "c".into(), result_digest: "r".into() };
        let mut tracker = RepetitionTracker::default();
        assert_eq!(tracker.add_calls(&[call(), call()], |_| true), [false, false]);
        assert_eq!(tracker.add_calls(&[call(), call()], |_| true), [true, true]);
    }
}
