//! Executes the tool calls of one turn. It owns the order of recording: calls that must not run twice are recorded before
//! they begin, each result is recorded as soon as it is available, and a recorded call is not run again.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use millrace_protocol::result::{ModelUsage, Usage};
use millrace_protocol::wait::{Wait, WaitCondition};
use tokio::time::Instant;
use tracing::warn;

use super::drive_error::{decode_step, encode_step};
use super::large::limit_result_size;
use super::record::{BegunCallsStep, ToolCallRecord, to_millis};
use super::{AttemptName, DriveError, Journal, ValidatedToolCall};
use crate::files::Files;
use crate::model::ToolResult;
use crate::tool::{Call, Effect, ModelCallBudget, Output, Tool, ToolError, Toolbox, describe_wait_end};

/// The result for a call that had begun when its worker was lost.
const UNKNOWN: &str = "It is unknown whether this call took effect: its worker was lost after the call began and before \
the result was recorded. The call was not retried. Check what it was meant to change before you continue: if it took \
effect, do not repeat it; if not, make the call again.";

/// The end of running a call.
enum CallEnd {
    /// It has a result.
    Result(Box<ToolCallRecord>),
    /// It waits for something outside.
    Waits(WaitCondition),
}

/// The context in which the calls of a turn run.
pub(super) struct ToolCallRunner<'a> {
    pub number: u64,
    pub attempt: &'a AttemptName,
    pub toolbox: &'a Toolbox,
    pub files: Option<&'a Arc<dyn Files>>,
    /// The remaining working time.
    pub left: Option<Duration>,
    /// The model usage that the calls may have together.
    pub budget: ModelCallBudget,
}

impl ToolCallRunner<'_> {
    /// Runs the calls concurrently and returns their results in order. If a tool is unavailable, the other calls finish
    /// first, so that every effect is recorded.
    pub async fn run_calls(
        &self,
        calls: &[ValidatedToolCall],
        journal: &mut dyn Journal,
    ) -> Result<Vec<ToolCallRecord>, DriveError> {
        let names: Vec<String> = calls
            .iter()
            .enumerate()
            .map(|(index, call)| format!("tool.{}.{index}.{}", self.number, call.tool))
            .collect();
        let begun = self.record_begun_calls(calls, &names, journal).await?;
        let mut results = self.replay_results(calls, &names, journal).await?;
        for index in begun {
            if results[index].is_none() {
                let unknown = build_call_record(&calls[index], UNKNOWN.to_owned(), true);
                journal.append_step(&names[index], &encode_step(&unknown)).await?;
                results[index] = Some(unknown);
            }
        }
        for (index, result) in results.iter_mut().enumerate().filter(|(_, result)| result.is_none()) {
            if let Some(end) = journal.ended_wait(&names[index]) {
                let record = build_call_record(&calls[index], describe_wait_end(&end), false);
                journal.append_step(&names[index], &encode_step(&record)).await?;
                *result = Some(record);
            }
        }
        let open = calls.iter().enumerate().filter(|(index, _)| results[*index].is_none());
        let mut running: FuturesUnordered<_> =
            open.map(|(index, call)| self.run_call(call, index).map(move |result| (index, result))).collect();
        let (mut fault, mut waits) = (None, Vec::new());
        while let Some((index, result)) = running.next().await {
            match result {
                Ok(CallEnd::Result(result)) => {
                    journal.append_step(&names[index], &encode_step(&result)).await?;
                    results[index] = Some(*result);
                }
                Ok(CallEnd::Waits(condition)) => waits.push(Wait { key: names[index].clone(), condition }),
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        drop(running);
        match fault {
            Some(fault) => Err(fault),
            // The results of the other calls are in the journal.
            None if !waits.is_empty() => Err(DriveError::Parked(waits)),
            None => Ok(results.into_iter().flatten().collect()),
        }
    }

    /// Records the calls that must not run twice. Returns those that an earlier worker had begun.
    async fn record_begun_calls(
        &self,
        calls: &[ValidatedToolCall],
        names: &[String],
        journal: &mut dyn Journal,
    ) -> Result<Vec<usize>, DriveError> {
        let effect = |call: &ValidatedToolCall| self.find_tool(call).map_or(Effect::Pure, Tool::effect);
        let effects = |(index, call)| (effect(call) == Effect::Effect).then_some(index);
        let effects: Vec<usize> = calls.iter().enumerate().filter_map(effects).collect();
        if effects.is_empty() {
            return Ok(effects);
        }
        let step = format!("begin.{}", self.number);
        if let Some((_, value)) = journal.read_recorded_step(std::slice::from_ref(&step)).await? {
            let begun: BegunCallsStep = decode_step(&step, value)?;
            return Ok(effects.into_iter().filter(|index| begun.calls.contains(&names[*index])).collect());
        }
        let begun = BegunCallsStep { calls: effects.iter().map(|index| names[*index].clone()).collect() };
        journal.append_step(&step, &encode_step(&begun)).await?;
        Ok(Vec::new())
    }

    /// Reads the recorded results, in whatever order they were recorded.
    async fn replay_results(
        &self,
        calls: &[ValidatedToolCall],
        names: &[String],
        journal: &mut dyn Journal,
    ) -> Result<Vec<Option<ToolCallRecord>>, DriveError> {
        let mut results: Vec<Option<ToolCallRecord>> = calls.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..calls.len()).collect();
        while !open.is_empty() {
            let requested: Vec<String> = open.iter().map(|index| names[*index].clone()).collect();
            let Some((at, value)) = journal.read_recorded_step(&requested).await? else { break };
            let index = open.remove(at);
            let result: ToolCallRecord = decode_step(&names[index], value)?;
            self.budget.lock().await.charge_usage(&result.usage);
            if let Some(tool) = self.find_tool(&calls[index]) {
                let key = self.attempt.call_key(self.number, index);
                let call = Call { key, turn: self.number, ..Call::default() };
                tool.on_replay(&calls[index].arguments, &result.result, &call);
            }
            results[index] = Some(result);
        }
        Ok(results)
    }

    /// Runs one call. Failures that the model can handle become its result; only an unavailable tool is an error.
    async fn run_call(&self, call: &ValidatedToolCall, index: usize) -> Result<CallEnd, DriveError> {
        let Some(tool) = self.find_tool(call) else {
            let text = format!("the tool {} is not available here", call.tool);
            return Ok(CallEnd::Result(Box::new(build_call_record(call, text, true))));
        };
        let began = Instant::now();
        let key = self.attempt.call_key(self.number, index);
        let deadline = self.left.map(|left| (began + left).into_std());
        let context = Call { key, turn: self.number, deadline, budget: self.budget.clone() };
        let work =
            AssertUnwindSafe(async { tool.call(call.arguments.clone(), &context).await }).catch_unwind();
        let outcome = match self.left {
            None => Some(work.await),
            Some(left) => tokio::time::timeout(left, work).await.ok(),
        };
        let mut result = match outcome {
            Some(Ok(Ok(Output { text, usage, models }))) => {
                ToolCallRecord { usage, models, ..build_call_record(call, text, false) }
            }
            Some(Ok(Err(ToolError::Refused(text)))) => build_call_record(call, text, true),
            Some(Ok(Err(ToolError::Failed { message, detail }))) => {
                warn!(tool = call.tool, detail, "tool failed");
                build_call_record(call, message, true)
            }
            Some(Ok(Err(ToolError::Unavailable(reason)))) => {
                return Err(DriveError::Tool { tool: call.tool.clone(), reason });
            }
            Some(Ok(Err(ToolError::Waits(condition)))) => return Ok(CallEnd::Waits(condition)),
            Some(Err(panic)) => {
                warn!(tool = call.tool, panic = panic_message(panic.as_ref()), "tool panicked");
                build_call_record(call, format!("{} crashed; continue without it", call.tool), true)
            }
            None => build_call_record(
                call,
                "it was stopped: the working time of this task is used up".into(),
                true,
            ),
        };
        result.took_ms = to_millis(began.elapsed());
        if !tool.has_bounded_output() {
            let path = || self.attempt.large_result_path(self.number, index).ok();
            let text = std::mem::take(&mut result.result.text);
            result.result.text = limit_result_size(text, path, &context.key, self.files, self.toolbox).await;
        }
        Ok(CallEnd::Result(Box::new(result)))
    }

    fn find_tool(&self, call: &ValidatedToolCall) -> Option<&dyn Tool> {
        self.toolbox.get(&call.tool)
    }
}

fn build_call_record(call: &ValidatedToolCall, text: String, is_error: bool) -> ToolCallRecord {
    let result = ToolResult { call_id: call.call_id.clone(), text, is_error };
    ToolCallRecord { result, usage: Usage::default(), models: ModelUsage::new(), took_ms: 0 }
}

/// Extracts the message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no panic message")
}
