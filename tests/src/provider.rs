//! A provider of models that stands in for a real one: it speaks OpenAI's chat completions on a port of its own, says
//! what it is told to say, and remembers when it was asked and when somebody hung up on it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What the provider does with a request.
#[derive(Debug, Clone)]
pub enum Reply {
    /// It answers with this text.
    Text(String),
    /// It says that it is asked too often (429), and to come back after so many seconds.
    Busy(u32),
    /// It says nothing and waits until the other side hangs up.
    Silence,
}

/// What happened.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    /// When each request was there as a whole.
    pub asked: Vec<Instant>,
    /// When each silent connection was closed by the other side.
    pub hung_up: Vec<Instant>,
}

/// A provider; dropping it closes its port.
pub struct Provider {
    /// The name of its model, as `--model` takes it.
    pub model: String,
    seen: Arc<Mutex<Seen>>,
    listening: JoinHandle<()>,
}

impl Provider {
    /// A provider that gives these replies one after the other, and the last one for ever.
    ///
    /// # Panics
    /// There is no free port, or there are no replies.
    pub async fn start(replies: Vec<Reply>) -> Self {
        assert!(!replies.is_empty(), "a provider without replies");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let (seen, replies) =
            (Arc::new(Mutex::new(Seen::default())), Arc::new(Mutex::new(VecDeque::from(replies))));
        let book = seen.clone();
        let listening = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, replies.clone(), book.clone()));
            }
        });
        Self { model: format!("openai-compatible:stub@http://{address}/v1"), seen, listening }
    }

    /// What happened so far.
    #[must_use]
    pub fn seen(&self) -> Seen {
        lock(&self.seen).clone()
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn next(replies: &Mutex<VecDeque<Reply>>) -> Reply {
    let mut replies = lock(replies);
    match replies.len() {
        1 => replies[0].clone(),
        _ => replies.pop_front().expect("it never becomes empty"),
    }
}

/// Answers the requests of one connection.
async fn serve(mut stream: TcpStream, replies: Arc<Mutex<VecDeque<Reply>>>, seen: Arc<Mutex<Seen>>) {
    while read_request(&mut stream).await.is_some() {
        lock(&seen).asked.push(Instant::now());
        let answer = match next(&replies) {
            Reply::Text(text) => response("200 OK", "", &completion(&text)),
            Reply::Busy(seconds) => {
                let body =
                    json!({"error": {"message": "too many requests", "type": "rate_limit"}}).to_string();
                response("429 Too Many Requests", &format!("retry-after: {seconds}\r\n"), &body)
            }
            Reply::Silence => {
                let mut rest = [0; 1];
                // Nothing more is sent on it, so that the read ends when the other side hangs up, in order or not.
                let _ = stream.read(&mut rest).await;
                lock(&seen).hung_up.push(Instant::now());
                return;
            }
        };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn completion(text: &str) -> String {
    json!({
        "id": "stub", "object": "chat.completion", "model": "stub",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    })
    .to_string()
}

fn response(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
}

/// Reads one request whole; `None` if the connection ends before.
async fn read_request(stream: &mut TcpStream) -> Option<()> {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 16 * 1024];
    loop {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(end) = end
            && bytes.len() >= end + 4 + body_length(&bytes[..end])
        {
            return Some(());
        }
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return None,
            Ok(read) => bytes.extend_from_slice(&piece[..read]),
        }
    }
}

fn body_length(head: &[u8]) -> usize {
    let head = String::from_utf8_lossy(head).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    length.and_then(|length| length.trim().parse().ok()).unwrap_or(0)
}
