//! A minimal NATS client for requests that Millrace never makes. It reports exactly what the server refuses.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde_json::{Value, json};

/// The timeout for replies that may not come.
const SILENCE: Duration = Duration::from_millis(400);
/// The timeout of any other step.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A connection with a seed.
pub struct RawNatsClient {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    /// The prefix of its inbox subjects.
    pub inbox: String,
    subscriptions: u32,
    refused: Vec<String>,
    /// The received payloads.
    received: Vec<Vec<u8>>,
}

impl RawNatsClient {
    /// Connects with the seed in a file, and with the JWT if the file has one.
    pub fn connect(port: u16, file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap();
        let line = |head| text.lines().map(str::trim).find(|line| line.starts_with(head));
        let pair = KeyPair::from_seed(line("SU").unwrap()).unwrap();
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut greeting = String::new();
        reader.read_line(&mut greeting).unwrap();
        let greeting: Value = serde_json::from_str(greeting.strip_prefix("INFO ").unwrap()).unwrap();
        let signature = pair.sign(greeting["nonce"].as_str().unwrap().as_bytes()).unwrap();
        let mut hello = json!({
            "verbose": false, "pedantic": false, "headers": true, "no_responders": true, "lang": "by hand",
            "version": "0", "sig": URL_SAFE_NO_PAD.encode(signature),
        });
        match line("eyJ") {
            Some(token) => hello["jwt"] = token.into(),
            None => hello["nkey"] = pair.public_key().into(),
        }
        let inbox = millrace_runtime::nats::access::inbox_prefix_of_key(&pair.public_key());
        let mut raw =
            Self { stream, reader, inbox, subscriptions: 0, refused: Vec::new(), received: Vec::new() };
        raw.send_bytes(format!("CONNECT {hello}\r\n").as_bytes());
        assert_eq!(raw.flush_and_read_errors(), Vec::<String>::new(), "the server accepts the connection");
        raw
    }

    /// `true` if it may publish to a subject.
    pub fn may_publish(&mut self, subject: &str) -> bool {
        self.publish_and_read_errors(subject, "", &[], b"").is_empty()
    }

    /// `true` if it may subscribe to a subject.
    pub fn may_subscribe(&mut self, subject: &str) -> bool {
        let refused = self.subscribe_and_read_errors(subject);
        self.send_bytes(format!("UNSUB {}\r\n", self.subscriptions).as_bytes());
        refused.is_empty()
    }

    /// Subscribes to a subject; returns what the server refuses.
    pub fn subscribe_and_read_errors(&mut self, subject: &str) -> Vec<String> {
        self.subscriptions += 1;
        self.send_bytes(format!("SUB {subject} {}\r\n", self.subscriptions).as_bytes());
        self.flush_and_read_errors()
    }

    /// Publishes a message; returns what the server refuses.
    pub fn publish_and_read_errors(
        &mut self,
        subject: &str,
        reply: &str,
        headers: &[(&str, &str)],
        payload: &[u8],
    ) -> Vec<String> {
        let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = if headers.is_empty() { String::new() } else { format!("NATS/1.0\r\n{lines}\r\n") };
        let size = head.len() + payload.len();
        let line = match headers {
            [] => format!("PUB {subject} {reply} {size}\r\n"),
            _ => format!("HPUB {subject} {reply} {} {size}\r\n", head.len()),
        };
        self.send_bytes(&[line.as_bytes(), head.as_bytes(), payload, b"\r\n"].concat());
        self.flush_and_read_errors()
    }

    /// Sends a request and waits for the reply, which is JSON or returned as text; `None` if there is none.
    pub fn request_json(&mut self, subject: &str, question: &Value) -> Option<Value> {
        let reply = format!("{}.{}", self.inbox, self.subscriptions);
        self.subscribe_and_read_errors(&reply);
        self.received.clear();
        self.publish_and_read_errors(subject, &reply, &[], question.to_string().as_bytes());
        let reply = self.next_payload()?;
        let text = String::from_utf8_lossy(&reply).into_owned();
        Some(serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// The payload of the next message, if one arrives in time.
    pub fn next_payload(&mut self) -> Option<Vec<u8>> {
        let started = Instant::now();
        while self.received.is_empty() && started.elapsed() < SILENCE {
            std::thread::sleep(Duration::from_millis(5));
            self.flush_and_read_errors();
        }
        (!self.received.is_empty()).then(|| self.received.remove(0))
    }

    fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Waits until the server has processed everything; returns what it refused.
    fn flush_and_read_errors(&mut self) -> Vec<String> {
        self.send_bytes(b"PING\r\n");
        loop {
            let mut line = String::new();
            assert!(
                self.reader.read_line(&mut line).unwrap() > 0,
                "the server closed the connection: {:?}",
                self.refused
            );
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[0] {
                "PONG" => return std::mem::take(&mut self.refused),
                "PING" => self.send_bytes(b"PONG\r\n"),
                "-ERR" => self.refused.push(line.trim().to_owned()),
                "MSG" => self.receive_message(0, words[words.len() - 1]),
                "HMSG" => {
                    self.receive_message(words[words.len() - 2].parse().unwrap(), words[words.len() - 1])
                }
                _ => {}
            }
        }
    }

    fn receive_message(&mut self, head: usize, size: &str) {
        let mut bytes = vec![0; size.parse::<usize>().unwrap() + 2];
        self.reader.read_exact(&mut bytes).unwrap();
        self.received.push(bytes[head..bytes.len() - 2].to_vec());
    }
}
