//! The consumers that read a lane: without acknowledgements, in memory on one server, and removed by it when they are not read.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Consumer, ReplayPolicy, pull};
use futures::StreamExt;
use futures::stream::ReadyChunks;
use millrace_protocol::ids::Lane;

use crate::Fault;
use crate::nats::bus::Bus;
use crate::nats::error::fault_from_client_error;
use crate::nats::topology::lane_stream;

/// The interval of the server's heartbeats while there are no messages.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// When one pull request expires.
const EXPIRES: Duration = Duration::from_secs(10);
/// The number of messages per pull request.
const BATCH: usize = 4_000;
/// The maximum number of messages in a chunk.
pub(super) const CHUNK: usize = 512;

/// The messages of a consumer, as they arrive, in chunks of at most [`CHUNK`].
pub(super) type LaneMessages = ReadyChunks<pull::Stream>;

/// The configuration of a consumer of a lane, for all messages from the first one on.
pub(super) fn lane_consumer_config() -> pull::Config {
    pull::Config {
        ack_policy: AckPolicy::None,
        replay_policy: ReplayPolicy::Instant,
        memory_storage: true,
        num_replicas: 1,
        inactive_threshold: Duration::from_secs(30),
        ..Default::default()
    }
}

/// Creates a consumer of a lane. `what` is the subject of an error message.
pub(super) async fn create_lane_consumer(
    bus: &Bus,
    lane: Lane,
    config: pull::Config,
    what: &str,
) -> Result<Consumer<pull::Config>, Fault> {
    let created = bus.request_context().create_consumer_on_stream(config, lane_stream(lane)).await;
    created.map_err(|error| fault_from_client_error(what, error))
}

/// Starts to pull the messages of a consumer.
pub(super) async fn pull_messages(
    consumer: &Consumer<pull::Config>,
    what: &str,
) -> Result<LaneMessages, Fault> {
    let stream = consumer
        .stream()
        .max_messages_per_batch(BATCH)
        .heartbeat(HEARTBEAT)
        .expires(EXPIRES)
        .messages()
        .await
        .map_err(|error| fault_from_client_error(what, error))?;
    Ok(stream.ready_chunks(CHUNK))
}
