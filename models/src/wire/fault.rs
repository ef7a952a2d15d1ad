//! A provider's errors in our words: one table from what it told (status, headers, the codes and words of its body) to
//! a [`ModelError`]. It reads no socket. Every text goes through [`Secrets`] and is cut.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde_json::Value;

use super::secret::Secrets;
use crate::model::ModelError;

/// How many characters of a provider's words are kept.
const SHOWN: usize = 1_000;

/// What a provider told of a failure.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Told {
    /// The HTTP status, or what the body says in its place.
    pub(super) status: Option<u16>,
    /// Every code, type and reason in it, in lower case, with spaces between.
    pub(super) codes: String,
    /// Its words.
    pub(super) message: String,
}

/// What is meant by codes and words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    RateLimited,
    Overloaded,
    ContextOverflow,
    Authentication,
    ContentFilter,
    BadRequest,
}

/// Codes that mean one thing wherever they stand. The first that is there counts.
const CODES: [(&str, Meaning); 32] = [
    ("context_length_exceeded", Meaning::ContextOverflow),
    ("exceed_context_size_error", Meaning::ContextOverflow),
    ("context_window_exceeded", Meaning::ContextOverflow),
    ("string_above_max_length", Meaning::ContextOverflow),
    ("request_too_large", Meaning::ContextOverflow),
    ("content_filter", Meaning::ContentFilter),
    ("content_policy_violation", Meaning::ContentFilter),
    ("responsibleaipolicyviolation", Meaning::ContentFilter),
    ("invalid_prompt", Meaning::ContentFilter),
    ("moderation", Meaning::ContentFilter),
    ("insufficient_quota", Meaning::Authentication),
    ("billing", Meaning::Authentication),
    ("credit_balance", Meaning::Authentication),
    ("invalid_api_key", Meaning::Authentication),
    ("api_key_invalid", Meaning::Authentication),
    ("authentication", Meaning::Authentication),
    ("unauthenticated", Meaning::Authentication),
    ("permission", Meaning::Authentication),
    ("rate_limit", Meaning::RateLimited),
    ("too_many_requests", Meaning::RateLimited),
    ("resource_exhausted", Meaning::RateLimited),
    ("tokens_per_min", Meaning::RateLimited),
    ("overloaded", Meaning::Overloaded),
    ("slow_down", Meaning::Overloaded),
    ("server_error", Meaning::Overloaded),
    ("internal_error", Meaning::Overloaded),
    ("api_error", Meaning::Overloaded),
    ("unavailable", Meaning::Overloaded),
    ("timeout", Meaning::Overloaded),
    ("not_found", Meaning::BadRequest),
    ("invalid_request", Meaning::BadRequest),
    ("badrequest", Meaning::BadRequest),
];

/// Words by which providers say that a conversation is too long, as they stand in lower case.
const TOO_LONG: [&str; 27] = [
    "context length",
    "maximum context",
    "max context",
    "prompt is too long",
    "too many tokens",
    "context overflow",
    "exceeds the context",
    "exceed the context",
    "exceeds context",
    "exceed context",
    "exceeds the available context size",
    "context the overflows",
    "larger context",
    "token limit",
    "context window",
    "context size",
    "context_length",
    "input is too long",
    "input length",
    "input token count",
    "input tokens exceed",
    "maximum prompt length",
    "maximum number of tokens",
    "reduce the length of the messages",
    "request too large for",
    "prompt too long",
    "n_ctx",
];

/// Words by which providers say that they don't want the content.
const UNWANTED: [&str; 6] = [
    "content management policy",
    "content filter",
    "content policy",
    "usage policy",
    "requires moderation",
    "was flagged",
];

/// Words by which providers say that nothing is paid for.
const UNPAID: [&str; 5] = [
    "credit balance",
    "insufficient credit",
    "exceeded your current quota",
    "billing",
    "insufficient balance",
];

impl Told {
    /// What a body tells: the known forms of errors, else its text.
    pub(super) fn of(status: Option<u16>, body: &str) -> Self {
        match serde_json::from_str::<Value>(body.trim_start_matches('\u{feff}')) {
            Ok(value @ (Value::Object(_) | Value::Array(_))) => Self::of_value(status, &value),
            Ok(_) | Err(_) => Self { status, codes: String::new(), message: plain(body) },
        }
    }

    /// What a body of JSON tells: `{"error": {…}}`, `{"error": "…"}`, `{"detail": …}`, the fields themselves, or a list
    /// of one of them.
    pub(super) fn of_value(status: Option<u16>, body: &Value) -> Self {
        let body = body.get(0).unwrap_or(body);
        let error = ["error", "detail"].iter().find_map(|name| body.get(*name).filter(|it| !it.is_null()));
        let error = error.unwrap_or(body);
        let mut told = Self { status, codes: codes(error), message: words(error) };
        told.status = status.or_else(|| own_status(error));
        if told.message.is_empty() {
            told.message = error.to_string();
        }
        told
    }

    fn meaning(&self) -> Meaning {
        let words = self.message.to_lowercase();
        let says = |known: &[&str]| known.iter().any(|some| words.contains(some));
        // 429 with words on length: a single request over the account's tokens a minute. Waiting never helps; a
        // shorter conversation does. Other words on tokens are about the rate.
        let length = says(&TOO_LONG) && (self.status != Some(429) || words.contains("request too large for"));
        let by_code = CODES.iter().find(|(code, _)| self.codes.contains(code)).map(|(_, meaning)| *meaning);
        match (by_code, self.status) {
            (Some(Meaning::ContextOverflow), _) | (_, Some(413)) => Meaning::ContextOverflow,
            (Some(Meaning::ContentFilter), _) => Meaning::ContentFilter,
            (_, Some(402)) => Meaning::Authentication,
            (_, status) if may_be_length(status) && length => Meaning::ContextOverflow,
            (_, status) if is_refusal(status) && says(&UNWANTED) => Meaning::ContentFilter,
            (_, status) if is_refusal(status) && says(&UNPAID) => Meaning::Authentication,
            (Some(Meaning::Authentication), _) | (_, Some(401 | 403)) => Meaning::Authentication,
            (_, Some(429)) => Meaning::RateLimited,
            (_, Some(408 | 409 | 425 | 500..)) => Meaning::Overloaded,
            (_, Some(300..500)) => Meaning::BadRequest,
            (Some(meaning), _) => meaning,
            (None, _) => Meaning::Overloaded,
        }
    }
}

/// Statuses that go along with words on length; `None` is an error within a stream. Ollama says 500.
fn may_be_length(status: Option<u16>) -> bool {
    status.is_none_or(|status| matches!(status, 400 | 413 | 422 | 429 | 500))
}

fn is_refusal(status: Option<u16>) -> bool {
    status.is_none_or(|status| matches!(status, 400..=499))
}

fn codes(error: &Value) -> String {
    let within = [error, &error["metadata"], &error["innererror"], &error["error"]];
    let names = ["type", "code", "status", "reason", "error_type", "error_code", "reasons"];
    let all = within.iter().flat_map(|part| names.iter().filter_map(|name| part.get(*name)));
    let texts = all.filter(|value| !value.is_null() && !value.is_number()).map(Value::to_string);
    texts.collect::<Vec<_>>().join(" ").to_lowercase()
}

fn words(error: &Value) -> String {
    if let Some(text) = error.as_str() {
        return plain(text);
    }
    let told = ["message", "msg", "detail", "error", "error_description"];
    let text = told.iter().find_map(|name| error.get(*name)?.as_str());
    // Gateways put the words of whoever stands behind them beside their own.
    let behind = error.pointer("/metadata/raw").and_then(Value::as_str);
    match (text, behind) {
        (Some(text), Some(behind)) => plain(&format!("{text}: {behind}")),
        (Some(text), None) | (None, Some(text)) => plain(text),
        (None, None) => String::new(),
    }
}

fn own_status(error: &Value) -> Option<u16> {
    let status = error.get("code").or_else(|| error.get("status_code")).or_else(|| error.get("status"))?;
    let number = status.as_u64().or_else(|| status.as_str()?.parse().ok())?;
    u16::try_from(number).ok().filter(|status| (400..600).contains(status))
}

/// Text in one line. Of a page, its title.
fn plain(text: &str) -> String {
    let text = text.trim_start_matches('\u{feff}').trim();
    let lower = text.to_ascii_lowercase();
    let title =
        lower.find("<title>").zip(lower.find("</title>")).and_then(|(from, to)| text.get(from + 7..to));
    match (text.starts_with('<'), title) {
        (true, Some(title)) => format!("an HTML page titled {:?}", one_line(title)),
        (true, None) => format!("an HTML page: {}", one_line(text)),
        (false, _) => one_line(text),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().take(SHOWN).collect::<Vec<_>>().join(" ")
}

/// The words as they may be shown.
pub(super) fn shown(text: &str, secrets: &Secrets) -> String {
    let text = secrets.hide(text);
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{} …", &text[..at]),
        None => text,
    }
}

/// The error of an answer whose status is not one of success.
pub(super) fn of_answer(
    status: StatusCode,
    headers: &HeaderMap,
    body: &str,
    secrets: &Secrets,
) -> ModelError {
    if status.is_redirection() {
        return redirected(status, headers, secrets);
    }
    let told = Told::of(Some(status.as_u16()), body);
    let wait = wait(headers, Timestamp::now()).or_else(|| said_wait(&told.message));
    let page = told.message.starts_with("an HTML page")
        && !matches!(status.as_u16(), 401 | 403 | 407 | 413 | 429 | 500..);
    if page {
        let message = shown(&format!("{} and {}: is the base URL right?", status, told.message), secrets);
        return ModelError::Protocol { message };
    }
    error(&told, wait, secrets)
}

/// The error that an event of a stream, or a body with a status of success, tells.
pub(super) fn of_value(value: &Value, secrets: &Secrets) -> ModelError {
    let told = Told::of_value(None, value);
    let wait = said_wait(&told.message);
    error(&told, wait, secrets)
}

/// The error for what was told. A provider that is overloaded and says when to come back limits the rate: that is what
/// its callers have to know of it.
fn error(told: &Told, wait: Option<Duration>, secrets: &Secrets) -> ModelError {
    let status = told.status.and_then(|status| StatusCode::from_u16(status).ok());
    let mut text = told.message.clone();
    if let Some(status) = status {
        text = if text.is_empty() { status.to_string() } else { format!("{text} ({status})") };
    }
    let message = shown(&text, secrets);
    match told.meaning() {
        Meaning::RateLimited => ModelError::RateLimited { retry_after: wait, message },
        Meaning::Overloaded if wait.is_some() => ModelError::RateLimited { retry_after: wait, message },
        Meaning::Overloaded => ModelError::Overloaded { message },
        Meaning::ContextOverflow => ModelError::ContextOverflow { message },
        Meaning::Authentication => ModelError::Authentication { message },
        Meaning::ContentFilter => ModelError::ContentFilter { message },
        Meaning::BadRequest => ModelError::BadRequest { message },
    }
}

fn redirected(status: StatusCode, headers: &HeaderMap, secrets: &Secrets) -> ModelError {
    let to = headers.get("location").and_then(|to| to.to_str().ok()).unwrap_or("nowhere");
    let text = format!(
        "{status}: it redirects to {to}, and a key is never taken along to another address; set the base URL to the \
         right one"
    );
    ModelError::Protocol { message: shown(&text, secrets) }
}

/// The error of a request that got no answer.
pub(super) fn of_sending(error: &reqwest::Error, secrets: &Secrets) -> ModelError {
    if error.is_builder() {
        let text = format!("the request can't be made: {}", causes(error));
        return ModelError::BadRequest { message: shown(&text, secrets) };
    }
    let what = if error.is_timeout() { "no connection in time: " } else { "" };
    let hint = crate::http::without_authorities().filter(|_| error.is_connect()).unwrap_or_default();
    let text = format!("{what}{}{}{hint}", causes(error), if hint.is_empty() { "" } else { "; " });
    ModelError::Connection { message: shown(&text, secrets) }
}

/// The texts of an error and of what caused it, without addresses, which may hold credentials.
pub(super) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        let text = text.split(" for url (").next().unwrap_or_default().to_owned();
        if !texts.iter().any(|known| known.contains(&text)) {
            texts.push(text);
        }
        next = error.source();
    }
    texts.join(": ")
}

/// How long the provider asks to wait, by its headers. Times that a limit is renewed at count only where nothing is
/// left of it.
fn wait(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let exact = text("retry-after-ms").and_then(|ms| seconds(ms.parse::<f64>().ok()? / 1_000.0));
    exact.or_else(|| text("retry-after").and_then(|text| after(text, now))).or_else(|| renewed(headers, now))
}

fn renewed(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let limits = headers.iter().filter_map(|(name, value)| {
        let name = name.as_str();
        let is_reset = name.contains("ratelimit") && name.contains("reset");
        let left = headers.get(name.replace("reset", "remaining")).and_then(|left| left.to_str().ok());
        (is_reset && left.is_some_and(|left| left.trim() == "0")).then(|| value.to_str().ok()).flatten()
    });
    limits.filter_map(|text| after(text.trim(), now)).max()
}

/// A time to come: seconds, a length (`1m30s`, `17ms`), a date of HTTP or RFC 3339, or milliseconds since 1970.
fn after(text: &str, now: Timestamp) -> Option<Duration> {
    if let Ok(number) = text.parse::<f64>() {
        let is_date = number > 1e9;
        let millis = if number > 1e12 { number } else { number * 1e3 };
        #[expect(clippy::cast_precision_loss, reason = "to the millisecond is exact enough")]
        let from = if is_date { now.as_millisecond() as f64 } else { 0.0 };
        let left = millis - from;
        return seconds(if is_date { left.max(0.0) } else { left } / 1e3);
    }
    let date =
        jiff::fmt::rfc2822::parse(text).map(|date| date.timestamp()).or_else(|_| text.parse::<Timestamp>());
    match date {
        Ok(date) => Some(Duration::try_from(date.duration_since(now)).unwrap_or(Duration::ZERO)),
        Err(_) => length(text),
    }
}

/// `6m0s`, `1.5s`, `17ms`: what OpenAI and others write.
fn length(text: &str) -> Option<Duration> {
    let mut total = 0.0;
    let mut rest = Some(text).filter(|text| !text.is_empty())?;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number = rest[..digits].parse::<f64>().ok()?;
        rest = &rest[digits..];
        let unit = &rest[..rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len())];
        total += number
            * match unit {
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3_600.0,
                "d" => 86_400.0,
                _ => return None,
            };
        rest = &rest[unit.len()..];
    }
    seconds(total)
}

/// `… try again in 1.5s`, as OpenAI says where its headers say nothing.
fn said_wait(message: &str) -> Option<Duration> {
    let lower = message.to_lowercase();
    let (_, rest) = lower.split_once("try again in ")?;
    let mut words = rest.split_whitespace();
    let said = words.next()?;
    let bare = said.trim_end_matches(|c: char| !c.is_ascii_alphabetic());
    length(bare).or_else(|| {
        let number = said.parse::<f64>().ok()?;
        words.next().filter(|unit| unit.starts_with("second")).and_then(|_| seconds(number))
    })
}

fn seconds(number: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(number).ok()
}

#[cfg(test)]
#[path = "fault_tests.rs"]
mod tests;
