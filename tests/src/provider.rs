//! A stub model provider: it serves OpenAI's chat completions on a port of its own, sends scripted replies, and records
//! when requests arrive and when clients disconnect.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A scripted reaction to a request.
#[derive(Debug, Clone)]
pub enum StubReply {
    /// Replies with this text.
    Text(String),
    /// Replies with this text, and with the request's length as its usage, at four bytes per token.
    Metered(String),
    /// Replies with status 429 and a `retry-after` of so many seconds.
    Busy(u32),
    /// Replies with this status and an error of this code.
    Error(u16, &'static str),
    /// Replies with status 200, this content type and this body: the page of a gateway, or an empty body.
    Body(&'static str, &'static str),
    /// Replies with text that is not JSON from some point on.
    BrokenJson,
    /// Begins a stream of events and disconnects.
    BrokenStream,
    /// Disconnects without a reply.
    Disconnect,
    /// Sends nothing and waits until the client disconnects.
    Silence,
}

/// The events that a stub provider has recorded.
#[derive(Debug, Default, Clone)]
pub struct ProviderActivity {
    /// The time at which each request was complete.
    pub requests: Vec<Instant>,
    /// The time at which each unanswered connection was closed by the client.
    pub disconnects: Vec<Instant>,
}

/// A stub provider. Dropping it closes its port.
pub struct StubProvider {
    /// The name of its model, as `--model` takes it.
    pub model: String,
    address: SocketAddr,
    replies: Arc<Mutex<VecDeque<StubReply>>>,
    activity: Arc<Mutex<ProviderActivity>>,
    listener: JoinHandle<()>,
}

impl StubProvider {
    /// Starts a provider that sends these replies one after the other and repeats the last one.
    ///
    /// # Panics
    /// There is no free port, or `replies` is empty.
    pub async fn start(replies: Vec<StubReply>) -> Self {
        assert!(!replies.is_empty(), "a provider without replies");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let (activity, replies) = (
            Arc::new(Mutex::new(ProviderActivity::default())),
            Arc::new(Mutex::new(VecDeque::from(replies))),
        );
        let model = format!("openai-compatible:stub@http://{address}/v1");
        let listener = tokio::spawn(accept(listener, replies.clone(), activity.clone()));
        Self { model, address, replies, activity, listener }
    }

    /// Sends these replies from now on.
    ///
    /// # Panics
    /// `replies` is empty.
    pub fn set_replies(&self, replies: Vec<StubReply>) {
        assert!(!replies.is_empty(), "a provider without replies");
        *lock_mutex(&self.replies) = VecDeque::from(replies);
    }

    /// Closes the port: connections are refused.
    pub async fn go_away(&mut self) {
        self.listener.abort();
        // An aborted task is cancelled, which is the purpose.
        drop((&mut self.listener).await);
    }

    /// Opens the port again.
    ///
    /// # Panics
    /// Another process has taken it.
    pub async fn come_back(&mut self) {
        let listener = TcpListener::bind(self.address).await.expect("the port is still free");
        self.listener = tokio::spawn(accept(listener, self.replies.clone(), self.activity.clone()));
    }

    /// A snapshot of the recorded events.
    #[must_use]
    pub fn recorded_activity(&self) -> ProviderActivity {
        lock_mutex(&self.activity).clone()
    }
}

impl Drop for StubProvider {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn accept(
    listener: TcpListener,
    replies: Arc<Mutex<VecDeque<StubReply>>>,
    activity: Arc<Mutex<ProviderActivity>>,
) {
    // Dropped with the listener, so that no connection outlives it.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(serve_connection(stream, replies.clone(), activity.clone()));
    }
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn next_reply(replies: &Mutex<VecDeque<StubReply>>) -> StubReply {
    let mut replies = lock_mutex(replies);
    match replies.len() {
        1 => replies[0].clone(),
        _ => replies.pop_front().expect("it never becomes empty"),
    }
}

/// Answers the requests of one connection.
async fn serve_connection(
    mut stream: TcpStream,
    replies: Arc<Mutex<VecDeque<StubReply>>>,
    activity: Arc<Mutex<ProviderActivity>>,
) {
    while let Some(length) = read_request(&mut stream).await {
        lock_mutex(&activity).requests.push(Instant::now());
        let answer = match next_reply(&replies) {
            StubReply::Text(text) => http_response("200 OK", "", &completion_json(&text, 100)),
            StubReply::Metered(text) => http_response("200 OK", "", &completion_json(&text, length / 4)),
            StubReply::Busy(seconds) => {
                let body =
                    json!({"error": {"message": "too many requests", "type": "rate_limit"}}).to_string();
                http_response("429 Too Many Requests", &format!("retry-after: {seconds}\r\n"), &body)
            }
            StubReply::Error(status, code) => {
                let body = json!({"error": {"message": format!("a {code} error"), "code": code}}).to_string();
                http_response(&format!("{status} Error"), "", &body)
            }
            StubReply::Body(kind, body) => http_response_of(kind, "200 OK", "", body),
            StubReply::BrokenJson => http_response("200 OK", "", r#"{"id": "stub", "choices": oops"#),
            StubReply::BrokenStream => {
                let head =
                    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n";
                let event = json!({"choices": [{"index": 0, "delta": {"content": "Half an an"}}]});
                // The client may have left; the connection ends in any case.
                let _ = stream.write_all(format!("{head}data: {event}\n\n").as_bytes()).await;
                return;
            }
            StubReply::Disconnect => return,
            StubReply::Silence => {
                let mut rest = [0; 1];
                // The client sends nothing more, so the read ends when it disconnects, cleanly or not.
                let _ = stream.read(&mut rest).await;
                lock_mutex(&activity).disconnects.push(Instant::now());
                return;
            }
        };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn completion_json(text: &str, prompt: usize) -> String {
    json!({
        "id": "stub", "object": "chat.completion", "model": "stub",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": 10, "total_tokens": prompt + 10},
    })
    .to_string()
}

fn http_response(status: &str, headers: &str, body: &str) -> String {
    http_response_of("application/json", status, headers, body)
}

fn http_response_of(content_type: &str, status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
}

/// Reads a complete request and returns the length of its body; `None` if the connection ends before that.
async fn read_request(stream: &mut TcpStream) -> Option<usize> {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 16 * 1024];
    loop {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(end) = end
            && bytes.len() >= end + 4 + parse_content_length(&bytes[..end])
        {
            return Some(parse_content_length(&bytes[..end]));
        }
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return None,
            Ok(read) => bytes.extend_from_slice(&piece[..read]),
        }
    }
}

fn parse_content_length(head: &[u8]) -> usize {
    let head = String::from_utf8_lossy(head).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    length.and_then(|length| length.trim().parse().ok()).unwrap_or(0)
}
