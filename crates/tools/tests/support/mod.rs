//! A test HTTP server on this machine with configurable, possibly broken responses.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// A received request.
pub struct Request {
    pub path: String,
    /// `name: value`, names in lower case.
    pub headers: Vec<String>,
    pub body: Vec<u8>,
}

/// A response of the test server.
pub struct Response {
    pub status: u16,
    pub content_type: &'static str,
    pub location: Option<String>,
    pub encoding: Option<&'static str>,
    pub body: Vec<u8>,
    /// Repeats the body endlessly, with this pause in between.
    pub endless: Option<Duration>,
}

impl Response {
    pub fn new(content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, content_type, location: None, encoding: None, body: body.into(), endless: None }
    }

    pub fn html(body: &str) -> Self {
        Self::new("text/html", body)
    }

    pub fn redirect(to: &str) -> Self {
        Self { status: 302, location: Some(to.to_owned()), ..Self::new("text/plain", "") }
    }

    fn head(&self) -> String {
        let mut head = format!(
            "HTTP/1.1 {} x\r\ncontent-type: {}\r\nconnection: close\r\n",
            self.status, self.content_type
        );
        if let Some(location) = &self.location {
            head.push_str(&format!("location: {location}\r\n"));
        }
        if let Some(encoding) = self.encoding {
            head.push_str(&format!("content-encoding: {encoding}\r\n"));
        }
        if self.endless.is_none() {
            head.push_str(&format!("content-length: {}\r\n", self.body.len()));
        }
        head + "set-cookie: session=1\r\n\r\n"
    }
}

/// A test server. Stops when dropped.
pub struct Server {
    address: SocketAddr,
    request_count: Arc<AtomicUsize>,
    serving: AbortHandle,
}

impl Server {
    pub async fn start(answer: impl Fn(Request) -> Response + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let request_count = Arc::new(AtomicUsize::new(0));
        let (answer, count) = (Arc::new(answer), Arc::clone(&request_count));
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let answer = Arc::clone(&answer);
                tokio::spawn(async move { drop(serve(stream, &*answer).await) });
            }
        });
        Self { address, request_count, serving: serving.abort_handle() }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn request_count(&self) -> usize {
        self.request_count.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(stream: TcpStream, answer: &(impl Fn(Request) -> Response + ?Sized)) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let request = read(&mut stream).await?;
    let answer = answer(request);
    stream.write_all(answer.head().as_bytes()).await?;
    stream.write_all(&answer.body).await?;
    while let Some(pause) = answer.endless {
        tokio::time::sleep(pause).await;
        stream.write_all(&answer.body).await?;
    }
    stream.shutdown().await
}

async fn read(stream: &mut BufReader<TcpStream>) -> std::io::Result<Request> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut lines = head.trim_end().split("\r\n");
    let path = lines.next().unwrap().split(' ').nth(1).unwrap().to_owned();
    let headers: Vec<String> = lines
        .map(|line| {
            line.split_once(": ").map_or_else(|| line.into(), |(n, v)| format!("{}: {v}", n.to_lowercase()))
        })
        .collect();
    let length = headers.iter().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await?;
    Ok(Request { path, headers, body })
}
