//! The journals of a run, as far as later spans need them: their legs and waits.

use std::collections::BTreeMap;

use jiff::Timestamp;
use millrace_protocol::result::{Build, Usage};
use millrace_protocol::wait::Wait;

use crate::span::{LinkRelation, Span, SpanContext, SpanId, SpanLink};

/// A journal, as far as later spans need it.
#[derive(Debug, Default)]
pub(super) struct JournalTrace {
    pub leg: Option<Leg>,
    pub last: Option<EndedLeg>,
    pub open_waits: Vec<OpenWait>,
    /// Waits that have ended, until the next leg begins.
    pub ended_waits: Vec<Span>,
}

#[derive(Debug)]
pub(super) struct Leg {
    pub context: SpanContext,
    pub start: Timestamp,
    pub worker: String,
    pub usage: Usage,
    /// The arguments of calls, until their results arrive; only if content is exported.
    pub arguments: BTreeMap<String, String>,
    pub parent: SpanId,
    pub build: Option<Build>,
    pub links: Vec<SpanLink>,
    pub last_entry: Timestamp,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct EndedLeg {
    pub context: SpanContext,
    /// The relation in the link from the next leg of the journal.
    pub next: LinkRelation,
}

/// A wait that has not ended.
#[derive(Debug)]
pub(super) struct OpenWait {
    pub wait: Wait,
    pub context: SpanContext,
    pub parent: SpanContext,
    pub start: Timestamp,
    pub before: Option<SpanContext>,
    pub rounds: u32,
}
