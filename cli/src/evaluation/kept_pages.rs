//! The web pages that a result cites, as they were when they were read. Their texts are in the blob store of the cluster.

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use millrace_agent::corpus::Corpus;
use millrace_agent::session::{AgentHost, HostSettings};
use millrace_agent::sources::{OrderInputError, OrderInputs};
use millrace_protocol::result::TaskResult;
use millrace_protocol::work::InputResult;
use millrace_runtime::Bus;

/// The blob store, as the source of kept texts.
struct KeptTexts(Bus);

impl OrderInputs for KeptTexts {
    fn read_result<'a>(
        &'a self,
        input: &'a InputResult,
    ) -> BoxFuture<'a, Result<TaskResult, OrderInputError>> {
        ready(Err(OrderInputError::Broken(format!("the result of task {} is no text", input.task)))).boxed()
    }

    fn read_blob<'a>(&'a self, sha256: &'a str) -> BoxFuture<'a, Result<Vec<u8>, OrderInputError>> {
        let reading = self.0.blobs().get(sha256);
        reading
            .map(|read| {
                read.map_err(|fault| match fault.is_transient() {
                    true => OrderInputError::Unavailable(fault.to_string()),
                    false => OrderInputError::Broken(fault.to_string()),
                })
            })
            .boxed()
    }
}

/// Returns the documents together with the web pages that a result cites. A page whose text is missing is left out.
pub async fn add_cited_pages(bus: &Bus, documents: &Corpus, result: &TaskResult) -> anyhow::Result<Corpus> {
    let host = AgentHost::new(HostSettings::default())?;
    let pages = host.open_sources_of_result(None, result, &KeptTexts(bus.clone())).await?;
    let pages = pages.iter().flat_map(|pages| pages.documents_and_pages()).cloned().map(Into::into);
    Ok(documents.with_pages(pages.collect()))
}
