//! An order's inputs as results that an agent's tools can list and read. Each read fetches the result again.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use millrace_protocol::ids::TaskId;
use millrace_protocol::result::TaskResult;
use millrace_protocol::work::InputResult;

use crate::sources::{OrderInputError, OrderInputs};
use crate::tool::{ResultEntry, TaskResultSource, ToolError};

pub(super) struct InputResults {
    inputs: Vec<InputResult>,
    sources: Arc<dyn OrderInputs>,
}

impl InputResults {
    /// Creates a view of exactly these inputs.
    pub fn new(inputs: Vec<InputResult>, sources: Arc<dyn OrderInputs>) -> Self {
        Self { inputs, sources }
    }
}

/// Returns the entry of an input in a list of results.
pub(super) fn build_result_entry(input: &InputResult) -> ResultEntry {
    ResultEntry {
        task_id: input.task.clone(),
        objective: input.objective.clone(),
        capability: input.capability.to_string(),
        summary: input.summary.clone(),
        missing: None,
    }
}

impl TaskResultSource for InputResults {
    fn list_results(&self) -> BoxFuture<'_, Result<Vec<ResultEntry>, ToolError>> {
        ready(Ok(self.inputs.iter().map(build_result_entry).collect())).boxed()
    }

    fn get_result<'a>(&'a self, task: &'a TaskId) -> BoxFuture<'a, Result<Option<TaskResult>, ToolError>> {
        let input = self.inputs.iter().find(|input| input.task == *task);
        async move {
            let Some(input) = input else {
                return Ok(None);
            };
            self.sources.read_result(input).await.map(Some).map_err(|error| match error {
                OrderInputError::Unavailable(why) => ToolError::Unavailable(why),
                OrderInputError::Broken(why) => {
                    ToolError::Failed { message: format!("the result of {task} can't be read"), detail: why }
                }
            })
        }
        .boxed()
    }
}
