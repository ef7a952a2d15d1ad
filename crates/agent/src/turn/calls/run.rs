//! Running one call, and the form of its result. A result that is too long for a conversation goes to a file: the model sees a preview
//! instead, with the beginning, the end and the path of the full text.

use std::any::Any;
use std::borrow::Cow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use millrace_protocol::plan::ResourceAmounts;
use millrace_protocol::result::{ModelUsage, Usage};
use millrace_protocol::secrets::redact_text;
use millrace_protocol::wait::{WaitCondition, WaitEnd};
use serde_json::Value;
use tokio::time::Instant;
use tracing::warn;

use super::{CallEnd, EndedCall, ReadyCall, TurnCalls};
use crate::files::{FilePath, WriteCondition};
use crate::model::ToolResult;
use crate::tool::files::MAX_READ;
use crate::tool::{Call, Effect, Output, ToolError, describe_wait_end, keep_head_and_tail};
use crate::turn::conversation::Conversation;
use crate::turn::record::{ToolCallRecord, to_millis};
use crate::turn::{DriveError, ValidatedToolCall};

/// The maximum length of a result in the conversation, in characters: about 20,000 tokens.
pub const MAX_RESULT: usize = 80_000;
/// The number of lines shown at either end of a longer result.
const SHOWN_LINES: usize = 5;
/// The maximum number of characters of a shown line.
const SHOWN_CHARS: usize = 1_000;
/// The tool for reading files.
const READER: &str = "read_file";

impl EndedCall {
    /// A call with nothing but its result.
    fn of_record(record: ToolCallRecord) -> Box<Self> {
        Box::new(Self { record, delegation: None, changes: None, page: None })
    }
}

impl TurnCalls<'_> {
    /// Runs one call. Failures that the model can handle become its result; only an unavailable tool is an error.
    pub(super) async fn run_call(
        &self,
        ReadyCall { index, is_approved, changed }: ReadyCall,
        share: ResourceAmounts,
    ) -> Result<CallEnd, DriveError> {
        let call = &self.calls[index];
        let Some(tool) = self.find_tool(index) else {
            let text = format!("the tool {} is not available here", call.tool);
            return Ok(CallEnd::Ended(EndedCall::of_record(build_call_record(call, text, true))));
        };
        let began = Instant::now();
        let deadline = self.left.map(|left| (began + left).into_std());
        let fork = self.fork.as_ref().filter(|_| tool.delegated_tasks() > 0);
        let fork = fork.map(|fork| Arc::new(fork.at_call(&call.call_id)));
        let context = Call { deadline, is_approved, fork, ..self.call_context(index, share) };
        let arguments = changed.clone().unwrap_or_else(|| call.arguments.clone());
        let work = AssertUnwindSafe(async { tool.call(arguments, &context).await }).catch_unwind();
        let outcome = match self.left {
            None => Some(work.await),
            Some(left) => tokio::time::timeout(left, work).await.ok(),
        };
        let mut ended = match outcome {
            Some(Ok(outcome)) => match end_call(call, outcome)? {
                CallEnd::Ended(ended) => ended,
                waits @ CallEnd::Waits(..) => return Ok(waits),
            },
            Some(Err(panic)) => {
                warn!(tool = call.tool, panic = panic_message(panic.as_ref()), "tool panicked");
                let text = format!("{} crashed; continue without it", call.tool);
                EndedCall::of_record(build_call_record(call, text, true))
            }
            None => {
                let text = "it was stopped: the working time of this task is used up";
                EndedCall::of_record(build_call_record(call, text.into(), true))
            }
        };
        let record = &mut ended.record;
        if let Cow::Owned(redacted) = redact_text(&record.result.text) {
            record.result.text = redacted;
        }
        record.took_ms = to_millis(began.elapsed());
        record.has_effects =
            !record.result.is_error && tool.effect() != Effect::Pure && !tool.names_its_changes();
        record.is_progress = record.has_effects && tool.effect() == Effect::Effect;
        if let Some(changed) = changed {
            record.result.text.push_str(&format!("\n\n(A person changed the arguments of this call to {changed}; this is the result with these.)"));
        }
        if !tool.has_bounded_output() {
            self.limit_size(record, index, &context.key).await;
        }
        Ok(CallEnd::Ended(ended))
    }

    /// The result of a call whose wait has ended.
    pub(super) async fn end_wait(
        &self,
        index: usize,
        changed: Option<Value>,
        end: &WaitEnd,
    ) -> Result<ToolCallRecord, DriveError> {
        let call = &self.calls[index];
        let context = self.call_context(index, ResourceAmounts::default());
        let ended = match self.find_tool(index) {
            None => Ok(describe_wait_end(end).into()),
            Some(tool) => {
                let arguments = changed.unwrap_or_else(|| call.arguments.clone());
                tool.end_wait(arguments, end, &context).await
            }
        };
        let record = match ended {
            Ok(Output { text, delegated, .. }) => {
                ToolCallRecord { delegated, ..build_call_record(call, text, false) }
            }
            Err(error) => convert_tool_error(call, error)?,
        };
        let is_progress = match end {
            WaitEnd::TimeReached | WaitEnd::Signalled { .. } | WaitEnd::Expired => true,
            // An agent that asks a person or another agent the same again and again goes round in circles.
            WaitEnd::Answered { .. } | WaitEnd::TasksEnded(_) | WaitEnd::Withdrawn => false,
        };
        let mut record = ToolCallRecord { has_effects: true, is_progress, ..record };
        self.limit_size(&mut record, index, &context.key).await;
        Ok(record)
    }

    pub(super) fn call_context(&self, index: usize, share: ResourceAmounts) -> Call {
        let key = self.conversation.attempt.call_key(self.number, index);
        let budget = self.budget.clone();
        let turn = self.number;
        Call { key, turn, index, share, budget, ..Call::default() }
    }

    /// Stores a result in a file that is too long for the conversation.
    async fn limit_size(&self, record: &mut ToolCallRecord, index: usize, key: &str) {
        let path = || self.conversation.attempt.large_result_path(self.number, index).ok();
        let text = std::mem::take(&mut record.result.text);
        record.result.text = limit_result_size(text, path, key, self.conversation).await;
    }
}

/// Converts the outcome of a call.
fn end_call(call: &ValidatedToolCall, outcome: Result<Output, ToolError>) -> Result<CallEnd, DriveError> {
    Ok(match outcome {
        Ok(Output { text, usage, models, delegated, delegation, artifacts, changes, page, images }) => {
            let mut record = build_call_record(call, text, false);
            record.result.images = images;
            let record = ToolCallRecord { usage, models, delegated, artifacts, ..record };
            CallEnd::Ended(Box::new(EndedCall { record, delegation, changes, page }))
        }
        Err(ToolError::Waits(condition)) => CallEnd::Waits(condition, None),
        Err(ToolError::Delegates(child)) => {
            let condition = WaitCondition::Tasks { tasks: vec![child.id.clone()], any: false, until: None };
            CallEnd::Waits(condition, Some(child))
        }
        Err(error) => CallEnd::Ended(EndedCall::of_record(convert_tool_error(call, error)?)),
    })
}

/// Converts the error of a call that can't wait, or not again.
fn convert_tool_error(call: &ValidatedToolCall, error: ToolError) -> Result<ToolCallRecord, DriveError> {
    Ok(match error {
        ToolError::Lost { text, delegated } => {
            ToolCallRecord { delegated, ..build_call_record(call, text, true) }
        }
        ToolError::Refused(text) => build_call_record(call, text, true),
        ToolError::Failed { message, detail } => {
            warn!(tool = call.tool, detail, "tool failed");
            build_call_record(call, message, true)
        }
        ToolError::Unavailable(reason) => return Err(DriveError::Tool { tool: call.tool.clone(), reason }),
        ToolError::Waits(_) | ToolError::Delegates(_) => {
            build_call_record(call, "it waits again after its end; continue without it".into(), true)
        }
    })
}

pub(super) fn build_call_record(call: &ValidatedToolCall, text: String, is_error: bool) -> ToolCallRecord {
    let result = ToolResult { call_id: call.call_id.clone(), text, is_error, images: Vec::new() };
    let (usage, models, delegated) = (Usage::default(), ModelUsage::new(), Usage::default());
    ToolCallRecord {
        result,
        usage,
        models,
        delegated,
        artifacts: Vec::new(),
        has_effects: false,
        is_progress: false,
        page: None,
        took_ms: 0,
    }
}

/// Extracts the message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no panic message")
}

/// Returns the result as the model sees it. A long result is written to the workspace at `path`, if there is one and the
/// agent can read files; otherwise its middle is cut out.
async fn limit_result_size(
    text: String,
    path: impl FnOnce() -> Option<FilePath>,
    key: &str,
    conversation: &Conversation,
) -> String {
    // A text has at least as many bytes as characters, and bytes are cheaper to count.
    if text.len() <= MAX_RESULT || text.chars().count() <= MAX_RESULT {
        return text;
    }
    let files = conversation.files.as_ref().filter(|_| conversation.toolbox.get(READER).is_some());
    let Some((files, path)) = files.and_then(|files| Some((files, path()?))) else {
        return keep_head_and_tail(&text, MAX_RESULT);
    };
    match files.write(&path, text.clone().into_bytes(), WriteCondition::Always, key).await {
        Ok(_) => format_preview(&text, &path),
        Err(error) => {
            warn!(%path, %error, "cannot store a long tool result; cutting it");
            keep_head_and_tail(&text, MAX_RESULT)
        }
    }
}

fn format_preview(text: &str, path: &FilePath) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let count = lines.len();
    let tail = count.saturating_sub(SHOWN_LINES).max(SHOWN_LINES).min(count);
    let shown = |from: usize, to: usize| -> Vec<String> {
        (from..to).map(|at| format!("{:>6}\t{}", at + 1, shorten_line(lines[at]))).collect()
    };
    let head = shown(0, SHOWN_LINES.min(count)).join("\n");
    let between = tail.saturating_sub(SHOWN_LINES);
    let between = if between > 0 { format!("\n[… {between} lines …]\n") } else { "\n".to_owned() };
    let tail = shown(tail, count).join("\n");
    let is_long = |line: &&str| line.len() > MAX_READ;
    let column = if lines.iter().any(is_long) { ", column" } else { "" };
    format!(
        "The result is too long to be shown here: {} characters in {count} lines. It is in {path}, as the tool returned it; \
         continue with {READER}(file_path, offset, limit{column}), or search the file. Its first and last lines:\n\n\
         {head}{between}{tail}",
        text.chars().count(),
    )
}

fn shorten_line(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}… (line cut)", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_shows_both_ends_and_the_path() {
        let path = FilePath::new("/large_results/t/1/0.0.txt").unwrap();
        let text: String = (1..=30).map(|n| format!("line {n}\n")).collect();
        let shown = format_preview(&text, &path);
        for there in
            ["     1\tline 1\n", "     5\tline 5\n[… 20 lines …]\n    26\tline 26\n", "    30\tline 30"]
        {
            assert!(shown.contains(there), "{shown}");
        }
        assert!(
            !shown.contains("line 6\n")
                && shown.contains("in 30 lines. It is in /large_results/t/1/0.0.txt, as the tool returned it; continue with \
                                   read_file(file_path, offset, limit), or")
        );

        let one = format_preview(&"x".repeat(100_000), &path);
        assert!(one.chars().count() < 1_500 && one.contains("… (line cut)"), "{one}");
        assert!(one.contains("read_file(file_path, offset, limit, column)"), "{one}");
        let seven: String = (1..=7).map(|n| format!("{n}\n")).collect();
        let shown = format_preview(&seven, &path);
        assert!(shown.ends_with("     5\t5\n     6\t6\n     7\t7"), "{shown}");
        assert!(format_preview("", &path).contains("0 characters in 0 lines"));
    }
}
