//! A provider on loopback, down to the byte: it reads one request a connection, keeps it, and sends what it was told,
//! in the pieces it was told, breaking off where it was told.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    pub line: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// What the stub does after it has read a request.
#[derive(Debug, Clone)]
pub enum Act {
    /// Sends bytes as they are, status line and framing included.
    Send(Vec<u8>),
    /// Waits.
    Pause(Duration),
    /// Closes the connection as a process that is killed does: by a reset.
    Reset,
    /// Waits for the client to go, and keeps that it went.
    AwaitClose,
    /// Reads the next request on the same connection.
    Next,
}

pub struct Stub {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    closed: Arc<tokio::sync::Notify>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stub {
    /// Does the same on every connection.
    pub async fn new(acts: Vec<Act>) -> Self {
        Self::in_turn(vec![acts]).await
    }

    /// Does one after the other, and the last on every further connection.
    pub async fn in_turn(all: Vec<Vec<Act>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let closed = Arc::new(tokio::sync::Notify::new());
        let (kept, told) = (Arc::clone(&seen), Arc::clone(&closed));
        let task = tokio::spawn(async move {
            for turn in 0.. {
                let Ok((stream, _)) = listener.accept().await else { return };
                let acts = all[turn.min(all.len() - 1)].clone();
                tokio::spawn(serve(stream, acts, Arc::clone(&kept), Arc::clone(&told)));
            }
        });
        Self { address, seen, closed, task }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The only request that came.
    pub fn only(&self) -> Seen {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen[0].clone()
    }

    /// Until a client has gone while the stub awaited it.
    pub async fn client_went(&self) {
        let patience = Duration::from_secs(10);
        tokio::time::timeout(patience, self.closed.notified())
            .await
            .expect("the client let go of the connection");
    }
}

async fn serve(
    mut stream: TcpStream,
    acts: Vec<Act>,
    seen: Arc<Mutex<Vec<Seen>>>,
    closed: Arc<tokio::sync::Notify>,
) {
    stream.set_nodelay(true).unwrap();
    let Some(request) = read(&mut stream).await else { return };
    seen.lock().unwrap().push(request);
    for act in acts {
        match act {
            Act::Send(bytes) => {
                if stream.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            Act::Pause(time) => tokio::time::sleep(time).await,
            Act::Reset => {
                stream.set_zero_linger().unwrap();
                return;
            }
            Act::Next => {
                let Some(request) = read(&mut stream).await else { return };
                seen.lock().unwrap().push(request);
            }
            Act::AwaitClose => {
                let mut rest = [0; 64];
                while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
                closed.notify_one();
            }
        }
    }
    let _ = stream.shutdown().await;
}

async fn read(stream: &mut TcpStream) -> Option<Seen> {
    let mut held = Vec::new();
    let head = loop {
        if let Some(at) = held.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(&mut held).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8(held[..head].to_vec()).unwrap();
    let mut lines = text.split("\r\n");
    let line = lines.next()?.to_owned();
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length =
        headers.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, n)| n.parse().unwrap());
    while held.len() < head + 4 + length {
        if stream.read_buf(&mut held).await.ok()? == 0 {
            return None;
        }
    }
    let body = String::from_utf8(held[head + 4..].to_vec()).unwrap();
    Some(Seen { line, headers, body })
}

/// The head of an answer.
pub fn head(status: u16, headers: &[(&str, &str)]) -> Vec<u8> {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("HTTP/1.1 {status} Whatever\r\n{headers}connection: close\r\n\r\n").into_bytes()
}

/// An answer in chunks on a connection that stays open. Its end comes a little after its last event, as with servers
/// that only then see that they are done.
pub fn kept_open(kind: &str, body: &[u8]) -> Vec<Act> {
    let first = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
    let size = format!("{:x}\r\n", body.len());
    let all = [first.as_bytes(), size.as_bytes(), body, b"\r\n"].concat();
    vec![Act::Send(all), Act::Pause(Duration::from_millis(5)), Act::Send(b"0\r\n\r\n".to_vec())]
}

/// A whole answer of known length.
pub fn answer(status: u16, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Vec<Act> {
    let body = body.as_ref();
    let length = body.len().to_string();
    let mut all = headers.to_vec();
    all.push(("content-length", &length));
    vec![Act::Send([head(status, &all), body.to_vec()].concat())]
}

/// An answer in chunks, with its end.
pub fn chunked(kind: &str, pieces: &[&[u8]]) -> Vec<Act> {
    let mut acts = cut_short(kind, pieces);
    acts.push(Act::Send(b"0\r\n\r\n".to_vec()));
    acts
}

/// An answer in chunks that never ends.
pub fn cut_short(kind: &str, pieces: &[&[u8]]) -> Vec<Act> {
    let first = head(200, &[("content-type", kind), ("transfer-encoding", "chunked")]);
    let chunks = pieces.iter().filter(|piece| !piece.is_empty()).map(|piece| {
        let size = format!("{:x}\r\n", piece.len()).into_bytes();
        Act::Send([&size, *piece, b"\r\n"].concat())
    });
    std::iter::once(Act::Send(first)).chain(chunks).collect()
}
