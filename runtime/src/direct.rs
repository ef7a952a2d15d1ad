//! Batched direct reads of a stream (ADR-31), by hand: the client library has no call for them. On a replicated
//! stream they may be answered by a copy that lags, which every caller must bear: appends are checked by the leader.

use futures::FutureExt;
use futures::future::BoxFuture;
use std::time::Duration;

use async_nats::{Client, Message};
use futures::StreamExt;

use crate::Fault;
use crate::bus::{Record, encoding};

/// How long the next message of an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(3);
/// How many messages one request asks for.
const PAGE: usize = 5_000;
/// How often a request that got no answer is sent again.
const TRIES: u32 = 8;

/// A read of all messages of a stream whose subject matches a filter, oldest first, page by page.
pub struct Pages {
    client: Client,
    stream: String,
    filter: String,
    next: u64,
    is_over: bool,
}

impl Pages {
    /// A read from sequence `from` on.
    #[must_use]
    pub fn new(client: &Client, stream: String, filter: String, from: u64) -> Self {
        Self { client: client.clone(), stream, filter, next: from.max(1), is_over: false }
    }

    /// The next messages; none when there are no more.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn next<'a>(&'a mut self) -> BoxFuture<'a, Result<Vec<Record>, Fault>> {
        async move {
            let mut tries = 0;
            while !self.is_over {
                let mut records = Vec::new();
                let answer = page(&self.client, &self.stream, &self.filter, self.next, &mut records).await;
                // Whatever arrived before a break is kept: the next page begins behind it.
                self.next = records.last().map_or(self.next, |last: &Record| last.sequence + 1);
                match answer {
                    Ok(is_last) => self.is_over = is_last,
                    Err(fault) if tries < TRIES => {
                        tries += 1;
                        tracing::debug!(%fault, tries, "reading again");
                        tokio::time::sleep(crate::fault::pause(tries)).await;
                    }
                    Err(fault) => return Err(fault),
                }
                if !records.is_empty() {
                    return Ok(records);
                }
            }
            Ok(Vec::new())
        }
        .boxed()
    }
}

/// All messages of `stream` whose subject matches `filter`, from sequence `from` on, oldest first.
///
/// # Errors
/// The server does not answer.
pub fn read<'a>(
    client: &'a Client,
    stream: &'a str,
    filter: &'a str,
    from: u64,
) -> BoxFuture<'a, Result<Vec<Record>, Fault>> {
    async move {
        let mut pages = Pages::new(client, stream.into(), filter.into(), from);
        let mut all = Vec::new();
        loop {
            let records = pages.next().await?;
            if records.is_empty() {
                return Ok(all);
            }
            all.extend(records);
        }
    }
    .boxed()
}

/// Reads one page into `records`; says whether it was the last.
async fn page(
    client: &Client,
    stream: &str,
    filter: &str,
    from: u64,
    records: &mut Vec<Record>,
) -> Result<bool, Fault> {
    let what = || format!("reading {filter} from {stream}");
    let request = serde_json::json!({ "batch": PAGE, "seq": from, "next_by_subj": filter }).to_string();
    let inbox = client.new_inbox();
    let mut answers =
        client.subscribe(inbox.clone()).await.map_err(|error| Fault::unavailable(what(), error))?;
    client
        .publish_with_reply(format!("$JS.API.DIRECT.GET.{stream}"), inbox, request.into())
        .await
        .map_err(|error| Fault::unavailable(what(), error))?;
    loop {
        let message = tokio::time::timeout(PATIENCE, answers.next())
            .await
            .map_err(|_| Fault::unavailable(what(), "it stopped in mid-answer"))?
            .ok_or_else(|| Fault::unavailable(what(), "the connection closed"))?;
        match message.status.map(|status| status.as_u16()) {
            None => records.push(record(message).ok_or_else(|| Fault::unavailable(what(), "no sequence"))?),
            Some(404) => return Ok(true),
            Some(204) => return Ok(header(&message, "Nats-Num-Pending").is_none_or(|left| left == "0")),
            Some(status) => {
                let why = message.description.unwrap_or_else(|| status.to_string());
                return Err(Fault::unavailable(what(), why));
            }
        }
    }
}

fn header<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    Some(message.headers.as_ref()?.get(name)?.as_str())
}

fn record(message: Message) -> Option<Record> {
    let sequence = header(&message, "Nats-Sequence")?.parse().ok()?;
    let subject = header(&message, "Nats-Subject")?.into();
    let time = header(&message, "Nats-Time-Stamp")?.parse().ok()?;
    let is_deletion =
        header(&message, "KV-Operation").is_some() || header(&message, "Nats-Marker-Reason").is_some();
    let encoding = encoding(message.headers.as_ref());
    Some(Record { sequence, subject, payload: message.payload, encoding, time, is_deletion })
}
