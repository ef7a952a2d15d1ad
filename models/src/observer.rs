//! Who counts what is asked of models. It owns the interface; the process keeps the figures.

use std::time::Duration;

use millrace_protocol::result::Usage;

use crate::model::ModelError;

/// Is told of every request to a provider, each repetition by itself. It must not wait for anything.
pub trait Observer: Send + Sync {
    /// A request to `model` (its full name) took so long, and came to this: what it used, with its price, or why there
    /// is no reply. One that was given up before its end is not told.
    fn asked(&self, model: &str, outcome: Result<&Usage, &ModelError>, took: Duration);
}

/// Nobody counts.
impl Observer for () {
    fn asked(&self, _: &str, _: Result<&Usage, &ModelError>, _: Duration) {}
}
