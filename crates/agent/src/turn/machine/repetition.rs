//! Calls that repeat others. A call repeats another if it has the same arguments and the same result, and nothing was new or changed
//! in between: it teaches the model nothing, and a small model may make it for ever. The first repetition gets a hint. At the limit
//! the tool is withdrawn until something is new, and the next repetition ends the attempt. So an agent that edits and
//! tests, or reads a file again that others have changed, is never stopped, however often it makes the same call.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The calls that were made and the tools that were withdrawn.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct RepetitionTracker {
    /// Each call with its last result, by digest.
    results: BTreeMap<String, SeenResult>,
    /// The number of results that were new, and of calls that changed something.
    #[serde(rename = "fresh")]
    news: u64,
    /// The withdrawn tools, each with the number of news at that time.
    withdrawn: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct SeenResult {
    digest: String,
    /// The number of news after it was last seen. So a change by the call itself is no news for its repetition.
    #[serde(rename = "fresh")]
    news: u64,
    /// The number of times that the call was made with this result while nothing else was new.
    times: u32,
}

/// A call of one reply with its result.
pub(super) struct AnsweredCall {
    pub tool: String,
    pub call_digest: String,
    /// `None` if the call was refused because its tool is withdrawn.
    pub result_digest: Option<String>,
    /// `true` if it changed something outside the conversation, or waited while others could.
    pub has_changed: bool,
    /// `true` if a new result is news. The agent's own thoughts and notes are none.
    pub tells_news: bool,
    /// `true` if it waited for something that came, or had an effect outside: that is news for other calls of its reply, and the
    /// call is no repetition.
    pub is_progress: bool,
    /// `true` if it can be a repetition.
    pub can_repeat: bool,
}

impl RepetitionTracker {
    /// `true` if the tool was withdrawn and nothing was new since.
    pub fn is_withdrawn(&self, tool: &str) -> bool {
        self.withdrawn.get(tool) == Some(&self.news)
    }

    /// `true` if a tool was ever withdrawn.
    pub fn has_withdrawn_tools(&self) -> bool {
        !self.withdrawn.is_empty()
    }

    /// Withdraws a tool until something is new.
    pub fn withdraw_tool(&mut self, tool: &str) {
        self.withdrawn.insert(tool.to_owned(), self.news);
    }

    /// Adds the calls of one reply; returns for each how many times it was made with its result while nothing else was new, from
    /// 1. Calls of the same reply do not repeat each other, and none is a repetition if another one tells news.
    pub fn add_calls(&mut self, calls: &[AnsweredCall]) -> Vec<u32> {
        let is_new: Vec<bool> = calls.iter().map(|call| self.is_new(call)).collect();
        let new = calls.iter().zip(&is_new).filter(|(call, is_new)| **is_new || call.is_progress).count();
        let times: Vec<u32> = calls
            .iter()
            .zip(&is_new)
            .map(|(call, is_new)| {
                let of_others = new - usize::from(*is_new || call.is_progress);
                if of_others == 0 { self.count_times(call) } else { 1 }
            })
            .collect();
        for (call, is_new) in calls.iter().zip(is_new) {
            self.news += u64::from(call.has_changed || is_new);
        }
        for (call, times) in calls.iter().zip(&times) {
            let earlier = || self.results.get(&call.call_digest).map(|seen| seen.digest.clone());
            let digest = call.result_digest.clone().or_else(earlier).unwrap_or_default();
            let seen = SeenResult { digest, news: self.news, times: *times };
            self.results.insert(call.call_digest.clone(), seen);
        }
        times
    }

    /// `true` if a call has a result that tells news.
    fn is_new(&self, call: &AnsweredCall) -> bool {
        call.tells_news && !self.results.get(&call.call_digest).is_some_and(|seen| call.has_result(seen))
    }

    fn count_times(&self, call: &AnsweredCall) -> u32 {
        let seen = self.results.get(&call.call_digest);
        let is_repeatable = call.can_repeat && !call.is_progress;
        let repeated = seen.filter(|seen| is_repeatable && seen.news == self.news && call.has_result(seen));
        repeated.map_or(1, |seen| seen.times.saturating_add(1))
    }
}

impl AnsweredCall {
    /// `true` if it has the same result as before. A refusal because its tool is withdrawn says nothing about it.
    fn has_result(&self, seen: &SeenResult) -> bool {
        self.result_digest.as_ref().is_none_or(|digest| *digest == seen.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered_call(call: &str, result: &str) -> AnsweredCall {
        AnsweredCall {
            tool: call.split(' ').next().unwrap().into(),
            call_digest: call.into(),
            result_digest: Some(result.into()),
            has_changed: false,
            tells_news: true,
            is_progress: false,
            can_repeat: true,
        }
    }

    #[test]
    fn a_call_repeats_another_if_nothing_was_new_in_between() {
        let mut tracker = RepetitionTracker::default();
        for (call, result, times) in [
            ("test", "1 failed", 1),
            ("edit a", "done", 1),
            ("test", "1 failed", 1),
            ("read a", "x", 1),
            ("test", "0 failed", 1),
            ("read a", "x", 1),
            ("test", "0 failed", 2),
            ("read a", "x", 2),
            ("test", "0 failed", 3),
        ] {
            assert_eq!(tracker.add_calls(&[answered_call(call, result)]), [times], "{call}");
        }
    }

    #[test]
    fn a_change_makes_later_calls_new_but_not_itself() {
        let mut tracker = RepetitionTracker::default();
        let mut add = |call: &str, has_changed| {
            tracker.add_calls(&[AnsweredCall { has_changed, ..answered_call(call, "done") }])[0]
        };
        for round in 0..9 {
            for call in ["set on", "test", "set off", "test"] {
                assert_eq!(add(call, call.starts_with("set")), 1, "{call} in round {round}");
            }
        }
        assert_eq!([add("set on", true), add("set on", true), add("set on", true)], [1, 2, 3]);
    }

    #[test]
    fn thoughts_are_no_news() {
        let mut tracker = RepetitionTracker::default();
        let mut add = |call: &str, tells_news| {
            tracker.add_calls(&[AnsweredCall { tells_news, ..answered_call(call, "done") }])[0]
        };
        assert_eq!(add("read a", true), 1);
        assert_eq!(add("think hm", false), 1);
        assert_eq!(add("read a", true), 2);
        assert_eq!(add("think again", false), 1);
        assert_eq!(add("read a", true), 3);
        assert_eq!(add("think again", false), 2);
    }

    #[test]
    fn concurrent_calls_do_not_repeat_each_other() {
        let mut tracker = RepetitionTracker::default();
        let call = || answered_call("t", "r");
        assert_eq!(tracker.add_calls(&[call(), call()]), [1, 1]);
        assert_eq!(tracker.add_calls(&[call(), call()]), [2, 2]);
    }

    #[test]
    fn a_withdrawn_tool_returns_when_something_is_new() {
        let mut tracker = RepetitionTracker::default();
        tracker.add_calls(&[answered_call("t", "r")]);
        tracker.withdraw_tool("t");
        assert!(tracker.is_withdrawn("t") && !tracker.is_withdrawn("u"));
        let refused = || AnsweredCall { result_digest: None, tells_news: false, ..answered_call("t", "") };
        assert_eq!(tracker.add_calls(&[refused()]), [2], "the refusal counts");
        assert!(tracker.is_withdrawn("t"));
        tracker.add_calls(&[answered_call("u", "news")]);
        assert!(!tracker.is_withdrawn("t"));
        assert_eq!(tracker.add_calls(&[answered_call("t", "r")]), [1]);
    }
}
