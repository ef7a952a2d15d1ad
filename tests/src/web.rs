//! One question to an HTTP server, without a client library: the monitoring ports of servers and programs.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks for a path; gives the status and the body of the answer, or nothing where there is none.
pub async fn get(host: Ipv4Addr, port: u16, path: &str) -> Option<(u16, String)> {
    let asked = async {
        let mut stream = TcpStream::connect((host, port)).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.map(|_| answer)
    };
    let answer = tokio::time::timeout(PATIENCE, asked).await.ok()?.ok()?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}
