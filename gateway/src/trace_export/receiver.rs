//! Requests to the receiver of traces.

use std::io::Write;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use millrace_protocol::secrets::redact_text;
use millrace_traces::Span;
use millrace_traces::otlp::{TraceResource, read_rejection, to_json, to_protobuf};
use reqwest::StatusCode;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use super::settings::{ExportSettings, OtlpProtocol};

/// The maximum length of a receiver's message in the log.
const MAX_MESSAGE: usize = 300;

/// A receiver of traces over OTLP/HTTP.
pub struct OtlpReceiver {
    client: reqwest::Client,
    url: url::Url,
    protocol: OtlpProtocol,
    is_compressed: bool,
    resource: TraceResource,
}

#[derive(Debug)]
pub enum SendOutcome {
    Accepted,
    /// The receiver can't use the spans, or some of them: sending them again does not help.
    Rejected(String),
    /// The receiver does not answer, refuses the sender or is overloaded: the spans are to be sent again.
    Unavailable {
        reason: String,
        /// When the receiver wants the next request.
        retry_after: Option<Duration>,
    },
}

impl OtlpReceiver {
    /// Creates the receiver that the settings name.
    ///
    /// # Errors
    /// A header or the certificate can't be used: an error text for the user.
    pub fn new(settings: &ExportSettings) -> Result<Self, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in &settings.headers {
            let wrong = || {
                format!("OTEL_EXPORTER_OTLP_HEADERS: {name:?} is not a header, or its value can't be sent")
            };
            let mut value = HeaderValue::from_str(value).map_err(|_| wrong())?;
            value.set_sensitive(true);
            headers.insert(HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?, value);
        }
        // An error means that another part of the process has installed a provider, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(settings.timeout)
            .default_headers(headers)
            .user_agent(concat!("millrace/", env!("CARGO_PKG_VERSION")));
        if let Some(file) = &settings.certificate {
            let wrong = |error: &dyn std::fmt::Display| {
                format!("OTEL_EXPORTER_OTLP_CERTIFICATE: can't use {file}: {error}")
            };
            let text = std::fs::read(file).map_err(|error| wrong(&error))?;
            let all = reqwest::Certificate::from_pem_bundle(&text).map_err(|error| wrong(&error))?;
            client = all.into_iter().fold(client, reqwest::ClientBuilder::add_root_certificate);
        }
        Ok(Self {
            client: client.build().map_err(|error| format!("can't create an HTTP client: {error}"))?,
            url: settings.url.clone(),
            protocol: settings.protocol,
            is_compressed: settings.is_compressed,
            resource: settings.traces.resource.clone(),
        })
    }

    /// The URL, without what may be secret in it.
    pub fn url(&self) -> String {
        self.url.origin().ascii_serialization() + self.url.path()
    }

    pub async fn send(&self, spans: &[Span]) -> SendOutcome {
        let (kind, body) = match self.protocol {
            OtlpProtocol::Protobuf => ("application/x-protobuf", to_protobuf(spans, &self.resource)),
            OtlpProtocol::Json => ("application/json", to_json(spans, &self.resource).into_bytes()),
        };
        let mut request = self.client.post(self.url.clone()).header(CONTENT_TYPE, kind);
        request = match self.is_compressed {
            true => request.header(CONTENT_ENCODING, "gzip").body(compress(&body)),
            false => request.body(body),
        };
        match request.send().await {
            Err(error) => SendOutcome::Unavailable {
                reason: millrace_runtime::program::format_with_causes(&error.without_url()),
                retry_after: None,
            },
            Ok(response) => self.read_response(response).await,
        }
    }

    async fn read_response(&self, response: reqwest::Response) -> SendOutcome {
        let status = response.status();
        let wanted = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let body = response.bytes().await.unwrap_or_default();
        if status.is_success() {
            let rejection = read_rejection(&body, self.protocol == OtlpProtocol::Json);
            return rejection.map_or(SendOutcome::Accepted, SendOutcome::Rejected);
        }
        let text: String = redact_text(&String::from_utf8_lossy(&body)).chars().take(MAX_MESSAGE).collect();
        let reason = format!("{status}: {}", text.escape_debug());
        match status {
            // The request itself is wrong, and would be again.
            StatusCode::BAD_REQUEST
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE
            | StatusCode::UNPROCESSABLE_ENTITY => SendOutcome::Rejected(reason),
            // Wrong keys and paths are mended by a person; until then nothing may be lost.
            _ => SendOutcome::Unavailable { reason, retry_after: wanted.map(Duration::from_secs) },
        }
    }
}

fn compress(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body).and_then(|()| encoder.finish()).expect("writing to memory can't fail")
}
