//! The kind `http`: a service that gets the task as a POST request and responds with the result. Requests are retried
//! with backoff; the header `Idempotency-Key` lets the service recognise a repeated request.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use jiff::{SignedDuration, Timestamp};
use millrace_agent::spec::CapabilityFields;
use millrace_agent::tool::Effect;
use millrace_models::http_client::shared_client;
use millrace_protocol::result::{CapabilityDescription, ErrorKind, TaskError, TaskResult};
use millrace_protocol::secrets::{SecretRedactor, redact_bytes, redact_text, remember_secrets};
use millrace_protocol::wait::ProviderWait;
use millrace_strict_yaml::{
    FileDuration, ValueMistake, YamlMistakes, YamlNode, tidy_schema, without_defaults,
};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Response, StatusCode, Url};
use schemars::JsonSchema;
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::command::WrittenFiles;
use super::{
    ExternalFailure, ExternalOutput, ExternalTask, ExternalWorkState, begin_or_resume_work, record_output,
};

use crate::{Attempt, Capability, CapabilityOutcome};

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
    own: HttpFields,
}

/// The fields of the kind `http`.
#[derive(Deserialize, JsonSchema)]
#[serde(rename = "capability of the kind http")]
#[schemars(transform = tidy_schema, transform = without_defaults)]
struct HttpFields {
    /// The URL to post tasks to.
    #[serde(deserialize_with = "read_url")]
    #[schemars(with = "String", regex(pattern = "^https?://"))]
    url: Url,
    /// Headers of the request; ${NAME} is replaced by that environment variable of the worker.
    #[serde(default, deserialize_with = "read_headers")]
    #[schemars(with = "BTreeMap<String, String>")]
    headers: HeaderMap,
    /// Timeout, including retries: seconds, or text such as 5m.
    #[serde(default = "default_timeout")]
    timeout: FileDuration,
    /// What happens if the work is done twice: nothing (pure), nothing if the key is the same (idempotent), or a second effect (effect; never retried automatically).
    #[serde(default = "default_effect")]
    effect: Effect,
}

fn default_timeout() -> FileDuration {
    FileDuration(TIMEOUT)
}

fn default_effect() -> Effect {
    Effect::Idempotent
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
        let (about, own) = super::read_file::<HttpFields>(root, "http")?;
        Ok(Self { about, own })
    }

    pub fn info(&self) -> &CapabilityFields {
        &self.about
    }

    async fn run_task(&self, attempt: &mut Attempt<'_>) -> Result<TaskResult, TaskError> {
        let task = ExternalTask::read_from_attempt(attempt).await?;
        let waited = match begin_or_resume_work(attempt, self.own.effect).await? {
            ExternalWorkState::Done(result) => return Ok(*result),
            ExternalWorkState::Pending(waited) => waited,
            ExternalWorkState::Ended(..) => {
                let why = "the journal is one of a program: the capability has changed its kind";
                return Err(TaskError::new(ErrorKind::Panic, why));
            }
        };
        let response = self.send_with_retries(attempt, &task.with_key_after_waits(waited)).await?;
        let response = response.map_err(|failure| failure.into_task_error(self.own.effect))?;
        let output = ExternalOutput { bytes: &response, files: WrittenFiles::default() };
        record_output(attempt, waited, output, self.about.output.as_ref(), self.own.effect).await
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
        let remaining = || self.own.timeout.0.saturating_sub(began.elapsed());
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
            let may_retry = failed.is_transient && !(may_be_done && self.own.effect == Effect::Effect);
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
            .post(self.own.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header("idempotency-key", key)
            .headers(self.own.headers.clone())
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
        redact_text(&format!("{}{}", self.own.url.origin().ascii_serialization(), self.own.url.path()))
            .into_owned()
    }
}

impl Capability for HttpCapability {
    fn describe(&self) -> CapabilityDescription {
        self.about.to_capability_description()
    }

    fn max_concurrent_attempts(&self) -> Option<u32> {
        self.about.slots.map(u32::from)
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

fn read_url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Url, D::Error> {
    let text = String::deserialize(deserializer)?;
    let url = Url::parse(&text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let expected = &"a URL that begins with http:// or https://";
    let url = url.ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), expected))?;
    let mut secrets = SecretRedactor::default();
    secrets.add_url(url.as_str());
    remember_secrets(&secrets);
    Ok(url)
}

/// Reads headers by name. `${NAME}` in a value is replaced by that environment variable.
fn read_headers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HeaderMap, D::Error> {
    let mut headers = HeaderMap::new();
    for (key, text) in BTreeMap::<String, String>::deserialize(deserializer)? {
        let mistake = |place: String, text: String| D::Error::custom(ValueMistake::at(place, text));
        let name = HeaderName::from_bytes(key.as_bytes())
            .map_err(|_| mistake(format!("@{key}"), format!("{key:?} is not a valid header name")))?;
        let filled = substitute_variables(&text).map_err(|why| mistake(key.clone(), why))?;
        let mut secrets = SecretRedactor::default();
        secrets.add_header(&key, &filled);
        remember_secrets(&secrets);
        let mut value = HeaderValue::from_str(&filled)
            .map_err(|_| mistake(key.clone(), format!("the value of {key:?} is not a valid header value")))?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

fn substitute_variables(text: &str) -> Result<String, String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, suffix) = after.split_once('}').ok_or("a \"${\" without a closing \"}\"")?;
        let value =
            std::env::var(name).map_err(|_| format!("the environment variable {name:?} is not set"))?;
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
    super::build_capability_schema::<HttpFields>("http", "url")
}
