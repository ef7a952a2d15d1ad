//! Capabilities whose work is done by another program ([`command`]) or service ([`http`]), and what both share: the
//! fields `timeout` and `effect` of their files, the task as JSON, the result as JSON or text, and two journal steps,
//! `begin` and `outcome`, that distinguish work that never began from work whose outcome is unknown. Work that waits in between
//! has the steps `begin`, `wait.1`, `begin.1`, `wait.2`, …, `outcome`.

pub(crate) mod command;
pub(crate) mod http;
mod waits;

use millrace_agent::spec::{CapabilityFields, common_properties_schema, merge_json};
use millrace_agent::tool::{self, Effect};
use millrace_agent::turn::Host as _;
use millrace_protocol::foreign_json::{JsonOrText, parse_json_or_text};
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::parameters::TaskParameters;
use millrace_protocol::result::{ErrorKind, MAX_SUMMARY, TaskError, TaskResult};
use millrace_protocol::work::{Assignment, Order};
use millrace_strict_yaml::{Parts, YamlMistakes, YamlNode, deserialize_node};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use command::{FilesStep, WrittenFiles};
use waits::{DelegatingAttempt, RequestedWaits};

use crate::Attempt;

/// Reads the file of a capability whose work is done outside, and the fields `F` of its kind.
fn read_file<F: DeserializeOwned>(
    root: &YamlNode,
    kind: &str,
) -> Result<(CapabilityFields, F), YamlMistakes> {
    let Parts(about, own) = deserialize_node(root, &format!("capability of the kind {kind}"))?;
    Ok((about, own))
}

/// Returns the JSON Schema of a kind of file with the fields `F`, of which `required` is required.
fn build_capability_schema<F: JsonSchema>(kind: &str, required: &str) -> Value {
    let mut properties = common_properties_schema();
    merge_json(&mut properties, json!({ "kind": { "const": kind } }));
    merge_json(&mut properties, tool::schema_of::<F>()["properties"].take());
    json!({
        "type": "object",
        "properties": properties,
        "required": ["kind", "name", "description", required],
        "additionalProperties": false,
    })
}

/// A task as the program or service receives it.
#[derive(Debug, Serialize)]
struct ExternalTask {
    /// The run.
    pub run: RunId,
    /// The task.
    pub task: TaskId,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The idempotency key: the same each time this attempt is sent, until it has waited.
    pub key: String,
    /// The task's objective.
    pub objective: String,
    /// The objective of the whole run.
    pub run_objective: String,
    /// The task's parameters.
    pub parameters: TaskParameters,
    /// The results that the task depends on.
    pub inputs: Vec<ExternalInput>,
    /// Feedback on earlier attempts, oldest first.
    pub feedback: Vec<String>,
    /// `true` if its result is the deliverable of the run.
    #[serde(rename = "final")]
    pub is_final: bool,
    /// The waits of the attempt that have ended, by name.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub ended_waits: Map<String, Value>,
}

/// A result that the task depends on.
#[derive(Debug, Serialize)]
struct ExternalInput {
    /// The task that produced it.
    pub task: TaskId,
    /// The objective of that task.
    pub objective: String,
    /// The capability that did the task.
    pub capability: String,
    /// The complete result.
    pub result: TaskResult,
}

impl ExternalTask {
    /// Reads the task of an attempt and its inputs.
    pub async fn read_from_attempt(attempt: &mut Attempt<'_>) -> Result<Self, TaskError> {
        let order = attempt.order().clone();
        let Assignment::Task { task, attempt: number, .. } = &order.assignment else {
            return Err(TaskError::new(ErrorKind::InvalidTask, "the order is not a task"));
        };
        let mut inputs = Vec::with_capacity(order.inputs.len());
        for input in &order.inputs {
            let result = attempt.read_input_result(input).await?;
            let (objective, capability) = (input.objective.clone(), input.capability.to_string());
            inputs.push(ExternalInput { task: input.task.clone(), objective, capability, result });
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
            ended_waits: waits::ended_waits_to_json(&order.ended_waits),
        })
    }

    /// Gives the work that continues after this number of waits a key of its own.
    pub fn with_key_after_waits(mut self, waited: u32) -> Self {
        if waited > 0 {
            self.key = format!("{}/{waited}", self.key);
        }
        self
    }

    /// Serializes the task as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a task holds only names, texts and JSON values")
    }
}

const BEGIN: &str = "begin";
const OUTCOME: &str = "outcome";

/// The state of external work at the start of a claim.
enum ExternalWorkState {
    /// An earlier claim has its result.
    Done(Box<TaskResult>),
    /// The work must be done now; it has waited so many times.
    Pending(u32),
    /// A program has ended after so many waits, and the files that it changed are perhaps not written yet.
    Ended(u32, Box<FilesStep>),
}

/// The step that is recorded before the work begins, for the first time or after it has waited.
fn begin_step(waited: u32) -> String {
    if waited == 0 { BEGIN.to_owned() } else { format!("{BEGIN}.{waited}") }
}

/// Reads the state of the work, and records that it begins.
///
/// # Errors
/// A lost worker began it and a retry could repeat its effect; it still waits; or as for a step.
async fn begin_or_resume_work(
    attempt: &mut Attempt<'_>,
    effect: Effect,
) -> Result<ExternalWorkState, TaskError> {
    for waited in 0.. {
        let begin = begin_step(waited);
        if attempt.host.next_recorded_value(&begin).await?.is_none() {
            attempt.host.record(&begin, &Value::Null).await?;
            return Ok(ExternalWorkState::Pending(waited));
        }
        let mut ends = vec![OUTCOME.to_owned(), format!("wait.{}", waited + 1), command::step_name(waited)];
        let unreadable = |mistake| {
            TaskError::new(ErrorKind::Panic, format!("the recorded outcome can't be read: {mistake}"))
        };
        let mut recorded = attempt.host.replay(&ends).await?;
        let mut changed_files = None;
        if let Some((2, value)) = recorded {
            changed_files = Some(serde_json::from_value(value).map_err(unreadable)?);
            ends.pop();
            recorded = attempt.host.replay(&ends).await?;
        }
        match recorded {
            Some((0, value)) => {
                let result = serde_json::from_value(value).map_err(unreadable)?;
                return Ok(ExternalWorkState::Done(Box::new(result)));
            }
            Some((_, value)) => {
                let RequestedWaits { waits, children } = serde_json::from_value(value).map_err(unreadable)?;
                attempt.require_ended_waits(waits, children)?;
            }
            None => {
                return match (changed_files, effect) {
                    (Some(step), _) => Ok(ExternalWorkState::Ended(waited, Box::new(step))),
                    (None, Effect::Pure | Effect::Idempotent) => Ok(ExternalWorkState::Pending(waited)),
                    (None, Effect::Effect) => Err(unknown_outcome_error(
                        "a worker began this and was lost before the outcome was recorded",
                    )),
                };
            }
        }
    }
    unreachable!("a journal has fewer than 2^32 steps")
}

/// Records the output of work that began, and returns its result with the files that it changed.
///
/// # Errors
/// The output is unusable, or it asks for waits: the attempt is parked. Or as for a step.
async fn record_output(
    attempt: &mut Attempt<'_>,
    waited: u32,
    output: ExternalOutput<'_>,
    schema: Option<&Value>,
    effect: Effect,
) -> Result<TaskResult, TaskError> {
    let ExternalOutput { bytes: output, files } = output;
    if let Some(requested) =
        parse_wait_reply(attempt, output).map_err(|failure| failure.into_task_error(effect))?
    {
        let value = serde_json::to_value(&requested).expect("waits and tasks hold only texts and numbers");
        attempt.host.record(&format!("wait.{}", waited + 1), &value).await?;
        attempt.require_ended_waits(requested.waits, requested.children)?;
    }
    let mut result = parse_result(output, schema).map_err(|failure| failure.into_task_error(effect))?;
    // Only files that were written count, not those that the output claims.
    result.artifacts = files.artifacts;
    if !files.warnings.is_empty() {
        let notes = result.notes.take().map_or_else(String::new, |notes| format!("{notes}\n\n"));
        result.notes = Some(notes + &files.warnings);
    }
    record_outcome(attempt, &result).await?;
    Ok(result)
}

/// The output of work, and the files that it changed.
struct ExternalOutput<'a> {
    pub bytes: &'a [u8],
    pub files: WrittenFiles,
}

/// Returns the waits that an output of an attempt asks for; `None` if it is a result.
fn parse_wait_reply(attempt: &Attempt<'_>, output: &[u8]) -> Result<Option<RequestedWaits>, ExternalFailure> {
    let order = attempt.order();
    let Assignment::Task { task, attempt: number, .. } = &order.assignment else { return Ok(None) };
    let allowance = order.allowance.unwrap_or_default();
    let delegating = DelegatingAttempt { task, attempt: *number, allowance };
    let Some(requested) = waits::parse_wait_reply(output, &delegating)? else { return Ok(None) };
    match requested.waits.iter().find(|wait| attempt.host.ended_wait(&wait.key).is_some()) {
        None => Ok(Some(requested)),
        Some(wait) => Err(ExternalFailure::without_effect(format!(
            "\"wait_for\" in its output: the wait {:?} has ended already; use another name",
            wait.key
        ))),
    }
}

/// The error of work that may have taken effect and must not be retried automatically.
fn unknown_outcome_error(why: &str) -> TaskError {
    let message = format!("{why}; it may have taken effect. Check whether it did before you retry the task");
    TaskError::new(ErrorKind::Unclear, message)
}

/// A failure of external work.
#[derive(Debug)]
struct ExternalFailure {
    /// The reason.
    pub why: String,
    /// `true` if the work may have taken effect all the same.
    pub may_be_done: bool,
}

impl ExternalFailure {
    /// A failure without effect: the work never began, or reported the failure itself.
    pub fn without_effect(why: String) -> Self {
        Self { why, may_be_done: false }
    }

    /// A failure with an unknown outcome: the work was interrupted, or its output is unusable.
    pub fn with_unknown_outcome(why: String) -> Self {
        Self { why, may_be_done: true }
    }

    /// Converts the failure into the attempt's error. It is not retryable if a retry could repeat the effect.
    pub fn into_task_error(self, effect: Effect) -> TaskError {
        match effect {
            Effect::Effect if self.may_be_done => unknown_outcome_error(&self.why),
            Effect::Pure | Effect::Idempotent | Effect::Effect => TaskError::new(ErrorKind::Tool, self.why),
        }
    }
}

/// Records the outcome of work that began.
async fn record_outcome(attempt: &mut Attempt<'_>, result: &TaskResult) -> Result<(), TaskError> {
    let value = serde_json::to_value(result).expect("a result holds only texts, numbers and JSON values");
    attempt.host.record(OUTCOME, &value).await
}

/// Parses the output of the work: a task's result as JSON, any other JSON object or array as the result's data, or text.
///
/// # Errors
/// It is empty, it begins as JSON and is none, or its data does not fit the capability's output schema.
fn parse_result(bytes: &[u8], schema: Option<&Value>) -> Result<TaskResult, ExternalFailure> {
    let unusable = ExternalFailure::with_unknown_outcome;
    let output = parse_json_or_text(bytes).map_err(|mistake| unusable(format!("its output {mistake}")))?;
    let result = match output {
        JsonOrText::Json(value @ (Value::Object(_) | Value::Array(_))) => result_from_json(value),
        JsonOrText::Json(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => {
            TaskResult { output: String::from_utf8_lossy(bytes).trim().to_owned(), ..TaskResult::default() }
        }
        JsonOrText::Text(text) if text.is_empty() => {
            return Err(unusable("the output is empty: expected text, or a result as JSON".into()));
        }
        JsonOrText::Text(output) => TaskResult { output, ..TaskResult::default() },
    };
    if let Some(schema) = schema {
        let data = result.data.as_ref().unwrap_or(&Value::Null);
        tool::check_value_against_schema(schema, data).map_err(|mistakes| {
            ExternalFailure::with_unknown_outcome(format!(
                "the data does not fit the output schema: {mistakes}"
            ))
        })?;
    }
    Ok(result)
}

fn result_from_json(value: Value) -> TaskResult {
    match serde_json::from_value::<TaskResult>(value.clone()) {
        Ok(result) if !result.is_empty() => result,
        Ok(_) | Err(_) => TaskResult {
            output: format!("```json\n{value:#}\n```"),
            // The first line of the output says nothing.
            summary: value.to_string().chars().take(MAX_SUMMARY).collect(),
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
    fn output_is_a_result_data_or_text() {
        let read = |text: &str| parse_result(text.as_bytes(), None);
        assert_eq!(read(r#"{"output": "x", "summary": "s"}"#).unwrap().summary, "s");
        let data = read(r#"{"words": 3}"#).unwrap();
        assert_eq!((data.data, data.summary.as_str()), (Some(json!({"words": 3})), r#"{"words":3}"#));
        assert_eq!(read("[1]").unwrap().data, Some(json!([1])));
        assert_eq!(read(" plain\ntext\n").unwrap().output, "plain\ntext");
        assert_eq!(read("3").unwrap().output, "3");
        assert_eq!(read("{name} is unknown").unwrap().output, "{name} is unknown");
        assert_eq!(read(r#"{"output": "half \ud83d"}"#).unwrap().output, "half \u{fffd}");
        for nearly in [
            r#"{"output": "x", "data": {"mean": NaN}}"#,
            "{'output': 'x'}",
            "{\"output\": \"x\"",
            "[1, Infinity]",
        ] {
            let error = read(nearly).unwrap_err();
            assert!(
                error.why.contains("begins as JSON and is none") && error.why.contains("line 1 column"),
                "{}",
                error.why
            );
        }
        assert!(read(" \n").unwrap_err().why.starts_with("the output is empty"));
        let schema = json!({"type": "object", "required": ["words"]});
        assert!(parse_result(br#"{"words": 3}"#, Some(&schema)).is_ok());
        assert!(
            parse_result(b"text", Some(&schema)).unwrap_err().why.contains("does not fit the output schema")
        );
    }
}
