//! The interface through which requests to models are counted. The process that uses the models keeps the metrics.

use std::time::Duration;

use millrace_protocol::result::Usage;

use crate::model::ModelError;

/// Receives the outcome of every request to a provider; each retry counts as a request. It must not block.
pub trait RequestObserver: Send + Sync {
    /// Called when a request to `model` (its full name) has ended: its usage with the cost, or the error, and its
    /// duration. Not called for a request that the caller cancelled.
    fn request_finished(&self, model: &str, outcome: Result<&Usage, &ModelError>, took: Duration);
}

/// Ignores all requests.
impl RequestObserver for () {
    fn request_finished(&self, _: &str, _: Result<&Usage, &ModelError>, _: Duration) {}
}
