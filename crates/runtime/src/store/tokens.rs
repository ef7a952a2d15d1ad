//! The tokens of the HTTP API, in a bucket: the key is the id. A message that no program with permission published is no token
//! ([`crate::nats::record`]): otherwise whoever may write any stream could make one.
//!
//! Also the record of administrative actions, in a bucket: each has a key that sorts by time, and none is ever written again.

use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::audit::AuditRecord;
use millrace_protocol::tenant::TenantName;
use millrace_protocol::token::{Revocation, ScopeSet, StoredToken, TokenId, TokenState, TokenText};
use rustls::crypto::ring;

use crate::fault::max_replica_lag;
use crate::log::AppendError;
use crate::nats::bus::Bus;
use crate::nats::topology::{AUDIT, TOKENS};
use crate::store::bucket::{Bucket, BucketChange};
use crate::{Fault, clock};

static STORE: Bucket<StoredToken> = Bucket::new(TOKENS, "").with_key(|token| token.id.to_string());
/// The maximum number of active tokens of a tenant.
pub const MAX_TOKENS: usize = 10_000;
/// The pause before a token is read again from a replica that does not have it yet.
const LAG_PAUSE: Duration = Duration::from_millis(50);

/// The properties of a new token.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// The name of its holder.
    pub name: String,
    /// The operations that it allows.
    pub scopes: ScopeSet,
    /// When it expires.
    pub expires: Option<Timestamp>,
    /// The name of its creator.
    pub by: String,
    /// The tenant in its text; `None` for the only one of a gateway.
    pub tenant: Option<TenantName>,
}

/// The error of a creation.
#[derive(Debug, thiserror::Error)]
pub enum CreateTokenError {
    /// There are too many.
    #[error("there are {MAX_TOKENS} active tokens; revoke those that nobody uses")]
    TooMany,
    /// The server does not respond.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Creates a token, and returns its text, which can't be read again.
/// Errors: there are too many tokens, or the server does not respond.
pub async fn create_token(bus: &Bus, new: NewToken) -> Result<(TokenText, StoredToken), CreateTokenError> {
    let now = clock::now();
    let active =
        read_tokens(bus).await?.iter().filter(|token| token.state_at(now) == TokenState::Active).count();
    if active >= MAX_TOKENS {
        return Err(CreateTokenError::TooMany);
    }
    let NewToken { name, scopes, expires, by, tenant } = new;
    let text = TokenText::from_random(tenant, random_bytes()?, random_bytes()?);
    let stored = StoredToken {
        id: text.id.clone(),
        name,
        scopes,
        sha256: text.secret_hash(),
        created: now,
        created_by: by,
        expires,
        revoked: None,
    };
    write_token(bus, &stored, 0).await?;
    Ok((text, stored))
}

pub(super) fn random_bytes<const N: usize>() -> Result<[u8; N], Fault> {
    let mut bytes = [0; N];
    let random = ring::default_provider().secure_random;
    random
        .fill(&mut bytes)
        .map_err(|_| Fault::unavailable("creating a secret", "there are no random numbers"))?;
    Ok(bytes)
}

async fn write_token(bus: &Bus, token: &StoredToken, last: u64) -> Result<(), Fault> {
    match STORE.append(bus, token.id.as_str(), token, last, "token").await {
        Ok(_) => Ok(()),
        Err(AppendError::Fault(fault)) => Err(fault),
        Err(AppendError::Fenced { .. }) => {
            Err(Fault::unavailable("writing a token", "another program changes it; repeat the command"))
        }
    }
}

/// Returns the tokens, oldest first.
pub async fn read_tokens(bus: &Bus) -> Result<Vec<StoredToken>, Fault> {
    let mut tokens: Vec<StoredToken> =
        STORE.read_all(bus).await?.into_iter().map(|entry| entry.value).collect();
    tokens.sort_by(|one, other| (one.created, &one.id).cmp(&(other.created, &other.id)));
    Ok(tokens)
}

/// Returns a token; `None` if there is none with this id.
pub async fn read_token(bus: &Bus, id: &TokenId) -> Result<Option<StoredToken>, Fault> {
    STORE.read(bus, id.as_str()).await
}

/// Revokes a token, and returns it; `None` if there is none with this id. One that was revoked before stays as it is.
pub async fn revoke_token(bus: &Bus, id: &TokenId, by: &str) -> Result<Option<StoredToken>, Fault> {
    let (started, lag) = (tokio::time::Instant::now(), max_replica_lag(bus.settings().replicas));
    let (sequence, token) = loop {
        match STORE.read_state(bus, id.as_str()).await?.entry {
            Some(entry) => break (entry.sequence, entry.value),
            // A replica that lags does not have a new token yet.
            None if started.elapsed() < lag => tokio::time::sleep(LAG_PAUSE).await,
            None => return Ok(None),
        }
    };
    if token.revoked.is_some() {
        return Ok(Some(token));
    }
    let revoked = StoredToken { revoked: Some(Revocation { at: clock::now(), by: by.to_owned() }), ..token };
    write_token(bus, &revoked, sequence).await?;
    Ok(Some(revoked))
}

static ACTIONS: Bucket<AuditRecord> = Bucket::new(AUDIT, "");

/// Records an action, before it is carried out.
/// Fails also if the cluster has no such bucket.
pub async fn record_action(bus: &Bus, record: &AuditRecord) -> Result<(), Fault> {
    let key = uuid::Uuid::now_v7().simple().to_string();
    match ACTIONS.append(bus, &key, record, 0, "audit").await {
        Ok(_) => Ok(()),
        Err(AppendError::Fault(fault)) => Err(fault),
        Err(AppendError::Fenced { last }) => {
            Err(Fault::unavailable("recording an action", format!("its key is taken (sequence {last})")))
        }
    }
}

/// Returns the actions after a sequence, oldest first, each with its sequence, at most `limit`. Those that only a newer release can
/// read are left out.
pub async fn read_actions(bus: &Bus, after: u64, limit: usize) -> Result<Vec<(u64, AuditRecord)>, Fault> {
    let mut changes = ACTIONS.changes_below("", after);
    let mut actions = Vec::new();
    while let Some(page) = changes.next_page(bus).await? {
        for change in page {
            let BucketChange::Set(entry) = change else { continue };
            if actions.len() == limit {
                return Ok(actions);
            }
            actions.push((entry.sequence, entry.value));
        }
    }
    Ok(actions)
}
