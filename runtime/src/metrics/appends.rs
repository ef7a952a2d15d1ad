//! What comes of appends to the log, and how long they take. Each topic has its handles from its first append on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::names::{APPEND_SECONDS, APPENDS};
use super::{Tally, Timing};
use crate::log::AppendError;

static TOPICS: Mutex<BTreeMap<&'static str, Arc<Topic>>> = Mutex::new(BTreeMap::new());

struct Topic {
    written: Tally,
    fenced: Tally,
    failed: Tally,
    seconds: Timing,
}

impl Topic {
    fn new(name: &str) -> Self {
        let tally = |outcome| APPENDS.tally(&[name, outcome]);
        Self {
            written: tally("written"),
            fenced: tally("fenced"),
            failed: tally("failed"),
            seconds: APPEND_SECONDS.timing(&[name]),
        }
    }
}

/// Counts an append to a topic.
pub(crate) fn count_append(topic: &'static str, result: &Result<u64, AppendError>, took: Duration) {
    let topic = {
        let mut topics = TOPICS.lock().unwrap_or_else(PoisonError::into_inner);
        topics.entry(topic).or_insert_with(|| Arc::new(Topic::new(topic))).clone()
    };
    topic.seconds.record(took);
    match result {
        Ok(_) => topic.written.one(),
        Err(AppendError::Fenced { .. }) => topic.fenced.one(),
        Err(AppendError::Fault(_)) => topic.failed.one(),
    }
}
