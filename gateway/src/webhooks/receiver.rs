//! Requests to receivers. A receiver's URL comes from a user, so that its address is checked when the connection is made: only the
//! public internet is allowed, and networks that the operator names. Redirects are not followed.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use millrace_address_policy::{CheckedResolver, ReceiverPolicy, SystemDns};
use millrace_protocol::safe_text::is_unsafe;
use millrace_protocol::webhook::{AttemptOutcome, DeliveryAttempt, MAX_REPLY};
use millrace_runtime::clock;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use tokio::time::Instant;
use url::Url;

use super::outgoing::OutgoingRequest;

const CONNECT_TIME: Duration = Duration::from_secs(10);
/// The time for a request, from name resolution to the last byte of the reply that is read.
const REQUEST_TIME: Duration = Duration::from_secs(20);
/// The maximum length of an error in the record of an attempt, in characters.
const MAX_ERROR: usize = 300;

/// Sends messages to receivers.
pub struct ReceiverClient {
    client: reqwest::Client,
    policy: ReceiverPolicy,
}

impl ReceiverClient {
    /// Creates one.
    ///
    /// # Errors
    /// The TLS library can't be used: an error text for the user.
    pub fn new(policy: ReceiverPolicy) -> Result<Self, String> {
        // An error means that another part of the process has installed a provider, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let resolver = CheckedResolver::new(policy.networks(), Arc::new(SystemDns));
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIME)
            .timeout(REQUEST_TIME)
            // Connections are not reused: each one goes to an address that was checked for it.
            .pool_max_idle_per_host(0)
            .dns_resolver(Arc::new(resolver))
            .user_agent(concat!("millrace/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| format!("can't create an HTTP client: {error}"))?;
        Ok(Self { client, policy })
    }

    /// Sends a request, or notes why there is none.
    pub async fn send(&self, request: Result<OutgoingRequest, String>) -> AttemptOutcome {
        let (at, started) = (clock::now(), Instant::now());
        let secrets = request.as_ref().map(OutgoingRequest::secrets).unwrap_or_default();
        let response = match request {
            Ok(request) => match self.policy.parse_url(&request.url) {
                Ok(url) => self.post(url, request).await,
                Err(refusal) => Err(refusal),
            },
            Err(problem) => Err(problem),
        };
        let (status, error, reply, retry_after) = match response {
            Ok(response) => {
                let (status, retry_after) =
                    (response.status().as_u16(), find_retry_after(response.headers()));
                (Some(status), None, secrets.redact(&read_beginning(response).await), retry_after)
            }
            Err(error) => {
                (None, Some(secrets.redact(&error).chars().take(MAX_ERROR).collect()), String::new(), None)
            }
        };
        let milliseconds = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        AttemptOutcome { attempt: DeliveryAttempt { at, milliseconds, status, error, reply }, retry_after }
    }

    async fn post(&self, url: Url, request: OutgoingRequest) -> Result<reqwest::Response, String> {
        let OutgoingRequest { url: _, headers, body } = request;
        let request = self.client.post(url).headers(headers).body(body);
        request.send().await.map_err(|error| {
            // The text of the error itself repeats the URL, whose query may be secret.
            let mut text =
                if error.is_timeout() { "no response in time" } else { "request failed" }.to_owned();
            let mut source = error.source();
            while let Some(inner) = source {
                text = format!("{text}: {inner}");
                source = inner.source();
            }
            text
        })
    }
}

/// Returns the delay that a receiver wants, in seconds; other forms of the header are ignored.
fn find_retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Reads the beginning of a reply. What follows is not read.
async fn read_beginning(mut response: reqwest::Response) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < MAX_REPLY {
        match response.chunk().await {
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk[..chunk.len().min(MAX_REPLY - bytes.len())]),
            Ok(None) | Err(_) => break,
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    text.chars().map(|c| if is_unsafe(c) || (c.is_control() && c != '\n') { '\u{fffd}' } else { c }).collect()
}
