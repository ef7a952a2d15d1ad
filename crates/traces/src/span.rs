//! Spans, links and ids.

use std::fmt;

use jiff::Timestamp;
use millrace_api_form::Named;
use millrace_protocol::ids::RunId;
use sha2::{Digest, Sha256};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId(pub [u8; 16]);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(pub [u8; 8]);

impl TraceId {
    /// Returns the id of a run's trace with this number, from 0.
    #[must_use]
    pub fn of_run(run: &RunId, number: u32) -> Self {
        Self(digest(run, "trace", u64::from(number), 0))
    }
}

impl SpanId {
    /// Returns the id of the span that begins with a message of a run: by the message's topic and sequence, and the number
    /// among the spans that begin with it.
    #[must_use]
    pub fn of_message(run: &RunId, topic: &str, sequence: u64, number: u32) -> Self {
        Self(digest(run, topic, sequence, number))
    }
}

/// Returns the first bytes of a hash. An id of zeros is invalid, but nothing hashes to it in practice.
fn digest<const N: usize>(run: &RunId, topic: &str, sequence: u64, number: u32) -> [u8; N] {
    let hash = Sha256::digest(format!("millrace\n{run}\n{topic}\n{sequence}\n{number}"));
    std::array::from_fn(|at| hash[at])
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanContext {
    pub trace: TraceId,
    pub span: SpanId,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    pub context: SpanContext,
    /// Its parent, in the same trace.
    pub parent: Option<SpanId>,
    pub name: String,
    pub kind: SpanKind,
    pub start: Timestamp,
    pub end: Timestamp,
    pub attributes: Vec<(&'static str, AttributeValue)>,
    pub links: Vec<SpanLink>,
    pub status: SpanStatus,
    /// The sequence, in the lane of the run, of the message that completed it.
    pub sequence: u64,
}

impl Span {
    pub fn attribute(&self, name: &str) -> Option<&AttributeValue> {
        self.attributes.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        if let Some(AttributeValue::Text(text)) = self.attribute(name) { Some(text) } else { None }
    }

    pub(crate) fn integer(&self, name: &str) -> Option<i64> {
        if let Some(AttributeValue::Integer(number)) = self.attribute(name) { Some(*number) } else { None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    Internal,
    /// A request to a service.
    Client,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpanStatus {
    Unset,
    /// An error, with a description that is empty unless content is exported.
    Error(String),
}

#[derive(Debug, Clone, PartialEq)]
pub enum AttributeValue {
    Text(String),
    Integer(i64),
    Decimal(f64),
    Flag(bool),
    Texts(Vec<String>),
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for AttributeValue {
    fn from(number: u64) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u32> for AttributeValue {
    fn from(number: u32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<f64> for AttributeValue {
    fn from(number: f64) -> Self {
        Self::Decimal(number)
    }
}

impl From<bool> for AttributeValue {
    fn from(value: bool) -> Self {
        Self::Flag(value)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanLink {
    pub context: SpanContext,
    /// The relation of the other span to the span with the link.
    pub relation: LinkRelation,
}

/// The relation of a linked span to the span with the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Named)]
pub enum LinkRelation {
    /// The span in which the run was submitted.
    SubmittedBy,
    /// The failed or rejected attempt before.
    RetryOf,
    /// The leg of a worker that was lost.
    TakenOverFrom,
    /// The leg before, which was parked or released.
    Continues,
    /// A wait that has ended.
    WaitedFor,
    /// The leg before the wait.
    WaitOf,
    /// The leg after the wait.
    FollowedBy,
    /// The result of a task that this one builds on.
    DependsOn,
    /// The leg that delegated the task.
    DelegatedBy,
    /// The result under review.
    Reviews,
    /// The trace of the run before this one.
    PreviousTrace,
    /// The trace in which the run continues.
    NextTrace,
}
