//! The results of other tasks that an agent's tools can list and read: the inputs of the order, and further ones of the run's
//! plan. Each read fetches the result again.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{Plan, Task};
use millrace_protocol::result::TaskResult;
use millrace_protocol::work::{Assignment, InputResult, Order};

use crate::sources::{OrderInputError, OrderInputs};
use crate::spec::ResultScope;
use crate::tool::{ResultEntry, TaskResultSource, ToolError};

/// Results that an agent may read.
pub(super) struct InputResults {
    inputs: Vec<InputResult>,
    /// The order and the scope by which further results are found in the plan; `None` for the inputs alone.
    plan_scope: Option<(Box<Order>, ResultScope)>,
    sources: Arc<dyn OrderInputs>,
}

/// A task whose result may be read, with its result if it has one.
struct ReadableTask {
    entry: ResultEntry,
    result: Option<InputResult>,
}

impl InputResults {
    /// Creates a view of exactly these inputs.
    pub fn new(inputs: Vec<InputResult>, sources: Arc<dyn OrderInputs>) -> Self {
        Self { inputs, plan_scope: None, sources }
    }

    /// Creates a view of the inputs of an order and of the further results in this scope.
    pub fn in_scope(order: &Order, scope: ResultScope, sources: Arc<dyn OrderInputs>) -> Self {
        let (inputs, plan_scope) = (order.inputs.clone(), Some((Box::new(order.clone()), scope)));
        Self { inputs, plan_scope, sources }
    }

    /// The tasks whose results may be read: the inputs, and then the others in the order of the plan.
    async fn read_tasks(&self) -> Result<Vec<ReadableTask>, ToolError> {
        let input = |input: &InputResult| ReadableTask {
            entry: build_result_entry(input),
            result: Some(input.clone()),
        };
        let mut tasks: Vec<ReadableTask> = self.inputs.iter().map(input).collect();
        let Some((order, scope)) = &self.plan_scope else { return Ok(tasks) };
        let plan = match scope {
            // Nothing changes about tasks that this one depends on while it runs.
            ResultScope::Dependencies => {
                let through = order.decided.map_or(0, |decided| decided.sequence);
                self.sources.read_plan(order, through).await
            }
            ResultScope::Run => self.sources.read_current_plan(order).await,
        };
        let plan = plan.map_err(|error| convert_error(error, "the plan can't be read".into()))?;
        let known: BTreeSet<TaskId> = self.inputs.iter().map(|input| input.task.clone()).collect();
        let further = find_further_tasks(&plan, order, *scope);
        let further = further.into_iter().filter(|task| !known.contains(&task.spec.id));
        tasks.extend(further.map(readable_task));
        Ok(tasks)
    }
}

/// The tasks of a plan in a scope, in its order, without that of the order itself.
fn find_further_tasks<'a>(plan: &'a Plan, order: &Order, scope: ResultScope) -> Vec<&'a Task> {
    let own = match &order.assignment {
        Assignment::Task { task, .. } | Assignment::Review { task, .. } => plan.task(task),
        Assignment::Planning { .. } => None,
    };
    let is_own = |task: &Task| own.is_some_and(|own| own.spec.id == task.spec.id);
    match scope {
        ResultScope::Run => {
            plan.tasks().iter().filter(|task| !task.spec.is_child() && !is_own(task)).collect()
        }
        ResultScope::Dependencies => {
            let mut found: BTreeSet<&TaskId> = BTreeSet::new();
            let mut open: Vec<&Task> = own.into_iter().collect();
            while let Some(task) = open.pop() {
                let new = task.spec.depends_on.iter().filter(|id| found.insert(id));
                open.extend(new.filter_map(|id| plan.task(id)));
            }
            plan.tasks().iter().filter(|task| found.contains(&task.spec.id)).collect()
        }
    }
}

fn readable_task(task: &Task) -> ReadableTask {
    let accepted = task.accepted_result();
    let result =
        accepted.and_then(|(attempt, at, summary)| InputResult::of_attempt(task, attempt, at, summary));
    let entry = ResultEntry {
        task_id: task.spec.id.clone(),
        objective: task.spec.objective.clone(),
        capability: task.spec.capability.to_string(),
        summary: result.as_ref().map(|result| result.summary.clone()).unwrap_or_default(),
        missing: result.is_none().then(|| format!("it is {}", task.state())),
    };
    ReadableTask { entry, result }
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

fn convert_error(error: OrderInputError, message: String) -> ToolError {
    match error {
        OrderInputError::Unavailable(why) => ToolError::Unavailable(why),
        OrderInputError::Broken(detail) => ToolError::Failed { message, detail },
    }
}

impl TaskResultSource for InputResults {
    fn list_results(&self) -> BoxFuture<'_, Result<Vec<ResultEntry>, ToolError>> {
        async move { Ok(self.read_tasks().await?.into_iter().map(|task| task.entry).collect()) }.boxed()
    }

    fn get_result<'a>(&'a self, task: &'a TaskId) -> BoxFuture<'a, Result<Option<TaskResult>, ToolError>> {
        async move {
            let input = match self.inputs.iter().find(|input| input.task == *task) {
                Some(input) => Some(input.clone()),
                None => {
                    let tasks = self.read_tasks().await?;
                    tasks
                        .into_iter()
                        .find(|known| known.entry.task_id == *task)
                        .and_then(|known| known.result)
                }
            };
            let Some(input) = input else { return Ok(None) };
            let read = self.sources.read_result(&input).await;
            read.map(Some)
                .map_err(|error| convert_error(error, format!("the result of {task} can't be read")))
        }
        .boxed()
    }
}
