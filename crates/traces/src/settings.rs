//! The settings of traces, from variables of the environment.

use std::time::Duration;

use crate::names::Convention;
use crate::otlp::TraceResource;
use crate::tracer::TraceOptions;

/// The variable that adds content to spans: prompts, replies, arguments, results, errors.
pub const CONTENT_VARIABLE: &str = "MILLRACE_TRACE_CONTENT";

#[derive(Debug, Clone)]
pub struct TraceSettings {
    pub options: TraceOptions,
    pub resource: TraceResource,
}

impl TraceSettings {
    /// Reads `OTEL_SEMCONV_STABILITY_OPT_IN`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES` and `MILLRACE_TRACE_CONTENT`.
    #[must_use]
    pub fn from_environment(split: Duration) -> Self {
        Self::from_variables(split, |name| std::env::var(name).ok())
    }

    pub fn from_variables(split: Duration, variable: impl Fn(&str) -> Option<String>) -> Self {
        let has_content = variable(CONTENT_VARIABLE)
            .is_some_and(|value| matches!(value.trim().to_ascii_lowercase().as_str(), "1" | "true" | "yes"));
        Self {
            options: TraceOptions {
                split,
                convention: Convention::from_opt_in(variable("OTEL_SEMCONV_STABILITY_OPT_IN").as_deref()),
                has_content,
            },
            resource: TraceResource::from_settings(
                variable("OTEL_SERVICE_NAME").as_deref(),
                variable("OTEL_RESOURCE_ATTRIBUTES").as_deref(),
            ),
        }
    }
}
