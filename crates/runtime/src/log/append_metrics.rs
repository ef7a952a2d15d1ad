//! Metrics of appends to the log. The handles of a topic are created at its first append.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::log::AppendError;
use crate::ops::metrics::names::{APPEND_SECONDS, APPENDS};
use crate::ops::metrics::{Counter, Histogram};

static TOPICS: Mutex<BTreeMap<&'static str, Arc<TopicMetrics>>> = Mutex::new(BTreeMap::new());

struct TopicMetrics {
    written: Counter,
    fenced: Counter,
    failed: Counter,
    seconds: Histogram,
}

impl TopicMetrics {
    fn new(name: &str) -> Self {
        let counter = |outcome| APPENDS.with_labels(&[name, outcome]);
        Self {
            written: counter("written"),
            fenced: counter("fenced"),
            failed: counter("failed"),
            seconds: APPEND_SECONDS.with_labels(&[name]),
        }
    }
}

/// Counts an append to a topic and records its duration.
pub(crate) fn count_append(topic: &'static str, result: &Result<u64, AppendError>, duration: Duration) {
    let topic = {
        let mut topics = TOPICS.lock().unwrap_or_else(PoisonError::into_inner);
        topics.entry(topic).or_insert_with(|| Arc::new(TopicMetrics::new(topic))).clone()
    };
    topic.seconds.record(duration);
    match result {
        Ok(_) => topic.written.increment(),
        Err(AppendError::Fenced { .. }) => topic.fenced.increment(),
        Err(AppendError::Fault(_)) => topic.failed.increment(),
    }
}
