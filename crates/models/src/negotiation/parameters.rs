//! The optional parameters of requests, under all the names that APIs and error messages give them. Pure functions over request bodies.

use serde_json::{Map, Value};

/// An optional parameter of requests.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    /// Its fields in bodies, and their names in error messages.
    pub(super) keys: &'static [&'static str],
    /// Other words for it in error messages, in lower case.
    pub(super) phrases: &'static [&'static str],
}

pub(crate) const TOOLS: &str = "tools";
pub(crate) const RESPONSE_FORMAT: &str = "response_format";
pub(crate) const PROBABILITIES: &str = "logprobs";
pub(crate) const MAX_TOKENS: &str = "max_tokens";
pub(super) const STREAM: &str = "stream";
const STREAM_OPTIONS: &str = "stream_options";

/// The two names of the limit in Chat Completions. Servers know one of them, the other one, or both.
pub(super) const NAMES_OF_LIMIT: [&str; 2] = ["max_tokens", "max_completion_tokens"];

pub(super) const PARAMETERS: [Parameter; 9] = [
    Parameter { name: STREAM_OPTIONS, keys: &["stream_options", "include_usage"], phrases: &[] },
    Parameter { name: STREAM, keys: &["stream"], phrases: &["to stream", "streaming"] },
    Parameter {
        name: MAX_TOKENS,
        keys: &[
            "max_tokens",
            "max_completion_tokens",
            "max_output_tokens",
            "max_new_tokens",
            "maxTokens",
            "num_predict",
        ],
        phrases: &["output tokens", "completion tokens"],
    },
    Parameter { name: "temperature", keys: &["temperature"], phrases: &[] },
    Parameter { name: "top_p", keys: &["top_p"], phrases: &["nucleus sampling"] },
    Parameter {
        name: PROBABILITIES,
        keys: &["logprobs", "top_logprobs", "responseLogprobs"],
        phrases: &["log probabilities", "log probs"],
    },
    Parameter {
        name: TOOLS,
        keys: &["tools", "toolConfig", "tool_choice", "functions", "function_declarations"],
        phrases: &[
            "tool use",
            "tool call",
            "tool choice",
            "tool support",
            "tool parser",
            "use of tools",
            "function call",
            "function_call",
            "tool_call",
            "function-call",
            "tool-call",
            "functioncall",
        ],
    },
    Parameter {
        name: RESPONSE_FORMAT,
        keys: &[
            "response_format",
            "format",
            "text",
            "json_schema",
            "responseMimeType",
            "responseSchema",
            "responseJsonSchema",
        ],
        phrases: &[
            "response format",
            "json schema",
            "json mode",
            "structured output",
            "response mime type",
            "response schema",
        ],
    },
    Parameter {
        name: "reasoning_effort",
        keys: &[
            "reasoning_effort",
            "reasoning",
            "effort",
            "thinking",
            "think",
            "thinkingConfig",
            "thinking_budget",
            "thinking_level",
            "budget_tokens",
            "enable_thinking",
        ],
        phrases: &["thinking", "reasoning effort"],
    },
];

/// The fields that carry the conversation.
const CONVERSATION: [&str; 9] = [
    "model",
    "messages",
    "input",
    "system",
    "instructions",
    "contents",
    "systemInstruction",
    "anthropic_version",
    "num_ctx",
];

/// The objects in bodies that hold parameters.
const CONFIGURATIONS: [&str; 5] =
    ["generationConfig", "inferenceConfig", "options", "output_config", "additionalModelRequestFields"];

/// Returns a name without the marks and the case in which its spellings differ.
pub(super) fn fold(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).collect()
}

/// Returns the name of the parameter that a field of a body belongs to: the field's own name if it is not a known one.
pub(crate) fn parameter_of_field(field: &str) -> &str {
    let folded = fold(field);
    let is_named = |parameter: &&Parameter| parameter.keys.iter().any(|key| fold(key) == folded);
    PARAMETERS.iter().find(is_named).map_or(field, |parameter| parameter.name)
}

pub(super) fn is_conversation(field: &str) -> bool {
    CONVERSATION.contains(&field)
}

/// Returns the fields of a body that hold parameters, including those in its configurations.
pub(super) fn parameter_fields(body: &Value) -> Vec<&str> {
    let Some(fields) = body.as_object() else { return Vec::new() };
    let inner = CONFIGURATIONS.iter().filter_map(|name| fields.get(*name)?.as_object());
    let all = fields.keys().chain(inner.flat_map(Map::keys)).map(String::as_str);
    all.filter(|field| !is_conversation(field) && !CONFIGURATIONS.contains(field)).collect()
}

/// Removes the fields for which the function returns `false` from a body and its configurations. An empty configuration goes too.
pub(super) fn retain_parameters(body: &mut Value, keeps: impl Fn(&str) -> bool) {
    let Some(fields) = body.as_object_mut() else { return };
    let keeps = |field: &str| is_conversation(field) || CONFIGURATIONS.contains(&field) || keeps(field);
    fields.retain(|field, _| keeps(field));
    for name in CONFIGURATIONS {
        let Some(inner) = fields.get_mut(name).and_then(Value::as_object_mut) else { continue };
        inner.retain(|field, _| keeps(field));
        if inner.is_empty() {
            fields.remove(name);
        }
    }
}

/// Removes a parameter from a body. Streams are switched off instead, because some servers stream by default; the options of streams
/// go with them.
pub(super) fn remove_parameter(body: &mut Value, parameter: &str) {
    retain_parameters(body, |field| {
        let name = parameter_of_field(field);
        match parameter {
            STREAM => name != STREAM_OPTIONS,
            _ => name != parameter,
        }
    });
    if parameter == STREAM
        && let Some(stream) = body.get_mut(STREAM)
    {
        *stream = false.into();
    }
}

/// Calls a function with each value of a parameter in a body.
pub(super) fn for_each_value(body: &mut Value, parameter: &str, change: impl Fn(&mut Value)) {
    let Some(fields) = body.as_object_mut() else { return };
    for (field, value) in fields {
        if let Some(inner) = value.as_object_mut().filter(|_| CONFIGURATIONS.contains(&field.as_str())) {
            let own = inner.iter_mut().filter(|(field, _)| parameter_of_field(field) == parameter);
            own.for_each(|(_, value)| change(value));
        } else if parameter_of_field(field) == parameter {
            change(value);
        }
    }
}
