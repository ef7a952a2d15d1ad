//! All that a lane holds, oldest first, for whoever begins with it. A long lane is read by a consumer, which is several
//! times as fast as direct reads; but a consumer does not say when the rest of what it promised was removed meanwhile,
//! so that direct reads always have the last word.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::ids::Lane;
use tracing::debug;

use crate::Fault;
use crate::bus::Bus;
use crate::direct::Pages;
use crate::record::Record;
use crate::tail::Tail;
use crate::topology::{fault, lane_stream};

/// From this many messages on a consumer is worth making.
const LONG: u64 = 5_000;
/// How long the consumer may be silent before the rest is read directly.
const SILENCE: Duration = Duration::from_secs(1);
/// Every message of the lane: the server passes over them fastest where it need not look at their subjects.
const EVERYTHING: &str = ">";

/// A read of all that a lane holds.
pub struct Backlog {
    bus: Bus,
    lane: Lane,
    reading: Reading,
}

enum Reading {
    NotBegun,
    Fast(Box<Tail>),
    Directly(Box<Pages>),
}

impl Backlog {
    pub(crate) fn new(bus: &Bus, lane: Lane) -> Self {
        Self { bus: bus.clone(), lane, reading: Reading::NotBegun }
    }

    /// The next messages; none when there are no more.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn next<'a>(&'a mut self) -> BoxFuture<'a, Result<Vec<Record>, Fault>> {
        async move {
            if let Reading::NotBegun = self.reading {
                self.reading = self.begin().await?;
            }
            if let Reading::Fast(tail) = &mut self.reading {
                // What is lost with a read that is given up is read again: the position stands before it.
                let records = tokio::time::timeout(SILENCE, tail.next()).await.unwrap_or_default();
                let (position, is_over) = (tail.position(), tail.pending() == 0);
                if is_over || records.is_empty() {
                    debug!(lane = %self.lane, position, is_over, "reading the rest of the lane directly");
                    self.reading = self.directly(position);
                }
                if !records.is_empty() {
                    return Ok(records);
                }
            }
            match &mut self.reading {
                Reading::Directly(pages) => pages.next().await,
                Reading::NotBegun | Reading::Fast(_) => Ok(Vec::new()),
            }
        }
        .boxed()
    }

    async fn begin(&self) -> Result<Reading, Fault> {
        let name = lane_stream(self.lane);
        let stream = self
            .bus
            .control()
            .get_stream(&name)
            .await
            .map_err(|error| fault(&format!("reading {name}"), &error))?;
        if stream.cached_info().state.messages < LONG {
            return Ok(self.directly(1));
        }
        Ok(Reading::Fast(Box::new(Tail::lane(&self.bus, self.lane, 1))))
    }

    fn directly(&self, from: u64) -> Reading {
        Reading::Directly(Box::new(Pages::new(
            self.bus.client(),
            lane_stream(self.lane),
            EVERYTHING.into(),
            from,
        )))
    }
}
