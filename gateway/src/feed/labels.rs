//! The labels of the run of a message.

use millrace_protocol::labels::Labels;
use millrace_runtime::{Bus, Fault};

use super::message::LaneMessage;
use crate::history::HistoryCache;
use crate::run_index::RunIndex;

/// Returns the labels of a run: from its summary, its first decision, or its history.
pub async fn read_labels(
    bus: &Bus,
    index: &RunIndex,
    histories: &HistoryCache,
    message: &LaneMessage,
) -> Result<Labels, Fault> {
    if let Some(run) = index.find(&message.run) {
        return Ok(run.summary.labels.clone());
    }
    if message.is_decision()
        && let Ok(content) = message.content(bus).await
        && let Some(labels) = &content.labels
    {
        return Ok(labels.clone());
    }
    let state = histories.read(bus, &message.run).await?;
    Ok(state.plan().run.start.as_ref().map(|start| start.labels.clone()).unwrap_or_default())
}
