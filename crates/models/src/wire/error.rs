//! Maps provider errors to [`ModelError`]: by HTTP status, headers, and the codes and message of the body. It does no
//! I/O. Every text is redacted and truncated.

use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::foreign_json::parse_foreign_json;
use millrace_protocol::secrets::SecretRedactor;
use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde_json::Value;

use crate::model::ModelError;

const MAX_TEXT: usize = 1_000;
/// The longest wait that a provider may ask for. What is longer is a mistake, or nothing that a run can wait for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(86_400);

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ProviderError {
    /// The HTTP status, or the status in the body.
    pub(super) status: Option<u16>,
    /// All codes, types and reasons in the body, in lower case, separated by spaces.
    pub(super) codes: String,
    pub(super) message: String,
    /// The parameter that it names in a field of its own; empty if there is none.
    pub(super) parameter: String,
}

/// A request that failed, with the provider's own error if it sent one.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: ModelError,
    pub(super) answer: Option<ProviderError>,
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        Self { error, answer: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ErrorClass {
    RateLimited,
    Overloaded,
    ContextOverflow,
    Authentication,
    Quota,
    ContentFilter,
    BadRequest,
}

use ErrorClass::{
    Authentication, BadRequest, ContentFilter, ContextOverflow, Overloaded, Quota, RateLimited,
};

/// Codes with a single meaning. The first one found decides.
const CLASS_BY_ERROR_CODE: [(ErrorClass, &str); 7] = [
    (
        ContextOverflow,
        "context_length_exceeded exceed_context_size_error context_window_exceeded string_above_max_length request_too_large",
    ),
    (
        ContentFilter,
        "content_filter content_policy_violation responsibleaipolicyviolation invalid_prompt moderation",
    ),
    (Quota, "insufficient_quota billing credit_balance"),
    (Authentication, "invalid_api_key api_key_invalid authentication unauthenticated permission"),
    (RateLimited, "rate_limit too_many_requests resource_exhausted tokens_per_min throttling"),
    (Overloaded, "overloaded slow_down server_error internal_error api_error unavailable timeout"),
    (BadRequest, "not_found invalid_request badrequest validationexception"),
];

/// Phrases that mean that the conversation is too long, in lower case.
const PROMPT_TOO_LONG_PHRASES: &str = "context length|maximum context|max context|prompt is too long|too many tokens|\
    context overflow|exceeds the context|exceed the context|exceeds context|exceed context|\
    exceeds the available context size|context the overflows|larger context|token limit|context window|context size|\
    context_length|input is too long|input length|input token count|input tokens exceed|maximum prompt length|\
    maximum number of tokens|reduce the length of the messages|request too large for|prompt too long|n_ctx";

const CONTENT_REFUSED_PHRASES: &str =
    "content management policy|content filter|content policy|usage policy|requires moderation|was flagged";

const NO_CREDIT_PHRASES: &str =
    "credit balance|insufficient credit|exceeded your current quota|billing|insufficient balance";

impl ProviderError {
    /// Parses an error body: one of the known JSON formats, or else plain text.
    pub(super) fn from_text(status: Option<u16>, body: &str) -> Self {
        match parse_foreign_json(body) {
            Ok(value @ (Value::Object(_) | Value::Array(_))) => Self::from_json(status, &value),
            Ok(_) | Err(_) => Self { status, message: to_one_line_text(body), ..Self::default() },
        }
    }

    /// Parses a JSON error: `{"error": {…}}`, `{"error": "…"}`, `{"detail": …}`, the fields themselves, or a list of one of
    /// these.
    pub(super) fn from_json(status: Option<u16>, body: &Value) -> Self {
        let body = body.get(0).unwrap_or(body);
        let error = ["error", "detail"].iter().find_map(|name| body.get(*name).filter(|it| !it.is_null()));
        let error = error.unwrap_or(body);
        let mut provider_error = Self {
            status,
            codes: collect_error_codes(error),
            message: extract_error_message(error),
            parameter: read_parameter(error),
        };
        provider_error.status = status.or_else(|| find_status_in_body(error));
        if provider_error.message.is_empty() {
            provider_error.message = error.to_string();
        }
        provider_error
    }

    fn classify(&self) -> ErrorClass {
        let words = self.message.to_lowercase();
        let says = |phrases: &str| phrases.split('|').any(|some| words.contains(some));
        // Status 429 with a message about length: a single request exceeds the account's tokens per minute. Waiting never
        // helps, a shorter conversation does. Other messages about tokens concern the rate.
        let is_length = says(PROMPT_TOO_LONG_PHRASES)
            && (self.status != Some(429) || words.contains("request too large for"));
        let has_code = |codes: &str| codes.split(' ').any(|code| self.codes.contains(code));
        let by_code =
            CLASS_BY_ERROR_CODE.into_iter().find(|(_, codes)| has_code(codes)).map(|(class, _)| class);
        // No status is that of an error inside a stream. Ollama uses 500 for a conversation that is too long.
        let may_be_length = matches!(self.status, None | Some(400 | 413 | 422 | 429 | 500));
        let is_client_error = matches!(self.status, None | Some(400..=499));
        match (by_code, self.status) {
            (Some(ContextOverflow), _) | (_, Some(413)) => ContextOverflow,
            (Some(ContentFilter), _) => ContentFilter,
            (_, Some(402)) | (Some(Quota), _) => Quota,
            _ if may_be_length && is_length => ContextOverflow,
            _ if is_client_error && says(CONTENT_REFUSED_PHRASES) => ContentFilter,
            _ if is_client_error && says(NO_CREDIT_PHRASES) => Quota,
            (Some(Authentication), _) | (_, Some(401 | 403)) => Authentication,
            (_, Some(429)) => RateLimited,
            (_, Some(408 | 409 | 425 | 500..)) => Overloaded,
            (_, Some(300..500)) => BadRequest,
            (class, _) => class.unwrap_or(Overloaded),
        }
    }
}

fn collect_error_codes(error: &Value) -> String {
    let within = [error, &error["metadata"], &error["innererror"], &error["error"]];
    let names = ["type", "code", "status", "reason", "error_type", "error_code", "reasons"];
    let all = within.iter().flat_map(|part| names.iter().filter_map(|name| part.get(*name)));
    let texts = all.filter(|value| !value.is_null() && !value.is_number()).map(Value::to_string);
    texts.collect::<Vec<_>>().join(" ").to_lowercase()
}

/// Returns the parameter that an error names. Gateways wrap the error of another provider into their message.
fn read_parameter(error: &Value) -> String {
    let own = error.get("param").and_then(Value::as_str).filter(|name| !name.is_empty());
    let upstream = || {
        let raw = error.pointer("/metadata/raw").and_then(Value::as_str)?;
        let inner: Value = parse_foreign_json(raw).ok()?;
        let inner = inner.get("error").unwrap_or(&inner);
        inner.get("param").and_then(Value::as_str).map(str::to_owned)
    };
    own.map(str::to_owned).or_else(upstream).unwrap_or_default()
}

fn extract_error_message(error: &Value) -> String {
    if let Some(text) = error.as_str() {
        return to_one_line_text(text);
    }
    let fields = ["message", "msg", "detail", "error", "error_description"];
    let text = fields.iter().find_map(|name| error.get(*name)?.as_str());
    // Gateways add the upstream provider's message to their own.
    let upstream = error.pointer("/metadata/raw").and_then(Value::as_str);
    match (text, upstream) {
        (Some(text), Some(upstream)) => to_one_line_text(&format!("{text}: {upstream}")),
        (Some(text), None) | (None, Some(text)) => to_one_line_text(text),
        (None, None) => String::new(),
    }
}

fn find_status_in_body(error: &Value) -> Option<u16> {
    let status = error.get("code").or_else(|| error.get("status_code")).or_else(|| error.get("status"))?;
    let number = status.as_u64().or_else(|| status.as_str()?.parse().ok())?;
    u16::try_from(number).ok().filter(|status| (400..600).contains(status))
}

/// Returns a text as one line; for an HTML page, its title.
fn to_one_line_text(text: &str) -> String {
    let text = text.trim_start_matches('\u{feff}').trim();
    let lower = text.to_ascii_lowercase();
    let title =
        lower.find("<title>").zip(lower.find("</title>")).and_then(|(from, to)| text.get(from + 7..to));
    // Alibaba's messages begin with `<400>`.
    let is_markup =
        text.strip_prefix('<').is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()));
    match (is_markup, title) {
        (true, Some(title)) => format!("an HTML page titled {:?}", collapse_whitespace(title)),
        (true, None) => format!("an HTML page: {}", collapse_whitespace(text)),
        (false, _) => collapse_whitespace(text),
    }
}

fn collapse_whitespace(text: &str) -> String {
    text.split_whitespace().take(MAX_TEXT).collect::<Vec<_>>().join(" ")
}

pub(super) fn redact_and_cut(text: &str, redactor: &SecretRedactor) -> String {
    let text = redactor.redact(text);
    match text.char_indices().nth(MAX_TEXT) {
        Some((at, _)) => format!("{} …", &text[..at]),
        None => text,
    }
}

pub(super) fn model_error_from_response(
    status: StatusCode,
    headers: &HeaderMap,
    body: &str,
    redactor: &SecretRedactor,
) -> ModelError {
    if status.is_redirection() {
        return redirect_error(status, headers, redactor);
    }
    let provider_error = ProviderError::from_text(Some(status.as_u16()), body);
    let message = &provider_error.message;
    let wait =
        requested_retry_delay(headers, Timestamp::now()).or_else(|| parse_retry_delay_in_message(message));
    let is_page = message.starts_with("an HTML page")
        && !matches!(status.as_u16(), 401 | 403 | 407 | 413 | 429 | 500..);
    if is_page {
        let text = format!("{status} and {message}: is the base URL right?");
        return ModelError::Protocol { message: redact_and_cut(&text, redactor) };
    }
    to_model_error(&provider_error, wait, redactor)
}

/// Maps an error inside a stream or in a body with a successful status.
pub(super) fn model_error_from_body(value: &Value, redactor: &SecretRedactor) -> ModelError {
    let provider_error = ProviderError::from_json(None, value);
    to_model_error(&provider_error, parse_retry_delay_in_message(&provider_error.message), redactor)
}

/// Maps a provider error.
fn to_model_error(
    provider_error: &ProviderError,
    wait: Option<Duration>,
    redactor: &SecretRedactor,
) -> ModelError {
    let status = provider_error.status.and_then(|status| StatusCode::from_u16(status).ok());
    let mut text = provider_error.message.clone();
    if let Some(status) = status {
        text = if text.is_empty() { status.to_string() } else { format!("{text} ({status})") };
    }
    let message = redact_and_cut(&text, redactor);
    match provider_error.classify() {
        RateLimited => ModelError::RateLimited { retry_after: wait, message },
        Overloaded => ModelError::Overloaded { retry_after: wait, message },
        ContextOverflow => ModelError::ContextOverflow { message },
        Authentication => ModelError::Authentication { message },
        Quota => ModelError::Quota { message },
        ContentFilter => ModelError::ContentFilter { message },
        BadRequest => ModelError::bad_request(message),
    }
}

fn redirect_error(status: StatusCode, headers: &HeaderMap, redactor: &SecretRedactor) -> ModelError {
    let to = headers.get("location").and_then(|to| to.to_str().ok()).unwrap_or("an unknown address");
    let text = format!(
        "{status}: the server redirects to {to}, and API keys are never sent to another address; set the base URL to the \
         right one"
    );
    ModelError::Protocol { message: redact_and_cut(&text, redactor) }
}

pub(super) fn model_error_from_send_error(error: &reqwest::Error, redactor: &SecretRedactor) -> ModelError {
    if error.is_builder() {
        let text = format!("the request cannot be built: {}", format_error_chain(error));
        return ModelError::bad_request(redact_and_cut(&text, redactor));
    }
    let what = if error.is_timeout() { "connection timed out: " } else { "" };
    let hint =
        crate::http_client::missing_authorities_hint().filter(|_| error.is_connect()).unwrap_or_default();
    let text =
        format!("{what}{}{}{hint}", format_error_chain(error), if hint.is_empty() { "" } else { "; " });
    ModelError::Connection { message: redact_and_cut(&text, redactor) }
}

/// Joins the messages of an error and its sources, without URLs, which may contain credentials.
pub(super) fn format_error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        let text = text.split(" for url (").next().unwrap_or_default().to_owned();
        if !texts.iter().any(|earlier| earlier.contains(&text)) {
            texts.push(text);
        }
        next = error.source();
    }
    texts.join(": ")
}

/// Returns the wait that the headers request. The reset time of a limit counts only if nothing of the limit remains.
fn requested_retry_delay(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let exact =
        text("retry-after-ms").and_then(|ms| duration_from_seconds(ms.parse::<f64>().ok()? / 1_000.0));
    exact
        .or_else(|| text("retry-after").and_then(|text| parse_delay(text, now)))
        .or_else(|| delay_until_rate_limit_reset(headers, now))
        .map(|wait| wait.min(MAX_RETRY_AFTER))
}

fn delay_until_rate_limit_reset(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let limits = headers.iter().filter_map(|(name, value)| {
        let name = name.as_str();
        let is_reset = name.contains("ratelimit") && name.contains("reset");
        let remaining =
            headers.get(name.replace("reset", "remaining")).and_then(|remaining| remaining.to_str().ok());
        (is_reset && remaining.is_some_and(|remaining| remaining.trim() == "0"))
            .then(|| value.to_str().ok())
            .flatten()
    });
    limits.filter_map(|text| parse_delay(text.trim(), now)).max()
}

/// Parses a delay: seconds, a duration (`1m30s`, `17ms`), an HTTP or RFC 3339 date, or milliseconds since 1970.
fn parse_delay(text: &str, now: Timestamp) -> Option<Duration> {
    if let Ok(number) = text.parse::<f64>() {
        let is_date = number > 1e9;
        let millis = if number > 1e12 { number } else { number * 1e3 };
        #[expect(clippy::cast_precision_loss, reason = "to the millisecond is exact enough")]
        let from = if is_date { now.as_millisecond() as f64 } else { 0.0 };
        let remaining = millis - from;
        return duration_from_seconds(if is_date { remaining.max(0.0) } else { remaining } / 1e3);
    }
    match parse_http_date(text).or_else(|| text.parse::<Timestamp>().ok()) {
        Some(date) => Some(Duration::try_from(date.duration_since(now)).unwrap_or(Duration::ZERO)),
        None => parse_duration(text),
    }
}

/// Parses a date of HTTP in each of its three forms, and one with an offset, as some servers write it.
fn parse_http_date(text: &str) -> Option<Timestamp> {
    let date = httpdate::parse_http_date(text).ok().and_then(|date| Timestamp::try_from(date).ok());
    date.or_else(|| jiff::fmt::rfc2822::parse(text).ok().map(|date| date.timestamp()))
}

/// Parses `6m0s`, `1.5s`, `17ms`, as OpenAI and others write durations.
fn parse_duration(text: &str) -> Option<Duration> {
    let span: jiff::Span = text.parse().ok()?;
    let seconds = span.total((jiff::Unit::Second, jiff::SpanRelativeTo::days_are_24_hours()));
    duration_from_seconds(seconds.ok()?)
}

/// Returns the wait in a message such as `… try again in 1.5s`, which OpenAI uses if its headers say nothing.
fn parse_retry_delay_in_message(message: &str) -> Option<Duration> {
    let lower = message.to_lowercase();
    let (_, rest) = lower.split_once("try again in ")?;
    let mut words = rest.split_whitespace();
    let number_text = words.next()?;
    let bare = number_text.trim_end_matches(|c: char| !c.is_ascii_alphabetic());
    parse_duration(bare).or_else(|| {
        let number = number_text.parse::<f64>().ok()?;
        words.next().filter(|unit| unit.starts_with("second")).and_then(|_| duration_from_seconds(number))
    })
}

fn duration_from_seconds(number: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(number).ok()
}

#[cfg(test)]
#[path = "error_tests.rs"]
mod tests;
