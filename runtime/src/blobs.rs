//! Large values, kept under the SHA-256 of their content and checked when they are read. Storing one twice stores it
//! once, and what is stored stays: whoever writes something else under its name writes behind it.

use std::time::Duration;

use async_nats::jetstream;
use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::wire::{Blob, MAX_INLINE, Stored};
use serde_bytes::ByteBuf;
use sha2::{Digest, Sha256};

use crate::topology::BLOBS;
use crate::{Fault, objects};

/// How often storing is tried while others store the same.
const TRIES: u32 = 5;
/// How long a name is: a SHA-256 in hexadecimal.
const NAME: usize = 64;
/// The wait before it is tried again.
const AGAIN: Duration = Duration::from_millis(20);

/// The blob store of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Blobs {
    context: jetstream::Context,
    /// How long a blob is looked for that is not there: the copy that answers may lag behind.
    lag: Duration,
}

/// The SHA-256 of some bytes, in hexadecimal.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Blobs {
    pub(crate) fn of(context: &jetstream::Context, lag: Duration) -> Self {
        Self { context: context.clone(), lag }
    }

    /// Keeps bytes in the store.
    ///
    /// # Errors
    /// The server does not answer or is full.
    pub fn put<'a>(&'a self, bytes: &'a [u8]) -> BoxFuture<'a, Result<Stored, Fault>> {
        async move {
            let digest = Sha256::digest(bytes);
            let (name, size) = (hexadecimal(&digest), bytes.len() as u64);
            for _ in 0..TRIES {
                let said = objects::said(&self.context.client(), BLOBS, &name).await?;
                let is_there = self.is_there(&name, size, &said).await;
                let last = said.last().map_or(0, |said| said.sequence);
                if is_there || objects::write(&self.context, BLOBS, &name, bytes, &digest, last).await? {
                    return Ok(Stored { sha256: name, size });
                }
                // Somebody else has just stored it, and it is not yet everywhere.
                tokio::time::sleep(AGAIN).await;
            }
            Err(Fault::unavailable(format!("storing blob {name}"), "others write it again and again"))
        }
        .boxed()
    }

    /// Whether a blob is in the store already. What nobody said, or a program that left no mark, is believed where the
    /// content is there.
    fn is_there<'a>(&'a self, name: &'a str, size: u64, said: &[objects::Said]) -> BoxFuture<'a, bool> {
        let mut fitting = said.iter().filter(|said| said.info.size == size && !said.info.deleted).peekable();
        let is_said = fitting.peek().is_some();
        let is_sure = fitting.any(|said| !said.is_stray);
        async move { is_sure || (is_said && self.look(name).await.is_ok()) }.boxed()
    }

    /// The bytes of that name. Where the copy that answers may lag, what is not all there is waited for.
    ///
    /// # Errors
    /// There are none or not all, they are damaged, or the server does not answer.
    pub fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Vec<u8>, Fault>> {
        async move {
            // No blob has another name, and not every text can be asked for.
            if name.len() != NAME || !name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(Fault::Missing { sha256: name.into() });
            }
            let started = tokio::time::Instant::now();
            loop {
                match self.look(name).await {
                    Err(fault)
                        if started.elapsed() < self.lag
                            && (fault.is_transient() || matches!(fault, Fault::Missing { .. })) =>
                    {
                        tokio::time::sleep(AGAIN).await;
                    }
                    found => return found,
                }
            }
        }
        .boxed()
    }

    async fn look(&self, name: &str) -> Result<Vec<u8>, Fault> {
        let client = self.context.client();
        let missing = || Fault::Missing { sha256: name.into() };
        let (mut fault, mut may_come) = (missing(), None);
        for said in objects::said(&client, BLOBS, name).await? {
            if said.info.deleted {
                continue;
            }
            match objects::whole(&client, BLOBS, &said.info).await {
                Ok(Some(bytes)) => match sha256(&bytes) {
                    found if found == name => return Ok(bytes),
                    found => fault = Fault::Damaged { sha256: name.into(), found },
                },
                Ok(None) => may_come = may_come.or_else(|| Some(missing())),
                Err(lost) => may_come = Some(lost),
            }
        }
        // Another's word of that name does not stand in the way of what is still on its way here.
        Err(may_come.unwrap_or(fault))
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
