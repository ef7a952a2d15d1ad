//! Estimates of the tokens of requests and replies, for providers that count none and before they count.

use millrace_protocol::result::Usage;

use crate::image::Image;
use crate::model::{Message, Request, ToolCall};

/// Estimates the usage of a request whose reply has this text and these calls: four bytes are a token.
pub fn estimate_usage(request: &Request, text: &str, calls: &[ToolCall]) -> Usage {
    Usage {
        input_tokens: estimate_sent_tokens(request),
        output_tokens: ((text.len() + bytes_of_calls(calls)) as u64 / 4).max(1),
        ..Usage::default()
    }
}

/// Estimates the tokens that a request sends, at four bytes per token and [`crate::image::IMAGE_TOKENS`] per image.
pub fn estimate_sent_tokens(request: &Request) -> u64 {
    let messages =
        request.messages.iter().map(|message| message.text().len() + bytes_of_calls(message.calls()));
    let tools = request.tools.iter().map(|tool| tool.description.len() + tool.schema.to_string().len());
    let answer = request.answer.as_ref().map_or(0, |answer| answer.schema.to_string().len());
    let bytes = request.system.len() + messages.sum::<usize>() + tools.sum::<usize>() + answer;
    bytes as u64 / 4 + image_tokens(request) as u64
}

fn bytes_of_calls(calls: &[ToolCall]) -> usize {
    calls.iter().map(|call| call.name.len() + call.arguments.len()).sum()
}

pub(crate) fn image_tokens(request: &Request) -> usize {
    let results = request.messages.iter().filter_map(Message::result);
    results.flat_map(|result| &result.images).map(Image::tokens).sum()
}
