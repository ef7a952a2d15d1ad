//! An account that the gateway serves: the state of its requests, and its background work: webhooks, traces, heartbeats.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use millrace_address_policy::ReceiverPolicy;
use millrace_protocol::registry::{Heartbeat, ProcessRole};
use millrace_protocol::tenant::TenantName;
use millrace_runtime::ops::telemetry::last_problem;
use millrace_runtime::work::registry::{self, host_name, new_process_id};
use millrace_runtime::{Bus, Fault};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::access::{CallerLimits, TenantAccess};
use crate::state::Gateway;
use crate::trace_export::{ExportSettings, OtlpReceiver, TAKEOVER, TraceExporter};
use crate::webhooks::WebhookSender;

/// The time that each kind of work has to stop.
const STOP_TIME: Duration = Duration::from_secs(3);
/// The attribute of traces that names the tenant, if the gateway serves several.
const TENANT_ATTRIBUTE: &str = "millrace.tenant";

#[derive(Clone)]
pub struct AccountSettings {
    pub receivers: ReceiverPolicy,
    /// The receiver of traces, if there is one.
    pub export: Option<ExportSettings>,
    /// The limits of single callers.
    pub limits: CallerLimits,
    /// The maximum number of requests and streams in progress of one of several tenants; `None` for no limit.
    pub in_progress: Option<NonZeroU32>,
}

pub struct ServedAccount {
    bus: Bus,
    access: Arc<TenantAccess>,
    work: Vec<JoinHandle<()>>,
}

impl ServedAccount {
    /// Starts serving an account. Its work ends when the token is cancelled.
    ///
    /// # Errors
    /// The TLS library can't be used: an error text for the user.
    pub fn start(
        tenant: Option<TenantName>,
        bus: Bus,
        settings: AccountSettings,
        shutdown: &CancellationToken,
    ) -> Result<Self, String> {
        let AccountSettings { receivers, export, limits, in_progress } = settings;
        let export = export.map(|export| name_source(export, tenant.as_ref()));
        let receiver = export.as_ref().map(OtlpReceiver::new).transpose()?;
        let gateway = Arc::new(Gateway::new(tenant, bus.clone(), receivers, shutdown.clone()));
        let sender = WebhookSender::new(gateway.clone(), shutdown.clone())?;
        let mut work =
            vec![tokio::spawn(sender.run()), tokio::spawn(send_heartbeats(bus.clone(), shutdown.clone()))];
        if let (Some(export), Some(receiver)) = (export, receiver) {
            let exporter = TraceExporter::new(bus.clone(), export, receiver, TAKEOVER, shutdown.clone());
            work.push(tokio::spawn(exporter.run()));
        }
        Ok(Self { bus, access: Arc::new(TenantAccess::new(gateway, limits, in_progress)), work })
    }

    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    pub fn access(&self) -> Arc<TenantAccess> {
        self.access.clone()
    }

    /// Waits until the work has stopped, after the token was cancelled. Deliveries and exports continue at another gateway.
    pub async fn stop(self) {
        let stopped = futures::future::join_all(self.work);
        // Positions are released and the heartbeat is removed, if the server responds.
        let _ = tokio::time::timeout(STOP_TIME, stopped).await;
        self.bus.flush_client().await;
    }
}

/// Adds the tenant to the source of traces.
fn name_source(mut export: ExportSettings, tenant: Option<&TenantName>) -> ExportSettings {
    if let Some(tenant) = tenant {
        export.traces.resource.attributes.push((TENANT_ATTRIBUTE.into(), tenant.to_string()));
    }
    export
}

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
