//! A stub provider on loopback with control over every byte: it reads one request per connection, stores it, and sends
//! configured chunks or breaks the connection.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A received request.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    pub line: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl ReceivedRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// An action of the stub after it has read a request.
#[derive(Debug, Clone)]
pub enum StubAction {
    /// Sends raw bytes, including status line and framing.
    Send(Vec<u8>),
    /// Waits for a while.
    Pause(Duration),
    /// Resets the connection, as if the process was killed.
    Reset,
    /// Waits until the client disconnects, and records that it did.
    AwaitClose,
    /// Reads the next request on the same connection.
    Next,
}

pub struct Stub {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<ReceivedRequest>>>,
    closed: Arc<tokio::sync::Notify>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stub {
    /// Starts a stub that performs the same actions on every connection.
    pub async fn new(actions: Vec<StubAction>) -> Self {
        Self::in_turn(vec![actions]).await
    }

    /// Starts a stub with actions for each connection; the last ones repeat.
    pub async fn in_turn(all: Vec<Vec<StubAction>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let closed = Arc::new(tokio::sync::Notify::new());
        let (seen_requests, closed_flag) = (Arc::clone(&seen), Arc::clone(&closed));
        let task = tokio::spawn(async move {
            for turn in 0.. {
                let Ok((stream, _)) = listener.accept().await else { return };
                let actions = all[turn.min(all.len() - 1)].clone();
                tokio::spawn(serve(stream, actions, Arc::clone(&seen_requests), Arc::clone(&closed_flag)));
            }
        });
        Self { address, seen, closed, task }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn seen(&self) -> Vec<ReceivedRequest> {
        self.seen.lock().unwrap().clone()
    }

    /// Returns the only request received.
    pub fn only_request(&self) -> ReceivedRequest {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen[0].clone()
    }

    /// Waits until a client has disconnected during [`StubAction::AwaitClose`].
    pub async fn client_disconnected(&self) {
        let patience = Duration::from_secs(10);
        tokio::time::timeout(patience, self.closed.notified())
            .await
            .expect("the client closes the connection");
    }
}

async fn serve(
    mut stream: TcpStream,
    actions: Vec<StubAction>,
    seen: Arc<Mutex<Vec<ReceivedRequest>>>,
    closed: Arc<tokio::sync::Notify>,
) {
    stream.set_nodelay(true).unwrap();
    let Some(request) = read(&mut stream).await else { return };
    seen.lock().unwrap().push(request);
    for act in actions {
        match act {
            StubAction::Send(bytes) => {
                if stream.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            StubAction::Pause(time) => tokio::time::sleep(time).await,
            StubAction::Reset => {
                stream.set_zero_linger().unwrap();
                return;
            }
            StubAction::Next => {
                let Some(request) = read(&mut stream).await else { return };
                seen.lock().unwrap().push(request);
            }
            StubAction::AwaitClose => {
                let mut rest = [0; 64];
                while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
                closed.notify_one();
            }
        }
    }
    let _ = stream.shutdown().await;
}

/// Reads one request.
pub async fn read(stream: &mut TcpStream) -> Option<ReceivedRequest> {
    let mut buffer = Vec::new();
    let head = loop {
        if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(&mut buffer).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8(buffer[..head].to_vec()).unwrap();
    let mut lines = text.split("\r\n");
    let line = lines.next()?.to_owned();
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length =
        headers.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, n)| n.parse().unwrap());
    while buffer.len() < head + 4 + length {
        if stream.read_buf(&mut buffer).await.ok()? == 0 {
            return None;
        }
    }
    let body = String::from_utf8(buffer[head + 4..].to_vec()).unwrap();
    Some(ReceivedRequest { line, headers, body })
}

/// Returns the head of a response.
pub fn head(status: u16, headers: &[(&str, &str)]) -> Vec<u8> {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("HTTP/1.1 {status} Whatever\r\n{headers}connection: close\r\n\r\n").into_bytes()
}

/// A chunked response on a connection that stays open. Its last chunk follows shortly after its last event, as with
/// servers that notice the end late.
pub fn chunked_keep_alive(kind: &str, body: &[u8]) -> Vec<StubAction> {
    let first = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
    let size = format!("{:x}\r\n", body.len());
    let all = [first.as_bytes(), size.as_bytes(), body, b"\r\n"].concat();
    vec![
        StubAction::Send(all),
        StubAction::Pause(Duration::from_millis(5)),
        StubAction::Send(b"0\r\n\r\n".to_vec()),
    ]
}

/// A response with a content length.
pub fn response(status: u16, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Vec<StubAction> {
    let body = body.as_ref();
    let length = body.len().to_string();
    let mut all = headers.to_vec();
    all.push(("content-length", &length));
    vec![StubAction::Send([head(status, &all), body.to_vec()].concat())]
}

/// A complete chunked response.
pub fn chunked(kind: &str, pieces: &[&[u8]]) -> Vec<StubAction> {
    let mut actions = unterminated(kind, pieces);
    actions.push(StubAction::Send(b"0\r\n\r\n".to_vec()));
    actions
}

/// A chunked response without its last chunk.
pub fn unterminated(kind: &str, pieces: &[&[u8]]) -> Vec<StubAction> {
    let first = head(200, &[("content-type", kind), ("transfer-encoding", "chunked")]);
    let chunks = pieces.iter().filter(|piece| !piece.is_empty()).map(|piece| {
        let size = format!("{:x}\r\n", piece.len()).into_bytes();
        StubAction::Send([&size, *piece, b"\r\n"].concat())
    });
    std::iter::once(StubAction::Send(first)).chain(chunks).collect()
}
