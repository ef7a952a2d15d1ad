//! Bytes in the blob store.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// The maximum size of a blob in bytes that is read as a whole: four times that of the largest document. A reader holds
/// such a blob in memory, and anyone who may write blobs can name any size.
pub const MAX_BLOB: u64 = 128 * 1024 * 1024;
/// The maximum size of a blob in bytes that is only streamed: 4 GiB.
pub const MAX_STREAMED_BLOB: u64 = 4 * 1024 * 1024 * 1024;

/// A value that is inline or in the blob store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum InlineOrStoredBytes {
    /// Inline.
    Inline(ByteBuf),
    /// In the blob store.
    Stored(BlobRef),
}

/// The address of bytes in the blob store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobRef {
    /// Their SHA-256 in hexadecimal, which is their name in the store.
    pub sha256: String,
    /// Their number.
    pub size: u64,
}
