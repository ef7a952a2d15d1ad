//! Reading all that a stream has of some subjects, as its leader knows it. Direct reads may be answered by a copy that
//! lags; here they are gone on with until what the leader had at the beginning was seen. Nothing is written.

use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::time::Instant;

use crate::Fault;
use crate::direct::Pages;
use crate::record::Record;
use crate::topology::fault;

/// How long a copy may lag.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a copy that lags is asked again.
const AGAIN: Duration = Duration::from_millis(100);

/// A read of all messages whose subject matches a filter, from a sequence on, oldest first, page by page.
pub struct Leading {
    context: Context,
    stream: String,
    filter: String,
    /// What the leader had at the beginning.
    last: u64,
    next: u64,
    pages: Pages,
    since: Instant,
}

impl Leading {
    /// Begins to read.
    pub async fn begin(context: &Context, stream: &str, filter: &str, from: u64) -> Result<Self, Fault> {
        let last = last_of(context, stream, filter).await?;
        let pages = Pages::new(&context.client(), stream.into(), filter.into(), from);
        let (stream, filter) = (stream.to_owned(), filter.to_owned());
        let since = Instant::now();
        Ok(Self { context: context.clone(), stream, filter, last, next: from, pages, since })
    }

    /// The next messages; none when there are no more.
    pub fn next(&mut self) -> BoxFuture<'_, Result<Vec<Record>, Fault>> {
        async move {
            loop {
                let records = self.pages.next().await?;
                if let Some(last) = records.last() {
                    self.since = Instant::now();
                    self.next = last.sequence + 1;
                    return Ok(records);
                }
                if self.next > self.last {
                    return Ok(records);
                }
                // What was the last may have been removed meanwhile.
                self.last = self.last.min(last_of(&self.context, &self.stream, &self.filter).await?);
                if self.since.elapsed() > PATIENCE {
                    let why = format!("the copies lag: {} of {} were seen", self.next - 1, self.last);
                    return Err(Fault::unavailable(format!("reading stream {}", self.stream), why));
                }
                tokio::time::sleep(AGAIN).await;
                let client = self.context.client();
                self.pages = Pages::new(&client, self.stream.clone(), self.filter.clone(), self.next);
            }
        }
        .boxed()
    }
}

/// The sequence of the last message that matches, as the leader has it; 0 if there is none.
async fn last_of(context: &Context, stream: &str, filter: &str) -> Result<u64, Fault> {
    let what = || format!("reading stream {stream}");
    let found = context.get_stream_no_info(stream).await.map_err(|error| fault(&what(), &error))?;
    match found.get_last_raw_message_by_subject(filter).await {
        Ok(message) => Ok(message.sequence),
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(0),
        Err(error) => Err(fault(&what(), &error)),
    }
}
