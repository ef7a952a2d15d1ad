//! A connection to a NATS server by hand, for whoever wants to try what a process of ours never would. It says exactly
//! what the server refuses.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde_json::{Value, json};

/// How long an answer is waited for that may not come.
const SILENCE: Duration = Duration::from_millis(400);
/// How long the server may take for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// Someone who holds a seed.
pub struct Raw {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    /// Its inbox, below which it may listen.
    pub inbox: String,
    subscriptions: u32,
    refused: Vec<String>,
    /// The payloads that came.
    heard: Vec<Vec<u8>>,
}

impl Raw {
    /// Connects with the seed of a file, and with the JWT where it holds one.
    pub fn connect(port: u16, file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap();
        let line = |head| text.lines().map(str::trim).find(|line| line.starts_with(head));
        let pair = KeyPair::from_seed(line("SU").unwrap()).unwrap();
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
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
        let inbox = millrace_runtime::access::inbox(&pair.public_key());
        let mut raw =
            Self { stream, reader, inbox, subscriptions: 0, refused: Vec::new(), heard: Vec::new() };
        raw.send(format!("CONNECT {hello}\r\n").as_bytes());
        assert_eq!(raw.round(), Vec::<String>::new(), "it is let in");
        raw
    }

    /// Whether it may publish to a subject.
    pub fn may_publish(&mut self, subject: &str) -> bool {
        self.publish(subject, "", &[], b"").is_empty()
    }

    /// Whether it may listen to a subject.
    pub fn may_hear(&mut self, subject: &str) -> bool {
        let refused = self.hear(subject);
        self.send(format!("UNSUB {}\r\n", self.subscriptions).as_bytes());
        refused.is_empty()
    }

    /// Listens to a subject; says what the server refuses.
    pub fn hear(&mut self, subject: &str) -> Vec<String> {
        self.subscriptions += 1;
        self.send(format!("SUB {subject} {}\r\n", self.subscriptions).as_bytes());
        self.round()
    }

    /// Publishes; says what the server refuses.
    pub fn publish(
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
        self.send(&[line.as_bytes(), head.as_bytes(), payload, b"\r\n"].concat());
        self.round()
    }

    /// Asks and waits for the answer, which is JSON or is shown as text; `None` if there is none.
    pub fn ask(&mut self, subject: &str, question: &Value) -> Option<Value> {
        let reply = format!("{}.{}", self.inbox, self.subscriptions);
        self.hear(&reply);
        self.heard.clear();
        self.publish(subject, &reply, &[], question.to_string().as_bytes());
        let heard = self.next()?;
        let text = String::from_utf8_lossy(&heard).into_owned();
        Some(serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// The payload of the next message that comes within a moment.
    pub fn next(&mut self) -> Option<Vec<u8>> {
        let started = Instant::now();
        while self.heard.is_empty() && started.elapsed() < SILENCE {
            std::thread::sleep(Duration::from_millis(5));
            self.round();
        }
        (!self.heard.is_empty()).then(|| self.heard.remove(0))
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Waits until the server has seen everything, and says what it refused of that.
    fn round(&mut self) -> Vec<String> {
        self.send(b"PING\r\n");
        loop {
            let mut line = String::new();
            assert!(self.reader.read_line(&mut line).unwrap() > 0, "the server hangs up: {:?}", self.refused);
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[0] {
                "PONG" => return std::mem::take(&mut self.refused),
                "PING" => self.send(b"PONG\r\n"),
                "-ERR" => self.refused.push(line.trim().to_owned()),
                "MSG" => self.take(0, words[words.len() - 1]),
                "HMSG" => self.take(words[words.len() - 2].parse().unwrap(), words[words.len() - 1]),
                _ => {}
            }
        }
    }

    fn take(&mut self, head: usize, size: &str) {
        let mut bytes = vec![0; size.parse::<usize>().unwrap() + 2];
        self.reader.read_exact(&mut bytes).unwrap();
        self.heard.push(bytes[head..bytes.len() - 2].to_vec());
    }
}
