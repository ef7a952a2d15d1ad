//! What surrounds requests to models and belongs to the process: the rate limits that all workers of a cluster share, and the metrics.

use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, future::ready};
use millrace_protocol::result::Usage;

use crate::model::ModelError;

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
