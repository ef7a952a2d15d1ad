//! The inputs of an order as results that an agent's tools can list and read. It keeps none of them.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use millrace_protocol::ids::TaskId;
use millrace_protocol::result::TaskResult;
use millrace_protocol::work::{Input, Order};

use super::{SourceError, Sources};
use crate::tool::{ResultEntry, Results, ToolError};

pub(super) struct Inputs {
    inputs: Vec<Input>,
    sources: Arc<dyn Sources>,
}

impl Inputs {
    pub fn of(order: &Order, sources: Arc<dyn Sources>) -> Arc<dyn Results> {
        Self::over(order.inputs.clone(), sources)
    }

    /// These results and no others.
    pub fn over(inputs: Vec<Input>, sources: Arc<dyn Sources>) -> Arc<dyn Results> {
        Arc::new(Self { inputs, sources })
    }
}

/// An input as a list of results shows it.
pub(super) fn entry(input: &Input) -> ResultEntry {
    ResultEntry {
        task_id: input.task.clone(),
        objective: input.objective.clone(),
        capability: input.capability.to_string(),
        summary: input.summary.clone(),
        missing: None,
    }
}

impl Results for Inputs {
    fn list(&self) -> BoxFuture<'_, Result<Vec<ResultEntry>, ToolError>> {
        ready(Ok(self.inputs.iter().map(entry).collect())).boxed()
    }

    fn get<'a>(&'a self, task: &'a TaskId) -> BoxFuture<'a, Result<Option<TaskResult>, ToolError>> {
        let found = self.inputs.iter().find(|input| input.task == *task);
        async move {
            let Some(input) = found else {
                return Ok(None);
            };
            self.sources.result(input).await.map(Some).map_err(|error| match error {
                SourceError::Unavailable(why) => ToolError::Unavailable(why),
                SourceError::Broken(why) => {
                    ToolError::Failed { told: format!("the result of {task} can't be read"), detail: why }
                }
            })
        }
        .boxed()
    }
}
