//! Idempotency keys of submissions. The first claim of a key decides which run it names; whoever claims it again finds that
//! run, for as long as the run is kept. So a client that did not get the reply can repeat its request at any time, also with
//! another process.
//!
//! # Invariants
//!
//! - I162: Requests to submit with one idempotency key make one run, at any gateway, at any later time, and if a gateway dies
//!   between the key and the submission; the key never names another request.
//!   (`tests/tests/gateway.rs::request_with_a_key_submits_one_run_however_often_it_is_repeated`)

use async_nats::jetstream::kv;
use millrace_protocol::ids::RunId;
use serde::{Deserialize, Serialize};

use crate::Fault;
use crate::fault::{backoff, max_replica_lag};
use crate::nats::bus::Bus;
use crate::nats::error::fault_from_client_error;
use crate::nats::topology::KEYS;
use crate::store::blobs::sha256_hex;

/// The run that a key names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyedSubmission {
    /// The run.
    pub run: RunId,
    /// The SHA-256 of the request in hexadecimal.
    pub request: String,
}

/// The outcome of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyClaim {
    /// The key is new and names this submission from now on.
    New,
    /// The key names this submission already.
    Existing(KeyedSubmission),
}

/// Claims the key of an author for a submission.
///
/// # Errors
/// The server does not respond or has no storage left, or the cluster has no such bucket: its supervisors are older.
pub async fn claim_key(
    bus: &Bus,
    (author, key): (&str, &str),
    submission: &KeyedSubmission,
) -> Result<KeyClaim, Fault> {
    let what = "claiming an idempotency key";
    let store = bus.bucket(KEYS).await?;
    // Keys of clients may have any characters.
    let name = sha256_hex(format!("{author}\0{key}").as_bytes());
    let value = serde_json::to_vec(submission).expect("a keyed submission serialises to JSON");
    let (started, lag) = (tokio::time::Instant::now(), max_replica_lag(bus.settings().replicas));
    let mut tries = 0;
    loop {
        match store.create(name.as_str(), value.clone().into()).await {
            Ok(_) => return Ok(KeyClaim::New),
            Err(error) if error.kind() == kv::CreateErrorKind::AlreadyExists => {}
            Err(error) => return Err(fault_from_client_error(what, error)),
        }
        let found = store.get(name.as_str()).await.map_err(|error| fault_from_client_error(what, error))?;
        if let Some(bytes) = found {
            let existing = serde_json::from_slice(&bytes).map_err(|error| Fault::unavailable(what, error))?;
            return Ok(KeyClaim::Existing(existing));
        }
        // The replica that answered lags behind its leader.
        if started.elapsed() > lag {
            return Err(Fault::unavailable(what, "the bucket does not return the key"));
        }
        tries += 1;
        tokio::time::sleep(backoff(tries)).await;
    }
}
