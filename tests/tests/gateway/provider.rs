//! An OpenID Connect provider: its description and its keys over HTTP, and tokens that it signs.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

/// A key of a provider.
pub struct SigningKey {
    id: &'static str,
    pair: EcdsaKeyPair,
}

impl SigningKey {
    /// Creates a key.
    pub fn generate(id: &'static str) -> Self {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a new key");
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).expect("its own form");
        Self { id, pair }
    }

    /// Returns a signed token.
    pub fn sign(&self, header: &Value, claims: &Value) -> String {
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let content = format!("{}.{}", encode(header), encode(claims));
        let signature = self.pair.sign(&SystemRandom::new(), content.as_bytes()).expect("a signature");
        format!("{content}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }

    fn to_json(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        let (x, y) = (URL_SAFE_NO_PAD.encode(&point[1..33]), URL_SAFE_NO_PAD.encode(&point[33..]));
        json!({ "kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": self.id, "use": "sig", "alg": "ES256" })
    }
}

/// A provider.
pub struct IdentityProvider {
    address: SocketAddr,
    keys: Arc<Mutex<Value>>,
    requests: Arc<AtomicUsize>,
    server: AbortHandle,
}

impl IdentityProvider {
    /// Starts a provider with these keys.
    pub async fn start(keys: &[&SigningKey]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let published = Arc::new(Mutex::new(key_set(keys)));
        let requests = Arc::new(AtomicUsize::new(0));
        let (served, count) = (published.clone(), requests.clone());
        let server = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                let mut bytes = [0; 4096];
                let Ok(read) = stream.read(&mut bytes).await else { continue };
                let request = String::from_utf8_lossy(&bytes[..read]).into_owned();
                let issuer = format!("http://{address}");
                let body = match request.split(' ').nth(1) {
                    Some("/.well-known/openid-configuration") => {
                        json!({ "issuer": issuer, "jwks_uri": format!("{issuer}/keys") })
                    }
                    _ => served.lock().expect("no test panicked with the lock").clone(),
                }
                .to_string();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
                drop(stream.write_all(answer.as_bytes()).await);
            }
        });
        Self { address, keys: published, requests, server: server.abort_handle() }
    }

    /// The issuer.
    pub fn issuer(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Replaces the keys.
    pub fn publish(&self, keys: &[&SigningKey]) {
        *self.keys.lock().expect("no test panicked with the lock") = key_set(keys);
    }

    /// The number of requests so far.
    pub fn request_count(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// Stops responding.
    pub fn stop(&self) {
        self.server.abort();
    }
}

fn key_set(keys: &[&SigningKey]) -> Value {
    let unknown = json!({ "kty": "new", "kid": "k0" });
    let all: Vec<Value> = std::iter::once(unknown).chain(keys.iter().map(|key| key.to_json())).collect();
    json!({ "keys": all })
}
