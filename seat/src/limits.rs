//! The limits that the cluster keeps, as the gate that models ask: whoever comes there is about to be counted. It
//! translates and keeps nothing.

use std::time::Duration;

use futures::future::BoxFuture;
use millrace_models::Gate;
use millrace_runtime::limits::Limiter;

use crate::counts::announce;

/// The cluster's limiter as a gate.
#[derive(Clone)]
pub struct Limits(pub Limiter);

impl Gate for Limits {
    fn admit<'a>(
        &'a self,
        model: &'a str,
        tokens: u64,
        patience: Duration,
    ) -> BoxFuture<'a, Result<(), Duration>> {
        announce(model);
        self.0.admit(model, tokens, patience)
    }

    fn settle<'a>(&'a self, model: &'a str, booked: u64, used: u64) -> BoxFuture<'a, ()> {
        self.0.settle(model, booked, used)
    }

    fn limited<'a>(&'a self, model: &'a str, pause: Duration) -> BoxFuture<'a, ()> {
        self.0.pause(model, pause)
    }
}
