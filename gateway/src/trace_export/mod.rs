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

mod follower;
mod receiver;
mod settings;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]
mod tests;

use std::time::Duration;

use millrace_runtime::store::export_position::{
    ExportPosition, StoredPosition, read_position, write_position,
};
use millrace_runtime::{Bus, Fault};
use millrace_traces::TraceOptions;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use follower::LogFollower;
pub use receiver::OtlpReceiver;
use receiver::SendOutcome;
pub use settings::ExportSettings;

/// The name of the exporter's position.
const NAME: &str = "traces";
/// The interval at which the log is read.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The exporter writes its position at least this often, as a sign that it lives.
const RENEWAL: Duration = Duration::from_secs(5);
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
    shutdown: CancellationToken,
    /// The name under which this process writes the position.
    id: String,
    takeover: Duration,
}

/// The reason why an exporter has stopped.
#[derive(Debug)]
enum Stop {
    /// The process stops.
    Shutdown,
    /// Another process has taken over.
    Replaced,
    /// The cluster does not respond.
    Fault(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
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
        let id = uuid::Uuid::new_v4().to_string();
        Self { bus, options: settings.traces.options, receiver, shutdown, id, takeover }
    }

    /// Exports until the process stops. Faults of the cluster are waited out.
    pub async fn run(self) {
        loop {
            let stop = match self.take_over().await {
                Ok(stored) => Box::pin(self.export(stored)).await,
                Err(stop) => stop,
            };
            match stop {
                Stop::Shutdown => return,
                Stop::Replaced => info!("another gateway exports the traces now"),
                Stop::Fault(fault) => warn!(%fault, "exporting traces failed; retrying"),
            }
            if self.sleep(POLL_INTERVAL).await.is_err() {
                return;
            }
        }
    }

    /// Waits until there is no other exporter, and takes its position over.
    async fn take_over(&self) -> Result<StoredPosition, Stop> {
        let mut seen: Option<(u64, Instant)> = None;
        loop {
            let stored = match read_position(&self.bus, NAME).await? {
                Some(stored) => stored,
                None => {
                    StoredPosition { position: LogFollower::first_position(&self.bus).await?, revision: 0 }
                }
            };
            let since = match seen {
                Some((revision, since)) if revision == stored.revision => since,
                Some(_) | None => Instant::now(),
            };
            seen = Some((stored.revision, since));
            if stored.position.exporter.is_empty() || since.elapsed() >= self.takeover {
                let position = ExportPosition { exporter: self.id.clone(), ..stored.position };
                if let Some(revision) = write_position(&self.bus, NAME, &position, stored.revision).await? {
                    info!(receiver = self.receiver.url(), "exporting traces");
                    return Ok(StoredPosition { position, revision });
                }
            }
            self.sleep(POLL_INTERVAL.min(self.takeover)).await?;
        }
    }

    /// Exports from a position on.
    async fn export(&self, stored: StoredPosition) -> Stop {
        let mut export = Export { exporter: self, stored, written: Instant::now() };
        match Box::pin(export.follow()).await {
            Stop::Shutdown => {
                // The next exporter does not have to wait. If this fails, it waits.
                let _ = export.release().await;
                Stop::Shutdown
            }
            stop @ (Stop::Replaced | Stop::Fault(_)) => stop,
        }
    }

    async fn sleep(&self, time: Duration) -> Result<(), Stop> {
        match self.shutdown.run_until_cancelled(tokio::time::sleep(time)).await {
            Some(()) => Ok(()),
            None => Err(Stop::Shutdown),
        }
    }
}

/// An export in progress.
struct Export<'a> {
    exporter: &'a TraceExporter,
    /// The position as it was written last.
    stored: StoredPosition,
    written: Instant,
}

impl Export<'_> {
    async fn follow(&mut self) -> Stop {
        match self.follow_until_stopped().await {
            Ok(never) => match never {},
            Err(stop) => stop,
        }
    }

    async fn follow_until_stopped(&mut self) -> Result<std::convert::Infallible, Stop> {
        let TraceExporter { bus, options, .. } = self.exporter;
        let position = &self.stored.position;
        let mut follower = LogFollower::open(bus, options.clone(), position).await?;
        loop {
            follower.read_summaries().await?;
            while follower.read_lanes(BATCH).await? {
                self.send(&mut follower).await?;
                self.write(&follower.position(&self.exporter.id)).await?;
            }
            while follower.read_archive(BATCH).await? {
                self.send(&mut follower).await?;
            }
            self.send(&mut follower).await?;
            self.write(&follower.position(&self.exporter.id)).await?;
            self.exporter.sleep(POLL_INTERVAL).await?;
        }
    }

    /// Sends all spans that the follower has. It is repeated until the receiver has accepted them.
    async fn send(&mut self, follower: &mut LogFollower) -> Result<(), Stop> {
        let spans = follower.take_spans();
        for batch in spans.chunks(BATCH) {
            let mut backoff = FIRST_BACKOFF;
            loop {
                let sending = self.exporter.receiver.send(batch);
                let Some(outcome) = self.exporter.shutdown.run_until_cancelled(sending).await else {
                    return Err(Stop::Shutdown);
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
                        self.pause(pause).await?;
                        backoff = (backoff * 2).min(MAX_BACKOFF);
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits, and shows meanwhile that this exporter lives.
    async fn pause(&mut self, time: Duration) -> Result<(), Stop> {
        let end = Instant::now() + time;
        loop {
            let rest = end.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Ok(());
            }
            self.exporter.sleep(rest.min(RENEWAL)).await?;
            let position = self.stored.position.clone();
            self.write(&position).await?;
        }
    }

    /// Writes a position if it has changed, or if the last write was long ago.
    async fn write(&mut self, position: &ExportPosition) -> Result<(), Stop> {
        if *position == self.stored.position && self.written.elapsed() < RENEWAL {
            return Ok(());
        }
        let revision = write_position(&self.exporter.bus, NAME, position, self.stored.revision).await?;
        let revision = revision.ok_or(Stop::Replaced)?;
        self.stored = StoredPosition { position: position.clone(), revision };
        self.written = Instant::now();
        Ok(())
    }

    async fn release(&mut self) -> Result<(), Stop> {
        let position = ExportPosition { exporter: String::new(), ..self.stored.position.clone() };
        self.write(&position).await
    }
}
