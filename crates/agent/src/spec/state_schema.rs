//! The JSON Schemas of the fields `state` and `phases` of an agent.

use serde_json::{Value, json};

use super::state::{ACCESS, MAX_FIELDS, MAX_NAME, OPERATIONS};

/// The JSON Schemas of the fields `state` and `phases`.
pub(super) fn state_schemas() -> Value {
    let condition = json!({
        "description": "An expression over state.FIELD and phase, such as: phase == 'write' and state.count > 2",
        "type": "string",
        "minLength": 1,
    });
    let operation = json!({ "enum": OPERATIONS.map(|(name, _)| name) });
    let rules = ["schema", "matches", "min", "max", "deny"].map(|rule| json!({ "required": [rule] }));
    let policy = json!({
        "type": "object",
        "properties": {
            "on": {
                "description": "The operations that it applies to; set and append by default.",
                "oneOf": [operation, { "type": "array", "items": operation, "minItems": 1 }],
            },
            "schema": { "description": "The JSON Schema of the value, or of the item of an append.", "type": "object" },
            "matches": { "description": "A regular expression that the text, or the item of an append, must match.", "type": "string" },
            "min": { "description": "The least number, length of a text or length of a list.", "type": "number" },
            "max": { "description": "The greatest number, length of a text or length of a list.", "type": "number" },
            "deny": {
                "description": "The operation is denied where this expression over value, old, state.FIELD and phase holds.",
                "type": ["string", "boolean"],
            },
            "message": { "description": "The reason that the agent reads.", "type": "string" },
        },
        "anyOf": rules,
        "additionalProperties": false,
    });
    let field = json!({
        "type": "object",
        "properties": {
            "description": { "description": "Its meaning, for the agent.", "type": "string" },
            "schema": {
                "description": "The JSON Schema of its values. {$state: FIELD} in it stands for the current value of a field.",
                "type": "object",
            },
            "default": { "description": "Its value at the beginning; null by default." },
            "access": {
                "description": "The tools that the agent has for it; read by default.",
                "enum": ACCESS.map(|(name, _)| name),
            },
            "policies": { "description": "Rules that can veto an operation.", "type": "array", "items": policy },
        },
        "additionalProperties": false,
    });
    json!({
        "state": {
            "description": "The typed state of the agent: fields that it reads and writes with tools.",
            "type": "object",
            "propertyNames": { "pattern": "^[a-z][a-z0-9_]{0,39}$" },
            "additionalProperties": field,
            "maxProperties": MAX_FIELDS,
        },
        "phases": {
            "description": "The changes of the agent's phase. It begins in the phase that the first one leaves; after a turn, the \
                            first one of the current phase happens whose condition holds.",
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "from": { "type": "string", "minLength": 1, "maxLength": MAX_NAME },
                    "to": { "type": "string", "minLength": 1, "maxLength": MAX_NAME },
                    "when": condition,
                },
                "required": ["from", "to", "when"],
                "additionalProperties": false,
            },
        },
    })
}
