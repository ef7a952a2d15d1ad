//! Contents that are read part by part, because they may be larger than the memory of a worker.

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use millrace_protocol::wire::BlobRef;

use super::{FileEntry, FilesError};

/// A content that is read part by part.
pub trait ContentStream: Send {
    /// Returns the next part; `None` after the last one.
    ///
    /// # Errors
    /// The content is damaged, or reading failed. The caller discards the earlier parts.
    fn next_part(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, FilesError>>;
}

/// A file whose content is read part by part.
pub struct OpenFile {
    pub entry: FileEntry,
    pub content: Box<dyn ContentStream>,
}

/// A content that is in the blob store of the cluster.
pub struct StoredContent {
    /// Its address.
    pub blob: BlobRef,
    /// The content itself.
    pub content: Box<dyn ContentStream>,
}

/// A content in memory, as one part.
pub struct InMemoryContent(Option<Bytes>);

impl InMemoryContent {
    /// The content.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Some(Bytes::from(bytes)).filter(|bytes| !bytes.is_empty()))
    }
}

impl ContentStream for InMemoryContent {
    fn next_part(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, FilesError>> {
        ready(Ok(self.0.take())).boxed()
    }
}

/// Reads a content as a whole.
///
/// # Errors
/// It can't be read, or has more than `max` bytes: [`FilesError::Broken`].
pub async fn read_whole_content(content: &mut dyn ContentStream, max: u64) -> Result<Vec<u8>, FilesError> {
    let mut bytes = Vec::new();
    while let Some(part) = content.next_part().await? {
        if (bytes.len() + part.len()) as u64 > max {
            return Err(FilesError::Broken(format!("the content has more than {max} bytes")));
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}
