//! The one loop that carries out what a [`Machine`] says. It owns the order of asking and recording: a model reply
//! or tool result is in the journal before the machine sees it, and one that is already there is not asked for again.
//! It decides nothing about the work itself.

use futures::StreamExt;
use futures::stream::FuturesOrdered;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tracing::{debug, warn};

use super::{Answer, Ended, Invocation, Journal, JournalError, Machine, OutOfStep, Step};
use crate::model::{Model, ModelError, Reply, Request, ToolResult};
use crate::tool::{Call, ToolError, Toolbox};

/// Why the work could not be carried to its end. Nothing that is in the journal is lost by it.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The model gave no reply.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A tool's service can't be reached.
    #[error("the tool {tool} can't be used: {reason}")]
    Tool {
        /// The tool.
        tool: String,
        /// Why.
        reason: String,
    },
    /// The journal can't go on.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A recorded value can't be read: it was written by a version that this one does not know.
    #[error("the journal's step {name:?} can't be read: {reason}")]
    Unreadable {
        /// The step.
        name: String,
        /// Why.
        reason: String,
    },
    /// The loop and the machine disagree: a bug.
    #[error(transparent)]
    OutOfStep(#[from] OutOfStep),
}

/// Runs a machine to its end. Steps are called `model.<turn>` and `tool.<turn>.<index>.<tool>`, both counted from 0;
/// the calls of one turn run at once and are recorded in their order. Dropping the future between two steps loses
/// only what was not yet recorded.
///
/// # Errors
/// See [`DriveError`]. Reaching a limit is no error: the machine's outcome says it.
pub async fn drive<A: Answer>(
    mut machine: Machine<A>,
    model: &dyn Model,
    toolbox: &Toolbox,
    journal: &mut dyn Journal,
) -> Result<Ended<A>, DriveError> {
    loop {
        let turn = machine.turns();
        match machine.next() {
            Step::AskModel(request) => {
                let reply = ask(&request, &format!("model.{turn}"), model, journal).await?;
                machine.feed_reply(reply)?;
            }
            Step::CallTools(calls) => {
                // The turn of a call is that of the reply it stands in.
                let results = call_all(&calls, turn - 1, toolbox, journal).await?;
                machine.feed_results(results)?;
            }
            Step::Done(ended) => return Ok(ended),
        }
    }
}

async fn ask(
    request: &Request,
    name: &str,
    model: &dyn Model,
    journal: &mut dyn Journal,
) -> Result<Reply, DriveError> {
    if let Some((_, value)) = journal.recorded(&[name.to_owned()]).await? {
        return readable(name, value);
    }
    debug!(step = name, model = model.name(), messages = request.messages.len(), "asking the model");
    let reply = model.reply(request, &()).await?;
    journal.append(name, &writable(&reply)).await?;
    Ok(reply)
}

/// The results of a turn's calls in their order: first those that are recorded, then, all at once, those that are
/// not.
async fn call_all(
    calls: &[Invocation],
    turn: u64,
    toolbox: &Toolbox,
    journal: &mut dyn Journal,
) -> Result<Vec<ToolResult>, DriveError> {
    let names: Vec<String> =
        calls.iter().enumerate().map(|(index, call)| format!("tool.{turn}.{index}.{}", call.tool)).collect();
    let mut results = Vec::with_capacity(calls.len());
    while let Some(name) = names.get(results.len()) {
        match journal.recorded(std::slice::from_ref(name)).await? {
            Some((_, value)) => results.push(readable(name, value)?),
            None => break,
        }
    }
    let done = results.len();
    let mut running: FuturesOrdered<_> = calls[done..].iter().map(|call| run(call, toolbox)).collect();
    for name in &names[done..] {
        let Some(result) = running.next().await else { break };
        let result = result?;
        journal.append(name, &writable(&result)).await?;
        results.push(result);
    }
    Ok(results)
}

/// Runs one call. What the model can go on from becomes its result; only a tool out of reach is an error.
async fn run(call: &Invocation, toolbox: &Toolbox) -> Result<ToolResult, DriveError> {
    let answer = |text: String, is_error| ToolResult { call_id: call.call_id.clone(), text, is_error };
    let Some(tool) = toolbox.get(&call.tool) else {
        return Ok(answer(format!("the tool {} is not at hand here", call.tool), true));
    };
    let context = Call::default();
    match tool.call(call.arguments.clone(), &context).await {
        Ok(output) => Ok(answer(output.text, false)),
        Err(ToolError::Refused(text)) => Ok(answer(text, true)),
        Err(ToolError::Failed { told, detail }) => {
            warn!(tool = call.tool, detail, "tool failed");
            Ok(answer(told, true))
        }
        Err(ToolError::Unavailable(reason)) => Err(DriveError::Tool { tool: call.tool.clone(), reason }),
    }
}

fn readable<T: DeserializeOwned>(name: &str, value: Value) -> Result<T, DriveError> {
    serde_json::from_value(value)
        .map_err(|mistake| DriveError::Unreadable { name: name.to_owned(), reason: mistake.to_string() })
}

fn writable(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("replies and results hold only texts and numbers")
}
