//! The limits that all workers of a cluster keep together, as whoever asks a model sees them. It owns the interface;
//! the cluster keeps the figures.

use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, future::ready};

/// Lets requests through at the rate that a model's account allows.
pub trait Gate: Send + Sync {
    /// Waits until a request to `model` (its full name) that may take `tokens` can be made, and books it.
    ///
    /// # Errors
    /// It can't be let through before `patience` is over, and nothing was booked: how long it would have to wait.
    fn admit<'a>(
        &'a self,
        model: &'a str,
        tokens: u64,
        patience: Duration,
    ) -> BoxFuture<'a, Result<(), Duration>>;

    /// Corrects what was booked for a request by what it really took.
    fn settle<'a>(&'a self, model: &'a str, booked: u64, used: u64) -> BoxFuture<'a, ()>;

    /// Says that the provider wants no requests to `model` for a while.
    fn limited<'a>(&'a self, model: &'a str, pause: Duration) -> BoxFuture<'a, ()>;
}

/// No limits.
impl Gate for () {
    fn admit<'a>(&'a self, _: &'a str, _: u64, _: Duration) -> BoxFuture<'a, Result<(), Duration>> {
        ready(Ok(())).boxed()
    }

    fn settle<'a>(&'a self, _: &'a str, _: u64, _: u64) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }

    fn limited<'a>(&'a self, _: &'a str, _: Duration) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }
}
