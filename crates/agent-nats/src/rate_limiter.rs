//! The cluster's rate limits as the gate that models pass before each request.

use std::time::Duration;

use futures::future::BoxFuture;
use millrace_models::RateLimiter;
use millrace_runtime::store::rate_limits::ClusterRateLimiter;

use crate::model_metrics::create_series;

/// The cluster's rate limiter.
#[derive(Clone)]
pub struct NatsRateLimiter(pub ClusterRateLimiter);

impl RateLimiter for NatsRateLimiter {
    fn acquire<'a>(
        &'a self,
        model: &'a str,
        tokens: u64,
        patience: Duration,
    ) -> BoxFuture<'a, Result<(), Duration>> {
        create_series(model);
        self.0.admit_request(model, tokens, patience)
    }

    fn settle<'a>(&'a self, model: &'a str, booked: u64, used: u64) -> BoxFuture<'a, ()> {
        self.0.correct_booked_tokens(model, booked, used)
    }

    fn back_off<'a>(&'a self, model: &'a str, pause: Duration) -> BoxFuture<'a, ()> {
        self.0.pause_model(model, pause)
    }

    fn end_pause<'a>(&'a self, model: &'a str) -> BoxFuture<'a, ()> {
        self.0.end_pause(model)
    }
}
