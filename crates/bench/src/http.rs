//! A small HTTP client: it must cost much less than what it measures.

use std::net::SocketAddr;

use anyhow::{Context, anyhow, bail};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection that stays open.
pub struct HttpConnection {
    stream: TcpStream,
    address: SocketAddr,
    received: Vec<u8>,
}

pub struct HttpResponse {
    pub status: u16,
    pub body: Vec<u8>,
}

impl HttpResponse {
    /// Returns the body as JSON.
    pub fn json(&self, status: u16) -> anyhow::Result<Value> {
        if self.status != status {
            bail!("status {} instead of {status}: {}", self.status, String::from_utf8_lossy(&self.body));
        }
        Ok(serde_json::from_slice(&self.body)?)
    }
}

impl HttpConnection {
    /// Connects to a gateway.
    pub async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await.context("connecting to the gateway")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, address, received: Vec::new() })
    }

    /// Sends a request and reads the whole response.
    pub async fn send(&mut self, method: &str, path: &str, body: &str) -> anyhow::Result<HttpResponse> {
        self.write_request(method, path, body).await?;
        let head = self.read_head().await?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.ok_or_else(|| anyhow!("a response without a length"))?.parse()?;
        while self.received.len() < length {
            self.read_more().await?;
        }
        let rest = self.received.split_off(length);
        let body = std::mem::replace(&mut self.received, rest);
        Ok(HttpResponse { status: parse_status(&head)?, body })
    }

    /// Sends a request for a stream, and reads the head of the response.
    pub async fn open_stream(&mut self, path: &str) -> anyhow::Result<()> {
        self.write_request("GET", path, "").await?;
        match parse_status(&self.read_head().await?)? {
            200 => Ok(()),
            status => bail!("{path}: status {status}"),
        }
    }

    /// Waits for more bytes of a stream, and returns all that have arrived.
    pub async fn read_stream(&mut self) -> anyhow::Result<Vec<u8>> {
        if self.received.is_empty() {
            self.read_more().await?;
        }
        Ok(std::mem::take(&mut self.received))
    }

    async fn write_request(&mut self, method: &str, path: &str, body: &str) -> anyhow::Result<()> {
        let (host, length) = (self.address, body.len());
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        Ok(self.stream.write_all(request.as_bytes()).await?)
    }

    /// Reads the head of a response, in lowercase.
    async fn read_head(&mut self) -> anyhow::Result<String> {
        loop {
            if let Some(end) = self.received.windows(4).position(|window| window == b"\r\n\r\n") {
                let rest = self.received.split_off(end + 4);
                let head = std::mem::replace(&mut self.received, rest);
                return Ok(String::from_utf8_lossy(&head).to_lowercase());
            }
            self.read_more().await?;
        }
    }

    async fn read_more(&mut self) -> anyhow::Result<()> {
        match self.stream.read_buf(&mut self.received).await? {
            0 => Err(anyhow!("the gateway closed the connection")),
            _ => Ok(()),
        }
    }
}

fn parse_status(head: &str) -> anyhow::Result<u16> {
    let status = head.split(' ').nth(1).ok_or_else(|| anyhow!("no HTTP response: {head:?}"))?;
    Ok(status.parse()?)
}
