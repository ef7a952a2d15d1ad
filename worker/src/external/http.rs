//! The kind `http`: a service that gets the task as a POST request and responds with the result. Requests are retried
//! with backoff; the header `Idempotency-Key` lets the service recognise a repeated request.

use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use jiff::{SignedDuration, Timestamp};
use millrace_agent::spec::CapabilityFields;
use millrace_agent::tool::Effect;
use millrace_models::http_client::shared_client;
use millrace_protocol::provider::ProviderWait;
use millrace_protocol::result::{CapabilityDescription, ErrorKind, TaskError, TaskResult};
use millrace_protocol::secrets::{SecretRedactor, redact_bytes, redact_text, remember_secrets};
use millrace_strict_yaml::{
    MappingFields, MistakeCollector, Position, YamlMistake, YamlMistakes, YamlNode, YamlValue as Yaml,
};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Response, StatusCode, Url};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::files::WrittenFiles;
use super::{
    ExternalFailure, ExternalOutput, ExternalTask, ExternalWorkState, begin_or_resume_work, parse_effect,
    parse_timeout, record_output,
};
use crate::{Attempt, Capability, CapabilityOutcome};

const FIELDS: [&str; 4] = ["url", "headers", "timeout", "effect"];
/// The default timeout, including retries.
const TIMEOUT: Duration = Duration::from_secs(600);
/// The backoff before the second try; it doubles up to [`MAX_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Time without an answer after which the wait is reported.
const REPORTED_WAIT: Duration = Duration::from_secs(1);
/// The most bytes of a response.
const MAX_RESPONSE: usize = 16 * 1024 * 1024;
/// How much of an error response an error message quotes, in characters.
const MAX_QUOTED: usize = 500;

/// A service as a capability.
pub(crate) struct HttpCapability {
    pub about: CapabilityFields,
    url: Url,
    headers: HeaderMap,
    timeout: Duration,
    effect: Effect,
}

/// A request without a usable response.
struct FailedRequest {
    failure: ExternalFailure,
    /// `true` if a retry may succeed.
    is_transient: bool,
    /// The delay that the service asks for (`Retry-After`).
    wait: Option<Duration>,
}

impl HttpCapability {
    /// Reads a file. Headers are filled in from this process's environment.
    pub fn parse(root: &YamlNode) -> Result<Self, YamlMistakes> {
        let mut mistakes = MistakeCollector::default();
        let capability = Self::collect(root, &mut mistakes);
        mistakes.finish()?;
        Ok(capability.expect("a missing field is a mistake"))
    }

    fn collect(root: &YamlNode, mistakes: &mut MistakeCollector) -> Option<Self> {
        let known = super::append_common_fields(&FIELDS);
        let fields = MappingFields::collect_from_node(root, "capability of the kind http", &known, mistakes)?;
        let about = CapabilityFields::collect_fields(&fields, mistakes);
        let url = mistakes.check(fields.require_field("url").and_then(parse_url));
        if let Some(url) = &url {
            let mut secrets = SecretRedactor::default();
            secrets.add_url(url.as_str());
            remember_secrets(&secrets);
        }
        let headers = mistakes.check_optional(fields.find_field("headers").map(parse_headers));
        let timeout = mistakes.check(parse_timeout(&fields, TIMEOUT));
        let effect = mistakes.check(parse_effect(&fields, Effect::Idempotent));
        Some(Self {
            about: about?,
            url: url?,
            headers: headers.unwrap_or_default(),
            timeout: timeout?,
            effect: effect?,
        })
    }

    pub fn info(&self) -> &CapabilityFields {
        &self.about
    }

    async fn run_task(&self, attempt: &mut Attempt<'_>) -> Result<TaskResult, TaskError> {
        let task = ExternalTask::read_from_attempt(attempt).await?;
        let waited = match begin_or_resume_work(attempt, self.effect).await? {
            ExternalWorkState::Done(result) => return Ok(*result),
            ExternalWorkState::Pending(waited) => waited,
            ExternalWorkState::Ended(..) => {
                let why = "the journal is one of a program: the capability has changed its kind";
                return Err(TaskError::new(ErrorKind::Panic, why));
            }
        };
        let response = self.send_with_retries(attempt, &task.with_key_after_waits(waited)).await?;
        let response = response.map_err(|failure| failure.into_task_error(self.effect))?;
        let output = ExternalOutput { bytes: &response, files: WrittenFiles::default() };
        record_output(attempt, waited, output, self.about.output.as_ref(), self.effect).await
    }

    /// Sends the request, with retries until the timeout. A request that may have taken effect is retried only if the
    /// capability's effect allows it. While the service does not answer, all views show that the task waits for it.
    async fn send_with_retries(
        &self,
        attempt: &mut Attempt<'_>,
        task: &ExternalTask,
    ) -> Result<Result<Vec<u8>, ExternalFailure>, TaskError> {
        let (began, since) = (Instant::now(), Timestamp::now());
        let (mut tries, mut is_reported) = (0, false);
        let remaining = || self.timeout.saturating_sub(began.elapsed());
        let body = task.to_json();
        let mut backoff = FIRST_BACKOFF;
        loop {
            let failed = match self.post_once(&task.key, body.clone(), remaining()).await {
                Ok(response) => {
                    if is_reported {
                        attempt.report_recovery(&self.redacted_address()).await?;
                    }
                    return Ok(Ok(response));
                }
                Err(failed) => failed,
            };
            tries += 1;
            let wait = failed.wait.unwrap_or(backoff);
            let ExternalFailure { why, may_be_done } = failed.failure;
            let may_retry = failed.is_transient && !(may_be_done && self.effect == Effect::Effect);
            if !may_retry || wait >= remaining() {
                let why = format!("the service at {} returned no result: {why}", self.redacted_address());
                return Ok(Err(ExternalFailure { why, may_be_done }));
            }
            // Short failures are not worth an entry in the journal.
            if wait + began.elapsed() >= REPORTED_WAIT {
                let service = self.redacted_address();
                let next_try = SignedDuration::try_from(wait).map_or(since, |wait| Timestamp::now() + wait);
                let wait = ProviderWait { model: service, since, next_try, tries, error: why };
                attempt.report_wait(wait).await?;
                is_reported = true;
            }
            sleep(wait).await;
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
    }

    async fn post_once(&self, key: &str, body: Vec<u8>, timeout: Duration) -> Result<Vec<u8>, FailedRequest> {
        let request = shared_client()
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header("idempotency-key", key)
            .headers(self.headers.clone())
            .timeout(timeout)
            .body(body);
        let response = request.send().await.map_err(|error| convert_send_error(&error))?;
        if response.status().is_success() {
            return read_body(response).await;
        }
        Err(convert_error_response(response).await)
    }

    /// Returns the URL without the parts that may hold secrets.
    fn redacted_address(&self) -> String {
        redact_text(&format!("{}{}", self.url.origin().ascii_serialization(), self.url.path())).into_owned()
    }
}

impl Capability for HttpCapability {
    fn describe(&self) -> CapabilityDescription {
        self.about.to_capability_description()
    }

    fn max_concurrent_attempts(&self) -> Option<u32> {
        self.about.slots
    }

    fn run<'a>(
        &'a self,
        attempt: &'a mut Attempt<'_>,
    ) -> BoxFuture<'a, Result<CapabilityOutcome, TaskError>> {
        async move { self.run_task(attempt).await.map(CapabilityOutcome::Result) }.boxed()
    }
}

fn convert_send_error(error: &reqwest::Error) -> FailedRequest {
    // Without a connection the service did nothing; after any other error it may have done the work.
    let failure = if error.is_connect() {
        ExternalFailure::without_effect(describe_connect_error(error))
    } else {
        ExternalFailure { why: describe_request_error(error), may_be_done: !error.is_builder() }
    };
    FailedRequest { failure, is_transient: !error.is_builder(), wait: None }
}

/// Describes why there is no connection, without the URL, which may hold a key.
fn describe_connect_error(error: &reqwest::Error) -> String {
    let sources = std::iter::successors(std::error::Error::source(error), |source| source.source());
    let kind = sources.filter_map(|source| source.downcast_ref::<std::io::Error>()).last();
    kind.map_or_else(
        || "connection failed".to_owned(),
        |error| format!("connection failed: {}", error.kind()),
    )
}

async fn convert_error_response(response: Response) -> FailedRequest {
    let status = response.status();
    let wait = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let text = read_body(response).await.unwrap_or_default();
    let text: String = String::from_utf8_lossy(&text).trim().chars().take(MAX_QUOTED).collect();
    FailedRequest {
        failure: ExternalFailure { why: format!("{status} {text}"), may_be_done: status.is_server_error() },
        is_transient: status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS,
        wait: wait.map(Duration::from_secs),
    }
}

/// Reads a response, without the secrets that it may echo.
async fn read_body(response: Response) -> Result<Vec<u8>, FailedRequest> {
    let failed = |why, is_transient| FailedRequest {
        failure: ExternalFailure::with_unknown_outcome(why),
        is_transient,
        wait: None,
    };
    let mut body = Vec::new();
    let mut pieces = response.bytes_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| failed(describe_request_error(&error), true))?;
        body.extend_from_slice(&piece);
        if body.len() > MAX_RESPONSE {
            return Err(failed(format!("its response is longer than {MAX_RESPONSE} bytes"), false));
        }
    }
    Ok(redact_bytes(body))
}

/// Describes an error without the URL, which may hold a key.
fn describe_request_error(error: &reqwest::Error) -> String {
    match (error.is_timeout(), error.is_body() || error.is_decode()) {
        (true, _) => "the request timed out".into(),
        (false, true) => "the response was cut off".into(),
        (false, false) => "the connection was lost".into(),
    }
}

/// Reads headers by name. `${NAME}` in a value is replaced by that environment variable.
fn parse_url(node: &YamlNode) -> Result<Url, YamlMistake> {
    let url = Url::parse(node.parse_text("url")?).ok();
    let url = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    url.ok_or_else(|| node.mismatch_error("url", "a URL that begins with http:// or https://"))
}

fn parse_headers(node: &YamlNode) -> Result<HeaderMap, YamlMistake> {
    let Yaml::Map(entries) = &node.value else {
        return Err(node.mismatch_error("headers", "a map of header names and values"));
    };
    let mut headers = HeaderMap::new();
    for entry in entries {
        let name = HeaderName::from_bytes(entry.key.as_bytes()).map_err(|_| {
            YamlMistake::at_position(entry.position, format!("{:?} is not a valid header name", entry.key))
        })?;
        let filled = substitute_variables(entry.node.parse_text(&entry.key)?, entry.node.position)?;
        let mut secrets = SecretRedactor::default();
        secrets.add_header(&entry.key, &filled);
        remember_secrets(&secrets);
        let mut value = HeaderValue::from_str(&filled).map_err(|_| {
            YamlMistake::at_position(
                entry.node.position,
                format!("the value of {:?} is not a valid header value", entry.key),
            )
        })?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

fn substitute_variables(text: &str, position: Position) -> Result<String, YamlMistake> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, suffix) = after
            .split_once('}')
            .ok_or_else(|| YamlMistake::at_position(position, "a \"${\" without a closing \"}\""))?;
        let value = std::env::var(name).map_err(|_| {
            YamlMistake::at_position(position, format!("the environment variable {name:?} is not set"))
        })?;
        let mut secrets = SecretRedactor::default();
        secrets.add(&value);
        remember_secrets(&secrets);
        filled.push_str(before);
        filled.push_str(value.trim());
        rest = suffix;
    }
    Ok(filled + rest)
}

/// Returns the JSON Schema of the kind `http`.
pub(crate) fn capability_file_schema() -> Value {
    let own = json!({
        "url": { "description": "The URL to post tasks to.", "type": "string", "pattern": "^https?://" },
        "headers": {
            "description": "Headers of the request; ${NAME} is replaced by that environment variable of the worker.",
            "type": "object",
            "additionalProperties": { "type": "string" },
        },
    });
    super::build_capability_schema("http", "url", own)
}
