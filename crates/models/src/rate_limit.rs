//! The interface to the rate limits that all workers of a cluster share. The cluster stores the counters; this module
//! only defines the trait.

use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, future::ready};

/// Limits requests to the rate that a model's account allows.
pub trait RateLimiter: Send + Sync {
    /// Waits until a request to `model` (its full name) that may use `tokens` is allowed, and reserves these tokens.
    ///
    /// # Errors
    /// The request would have to wait longer than `max_wait`. Nothing is reserved; the error is the required wait.
    fn acquire<'a>(
        &'a self,
        model: &'a str,
        tokens: u64,
        max_wait: Duration,
    ) -> BoxFuture<'a, Result<(), Duration>>;

    /// Replaces the tokens reserved for a request (`reserved`) by the tokens it used.
    fn settle<'a>(&'a self, model: &'a str, reserved: u64, used: u64) -> BoxFuture<'a, ()>;

    /// Reports that the provider rate-limited `model`: no requests for `pause`.
    fn back_off<'a>(&'a self, model: &'a str, pause: Duration) -> BoxFuture<'a, ()>;

    /// Ends the pause of `model`, if there is one. Limits stay.
    fn end_pause<'a>(&'a self, model: &'a str) -> BoxFuture<'a, ()>;
}

/// No limits.
impl RateLimiter for () {
    fn acquire<'a>(&'a self, _: &'a str, _: u64, _: Duration) -> BoxFuture<'a, Result<(), Duration>> {
        ready(Ok(())).boxed()
    }

    fn settle<'a>(&'a self, _: &'a str, _: u64, _: u64) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }

    fn back_off<'a>(&'a self, _: &'a str, _: Duration) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }

    fn end_pause<'a>(&'a self, _: &'a str) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }
}
