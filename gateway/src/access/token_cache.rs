//! The tokens of a tenant, as they were read last.
//!
//! A token is read from its bucket again when what is known of it is older than half a second, so that a revocation takes effect
//! within a second at every gateway. Compared with a subscription to the bucket, nothing can be missed, and a gateway that can't
//! read the bucket accepts no token for longer than that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_protocol::token::{StoredToken, TokenId};
use millrace_runtime::store::tokens::read_token;
use millrace_runtime::{Bus, Fault};
use tokio::time::{Instant, timeout};

/// The time for which a token that was read is used.
const MAX_AGE: Duration = Duration::from_millis(500);
/// The maximum number of tokens that are held, with those that do not exist.
const MAX_CACHED: usize = 4_096;
/// The time in which the cluster must respond.
const READ_TIME: Duration = Duration::from_secs(5);

/// The tokens of a tenant, as they were read last.
#[derive(Default)]
pub struct TokenCache(Mutex<HashMap<TokenId, CachedToken>>);

struct CachedToken {
    read_at: Instant,
    token: Option<Arc<StoredToken>>,
}

impl TokenCache {
    /// Returns a token that was read at most half a second ago, or that there is none; `None` if it must be read.
    pub fn find_cached(&self, id: &TokenId) -> Option<Option<Arc<StoredToken>>> {
        self.with_entries(|entries| {
            let entry = entries.get(id).filter(|entry| entry.read_at.elapsed() < MAX_AGE)?;
            Some(entry.token.clone())
        })
    }

    /// Reads a token; `None` if there is none with this id.
    pub async fn read(&self, bus: &Bus, id: &TokenId) -> Result<Option<Arc<StoredToken>>, Fault> {
        // The age counts from before the read: what is written meanwhile may be missing.
        let read_at = Instant::now();
        let token = match timeout(READ_TIME, read_token(bus, id)).await {
            Ok(token) => token?.map(Arc::new),
            Err(error) => return Err(Fault::unavailable("reading a token", error)),
        };
        self.with_entries(|entries| {
            if entries.len() >= MAX_CACHED {
                entries.retain(|_, entry| entry.read_at.elapsed() < MAX_AGE);
            }
            if entries.len() < MAX_CACHED {
                entries.insert(id.clone(), CachedToken { read_at, token: token.clone() });
            }
        });
        Ok(token)
    }

    fn with_entries<T>(&self, action: impl FnOnce(&mut HashMap<TokenId, CachedToken>) -> T) -> T {
        action(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
