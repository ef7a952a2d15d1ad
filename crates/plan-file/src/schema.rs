//! The JSON Schema of a plan file, for editors and for programs that generate plans. It is derived from the types of
//! `millrace_protocol`; fields with a friendlier notation in files are replaced.

use millrace_agent::spec::review_schema;
use millrace_protocol::plan::{PlannerConsultMode, TaskSpec};
use schemars::JsonSchema;
use serde_json::{Value, json};

use super::start::{event_schema, time_schema};

/// A plan: the tasks of a run and their dependencies.
#[derive(JsonSchema)]
#[schemars(rename = "Plan", deny_unknown_fields)]
#[expect(dead_code, reason = "only its schema is used")]
struct PlanFileSchema {
    /// The objective of the run; may be omitted if it is given on the command line.
    #[schemars(default)]
    objective: Option<String>,
    /// The criteria for the deliverable, one sentence each: a critic checks them in the result of the final task.
    #[schemars(default, length(max = 50))]
    criteria: Vec<String>,
    /// Planning mode: `fixed` executes the plan as it is (the default), `hybrid` lets the planner extend and change it.
    #[schemars(default)]
    mode: Option<String>,
    /// When the planner is called; by default `never` for a fixed plan, otherwise `judgement`.
    #[schemars(default)]
    consult: Option<PlannerConsultMode>,
    /// The total budget of the run: planner, workers and critics.
    #[schemars(default)]
    budget: Option<String>,
    /// If true, the first failed task ends the run.
    #[schemars(default)]
    fail_fast: bool,
    /// If true, a person must approve the plan before its first task starts.
    #[schemars(default)]
    approve_plan: bool,
    /// The tasks, in any order.
    #[schemars(length(min = 1))]
    tasks: Vec<TaskSpec>,
}

/// The JSON Schema of a plan file (draft 2020-12).
pub fn plan_file_schema() -> Value {
    let mut schema = schemars::schema_for!(PlanFileSchema).to_value();
    let description = schema["properties"]["objective"]["description"].take();
    schema["properties"]["objective"] = json!({ "description": description, "type": "string" });
    for (name, of) in [("mode", json!({ "enum": ["hybrid", "fixed"] })), ("budget", run_budget_schema())] {
        let mut of = of;
        of["description"] = schema["properties"][name]["description"].take();
        schema["properties"][name] = of;
    }
    let consult = schema["properties"]["consult"]["description"].take();
    schema["properties"]["consult"] = json!({ "description": consult, "$ref": "#/$defs/Consult" });
    schema["$defs"]["Amounts"] =
        amounts_schema("Budget of attempts and their reviews; amounts that are not given are unlimited.");
    schema["$defs"]["OnFailedDependency"] = json!({
        "description": "What happens to a task when a task it depends on fails or is cancelled: cancel it too, skip the \
                        dependency and run without it, or ask the planner (block is a deprecated name for ask).",
        "enum": ["cancel", "skip", "ask", "block"],
    });
    schema["$defs"]["Review"] = review_schema();
    let fields = &mut schema["$defs"]["TaskSpec"]["properties"];
    let description_of = |field: &Value| field["description"].as_str().unwrap_or_default().to_owned();
    fields["not_before"] = time_schema(&description_of(&fields["not_before"]));
    fields["wait_for_event"] = event_schema(&description_of(&fields["wait_for_event"]));
    for unused in ["PlanTime", "StartEvent", "StartEventExpiry", "StartExpiryAction"] {
        schema["$defs"].as_object_mut().and_then(|all| all.shift_remove(unused));
    }
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

/// The schema of the budget of a run.
fn run_budget_schema() -> Value {
    let mut budget = amounts_schema("");
    let count = |description: &str| json!({ "description": description, "type": "integer", "minimum": 1 });
    let more = json!({
        "time": {
            "description": "Time limit from the start of the run, pauses excluded.",
            "anyOf": [
                { "type": "number", "description": "Seconds." },
                { "type": "string", "examples": ["30m", "1h 30m"] },
            ],
        },
        "provider_timeout": {
            "description": "Time that work waits for a model provider that does not answer before the run pauses; 30m by default.",
            "anyOf": [
                { "type": "number", "description": "Seconds." },
                { "type": "string", "examples": ["30m", "1h 30m"] },
            ],
        },
        "steps": count("Maximum number of planner turns; 20 by default."),
        "tasks": count("Maximum number of tasks in a planner's plan; 1000 by default."),
        "depth": count("Maximum length of a chain of dependent tasks in a planner's plan; 100 by default."),
        "attempt": { "description": "Budget of one attempt; by default a quarter of the remaining budget.", "$ref": "#/$defs/Amounts" },
        "capabilities": {
            "description": "Budget of all work of a capability, including planner and critic.",
            "type": "object",
            "additionalProperties": { "$ref": "#/$defs/Amounts" },
        },
        "soft": { "description": "Percentage of the budget at which the planner is asked to wrap up.", "type": "integer", "minimum": 1, "maximum": 100, "default": 80 },
        "final": { "description": "Percentage of the budget that is reserved for the final task and its review.", "type": "integer", "minimum": 0, "maximum": 90, "default": 10 },
        "when_spent": { "description": "Policy for running work when the budget is used up: let it finish, or cancel it.", "enum": ["finish", "cancel"], "default": "finish" },
    });
    if let (Some(properties), Value::Object(more)) = (budget["properties"].as_object_mut(), more) {
        properties.extend(more);
    }
    budget
}

fn amounts_schema(description: &str) -> Value {
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
            "cached": number("Tokens sent that the provider read from its cache."),
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
