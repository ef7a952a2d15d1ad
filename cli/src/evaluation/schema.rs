//! The JSON Schema of an evaluation file, for editors.

use serde_json::{Value, json};

use super::file::MAX_SAMPLES;
use crate::plan_file::plan_file_schema;

/// The JSON Schema of an evaluation file (draft 2020-12).
pub fn evaluation_file_schema() -> Value {
    let texts =
        json!({ "oneOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] });
    let with_description = |mut schema: Value, description: &str| {
        schema["description"] = description.into();
        schema
    };
    let name = json!({ "type": "string", "pattern": "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$" });
    let web = json!({ "type": "boolean" });
    let plan = plan_file_schema();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Evaluation",
        "description": "Objectives over a folder of documents, with the facts that their answers should state.",
        "type": "object",
        "additionalProperties": false,
        "required": ["objectives"],
        "properties": {
            "name": with_description(name.clone(), "The name of the results folder; by default that of the file."),
            "documents": {
                "description": "The folder with the documents, relative to this file; may be left out if agents read the web.",
                "type": "string",
            },
            "web": with_description(web.clone(), "true lets agents search and read the web, with the capability web_research."),
            "samples": {
                "description": "The number of samples of each objective.",
                "type": "integer", "minimum": 1, "maximum": MAX_SAMPLES, "default": 1,
            },
            "timeout": {
                "description": "The time limit of a sample: seconds, or text such as \"10m\".",
                "type": ["number", "string"], "default": "10m",
            },
            "budget": plan["properties"]["budget"],
            "configurations": {
                "description": "The configurations to compare; by default the default models.",
                "type": "array",
                "items": {
                    "type": "object",
                    "additionalProperties": false,
                    "required": ["name"],
                    "properties": {
                        "name": with_description(name.clone(), "Its name, unique in the file."),
                        "models": with_description(texts.clone(), "Models, as [CAPABILITY=]provider:model."),
                        "capabilities": with_description(texts.clone(), "Capability files, relative to this file."),
                        "web": with_description(web, "As for the whole file, for this configuration only."),
                    },
                },
            },
            "objectives": {
                "description": "The objectives.",
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "additionalProperties": false,
                    "required": ["id", "objective"],
                    "properties": {
                        "id": with_description(name, "Its id, unique in the file."),
                        "objective": { "description": "The question or the work.", "type": "string" },
                        "documents": with_description(
                            texts.clone(),
                            "The documents that have the answer, for --ceiling: paths below the documents' folder.",
                        ),
                        "facts": {
                            "description": "The facts that an answer should state.",
                            "type": "array", "items": { "$ref": "#/$defs/Statement" },
                        },
                        "wrong": {
                            "description": "Statements that contradict the documents.",
                            "type": "array", "items": { "$ref": "#/$defs/Statement" },
                        },
                        "answerable": {
                            "description": "false if the documents do not answer the question.",
                            "type": "boolean", "default": true,
                        },
                    },
                },
            },
        },
        "$defs": {
            "Amounts": plan["$defs"]["Amounts"],
            "Statement": {
                "description": "A statement: its words, or several spellings of it.",
                "oneOf": [
                    { "type": ["string", "number"] },
                    {
                        "type": "object",
                        "additionalProperties": false,
                        "anyOf": [{ "required": ["any"] }, { "required": ["pattern"] }],
                        "properties": {
                            "name": { "description": "Its name in results.", "type": "string" },
                            "any": with_description(texts, "Spellings, of which one is enough."),
                            "pattern": { "description": "A regular expression, without case.", "type": "string" },
                        },
                    },
                ],
            },
        },
    })
}
