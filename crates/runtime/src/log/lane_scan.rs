//! A scan of everything that a lane holds, oldest first, with which its new owner starts. A long lane is read by a
//! consumer, which is several times faster than direct gets. But a consumer does not report the end if pending messages
//! were removed meanwhile, so a scan always ends with direct gets.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::ids::Lane;
use tracing::debug;

use crate::Fault;
use crate::log::lane_tail::LaneTail;
use crate::nats::bus::Bus;
use crate::nats::direct_get::{ALL_SUBJECTS, PagedReader};
use crate::nats::error::fault_from_client_error;
use crate::nats::record::StreamRecord;
use crate::nats::topology::lane_stream;

/// The minimum number of messages for which a consumer is created.
const MIN_FOR_CONSUMER: u64 = 5_000;
/// The timeout of the consumer, after which the rest is read with direct gets.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(1);

/// A scan of all messages of a lane.
pub struct LaneScan {
    bus: Bus,
    lane: Lane,
    source: MessageSource,
}

/// The source of the next messages.
enum MessageSource {
    NotStarted,
    Consumer(Box<LaneTail>),
    DirectGets(Box<PagedReader>),
}

impl LaneScan {
    pub(crate) fn new(bus: &Bus, lane: Lane) -> Self {
        Self { bus: bus.clone(), lane, source: MessageSource::NotStarted }
    }

    /// Returns the next messages, or none after the last.
    pub fn next_records<'a>(&'a mut self) -> BoxFuture<'a, Result<Vec<StreamRecord>, Fault>> {
        async move {
            if let MessageSource::NotStarted = self.source {
                self.source = self.choose_source().await?;
            }
            if let MessageSource::Consumer(tail) = &mut self.source {
                // Messages that are lost when a read times out are read again: the position is before them.
                let records = tokio::time::timeout(CONSUMER_TIMEOUT, tail.next_records()).await.unwrap_or_default();
                let (position, is_over) = (tail.next_sequence(), tail.pending_message_count() == 0);
                if is_over || records.is_empty() {
                    debug!(lane = %self.lane, position, is_over, "reading the rest of the lane with direct gets");
                    self.source = self.direct_get_source(position);
                }
                if !records.is_empty() {
                    return Ok(records);
                }
            }
            match &mut self.source {
                MessageSource::DirectGets(pages) => pages.next_page().await,
                MessageSource::NotStarted | MessageSource::Consumer(_) => Ok(Vec::new()),
            }
        }
        .boxed()
    }

    async fn choose_source(&self) -> Result<MessageSource, Fault> {
        let name = lane_stream(self.lane);
        let stream = self
            .bus
            .request_context()
            .get_stream(&name)
            .await
            .map_err(|error| fault_from_client_error(&format!("reading {name}"), error))?;
        if stream.cached_info().state.messages < MIN_FOR_CONSUMER {
            return Ok(self.direct_get_source(1));
        }
        Ok(MessageSource::Consumer(Box::new(LaneTail::follow_lane(&self.bus, self.lane, 1))))
    }

    fn direct_get_source(&self, from: u64) -> MessageSource {
        MessageSource::DirectGets(Box::new(PagedReader::new(
            self.bus.client(),
            lane_stream(self.lane),
            ALL_SUBJECTS.into(),
            from,
        )))
    }
}
