//! The metrics of a tenant, of a gateway that serves several.

use millrace_protocol::tenant::TenantName;
use millrace_runtime::ops::metrics::names::{TENANT_REQUESTS, TENANT_STREAMS};
use millrace_runtime::ops::metrics::{Counter, Gauge};

/// The metrics of the requests of a tenant.
pub struct TenantMetrics {
    accepted: Counter,
    refused: Counter,
    limited: Counter,
    streams: Gauge,
}

impl TenantMetrics {
    /// Creates them.
    #[must_use]
    pub fn new(tenant: &TenantName) -> Self {
        let requests = |outcome| TENANT_REQUESTS.with_labels(&[tenant.as_str(), outcome]);
        Self {
            accepted: requests("accepted"),
            refused: requests("refused"),
            limited: requests("limited"),
            streams: TENANT_STREAMS.with_labels(&[tenant.as_str()]),
        }
    }

    /// Counts a request with a valid token; `is_within_limits` is `false` if there were too many.
    pub fn count_request(&self, is_within_limits: bool) {
        if is_within_limits { &self.accepted } else { &self.limited }.increment();
    }

    /// Counts a request whose token is not valid.
    pub fn count_refusal(&self) {
        self.refused.increment();
    }

    /// Returns the number of open event streams.
    pub fn open_streams(&self) -> Gauge {
        self.streams.clone()
    }
}
