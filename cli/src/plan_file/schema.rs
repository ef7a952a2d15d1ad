//! The JSON Schema of a plan file, for editors and for whoever writes plans by program. It is made from the types of
//! the protocol; what a file may say in friendlier words is put in their place.

use millrace_protocol::plan::TaskSpec;
use schemars::JsonSchema;
use serde_json::{Value, json};

/// A plan: the tasks of a run, and how they hang together.
#[derive(JsonSchema)]
#[schemars(rename = "Plan", deny_unknown_fields)]
#[expect(dead_code, reason = "it is there for its schema")]
struct Shape {
    /// What the run is to find out or to do; may be left away where the command line says it.
    #[schemars(default)]
    objective: Option<String>,
    /// Whether the first failed task ends the run.
    #[schemars(default)]
    fail_fast: bool,
    /// The tasks, in any order.
    #[schemars(length(min = 1))]
    tasks: Vec<TaskSpec>,
}

/// The JSON Schema of a plan file (draft 2020-12).
pub fn schema() -> Value {
    let mut schema = schemars::schema_for!(Shape).to_value();
    let description = schema["properties"]["objective"]["description"].take();
    schema["properties"]["objective"] = json!({ "description": description, "type": "string" });
    schema["$defs"]["Review"] = json!({
        "description": "How its result is judged before it is accepted: not at all, by a critic, or by a critic who \
                        looks at these criteria besides its own.",
        "oneOf": [
            { "enum": ["none", "critic"] },
            {
                "type": "object",
                "properties": { "criteria": { "type": "array", "items": { "type": "string", "pattern": "\\S" } } },
                "required": ["criteria"],
                "additionalProperties": false,
            },
        ],
    });
    schema["$defs"]["TaskSpec"]["properties"]["review"]["default"] = json!("none");
    schema["$defs"]["Limits"]["description"] = json!("How long and how often a task may try.");
    let limits = &mut schema["$defs"]["Limits"]["properties"];
    limits["max_attempts"]["minimum"] = json!(1);
    limits["max_attempts"]["maximum"] = json!(100);
    for name in ["backoff", "queue_wait", "run_time", "silence"] {
        let description = limits[name]["description"].take();
        let default = limits[name]["default"].take();
        limits[name] = json!({
            "description": description,
            "default": default,
            "anyOf": [
                { "type": "number", "minimum": 0, "description": "Seconds." },
                { "type": "string", "examples": ["90s", "5m", "1h 30m"] },
            ],
        });
    }
    schema
}
