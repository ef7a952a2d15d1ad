//! The rates that models may be asked at, for a whole cluster. What is allowed stands in a bucket under the name of a
//! model, or of a provider for all its models, and so does what is used of it, which every worker changes by
//! compare-and-set. A name without an entry is not limited, and costs no more than a look at the bucket each second.
//!
//! Times are those of the machines: where their clocks differ by a second, so do their bookings. A booking whose answer
//! was lost counts twice, which wastes a little of the rate and never passes it.

mod keeper;
pub mod rate;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::kv;
use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::subject::{read_token, token};
use tokio::sync::{OnceCell, mpsc, oneshot};
use tokio::time::Instant;

use crate::Fault;
use crate::bus::Bus;
use crate::lease::entries;
use crate::topology::{LIMITS, fault, open_bucket};
use keeper::{Ask, Keeper, Waiter};
pub use rate::Allowed;
use rate::State;

/// How long a look at the bucket is good for.
const FRESH: Duration = Duration::from_secs(1);
/// How long a pause is tried to be written.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a rate is for: a model, `provider:model`, or all models of a provider, `provider:*`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LimitName(String);

/// A text that names no model and no provider.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} names no model: write provider:model, such as openai:gpt-4o, or provider:* for all of a provider"
)]
pub struct InvalidLimitName {
    /// The text, cut to 200 characters.
    pub text: String,
}

impl FromStr for LimitName {
    type Err = InvalidLimitName;
    fn from_str(text: &str) -> Result<Self, InvalidLimitName> {
        let is_plain = |c: char| !c.is_control() && !c.is_whitespace() && !matches!(c, '*' | '?');
        let fits = text.len() <= 300
            && text.split_once(':').is_some_and(|(provider, model)| {
                let named = |part: &str| !part.is_empty() && part.chars().all(is_plain);
                named(provider) && (model == "*" || named(model))
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

/// A rate as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// What it is for.
    pub name: String,
    /// What is allowed a minute; nothing where it is only paused.
    pub allowed: Allowed,
    /// The requests of the last minute.
    pub requests: u64,
    /// The tokens of the last minute, booked or used.
    pub tokens: u64,
    /// Until when nothing goes, if that is still to come.
    pub paused_until: Option<jiff::Timestamp>,
}

/// Sets what is allowed.
///
/// # Errors
/// The server does not answer.
pub async fn set(bus: &Bus, name: &LimitName, allowed: Allowed) -> Result<(), Fault> {
    let store = open_bucket(bus.control(), LIMITS).await?;
    let bytes = serde_json::to_vec(&allowed).expect("numbers have a form in JSON");
    let put = store.put(allowed_key(&name.0), bytes.into()).await;
    put.map(|_| ()).map_err(|error| fault(&format!("setting the rate of {name}"), &error))
}

/// Lifts a limit, and the pause that may hold; says whether there was one.
///
/// # Errors
/// The server does not answer.
pub async fn clear(bus: &Bus, name: &LimitName) -> Result<bool, Fault> {
    let store = open_bucket(bus.control(), LIMITS).await?;
    let was_there = look(bus).await?.contains_key(&name.0);
    for key in [allowed_key(&name.0), state_key(&name.0)] {
        store.delete(key).await.map_err(|error| fault(&format!("lifting the limit of {name}"), &error))?;
    }
    Ok(was_there)
}

/// All rates as they stand, by name.
///
/// # Errors
/// The server does not answer.
pub async fn standings(bus: &Bus) -> Result<Vec<Standing>, Fault> {
    let now = now();
    let standing = |(name, entry): (String, Entry)| {
        let (requests, tokens) = entry.state.used(now);
        let until = entry.state.paused_until;
        let paused_until = (until > now).then(|| jiff::Timestamp::from_microsecond(until).ok()).flatten();
        Standing { name, allowed: entry.allowed.unwrap_or_default(), requests, tokens, paused_until }
    };
    let all = look(bus).await?.into_iter();
    let counts = |entry: &Entry| entry.allowed.is_some() || entry.state.paused_until > now;
    Ok(all.filter(|(_, entry)| counts(entry)).map(standing).collect())
}

/// What the bucket holds of a name.
#[derive(Debug, Clone, Default)]
struct Entry {
    allowed: Option<Allowed>,
    state: State,
}

/// All that the bucket holds.
async fn look(bus: &Bus) -> Result<BTreeMap<String, Entry>, Fault> {
    let mut found: BTreeMap<String, Entry> = BTreeMap::new();
    for (key, bytes) in entries(bus, LIMITS).await? {
        let Some((kind, name)) = key.split_once('.') else { continue };
        let Some(name) = read_token(name) else { continue };
        let entry = found.entry(name).or_default();
        match kind {
            "allowed" => entry.allowed = serde_json::from_slice(&bytes).ok(),
            "state" => entry.state = serde_json::from_slice(&bytes).unwrap_or_default(),
            _ => {}
        }
    }
    Ok(found)
}

fn allowed_key(name: &str) -> String {
    format!("allowed.{}", token(name))
}

fn state_key(name: &str) -> String {
    format!("state.{}", token(name))
}

fn now() -> i64 {
    jiff::Timestamp::now().as_microsecond()
}

/// Lets the requests of one process through at the rates of the cluster. Cheap to clone.
#[derive(Clone)]
pub struct Limiter(Arc<Inner>);

struct Inner {
    bus: Bus,
    store: OnceCell<kv::Store>,
    view: tokio::sync::Mutex<View>,
    keepers: Mutex<HashMap<String, mpsc::UnboundedSender<Ask>>>,
}

/// The last look at the bucket.
#[derive(Default)]
struct View {
    read: Option<Instant>,
    entries: BTreeMap<String, Entry>,
}

impl Limiter {
    /// A limiter that asks nothing yet.
    #[must_use]
    pub fn new(bus: &Bus) -> Self {
        let (store, view) = (OnceCell::new(), tokio::sync::Mutex::default());
        Self(Arc::new(Inner { bus: bus.clone(), store, view, keepers: Mutex::default() }))
    }

    /// Waits until a request to a model (`provider:model`) that may take so many tokens can be made, and books it.
    ///
    /// # Errors
    /// It can't be made before `patience` is over, and nothing is booked: how long it would have to wait.
    pub fn admit<'a>(
        &'a self,
        model: &'a str,
        tokens: u64,
        patience: Duration,
    ) -> BoxFuture<'a, Result<(), Duration>> {
        async move {
            let until = now().saturating_add(i64::try_from(patience.as_micros()).unwrap_or(i64::MAX));
            let mut booked: Vec<(String, Allowed)> = Vec::new();
            for (name, entry) in self.entries_of(model).await {
                let allowed = entry.allowed.unwrap_or_default();
                if entry.allowed.is_none() && entry.state.paused_until <= now() {
                    continue;
                }
                let (reply, answer) = oneshot::channel();
                self.ask(&name, Ask::Admit(Waiter { allowed, tokens, until, reply })).await;
                // A keeper that is gone is one whose bucket can't be had, and lets go.
                if let Ok(Err(wait)) = answer.await {
                    self.give_back(booked, tokens).await;
                    return Err(wait);
                }
                booked.push((name, allowed));
            }
            Ok(())
        }
        .boxed()
    }

    /// Corrects what was booked for a request by what it really took.
    pub fn settle<'a>(&'a self, model: &'a str, booked: u64, used: u64) -> BoxFuture<'a, ()> {
        async move {
            let tokens = signed(used) - signed(booked);
            if tokens == 0 {
                return;
            }
            for (name, entry) in self.entries_of(model).await {
                if let Some(allowed) = entry.allowed {
                    self.ask(&name, Ask::Correct { allowed, requests: 0, tokens }).await;
                }
            }
        }
        .boxed()
    }

    /// Lets nothing go to a model for a while, in the whole cluster.
    pub fn pause<'a>(&'a self, model: &'a str, pause: Duration) -> BoxFuture<'a, ()> {
        async move {
            let until = now().saturating_add(i64::try_from(pause.as_micros()).unwrap_or(i64::MAX));
            self.0.view.lock().await.entries.entry(model.to_owned()).or_default().state.pause(until);
            let (done, written) = oneshot::channel();
            self.ask(model, Ask::Pause { until, done }).await;
            // If it can't be written, this process knows it all the same.
            let _ = tokio::time::timeout(PATIENCE.min(pause), written).await;
        }
        .boxed()
    }

    async fn give_back(&self, booked: Vec<(String, Allowed)>, tokens: u64) {
        for (name, allowed) in booked {
            self.ask(&name, Ask::Correct { allowed, requests: -1, tokens: -signed(tokens) }).await;
        }
    }

    /// What the bucket holds of a model's provider and of the model, as of a second ago or later.
    async fn entries_of(&self, model: &str) -> Vec<(String, Entry)> {
        let provider = model.split_once(':').map(|(provider, _)| format!("{provider}:*"));
        let mut view = self.0.view.lock().await;
        if view.read.is_none_or(|read| read.elapsed() >= FRESH) {
            match self.look().await {
                Ok(entries) => view.entries = entries,
                Err(fault) => tracing::debug!(%fault, "the limits can't be read; the last ones hold"),
            }
            view.read = Some(Instant::now());
        }
        let names = provider.into_iter().chain([model.to_owned()]);
        names.filter_map(|name| view.entries.get(&name).cloned().map(|entry| (name, entry))).collect()
    }

    async fn look(&self) -> Result<BTreeMap<String, Entry>, Fault> {
        look(&self.0.bus).await
    }

    async fn store(&self) -> Result<&kv::Store, Fault> {
        self.0.store.get_or_try_init(|| open_bucket(self.0.bus.control(), LIMITS)).await
    }

    /// Asks the keeper of a name, which is there from the first question on.
    async fn ask(&self, name: &str, ask: Ask) {
        let known = self.keepers().get(name).cloned();
        let keeper = match known {
            Some(keeper) => keeper,
            None => match self.store().await {
                Ok(store) => self.keeper(name, store.clone()),
                Err(fault) => return tracing::warn!(%fault, name, "the limits of the cluster can't be kept"),
            },
        };
        // It ends only with us.
        let _ = keeper.send(ask);
    }

    fn keeper(&self, name: &str, store: kv::Store) -> mpsc::UnboundedSender<Ask> {
        let mut keepers = self.keepers();
        let start = || {
            let (ask, asked) = mpsc::unbounded_channel();
            tokio::spawn(Keeper::new(store, name.to_owned()).run(asked));
            ask
        };
        keepers.entry(name.to_owned()).or_insert_with(start).clone()
    }

    fn keepers(&self) -> std::sync::MutexGuard<'_, HashMap<String, mpsc::UnboundedSender<Ask>>> {
        self.0.keepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn signed(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_a_model_or_of_a_provider() {
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
