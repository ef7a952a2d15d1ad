//! The limits of single callers: requests per second, and open streams. One caller can't take what others need.

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_runtime::ops::metrics::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::caller::Caller;
use crate::problem::{Problem, ProblemKind};

/// The number of keys from which those that were not used lately are forgotten.
const MAX_KEYS: usize = 10_000;

#[derive(Debug, Clone, Copy)]
pub struct CallerLimits {
    /// The maximum number of requests per second; `None` for no limit.
    pub requests: Option<NonZeroU32>,
    /// The maximum number of open streams; `None` for no limit.
    pub streams: Option<NonZeroU32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum LimitKey {
    /// The holder of a token, by the id of the token or by its name.
    Holder(String),
    /// The address from which tokens come.
    Address(IpAddr),
}

/// Limits the requests of each key by the generic cell rate algorithm (ITU-T I.371): a key may use all requests of a second at once.
struct RateLimiter {
    /// The time between two requests at the full rate.
    interval: Duration,
    /// The time at which each key has used its requests up.
    used_until: Mutex<HashMap<LimitKey, Instant>>,
}

impl RateLimiter {
    fn per_second(requests: NonZeroU32) -> Self {
        Self { interval: Duration::from_secs(1) / requests.get(), used_until: Mutex::default() }
    }

    /// Counts a request, and returns `true` if it is within the limit.
    fn allows(&self, key: LimitKey, now: Instant) -> bool {
        let mut used_until = self.used_until.lock().unwrap_or_else(PoisonError::into_inner);
        if used_until.len() > MAX_KEYS {
            used_until.retain(|_, until| *until > now);
        }
        let until = used_until.entry(key).or_insert(now);
        let after = (*until).max(now) + self.interval;
        let is_allowed = after <= now + Duration::from_secs(1);
        if is_allowed {
            *until = after;
        }
        is_allowed
    }
}

pub struct LimitEnforcer {
    limiter: Option<RateLimiter>,
    streams: Option<NonZeroU32>,
    open_streams: Arc<Mutex<HashMap<LimitKey, u32>>>,
    /// The metric of open streams, if there is one.
    stream_count: Option<Gauge>,
}

/// The permission to hold a stream open; it ends when it is dropped.
pub struct StreamPermit {
    key: LimitKey,
    open_streams: Arc<Mutex<HashMap<LimitKey, u32>>>,
    stream_count: Option<Gauge>,
    /// Keeps the place of the request that has opened the stream.
    _slot: RequestSlot,
}

/// A place among the requests of a tenant in progress. It is free again when the last copy is dropped.
#[derive(Clone, Default)]
pub struct RequestSlot {
    _permit: Option<Arc<OwnedSemaphorePermit>>,
}

/// The requests and streams of a tenant in progress: a tenant can't take all connections of the gateway.
pub struct RequestSlots(Option<Arc<Semaphore>>);

impl RequestSlots {
    /// Creates them with a maximum number; `None` for no limit.
    #[must_use]
    pub fn new(limit: Option<NonZeroU32>) -> Self {
        let places = limit.map(|limit| usize::try_from(limit.get()).unwrap_or(Semaphore::MAX_PERMITS));
        Self(places.map(|places| Arc::new(Semaphore::new(places))))
    }

    pub fn take(&self) -> Result<RequestSlot, Problem> {
        let Some(slots) = &self.0 else { return Ok(RequestSlot::default()) };
        let permit = slots.clone().try_acquire_owned().map_err(|_| {
            let detail =
                "too many requests and streams of this tenant are in progress; close streams, or try again";
            Problem::new(ProblemKind::RateLimited, detail)
        })?;
        Ok(RequestSlot { _permit: Some(Arc::new(permit)) })
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        if let Some(count) = &self.stream_count {
            count.add(-1.0);
        }
        let mut open = self.open_streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.key) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                open.remove(&self.key);
            }
        }
    }
}

impl LimitEnforcer {
    /// Creates one, which counts open streams in a metric if there is one.
    #[must_use]
    pub fn new(limits: CallerLimits, stream_count: Option<Gauge>) -> Self {
        let limiter = limits.requests.map(RateLimiter::per_second);
        Self { limiter, streams: limits.streams, open_streams: Arc::default(), stream_count }
    }

    /// Counts a request. The user of this machine has no limit.
    pub fn count_request(&self, caller: &Caller) -> Result<(), Problem> {
        if caller.is_local { Ok(()) } else { self.count(key_of(caller)) }
    }

    /// Counts a lookup of a token in the cluster, which clients with a valid token cause twice a second at most: guessing tokens must
    /// not cost others the cluster.
    pub fn count_lookup(&self, address: Option<IpAddr>) -> Result<(), Problem> {
        address.map_or(Ok(()), |address| self.count(LimitKey::Address(address)))
    }

    fn count(&self, key: LimitKey) -> Result<(), Problem> {
        let Some(limiter) = &self.limiter else { return Ok(()) };
        if limiter.allows(key, Instant::now()) {
            return Ok(());
        }
        Err(Problem::new(
            ProblemKind::RateLimited,
            "there were too many requests within a second; send fewer",
        ))
    }

    /// Returns the permission to hold a stream open.
    pub fn open_stream(&self, caller: &Caller, slot: RequestSlot) -> Result<StreamPermit, Problem> {
        let limit = self.streams.filter(|_| !caller.is_local);
        let key = key_of(caller);
        let mut open = self.open_streams.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(key.clone()).or_default();
        if let Some(limit) = limit.filter(|limit| *count >= limit.get()) {
            let detail = format!(
                "{} has {limit} open streams; close some, or follow all runs with /events",
                caller.name
            );
            return Err(Problem::new(ProblemKind::TooManyStreams, detail));
        }
        *count += 1;
        if let Some(count) = &self.stream_count {
            count.add(1.0);
        }
        let (open_streams, stream_count) = (self.open_streams.clone(), self.stream_count.clone());
        Ok(StreamPermit { key, open_streams, stream_count, _slot: slot })
    }
}

fn key_of(caller: &Caller) -> LimitKey {
    LimitKey::Holder(caller.token.as_ref().map_or_else(|| format!("@{}", caller.name), ToString::to_string))
}

#[cfg(test)]
mod tests {
    use millrace_protocol::token::ScopeSet;

    use super::*;

    fn enforcer(requests: u32, streams: u32) -> LimitEnforcer {
        let (requests, streams) = (NonZeroU32::new(requests), NonZeroU32::new(streams));
        LimitEnforcer::new(CallerLimits { requests, streams }, None)
    }

    fn caller(name: &str) -> Caller {
        Caller { name: name.into(), scopes: ScopeSet::all(), token: None, address: None, is_local: false }
    }

    #[test]
    fn requests_are_spread_over_the_second_after_a_burst() {
        let limiter = RateLimiter::per_second(NonZeroU32::new(4).unwrap());
        let key = || LimitKey::Holder("ann".into());
        let start = Instant::now();
        let allowed = |after: u64| {
            let now = start + Duration::from_millis(after);
            (0..10).filter(|_| limiter.allows(key(), now)).count()
        };
        assert_eq!((allowed(0), allowed(249), allowed(250), allowed(1_000), allowed(9_000)), (4, 0, 1, 3, 4));
    }

    #[test]
    fn callers_are_limited_one_by_one() {
        let enforcer = enforcer(5, 0);
        let allowed = |name: &str| (0..20).filter(|_| enforcer.count_request(&caller(name)).is_ok()).count();
        assert!((5..=6).contains(&allowed("ann")));
        assert!((5..=6).contains(&allowed("bob")));
        assert!(enforcer.count_lookup("10.0.0.1".parse().ok()).is_ok());
        assert!((0..1_000).all(|_| super::tests::enforcer(0, 0).count_request(&caller("ann")).is_ok()));
    }

    #[test]
    fn streams_that_are_closed_make_room() {
        let enforcer = enforcer(0, 2);
        let open = |name: &str| enforcer.open_stream(&caller(name), RequestSlot::default());
        let (first, _second) = (open("ann").unwrap(), open("ann").unwrap());
        assert!(open("ann").is_err());
        let _other = open("bob").unwrap();
        drop(first);
        assert!(open("ann").is_ok());
    }

    #[test]
    fn requests_of_a_tenant_wait_for_no_place() {
        let slots = RequestSlots::new(NonZeroU32::new(2));
        let (first, _second) = (slots.take().unwrap(), slots.take().unwrap());
        let stream = enforcer(0, 0).open_stream(&caller("ann"), first.clone()).unwrap();
        drop(first);
        assert!(slots.take().is_err(), "a stream keeps the place of its request");
        drop(stream);
        assert!(slots.take().is_ok());
        let unlimited = RequestSlots::new(None);
        assert!((0..9).map(|_| unlimited.take()).all(|slot| slot.is_ok()));
    }
}
