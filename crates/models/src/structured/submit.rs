//! The answer as the arguments of an additional tool, which only the model sees.

use crate::model::{FinishReason, Reply, Request, ToolCall, ToolSpec};

/// The name of the tool. It has two underscores, which no agent tool has.
const ANSWER_TOOL_NAME: &str = "final__answer";

/// Returns `true` if a call is the answer.
pub(super) fn is_answer_tool(name: &str) -> bool {
    name == ANSWER_TOOL_NAME
}

pub(super) fn add_answer_tool(request: &Request) -> Request {
    let mut rewritten = request.clone();
    if let Some(answer) = rewritten.answer.take() {
        rewritten.system = format!(
            "{}\n\nWhen you are done, call `{ANSWER_TOOL_NAME}` once with your whole answer. Do not write the answer as text.",
            rewritten.system
        );
        rewritten.tools.push(ToolSpec {
            name: ANSWER_TOOL_NAME.to_owned(),
            description: format!("Submit your final answer ({}). This ends the task.", answer.name).into(),
            schema: answer.schema.into(),
        });
    }
    rewritten
}

/// Extracts the answer. An answer next to other calls does not count: it was given before their results. The provider
/// state is dropped because it refers to a tool call that the conversation does not contain.
pub(super) fn convert_answer_tool_call(mut reply: Reply) -> Reply {
    let (mut answers, calls): (Vec<ToolCall>, Vec<ToolCall>) =
        std::mem::take(&mut reply.calls).into_iter().partition(|call| is_answer_tool(&call.name));
    reply.calls = calls;
    if answers.is_empty() {
        return reply;
    }
    reply.provider_state = None;
    if reply.calls.is_empty() {
        reply.text = answers.swap_remove(0).arguments;
        reply.finish =
            if reply.finish == FinishReason::ToolCalls { FinishReason::Stop } else { reply.finish };
    }
    reply
}
