//! The description of the API (OpenAPI 3.1), generated from the code. The paths come from the handlers, the schemas from the
//! same types that describe the output of commands with `--json`.
//!
//! # Invariants
//!
//! - I164: The description of the API is the committed one, and every answer is one that it has.
//!   (`gateway/src/openapi.rs::the_description_is_the_committed_one`,
//!   `tests/tests/gateway.rs::run_is_submitted_followed_and_read_by_plain_http`)

use std::sync::LazyLock;

use millrace_protocol::result::TaskResult;
use millrace_views::{
    Admission, AnswerLine, ClusterChecks, ClusterJson, CommandOutcome, DeliveryJson, EntryLine, EventLine,
    PlannerTranscript, PruneJson, PushConfigJson, QuestionLine, RetentionJson, RunDeletionJson, RunLog,
    RunResult, RunSpend, SessionRuns, SpendReport, TaskList, TaskTranscript, Timeline, WebhookJson,
};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};
use utoipa_axum::router::OpenApiRouter;

use crate::access::TOKEN_SCHEME;
use crate::feed::StreamNotice;
use crate::problem::{MEDIA_TYPE, Problem, ProblemKind, TYPE_PREFIX};
use crate::resources::{
    AddBody, AdmissionBody, AnswerBatch, AnswerBody, AnswerList, AuditList, CallerJson, CancelBody,
    CommandReceipt, DeliveryList, EditBody, FileList, Health, JournalPage, LimitBody, LimitList, LoginBody,
    MessageBody, PlanCheck, PlanCheckBody, PruneBody, PushConfigBody, PushConfigList, QuestionList,
    ResumeBody, RetentionRuleBody, RetentionSettingsBody, RetryBody, RunList, SecretBody, SessionList,
    SignalBody, SourceText, SubmissionBody, TokenBody, TokenList, TraceDocument, VerificationBody, Version,
    WebhookBody, WebhookList, WebhookPatchBody, Written, routes,
};

/// The path below which all resources are.
pub const API_ROOT: &str = "/api/v1";

pub fn api_router() -> OpenApiRouter {
    routes().nest_below(API_ROOT)
}

#[must_use]
pub fn api_document() -> Value {
    let (_, paths) = api_router().split_for_parts();
    let mut document = serde_json::to_value(paths).expect("the description of paths serialises to JSON");
    document["info"] = json!({
        "title": "Millrace",
        "description": "Durable deep agents over HTTP. The sequence of the log is the cursor of everything: replies to writes \
                        carry it, events have it in their ids, and reads accept it.",
        "version": env!("CARGO_PKG_VERSION"),
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    });
    document["components"] = json!({
        "schemas": schemas(),
        "securitySchemes": { TOKEN_SCHEME: {
            "type": "http",
            "scheme": "bearer",
            "description": "A token; the list of an operation has the scope that the token needs.",
        } },
    });
    let paths = document["paths"].as_object_mut().map(std::mem::take).unwrap_or_default();
    let paths = paths.into_iter().map(|(path, mut item)| {
        item.as_object_mut().into_iter().flatten().for_each(|(_, operation)| add_problem_response(operation));
        (path.replace("{*", "{"), item)
    });
    document["paths"] = Value::Object(paths.collect());
    document
}

/// Returns the description of the API as text, as it is served, printed, and kept in `gateway/openapi.json`.
#[must_use]
pub fn api_document_text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| format!("{:#}\n", api_document()));
    &TEXT
}

/// Any request may fail with problem details.
fn add_problem_response(operation: &mut Value) {
    if let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) {
        let content = json!({ MEDIA_TYPE: { "schema": { "$ref": "#/components/schemas/Problem" } } });
        responses.insert("default".into(), json!({ "description": "An error", "content": content }));
    }
}

/// Adds the schema of a type under a name.
fn add<T: JsonSchema>(generator: &mut SchemaGenerator, name: &str, own: &mut Map<String, Value>) {
    let schema = generator.subschema_for::<T>().to_value();
    let is_itself =
        schema.get("$ref").and_then(Value::as_str) == Some(&format!("#/components/schemas/{name}"));
    if !is_itself {
        own.insert(name.into(), schema);
    }
}

fn schemas() -> Map<String, Value> {
    let mut all = answer_schemas();
    all.extend(request_schemas());
    all
}

fn settings() -> SchemaSettings {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    settings
}

fn answer_schemas() -> Map<String, Value> {
    let (mut all, mut output) = (Map::new(), settings().for_serialize().into_generator());
    let generator = &mut output;
    add::<RunList<'static>>(generator, "RunList", &mut all);
    add::<SessionList>(generator, "SessionList", &mut all);
    add::<SessionRuns<'static>>(generator, "SessionRuns", &mut all);
    add::<RunResult<'static>>(generator, "RunResult", &mut all);
    add::<TaskResult>(generator, "TaskResult", &mut all);
    add::<EventLine<'static>>(generator, "EventLine", &mut all);
    add::<EntryLine<'static>>(generator, "EntryLine", &mut all);
    add::<StreamNotice<'static>>(generator, "StreamNotice", &mut all);
    add::<TaskTranscript<'static>>(generator, "TaskTranscript", &mut all);
    add::<PlannerTranscript<'static>>(generator, "PlannerTranscript", &mut all);
    add::<TraceDocument>(generator, "TraceDocument", &mut all);
    add::<RunLog<'static>>(generator, "RunLog", &mut all);
    add::<Timeline<'static>>(generator, "Timeline", &mut all);
    add::<JournalPage<'static>>(generator, "JournalPage", &mut all);
    add::<TaskList<'static>>(generator, "TaskList", &mut all);
    add::<RunSpend<'static>>(generator, "RunSpend", &mut all);
    add::<SpendReport>(generator, "SpendReport", &mut all);
    add::<SourceText>(generator, "SourceText", &mut all);
    add::<PlanCheck>(generator, "PlanCheck", &mut all);
    add::<FileList<'static>>(generator, "FileList", &mut all);
    add::<QuestionLine<'static>>(generator, "QuestionLine", &mut all);
    add::<QuestionList<'static>>(generator, "QuestionList", &mut all);
    add::<AnswerLine<'static>>(generator, "AnswerLine", &mut all);
    add::<AnswerList<'static>>(generator, "AnswerList", &mut all);
    add::<ClusterJson<'static>>(generator, "ClusterJson", &mut all);
    add::<ClusterChecks>(generator, "ClusterChecks", &mut all);
    add::<LimitList<'static>>(generator, "LimitList", &mut all);
    add::<Admission>(generator, "Admission", &mut all);
    add::<RetentionJson>(generator, "RetentionJson", &mut all);
    add::<RunDeletionJson<'static>>(generator, "RunDeletionJson", &mut all);
    add::<PruneJson>(generator, "PruneJson", &mut all);
    add::<CommandOutcome<'static>>(generator, "CommandOutcome", &mut all);
    add::<Written<CommandOutcome<'static>>>(generator, "SubmittedRun", &mut all);
    add::<Written<CommandOutcome<'static>>>(generator, "AppliedCommand", &mut all);
    add::<Written<CommandReceipt<'static>>>(generator, "AcceptedCommand", &mut all);
    add::<CallerJson<'static>>(generator, "Caller", &mut all);
    add::<TokenList<'static>>(generator, "TokenList", &mut all);
    add::<AuditList<'static>>(generator, "AuditList", &mut all);
    add::<WebhookJson<'static>>(generator, "Webhook", &mut all);
    add::<WebhookList<'static>>(generator, "WebhookList", &mut all);
    add::<DeliveryJson<'static>>(generator, "Delivery", &mut all);
    add::<DeliveryList<'static>>(generator, "DeliveryList", &mut all);
    add::<PushConfigJson<'static>>(generator, "PushConfig", &mut all);
    add::<PushConfigList<'static>>(generator, "PushConfigList", &mut all);
    add::<Health>(generator, "Health", &mut all);
    add::<Version>(generator, "Version", &mut all);
    add::<Problem>(generator, "Problem", &mut all);
    all.extend(output.take_definitions(true));
    let types = ProblemKind::ALL.iter().map(|kind| format!("{TYPE_PREFIX}{}", kind.parts().1));
    all["Problem"]["properties"]["type"]["enum"] = json!(types.collect::<Vec<_>>());
    all
}

fn request_schemas() -> Map<String, Value> {
    let (mut all, mut input) = (Map::new(), settings().for_deserialize().into_generator());
    let generator = &mut input;
    add::<SubmissionBody>(generator, "SubmissionBody", &mut all);
    add::<VerificationBody>(generator, "VerificationBody", &mut all);
    add::<PlanCheckBody>(generator, "PlanCheckBody", &mut all);
    add::<CancelBody>(generator, "CancelBody", &mut all);
    add::<ResumeBody>(generator, "ResumeBody", &mut all);
    add::<MessageBody>(generator, "MessageBody", &mut all);
    add::<SignalBody>(generator, "SignalBody", &mut all);
    add::<AddBody>(generator, "AddBody", &mut all);
    add::<EditBody>(generator, "EditBody", &mut all);
    add::<RetryBody>(generator, "RetryBody", &mut all);
    add::<AnswerBody>(generator, "AnswerBody", &mut all);
    add::<AnswerBatch>(generator, "AnswerBatch", &mut all);
    add::<TokenBody>(generator, "TokenBody", &mut all);
    add::<LoginBody>(generator, "LoginBody", &mut all);
    add::<LimitBody>(generator, "LimitBody", &mut all);
    add::<WebhookBody>(generator, "WebhookBody", &mut all);
    add::<WebhookPatchBody>(generator, "WebhookPatchBody", &mut all);
    add::<SecretBody>(generator, "SecretBody", &mut all);
    add::<PushConfigBody>(generator, "PushConfigBody", &mut all);
    add::<AdmissionBody>(generator, "AdmissionBody", &mut all);
    add::<PruneBody>(generator, "PruneBody", &mut all);
    add::<RetentionRuleBody>(generator, "RetentionRuleBody", &mut all);
    add::<RetentionSettingsBody>(generator, "RetentionSettingsBody", &mut all);
    all.extend(input.take_definitions(true));
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn references(value: &Value, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                into.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|inner| references(inner, into));
            }
            Value::Array(items) => items.iter().for_each(|inner| references(inner, into)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    #[test]
    fn the_description_is_the_committed_one() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, api_document_text()).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == api_document_text(),
            "the API has changed: UPDATE_GOLDEN=1 rewrites gateway/openapi.json; then run clients/python/scripts/generate_types.py and \
             clients/typescript/scripts/generate.mjs"
        );
    }

    #[test]
    fn every_reference_leads_to_a_schema_and_every_operation_has_a_summary() {
        let document = api_document();
        let mut all = BTreeSet::new();
        references(&document, &mut all);
        for reference in all {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
        }
        let mut count = 0;
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                count += 1;
                assert!(operation["summary"].is_string(), "{method} {path} has no summary");
                assert!(!path.contains('*'), "{path}");
            }
        }
        assert!(count > 25, "only {count} operations");
        assert_eq!(document["openapi"], "3.1.0");
    }

    #[test]
    fn only_these_operations_need_no_token() {
        let document = api_document();
        let operations = document["paths"].as_object().unwrap().iter().flat_map(|(path, item)| {
            item.as_object().unwrap().iter().map(move |(method, operation)| (path, method, operation))
        });
        let public = operations.filter(|(_, _, operation)| operation["security"] == json!([]));
        let public: Vec<String> = public.map(|(path, method, _)| format!("{method} {path}")).collect();
        assert_eq!(
            public,
            ["post /api/v1/login", "post /api/v1/logout", "get /api/v1/openapi.json", "get /api/v1/version"]
        );
    }

    #[test]
    fn types_of_requests_and_answers_with_one_name_are_one_type() {
        let (answers, requests) = (answer_schemas(), request_schemas());
        let common: Vec<&String> = requests.keys().filter(|name| answers.contains_key(*name)).collect();
        assert!(!common.is_empty());
        for name in common {
            assert_eq!(requests[name], answers[name], "{name}");
        }
    }
}
