//! Handles a reply: parses its answer, validates its calls, and reports mistakes in either to the model.

use std::collections::BTreeSet;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::repetition::AnsweredCall;
use super::{CheckedCall, MAX_CALLS_AT_ONCE, Machine, MachineState, ValidatedToolCall};
use crate::model::{AnswerSchema, FinishReason, Message, ToolCall, ToolResult};
use millrace_protocol::schema::convert_unambiguous_values;

use crate::tool::{InnerTool, ValidatedCall, parse_lenient_json};
use crate::turn::{Answer, ArtifactChange, StopReason, ToolCallRecord};

/// The hint for the first call that repeats another.
const REPEATED: &str = "\n\n[You made this call before, with the same result, and nothing has changed since. Make another call, or \
answer from the information you have.]";

impl<A: Answer> Machine<A> {
    pub(super) fn process_answer(&mut self, text: &str, finish: FinishReason) {
        let cut_off = finish == FinishReason::Length;
        let too_long = || format!("It is too long and was {}.", self.describe_cut_off());
        let answer = match self.parse_and_validate_answer(text) {
            // Also a value that is valid JSON: some servers close the brackets of a reply that they cut off.
            _ if cut_off => Err(too_long()),
            answer => answer,
        };
        match answer {
            Ok(answer) => self.state = MachineState::Checking(answer),
            Err(mistake) => {
                if cut_off {
                    self.forget_cut_off_reply();
                }
                self.request_correction(mistake);
            }
        }
    }

    fn describe_cut_off(&self) -> String {
        let limit = self.request.max_output_tokens;
        format!("cut off at {limit} tokens: give at most {} words", limit / 2)
    }

    /// The refusal of a call in a reply that was cut off, also if its arguments are valid: the server may have
    /// closed the brackets of a part.
    fn describe_cut_call(&self, tool: &str) -> String {
        format!(
            "{tool} was not run, since its arguments may be incomplete: your reply was {}. Make the call again in a shorter reply;              write a long text in several parts.",
            self.describe_cut_off()
        )
    }

    /// Removes the text of a reply that was cut off from the conversation: a small model would continue or copy it, and each
    /// request would send it again. The empty message stays, since turns alternate.
    fn forget_cut_off_reply(&mut self) {
        if let Some(Message::Assistant { text, provider_state, .. }) = self.request.messages.last_mut() {
            *provider_state = None;
            self.cut_off = Some(std::mem::take(text));
        }
    }

    fn parse_and_validate_answer(&self, text: &str) -> Result<A, String> {
        let Some(AnswerSchema { schema, .. }) = &self.request.answer else {
            return A::parse_answer(text);
        };
        let mut value = parse_lenient_json(text)
            .map_err(|mistake| format!("The answer is not one JSON object: {mistake}."))?;
        if A::is_other_form(&value, schema) {
            return A::parse_answer(&value.to_string());
        }
        convert_unambiguous_values(schema, &mut value);
        self.answer_form
            .check_value(schema, &value)
            .map_err(|mistakes| format!("The answer does not fit its schema: {mistakes}."))?;
        A::parse_answer(&value.to_string())
    }

    /// Reports a mistake in the answer to the model, as long as it has corrections left.
    pub(super) fn request_correction(&mut self, mistake: String) {
        if self.repairs == self.limits.repairs {
            return self.stop_with_reason(StopReason::UnusableAnswer { repairs: self.repairs, mistake });
        }
        self.repairs += 1;
        self.push_user_message(format!(
            "Your answer is invalid. {mistake} Give the complete corrected answer."
        ));
        self.is_correcting = true;
        self.request.tools = self.offered_tools();
        self.request_reply();
    }

    /// Refuses calls that a model makes in place of a correction; each reply with such calls counts as a correction.
    fn refuse_calls_in_correction(&mut self, calls: Vec<ToolCall>) {
        if self.repairs == self.limits.repairs {
            let mistake = "it called tools in place of the corrected answer".to_owned();
            return self.stop_with_reason(StopReason::UnusableAnswer { repairs: self.repairs, mistake });
        }
        self.repairs += 1;
        let refuse = |call: ToolCall| {
            let text = "No tool can be called now. Give the complete corrected answer.".to_owned();
            CheckedCall::Answered(ToolResult { call_id: call.id, text, is_error: true, images: Vec::new() })
        };
        let refused = calls.into_iter().map(refuse).collect();
        self.push_results(refused, Vec::new());
    }

    pub(super) fn process_tool_calls(&mut self, calls: Vec<ToolCall>, finish: FinishReason) {
        // If there is no next request, no model reads the results, so calls with effects must not run.
        if let Some(stop) = self.find_exceeded_limit() {
            return self.stop_with_reason(stop);
        }
        if self.out_of_calls {
            return self.stop_with_reason(StopReason::ToolCalls { limit: self.calls_allowed });
        }
        if self.is_correcting {
            return self.refuse_calls_in_correction(calls);
        }
        let mut run = Vec::new();
        let lists = calls
            .iter()
            .filter(|call| self.tools.find_inner_tool(&call.name) == Some(InnerTool::WriteTodos))
            .count();
        let checked = calls.into_iter().enumerate().map(|(at, call)| {
            let id = call.id.clone();
            match self.check_call(call, at, lists, finish) {
                Ok(RoutedCall::Run(invocation)) => {
                    run.push(invocation);
                    CheckedCall::Run
                }
                Ok(RoutedCall::Done(text)) => CheckedCall::Answered(ToolResult {
                    call_id: id,
                    text,
                    is_error: false,
                    images: Vec::new(),
                }),
                Err(text) => CheckedCall::Answered(ToolResult {
                    call_id: id,
                    text,
                    is_error: true,
                    images: Vec::new(),
                }),
            }
        });
        let checked: Vec<CheckedCall> = checked.collect();
        if run.is_empty() {
            self.push_results(checked, Vec::new());
        } else {
            self.state = MachineState::Calling { calls: checked, run };
        }
    }

    /// Validates one call, the `at`-th of its reply, which has `lists` calls of write_todos.
    fn check_call(
        &mut self,
        call: ToolCall,
        at: usize,
        lists: usize,
        finish: FinishReason,
    ) -> Result<RoutedCall, String> {
        if at >= MAX_CALLS_AT_ONCE {
            return Err(format!(
                "at most {MAX_CALLS_AT_ONCE} calls may be made at once; this one was not run"
            ));
        }
        if finish == FinishReason::Length {
            self.count_against_limit()?;
            return Err(self.describe_cut_call(&call.name));
        }
        if self.repetition.is_withdrawn(&call.name) {
            self.count_against_limit()?;
            return Err(format!(
                "{} is not available until something has changed. Continue with the information you have.",
                call.name
            ));
        }
        if let Some(refusal) = self.refuse_unavailable_tool(&call.name) {
            self.count_against_limit()?;
            return Err(refusal);
        }
        match self.tools.validate_call(&call) {
            Ok(ValidatedCall { arguments, inner: Some(InnerTool::State) }) => {
                self.run_state_tool(&call.name, &arguments).map(RoutedCall::Done)
            }
            Ok(ValidatedCall { inner: Some(InnerTool::WriteTodos), .. }) if lists > 1 => Err(
                "write_todos was called several times in one message, and each call replaces the whole list: none was \
                 executed. Call it once, with the whole list."
                    .into(),
            ),
            Ok(ValidatedCall { inner: Some(InnerTool::CompactConversation), .. }) => {
                self.request_compaction().map(RoutedCall::Done)
            }
            Ok(ValidatedCall { arguments, inner: Some(inner) }) => self.scratch.run_inner_tool(inner, arguments).map(RoutedCall::Done),
            Ok(ValidatedCall { arguments, inner: None }) => {
                self.count_against_limit()?;
                Ok(RoutedCall::Run(ValidatedToolCall { call_id: call.id, tool: call.name, arguments }))
            }
            Err(mistake) => {
                self.count_against_limit()?;
                Err(mistake)
            }
        }
    }

    fn count_against_limit(&mut self) -> Result<(), String> {
        if self.calls_counted >= self.calls_allowed {
            return Err(format!("all {} tool calls are used up", self.calls_allowed));
        }
        self.calls_counted += 1;
        Ok(())
    }

    /// `true` if the world may be another one after a call, so that the repetition of an earlier call can have another result.
    pub(super) fn has_changed_something(&self, call: &ToolCallRecord) -> bool {
        let is_change = |change: &ArtifactChange| match change {
            ArtifactChange::Written(written) => {
                self.artifacts.get(&written.path).is_none_or(|known| known.sha256 != written.sha256)
            }
            ArtifactChange::Deleted(_) => true,
        };
        call.has_effects || call.artifacts.iter().any(is_change)
    }

    /// Appends the results of a turn to the conversation, in the order of its calls. `records` says of each whether it changed
    /// something.
    pub(super) fn push_results(&mut self, calls: Vec<CheckedCall>, records: Vec<(ToolCallRecord, bool)>) {
        let mut records = records.into_iter();
        let results = calls.into_iter().filter_map(|call| match call {
            CheckedCall::Run => records.next().map(|(record, has_changed)| {
                let digest = digest_text(&record.comparable_result());
                (CallOutcome { digest, has_changed, is_progress: record.is_progress }, record.result)
            }),
            CheckedCall::Answered(result) => {
                let digest = digest_text(&result.text);
                Some((CallOutcome { digest, has_changed: false, is_progress: false }, result))
            }
        });
        let (outcomes, mut results): (Vec<CallOutcome>, Vec<ToolResult>) = results.unzip();
        let stop = self.count_repetitions(&mut results, outcomes);
        self.request.messages.extend(results.into_iter().map(Message::Tool));
        self.end_turn_of_state();
        match stop {
            Some(reason) => self.stop_with_reason(reason),
            None => self.request_reply(),
        }
    }

    /// Counts the calls that repeat others. The first repetition gets a hint; at the limit the tool is withdrawn, and beyond it
    /// the work ends with the returned reason.
    fn count_repetitions(
        &mut self,
        results: &mut [ToolResult],
        outcomes: Vec<CallOutcome>,
    ) -> Option<StopReason> {
        let Some(Message::Assistant { calls, .. }) = self.request.messages.last() else { return None };
        let answered = calls.iter().zip(outcomes).map(|(call, outcome)| {
            let CallOutcome { digest, has_changed, is_progress } = outcome;
            let inner = self.tools.find_inner_tool(&call.name);
            let is_refused = self.repetition.is_withdrawn(&call.name);
            // The result of a note only counts the notes.
            let digest = if inner == Some(InnerTool::AppendNote) { String::new() } else { digest };
            AnsweredCall {
                tool: call.name.clone(),
                call_digest: digest_call(call),
                result_digest: (!is_refused).then_some(digest),
                has_changed,
                tells_news: !is_refused && inner.is_none_or(|inner| inner == InnerTool::State),
                is_progress,
                // Reading a field again is no sign of going round in circles: another call may have changed it.
                can_repeat: inner != Some(InnerTool::State),
            }
        });
        let answered: Vec<AnsweredCall> = answered.collect();
        let times = self.repetition.add_calls(&answered);
        let limit = self.limits.identical_calls;
        let mut stop = None;
        for ((result, call), times) in results.iter_mut().zip(&answered).zip(times) {
            let AnsweredCall { tool, result_digest, .. } = call;
            if times > limit {
                stop = stop.or(Some(StopReason::IdenticalCalls { tool: tool.clone(), limit }));
            }
            if times < 2 || result_digest.is_none() {
                continue;
            }
            if times < limit {
                result.text.push_str(REPEATED);
            } else {
                self.repetition.withdraw_tool(tool);
                result.text.push_str(&format!(
                    "\n\n[You made this call {times} times with the same result, and nothing has changed in between. {tool} is not \
                     available until something has changed, and the task ends if you repeat the call. Continue with the \
                     information you have.]"
                ));
            }
        }
        if self.repetition.has_withdrawn_tools() {
            self.request.tools = self.offered_tools();
        }
        stop
    }
}

/// The outcome of a call, by which it is compared with others.
struct CallOutcome {
    /// The digest of its result.
    digest: String,
    has_changed: bool,
    is_progress: bool,
}

/// A validated call, or the result of one that was executed at once.
enum RoutedCall {
    Run(ValidatedToolCall),
    Done(String),
}

/// Gives calls without an id, or with a duplicate one, an id of their own: providers reject a conversation in which a
/// result can't be matched to its call.
pub(super) fn make_ids_unique(calls: &mut [ToolCall], turn: u64) {
    let mut ids = BTreeSet::new();
    for (at, call) in calls.iter_mut().enumerate() {
        if call.id.is_empty() || !ids.insert(call.id.clone()) {
            call.id = format!("call_{turn}_{at}");
            ids.insert(call.id.clone());
        }
    }
}

/// A digest of tool and arguments that ignores spacing and key order.
fn digest_call(call: &ToolCall) -> String {
    let arguments = match serde_json::from_str::<Value>(&call.arguments) {
        Ok(mut value) => {
            value.sort_all_objects();
            value.to_string()
        }
        Err(_) => call.arguments.clone(),
    };
    digest_text(&format!("{}\0{arguments}", call.name))
}

fn digest_text(text: &str) -> String {
    Sha256::digest(text)[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}
