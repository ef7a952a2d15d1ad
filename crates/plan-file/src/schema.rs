//! The JSON Schema of a plan file, for editors and for programs that generate plans. It is derived from the types of the file;
//! the limits of a task, which are those of `millrace_protocol`, have a friendlier notation in files.

use millrace_agent::spec::review_schema;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};

use super::PlanFile;

/// The schema of a review.
pub struct ReviewSchema;

impl JsonSchema for ReviewSchema {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Review".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        Schema::try_from(review_schema()).expect("a schema is a map")
    }
}

/// The JSON Schema of a plan file (draft 2020-12).
pub fn plan_file_schema() -> Value {
    let mut schema = schemars::schema_for!(PlanFile).to_value();
    schema["$defs"]["OnFailedDependency"] = json!({
        "description": "What happens to a task when a task it depends on fails or is cancelled: cancel it too, skip the \
                        dependency and run without it, or ask the planner (block is a deprecated name for ask).",
        "enum": ["cancel", "skip", "ask", "block"],
    });
    schema["$defs"]["TaskSpec"]["properties"]["review"]["default"] = json!("none");
    schema["$defs"]["Limits"]["description"] = json!("Limits on the number and duration of attempts.");
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
