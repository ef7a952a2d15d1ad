//! Reads a stream again and again, each time what was added since.

use async_nats::Client;

use super::direct_get::PagedReader;
use super::record::StreamRecord;
use crate::Fault;

/// The sequence from which on a pass begins with single messages: the stream may have so many subjects that a page costs a server as
/// much time as ten of them.
const MANY: u64 = 50_000;

/// The messages of a stream from a sequence on, read in passes: each pass ends with the last message of its time. A pass with few
/// messages costs a server little, however many subjects the stream has.
pub(crate) struct StreamTail {
    stream: String,
    filter: String,
    /// The sequence after the last message that was read.
    next: u64,
    /// The pass in progress.
    pages: Option<PagedReader>,
}

impl StreamTail {
    /// Starts at sequence `from`.
    pub fn new(stream: String, filter: String, from: u64) -> Self {
        Self { stream, filter, next: from.max(1), pages: None }
    }

    /// The sequence up to which messages were read.
    pub fn seen(&self) -> u64 {
        self.next - 1
    }

    /// Continues after a sequence, with a new pass.
    pub fn continue_after(&mut self, sequence: u64) {
        self.next = sequence + 1;
        self.pages = None;
    }

    /// Returns the next messages, oldest first; none at the end of a pass. The call after that starts the next pass.
    ///
    /// # Errors
    /// The server does not respond. The next call continues after the messages that were returned.
    pub async fn next_page(&mut self, client: &Client) -> Result<Vec<StreamRecord>, Fault> {
        let Self { stream, filter, next, pages } = self;
        let reader = pages.get_or_insert_with(|| {
            let reader = PagedReader::new(client, stream.clone(), filter.clone(), *next);
            if *next < MANY { reader } else { reader.with_single_reads() }
        });
        let records = reader.next_page().await?;
        match records.last() {
            Some(last) => self.next = last.sequence + 1,
            None => self.pages = None,
        }
        Ok(records)
    }
}
