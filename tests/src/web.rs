//! A minimal HTTP client for the monitoring ports of servers and programs.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Sends a GET request for a path. Returns the status and the body, or `None` if there is no response.
pub async fn http_get(host: Ipv4Addr, port: u16, path: &str) -> Option<(u16, String)> {
    let response = async {
        let mut stream = TcpStream::connect((host, port)).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.map(|_| answer)
    };
    let answer = tokio::time::timeout(TIMEOUT, response).await.ok()?.ok()?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}
