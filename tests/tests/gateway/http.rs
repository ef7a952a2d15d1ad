//! A small HTTP client that shows what is on the wire: it can be slow, and can stop at any byte.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// The time in which a whole answer must arrive.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A request.
#[derive(Debug, Clone)]
pub struct Request {
    /// The method.
    pub method: &'static str,
    /// The path with its query.
    pub path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The head, in lowercase.
    pub head: String,
    /// The body.
    pub body: Vec<u8>,
}

impl Request {
    /// A request without a body.
    pub fn new(method: &'static str, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), headers: Vec::new(), body: Vec::new() }
    }

    /// The same with a header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same with a body of JSON.
    pub fn json(self, body: &Value) -> Self {
        self.body("application/json", body.to_string().into_bytes())
    }

    /// The same with a body.
    pub fn body(mut self, media_type: &str, body: Vec<u8>) -> Self {
        self.body = body;
        self.header("Content-Type", media_type)
    }

    /// Its bytes. A host is named unless the headers do.
    pub fn to_bytes(&self, address: SocketAddr) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        if !self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head += &format!("Host: {address}\r\n");
        }
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("Connection: close\r\nContent-Length: {}\r\n\r\n", self.body.len());
        [head.into_bytes(), self.body.clone()].concat()
    }

    /// Sends it and reads the whole answer; `None` if the connection fails.
    pub async fn try_send(&self, address: SocketAddr) -> Option<Answer> {
        let exchange = async {
            let mut stream = TcpStream::connect(address).await.ok()?;
            stream.write_all(&self.to_bytes(address)).await.ok()?;
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).await.ok()?;
            Answer::parse(&bytes)
        };
        tokio::time::timeout(TIMEOUT, exchange).await.ok()?
    }

    /// Sends it and reads the whole answer.
    ///
    /// # Panics
    /// There is none.
    pub async fn send(&self, address: SocketAddr) -> Answer {
        self.try_send(address).await.unwrap_or_else(|| panic!("no answer to {} {}", self.method, self.path))
    }
}

impl Answer {
    /// Parses an answer that may have been cut. `None` if its head was.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let body = &bytes[end + 4..];
        let body =
            if head.contains("transfer-encoding: chunked") { decode_chunks(body) } else { body.to_vec() };
        Some(Self { status, head, body })
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")))
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Decodes chunks; of the last one, as much as there is.
fn decode_chunks(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") {
        let size =
            std::str::from_utf8(&bytes[..end]).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
        let Some(size) = size.filter(|size| *size > 0) else { break };
        let rest = &bytes[end + 2..];
        body.extend_from_slice(&rest[..size.min(rest.len())]);
        match rest.get(size + 2..) {
            Some(next) => bytes = next,
            None => break,
        }
    }
    body
}

/// A frame of an event stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its id; `None` for a notice.
    pub id: Option<String>,
    /// Its name.
    pub event: String,
    /// Its data.
    pub data: String,
}

impl Frame {
    /// Returns the complete frames of a stream; comments are left out.
    pub fn parse_all(bytes: &[u8]) -> Vec<Self> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let complete = text.rfind("\n\n").map_or("", |end| &text[..end]);
        let frame = |block: &str| {
            let field =
                |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
            Some(Self { id: field("id: "), event: field("event: ")?, data: field("data: ")? })
        };
        complete.split("\n\n").filter_map(frame).collect()
    }

    /// The data as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Reads a stream of events until it ends, or until `cut` bytes have arrived. Empty if there is no connection.
pub async fn read_events(address: SocketAddr, request: &Request, cut: Option<usize>) -> Vec<Frame> {
    let Ok(mut stream) = TcpStream::connect(address).await else { return Vec::new() };
    if stream.write_all(&request.to_bytes(address)).await.is_err() {
        return Vec::new();
    }
    let mut bytes = Vec::new();
    let reading = async {
        let mut buffer = [0; 4096];
        while cut.is_none_or(|cut| bytes.len() < cut) {
            let room = cut.map_or(buffer.len(), |cut| buffer.len().min(cut - bytes.len()));
            match stream.read(&mut buffer[..room]).await {
                Ok(0) | Err(_) => break,
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            }
        }
    };
    assert!(
        tokio::time::timeout(TIMEOUT, reading).await.is_ok(),
        "the stream does not end: {}",
        request.path
    );
    match Answer::parse(&bytes) {
        Some(answer) => {
            assert_eq!(answer.status, 200, "{}", answer.text());
            Frame::parse_all(&answer.body)
        }
        None => Vec::new(),
    }
}

/// Reads a stream of events until `cut` bytes have arrived, for a limited time. Empty if there is no connection.
pub async fn read_events_for(
    address: SocketAddr,
    request: &Request,
    cut: usize,
    time: Duration,
) -> Vec<Frame> {
    let mut bytes = Vec::new();
    let reading = async {
        let Ok(mut stream) = TcpStream::connect(address).await else {
            return tokio::time::sleep(Duration::from_millis(20)).await;
        };
        if stream.write_all(&request.to_bytes(address)).await.is_err() {
            return;
        }
        let mut buffer = [0; 4096];
        while bytes.len() < cut {
            let room = buffer.len().min(cut - bytes.len());
            match stream.read(&mut buffer[..room]).await {
                Ok(0) | Err(_) => break,
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            }
        }
    };
    // A stream of all runs never ends.
    let _ = tokio::time::timeout(time, reading).await;
    match Answer::parse(&bytes) {
        Some(answer) => {
            assert_eq!(answer.status, 200, "{}", answer.text());
            Frame::parse_all(&answer.body)
        }
        None => Vec::new(),
    }
}

/// Opens a stream, reads nothing for a while, and then all of it. Little fits into the buffers of its connection.
pub async fn read_events_late(address: SocketAddr, request: &Request, pause: Duration) -> Vec<Frame> {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(8 * 1024).expect("a small buffer");
    let mut stream = socket.connect(address).await.expect("a connection");
    stream.write_all(&request.to_bytes(address)).await.expect("the request is sent");
    tokio::time::sleep(pause).await;
    let mut bytes = Vec::new();
    let reading = stream.read_to_end(&mut bytes);
    tokio::time::timeout(TIMEOUT, reading).await.expect("the stream ends").expect("the stream is read");
    Frame::parse_all(&Answer::parse(&bytes).expect("an answer").body)
}
