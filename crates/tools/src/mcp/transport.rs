//! The messages of MCP servers: each is read by the reader of foreign JSON, and a message that is not readable answers the requests
//! that wait for it with an error, at once. The library would ignore it and let them wait.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use millrace_protocol::foreign_json::{
    HalfEscaper, mend_json_text, parse_foreign_json, plain_json_error, without_byte_order_mark,
};
use millrace_protocol::secrets::{redact_bytes, redact_text};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};
use reqwest::{Response, StatusCode};
use rmcp::RoleClient;
use rmcp::model::{
    ClientJsonRpcMessage, ErrorCode, ErrorData, JsonRpcError, JsonRpcMessage, RequestId, ServerJsonRpcMessage,
};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use serde_json::Value;
use sse_stream_of_rmcp::{Error as SseError, Sse, SseStream};
use tokio::io::Empty;
use tokio::net::unix::pipe;
use tokio_util::codec::{AnyDelimiterCodec, AnyDelimiterCodecError, FramedRead};
use tracing::debug;

use crate::untrusted::one_line;

const SESSION_ID: &str = "mcp-session-id";
/// The code of the error that takes the place of a message that is not readable. Servers have other codes.
pub(super) const UNREADABLE_MESSAGE: ErrorCode = ErrorCode(i32::MIN);
const MAX_MESSAGE: usize = 16 << 20;
/// Maximum number of characters of an error response that are shown.
const MAX_ERROR: usize = 1_000;

type ReadMessage = ServerJsonRpcMessage;

fn unreadable_error(reason: &str) -> ErrorData {
    ErrorData::new(UNREADABLE_MESSAGE, reason.to_owned(), None)
}

/// Returns `true` if a line of a program is no line of a log: it begins as an object, or as a list of them.
fn is_meant_as_message(line: &[u8]) -> bool {
    let line = without_byte_order_mark(line).trim_ascii_start();
    line.strip_prefix(b"[").unwrap_or(line).trim_ascii_start().starts_with(b"{")
}

/// Reads one message.
///
/// # Errors
/// The error for the request that waits, and the id of that request if the message names one: it is not readable, or it is an error
/// without an id, which a server sends if it can't read the request. `None` if it need not be read: it is a notification of an
/// unknown form.
fn read_message(bytes: &[u8]) -> Result<ReadMessage, Option<(ErrorData, Option<RequestId>)>> {
    let bytes = &redact_bytes(bytes.to_vec());
    let error = match parse_foreign_json(bytes) {
        Ok(JsonRpcMessage::Error(JsonRpcError { id: None, error, .. })) => return Err(Some((error, None))),
        Ok(message) => return Ok(message),
        Err(error) => plain_json_error(&error.to_string()),
    };
    let value = parse_foreign_json::<Value>(bytes).unwrap_or_default();
    if value.get("method").is_some() {
        return Err(None);
    }
    let reason = if value.is_array() { "it is a list of messages, which MCP does not have" } else { &error };
    let id = value.get("id").and_then(|id| serde_json::from_value(id.clone()).ok());
    Err(Some((unreadable_error(&format!("it is not readable as a message: {reason}")), id)))
}

/// Standard input and output of a server's program.
pub(super) struct ProgramTransport {
    writer: AsyncRwTransport<RoleClient, Empty, pipe::Sender>,
    lines: FramedRead<pipe::Receiver, AnyDelimiterCodec>,
    waiting: HashSet<RequestId>,
    received: VecDeque<ReadMessage>,
}

impl ProgramTransport {
    pub(super) fn new(stdin: pipe::Sender, stdout: pipe::Receiver) -> Self {
        let codec = AnyDelimiterCodec::new_with_max_length(b"\n".to_vec(), b"\n".to_vec(), MAX_MESSAGE);
        Self {
            writer: AsyncRwTransport::new(tokio::io::empty(), stdin),
            lines: FramedRead::new(stdout, codec),
            waiting: HashSet::new(),
            received: VecDeque::new(),
        }
    }

    fn read_line(&mut self, line: &[u8]) {
        // Some programs print more than messages.
        if !is_meant_as_message(line) {
            debug!("ignoring a line of an MCP server that is no message");
            return;
        }
        match read_message(line) {
            Ok(message) => {
                if let JsonRpcMessage::Response(answer) = &message {
                    self.waiting.remove(&answer.id);
                } else if let JsonRpcMessage::Error(error) = &message {
                    error.id.as_ref().map(|id| self.waiting.remove(id));
                }
                self.received.push_back(message);
            }
            Err(None) => debug!("ignoring a notification of an MCP server in another form"),
            Err(Some((error, id))) => self.fail_requests(&error, id),
        }
    }

    /// Answers the request with an error, or all that wait if it is not known which one.
    fn fail_requests(&mut self, error: &ErrorData, id: Option<RequestId>) {
        let failed: Vec<RequestId> = match id {
            Some(id) => self.waiting.take(&id).into_iter().collect(),
            None => self.waiting.drain().collect(),
        };
        self.received.extend(failed.into_iter().map(|id| JsonRpcMessage::error(error.clone(), Some(id))));
    }
}

impl Transport<RoleClient> for ProgramTransport {
    type Error = io::Error;

    fn name() -> Cow<'static, str> {
        "standard input and output of the program".into()
    }

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        if let JsonRpcMessage::Request(request) = &message {
            self.waiting.insert(request.id.clone());
        }
        self.writer.send(message)
    }

    async fn receive(&mut self) -> Option<ReadMessage> {
        loop {
            if let Some(message) = self.received.pop_front() {
                return Some(message);
            }
            match self.lines.next().await {
                Some(Ok(line)) => self.read_line(&line),
                Some(Err(AnyDelimiterCodecError::MaxChunkLengthExceeded)) => {
                    let reason = format!("it is longer than {} MiB", MAX_MESSAGE >> 20);
                    self.fail_requests(&unreadable_error(&reason), None);
                    // After an error the decoder returns `None` once, and then the lines after the message.
                    let _ = self.lines.next().await;
                }
                Some(Err(AnyDelimiterCodecError::Io(_))) | None => return None,
            }
        }
    }

    /// Closes the server's input. Its connection waits for its end.
    async fn close(&mut self) -> Result<(), Self::Error> {
        self.writer.close().await
    }
}

#[derive(Clone)]
pub(super) struct HttpMessages(pub(super) reqwest::Client);

type HttpError = StreamableHttpError<reqwest::Error>;
type EventStream = BoxStream<'static, Result<Sse, SseError>>;

impl HttpMessages {
    /// Sends a message, and reads its answer: one message, or a stream of them.
    async fn post(
        &self,
        uri: &str,
        message: &ClientJsonRpcMessage,
        session: Option<&str>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let mut request = self.0.post(uri).headers(headers.into_iter().collect());
        request = request.header(ACCEPT, "text/event-stream, application/json");
        if let Some(session) = session {
            request = request.header(SESSION_ID, session);
        }
        let response = request.json(message).send().await?;
        let status = response.status();
        match status {
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => return Ok(StreamableHttpPostResponse::Accepted),
            StatusCode::NOT_FOUND if session.is_some() => return Err(HttpError::SessionExpired),
            _ => {}
        }
        let session_id = header_text(&response, SESSION_ID);
        let content_type = header_text(&response, CONTENT_TYPE.as_str()).unwrap_or_default();
        let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let waiting = match message {
            JsonRpcMessage::Request(request) => Some(request.id.clone()),
            JsonRpcMessage::Response(_) | JsonRpcMessage::Notification(_) | JsonRpcMessage::Error(_) => None,
        };
        match (status.is_success(), media_type.as_str(), waiting) {
            (true, "text/event-stream", waiting) => {
                let events = read_events(response, waiting);
                Ok(StreamableHttpPostResponse::Sse(events, session_id))
            }
            (true, _, None) => Ok(StreamableHttpPostResponse::Accepted),
            (true, "application/json", Some(id)) => {
                let body = read_body(response, MAX_MESSAGE).await?;
                Ok(StreamableHttpPostResponse::Json(answer_in_body(&body, id), session_id))
            }
            (true, _, Some(_)) => Err(HttpError::UnexpectedContentType(Some(content_type))),
            (false, _, waiting) => {
                let body = read_body(response, MAX_MESSAGE).await.unwrap_or_default();
                match error_in_body(status, &body, waiting) {
                    Some(error) => Ok(StreamableHttpPostResponse::Json(error, session_id)),
                    None => {
                        let text = one_line(&redact_text(&String::from_utf8_lossy(&body)), MAX_ERROR);
                        Err(HttpError::UnexpectedServerResponse(format!("HTTP {status}: {text}").into()))
                    }
                }
            }
        }
    }
}

/// The answer to the request that waits: the message of a body, or an error about it.
fn answer_in_body(body: &[u8], id: RequestId) -> ServerJsonRpcMessage {
    match read_message(body) {
        Ok(message) => message,
        Err(Some((error, _))) => JsonRpcMessage::error(error, Some(id)),
        Err(None) => {
            let error = unreadable_error("it is a notification in another form");
            JsonRpcMessage::error(error, Some(id))
        }
    }
}

/// The error that the body of a failed response is, for the request that waits; `None` if it is none.
fn error_in_body(
    status: StatusCode,
    body: &[u8],
    waiting: Option<RequestId>,
) -> Option<ServerJsonRpcMessage> {
    let is_refused = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    match (read_message(body), waiting.filter(|_| !is_refused)) {
        (Ok(error @ JsonRpcMessage::Error(_)), Some(_)) => Some(error),
        (Err(Some((error, None))), id @ Some(_)) if error.code != UNREADABLE_MESSAGE => {
            Some(JsonRpcMessage::error(error, id))
        }
        (Ok(_) | Err(_), _) => None,
    }
}

impl StreamableHttpClient for HttpMessages {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        self.post(&uri, &message, session_id.as_deref(), headers).await
    }

    fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> impl Future<Output = Result<(), HttpError>> + Send + '_ {
        self.0.delete_session(uri, session_id, auth, headers)
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<EventStream, HttpError> {
        let events = self.0.get_stream(uri, session_id, last_event_id, auth, headers).await?;
        Ok(mend_events(events, None))
    }
}

fn header_text(response: &Response, name: &str) -> Option<String> {
    Some(response.headers().get(name)?.to_str().ok()?.to_owned())
}

async fn read_body(response: Response, limit: usize) -> Result<Vec<u8>, HttpError> {
    let mut body = Vec::new();
    let mut pieces = response.bytes_stream();
    while let Some(piece) = pieces.try_next().await? {
        body.extend_from_slice(&piece);
        if body.len() > limit {
            return Err(HttpError::ResponseBodyTooLarge { max_size: limit });
        }
    }
    Ok(body)
}

/// Parses the events of a response. One that is larger than a message may be is the last one, and not readable.
fn read_events(response: Response, waiting: Option<RequestId>) -> EventStream {
    let (size, mut escaper) = (Arc::new(AtomicUsize::new(0)), HalfEscaper::default());
    let (received, total) = (Arc::clone(&size), Arc::clone(&size));
    let pieces = response.bytes_stream().take_while(move |piece| {
        let length = piece.as_ref().map_or(0, |piece| piece.len());
        std::future::ready(received.fetch_add(length, Ordering::Relaxed) + length <= MAX_MESSAGE)
    });
    let pieces = pieces.map_ok(move |piece| Bytes::from(escaper.push(&piece)));
    let events =
        SseStream::from_bytes_stream(Box::pin(pieces)).inspect_ok(move |_| size.store(0, Ordering::Relaxed));
    let too_large = futures::stream::once(async move {
        (total.load(Ordering::Relaxed) > MAX_MESSAGE)
            .then(|| Ok(Sse::default().data("{\"larger than 16 MiB\"")))
    });
    mend_events(events.chain(too_large.filter_map(std::future::ready)).boxed(), waiting)
}

/// Replaces halves of characters in events. An event that is not readable becomes the error of the request that waits for it.
fn mend_events(events: EventStream, waiting: Option<RequestId>) -> EventStream {
    let mend = move |event: Result<Sse, SseError>| {
        let (mut event, mistake) = match event {
            Ok(event) => (event, None),
            Err(error @ SseError::Body(_)) => return Err(error),
            Err(error) => (Sse::default(), Some(format!("it is not readable as a message: {error}"))),
        };
        let data = event.data.take().unwrap_or_default();
        let error = match (mistake, read_message(data.as_bytes())) {
            (Some(reason), _) => Some(unreadable_error(&reason)),
            (None, Err(Some((error, _)))) if !data.trim().is_empty() => Some(error),
            (None, Ok(_) | Err(_)) => None,
        };
        event.data = match (error, &waiting) {
            (Some(error), Some(id)) => {
                serde_json::to_string::<ReadMessage>(&JsonRpcMessage::error(error, Some(id.clone()))).ok()
            }
            (Some(_), None) | (None, _) => {
                (!data.is_empty()).then(|| redact_text(&mend_json_text(data)).into_owned())
            }
        };
        Ok(event)
    };
    events.map(mend).boxed()
}

/// Joins the messages of an error and its sources. They may contain text of the server.
pub(super) fn error_chain(error: &dyn std::error::Error) -> String {
    let chain = crate::web::error_chain(error);
    // The library names its transports by their types.
    let plain = match chain
        .split_once("Transport [")
        .and_then(|(before, rest)| Some((before, rest.split_once("] error: ")?.1)))
    {
        Some((before, reason)) => format!("{before}{reason}"),
        None => chain,
    };
    one_line(&redact_text(&plain), MAX_ERROR)
}
