//! The steps of a journal as a person or a program reads them: each model call and each tool result of an agent, with the
//! messages, arguments and usage. It only reads what a driver recorded, and never fails: a step that is not an agent's is
//! returned as it is.

use millrace_protocol::result::{ModelUsage, Usage};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::model::{FinishReason, ToolCall, ToolResult, count_model_call};
use crate::turn::ToolCallRecord;
use crate::turn::record::{BegunCallsStep, ModelStep, ModelStepOutcome, SentMessages};

/// One step of a journal.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TranscriptStep {
    /// A request to a model and its outcome.
    ModelCall(ModelCall),
    /// The result of a tool call.
    ToolResult(ToolCallResult),
    /// Tool calls are about to run that must not run twice.
    CallsBegun {
        /// The judge of a panel, from 0; absent outside of panels.
        #[serde(skip_serializing_if = "Option::is_none")]
        judge: Option<u32>,
        /// The turn, from 0.
        turn: u64,
        /// The names of their steps.
        calls: Vec<String>,
    },
    /// One judge of a panel failed.
    JudgeFailed {
        /// The judge, from 0.
        judge: u32,
        /// The error.
        error: String,
    },
    /// A step of a capability that is not an agent.
    Step {
        /// Its name.
        name: String,
        /// Its value.
        value: Value,
    },
}

/// A request to a model and its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ModelCall {
    /// The judge of a panel, from 0; `None` outside of panels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judge: Option<u32>,
    /// The turn, from 0.
    pub turn: u64,
    /// The full name of the model that replied; `None` if it is not known.
    pub model: Option<String>,
    /// The messages that the request added to the conversation: system prompt, task, corrections, notices.
    pub messages: Vec<PromptMessage>,
    /// The names of the tools that the agent may call; with the first request only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// `true` if the conversation was compacted before this request.
    #[serde(rename = "compacted", skip_serializing_if = "std::ops::Not::not")]
    pub is_compacted: bool,
    /// The outcome of the request.
    pub outcome: ModelCallOutcome,
    /// The text of the reply; with `overflow`, the provider's message.
    pub text: String,
    /// The tool calls of the reply.
    pub calls: Vec<CallRequest>,
    /// The reason why generation stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub finish: Option<FinishReason>,
    /// The usage.
    pub usage: Usage,
    /// The duration in milliseconds.
    pub duration_ms: u64,
}

/// A message that a request added to the conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PromptMessage {
    /// `system`, `user`, or `tool` for the result of a call that was refused or answered by the agent's own state.
    pub role: &'static str,
    /// The text; of a very long one, the beginning and the end.
    pub text: String,
    /// Of a tool's result: the model's id for the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// `true` for the result of a refused call.
    #[serde(rename = "failed", skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
}

impl PromptMessage {
    fn new(role: &'static str, text: String) -> Self {
        Self { role, text, call_id: None, is_error: false }
    }

    fn from_result(result: ToolResult) -> Self {
        let ToolResult { call_id, mut text, is_error, images } = result;
        images.iter().for_each(|image| text.push_str(&format!("\n[{}]", image.describe())));
        Self { call_id: Some(call_id), is_error, ..Self::new("tool", text) }
    }
}

/// The outcome of a model request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelCallOutcome {
    /// A reply.
    Reply,
    /// The conversation is too long for the model.
    Overflow,
    /// The working time ran out first.
    TimeUp,
}

/// A tool call as the model requested it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CallRequest {
    /// The model's id for the call.
    pub id: String,
    /// The tool.
    pub tool: String,
    /// The arguments; a string if the model wrote invalid JSON.
    pub arguments: Value,
}

/// The result of a tool call.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ToolCallResult {
    /// The judge of a panel, from 0; `None` outside of panels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judge: Option<u32>,
    /// The turn of the reply that requested the call, from 0.
    pub turn: u64,
    /// The number among the calls of that reply that were run, from 0.
    pub index: u32,
    /// The tool.
    pub tool: String,
    /// The model's id for the call.
    pub call_id: String,
    /// The text that the model sees.
    pub text: String,
    /// `true` if the call failed.
    #[serde(rename = "failed")]
    pub is_error: bool,
    /// The model usage of the call itself.
    #[serde(skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
    /// The same by model.
    #[serde(skip_serializing_if = "ModelUsage::is_empty")]
    pub models: ModelUsage,
    /// The duration in milliseconds.
    pub duration_ms: u64,
}

/// Reads a step of a journal by its name.
#[must_use]
pub fn read_step(name: &str, value: Value) -> TranscriptStep {
    parse_agent_step(name, &value).unwrap_or_else(|| TranscriptStep::Step { name: name.to_owned(), value })
}

fn parse_agent_step(name: &str, value: &Value) -> Option<TranscriptStep> {
    let StepName { judge, kind } = StepName::parse(name)?;
    match kind {
        StepKind::Model { turn } => Some(TranscriptStep::ModelCall(model_call(judge, turn, parse(value)?))),
        StepKind::Tool { turn, index, tool } => {
            Some(TranscriptStep::ToolResult(tool_result(judge, turn, index, tool, parse(value)?)))
        }
        StepKind::Begin { turn } => {
            let BegunCallsStep { calls } = parse(value)?;
            Some(TranscriptStep::CallsBegun { judge, turn, calls })
        }
        StepKind::Lost => {
            Some(TranscriptStep::JudgeFailed { judge: judge?, error: value["message"].as_str()?.to_owned() })
        }
    }
}

/// The name of a step of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepName<'a> {
    /// The judge of a panel, from 0; `None` outside of panels.
    pub judge: Option<u32>,
    pub kind: StepKind<'a>,
}

/// The kinds of steps of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind<'a> {
    /// A request to a model.
    Model {
        /// The turn, from 0.
        turn: u64,
    },
    /// The result of a tool call.
    Tool {
        /// The turn, from 0.
        turn: u64,
        /// The number of the call, from 0.
        index: u32,
        tool: &'a str,
    },
    /// Tool calls are about to run that must not run twice.
    Begin {
        /// The turn, from 0.
        turn: u64,
    },
    /// A judge of a panel failed.
    Lost,
}

impl<'a> StepName<'a> {
    /// Parses the name of a step; `None` if it is not that of an agent's step.
    #[must_use]
    pub fn parse(name: &'a str) -> Option<Self> {
        let (judge, name) = match name.strip_prefix("judge.") {
            Some(rest) => {
                let (judge, name) = rest.split_once('.')?;
                (Some(judge.parse().ok()?), name)
            }
            None => (None, name),
        };
        let parts: Vec<&str> = name.splitn(4, '.').collect();
        let kind = match (parts.as_slice(), judge) {
            (["model", turn], _) => StepKind::Model { turn: turn.parse().ok()? },
            (["tool", turn, index, tool], _) => {
                StepKind::Tool { turn: turn.parse().ok()?, index: index.parse().ok()?, tool }
            }
            (["begin", turn], _) => StepKind::Begin { turn: turn.parse().ok()? },
            (["lost"], Some(_)) => StepKind::Lost,
            (_, _) => return None,
        };
        Some(Self { judge, kind })
    }
}

fn parse<T: DeserializeOwned>(value: &Value) -> Option<T> {
    T::deserialize(value).ok()
}

fn model_call(judge: Option<u32>, turn: u64, step: ModelStep) -> ModelCall {
    let SentMessages { system, user, results, tools, is_compacted } = step.sent.unwrap_or_default();
    let system = system.into_iter().map(|text| PromptMessage::new("system", text));
    let results = results.into_iter().map(PromptMessage::from_result);
    let user = user.into_iter().map(|text| PromptMessage::new("user", text));
    let messages = system.chain(results).chain(user).collect();
    let call = ModelCall {
        judge,
        turn,
        model: step.model,
        messages,
        tools,
        is_compacted,
        outcome: ModelCallOutcome::Reply,
        text: String::new(),
        calls: Vec::new(),
        finish: None,
        usage: Usage::default(),
        duration_ms: step.took_ms,
    };
    match step.outcome {
        ModelStepOutcome::Reply(reply) => ModelCall {
            usage: count_model_call(
                reply.model.as_ref().or(call.model.as_ref()).map_or("", String::as_str),
                reply.usage,
            ),
            model: reply.model.or(call.model),
            text: reply.text,
            calls: reply.calls.into_iter().map(call_request).collect(),
            finish: Some(reply.finish),
            ..call
        },
        ModelStepOutcome::Overflow(message) => {
            ModelCall { outcome: ModelCallOutcome::Overflow, text: message, ..call }
        }
        ModelStepOutcome::TimeUp => ModelCall { outcome: ModelCallOutcome::TimeUp, ..call },
    }
}

fn call_request(call: ToolCall) -> CallRequest {
    let ToolCall { id, name, arguments } = call;
    let arguments = serde_json::from_str(&arguments).unwrap_or(Value::String(arguments));
    CallRequest { id, tool: name, arguments }
}

fn tool_result(
    judge: Option<u32>,
    turn: u64,
    index: u32,
    tool: &str,
    record: ToolCallRecord,
) -> ToolCallResult {
    let ToolCallRecord { result, usage, models, took_ms, .. } = record;
    ToolCallResult {
        judge,
        turn,
        index,
        tool: tool.to_owned(),
        call_id: result.call_id,
        text: result.text,
        is_error: result.is_error,
        usage,
        models,
        duration_ms: took_ms,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{Message, Request};
    use crate::turn::record::SinceLastRequest;

    fn request(messages: Vec<Message>) -> Request {
        Request { system: "be brief".into(), messages, max_output_tokens: 9, ..Request::default() }
    }

    fn user(text: &str) -> Message {
        Message::User { text: text.into() }
    }

    fn reply(text: &str) -> Message {
        Message::Assistant { text: text.into(), calls: Vec::new(), provider_state: None }
    }

    #[test]
    fn each_message_is_recorded_with_the_request_that_added_it() {
        let result = |id: &str| {
            Message::Tool(ToolResult {
                call_id: id.into(),
                text: "done".into(),
                is_error: false,
                images: Vec::new(),
            })
        };
        let sent = |messages, is_compacted| {
            let since = SinceLastRequest { is_compacted, recorded_calls: vec!["run".into()] };
            SentMessages::new_in(&request(messages), &since)
        };
        let results =
            sent(vec![user("task"), reply("x"), result("run"), result("refused")], false).unwrap().results;
        assert_eq!(results.iter().map(|result| result.call_id.as_str()).collect::<Vec<_>>(), ["refused"]);
        assert_eq!(sent(vec![user("task"), reply("x"), result("run")], false), None, "its step has it");
        let first = sent(vec![user("task")], false).unwrap();
        assert_eq!(
            (first.system.as_deref(), first.user.as_slice()),
            (Some("be brief"), &["task".to_owned()][..])
        );
        let second = sent(vec![user("task"), reply("x"), user("wrong")], false).unwrap();
        assert_eq!((second.system, second.user), (None, vec!["wrong".to_owned()]));
        assert_eq!(sent(vec![user("task"), reply("x")], false), None, "nothing is new");
        let compacted = sent(vec![user("task"), user("cut"), reply("x"), user("last turn")], true).unwrap();
        assert_eq!((compacted.system, compacted.is_compacted), (None, true));
        assert_eq!(compacted.user, ["cut", "last turn"]);
        assert_eq!(sent(vec![user("task"), user("cut")], true).unwrap().user, ["cut"]);
        let long = sent(vec![user(&"x".repeat(100_000))], false).unwrap();
        assert!(long.user[0].len() < 70_000 && long.user[0].contains("characters left out"));
    }

    #[test]
    fn steps_of_agents_are_recognised_and_others_are_kept() {
        let heard = json!({"reply": {"text": "", "finish": "tool_calls", "usage": {"input_tokens": 7},
            "calls": [{"id": "c1", "name": "look", "arguments": "{\"at\": \"it\"}"},
                      {"id": "c2", "name": "look", "arguments": "{broken"}]}});
        let value = json!({"heard": heard, "model": "a:b", "took_ms": 12});
        let TranscriptStep::ModelCall(call) = read_step("model.3", value) else { panic!("a model call") };
        assert_eq!((call.turn, call.model.as_deref(), call.duration_ms), (3, Some("a:b"), 12));
        assert_eq!((call.usage.model_calls, call.usage.input_tokens), (1, 7));
        assert_eq!(call.calls[0].arguments, json!({"at": "it"}));
        assert_eq!(call.calls[1].arguments, json!("{broken"), "invalid arguments are shown unchanged");

        let overflow = read_step("judge.2.model.0", json!({"heard": {"overflow": "too long"}, "took_ms": 1}));
        let TranscriptStep::ModelCall(call) = overflow else { panic!("a model call") };
        assert_eq!(
            (call.judge, call.outcome, call.text.as_str()),
            (Some(2), ModelCallOutcome::Overflow, "too long")
        );

        let result = json!({"call_id": "c1", "text": "seen", "took_ms": 5});
        let TranscriptStep::ToolResult(result) = read_step("tool.3.1.mcp.look", result) else {
            panic!("a result")
        };
        assert_eq!((result.turn, result.index, result.tool.as_str()), (3, 1, "mcp.look"));

        let failed = read_step("judge.1.lost", json!({"kind": "model", "message": "away"}));
        assert_eq!(failed, TranscriptStep::JudgeFailed { judge: 1, error: "away".into() });
        for (name, value) in [
            ("echo.1", json!(5)),
            ("begin", Value::Null),
            ("model.0", json!("not an agent's")),
            ("model.x", json!({"heard": {"time_up": null}, "took_ms": 1})),
            ("tool.0.0", json!({})),
            ("judge.x", json!({})),
            ("lost", json!({"message": "no judge"})),
        ] {
            let step = TranscriptStep::Step { name: name.into(), value: value.clone() };
            assert_eq!(read_step(name, value), step, "{name}");
        }
    }
}
