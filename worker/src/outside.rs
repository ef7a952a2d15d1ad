//! What work that is done outside of this process has in common, whether a program does it or a service: what its file
//! says of time and effect, the task as JSON, the result as JSON or text, and the two steps in the journal that tell work
//! that was never begun from work whose outcome is unknown.

use std::time::Duration;

use millrace_agent::spec::{common, merge};
use millrace_agent::tool::{self, Effect};
use millrace_forms::{Fields, Mistake};
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::Work;
use millrace_protocol::result::{ErrorKind, Parameters, TaskError, TaskResult};
use millrace_protocol::work::Order;
use serde::Serialize;
use serde_json::{Value, json};

use crate::Attempt;

/// How long it may take, as its file says it.
pub(crate) fn timeout(fields: &Fields<'_>, otherwise: Duration) -> Result<Duration, Mistake> {
    fields.get("timeout").map_or(Ok(otherwise), |node| node.duration("timeout"))
}

/// What doing it twice would do, as its file says it.
pub(crate) fn effect(fields: &Fields<'_>, otherwise: Effect) -> Result<Effect, Mistake> {
    fields
        .get("effect")
        .map_or(Ok(otherwise), |node| Ok(Effect::ALL[node.choice("effect", &Effect::ALL.map(Effect::name))?]))
}

/// The JSON Schema of the files of a kind, which have these properties besides those of all, one of them required.
pub(crate) fn schema(kind: &str, required: &str, own: Value) -> Value {
    let mut properties = common();
    merge(&mut properties, json!({ "kind": { "const": kind } }));
    merge(&mut properties, own);
    let both = json!({
        "timeout": {
            "description": "How long it may take, with all tries: seconds, or text such as 5m.",
            "type": ["number", "string"],
        },
        "effect": {
            "description": "What doing it twice would do: nothing (pure), nothing more by its key (idempotent), or \
                            something twice (effect).",
            "enum": Effect::ALL.map(Effect::name),
        },
    });
    merge(&mut properties, both);
    json!({
        "type": "object",
        "properties": properties,
        "required": ["kind", "name", "description", required],
        "additionalProperties": false,
    })
}

/// A task as it goes out.
#[derive(Debug, Serialize)]
pub(crate) struct Task {
    /// The run.
    pub run: RunId,
    /// The task.
    pub task: TaskId,
    /// Which attempt at it this is, from 1.
    pub attempt: u32,
    /// The same each time this very attempt goes out.
    pub key: String,
    /// What is to be done.
    pub objective: String,
    /// What the user wants of the whole run.
    pub run_objective: String,
    /// Named values.
    pub parameters: Parameters,
    /// The results it builds on.
    pub inputs: Vec<Input>,
    /// What earlier attempts were told, oldest first.
    pub feedback: Vec<String>,
    /// Whether its result is the deliverable of the run.
    #[serde(rename = "final")]
    pub is_final: bool,
}

/// A result that a task builds on, as it goes out.
#[derive(Debug, Serialize)]
pub(crate) struct Input {
    /// The task it is of.
    pub task: TaskId,
    /// What that task was to do.
    pub objective: String,
    /// The capability that did it.
    pub capability: String,
    /// The whole result.
    pub result: TaskResult,
}

impl Task {
    /// The task of an attempt, with the results it builds on.
    ///
    /// # Errors
    /// The order is no task, or a result can't be had.
    pub async fn of(attempt: &mut Attempt<'_>) -> Result<Self, TaskError> {
        let order = attempt.order().clone();
        let Work::Task { task, attempt: number } = &order.work else {
            return Err(TaskError::new(ErrorKind::InvalidTask, "the order is no task"));
        };
        let mut inputs = Vec::with_capacity(order.inputs.len());
        for input in &order.inputs {
            let result = attempt.input_result(input).await?;
            let (objective, capability) = (input.objective.clone(), input.capability.to_string());
            inputs.push(Input { task: input.task.clone(), objective, capability, result });
        }
        let Order { run, mission, objective, parameters, feedback, is_final, .. } = order.as_ref();
        Ok(Self {
            key: format!("{run}/{task}/{number}"),
            run: run.clone(),
            task: task.clone(),
            attempt: *number,
            objective: objective.clone(),
            run_objective: mission.clone(),
            parameters: parameters.clone(),
            inputs,
            feedback: feedback.clone(),
            is_final: *is_final,
        })
    }

    /// As JSON.
    pub fn json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a task holds only names, texts and JSON values")
    }
}

const BEGIN: &str = "begin";
const OUTCOME: &str = "outcome";

/// What a worker that was lost leaves of work outside.
pub(crate) enum Begun {
    /// It was done, with this result.
    Done(Box<TaskResult>),
    /// It is to be done now.
    Open,
}

/// Looks what is to be done, and writes down that it is begun.
///
/// # Errors
/// It was begun by a worker that was lost, and doing it again could do it twice; or as for a step.
pub(crate) async fn begin(attempt: &mut Attempt<'_>, effect: Effect) -> Result<Begun, TaskError> {
    if attempt.recorded(BEGIN).await?.is_none() {
        attempt.append(BEGIN, &Value::Null).await?;
        return Ok(Begun::Open);
    }
    if let Some(value) = attempt.recorded(OUTCOME).await? {
        let result = serde_json::from_value(value).map_err(|mistake| {
            TaskError::new(ErrorKind::Panic, format!("the recorded outcome can't be read: {mistake}"))
        })?;
        return Ok(Begun::Done(Box::new(result)));
    }
    match effect {
        Effect::Pure | Effect::Idempotent => Ok(Begun::Open),
        Effect::Effect => Err(unclear("a worker began this and was lost before the outcome was known")),
    }
}

/// An error of work that is not to be done twice, and may have been done.
fn unclear(why: &str) -> TaskError {
    let message = format!("{why}; it may have taken effect. Look whether it did before it is tried again");
    TaskError::new(ErrorKind::Unclear, message)
}

/// How work outside came to nothing.
#[derive(Debug)]
pub(crate) struct Failed {
    /// What went wrong.
    pub why: String,
    /// Whether what it was to change may be changed all the same.
    pub may_be_done: bool,
}

impl Failed {
    /// It said so itself, or never began.
    pub fn undone(why: String) -> Self {
        Self { why, may_be_done: false }
    }

    /// It was cut off, or what it said can't be used.
    pub fn unclear(why: String) -> Self {
        Self { why, may_be_done: true }
    }

    /// What it means for the attempt: what must not be done twice is not tried again where it may be done.
    pub fn error(self, effect: Effect) -> TaskError {
        match effect {
            Effect::Effect if self.may_be_done => unclear(&self.why),
            Effect::Pure | Effect::Idempotent | Effect::Effect => TaskError::new(ErrorKind::Tool, self.why),
        }
    }
}

/// Writes down what came of what was begun.
pub(crate) async fn record(attempt: &mut Attempt<'_>, result: &TaskResult) -> Result<(), TaskError> {
    let value = serde_json::to_value(result).expect("a result holds only texts, numbers and JSON values");
    attempt.append(OUTCOME, &value).await
}

/// The result that came back: a task's result as JSON, any other JSON as its data, else text.
///
/// # Errors
/// There is nothing in it, or its data does not fit the capability's output schema.
pub(crate) fn result(bytes: &[u8], schema: Option<&Value>) -> Result<TaskResult, Failed> {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim();
    if text.is_empty() {
        return Err(Failed::unclear("nothing came back: neither text nor a result as JSON".into()));
    }
    let result = match serde_json::from_str::<Value>(text) {
        Ok(value @ (Value::Object(_) | Value::Array(_))) => of_json(value),
        Ok(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) | Err(_) => {
            TaskResult { output: text.to_owned(), ..TaskResult::default() }
        }
    };
    if let Some(schema) = schema {
        let data = result.data.as_ref().unwrap_or(&Value::Null);
        tool::check(schema, data).map_err(|mistakes| {
            Failed::unclear(format!("the data that came back does not fit the output schema: {mistakes}"))
        })?;
    }
    Ok(result)
}

fn of_json(value: Value) -> TaskResult {
    match serde_json::from_value::<TaskResult>(value.clone()) {
        Ok(result) if !result.is_empty() => result,
        Ok(_) | Err(_) => TaskResult {
            output: format!("```json\n{value:#}\n```"),
            data: Some(value),
            ..TaskResult::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_comes_back_is_a_result_data_or_text() {
        let read = |text: &str| result(text.as_bytes(), None);
        assert_eq!(read(r#"{"output": "x", "summary": "s"}"#).unwrap().summary, "s");
        assert_eq!(read(r#"{"words": 3}"#).unwrap().data, Some(json!({"words": 3})));
        assert_eq!(read("[1]").unwrap().data, Some(json!([1])));
        assert_eq!(read(" plain\ntext\n").unwrap().output, "plain\ntext");
        assert_eq!(read("3").unwrap().output, "3");
        assert!(read(" \n").unwrap_err().why.starts_with("nothing came back"));
        let schema = json!({"type": "object", "required": ["words"]});
        assert!(result(br#"{"words": 3}"#, Some(&schema)).is_ok());
        assert!(result(b"text", Some(&schema)).unwrap_err().why.contains("does not fit the output schema"));
    }
}
