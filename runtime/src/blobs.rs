//! Large values, kept under the SHA-256 of their content and checked when they are read. Storing one twice stores it
//! once.

use async_nats::jetstream::{self, object_store};
use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::wire::{Blob, MAX_INLINE, Stored};
use serde_bytes::ByteBuf;
use sha2::{Digest, Sha256};

use crate::topology::{BLOBS, fault};
use crate::{Fault, objects};

/// The blob store of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Blobs {
    client: async_nats::Client,
    store: object_store::ObjectStore,
}

/// The SHA-256 of some bytes, in hexadecimal.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Blobs {
    pub(crate) async fn open(context: &jetstream::Context) -> Result<Self, Fault> {
        let store = context.get_object_store(BLOBS).await.map_err(|error| fault("the blob store", &error))?;
        Ok(Self { client: context.client(), store })
    }

    /// Keeps bytes in the store.
    ///
    /// # Errors
    /// The server does not answer or is full.
    pub fn put<'a>(&'a self, bytes: &'a [u8]) -> BoxFuture<'a, Result<Stored, Fault>> {
        async move {
            let name = sha256(bytes);
            let size = bytes.len() as u64;
            if self.store.info(&name).await.is_ok_and(|found| found.size as u64 == size && !found.deleted) {
                return Ok(Stored { sha256: name, size });
            }
            let mut reader = bytes;
            self.store
                .put(name.as_str(), &mut reader)
                .await
                .map_err(|error| fault(&format!("storing blob {name}"), &error))?;
            Ok(Stored { sha256: name, size })
        }
        .boxed()
    }

    /// The bytes of that name.
    ///
    /// # Errors
    /// There are none, they are damaged, or the server does not answer.
    pub fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Vec<u8>, Fault>> {
        async move {
            let read = objects::read(&self.client, BLOBS, &self.store, name).await?;
            let bytes = read.ok_or_else(|| Fault::Missing { sha256: name.into() })?;
            let found = sha256(&bytes);
            if found == name { Ok(bytes) } else { Err(Fault::Damaged { sha256: name.into(), found }) }
        }
        .boxed()
    }

    /// A value that is kept here if it is too large to travel in a message.
    ///
    /// # Errors
    /// The server does not answer or is full.
    pub async fn spill(&self, bytes: Vec<u8>) -> Result<Blob, Fault> {
        if bytes.len() <= MAX_INLINE {
            return Ok(Blob::Inline(ByteBuf::from(bytes)));
        }
        Ok(Blob::Stored(self.put(&bytes).await?))
    }

    /// The bytes of a value, wherever they are.
    ///
    /// # Errors
    /// They are in the store and can't be had.
    pub async fn resolve(&self, blob: &Blob) -> Result<Vec<u8>, Fault> {
        match blob {
            Blob::Inline(bytes) => Ok(bytes.to_vec()),
            Blob::Stored(stored) => self.get(&stored.sha256).await,
        }
    }
}
