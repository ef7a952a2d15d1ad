//! Rejecting orders without headers. From 0.4 on every order has a `Millrace-Id`, by which it differs from a redirected
//! server reply (see [`crate::nats::provenance`]). Orders without one are accepted as long as a supervisor of an older
//! version runs; then this module writes the last accepted sequence to the cluster's settings, once and for ever.
//!
//! # Invariants
//!
//! - I59: A cluster is upgraded from 0.3 to 0.4 while runs are in progress.
//!   (`worker/tests/worker.rs::orders_of_older_supervisors_are_accepted_until_those_are_gone`,
//!   `tests/tests/supervision.rs::run_with_orders_of_an_older_supervisor_continues_at_once`)

use async_nats::jetstream;
use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::registry::{ClusterSettings, Heartbeat, ProcessRole};

use super::registry;
use crate::Fault;
use crate::nats::buckets::open_bucket;
use crate::nats::bus::Bus;
use crate::nats::error::fault_from_client_error;
use crate::nats::topology::{self, CLUSTER, SETTINGS, THE_SETTINGS, WORK};

/// Makes the cluster reject orders without headers from here on, unless a supervisor runs that publishes such orders.
/// Called by supervisors. Returns `true` if such orders are rejected, from now on or already before.
///
/// # Errors
/// The server does not respond, or another supervisor has changed the settings at the same time.
pub fn require_order_headers(bus: &Bus) -> BoxFuture<'_, Result<bool, Fault>> {
    async move {
        if bus.settings().unmarked_orders_through.is_some() {
            return Ok(true);
        }
        if registry::read_heartbeats(bus).await?.iter().any(publishes_without_headers) {
            return Ok(false);
        }
        let control = bus.request_context();
        let (current, revision) = topology::read_current_settings(control).await?;
        if current.unmarked_orders_through.is_none() {
            let last_accepted = last_order_sequence(control).await?;
            let settings = ClusterSettings { unmarked_orders_through: Some(last_accepted), ..current };
            let bytes = serde_json::to_vec(&settings).expect("settings serialise to JSON");
            let store = open_bucket(control, CLUSTER).await?;
            let updated = store.update(SETTINGS, bytes.into(), revision).await;
            updated.map_err(|error| fault_from_client_error(THE_SETTINGS, error))?;
            tracing::info!(last_accepted, "orders without a Millrace-Id header are now rejected");
        }
        // The settings never change after this.
        topology::freeze_settings(control).await?;
        Ok(true)
    }
    .boxed()
}

/// `true` if a process publishes orders without headers: a supervisor before 0.4.
fn publishes_without_headers(heartbeat: &Heartbeat) -> bool {
    let mut numbers = heartbeat.version.split('.').map_while(|number| number.parse::<u64>().ok());
    let is_older = matches!((numbers.next(), numbers.next()), (Some(0), Some(minor)) if minor < 4);
    heartbeat.role == ProcessRole::Supervisor && is_older
}

/// Returns the sequence of the last order that was published to any queue.
async fn last_order_sequence(control: &jetstream::Context) -> Result<u64, Fault> {
    let stream = control.get_stream(WORK).await.map_err(|error| fault_from_client_error(WORK, error))?;
    Ok(stream.cached_info().state.last_sequence)
}
