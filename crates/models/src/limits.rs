//! What surrounds requests to models and belongs to the process: the rate limits that all workers of a cluster share, and the metrics.
//!
//! Estimates of the tokens of requests and replies, for providers that count none and before they count.

use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use millrace_protocol::result::Usage;

use crate::image::Image;
use crate::model::{Message, ModelError, Request, ToolCall};

/// Limits requests to the rate that a model's account allows. By default there are no limits.
pub trait RateLimiter: Send + Sync {
    /// Waits until a request to `model` (its full name) that may use `tokens` is allowed, and reserves these tokens. If the request
    /// would have to wait longer than `max_wait`, nothing is reserved, and the error is the required wait.
    fn acquire<'a>(
        &'a self,
        _model: &'a str,
        _tokens: u64,
        _max_wait: Duration,
    ) -> BoxFuture<'a, Result<(), Duration>> {
        ready(Ok(())).boxed()
    }

    /// Replaces the tokens reserved for a request (`reserved`) by the tokens it used.
    fn settle<'a>(&'a self, _model: &'a str, _reserved: u64, _used: u64) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }

    /// Reports that the provider rate-limited `model`: no requests for `pause`.
    fn back_off<'a>(&'a self, _model: &'a str, _pause: Duration) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }

    /// Ends the pause of `model`, if there is one. Limits stay.
    fn end_pause<'a>(&'a self, _model: &'a str) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }
}

impl RateLimiter for () {}

/// Receives the outcome of every request to a provider; each retry counts as a request. It must not block.
pub trait RequestObserver: Send + Sync {
    /// Called when a request to `model` (its full name) has ended: its usage with the cost, or the error, and its
    /// duration. Not called for a request that the caller cancelled.
    fn request_finished(&self, model: &str, outcome: Result<&Usage, &ModelError>, took: Duration);
}

impl RequestObserver for () {
    fn request_finished(&self, _: &str, _: Result<&Usage, &ModelError>, _: Duration) {}
}

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
