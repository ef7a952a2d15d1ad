//! Batched direct gets of a stream (ADR-31), which the client library does not support. On a replicated stream, a
//! replica that lags behind its leader may respond, so every caller must tolerate missing messages. Appends are safe:
//! the leader checks them.
//!
//! Reads a stream again and again, each time what was added since.

use std::time::Duration;

use async_nats::{Client, Message};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};

use crate::Fault;
use crate::nats::record::{DeliveryPath, Provenance, StreamRecord, encoding_from_headers};

/// The filter of a read of a whole stream. With any other wildcard, or if messages between the first and the last were removed, a
/// server looks at all subjects of the stream for each page, to count the messages that remain.
pub const ALL_SUBJECTS: &str = ">";

/// The timeout of the next message of a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);
/// The number of messages per request.
const PAGE: usize = 5_000;
/// The number of messages that [`PagedReader::with_single_reads`] reads one by one. On a stream of a million subjects a page costs a
/// server as much time as 250 of them, on a small stream about as much as one.
const SINGLE_READS: usize = 16;
/// The maximum number of retries of a request without a response.
const MAX_RETRIES: u32 = 8;

/// A paged read of the messages of a stream whose subject matches a filter, oldest first.
pub struct PagedReader {
    client: Client,
    stream: String,
    filter: String,
    next: u64,
    /// The number of messages per request.
    size: usize,
    /// The number of messages of the first request; 0 is that of all others.
    expected: usize,
    /// The number of bytes after which the server ends a response; 0 is unlimited.
    max_bytes: usize,
    /// `true` if the next messages are read one by one.
    reads_single: bool,
    is_over: bool,
}

impl PagedReader {
    /// Creates a read that starts at sequence `from`.
    #[must_use]
    pub fn new(client: &Client, stream: String, filter: String, from: u64) -> Self {
        Self {
            client: client.clone(),
            stream,
            filter,
            next: from.max(1),
            size: PAGE,
            expected: 0,
            max_bytes: 0,
            reads_single: false,
            is_over: false,
        }
    }

    /// Reads about this number of bytes per request at most.
    #[must_use]
    pub fn with_max_bytes(self, max_bytes: usize) -> Self {
        Self { max_bytes, ..self }
    }

    /// Reads this number of messages per request.
    #[must_use]
    pub fn with_page_size(self, size: usize) -> Self {
        Self { size, ..self }
    }

    /// Expects this number of messages, 0 if it is not known: the first request asks for no more, so that the server does not search
    /// the rest of the stream. If there are more, further requests read them.
    #[must_use]
    pub fn with_expected_count(self, count: usize) -> Self {
        Self { expected: count.min(self.size), ..self }
    }

    /// Reads the first messages one by one, for a read that expects few messages at the end of a stream with many subjects: after a
    /// single message a server does not count the messages that remain.
    #[must_use]
    pub fn with_single_reads(self) -> Self {
        Self { reads_single: true, ..self }
    }

    /// Returns `true` if the last page ended with the last message.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the next messages, or none after the last.
    pub fn next_page<'a>(&'a mut self) -> BoxFuture<'a, Result<Vec<StreamRecord>, Fault>> {
        async move {
            if self.reads_single {
                return self.read_single_messages().await;
            }
            let mut tries = 0;
            while !self.is_over {
                let mut records = Vec::new();
                let outcome = self.read_page(&mut records).await;
                self.expected = 0;
                // Messages that arrived before a failure count: the next page starts after them.
                self.next = records.last().map_or(self.next, |last: &StreamRecord| last.sequence + 1);
                match outcome {
                    Ok(is_last) => self.is_over = is_last,
                    Err(fault) if tries < MAX_RETRIES => {
                        tries += 1;
                        tracing::debug!(stream = self.stream, %fault, tries, "stream read failed; retrying");
                        tokio::time::sleep(crate::fault::backoff(tries)).await;
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

    /// Reads the first messages one by one.
    async fn read_single_messages(&mut self) -> Result<Vec<StreamRecord>, Fault> {
        let Self { client, stream, filter, .. } = self;
        let what = || format!("reading {filter} from {stream}");
        let (mut records, mut next) = (Vec::new(), self.next);
        while records.len() < SINGLE_READS {
            let request = serde_json::json!({ "seq": next, "next_by_subj": filter });
            let Some(record) = request_message(client, stream, &request, &what).await? else {
                self.is_over = true;
                break;
            };
            next = record.sequence + 1;
            records.push(record);
        }
        (self.next, self.reads_single) = (next, false);
        Ok(records)
    }

    /// Reads one page into `records`. Returns `true` if it was the last.
    async fn read_page(&self, records: &mut Vec<StreamRecord>) -> Result<bool, Fault> {
        let Self { client, stream, filter, next, max_bytes, .. } = self;
        let size = if self.expected > 0 { self.expected } else { self.size };
        let what = format!("reading {filter} from {stream}");
        let mut request = serde_json::json!({ "batch": size, "seq": next, "next_by_subj": filter });
        if *max_bytes > 0 {
            request["max_bytes"] = serde_json::Value::from(*max_bytes);
        }
        match request_page(client, stream, &request, &what, records).await? {
            PageEnd::Last => Ok(true),
            PageEnd::More { .. } => Ok(false),
            PageEnd::TooMany => {
                Err(Fault::unavailable(what, "the server rejected the request: too many messages"))
            }
        }
    }
}

/// Returns all messages of `stream` whose subject matches `filter`, from sequence `from` on, oldest first.
pub fn read_matching<'a>(
    client: &'a Client,
    stream: &'a str,
    filter: &'a str,
    from: u64,
) -> BoxFuture<'a, Result<Vec<StreamRecord>, Fault>> {
    async move {
        let mut pages = PagedReader::new(client, stream.into(), filter.into(), from);
        let mut all = Vec::new();
        loop {
            let records = pages.next_page().await?;
            if records.is_empty() {
                return Ok(all);
            }
            all.extend(records);
        }
    }
    .boxed()
}

/// Returns the last message of each subject of `stream` that matches one of `filters`, oldest first; `None` if there
/// are more subjects than a server returns at once (1,024).
pub fn read_last_per_subject<'a>(
    client: &'a Client,
    stream: &'a str,
    filters: &'a [String],
) -> BoxFuture<'a, Result<Option<Vec<StreamRecord>>, Fault>> {
    async move {
        let what = format!("reading the last messages of {stream}");
        let (mut records, mut up_to, mut tries) = (Vec::new(), None, 0);
        loop {
            let next = records.last().map_or(1, |last: &StreamRecord| last.sequence + 1);
            let mut request = serde_json::json!({ "multi_last": filters, "seq": next });
            if let Some(up_to) = up_to {
                request["up_to_seq"] = serde_json::Value::from(up_to);
            }
            match request_page(client, stream, &request, &what, &mut records).await {
                Ok(PageEnd::Last) => return Ok(Some(records)),
                Ok(PageEnd::More { up_to: reported }) => up_to = up_to.or(reported),
                Ok(PageEnd::TooMany) => return Ok(None),
                Err(fault) if tries < MAX_RETRIES => {
                    tries += 1;
                    tracing::debug!(stream, %fault, tries, "stream read failed; retrying");
                    // The last message of a subject may change between two attempts, unless the first reported a limit.
                    if up_to.is_none() {
                        records.clear();
                    }
                    tokio::time::sleep(crate::fault::backoff(tries)).await;
                }
                Err(fault) => return Err(fault),
            }
        }
    }
    .boxed()
}

/// Returns the message of `stream` with this sequence; `None` if it was removed.
pub async fn read_at_sequence(
    client: &Client,
    stream: &str,
    sequence: u64,
) -> Result<Option<StreamRecord>, Fault> {
    let what = || format!("reading message {sequence} of {stream}");
    request_message(client, stream, &serde_json::json!({ "seq": sequence }), &what).await
}

/// Returns the last message of an exact subject of `stream`; `None` if there is none. Costs a server much less than a page.
pub async fn read_last_of_subject(
    client: &Client,
    stream: &str,
    subject: &str,
) -> Result<Option<StreamRecord>, Fault> {
    let what = || format!("reading the last message of {subject} from {stream}");
    request_message(client, stream, &serde_json::json!({ "last_by_subj": subject }), &what).await
}

/// Returns how many subjects of `stream` that match `filter` have their last message before `sequence`; `None` if they are more than
/// a server counts (1,024).
pub async fn count_subjects_before(
    client: &Client,
    stream: &str,
    filter: &str,
    sequence: u64,
) -> Result<Option<u64>, Fault> {
    if sequence <= 1 {
        return Ok(Some(0));
    }
    let what = || format!("counting {filter} in {stream}");
    let request = serde_json::json!({ "multi_last": [filter], "up_to_seq": sequence - 1, "batch": 1 });
    let subject = format!("$JS.API.DIRECT.GET.{stream}");
    // The first message of the response has the number of the others in a header.
    let reply = client.request(subject, request.to_string().into()).await;
    let reply = reply.map_err(|error| Fault::unavailable(what(), error))?;
    match refused_status(&reply) {
        None => {
            let following =
                server_header(&reply, "Nats-Num-Pending").and_then(|text| text.parse::<u64>().ok());
            Ok(following.map(|following| following + 1))
        }
        Some(404) => Ok(Some(0)),
        Some(413) => Ok(None),
        Some(status) => {
            Err(Fault::unavailable(what(), reply.description.unwrap_or_else(|| status.to_string())))
        }
    }
}

/// Requests one message; `None` if there is none. Retries faults.
async fn request_message(
    client: &Client,
    stream: &str,
    request: &serde_json::Value,
    what: &(dyn Fn() -> String + Sync),
) -> Result<Option<StreamRecord>, Fault> {
    let subject = format!("$JS.API.DIRECT.GET.{stream}");
    let request = request.to_string();
    let mut tries = 0;
    let message = loop {
        match client.request(subject.clone(), request.clone().into()).await {
            Ok(message) => break message,
            Err(error) if tries < MAX_RETRIES => {
                tries += 1;
                tracing::debug!(stream, %error, tries, "stream read failed; retrying");
                tokio::time::sleep(crate::fault::backoff(tries)).await;
            }
            Err(error) => return Err(Fault::unavailable(what(), error)),
        }
    };
    match refused_status(&message) {
        None => record_from_response(message)
            .map(Some)
            .ok_or_else(|| Fault::unavailable(what(), "the message has no sequence")),
        Some(404) => Ok(None),
        Some(status) => {
            let why = message.description.unwrap_or_else(|| status.to_string());
            Err(Fault::unavailable(what(), why))
        }
    }
}

enum PageEnd {
    /// There are no more messages.
    Last,
    /// There are more messages, up to this sequence.
    More { up_to: Option<u64> },
    /// The server rejected the request because too many subjects match.
    TooMany,
}

/// Sends one request and adds the messages of the response to `records`.
async fn request_page(
    client: &Client,
    stream: &str,
    request: &serde_json::Value,
    what: &str,
    records: &mut Vec<StreamRecord>,
) -> Result<PageEnd, Fault> {
    let inbox = client.new_inbox();
    let mut responses =
        client.subscribe(inbox.clone()).await.map_err(|error| Fault::unavailable(what, error))?;
    client
        .publish_with_reply(format!("$JS.API.DIRECT.GET.{stream}"), inbox, request.to_string().into())
        .await
        .map_err(|error| Fault::unavailable(what, error))?;
    loop {
        let message = tokio::time::timeout(RESPONSE_TIMEOUT, responses.next())
            .await
            .map_err(|_| Fault::unavailable(what, "the response is incomplete"))?
            .ok_or_else(|| Fault::unavailable(what, "the connection was closed"))?;
        match refused_status(&message) {
            None => records.push(
                record_from_response(message)
                    .ok_or_else(|| Fault::unavailable(what, "a message has no sequence"))?,
            ),
            Some(404) => return Ok(PageEnd::Last),
            Some(204) if server_header(&message, "Nats-Num-Pending").is_none_or(|pending| pending == "0") => {
                return Ok(PageEnd::Last);
            }
            Some(204) => {
                let up_to = server_header(&message, "Nats-UpTo-Sequence").and_then(|text| text.parse().ok());
                return Ok(PageEnd::More { up_to });
            }
            Some(413) => return Ok(PageEnd::TooMany),
            Some(status) => {
                let why = message.description.unwrap_or_else(|| status.to_string());
                return Err(Fault::unavailable(what, why));
            }
        }
    }
}

/// Returns the status of a response without a message. A redirected status may be stored as a message; only a message of the
/// stream has a sequence.
fn refused_status(message: &Message) -> Option<u16> {
    let is_stored = server_header(message, "Nats-Sequence").is_some();
    message.status.filter(|_| !is_stored).map(|status| status.as_u16())
}

/// Returns a header that the server added to a message. The server adds its headers last: the publisher of the message
/// may have set one of the same name.
fn server_header<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    Some(message.headers.as_ref()?.get_last(name)?.as_str())
}

/// Converts a message of a response, whose headers contain its metadata.
fn record_from_response(message: Message) -> Option<StreamRecord> {
    let sequence = server_header(&message, "Nats-Sequence")?.parse().ok()?;
    let subject = server_header(&message, "Nats-Subject")?.into();
    let time = server_header(&message, "Nats-Time-Stamp")?.parse().ok()?;
    let is_deletion = server_header(&message, "KV-Operation").is_some()
        || server_header(&message, "Nats-Marker-Reason").is_some();
    let headers = message.headers.as_ref();
    let provenance = match message.status {
        Some(_) => Provenance::ServerReply,
        None => Provenance::from_headers(headers, DeliveryPath::ByDirectGet),
    };
    let encoding = encoding_from_headers(headers);
    Some(StreamRecord {
        sequence,
        subject,
        payload: message.payload,
        encoding,
        time,
        is_deletion,
        provenance,
    })
}

/// The sequence from which on a pass begins with single messages: the stream may have so many subjects that a page costs a server as
/// much time as ten of them.
const MANY: u64 = 50_000;

/// The messages of a stream from a sequence on, read in passes: each pass ends with the last message of its time. A pass with few
/// messages costs a server little, however many subjects the stream has.
pub(crate) struct StreamTail {
    stream: String,
    filter: String,
    /// The sequence after the last message that was read.
    next: u64,
    /// The pass in progress.
    pages: Option<PagedReader>,
}

impl StreamTail {
    /// Starts at sequence `from`.
    pub fn new(stream: String, filter: String, from: u64) -> Self {
        Self { stream, filter, next: from.max(1), pages: None }
    }

    /// The sequence up to which messages were read.
    pub fn seen(&self) -> u64 {
        self.next - 1
    }

    /// Continues after a sequence, with a new pass.
    pub fn continue_after(&mut self, sequence: u64) {
        self.next = sequence + 1;
        self.pages = None;
    }

    /// Returns the next messages, oldest first; none at the end of a pass. The call after that starts the next pass.
    /// Errors: the server does not respond. The next call continues after the messages that were returned.
    pub async fn next_page(&mut self, client: &Client) -> Result<Vec<StreamRecord>, Fault> {
        let Self { stream, filter, next, pages } = self;
        let reader = pages.get_or_insert_with(|| {
            let reader = PagedReader::new(client, stream.clone(), filter.clone(), *next);
            if *next < MANY { reader } else { reader.with_single_reads() }
        });
        let records = reader.next_page().await?;
        match records.last() {
            Some(last) => self.next = last.sequence + 1,
            None => self.pages = None,
        }
        Ok(records)
    }
}
