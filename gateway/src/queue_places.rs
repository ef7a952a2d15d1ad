//! The places of waiting work in the queues, as lists of runs and tasks show them. Requests within a second share them.

use std::time::{Duration, Instant};

use millrace_runtime::work::queue_place::{PlacesInQueue, WaitingWork, read_places};
use millrace_runtime::{Bus, Fault};
use tokio::sync::Mutex;

/// The time for which places are shared. Open dashboards read their lists at every change of a run.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The places that were read last. Held during a read, so that requests that arrive meanwhile share it.
#[derive(Default)]
pub struct CachedPlaces(Mutex<Option<(Instant, PlacesInQueue)>>);

impl CachedPlaces {
    /// Returns the places of waiting work, and of other work.
    pub async fn read(&self, bus: &Bus, mut waiting: Vec<WaitingWork>) -> Result<PlacesInQueue, Fault> {
        if waiting.is_empty() {
            return Ok(PlacesInQueue::new());
        }
        let mut cached = self.0.lock().await;
        let kept = cached.take().filter(|(at, _)| at.elapsed() < MAX_AGE);
        let (at, mut places) = kept.unwrap_or_else(|| (Instant::now(), PlacesInQueue::new()));
        waiting.retain(|one| !places.contains_key(one));
        places.extend(read_places(bus, waiting).await?);
        *cached = Some((at, places.clone()));
        Ok(places)
    }
}
