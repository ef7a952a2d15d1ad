//! Exports the traces of all runs over OTLP/HTTP, if the variables of OpenTelemetry name a receiver. Spans are derived from the
//! log, so the exporter is a reader of the log with a durable position: whatever is killed, every span of the log arrives, and one
//! that arrives twice has the same id.
//!
//! ```text
//! lanes ──▶ tracers of live runs ──▶ batch ──▶ receiver accepts ──▶ position
//! summaries ──▶ archived runs whose end was not read in their lane: the rest comes from the archive
//! ```
//!
//! Of several gateways one exports. While the receiver is away, the exporter reads no further: the log is the queue.
//!
//! | file | contents |
//! |---|---|
//! | `follower` | reads lanes and summaries |
//! | `receiver` | requests to the receiver |
//! | `settings` | the variables |
//!
//! # Invariants
//!
//! - I191: A receiver of traces gets exactly the spans of the log, across kills of any process and any absence of the receiver,
//!   and also of runs that were archived meanwhile.
//!   (`gateway/src/trace_export/tests.rs::exporters_killed_behind_every_message_lose_no_span`,
//!   `gateway/src/trace_export/tests.rs::receiver_that_is_away_loses_nothing`,
//!   `gateway/src/trace_export/tests.rs::archived_runs_are_exported_whatever_was_read_before`)

mod follower;
mod receiver;
mod settings;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]
mod tests;

use std::convert::Infallible;
use std::time::Duration;

use futures::FutureExt;
use millrace_runtime::Bus;
use millrace_traces::TraceOptions;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::held_position::{FollowerStop, HeldPosition, PositionClaim};
use follower::LogFollower;
pub use receiver::OtlpReceiver;
use receiver::SendOutcome;
pub use settings::ExportSettings;

/// The name of the exporter's position.
const NAME: &str = "traces";
/// The interval at which the log is read.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// A position that does not change for this long has no exporter any more.
pub const TAKEOVER: Duration = Duration::from_secs(20);
/// The maximum number of spans in a request.
const BATCH: usize = 512;
/// The backoff after the first failed request; it doubles up to [`MAX_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
/// The longest backoff.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Exports traces until it is stopped.
pub struct TraceExporter {
    bus: Bus,
    options: TraceOptions,
    receiver: OtlpReceiver,
    claim: PositionClaim,
    shutdown: CancellationToken,
}

impl TraceExporter {
    /// Creates an exporter. It takes over if nobody writes the position for `takeover`.
    #[must_use]
    pub fn new(
        bus: Bus,
        settings: ExportSettings,
        receiver: OtlpReceiver,
        takeover: Duration,
        shutdown: CancellationToken,
    ) -> Self {
        let claim = PositionClaim::new(bus.clone(), NAME, takeover, shutdown.clone());
        Self { bus, options: settings.traces.options, receiver, claim, shutdown }
    }

    /// Exports until the process stops. Faults of the cluster are waited out.
    pub async fn run(self) {
        loop {
            let first = || LogFollower::first_position(&self.bus).boxed();
            let stop = match self.claim.take_over(first).await {
                Ok(held) => Box::pin(self.export(held)).await,
                Err(stop) => stop,
            };
            match stop {
                FollowerStop::Shutdown => return,
                FollowerStop::Replaced => info!("another gateway exports the traces now"),
                FollowerStop::Fault(fault) => warn!(%fault, "exporting traces failed; retrying"),
            }
            if self.claim.sleep(POLL_INTERVAL).await.is_err() {
                return;
            }
        }
    }

    /// Exports from a position on.
    async fn export(&self, mut held: HeldPosition<'_>) -> FollowerStop {
        info!(receiver = self.receiver.url(), "exporting traces");
        let stop = match Box::pin(self.follow(&mut held)).await {
            Ok(never) => match never {},
            Err(stop) => stop,
        };
        match &stop {
            FollowerStop::Shutdown => held.release().await,
            FollowerStop::Replaced | FollowerStop::Fault(_) => {}
        }
        stop
    }

    async fn follow(&self, held: &mut HeldPosition<'_>) -> Result<Infallible, FollowerStop> {
        let mut follower = LogFollower::open(&self.bus, self.options.clone(), held.position()).await?;
        loop {
            follower.read_summaries().await?;
            while follower.read_lanes(BATCH).await? {
                self.send(held, &mut follower).await?;
                held.write(follower.position()).await?;
            }
            while follower.read_archive(BATCH).await? {
                self.send(held, &mut follower).await?;
            }
            self.send(held, &mut follower).await?;
            held.write(follower.position()).await?;
            self.claim.sleep(POLL_INTERVAL).await?;
        }
    }

    /// Sends all spans that the follower has. It is repeated until the receiver has accepted them.
    async fn send(
        &self,
        held: &mut HeldPosition<'_>,
        follower: &mut LogFollower,
    ) -> Result<(), FollowerStop> {
        let spans = follower.take_spans();
        for batch in spans.chunks(BATCH) {
            let mut backoff = FIRST_BACKOFF;
            loop {
                let sending = self.receiver.send(batch);
                let Some(outcome) = self.shutdown.run_until_cancelled(sending).await else {
                    return Err(FollowerStop::Shutdown);
                };
                match outcome {
                    SendOutcome::Accepted => break,
                    SendOutcome::Rejected(reason) => {
                        warn!(spans = batch.len(), %reason, "the receiver rejects spans; they are dropped");
                        break;
                    }
                    SendOutcome::Unavailable { reason, retry_after } => {
                        let pause = retry_after.unwrap_or(backoff).min(MAX_BACKOFF);
                        warn!(%reason, ?pause, "the receiver of traces is away; retrying");
                        held.pause(pause).await?;
                        backoff = (backoff * 2).min(MAX_BACKOFF);
                    }
                }
            }
        }
        Ok(())
    }
}
