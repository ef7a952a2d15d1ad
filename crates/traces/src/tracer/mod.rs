//! Derives the spans of a run from the messages of its log, one after the other. It keeps the plan, the open legs and waits, and
//! the address of the last leg of each journal; a span is returned when the message that completes it is added, and is the same
//! in every program.
//!
//! | file | spans |
//! |---|---|
//! | `decisions` | those that decisions begin and end |
//! | `legs` | the work of a claimant, between its claim and its outcome |
//! | `steps` | model calls, tool calls and other steps |
//! | `waits` | waits, questions among them |
//!
//! `journals` has the state of legs and waits.

mod decisions;
mod journals;
mod legs;
mod steps;
mod waits;

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{Decision, Event, JournalKey, Plan, RunEvent, Submission};
use millrace_protocol::subject::{CRITIC, PLANNER, Topic};
use millrace_protocol::trace_context::TraceParent;
use millrace_views::journal::TranscriptEntry;

use self::journals::{JournalTrace, OpenWait};
use crate::names::{self, Convention, operation, own};
use crate::span::{
    AttributeValue, LinkRelation, Span, SpanContext, SpanId, SpanKind, SpanLink, SpanStatus, TraceId,
};

/// The time without any message after which a run continues in its next trace, unless the user chooses another.
pub const DEFAULT_SPLIT: Duration = Duration::from_secs(3_600);

/// The maximum length of a text of content, in bytes; of a longer one, the beginning is kept.
const MAX_CONTENT: usize = 32 * 1024;

#[derive(Debug, Clone)]
pub struct TraceOptions {
    /// The time without any message, and without work in progress, after which a run continues in its next trace.
    pub split: Duration,
    pub convention: Convention,
    /// `true` if spans have the texts of objectives, prompts, replies, tools, questions and errors.
    pub has_content: bool,
}

impl Default for TraceOptions {
    fn default() -> Self {
        Self { split: DEFAULT_SPLIT, convention: Convention::default(), has_content: false }
    }
}

/// Derives the spans of one run.
#[derive(Debug)]
pub struct RunTracer {
    run: RunId,
    options: TraceOptions,
    plan: Plan,
    /// The span in which the run was submitted.
    caller: Option<TraceParent>,
    phase: Phase,
    /// The number of the current trace, from 0.
    trace: u32,
    /// The time of the last message that counts as activity.
    last_activity: Option<Timestamp>,
    /// The message that is being added, by its time and sequence.
    now: (Timestamp, u64),
    /// The number of spans that began with the decision that is being added.
    begun: u32,
    open_legs: u32,
    journals: HashMap<JournalKey, JournalTrace>,
    plan_question: Option<OpenWait>,
    completed: Vec<Span>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    NotStarted,
    Live,
    Ended,
}

impl RunTracer {
    #[must_use]
    pub fn new(run: RunId, options: TraceOptions) -> Self {
        Self {
            run,
            options,
            plan: Plan::default(),
            caller: None,
            phase: Phase::NotStarted,
            trace: 0,
            last_activity: None,
            now: (Timestamp::UNIX_EPOCH, 0),
            begun: 0,
            open_legs: 0,
            journals: HashMap::new(),
            plan_question: None,
            completed: Vec::new(),
        }
    }

    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// `true` after the end of the run, unless it continues.
    pub fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Returns the spans that were completed since the last call.
    pub fn take_spans(&mut self) -> Vec<Span> {
        std::mem::take(&mut self.completed)
    }

    pub fn add_submission(&mut self, submission: &Submission) {
        self.caller = submission.trace_parent;
    }

    /// Adds a decision. `at` is the time at which the server stored it.
    pub fn add_decision(&mut self, sequence: u64, at: Timestamp, decision: &Decision) {
        let is_reopened = decision.events.iter().any(|event| matches!(event, Event::Run(RunEvent::Reopened)));
        if self.phase != Phase::Ended || is_reopened {
            self.begin_message(sequence, at);
        }
        millrace_protocol::plan::apply_decision(&mut self.plan, decision);
        for event in &decision.events {
            self.add_event(event);
        }
    }

    /// Adds an entry of a journal. Entries that are written after the end of the run belong to no trace.
    pub fn add_entry(&mut self, entry: &TranscriptEntry) {
        if self.phase == Phase::Live {
            self.begin_message(entry.sequence, entry.at);
            self.add_journal_event(&entry.journal, &entry.event);
        }
    }

    /// Begins the next trace if nothing has happened for so long. Work in progress shows that the run does not wait.
    fn begin_message(&mut self, sequence: u64, at: Timestamp) {
        let last = self.last_activity.replace(at).unwrap_or(at);
        (self.now, self.begun) = ((at, sequence), 0);
        let silence = Duration::try_from(at.duration_since(last)).unwrap_or_default();
        if silence > self.options.split && self.open_legs == 0 {
            self.begin_next_trace(last);
        }
    }

    /// Ends the current trace with a link to the next one, which begins with a link back.
    fn begin_next_trace(&mut self, last: Timestamp) {
        let previous = self.anchor();
        let id = SpanId::of_message(&self.run, "continued", self.trace.into(), 0);
        let context = SpanContext { trace: previous.trace, span: id };
        let mut end = self.new_span(context, Some(previous.span), "run continued", last);
        end.end = last;
        self.trace += 1;
        end.links.push(SpanLink { context: self.anchor(), relation: LinkRelation::NextTrace });
        self.completed.push(end);
        let link = SpanLink { context: previous, relation: LinkRelation::PreviousTrace };
        self.add_anchor(vec![link]);
    }

    fn add_anchor(&mut self, links: Vec<SpanLink>) {
        let mut anchor = self.new_span(self.anchor(), None, operation::INVOKE_WORKFLOW, self.now.0);
        anchor.links = links;
        anchor.attributes.push((names::OPERATION, operation::INVOKE_WORKFLOW.into()));
        anchor.attributes.push((names::CONVERSATION, self.run.as_str().into()));
        if let Some(start) = &self.plan.run.start {
            anchor.attributes.push((own::MODE, start.mode.name().into()));
            if !start.labels.is_empty() {
                let labels = start.labels.iter().map(|(name, value)| format!("{name}={value}"));
                anchor.attributes.push((own::LABELS, AttributeValue::Texts(labels.collect())));
            }
            let objective = start.objective.clone();
            self.add_content(&mut anchor, own::OBJECTIVE, || objective);
        }
        self.completed.push(anchor);
    }

    /// Returns the address of the current trace's anchor.
    fn anchor(&self) -> SpanContext {
        SpanContext {
            trace: TraceId::of_run(&self.run, self.trace),
            span: SpanId::of_message(&self.run, "anchor", self.trace.into(), 0),
        }
    }

    /// Returns an address in the current trace for a span that begins with the current decision.
    fn next_context(&mut self) -> SpanContext {
        let span = SpanId::of_message(&self.run, &Topic::Plan.to_string(), self.now.1, self.begun);
        self.begun += 1;
        SpanContext { trace: self.anchor().trace, span }
    }

    /// Creates a span that ends with the current message.
    fn new_span(
        &self,
        context: SpanContext,
        parent: Option<SpanId>,
        name: impl Into<String>,
        start: Timestamp,
    ) -> Span {
        let (end, sequence) = self.now;
        let number = self.trace_number(context.trace);
        Span {
            context,
            parent,
            name: name.into(),
            kind: SpanKind::Internal,
            start: start.min(end),
            end,
            attributes: vec![
                (own::RUN, self.run.as_str().into()),
                (own::TRACE_NUMBER, number.into()),
                (own::SEQUENCE, sequence.into()),
            ],
            links: Vec::new(),
            status: SpanStatus::Unset,
            sequence,
        }
    }

    /// Returns the number, from 1, of a trace of this run. A span ends in the trace in which it began, or in a later one.
    fn trace_number(&self, trace: TraceId) -> u32 {
        let earlier = (0..=self.trace).rev().find(|number| TraceId::of_run(&self.run, *number) == trace);
        earlier.unwrap_or(self.trace) + 1
    }

    /// Adds an attribute with content, if content is exported.
    fn add_content(&self, span: &mut Span, name: &'static str, text: impl FnOnce() -> String) {
        if self.options.has_content {
            let mut text = text();
            if text.len() > MAX_CONTENT {
                let end = (0..=MAX_CONTENT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
                text.truncate(end);
                text.push('…');
            }
            if !text.is_empty() {
                span.attributes.push((name, text.into()));
            }
        }
    }

    /// Marks a span as failed. The message is content.
    fn set_error(&self, span: &mut Span, kind: &str, message: &str) {
        let message = if self.options.has_content { message.to_owned() } else { String::new() };
        span.status = SpanStatus::Error(message);
        span.attributes.push((names::ERROR_TYPE, kind.into()));
    }

    /// Adds what a journal is about to a span.
    fn describe_journal(&self, span: &mut Span, journal: &JournalKey) {
        match journal {
            JournalKey::Task(task, attempt) => self.describe_task(span, task, *attempt, None),
            JournalKey::Review(task, attempt) => self.describe_task(span, task, *attempt, Some(CRITIC)),
            JournalKey::Planning(turn, attempt) => {
                span.attributes.push((own::PLANNER_TURN, (*turn).into()));
                span.attributes.push((own::ATTEMPT, (*attempt).into()));
                span.attributes.push((own::CAPABILITY, PLANNER.into()));
            }
        }
    }

    fn describe_task(&self, span: &mut Span, task: &TaskId, attempt: u32, queue: Option<&str>) {
        span.attributes.push((own::TASK, task.as_str().into()));
        span.attributes.push((own::ATTEMPT, attempt.into()));
        let capability = queue.unwrap_or_else(|| self.capability_of_task(task));
        span.attributes.push((own::CAPABILITY, capability.into()));
    }

    fn capability_of_task(&self, task: &TaskId) -> &str {
        self.plan.task(task).map_or("", |task| task.spec.capability.as_str())
    }

    fn complete(&mut self, span: Span) {
        self.completed.push(span);
    }
}
