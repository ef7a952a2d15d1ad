//! Carries out the tool calls of one turn. It owns their order of recording: what must not run twice is named in the
//! journal before it begins, each result is there as soon as it is known, and what is there already is not run again.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use millrace_protocol::result::{ModelUsage, Usage};
use tokio::time::Instant;
use tracing::warn;

use super::drive::{readable, writable};
use super::large::bounded;
use super::record::{Begun, Returned, millis};
use super::{AttemptName, DriveError, Invocation, Journal};
use crate::files::Files;
use crate::model::ToolResult;
use crate::tool::{Call, Effect, Output, Purse, Tool, ToolError, Toolbox};

/// What the model is told of a call that was begun before its worker was lost.
const UNKNOWN: &str = "It is not known whether this call took effect: the worker that ran it was lost after it had \
begun and before its result was written down. It was not run again. Look at what it was to change before you go on: if \
it took effect, do not repeat it; if it did not, make the call again.";

/// What the calls of a turn are run with.
pub(super) struct Turn<'a> {
    pub number: u64,
    pub attempt: &'a AttemptName,
    pub toolbox: &'a Toolbox,
    pub files: Option<&'a Arc<dyn Files>>,
    /// What is left of the working time.
    pub left: Option<Duration>,
    /// What the calls may use of models together.
    pub purse: Purse,
}

impl Turn<'_> {
    /// The results of the calls, in their order. All run at once. If a tool is out of reach, the others are brought to
    /// their end first, so that nothing that was done goes unrecorded.
    pub async fn results(
        &self,
        calls: &[Invocation],
        journal: &mut dyn Journal,
    ) -> Result<Vec<Returned>, DriveError> {
        let names: Vec<String> = calls
            .iter()
            .enumerate()
            .map(|(index, call)| format!("tool.{}.{index}.{}", self.number, call.tool))
            .collect();
        let begun = self.begin(calls, &names, journal).await?;
        let mut done = self.replay(calls, &names, journal).await?;
        for index in begun {
            if done[index].is_none() {
                let unknown = returned(&calls[index], UNKNOWN.to_owned(), true);
                journal.append(&names[index], &writable(&unknown)).await?;
                done[index] = Some(unknown);
            }
        }
        let open = calls.iter().enumerate().filter(|(index, _)| done[*index].is_none());
        let mut running: FuturesUnordered<_> =
            open.map(|(index, call)| self.run(call, index).map(move |result| (index, result))).collect();
        let mut fault = None;
        while let Some((index, result)) = running.next().await {
            match result {
                Ok(result) => {
                    journal.append(&names[index], &writable(&result)).await?;
                    done[index] = Some(result);
                }
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        drop(running);
        fault.map_or_else(|| Ok(done.into_iter().flatten().collect()), Err)
    }

    /// Names the calls that must not run twice in the journal. Gives those that an earlier worker had begun.
    async fn begin(
        &self,
        calls: &[Invocation],
        names: &[String],
        journal: &mut dyn Journal,
    ) -> Result<Vec<usize>, DriveError> {
        let effect = |call: &Invocation| self.tool(call).map_or(Effect::Pure, Tool::effect);
        let effects = |(index, call)| (effect(call) == Effect::Effect).then_some(index);
        let effects: Vec<usize> = calls.iter().enumerate().filter_map(effects).collect();
        if effects.is_empty() {
            return Ok(effects);
        }
        let step = format!("begin.{}", self.number);
        if let Some((_, value)) = journal.recorded(std::slice::from_ref(&step)).await? {
            let begun: Begun = readable(&step, value)?;
            return Ok(effects.into_iter().filter(|index| begun.calls.contains(&names[*index])).collect());
        }
        let begun = Begun { calls: effects.iter().map(|index| names[*index].clone()).collect() };
        journal.append(&step, &writable(&begun)).await?;
        Ok(Vec::new())
    }

    /// The results that are recorded, in whatever order they stand.
    async fn replay(
        &self,
        calls: &[Invocation],
        names: &[String],
        journal: &mut dyn Journal,
    ) -> Result<Vec<Option<Returned>>, DriveError> {
        let mut done: Vec<Option<Returned>> = calls.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..calls.len()).collect();
        while !open.is_empty() {
            let asked: Vec<String> = open.iter().map(|index| names[*index].clone()).collect();
            let Some((at, value)) = journal.recorded(&asked).await? else { break };
            let index = open.remove(at);
            let result: Returned = readable(&names[index], value)?;
            self.purse.open().await.pay(&result.usage);
            if let Some(tool) = self.tool(&calls[index]) {
                let key = self.attempt.key(self.number, index);
                let call = Call { key, turn: self.number, ..Call::default() };
                tool.replayed(&calls[index].arguments, &result.result, &call);
            }
            done[index] = Some(result);
        }
        Ok(done)
    }

    /// Runs one call. What the model can go on from becomes its result; only a tool out of reach is an error.
    async fn run(&self, call: &Invocation, index: usize) -> Result<Returned, DriveError> {
        let Some(tool) = self.tool(call) else {
            return Ok(returned(call, format!("the tool {} is not at hand here", call.tool), true));
        };
        let began = Instant::now();
        let key = self.attempt.key(self.number, index);
        let deadline = self.left.map(|left| (began + left).into_std());
        let context = Call { key, turn: self.number, deadline, purse: self.purse.clone() };
        let work =
            AssertUnwindSafe(async { tool.call(call.arguments.clone(), &context).await }).catch_unwind();
        let outcome = match self.left {
            None => Some(work.await),
            Some(left) => tokio::time::timeout(left, work).await.ok(),
        };
        let mut result = match outcome {
            Some(Ok(Ok(Output { text, usage, models }))) => {
                Returned { usage, models, ..returned(call, text, false) }
            }
            Some(Ok(Err(ToolError::Refused(text)))) => returned(call, text, true),
            Some(Ok(Err(ToolError::Failed { told, detail }))) => {
                warn!(tool = call.tool, detail, "tool failed");
                returned(call, told, true)
            }
            Some(Ok(Err(ToolError::Unavailable(reason)))) => {
                return Err(DriveError::Tool { tool: call.tool.clone(), reason });
            }
            Some(Err(panic)) => {
                warn!(tool = call.tool, panic = said(panic.as_ref()), "tool panicked");
                returned(call, format!("{} broke down; go on without it", call.tool), true)
            }
            None => returned(call, "it was stopped: the working time of this task is used up".into(), true),
        };
        result.took_ms = millis(began.elapsed());
        if !tool.bounds_itself() {
            let path = || self.attempt.large_result(self.number, index).ok();
            let text = std::mem::take(&mut result.result.text);
            result.result.text = bounded(text, path, &context.key, self.files, self.toolbox).await;
        }
        Ok(result)
    }

    fn tool(&self, call: &Invocation) -> Option<&dyn Tool> {
        self.toolbox.get(&call.tool)
    }
}

fn returned(call: &Invocation, text: String, is_error: bool) -> Returned {
    let result = ToolResult { call_id: call.call_id.clone(), text, is_error };
    Returned { result, usage: Usage::default(), models: ModelUsage::new(), took_ms: 0 }
}

/// What a panic said.
fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("it gave no words")
}
