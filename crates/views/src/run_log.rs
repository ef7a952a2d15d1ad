//! The log of a run: its events and decisions, with the messages that decisions answer. Pure. The names of events are `noun_verb`;
//! those of the log are not changed by this.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use jiff::Timestamp;
use millrace_protocol::ids::{RunId, TaskId, WorkerId};
use millrace_protocol::plan::{
    AnswerCause, CommandAction, Decision, EventJson, JournalKey, RunCommand, Submission,
};
use millrace_protocol::question::RunAnswer;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::journal::{TranscriptEntry, TranscriptEvent};
use crate::{Time, tagged};

/// An event of a run: a line of `millrace run --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EventLine<'a> {
    /// The run.
    pub run: &'a RunId,
    /// The sequence, in the lane, of the decision with the event; events of one decision share it.
    pub sequence: u64,
    /// The time of the decision.
    pub at: Time,
    /// The event.
    #[serde(flatten)]
    pub event: EventJson<'a>,
}

/// Returns the names of all events of a run.
pub fn event_names() -> &'static BTreeSet<String> {
    static NAMES: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
        let schema = schemars::schema_for!(EventJson<'_>);
        let variants = schema.get("oneOf").and_then(Value::as_array).into_iter().flatten();
        variants.filter_map(|one| Some(one["properties"]["type"]["const"].as_str()?.to_owned())).collect()
    });
    &NAMES
}

/// A decision of a run: a line of `millrace replay --log --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "decision")]
#[schemars(transform = tagged("decision"))]
pub struct DecisionLine<'a> {
    /// The run.
    run: &'a RunId,
    /// The sequence of the decision in the lane.
    sequence: u64,
    /// The time of the decision.
    at: Time,
    /// The supervisor.
    by: &'a WorkerId,
    /// The answered inputs, in order.
    answers: Vec<AnswerJson>,
    /// The events, those of one answer after those of the one before.
    events: Vec<EventJson<'a>>,
}

/// The answer to an input.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AnswerJson {
    /// The input.
    cause: CauseJson,
    /// The sequence, in the lane, of the message that was answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<u64>,
    /// The number of its events.
    events: u32,
    /// The reason why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
}

/// The kind of an input.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CauseJson {
    /// A message of a client, worker or critic.
    Message,
    /// A time that was reached.
    Clock,
    /// A change of the cluster's capabilities.
    Registry,
    /// A rule that follows from the answer before.
    Rules,
}

impl<'a> DecisionLine<'a> {
    pub fn new(run: &'a RunId, sequence: u64, decision: &'a Decision) -> Self {
        let answers = decision.answers.iter().map(|answer| {
            let (cause, message) = match answer.cause {
                AnswerCause::Fact(sequence) => (CauseJson::Message, Some(sequence)),
                AnswerCause::Clock => (CauseJson::Clock, None),
                AnswerCause::Registry => (CauseJson::Registry, None),
                AnswerCause::Rules => (CauseJson::Rules, None),
            };
            let refusal = answer.refusal.as_ref().map(ToString::to_string);
            AnswerJson { cause, message, events: answer.events, refusal }
        });
        Self {
            run,
            sequence,
            at: decision.at.into(),
            by: &decision.by,
            answers: answers.collect(),
            events: decision.events.iter().map(EventJson::from).collect(),
        }
    }
}

/// A part of the log of a run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "run_log")]
#[schemars(transform = tagged("run_log"))]
pub struct RunLog<'a> {
    /// The run.
    pub run: &'a RunId,
    /// The decisions, oldest first.
    pub decisions: Vec<LoggedDecision<'a>>,
    /// The `after` of the next part; `null` if there are no more decisions so far.
    pub next: Option<u64>,
}

/// A decision with the messages that it answers.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LoggedDecision<'a> {
    /// The decision.
    pub decision: DecisionLine<'a>,
    /// The messages that it answers, in the order of the answers.
    pub messages: Vec<&'a MessageLine>,
}

impl<'a> LoggedDecision<'a> {
    /// Returns a decision with the messages that `find_message` has for the sequences of its answers.
    pub fn new(
        run: &'a RunId,
        (sequence, decision): (u64, &'a Decision),
        find_message: impl Fn(u64) -> Option<&'a MessageLine>,
    ) -> Self {
        let messages = answered_messages(decision).filter_map(find_message).collect();
        Self { decision: DecisionLine::new(run, sequence, decision), messages }
    }
}

/// Returns the sequences of the messages that a decision answers.
pub fn answered_messages(decision: &Decision) -> impl Iterator<Item = u64> + '_ {
    decision.answers.iter().filter_map(|answer| match answer.cause {
        AnswerCause::Fact(sequence) => Some(sequence),
        AnswerCause::Clock | AnswerCause::Registry | AnswerCause::Rules => None,
    })
}

/// The kinds of messages that decisions answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MessageKind {
    /// The submission of the run.
    Submission,
    /// A command of a user.
    Command,
    /// The answer of a person to a question.
    Answer,
    /// An entry of the journal of an attempt at a task.
    TaskJournal,
    /// An entry of the journal of the reviews of a result.
    ReviewJournal,
    /// An entry of the journal of a turn of the planner.
    PlannerJournal,
}

/// A message that a decision answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MessageLine {
    /// Its sequence in the lane.
    pub sequence: u64,
    /// When the server stored it.
    #[schemars(with = "Time")]
    pub at: Timestamp,
    /// Its kind.
    pub kind: MessageKind,
    /// The user or the process that appended it, if it names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    /// The turn of the planner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planner_turn: Option<u32>,
    /// The attempt at the task or the turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Its content in a line, for a person.
    pub description: String,
}

/// The content of a message that decisions answer.
#[derive(Debug)]
pub enum MessageContent {
    Submission(Box<Submission>),
    Command(Box<RunCommand>),
    /// The answer of a person to a question.
    Answer(Box<RunAnswer>),
    /// An entry of a journal.
    Entry(Box<TranscriptEntry>),
}

impl MessageLine {
    pub fn new(sequence: u64, at: Timestamp, content: &MessageContent) -> Self {
        let line = |kind, by: Option<String>, description| Self {
            sequence,
            at,
            kind,
            by,
            task: None,
            planner_turn: None,
            attempt: None,
            description,
        };
        match content {
            MessageContent::Submission(submission) => {
                line(MessageKind::Submission, None, format!("submitted: {}", submission.objective))
            }
            MessageContent::Command(command) => {
                line(MessageKind::Command, Some(command.by.clone()), describe_command(&command.control))
            }
            MessageContent::Answer(answer) => Self {
                task: answer.question.task().cloned(),
                ..line(
                    MessageKind::Answer,
                    Some(answer.by.clone()),
                    format!("answers question {}", answer.question),
                )
            },
            MessageContent::Entry(entry) => {
                let (by, description) = describe_entry(entry);
                let (kind, planner_turn, attempt) = match &entry.journal {
                    JournalKey::Task(_, attempt) => (MessageKind::TaskJournal, None, *attempt),
                    JournalKey::Review(_, attempt) => (MessageKind::ReviewJournal, None, *attempt),
                    JournalKey::Planning(turn, attempt) => {
                        (MessageKind::PlannerJournal, Some(*turn), *attempt)
                    }
                };
                let task = entry.journal.task().cloned();
                Self { task, planner_turn, attempt: Some(attempt), ..line(kind, by, description) }
            }
        }
    }
}

fn describe_command(action: &CommandAction) -> String {
    match action {
        CommandAction::CancelRun { reason } => format!("cancel the run: {reason}"),
        CommandAction::CancelTask { task, reason } => format!("cancel task {task}: {reason}"),
        CommandAction::Edit(_) => "edit the plan".into(),
        CommandAction::Pause => "pause the run".into(),
        CommandAction::Interrupt => "interrupt the run".into(),
        CommandAction::Resume { budget: None } => "resume the run".into(),
        CommandAction::Resume { budget: Some(_) } => "resume the run with another budget".into(),
        CommandAction::Message { text } => format!("message to the planner: {text}"),
        CommandAction::Signal { name, data: _ } => format!("signal the event {name:?}"),
        CommandAction::Retire => "give up resuming the run".into(),
    }
}

/// Returns the process that appended an entry, and the entry in a line.
fn describe_entry(entry: &TranscriptEntry) -> (Option<String>, String) {
    let (by, line) = match &entry.event {
        TranscriptEvent::Claimed { worker, claim: 1, .. } => (worker, "claimed".into()),
        TranscriptEvent::Claimed { worker, claim, .. } => (worker, format!("claimed, claim {claim}")),
        TranscriptEvent::Parked { worker, waits } => (worker, format!("parked until {}", waits.join("; "))),
        TranscriptEvent::Delegated { worker, .. } => (worker, "changed delegated tasks".into()),
        TranscriptEvent::Released { worker, reason } => (worker, format!("released: {reason}")),
        TranscriptEvent::Result { worker, summary, .. } => (worker, format!("result: {summary}")),
        TranscriptEvent::Verdict { critic, verdict, .. } => {
            let word = if verdict.passed { "passed" } else { "rejected" };
            (critic, format!("{word}: {}", verdict.reasoning))
        }
        TranscriptEvent::Proposal { worker, proposal, .. } => {
            (worker, format!("proposal: {}", proposal.reasoning))
        }
        TranscriptEvent::Error { worker, error } => (worker, format!("error: {}", error.message)),
        TranscriptEvent::Note { text } => return (None, text.clone()),
        TranscriptEvent::Unreadable { error } if entry.step.is_none() => {
            return (None, format!("unreadable entry: {error}"));
        }
        TranscriptEvent::Step(_)
        | TranscriptEvent::StoredStep { .. }
        | TranscriptEvent::Unreadable { .. } => {
            return (None, format!("step {}", entry.step.as_deref().unwrap_or_default()));
        }
    };
    (Some(by.to_string()), line)
}

#[cfg(test)]
mod tests {
    use millrace_protocol::plan::{InputAnswer, PlanningMode};

    use super::*;

    #[test]
    fn decisions_have_the_messages_that_they_answer_in_order() {
        let at = Timestamp::UNIX_EPOCH;
        let run = RunId::new("r-1").unwrap();
        let answer = |cause| InputAnswer { cause, events: 0, refusal: None };
        let decision = Decision {
            by: WorkerId::new("s-1").unwrap(),
            previous: 0,
            at,
            answers: vec![
                answer(AnswerCause::Fact(7)),
                answer(AnswerCause::Rules),
                answer(AnswerCause::Fact(3)),
                answer(AnswerCause::Fact(9)),
            ],
            events: Vec::new(),
        };
        let submission = MessageContent::Submission(Box::new(Submission::new("find out", PlanningMode::Llm)));
        let claim = TranscriptEntry {
            at,
            sequence: 7,
            journal: JournalKey::Review(TaskId::new("draft").unwrap(), 2),
            step: None,
            event: TranscriptEvent::Claimed { worker: WorkerId::new("w-1").unwrap(), claim: 1, build: None },
        };
        let lines = [
            MessageLine::new(3, at, &submission),
            MessageLine::new(7, at, &MessageContent::Entry(Box::new(claim))),
        ];
        let find = |sequence| lines.iter().find(|line| line.sequence == sequence);
        let logged = crate::to_value(&LoggedDecision::new(&run, (12, &decision), find));
        let messages = logged["messages"].as_array().unwrap();
        assert_eq!(messages.len(), 2, "message 9 is gone");
        assert_eq!(
            (&messages[0]["kind"], &messages[0]["attempt"], &messages[0]["by"], &messages[0]["description"]),
            (&"review_journal".into(), &2.into(), &"w-1".into(), &"claimed".into())
        );
        assert_eq!(messages[1]["description"], "submitted: find out");
    }
}
