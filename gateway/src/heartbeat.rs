//! The heartbeat of a gateway, by which `millrace status` and the API list it.

use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::registry::{Heartbeat, ProcessRole};
use millrace_runtime::ops::telemetry::last_problem;
use millrace_runtime::work::registry::{self, host_name, new_process_id};
use millrace_runtime::{Bus, Fault};
use tokio_util::sync::CancellationToken;

const INTERVAL: Duration = Duration::from_secs(3);

/// Sends heartbeats until the token is cancelled, and then removes the last one.
pub async fn send_heartbeats(bus: Bus, shutdown: CancellationToken) {
    let (id, started) = (new_process_id(ProcessRole::Gateway.name()), Timestamp::now());
    let heartbeat = || Heartbeat {
        id: id.clone(),
        role: ProcessRole::Gateway,
        host: host_name(),
        pid: std::process::id(),
        started,
        slots: Vec::new(),
        busy: 0,
        busy_with: Vec::new(),
        version: env!("CARGO_PKG_VERSION").into(),
        lanes: Vec::new(),
        suspended: None,
        last_problem: last_problem(),
    };
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = shutdown.cancelled() => break,
        }
        match registry::send_heartbeat(&bus, &heartbeat()).await {
            Ok(()) => {}
            Err(fault @ Fault::Forbidden { .. }) => {
                tracing::warn!(
                    %fault,
                    "heartbeats stopped; run `millrace nats-config --out DIR` again and reload the server, so that this identity may send them"
                );
                return;
            }
            Err(fault) => tracing::debug!(%fault, "heartbeat failed"),
        }
    }
    if let Err(fault) = registry::remove_heartbeat(&bus, &heartbeat()).await {
        tracing::debug!(%fault, "failed to remove the heartbeat; it will expire");
    }
}
