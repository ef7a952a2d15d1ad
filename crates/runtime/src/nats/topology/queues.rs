//! The queues of a cluster: one durable consumer of the stream `WORK` per capability. Only supervisors create them: a
//! client that could create a consumer could receive the orders of every capability.

use std::time::Duration;

use async_nats::jetstream::consumer::{self, AckPolicy, pull};
use async_nats::jetstream::response::Response;
use async_nats::jetstream::{self, ErrorCode};
use millrace_protocol::ids::Capability;
use millrace_protocol::registry::ClusterSettings;
use millrace_protocol::subject;

use super::names::WORK;
use super::streams::{ensure_stream, work_stream_config};
use crate::Fault;
use crate::nats::error::{fault_from_client_error, response_fault};

/// Creates the stream of all queues and the queues of these capabilities, where they do not exist.
///
/// # Errors
/// The server does not respond, or an existing stream or consumer differs.
pub async fn ensure_queues(
    context: &jetstream::Context,
    settings: &ClusterSettings,
    capabilities: impl IntoIterator<Item = &Capability>,
) -> Result<(), Fault> {
    ensure_stream(context, work_stream_config(settings.replicas.into())).await?;
    for capability in capabilities {
        ensure_queue(context, settings, capability).await?;
    }
    Ok(())
}

/// Creates the queue of a capability, or returns the existing one.
pub async fn ensure_queue(
    context: &jetstream::Context,
    settings: &ClusterSettings,
    capability: &Capability,
) -> Result<consumer::Consumer<pull::Config>, Fault> {
    let config = pull::Config {
        durable_name: Some(capability.to_string()),
        filter_subject: subject::order_subjects_of_capability(capability),
        ack_policy: AckPolicy::Explicit,
        ack_wait: Duration::from_millis(settings.work_lease_ms),
        max_ack_pending: 100_000,
        max_waiting: 10_000,
        num_replicas: usize::from(settings.replicas),
        ..Default::default()
    };
    context
        .create_consumer_on_stream(config, WORK)
        .await
        .map_err(|error| fault_from_client_error(&format!("the queue of {capability}"), error))
}

/// Returns `true` if a capability has a queue.
pub async fn has_queue(context: &jetstream::Context, capability: &Capability) -> Result<bool, Fault> {
    let what = format!("the queue of {capability}");
    // A NATS cluster accepts an empty object in place of an empty payload, but not `null`.
    let request = format!("CONSUMER.INFO.{WORK}.{capability}");
    let response: Response<consumer::Info> = context
        .request(request, &serde_json::json!({}))
        .await
        .map_err(|error| fault_from_client_error(&what, error))?;
    match response {
        Response::Ok(_) => Ok(true),
        Response::Err { error } => match error.error_code() {
            ErrorCode::CONSUMER_NOT_FOUND | ErrorCode::STREAM_NOT_FOUND => Ok(false),
            _ => Err(response_fault(&what, error)),
        },
    }
}
