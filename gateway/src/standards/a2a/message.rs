//! Messages of clients: the description of a run, and answers to questions. Pure.

use a2a::{A2AError, Message, Part, PartContent, Role};
use serde_json::{Map, Value, json};

use super::binding::A2aFault;
use super::card::OBJECTIVE_SKILL;
use crate::standards::api::SubmittedDocument;
use crate::standards::run_view::{QuestionView, value_of_text};

/// The label of a run with the context of its message.
pub const CONTEXT_LABEL: &str = "a2a.context";
/// The key of a message's metadata that names the skill.
const SKILL: &str = "skill";
/// The longest id of a context in characters, which is that of a label's value.
const MAX_CONTEXT: usize = 256;

/// The types of documents that agents read, after `application/`.
const DOCUMENT_TYPES: [&str; 14] = [
    "csv",
    "epub+zip",
    "javascript",
    "json",
    "msword",
    "octet-stream",
    "pdf",
    "rtf",
    "sql",
    "toml",
    "x-ndjson",
    "x-yaml",
    "xml",
    "yaml",
];
/// The families of types of office documents that agents read, after `application/`.
const DOCUMENT_FAMILIES: [&str; 4] =
    ["vnd.ms-excel", "vnd.ms-word", "vnd.oasis.opendocument.", "vnd.openxmlformats-officedocument."];

/// A run as `POST /runs` accepts it, with its documents.
#[derive(Debug)]
pub struct DescribedRun {
    pub description: Map<String, Value>,
    pub documents: Vec<SubmittedDocument>,
}

/// Checks the id of a context, which becomes the value of a label.
pub fn check_context(context: &str) -> Result<(), A2aFault> {
    let is_valid = !context.is_empty()
        && context.chars().count() <= MAX_CONTEXT
        && !context.contains(|c: char| c.is_control() || c == ',');
    match is_valid {
        true => Ok(()),
        false => Err(A2aFault::invalid(format!(
            "contextId must have 1 to {MAX_CONTEXT} characters without commas"
        ))),
    }
}

/// Returns the run that a message describes: texts are the objective, files are documents, and objects have the fields of `POST /runs`.
pub fn describe_run(message: &Message) -> Result<DescribedRun, A2aFault> {
    if message.role == Role::Agent {
        return Err(A2aFault::invalid("message.role must be ROLE_USER"));
    }
    let (mut description, mut documents, mut texts) = (Map::new(), Vec::new(), Vec::new());
    for part in &message.parts {
        match (&part.content, &part.filename) {
            (PartContent::Text(text), None) => texts.push(text.as_str()),
            (PartContent::Text(text), Some(name)) => {
                documents.push(SubmittedDocument { path: name.clone(), content: text.clone().into_bytes() });
            }
            (PartContent::Raw(content), name) => {
                if let Some(media_type) = part.media_type.as_deref().filter(|one| !is_readable(one)) {
                    let error = format!("no agent reads parts of the type {media_type:?}");
                    return Err(A2AError::new(a2a::error_code::CONTENT_TYPE_NOT_SUPPORTED, error).into());
                }
                let path = name.clone().unwrap_or_else(|| format!("attachment-{}", documents.len() + 1));
                documents.push(SubmittedDocument { path, content: content.clone() });
            }
            (PartContent::Data(Value::Object(fields)), _) => description.extend(fields.clone()),
            (PartContent::Data(_), _) => {
                return Err(A2aFault::invalid("a data part must be an object with fields of a run"));
            }
            (PartContent::Url(_), _) => {
                let error = "parts with a url are not fetched; send the content as text or raw";
                return Err(A2AError::new(a2a::error_code::CONTENT_TYPE_NOT_SUPPORTED, error).into());
            }
        }
    }
    if !texts.is_empty() {
        description.insert("objective".into(), texts.join("\n\n").into());
    }
    if let Some(references) = message.reference_task_ids.as_ref().filter(|ids| !ids.is_empty()) {
        description.insert("after".into(), json!(references));
    }
    if let Some(context) = &message.context_id {
        check_context(context)?;
        let labels = description.entry("labels").or_insert_with(|| json!({}));
        let labels = labels.as_object_mut().ok_or_else(|| A2aFault::invalid("labels must be an object"))?;
        labels.insert(CONTEXT_LABEL.into(), context.as_str().into());
    }
    if let Some(skill) = message.metadata.as_ref().and_then(|metadata| metadata.get(SKILL)) {
        use_skill(&mut description, skill)?;
    }
    Ok(DescribedRun { description, documents })
}

/// `true` if agents may read content of a media type. What is in a document is decided by its content, so a client that
/// does not know the type may say so.
fn is_readable(media_type: &str) -> bool {
    let media_type = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let Some((kind, name)) = media_type.split_once('/') else { return media_type.is_empty() };
    match kind {
        "text" | "image" | "message" => true,
        "application" => {
            DOCUMENT_TYPES.contains(&name)
                || DOCUMENT_FAMILIES.iter().any(|family| name.starts_with(family))
                || ["+json", "+xml", "+yaml"].iter().any(|suffix| name.ends_with(suffix))
        }
        _ => false,
    }
}

/// Makes the run one task of a capability, which a skill of the card names.
fn use_skill(description: &mut Map<String, Value>, skill: &Value) -> Result<(), A2aFault> {
    let skill =
        skill.as_str().ok_or_else(|| A2aFault::invalid("metadata.skill must be the id of a skill"))?;
    if skill == OBJECTIVE_SKILL {
        return Ok(());
    }
    if description.contains_key("plan") {
        return Err(A2aFault::invalid("a message has a plan or metadata.skill, not both"));
    }
    let objective = description.get("objective").cloned().unwrap_or_default();
    let mut task = json!({ "id": "task", "objective": objective, "capability": skill, "final": true });
    if let Some(parameters) = description.remove("parameters") {
        task["parameters"] = parameters;
    }
    description.insert("plan".into(), json!({ "tasks": [task] }));
    Ok(())
}

pub fn text_of(message: &Message) -> String {
    let texts: Vec<&str> = message.parts.iter().filter_map(Part::as_text).collect();
    texts.join("\n\n")
}

/// Returns the question that a message answers: the one that its metadata names, or the first one.
pub fn find_question<'a>(
    message: &Message,
    questions: &'a [QuestionView],
) -> Result<Option<&'a QuestionView>, A2aFault> {
    let named = message.metadata.as_ref().and_then(|metadata| metadata.get("question"));
    let Some(named) = named.and_then(Value::as_str) else { return Ok(questions.first()) };
    let question = questions.iter().find(|question| question.id == named);
    question.map(Some).ok_or_else(|| A2aFault::invalid(format!("the task has no open question {named:?}")))
}

/// Returns the body of the answer in a message: the object of a data part, or the meaning of its text.
pub fn answer_of_message(message: &Message, question: &QuestionView) -> Result<Value, A2aFault> {
    let is_input = question.decisions.iter().any(|decision| decision == "answer");
    let data = message.parts.iter().find_map(|part| match &part.content {
        PartContent::Data(data) => Some(data),
        PartContent::Text(_) | PartContent::Raw(_) | PartContent::Url(_) => None,
    });
    if let Some(data) = data {
        let is_answer =
            data["answer"].as_str().is_some_and(|kind| question.decisions.iter().any(|one| one == kind));
        return match is_answer {
            true => Ok(data.clone()),
            false if is_input => Ok(json!({ "answer": "answer", "value": data })),
            false => Err(explain(question)),
        };
    }
    let text = text_of(message);
    let text = text.trim();
    if text.is_empty() {
        return Err(explain(question));
    }
    if is_input {
        return Ok(json!({ "answer": "answer", "value": value_of_text(text, &question.schema) }));
    }
    let (word, rest) = text.split_once([':', ' ', '\n']).unwrap_or((text, ""));
    let kind = match word.to_lowercase().trim_end_matches(['.', '!', ',']) {
        "approve" | "approved" | "yes" | "ok" => "approve",
        "pass" => "pass",
        "reject" | "rejected" | "no" => "reject",
        "fail" => "fail",
        "respond" => "respond",
        _ => return Err(explain(question)),
    };
    let kind = match kind {
        "approve" if !question.decisions.iter().any(|one| one == "approve") => "pass",
        "reject" if !question.decisions.iter().any(|one| one == "reject") => "fail",
        kind => kind,
    };
    match kind {
        "approve" | "pass" => Ok(json!({ "answer": kind })),
        _ => {
            let reason = if rest.trim().is_empty() { "rejected without a reason" } else { rest.trim() };
            Ok(json!({ "answer": kind, "text": reason }))
        }
    }
}

fn explain(question: &QuestionView) -> A2aFault {
    A2aFault::invalid(format!(
        "question {} needs one of these answers: {}; send a text that begins with it, or a data part such as {{\"answer\": \"{}\"}}",
        question.id,
        question.decisions.join(", "),
        question.decisions.first().map_or("approve", String::as_str),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(value: Value) -> Message {
        let mut message = json!({ "messageId": "m", "role": "ROLE_USER" });
        message.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        serde_json::from_value(message).unwrap()
    }

    fn question(decisions: &[&str]) -> QuestionView {
        let question = json!({
            "id": "r/t/1/1", "run": "r", "kind": "input", "text": "Which?", "decisions": decisions,
            "asked_at": "2026-01-01T00:00:00Z",
        });
        serde_json::from_value(question).unwrap()
    }

    #[test]
    fn messages_describe_runs() {
        let run = describe_run(&message(json!({
            "contextId": "c1", "referenceTaskIds": ["r0"],
            "parts": [
                { "text": "Compare" }, { "text": "these" }, { "text": "one", "filename": "a.md" },
                { "raw": "dHdv", "filename": "b.txt" }, { "data": { "budget": { "tokens": "1k" } } },
            ],
        })))
        .unwrap();
        assert_eq!(
            Value::Object(run.description),
            json!({ "objective": "Compare\n\nthese", "after": ["r0"], "budget": { "tokens": "1k" }, "labels": { "a2a.context": "c1" } })
        );
        let contents: Vec<(&str, &[u8])> =
            run.documents.iter().map(|one| (one.path.as_str(), one.content.as_slice())).collect();
        assert_eq!(contents, [("a.md", b"one".as_slice()), ("b.txt", b"two".as_slice())]);

        let one = message(json!({ "parts": [{ "text": "say" }], "metadata": { "skill": "echo" } }));
        let plan = &describe_run(&one).unwrap().description["plan"]["tasks"][0];
        assert_eq!((&plan["capability"], &plan["objective"]), (&json!("echo"), &json!("say")));
        for media_type in ["", "text/x-rust", "image/png", "application/vnd.api+json", "Application/PDF; x=1"]
        {
            let parts = json!({ "parts": [{ "raw": "dHdv", "mediaType": media_type }] });
            assert!(describe_run(&message(parts)).is_ok(), "{media_type}");
        }
        for wrong in [
            json!({ "parts": [{ "raw": "dHdv", "mediaType": "application/x-unknown" }] }),
            json!({ "parts": [{ "raw": "dHdv", "mediaType": "video/mp4" }] }),
            json!({ "parts": [{ "url": "https://example.com/a" }] }),
            json!({ "parts": [{ "data": 7 }] }),
            json!({ "parts": [], "contextId": "a,b" }),
            json!({ "parts": [], "role": "ROLE_AGENT" }),
        ] {
            assert!(describe_run(&message(wrong.clone())).is_err(), "{wrong}");
        }
    }

    #[test]
    fn messages_answer_questions() {
        let input = question(&["answer", "decline"]);
        let approval = question(&["approve", "edit", "reject"]);
        let review = question(&["pass", "fail"]);
        let text = |text: &str| message(json!({ "parts": [{ "text": text }] }));
        let data = |data: Value| message(json!({ "parts": [{ "data": data }] }));
        for (question, message, answer) in [
            (&input, text("eu"), json!({ "answer": "answer", "value": "eu" })),
            (&input, data(json!({ "a": 1 })), json!({ "answer": "answer", "value": { "a": 1 } })),
            (&input, data(json!({ "answer": "decline" })), json!({ "answer": "decline" })),
            (&approval, text("Approve."), json!({ "answer": "approve" })),
            (&approval, text("reject: too dear"), json!({ "answer": "reject", "text": "too dear" })),
            (
                &approval,
                data(json!({ "answer": "edit", "value": {} })),
                json!({ "answer": "edit", "value": {} }),
            ),
            (&review, text("yes"), json!({ "answer": "pass" })),
            (&review, text("fail no sources"), json!({ "answer": "fail", "text": "no sources" })),
        ] {
            assert_eq!(answer_of_message(&message, question).unwrap(), answer);
        }
        assert!(answer_of_message(&text("maybe"), &approval).is_err());
        assert!(answer_of_message(&data(json!({})), &approval).is_err());
        assert!(answer_of_message(&text(" "), &input).is_err());
    }
}
