//! What an attempt continues from if it is not the first at its task: the rejected result with the verdict on it, the notes of
//! earlier attempts and, where the capability asks for that, the conversation. It reads them from the log, and formats them for
//! the model; it decides nothing about attempts.
//!
//! # Invariants
//!
//! - I143: An attempt after a rejection begins with the rejected result, the verdict by criterion and the notes of all earlier
//!   attempts, or with their conversation, and the same on any worker, regardless of later entries in earlier journals.
//!   (`crates/agent/tests/rerun.rs::next_attempt_sees_its_rejected_result_the_verdict_and_the_notes`,
//!   `crates/agent/tests/rerun.rs::notes_of_all_earlier_attempts_are_kept`,
//!   `crates/agent/tests/rerun.rs::revision_continues_the_conversation_of_the_rejected_attempt`,
//!   `crates/agent/tests/rerun.rs::rerun_resumed_after_any_step_repeats_nothing_and_ends_the_same`)

use std::fmt::Write;

use millrace_protocol::ids::TaskId;
use millrace_protocol::result::{CriterionOutcome, TaskResult};
use millrace_protocol::work::{Assignment, InputResult, Order, Rejection};
use tracing::warn;

use super::environment::SessionError;
use crate::material::{NOTICE, prefix_lines_with_bar};
use crate::model::ModelAbility;
use crate::sources::{OrderInputError, OrderInputs};
use crate::spec::{AgentSpec, RevisionMode};
use crate::turn::{
    CONVERSATION_STEP, ForkedConversation, InheritedState, collect_recorded_notes, format_notes,
};

/// The most characters of the rejected result in the first message.
const MAX_RESULT: usize = 16_000;
/// The same for a small model.
const MAX_RESULT_SMALL: usize = 4_000;
/// The most characters of notes in the first message.
const MAX_NOTES: usize = 6_000;
/// The most characters of a criterion with its gap, and of a feedback.
const MAX_FEEDBACK: usize = 2_000;
/// The beginning of the names of the steps that hold replies.
const MODEL_STEPS: &str = "model.";

/// The state of the earlier attempts at a task.
#[derive(Default)]
pub(super) struct EarlierAttempts {
    /// The result that was rejected last.
    rejected: Option<TaskResult>,
    verdict: Vec<CriterionOutcome>,
    /// The notes and the attempt whose conversation continues.
    pub inherited: InheritedState,
    pub conversation: Option<ForkedConversation>,
}

impl EarlierAttempts {
    /// Reads the state of the attempts before that of an order. `recorded` is what this attempt began with, if its conversation
    /// has begun: it begins with the same on every worker.
    pub async fn read(
        spec: &AgentSpec,
        order: &Order,
        recorded: Option<InheritedState>,
        sources: &dyn OrderInputs,
    ) -> Result<Self, SessionError> {
        let Assignment::Task { task, attempt, rejected, rejection, .. } = &order.assignment else {
            return Ok(Self::default());
        };
        let result = match rejected {
            Some(input) => read_rejected_result(input, sources).await?,
            None => None,
        };
        let inherited = match recorded {
            Some(recorded) => recorded,
            None => InheritedState {
                notes: read_notes(task, *attempt, sources).await?,
                conversation_of: rejection
                    .as_ref()
                    .filter(|_| spec.revise == RevisionMode::SameConversation && order.fork.is_none())
                    .map(|rejection| rejection.attempt),
            },
        };
        let conversation = match inherited.conversation_of {
            Some(number) => read_conversation(task, number, sources).await?,
            None => None,
        };
        let verdict = rejection.as_ref().map(|Rejection { criteria, .. }| criteria.clone());
        let inherited = InheritedState {
            conversation_of: inherited.conversation_of.filter(|_| conversation.is_some()),
            ..inherited
        };
        Ok(Self { rejected: result, verdict: verdict.unwrap_or_default(), inherited, conversation })
    }

    /// The part of the first message of a new conversation that is about earlier attempts; empty for a first attempt.
    pub fn format_section(&self, order: &Order, ability: ModelAbility) -> String {
        let mut text = String::new();
        if let Some(result) = &self.rejected {
            let limit = if ability.is_small() { MAX_RESULT_SMALL } else { MAX_RESULT };
            let output = if result.output.is_empty() { &result.summary } else { &result.output };
            let output = prefix_lines_with_bar(output, limit);
            write!(text, "\nYour earlier result, which was rejected. {NOTICE}\n{output}").expect(TO_STRING);
        }
        text.push_str(&format_verdict(&self.verdict));
        // Other models read the feedback in the JSON of their task.
        if ability.is_small() {
            text.push_str(&format_feedback(&order.feedback));
        }
        if let Some(notes) = format_notes(&self.inherited.notes, MAX_NOTES) {
            let notes = prefix_lines_with_bar(&notes, usize::MAX);
            write!(text, "\nYour notes of earlier attempts:\n{notes}").expect(TO_STRING);
        }
        if self.rejected.is_some() {
            text.push_str(
                "\nKeep what was right in your earlier result, and correct what the review found.\n",
            );
        }
        text
    }

    /// The message with which the conversation of the rejected attempt continues.
    pub fn format_revision_request(&self, order: &Order) -> String {
        format!(
            "Your answer was reviewed and rejected.\n{}{}\nCorrect what the review found, and give the complete corrected answer in \
             the form that was asked for.",
            format_verdict(&self.verdict),
            format_feedback(&order.feedback)
        )
    }
}

const TO_STRING: &str = "writing to a String can't fail";

fn format_verdict(verdict: &[CriterionOutcome]) -> String {
    let line = |outcome: &CriterionOutcome| {
        let state = if outcome.met { "met" } else { "not met" };
        let gap = outcome.gap.as_deref().map(|gap| format!(" ({gap})")).unwrap_or_default();
        prefix_lines_with_bar(&format!("{state}: {}{gap}", outcome.criterion), MAX_FEEDBACK)
    };
    let lines: String = verdict.iter().map(line).collect();
    if lines.is_empty() { lines } else { format!("\nThe review by criterion:\n{lines}") }
}

fn format_feedback(feedback: &[String]) -> String {
    let lines: String = feedback.iter().map(|text| prefix_lines_with_bar(text, MAX_FEEDBACK)).collect();
    if lines.is_empty() { lines } else { format!("\nFeedback on earlier attempts:\n{lines}") }
}

/// Returns the rejected result; `None` if it is damaged: the attempt can do without it.
async fn read_rejected_result(
    input: &InputResult,
    sources: &dyn OrderInputs,
) -> Result<Option<TaskResult>, OrderInputError> {
    match sources.read_result(input).await {
        Ok(result) => Ok(Some(result)),
        Err(OrderInputError::Broken(error)) => {
            warn!(task = %input.task, error, "cannot read the rejected result; the attempt begins without it");
            Ok(None)
        }
        Err(unavailable @ OrderInputError::Unavailable(_)) => Err(unavailable),
    }
}

/// Returns the notes with which an attempt begins: those of the last attempt before it that called a model, which began with
/// the ones before.
async fn read_notes(
    task: &TaskId,
    attempt: u32,
    sources: &dyn OrderInputs,
) -> Result<Vec<String>, OrderInputError> {
    for number in (1..attempt).rev() {
        let steps = sources.read_steps(task, number, MODEL_STEPS).await?;
        if !steps.is_empty() {
            return Ok(collect_recorded_notes(&steps));
        }
    }
    Ok(Vec::new())
}

/// Returns the conversation of an attempt; `None` if it recorded none, because its capability did not ask for that then.
async fn read_conversation(
    task: &TaskId,
    attempt: u32,
    sources: &dyn OrderInputs,
) -> Result<Option<ForkedConversation>, OrderInputError> {
    let Some(bytes) = sources.read_step(task, attempt, CONVERSATION_STEP).await? else { return Ok(None) };
    let unreadable = |error| {
        OrderInputError::Broken(format!("the conversation of attempt {attempt} is unreadable: {error}"))
    };
    serde_json::from_slice(&bytes).map(Some).map_err(unreadable)
}
