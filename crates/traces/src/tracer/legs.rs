//! Legs: the work of one claimant on an attempt, a review or a turn of the planner, from its claim to its outcome, or to the wait
//! or the release with which it gives the work back.

use std::collections::BTreeMap;

use jiff::Timestamp;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::JournalKey;
use millrace_protocol::result::{Build, TaskError, Usage};
use millrace_protocol::subject::{CRITIC, Topic};
use millrace_views::journal::TranscriptEvent;

use super::RunTracer;
use super::journals::{EndedLeg, Leg};
use crate::names::{self, operation, own};
use crate::span::{LinkRelation, Span, SpanContext, SpanId, SpanLink};

pub(super) struct LegEnd {
    outcome: &'static str,
    /// The kind and the message of an error.
    error: Option<(String, String)>,
    usage: Usage,
    summary: String,
    next: LinkRelation,
}

impl LegEnd {
    pub fn with_outcome(outcome: &'static str) -> Self {
        Self {
            outcome,
            error: None,
            usage: Usage::default(),
            summary: String::new(),
            next: LinkRelation::Continues,
        }
    }

    pub fn with_error(outcome: &'static str, kind: impl Into<String>, message: impl Into<String>) -> Self {
        Self { error: Some((kind.into(), message.into())), ..Self::with_outcome(outcome) }
    }

    fn of_task_error(error: &TaskError) -> Self {
        Self { usage: error.usage, ..Self::with_error("failed", error.kind.name(), &error.message) }
    }
}

impl RunTracer {
    pub(super) fn add_journal_event(&mut self, journal: &JournalKey, event: &TranscriptEvent) {
        let at = self.now.0;
        if let Some(leg) = self.journals.get_mut(journal).and_then(|trace| trace.leg.as_mut()) {
            if matches!(event, TranscriptEvent::Claimed { .. }) {
                let last = leg.last_entry;
                let lost = LegEnd::with_error("lost", "worker_lost", "its worker was lost");
                self.end_leg_at(journal, last, LegEnd { next: LinkRelation::TakenOverFrom, ..lost });
            } else {
                leg.last_entry = at;
            }
        }
        match event {
            TranscriptEvent::Claimed { worker, claim: _, build } => {
                self.begin_leg(journal, worker.as_str(), build.as_deref());
            }
            TranscriptEvent::Released { worker: _, reason: _ } => {
                self.end_leg(journal, LegEnd::with_outcome("released"));
            }
            TranscriptEvent::Parked { .. } => self.end_leg(journal, LegEnd::with_outcome("parked")),
            TranscriptEvent::Result { summary, usage, .. } => {
                let end = LegEnd::with_outcome("finished");
                self.end_leg(journal, LegEnd { usage: *usage, summary: summary.clone(), ..end });
            }
            TranscriptEvent::Verdict { verdict, .. } => {
                let end = LegEnd::with_outcome(if verdict.passed { "passed" } else { "rejected" });
                let summary = verdict.reasoning.clone();
                self.end_leg(journal, LegEnd { usage: verdict.usage, summary, ..end });
            }
            TranscriptEvent::Proposal { proposal, usage, .. } => {
                let end = LegEnd::with_outcome("proposed");
                let summary = proposal.reasoning.clone();
                self.end_leg(journal, LegEnd { usage: *usage, summary, ..end });
            }
            TranscriptEvent::Error { error, .. } => self.end_leg(journal, LegEnd::of_task_error(error)),
            TranscriptEvent::Step(step) => self.add_step(journal, step),
            // A trace reads the values of all steps.
            TranscriptEvent::StoredStep { .. }
            | TranscriptEvent::Delegated { .. }
            | TranscriptEvent::Note { .. }
            | TranscriptEvent::Unreadable { .. } => {}
        }
    }

    fn begin_leg(&mut self, journal: &JournalKey, worker: &str, build: Option<&Build>) {
        let (at, sequence) = self.now;
        let anchor = self.anchor();
        let id = SpanId::of_message(&self.run, &Topic::Journal(journal.clone()).to_string(), sequence, 0);
        let context = SpanContext { trace: anchor.trace, span: id };
        let mut links = self.links_of_new_leg(journal);
        let trace = self.journals.entry(journal.clone()).or_default();
        for mut wait in std::mem::take(&mut trace.ended_waits) {
            links.push(SpanLink { context: wait.context, relation: LinkRelation::WaitedFor });
            wait.links.push(SpanLink { context, relation: LinkRelation::FollowedBy });
            wait.sequence = sequence;
            self.completed.push(wait);
        }
        trace.leg = Some(Leg {
            context,
            start: at,
            worker: worker.to_owned(),
            usage: Usage::default(),
            arguments: BTreeMap::new(),
            parent: anchor.span,
            build: build.cloned(),
            links,
            last_entry: at,
        });
        self.open_legs += 1;
    }

    /// Returns the links of a leg that begins: to the leg before, or, for the first one of a journal, to what it builds on.
    fn links_of_new_leg(&self, journal: &JournalKey) -> Vec<SpanLink> {
        if let Some(last) = self.journals.get(journal).and_then(|trace| trace.last) {
            return vec![SpanLink { context: last.context, relation: last.next }];
        }
        let link =
            |relation, context: Option<SpanContext>| context.map(|context| SpanLink { context, relation });
        match journal {
            JournalKey::Task(task, 1) => {
                let Some(spec) = self.plan.task(task).map(|task| &task.spec) else { return Vec::new() };
                let parent = spec.parent.as_ref().and_then(|parent| {
                    let journal = JournalKey::Task(parent.task.clone(), parent.attempt);
                    link(LinkRelation::DelegatedBy, self.leg_of_journal(&journal))
                });
                let inputs = spec.depends_on.iter();
                let inputs =
                    inputs.filter_map(|task| link(LinkRelation::DependsOn, self.last_leg_of_task(task)));
                inputs.chain(parent).collect()
            }
            JournalKey::Task(task, attempt) => {
                let earlier = JournalKey::Task(task.clone(), attempt - 1);
                link(LinkRelation::RetryOf, self.leg_of_journal(&earlier)).into_iter().collect()
            }
            JournalKey::Review(task, attempt) => {
                let reviewed = JournalKey::Task(task.clone(), *attempt);
                link(LinkRelation::Reviews, self.leg_of_journal(&reviewed)).into_iter().collect()
            }
            JournalKey::Planning(turn, attempt) => {
                let earlier = JournalKey::Planning(*turn, attempt - 1);
                link(LinkRelation::RetryOf, self.leg_of_journal(&earlier)).into_iter().collect()
            }
        }
    }

    /// Returns the current leg of a journal, or its last one.
    pub(super) fn leg_of_journal(&self, journal: &JournalKey) -> Option<SpanContext> {
        let trace = self.journals.get(journal)?;
        trace.leg.as_ref().map(|leg| leg.context).or(trace.last.map(|last| last.context))
    }

    fn last_leg_of_task(&self, task: &TaskId) -> Option<SpanContext> {
        let last = self.plan.task(task)?.attempts.last()?.number;
        self.leg_of_journal(&JournalKey::Task(task.clone(), last))
    }

    /// Ends the leg of a journal with the current message, if one is in progress.
    pub(super) fn end_leg(&mut self, journal: &JournalKey, end: LegEnd) {
        self.end_leg_at(journal, self.now.0, end);
    }

    fn end_leg_at(&mut self, journal: &JournalKey, at: Timestamp, end: LegEnd) {
        let Some(trace) = self.journals.get_mut(journal) else { return };
        let Some(leg) = trace.leg.take() else { return };
        trace.last = Some(EndedLeg { context: leg.context, next: end.next });
        self.open_legs -= 1;
        let (name, operation, agent) = self.name_of_leg(journal);
        let mut span = self.new_span(leg.context, Some(leg.parent), name, leg.start);
        span.end = at.max(leg.start);
        span.links = leg.links;
        self.describe_journal(&mut span, journal);
        span.attributes.push((names::OPERATION, operation.into()));
        span.attributes.push((names::AGENT_NAME, agent.into()));
        span.attributes.push((names::CONVERSATION, self.run.as_str().into()));
        span.attributes.push((own::WORKER, leg.worker.into()));
        if let Some(build) = &leg.build {
            span.attributes.push((own::PROGRAM, build.program.clone().into()));
            let version = build.capability.as_ref().and_then(|capability| capability.version.clone());
            span.attributes.extend(version.map(|version| (names::AGENT_VERSION, version.into())));
        }
        span.attributes.push((own::OUTCOME, end.outcome.into()));
        // Programs report their usage with the outcome only.
        add_usage(&mut span, if leg.usage.is_zero() { &end.usage } else { &leg.usage });
        self.add_content(&mut span, own::SUMMARY, || end.summary);
        if let Some((kind, message)) = end.error {
            self.set_error(&mut span, &kind, &message);
        }
        self.complete(span);
    }

    /// Returns the name of a leg's span, its operation and its agent.
    fn name_of_leg(&self, journal: &JournalKey) -> (String, &'static str, String) {
        let agent = match journal {
            JournalKey::Task(task, _) => self.capability_of_task(task),
            JournalKey::Review(..) => CRITIC,
            JournalKey::Planning(..) => {
                return (operation::PLAN.into(), operation::PLAN, millrace_protocol::subject::PLANNER.into());
            }
        };
        (format!("{} {agent}", operation::INVOKE_AGENT), operation::INVOKE_AGENT, agent.to_owned())
    }
}

/// Adds the usage of a leg or a run to its span.
pub(super) fn add_usage(span: &mut Span, usage: &Usage) {
    for (name, count) in [
        (own::MODEL_CALLS, usage.model_calls),
        (own::TOOL_CALLS, usage.tool_calls),
        (own::INPUT_TOKENS, usage.input_tokens),
        (own::OUTPUT_TOKENS, usage.output_tokens),
    ] {
        if count > 0 {
            span.attributes.push((name, count.into()));
        }
    }
    add_cost(span, usage);
}

/// Adds the cost of a span, if it is known.
pub(super) fn add_cost(span: &mut Span, usage: &Usage) {
    if usage.cost_micros > 0 {
        span.attributes.push((own::COST, (usage.cost_micros as f64 / 1e6).into()));
    }
}
