//! The answer as the arguments of one more tool, which only the model knows.

use crate::model::{Finish, Reply, Request, ToolCall, ToolSpec};

/// The tool's name. Two underscores: no tool of an agent is called so.
const NAME: &str = "final__answer";

/// Whether a call is the answer.
pub(super) fn is_answer(name: &str) -> bool {
    name == NAME
}

pub(super) fn asked(request: &Request) -> Request {
    let mut asked = request.clone();
    if let Some(answer) = asked.answer.take() {
        asked.system = format!(
            "{}\n\nWhen you are done, call `{NAME}` once with your whole answer. Do not write the answer as text.",
            asked.system
        );
        asked.tools.push(ToolSpec {
            name: NAME.to_owned(),
            description: format!("Takes your final answer ({}) and ends the work.", answer.name),
            schema: answer.schema,
        });
    }
    asked
}

/// An answer beside other calls was given before their results were there: it does not count. What the provider wants
/// to see again goes with the call of a tool that the conversation does not know.
pub(super) fn answered(mut reply: Reply) -> Reply {
    let (mut answers, calls): (Vec<ToolCall>, Vec<ToolCall>) =
        std::mem::take(&mut reply.calls).into_iter().partition(|call| is_answer(&call.name));
    reply.calls = calls;
    if answers.is_empty() {
        return reply;
    }
    reply.keepsake = None;
    if reply.calls.is_empty() {
        reply.text = answers.swap_remove(0).arguments;
        reply.finish = if reply.finish == Finish::ToolCalls { Finish::Stop } else { reply.finish };
    }
    reply
}
