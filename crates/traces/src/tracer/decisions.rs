//! Spans that decisions begin and end: those of the run and of waits, and legs whose claimant reported no outcome.

use std::collections::BTreeMap;

use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{
    AttemptEvent, EndReason, Event, JournalKey, PlanningEvent, ReviewEvent, RunEvent, TaskEvent,
};
use millrace_protocol::subject::Topic;

use super::journals::JournalTrace;
use super::legs::{LegEnd, add_usage};
use super::{Phase, RunTracer};
use crate::names::own;
use crate::span::{AttributeValue, LinkRelation, SpanContext, SpanId, SpanLink, TraceId};

#[expect(clippy::wildcard_enum_match_arm, reason = "the other events neither begin nor end a span")]
impl RunTracer {
    pub(super) fn add_event(&mut self, event: &Event) {
        let task_journal = |task: &TaskId, attempt: &u32| JournalKey::Task(task.clone(), *attempt);
        let review_journal = |task: &TaskId, attempt: &u32| JournalKey::Review(task.clone(), *attempt);
        match event {
            Event::Run(event) => self.add_run_event(event),
            Event::Planning(PlanningEvent::ProposalAccepted { turn, attempt, .. }) => {
                self.end_leg(&JournalKey::Planning(*turn, *attempt), LegEnd::with_outcome("proposed"));
            }
            Event::Planning(PlanningEvent::Errored { turn, attempt, error, .. }) => {
                let end = LegEnd::with_error("failed", "timeout", error);
                self.end_leg(&JournalKey::Planning(*turn, *attempt), end);
            }
            Event::Task(
                TaskEvent::Cancelled { task, .. }
                | TaskEvent::Invalidated { task, .. }
                | TaskEvent::Failed { task, .. }
                | TaskEvent::Reopened { task, .. },
            ) => {
                for journal in self.journals_of_task(task) {
                    self.end_leg(&journal, LegEnd::with_outcome("cancelled"));
                }
                self.drop_waits_of_task(task);
            }
            Event::Task(TaskEvent::Accepted { task, .. } | TaskEvent::Rerun { task, .. }) => {
                self.drop_waits_of_task(task);
            }
            Event::Attempt(AttemptEvent::Parked { task, attempt, waits }) => {
                self.begin_waits(&task_journal(task, attempt), waits);
            }
            Event::Attempt(AttemptEvent::WaitEnded { task, attempt, ended }) => {
                self.end_wait(&task_journal(task, attempt), &ended.key, &ended.end);
            }
            Event::Attempt(AttemptEvent::QuestionRenewed { task, attempt, key, .. }) => {
                self.renew_question(&task_journal(task, attempt), key);
            }
            Event::Attempt(AttemptEvent::TimedOut { task, attempt, clock, .. }) => {
                let end = LegEnd::with_error("timed_out", "timeout", clock.to_string());
                self.end_leg(&task_journal(task, attempt), end);
                self.drop_waits(&task_journal(task, attempt));
            }
            Event::Attempt(AttemptEvent::Errored { task, attempt, error, .. }) => {
                let end = LegEnd::with_error("failed", "worker_lost", &error.message);
                self.end_leg(&task_journal(task, attempt), end);
                self.drop_waits(&task_journal(task, attempt));
            }
            Event::Attempt(AttemptEvent::Finished { task, attempt, .. }) => {
                self.end_leg(&task_journal(task, attempt), LegEnd::with_outcome("finished"));
            }
            Event::Review(ReviewEvent::Errored { task, attempt, error, .. }) => {
                self.end_leg(&review_journal(task, attempt), LegEnd::with_error("failed", "timeout", error));
            }
            Event::Review(ReviewEvent::VerdictGiven { task, attempt, .. }) => {
                self.end_leg(&review_journal(task, attempt), LegEnd::with_outcome("reviewed"));
            }
            _ => {}
        }
    }

    fn add_run_event(&mut self, event: &RunEvent) {
        match event {
            RunEvent::Started { .. } => {
                self.phase = Phase::Live;
                let caller = self.caller.map(|parent| SpanLink {
                    context: SpanContext { trace: TraceId(parent.trace), span: SpanId(parent.span) },
                    relation: LinkRelation::SubmittedBy,
                });
                self.add_anchor(caller.into_iter().collect());
            }
            RunEvent::PlanQuestionAsked { wait, again: _ } => match &mut self.plan_question {
                Some(open) => open.wait = wait.clone(),
                None => self.plan_question = Some(self.begin_wait(wait, None)),
            },
            RunEvent::PlanQuestionEnded { end } => {
                if let Some(open) = self.plan_question.take() {
                    let span = self.span_of_wait(&open, Some(end));
                    self.complete(span);
                }
            }
            RunEvent::Interrupted => {
                for journal in self.journals_where(|trace| trace.leg.is_some()) {
                    self.end_leg(&journal, LegEnd::with_outcome("interrupted"));
                }
            }
            RunEvent::Reopened => self.phase = Phase::Live,
            RunEvent::Ended { reason, detail, .. } => self.end_run(*reason, detail),
            _ => {}
        }
    }

    /// Ends everything that is open, and adds the totals.
    fn end_run(&mut self, reason: EndReason, detail: &str) {
        for journal in self.journals_where(|trace| trace.leg.is_some()) {
            self.end_leg(&journal, LegEnd::with_outcome("cancelled"));
        }
        let is_waiting = |trace: &JournalTrace| !trace.open_waits.is_empty() || !trace.ended_waits.is_empty();
        for journal in self.journals_where(is_waiting) {
            self.drop_waits(&journal);
        }
        if let Some(open) = self.plan_question.take() {
            let span = self.span_of_wait(&open, None);
            self.complete(span);
        }
        let (context, anchor, now) = (self.next_context(), self.anchor(), self.now.0);
        let mut span = self.new_span(context, Some(anchor.span), "run ended", now);
        let outcome = reason.to_string();
        span.attributes.push((own::OUTCOME, outcome.as_str().into()));
        add_usage(&mut span, &self.plan.budget.spend.total);
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for task in self.plan.tasks() {
            *counts.entry(task.state().as_str()).or_default() += 1;
        }
        let counts = counts.into_iter().map(|(state, count)| format!("{state}={count}"));
        span.attributes.push((own::TASKS, AttributeValue::Texts(counts.collect())));
        if let Some(start) = &self.plan.run.start {
            let duration = now.duration_since(start.at).as_secs_f64().max(0.0);
            span.attributes.push((own::DURATION, duration.into()));
        }
        if is_failure(reason) {
            self.set_error(&mut span, &outcome, detail);
        }
        self.complete(span);
        self.phase = Phase::Ended;
    }

    /// Returns the journals that a condition selects, always in the same order.
    fn journals_where(&self, is_wanted: impl Fn(&JournalTrace) -> bool) -> Vec<JournalKey> {
        let wanted = self.journals.iter().filter(|(_, trace)| is_wanted(trace));
        let mut journals: Vec<JournalKey> = wanted.map(|(journal, _)| journal.clone()).collect();
        journals.sort_by_key(|journal| Topic::Journal(journal.clone()).to_string());
        journals
    }

    /// Returns the journals of all attempts at a task and of their reviews.
    pub(super) fn journals_of_task(&self, task: &TaskId) -> Vec<JournalKey> {
        let attempts = self.plan.task(task).map_or(0, |task| task.attempt.max(task.granted));
        let all = (1..=attempts).flat_map(|attempt| {
            [JournalKey::Task(task.clone(), attempt), JournalKey::Review(task.clone(), attempt)]
        });
        all.filter(|journal| self.journals.contains_key(journal)).collect()
    }
}

/// `true` if a run that ended for this reason has failed.
fn is_failure(reason: EndReason) -> bool {
    !matches!(reason, EndReason::Completed | EndReason::CompletedPartial | EndReason::Cancelled)
}
