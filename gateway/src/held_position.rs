//! The position of a follower of all lanes, which one gateway at a time holds.
//!
//! The gateway that holds a position writes it again and again, also if it has not changed. Whoever finds it unchanged for long
//! enough takes it over. Each write expects the one before, so that two holders notice each other at once.

use std::time::Duration;

use futures::future::BoxFuture;
use millrace_runtime::store::keys::{ExportPosition, read_position, write_position};
use millrace_runtime::{Bus, Fault};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The interval at which a position that another gateway holds is read.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The longest pause between two writes of a holder.
const RENEWAL: Duration = Duration::from_secs(3);

/// The reason why a follower has stopped.
#[derive(Debug)]
pub enum FollowerStop {
    Shutdown,
    /// Another process holds the position.
    Replaced,
    /// The cluster does not respond.
    Fault(Fault),
}

impl From<Fault> for FollowerStop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// A position that this process may hold.
pub struct PositionClaim {
    bus: Bus,
    name: &'static str,
    /// The name under which this process writes the position.
    id: String,
    takeover: Duration,
    shutdown: CancellationToken,
}

/// A position that this process holds.
pub struct HeldPosition<'a> {
    claim: &'a PositionClaim,
    /// The position as it was written last.
    stored: ExportPosition,
    sequence: u64,
    written: Instant,
}

impl PositionClaim {
    /// Creates a claim to the position with this name. It is taken over if nobody writes it for `takeover`.
    #[must_use]
    pub fn new(bus: Bus, name: &'static str, takeover: Duration, shutdown: CancellationToken) -> Self {
        Self { bus, name, id: uuid::Uuid::new_v4().to_string(), takeover, shutdown }
    }

    /// Waits until no other process holds the position, and takes it over. The first holder starts from `first`.
    pub async fn take_over<'a>(
        &'a self,
        first: impl Fn() -> BoxFuture<'a, Result<ExportPosition, Fault>> + Send,
    ) -> Result<HeldPosition<'a>, FollowerStop> {
        let mut seen: Option<(u64, Instant)> = None;
        loop {
            let (stored, last) = match read_position(&self.bus, self.name).await? {
                Some(entry) => (entry.value, entry.sequence),
                None => (first().await?, 0),
            };
            let since = match seen {
                Some((sequence, since)) if sequence == last => since,
                Some(_) | None => Instant::now(),
            };
            seen = Some((last, since));
            if stored.exporter.is_empty() || since.elapsed() >= self.takeover {
                let stored = ExportPosition { exporter: self.id.clone(), ..stored };
                if let Some(sequence) = write_position(&self.bus, self.name, &stored, last).await? {
                    return Ok(HeldPosition { claim: self, stored, sequence, written: Instant::now() });
                }
            }
            self.sleep(POLL_INTERVAL.min(self.takeover)).await?;
        }
    }

    /// Waits.
    pub async fn sleep(&self, time: Duration) -> Result<(), FollowerStop> {
        match self.shutdown.run_until_cancelled(tokio::time::sleep(time)).await {
            Some(()) => Ok(()),
            None => Err(FollowerStop::Shutdown),
        }
    }
}

impl HeldPosition<'_> {
    /// The position as it was written last.
    pub fn position(&self) -> &ExportPosition {
        &self.stored
    }

    /// Writes a position if it has changed, or if the last write was long ago.
    pub async fn write(&mut self, position: ExportPosition) -> Result<(), FollowerStop> {
        let position = ExportPosition { exporter: self.claim.id.clone(), ..position };
        if position == self.stored && self.written.elapsed() < RENEWAL {
            return Ok(());
        }
        self.replace(position).await
    }

    /// Shows that this process still holds the position.
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub async fn renew(&mut self) -> Result<(), FollowerStop> {
        let position = self.stored.clone();
        self.write(position).await
    }

    /// Waits, and shows meanwhile that this process still holds the position.
    ///
    /// # Errors
    /// The process stops, or as for [`Self::write`].
    pub async fn pause(&mut self, time: Duration) -> Result<(), FollowerStop> {
        let end = Instant::now() + time;
        loop {
            let rest = end.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Ok(());
            }
            self.claim.sleep(rest.min(RENEWAL)).await?;
            self.renew().await?;
        }
    }

    /// Gives the position back, so that the next holder does not have to wait. If this fails, it waits.
    pub async fn release(mut self) {
        let position = ExportPosition { exporter: String::new(), ..self.stored.clone() };
        let _ = self.replace(position).await;
    }

    async fn replace(&mut self, position: ExportPosition) -> Result<(), FollowerStop> {
        let PositionClaim { bus, name, .. } = self.claim;
        let sequence = write_position(bus, name, &position, self.sequence).await?;
        (self.stored, self.sequence) = (position, sequence.ok_or(FollowerStop::Replaced)?);
        self.written = Instant::now();
        Ok(())
    }
}
