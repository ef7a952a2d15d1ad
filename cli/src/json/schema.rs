//! The schema of the output of each command with `--json`.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};

use super::{
    Admission, AnswerLine, AuditLine, BackupOutcome, BenchJson, ClusterJson, CommandOutcome, DecisionLine,
    DeliveryJson, DoctorJson, EntryLine, ErrorLine, EvaluationClaimJson, EvaluationClaimsJson,
    EvaluationConfigurationJson, EvaluationSampleJson, EventLine, FileJson, LimitJson, LogLineJson,
    PlannerTranscript, PruneJson, QuestionLine, ReplayJson, RetentionJson, RunDeletionJson, RunListLine,
    RunResult, SessionLine, TaskTranscript, TokenJson, VerificationJson, WebhookJson,
};
use crate::commands::config::SettingsDocument;

/// The number of objects that a command prints.
#[derive(Debug, Clone, Copy)]
enum OutputKind {
    /// One object.
    Document,
    /// Any number of objects.
    Lines,
}

impl OutputKind {
    fn description(self) -> &'static str {
        match self {
            Self::Document => "One object.",
            Self::Lines => "Any number of objects, one on each line.",
        }
    }
}

/// Adds the schema of a type to a generator, and returns a reference to it.
type AddSchema = fn(&mut SchemaGenerator) -> Schema;

/// Returns the schema of one line of the output of a command, or of an object by its name; `None` if there is no such
/// command or object, or it prints no JSON.
pub fn output_schema(name: &str) -> Option<Value> {
    let (kind, mut types) = types_of_output(name)?;
    types.push(add::<ErrorLine>);
    let mut schema = union_schema(name, &types);
    schema["description"] = kind.description().into();
    Some(schema)
}

/// The types in the output of a command, without the error that each can print.
fn types_of_output(name: &str) -> Option<(OutputKind, Vec<AddSchema>)> {
    use OutputKind::{Document, Lines};
    let event: AddSchema = add::<EventLine<'static>>;
    let result: AddSchema = add::<RunResult<'static>>;
    let outcome: AddSchema = add::<CommandOutcome<'static>>;
    let listed: AddSchema = add::<RunListLine<'static>>;
    let question: AddSchema = add::<QuestionLine<'static>>;
    let types: (OutputKind, Vec<AddSchema>) = match name {
        "event" => (Document, vec![event]),
        "result" => (Document, vec![result]),
        "error" => (Document, Vec::new()),
        "run" | "resume" | "watch" | "submit" => (Lines, vec![event, question, result, outcome]),
        "inbox" => (Lines, vec![question]),
        "answer" => (Lines, vec![add::<AnswerLine<'static>>]),
        "list" => (Lines, vec![listed]),
        "sessions" => (Lines, vec![add::<SessionLine>]),
        "up" => (Lines, vec![outcome, listed]),
        "show" => (
            Lines,
            vec![
                result,
                add::<TaskTranscript<'static>>,
                add::<PlannerTranscript<'static>>,
                add::<EntryLine<'static>>,
            ],
        ),
        "down" | "cancel" | "pause" | "edit" | "retry" | "add" | "message" | "signal" | "nats-config" => {
            (Document, vec![outcome])
        }
        "status" | "workers" | "capabilities" => (Document, vec![add::<ClusterJson<'static>>]),
        "logs" => (Lines, vec![add::<LogLineJson<'static>>]),
        "files" | "memories" => (Lines, vec![add::<FileJson<'static>>, outcome]),
        "token" => (Lines, vec![add::<TokenJson<'static>>, outcome]),
        "webhook" => (Lines, vec![add::<WebhookJson<'static>>, add::<DeliveryJson<'static>>, outcome]),
        "audit" => (Lines, vec![add::<AuditLine<'static>>]),
        "delete" => (Lines, vec![add::<RunDeletionJson<'static>>]),
        "prune" => (Document, vec![add::<PruneJson>]),
        "retention" => (Document, vec![add::<RetentionJson>, outcome]),
        "limits" => (Lines, vec![add::<LimitJson<'static>>, add::<Admission>, outcome]),
        "replay" => (Lines, vec![add::<DecisionLine<'static>>, add::<ReplayJson<'static>>]),
        "backup" | "restore" => (Document, vec![add::<BackupOutcome<'static>>]),
        "config" => (Document, vec![add::<SettingsDocument>]),
        "doctor" => (Document, vec![add::<DoctorJson<'static>>]),
        "eval" => (
            Lines,
            vec![
                add::<EvaluationSampleJson<'static>>,
                add::<EvaluationConfigurationJson<'static>>,
                add::<EvaluationClaimJson<'static>>,
                add::<EvaluationClaimsJson<'static>>,
            ],
        ),
        "verify" => (Document, vec![add::<VerificationJson<'static>>]),
        "bench" => (Document, vec![add::<BenchJson>]),
        _ => return None,
    };
    Some(types)
}

fn add<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

fn union_schema(name: &str, types: &[AddSchema]) -> Value {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let refs: Vec<Schema> = types.iter().map(|add| add(&mut generator)).collect();
    let definitions = generator.take_definitions(true);
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": format!("millrace {name}"),
        "anyOf": refs,
        "$defs": definitions,
    });
    if let [one] = refs.as_slice() {
        schema.as_object_mut().map(|schema| schema.remove("anyOf"));
        schema["$ref"] = one.as_value()["$ref"].clone();
    }
    schema
}
