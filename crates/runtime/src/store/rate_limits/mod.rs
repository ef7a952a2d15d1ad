//! Rate limits of models, shared by a whole cluster. A bucket contains the limit and its usage, under the name of a
//! model or of a provider (for all its models). Workers update the usage by compare-and-set. A model without an entry
//! is unlimited, at the cost of one read of the bucket per second.
//!
//! Times come from the clocks of the machines: clocks that differ by a second shift bookings by a second. A booking
//! whose response was lost counts twice, which wastes a little of the rate and never exceeds it.
//!
//! # Invariants
//!
//! - I26: All processes of a cluster together keep to a model's rate limit, and one provider's pause holds for all.
//!   (`crates/runtime/tests/workspace.rs::processes_of_a_cluster_share_a_rate`,
//!   `crates/runtime/tests/workspace.rs::pause_holds_for_all_processes`)

mod booker;
pub mod rate;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::subject::{decode_subject_token, encode_subject_token};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::nats::bus::Bus;
use crate::nats::topology::LIMITS;
use crate::store::bucket::{Bucket, Entry, ExpectedEntry};
use crate::{Fault, clock};
use booker::{BookerMessage, PauseChange, RateLimitBooker, WaitingRequest};
pub use rate::RateLimit;
use rate::RateLimitState;

static ALLOWED: Bucket<RateLimit> = Bucket::new(LIMITS, "allowed.").open();
static STATES: Bucket<RateLimitState> = Bucket::new(LIMITS, "state.").open();
/// Both of them, which are read at once.
static BOTH: Bucket<serde_json::Value> = Bucket::new(LIMITS, "").open();
/// The maximum age of the cached limits.
const MAX_CACHE_AGE: Duration = Duration::from_secs(1);
/// The timeout of writing a pause.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The subject of a rate limit: a model, `provider:model`, or all models of a provider, `provider:*`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LimitName(String);

/// A text that is no [`LimitName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a model: use provider:model, such as openai:gpt-4o, or provider:* for all models of a provider"
)]
pub struct InvalidLimitName {
    /// The text, truncated to 200 characters.
    pub text: String,
}

impl FromStr for LimitName {
    type Err = InvalidLimitName;
    fn from_str(text: &str) -> Result<Self, InvalidLimitName> {
        let is_plain = |c: char| !c.is_control() && !c.is_whitespace() && !matches!(c, '*' | '?');
        let fits = text.len() <= 300
            && text.split_once(':').is_some_and(|(provider, model)| {
                let is_name = |part: &str| !part.is_empty() && part.chars().all(is_plain);
                is_name(provider) && (model == "*" || is_name(model))
            });
        if fits {
            return Ok(Self(text.to_owned()));
        }
        Err(InvalidLimitName { text: text.chars().take(200).collect() })
    }
}

impl fmt::Display for LimitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The status of a rate limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitStatus {
    /// The model or provider.
    pub name: String,
    /// The limit; empty if the model is only paused.
    pub limit: RateLimit,
    /// The requests of the last minute.
    pub requests: u64,
    /// The tokens of the last minute, booked or used.
    pub tokens: u64,
    /// The end of the current pause, if there is one.
    pub paused_until: Option<jiff::Timestamp>,
}

pub async fn set_limit(bus: &Bus, name: &LimitName, limit: RateLimit) -> Result<(), Fault> {
    ALLOWED.put(bus, &encode_subject_token(&name.0), &limit).await
}

/// `true` if there is a limit of a model, or a pause or a count of its requests.
pub async fn has_limit(bus: &Bus, name: &LimitName) -> Result<bool, Fault> {
    Ok(read_entries(bus).await?.contains_key(&name.0))
}

/// Removes a limit and its pause.
pub async fn remove_limit(bus: &Bus, name: &LimitName) -> Result<(), Fault> {
    let key = encode_subject_token(&name.0);
    ALLOWED.remove(bus, &key, ExpectedEntry::Any).await?;
    STATES.remove(bus, &key, ExpectedEntry::Any).await.map(drop)
}

/// Returns the status of all limits, by name.
pub async fn read_rate_limit_statuses(bus: &Bus) -> Result<Vec<LimitStatus>, Fault> {
    let now = now_micros();
    let status = |(name, entry): (String, LimitEntry)| {
        let (requests, tokens) = entry.state.usage_of_last_minute(now);
        let until = entry.state.paused_until;
        let paused_until = (until > now).then(|| jiff::Timestamp::from_microsecond(until).ok()).flatten();
        LimitStatus { name, limit: entry.limit.unwrap_or_default(), requests, tokens, paused_until }
    };
    let entries = read_entries(bus).await?.into_iter();
    let is_active = |entry: &LimitEntry| entry.limit.is_some() || entry.state.paused_until > now;
    Ok(entries.filter(|(_, entry)| is_active(entry)).map(status).collect())
}

/// The limit and usage of one name.
#[derive(Debug, Clone, Default)]
struct LimitEntry {
    limit: Option<RateLimit>,
    state: RateLimitState,
}

/// Reads all entries of the bucket.
async fn read_entries(bus: &Bus) -> Result<BTreeMap<String, LimitEntry>, Fault> {
    let mut by_name: BTreeMap<String, LimitEntry> = BTreeMap::new();
    for Entry { key, value, .. } in BOTH.read_all(bus).await? {
        let Some((kind, name)) = key.split_once('.') else { continue };
        let Some(name) = decode_subject_token(name) else { continue };
        let entry = by_name.entry(name).or_default();
        match kind {
            "allowed" => entry.limit = serde_json::from_value(value).ok(),
            "state" => entry.state = serde_json::from_value(value).unwrap_or_default(),
            _ => {}
        }
    }
    Ok(by_name)
}

fn now_micros() -> i64 {
    clock::now().as_microsecond()
}

/// Admits the model requests of one process within the limits of the cluster. Cheap to clone.
#[derive(Clone)]
pub struct ClusterRateLimiter(Arc<RateLimiterInner>);

struct RateLimiterInner {
    bus: Bus,
    cache: tokio::sync::Mutex<LimitCache>,
    bookers: Mutex<HashMap<String, mpsc::UnboundedSender<BookerMessage>>>,
}

/// The entries of the bucket when it was last read.
#[derive(Default)]
struct LimitCache {
    read_at: Option<Instant>,
    entries: BTreeMap<String, LimitEntry>,
}

impl ClusterRateLimiter {
    /// Creates a limiter. Sends no request.
    #[must_use]
    pub fn new(bus: &Bus) -> Self {
        let cache = tokio::sync::Mutex::default();
        Self(Arc::new(RateLimiterInner { bus: bus.clone(), cache, bookers: Mutex::default() }))
    }

    /// Waits until a request to a model (`provider:model`) with up to `tokens` tokens is admitted, and books it.
    /// Errors: the request would not be admitted within `patience`, and nothing is booked: how long it would have to wait.
    pub fn admit_request<'a>(
        &'a self,
        model: &'a str,
        tokens: u64,
        patience: Duration,
    ) -> BoxFuture<'a, Result<(), Duration>> {
        async move {
            let until = now_micros().saturating_add(i64::try_from(patience.as_micros()).unwrap_or(i64::MAX));
            let mut booked: Vec<(String, RateLimit)> = Vec::new();
            for (name, entry) in self.rate_limits_of_model(model).await {
                let limit = entry.limit.unwrap_or_default();
                if entry.limit.is_none() && entry.state.paused_until <= now_micros() {
                    continue;
                }
                let (reply, admission) = oneshot::channel();
                self.send_to_booker(
                    &name,
                    BookerMessage::Admit(WaitingRequest { limit, tokens, until, reply }),
                );
                // A missing booker means that the bucket is unavailable; then requests are admitted.
                if let Ok(Err(wait)) = admission.await {
                    self.cancel_bookings(booked, tokens);
                    return Err(wait);
                }
                booked.push((name, limit));
            }
            Ok(())
        }
        .boxed()
    }

    /// Corrects the booking of a request by its actual usage.
    pub fn correct_booked_tokens<'a>(&'a self, model: &'a str, booked: u64, used: u64) -> BoxFuture<'a, ()> {
        async move {
            let tokens = to_signed(used) - to_signed(booked);
            if tokens == 0 {
                return;
            }
            for (name, entry) in self.rate_limits_of_model(model).await {
                if let Some(limit) = entry.limit {
                    self.send_to_booker(&name, BookerMessage::Correct { limit, requests: 0, tokens });
                }
            }
        }
        .boxed()
    }

    /// Holds all requests to a model for a while, in the whole cluster.
    pub fn pause_model<'a>(&'a self, model: &'a str, pause: Duration) -> BoxFuture<'a, ()> {
        async move {
            let until = now_micros().saturating_add(i64::try_from(pause.as_micros()).unwrap_or(i64::MAX));
            self.change_pause(model, PauseChange::Until(until), PAUSE_TIMEOUT.min(pause)).await;
        }
        .boxed()
    }

    /// Ends the pause of a model, in the whole cluster.
    pub fn end_pause<'a>(&'a self, model: &'a str) -> BoxFuture<'a, ()> {
        self.change_pause(model, PauseChange::End, PAUSE_TIMEOUT).boxed()
    }

    async fn change_pause(&self, model: &str, change: PauseChange, patience: Duration) {
        let cached = |cache: &mut LimitCache| {
            change.apply(&mut cache.entries.entry(model.to_owned()).or_default().state)
        };
        cached(&mut *self.0.cache.lock().await);
        let (done, written) = oneshot::channel();
        self.send_to_booker(model, BookerMessage::Pause { change, done });
        // If writing fails, the change still holds in this process.
        let _ = tokio::time::timeout(patience, written).await;
    }

    fn cancel_bookings(&self, booked: Vec<(String, RateLimit)>, tokens: u64) {
        for (name, limit) in booked {
            self.send_to_booker(
                &name,
                BookerMessage::Correct { limit, requests: -1, tokens: -to_signed(tokens) },
            );
        }
    }

    /// Returns the entries of a model's provider and of the model, at most a second old.
    async fn rate_limits_of_model(&self, model: &str) -> Vec<(String, LimitEntry)> {
        let provider = model.split_once(':').map(|(provider, _)| format!("{provider}:*"));
        let mut cache = self.0.cache.lock().await;
        if cache.read_at.is_none_or(|at| at.elapsed() >= MAX_CACHE_AGE) {
            match read_entries(&self.0.bus).await {
                Ok(entries) => cache.entries = entries,
                Err(fault) => tracing::debug!(%fault, "cannot read the rate limits; using the cached ones"),
            }
            cache.read_at = Some(Instant::now());
        }
        let names = provider.into_iter().chain([model.to_owned()]);
        names.filter_map(|name| cache.entries.get(&name).cloned().map(|entry| (name, entry))).collect()
    }

    /// Sends a message to the booker of a name, and starts it if it does not run yet.
    fn send_to_booker(&self, name: &str, message: BookerMessage) {
        let mut bookers = self.lock_bookers();
        let booker = bookers.entry(name.to_owned()).or_insert_with(|| {
            let (sender, messages) = mpsc::unbounded_channel();
            let booker = RateLimitBooker::new(&self.0.bus, name.to_owned());
            tokio::spawn(booker.run_until_closed(messages));
            sender
        });
        // The booker ends only with this limiter.
        let _ = booker.send(message);
    }

    fn lock_bookers(
        &self,
    ) -> std::sync::MutexGuard<'_, HashMap<String, mpsc::UnboundedSender<BookerMessage>>> {
        self.0.bookers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn to_signed(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_name_is_a_model_or_a_provider() {
        for text in
            ["openai:gpt-4o", "openai:*", "openai-compatible:qwen@http://127.0.0.1:8081/v1", "ollama:a:b"]
        {
            assert_eq!(text.parse::<LimitName>().unwrap().to_string(), text);
        }
        for text in ["gpt-4o", "openai:", ":x", "*", "*:*", "openai:gpt-*", "openai:**", "a b:c", "a:b c", ""]
        {
            assert!(text.parse::<LimitName>().is_err(), "{text}");
        }
    }
}
