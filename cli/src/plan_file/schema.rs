//! The JSON Schema of a plan file, for editors and for whoever writes plans by program. It is made from the types of
//! the protocol; what a file may say in friendlier words is put in their place.

use millrace_agent::spec::review_schema;
use millrace_protocol::plan::{Consult, TaskSpec};
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
    /// Who makes the plan: `fixed`, it is carried out as it is (the default), or `hybrid`, the planner extends and changes
    /// it.
    #[schemars(default)]
    mode: Option<String>,
    /// When the planner is asked; by default never for a fixed plan, else where judgement is needed.
    #[schemars(default)]
    consult: Option<Consult>,
    /// What the run may use, all together: planner, workers and critics.
    #[schemars(default)]
    budget: Option<String>,
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
    for (name, of) in [("mode", json!({ "enum": ["hybrid", "fixed"] })), ("budget", of_run())] {
        let mut of = of;
        of["description"] = schema["properties"][name]["description"].take();
        schema["properties"][name] = of;
    }
    let consult = schema["properties"]["consult"]["description"].take();
    schema["properties"]["consult"] = json!({ "description": consult, "$ref": "#/$defs/Consult" });
    schema["$defs"]["Amounts"] =
        amounts("What attempts and their reviews may use; what is not named is not limited.");
    schema["$defs"]["OnFailedDependency"] = json!({
        "description": "What happens to a task when one it depends on ends failed or cancelled: it is cancelled too, it goes \
                        on without, or it waits and the planner is asked (block is an older word for ask).",
        "enum": ["cancel", "skip", "ask", "block"],
    });
    schema["$defs"]["Review"] = review_schema();
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

/// What a run may use.
fn of_run() -> Value {
    let mut budget = amounts("");
    let count = |description: &str| json!({ "description": description, "type": "integer", "minimum": 1 });
    let more = json!({
        "time": {
            "description": "How long it may take from its start, pauses apart.",
            "anyOf": [
                { "type": "number", "description": "Seconds." },
                { "type": "string", "examples": ["30m", "1h 30m"] },
            ],
        },
        "steps": count("How often the planner may be asked; 20 where nothing is said."),
        "tasks": count("How many tasks a planner may have in the plan; 1000 where nothing is said."),
        "depth": count("How many tasks a planner may put in a row; 100 where nothing is said."),
        "attempt": { "description": "What one attempt may use; a quarter of what is left where nothing is said.", "$ref": "#/$defs/Amounts" },
        "capabilities": {
            "description": "What all work of a capability may use, planner and critic among them.",
            "type": "object",
            "additionalProperties": { "$ref": "#/$defs/Amounts" },
        },
        "soft": { "description": "At which percentage the planner is told to wrap up.", "type": "integer", "minimum": 1, "maximum": 100, "default": 80 },
        "final": { "description": "Which percentage only the final task and its review may use.", "type": "integer", "minimum": 0, "maximum": 90, "default": 10 },
        "when_spent": { "description": "Whether running work goes on to its end when the budget is used up, or is cancelled.", "enum": ["finish", "cancel"], "default": "finish" },
    });
    if let (Some(properties), Value::Object(more)) = (budget["properties"].as_object_mut(), more) {
        properties.extend(more);
    }
    budget
}

/// Amounts by their words.
fn amounts(description: &str) -> Value {
    let number = |description: &str| {
        json!({
            "description": description,
            "anyOf": [
                { "type": "integer", "minimum": 1 },
                { "type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?[kKM]?$", "examples": ["200k", "1.5M"] },
            ],
        })
    };
    json!({
        "description": description,
        "type": "object",
        "properties": {
            "tokens": number("Tokens sent and received."),
            "in": number("Tokens sent."),
            "out": number("Tokens received."),
            "cached": number("Tokens sent that the provider had in its cache."),
            "calls": number("Calls to models."),
            "cost": {
                "description": "US dollars.",
                "anyOf": [
                    { "type": "number", "minimum": 0.000_001 },
                    { "type": "string", "pattern": r"^\$?[0-9]+(\.[0-9]{1,6})?$" },
                ],
            },
        },
        "additionalProperties": false,
    })
}
