//! Runs as tasks of the tasks extension: a run in progress is `working`, one with open questions is `input_required`, and an ended one has
//! its report as the result. The id of the task is that of the run, so that a task is as durable as its run, and every gateway
//! knows it. Questions are elicitations; their keys are the ids of the questions.

use rmcp::model::{
    CallToolResult, ContentBlock, DetailedTask, ElicitRequest, ElicitRequestParams, ElicitationSchema,
    ErrorData, InputRequest, InputRequests, InputResponses, JsonObject, Task, TaskPayload, TaskStatus,
};
use serde_json::{Map, Value, json};

use crate::problem::{Problem, ProblemKind};
use crate::resources::steering::{CancelBody, Steering};
use crate::standards::api::{Operator, answer_question, read_question, read_report, steer_run};
use crate::standards::run_view::{QuestionView, RunView, value_of_text};

/// The interval at which clients should read a task.
const POLL_INTERVAL_MS: u64 = 2_000;

/// Returns a refusal as an error of the protocol.
pub fn refused(problem: &Problem) -> ErrorData {
    match problem.status().is_server_error() {
        true => ErrorData::internal_error(problem.detail().to_owned(), None),
        false => ErrorData::invalid_params(problem.detail().to_owned(), None),
    }
}

pub async fn read_task(operator: &Operator, run: &str) -> Result<DetailedTask, ErrorData> {
    let view = RunView::read(operator, run).await.map_err(|problem| refused(&problem))?;
    let started = view.started_at.clone().unwrap_or_else(|| jiff::Timestamp::now().to_string());
    let updated = view.end.as_ref().map_or_else(|| started.clone(), |end| end.at.clone());
    let task = Task::new(&view.run, TaskStatus::Working, started, updated)
        .with_status_message(view.describe())
        .with_poll_interval_ms(POLL_INTERVAL_MS);
    Ok(DetailedTask::new(task, payload_of(operator, &view).await?))
}

async fn payload_of(operator: &Operator, view: &RunView) -> Result<TaskPayload, ErrorData> {
    if !view.has_ended() {
        let input_requests = input_requests(&view.open_questions);
        return Ok(match input_requests.is_empty() {
            true => TaskPayload::Working,
            false => TaskPayload::InputRequired { input_requests },
        });
    }
    if view.state == "cancelled" {
        return Ok(TaskPayload::Cancelled);
    }
    // The call was carried out; a run without a deliverable is a failure that the model reads.
    let result = match read_report(operator, &view.run).await {
        Ok(report) => CallToolResult::success(vec![ContentBlock::text(report)]),
        Err(problem) if problem.is(ProblemKind::NoDeliverable) => {
            CallToolResult::error(vec![ContentBlock::text(format!("run {}: {}", view.run, view.describe()))])
        }
        Err(problem) => return Err(refused(&problem)),
    };
    let mut result = result;
    result.structured_content = Some(json!({ "run": view.run }));
    let result = serde_json::to_value(result).ok().and_then(|value| value.as_object().cloned());
    Ok(TaskPayload::Completed { result: result.unwrap_or_default() })
}

fn input_requests(questions: &[QuestionView]) -> InputRequests {
    let request = |question: &QuestionView| {
        let params = ElicitRequestParams::FormElicitationParams {
            meta: None,
            message: message_of(question),
            requested_schema: QuestionForm::of(question).into_schema(question),
        };
        (question.id.clone(), InputRequest::Elicitation(ElicitRequest::new(params)))
    };
    questions.iter().map(request).collect()
}

/// Returns the text for the person: the question, and what it is about.
fn message_of(question: &QuestionView) -> String {
    let mut message = question.text.clone();
    if let Some(tool) = &question.tool {
        message.push_str(&format!("\n\nCall: {tool} {}", question.arguments));
    }
    if let Some(result) = &question.result {
        message.push_str(&format!("\n\nResult: {result}"));
    }
    for criterion in &question.criteria {
        message.push_str(&format!("\n- {criterion}"));
    }
    message
}

/// The form of an elicitation, which has primitive fields only.
#[derive(Debug, Clone, PartialEq)]
enum QuestionForm {
    /// The fields of the value itself: the question has a schema of an object of primitives.
    Fields(Box<ElicitationSchema>),
    Value,
    Decision,
}

impl QuestionForm {
    fn of(question: &QuestionView) -> Self {
        if !question.decisions.iter().any(|decision| decision == "answer") {
            return Self::Decision;
        }
        let schema = question.schema.as_object().cloned();
        match schema.and_then(|schema| ElicitationSchema::from_json_schema(schema).ok()) {
            Some(schema) => Self::Fields(Box::new(schema)),
            None => Self::Value,
        }
    }

    fn into_schema(self, question: &QuestionView) -> ElicitationSchema {
        let mut fields = Map::new();
        let required = match self {
            Self::Fields(schema) => return *schema,
            Self::Value => {
                let description = match question.options.is_empty() {
                    true => "The answer".to_owned(),
                    false => format!("The answer, such as: {}", question.options.join("; ")),
                };
                fields.insert("value".into(), json!({ "type": "string", "description": description }));
                "value"
            }
            Self::Decision => {
                // Changed arguments of a call have no place in a form of primitives.
                let kinds = question.decisions.iter().filter(|kind| *kind != "edit").collect::<Vec<_>>();
                let text = json!({ "type": "string", "description": "The reason, feedback or response" });
                fields.insert(
                    "answer".into(),
                    json!({ "type": "string", "enum": kinds, "description": "The decision" }),
                );
                fields.insert("text".into(), text);
                "answer"
            }
        };
        let mut schema = JsonObject::new();
        schema.insert("type".into(), "object".into());
        schema.insert("properties".into(), Value::Object(fields));
        schema.insert("required".into(), json!([required]));
        ElicitationSchema::from_json_schema(schema).expect("the form has primitive fields only")
    }

    /// Returns the body of the answer with the content of a form.
    fn answer(&self, question: &QuestionView, content: &Value) -> Result<Value, String> {
        match self {
            Self::Fields(_) => Ok(json!({ "answer": "answer", "value": content })),
            Self::Value => {
                let text = content["value"].as_str().ok_or("the field \"value\" is missing")?;
                Ok(json!({ "answer": "answer", "value": value_of_text(text, &question.schema) }))
            }
            Self::Decision => {
                let kind = content["answer"].as_str().ok_or("the field \"answer\" is missing")?;
                let mut answer = json!({ "answer": kind });
                if let Some(text) = content["text"].as_str().filter(|text| !text.is_empty()) {
                    answer["text"] = text.into();
                } else if matches!(kind, "reject" | "fail") {
                    answer["text"] = "rejected without a reason".into();
                }
                Ok(answer)
            }
        }
    }
}

/// Sends the responses to elicitations of a task. Responses to questions that are closed are ignored.
pub async fn answer_questions(
    operator: &Operator,
    task: &str,
    responses: InputResponses,
) -> Result<(), ErrorData> {
    for (id, response) in responses {
        if !id.strip_prefix(task).is_some_and(|rest| rest.starts_with('/')) {
            return Err(ErrorData::invalid_params(format!("task {task} has no input request {id:?}"), None));
        }
        let question: QuestionView =
            read_question(operator, &id).await.map_err(|problem| refused(&problem))?;
        let answer = answer_of_response(&question, &response)
            .map_err(|mistake| ErrorData::invalid_params(format!("response to {id:?}: {mistake}"), None))?;
        let Some(answer) = answer else { continue };
        match answer_question(operator, &id, &answer).await {
            Ok(()) => {}
            Err(problem) if problem.is(ProblemKind::QuestionClosed) => {}
            Err(problem) => return Err(refused(&problem)),
        }
    }
    Ok(())
}

/// Returns the answer in a response; `None` if the person gave none, so that the question stays open.
fn answer_of_response(question: &QuestionView, response: &Value) -> Result<Option<Value>, String> {
    let allows = |kind: &str| question.decisions.iter().any(|decision| decision == kind);
    match response["action"].as_str() {
        Some("accept") => QuestionForm::of(question).answer(question, &response["content"]).map(Some),
        Some("decline") if allows("decline") => Ok(Some(json!({ "answer": "decline" }))),
        Some("decline") if allows("reject") => {
            Ok(Some(json!({ "answer": "reject", "text": "declined by the user" })))
        }
        Some("decline" | "cancel") => Ok(None),
        _ => Err("the field \"action\" must be accept, decline or cancel".into()),
    }
}

pub async fn cancel_task(operator: &Operator, run: &str) -> Result<(), ErrorData> {
    let reason = Some("cancelled by an MCP client".to_owned());
    let cancelled = steer_run(operator, run, Steering::CancelRun(CancelBody { reason }), None).await;
    cancelled.map_err(|problem| refused(&problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(decisions: &[&str], schema: Value) -> QuestionView {
        let question = json!({
            "id": "r/t/1/1", "run": "r", "kind": "input", "text": "Which?", "decisions": decisions,
            "schema": schema, "options": ["a", "b"], "asked_at": "2026-01-01T00:00:00Z",
        });
        serde_json::from_value(question).unwrap()
    }

    #[test]
    fn forms_fit_the_questions_and_their_responses_become_answers() {
        let flat =
            json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
        let nested = json!({ "type": "object", "properties": { "n": { "type": "object" } } });
        let accept = |content: Value| json!({ "action": "accept", "content": content });
        let answers = [
            (
                question(&["answer", "decline"], Value::Null),
                accept(json!({ "value": "7" })),
                json!({ "answer": "answer", "value": "7" }),
            ),
            (
                question(&["answer", "decline"], json!({ "type": "integer" })),
                accept(json!({ "value": "7" })),
                json!({ "answer": "answer", "value": 7 }),
            ),
            (
                question(&["answer"], flat.clone()),
                accept(json!({ "n": 7 })),
                json!({ "answer": "answer", "value": { "n": 7 } }),
            ),
            (
                question(&["answer"], nested),
                accept(json!({ "value": "{\"n\":{}}" })),
                json!({ "answer": "answer", "value": { "n": {} } }),
            ),
            (
                question(&["approve", "edit", "reject"], flat),
                accept(json!({ "answer": "approve" })),
                json!({ "answer": "approve" }),
            ),
            (
                question(&["approve", "reject"], Value::Null),
                json!({ "action": "decline" }),
                json!({ "answer": "reject", "text": "declined by the user" }),
            ),
            (
                question(&["answer", "decline"], Value::Null),
                json!({ "action": "decline" }),
                json!({ "answer": "decline" }),
            ),
        ];
        for (question, response, answer) in answers {
            assert_eq!(answer_of_response(&question, &response).unwrap().unwrap(), answer);
            let request = serde_json::to_value(input_requests(std::slice::from_ref(&question))).unwrap();
            let schema = &request["r/t/1/1"]["params"]["requestedSchema"];
            assert_eq!(schema["type"], "object", "{request:#}");
            assert!(!schema.to_string().contains("edit"), "{request:#}");
        }
        let open = question(&["answer"], Value::Null);
        assert_eq!(answer_of_response(&open, &json!({ "action": "cancel" })), Ok(None));
        assert!(answer_of_response(&open, &json!({})).is_err());
        assert!(answer_of_response(&open, &accept(json!({}))).is_err());
    }
}
