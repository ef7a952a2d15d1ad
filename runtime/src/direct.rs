//! Batched direct reads of a stream (ADR-31), by hand: the client library has no call for them. On a replicated
//! stream they may be answered by a copy that lags, which every caller must bear: appends are checked by the leader.

use futures::FutureExt;
use futures::future::BoxFuture;
use std::time::Duration;

use async_nats::{Client, Message};
use futures::StreamExt;

use crate::Fault;
use crate::record::{Record, encoding, is_stray};

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
    /// How many messages one request asks for.
    size: usize,
    is_over: bool,
}

impl Pages {
    /// A read from sequence `from` on.
    #[must_use]
    pub fn new(client: &Client, stream: String, filter: String, from: u64) -> Self {
        Self { client: client.clone(), stream, filter, next: from.max(1), size: PAGE, is_over: false }
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
                let answer = self.page(&mut records).await;
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

    /// Reads one page into `records`; says whether it was the last.
    async fn page(&self, records: &mut Vec<Record>) -> Result<bool, Fault> {
        let Self { client, stream, filter, next, size, .. } = self;
        let what = format!("reading {filter} from {stream}");
        let request = serde_json::json!({ "batch": size, "seq": next, "next_by_subj": filter });
        match ask(client, stream, &request, &what, records).await? {
            Answer::Last => Ok(true),
            Answer::More { .. } => Ok(false),
            Answer::TooMany => Err(Fault::unavailable(what, "too many messages at once")),
        }
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

/// The last message of each subject of `stream` that matches one of `filters`, oldest first; `None` if these are more
/// than a server tells at once (1,024).
///
/// # Errors
/// The server does not answer.
pub fn last_of_each<'a>(
    client: &'a Client,
    stream: &'a str,
    filters: &'a [String],
) -> BoxFuture<'a, Result<Option<Vec<Record>>, Fault>> {
    async move {
        let what = format!("reading the last messages of {stream}");
        let (mut records, mut up_to, mut tries) = (Vec::new(), None, 0);
        loop {
            let next = records.last().map_or(1, |last: &Record| last.sequence + 1);
            let mut request = serde_json::json!({ "multi_last": filters, "seq": next });
            if let Some(up_to) = up_to {
                request["up_to_seq"] = serde_json::Value::from(up_to);
            }
            match ask(client, stream, &request, &what, &mut records).await {
                Ok(Answer::Last) => return Ok(Some(records)),
                Ok(Answer::More { up_to: so_far }) => up_to = up_to.or(so_far),
                Ok(Answer::TooMany) => return Ok(None),
                Err(fault) if tries < TRIES => {
                    tries += 1;
                    tracing::debug!(%fault, tries, "reading again");
                    // What is the last of a subject may change between two tries, unless the first said up to where.
                    if up_to.is_none() {
                        records.clear();
                    }
                    tokio::time::sleep(crate::fault::pause(tries)).await;
                }
                Err(fault) => return Err(fault),
            }
        }
    }
    .boxed()
}

/// The message of `stream` with this sequence; `None` if it is not there any more.
///
/// # Errors
/// The server does not answer.
pub async fn at(client: &Client, stream: &str, sequence: u64) -> Result<Option<Record>, Fault> {
    let mut pages = Pages::new(client, stream.into(), ">".into(), sequence);
    pages.size = 1;
    let next = pages.next().await?.into_iter().next();
    Ok(next.filter(|record| record.sequence == sequence))
}

/// How an answer ended.
enum Answer {
    /// There is no more.
    Last,
    /// There is more, up to this sequence.
    More { up_to: Option<u64> },
    /// There is more than can be asked for in this way.
    TooMany,
}

/// Sends one request and puts what comes into `records`.
async fn ask(
    client: &Client,
    stream: &str,
    request: &serde_json::Value,
    what: &str,
    records: &mut Vec<Record>,
) -> Result<Answer, Fault> {
    let inbox = client.new_inbox();
    let mut answers =
        client.subscribe(inbox.clone()).await.map_err(|error| Fault::unavailable(what, error))?;
    client
        .publish_with_reply(format!("$JS.API.DIRECT.GET.{stream}"), inbox, request.to_string().into())
        .await
        .map_err(|error| Fault::unavailable(what, error))?;
    loop {
        let message = tokio::time::timeout(PATIENCE, answers.next())
            .await
            .map_err(|_| Fault::unavailable(what, "it stopped in mid-answer"))?
            .ok_or_else(|| Fault::unavailable(what, "the connection closed"))?;
        match message.status.map(|status| status.as_u16()) {
            None => records.push(record(message).ok_or_else(|| Fault::unavailable(what, "no sequence"))?),
            Some(404) => return Ok(Answer::Last),
            Some(204) if header(&message, "Nats-Num-Pending").is_none_or(|left| left == "0") => {
                return Ok(Answer::Last);
            }
            Some(204) => {
                let up_to = header(&message, "Nats-UpTo-Sequence").and_then(|text| text.parse().ok());
                return Ok(Answer::More { up_to });
            }
            Some(413) => return Ok(Answer::TooMany),
            Some(status) => {
                let why = message.description.unwrap_or_else(|| status.to_string());
                return Err(Fault::unavailable(what, why));
            }
        }
    }
}

/// What the server says of a message. Its word is the last: whoever wrote the message may have written the same header.
fn header<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    Some(message.headers.as_ref()?.get_last(name)?.as_str())
}

fn record(message: Message) -> Option<Record> {
    let sequence = header(&message, "Nats-Sequence")?.parse().ok()?;
    let subject = header(&message, "Nats-Subject")?.into();
    let time = header(&message, "Nats-Time-Stamp")?.parse().ok()?;
    let is_deletion =
        header(&message, "KV-Operation").is_some() || header(&message, "Nats-Marker-Reason").is_some();
    let (encoding, is_stray) = (encoding(message.headers.as_ref()), is_stray(message.headers.as_ref(), 1));
    Some(Record { sequence, subject, payload: message.payload, encoding, time, is_deletion, is_stray })
}
