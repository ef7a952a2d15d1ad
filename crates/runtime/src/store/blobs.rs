//! Large values, stored under the SHA-256 of their content and verified when read. Storing a value twice stores it
//! once. A stored value can't be replaced: anything else that is written under its name comes after it.
//!
//! Values that nothing refers to are swept ([`super::retention`]), unless they were stored a short while ago. So a value that
//! is stored again gets a new description, which renews its age. Descriptions are fenced: of a sweep and of who stores the
//! value again, one is first, and the other notices.
//!
//! # Invariants
//!
//! - I10: Large values are stored by content and verified when read; no user meets the server's payload limit.
//!   (`crates/runtime/tests/runtime.rs::large_message_goes_through_the_blob_store`,
//!   `crates/runtime/tests/runtime.rs::blob_is_stored_once_and_verified`)
//! - I82: A blob counts as stored only if its content is there, and no reader reads one that is larger than the protocol allows.
//!   (`crates/runtime/tests/runtime.rs::blob_that_was_only_described_is_stored`,
//!   `crates/runtime/tests/runtime.rs::blob_of_a_huge_size_is_neither_read_nor_stored`)
//! - I220: A file of any size is stored and read part by part, and a reader of a damaged one never gets its last part.
//!   (`crates/runtime/tests/runtime.rs::file_is_stored_and_read_part_by_part`,
//!   `crates/runtime/tests/runtime.rs::reader_of_a_damaged_blob_never_gets_its_last_part`,
//!   `worker/tests/program_files.rs::programs_exchange_files_that_are_larger_than_the_memory_for_them`)

use std::collections::HashSet;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use millrace_protocol::retention::BLOB_RENEWAL_AGE;
use millrace_protocol::wire::{BlobRef, InlineOrStoredBytes, MAX_BLOB, MAX_INLINE, MAX_STREAMED_BLOB};
use serde_bytes::ByteBuf;
use sha2::{Digest, Sha256};

use crate::Fault;
use crate::nats::object_store::{self, ObjectContent, ObjectParts, StoredObjectInfo};
use crate::nats::topology::BLOBS;

/// The maximum number of descriptions of a blob that are tried.
const MAX_DESCRIPTIONS: usize = 16;
/// The maximum number of attempts while other processes store the same value.
const MAX_ATTEMPTS: u32 = 5;
/// The length of a name: a SHA-256 in hexadecimal.
const NAME_LENGTH: usize = 64;
/// The interval between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The blob store of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct BlobStore {
    context: jetstream::Context,
    /// The time after which a blob counts as missing: the responding replica may lag behind its leader.
    lag: Duration,
    /// The age in milliseconds from which a blob that is stored again is renewed.
    renewal_age: Arc<AtomicU64>,
}

/// Returns the SHA-256 of bytes in hexadecimal.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn refuse_large_blob(name: &str, size: u64, max: u64) -> Result<(), Fault> {
    if size > max { Err(Fault::TooLarge { sha256: name.into(), size, max }) } else { Ok(()) }
}

/// No blob has another name, and other texts may be invalid in a subject.
fn check_blob_name(name: &str) -> Result<(), Fault> {
    let is_name = name.len() == NAME_LENGTH && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_name { Ok(()) } else { Err(Fault::Missing { sha256: name.into() }) }
}

/// The content of a blob, which is read part by part.
pub struct BlobStream {
    size: u64,
    parts: ObjectParts,
    sha256: String,
    hash: Sha256,
    /// The part that is returned next: the last one is held back until the whole content was verified.
    held: Option<Bytes>,
    is_over: bool,
}

impl BlobStream {
    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the parts as a stream. It ends after an error.
    #[must_use]
    pub fn into_stream(self) -> BoxStream<'static, Result<Bytes, Fault>> {
        let next = |mut blob: Self| async move { Ok(blob.next_part().await?.map(|part| (part, blob))) };
        futures::stream::try_unfold(self, next).boxed()
    }

    /// Returns the next part; `None` after the last one. A reader that gets the last part has got the content of the blob.
    /// Errors: the content is damaged or incomplete, or the server does not respond. The last part was not returned.
    pub async fn next_part(&mut self) -> Result<Option<Bytes>, Fault> {
        while !self.is_over {
            if let Some(part) = self.parts.next_part(&|_| true).await? {
                self.hash.update(&part);
                if let Some(held) = self.held.replace(part) {
                    return Ok(Some(held));
                }
                continue;
            }
            let sha256 = self.sha256.clone();
            if !self.parts.is_complete() {
                return Err(Fault::Missing { sha256 });
            }
            let actual = hexadecimal(&std::mem::take(&mut self.hash).finalize());
            if actual != sha256 {
                return Err(Fault::Damaged { sha256, actual });
            }
            self.is_over = true;
        }
        Ok(self.held.take())
    }
}

impl BlobStore {
    pub(crate) fn new(context: &jetstream::Context, lag: Duration) -> Self {
        let blobs = Self { context: context.clone(), lag, renewal_age: Arc::default() };
        blobs.set_renewal_age(BLOB_RENEWAL_AGE);
        blobs
    }

    /// Changes the age from which a blob that is stored again is renewed. It must be well below the grace period of sweeps.
    pub fn set_renewal_age(&self, age: Duration) {
        let millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        self.renewal_age.store(millis, Ordering::Relaxed);
    }

    /// Stores a value.
    /// Errors: it is larger than [`MAX_BLOB`], or the server does not respond or is full.
    pub fn put_blob<'a>(&'a self, bytes: &'a [u8]) -> BoxFuture<'a, Result<BlobRef, Fault>> {
        async move {
            let digest = Sha256::digest(bytes);
            refuse_large_blob(&hexadecimal(&digest), bytes.len() as u64, MAX_BLOB)?;
            self.put_content(ObjectContent::Bytes(bytes), &digest).await
        }
        .boxed()
    }

    /// Stores the content of a file, one batch of parts in memory at a time. The file must not change meanwhile.
    /// Errors: it is larger than [`MAX_STREAMED_BLOB`], can't be read, or has changed; or the server does not respond or is
    /// full.
    pub fn put_blob_from_file<'a>(&'a self, file: Arc<File>) -> BoxFuture<'a, Result<BlobRef, Fault>> {
        async move {
            let unreadable = |error| Fault::unavailable("reading a file to store it", error);
            let size = file.metadata().map_err(unreadable)?.len();
            refuse_large_blob("of a file", size, MAX_STREAMED_BLOB)?;
            let content = ObjectContent::File { file, size };
            let digest = content.digest().await.map_err(unreadable)?;
            self.put_content(content, &digest).await
        }
        .boxed()
    }

    async fn put_content(&self, content: ObjectContent<'_>, digest: &[u8]) -> Result<BlobRef, Fault> {
        let (name, size) = (hexadecimal(digest), content.size());
        for _ in 0..MAX_ATTEMPTS {
            let descriptions =
                object_store::read_object_descriptions(&self.context.client(), BLOBS, &name).await?;
            let last = descriptions.last().map_or(0, |stored| stored.sequence);
            let is_done = match self.find_stored(&name, size, &descriptions).await {
                Some(stored) if !self.needs_renewal(stored) => true,
                Some(stored) => object_store::append_description(&self.context, BLOBS, &stored.info, last)
                    .await?
                    .is_some(),
                None => {
                    object_store::write_object(&self.context, BLOBS, &name, &content, digest, last).await?
                }
            };
            if is_done {
                return Ok(BlobRef { sha256: name, size });
            }
            // Another process has just stored it or swept it, and not every replica has that yet.
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
        Err(Fault::unavailable(format!("storing blob {name}"), "other processes keep storing it"))
    }

    /// Returns the last description of a blob that is stored already, with its content: whoever may write blobs can describe one
    /// that does not exist. Descriptions before a deleted one do not count: a sweep is removing their parts.
    async fn find_stored<'a>(
        &self,
        name: &str,
        size: u64,
        descriptions: &'a [StoredObjectInfo],
    ) -> Option<&'a StoredObjectInfo> {
        let first = descriptions.iter().rposition(|stored| stored.info.deleted).map_or(0, |at| at + 1);
        let matching = descriptions[first..].iter().rev().filter(|stored| stored.info.size == size);
        let mut tried = Vec::new();
        for stored in matching {
            // Renewed descriptions share their parts.
            if tried.contains(&&stored.info.nuid) || tried.len() == MAX_DESCRIPTIONS {
                continue;
            }
            tried.push(&stored.info.nuid);
            let hashed = object_store::hash_object(&self.context.client(), BLOBS, &stored.info).await;
            if hashed.is_ok_and(|digest| digest.is_some_and(|digest| hexadecimal(&digest) == name)) {
                return Some(stored);
            }
        }
        None
    }

    fn needs_renewal(&self, stored: &StoredObjectInfo) -> bool {
        let age = Duration::try_from(Timestamp::now().duration_since(stored.at)).unwrap_or_default();
        age >= Duration::from_millis(self.renewal_age.load(Ordering::Relaxed))
    }

    /// Returns the value with this name. Objects that are larger than [`MAX_BLOB`] are not read. On a replicated stream it waits for an incomplete value to arrive.
    /// Errors: the value is missing, incomplete or damaged, or the server does not answer.
    pub fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Vec<u8>, Fault>> {
        self.get_with_size(name, None)
    }

    /// Like [`Self::get`]; objects of another size than `size` are not read.
    fn get_with_size<'a>(
        &'a self,
        name: &'a str,
        size: Option<u64>,
    ) -> BoxFuture<'a, Result<Vec<u8>, Fault>> {
        async move {
            check_blob_name(name)?;
            size.map_or(Ok(()), |size| refuse_large_blob(name, size, MAX_BLOB))?;
            self.retry_while_replicas_lag(|| self.try_get(name, size)).await
        }
        .boxed()
    }

    /// Opens a blob of any size up to [`MAX_STREAMED_BLOB`], to read it part by part; objects of another size than `size`
    /// are not read. On a replicated stream it waits for an incomplete value to arrive.
    /// Errors: the value is too large, missing, incomplete or damaged, or the server does not respond.
    pub fn open_blob<'a>(
        &'a self,
        name: &'a str,
        size: Option<u64>,
    ) -> BoxFuture<'a, Result<BlobStream, Fault>> {
        async move {
            check_blob_name(name)?;
            size.map_or(Ok(()), |size| refuse_large_blob(name, size, MAX_STREAMED_BLOB))?;
            self.retry_while_replicas_lag(|| self.try_open(name, size)).await
        }
        .boxed()
    }

    async fn try_open(&self, name: &str, size: Option<u64>) -> Result<BlobStream, Fault> {
        let client = self.context.client();
        let missing = || Fault::Missing { sha256: name.into() };
        let open = |stored: &StoredObjectInfo| BlobStream {
            size: stored.info.size,
            parts: ObjectParts::new(&client, BLOBS, &stored.info),
            sha256: name.to_owned(),
            hash: Sha256::new(),
            held: None,
            is_over: false,
        };
        let is_wanted = |stored: &StoredObjectInfo| {
            stored.info.size <= MAX_STREAMED_BLOB && size.is_none_or(|size| stored.info.size == size)
        };
        let candidates = self.candidates(name, is_wanted).await?;
        if let [only] = candidates.as_slice()
            && self.lag.is_zero()
        {
            // The stream itself verifies what it reads.
            return Ok(open(only));
        }
        let mut fault = missing();
        for stored in &candidates {
            match object_store::hash_object(&client, BLOBS, &stored.info).await? {
                Some(digest) if hexadecimal(&digest) == name => return Ok(open(stored)),
                Some(digest) => {
                    fault = Fault::Damaged { sha256: name.into(), actual: hexadecimal(&digest) };
                }
                None => return Err(missing()),
            }
        }
        Err(fault)
    }

    /// Repeats a failed read as long as a replica may lag behind its leader.
    async fn retry_while_replicas_lag<T, F: Future<Output = Result<T, Fault>>>(
        &self,
        read: impl Fn() -> F,
    ) -> Result<T, Fault> {
        let started = tokio::time::Instant::now();
        loop {
            match read().await {
                Err(fault)
                    if started.elapsed() < self.lag
                        && (fault.is_transient() || matches!(fault, Fault::Missing { .. })) =>
                {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                result => return result,
            }
        }
    }

    /// Returns the descriptions of a blob that may be valid, with a limit: anybody who may write blobs can add descriptions.
    async fn candidates(
        &self,
        name: &str,
        is_wanted: impl Fn(&StoredObjectInfo) -> bool,
    ) -> Result<Vec<StoredObjectInfo>, Fault> {
        let mut descriptions =
            object_store::read_object_descriptions(&self.context.client(), BLOBS, name).await?;
        descriptions
            .retain(|stored| !stored.provenance.is_forged() && !stored.info.deleted && is_wanted(stored));
        // Renewed descriptions share their parts.
        let mut parts = HashSet::new();
        descriptions.retain(|stored| parts.insert(stored.info.nuid.clone()));
        descriptions.truncate(MAX_DESCRIPTIONS);
        Ok(descriptions)
    }

    async fn try_get(&self, name: &str, size: Option<u64>) -> Result<Vec<u8>, Fault> {
        let client = self.context.client();
        let missing = || Fault::Missing { sha256: name.into() };
        let (mut fault, mut transient) = (missing(), None);
        let is_wanted = |stored: &StoredObjectInfo| {
            stored.info.size <= MAX_BLOB && size.is_none_or(|size| stored.info.size == size)
        };
        for stored in self.candidates(name, is_wanted).await? {
            match object_store::read_unverified_object(&client, BLOBS, &stored.info).await {
                Ok(Some(bytes)) => match sha256_hex(&bytes) {
                    actual if actual == name => return Ok(bytes),
                    actual => fault = Fault::Damaged { sha256: name.into(), actual },
                },
                Ok(None) => transient = transient.or_else(|| Some(missing())),
                Err(fault) => transient = Some(fault),
            }
        }
        // A damaged version of that name must not hide one that may still become complete.
        Err(transient.unwrap_or(fault))
    }

    /// Stores a value if it is too large for a message; otherwise returns it inline.
    pub async fn store_if_large(&self, bytes: Vec<u8>) -> Result<InlineOrStoredBytes, Fault> {
        if bytes.len() <= MAX_INLINE {
            return Ok(InlineOrStoredBytes::Inline(ByteBuf::from(bytes)));
        }
        Ok(InlineOrStoredBytes::Stored(self.put_blob(&bytes).await?))
    }

    /// Returns the bytes of a value, inline or stored.
    pub async fn read_inline_or_stored(&self, blob: &InlineOrStoredBytes) -> Result<Vec<u8>, Fault> {
        match blob {
            InlineOrStoredBytes::Inline(bytes) => Ok(bytes.to_vec()),
            InlineOrStoredBytes::Stored(stored) => {
                self.get_with_size(&stored.sha256, Some(stored.size)).await
            }
        }
    }
}
