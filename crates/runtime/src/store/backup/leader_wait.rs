//! Reading all messages of a stream that match a filter, as its leader knows them. A lagging replica may respond to
//! direct gets; this read continues until it has seen the last message that the leader had at its start. It writes
//! nothing.

use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::time::Instant;

use crate::Fault;
use crate::nats::direct_get::PagedReader;
use crate::nats::error::fault_from_client_error;
use crate::nats::record::StreamRecord;

/// The maximum lag of a replica.
const MAX_LAG: Duration = Duration::from_secs(60);
/// The interval at which a lagging replica is read again.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A paged read of all messages whose subject matches a filter, from a sequence on, oldest first.
pub struct LeaderReader {
    context: Context,
    stream: String,
    filter: String,
    /// The last sequence that the leader had at the start.
    last: u64,
    next: u64,
    pages: PagedReader,
    last_progress: Instant,
}

impl LeaderReader {
    pub async fn start_reading(
        context: &Context,
        stream: &str,
        filter: &str,
        from: u64,
    ) -> Result<Self, Fault> {
        let last = read_last_sequence(context, stream, filter).await?;
        let pages = PagedReader::new(&context.client(), stream.into(), filter.into(), from);
        let (stream, filter) = (stream.to_owned(), filter.to_owned());
        let last_progress = Instant::now();
        Ok(Self { context: context.clone(), stream, filter, last, next: from, pages, last_progress })
    }

    /// Returns the next messages, or none after the last.
    pub fn next_records(&mut self) -> BoxFuture<'_, Result<Vec<StreamRecord>, Fault>> {
        async move {
            loop {
                let records = self.pages.next_page().await?;
                if let Some(last) = records.last() {
                    self.last_progress = Instant::now();
                    self.next = last.sequence + 1;
                    return Ok(records);
                }
                if self.next > self.last {
                    return Ok(records);
                }
                // The last message may have been removed meanwhile.
                self.last =
                    self.last.min(read_last_sequence(&self.context, &self.stream, &self.filter).await?);
                if self.last_progress.elapsed() > MAX_LAG {
                    let why =
                        format!("the replicas lag: read up to sequence {} of {}", self.next - 1, self.last);
                    return Err(Fault::unavailable(format!("reading stream {}", self.stream), why));
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
                let client = self.context.client();
                self.pages = PagedReader::new(&client, self.stream.clone(), self.filter.clone(), self.next);
            }
        }
        .boxed()
    }
}

/// Returns the sequence of the last matching message, as the leader knows it; 0 if there is none.
async fn read_last_sequence(context: &Context, stream: &str, filter: &str) -> Result<u64, Fault> {
    let what = || format!("reading stream {stream}");
    let stream =
        context.get_stream_no_info(stream).await.map_err(|error| fault_from_client_error(&what(), error))?;
    match stream.get_last_raw_message_by_subject(filter).await {
        Ok(message) => Ok(message.sequence),
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(0),
        Err(error) => Err(fault_from_client_error(&what(), error)),
    }
}
