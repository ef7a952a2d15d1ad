//! A receiver of webhooks, which stores its messages and answers with a chosen status.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use std::io::Write as _;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A request that arrived.
#[derive(Debug, Clone)]
pub struct ReceivedMessage {
    /// The header `webhook-id`.
    pub id: String,
    /// The header `webhook-timestamp`.
    pub timestamp: String,
    /// The header `webhook-signature`.
    pub signature: String,
    /// The header `authorization`.
    pub authorization: String,
    /// The header `x-a2a-notification-token`.
    pub token: String,
    /// The header `content-type`.
    pub content_type: String,
    /// The body.
    pub body: String,
    /// The status of the answer.
    pub status: u16,
}

impl ReceivedMessage {
    /// The body.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("a body of JSON")
    }
}

/// A receiver.
pub struct WebhookReceiver {
    /// Its address.
    pub address: SocketAddr,
    received: Arc<Mutex<Vec<ReceivedMessage>>>,
    status: Arc<AtomicU16>,
}

impl WebhookReceiver {
    /// Starts one that accepts everything.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (received, status) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU16::new(204)));
        let (all, answer) = (received.clone(), status.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(receive(stream, all.clone(), answer.clone()));
            }
        });
        Self { address, received, status }
    }

    /// Chooses the status of the answers from now on.
    pub fn answer_with(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    /// Returns all messages.
    pub fn received(&self) -> Vec<ReceivedMessage> {
        self.received.lock().expect("no test panicked with the lock").clone()
    }

    /// Returns the accepted messages.
    pub fn accepted(&self) -> Vec<ReceivedMessage> {
        self.received().into_iter().filter(|message| message.status < 300).collect()
    }
}

async fn receive(
    mut stream: TcpStream,
    received: Arc<Mutex<Vec<ReceivedMessage>>>,
    status: Arc<AtomicU16>,
) -> Option<()> {
    let mut bytes = Vec::new();
    let (head, rest) = loop {
        let mut chunk = [0; 4096];
        let count = stream.read(&mut chunk).await.ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&chunk[..count]);
        if let Some(end) = bytes.windows(4).position(|part| part == b"\r\n\r\n") {
            break (String::from_utf8_lossy(&bytes[..end]).into_owned(), bytes[end + 4..].to_vec());
        }
    };
    let header = |name: &str| {
        let line = head.lines().find(|line| line.to_lowercase().starts_with(&format!("{name}:")));
        line.and_then(|line| line.split_once(": ")).map(|(_, value)| value.to_owned()).unwrap_or_default()
    };
    let length: usize = header("content-length").parse().unwrap_or_default();
    let mut body = rest;
    while body.len() < length {
        let mut chunk = vec![0; length - body.len()];
        let count = stream.read(&mut chunk).await.ok().filter(|count| *count > 0)?;
        body.extend_from_slice(&chunk[..count]);
    }
    let status = status.load(Ordering::SeqCst);
    received.lock().expect("no test panicked with the lock").push(ReceivedMessage {
        id: header("webhook-id"),
        timestamp: header("webhook-timestamp"),
        signature: header("webhook-signature"),
        authorization: header("authorization"),
        token: header("x-a2a-notification-token"),
        content_type: header("content-type"),
        body: String::from_utf8_lossy(&body).into_owned(),
        status,
    });
    let reply = "a reply of the receiver ".repeat(100);
    let location = if (300..400).contains(&status) { "Location: http://127.0.0.1:1/\r\n" } else { "" };
    let answer = match status {
        204 => "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n".to_owned(),
        _ => format!(
            "HTTP/1.1 {status} Status\r\n{location}Connection: close\r\nContent-Length: {}\r\n\r\n{reply}",
            reply.len()
        ),
    };
    stream.write_all(answer.as_bytes()).await.ok()
}

/// Verifies signatures by the specification of Standard Webhooks, in Python: each of `secrets` must have signed each message.
const VERIFY: &str = r#"
import base64, hashlib, hmac, json, sys, time
given = json.load(sys.stdin)
for message in given["messages"]:
    assert abs(int(message["timestamp"]) - time.time()) < 300, message
    content = f"{message['id']}.{message['timestamp']}.{message['body']}".encode()
    sent = [part.split(",", 1) for part in message["signature"].split(" ")]
    assert len(sent) == len(given["secrets"]) and all(version == "v1" for version, _ in sent), message
    for secret in given["secrets"]:
        key = base64.b64decode(secret.removeprefix("whsec_"))
        expected = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
        assert any(hmac.compare_digest(expected, value) for _, value in sent), message
"#;

/// Checks that all of these secrets have signed all of these messages, and nothing else has.
///
/// # Panics
/// A signature is missing or wrong.
pub fn assert_signed(messages: &[ReceivedMessage], secrets: &[&str]) {
    assert!(!messages.is_empty());
    let messages = messages.iter().map(|message| {
        json!({ "id": message.id, "timestamp": message.timestamp, "signature": message.signature, "body": message.body })
    });
    let given = json!({ "messages": messages.collect::<Vec<_>>(), "secrets": secrets });
    let mut python = Command::new("python3")
        .args(["-c", VERIFY])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    python.stdin.take().expect("a pipe").write_all(given.to_string().as_bytes()).expect("python3 reads");
    let output = python.wait_with_output().expect("python3 ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
