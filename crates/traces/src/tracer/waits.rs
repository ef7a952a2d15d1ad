//! Waits of attempts for persons, events, times and other tasks. The span of a wait has links to the legs before and after it, and
//! is complete when the leg after it begins, or when there will be none.

use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::JournalKey;
use millrace_protocol::question::QuestionSubject;
use millrace_protocol::wait::{Wait, WaitCondition, WaitEnd};

use super::RunTracer;
use super::journals::OpenWait;
use crate::names::own;
use crate::span::{AttributeValue, LinkRelation, Span, SpanContext, SpanLink};

impl RunTracer {
    pub(super) fn begin_waits(&mut self, journal: &JournalKey, waits: &[Wait]) {
        for wait in waits {
            let open = self.begin_wait(wait, self.leg_of_journal(journal));
            self.journals.entry(journal.clone()).or_default().open_waits.push(open);
        }
    }

    pub(super) fn begin_wait(&mut self, wait: &Wait, before: Option<SpanContext>) -> OpenWait {
        OpenWait {
            wait: wait.clone(),
            context: self.next_context(),
            parent: self.anchor(),
            start: self.now.0,
            before,
            rounds: 1,
        }
    }

    /// Counts the next round of a question.
    pub(super) fn renew_question(&mut self, journal: &JournalKey, key: &str) {
        let waits = self.journals.get_mut(journal).map(|trace| &mut trace.open_waits);
        for wait in waits.into_iter().flatten().filter(|open| open.wait.key == key) {
            wait.rounds += 1;
        }
    }

    pub(super) fn end_wait(&mut self, journal: &JournalKey, key: &str, end: &WaitEnd) {
        let Some(trace) = self.journals.get_mut(journal) else { return };
        let Some(at) = trace.open_waits.iter().position(|open| open.wait.key == key) else { return };
        let open = trace.open_waits.remove(at);
        let mut span = self.span_of_wait(&open, Some(end));
        self.describe_journal(&mut span, journal);
        self.journals.entry(journal.clone()).or_default().ended_waits.push(span);
    }

    /// Ends the waits of an attempt that does not continue. There is no leg to which those that have ended could link.
    pub(super) fn drop_waits(&mut self, journal: &JournalKey) {
        let Some(trace) = self.journals.get_mut(journal) else { return };
        let (open, ended) = (std::mem::take(&mut trace.open_waits), std::mem::take(&mut trace.ended_waits));
        for mut span in ended {
            span.sequence = self.now.1;
            self.complete(span);
        }
        for open in open {
            let mut span = self.span_of_wait(&open, None);
            self.describe_journal(&mut span, journal);
            self.complete(span);
        }
    }

    /// Ends the waits of all attempts at a task.
    pub(super) fn drop_waits_of_task(&mut self, task: &TaskId) {
        for journal in self.journals_of_task(task) {
            self.drop_waits(&journal);
        }
    }

    /// Returns the span of a wait that ends with the current message; `end` is `None` if it is given up.
    pub(super) fn span_of_wait(&self, open: &OpenWait, end: Option<&WaitEnd>) -> Span {
        let (name, kind) = name_of_condition(&open.wait.condition);
        let mut span = self.new_span(open.context, Some(open.parent.span), name, open.start);
        span.links.extend(open.before.map(|context| SpanLink { context, relation: LinkRelation::WaitOf }));
        span.attributes.push((own::WAIT, kind.into()));
        self.describe_condition(&mut span, &open.wait.condition);
        if open.rounds > 1 {
            span.attributes.push((own::ROUND, open.rounds.into()));
        }
        if let Some(WaitEnd::Answered { by, answer }) = end {
            if !by.is_empty() {
                span.attributes.push((own::ANSWERED_BY, by.as_str().into()));
            }
            self.add_content(&mut span, own::SUMMARY, || answer.to_string());
        }
        span.attributes.push((own::OUTCOME, end.map_or("given_up", WaitEnd::name).into()));
        span
    }

    fn describe_condition(&self, span: &mut Span, condition: &WaitCondition) {
        match condition {
            WaitCondition::Until(_) => {}
            WaitCondition::Event { name, until: _ } => {
                self.add_content(span, own::EVENT, || name.clone());
            }
            WaitCondition::Answer(question) => {
                if let QuestionSubject::Approval { tool, .. } = &question.subject {
                    span.attributes.push((crate::names::TOOL_NAME, tool.as_str().into()));
                }
                span.attributes.push((own::QUESTION, question.subject.name().into()));
                self.add_content(span, own::QUESTION_TEXT, || question.text.clone());
            }
            WaitCondition::Tasks { tasks, any: _, until: _ } => {
                let names = tasks.iter().map(|task| task.as_str().to_owned()).collect();
                span.attributes.push((own::TASKS, AttributeValue::Texts(names)));
            }
        }
    }
}

/// Returns the name of the span of a wait, and its kind.
fn name_of_condition(condition: &WaitCondition) -> (&'static str, &'static str) {
    match condition {
        WaitCondition::Until(_) => ("wait for a time", "time"),
        WaitCondition::Event { .. } => ("wait for an event", "event"),
        WaitCondition::Answer(_) => ("question", "question"),
        WaitCondition::Tasks { .. } => ("wait for tasks", "tasks"),
    }
}
